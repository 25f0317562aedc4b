"""Where each token stands: sines and cosines, learned positions, and positions on another grid."""

import math

import numpy as np
import pytest
import torch
from einops import rearrange
from scipy.ndimage import zoom
from timm.layers import build_sincos2d_pos_embed, resample_abs_pos_embed
from torchvision.models.vision_transformer import interpolate_embeddings
from transformers import ViTConfig, ViTModel

from vitlib.positional_encoding import (
    RESIZE_MODES,
    FixedPositionalEncoding,
    LearnedPositionalEncoding,
    sincos_1d,
    sincos_2d,
)
from vitlib.positional_encoding import resize_positional_embedding as resize


def formula(position, width):
    """Vaswani et al. 2017, section 3.5, one number at a time."""
    row = []
    for i in range(width // 2):
        angle = position / 10000 ** (2 * i / width)
        row += [math.sin(angle), math.cos(angle)]
    return row


def random_positions(grid, embed_dim=6, num_prefix_tokens=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, num_prefix_tokens + grid[0] * grid[1], embed_dim, generator=generator)


def difference(a, b):
    """How far apart two tensors are, as a part of the second's size."""
    return ((a - b).pow(2).mean() / b.pow(2).mean()).sqrt().item()


@pytest.mark.parametrize("num_positions, embed_dim", [(1, 2), (7, 6), (197, 24)])
def test_sincos_1d_is_the_formula(num_positions, embed_dim):
    expected = torch.tensor([formula(position, embed_dim) for position in range(num_positions)])
    encoding = sincos_1d(num_positions, embed_dim)
    assert encoding.dtype == torch.float32
    torch.testing.assert_close(encoding, expected, rtol=0, atol=1e-6)


def test_sincos_1d_is_exact_far_out():
    """Angles computed in float32 are off by 1e-4 and more at position 4000."""
    expected = torch.tensor(formula(4000, 8))
    torch.testing.assert_close(sincos_1d(4001, 8)[-1], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (5, 3), (8, 8)])
def test_sincos_2d_is_the_formula_of_row_and_column(grid):
    """Rows and columns swapped, or patches column by column."""
    expected = [formula(row, 6) + formula(column, 6) for row in range(grid[0]) for column in range(grid[1])]
    torch.testing.assert_close(sincos_2d(grid, 12), torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [(3, 5), (7, 2)])
def test_sincos_2d_equals_timms_up_to_the_order_of_the_numbers(grid):
    """timm writes the sines of an axis first, then its cosines; here they alternate."""
    theirs = build_sincos2d_pos_embed(list(grid), dim=24, interleave_sin_cos=True)
    theirs = rearrange(theirs, "n (side two frequency) -> n (side frequency two)", side=2, two=2)
    torch.testing.assert_close(sincos_2d(grid, 24), theirs, rtol=0, atol=1e-6)


def test_widths_that_sines_and_cosines_do_not_fill():
    with pytest.raises(ValueError, match="even embed_dim, got 5"):
        sincos_1d(3, 5)
    with pytest.raises(ValueError, match="divisible by 4, got 6"):
        sincos_2d((2, 2), 6)


def test_positions_are_added():
    torch.manual_seed(0)
    tokens = torch.randn(7, 5, 8)
    learned = LearnedPositionalEncoding(5, 8)
    assert list(dict(learned.named_parameters())) == ["positional_embedding"]
    assert torch.equal(learned(tokens), tokens + learned.positional_embedding)
    assert 0.01 < learned.positional_embedding.std() < 0.03
    fixed = FixedPositionalEncoding(sincos_1d(5, 8))
    assert list(fixed.parameters()) == []
    assert torch.equal(fixed(tokens), tokens + sincos_1d(5, 8))
    for encoding in (learned, fixed):  # under autocast
        assert encoding(tokens.bfloat16()).dtype == torch.bfloat16


GRIDS = [((14, 14), (24, 24)), ((14, 14), (7, 7)), ((4, 4), (1, 1)), ((5, 5), (5, 8)), ((3, 7), (6, 5))]


