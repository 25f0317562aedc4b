"""Checks of lesson 07: usual mistakes are refused in words that help, right answers pass however written."""

import math
from pathlib import Path

import jupytext
import pytest
import torch
from checking import judged_against
from torch import nn

from vitlib import VisionTransformer, checks, training, vit_cifar
from vitlib.checks import TODO
from vitlib.checks import training as lesson

REFERENCES = {
    "decayed_names": lesson.decayed_names,
    "learning_rate_factor": training.learning_rate_factor,
    "per_class_accuracy": lesson.per_class_accuracy,
}


verdict = judged_against(REFERENCES.get)


# --- loss_at_start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [math.log(100), 4.605, 4.61, torch.tensor(100.0).log(), "4.61"])
def test_right_loss_at_start(capsys, answer):
    checks.value("loss_at_start", answer)
    assert capsys.readouterr().out.startswith("[ok]")


WRONG_LOSS = {
    "for ten classes": 2.3026,
    "not math.log10": 2,
    "not math.log2": math.log2(100),
    "sign": math.log(1 / 100),
    "that is the probability": 0.01,
    "number of classes": 100,
    "5 is not it": 5,
    "nan is not it": math.nan,
    "expected a number": "ln 100",
    "expected a number, such as math.log(10), but got [4.6]": [4.6],
}


@pytest.mark.parametrize("words, answer", WRONG_LOSS.items(), ids=WRONG_LOSS)
def test_wrong_loss_at_start(capsys, words, answer):
    checks.value("loss_at_start", answer)
    said = capsys.readouterr().out
    assert said.startswith("[not yet]") and words in said


def test_loss_at_start_is_the_loss_of_equal_logits():
    """The check's own number against PyTorch: a check that demands ln 10 would pass every other test here."""
    loss = nn.functional.cross_entropy(torch.zeros(7, 100), torch.arange(7))
    assert loss.item() == pytest.approx(math.log(100))


# --- decayed_names ---------------------------------------------------------------------------------------


def by_modules(model):
    return [f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]


def by_axes(model):
    return {name for name, p in model.named_parameters() if p.ndim in (2, 4)}


def by_exclusion(model):
    kept = ("bias", "norm", "token", "positional")
    return (name for name, _ in model.named_parameters() if not any(word in name for word in kept))


WRONG_NAMES = {
    "the class token (class_token.token); the positions": lambda m: [
        n for n, p in m.named_parameters() if p.ndim >= 2
    ],
    "too many: the weights of norms (encoder.blocks.0.norm1.weight).": lambda m: [
        n for n, _ in m.named_parameters() if "weight" in n
    ],
    "biases (encoder.blocks.0.attention.output.bias)": lambda m: dict(m.named_parameters()),
    "projection.weight is missing. It has four axes": lambda m: [
        n for n, p in m.named_parameters() if p.ndim == 2
    ],
    "such as head.weight": lambda m: by_axes(m) - {"head.weight"},
    "empty": lambda m: [],
    "give the names": lambda m: [p for p in m.parameters() if p.ndim in (2, 4)],
    "has no 'tail'": lambda m: ["tail"],
    "you give one name, 'head.weight'": lambda m: "head.weight",
    "is a module, not a parameter: add '.weight'": lambda m: [
        n.removesuffix(".weight") for n in by_modules(m)
    ],
}


# --- learning_rate_factor --------------------------------------------------------------------------------


def factor_by_squares(step, total_steps, warmup):
    warmup_steps = max(1, round(warmup * total_steps))
    rise = (step + 1) / warmup_steps
    return (
        min(rise, 1) * math.cos(math.pi / 2 * max(0, step - warmup_steps) / (total_steps - warmup_steps)) ** 2
    )


def factor_by_torch(step, total_steps, warmup):
    warmup_steps = round(warmup * total_steps)
    fall = (1 + torch.linspace(0, torch.pi, total_steps - warmup_steps + 1).cos()) / 2
    return torch.cat([torch.arange(1, warmup_steps + 1) / warmup_steps, fall])[step]


def schedule(fall, rise=lambda step, warmup_steps: (step + 1) / warmup_steps):
    """A wrong answer: `fall` of the progress from 0 to 1 after the warm-up."""

    def factor(step, total_steps, warmup):
        warmup_steps = round(warmup * total_steps)
        if step < warmup_steps:
            return rise(step, warmup_steps)
        return fall((step - warmup_steps) / (total_steps - warmup_steps))

    return factor


