"""The tools that build the notebooks, open them, set up the environment, and train and describe models."""

import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
from dataclasses import asdict
from pathlib import Path

import build_notebooks
import model_card
import nbformat
import open_lab
import pytest
import ship_checkpoint
import torch
import train_on_gpu
from PIL import Image

from vitlib import checkpoint, vit_cifar
from vitlib.data import CIFAR10_CLASSES, shapes
from vitlib.training import TrainingConfig, evaluate

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


# --- training on another machine ----------------------------------------------------------------------------

# Runs train_on_gpu.py as another process would, with little data and two steps; KILLED_AT ends it before one.
TRAIN_THERE = """
    import os, runpy, signal, sys
    import einops, platformdirs
    from vitlib import data, training

    data._PER_CLASS, data._VALIDATION_PER_CLASS = {"train": 3, "test": 1}, 1
    training.SAVE_EVERY = -1
    training.steps_in = lambda *_: 2
    training_step = training.training_step

    def step_or_die(model, optimizers, batches, run, config):
        if str(run.step) == os.environ.get("KILLED_AT"):
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return training_step(model, optimizers, batches, run, config)

    training.training_step = step_or_die
    print([os.path.dirname(module.__file__) for module in (einops, platformdirs, training)])
    sys.argv[:] = ["train_on_gpu.py", "train", "--minutes", "1"]
    runpy.run_path("train_on_gpu.py", run_name="__main__")
"""


