"""Images cut into patches, put together again, and turned into tokens."""

import pytest
import torch
from torch.nn.functional import linear, unfold

from vitlib.patch_embedding import PatchEmbedding, as_pair, patch_grid, patchify, unpatchify

SIZES = [  # batch, channels, image (height, width), patch (height, width)
    (2, 3, (8, 12), (4, 4)),
    (1, 1, (28, 28), (7, 7)),
    (7, 3, (6, 8), (2, 4)),
    (2, 5, (3, 5), (1, 1)),
    (1, 2, (4, 6), (4, 6)),
]


def random_images(batch, channels, size):
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("batch, channels, size, patch", SIZES)
def test_patchify_equals_a_loop(batch, channels, size, patch):
    """Height and width swapped, patches column by column, or pixels in (row, column, channel) order."""
    images = random_images(batch, channels, size)
    rows = []
    for image in images:
        for top in range(0, size[0], patch[0]):
            for left in range(0, size[1], patch[1]):
                rows.append([
                    image[channel, top + y, left + x]
                    for channel in range(channels)
                    for y in range(patch[0])
                    for x in range(patch[1])
                ])  # fmt: skip
    expected = torch.tensor(rows).reshape(batch, -1, channels * patch[0] * patch[1])
    assert torch.equal(patchify(images, patch), expected)


@pytest.mark.parametrize("batch, channels, size, patch", SIZES)
def test_unpatchify_is_the_exact_inverse(batch, channels, size, patch):
    """An order in one of the two that the other does not follow."""
    images = random_images(batch, channels, size)
    patches = patchify(images, patch)
    assert torch.equal(unpatchify(patches, size, patch), images)
    other = patches[..., torch.randperm(patches.shape[-1], generator=torch.Generator().manual_seed(1))]
    assert torch.equal(patchify(unpatchify(other, size, patch), patch), other)


@pytest.mark.parametrize("batch, channels, size, patch", SIZES)
def test_patchify_equals_pytorchs_unfold(batch, channels, size, patch):
    images = random_images(batch, channels, size)
    assert torch.equal(patchify(images, patch), unfold(images, patch, stride=patch).transpose(1, 2))


def test_patchify_keeps_the_type():
    """uint8 pictures are cut as well: lessons look at them before they are normalised."""
    images = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).to(torch.uint8)
    patches = patchify(images, 4)
    assert patches.dtype == torch.uint8 and patches.shape == (2, 4, 48)
    assert torch.equal(unpatchify(patches, 8, 4), images)


@pytest.mark.parametrize("batch, channels, size, patch", SIZES)
def test_the_convolution_is_one_matrix_for_all_patches(batch, channels, size, patch):
    """conv.weight.flatten(1) meets the pixels of a patch in another order than patchify writes them."""
    torch.manual_seed(0)
    layer = PatchEmbedding(size, patch, channels, 24)
    images = random_images(batch, channels, size)
    tokens = layer(images)
    expected = linear(patchify(images, patch), layer.projection.weight.flatten(1), layer.projection.bias)
    assert tokens.shape == (batch, layer.num_patches, 24)
    torch.testing.assert_close(tokens, expected, rtol=1e-4, atol=1e-5)


def test_grid_and_number_of_patches():
    """Rows and columns swapped."""
    layer = PatchEmbedding((32, 64), (4, 16), 3, 8)
    assert layer.image_size == (32, 64) and layer.patch_size == (4, 16)
    assert layer.grid == (8, 4) and layer.num_patches == 32
    assert PatchEmbedding(224, 16, 3, 8).grid == patch_grid(224, 16) == (14, 14)


def test_a_bright_patch_is_found_where_it_is():
    """A wide picture with one bright patch at the top right: the last token of the first row, index 15."""
    images = torch.zeros(1, 3, 32, 64)
    images[..., :4, -4:] = 1
    bright = patchify(images, 4).sum(dim=-1)[0]
    assert bright.nonzero().flatten().tolist() == [15]
    layer = PatchEmbedding((32, 64), 4, 3, 8)
    with torch.no_grad():
        layer.projection.bias.zero_()
        tokens = layer(images)[0]
    assert tokens.abs().sum(dim=-1).nonzero().flatten().tolist() == [15]


def test_as_pair():
    assert as_pair(7) == (7, 7) and as_pair([2, 3]) == (2, 3) and as_pair(torch.Size([4, 5])) == (4, 5)


def test_patches_that_do_not_cover_the_image():
    """222 pixels and patches of 16 would lose the last 14 pixels without a word."""
    with pytest.raises(ValueError, match=r"222x222.*16x16: 222 / 16 = 13\.875\. .*208x208"):
        PatchEmbedding(222, 16, 3, 8)
    with pytest.raises(ValueError, match="30x32.*4x4.*28x32"):
        patchify(torch.zeros(1, 3, 30, 32), 4)
    with pytest.raises(ValueError, match="4x4.*32x32"):  # image and patch size in the wrong order
        PatchEmbedding(4, 32, 3, 8)


@pytest.mark.parametrize("size, patch", [(0, 4), (32, 0), ((32, -4), 4)])
def test_sizes_must_be_positive(size, patch):
    with pytest.raises(ValueError, match="positive"):
        patch_grid(size, patch)


@pytest.mark.parametrize("shape", [(2, 7, 48), (2, 6, 47), (2, 6, 8)])
def test_patches_that_make_no_image(shape):
    """Patches that einops would shape into another image, or refuse in its own words."""
    with pytest.raises(ValueError, match=r"expected \(B, 6, "):
        unpatchify(torch.zeros(shape), (8, 12), 4)


def test_images_that_the_layer_was_not_built_for():
    layer = PatchEmbedding((8, 12), 4, 3, 8)
    with pytest.raises(ValueError, match=r"in_channels=3.*1 channels"):
        layer(torch.zeros(2, 1, 8, 12))
    with pytest.raises(ValueError, match=r"permute\(0, 3, 1, 2\)"):
        layer(torch.zeros(2, 8, 12, 3))
    with pytest.raises(ValueError, match=r"\(8, 12\).*\(12, 8\).*model\.resize\(\(12, 8\)\)"):
        layer(torch.zeros(2, 3, 12, 8))
    with pytest.raises(ValueError, match=r"\(3, 8, 12\).*image\[None\]"):
        layer(torch.zeros(3, 8, 12))
    with pytest.raises(ValueError, match="uint8.*normalize"):
        layer(torch.zeros(2, 3, 8, 12, dtype=torch.uint8))


def test_channels_and_width_in_the_wrong_order():
    """PatchEmbedding(32, 4, 192, 3) builds, but a colour picture must not pass through it."""
    with pytest.raises(ValueError, match=r"in_channels=192.*3 channels"):
        PatchEmbedding(32, 4, 192, 3)(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_types(dtype):
    layer = PatchEmbedding((8, 12), 4, 1, 8).to(dtype)
    assert layer(torch.zeros(1, 1, 8, 12, dtype=dtype)).dtype == dtype
