"""Checks of lesson 09."""

import contextlib
import copy
import math
import random

import torch
from einops import EinopsError

from vitlib import VisionTransformer
from vitlib.checks import NotYet, alike, check, equal, explain, need, unchanged
from vitlib.patch_embedding import patchify, unpatchify


@check("similarity_tile")
def _(answer):
    for num_prefix_tokens in (1, random.randint(4, 6)):  # a class token alone, then registers behind it
        judge_tile(answer, random.choice([(3, 5), (4, 6), (2, 7)]), num_prefix_tokens)
    return f"the tile of one patch, on grids that are not square, and with {num_prefix_tokens} prefix tokens."


def judge_tile(answer, grid, num_prefix_tokens):
    (rows, columns), (row, column) = grid, place = grid, a_place(*grid)
    positions = torch.randn(num_prefix_tokens + grid[0] * grid[1], random.randint(5, 8))
    with words_for_registers(num_prefix_tokens):
        got = unchanged(lambda table: answer(table, grid, place, num_prefix_tokens), positions)
    need(got)
    patches = positions[num_prefix_tokens:]
    own = row * columns + column
    right = tile(patches, patches[own], grid)
    lengths = patches.norm(dim=1).view(grid)

    def tile_of(index, among=patches):
        return tile(among, among[index], grid)

    def of_the_list(among):
        return tile(among[: rows * columns], among[own], grid)

    by_number = torch.nn.functional.normalize(patches, dim=0)
    every = torch.stack([tile_of(index) for index in range(rows * columns)])
    mistakes = [
        (right * lengths * lengths[row, column], "these are dot products: a long vector seems more alike "
         "than a short one. Divide by both lengths."),
        (right * lengths, "only one of the two vectors has length 1. Normalise both."),
        (right * lengths[row, column], "only one of the two vectors has length 1. Normalise both."),
        ((by_number @ by_number[own]).view(grid), "the vectors are normalised along the wrong axis. Each row "
         "of the table is a vector: dim=-1."),
        (torch.cdist(patches[own][None], patches).view(grid), "these are distances between the vectors. "
         "Asked for is the cosine of the angle."),
        (of_the_list(positions), "the prefix is still there, so every patch has the vector of another. It "
         "stands in front, not at the end: positions[num_prefix_tokens:]."),
        (tile(patches, positions[own], grid), "the patches are right, but the framed one is taken from the "
         "table with its prefix. Cut the prefix off first, then count."),
        (right.flatten(), "the numbers are right and lie in one line. Lay them out as the patches lie: "
         "reshape to (rows, columns)."),
        (right.reshape(columns, rows), "rows and columns are exchanged in the reshape: (rows, columns)."),
        (right.mT, "rows and columns are exchanged. The patches come row by row."),
        (every, "these are the tiles of all patches. Give the one at `place`."),
        (every.view(*grid, *grid), "these are the tiles of all patches. Give the one at `place`."),
        (every.flatten(1), "these are the tiles of all patches. Give the one at `place`."),
    ]  # fmt: skip
    if num_prefix_tokens > 1:
        mistakes.insert(0, (of_the_list(positions[1:]), "only the class token is gone. The registers behind "
                            "it are no patches either: positions[num_prefix_tokens:]."))  # fmt: skip
    for number in other_numbers(rows, columns, row, column):
        if number < rows * columns:
            mistakes.append((tile_of(number), "this is the tile of another patch. The patch in row r and "
                             "column c has the number r * columns + c."))  # fmt: skip
    explain(got, *mistakes)
    if torch.is_tensor(got):
        got = got.float()  # a tile is looked at, so float64 will do
    equal("the tile", got, right)


@check("similarity_by_shift")
def _(answer):
    rows, columns = random.choice([(5, 7), (7, 5), (5, 9)])  # odd: else, half-way round, left is right
    numbers = torch.randn(rows * columns, rows * columns)
    similarity = (numbers + numbers.T).view(rows, columns, rows, columns)  # as alike as the other way round
    for down, across in ((random.randint(1, 3), random.choice([1, 2])), (2, 1), (0, 3), (1, 0), (0, 0)):
        judge_shift(answer, similarity, down, across)
    return f"the mean over all pairs so far apart, on {rows}x{columns} patches, and no pair around the edge."


