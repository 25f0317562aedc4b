"""The tools that build the notebooks, open them, and set up the environment."""

import os
import shutil
import subprocess
from pathlib import Path

import build_notebooks
import nbformat
import open_lab
import pytest

ROOT = Path(__file__).resolve().parents[1]

LESSON = """# %% [markdown]
# # A small lesson

# %%
from ipywidgets import IntSlider

print("twice", 1 + 1)

# %%
print("twice", 1 + 1)
IntSlider()

# %% tags=["raises-exception"]
1 / 0


# %% jupyter={"source_hidden": true} tags=["solution"]
# Solution
def two():
    return 2
# %%
two()
"""


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """An empty folder of lessons, in the place of notebooks/."""
    monkeypatch.setattr(build_notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(build_notebooks, "SOURCES", tmp_path / "src")
    (tmp_path / "src").mkdir()
    return tmp_path


def test_a_lesson_is_built_checked_and_written_back(lessons):
    """A notebook that keeps what belongs to one run: ids, paths, widgets; an edit overlooked or lost."""
    source, path = lessons / "src" / "01_small.py", lessons / "01_small.ipynb"
    source.write_text(LESSON)
    build_notebooks.build("01_small")
    first = path.read_bytes()
    notebook = nbformat.read(path, 4)
    assert [cell.get("execution_count") for cell in notebook.cells] == [None, 1, 2, 3, 4, 5]
    assert notebook.cells[1].outputs[0].text == "twice 2\n"
    assert "application/vnd.jupyter.widget-view+json" not in notebook.cells[2].outputs[-1].data
    assert notebook.cells[3].outputs[0].traceback == ["ZeroDivisionError: division by zero"]
    assert notebook.cells[4].metadata == {"jupyter": {"source_hidden": True}, "tags": ["solution"]}
    assert [path.name for path in lessons.iterdir() if path.suffix == ".part"] == []
    build_notebooks.check("01_small")
    build_notebooks.build("01_small")
    assert path.read_bytes() == first

    build_notebooks.update_source(path)
    assert source.read_text() == LESSON
    notebook.cells[1].source = 'print("thrice", 3)'
    notebook.cells[1].metadata = {"editable": True, "slideshow": {"slide_type": ""}, "tags": []}
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match="cell 1 "):
        build_notebooks.check("01_small")
    build_notebooks.update_source(path)
    before, after = LESSON.partition("from ipywidgets")[0], LESSON.partition("1 + 1)\n")[2]
    assert source.read_text() == before + 'print("thrice", 3)\n' + after


def test_a_failing_cell_is_named_and_nothing_is_written(lessons):
    (lessons / "src" / "01_small.py").write_text("# %%\nx = 1\n\n# %%\ny = 1 / 0\n")
    with pytest.raises(ValueError, match=r"01_small: cell 1 \('y = 1 / 0'\)(.|\n)*ZeroDivisionError"):
        build_notebooks.build("01_small")
    assert [path.name for path in lessons.iterdir()] == ["src"]


@pytest.mark.parametrize("spoil, words", [
    (lambda notebook: notebook.cells.pop(), "1 cells in the notebook, 2"),
    (lambda notebook: notebook.cells[1].update(execution_count=None), "not every cell was run"),
    (lambda notebook: notebook.cells[0].update(execution_count=3), "not every cell was run"),
    (lambda notebook: notebook.cells[0].metadata.update(tags=["exercise"]), "differ from cell 0"),
])  # fmt: skip
def test_check_finds(lessons, spoil, words):
    (lessons / "src" / "01_small.py").write_text("# %%\nx = 1\n\n# %%\nx + 1\n")
    with pytest.raises(ValueError, match="no notebook"):
        build_notebooks.check("01_small")
    notebook = build_notebooks.read_source(lessons / "src" / "01_small.py")
    for count, cell in enumerate(notebook.cells, 1):
        cell.execution_count = count
    nbformat.write(notebook, lessons / "01_small.ipynb")
    build_notebooks.check("01_small")
    spoil(notebook)
    nbformat.write(notebook, lessons / "01_small.ipynb")
    with pytest.raises(ValueError, match=words):
        build_notebooks.check("01_small")