@pytest.mark.parametrize("old, new", GRIDS)
def test_jax_mode_equals_scipys_zoom(old, new):
    positions = random_positions(old)
    image = positions[0, 1:].reshape(*old, -1).numpy()
    expected = zoom(image, (new[0] / old[0], new[1] / old[1], 1), order=1)
    resized = resize(positions, old, new, mode="jax")
    np.testing.assert_allclose(resized[0, 1:].reshape(*new, -1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("old, new", GRIDS[:3])
def test_torchvision_mode_equals_torchvision(old, new):
    positions = random_positions(old)
    theirs = interpolate_embeddings(new[0] * 16, 16, {"encoder.pos_embedding": positions})
    resized = resize(positions, old, new, mode="torchvision")
    torch.testing.assert_close(resized, theirs["encoder.pos_embedding"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_prefix_tokens", [0, 1, 5])
@pytest.mark.parametrize("old, new", GRIDS)
def test_timm_mode_equals_timm(old, new, num_prefix_tokens):
    positions = random_positions(old, num_prefix_tokens=num_prefix_tokens)
    theirs = resample_abs_pos_embed(positions, list(new), list(old), num_prefix_tokens=num_prefix_tokens)
    resized = resize(positions, old, new, num_prefix_tokens, mode="timm")
    torch.testing.assert_close(resized, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("new", [(24, 24), (7, 7), (5, 9)])
def test_huggingface_mode_equals_transformers(new):
    config = ViTConfig(hidden_size=6, num_hidden_layers=0, num_attention_heads=1, image_size=56, patch_size=4)
    embeddings = ViTModel(config, add_pooling_layer=False).embeddings
    positions = random_positions((14, 14))
    embeddings.position_embeddings.data = positions
    tokens = torch.zeros(1, new[0] * new[1] + 1, 6)
    theirs = embeddings.interpolate_pos_encoding(tokens, new[0] * 4, new[1] * 4)
    resized = resize(positions, (14, 14), new, mode="huggingface")
    torch.testing.assert_close(resized, theirs.detach(), rtol=0, atol=1e-6)


def test_the_modes_differ():
    """One mode for all: on random 14 x 14 positions the others are a quarter of the size away."""
    positions = random_positions((14, 14), embed_dim=64)
    resized = {mode: resize(positions, (14, 14), (24, 24), mode=mode) for mode in RESIZE_MODES}
    assert set(resized) == {"torchvision", "timm", "huggingface", "jax"}
    assert 0.2 < difference(resized["torchvision"], resized["huggingface"]) < 0.3
    assert difference(resized["jax"], resized["torchvision"]) > 0.2
    smaller = [resize(positions, (14, 14), (7, 7), mode=m) for m in ("timm", "huggingface")]
    assert difference(*smaller) > 0.2  # antialias acts where the grid shrinks


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_the_grid_is_exactly_what_was_asked_for(mode):
    """Interpolation by a scale factor can lose a row: in floating point 13 · (15 / 13) is below 15."""
    positions = random_positions((13, 13), embed_dim=2)
    for side in range(1, 41):
        for new in ((side, side), (side, 41 - side)):
            assert resize(positions, (13, 13), new, mode=mode).shape == (1, 1 + new[0] * new[1], 2)


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_rows_stay_rows(mode):
    """Positions that count their row in one number and their column in the other, on non-square grids."""
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(7.0), indexing="ij")
    positions = torch.stack([rows, columns], dim=-1).reshape(28, 2)  # (T, D): no batch dimension, no prefix
    resized = resize(positions, (4, 7), (9, 5), num_prefix_tokens=0, mode=mode)
    resized = resized.reshape(9, 5, 2)
    assert (resized[..., 0].std(dim=1) < 1e-5).all() and (resized[..., 1].std(dim=0) < 1e-5).all()
    assert (resized[1:, :, 0] > resized[:-1, :, 0]).all() and (resized[:, 1:, 1] > resized[:, :-1, 1]).all()


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_the_class_tokens_row_is_kept_and_equal_grids_change_nothing(mode):
    positions = random_positions((4, 6))
    assert torch.equal(resize(positions, (4, 6), (6, 4), mode=mode)[:, 0], positions[:, 0])
    assert torch.equal(resize(positions, (4, 6), (4, 6), mode=mode), positions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_interpolated_in_float32(dtype):
    """Sums of products of half-precision numbers lose digits: only the result is rounded."""
    positions = random_positions((8, 8)).to(dtype)
    resized = resize(positions, (8, 8), (13, 11))
    assert resized.dtype == dtype
    assert torch.equal(resized, resize(positions.float(), (8, 8), (13, 11)).to(dtype))


def test_what_does_not_fit_is_refused():
    positions = random_positions((4, 4))
    with pytest.raises(ValueError, match="Unknown mode 'bicubic'.*'timm', 'torchvision', 'huggingface'"):
        resize(positions, (4, 4), (8, 8), mode="bicubic")
    with pytest.raises(ValueError, match="17 positions.*4x5 patches and 1 prefix tokens make 21"):
        resize(positions, (4, 5), (8, 8))
    with pytest.raises(ValueError, match="17 positions.*0 prefix tokens make 16"):
        resize(positions, (4, 4), (4, 4), num_prefix_tokens=0)
