"""attention_maps against slow loops in NumPy, and against cases whose answer is known by thinking."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch

from vitlib import VisionTransformer, load, results
from vitlib import attention_maps as maps
from vitlib.checkpoint import SHIPPED
from vitlib.data import shapes

# batch, depth, heads, grid, prefix tokens: odd shapes, non-square grids, batches of 1 and 7, registers
CASES = [(1, 1, 1, (1, 1), 1), (7, 2, 3, (2, 5), 1), (1, 3, 2, (4, 3), 5), (2, 2, 1, (3, 3), 1)]


def random_attention(batch, depth, heads, grid, prefix, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = grid[0] * grid[1] + prefix
    scores = 2 * torch.randn(depth, batch, heads, tokens, tokens, generator=generator)
    return tuple(scores.softmax(dim=-1))


def tiny_model(**options):
    """Non-square, and with so much noise that gradients of different layers clearly differ."""
    sizes = {
        "image_size": (8, 12),
        "patch_size": 4,
        "num_classes": 5,
        "embed_dim": 12,
        "depth": 3,
        "num_heads": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VisionTransformer(**{**sizes, **options}).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        return model, torch.randn(3, 3, 8, 12)


# --- the class token's row, and the grid --------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_class_attention_is_row_0_without_the_prefix(case):
    """Catches a column taken for a row, the wrong layer order, and `[:-1]` in place of `[prefix:]`."""
    batch, depth, heads, grid, prefix = case
    attention = random_attention(*case)
    ours = maps.class_attention(attention, prefix)
    assert ours.shape == (batch, depth, heads, grid[0] * grid[1])
    for image, layer, head, patch in itertools.product(*map(range, ours.shape)):
        assert ours[image, layer, head, patch] == attention[layer][image, head, 0, prefix + patch]


def test_class_attention_needs_a_class_token():
    model, images = tiny_model(pool="mean")
    attention = model(images, return_attention=True)[1]
    with pytest.raises(ValueError, match="class token is needed.*pool='class'"):
        maps.class_attention(attention, model.num_prefix_tokens)


def test_a_bright_patch_lands_where_it_was():
    """A 32x64 image with patches of 16: patch 3 is top right. Catches swapped rows and columns."""
    weights = torch.zeros(8)
    weights[3] = 1
    assert maps.to_grid(weights, (2, 4)).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert maps.to_grid(torch.zeros(7, 2, 8), (2, 4)).shape == (7, 2, 2, 4)
    with pytest.raises(ValueError, match="8 patches do not fill a grid of 4 rows and 4 columns"):
        maps.to_grid(weights, (4, 4))


def test_maps_follow_the_image_through_a_real_model():
    """With queries of zero and keys that see brightness only, the class token reads the bright top-right
    patch least or most. Catches height and width swapped anywhere between pixels and map."""
    model = VisionTransformer(
        (32, 64), 16, in_channels=1, num_classes=2, embed_dim=8, depth=1, num_heads=1, positional="none"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.patch_embedding.projection.weight[0] = 1.0  # feature 0: brightness
        model.class_token.token[0, 0, 1] = 1.0
        block = model.encoder.blocks[0]
        block.norm1.weight.fill_(1.0)
        block.attention.qkv.bias[0] = 1.0  # every query asks for feature 0 ...
        block.attention.qkv.weight[8, 0] = 1.0  # ... which the key hands on
        images = torch.zeros(1, 1, 32, 64)
        images[:, :, :16, 48:] = 1.0
        attention = model(images, return_attention=True)[1]
    found = maps.to_grid(maps.class_attention(attention), model.grid)[0, 0, 0]
    assert found.shape == (2, 4)
    assert found.argmax() == 3 and found[0, 3] > 1.1 * found.flatten().sort().values[-2]


# --- rollout ------------------------------------------------------------------------------------------------


def slow_rollout(layers):
    """Path by path: the share that flows from token `start` to token `end` is the sum over all paths of the
    product of the steps. layers: depth x (T, T)."""
    tokens = len(layers[0])
    steps = []
    for layer in layers:
        step = [[layer[i][j] + (i == j) for j in range(tokens)] for i in range(tokens)]
        steps.append([[x / sum(row) for x in row] for row in step])
    result = np.zeros((tokens, tokens))
    for path in itertools.product(range(tokens), repeat=len(layers) + 1):  # token after 0, 1, ... layers
        result[path[-1], path[0]] += math.prod(steps[k][path[k + 1]][path[k]] for k in range(len(layers)))
    return result


@pytest.mark.parametrize("case", [(7, 3, 2, (1, 3), 1), (1, 2, 3, (2, 2), 2), (2, 1, 1, (1, 1), 1)])
def test_rollout_is_the_sum_over_paths(case):
    """Catches the product in the wrong order, a missing identity, a transposed layer, images mixed."""
    attention = random_attention(*case)
    ours = maps.rollout(attention)
    for image in range(case[0]):
        theirs = slow_rollout([layer[image].mean(dim=0).double().tolist() for layer in attention])
        np.testing.assert_allclose(ours[image], theirs, atol=1e-6)
    torch.testing.assert_close(ours.sum(dim=-1), torch.ones_like(ours[..., 0]))


def test_rollout_of_known_cases():
    tokens = 4
    uniform, identity = torch.full((1, 2, tokens, tokens), 1 / tokens), torch.eye(tokens).expand(1, 2, -1, -1)
    torch.testing.assert_close(maps.rollout((identity,) * 3), torch.eye(tokens)[None])
    # Each layer mixes half of the uniform average in, so 1/2^3 of the identity is left.
    expected = torch.eye(tokens)[None] / 8 + (1 - 1 / 8) / tokens
    torch.testing.assert_close(maps.rollout((uniform,) * 3), expected)


def test_what_is_not_attention_is_refused():
    good = random_attention(2, 2, 3, (2, 2), 1)
    scores = tuple(layer.log() for layer in good)
    dropped = tuple(torch.nn.functional.dropout(layer, 0.3) for layer in good)
    for wrong in (scores, dropped, tuple(layer * torch.nan for layer in good)):
        for function in (maps.rollout, maps.entropy, maps.class_attention):
            with pytest.raises(ValueError, match="rows sum to 1, in layer 1"):
                function(wrong)
    for wrong in ((), good[-1], tuple(layer[..., :-1] for layer in good), (torch.zeros(2, 10), good)[:1]):
        with pytest.raises(ValueError, match="tuple of layers"):
            maps.rollout(wrong)
    assert maps.rollout(tuple(layer.bfloat16() for layer in good)).dtype == torch.float32


# --- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [(7, 2, 3, (1, 3), 1), (1, 3, 2, (2, 2), 1)])
def test_gradient_rollout_is_the_sum_over_paths(case):
    """Catches relu before the mean over the heads, relu left out, gradients of another layer."""
    attention = random_attention(*case)
    generator = torch.Generator().manual_seed(1)
    gradients = tuple(torch.randn(layer.shape, generator=generator) for layer in attention)
    ours = maps.gradient_rollout(attention, gradients)
    for image in range(case[0]):
        layers = []
        for layer, gradient in zip(attention, gradients):
            a, g = layer[image].double().numpy(), gradient[image].double().numpy()
            tokens = range(a.shape[-1])
            layers.append([[max(np.mean(a[:, i, j] * g[:, i, j]), 0) for j in tokens] for i in tokens])
        np.testing.assert_allclose(ours[image], slow_rollout(layers), atol=1e-6)
    torch.testing.assert_close(ours.sum(dim=-1), torch.ones_like(ours[..., 0]))


@pytest.mark.parametrize("function", [maps.gradient_rollout, maps.relevance])
def test_gradients_that_do_not_fit_are_refused(function):
    attention = random_attention(2, 3, 2, (2, 2), 1)
    for wrong in (attention[:2], tuple(layer[:1] for layer in attention)):
        with pytest.raises(ValueError, match="its own gradient"):
            function(attention, wrong)
    with pytest.raises(ValueError, match="rows sum to 1"):
        function(tuple(2 * layer for layer in attention), attention)


@pytest.mark.parametrize("case", [(7, 3, 2, (1, 3), 1), (1, 2, 3, (2, 2), 2), (2, 1, 1, (1, 1), 0)])
def test_relevance_is_the_sum_over_paths(case):
    """Written out, (I + Ā_L) ⋯ (I + Ā_1) is a sum over paths that at each layer stay or move. Catches relu
    after the mean over the heads or left out, layers in the wrong order, a start other than the identity,
    scaled rows, images mixed."""
    attention = random_attention(*case)
    generator = torch.Generator().manual_seed(1)
    gradients = tuple(torch.randn(layer.shape, generator=generator) for layer in attention)
    ours = maps.relevance(attention, gradients)
    tokens = range(ours.shape[-1])
    for image in range(case[0]):
        steps = []
        for layer, gradient in zip(attention, gradients):
            a, g = layer[image].double().numpy(), gradient[image].double().numpy()
            moved = [[np.mean([max(x, 0) for x in a[:, i, j] * g[:, i, j]]) for j in tokens] for i in tokens]
            steps.append([[moved[i][j] + (i == j) for j in tokens] for i in tokens])
        expected = np.zeros((len(tokens), len(tokens)))
        for path in itertools.product(tokens, repeat=len(steps) + 1):
            weights = (step[after][before] for step, before, after in zip(steps, path, path[1:]))
            expected[path[-1], path[0]] += math.prod(weights)
        np.testing.assert_allclose(ours[image], expected, rtol=1e-5, atol=1e-6)
    assert ours.dtype == torch.float32


def test_relevance_of_known_cases():
    """By hand: layer 1 passes token 2 to token 1, layer 2 token 1 to token 0, each with gradient 2."""
    first, second = torch.eye(3).repeat(2, 1, 1, 1, 1)
    first[0, 0, 1], second[0, 0, 0] = torch.tensor([0, 0, 1.0]), torch.tensor([0, 1.0, 0])
    twice = torch.zeros(1, 1, 3, 3)
    twice[0, 0, 0, 1] = twice[0, 0, 1, 2] = 2
    result = maps.relevance((first, second), (twice, twice))[0]
    assert result.tolist() == [[1, 2, 4], [0, 1, 2], [0, 0, 1]]
    assert maps.relevance((second, first), (twice, twice))[0].tolist() == [[1, 2, 0], [0, 1, 2], [0, 0, 1]]
    against = maps.relevance((first, second), (-twice, -twice))[0]  # what lowers the score does not count
    torch.testing.assert_close(against, torch.eye(3))


def test_relevance_is_that_of_the_class_asked_for():
    """On a real model, with and without a class token: another class, other numbers."""
    for options in ({}, {"pool": "mean"}):
        model, images = tiny_model(**options)
        results = [
            maps.relevance(*maps.attention_gradients(model, images, [number] * 3)) for number in (0, 1)
        ]
        tokens = 6 + model.num_prefix_tokens
        assert results[0].shape == (3, tokens, tokens)
        assert (results[0] - results[1]).abs().max() > 0.01
        assert all((result >= torch.eye(tokens)).all() for result in results)


def logit_with_nudge(model, images, layer, nudge, class_indices):
    """The logits when `nudge` is added to the attention weights of one layer, by computing the rest of that
    block here, from its parts."""
    tokens = model.class_token(model.patch_embedding(images))
    tokens = model.positional_encoding(tokens)
    for index, block in enumerate(model.encoder.blocks):
        module = block.attention
        batch, length, width = tokens.shape
        qkv = module.qkv(block.norm1(tokens)).view(batch, length, 3, module.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1)
        if index == layer:
            weights = weights + nudge
        tokens = tokens + module.output((weights @ value).transpose(1, 2).reshape(batch, length, width))
        tokens = tokens + block.mlp(block.norm2(tokens))
    logits = model.head(model.encoder.norm(tokens)[:, 0])
    return logits[torch.arange(len(images)), class_indices]


def test_each_gradient_belongs_to_its_own_layer():
    """Finite differences: nudge one layer's weights, see the logit move. Catches gradients in reverse order
    (as backward hooks collect them), images mixed, the wrong class."""
    model, images = tiny_model()
    model, images = model.double(), images.double()
    classes = torch.tensor([4, 0, 2])
    attention, gradients = maps.attention_gradients(model, images, classes)
    assert len(attention) == len(gradients) == 3
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer, gradient in enumerate(gradients):
            nudge = 1e-5 * torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
            up, down = (logit_with_nudge(model, images, layer, sign * nudge, classes) for sign in (1, -1))
            expected = (gradient * nudge).sum(dim=(1, 2, 3))
            torch.testing.assert_close((up - down) / 2, expected, rtol=1e-5, atol=1e-12)
            others = [g for index, g in enumerate(gradients) if index != layer]
            assert all(
                not torch.allclose((g * nudge).sum(dim=(1, 2, 3)), expected, rtol=0.01) for g in others
            )


def test_attention_gradients_leave_the_model_and_the_caller_alone():
    model, images = tiny_model()
    _, expected = maps.attention_gradients(model, images)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert images.requires_grad is False and not model.training
    plain = model(images, return_attention=True)[1]
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            attention, gradients = maps.attention_gradients(model, images.clone())
        for ours, theirs in zip((*attention, *gradients), (*plain, *expected)):
            torch.testing.assert_close(ours, theirs)
            assert not ours.requires_grad
    frozen = model.requires_grad_(False)
    torch.testing.assert_close(maps.attention_gradients(frozen, images)[1], expected)


def test_attention_gradients_choose_the_likeliest_class():
    model, images = tiny_model()
    model.head.bias.data -= model(images).mean(dim=0)  # or one class would be likeliest for every image
    best = model(images).argmax(dim=1)
    assert len(best.unique()) > 1
    by_default, chosen = (maps.attention_gradients(model, images, c)[1] for c in (None, best.tolist()))
    torch.testing.assert_close(by_default, chosen)
    for wrong in (3, [1, 2]):
        with pytest.raises(ValueError, match="one class number for each of the 3 images"):
            maps.attention_gradients(model, images, wrong)
    with pytest.raises(ValueError, match="floating-point"):
        maps.attention_gradients(model, images.to(torch.uint8))


# --- the residual stream ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("options", [{}, {"pool": "mean"}, {"in_channels": 1, "positional": "sincos2d"}])
def test_residual_stream_is_what_hooks_see(options, batch):
    """Against what PyTorch hands to each block and gets back. Catches a missing position or class token, the
    final norm included, layers in the wrong order, a block left out."""
    model, _ = tiny_model(**options)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, model.config["in_channels"], 8, 12, generator=generator)
    seen, hooks = [], []
    for block in model.encoder.blocks:
        hooks.append(block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])))
    hooks.append(model.encoder.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])))
    with torch.no_grad():
        logits = model(images)
        for hook in hooks:
            hook.remove()
        stream = maps.residual_stream(model, images)
    assert stream.shape == (4, batch, 6 + model.num_prefix_tokens, 12)
    torch.testing.assert_close(stream, torch.stack(seen))
    normed = model.encoder.norm(stream[-1])  # the last one holds the answer
    pooled = normed[:, 0] if model.class_token else normed.mean(dim=1)
    torch.testing.assert_close(model.head(pooled), logits)


def test_residual_stream_says_what_is_wrong_with_the_images():
    model, images = tiny_model()
    for wrong, reason in ((images[0], "batch"), (images[:, :1], "in_channels=3"), (images.mT, "built for")):
        with pytest.raises(ValueError, match=reason):
            maps.residual_stream(model, wrong)


# --- distance, entropy, mass --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("patch_size", [4, (2, 6)])
def test_mean_attention_distance_is_the_slow_loop(case, patch_size):
    """Catches swapped sides of patch or grid, a prefix column kept, rows not scaled, squared distances."""
    batch, depth, heads, (rows, columns), prefix = case
    attention = random_attention(*case)
    ours = maps.mean_attention_distance(attention, (rows, columns), patch_size, prefix)
    assert ours.shape == (batch, depth, heads)
    height, width = patch_size if isinstance(patch_size, tuple) else (patch_size, patch_size)
    places = [
        (height * (row + 0.5), width * (column + 0.5)) for row in range(rows) for column in range(columns)
    ]
    for image, layer, head in itertools.product(range(batch), range(depth), range(heads)):
        matrix = attention[layer][image, head].double().numpy()[prefix:, prefix:]
        means = [np.average([math.dist(here, there) for there in places], weights=row) for here, row in
                 zip(places, matrix)]  # fmt: skip
        assert ours[image, layer, head].item() == pytest.approx(np.mean(means), abs=1e-5)


def test_mean_attention_distance_of_known_cases():
    identity = torch.eye(7).expand(1, 1, -1, -1)
    assert maps.mean_attention_distance((identity,), (2, 3), 16).item() == 0
    # Two patches side by side, 10 pixels apart, each reading the other; the class token takes half of each
    # row.
    other = torch.tensor([[1, 0, 0], [0.5, 0, 0.5], [0.5, 0.5, 0]])[None, None]
    assert maps.mean_attention_distance((other,), (1, 2), (4, 10)).item() == 10
    # The first patch reads from the class token only: it has no distance, and the other's counts.
    alone = torch.tensor([[1, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])[None, None]
    assert maps.mean_attention_distance((alone,), (1, 2), (4, 10)).item() == 10
    with pytest.raises(ValueError, match="6 patches do not fill a grid of 2 rows and 2 columns"):
        maps.mean_attention_distance((identity,), (2, 2), 16)


@pytest.mark.parametrize("case", CASES)
def test_entropy_is_the_slow_loop(case):
    """Catches natural logarithms (nats) and a sum over queries."""
    batch, depth, heads, grid, prefix = case
    attention = random_attention(*case)
    ours = maps.entropy(attention)
    for image, layer, head, row in itertools.product(*map(range, ours.shape)):
        bits = -sum(p * math.log2(p) for p in attention[layer][image, head, row].tolist())
        assert ours[image, layer, head, row].item() == pytest.approx(bits, abs=1e-5)
    assert ours.shape == (batch, depth, heads, grid[0] * grid[1] + prefix)


def test_entropy_of_known_cases():
    uniform, identity = torch.full((1, 1, 8, 8), 1 / 8), torch.eye(8).expand(1, 1, -1, -1)
    torch.testing.assert_close(maps.entropy((uniform,)), torch.full((1, 1, 1, 8), 3.0))  # 3 bits
    assert maps.entropy((identity,)).unique().tolist() == [0]  # log 0 does not turn it into NaN


def test_mass_mask_keeps_the_fewest_patches_that_hold_the_mass():
    """Catches a mask left in sorted order, and a descending sort with the wrong end kept."""
    weights = torch.tensor([0.10, 0.50, 0.05, 0.30, 0.05])
    assert maps.mass_mask(weights).tolist() == [False, True, False, True, False]
    assert maps.mass_mask(weights, mass=0.4).tolist() == [False, True, False, False, False]
    assert maps.mass_mask(7 * weights, mass=0.4).tolist() == [False, True, False, False, False]
    assert maps.mass_mask(weights, mass=1).all()
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(7, 2, 3, 11, generator=generator)
    masks = maps.mass_mask(weights, mass=0.6)
    for row, mask in zip(weights.flatten(0, 2).double().numpy(), masks.flatten(0, 2).numpy()):
        order = sorted(range(11), key=lambda patch: -row[patch])
        fewest = next(n for n in range(12) if sum(row[order[:n]]) >= 0.6 * sum(row))
        assert set(np.flatnonzero(mask)) == set(order[:fewest])


def test_mass_mask_refuses_what_is_not_a_share():
    for mass in (0, -0.1, 60):
        with pytest.raises(ValueError, match="mass is a share"):
            maps.mass_mask(torch.ones(3), mass)
    with pytest.raises(ValueError, match="never negative"):
        maps.mass_mask(torch.tensor([1.0, -0.5]))


def test_mass_on_mask_counts_pixels():
    """Against attention spread evenly over the pixels of each patch. Catches swapped sides, a rounded mask (a
    patch half covered must count half), images mixed in a batch."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(7, 2, 3, 2, 5, generator=generator)
    masks = torch.rand(7, 8, 15, generator=generator) > 0.6
    share, chance = maps.mass_on_mask(weights, masks)
    assert share.shape == (7, 2, 3) and chance.shape == (7,)
    for image in range(7):
        object_pixels = masks[image].numpy()
        assert chance[image].item() == pytest.approx(object_pixels.sum() / object_pixels.size)
        for layer, head in itertools.product(range(2), range(3)):
            per_pixel = np.kron(weights[image, layer, head].double().numpy(), np.ones((4, 3)))
            expected = per_pixel[object_pixels].sum() / per_pixel.sum()
            assert share[image, layer, head].item() == pytest.approx(expected, abs=1e-6)


