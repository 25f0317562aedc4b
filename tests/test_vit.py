"""The whole model: its size, its shapes, what it refuses, and what it does with an image."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import vitlib
from vitlib import VisionTransformer, vit_b_16, vit_b_32, vit_cifar, vit_h_14, vit_l_16, vit_l_32
from vitlib.positional_encoding import RESIZE_MODES, resize_positional_embedding, sincos_1d, sincos_2d

TABLE = [  # builder, options, parameters; exact, from the public implementations
    (vit_b_16, {}, 86_567_656),
    (vit_b_32, {}, 88_224_232),
    (vit_l_16, {}, 304_326_632),
    (vit_l_32, {}, 306_535_400),
    (vit_h_14, {}, 632_045_800),
    (vit_b_16, {"num_classes": 0}, 85_798_656),
    (vit_b_32, {"num_classes": 0}, 87_455_232),
    (vit_l_16, {"num_classes": 0}, 303_301_632),
    (vit_l_32, {"num_classes": 0}, 305_510_400),
    (vit_h_14, {"num_classes": 0}, 630_764_800),
    (vit_b_16, {"num_classes": 10}, 85_806_346),
    (vit_b_32, {"num_classes": 10}, 87_462_922),
    (vit_l_16, {"num_classes": 10}, 303_311_882),
    (vit_l_32, {"num_classes": 10}, 305_520_650),
    (vit_h_14, {"num_classes": 10}, 630_777_610),
    (vit_b_16, {"image_size": 384}, 86_859_496),
    (VisionTransformer, {"embed_dim": 192, "num_heads": 3}, 5_717_416),  # Ti/16
    (VisionTransformer, {"embed_dim": 384, "num_heads": 6}, 22_050_664),  # S/16
    (vit_cifar, {}, 2_693_578),
]


def small(**options):
    """A model for small, wide images; every parameter is noise, so that none can be left out unseen."""
    defaults = {"image_size": (8, 12), "patch_size": 4, "in_channels": 1, "num_classes": 5, "embed_dim": 24}
    torch.manual_seed(0)
    model = VisionTransformer(**{**defaults, "depth": 2, "num_heads": 3, **options}).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def random_images(batch=2, channels=1, size=(8, 12)):
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(1))


def assert_close(a, b, rtol=1e-4, atol=1e-5):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("build, options, count", TABLE)
def test_parameter_counts(build, options, count):
    with torch.device("meta"):
        model = build(**options)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_heads_of_the_variants():
    """The number of heads changes no count, and so needs its own test; H/14's heads are 80 wide."""
    with torch.device("meta"):
        heads = [
            build(depth=1).config["num_heads"] for build in (vit_b_16, vit_b_32, vit_l_16, vit_l_32, vit_h_14)
        ]
    assert heads == [12, 12, 16, 16, 16] and vit_cifar().config["num_heads"] == 6


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("pool, num_tokens", [("class", 7), ("mean", 6)])
def test_shapes(batch, pool, num_tokens):
    model, images = small(pool=pool), random_images(batch)
    assert model.grid == (2, 3) and model.num_prefix_tokens == num_tokens - 6
    assert model.forward_features(images).shape == (batch, num_tokens, 24)
    logits, attention = model(images, return_attention=True)
    assert logits.shape == (batch, 5) and isinstance(attention, tuple)
    assert [tuple(a.shape) for a in attention] == [(batch, 3, num_tokens, num_tokens)] * 2
    assert_close(model(images), logits)  # asking for attention changes nothing
    assert_close(model(images[:1]), logits[:1])  # nor do the other images in the batch


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_model_is_its_parts(pool):
    """Positions left out, added before the class token, or the wrong token read at the end."""
    model, images = small(pool=pool), random_images()
    tokens = model.patch_embedding(images)
    if pool == "class":
        tokens = torch.cat([model.class_token.token.expand(2, -1, -1), tokens], dim=1)
    tokens = tokens + model.positional_encoding.positional_embedding
    tokens, _ = model.encoder(tokens)
    assert_close(model.forward_features(images), tokens)
    pooled = tokens[:, 0] if pool == "class" else tokens.mean(dim=1)
    assert_close(model(images), pooled @ model.head.weight.T + model.head.bias)


