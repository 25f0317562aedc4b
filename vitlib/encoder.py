"""The block that is repeated, and the stack of them (lesson 05; paper equations 2 to 4)."""

import torch
from torch import nn

from vitlib.attention import MultiHeadAttention


class MLP(nn.Module):
    """Two linear layers with a GELU between them, applied to each token on its own.

    `gelu` is "erf" (exact) or "tanh" (the approximation that the paper's code uses).
    Shapes: (B, T, D) -> (B, T, D), through (B, T, hidden_dim).
    Source: paper section 3.1; lesson 05.
    """

    def __init__(self, embed_dim, hidden_dim, dropout=0.0, gelu="erf"):
        super().__init__()
        if gelu not in ("erf", "tanh"):
            raise ValueError(f'gelu must be "erf" or "tanh", got {gelu!r}.')
        self.expand = nn.Linear(embed_dim, hidden_dim)
        self.gelu = nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
        self.contract = nn.Linear(hidden_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens):
        hidden = self.dropout(self.gelu(self.expand(tokens)))  # (B, T, hidden_dim)
        return self.dropout(self.contract(hidden))  # (B, T, D)


class DropPath(nn.Module):
    """In training, skip a residual branch for a random part of the images.

    What is kept is divided by the chance to be kept, so that the mean stays the same. Identity in evaluation.
    Shapes: (B, T, D) -> (B, T, D), a whole image kept or set to 0.
    Raises ValueError where rate is not in [0, 1).
    Source: Huang et al. 2016, "Deep Networks with Stochastic Depth"; lesson 05.
    """

    def __init__(self, rate):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"DropPath needs 0 <= rate < 1, got {rate}: at 1 nothing would be left.")
        self.rate = rate

    def forward(self, tokens):
        if not self.training or self.rate == 0:
            return tokens
        keep = 1 - self.rate
        kept = tokens.new_empty(tokens.shape[0], 1, 1).bernoulli_(keep)  # one 0 or 1 for each image
        return tokens * kept / keep

    def extra_repr(self):
        return f"rate={self.rate:.3g}"


class EncoderBlock(nn.Module):
    """Attention, then an MLP; each sees normalised tokens and adds what it found (pre-norm).

    Shapes: (B, T, D) -> tokens (B, T, D) and attention (B, num_heads, T, T), or None unless asked for.
    Source: paper equations 2 and 3; lesson 05.
    """

    def __init__(self, embed_dim, num_heads, mlp_ratio=4.0, qkv_bias=True, dropout=0.0, attention_dropout=0.0,
                 drop_path=0.0, norm_eps=1e-6, gelu="erf"):  # fmt: skip
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attention = MultiHeadAttention(embed_dim, num_heads, qkv_bias, attention_dropout, dropout)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = MLP(embed_dim, int(embed_dim * mlp_ratio), dropout, gelu)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens, return_attention=False):
        mixed, attention = self.attention(self.norm1(tokens), return_attention)
        tokens = tokens + self.drop_path(mixed)  # equation 2
        tokens = tokens + self.drop_path(self.mlp(self.norm2(tokens)))  # equation 3
        return tokens, attention


class Encoder(nn.Module):
    """`depth` blocks, then a last LayerNorm.

    The drop-path rate rises linearly from 0 in the first block to `drop_path` in the last.
    Shapes: (B, T, D) -> tokens (B, T, D) and attention, `depth` tensors (B, num_heads, T, T) or None.
    Source: paper figure 1 and equation 4; lesson 05.
    """

    def __init__(self, embed_dim, depth, num_heads, mlp_ratio=4.0, qkv_bias=True, dropout=0.0,
                 attention_dropout=0.0, drop_path=0.0, norm_eps=1e-6, gelu="erf"):  # fmt: skip
        super().__init__()
        rates = torch.linspace(0, drop_path, depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(
            EncoderBlock(
                embed_dim, num_heads, mlp_ratio, qkv_bias, dropout, attention_dropout, rate, norm_eps, gelu
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)

    def forward(self, tokens, return_attention=False):
        attention = []
        for block in self.blocks:
            tokens, weights = block(tokens, return_attention)
            attention.append(weights)
        return self.norm(tokens), tuple(attention) if return_attention else None