def test_mass_on_mask_of_known_cases():
    masks = torch.zeros(1, 4, 8, dtype=torch.bool)
    masks[0, :2, 6:] = True  # one patch, top right, of a 2x4 grid
    bright = torch.zeros(1, 2, 4)
    bright[0, 0, 3] = 0.25
    share, chance = maps.mass_on_mask(bright, masks)
    assert share.tolist() == [1] and chance.tolist() == [1 / 8]
    masks[0, 1] = False  # now the patch is half covered
    share, chance = maps.mass_on_mask(bright, masks)
    assert share.tolist() == [0.5] and chance.tolist() == [1 / 16]
    torch.testing.assert_close(*maps.mass_on_mask(torch.ones(1, 2, 4), masks))  # even attention gets chance
    for weights in (torch.ones(2, 2, 4), torch.ones(1, 3, 4)):
        with pytest.raises(ValueError, match="do not fit masks"):
            maps.mass_on_mask(weights, masks)


# --- painting over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape, patch_size", [((7, 3, 8, 12), (4, 3)), ((1, 1, 6, 4), 2), ((2, 3, 4, 4), 4)])
def test_remove_patches_is_the_slow_loop(shape, patch_size):
    """Catches rows and columns swapped, the last patches in place of the first, one order for all images,
    and the caller's images painted over."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(shape, generator=generator)
    height, width = patch_size if isinstance(patch_size, tuple) else (patch_size, patch_size)
    columns = shape[3] // width
    num_patches = shape[2] // height * columns
    order = torch.rand(shape[0], num_patches, generator=generator).argsort(dim=1)
    before, others = images.clone(), torch.randn(shape, generator=generator)
    colour = torch.arange(1.0, shape[1] + 1).view(-1, 1, 1)
    for number, fill in itertools.product((0, 1, num_patches // 2, num_patches), (0.0, -1.5, colour, others)):
        expected = images.clone()
        filling = torch.as_tensor(fill).expand(shape)
        for image in range(shape[0]):
            for patch in order[image, :number].tolist():
                top, left = patch // columns * height, patch % columns * width
                place = (image, slice(None), slice(top, top + height), slice(left, left + width))
                expected[place] = filling[place]
        torch.testing.assert_close(maps.remove_patches(images, order, number, patch_size, fill), expected)
    torch.testing.assert_close(images, before)


def test_remove_patches_keeps_the_kind_of_pixels():
    images = torch.full((1, 3, 4, 8), 200, dtype=torch.uint8)
    painted = maps.remove_patches(images, torch.tensor([[1, 0]]), 1, 4, fill=127.0)
    assert painted.dtype == torch.uint8
    assert painted[0, 0, 0].tolist() == [200] * 4 + [127] * 4


def test_remove_patches_says_what_is_wrong():
    images, order = torch.zeros(2, 3, 4, 6), torch.arange(6).expand(2, 6)
    for wrong in (torch.arange(7).expand(2, 7), order[:1], order[0]):  # with the class token, one image
        with pytest.raises(ValueError, match=r"2x3 patches each, .*\(2, 6\).*prefix tokens"):
            maps.remove_patches(images, wrong, 1, 2)
    for wrong in (order.float(), order + 1, torch.zeros(2, 6, dtype=torch.long)):  # weights, places from 1
        with pytest.raises(ValueError, match="patches 0 to 5 once each.*argsort"):
            maps.remove_patches(images, wrong, 1, 2)
    for wrong in (-1, 7):
        with pytest.raises(ValueError, match=f"Of 6 patches, number={wrong}"):
            maps.remove_patches(images, order, wrong, 2)
    with pytest.raises(ValueError, match=r"fill of shape \(3,\).*\(C, 1, 1\)"):
        maps.remove_patches(images, order, 1, 2, fill=[0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="batch"):
        maps.remove_patches(images[0], order, 1, 2)
    with pytest.raises(ValueError, match="cannot be cut"):
        maps.remove_patches(images, order, 1, 4)


# --- what the weights have learned --------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_positional_similarity_is_the_slow_loop(prefix):
    """Catches `[:-1]` in place of `[prefix:]`, and tiles or their insides transposed."""
    rows, columns = 2, 3
    embedding = torch.randn(prefix + 6, 5, generator=torch.Generator().manual_seed(0))
    ours = maps.positional_similarity(embedding, (rows, columns), prefix)
    assert ours.shape == (2, 3, 2, 3)
    for i, j, k, m in itertools.product(range(rows), range(columns), range(rows), range(columns)):
        one, two = (embedding[prefix + r * columns + c].double().numpy() for r, c in ((i, j), (k, m)))
        expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert ours[i, j, k, m].item() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(maps.positional_similarity(embedding[None], (rows, columns), prefix), ours)
    with pytest.raises(ValueError, match="do not fill a grid"):
        maps.positional_similarity(embedding, (rows, columns), prefix + 1)


@pytest.mark.parametrize("shape", [(20, 3, 2, 4), (9, 1, 3, 3)])
def test_embedding_filters_are_the_principal_components(shape):
    """Against the eigenvectors of the covariance. Catches a missing mean, components in ascending order, and
    pixels in the wrong order."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    number = 5
    ours = maps.embedding_filters(weight, number)
    assert ours.shape == (number, *shape[2:], shape[1])
    values, vectors = np.linalg.eigh(np.cov(weight.double().flatten(1).numpy(), rowvar=False))
    for picture, vector in zip(ours.numpy(), vectors[:, np.argsort(-values)].T):
        expected = vector.reshape(shape[1:]).transpose(1, 2, 0)
        expected = expected / expected.flat[np.abs(expected).argmax()]  # the largest entry becomes +1
        np.testing.assert_allclose(picture, 0.5 + expected / 2, atol=1e-5)