def test_train_on_gpu_takes_along_all_it_needs(tmp_path):
    """An archive that lacks a module or the pictures, or that finds them only where it was packed; a run that
    is not saved where OUT says, begins afresh after a stop, or leaves a model that is too large to ship.
    """
    for part, number in {"train": 3, "test": 1}.items():
        for label, name in enumerate(CIFAR10_CLASSES):
            (tmp_path / "pictures" / part / name).mkdir(parents=True)
            for i in range(number):
                picture = Image.new("RGB", (32, 32), (25 * label, 80 * i, 100))
                picture.save(tmp_path / "pictures" / part / name / f"{i}.jpg")
    train_on_gpu.pack(tmp_path / "gpu.tar.xz", tmp_path / "pictures")
    there, out = tmp_path / "there", tmp_path / "a run"
    with tarfile.open(tmp_path / "gpu.tar.xz") as archive:
        archive.extractall(there, filter="data")
    shutil.rmtree(tmp_path / "pictures")

    environment = {**os.environ, "OUT": str(out), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment |= {"VITLIB_DATA": "", "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}

    def train_there(**more):
        command = [sys.executable, "-c", textwrap.dedent(TRAIN_THERE)]
        return subprocess.run(
            command, cwd=there, env=environment | more, capture_output=True, text=True, timeout=300
        )

    killed = train_there(KILLED_AT="1")
    assert killed.returncode in (-9, 15), killed.stderr
    assert str([str(there / name) for name in ("einops", "platformdirs", "vitlib")]) in killed.stdout
    assert checkpoint.load(out / "model.safetensors").notes["steps"] == 1
    done = train_there()
    assert done.returncode == 0, done.stderr
    assert "Going on from step 1 of 2" in done.stdout and "% of the validation pictures" in done.stdout
    loaded = checkpoint.load(out / "model.safetensors")
    assert loaded.notes["steps"] == 2 and (out / "history.csv").exists()
    config = loaded.model.config
    assert (config["pool"], config["positional"], config["patch_size"]) == ("class", "learned", (4, 4))
    checkpoint.save(
        tmp_path / "half.safetensors", loaded.model, loaded.classes, loaded.mean, loaded.std, torch.float16
    )
    assert (tmp_path / "half.safetensors").stat().st_size < 8e6


def test_train_on_gpu_says_what_is_not_set(monkeypatch, capsys, tmp_path):
    """A run into the current folder, or an archive without pictures."""
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.setenv("VITLIB_DATA", str(tmp_path))
    for arguments, said in [
        (["train"], "OUT must name the folder"),
        (["pack", str(tmp_path / "x")], f"train/ and test/; it is '{tmp_path}'"),
    ]:
        monkeypatch.setattr(sys, "argv", ["train_on_gpu.py", *arguments])
        with pytest.raises(SystemExit):
            train_on_gpu.main()
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_training_in_parts_goes_on_from_the_weights_before(tmp_path):
    """A second part from a random start; its log without the first; steps that begin at 1 again."""
    data, model = shapes("train", 30), vit_cifar(embed_dim=12, depth=1, num_heads=2)
    configs = [
        TrainingConfig(epochs=2, batch_size=10, evaluations=2, device="cpu"),
        TrainingConfig(epochs=1, batch_size=10, learning_rate=1e-12, muon_learning_rate=1e-12, seed=1),
    ]
    folders = ship_checkpoint.train_in_parts(model, data, data, configs, tmp_path)
    first, second = (checkpoint.load(folder / "model.safetensors") for folder in folders)
    for one, two in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    rows = ship_checkpoint.whole_history(folders)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [row["epoch"] for row in rows[::3]] == pytest.approx([1 / 3, 4 / 3, 7 / 3])
    assert [row["minutes"] for row in rows] == sorted(row["minutes"] for row in rows)
    card = model_card.in_parts([asdict(config) for config in configs])
    assert card.index("`epochs`: 2") < card.index("Part 2, from") < card.index("`epochs`: 1")
    assert all(map(ship_checkpoint.is_finished, folders))
    shutil.copy(folders[0] / "model.safetensors", folders[1])
    assert not ship_checkpoint.is_finished(folders[1])  # 6 steps of 3


def test_parts_of_the_shipped_recipe(monkeypatch):
    """A second part that whitens again would undo what the first has learned; with its seed it would see the
    same changes of the same pictures.
    """
    monkeypatch.setattr(ship_checkpoint, "cifar10", lambda split: split)
    *_, (first, *later) = ship_checkpoint.recipe("cifar10")
    assert first.whiten and not any(config.whiten for config in later)
    assert len({config.seed for config in (first, *later)}) == 1 + len(later)


def test_weights_are_measured_as_they_are_shipped(tmp_path, monkeypatch, capsys):
    """An accuracy of the weights before they are rounded, or files of two models."""
    seen = []
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path)
    monkeypatch.setattr(model_card, "SHIPPED", tmp_path)

    def measured(model, *rest):
        seen.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        return evaluate(model, *rest)

    monkeypatch.setattr(ship_checkpoint, "evaluate", measured)
    data = shapes("train", 30)
    model = vit_cifar(embed_dim=12, depth=1, num_heads=2)
    configs = [TrainingConfig(epochs=1, batch_size=10, device="cpu", seed=seed) for seed in (0, 1)]
    ship_checkpoint.ship("shapes", ship_checkpoint.train_in_parts(model, data, data, configs, tmp_path))
    assert torch.equal(seen[0], seen[0].half().float()) and "test accuracy" in capsys.readouterr().out
    loaded = checkpoint.load(tmp_path / "shapes.safetensors")
    assert loaded.notes["steps"] == 6 and loaded.notes["training"]["seed"] == 1
    assert [training["seed"] for training in loaded.notes["trained_before"]] == [0]
    assert len((tmp_path / "shapes.csv").read_text().splitlines()) == 7
    assert (tmp_path / "shapes_confusion.csv").exists()


# --- the model card -----------------------------------------------------------------------------------------


def test_the_model_card_says_what_its_files_say():
    """A new checkpoint with the card of an old one, or a number that was edited by hand."""
    again = "Run: python tools/model_card.py"
    assert model_card.CARD.read_text(encoding="utf-8") == model_card.card(), again


CONFUSION = torch.tensor([[5, 3, 0], [0, 8, 0], [1, 1, 6]])


def test_confusions_are_kept_and_belong_to_their_model(tmp_path, monkeypatch):
    """True and predicted classes swapped, or the errors of another model."""
    monkeypatch.setattr(model_card, "SHIPPED", tmp_path)
    model_card.write_confusion("toy", CONFUSION, ["cat", "dog", "fox"])
    lines = (tmp_path / "toy_confusion.csv").read_text().splitlines()
    assert lines == ["class,cat,dog,fox", "cat,5,3,0", "dog,0,8,0", "fox,1,1,6"]
    accuracy = {"cat": 0.625, "dog": 1.0, "fox": 0.75}
    confusion = model_card.read_confusion("toy", accuracy)
    assert confusion["cat"] == {"cat": 5, "dog": 3, "fox": 0}
    assert model_card.by_class(confusion).splitlines()[2:] == [
        "| cat | 5 of 8 | dog (3) |", "| dog | 8 of 8 | nothing |", "| fox | 6 of 8 | cat (1) |"
    ]  # fmt: skip
    assert model_card.what_it_gets_wrong(confusion).startswith("5 pictures are wrong.")
    assert "errors: cat taken for dog (3), fox taken for cat (1)" in model_card.what_it_gets_wrong(confusion)
    with pytest.raises(ValueError, match="different models.*--measure toy"):
        model_card.read_confusion("toy", {**accuracy, "fox": 0.625})


def test_training_is_told_in_words():
    """A setting that was renamed, a share that is not in percent, or something told that was not used."""
    assert model_card.IN_WORDS.keys() <= asdict(TrainingConfig(epochs=1)).keys()
    plain = model_card.training_in_words(asdict(TrainingConfig(epochs=1, flip=False, shift=0)))
    assert plain.splitlines() == [
        "The optimizer is Muon for the blocks' matrices and AdamW for the rest. Learning rates rise over the "
        "first 5 % of the steps, then fall to 0 along half a cosine."
    ]
    more = {"whiten": True, "label_smoothing": 0.1, "trivial_augment": 0.5, "cutmix": 1}
    config = TrainingConfig(epochs=1, image_sizes=((0.5, (16, 24)),), **more)
    told = model_card.training_in_words(asdict(config)).splitlines()[1:]
    assert told[0] == "Until 50 % of the steps, the pictures were 16x24 pixels."
    assert [line.split(" (")[0] for line in told[1:]] == [
        "The patch embedding began from the statistics of the pictures.",
        "About half of the pictures were mirrored.",
        "Each picture was moved by up to 4 pixels each way.",
        "About 50 % of the pictures were changed by a random operation",
        "In about 100 % of the batches a piece of another picture was pasted in",
        "10 % of each label was spread over all classes",
    ]