def judge_shift(answer, similarity, down, across):
    try:
        got = unchanged(lambda similarity: answer(similarity, down, across), similarity)
    except IndexError as error:
        raise NotYet(
            "it goes beyond the edge: the last row has nothing below it, the last column nothing to its "
            "right. Take only the pairs that exist: r + down < rows, c + across < columns."
        ) from error
    need(got)
    got = torch.as_tensor(got, dtype=torch.float32)
    if got.isnan().any():
        raise NotYet(
            f"for down={down}, across={across} it is not a number: no pair was found. Does it say [:-down]? "
            "With 0 that is [:0], which is empty. Write [: rows - down]."
        )
    rows, columns = similarity.shape[:2]
    places = [(r, c) for r in range(rows) for c in range(columns)]

    def mean(down, across):
        pairs = [
            similarity[r, c, r + down, c + across]
            for r, c in places
            if 0 <= r + down < rows and 0 <= c + across < columns
        ]
        return torch.stack(pairs).mean(), len(pairs)

    right, count = mean(down, across)
    around = [similarity[r, c, (r + down) % rows, (c + across) % columns] for r, c in places]
    alone = similarity[0, 0, down, across]
    every = similarity[: rows - down, : columns - across, down:, across:].mean()
    mistakes = [
        (right * count, f"these {count} similarities are added. Divide by how many there are: .mean()."),
        (right * count / len(places), f"the sum is divided by {len(places)}, the number of patches. There "
         f"are {count} pairs."),
        (torch.stack(around).mean(), "pairs reach around the edge: for the last column, the first one counts "
         "as its neighbour (torch.roll does that). Leave these pairs out."),
        (alone, "this is one pair, that of the first patch. Take the mean over all patches."),
        (every, "every patch of the one part is paired with every patch of the other. Each patch has one "
         "partner: the one `down` below and `across` to the right."),
    ]  # fmt: skip
    if across < rows and down < columns:
        mistakes.append((mean(across, down)[0], "down and across are exchanged."))
    if down and across:
        other = mean(down, -across)[0]
        mistakes += [
            (other, "the other patch lies to the left. Asked for is to the right: c + across."),
            ((right + other) / 2, "both sides are averaged. Asked for is to the right: c + across."),
        ]
    if got.ndim:
        raise NotYet(f"one number is asked for, the result has shape {tuple(got.shape)}. Take the mean.")
    if not alike(got, right):  # for a shift by 0 some mistakes give the right number
        explain(got, *mistakes)
        equal("the mean", got, right)


@check("exchange_left_right")
def _(answer):
    for num_prefix_tokens in (1, random.randint(4, 6)):
        judge_exchange(answer, random.choice([(3, 5), (4, 6), (5, 4)]), num_prefix_tokens)
    return f"left is right, row by row, and all {num_prefix_tokens} prefix tokens are where they were."