def test_embedding_filters_keep_their_sign():
    """A component and its opposite are equally right: pictures must not depend on which a machine finds."""
    weight = torch.randn(30, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    ours = maps.embedding_filters(weight, 6)
    torch.testing.assert_close(maps.embedding_filters(-weight, 6), ours)
    torch.testing.assert_close(maps.embedding_filters(weight.flip(0), 6), ours)
    assert ours.min() >= 0 and (ours.amax(dim=(1, 2, 3)) == 1).all()
    for number in (0, 13):
        with pytest.raises(ValueError, match="12 principal components"):
            maps.embedding_filters(weight, number)


def test_every_map_takes_what_a_model_gives():
    model, images = tiny_model()
    attention, gradients = maps.attention_gradients(model, images)
    assert maps.to_grid(maps.class_attention(attention), model.grid).shape == (3, 3, 2, 2, 3)
    by_gradient = (maps.gradient_rollout(attention, gradients), maps.relevance(attention, gradients))
    for result in (maps.rollout(attention), *by_gradient):
        assert maps.to_grid(result[:, 0, 1:], model.grid).shape == (3, 2, 3)
    assert maps.mean_attention_distance(attention, model.grid, model.patch_embedding.patch_size).shape == (
        3,
        3,
        2,
    )
    filters = maps.embedding_filters(model.patch_embedding.projection.weight, 4)
    assert filters.shape == (4, 4, 4, 3)
    position = model.positional_encoding.positional_embedding
    assert maps.positional_similarity(position, model.grid).shape == (2, 3, 2, 3)


# --- what experiments/attention_maps.py stored --------------------------------------------------------------


@pytest.mark.parametrize("name", ["shapes", "cifar10"])
def test_stored_results_are_of_the_shipped_model(name):
    """Catches a checkpoint that was replaced, and the experiment not run again."""
    stored = results.load("attention_maps")
    shipped = hashlib.sha256((SHIPPED / f"{name}.safetensors").read_bytes()).hexdigest()
    parts = {part: by_name[name] for part, by_name in stored.items() if name in by_name}
    assert parts.keys() == {"deletion", "layers", "misleading"} | (
        {"pointing"} if name == "shapes" else set()
    )
    for part, values in parts.items():
        assert values["checkpoint"]["sha256"] == shipped, (
            f"The results of {part!r} are of another {name} model: run python experiments/attention_maps.py"
        )
        assert values["checkpoint"]["test_accuracy"] == load(name).notes["test_accuracy"]


def test_stored_results_are_what_is_measured_now():
    """On the same 500 pictures, computed here in another way. Catches a drawing, a map or a measure changed
    since, chance typed by hand, and the masks of other pictures."""
    stored, data = results.load("attention_maps")["pointing"]["shapes"], shapes("test", 500)
    cover = (
        data.masks.unflatten(2, (8, 4)).unflatten(1, (8, 4)).float().mean(dim=(2, 4)).flatten(1)
    )  # (B, 64)
    uniform = stored["controls"]["uniform"]
    assert uniform["share"]["mean"] == pytest.approx(data.masks.float().mean().item(), abs=1e-4)
    assert uniform["hit_pixel"]["mean"] == pytest.approx(data.masks.float().mean().item(), abs=1e-4)
    assert uniform["hit"]["mean"] == pytest.approx((cover > 0).float().mean().item(), abs=1e-4)

    last = torch.cat([load("shapes").attention(part)[-1] for part in data.images.split(100)])
    weights = last[:, :, 0, 1:].mean(dim=1)  # (B, 64)
    share = (weights * cover).sum(dim=1) / weights.sum(dim=1)
    hit = cover.gather(1, weights.argmax(dim=1, keepdim=True))[:, 0] > 0
    measured = stored["trained"]["last layer"]
    for name, values in (("share", share), ("hit", hit.float())):
        assert measured[name]["mean"] == pytest.approx(values.mean().item(), abs=3e-3)
        assert measured[name]["se"] == pytest.approx(values.std().item() / 500**0.5, abs=3e-4)
