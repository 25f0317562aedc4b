"""Checks of lesson 07, and the functions that the notebook goes on with while an exercise is open."""

import math
from dataclasses import asdict

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vitlib.checks import TODO, NotYet, alike, check, equal, explain, need, reached, unchanged
from vitlib.training import TrainingConfig
from vitlib.vit import VisionTransformer


def decayed_names(model):
    """The names of the parameters that weight decay should shrink: the weights of linear maps."""
    parameters = model.named_parameters()
    return {name for name, parameter in parameters if name.endswith("weight") and parameter.ndim > 1}


def mixed_cross_entropy(logits, shares):
    """The cross-entropy of labels that are shares of the classes: (B, K) and (B, K) -> one number."""
    return -(shares * logits.log_softmax(dim=1)).sum(dim=1).mean()


def without_one(recipe, cost):
    """The same recipe with AdamW in place of Muon. The cost of a picture stays, and so does `epochs`."""
    return {**recipe, "optimizer": "adamw"}


@check("mixed_cross_entropy")
def check_mixed_cross_entropy(answer):
    more = int(torch.randint(1, 3, ()))  # pictures than classes: an axis is not taken for the other
    for num_classes in (3 + torch.randperm(6)[:2]).tolist():  # two sizes: a number written down fails
        judge_loss(answer, num_classes + more, num_classes)
    return "minus the mean logarithm, weighed by the shares; from logits, however large."


def judge_loss(answer, number, num_classes):
    logits = torch.randn(number, num_classes).requires_grad_()
    shares = (2 * torch.randn(number, num_classes)).softmax(dim=1)
    got = unchanged(answer, logits, shares)
    need(got)
    if isinstance(got, float):
        raise NotYet("give a tensor: a Python number, as .item() makes it, has no gradient.")
    each = logits.logsumexp(dim=1) - (shares * logits).sum(dim=1)  # the same, since shares sum to 1
    p, right = logits.softmax(dim=1), each.mean()
    twice = -(shares * p.log_softmax(dim=1)).sum(dim=1).mean()
    by_column = -(shares * logits.log_softmax(dim=0)).sum(dim=1).mean()
    evenly = -logits.log_softmax(dim=1)
    unused = "the shares are not used: each logarithm must be multiplied by its share."
    explain(got, (each, "there is one loss for each picture: take their mean."))
    diagnoses = [
        (twice, "softmax was taken twice. log_softmax and cross_entropy take logits, not probabilities."),
        (-right, "right but for its sign: the loss is minus the logarithm."),
        (each.sum(), "that is the sum over the batch. Take the mean: a step must not grow with the batch."),
        (
            right / num_classes,
            "you took the mean over the classes, too. Sum over the classes, then take the mean of the batch.",
        ),
        (
            right * number / num_classes,
            "you sum over the batch and take the mean over the classes: sum over dim=1, one loss a picture.",
        ),
        (by_column, "softmax runs over the batch: the classes of one picture lie along dim=1."),
        (
            cross_entropy(logits, shares.argmax(dim=1)),
            "only the class of the largest share counts. The other shares are lost.",
        ),
        (evenly.mean(), unused),
        (evenly.sum(dim=1).mean(), unused),
        (-(p * shares.log()).sum(dim=1).mean(), "shares and probabilities have changed places."),
        (cross_entropy(shares, logits.detach()), "the arguments have changed places: logits come first."),
        (
            cross_entropy(logits, shares.softmax(dim=1)),
            "softmax was taken of the shares. They sum to 1 already: use them as they are.",
        ),
        (-(shares * p).sum(dim=1).mean(), "the logarithm is missing."),
        (-(shares * logits).sum(dim=1).mean(), "the softmax is missing: logits are no probabilities."),
        (right / math.log(10), "the loss uses the natural logarithm: torch.log, not log10."),
        (right / math.log(2), "the loss uses the natural logarithm: torch.log, not log2."),
        (right * number / 10, "you divide by 10. Take the mean over the batch, however large it is."),
    ]
    equal("your loss", got, right, diagnoses=diagnoses)
    reached("your loss", got, {"the logits": logits})
    large = 3000 * logits.detach()
    got, right = answer(large.clone(), shares), (large.logsumexp(dim=1) - (shares * large).sum(dim=1)).mean()
    if not alike(got, right):
        why = "exp(1000) is infinite, and log(0) too."
        if got.isfinite():
            why = "a clamp, or a small number added to p, keeps it finite, but changes the loss."
        raise NotYet(
            f"right for small logits, but for logits of several thousand it is {got.item():.4g} and should "
            f"be {right.item():.4g}: {why} log_softmax takes the largest logit of each row away first."
        )


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
        those = "is missing:" if len(missing) == 1 else f"and {len(missing) - 1} more are missing: each is"
        raise NotYet(f"{missing[0]} {those} the weight of a linear map.")


