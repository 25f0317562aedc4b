"""The whole Vision Transformer (lesson 06; paper section 3.1, figure 1 and table 1)."""

import torch
from torch import nn

from vitlib.class_token import ClassToken
from vitlib.encoder import Encoder
from vitlib.patch_embedding import PatchEmbedding, as_pair, patch_grid
from vitlib.positional_encoding import (
    FixedPositionalEncoding,
    LearnedPositionalEncoding,
    resize_positional_embedding,
    sincos_1d,
    sincos_2d,
)


class VisionTransformer(nn.Module):
    """An image becomes patch tokens, the tokens look at each other `depth` times, one vector is classified.

    `image_size` and `patch_size` are an int or (height, width). `num_classes=0` gives features, not logits.
    `pool="class"` classifies from the class token, `pool="mean"` has none and averages the patch tokens.
    `positional` is "learned", "sincos1d", "sincos2d" or "none".
    Shapes: images (B, C, H, W) -> logits (B, num_classes); with `return_attention=True` also a tuple of
    `depth` tensors (B, num_heads, T, T), T = N + 1 with a class token, N without.
    Raises ValueError for sizes that do not fit each other, and for images that the model was not built for.
    Source: paper equations 1 to 4; lesson 06.
    """

    def __init__(
        self,
        image_size=224,
        patch_size=16,
        in_channels=3,
        num_classes=1000,
        embed_dim=768,
        depth=12,
        num_heads=12,
        mlp_ratio=4.0,
        qkv_bias=True,
        dropout=0.0,
        attention_dropout=0.0,
        drop_path=0.0,
        norm_eps=1e-6,
        gelu="erf",
        pool="class",
        positional="learned",
    ):
        super().__init__()
        self.config = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }  # everything needed to build the same model again
        self.config |= {"image_size": as_pair(image_size), "patch_size": as_pair(patch_size)}
        if pool not in ("class", "mean"):
            raise ValueError(f'pool must be "class" or "mean", got {pool!r}.')
        self.patch_embedding = PatchEmbedding(image_size, patch_size, in_channels, embed_dim)
        self.class_token = ClassToken(embed_dim) if pool == "class" else None
        self.num_prefix_tokens = 1 if pool == "class" else 0
        self.positional_encoding = make_positional_encoding(
            positional, self.grid, self.num_prefix_tokens, embed_dim
        )
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(embed_dim, depth, num_heads, mlp_ratio, qkv_bias, dropout, attention_dropout,
                               drop_path, norm_eps, gelu)  # fmt: skip
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self.apply(initialize)

    @property
    def grid(self):
        """How the patches lie: (rows, columns)."""
        return self.patch_embedding.grid

    def forward(self, images, return_attention=False):
        tokens, attention = self.encode(images, return_attention)
        pooled = tokens[:, 0] if self.class_token else tokens.mean(dim=1)  # (B, D)
        logits = self.head(pooled)  # (B, num_classes)
        return (logits, attention) if return_attention else logits

    def forward_features(self, images):
        """The encoder's normed tokens. Shapes: (B, C, H, W) -> (B, T, D)."""
        return self.encode(images)[0]

    def encode(self, images, return_attention=False):
        """Shapes: (B, C, H, W) -> tokens (B, T, D) and attention, a tuple of `depth` tensors, or None."""
        tokens = self.patch_embedding(images)  # (B, N, D)
        if self.class_token:
            tokens = self.class_token(tokens)  # (B, N + 1, D)
        tokens = self.dropout(self.positional_encoding(tokens))  # equation 1
        return self.encoder(tokens, return_attention)

    def resize(self, image_size, mode="timm"):
        """Make the model accept images of another size, by interpolating its positions; gives the model back.

        `mode` is one of those of `resize_positional_embedding`. The patch size stays: a larger image has more
        tokens. An optimizer made before still holds what it knew of the old positions: make a new one.
        Source: paper section 3.2.
        """
        patches, encoding = self.patch_embedding, self.positional_encoding
        new_grid = patch_grid(image_size, patches.patch_size)
        if not isinstance(encoding, nn.Identity):
            encoding.positional_embedding.data = resize_positional_embedding(
                encoding.positional_embedding.data, self.grid, new_grid, self.num_prefix_tokens, mode
            )
            encoding.positional_embedding.grad = None  # of the old shape
        patches.image_size, patches.grid = as_pair(image_size), new_grid
        patches.num_patches = new_grid[0] * new_grid[1]
        self.config["image_size"] = as_pair(image_size)
        return self


def make_positional_encoding(positional, grid, num_prefix_tokens, embed_dim):
    """The module that adds the positions: learned, one of the fixed ones, or nothing."""
    num_tokens = num_prefix_tokens + grid[0] * grid[1]
    if positional == "learned":
        return LearnedPositionalEncoding(num_tokens, embed_dim)
    if positional == "sincos1d":
        return FixedPositionalEncoding(sincos_1d(num_tokens, embed_dim))
    if positional == "sincos2d":
        prefix = torch.zeros(num_prefix_tokens, embed_dim)  # the class token has no place on the grid
        return FixedPositionalEncoding(torch.cat([prefix, sincos_2d(grid, embed_dim)]))
    if positional == "none":
        return nn.Identity()
    raise ValueError(f'positional must be "learned", "sincos1d", "sincos2d" or "none", got {positional!r}.')


def initialize(module):
    """Linear maps start truncated-normal with standard deviation 0.02, their biases at 0 (BERT's start)."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# The variants of the paper's table 1. Keywords change the rest: vit_b_16(num_classes=10, image_size=384).


def vit_b_16(**options):
    """ViT-Base, patches of 16 pixels."""
    return VisionTransformer(**{"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12, **options})


def vit_b_32(**options):
    """ViT-Base, patches of 32 pixels."""
    return VisionTransformer(**{"patch_size": 32, "embed_dim": 768, "depth": 12, "num_heads": 12, **options})


def vit_l_16(**options):
    """ViT-Large, patches of 16 pixels."""
    return VisionTransformer(**{"patch_size": 16, "embed_dim": 1024, "depth": 24, "num_heads": 16, **options})


def vit_l_32(**options):
    """ViT-Large, patches of 32 pixels."""
    return VisionTransformer(**{"patch_size": 32, "embed_dim": 1024, "depth": 24, "num_heads": 16, **options})


def vit_h_14(**options):
    """ViT-Huge, patches of 14 pixels."""
    return VisionTransformer(**{"patch_size": 14, "embed_dim": 1280, "depth": 32, "num_heads": 16, **options})


def vit_cifar(**options):
    """A small one for pictures of 32x32 pixels: 64 patches of 4x4, 2.69 million parameters."""
    small = {"image_size": 32, "patch_size": 4, "num_classes": 10}
    return VisionTransformer(**{**small, "embed_dim": 192, "depth": 6, "num_heads": 6, **options})