def test_without_a_head_the_model_gives_features():
    model, images = small(num_classes=0), random_images()
    assert_close(model(images), model.forward_features(images)[:, 0])


def shuffle_patches(images, order, patch):
    from vitlib.patch_embedding import patchify, unpatchify

    return unpatchify(patchify(images, patch)[:, order], images.shape[-2:], patch)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_without_positions_the_order_of_the_patches_does_not_count(pool):
    """Permutation equivariance: shuffled patches give the same logits, and attention shuffled alike."""
    model, images, order = (
        small(pool=pool, positional="none"),
        random_images(),
        torch.tensor([4, 0, 5, 2, 1, 3]),
    )
    shuffled = shuffle_patches(images, order, 4)
    logits, attention = model(images, return_attention=True)
    logits2, attention2 = model(shuffled, return_attention=True)
    assert (logits[0] - logits[1]).abs().max() > 0.01  # or this test could not fail
    assert_close(logits2, logits)
    prefix = model.num_prefix_tokens
    rows = torch.cat([torch.arange(prefix), order + prefix])
    assert_close(attention2[1], attention[1][:, :, rows][..., rows])


@pytest.mark.parametrize("positional", ["learned", "sincos1d", "sincos2d"])
def test_with_positions_the_order_counts(positional):
    model, images = small(positional=positional), random_images()
    shuffled = shuffle_patches(images, torch.tensor([4, 0, 5, 2, 1, 3]), 4)
    assert (model(shuffled) - model(images)).abs().max() > 5e-4


def test_fixed_positions():
    """Fixed positions that would be trained, or whose class token is moved on the grid."""
    two = small(positional="sincos2d").positional_encoding.positional_embedding
    assert torch.equal(two[0, 0], torch.zeros(24)) and torch.equal(two[0, 1:], sincos_2d((2, 3), 24))
    one = small(positional="sincos1d").positional_encoding.positional_embedding
    assert torch.equal(one[0], sincos_1d(7, 24))
    for positional in ("sincos1d", "sincos2d", "none"):
        assert not any("positional" in name for name, _ in small(positional=positional).named_parameters())


def test_grayscale_pictures_of_28_pixels():
    model = small(image_size=28, patch_size=7)
    images = random_images(7, 1, (28, 28))
    logits = model(images)
    assert model.grid == (4, 4) and logits.shape == (7, 5)
    assert (logits[0] - logits[1]).abs().max() > 0.01


def test_height_and_width_are_never_swapped():
    """A wide picture, one bright patch at the top right: only token 1 + 15 differs from a dark picture's."""
    model = small(image_size=(32, 64), depth=0)
    dark = torch.zeros(1, 1, 32, 64)
    bright = dark.clone()
    bright[..., :4, -4:] = 1
    difference = (model.forward_features(bright) - model.forward_features(dark))[0].abs().amax(dim=-1)
    assert difference.nonzero().flatten().tolist() == [16]


def test_patches_that_are_not_square():
    model = small(image_size=(8, 12), patch_size=(2, 6))
    assert model.grid == (4, 2) and model(random_images()).shape == (2, 5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.01), (torch.bfloat16, 0.1)])
def test_half_precision(dtype, tolerance):
    """A part that stays in float32, or a result that falls apart in half precision."""
    model, images = small(), random_images()
    expected = model(images)
    logits, attention = model.to(dtype)(images.to(dtype), return_attention=True)
    assert logits.dtype == attention[0].dtype == dtype
    assert (logits.float() - expected).abs().max() < tolerance * expected.abs().max()


def test_autocast_keeps_the_tokens_in_half_precision():
    """A float32 class token or position would turn every token back into float32, and all of it slow."""
    model, images = small(), random_images()
    seen = []
    model.encoder.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
    assert seen == [torch.bfloat16]
    assert (logits.float() - model(images)).abs().max() < 0.1 * model(images).abs().max()


def test_recorded_rows_sum_to_1_in_training():
    """Attention recorded after dropout does not."""
    model = small(dropout=0.3, attention_dropout=0.5, drop_path=0.2).train()
    logits, attention = model(random_images(7), return_attention=True)
    for layer in attention:
        assert_close(layer.sum(dim=-1), torch.ones(7, 3, 7))
    assert (logits - model(random_images(7))).abs().max() > 0.01


