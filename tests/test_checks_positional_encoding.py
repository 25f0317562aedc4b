"""Checks of lesson 03: usual mistakes are refused in words that help, right answers pass however written."""

import json
import runpy

import build_notebooks
import pytest
import torch
from checking import cases
from einops import rearrange, repeat
from torch import nn
from torch.nn.functional import interpolate

from vitlib import checks, results
from vitlib.checks import TODO
from vitlib.checks import positional_encoding as lesson
from vitlib.class_token import ClassToken
from vitlib.positional_encoding import LearnedPositionalEncoding, resize_positional_embedding, sincos_1d


def verdict(capsys, answer, name):
    """What the learner reads, and whether the answer was taken."""
    accepted = checks._judge(name, answer)
    return capsys.readouterr().out, bool(accepted)


# --- TokensWithPositions: a class is made of what it has and of what forward does ---------------------------


def tokens_with_positions(forward, positions=lambda n, d: nn.Parameter(torch.zeros(1, n + 1, d)), token=None):
    class Answer(nn.Module):
        def __init__(self, num_patches, embed_dim):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if token is None else token(embed_dim)
            self.positions = positions(num_patches, embed_dim)

        def forward(self, tokens):
            return forward(self, tokens)

    return Answer


def in_front(self, tokens):
    return torch.cat([self.token.expand(len(tokens), -1, -1), tokens], dim=1)


def right_sum(self, tokens):
    return in_front(self, tokens) + self.positions


def made_in_forward(self, tokens):
    tokens = in_front(self, tokens)
    if self.positions is None:
        self.positions = nn.Parameter(torch.randn(1, *tokens.shape[1:]))
    return tokens + self.positions


def by_place_in_the_batch(self, tokens):
    tokens = in_front(self, tokens)
    return tokens + self.positions(torch.arange(len(tokens)))[:, None]


def patches_only(self, tokens):
    tokens = tokens + self.positions
    return in_front(self, tokens)


def with_embedding(self, tokens):
    return in_front(self, tokens) + self.positions(torch.arange(tokens.shape[1] + 1))


def in_place(self, tokens):
    tokens = in_front(self, tokens)
    tokens += self.positions
    return tokens


def in_place_on_the_input(self, tokens):
    tokens += self.positions[:, 1:]
    return torch.cat([(self.token + self.positions[:, :1]).expand(len(tokens), -1, -1), tokens], dim=1)


def by_pieces(self, tokens):
    first = self.token + self.positions[:1]
    rest = torch.stack([tokens[:, i] + self.positions[i + 1] for i in range(tokens.shape[1])], dim=1)
    return torch.cat([repeat(first, "1 1 d -> b 1 d", b=len(tokens)), rest], 1)


class TwoTables(nn.Module):
    """The patches' positions are added first, the class token brings its own along."""

    def __init__(self, num_patches, embed_dim):
        super().__init__()
        self.patches = nn.Parameter(torch.randn(num_patches, embed_dim))
        self.token, self.place = (nn.Parameter(torch.randn(embed_dim)) for _ in range(2))

    def forward(self, tokens):
        first = (self.token + self.place).repeat(len(tokens), 1, 1)
        return torch.cat([first, tokens + self.patches], dim=1)


class OfVitlib(nn.Sequential):
    def __init__(self, num_patches, embed_dim):
        super().__init__(ClassToken(embed_dim), LearnedPositionalEncoding(num_patches + 1, embed_dim))


