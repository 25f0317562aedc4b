"""Checks of lesson 03."""

import math
import random

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate

from vitlib.checks import NotYet, check, equal, explain, need, reached, unchanged


@check("TokensWithPositions")
def _(answer):
    patches, width = random.randint(6, 9), random.randint(4, 9)
    module = build(answer, patches, width)
    before = learnable(module)
    for batch in (*random.sample(range(2, 6), 2), 1):  # one alone could be the one that an answer has fixed
        judge_sum(module, batch, patches, width)
    if learnable(module) > before:
        raise NotYet(
            "the positions are made in forward, so an optimizer built before never sees them, and there are "
            "as many as the first batch needs. Make them in __init__, with nn.Parameter."
        )
    if before:  # else the words below say more
        judge_gradients(module, torch.randn(2, patches, width))
    behind = [numbers_behind(module, row, patches, width) for row in range(patches + 1)]
    if max(behind[1:]) == 0:
        raise NotYet(
            "no learned number reaches the patches: the positions are no parameters, so no optimizer will "
            "change them. Wrap them: nn.Parameter(...)."
        )
    if behind[0] == width:
        raise NotYet(
            "the class token gets no position of its own. First put it in front of the patches, then add "
            f"the positions, {patches + 1} of them."
        )
    if before == 2 * width:
        raise NotYet(f"all tokens get the same position. Make {patches + 1}: shape (1, {patches + 1}, D).")
    want = (patches + 2) * width
    if before != want:
        raise NotYet(
            f"there are {before} learned numbers. {patches + 1} positions and one class token, each "
            f"{width} wide, make {want}."
        )
    return f"class token first, then one learned position for each of {patches + 1} tokens, in every image."


def judge_sum(module, batch, patches, width):
    tokens = torch.randn(batch, patches, width)
    try:
        got = unchanged(module, tokens)
    except RuntimeError:
        explain_misfit(module, patches, width)
        raise
    need_tensor(got)
    sizes = tuple(got.shape)
    if sizes == (batch, patches, width):
        raise NotYet(f"{patches} tokens come out. Put the class token in front: {patches + 1} tokens.")
    if sizes[:2] == (batch, patches + 1) and sizes[2:] > (width,):
        raise NotYet(
            f"the tokens became {sizes[2]} wide, from {width}: the positions are appended. Add them with +."
        )
    if sizes[0] == batch and len(sizes) == 3 and sizes[1] > patches + 1:
        raise NotYet(f"{sizes[1]} tokens come out: the positions stand behind the tokens. Add them with +.")
    explain_shape(got, (batch, patches + 1, width))
    try:
        offset = added(module, batch, patches, width)  # (N + 1, D): the class token and the positions
    except NotYet:
        explain_misfit(module, patches, width)
        raise
    right = torch.cat([offset[:1].expand(batch, 1, width), tokens + offset[1:]], dim=1)
    constant = got[:, :-1] - tokens
    if batch > 1 and torch.allclose(constant, constant[:1].expand_as(constant), atol=1e-5):
        raise NotYet("the class token stands last. Put it in front: torch.cat([class_token, tokens], dim=1).")
    equal("the result", got, right)


@check("sincos_1d")
def _(answer):
    positions, width = random.choice([5, 7, 9]), random.choice([6, 8, 12])
    got = answer(positions, width)
    need(got)
    right = formula(positions, width)
    sine, cosine = right[:, 0::2], right[:, 1::2]
    degrees = math.pi / 180
    mistakes = [
        (torch.cat([sine, cosine], dim=1), "all sines come first, then all cosines. Here they alternate: "
         "sine and cosine of the first frequency, then of the second."),
        (torch.stack([cosine, sine], dim=2).flatten(1), "the cosine stands before the sine."),
        (right.T, "rows and columns are exchanged. Give each position a row."),
        (sine, "these are the sines only. Each frequency gives a sine and a cosine."),
        (torch.stack([sine, sine], dim=2).flatten(1), "the cosines are missing, the sines come twice."),
        (formula(positions, width, first=1), "the positions count from 1. They count from 0."),
        (formula(positions, width, power=1), "the frequencies fall half as fast as they should: the exponent "
         "is 2i / D, where i counts the pairs."),
        (formula(positions, width, power=4), "the frequencies fall twice as fast as they should. If i "
         "steps by two (0, 2, 4, …), the 2 of 2i / D is in it already."),
        (formula(positions, width, power=-2), "the positions are multiplied by 10000^(2i/D). Divide."),
        (formula(positions, width, unit=degrees), "the angle was turned from degrees into radians. It is in "
         "radians already."),
        (formula(positions, width, shared=False), "a sine and its cosine have different frequencies. Both "
         "of a pair have that of the pair."),
        (formula(positions, width, power=4, shared=False), "i counts the columns, 0 to D - 1. Let it count "
         "the pairs, 0 to D/2 - 1: a sine and its cosine share one i."),
    ]  # fmt: skip
    explain(got, *mistakes, tolerance=5e-3)  # sines of large angles are inexact in float32
    equal("the result", got, right, tolerance=1e-4)
    return f"{positions} positions, {width} wide: every number is the formula's."


