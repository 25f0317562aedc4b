"""Attention: the numbers, the weights, what is fused, and what the heads do."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from vitlib import attention as attention_module
from vitlib.attention import MultiHeadAttention, attend

SHAPES = [(2, 3, 5, 8), (1, 1, 1, 4), (7, 2, 10, 24)]  # batch, heads, tokens, head width


def random_qkv(shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


def random_layer(embed_dim=24, num_heads=3, **options):
    """A layer whose every parameter is noise: fresh biases are 0 and would hide that one is left out."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(embed_dim, num_heads, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    return layer


def test_three_tokens_by_hand():
    """One query (1, 0) and keys that score ln 1, ln 2, ln 5 after division by √2: weights 1/8, 2/8, 5/8."""
    query = torch.tensor([[[[1.0, 0.0]]]])
    scores = torch.tensor([1.0, 2.0, 5.0]).log() * math.sqrt(2)
    key = torch.stack([scores, torch.tensor([9.0, -9.0, 4.0])], dim=-1)[None, None]
    value = torch.tensor([[[[8.0, 0.0], [16.0, 8.0], [0.0, 16.0]]]])
    mixed, weights = attend(query, key, value, return_weights=True)
    torch.testing.assert_close(weights, torch.tensor([[[[0.125, 0.25, 0.625]]]]))
    torch.testing.assert_close(mixed, torch.tensor([[[[5.0, 12.0]]]]))


