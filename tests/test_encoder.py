"""MLP, DropPath, one block, and the stack of blocks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm

from vitlib.encoder import MLP, DropPath, Encoder, EncoderBlock


def add_noise(module):
    """Every parameter becomes noise: a fresh norm or bias would hide that it is left out."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    return module


@pytest.mark.parametrize("form, approximate", [("erf", "none"), ("tanh", "tanh")])
def test_mlp_is_two_matrices_with_a_gelu_between(form, approximate):
    mlp = add_noise(MLP(24, 40, gelu=form))
    tokens = torch.randn(7, 5, 24)
    hidden = gelu(tokens @ mlp.expand.weight.T + mlp.expand.bias, approximate=approximate)
    expected = hidden @ mlp.contract.weight.T + mlp.contract.bias
    assert hidden.shape == (7, 5, 40)
    torch.testing.assert_close(mlp(tokens), expected, rtol=1e-4, atol=1e-5)


def test_the_two_forms_of_gelu_differ_a_little():
    """By at most 4.7e-4: enough to miss an exact comparison with JAX's weights."""
    x = torch.linspace(-5, 5, 10001)
    largest = (MLP(1, 1, gelu="erf").gelu(x) - MLP(1, 1, gelu="tanh").gelu(x)).abs().max()
    assert 4e-4 < largest < 4.8e-4
    with pytest.raises(ValueError, match='"erf" or "tanh", got \'relu\''):
        MLP(1, 1, gelu="relu")


def test_mlp_dropout_in_training_only():
    mlp, tokens = add_noise(MLP(24, 40, dropout=0.5)), torch.randn(2, 5, 24)
    assert 0.3 < (mlp(tokens) == 0).float().mean() < 0.7
    mlp.eval()
    assert torch.equal(mlp(tokens), mlp(tokens)) and (mlp(tokens) != 0).all()


def test_drop_path_drops_whole_images_and_keeps_the_mean():
    """One draw for each number is dropout; one for the whole batch adds noise; no division loses the mean."""
    torch.manual_seed(0)
    images = DropPath(0.25).train()(torch.ones(4000, 3, 2)).flatten(1)
    assert (images == images[:, :1]).all()  # an image is kept or dropped as a whole
    assert set(images[:, 0].tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.23 < (images[:, 0] == 0).float().mean() < 0.27
    assert 0.98 < images.mean() < 1.02


def test_drop_path_is_the_identity_in_evaluation_and_at_rate_0():
    tokens = torch.randn(7, 5, 24)
    assert torch.equal(DropPath(0.9).eval()(tokens), tokens)
    assert torch.equal(DropPath(0.0).train()(tokens), tokens)
    assert "rate=0.9" in repr(DropPath(0.9))


@pytest.mark.parametrize("rate", [1, 1.5, -0.1])
def test_drop_path_rates_that_make_no_sense(rate):
    with pytest.raises(ValueError, match="0 <= rate < 1"):
        DropPath(rate)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_drop_path_keeps_the_type(dtype):
    assert DropPath(0.5).train()(torch.ones(3, 2, 4, dtype=dtype)).dtype == dtype


def test_block_is_equations_2_and_3():
    """Post-norm, the norms swapped, a missing residual, or another epsilon (0.5 here, so that it shows)."""
    block = add_noise(EncoderBlock(24, 3, mlp_ratio=3, norm_eps=0.5))
    tokens = torch.randn(2, 5, 24)

    def norm(x, layer):
        return layer_norm(x, (24,), layer.weight, layer.bias, eps=0.5)

    mixed, weights = block.attention(norm(tokens, block.norm1), return_attention=True)
    middle = tokens + mixed
    expected = middle + block.mlp(norm(middle, block.norm2))
    got, attention = block(tokens, return_attention=True)
    assert block.mlp.expand.out_features == 72
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attention, weights)
    plain, nothing = block(tokens)
    assert nothing is None
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)


def test_drop_path_falls_on_the_branches_and_never_on_the_residual():
    """Attention and MLP are dropped apart: with rate 0.5 an image gets neither, one or both, doubled."""
    block = add_noise(EncoderBlock(24, 3, drop_path=0.5)).train()
    image = torch.randn(1, 5, 24)
    outcomes = []
    for attention_scale in (0, 2):
        for mlp_scale in (0, 2):
            middle = image + attention_scale * block.attention(block.norm1(image))[0]
            outcomes.append(middle + mlp_scale * block.mlp(block.norm2(middle)))
    distance = (
        (block(image.expand(64, -1, -1))[0][:, None] - torch.stack(outcomes, dim=1)).abs().amax(dim=(2, 3))
    )
    assert (distance.min(dim=1).values < 1e-4).all()
    assert set(distance.argmin(dim=1).tolist()) == {0, 1, 2, 3}


def test_encoder_is_its_blocks_in_order_and_a_norm():
    """A block that is skipped or shared, or no final norm."""
    encoder = add_noise(Encoder(24, 3, 4, norm_eps=0.5))
    tokens = torch.randn(7, 5, 24)
    expected, maps = tokens, []
    for block in encoder.blocks:
        expected, weights = block(expected, return_attention=True)
        maps.append(weights)
    expected = layer_norm(expected, (24,), encoder.norm.weight, encoder.norm.bias, eps=0.5)
    got, attention = encoder(tokens, return_attention=True)
    torch.testing.assert_close(got, expected)
    assert isinstance(attention, tuple) and len(attention) == 3
    torch.testing.assert_close(attention, tuple(maps))
    assert not torch.equal(attention[0], attention[1])
    assert encoder(tokens)[1] is None


@pytest.mark.parametrize("depth, rates", [(1, [0.0]), (2, [0.0, 0.3]), (4, [0.0, 0.1, 0.2, 0.3])])
def test_drop_path_rises_linearly(depth, rates):
    """One rate for all blocks, or a rise that ends before the last one."""
    encoder = Encoder(24, depth, 3, drop_path=0.3)
    assert [block.drop_path.rate for block in encoder.blocks] == pytest.approx(rates)


def test_options_reach_every_block():
    """An option that a constructor takes and then forgets."""
    encoder = Encoder(24, 2, 3, 2.0, False, 0.1, 0.2, 0.3, 0.5, "tanh")
    for block in encoder.blocks:
        assert block.mlp.expand.out_features == 48
        assert block.attention.qkv.bias is None
        assert block.mlp.dropout.p == block.attention.dropout.p == 0.1
        assert block.attention.attention_dropout == 0.2
        assert block.norm1.eps == block.norm2.eps == encoder.norm.eps == 0.5
        assert block.mlp.gelu.approximate == "tanh"


def test_evaluation_is_deterministic_and_touches_no_random_state():
    encoder = Encoder(24, 2, 3, dropout=0.5, attention_dropout=0.5, drop_path=0.5)
    tokens, twin = torch.randn(2, 5, 24), copy.deepcopy(encoder).eval()
    state = torch.get_rng_state()
    assert torch.equal(twin(tokens)[0], twin(tokens)[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(encoder(tokens)[0], encoder(tokens)[0])