@check("resize_positional_embedding")
def _(answer):
    old, new = random.choice([(3, 5), (5, 3), (4, 6)]), random.choice([(7, 8), (9, 7)])
    width = random.randint(2, 7)
    embedding = torch.randn(1, 1 + old[0] * old[1], width)
    try:
        got = answer(embedding.clone(), old, new)
    except Exception:
        if works_on_a_square(answer, width):
            raise NotYet(
                f"it works on a square grid, and stops on one of {old[0]}x{old[1]}. Take the numbers of rows "
                "and columns from old_grid, not the root of the number of patches."
            ) from None
        raise
    need(got)
    right = resized_by_pillow(embedding, old, new)
    patches, first = embedding[:, 1:], embedding[:, :1]

    def resized(rows=patches, old=old, new=new, **options):
        image = rows.reshape(1, *old, width).permute(0, 3, 1, 2)
        options = {"mode": "bicubic", "antialias": True, **options}
        return interpolate(image, size=new, **options).permute(0, 2, 3, 1).reshape(1, -1, width)

    torn = interpolate(patches.reshape(1, width, *old), size=new, mode="bicubic", antialias=True)
    unfolded = interpolate(
        patches.reshape(1, *old, width).permute(0, 3, 1, 2), size=new, mode="bicubic", antialias=True
    ).reshape(1, -1, width)
    many = 1 + new[0] * new[1]
    line = [interpolate(embedding.mT, size=many, mode="linear", align_corners=a).mT for a in (False, True)]
    words_for_line = (
        "this resizes the list of tokens, the class token with them. Take row 0 away, lay the other rows out "
        "as a grid, and resize in two directions."
    )
    mistakes = [
        (right[:, 1:], "the class token's row is lost. Put it back in front, unchanged."),
        (torch.cat([right[:, 1:], first], dim=1), "the class token's row stands last. It belongs in front."),
        (torch.cat([embedding[:, -1:], resized(embedding[:, :-1])], dim=1), "you took the last row for the "
         "class token's. It is the first."),
        (torch.cat([first, resized(embedding[:, :-1])], dim=1), "the class token's row is among the patches, "
         "and the last patch is not. The patches are embedding[:, 1:]."),
        (torch.cat([first, resized(old=old[::-1])], dim=1), "the old grid's rows and columns are exchanged."),
        (torch.cat([first, resized(new=new[::-1])], dim=1), "the new grid's rows and columns are exchanged. "
         "interpolate wants size=(rows, columns)."),
        (torch.cat([first, resized(old=old[::-1], new=new[::-1])], dim=1), "rows and columns are exchanged "
         "in both grids. The patches come row by row: (rows columns), not (columns rows)."),
        (torch.cat([first, torn.flatten(2).mT], dim=1), "a reshape from (N, D) to (D, rows, columns) mixes "
         "positions with widths. Reshape to (rows, columns, D), then permute."),
        (torch.cat([first, torn.reshape(1, -1, width)], dim=1), "a reshape from (N, D) to (D, rows, columns) "
         "mixes positions with widths. Reshape to (rows, columns, D), then permute."),
        (torch.cat([first, unfolded], dim=1), "on the way back, D still stands before rows and columns. Move "
         "it to the end before you reshape to (N, D)."),
        (torch.cat([first, resized(antialias=False)], dim=1), "this is bicubic without antialias=True: "
         "another filter, and so other numbers."),
        (torch.cat([first, resized(antialias=False, align_corners=True)], dim=1), "this is bicubic with "
         "align_corners=True, torchvision's way. Asked for is antialias=True."),
        (torch.cat([first, resized(mode="bilinear")], dim=1), "this is bilinear. Asked for is bicubic."),
        (torch.cat([first, resized(mode="nearest", antialias=False)], dim=1), "this is nearest, the default "
         "of interpolate. Asked for is bicubic with antialias=True."),
        (line[0], words_for_line),
        (line[1], words_for_line),
    ]  # fmt: skip
    explain(got, *mistakes)
    if torch.is_tensor(got) and got.shape == right.shape and not torch.equal(got[:, :1], first):
        raise NotYet("the class token's row changed. It has no place on the grid: keep it as it is.")
    equal("the result", got, right)
    unchanged(lambda embedding: answer(embedding, old, new), embedding)
    return f"from {old[0]}x{old[1]} to {new[0]}x{new[1]} patches, and the class token's row is as it was."


