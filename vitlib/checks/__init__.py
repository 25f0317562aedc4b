"""Checks of the exercises. They print what is right or wrong and never raise: "Run All" goes on to the end.

    rollout = checks.use(rollout, attention_maps.rollout)

hands back the learner's function if it is right, and otherwise vitlib's, so that the cells below work either
way. The judgement itself (one module for each lesson) compares with an independent way to compute the same
thing, on random sizes and values from a fresh seed.
"""

import contextlib
import json
import linecache
import os
import traceback
from importlib import import_module
from pathlib import Path

import platformdirs
import torch

from vitlib.checkpoint import write_whole


class _Todo:
    """What an unfilled exercise returns."""

    def __repr__(self):
        return "TODO"


TODO = _Todo()


class NotYet(Exception):
    """An answer that is not right yet, with a diagnosis that a learner can act on."""


_checks = {}
_PACKAGE = str(Path(__file__).parents[1])


def check(name):
    """Register a function as the check called `name`.

    It takes the answer, raises `NotYet` if that is wrong, and otherwise tells in words what was verified.
    """

    def register(function):
        assert name not in _checks, f"two checks are called {name!r}"
        _checks[name] = function
        return function

    return register


def use(answer, reference):
    """Check a learner's function or class and say what was found; give it back if right, else `reference`."""
    if _judge(reference.__name__, answer):
        return answer
    print("Until it is right, the notebook goes on with vitlib's own.")
    return reference


def value(name, answer):
    """Check a learner's number or text: the answer to a question, not a function."""
    _judge(name, answer)


def progress():
    """Print how many exercises of each lesson have passed on this machine, and which comes next."""
    passed = _passed()
    if not passed:
        print("No exercise has been solved on this machine yet.")
        return
    for number, lesson in enumerate(LESSONS):
        names = [name for name, function in _checks.items() if function.__module__ == f"{__name__}.{lesson}"]
        left = [name for name in names if name not in passed]
        done = f"{number:02} {lesson:20} {len(names) - len(left)} of {len(names)} done"
        print(f"{done}, next: {left[0]}" if left else done)


def _progress_file():
    folder = os.environ.get("VITLIB_PROGRESS") or platformdirs.user_data_dir("vitlib", appauthor=False)
    return Path(folder) / "passed.json"


def _passed():
    """The names of the checks that have passed on this machine, in any notebook."""
    try:
        return json.loads(_progress_file().read_text())
    except (OSError, ValueError):  # none yet, or a file that something else has damaged
        return []


def _judge(name, answer):
    """Run one check, print its result, and tell whether the answer is right."""
    try:
        with torch.random.fork_rng():
            torch.seed()  # other numbers at every try: an answer cannot pass by luck twice
            _need(answer)
            verified = _checks[name](answer)
    except NotImplementedError:
        print(f"[todo] {name}: not done yet.")
    except NotYet as problem:
        print(f"[not yet] {name}: {problem}")
    except Exception as error:
        stopped = f"your code stopped with {type(error).__name__}: {error}"
        print(f"[not yet] {name}: {stopped}{_learners_line(error)}")
    else:
        with contextlib.suppress(OSError):  # a right answer is right where nothing can be written, too
            write_whole(_progress_file(), json.dumps(sorted({*_passed(), name})).encode())
        print(f"[ok] {name}: {verified}")
        return True
    return False


def _learners_line(error):
    """The last line of the learner's own code in a traceback, not torch's and not this file's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "site-packages" not in frame.filename and not frame.filename.startswith(_PACKAGE):
            line = (frame.line or linecache.getline(frame.filename, frame.lineno)).strip()
            return f"\n          in your line {frame.lineno}: {line}"
    return ""


def _need(got):
    """An answer that was not written yet ends the check without a verdict."""
    if got is TODO or got is None or got is ...:
        raise NotImplementedError


def equal(what, got, want, tolerance=1e-5, diagnoses=()):
    """Compare a learner's tensor with the right one.

    `diagnoses` are pairs (wrong tensor, words): where the learner's numbers are those of a known mistake, the
    words say which.
    """
    _need(got)
    if not torch.is_tensor(got):
        raise NotYet(f"{what} should be a tensor, but it is of type {type(got).__name__}.")
    if got.shape != want.shape:
        raise NotYet(f"{what} should have shape {tuple(want.shape)}, but it has {tuple(got.shape)}.")
    if _close(got, want, tolerance):
        return
    for wrong, words in diagnoses:
        if got.shape == wrong.shape and _close(got, wrong, tolerance):
            raise NotYet(f"{what}: {words}")
    difference = (got.float() - want.float()).abs().max().item()
    raise NotYet(f"{what} has the right shape but wrong numbers: the largest difference is {difference:.3g}.")


def _close(a, b, tolerance):
    return torch.allclose(a.float(), b.float(), atol=tolerance, rtol=tolerance)


LESSONS = (
    "start_here",
    "patch_embedding",
    "class_token",
    "positional_encoding",
    "attention",
    "encoder",
    "vit",
    "training",
    "attention_maps",
)
for _lesson in LESSONS:
    import_module(f"vitlib.checks.{_lesson}")