def test_a_misspelt_lesson_is_refused(lessons, capsys):
    (lessons / "src" / "01_small.py").write_text("# %%\n")
    with pytest.raises(SystemExit):
        build_notebooks.main(["--check", "01_smal"])
    assert "01_small" in capsys.readouterr().err


def test_copies_are_made_where_missing_and_never_overwritten(tmp_path):
    """A learner's work that is lost, or half a notebook that is taken for a whole one."""
    originals, copies = tmp_path / "notebooks", tmp_path / "my_notebooks"
    originals.mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (originals / name).write_text("original")
        (originals / name).chmod(0o444)
    assert open_lab.copy_missing(originals, copies) == ["00_a.ipynb", "01_b.ipynb"]
    (copies / "00_a.ipynb").write_text("my work")
    (copies / "01_b.ipynb").unlink()
    (copies / "01_b.ipynb.part").write_text("half")
    assert open_lab.copy_missing(originals, copies) == ["01_b.ipynb"]
    assert sorted(path.name for path in copies.iterdir()) == ["00_a.ipynb", "01_b.ipynb"]
    assert (copies / "00_a.ipynb").read_text() == "my work"
    assert (copies / "01_b.ipynb").read_text() == "original"
    assert open_lab.copy_missing(originals, copies) == []


# A Python that makes an environment out of itself, and writes down what it is asked for.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
  "-m venv --clear .venv") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/pip ;;
  "-m pip show --quiet pip") test -e .venv/pip; exit ;;
  "-c "*) test -e old && { echo "too old" >&2; exit 1; }; exit 0 ;;
  "-m pip install "*) test -e offline && exit 1 ;;
esac
echo "$*" >> calls
"""


@pytest.mark.skipif(not shutil.which("make"), reason="needs make; on Windows the README says how without")
def test_make_sets_up_once(tmp_path):
    """An environment made twice, kept when it is broken or stale, or taken for ready before it is."""
    folder = tmp_path / "a folder é"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").write_text("")
    python = folder / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)

    def make(*arguments):
        """Whether make succeeds, and what it asked of Python."""
        (folder / "calls").write_text("")
        done = subprocess.run(["make", *arguments, "PYTHON=./python"], cwd=folder, capture_output=True)
        return done.returncode == 0, (folder / "calls").read_text().splitlines()

    venv, lab, test = "-m venv --clear .venv", "tools/open_lab.py", "-m pytest"
    install_lab, install_test = "-m pip install --editable .", "-m pip install --editable .[test]"

    (folder / "old").touch()
    assert make("lab") == (False, [])
    (folder / "old").unlink()
    (folder / "offline").touch()
    assert make("lab") == (False, [venv])
    (folder / "offline").unlink()
    assert make("lab") == (True, [install_lab, lab])  # goes on where it stopped
    assert make("lab", "ARGS=--no-browser") == (True, [lab + " --no-browser"])
    assert make("test") == (True, [install_test, test])
    assert make("lab") == (True, [lab])
    assert make("test", "ARGS=tests/test_vit.py") == (True, [test + " tests/test_vit.py"])
    newer = os.stat(folder / ".venv/ready-test").st_mtime + 10
    os.utime(folder / "pyproject.toml", (newer, newer))
    assert make("lab")[1] == [install_test, lab]
    (folder / ".venv/pip").unlink()
    (folder / ".venv/ready-test").unlink()
    assert make("test") == (True, [venv, install_test, test])
    assert make("clean") == (True, [])
    assert not (folder / ".venv").exists()
    assert make() == (True, [])  # help changes nothing
    assert not (folder / ".venv").exists()
