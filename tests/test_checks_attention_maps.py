"""Checks of lesson 08: usual mistakes are refused in words that help, right answers pass however written."""

import functools

import pytest
import torch
from checking import judged_against
from einops import einsum, rearrange

from vitlib import attention_maps
from vitlib.checks import TODO
from vitlib.checks import attention_maps as lesson

verdict = judged_against(lambda name: getattr(attention_maps, name))


# --- class_attention -----------------------------------------------------------------------------------


def class_attention_in_a_loop(attention):
    rows = [layer[:, :, 0][:, :, 1:] for layer in attention]
    return torch.cat([row.unsqueeze(1) for row in rows], 1)


def class_attention_by_einops(attention):
    return rearrange(list(attention), "layer b head i j -> b layer head i j")[..., 0, 1:]


WRONG_CLASS_ATTENTION = {
    "this is column 0": lambda a: torch.stack([x[:, :, 1:, 0] for x in a], dim=1),
    "column 0 is still there": lambda a: torch.stack([x[:, :, 0] for x in a], dim=1),
    "this is row 1": lambda a: torch.stack([x[:, :, 1, 1:] for x in a], dim=1),
    "scaled to sum 1 again": lambda a: torch.nn.functional.normalize(
        class_attention_in_a_loop(a), p=1, dim=-1
    ),
    "last row, the last patch": lambda a: torch.stack([x[:, :, -1, 1:] for x in a], dim=1),
    "last row without": lambda a: torch.stack([x[:, :, -1, :-1] for x in a], dim=1),
    "last column is missing": lambda a: torch.stack([x[:, :, 0, :-1] for x in a], dim=1),
    "heads are averaged": lambda a: torch.stack([x.mean(1)[:, 0, 1:] for x in a], dim=1),
    "layers come first": lambda a: torch.stack([x[:, :, 0, 1:] for x in a]),
    "last layer only": lambda a: a[-1][:, :, 0, 1:],
    "a list of 3. Make it one": lambda a: [x[:, :, 0, 1:] for x in a],
    "shape (2, 3, 4, 6)": lambda a: torch.stack([x[0, :, 0, 1:] for x in a]),
}


# --- rollout -------------------------------------------------------------------------------------------


def fused(attention, with_identity=True, scaled=True):
    """Ã for each layer, or without one of its two parts."""
    layers = [layer.mean(dim=1) for layer in attention]
    if with_identity:
        layers = [layer + torch.eye(layer.shape[-1]) for layer in layers]
    return [layer / layer.sum(dim=-1, keepdim=True) for layer in layers] if scaled else layers


def product(layers):
    return functools.reduce(lambda result, layer: layer @ result, layers)


def rollout_by_halves(attention):
    result = torch.eye(attention[0].shape[-1])
    for layer in attention:
        result = (layer.mean(dim=1) @ result + result) / 2
    return result


def rollout_by_einsum(attention):
    return functools.reduce(lambda r, a: einsum(a, r, "b i k, b k j -> b i j"), fused(attention))


def rollout_without_keepdim(attention):
    result = torch.eye(attention[0].shape[-1])
    for layer in attention:
        layer = layer.mean(dim=1) + torch.eye(layer.shape[-1])
        result = layer / layer.sum(dim=-1) @ result
    return result


def rollout_onto_the_result(attention):
    result = torch.eye(attention[0].shape[-1])
    for layer in attention:
        layer = layer.mean(dim=1) + result
        result = layer / layer.sum(dim=-1, keepdim=True) @ result
    return result


def rollout_of_half_weights(attention):
    layers = [layer.mean(dim=1) / 2 + torch.eye(layer.shape[-1]) for layer in attention]
    return product([layer / layer.sum(dim=-1, keepdim=True) for layer in layers])


WRONG_ROLLOUT = {
    "inside the loop": lambda a: fused(a)[0],
    "last layer alone": lambda a: fused(a)[-1],
    "result so far is added": rollout_onto_the_result,
    "counts twice as much": rollout_of_half_weights,
    "T = attention[0].shape[-1]": lambda a: product([x.mean(dim=1) + torch.eye(65) for x in a]),
    "identity is missing": lambda a: product(fused(a, with_identity=False)),
    "sum to 8": lambda a: product(fused(a, scaled=False)),
    "keepdim=True": rollout_without_keepdim,
    "wrong order": lambda a: product(fused(a)[::-1]),
    "rows and columns are exchanged": lambda a: product(fused(a)).mT,
    "averaged": lambda a: torch.stack(fused(a)).mean(dim=0),
    "entry by entry": lambda a: functools.reduce(torch.mul, fused(a)),
    "class token's row alone": lambda a: product(fused(a))[:, 0, 1:],
    "Average the heads": lambda a: product([(x + torch.eye(x.shape[-1])) / 2 for x in a]),
    "largest of the heads": lambda a: product(fused([x.amax(dim=1, keepdim=True) for x in a])),
    "heads are summed": lambda a: product(fused([x.sum(dim=1, keepdim=True) for x in a])),
}


