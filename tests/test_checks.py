"""The frame of the exercise checks, and the check of lesson 00."""

import random
import statistics
from importlib import import_module

import pytest
import torch

from vitlib import checks
from vitlib.checks import TODO, NotYet, check, equal, reached, unchanged


def said(capsys):
    return capsys.readouterr().out


@pytest.mark.parametrize("answer", [196, 196.0, (224 // 16) ** 2, torch.tensor(196)])
def test_number_of_patches(capsys, answer):
    """A right answer of another type that is refused."""
    checks.value("number of patches", answer)
    assert said(capsys).startswith("[ok]")


@pytest.mark.parametrize("answer, words", [
    (14, "along one side"), (256, "one patch holds"), (768, "one patch holds"), (197, "class token"),
    (64, "32×32"), (50176, "pixels"), (3, "not it"), ("196", "number itself"), ([196], "number itself"),
    ((14, 14), "number itself"),
])  # fmt: skip
def test_wrong_numbers_of_patches(capsys, answer, words):
    """A wrong answer that passes, or that gets a diagnosis of another mistake."""
    checks.value("number of patches", answer)
    text = said(capsys)
    assert text.startswith("[not yet]") and words in text


@pytest.mark.parametrize("answer", [TODO, None, ...])
def test_unfilled(capsys, answer):
    """An exercise that was not begun called wrong, or an error that stops Run All."""
    checks.value("number of patches", answer)
    assert said(capsys) == "[todo] number of patches: not done yet.\n"


@check("double")
def check_double(answer):
    x = torch.randn(3)
    equal("double(x)", answer(x), 2 * x, diagnoses=[(x + 2, "that adds 2.")])
    return "twice the number."


def double(x):
    return x + x


def test_use_hands_back_the_right_one(capsys):
    """A wrong answer that the notebook goes on with, or a right one that it drops."""

    def mine(x):
        return 2 * x

    assert checks.use(mine, double) is mine
    assert checks.use(lambda x: x, double) is double
    assert checks.use(lambda x: TODO, double) is double
    assert "[ok]" in said(capsys)


def test_words_and_the_learners_line(capsys):
    """A diagnosis of another mistake; a traceback, or a line of torch in place of the learner's."""

    def adds(x):
        return x + 2

    def fails(x):
        return torch.cat([x, x[None]])  # the line to show

    checks.use(adds, double)
    assert "that adds 2" in said(capsys)
    checks.use(fails, double)
    assert "the line to show" in said(capsys)


def test_nothing_given_back_is_no_open_exercise(capsys):
    """A forgotten return, or a forward that is misspelt, taken for an exercise that was not begun."""
    checks.use(lambda x: None, double)
    assert "Does it end with return?" in said(capsys)
    checks.use(torch.nn.Module(), double)
    assert "[not yet] double" in (text := said(capsys)) and "forward" in text


def test_an_answer_that_the_check_cannot_use(capsys, monkeypatch):
    """The learner's code blamed for an error in the check; a line of the library shown as the learner's."""
    monkeypatch.setitem(checks._checks, "wide", "{:,}".format)
    checks.value("wide", "12")
    assert "could not use what your code gives back: ValueError" in said(capsys)

    def double():
        return statistics.fmean([])  # the line to show

    checks.use(lambda x: double(), double)
    assert "your code stopped with" in (text := said(capsys)) and "the line to show" in text


@pytest.mark.parametrize("lesson", checks.LESSONS[1:])
def test_each_exercise_is_tried_with_wrong_and_right_answers(lesson):
    """A new exercise whose check nobody has tried to mislead. (Questions have no name of Python's.)"""
    tests = import_module(f"test_checks_{lesson}")
    of_lesson = [name for name, how in checks._checks.items() if how.__module__.endswith(f".{lesson}")]
    exercises = {name for name in of_lesson if name.isidentifier()}
    assert exercises and exercises == set(tests.WRONG) == set(tests.RIGHT)
    for name in exercises:
        assert len(tests.WRONG[name]) >= 3 and len(tests.RIGHT[name]) >= 2, name


def test_changed_inputs_are_noticed():
    """An answer that spoils the tensors of the cells below it."""
    x = torch.ones(3)
    assert torch.equal(unchanged(lambda x: x + 1, x), x + 1)
    with pytest.raises(NotYet, match="changes the tensor"):
        unchanged(lambda x: x.add_(1), x)
    assert torch.equal(x, torch.ones(3))


def test_gradients_that_do_not_arrive_are_noticed():
    """An answer that looks right and can never learn."""
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    reached("it", a * b, {"a": a, "b": b})
    for result, words in ((a * b.detach(), "reaches b"), ((a * b).detach(), "no gradient flows")):
        with pytest.raises(NotYet, match=words):
            reached("it", result, {"a": a, "b": b})


def test_equal_says_what_is_wrong():
    """Another type, shape or value that passes."""
    want = torch.zeros(2)
    for got, words in (([0, 0], "list"), (torch.zeros(3), "shape"), (torch.ones(2), "largest difference"),
                       (want.double(), "float64")):  # fmt: skip
        with pytest.raises(NotYet, match=words):
            equal("it", got, want)
    equal("it", torch.full((2,), 1e-7), want)


def test_chance_is_the_learners_own(capsys):
    """A check that changes the numbers of the cells below it."""
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    checks.use(double, double)
    assert torch.equal(torch.rand(1), expected)


def test_chance_of_python_is_the_learners_own(monkeypatch):
    """Sizes that are drawn with the learner's own seed, or a check that changes the learner's numbers."""
    drawn = []
    monkeypatch.setitem(checks._checks, "draws", lambda answer: drawn.append(random.random()))
    for _ in range(2):
        random.seed(0)
        checks.value("draws", 1)
        assert random.random() == random.Random(0).random()
    assert drawn[0] != drawn[1]


def test_progress(capsys, monkeypatch, tmp_path):
    """A wrong answer that counts, a right one that is forgotten."""
    monkeypatch.setenv("VITLIB_PROGRESS", str(tmp_path / "new"))
    checks.value("number of patches", 3)
    said(capsys)
    checks.progress()
    assert said(capsys) == "No exercise has been solved on this machine yet.\n"
    checks.value("number of patches", 196)
    checks.value("number of patches", 3)  # tried again later: it has passed once
    said(capsys)
    checks.progress()
    first, second, *rest = said(capsys).splitlines()
    assert first == "00 start_here            1 of 1 done"
    assert second.startswith("01 patch_embedding       0 of ") and "open: " in second
    assert all(name in " ".join([second, *rest]) for name in ("patchify", "PrefixTokens", "rollout"))
    assert max(map(len, [second, *rest])) <= 100


def test_progress_that_cannot_be_kept(capsys, monkeypatch, tmp_path):
    """A right answer that stops with an error because the folder cannot be written."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITLIB_PROGRESS", str(tmp_path / "file"))
    checks.value("number of patches", 196)
    assert said(capsys).startswith("[ok]")
