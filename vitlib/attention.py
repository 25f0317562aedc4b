"""Tokens that look at each other (lesson 04; paper appendix A, equations 5 to 8)."""

import torch
from einops import rearrange
from torch import nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention


def attend(query, key, value, dropout=0.0, return_weights=False, fused=None):
    """softmax(Q Kᵀ / √d) V: each query's mean of the values, weighted by how well it matches each key.

    Shapes: query, key, value (B, num_heads, T, d) -> mixed (B, num_heads, T, d) and the weights
    (B, num_heads, T, T), or None unless `return_weights`. Weights are recorded before dropout: rows sum to 1.
    `fused=True` gets the same numbers from one PyTorch kernel. It never holds the T x T matrix, so it is left
    aside when weights are asked for. By default it is used where it measures faster
    (benchmarks/results/attention.md).
    Source: paper equations 6 and 7; lesson 04.
    """
    if fused is None:
        fused = fused_is_faster(query)
    if fused and not return_weights:
        return scaled_dot_product_attention(query, key, value, dropout_p=dropout), None
    query = query * query.shape[-1] ** -0.5  # scaled before the product: float16 would overflow after it
    scores = query @ key.transpose(-2, -1)  # (B, num_heads, T, T): rows are queries, columns are keys
    weights = scores.softmax(dim=-1)  # every row sums to 1
    mixed = drop(weights, dropout) @ value  # (B, num_heads, T, d)
    return mixed, weights if return_weights else None


def fused_is_faster(query):
    """Everywhere but on a CPU in half precision: benchmarks/results/attention.md."""
    return query.device.type != "cpu" or query.dtype == torch.float32


class MultiHeadAttention(nn.Module):
    """Every token asks, in several heads at once, what the other tokens have to say.

    The whole width D goes into the three projections; what comes out is cut into heads of D / num_heads.
    Shapes: (B, T, D) -> tokens (B, T, D) and attention (B, num_heads, T, T), or None unless asked for.
    Attention is recorded after the softmax and before dropout, and stays in the autograd graph.
    Raises ValueError where embed_dim is not divisible by num_heads.
    Source: paper equations 5 to 8; lesson 04.
    """

    def __init__(self, embed_dim, num_heads, qkv_bias=True, attention_dropout=0.0, dropout=0.0):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}: "
                "the heads would not be equally wide. "
                f"Try embed_dim={embed_dim // max(num_heads, 1) * num_heads or num_heads}."
            )
        self.num_heads, self.attention_dropout = num_heads, attention_dropout
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)  # three maps in one
        self.output = nn.Linear(embed_dim, embed_dim)  # mixes the heads
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, return_attention=False):
        query, key, value = rearrange(
            self.qkv(tokens), "b t (three head d) -> three b head t d", three=3, head=self.num_heads
        )
        dropout = self.attention_dropout if self.training else 0.0
        mixed, attention = attend(query, key, value, dropout, return_attention)  # (B, num_heads, T, d)
        tokens = rearrange(mixed, "b head t d -> b t (head d)")  # the heads side by side
        return self.dropout(self.output(tokens)), attention
