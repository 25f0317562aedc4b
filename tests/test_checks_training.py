"""Checks of lesson 07: usual mistakes are refused in words that help, right answers pass however written."""

import ast
import math
import operator
import runpy
from pathlib import Path

import jupytext
import pytest
import torch
from checking import judged_against
from torch import nn
from torch.nn.functional import cross_entropy

from vitlib import VisionTransformer, training, vit_cifar
from vitlib.checks import TODO
from vitlib.checks import training as lesson

REFERENCES = {
    "decayed_names": lesson.decayed_names,
    "learning_rate_factor": training.learning_rate_factor,
    "mixed_cross_entropy": lesson.mixed_cross_entropy,
    "without_one": lesson.without_one,
}


verdict = judged_against(REFERENCES.get)


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
    "head.weight is missing: the weight of a linear map": lambda m: by_axes(m) - {"head.weight"},
    "encoder.blocks.0.attention.output.weight and 1 more are missing: each is the": lambda m: [
        n for n in by_axes(m) if n not in ("head.weight", "encoder.blocks.0.attention.output.weight")
    ],
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
    warmup_steps = max(1, round(warmup * total_steps))
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


def warms_up_for(steps_of):
    """A wrong answer: the warm-up is not rounded, or is rounded down."""
    return lambda step, total_steps, warmup: takes_warmup_as_steps(
        step, total_steps, steps_of(warmup * total_steps)
    )


def divides_by(steps_of):
    """A wrong answer: the cosine's progress is divided by another number of steps."""

    def factor(step, total_steps, warmup):
        warmup_steps = round(warmup * total_steps)
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return right_fall((step - warmup_steps) / steps_of(total_steps, warmup_steps))

    return factor


def one_step_longer(step, total_steps, warmup):
    warmup_steps = max(1, round(warmup * total_steps))
    if step <= warmup_steps:
        return (step + 1) / warmup_steps
    return right_fall((step - warmup_steps) / (total_steps - warmup_steps))


def right_at_first(right):
    """A wrong answer that goes on with the numbers of its first call, as one written down does."""
    seen = []

    def factor(step, *numbers):
        seen.append(numbers)
        return right(step, *seen[0])

    return factor


