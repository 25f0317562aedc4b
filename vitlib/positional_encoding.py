"""Where each token stands (lesson 03; paper section 3.1 and appendix D.4)."""

import torch
from einops import rearrange
from torch import nn
from torch.nn.functional import interpolate


def sincos_1d(num_positions, embed_dim):
    """Sine and cosine of each position, at wavelengths from 2π to 10000·2π.

    Shapes: -> (num_positions, D): PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(the same).
    Raises ValueError where D is odd.
    Source: Vaswani et al. 2017, section 3.5.
    """
    if embed_dim % 2:
        raise ValueError(f"sincos_1d needs an even embed_dim, got {embed_dim}: a sine and a cosine each.")
    frequency = 10000.0 ** (-torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim)  # (D/2,)
    angle = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequency  # (num_positions, D/2)
    return rearrange([angle.sin(), angle.cos()], "two position frequency -> position (frequency two)").float()


def sincos_2d(grid, embed_dim):
    """The first half of the width encodes a patch's row, the second half its column, each by `sincos_1d`.

    Shapes: grid (rows, columns) -> (N, D), patches row by row.
    Raises ValueError where D is not divisible by 4.
    Source: Chen et al. 2021 (MoCo v3), He et al. 2021 (MAE). The 2-D variant of the paper is a learned one.
    """
    if embed_dim % 4:
        raise ValueError(f"sincos_2d needs an embed_dim divisible by 4, got {embed_dim}: pairs for two axes.")
    rows, columns = grid
    row = sincos_1d(rows, embed_dim // 2).repeat_interleave(columns, dim=0)  # (N, D/2): 0 0 0 1 1 1
    column = sincos_1d(columns, embed_dim // 2).repeat(rows, 1)  # (N, D/2): 0 1 2 0 1 2
    return torch.cat([row, column], dim=1)


class LearnedPositionalEncoding(nn.Module):
    """Add one learned vector for each position, the class token's included.

    Shapes: (B, T, D) -> (B, T, D).
    Source: paper equation 1, E_pos; lesson 03.
    """

    def __init__(self, num_tokens, embed_dim):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.zeros(1, num_tokens, embed_dim))
        nn.init.trunc_normal_(self.positional_embedding, std=0.02)

    def forward(self, tokens):
        return tokens + self.positional_embedding.to(tokens.dtype)


class FixedPositionalEncoding(nn.Module):
    """Add a given vector for each position; nothing is learned.

    Shapes: embedding (T, D); (B, T, D) -> (B, T, D).
    Source: Vaswani et al. 2017, section 3.5; lesson 03.
    """

    def __init__(self, embedding):
        super().__init__()
        self.register_buffer("positional_embedding", embedding[None])

    def forward(self, tokens):
        return tokens + self.positional_embedding.to(tokens.dtype)


RESIZE_MODES = {
    "timm": dict(mode="bicubic", antialias=True, align_corners=False),
    "torchvision": dict(mode="bicubic", align_corners=True),
    "huggingface": dict(mode="bicubic", align_corners=False),
    "jax": dict(mode="bilinear", align_corners=True),
}


def resize_positional_embedding(embedding, old_grid, new_grid, num_prefix_tokens=1, mode="timm"):
    """Interpolate positional embeddings from one grid of patches to another.

    The rows of the prefix (the class token) have no place on the grid: they are kept as they are.
    Implementations differ in how they interpolate, and so in their results: `mode` names whose way to follow.
    Shapes: (1, T, D) or (T, D) with T = num_prefix_tokens + rows·columns -> the same with the new grid.
    Raises ValueError for an unknown mode, or where the embedding does not fit the old grid.
    Source: paper section 3.2, "2D interpolation"; lesson 03.
    """
    if mode not in RESIZE_MODES:
        raise ValueError(f"Unknown mode {mode!r}: choose one of {', '.join(map(repr, RESIZE_MODES))}.")
    (rows, columns), num_tokens = old_grid, embedding.shape[-2]
    if num_tokens != num_prefix_tokens + rows * columns:
        raise ValueError(
            f"The embedding has {num_tokens} positions, but a grid of {rows}x{columns} patches and "
            f"{num_prefix_tokens} prefix tokens make {rows * columns + num_prefix_tokens}."
        )
    prefix, patches = embedding[..., :num_prefix_tokens, :], embedding[..., num_prefix_tokens:, :]
    if tuple(old_grid) == tuple(new_grid):
        return embedding
    image = rearrange(patches.float(), "... (rows columns) d -> (...) d rows columns", rows=rows)
    image = interpolate(image, size=tuple(new_grid), **RESIZE_MODES[mode])
    patches = rearrange(image, "b d rows columns -> b (rows columns) d")
    patches = patches.reshape(*embedding.shape[:-2], *patches.shape[1:])
    return torch.cat([prefix, patches.to(embedding.dtype)], dim=-2)
