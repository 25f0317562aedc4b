"""Checks of lesson 07, and the functions that the notebook goes on with while an exercise is open."""

import math

import torch
from torch import nn

from vitlib.checks import TODO, NotYet, check, equal, need, unchanged
from vitlib.vit import VisionTransformer


def decayed_names(model):
    """The names of the parameters that weight decay should shrink: the weights of linear maps."""
    parameters = model.named_parameters()
    return {name for name, parameter in parameters if name.endswith("weight") and parameter.ndim > 1}


def per_class_accuracy(logits, labels, num_classes):
    """The share of each class's pictures that is recognised, (K,); NaN for a class without pictures."""
    right = (logits.argmax(dim=1) == labels).float()
    return torch.stack([right[labels == k].mean() for k in range(num_classes)])


@check("loss_at_start")
def check_loss_at_start(answer):
    try:
        number = float(answer)
    except (TypeError, ValueError):
        raise NotYet(f"expected a number, such as math.log(10), but got {answer!r}.") from None
    diagnoses = {
        math.log(10): "that is the loss for ten classes; CIFAR-100 has a hundred.",
        math.log10(100): "the loss uses the natural logarithm: math.log, not math.log10.",
        math.log2(100): "the loss uses the natural logarithm: math.log, not math.log2.",
        math.log(0.01): "right but for its sign: the loss is minus the logarithm of the probability.",
        0.01: "that is the probability of the true class; the loss is minus its logarithm.",
        100: "that is the number of classes. What probability does each get?",
    }
    for wrong, words in diagnoses.items():
        if abs(number - wrong) < 0.006:
            raise NotYet(words)
    if not abs(number - math.log(100)) <= 0.006:  # this refuses NaN too
        raise NotYet(f"{number:.4g} is not it. Each class gets probability 1/100; take minus its logarithm.")
    return "ln 100 = 4.61, since each of the 100 classes gets probability 1/100."


