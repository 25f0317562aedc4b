"""Checks of lesson 01: usual mistakes are refused in words that help, right answers pass however written."""

import pytest
import torch
from checking import judged_against
from einops import rearrange
from torch import nn
from torch.nn.functional import unfold

from vitlib import patch_embedding
from vitlib.checks import TODO
from vitlib.checks import patch_embedding as lesson
from vitlib.figures.patch_embedding import cut_pictures

REFERENCE = {
    "num_patches": lesson.num_patches,
    "patchify": patch_embedding.patchify,
    "to_conv_weight": lesson.to_conv_weight,
    "OverlappingPatches": lesson.OverlappingPatches,
}


verdict = judged_against(REFERENCE.get)


# --- num_patches -----------------------------------------------------------------------------------------

WRONG_NUMBER = {
    "counts the rows twice": lambda size, patch: (size[0] // patch[0]) ** 2,
    "counts the columns twice": lambda size, patch: (size[1] // patch[1]) ** 2,
    "exchanges the patch's sides": lambda size, patch: (size[0] // patch[1]) * (size[1] // patch[0]),
    "counts one too many": lambda size, patch: (size[0] // patch[0]) * (size[1] // patch[1]) + 1,
    "adds rows and columns": lambda size, patch: size[0] // patch[0] + size[1] // patch[1],
    "move on by one pixel": lambda size, patch: (size[0] - patch[0] + 1) * (size[1] - patch[1] + 1),
    "takes the patches for square": lambda size, patch: size[0] * size[1] // patch[0] ** 2,
    "divides by one side": lambda size, patch: size[0] * size[1] // patch[1],
    "pixels of the image": lambda size, patch: size[0] * size[1],
    "pixels of one patch": lambda size, patch: patch[0] * patch[1],
    "One number is asked for": lambda size, patch: (size[0] // patch[0], size[1] // patch[1]),
    "you give {'rows'": lambda size, patch: {"rows": size[0] // patch[0]},
    "you give tensor(": lambda size, patch: torch.tensor(size) // torch.tensor(patch),
    "makes a float": lambda size, patch: (size[0] / patch[0]) * (size[1] / patch[1]),
    "which is a text": lambda size, patch: "196",
    "How many fit": lambda size, patch: -1,  # no size and no other mistake gives it
}


def number_by_area(image_size, patch_size):
    (height, width), (high, wide) = image_size, patch_size
    return int(height * width / (high * wide))


def number_by_windows(image_size, patch_size):
    return unfold(torch.zeros(1, 1, *image_size), patch_size, stride=patch_size).shape[-1]


# --- patchify --------------------------------------------------------------------------------------------


def by_permute(images, p, order=(0, 2, 4, 1, 3, 5), swap=False):
    b, c, height, width = images.shape
    rows, columns = (width // p, height // p) if swap else (height // p, width // p)
    return images.reshape(b, c, rows, p, columns, p).permute(order).reshape(b, rows * columns, -1)


def by_rearrange(images, p, axes):
    return rearrange(images, f"b c (row p) (col q) -> {axes}", p=p, q=p)


def by_filling(images, patch_size):
    b, c, height, width = images.shape
    result = torch.empty(b, (height // patch_size) * (width // patch_size), c * patch_size**2)
    for number in range(result.shape[1]):
        row, column = divmod(number, width // patch_size)
        y, x = row * patch_size, column * patch_size
        result[:, number] = images[:, :, y : y + patch_size, x : x + patch_size].reshape(b, -1)
    return result


def by_plain_python(images, p):
    rows, columns = images.shape[2] // p, images.shape[3] // p
    side = range(p)
    return torch.tensor([
        [
            [channel[row * p + y][column * p + x] for channel in image for y in side for x in side]
            for row in range(rows) for column in range(columns)
        ]
        for image in images.tolist()
    ])  # fmt: skip


def by_two_unfolds(images, p):
    return images.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def by_unfold(images, p):
    return unfold(images, p, stride=p).mT


def one_wrong_pixel(images, p):
    patches = by_permute(images, p).clone()
    patches[1, 2, 3], patches[1, 2, 2] = patches[1, 2, 2].clone(), patches[1, 2, 3].clone()
    return patches


def for_cifar_only(images, p):
    return rearrange(images, "b c (row p) (col q) -> b (row col) (c p q)", row=8, col=8, p=p)


def zeroed_after(way):
    """The right result, and then zeros in what was given."""

    def answer(given, *sizes):
        result = way(given, *sizes).clone()
        given.zero_()
        return result

    return answer


WRONG_PATCHES = {
    "changes the tensor that it is given": zeroed_after(by_permute),
    "for one image of one channel": lambda x, p: by_permute(x, p).squeeze(),
    "should be of type torch.float32": lambda x, p: by_permute(x, p).double(),
    "by rows of pixels, not by squares": lambda x, p: by_permute(x, p, (0, 1, 2, 3, 4, 5)),
    "runs along the image's first row": lambda x, p: x.permute(0, 2, 3, 1).reshape(by_permute(x, p).shape),
    "channels still come before": lambda x, p: (
        x.unfold(2, p, p).unfold(3, p, p).reshape(by_permute(x, p).shape)
    ),
    "patches come column by column. Go": lambda x, p: by_rearrange(x, p, "b (col row) (c p q)"),
    "order (row, column, channel)": lambda x, p: by_rearrange(x, p, "b (row col) (p q c)"),
    "order (row, channel, column)": lambda x, p: by_rearrange(x, p, "b (row col) (p c q)"),
    "has all patches of an image in one row": lambda x, p: by_permute(x, p).flatten(1),
    "one row more than": lambda x, p: torch.nn.functional.pad(by_permute(x, p), (0, 0, 1, 0)),
    "order (channel, column, row)": lambda x, p: by_rearrange(x, p, "b (row col) (c q p)"),
    "order (column, row, channel)": lambda x, p: by_rearrange(x, p, "b (row col) (q p c)"),
    "and so do the pixels of each": lambda x, p: by_permute(x.mT, p),
    "channels of a pixel stay together": lambda x, p: by_rearrange(x, p, "b (col row) (p q c)"),
    "the image's last axis is its width": lambda x, p: by_permute(x, p, swap=True),
    "split in the wrong order": lambda x, p: rearrange(
        x, "b c (p row) (q col) -> b (row col) (c p q)", p=p, q=p
    ),
    "as unfold gives it": lambda x, p: unfold(x, p, stride=p).reshape(by_permute(x, p).shape),
    "Exchange the last two axes": lambda x, p: unfold(x, p, stride=p),
    "still has rows and columns apart": lambda x, p: by_rearrange(x, p, "b row col (c p q)"),
    "flatten(2)": lambda x, p: by_rearrange(x, p, "b (row col) c p q"),
    "then flatten": lambda x, p: by_rearrange(x, p, "b (row col) p q c"),
    "still has the channels apart": lambda x, p: by_rearrange(x, p, "b c (row col) (p q)"),
    "of each channel alone": lambda x, p: by_rearrange(x, p, "b (c row col) (p q)"),
    "images and patches in one axis": lambda x, p: by_permute(x, p).flatten(0, 1),
    "no axis for the images": lambda x, p: by_permute(x, p)[0],
    "Take all sizes from images.shape": for_cifar_only,
    "image 1, patch 2: number 2 of its row": one_wrong_pixel,
    "which is no pixel": lambda x, p: by_permute(x, p) - 0.5,
    "should be a tensor": lambda x, p: by_permute(x, p).tolist(),
    "should have shape": lambda x, p: by_permute(x, p)[:, :-1],
}


# --- to_conv_weight --------------------------------------------------------------------------------------


def weight_in_a_loop(weight, in_channels, patch_size):
    result = torch.zeros(len(weight), in_channels, patch_size, patch_size)
    for y in range(patch_size):
        for x in range(patch_size):
            first = (y * patch_size + x) * in_channels
            result[:, :, y, x] = weight[:, first : first + in_channels]
    return nn.Parameter(result)


WRONG_WEIGHT = {
    "changes the tensor that it is given": zeroed_after(lesson.to_conv_weight),
    "read as (channel, row, column)": lambda w, c, p: w.view(-1, c, p, p),
    "lie on their sides": lambda w, c, p: w.view(-1, p, p, c).transpose(1, 3),
    "turned by 180": lambda w, c, p: lesson.to_conv_weight(w, c, p).flip(2, 3),
    "read as (row, channel, column)": lambda w, c, p: w.view(-1, p, c, p).transpose(1, 2),
    "Don't transpose": lambda w, c, p: w.T.reshape(-1, c, p, p),
    "has the channels last": lambda w, c, p: w.view(-1, p, p, c),
    "JAX's layout": lambda w, c, p: w.T.reshape(p, p, c, -1),
    "still a matrix": lambda w, c, p: w,
    "wrong numbers": lambda w, c, p: 2 * lesson.to_conv_weight(w, c, p),
}


# --- OverlappingPatches ----------------------------------------------------------------------------------


class ByUnfold(nn.Module):
    """Right: windows as rows, and a Linear."""

    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        self.patch, self.step = patch_size, stride
        self.num_patches = number_by_places(image_size, patch_size, stride)
        self.linear = nn.Linear(in_channels * patch_size * patch_size, embed_dim)

    def forward(self, x):
        return self.linear(unfold(x, self.patch, stride=self.step).mT)


class ByHand(nn.Module):
    """Right: the paper's E as a bare parameter (C·P·P, D), pixels in the order (row, column, channel)."""

    bias_axes = ()

    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        self.patch, self.step = patch_size, stride
        self.num_patches = number_by_places(image_size, patch_size, stride)
        self.E = nn.Parameter(torch.zeros(in_channels * patch_size * patch_size, embed_dim))
        self.b = nn.Parameter(torch.zeros(*self.bias_axes, embed_dim))

    def forward(self, x):
        windows = x.unfold(2, self.patch, self.step).unfold(3, self.patch, self.step)
        return rearrange(windows, "b c row col p q -> b (row col) (p q c)") @ self.E + self.b


def number_by_places(image_size, patch_size, stride):
    places = [range(0, side - patch_size + 1, stride) for side in image_size]
    return len(places[0]) * len(places[1])


class BiasForEachToken(ByHand):
    bias_axes = (1, 1)


class BiasAsARow(ByHand):
    bias_axes = (1,)


class NotAModule:
    def __init__(self, *sizes):
        pass


class WithoutNumber(nn.Module):
    def __init__(self, *sizes):
        super().__init__()


class SideBySide(lesson.OverlappingPatches):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
        self.projection.stride = (patch_size, patch_size)


class OnePixelApart(lesson.OverlappingPatches):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
        self.projection.stride = (1, 1)


class WithClassToken(lesson.OverlappingPatches):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
        self.class_token = nn.Parameter(torch.zeros(1, 1, embed_dim))

    def forward(self, images):
        tokens = super().forward(images)
        return torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)


class KernelOfStride(lesson.OverlappingPatches):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
        self.projection = nn.Conv2d(in_channels, embed_dim, stride, stride=stride)


class Padded(lesson.OverlappingPatches):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
        self.projection.padding = (patch_size // 2, patch_size // 2)


class HalfDone(nn.Module):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        self.num_patches = number_by_places(image_size, patch_size, stride)
        self.projection = TODO


class WithNorm(lesson.OverlappingPatches):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)


def counting(count):
    class Counting(lesson.OverlappingPatches):
        def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
            super().__init__(image_size, patch_size, stride, in_channels, embed_dim)
            self.num_patches = count(*image_size, patch_size, stride)

    return Counting


def returning(finish):
    class Returning(lesson.OverlappingPatches):
        def forward(self, images):
            return finish(self.projection(images))

    return Returning


class WithoutGradient(lesson.OverlappingPatches):
    forward = torch.no_grad()(lesson.OverlappingPatches.forward)


class InPlace(lesson.OverlappingPatches):
    def forward(self, images):
        return zeroed_after(super().forward)(images)


class BiasCutOff(ByHand):
    def forward(self, x):
        return ByHand.forward(self, x) - self.b + self.b.detach()


WRONG_OVERLAP = {
    "no gradient flows through it": WithoutGradient,
    "no gradient reaches b": BiasCutOff,
    "changes the tensor that it is given": InPlace,
    "for one image, the result": returning(lambda x: x.flatten(2).mT.squeeze()),
    "Give one number": counting(lambda h, w, p, s: [(h - p) // s + 1, (w - p) // s + 1]),
    "inherits from nn.Module": NotAModule,
    "has no num_patches": WithoutNumber,
    "lie side by side": counting(lambda h, w, p, s: (h // p) * (w // p)),
    "stick out": counting(lambda h, w, p, s: (h // s) * (w // s)),
    "these are the steps": counting(lambda h, w, p, s: ((h - p) // s) * ((w - p) // s)),
    "counts the rows twice": counting(lambda h, w, p, s: ((h - p) // s + 1) ** 2),
    "counts the columns twice": counting(lambda h, w, p, s: ((w - p) // s + 1) ** 2),
    "how many places": counting(lambda h, w, p, s: 49),
    "as large as the stride": KernelOfStride,
    "parameters. One linear map": WithNorm,
    "tokens of patches side by side. Give the convolution stride=stride": SideBySide,
    "one pixel apart. Give the convolution stride=stride": OnePixelApart,
    "one token more than": returning(lambda x: torch.nn.functional.pad(x.flatten(2).mT, (0, 0, 1, 0))),
    "parameters too many. A class token": WithClassToken,
    "flatten(2) keeps D": returning(lambda x: x.flatten(1)),
    "padding adds patches": Padded,
    "projection is still to do": HalfDone,
    "(B, D, N). Exchange": returning(lambda x: x.flatten(2)),
    "(B, D, rows, columns)": returning(lambda x: x),
    "one token mixes": returning(lambda x: x.reshape(len(x), -1, x.shape[1])),
    "column by column": returning(lambda x: x.mT.flatten(2).mT),
}

WRONG = {
    "num_patches": WRONG_NUMBER,
    "patchify": WRONG_PATCHES,
    "to_conv_weight": WRONG_WEIGHT,
    "OverlappingPatches": WRONG_OVERLAP,
}
RIGHT = {
    "num_patches": [number_by_area, number_by_windows],
    "patchify": [by_permute, by_filling, by_plain_python, by_two_unfolds, by_unfold],
    "to_conv_weight": [
        weight_in_a_loop,
        lambda w, c, p: rearrange(w, "d (p q c) -> d c p q", p=p, c=c),
        lambda w, c, p: w.T.reshape(p, p, c, -1).permute(3, 2, 0, 1),
    ],
    "OverlappingPatches": [ByUnfold, ByHand, BiasForEachToken, BiasAsARow],
}


@pytest.mark.parametrize(
    "name, words, answer",
    [(name, words, answer) for name, answers in WRONG.items() for words, answer in answers.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_usual_mistake_is_named(capsys, name, words, answer):
    """Fails where a wrong answer passes, or is refused for another mistake. Three random tries."""
    for _ in range(3):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and words in printed and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_right_answer_passes(capsys, name):
    """Fails where a check asks for one way to write it, or for more exact numbers than float32 gives."""
    for answer in [*RIGHT[name], REFERENCE[name]]:
        for _ in range(3):
            printed, accepted = verdict(capsys, answer, name)
            assert printed.startswith("[ok]") and accepted, printed


class NothingYet(nn.Module):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        self.num_patches = TODO


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("unfilled", [TODO, ...], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    answers = [lambda *_: unfilled]
    if name == "OverlappingPatches":
        answers = [unfilled, NothingYet, returning(lambda _: unfilled)]
    for answer in answers:
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[todo]") and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_return_is_told(capsys, name):
    """Fails where a learner who has worked is told that nothing was begun."""
    answer = returning(lambda _: None) if name == "OverlappingPatches" else lambda *_: None
    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "Does it end with return?" in printed and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def stops(*_):
        return torch.zeros(12).reshape(13)  # no such shape

    printed, accepted = verdict(capsys, stops, name)
    assert printed.startswith("[not yet]") and "torch.zeros(12).reshape(13)" in printed and not accepted


def test_the_independent_formulations_agree_with_vitlib():
    """Two ways to compute the same thing, on odd sizes: fails where either is wrong."""
    images = torch.randn(7, 1, 6, 15, generator=torch.Generator().manual_seed(0))
    assert torch.equal(patch_embedding.patchify(images, 3), lesson.cut_in_loops(images, 3))
    for layer in (lesson.OverlappingPatches, ByHand):
        layer = layer((6, 15), 3, 1, 1, 4)
        want = lesson.fill_and_predict(layer, images, 3, 1, 4, "")
        torch.testing.assert_close(layer(images), want, rtol=1e-4, atol=1e-5)


def test_no_right_number_is_also_a_mistake():
    """Fails where a right answer could be refused by chance, or a wrong one take another's name."""
    for _ in range(200):
        right, image_size, patch_size, mistakes = lesson.random_sizes()
        rows, columns = patch_embedding.patch_grid(image_size, patch_size)
        assert right == rows * columns
        assert right not in [wrong for wrong, _ in mistakes]


def test_the_figure_cuts_where_the_patches_are():
    """Fails where tiles are laid out column by column, or a number stands in another patch."""
    picture = torch.arange(24, dtype=torch.uint8).reshape(1, 1, 1, 4, 6).expand(1, 1, 3, 4, 6)
    patches = patch_embedding.patchify(picture[0], 2)[0].reshape(2, 3, 3, 2, 2)
    whole, cut = cut_pictures({"whole": picture, "cut": patches}, numbered=True).axes
    assert (whole.images[0].get_array() == picture[0, 0].permute(1, 2, 0).numpy()).all()
    drawn = cut.images[0].get_array()  # patches of 2 pixels, gaps of 1
    assert drawn.shape == (5, 8, 3) and (drawn[:, 2] == 255).all() and (drawn[2] == 255).all()
    assert drawn[4, 6, 0] == 22 and not whole.texts
    assert [text.get_text() for text in cut.texts] == list("012345")
    assert cut.texts[5].get_position() == (7, 4)