@check("PositionsByAxis")
def _(answer):
    (rows, columns), half = random.choice([(2, 5), (5, 2), (3, 4)]), random.randint(2, 4)
    patches, width = rows * columns, 2 * half
    module = build(answer, (rows, columns), width)
    for batch in (random.randint(2, 5), 1):
        tokens = torch.randn(batch, patches + 1, width)
        got = unchanged(module, tokens)
        need_tensor(got)
        if batch > 1 and tuple(got.shape) in ((patches + 1, width), (1, patches + 1, width)):
            raise NotYet("these are the positions alone. Add them to the tokens.")
        explain_shape(got, tokens.shape)
        before = added(module, batch, patches + 1, width)
        equal("the result", got, tokens + before)
    if not learnable(module):
        raise NotYet("nothing is learned. Wrap the tables of rows and columns: nn.Parameter(...).")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()  # a table of zeros would look right anywhere
    offset = added(module, batch, patches + 1, width).detach()
    if torch.equal(before, offset):
        raise NotYet(
            "the learned numbers change, and what is added does not: the table was put together once, in "
            "__init__, so training would not reach it. Put it together in forward."
        )
    grid = offset[1:].view(rows, columns, width)
    count, one_axis = learnable(module), half * (rows + columns)
    if count == width * (patches + 1):
        raise NotYet(f"each of the {patches} patches has its own vector again. Keep one a row, one a column.")
    if count in (width * (rows + columns), width * (rows + columns + 1)):
        raise NotYet(
            "rows and columns get the full width and are added. Give each half the width, and put the two "
            "side by side."
        )
    if not offset[0].any():
        raise NotYet("the class token gets no position. It has neither row nor column: learn it a vector.")

    def follows(numbers, axis):
        """Whether the numbers (rows, columns, …) change along this axis only."""
        other = 1 - axis
        return bool((numbers.std(dim=other) < 1e-5).all() and (numbers.std(dim=axis) > 1e-5).all())

    halves = grid[..., :half], grid[..., half:]
    axes = [[axis for axis in (0, 1) if follows(numbers, axis)] for numbers in halves]
    if axes[0] == axes[1] and axes[0]:
        axis = ("row", "column")[axes[0][0]]
        raise NotYet(f"both halves of the width follow the {axis}. One half is for the other.")
    if not (axes[0] and axes[1]):
        raise NotYet(
            f"the numbers of a row or a column are not all alike. The {patches} patches come row by row: "
            f"their rows are 0 0 … 1 1 …, their columns 0 1 … 0 1 …. repeat and repeat_interleave differ."
        )
    if axes[0] == [0]:
        by_row, by_column = grid[:, 0, :half], grid[0, :, half:]
    else:
        by_row, by_column = grid[:, 0, half:], grid[0, :, :half]
    if torch.equal(by_row[: min(rows, columns)], by_column[: min(rows, columns)]):
        raise NotYet("rows and columns share one table. Learn one for each.")
    if count != one_axis + width:
        raise NotYet(
            f"there are {count} learned numbers. {rows} rows and {columns} columns, each {half} wide, and "
            f"the class token, {width} wide, make {one_axis + width}."
        )
    judge_gradients(module, tokens)
    return f"{count} learned numbers for {rows}x{columns} patches, instead of {width * (patches + 1)}."


