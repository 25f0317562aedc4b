"""Checks of lesson 01, and what the notebook goes on with while an exercise is open."""

import torch
from torch import nn
from torch.nn.functional import conv2d

from vitlib.checks import TODO, NotYet, check, equal, need, reached, unchanged


def num_patches(image_size, patch_size):
    """How many patches an image has. Both sizes are (height, width)."""
    return (image_size[0] // patch_size[0]) * (image_size[1] // patch_size[1])


def to_conv_weight(weight, in_channels, patch_size):
    """Weights of a Linear whose rows are in the order (row, column, channel), as those of a Conv2d.

    Shapes: (D, P·P·C) -> (D, C, P, P).
    """
    return weight.reshape(-1, patch_size, patch_size, in_channels).permute(0, 3, 1, 2)


class OverlappingPatches(nn.Module):
    """A token for each patch, where a new patch begins every `stride` pixels. (B, C, H, W) -> (B, N, D)."""

    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        rows, columns = ((side - patch_size) // stride + 1 for side in image_size)
        self.num_patches = rows * columns
        self.projection = nn.Conv2d(in_channels, embed_dim, patch_size, stride=stride)

    def forward(self, images):
        return self.projection(images).flatten(2).transpose(1, 2)


# --- num_patches --------------------------------------------------------------------------------------------


@check("num_patches")
def check_num_patches(answer):
    for _ in range(3):
        right, image_size, patch_size, mistakes = random_sizes()
        got = answer(image_size, patch_size)
        need(got)
        where = "For an image of {}x{} and patches of {}x{} ".format(*image_size, *patch_size)
        if isinstance(got, str):
            raise NotYet(f"{where}you give {got!r}, which is a text. Give a number.")
        try:
            number = float(got)
        except (TypeError, ValueError, RuntimeError):
            raise NotYet(f"{where}you give {got!r}. One number is asked for: rows times columns.") from None
        for wrong, words in mistakes:
            if number == wrong:
                raise NotYet(f"{where}you give {got}: {words}")
        if number != right:
            raise NotYet(f"{where}you give {got}. How many fit into the height, how many into the width?")
        if isinstance(got, float):
            raise NotYet(f"{where}you give {got}. The number is right, but / makes a float: use //.")
    return "rows times columns, for images and patches that are not square, too."


def random_sizes():
    """Sizes at which no mistake gives the right number, nor two mistakes the same."""
    while True:
        rows, columns, high, wide = (torch.randperm(8)[:4] + 2).tolist()
        height, width = rows * high, columns * wide
        right = len([(y, x) for y in range(0, height, high) for x in range(0, width, wide)])
        only = "counts the {} twice. The image need not be square."
        square = "takes the patches for square. Use both of their sides."
        mistakes = [
            (rows * rows, only.format("rows")),
            (columns * columns, only.format("columns")),
            (height // wide * (width // high), "exchanges the patch's sides. They are (height, width), too."),
            (rows + columns, "adds rows and columns. Each row holds as many patches as there are columns."),
            ((height - high + 1) * (width - wide + 1), "counts windows that move on by one pixel. "
             "Patches lie side by side."),
            (height * width // high**2, square),
            (height * width // wide**2, square),
            (height * width // high, "divides by one side of a patch. Divide by both."),
            (height * width // wide, "divides by one side of a patch. Divide by both."),
            (rows * columns + 1, "counts one too many. A class token comes in lesson 02: count patches."),
            (height * width, "counts the pixels of the image."),
            (high * wide, "counts the pixels of one patch."),
        ]  # fmt: skip
        if len({right, *(wrong for wrong, _ in mistakes)}) == len(mistakes) + 1:
            return right, (height, width), (high, wide), mistakes


# --- patchify -----------------------------------------------------------------------------------------------


@check("patchify")
def check_patchify(answer):
    b, c, p, rows, columns = (torch.randperm(5) + 2).tolist()  # all different: no axis passes for another
    shape, n = (b, c, rows * p, columns * p), rows * columns
    images = torch.randperm(b * c * p * p * n).float().view(shape)  # each pixel has a number of its own
    try:
        got = answer(images.clone(), p)
    except Exception as error:
        works_for_the_usual_sizes(answer, error, shape, p)
        raise
    need(got)
    explain_shape(got, {
        (b, c * p * p, n): "is (B, C·P·P, N). Exchange the last two axes: transpose(1, 2).",
        (b, rows, columns, c * p * p): "still has rows and columns apart. Merge them into one axis N.",
        (b, n, c, p, p): "leaves each patch a little picture. Merge its three axes: flatten(2).",
        (b, n, p, p, c): "leaves each patch a little picture. Put the channels first, then flatten.",
        (b, c, n, p * p): "still has the channels apart. All channels of a patch belong in one row.",
        (b, c * n, p * p): "makes patches of each channel alone. A patch has all its channels in one row.",
        (b * n, c * p * p): "has images and patches in one axis. Keep the images apart: (B, N, C·P·P).",
        (n, c * p * p): "has no axis for the images of the batch: (B, N, C·P·P).",
        (b, n + 1, c * p * p): f"has one row more than the {n} patches. A class token comes in lesson 02.",
        (b, n * c * p * p): "has all patches of an image in one row. Each patch has its own: (B, N, C·P·P).",
    })  # fmt: skip
    six = images.reshape(b, c, rows, p, columns, p)
    turned = images.reshape(b, c, columns, p, rows, p)
    inside_first = images.reshape(b, c, p, rows, p, columns)
    pixels = f"the pixels of a patch come in the order ({{}}). Asked for is (channel, row, column): {c} " \
        f"channels one after the other, each with its {p} rows of {p}."  # fmt: skip
    not_squares = (
        "your patches are cut by rows of pixels, not by squares: patch 0 runs along the image's first row. "
        "Split height and width in two each, bring both axes of patches to the front (permute), then reshape."
    )
    mistakes = [
        (images, not_squares),
        (images.permute(0, 2, 3, 1), not_squares),
        (six.permute(0, 1, 2, 4, 3, 5), "the channels still come before the patches, so a row mixes patches "
         "of one channel. Bring the channel axis behind rows and columns, then reshape."),
        (six.permute(0, 4, 2, 1, 3, 5), "the patches come column by column. Go along the first row of "
         "patches, then the next."),
        (six.permute(0, 2, 4, 3, 5, 1), pixels.format("row, column, channel")),
        (six.permute(0, 2, 4, 3, 1, 5), pixels.format("row, channel, column")),
        (six.permute(0, 2, 4, 1, 5, 3), pixels.format("channel, column, row")),
        (six.permute(0, 2, 4, 5, 3, 1), pixels.format("column, row, channel")),
        (six.permute(0, 4, 2, 1, 5, 3), "height and width are exchanged: the patches come column by column, "
         "and so do the pixels of each."),
        (six.permute(0, 4, 2, 3, 5, 1), "the patches come column by column, and the channels of a pixel stay "
         "together. Asked for are patches row by row, and pixels in the order (channel, row, column)."),
        (turned.permute(0, 2, 4, 1, 3, 5), "height and width are exchanged: the image's last axis is its "
         f"width, so here there are {rows} rows of {columns} patches."),
        (inside_first.permute(0, 3, 5, 1, 2, 4), "height and width are split in the wrong order, so a patch "
         "gets pixels from all over the image. First the number of patches, then their size: (rows, P)."),
        (six.permute(0, 1, 3, 5, 2, 4), "this is (B, C·P·P, N), as unfold gives it, broken into other rows. "
         "reshape and view exchange no axes: transpose(1, 2) does."),
    ]  # fmt: skip
    want = cut_in_loops(images, p)
    if torch.is_tensor(got) and got.shape == want.shape:
        for wrong, words in mistakes:
            if torch.equal(got.float(), wrong.reshape(want.shape)):
                raise NotYet(words)
        if not torch.equal(got.float(), want):
            raise NotYet(first_stray(got, want, images))
    equal("the result", got, want)
    alone = images[:1, :1]
    equal("for one image of one channel, the result", answer(alone.clone(), p), cut_in_loops(alone, p))
    unchanged(lambda images: answer(images, p), images)
    return f"every pixel of {b} images of {shape[1:]} is in its place, {rows} rows of {columns} patches."


def cut_in_loops(images, patch_size, channels_last=False):
    """Patches by slicing, one after the other. (B, C, H, W) -> (B, N, C·P·P)"""
    height, width = images.shape[-2:]
    patches = [
        images[:, :, top : top + patch_size, left : left + patch_size]
        for top in range(0, height, patch_size)
        for left in range(0, width, patch_size)
    ]
    if channels_last:
        patches = [patch.permute(0, 2, 3, 1) for patch in patches]
    return torch.stack([patch.flatten(1) for patch in patches], dim=1)


def works_for_the_usual_sizes(answer, error, shape, patch_size):
    """Stops at random sizes but not at those of CIFAR-10: most likely they stand in the code as numbers."""
    try:
        answer(torch.zeros(1, 3, 32, 32), 4)
    except Exception:
        return
    raise NotYet(
        f"it works for one image of 3x32x32 and patches of 4, and stops for images of shape {shape} and "
        f"patches of {patch_size}. Take all sizes from images.shape; height and width may differ."
    ) from error


def explain_shape(got, shapes):
    """Refuse an answer whose shape tells what is missing, a dict of shape -> words."""
    if torch.is_tensor(got) and tuple(got.shape) in shapes:
        raise NotYet(f"the result, of shape {tuple(got.shape)}, {shapes[tuple(got.shape)]}")


def first_stray(got, want, images):
    """Words for the first number that stands in the wrong place."""

    def pixel(number):
        place = (images[image] == number).nonzero()
        return "channel {}, row {}, column {}".format(*place[0].tolist()) if len(place) else None

    image, patch, index = (got.float() != want).nonzero()[0].tolist()
    number = got[image, patch, index]
    found = pixel(number) or f"{number:g}, which is no pixel of this image"
    return (
        f"image {image}, patch {patch}: number {index} of its row should be the pixel at "
        f"{pixel(want[image, patch, index])}. There is {found}."
    )


# --- to_conv_weight -----------------------------------------------------------------------------------------


@check("to_conv_weight")
def check_to_conv_weight(answer):
    c, p, d, rows, columns = (torch.randperm(5) + 2).tolist()
    weight, images = torch.randn(d, p * p * c), torch.randn(3, c, rows * p, columns * p)
    got = answer(weight.clone(), c, p)
    need(got)
    explain_shape(got, {
        (d, p, p, c): "has the channels last. Conv2d wants them second: (D, C, P, P).",
        (p, p, c, d): "is JAX's layout. PyTorch's Conv2d wants (D, C, P, P).",
        (d, c * p * p): "is still a matrix. Conv2d wants (D, C, P, P).",
    })  # fmt: skip
    four = weight.reshape(d, p, p, c)
    mistakes = [
        (weight.reshape(d, c, p, p), "the rows are read as (channel, row, column), but theirs is (row, "
         "column, channel). Split into (D, P, P, C) first, then move the channel axis."),
        (four.permute(0, 3, 2, 1), "rows and columns are exchanged: the filters lie on their sides. "
         "transpose(1, 3) swaps two axes; permute(0, 3, 1, 2) moves one."),
        (four.permute(0, 3, 1, 2).flip(2, 3), "the filters are turned by 180°. PyTorch's convolution does "
         "not flip its filter, so you need not either."),
        (weight.reshape(d, p, c, p).permute(0, 2, 1, 3), "the rows are read as (row, channel, column), but "
         "theirs is (row, column, channel)."),
        (weight.T.reshape(d, c, p, p), "weight has its D filters as rows already. Don't transpose it."),
    ]  # fmt: skip
    equal("the weight", got, four.permute(0, 3, 1, 2), diagnoses=mistakes)
    tokens = cut_in_loops(images, p, channels_last=True) @ weight.T
    equal("what the convolution gives", conv2d(images, got, stride=p).flatten(2).mT, tokens, 1e-4)
    unchanged(lambda weight: answer(weight, c, p), weight)
    return "the convolution gives the same tokens as the linear map, on random images."


# --- OverlappingPatches -------------------------------------------------------------------------------------


@check("OverlappingPatches")
def check_overlapping_patches(answer):
    stride, c = torch.randint(2, 4, (2,)).tolist()
    p = 2 * stride + torch.randint(2, ()).item()
    rows, columns, b = (torch.randperm(4)[:3] + 3).tolist()
    d = torch.randint(8, 12, ()).item()  # no axis passes for another
    size, n = (p + stride * (rows - 1), p + stride * (columns - 1)), rows * columns
    layer = answer(size, p, stride, c, d)
    where = f"Image {size[0]}x{size[1]}, patch_size {p}, stride {stride}: "
    judge_count(layer, n, size, p, stride, where)
    images = torch.randn(b, c, *size)
    want = fill_and_predict(layer, images, p, stride, d, where)
    got = unchanged(layer, images)
    need(got)
    side_by_side = (size[0] // p) * (size[1] // p)
    every = (size[0] - p + 1) * (size[1] - p + 1)
    padded = ((size[0] + p // 2 * 2 - p) // stride + 1) * ((size[1] + p // 2 * 2 - p) // stride + 1)
    explain_shape(got, {
        (b, d, n): "is (B, D, N). Exchange the last two axes: transpose(1, 2).",
        (b, d * n): "has one row for each image. flatten(1) merges the tokens, too; flatten(2) keeps D.",
        (b, n + 1, d): f"has one token more than the {n} patches. A class token comes in lesson 02.",
        (b, every, d): "has a token for each place, one pixel apart. Give the convolution stride=stride.",
        (b, d, rows, columns): "is (B, D, rows, columns). Flatten rows and columns, then exchange the axes.",
        (b, side_by_side, d): "has the tokens of patches side by side. Give the convolution stride=stride.",
        (b, padded, d): f"has more than {n} tokens: padding adds patches over the border. Leave it out.",
    })  # fmt: skip
    as_columns = want.reshape(b, rows, columns, d).transpose(1, 2).reshape(b, n, d)
    diagnoses = [
        (want.mT.reshape(b, n, d), "the shape is right, but one token mixes numbers of several patches. "
         "view and reshape move nothing: flatten(2), then transpose(1, 2)."),
        (as_columns, "the tokens come column by column. Go along the first row of patches, then the next."),
    ]  # fmt: skip
    equal("the result", got, want, 1e-4, diagnoses)
    equal("for one image, the result", layer(images[:1]), want[:1], 1e-4)
    reached("the result", got, dict(layer.named_parameters()))
    return f"{rows}x{columns} tokens, each from its own {p}x{p} pixels, {stride} pixels apart."


def judge_count(layer, right, size, patch_size, stride, where):
    """Is `layer.num_patches` right?"""
    if not isinstance(layer, nn.Module):
        raise NotYet("OverlappingPatches should be a class that inherits from nn.Module.")
    if not hasattr(layer, "num_patches"):
        raise NotYet("the layer has no num_patches. Set self.num_patches in __init__.")
    got = layer.num_patches
    need(got)
    height, width = size
    down, across = ((side - patch_size) // stride + 1 for side in size)
    mistakes = {
        (height // patch_size) * (width // patch_size): "that many lie side by side. Here a new one begins "
        f"every {stride} pixels.",
        (height // stride) * (width // stride): "the last ones would stick out of the image. The first takes "
        f"{patch_size} pixels, each further one {stride} more.",
        (down - 1) * (across - 1): "these are the steps. Each way there is one place more than steps.",
        down**2: "counts the rows twice. The image need not be square.",
        across**2: "counts the columns twice. The image need not be square.",
    }  # fmt: skip
    if got != right:
        words = "how many places are there for the patch, down and across? Give one number."
        if isinstance(got, int | float):
            words = mistakes.get(got, words)
        raise NotYet(f"{where}num_patches is {got}: {words}")
    if getattr(layer, "projection", None) is TODO:
        raise NotYet("num_patches is right. self.projection is still to do.")


def fill_and_predict(layer, images, patch_size, stride, embed_dim, where):
    """Make each of the layer's D numbers a multiple of the sum of a patch, plus a bias; give these tokens.

    A sum does not depend on the order in which a layer reads the pixels: a Linear is as good as a Conv2d.
    """
    channels = images.shape[1]
    expected = channels * patch_size**2 * embed_dim + embed_dim
    number = sum(parameter.numel() for parameter in layer.parameters())
    if number != expected:
        if number == channels * stride**2 * embed_dim + embed_dim:
            raise NotYet(f"{where}the kernel is as large as the stride. It should be as large as the patch.")
        if number == expected + embed_dim:
            raise NotYet(f"{where}{embed_dim} parameters too many. A class token comes in lesson 02.")
        raise NotYet(
            f"{where}the layer has {number} parameters. One linear map with a bias, of "
            f"{channels}·{patch_size}·{patch_size} numbers to {embed_dim}, has {expected}."
        )
    scale, bias = torch.randn(2, embed_dim)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.numel() == embed_dim:  # (D,), or with axes of length 1
                parameter.copy_(bias.view(parameter.shape))
            elif parameter.shape[0] == embed_dim:
                parameter.copy_(scale.view(-1, *[1] * (parameter.ndim - 1)))
            else:  # written by hand, with D as its last axis
                parameter.copy_(scale)
    height, width = images.shape[-2:]
    sums = [
        images[:, :, top : top + patch_size, left : left + patch_size].sum(dim=(1, 2, 3))
        for top in range(0, height - patch_size + 1, stride)
        for left in range(0, width - patch_size + 1, stride)
    ]
    return torch.stack(sums, dim=1)[..., None] * scale + bias  # (B, N, D)