@check("decayed_names")
def check_decayed_names(answer):
    for pool in ("class", "mean"):
        num_heads, depth, num_classes = torch.randint(2, 5, (3,)).tolist()
        model = VisionTransformer(8, 4, 3, num_classes, 4 * num_heads, depth, num_heads, pool=pool)
        matrices = [name for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
        wanted = {f"{name}.weight" for name in matrices}
        judge_names(answer(model), wanted, dict(model.named_parameters()))
    return "weights of linear maps decay; class token, positions, norms and biases do not."


def judge_names(got, wanted, parameters):
    need(got)
    if isinstance(got, str):
        raise NotYet(f"you give one name, {got!r}. Give a set or a list of all of them.")
    got = set(got)
    if not all(isinstance(name, str) for name in got):
        raise NotYet("give the names (texts such as 'head.weight'), not the parameters themselves.")
    if unknown := sorted(got - parameters.keys()):
        for name in unknown:
            if f"{name}.weight" in parameters:
                raise NotYet(f"{name!r} is a module, not a parameter: add '.weight'.")
        raise NotYet(f"model.named_parameters() has no {unknown[0]!r}.")
    extra, missing = sorted(got - wanted), sorted(wanted - got)
    kinds = {
        "the class token": [name for name in extra if "class_token" in name],
        "the positions": [name for name in extra if "positional" in name],
        "the weights of norms": [name for name in extra if "norm" in name and "weight" in name],
        "biases": [name for name in extra if name.endswith("bias")],
    }
    found = [f"{kind} ({names[0]})" for kind, names in kinds.items() if names]
    if found:
        raise NotYet(f"your answer has {len(extra)} too many: {'; '.join(found)}.")
    if len(missing) == len(wanted):
        raise NotYet("your answer is empty: the weights of linear maps are what should decay.")
    if missing == ["patch_embedding.projection.weight"]:
        raise NotYet(
            f"{missing[0]} is missing. It has four axes, {tuple(parameters[missing[0]].shape)}, but it is a "
            "matrix all the same: a convolution whose stride is its width is one linear map of each patch."
        )
    if missing:
        raise NotYet(f"{len(missing)} are missing, such as {missing[0]}, the weight of a linear map.")


@check("learning_rate_factor")
def check_learning_rate_factor(answer):
    for _ in range(3):
        warmup_steps, total = int(torch.randint(3, 9, ())), 20 * int(torch.randint(2, 9, ()))
        values = [answer(step, total, warmup_steps / total) for step in range(total)]
        judge_factors(values, warmup_steps, total)
    return "a straight rise to 1, then half a cosine down to 0."


def judge_factors(values, warmup_steps, total):
    if all(value is values[0] for value in values):
        need(values[0])
    for step, value in enumerate(values):
        if value is None or value is TODO:
            raise NotYet(
                f"step {step} of {total} gives {value}: a return is missing (warm-up: {warmup_steps})."
            )
    step = torch.arange(total, dtype=torch.float64)
    progress = (step - warmup_steps) / (total - warmup_steps)
    half_turn = math.pi * progress

    def after_warmup(falling):
        return torch.where(step < warmup_steps, (step + 1) / warmup_steps, falling)

    right = after_warmup((half_turn / 2).cos() ** 2)  # the same as (1 + cos) / 2
    all_along = (math.pi / 2 * step / total).cos() ** 2
    as_steps = []  # what comes out where warmup itself, or 1 after rounding it, is taken as a number of steps
    for steps in (warmup_steps / total, 1):
        falling = (math.pi / 2 * (step - steps) / (total - steps)).cos() ** 2
        as_steps.append(torch.where(step < steps, (step + 1) / steps, falling))
    share = "warmup is a share of all steps, not a number of steps: max(1, round(warmup * total_steps))."
    diagnoses = [
        *((wrong, share) for wrong in as_steps),
        (all_along, "there is no warm-up: step 0 already gets the full rate."),
        (
            after_warmup(all_along),
            "your cosine has been running since step 0, so that the rate jumps down when the warm-up ends. "
            "Count its progress from the end of the warm-up.",
        ),
        (
            torch.where(step < warmup_steps, step / warmup_steps, right),
            "step 0 gets a rate of 0, so that its batch teaches nothing. Step 0 should get 1/warmup_steps, "
            "and the last step of the warm-up 1.",
        ),
        (
            after_warmup(half_turn.cos()),
            "the later half is negative. cos goes from 1 to -1: make that 1 to 0.",
        ),
        (
            after_warmup((1 + (2 * half_turn).cos()) / 2),
            "it falls and rises again. Half a turn (π) is enough.",
        ),
        (after_warmup((1 + (180 * progress).cos()) / 2), "math.cos takes radians: half a turn is math.pi."),
        (after_warmup((1 + (half_turn / 2).cos()) / 2), "it ends at a half: take half a turn (π), not π/2."),
        (
            after_warmup((half_turn / 2).cos()),
            "it takes a quarter of a turn. Half a turn starts and ends gently.",
        ),
        (
            after_warmup((1 - half_turn.cos()) / 2),
            "it drops to 0 after the warm-up and rises: a sign is wrong.",
        ),
        (
            after_warmup((math.pi / 2 * (step - warmup_steps) / total).cos() ** 2),
            "it does not come down to 0: the cosine's progress is divided by total_steps. Divide by the "
            "number of steps after the warm-up.",
        ),
        (
            after_warmup((math.pi / 2 * (step - warmup_steps) / (total - warmup_steps - 1)).cos() ** 2),
            "the last step gets a rate of 0, so that its batch teaches nothing. Progress is 1 only at step "
            "total_steps, one after the last: divide by total_steps - warmup_steps.",
        ),
        (after_warmup(1 - progress), "it falls along a straight line; the exercise asks for half a cosine."),
        (after_warmup(torch.ones_like(step)), "it stays at 1 after the warm-up and never falls."),
    ]
    got = torch.tensor([float(value) for value in values], dtype=torch.float64)
    worst = int((got - right).abs().argmax())
    unknown = (
        f"of {total} steps with {warmup_steps} of warm-up, step {worst} should get {right[worst]:.4g}, "
        f"but gets {got[worst]:.4g}."
    )
    equal("your factor", got, right, diagnoses=[*diagnoses, (got, unknown)])


@check("per_class_accuracy")
def check_per_class_accuracy(answer):
    num_classes, number = int(torch.randint(3, 8, ())), int(torch.randint(150, 250, ()))
    # Classes of unequal size, some better known than others: no two kinds of share are alike by chance.
    labels = torch.randint(num_classes, (2, number)).amin(dim=0)
    labels[:num_classes] = torch.arange(num_classes)
    logits = torch.randn(number, num_classes)
    logits[torch.arange(number), labels] += 3 * torch.rand(num_classes)[labels]
    guesses = logits.max(dim=1).indices
    pairs = list(zip(labels.tolist(), guesses.tolist(), strict=True))
    right = torch.tensor([float(pairs.count((k, k))) for k in range(num_classes)])
    of_class, guessed = labels.bincount(minlength=num_classes), guesses.bincount(minlength=num_classes)
    wanted = right / of_class
    diagnoses = [
        (right, "these are counts; divide each by the number of pictures of its class."),
        (
            right / guessed,
            "you divided by how often the model says each class (that is the precision). Divide by how many "
            "pictures of each class there are.",
        ),
        (right / number, "you divided by the number of all pictures. Divide by those of each class."),
        (
            (right.sum() / number).expand(num_classes),
            "every class has the overall accuracy: pick the pictures of each class first.",
        ),
        (
            (number - of_class - guessed + 2 * right) / number,
            "you also counted pictures of other classes, as right where the model does not say this class. "
            "Pick the pictures of each class first.",
        ),
        (guessed / of_class, "you counted how often the model says each class, right or wrong."),
        (1 - wanted, "this is the share of errors: one minus the accuracy."),
        (100 * wanted, "these are percentages; give shares from 0 to 1."),
    ]
    got = unchanged(lambda logits, labels: answer(logits, labels, num_classes), logits, labels)
    need(got)
    equal("the accuracy of each class", as_float32(got), wanted, diagnoses=diagnoses)

    absent = int(torch.randint(num_classes, ()))
    there = torch.arange(num_classes) != absent
    try:
        got = as_float32(answer(logits[labels != absent], labels[labels != absent], num_classes))
    except ZeroDivisionError:
        raise NotYet(
            "a class without pictures stops your code: Python's 0/0 is an error. In torch, 0/0 is NaN."
        ) from None
    equal("with one class absent, the accuracy of the others", got[there], wanted[there])
    if not got[absent].isnan():
        raise NotYet(f"a class without pictures gets {got[absent]:g}, but 0 right of 0 is unknown: NaN.")
    return "the right answers of each class, divided by its pictures; NaN where there are none."


def as_float32(got):
    """Nothing is computed from an accuracy: any type of number will do, and counts get their diagnosis."""
    return got.float() if torch.is_tensor(got) else got