# --- relevance ----------------------------------------------------------------------------------------------


def add_up(layers):
    result = torch.eye(layers[0].shape[-1])
    for layer in layers:
        result = result + layer @ result
    return result


def weighted(a, g):
    """relu(A ⊙ ∂y/∂A) of each layer, the heads apart."""
    return [(x * y).relu() for x, y in zip(a, g)]


def relevance_by_product(a, g):
    """(I + Ā_L) ... (I + Ā_1): the loop written as one product."""
    layers = [layer.mean(dim=1) + torch.eye(layer.shape[-1]) for layer in weighted(a, g)]
    return functools.reduce(lambda result, layer: layer @ result, layers)


def relevance_in_place(attention, gradients):
    batch, _, tokens, _ = attention[0].shape
    relevant = torch.zeros(batch, tokens, tokens)
    relevant += torch.eye(tokens)
    for number in range(len(attention)):
        cam = (attention[number] * gradients[number]).clamp(min=0).sum(1) / attention[number].shape[1]
        relevant += torch.bmm(cam, relevant)
    return relevant


def relevance_image_by_image(attention, gradients):
    maps = []
    for image in range(len(attention[0])):
        result = torch.eye(attention[0].shape[-1])
        for a, g in zip(attention, gradients):
            heads = [torch.maximum(x * y, torch.zeros(())) for x, y in zip(a[image], g[image])]
            result = result + sum(heads) / len(heads) @ result
        maps.append(result)
    return torch.stack(maps)


def relevance_that_replaces(a, g):
    result = torch.eye(a[0].shape[-1])
    for layer in weighted(a, g):
        result = layer.mean(dim=1) @ result
    return result


def relevance_onto_the_identity(a, g):
    identity = result = torch.eye(a[0].shape[-1])
    for layer in weighted(a, g):
        result = identity + layer.mean(dim=1) @ result
    return result


def relevance_for_65(a, g):
    result = torch.eye(65)
    for layer in weighted(a, g):
        result = result + layer.mean(dim=1) @ result
    return result


def relevance_by_entry(a, g):
    result = torch.eye(a[0].shape[-1])
    for layer in weighted(a, g):
        result = result + layer.mean(dim=1) * result
    return result


def relevance_that_changes_the_attention(a, g):
    result = torch.eye(a[0].shape[-1])
    for layer, gradient in zip(a, g):
        layer *= gradient
        result = result + layer.relu().mean(dim=1) @ result
    return result


def means(layers):
    return [layer.mean(dim=1) for layer in layers]


WRONG_RELEVANCE = {
    "all is 0": lambda a, g: torch.zeros_like(a[0][:, 0]),
    "what was there is lost": relevance_that_replaces,
    "not the result so far": relevance_onto_the_identity,
    "entry by entry": relevance_by_entry,
    "only added": lambda a, g: torch.eye(a[0].shape[-1]) + sum(means(weighted(a, g))),
    "changes the tensor": relevance_that_changes_the_attention,
    "taken away at the end": lambda a, g: add_up(means(weighted(a, g))) - torch.eye(a[0].shape[-1]),
    "First relu, then the mean": lambda a, g: add_up([(x * y).mean(dim=1).relu() for x, y in zip(a, g)]),
    "before they meet": lambda a, g: add_up([x.mean(1) * y.mean(1).relu() for x, y in zip(a, g)]),
    "negative weights are still there": lambda a, g: add_up(means([x * y for x, y in zip(a, g)])),
    "abs counts": lambda a, g: add_up(means([(x * y).abs() for x, y in zip(a, g)])),
    "without the attention": lambda a, g: add_up(means([y.relu() for y in g])),
    "no gradient is in it": lambda a, g: add_up(means(a)),
    "scaled to sum 1": lambda a, g: product(fused(weighted(a, g))),
    "heads are summed": lambda a, g: add_up([x.sum(dim=1) for x in weighted(a, g)]),
    "largest of the heads": lambda a, g: add_up([x.amax(dim=1) for x in weighted(a, g)]),
    "wrong order": lambda a, g: add_up(means(weighted(a, g))[::-1]),
    "first layer alone": lambda a, g: add_up(means(weighted(a, g))[:1]),
    "last layer alone": lambda a, g: add_up(means(weighted(a, g))[-1:]),
    "class token's row alone": lambda a, g: add_up(means(weighted(a, g)))[:, 0, 1:],
    "rows and columns are exchanged": lambda a, g: add_up(means(weighted(a, g))).mT,
    "T = attention[0].shape[-1]": relevance_for_65,
}


# --- mean_attention_distance ---------------------------------------------------------------------------


def distances(grid, patch_size, p=2.0):
    places = torch.cartesian_prod(*(torch.arange(side, dtype=torch.float32) for side in grid)) * patch_size
    return torch.cdist(places, places, p=p)


