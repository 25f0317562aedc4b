"""Checks of the exercises. They print what is right or wrong and never raise: "Run All" goes on to the end.

    rollout = checks.use(rollout, attention_maps.rollout)

hands back the learner's function if it is right, and otherwise vitlib's, so that the cells below work either
way. The judgement itself (one module for each lesson) compares with an independent way to compute the same
thing, on random sizes and values from a fresh seed.
"""

import contextlib
import linecache
import os
import random
import sysconfig
import textwrap
import traceback
from importlib import import_module
from pathlib import Path

import platformdirs
import torch


class _Todo:
    """What an unfilled exercise returns."""

    def __repr__(self):
        return "TODO"


TODO = _Todo()


class Unfilled(Exception):
    """An exercise that nobody has begun: not wrong, only open."""


class NotYet(Exception):
    """An answer that is not right yet, with a diagnosis that a learner can act on."""


_checks = {}
_NOT_THE_LEARNERS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"))


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
    """Print how many exercises of each lesson have passed on this machine, and which are open."""
    passed = _passed()
    if not passed:
        print("No exercise has been solved on this machine yet.")
        return
    for number, lesson in enumerate(LESSONS):
        names = [name for name, function in _checks.items() if function.__module__ == f"{__name__}.{lesson}"]
        left = [name for name in names if name not in passed]
        done = f"{number:02} {lesson:21} {len(names) - len(left)} of {len(names)} done"
        if left:
            done = textwrap.fill(f"{done}, open: {', '.join(left)}", 100, subsequent_indent=" " * 43)
        print(done)


def _passed_folder():
    """Each check that has passed on this machine leaves an empty file of its name here."""
    folder = os.environ.get("VITLIB_PROGRESS") or platformdirs.user_data_dir("vitlib", appauthor=False)
    return Path(folder) / "passed"


def _passed():
    """The names of the checks that have passed on this machine, in any notebook."""
    folder = _passed_folder()
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _judge(name, answer):
    """Run one check, print its result, and tell whether the answer is right."""
    chance = random.getstate()
    try:
        with torch.random.fork_rng():
            torch.seed()  # other numbers at every try: an answer cannot pass by luck twice
            random.seed()
            if answer is None:
                raise Unfilled
            need(answer)
            verified = _checks[name](answer)
    except Unfilled:
        print(f"[todo] {name}: not done yet.")
    except NotYet as problem:
        print(f"[not yet] {name}: {problem}")
    except Exception as error:
        line, said = _learners_line(error), f"{type(error).__name__}: {error}"
        stopped = "your code stopped with" if line else "the check could not use what your code gives back:"
        print(f"[not yet] {name}: {stopped} {said}{line}")
    else:
        with contextlib.suppress(OSError):  # a right answer is right where nothing can be written, too
            _passed_folder().mkdir(parents=True, exist_ok=True)
            (_passed_folder() / name).touch()
        print(f"[ok] {name}: {verified}")
        return True
    finally:
        random.setstate(chance)
    return False


def _learners_line(error):
    """The last line of the learner's own code in a traceback, not torch's and not this file's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THE_LEARNERS) and "site-packages" not in frame.filename:
            line = (frame.line or linecache.getline(frame.filename, frame.lineno)).strip()
            return f"\n          in your line {frame.lineno}: {line}"
    return ""


def need(got):
    """Without a verdict where the exercise was not begun; NotYet where it gives nothing back."""
    if got is TODO or got is ...:
        raise Unfilled
    if got is None:
        raise NotYet("your code gives nothing back (None). Does it end with return?")


def unchanged(answer, *inputs):
    """What the answer gives for these tensors; NotYet if it has changed one of them in place."""
    copies = [tensor.clone() for tensor in inputs]
    got = answer(*copies)
    if not all(torch.equal(copy, tensor) for copy, tensor in zip(copies, inputs)):
        raise NotYet(
            "your code changes the tensor that it is given, as x += y and x[0] = y do, and whoever calls it "
            "finds other numbers than before. Make a new tensor: x = x + y."
        )
    return got


def reached(what, result, tensors):
    """NotYet where no gradient comes from `result` to one of the tensors (a dict of name -> tensor)."""
    cut = "With .detach(), .data, torch.no_grad() or a way through NumPy, training cannot change anything."
    if not result.requires_grad:
        raise NotYet(f"{what} has the right numbers, but no gradient flows through it. {cut}")
    loss = (result * torch.randn_like(result)).sum()
    gradients = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    for name, gradient in zip(tensors, gradients):
        if gradient is None or not gradient.any():
            raise NotYet(f"{what}: no gradient reaches {name}. {cut}")


def equal(what, got, want, tolerance=1e-5, diagnoses=()):
    """Compare a learner's tensor with the right one.

    `diagnoses` are pairs (wrong tensor, words): where the learner's numbers are those of a known mistake, the
    words say which.
    """
    need(got)
    if not torch.is_tensor(got):
        raise NotYet(f"{what} should be a tensor, but it is of type {type(got).__name__}.")
    if got.shape != want.shape:
        raise NotYet(f"{what} should have shape {tuple(want.shape)}, but it has {tuple(got.shape)}.")
    if got.dtype != want.dtype:
        raise NotYet(
            f"{what} should be of type {want.dtype}, but it is of type {got.dtype}, which the layers after "
            f"it could not take. Begin with {want.dtype}, or convert at the end: .to({want.dtype})."
        )
    if _close(got, want, tolerance):
        return
    for wrong, words in diagnoses:
        if got.shape == wrong.shape and _close(got, wrong, tolerance):
            raise NotYet(f"{what}: {words}")
    difference = (got.float() - want.float()).abs().max().item()
    raise NotYet(f"{what} has the right shape but wrong numbers: the largest difference is {difference:.3g}.")


def explain(got, *mistakes, tolerance=1e-5):
    """Refuse an answer that is one of the known mistakes, pairs (what it gives, words)."""
    for wrong, words in mistakes:
        if alike(got, wrong, tolerance):
            raise NotYet(words)


def alike(got, want, tolerance=1e-5):
    """The same numbers up to float noise, if it is a tensor at all."""
    return (
        torch.is_tensor(got)
        and got.shape == want.shape
        and torch.allclose(got.float(), want.float(), atol=tolerance, rtol=1e-5)
    )


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
    "positional_embeddings",
)
for _lesson in LESSONS:
    import_module(f"vitlib.checks.{_lesson}")
