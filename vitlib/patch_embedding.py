"""From image to patch tokens (lesson 01; paper section 3.1, equation 1)."""

from einops import rearrange
from torch import nn


def as_pair(size):
    """An int or a pair as (height, width)."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)


def patch_grid(image_size, patch_size):
    """How many patches fit in an image: (rows, columns).

    Raises ValueError where the patches do not cover the image exactly.
    """
    (height, width), (patch_height, patch_width) = as_pair(image_size), as_pair(patch_size)
    if min(height, width, patch_height, patch_width) < 1:
        raise ValueError(f"Sizes must be positive: image_size={image_size}, patch_size={patch_size}.")
    if height % patch_height or width % patch_width:
        sides = ((height, patch_height), (width, patch_width))
        fits = [max(side // patch, 1) * patch for side, patch in sides]
        quotients = dict.fromkeys(f"{side} / {patch} = {side / patch:g}" for side, patch in sides)
        raise ValueError(
            f"An image of {height}x{width} pixels cannot be cut into "
            f"patches of {patch_height}x{patch_width}: {', '.join(quotients)}. "
            f"Resize or crop the image, for instance to {fits[0]}x{fits[1]}, "
            "or choose a patch size that divides both sides."
        )
    return height // patch_height, width // patch_width


def check_batch(images):
    """Refuse anything but a batch of images."""
    if images.ndim != 4:
        raise ValueError(
            f"Expected images of shape (B, C, H, W), got {tuple(images.shape)}. "
            "One image needs a batch dimension in front: image[None]."
        )


def patchify(images, patch_size):
    """Cut images into patches and write the pixels of each patch in one row.

    Patches come row by row, the pixels of a patch in the order (channel, row, column).
    Shapes: (B, C, H, W) -> (B, N, C·P·P), N = (H / P)·(W / P).
    Raises ValueError where the patches do not cover the image, or where it is not a batch.
    Source: paper section 3.1, x_p.
    """
    check_batch(images)
    patch_height, patch_width = as_pair(patch_size)
    patch_grid(images.shape[-2:], patch_size)
    axes = "b c (rows ph) (cols pw) -> b (rows cols) (c ph pw)"
    return rearrange(images, axes, ph=patch_height, pw=patch_width)


def unpatchify(patches, image_size, patch_size):
    """Put patches back together: the exact inverse of `patchify`.

    Shapes: (B, N, C·P·P) -> (B, C, H, W).
    Raises ValueError where N or the length of a patch does not fit.
    """
    patch_height, patch_width = as_pair(patch_size)
    rows, columns = patch_grid(image_size, patch_size)
    num_pixels = patch_height * patch_width
    if patches.ndim != 3 or patches.shape[1] != rows * columns or patches.shape[2] % num_pixels:
        raise ValueError(
            f"Patches of shape {tuple(patches.shape)} do not make an image of {as_pair(image_size)} from "
            f"patches of {as_pair(patch_size)}: expected (B, {rows * columns}, channels·{num_pixels})."
        )
    axes = "b (rows cols) (c ph pw) -> b c (rows ph) (cols pw)"
    return rearrange(patches, axes, rows=rows, ph=patch_height, pw=patch_width)


class PatchEmbedding(nn.Module):
    """Turn an image into one token per patch, by one linear map shared by all patches.

    A convolution whose stride is its kernel size is that linear map: `projection.weight.flatten(1)` is its
    matrix, and it meets the pixels of a patch in the order of `patchify`.
    Shapes: (B, C, H, W) -> (B, N, D).
    Raises ValueError for images of another size or number of channels, or that are not floating point.
    Source: paper equation 1, the matrix E; lesson 01.
    """

    def __init__(self, image_size, patch_size, in_channels, embed_dim):
        super().__init__()
        self.image_size, self.patch_size = as_pair(image_size), as_pair(patch_size)
        self.grid = patch_grid(image_size, patch_size)
        self.num_patches = self.grid[0] * self.grid[1]
        self.projection = nn.Conv2d(in_channels, embed_dim, self.patch_size, stride=self.patch_size)

    def forward(self, images):
        self.check(images)
        tokens = self.projection(images)  # (B, D, rows, columns)
        return tokens.flatten(2).transpose(1, 2)  # (B, N, D)

    def check(self, images):
        """Refuse images that this layer was not built for, and say what to do."""
        check_batch(images)
        channels, size = self.projection.in_channels, tuple(images.shape[-2:])
        if images.shape[1] != channels:
            swapped = images.shape[3] == channels
            hint = " They look like (B, H, W, C): use images.permute(0, 3, 1, 2)." if swapped else ""
            raise ValueError(
                f"The model was built for in_channels={channels}, the images have {images.shape[1]} "
                f"channels: shape {tuple(images.shape)}.{hint}"
            )
        if size != self.image_size:
            patch_grid(size, self.patch_size)  # where no patches fit, that is what to say
            raise ValueError(
                f"The model was built for images of {self.image_size}, these are {size} (height, width). "
                f"Resize the images to {self.image_size}, or the model with model.resize({size})."
            )
        if not images.is_floating_point():
            raise ValueError(
                f"Expected normalised floating-point images, got {images.dtype}. "
                "Use vitlib.data.normalize(images, mean, std)."
            )