def test_gradients_reach_every_parameter_and_every_attention():
    model = small()
    logits, attention = model(random_images(), return_attention=True)
    loss = cross_entropy(logits, torch.tensor([0, 3]))
    gradients = torch.autograd.grad(loss, [*model.parameters(), *attention])
    names = [*dict(model.named_parameters()), "attention 0", "attention 1"]
    for name, gradient in zip(names, gradients, strict=True):
        assert gradient.abs().max() > 1e-6, name


def test_a_fresh_model_knows_nothing_and_tells_images_apart():
    """The first loss is near ln 10; linear weights start with a standard deviation of 0.02, biases at 0."""
    torch.manual_seed(0)
    model = vit_cifar()
    logits = model(random_images(4, 3, (32, 32)))
    assert abs(cross_entropy(logits, torch.tensor([0, 1, 2, 3])).item() - math.log(10)) < 0.3
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            assert 0.017 < module.weight.std() < 0.023, name
            assert module.weight.abs().max() > 0.04 and not module.bias.any(), name


def test_options_reach_the_encoder():
    """An argument that the model takes and then forgets, or passes on in the wrong place."""
    model = small(mlp_ratio=2.0, qkv_bias=False, dropout=0.1, attention_dropout=0.2, drop_path=0.3,
                  norm_eps=0.5, gelu="tanh")  # fmt: skip
    block = model.encoder.blocks[1]
    assert block.mlp.expand.out_features == 48 and block.attention.qkv.bias is None
    assert model.dropout.p == block.mlp.dropout.p == block.attention.dropout.p == 0.1
    assert block.attention.attention_dropout == 0.2
    assert block.drop_path.rate == pytest.approx(0.3) and model.encoder.blocks[0].drop_path.rate == 0
    assert block.norm1.eps == model.encoder.norm.eps == 0.5 and block.mlp.gelu.approximate == "tanh"


@pytest.mark.parametrize("pool, positional", [("class", "learned"), ("mean", "sincos2d")])
def test_config_builds_the_same_model_again(pool, positional):
    """A checkpoint keeps config and weights: an argument that config lacks is lost."""
    model, images = (
        small(pool=pool, positional=positional, mlp_ratio=2, gelu="tanh", norm_eps=0.1),
        random_images(),
    )
    again = VisionTransformer(**model.config).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model(images))


def test_another_resolution_names_both_sizes_and_the_remedy():
    with pytest.raises(ValueError, match=r"\(8, 12\).*\(12, 8\).*model\.resize\(\(12, 8\)\)"):
        small()(random_images(size=(12, 8)))


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_resize_interpolates_the_positions(mode):
    """Positions that stay as they were, or an interpolation that the mode does not reach."""
    model, images = small(), random_images(7, size=(20, 16))
    old = model.positional_encoding.positional_embedding.detach().clone()
    projection = model.patch_embedding.projection.weight.detach().clone()
    assert model.resize((20, 16), mode=mode) is model
    assert model.grid == (5, 4) and model.config["image_size"] == (20, 16)
    expected = resize_positional_embedding(old, (2, 3), (5, 4), mode=mode)
    assert torch.equal(model.positional_encoding.positional_embedding, expected)
    assert torch.equal(model.patch_embedding.projection.weight, projection)
    assert model(images).shape == (7, 5)
    again = VisionTransformer(**model.config).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model(images))
    with pytest.raises(ValueError, match=r"\(20, 16\).*\(8, 12\)"):
        model(random_images())


@pytest.mark.parametrize(
    "options", [{}, {"pool": "mean"}, {"positional": "none"}, {"positional": "sincos2d"}]
)
def test_resize_and_back_and_to_the_same_size(options):
    model, images = small(**options), random_images()
    logits = model(images)
    assert torch.equal(model.resize((8, 12))(images), logits)
    assert model.resize((16, 24))(random_images(size=(16, 24))).shape == (2, 5)
    assert model.resize((8, 12))(images).shape == (2, 5)


def test_a_resized_model_trains_on():
    """Gradients of the old shape that are left over, or positions that no longer are a parameter."""
    model = small()
    model(random_images()).sum().backward()
    model.resize((16, 8))
    model(random_images(size=(16, 8))).sum().backward()
    positions = model.positional_encoding.positional_embedding
    assert isinstance(positions, nn.Parameter) and positions.grad.shape == positions.shape == (1, 9, 24)


