"""How notebooks are compared: words and whole numbers exactly, decimals up to float noise.

nbval runs each notebook from top to bottom and compares what it prints with what it stores. Other processors
round otherwise, so a number with decimals may differ by one in its last printed place, or by 2e-6 of itself.
The cell tag `nbval-rtol=0.01` allows one cell more. tests/test_nbval_rules.py has examples.
"""

import os
import re
import tempfile
from pathlib import Path

import pytest

try:
    from nbval.plugin import IPyNbCell
except ImportError:  # only the notebooks need it
    IPyNbCell = None

NOISE = 2e-6
# A number with a decimal point or an exponent that is not a part of a word, a version or a file name.
# It may end a range: 1.0..3.5.
DECIMAL = re.compile(
    r"(?:(?<![\w.])|(?<=\.\.))[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?(?![\w]|\.\d)"
)

# The kernels inherit these: the vitlib of this folder, not an installed one; and a training run of seconds,
# in a folder of its own, so that it neither finds nor leaves a run, or what a learner has solved.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
os.environ.setdefault("VITLIB_MINUTES", "0.1")
RUNS = tempfile.TemporaryDirectory(prefix="vitlib-")  # removed when the tests end
os.environ["VITLIB_RUNS"] = os.environ["VITLIB_PROGRESS"] = RUNS.name


@pytest.fixture(autouse=True)
def progress_of_its_own(monkeypatch, tmp_path):
    """What one test solves is not solved in the next, or in a notebook."""
    monkeypatch.setenv("VITLIB_PROGRESS", str(tmp_path / "progress"))


def last_place(number):
    """One unit in the last printed place: 0.01 for "3.14"; None for "5." and "1e-05", without decimals."""
    mantissa, _, exponent = number.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if decimals else None


def same_number(a, b, rtol):
    places = [place for place in (last_place(a), last_place(b)) if place]
    noise = max(1.01 * min(places, default=0.0), rtol * max(abs(float(a)), abs(float(b))))
    return abs(float(a) - float(b)) <= noise


def same_text(a, b, rtol=NOISE):
    """Whether two printed texts are equal but for white space and float noise."""
    words = [re.sub(r"\s*#\s*", "#", " ".join(DECIMAL.sub("#", text).split())) for text in (a, b)]
    if words[0] != words[1]:
        return False
    return all(same_number(x, y, rtol) for x, y in zip(DECIMAL.findall(a), DECIMAL.findall(b), strict=True))


def texts(outputs):
    """The texts that nbval compares, each as (holder, key), in its groups: streams, errors, mime types."""
    groups = {}
    for output in outputs:
        if "text" in output:
            groups.setdefault(output["name"], []).append((output, "text"))
        if "evalue" in output:
            groups.setdefault("evalue", []).append((output, "evalue"))
        for mime, value in output.get("data", {}).items():
            if mime.startswith("text/") and isinstance(value, str):
                groups.setdefault(mime, []).append((output["data"], mime))
    return groups


def forgive_noise(cell, new_outputs, stored_outputs):
    """Put stored texts in the place of new ones that equal them up to noise; nbval then is strict."""
    tags = cell.cell.metadata.get("tags", [])
    rtol = next((float(tag.partition("=")[2]) for tag in tags if tag.startswith("nbval-rtol=")), NOISE)
    new, stored = texts(new_outputs), texts(stored_outputs)
    for group in new.keys() & stored.keys():
        # Where the numbers of outputs differ nbval says so itself.
        for (new_holder, key), (stored_holder, _) in zip(new[group], stored[group], strict=False):
            if same_text(cell.sanitize(stored_holder[key]), cell.sanitize(new_holder[key]), rtol):
                new_holder[key] = stored_holder[key]


if IPyNbCell is not None:
    strict_compare = IPyNbCell.compare_outputs

    def compare_outputs(self, test, ref, skip_compare=None):
        forgive_noise(self, test, ref)
        return strict_compare(self, test, ref, skip_compare)

    IPyNbCell.compare_outputs = compare_outputs

    def pytest_collection_modifyitems(items):
        for item in items:
            if isinstance(item, IPyNbCell):
                item.output_timeout = 60  # seconds; nbval's own 5 are too few on a busy machine