def right_fall(x):
    return (1 + math.cos(math.pi * x)) / 2


def ignores_warmup_in_the_cosine(step, total_steps, warmup):
    rising = step < round(warmup * total_steps)
    return (
        training.learning_rate_factor(step, total_steps, warmup) if rising else right_fall(step / total_steps)
    )


def takes_warmup_as_steps(step, total_steps, warmup):
    if step < warmup:
        return (step + 1) / warmup
    return right_fall((step - warmup) / (total_steps - warmup))


def takes_rounded_warmup_as_steps(step, total_steps, warmup):
    return takes_warmup_as_steps(step, total_steps, max(1, round(warmup)))


def divides_by(steps_of):
    """A wrong answer: the cosine's progress is divided by another number of steps."""

    def factor(step, total_steps, warmup):
        warmup_steps = round(warmup * total_steps)
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return right_fall((step - warmup_steps) / steps_of(total_steps, warmup_steps))

    return factor


WRONG_FACTORS = {
    "warmup is a share": takes_warmup_as_steps,
    "share of all steps, not a number": takes_rounded_warmup_as_steps,
    "divided by total_steps. Divide": divides_by(lambda total, warmup_steps: total),
    "the last step gets a rate of 0": divides_by(lambda total, warmup_steps: total - warmup_steps - 1),
    "there is no warm-up": lambda step, total, warmup: right_fall(step / total),
    "running since step 0": ignores_warmup_in_the_cosine,
    "step 0 gets a rate of 0": schedule(right_fall, lambda step, warmup_steps: step / warmup_steps),
    "half is negative": schedule(lambda x: math.cos(math.pi * x)),
    "falls and rises again": schedule(lambda x: right_fall(2 * x)),
    "radians": schedule(lambda x: (1 + math.cos(180 * x)) / 2),
    "ends at a half": schedule(lambda x: right_fall(x / 2)),
    "quarter of a turn": schedule(lambda x: math.cos(math.pi * x / 2)),
    "a sign is wrong": schedule(lambda x: (1 - math.cos(math.pi * x)) / 2),
    "straight line": schedule(lambda x: 1 - x),
    "never falls": schedule(lambda x: 1),
    "of warm-up, step": schedule(lambda x: right_fall(x) ** 2),
    "a return is missing": schedule(lambda x: None),
    "gives TODO": schedule(lambda x: TODO),
}


# --- per_class_accuracy ----------------------------------------------------------------------------------


def accuracy_from_confusion(logits, labels, num_classes):
    confusion = torch.zeros(num_classes, num_classes)
    for true, guess in zip(labels, logits.softmax(-1).argmax(-1), strict=True):
        confusion[true, guess] += 1
    return confusion.diagonal() / confusion.sum(1)


def accuracy_by_one_hot(logits, labels, num_classes):
    of_class = nn.functional.one_hot(labels, num_classes).double()
    return (logits.argmax(1) == labels).double() @ of_class / of_class.sum(0)


def right_of(logits, labels, num_classes):
    return torch.stack([((logits.argmax(1) == labels) & (labels == k)).sum() for k in range(num_classes)])


def one_against_the_rest(logits, labels, num_classes):
    guesses = logits.argmax(1)
    return torch.stack([((guesses == k) == (labels == k)).float().mean() for k in range(num_classes)])


def by_python_numbers(logits, labels, num_classes):
    right = right_of(logits, labels, num_classes).tolist()
    return torch.tensor([right[k] / (labels == k).sum().item() for k in range(num_classes)])


def zeroed_after(logits, labels, num_classes):
    result = lesson.per_class_accuracy(logits, labels, num_classes)
    logits.zero_()
    return result


WRONG_ACCURACIES = {
    "changes the tensor that it is given": zeroed_after,
    "you also counted pictures of other classes": one_against_the_rest,
    "In torch, 0/0 is NaN": by_python_numbers,
    "these are counts": right_of,
    "that is the precision": lambda z, y, k: right_of(z, y, k) / z.argmax(1).bincount(minlength=k),
    "the number of all pictures": lambda z, y, k: right_of(z, y, k) / len(y),
    "overall accuracy": lambda z, y, k: (z.argmax(1) == y).float().mean().repeat(k),
    "how often the model says": lambda z, y, k: z.argmax(1).bincount(minlength=k) / y.bincount(minlength=k),
    "share of errors": lambda z, y, k: 1 - lesson.per_class_accuracy(z, y, k),
    "percentages": lambda z, y, k: 100 * lesson.per_class_accuracy(z, y, k),
    "NaN": lambda z, y, k: lesson.per_class_accuracy(z, y, k).nan_to_num(0),
    "should be a tensor, but it is of type list": lambda z, y, k: lesson.per_class_accuracy(z, y, k).tolist(),
    "should have shape": lambda z, y, k: (z.argmax(1) == y).float().mean(),
    "RuntimeError": lambda z, y, k: (z.argmax(0) == y).float(),
}