# --- helpers ------------------------------------------------------------------------------------------------


def build(answer, *sizes):
    """An instance of the learner's class, whose learned numbers are random, whatever they started with."""
    module = answer(*sizes)
    if not isinstance(module, nn.Module):
        raise NotYet(f"this is a {type(module).__name__}, not a module. Write a class that is an nn.Module.")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()  # where zeros are added, nothing shows
    return module


def need_tensor(got):
    need(got)
    if not torch.is_tensor(got):
        equal("the result", got, torch.empty(0))


def explain_shape(got, shape):
    """Refuse a shape or a type in the words of `equal`, before the numbers are looked at."""
    if (tuple(got.shape), got.dtype) != (tuple(shape), torch.float32):
        equal("the result", got, torch.empty(shape))


def judge_gradients(module, tokens):
    """Can everything learn that is in the module, and what comes before it?"""
    tokens = tokens.clone().requires_grad_()
    reached("the result", module(tokens), {"the tokens": tokens, **dict(module.named_parameters())})


def learnable(module):
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def explain_misfit(module, patches, width):
    """Words for positions that cannot be added, from their shape."""
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    held |= {name: value for name, value in vars(module).items() if torch.is_tensor(value)}
    for name, value in held.items():
        sizes = tuple(value.shape)
        if len(sizes) == 3 and sizes[0] != 1 and sizes[2] == width:
            raise NotYet(
                f"{name} has shape {sizes}. Its first number should be 1: every image gets the same "
                "positions, however many there are in a batch, and + repeats them."
            )
        if len(sizes) >= 2 and sizes[-2:] == (patches, width):
            raise NotYet(
                f"{name} has {patches} rows, one for each patch. The class token is a token too, and needs a "
                f"position: make it {patches + 1}, and add after the class token is in front."
            )


def added(module, batch, tokens, width):
    """What the module adds to tokens of zeros, (T, D): the same for each image and at each call."""
    nothing = torch.zeros(batch, tokens, width)
    first, second = module(nothing), module(nothing)
    if first.shape == second.shape and not torch.equal(first, second):
        raise NotYet("the result changes from call to call. Make the positions once, in __init__.")
    if not torch.allclose(first, first[:1].expand_as(first), atol=1e-6):
        raise NotYet(
            "the images of one batch get different positions. A position belongs to a place in the picture, "
            "not to a place in the batch: shape (1, T, D), whatever the batch size."
        )
    return first[0]


def numbers_behind(module, row, patches, width):
    """How many learned numbers the token in this row is made of, when the patches are zeros."""
    result = module(torch.zeros(1, patches, width))[0, row].sum()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters or not result.requires_grad:
        return 0
    gradients = torch.autograd.grad(result, parameters, allow_unused=True)
    return sum(int(gradient.count_nonzero()) for gradient in gradients if gradient is not None)


def formula(positions, width, first=0, power=2, unit=1.0, shared=True):
    """Vaswani et al. 2017, section 3.5, one number at a time, with the usual mistakes on demand."""
    table = []
    for position in range(first, first + positions):
        row = []
        for i in range(width // 2):
            angle = position / 10000 ** (power * i / width) * unit
            beside = angle if shared else position / 10000 ** (power * (i + 0.5) / width)
            row += [math.sin(angle), math.cos(beside)]
        table.append(row)
    return torch.tensor(table)


def resized_by_pillow(embedding, old, new):
    """Each number of the vectors as a grey picture, resized by Pillow, whose bicubic has antialias."""
    pictures = embedding[0, 1:].T.reshape(-1, *old).numpy().astype(np.float32)  # (D, rows, columns)
    size = (new[1], new[0])  # Pillow takes (width, height)
    grown = [np.asarray(Image.fromarray(picture).resize(size, Image.BICUBIC)) for picture in pictures]
    patches = torch.from_numpy(np.stack(grown)).flatten(1).T  # (N, D)
    return torch.cat([embedding[:, :1], patches[None]], dim=1)


def works_on_a_square(answer, width):
    embedding = torch.randn(1, 17, width)
    try:
        return torch.allclose(
            answer(embedding.clone(), (4, 4), (6, 6)), resized_by_pillow(embedding, (4, 4), (6, 6)), atol=1e-5
        )
    except Exception:
        return False