def test_resize_refuses_and_leaves_the_model_as_it_was():
    model, images = small(), random_images()
    logits = model(images)
    with pytest.raises(ValueError, match="30x12.*4x4"):
        model.resize((30, 12))
    with pytest.raises(ValueError, match="Unknown mode 'cubic'"):
        model.resize((16, 24), mode="cubic")
    assert torch.equal(model(images), logits) and model.config["image_size"] == (8, 12)


def test_no_random_state_is_touched():
    """Evaluation and resizing must leave a reader's torch.manual_seed alone."""
    model, images = small(dropout=0.5, attention_dropout=0.5, drop_path=0.5), random_images()
    state = torch.get_rng_state()
    model(images, return_attention=True)
    model.resize((16, 24))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_builds_the_same_model():
    models = []
    for seed in (0, 0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            models.append(VisionTransformer((8, 12), 4, 1, 5, 24, 2, 3).state_dict())
    weight = "encoder.blocks.1.mlp.expand.weight"
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not torch.equal(models[0][weight], models[2][weight])


@pytest.mark.parametrize("options, message", [
    ({"embed_dim": 100, "num_heads": 12}, "embed_dim=100 is not divisible by num_heads=12"),
    ({"image_size": 222, "patch_size": 16}, "222x222.*16x16.*208x208"),
    ({"image_size": 4, "patch_size": 32}, "4x4.*32x32"),
    ({"pool": "cls"}, "\"class\" or \"mean\", got 'cls'"),
    ({"positional": "sin"}, "\"sincos2d\" or \"none\", got 'sin'"),
    ({"positional": "sincos2d", "embed_dim": 30}, "divisible by 4, got 30"),
    ({"gelu": "relu"}, "\"erf\" or \"tanh\", got 'relu'"),
    ({"drop_path": 1.0}, "0 <= rate < 1"),
])  # fmt: skip
def test_arguments_that_make_no_model(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


@pytest.mark.parametrize("arguments", [
    (32, 4, 10, 3, 24, 2, 3),  # classes and channels swapped
    (32, 4, 24, 10, 3, 2, 3),  # width and channels swapped
    (4, 32, 3, 10, 24, 2, 3),  # image and patch size swapped
    (32, 4, 3, 10, 3, 2, 24),  # width and heads swapped
])  # fmt: skip
def test_arguments_in_the_wrong_order_do_not_pass_silently(arguments):
    with pytest.raises(ValueError):
        VisionTransformer(*arguments)(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("images, message", [
    (torch.zeros(2, 3, 8, 12), "in_channels=1.*3 channels"),
    (torch.zeros(2, 8, 12, 1), r"permute\(0, 3, 1, 2\)"),
    (torch.zeros(1, 8, 12), r"image\[None\]"),
    (torch.zeros(2, 1, 8, 12, dtype=torch.uint8), "uint8.*normalize"),
])  # fmt: skip
def test_images_that_the_model_was_not_built_for(images, message):
    with pytest.raises(ValueError, match=message):
        small()(images)


@pytest.mark.parametrize("return_attention", [False, True])
def test_torch_compile_gives_the_same_logits(return_attention):
    """Code that graph capture cannot follow. `fullgraph` makes a break in the graph an error."""
    model, images = small(), random_images()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected, got = model(images, return_attention), compiled(images, return_attention)
    assert_close(got, expected)


def test_torch_export_gives_the_same_logits():
    """Exported with two images, run with seven."""
    model, images = small(), random_images(7)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    assert_close(program.module()(images), model(images))


def test_copies_are_independent():
    model, images = small(), random_images()
    twin = copy.deepcopy(model)
    twin.resize((16, 24))
    assert model.grid == (2, 3) and model.config["image_size"] == (8, 12) and model(images).shape == (2, 5)


def test_import_is_light():
    """`import vitlib` must not wait for torchvision and matplotlib."""
    code = "import sys, vitlib; print({'torchvision', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout.strip() == "set()"


def test_what_the_package_offers():
    for name in (
        "VisionTransformer",
        "vit_b_16",
        "vit_b_32",
        "vit_l_16",
        "vit_l_32",
        "vit_h_14",
        "vit_cifar",
        "load",
    ):
        assert hasattr(vitlib, name) and name in vitlib.__all__
