"""What pip, conda and a fresh clone get."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUN_TIME = PROJECT["dependencies"]
TEST = PROJECT["optional-dependencies"]["test"]
BROWSER = PROJECT["optional-dependencies"]["browser"]

# Where conda-forge, or Python's import, has another name than pip.
CONDA_NAMES = {"matplotlib": "matplotlib-base", "playwright": "playwright-python", "torch": "pytorch"}
IMPORT_NAMES = {"ipython": "IPython", "pillow": "PIL", "pyyaml": "yaml", "scikit-image": "skimage"}


def bounds(text):
    """("torch", {">=2.9", "<3"}) of "torch >=2.9,<3"."""
    requirement = Requirement(text)
    return requirement.name, {str(bound) for bound in requirement.specifier}


def test_conda_and_pip_get_the_same_requirements():
    """A requirement that is added, dropped or bounded in one file only."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    *conda, pip, link = environment["dependencies"]
    assert (pip, link) == ("pip", {"pip": ["-e ."]})
    wanted = [("python", {PROJECT["requires-python"]})]
    pip_names = map(bounds, RUN_TIME + TEST + BROWSER)
    wanted += [(CONDA_NAMES.get(name, name), limits) for name, limits in pip_names]
    assert sorted(map(bounds, conda), key=str) == sorted(wanted, key=str)


def imported(path):
    """The top-level names that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("patterns, requirements, own", [
    (["vitlib/**/*.py", "notebooks/src/*.py", "tools/open_lab.py"], RUN_TIME, {"vitlib"}),
    (["tests/*.py", "tools/*.py", "conftest.py"], RUN_TIME + TEST,
     {"vitlib", "checking", "conftest", "build_html", "build_notebooks", "open_lab", "model_card",
      "train_on_gpu", "ship_checkpoint"}),
    (["tests/browser/*.py"], RUN_TIME + TEST + BROWSER, {"vitlib", "conftest", "build_html"}),
])  # fmt: skip
def test_each_import_is_required(patterns, requirements, own):
    """A lesson or a module that works only because the test environment holds more."""
    names = [Requirement(text).name for text in requirements]
    allowed = sys.stdlib_module_names | own | {IMPORT_NAMES.get(name, name) for name in names}
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    assert paths
    extra = {str(path.relative_to(ROOT)): imported(path) - allowed for path in paths}
    assert not {path: names for path, names in extra.items() if names}


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    """Checkpoints, or a new kind of file, that stay behind when vitlib is installed elsewhere."""
    source, out = tmp_path / "source", tmp_path / "out"
    ignore = shutil.ignore_patterns("__pycache__", ".*", "*.part")
    shutil.copytree(ROOT / "vitlib", source / "vitlib", ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, source],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = out.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("vitlib/")}
    files = (path for path in (source / "vitlib").rglob("*") if path.is_file())
    assert packed == {path.relative_to(source).as_posix() for path in files}


def test_readme_names_each_lesson_and_nothing_that_is_missing():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lessons = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"\(notebooks/(\d\d_\w+\.ipynb)\)", text)) == lessons
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text) + re.findall(r'<img[^>]* src="([^"]+)"', text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_commands_in_the_readme_exist():
    """A make target or a tool that was renamed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert set(re.findall(r"(?m)(?:^|`)make ([\w-]+)", text)) <= targets
    assert [
        path
        for path in re.findall(r"tools[/\\]\w+\.py", text)
        if not (ROOT / path.replace("\\", "/")).exists()
    ] == []


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", ROOT]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