WRONG_TOKENS = {
    "Its first number should be 1": tokens_with_positions(
        right_sum, lambda n, d: nn.Parameter(torch.zeros(32, n + 1, d))
    ),
    "images of one batch get different": tokens_with_positions(
        by_place_in_the_batch, lambda n, d: nn.Embedding(64, d)
    ),
    "changes from call to call": tokens_with_positions(
        lambda self, x: in_front(self, x) + torch.randn(1, x.shape[1] + 1, x.shape[2])
    ),
    "made in forward": tokens_with_positions(made_in_forward, lambda n, d: None),
    "one for each patch. The class token is a token too": tokens_with_positions(
        right_sum, lambda n, d: nn.Parameter(torch.zeros(1, n, d))
    ),
    "class token gets no position": tokens_with_positions(
        patches_only, lambda n, d: nn.Parameter(torch.zeros(1, n, d))
    ),
    "First put it in front": tokens_with_positions(lambda self, x: in_front(self, x + self.positions[:, 1:])),
    "are appended. Add them": tokens_with_positions(
        lambda self, x: torch.cat([in_front(self, x), self.positions.expand(len(x), -1, -1)], dim=2)
    ),
    "stand behind the tokens": tokens_with_positions(
        lambda self, x: torch.cat([in_front(self, x), self.positions.expand(len(x), -1, -1)], dim=1)
    ),
    "no parameters": tokens_with_positions(right_sum, lambda n, d: torch.randn(1, n + 1, d)),
    "stands last": tokens_with_positions(
        lambda self, x: torch.cat([x, self.token.expand(len(x), -1, -1)], dim=1) + self.positions
    ),
    "Put the class token in front": tokens_with_positions(lambda self, x: x + self.positions[:, 1:]),
    "same position": tokens_with_positions(right_sum, lambda n, d: nn.Parameter(torch.zeros(1, 1, d))),
    "there are": tokens_with_positions(
        lambda self, x: in_front(self, x) + self.positions[:, : x.shape[1] + 1],
        lambda n, d: nn.Parameter(torch.zeros(1, n + 9, d)),
    ),
    "not a module": lambda n, d: in_front,
    "it is of type tuple": tokens_with_positions(lambda self, x: (right_sum(self, x), self.positions)),
    "it is of type torch.float64": tokens_with_positions(lambda self, x: right_sum(self, x).double()),
    "changes the tensor that it is given": tokens_with_positions(in_place_on_the_input),
    "no gradient reaches token.": tokens_with_positions(
        lambda self, x: torch.cat([self.token.data.expand(len(x), -1, -1), x], dim=1) + self.positions
    ),
    "no gradient reaches positions": tokens_with_positions(
        lambda self, x: in_front(self, x) + self.positions.detach()
    ),
    "no gradient flows": tokens_with_positions(torch.no_grad()(right_sum)),
    "should have shape (1, ": tokens_with_positions(lambda self, x: right_sum(self, x).squeeze()),
}
WRONG_TOKENS |= {  # some fit the check's first batch, by chance
    f"positions has shape ({images}, ": tokens_with_positions(
        right_sum, lambda n, d, images=images: nn.Parameter(torch.zeros(images, n + 1, d))
    )
    for images in range(2, 6)
}
WRONG_TOKENS["every image gets the same"] = tokens_with_positions(
    right_sum, lambda n, d: nn.Parameter(torch.zeros(n + 1, 1, d))
)
RIGHT_TOKENS = {
    "of vitlib's two modules": OfVitlib,
    "two tables": TwoTables,
    "an embedding": tokens_with_positions(with_embedding, lambda n, d: nn.Embedding(n + 1, d)),
    "no batch dimension": tokens_with_positions(right_sum, lambda n, d: nn.Parameter(torch.randn(n + 1, d))),
    "in place": tokens_with_positions(
        in_place, lambda n, d: nn.Parameter(torch.randn(n + 1, d)), lambda d: nn.Parameter(torch.zeros(1, d))
    ),
    "token by token": tokens_with_positions(by_pieces, lambda n, d: nn.Parameter(torch.zeros(n + 1, d))),
}


# --- sincos_1d ----------------------------------------------------------------------------------------------


def angles(positions, width, power=None, first=0):
    power = torch.arange(0, width, 2) / width if power is None else power
    return torch.arange(first, first + positions)[:, None] / 10000**power  # (positions, D/2)


def alternate(sine, cosine):
    table = torch.empty(len(sine), 2 * sine.shape[1])
    table[:, 0::2], table[:, 1::2] = sine, cosine
    return table


def waves(angle):
    return alternate(angle.sin(), angle.cos())


def every_column_its_own(positions, width, factor=1):
    angle = angles(positions, width, factor * torch.arange(width) / width)
    return alternate(angle[:, 0::2].sin(), angle[:, 1::2].cos())


def by_complex_numbers(positions, width):
    angle = angles(positions, width)
    turned = torch.view_as_real(torch.polar(torch.ones_like(angle), angle))  # cosine, sine
    return turned.flip(-1).flatten(1)


def by_exp_and_log(num_positions, embed_dim):
    pe = torch.zeros(num_positions, embed_dim)
    position = torch.arange(num_positions).unsqueeze(1)
    div = torch.exp(torch.arange(0, embed_dim, 2) * (-torch.log(torch.tensor(10000.0)) / embed_dim))
    pe[:, 0::2] = torch.sin(position * div)
    pe[:, 1::2] = torch.cos(position * div)
    return pe