def judge_exchange(answer, grid, num_prefix_tokens):
    table = torch.randn(1, num_prefix_tokens + grid[0] * grid[1], random.randint(5, 8))
    with words_for_registers(num_prefix_tokens):
        got = unchanged(lambda table: answer(table, grid, num_prefix_tokens), table)
    need(got)
    prefix, patches = table[:, :num_prefix_tokens], table[:, num_prefix_tokens:]
    rows, columns = grid

    def arranged(*axes, patches=patches, grid=grid):
        return patches.reshape(1, *grid, -1).flip(axes).flatten(1, 2)

    def with_prefix(patches):
        return torch.cat([prefix, patches], dim=1)

    order = [row * columns + columns - 1 - column for row in range(rows) for column in range(columns)]
    right = with_prefix(patches[:, order])
    left_half, middle, right_half = patches.reshape(1, rows, columns, -1).tensor_split(
        [columns // 2, columns - columns // 2], dim=2
    )
    halves = torch.cat([right_half, middle, left_half], dim=2).flatten(1, 2)
    behind = table[:, : rows * columns]
    mistakes = [
        (right[:, num_prefix_tokens:], "the prefix is lost. Put it back in front: torch.cat([prefix, "
         "patches], dim=1)."),
        (torch.cat([right[:, num_prefix_tokens:], prefix], dim=1), "the prefix stands last. It belongs in "
         "front."),
        (with_prefix(arranged(1)), "top and bottom are exchanged. Columns are the second axis of the grid."),
        (with_prefix(arranged(1, 2)), "the whole list of patches is reversed, so top and bottom changed "
         "places, too. Lay it out as a grid, and reverse each row."),
        (table.flip(1), "the whole table is reversed, prefix and all. Take the prefix off, lay the patches "
         "out as a grid, and reverse each row."),
        (with_prefix(patches.flip(2)), "the numbers inside each vector are reversed. Lay the table out as "
         "(1, rows, columns, D), and reverse the columns."),
        (with_prefix(arranged(2, grid=(columns, rows))), "rows and columns of the grid are exchanged in the "
         "reshape. The patches come row by row: (rows, columns)."),
        (with_prefix(patches.reshape(1, rows, columns, -1).transpose(1, 2).flatten(1, 2)), "this swaps rows "
         "with columns. Asked for is a mirror image: reverse each row."),
        (torch.cat([arranged(2, patches=behind), table[:, rows * columns :]], dim=1), "the prefix was taken "
         "from the end. It stands in front: table[:, :num_prefix_tokens]."),
        (with_prefix(halves), "the halves changed places, but inside each the columns keep their order. In a "
         "mirror the first column becomes the last: reverse each row."),
        (table, "nothing changed places."),
    ]  # fmt: skip
    explain(got, *mistakes)
    if torch.is_tensor(got) and got.shape == table.shape:
        equal("the prefix", got[:, :num_prefix_tokens], prefix)
    equal("the table", got, right)


@check("permute_positions")
def _(answer):
    model = small_model()
    height, width = model.config["image_size"]
    before = copy.deepcopy(model.state_dict())
    table = before["positional_encoding.positional_embedding"]
    order = torch.randperm(model.patch_embedding.num_patches)
    while torch.equal(order, order.argsort()):  # its own inverse would not tell the two directions apart
        order = torch.randperm(len(order))
    got = unchanged(lambda order: answer(model, order), order)
    need(got)
    if any(not torch.equal(value, before[name]) for name, value in model.state_dict().items()):
        raise NotYet(
            "the model that was given has other weights now. Change a copy of it: copy.deepcopy(model)."
        )
    if torch.is_tensor(got):
        raise NotYet(
            f"this is a tensor of shape {tuple(got.shape)}. Give back a model: a copy, with the new table as "
            "its positions."
        )
    if not isinstance(got, VisionTransformer):
        raise NotYet(f"this is a {type(got).__name__}. Give back a model, a copy of the one that was given.")
    judge_table(got.positional_encoding.positional_embedding.detach(), table, order)
    images = torch.randn(3, 3, height, width)
    shuffled = unpatchify(patchify(images, 4)[:, order], (height, width), 4)
    with torch.no_grad():
        want, logits = model(images), got.eval()(shuffled)
    equal("the logits of shuffled pictures", logits, want, tolerance=1e-4)
    return f"{len(order)} patches and their positions moved together, and every logit is as it was."


def judge_table(got, table, order):
    prefix, patches = table[:, :1], table[:, 1:]
    right = torch.cat([prefix, patches[:, order]], dim=1)
    last = [*range(len(order))]
    mistakes = [
        (table, "the positions are those of before. Permute them as the patches."),
        (torch.cat([prefix, patches[:, order.argsort()]], dim=1), "this is the order backwards. Patch number "
         "j of the shuffled picture was number order[j], so it needs the position of order[j]."),
        (torch.cat([prefix, table[:, order]], dim=1), "order counts the patches, and row 0 of the table is "
         "the class token's. Take the rows 1 + order, or permute table[:, 1:]."),
        (patches[:, order], "the class token's position is lost. It stays in row 0."),
        (torch.cat([patches[:, order], prefix], dim=1), "the class token's position stands last. It stays in "
         "row 0."),
        (table[:, order], "the table has a row for the class token, too. Keep row 0, permute the others."),
        (torch.cat([table[:, last][:, order], table[:, -1:]], dim=1), "the class token's row moved, and the "
         "last patch's stayed. It is the other way round: row 0 stays."),
    ]  # fmt: skip
    explain(got, *mistakes)
    if got.shape == table.shape and not torch.equal(got[:, :1], prefix):
        raise NotYet("the class token's position moved. It has no patch: row 0 stays as it is.")
    equal("the new table of positions", got, right)


# --- helpers ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def words_for_registers(num_prefix_tokens):
    """An answer that works with a class token alone, and stops with an error where registers follow it."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, EinopsError) as error:
        if num_prefix_tokens == 1:
            raise
        raise NotYet(
            f"with one prefix token it works, with {num_prefix_tokens} it stops ({error}). Not only the "
            "class token stands before the patches, the registers do too: count num_prefix_tokens."
        ) from error


def other_numbers(rows, columns, row, column):
    """What a place's number becomes with rows and columns mixed up."""
    return row * rows + column, column * columns + row, column * rows + row


def a_place(rows, columns):
    """A place inside a grid whose number comes out wrong wherever rows and columns are mixed up."""
    places = [(row, column) for row in range(1, rows) for column in range(1, columns - 1)]
    return random.choice([
        (row, column)
        for row, column in places
        if row * columns + column not in other_numbers(rows, columns, row, column)
    ])  # fmt: skip


def tile(patches, own, grid):
    """The cosine of the angle between a vector and each patch's, in plain Python. -> (rows, columns)"""
    own, numbers = own.tolist(), []
    for vector in patches.tolist():
        dot = sum(a * b for a, b in zip(own, vector))
        numbers.append(dot / math.hypot(*own) / math.hypot(*vector))
    return torch.tensor(numbers).view(grid)


def small_model():
    """An untrained model for pictures of 8x16 or 12x8 pixels, with positions as large as its tokens."""
    image_size = random.choice([(8, 16), (12, 8), (12, 12)])
    model = VisionTransformer(image_size, 4, num_classes=5, embed_dim=12, depth=2, num_heads=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)  # as small as at the start, a mistake would hardly show
    return model