WRONG_FACTORS = {
    "warmup is a share": takes_warmup_as_steps,
    "share of all steps, not a number": takes_rounded_warmup_as_steps,
    "round it to a whole number of steps": warms_up_for(lambda exact: exact),
    ": round it to a whole number": warms_up_for(int),
    "round it to a whole": warms_up_for(math.ceil),
    "warmup 0 leaves one step of warm-up: max(1, round(": warms_up_for(round),
    "your factor": right_at_first(training.learning_rate_factor),
    "gives a text": lambda *inputs: f"{training.learning_rate_factor(*inputs)}",
    "divided by total_steps. Divide": divides_by(lambda total, warmup_steps: total),
    "the last step gets a rate of 0": divides_by(lambda total, warmup_steps: total - warmup_steps - 1),
    "there is no warm-up": lambda step, total, warmup: right_fall(step / total),
    "running since step 0": ignores_warmup_in_the_cosine,
    "step 0 gets a rate of 0": schedule(right_fall, lambda step, warmup_steps: step / warmup_steps),
    "so that its batch teaches nothing. Step 0": schedule(math.cos, lambda step, steps: step / steps),
    "all steps of the warm-up get the full rate": schedule(right_fall, lambda step, warmup_steps: 1),
    "Ask for step < warmup_steps, not <=": one_step_longer,
    "the ½ is missing": schedule(lambda x: 1 + math.cos(math.pi * x)),
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


# --- mixed_cross_entropy ---------------------------------------------------------------------------------


def loss_by_loops(logits, shares):
    total = 0
    for row, label in zip(logits, shares, strict=True):
        shifted = row - row.max()
        log_p = shifted - shifted.exp().sum().log()
        total = total - sum(y * lp for y, lp in zip(label, log_p, strict=True))
    return total / len(logits)


def loss_by_einsum(logits, shares):
    return -torch.einsum("bk,bk->", shares, nn.functional.log_softmax(logits, -1)) / logits.shape[0]


def with_p(formula, softmax=lambda z: z.softmax(dim=1)):
    """A wrong answer: some formula of the probabilities and the shares, then the mean over the batch."""
    return lambda z, y: formula(softmax(z), y).sum(dim=1).mean()


def changed_in_place(logits, shares):
    loss = lesson.mixed_cross_entropy(logits, shares)
    shares.log_()
    return loss


def divides_by_the_first_batch():
    seen = []

    def loss(logits, shares):
        seen.append(len(logits))
        return -(shares * logits.log_softmax(dim=1)).sum() / seen[0]

    return loss


def log_softmax_after(shift):
    """Right for small logits: the softmax is written out after `shift` of the logits."""
    return with_p(lambda p, y: -y * p.log(), lambda z: shift(z).exp() / shift(z).exp().sum(dim=1)[:, None])


WRONG_LOSSES = {
    "softmax was taken twice": lambda z, y: cross_entropy(z.softmax(dim=1), y),
    "right but for its sign": with_p(lambda p, y: y * p.log()),
    "sum over the batch": lambda z, y: cross_entropy(z, y, reduction="sum"),
    "mean over the classes, too": lambda z, y: -(y * z.log_softmax(dim=1)).mean(),
    "one loss for each picture": lambda z, y: cross_entropy(z, y, reduction="none"),
    "lie along dim=1": lambda z, y: -(y * z.log_softmax(dim=0)).sum(dim=1).mean(),
    "only the class of the largest share": lambda z, y: cross_entropy(z, y.argmax(dim=1)),
    "the shares are not used": with_p(lambda p, y: -p.log()),
    "have changed places": with_p(lambda p, y: -p * y.log()),
    "the logarithm is missing": with_p(lambda p, y: -p * y),
    "the softmax is missing": lambda z, y: -(z * y).sum(dim=1).mean(),
    "not log10": with_p(lambda p, y: -y * p.log10()),
    "not log2": with_p(lambda p, y: -y * p.log2()),
    "you divide by 10. Take the mean": lambda z, y: -(y * z.log_softmax(dim=1)).sum() / 10,
    "mixed_cross_entropy": divides_by_the_first_batch(),
    "sum over dim=1, one loss a picture": lambda z, y: -(y * z.log_softmax(dim=1)).sum(dim=0).mean(),
    "logits come first": lambda z, y: cross_entropy(y, z),
    "softmax was taken of the shares": lambda z, y: cross_entropy(z, y.softmax(dim=1)),
    "log_softmax takes the largest logit of each row away": with_p(lambda p, y: -y * p.log()),
    "exp(1000) is infinite": log_softmax_after(lambda z: z),
    "the largest logit of each row": log_softmax_after(lambda z: z - z.max()),
    "a small number added to p, keeps it finite, but changes": with_p(lambda p, y: -y * (p + 1e-9).log()),
    "a clamp, or a small number": with_p(lambda p, y: -y * p.clamp(min=1e-9).log()),
    "a clamp, or": log_softmax_after(lambda z: z.clamp(-50, 50)),
    "no gradient flows": lambda z, y: cross_entropy(z.detach(), y),
    "has no gradient": lambda z, y: cross_entropy(z, y).item(),
    "changes the tensor that it is given": changed_in_place,
    "wrong numbers": lambda z, y: 2 * cross_entropy(z, y),
}


# --- without_one -----------------------------------------------------------------------------------------


def without_muon(recipe, cost):
    changed = dict(recipe)
    changed["optimizer"] = "adamw"
    return changed


def without_whitening(recipe, cost):
    return {name: value for name, value in recipe.items() if name != "whiten"}  # the default is False


def without_small_pictures(recipe, cost):
    passes, begin = 0.0, 0.0
    for end, size in (*recipe["image_sizes"], (1.0, 32)):
        passes += (end - begin) * cost[size] * recipe["epochs"]
        begin = end
    return recipe | {"image_sizes": [], "epochs": passes}


def changing(**values):
    """An answer that gives some settings another value, whatever the recipe."""
    return lambda recipe, cost: {**recipe, **values}


def mutating(recipe, cost):
    recipe["optimizer"] = "adamw"
    return recipe


def passes(number, shares=(0.5, 0.25, 0.25)):
    """Without small pictures, with so many passes: a function of the passes and the mean cost."""

    def answer(recipe, cost):
        average = sum(share * cost[size] for share, size in zip(shares, (16, 24, 32), strict=True))
        return {**recipe, "image_sizes": (), "epochs": number(recipe["epochs"], average)}

    return answer


def passes_of_the_first_recipe():
    seen = []

    def answer(recipe, cost):
        seen.append(without_small_pictures(recipe, cost)["epochs"])
        return {**recipe, "image_sizes": (), "epochs": seen[0]}

    return answer


WRONG_RECIPES = {
    "nothing was taken away: all settings": changing(),
    "takes its default, 'muon': nothing was taken away": lambda recipe, cost: {
        name: value for name, value in recipe.items() if name != "optimizer"
    },
    "2 settings differ: optimizer, whiten": changing(optimizer="adamw", whiten=False),
    "learning_rate, optimizer": changing(optimizer="adamw", learning_rate=3e-3),
    "batch_size has another value, which is no ingredient less": changing(batch_size=64),
    "another dose": changing(warmup=0.01),
    "image_sizes is ((0.5, (16, 16)),) now": changing(image_sizes=((0.5, 16),)),
    "with large pictures throughout it is ()": changing(image_sizes=None),
    "So how many passes are left?": changing(image_sizes=()),
    "multiply by the cost of an average picture, do not divide": passes(lambda epochs, mean: epochs / mean),
    "as much as the recipe. epochs need not be whole": passes(lambda epochs, mean: round(epochs * mean)),
    "do not round": passes(lambda epochs, mean: int(epochs * mean)),
    "times as much as the recipe. Compute the cost": passes(lambda epochs, mean: epochs / 3),
    "from the `cost` that is given": passes(lambda epochs, mean: epochs * 0.500098),  # the notebook's average
    "each size with its share of the steps": passes(operator.mul, (1 / 3, 1 / 3, 1 / 3)),
    "with its share of the steps": passes(operator.mul, (1, 0, 0)),
    "says when a size ends, not how long it lasts": passes(operator.mul, (0.5, 0.75, 0.25)),
    "yours costs 1.05 times as much": passes(lambda epochs, mean: 1.05 * epochs * mean),
    "yours costs": passes_of_the_first_recipe(),
    "your dict has only whiten: the recipe's other settings": lambda recipe, cost: {"whiten": False},
    "the same number of passes costs the same": lambda recipe, cost: {
        **recipe, "whiten": False, "epochs": 2 * recipe["epochs"]
    },
    "your code changes the recipe itself": mutating,
    "give a dict of settings": lambda recipe, cost: "optimizer",
    "unexpected keyword argument 'muon'": changing(muon=False),
    "refuses your settings: optimizer must be one of adamw, muon, got 'sgd'": changing(optimizer="sgd"),
    "keep the budget in epochs": changing(minutes=1, epochs=None, whiten=False),
}  # fmt: skip


# --- all of them -----------------------------------------------------------------------------------------

RIGHT = {
    "decayed_names": [by_modules, by_axes, by_exclusion],
    "learning_rate_factor": [factor_by_squares, factor_by_torch],
    "mixed_cross_entropy": [loss_by_loops, loss_by_einsum, cross_entropy],
    "without_one": [
        *(without_muon, without_whitening, without_small_pictures, changing(warmup=0, flip=True)),
        changing(optimizer="adamw", muon_learning_rate=None),
        passes(lambda epochs, mean: round(epochs * mean, 2)),
    ],
}
WRONG = {
    "decayed_names": WRONG_NAMES,
    "learning_rate_factor": WRONG_FACTORS,
    "mixed_cross_entropy": WRONG_LOSSES,
    "without_one": WRONG_RECIPES,
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


LESSON = Path(__file__).parents[1] / "notebooks/src/07_train_cifar10.py"


def test_the_lesson_trains_the_measured_recipe():
    """Fails where the recipe was improved in one place only: the figures would show another's accuracy."""
    scope = {"torch": torch, "vit_cifar": vit_cifar}
    code = "\n".join(c.source for c in jupytext.read(LESSON, fmt="py:percent").cells if c.cell_type == "code")
    for node in ast.parse(code).body:
        if getattr(node, "name", "") == "small_vit" or ast.unparse(node).startswith("recipe = "):
            exec(ast.unparse(node), scope)
    build, measured = runpy.run_path(Path(__file__).parents[1] / "benchmarks/training.py")["RECIPES"]["ours"]
    assert scope["small_vit"]().config == build().config
    assert training.TrainingConfig(epochs=1, **scope["recipe"]) == training.TrainingConfig(
        epochs=1, **measured
    )