# --- all of them -----------------------------------------------------------------------------------------

RIGHT = {
    "decayed_names": [by_modules, by_axes, by_exclusion],
    "learning_rate_factor": [factor_by_squares, factor_by_torch],
    "per_class_accuracy": [accuracy_from_confusion, accuracy_by_one_hot],
}
WRONG = {
    "decayed_names": WRONG_NAMES,
    "learning_rate_factor": WRONG_FACTORS,
    "per_class_accuracy": WRONG_ACCURACIES,
}
TRIES = (
    5  # each check draws new sizes and numbers: an answer must not pass, or get another diagnosis, by luck
)


@pytest.mark.parametrize("name, answer", [(name, answer) for name in RIGHT for answer in RIGHT[name]])
def test_right_answers_pass(capsys, name, answer):
    """A check that compares the manner of the code and not its results would refuse these."""
    for _ in range(TRIES):
        said, used = verdict(capsys, answer, name)
        assert used and said.startswith("[ok]"), said


@pytest.mark.parametrize("name", REFERENCES)
def test_the_functions_that_stand_in_are_right(capsys, name):
    said, used = verdict(capsys, REFERENCES[name], name)
    assert used and said.startswith("[ok]"), said


@pytest.mark.parametrize(
    "name, words, answer", [(name, words, answer) for name in WRONG for words, answer in WRONG[name].items()]
)
def test_wrong_answers_are_refused_with_the_reason(capsys, name, words, answer):
    for _ in range(TRIES):
        said, used = verdict(capsys, answer, name)
        assert not used and said.startswith("[not yet]") and words in said, said


@pytest.mark.parametrize("name", REFERENCES)
def test_unfilled_is_todo(capsys, name):
    said, used = verdict(capsys, lambda *inputs: TODO, name)
    assert not used and said.startswith("[todo]")


@pytest.mark.parametrize("name", REFERENCES)
def test_a_missing_return_is_told(capsys, name):
    """Fails where a learner who has worked is told that nothing was begun."""
    said, used = verdict(capsys, lambda *inputs: None, name)
    assert not used and said.startswith("[not yet]") and "Does it end with return?" in said


def test_unfilled_loss_at_start_is_todo(capsys):
    checks.value("loss_at_start", TODO)
    assert capsys.readouterr().out.startswith("[todo]")


@pytest.mark.parametrize("name", REFERENCES)
def test_an_exception_shows_the_learners_line(capsys, name):
    def answer(*inputs):
        return torch.zeros(3) @ torch.zeros(4)

    said, used = verdict(capsys, answer, name)
    assert not used and "RuntimeError" in said and "return torch.zeros(3) @ torch.zeros(4)" in said


@pytest.mark.parametrize("model", [vit_cifar(depth=2), VisionTransformer(8, 4, 1, 3, 8, 1, 2, pool="mean")])
def test_vitlib_decays_what_the_exercise_asks_for(model):
    """The lesson builds its optimizer from decayed_names, vitlib's own from modules: they must agree."""
    config = training.TrainingConfig(epochs=1, optimizer="adamw")
    (optimizer,) = training.make_optimizers(model, config)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    assert names == lesson.decayed_names(model)


def test_the_lessons_own_solutions_pass(capsys):
    """What a learner unfolds must be right, and must be called as the lesson calls it."""
    lesson_file = Path(__file__).parents[1] / "notebooks/src/07_train_cifar10.py"
    cells = jupytext.read(lesson_file, fmt="py:percent").cells
    names = {"math": math, "torch": torch}
    for cell in cells:
        if "solution" in cell.metadata.get("tags", []):
            exec(cell.source, names)
    checks.value("loss_at_start", names["loss_at_start_solution"])
    for name in REFERENCES:
        checks.use(names[f"{name}_solution"], REFERENCES[name])
    said = capsys.readouterr().out
    assert said.count("[ok]") == 4, said