WRONG_SINCOS = {
    "all sines come first": lambda n, d: torch.cat([angles(n, d).sin(), angles(n, d).cos()], dim=1),
    "cosine stands before": lambda n, d: alternate(angles(n, d).cos(), angles(n, d).sin()),
    "rows and columns are exchanged": lambda n, d: waves(angles(n, d)).T,
    "these are the sines only": lambda n, d: angles(n, d).sin(),
    "cosines are missing": lambda n, d: alternate(angles(n, d).sin(), angles(n, d).sin()),
    "count from 1": lambda n, d: waves(angles(n, d, first=1)),
    "half as fast": lambda n, d: waves(angles(n, d, torch.arange(d // 2) / d)),
    "twice as fast": lambda n, d: waves(angles(n, d, 2 * torch.arange(0, d, 2) / d)),
    "Divide": lambda n, d: waves(angles(n, d, -torch.arange(0, d, 2) / d)),
    "degrees": lambda n, d: waves(torch.deg2rad(angles(n, d))),
    "different frequencies": every_column_its_own,
    "counts the columns": lambda n, d: every_column_its_own(n, d, 2),
    "of type list": lambda n, d: waves(angles(n, d)).tolist(),
    "of type torch.float64": lambda n, d: sincos_1d(n, d).double(),
}
RIGHT_SINCOS = {"complex numbers": by_complex_numbers, "exp and log": by_exp_and_log}


# --- resize_positional_embedding ----------------------------------------------------------------------------


def patches_resized(patches, old, new, **options):
    """(1, N, D) -> (1, N', D)"""
    options = {"mode": "bicubic", "antialias": True, **options}
    image = rearrange(patches, "b (row column) d -> b d row column", row=old[0])
    return interpolate(image, size=new, **options).flatten(2).mT


def keep_first(way):
    return lambda e, old, new: torch.cat([e[:, :1], way(e[:, 1:], old, new)], dim=1)


def torn(patches, old, new):
    image = patches.reshape(1, patches.shape[2], *old)
    return interpolate(image, size=new, mode="bicubic", antialias=True).flatten(2).mT


def torn_twice(patches, old, new):
    image = patches.reshape(1, patches.shape[2], *old)
    image = interpolate(image, size=new, mode="bicubic", antialias=True)
    return image.reshape(1, new[0] * new[1], -1)


def torn_at_the_end(patches, old, new):
    return patches_resized(patches, old, new).mT.reshape(1, new[0] * new[1], -1)


def square_only(patches, old, new):
    side = int(patches.shape[1] ** 0.5)
    image = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    return interpolate(image, size=new, mode="bicubic", antialias=True).flatten(2).mT


def as_a_line(e, old, new):
    return interpolate(e.mT, size=1 + new[0] * new[1], mode="linear").mT


def one_number_at_a_time(e, old, new):
    tables = [e[0, 1:, k].view(1, 1, *old) for k in range(e.shape[2])]
    grown = [interpolate(table, new, mode="bicubic", antialias=True).flatten() for table in tables]
    return torch.cat((e[0, :1], torch.stack(grown, dim=1)))[None]


def zeroed_after(embedding, old, new):
    result = resize_positional_embedding(embedding, old, new)
    embedding.zero_()
    return result


WRONG_RESIZE = {
    "changes the tensor that it is given": zeroed_after,
    "lost": lambda e, old, new: patches_resized(e[:, 1:], old, new),
    "stands last": lambda e, old, new: torch.cat([patches_resized(e[:, 1:], old, new), e[:, :1]], dim=1),
    "took the last row": lambda e, old, new: torch.cat(
        [e[:, -1:], patches_resized(e[:, :-1], old, new)], dim=1
    ),
    "is among the patches": lambda e, old, new: torch.cat(
        [e[:, :1], patches_resized(e[:, :-1], old, new)], dim=1
    ),
    "the old grid's rows": keep_first(lambda p, old, new: patches_resized(p, old[::-1], new)),
    "the new grid's rows": keep_first(lambda p, old, new: patches_resized(p, old, new[::-1])),
    "in both grids": keep_first(lambda p, old, new: patches_resized(p, old[::-1], new[::-1])),
    "mixes positions with widths": keep_first(torn),
    "from (N, D) to (D, rows": keep_first(torn_twice),
    "on the way back": keep_first(torn_at_the_end),
    "without antialias": keep_first(lambda *a: patches_resized(*a, antialias=False)),
    "torchvision's way": keep_first(lambda *a: patches_resized(*a, antialias=False, align_corners=True)),
    "this is bilinear": keep_first(lambda *a: patches_resized(*a, mode="bilinear")),
    "this is nearest": keep_first(lambda *a: patches_resized(*a, mode="nearest", antialias=False)),
    "resizes the list of tokens": as_a_line,
    "row changed": lambda e, old, new: resize_positional_embedding(e, old, new) * 1.5,
    "root of the number of patches": keep_first(square_only),
}
RIGHT_RESIZE = {
    "vitlib's": resize_positional_embedding,
    "einops": keep_first(patches_resized),
    "one number of the vectors at a time": one_number_at_a_time,
}


# --- PositionsByAxis ----------------------------------------------------------------------------------------


def by_axis(make, of_class_token=True, sizes=None, learned=True):
    """A class with tables of rows and columns; `make(rows, columns, grid)` lays them out as (N, D)."""

    class Answer(nn.Module):
        def __init__(self, grid, embed_dim):
            super().__init__()
            self.grid = grid
            number, width = (grid, embed_dim // 2) if sizes is None else sizes(grid, embed_dim)
            wrap = nn.Parameter if learned else (lambda table: table)
            self.rows = wrap(0.02 * torch.randn(number[0], width))
            self.columns = wrap(0.02 * torch.randn(number[1], width))
            first = torch.zeros(1, embed_dim)
            self.first = nn.Parameter(first) if of_class_token and learned else first

        def forward(self, tokens):
            return tokens + torch.cat([self.first, make(self.rows, self.columns, self.grid)])

    return Answer


def side_by_side(rows, columns, grid):
    down = rows.repeat_interleave(grid[1], dim=0)
    return torch.cat([down, columns.repeat(grid[0], 1)], dim=1)


def column_first(rows, columns, grid):
    across = repeat(columns, "column d -> (row column) d", row=grid[0])
    return torch.cat([across, repeat(rows, "row d -> (row column) d", column=grid[1])], dim=1)


def with_loops(rows, columns, grid):
    places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    return torch.stack([torch.cat((rows[row], columns[column])) for row, column in places])


class OnlyRows(nn.Module):
    def __init__(self, grid, embed_dim):
        super().__init__()
        self.grid = grid
        self.first = nn.Parameter(torch.zeros(1, embed_dim))
        self.rows = nn.Parameter(torch.zeros(grid[0], embed_dim))

    def forward(self, tokens):
        return tokens + torch.cat([self.first, self.rows.repeat_interleave(self.grid[1], dim=0)])


class PutTogetherOnce(nn.Module):
    def __init__(self, grid, embed_dim):
        super().__init__()
        self.rows, self.columns = (nn.Parameter(torch.randn(number, embed_dim // 2)) for number in grid)
        self.first = nn.Parameter(torch.randn(1, embed_dim))
        self.table = torch.cat([self.first, side_by_side(self.rows, self.columns, grid)])

    def forward(self, tokens):
        return tokens + self.table


class NotAdded(PutTogetherOnce):
    def forward(self, tokens):
        return self.table


class OnePerPatch(LearnedPositionalEncoding):
    def __init__(self, grid, embed_dim):
        super().__init__(1 + grid[0] * grid[1], embed_dim)


def in_place_by_axis(self, tokens):
    tokens += torch.cat([self.first, side_by_side(self.rows, self.columns, self.grid)])
    return tokens


def another_forward(forward):
    return type("Answer", (by_axis(side_by_side),), {"forward": forward})


WRONG_AXES = {
    "it is of type list": another_forward(lambda self, x: by_axis(side_by_side).forward(self, x).tolist()),
    "it is of type torch.float64": another_forward(
        lambda self, x: by_axis(side_by_side).forward(self, x).double()
    ),
    "changes the tensor that it is given": another_forward(in_place_by_axis),
    "no gradient reaches rows": by_axis(lambda rows, *rest: side_by_side(rows.detach(), *rest)),
    "no gradient flows": another_forward(torch.no_grad()(by_axis(side_by_side).forward)),
    "no gradient reaches the tokens": another_forward(
        lambda self, x: by_axis(side_by_side).forward(self, x.detach())
    ),
    "should have shape (1, ": another_forward(
        lambda self, x: by_axis(side_by_side).forward(self, x).squeeze()
    ),
    "repeat and repeat_interleave": by_axis(
        lambda rows, columns, grid: torch.cat(
            [rows.repeat(grid[1], 1), columns.repeat_interleave(grid[0], dim=0)], dim=1
        )
    ),
    "half the width": by_axis(
        lambda rows, columns, grid: rows.repeat_interleave(grid[1], dim=0) + columns.repeat(grid[0], 1),
        sizes=lambda grid, width: (grid, width),
    ),
    "share one table": by_axis(
        lambda rows, columns, grid: side_by_side(rows[: grid[0]], rows[: grid[1]], grid),
        sizes=lambda grid, width: ((max(grid), 1), width // 2),
    ),
    "both halves of the width follow the row": OnlyRows,
    "has its own vector again": OnePerPatch,
    "put together once": PutTogetherOnce,
    "positions alone": NotAdded,
    "class token gets no position": by_axis(side_by_side, of_class_token=False),
    "nothing is learned": by_axis(side_by_side, learned=False),
    "there are": by_axis(
        lambda rows, columns, grid: side_by_side(rows[: grid[0]], columns[: grid[1]], grid),
        sizes=lambda grid, width: ((99, 99), width // 2),
    ),
}
RIGHT_AXES = {
    "rows first": by_axis(side_by_side),
    "columns first": by_axis(column_first),
    "loops": by_axis(with_loops),
}

WRONG = {
    "TokensWithPositions": WRONG_TOKENS,
    "sincos_1d": WRONG_SINCOS,
    "resize_positional_embedding": WRONG_RESIZE,
    "PositionsByAxis": WRONG_AXES,
}
RIGHT = {
    "TokensWithPositions": RIGHT_TOKENS,
    "sincos_1d": RIGHT_SINCOS | {"vitlib's": sincos_1d},
    "resize_positional_embedding": RIGHT_RESIZE,
    "PositionsByAxis": RIGHT_AXES,
}


@pytest.mark.parametrize("name, words, answer", cases(WRONG))
def test_a_wrong_answer_is_refused_with_its_diagnosis(capsys, name, words, answer):
    """Fails where a mistake passes, or gets the words of another. Ten tries, since the sizes are random."""
    for _ in range(10):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and words in printed and not accepted, printed


@pytest.mark.parametrize("name, how, answer", cases(RIGHT))
def test_a_right_answer_passes_however_it_is_written(capsys, name, how, answer):
    for _ in range(10):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[ok]") and accepted, printed


def stub(name, result):
    """The stub of an exercise with `result` for TODO."""
    if name in ("sincos_1d", "resize_positional_embedding"):
        return lambda *_: result

    class Stub(nn.Module):
        def __init__(self, *_):
            super().__init__()
            self.table = result

        def forward(self, tokens):
            return result

    return Stub


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("unfilled", [TODO, ...], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    printed, accepted = verdict(capsys, stub(name, unfilled), name)
    assert printed.startswith("[todo]") and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_return_is_told(capsys, name):
    """Fails where a learner who has worked is told that nothing was begun."""
    printed, accepted = verdict(capsys, stub(name, None), name)
    assert printed.startswith("[not yet]") and "Does it end with return?" in printed and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def answer(*_):
        return torch.zeros(7).reshape(13)  # no such shape

    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "torch.zeros(7).reshape(13)" in printed and not accepted


def test_the_stored_runs_are_those_of_the_script():
    """Fails where the script's settings changed and it was not run again, or where a run is missing."""
    script = runpy.run_path(str(build_notebooks.ROOT / "experiments" / "positional_encoding.py"))
    stored = results.load("positional_encoding")
    assert stored["config"] == json.loads(json.dumps(script["CONFIG"]))  # pairs are lists in JSON
    assert stored["seeds"] == script["SEEDS"]
    runs = [{name: value for name, value in run.items() if name != "accuracy"} for run in stored["runs"]]
    assert sorted(map(str, runs)) == sorted(map(str, script["jobs"]()))


def test_the_independent_formulations_agree_with_vitlib():
    """Two ways to compute the same thing, on odd sizes: fails where either is wrong."""
    torch.testing.assert_close(lesson.formula(11, 14), sincos_1d(11, 14), rtol=0, atol=1e-6)
    embedding = torch.randn(1, 22, 3, generator=torch.Generator().manual_seed(0))
    for new in ((4, 9), (2, 5)):  # larger and smaller
        ours = resize_positional_embedding(embedding, (3, 7), new)
        torch.testing.assert_close(lesson.resized_by_pillow(embedding, (3, 7), new), ours, rtol=0, atol=1e-5)