def mean_distance(attention, between, patches=slice(1, None), rescale=True):
    result = []
    for layer in attention:
        weights = layer[:, :, patches, patches]
        if rescale:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        result.append((weights * between).sum(dim=-1).mean(dim=-1))
    return torch.stack(result, dim=1)


def distance_by_einsum(attention, grid, patch_size):
    weights = torch.stack(attention, dim=1)[..., 1:, 1:]
    weights = torch.nn.functional.normalize(weights, p=1, dim=-1)
    return einsum(weights, distances(grid, patch_size), "b l h i j, i j -> b l h") / weights.shape[-1]


def distance_by_meshgrid(attention, grid, patch_size):
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    down, across = (c.flatten()[:, None] - c.flatten() for c in (rows, columns))
    return mean_distance(attention, patch_size * (down**2 + across**2).sqrt())


def distance_that_scales_a_view(attention, grid, patch_size):
    """Right once. In the notebook, the rows of `attention` then no longer sum to 1."""
    for layer in attention:
        weights = layer[:, :, 1:, 1:]
        weights /= weights.sum(dim=-1, keepdim=True)
    return mean_distance(attention, distances(grid, patch_size))


WRONG_DISTANCE = {
    "changes the tensor": distance_that_scales_a_view,
    "in patches": lambda a, grid, p: mean_distance(a, distances(grid, 1)),
    "not scaled to sum 1": lambda a, grid, p: mean_distance(a, distances(grid, p), rescale=False),
    "sides are exchanged": lambda a, grid, p: mean_distance(a, distances(grid[::-1], p)),
    "last token is left out": lambda a, grid, p: mean_distance(a, distances(grid, p), slice(None, -1)),
    "9 tokens meet 8 patches": lambda a, grid, p: mean_distance(a, distances(grid, p), slice(None)),
    "Pythagoras": lambda a, grid, p: mean_distance(a, distances(grid, p, p=1.0)),
    "images are averaged": lambda a, grid, p: mean_distance(a, distances(grid, p)).mean(dim=0),
    "heads are averaged": lambda a, grid, p: mean_distance(a, distances(grid, p)).mean(dim=2),
    "layers come first": lambda a, grid, p: mean_distance(a, distances(grid, p)).transpose(0, 1),
    "keys are averaged": lambda a, grid, p: mean_distance(a, distances(grid, p)) / 8,
    "rows, columns = grid": lambda a, grid, p: mean_distance(a, distances((8, 8), p)),
    "Take their mean": lambda a, grid, p: 8 * mean_distance(a, distances(grid, p)),
}

WRONG = {
    "class_attention": WRONG_CLASS_ATTENTION,
    "rollout": WRONG_ROLLOUT,
    "relevance": WRONG_RELEVANCE,
    "mean_attention_distance": WRONG_DISTANCE,
}
RIGHT = {
    "class_attention": [class_attention_in_a_loop, class_attention_by_einops],
    "rollout": [rollout_by_halves, rollout_by_einsum, lambda a: product(fused(a))],
    "relevance": [relevance_by_product, relevance_in_place, relevance_image_by_image],
    "mean_attention_distance": [distance_by_einsum, distance_by_meshgrid],
}


@pytest.mark.parametrize(
    "name, words, answer",
    [(name, words, answer) for name, answers in WRONG.items() for words, answer in answers.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_usual_mistake_is_named(capsys, name, words, answer):
    """Fails where a wrong answer passes, or is refused for another mistake. Three random tries."""
    for _ in range(3):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and words in printed and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_right_answer_passes(capsys, name):
    """Fails where a check asks for one way to write it, or for more exact numbers than float32 gives."""
    for answer in [*RIGHT[name], getattr(attention_maps, name)]:
        for _ in range(3):
            printed, accepted = verdict(capsys, answer, name)
            assert printed.startswith("[ok]") and accepted, printed


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("unfilled", [TODO, ...], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    printed, accepted = verdict(capsys, lambda *_: unfilled, name)
    assert printed.startswith("[todo]") and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def answer(attention, *_):
        return attention[0].reshape(13)  # no such shape

    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "attention[0].reshape(13)" in printed and not accepted


def test_the_independent_formulations_agree_with_vitlib():
    """Two ways to compute the same thing, on odd sizes: fails where either is wrong."""
    torch.manual_seed(0)
    attention = lesson.random_attention(depth=2, batch=1, heads=3, tokens=7)
    ours = attention_maps.rollout(attention)
    assert torch.allclose(ours, lesson.walk_all_paths(attention), atol=1e-6)
    gradients = [torch.randn_like(layer) for layer in attention]
    moved = [(layer * gradient).relu().mean(dim=1) for layer, gradient in zip(attention, gradients)]
    ours = attention_maps.relevance(attention, gradients)
    assert torch.allclose(ours, lesson.collect_all_paths(moved), atol=1e-6)
    ours = attention_maps.mean_attention_distance(attention, (3, 2), 5)
    assert torch.allclose(ours, lesson.distance(attention, (3, 2), 5), atol=1e-5)