@check("learning_rate_factor")
def check_learning_rate_factor(answer):
    first, second, third = (3 + torch.randperm(6)[:3]).tolist()
    for exact in (first, second + 0.3, third - 0.3, 0):  # a wrong curve is told before round and max
        total = 2 ** int(torch.randint(5, 9, ()))  # so that warmup * total is exact
        warmup = exact / total
        values = [answer(step, total, warmup) for step in range(total)]
        judge_factors(values, warmup, total)
    return "a straight rise to 1, then half a cosine down to 0."


def judge_factors(values, warmup, total):
    warmup_steps = max(1, round(warmup * total))
    if all(value is values[0] for value in values):
        need(values[0])
    for step, value in enumerate(values):
        if value is None or value is TODO:
            raise NotYet(
                f"step {step} of {total} gives {value}: a return is missing (warm-up: {warmup_steps})."
            )
        if isinstance(value, str):
            raise NotYet(f"step {step} of {total} gives a text, {value!r}. Give the number itself.")
    got = torch.tensor([float(value) for value in values], dtype=torch.float64)
    step = torch.arange(total, dtype=torch.float64)
    progress = (step - warmup_steps) / (total - warmup_steps)
    half_turn = math.pi * progress

    def after_warmup(falling):
        return torch.where(step < warmup_steps, (step + 1) / warmup_steps, falling)

    right = after_warmup((half_turn / 2).cos() ** 2)  # the same as (1 + cos) / 2
    all_along = (math.pi / 2 * step / total).cos() ** 2

    def with_steps(steps):
        falling = (math.pi / 2 * (step - steps) / (total - steps)).cos() ** 2
        return torch.where(step < steps, (step + 1) / steps, falling)

    share = "warmup is a share of all steps, not a number of steps: max(1, round(warmup * total_steps))."
    exact = warmup * total
    whole = f"warmup * total_steps is {exact:.1f}: round it to a whole number of steps, {warmup_steps}."
    if not warmup:
        share = whole = "warmup 0 leaves one step of warm-up: max(1, round(warmup * total_steps))."
    diagnoses = [
        *((with_steps(steps), share) for steps in (warmup, 1)),  # as it is, and 1 after rounding it
        *((with_steps(steps), whole) for steps in (exact, int(exact), math.ceil(exact))),
        (all_along, "there is no warm-up: step 0 already gets the full rate."),
        (
            after_warmup(all_along),
            "your cosine has been running since step 0, so that the rate jumps down when the warm-up ends. "
            "Count its progress from the end of the warm-up.",
        ),
        (
            after_warmup(1 + half_turn.cos()),
            "it falls from 2 after the warm-up: the ½ is missing, in front of all of (1 + cos).",
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
        # of these the warm-up tells, whatever comes after it
        (
            torch.where(step < warmup_steps, step / warmup_steps, got),
            "step 0 gets a rate of 0, so that its batch teaches nothing. Step 0 should get 1/warmup_steps, "
            "and the last step of the warm-up 1.",
        ),
        (
            torch.where(step < warmup_steps, 1, got),
            "all steps of the warm-up get the full rate. Let it rise from 1/warmup_steps to 1.",
        ),
        (
            torch.where(step == warmup_steps, 1 + 1 / warmup_steps, got),
            "step warmup_steps gets more than the full rate: its warm-up is over. Ask for step < "
            "warmup_steps, not <=.",
        ),
    ]
    worst = int((got - right).abs().argmax())
    unknown = (
        f"of {total} steps with {warmup_steps} of warm-up, step {worst} should get {right[worst]:.4g}, "
        f"but gets {got[worst]:.4g}."
    )
    equal("your factor", got, right, diagnoses=[*diagnoses, (got, unknown)])


# What comes in place of an ingredient when it is taken away.
INGREDIENTS = {"optimizer": "adamw", "whiten": False, "image_sizes": (), "warmup": 0.0, "flip": False}


@check("without_one")
def check_without_one(answer):
    for affordable in (3, 6):  # other numbers the second time: a number written down does not pass
        verified = judge_recipe(answer, affordable + 0.3 + 0.4 * torch.rand(()).item())
    return verified


def judge_recipe(answer, affordable):
    """`affordable`: how many passes over large pictures cost as much as the recipe. Far from whole."""
    # far from the notebook's 0.23 and 0.54, so that its `average` does not pass
    cost = {16: 0.1 + 0.05 * torch.rand(()).item(), 24: 0.35 + 0.1 * torch.rand(()).item(), 32: 1.0}
    average = 0.5 * cost[16] + 0.25 * cost[24] + 0.25 * cost[32]
    recipe = {"epochs": affordable / average, "batch_size": 32, "learning_rate": 1e-3,
              "optimizer": "muon", "muon_learning_rate": 0.01, "whiten": True, "warmup": 0.05, "flip": True,
              "image_sizes": ((0.5, 16), (0.75, 24)), "shift": 0}  # fmt: skip
    given = dict(recipe)
    got = answer(given, dict(cost))
    need(got)
    if given != recipe:
        raise NotYet(
            "your code changes the recipe itself, and then there is nothing left to compare with. "
            "Make a copy first: dict(recipe), or {**recipe, ...}."
        )
    if not isinstance(got, dict):
        raise NotYet(f"give a dict of settings, as recipe is one; yours is of type {type(got).__name__}.")
    if len(recipe.keys() - got.keys()) > 1:
        raise NotYet(
            f"your dict has only {', '.join(map(str, got)) or 'nothing'}: the recipe's other settings are "
            "lost. Begin with all of them: {**recipe, ...}."
        )
    if got.get("image_sizes", ()) is None:
        raise NotYet("image_sizes is None; with large pictures throughout it is ().")
    try:
        before, after = asdict(TrainingConfig(**recipe)), asdict(TrainingConfig(**got))
    except (TypeError, ValueError) as error:
        raise NotYet(f"TrainingConfig(**settings) refuses your settings: {error}") from None
    changed = sorted(name for name in before if before[name] != after[name] and name != "epochs")
    if after["optimizer"] == "adamw" and "muon_learning_rate" in changed:
        changed.remove("muon_learning_rate")  # nothing reads it without Muon
    if "minutes" in changed:
        raise NotYet("keep the budget in epochs: minutes depend on what else the machine is doing.")
    if not changed:
        for name in recipe.keys() - got.keys():
            raise NotYet(
                f"without a word about {name}, TrainingConfig takes its default, {after[name]!r}: nothing "
                "was taken away. Say what comes in its place."
            )
        raise NotYet("nothing was taken away: all settings but epochs are as they were.")
    if len(changed) > 1:
        raise NotYet(
            f"{len(changed)} settings differ: {', '.join(changed)}. If the accuracy changes, nobody can say "
            "which of them did it. Change one."
        )
    (name,) = changed
    if name not in INGREDIENTS:
        raise NotYet(
            f"{name} has another value, which is no ingredient less. Take away one of "
            f"{', '.join(INGREDIENTS)}."
        )
    if after[name] != INGREDIENTS[name]:
        raise NotYet(
            f"{name} is {after[name]!r} now, another dose. To take it away, make it {INGREDIENTS[name]!r}."
        )
    judge_cost(name, before["epochs"], after["epochs"], average)
    return f"one thing less ({name}), at the same cost."


def judge_cost(name, before, after, average):
    """The same compute: passes times the cost of an average picture."""
    ratio = after / before / (average if name == "image_sizes" else 1)
    if abs(ratio - 1) < 0.01:
        return
    if name != "image_sizes":
        raise NotYet(
            f"epochs changed from {before:.4g} to {after:.4g}. The pictures are as large as before, so the "
            "same number of passes costs the same."
        )
    if abs(ratio * average - 1) < 0.01:
        why = "Every picture is large now, and costs more. So how many passes are left?"
    elif abs(ratio * average**2 - 1) < 0.01:
        why = "More passes over larger pictures: multiply by the cost of an average picture, do not divide."
    elif after == round(after, 1):  # the recipe's own are not, nor a share of them
        why = "epochs need not be whole: take the cost of an average picture, and do not round."
    else:
        why = (
            "Compute the cost of an average picture from the `cost` that is given, each size with its share "
            "of the steps: image_sizes says when a size ends, not how long it lasts."
        )
    raise NotYet(f"yours costs {ratio:.2f} times as much as the recipe. {why}")