@pytest.mark.parametrize("shape", SHAPES)
def test_attend_equals_loops(shape):
    """A softmax over queries instead of keys, a missing √d, or heads and images mixed up."""
    query, key, value = random_qkv(shape)
    batch, heads, num_tokens, width = shape
    mixed, weights = attend(query, key, value, return_weights=True)
    for b in range(batch):
        for h in range(heads):
            for i in range(num_tokens):
                scores = [
                    sum(query[b, h, i] * key[b, h, j]).item() / math.sqrt(width) for j in range(num_tokens)
                ]
                total = sum(math.exp(score) for score in scores)
                row = torch.tensor([math.exp(score) / total for score in scores])
                torch.testing.assert_close(weights[b, h, i], row, rtol=1e-4, atol=1e-6)
                expected = sum(row[j] * value[b, h, j] for j in range(num_tokens))
                torch.testing.assert_close(mixed[b, h, i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_explicit_and_fused_give_the_same_numbers_and_gradients(shape):
    """Two ways that drift apart: the model would answer differently when asked for its attention."""
    results = []
    for fused in (False, True):
        query, key, value = (tensor.requires_grad_() for tensor in random_qkv(shape))
        mixed, weights = attend(query, key, value, fused=fused)
        assert weights is None
        gradients = torch.autograd.grad(mixed.pow(3).sum(), (query, key, value))
        results.append((mixed, *gradients))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        results[0][0], scaled_dot_product_attention(*random_qkv(shape)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_fused_attention_to_the_identity_is_the_weights(shape):
    """With V = identity what comes out is the matrix of weights itself."""
    query, key, value = random_qkv(shape)
    _, weights = attend(query, key, value, return_weights=True)
    identity = torch.eye(shape[2]).expand(*shape[:2], -1, -1)
    torch.testing.assert_close(attend(query, key, identity, fused=True)[0], weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("faster", [True, False])
def test_the_rule_decides_unless_weights_are_asked_for(faster, monkeypatch):
    """A rule that is never read, or a fused kernel that is asked for weights that it does not have."""
    calls = []
    monkeypatch.setattr(attention_module, "fused_is_faster", lambda query: faster)
    monkeypatch.setattr(
        attention_module,
        "scaled_dot_product_attention",
        lambda *args, **options: calls.append(1) or scaled_dot_product_attention(*args, **options),
    )
    query, key, value = random_qkv((2, 3, 5, 8))
    attend(query, key, value)
    assert len(calls) == faster
    assert attend(query, key, value, return_weights=True)[1] is not None and len(calls) == faster


@pytest.mark.parametrize("fused", [False, True])
def test_float16_does_not_overflow(fused):
    """q = k = 40, d = 64: the product is 102,400 and float16 ends at 65,504. Scaled first, it is 12,800."""
    large = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    value = torch.arange(3, dtype=torch.float16).reshape(1, 1, 3, 1).expand(1, 1, 3, 64)
    mixed, weights = attend(large, large, value, return_weights=not fused, fused=fused)
    torch.testing.assert_close(mixed, torch.ones_like(mixed))
    if not fused:
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("fused", [False, True])
def test_half_precision(dtype, tolerance, fused):
    query, key, value = random_qkv((2, 3, 17, 24), dtype)
    mixed, _ = attend(query, key, value, fused=fused)
    expected, _ = attend(query.float(), key.float(), value.float(), fused=False)
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.float(), expected, rtol=tolerance, atol=tolerance)


def test_recorded_rows_sum_to_1_in_training():
    """Weights recorded after dropout: rows sum to anything from 0.5 to 1.25 and rollouts are wrong."""
    layer = random_layer(attention_dropout=0.5).train()
    tokens = torch.randn(7, 9, 24)
    mixed, attention = layer(tokens, return_attention=True)
    torch.testing.assert_close(attention.sum(dim=-1), torch.ones(7, 3, 9))
    assert (mixed - layer(tokens, return_attention=True)[0]).abs().max() > 0.01  # and yet it drops


@pytest.mark.parametrize("fused", [False, True])
def test_dropout_falls_on_the_weights_and_keeps_their_mean(fused):
    """With V = identity the dropped weights can be seen: half are 0, the others doubled."""
    torch.manual_seed(0)
    query, key, _ = random_qkv((8, 8, 16, 4))
    identity = torch.eye(16).expand(8, 8, -1, -1)
    _, weights = attend(query, key, identity, return_weights=True)
    dropped, _ = attend(query, key, identity, dropout=0.5, fused=fused)
    kept = dropped != 0
    assert 0.48 < kept.float().mean() < 0.52
    torch.testing.assert_close(dropped[kept], 2 * weights[kept], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_drops_in_evaluation(fused, monkeypatch):
    """Functional dropout knows nothing of eval()."""
    monkeypatch.setattr(attention_module, "fused_is_faster", lambda query: fused)
    layer, tokens = random_layer(attention_dropout=0.5, dropout=0.5).eval(), torch.randn(2, 9, 24)
    assert torch.equal(layer(tokens)[0], layer(tokens)[0])
    torch.testing.assert_close(
        layer(tokens)[0], layer(tokens, return_attention=True)[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "batch, num_tokens, embed_dim, num_heads", [(2, 5, 24, 3), (1, 1, 8, 8), (7, 10, 48, 2)]
)
def test_equals_pytorchs_multihead_attention(batch, num_tokens, embed_dim, num_heads):
    """Query, key and value in another order, heads cut elsewhere, no mixing of the heads at the end."""
    layer = random_layer(embed_dim, num_heads)
    reference = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
    reference.load_state_dict({
        "in_proj_weight": layer.qkv.weight,
        "in_proj_bias": layer.qkv.bias,
        "out_proj.weight": layer.output.weight,
        "out_proj.bias": layer.output.bias,
    })  # fmt: skip
    tokens = torch.randn(batch, num_tokens, embed_dim)
    mixed, attention = layer(tokens, return_attention=True)
    expected, weights = reference(tokens, tokens, tokens, average_attn_weights=False)
    assert attention.shape == (batch, num_heads, num_tokens, num_tokens)
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attention, weights, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer(tokens)[0], expected, rtol=1e-4, atol=1e-5)


def test_one_return_type():
    layer, tokens = random_layer(), torch.randn(2, 5, 24)
    plain, nothing = layer(tokens)
    assert plain.shape == (2, 5, 24) and nothing is None


def test_attention_stays_in_the_graph():
    """Gradient rollout needs the gradient of a logit with respect to each layer's attention."""
    layer = random_layer()
    mixed, attention = layer(torch.randn(2, 5, 24), return_attention=True)
    (gradient,) = torch.autograd.grad(mixed.sum(), attention)
    assert gradient.shape == (2, 3, 5, 5) and gradient.abs().max() > 0


def test_tokens_are_a_set():
    """Shuffled tokens come out shuffled the same way: attention knows no order."""
    layer, tokens = random_layer(), torch.randn(2, 9, 24)
    order = torch.randperm(9)
    torch.testing.assert_close(layer(tokens[:, order])[0], layer(tokens)[0][:, order], rtol=1e-4, atol=1e-5)


def test_parameters():
    """A bias that is not there when asked for, or there when not: counts and checkpoints would not fit."""
    shapes = {name: tuple(p.shape) for name, p in MultiHeadAttention(24, 3).named_parameters()}
    assert shapes == {
        "qkv.weight": (72, 24), "qkv.bias": (72,), "output.weight": (24, 24), "output.bias": (24,),
    }  # fmt: skip
    assert "qkv.bias" not in dict(MultiHeadAttention(24, 3, qkv_bias=False).named_parameters())


def test_widths_that_do_not_divide_into_heads():
    with pytest.raises(ValueError, match="embed_dim=100 is not divisible by num_heads=12.*embed_dim=96"):
        MultiHeadAttention(100, 12)
    with pytest.raises(ValueError, match="embed_dim=12"):
        MultiHeadAttention(8, 12)  # the two in the wrong order
