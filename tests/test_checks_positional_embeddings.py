"""Checks of lesson 09: usual mistakes are refused in words that help, right answers pass however written.

And the stored results are of the model that is shipped, made by the script as it is.
"""

import copy
import math
import runpy

import build_notebooks
import numpy as np
import pytest
import torch
from checking import cases
from einops import rearrange
from torch import nn
from torch.nn.functional import cosine_similarity, normalize

import vitlib
from vitlib import checks, results
from vitlib.attention_maps import positional_similarity
from vitlib.checks import TODO
from vitlib.figures import positional_embeddings as figures


def verdict(capsys, answer, name):
    """What the learner reads, and whether the answer was taken."""
    accepted = checks._judge(name, answer)
    return capsys.readouterr().out, bool(accepted)


# --- similarity_tile ----------------------------------------------------------------------------------------


def tile(scale=lambda vectors: normalize(vectors, dim=-1), cut=lambda p, k: p[k:], number=None, end=None):
    """The usual way to write it, with one part exchanged."""

    def answer(positions, grid, place, num_prefix_tokens):
        rows, columns = grid
        vectors = scale(cut(positions, num_prefix_tokens))
        row, column = place
        own = vectors[row * columns + column if number is None else number(row, column, rows, columns)]
        numbers = (vectors @ own)[: rows * columns]
        return numbers.reshape(rows, columns) if end is None else end(numbers, rows, columns)

    return answer


def tile_by_torch(positions, grid, place, num_prefix_tokens):
    vectors = positions[num_prefix_tokens:].unflatten(0, grid)
    return cosine_similarity(vectors[place], vectors, dim=-1)


def tile_by_loops(positions, grid, place, num_prefix_tokens):
    rows, columns = grid
    vectors = positions[num_prefix_tokens:].numpy()
    own = vectors[place[0] * columns + place[1]]
    result = torch.zeros(rows, columns)
    for row in range(rows):
        for column in range(columns):
            other = vectors[row * columns + column]
            result[row, column] = float(own @ other / np.linalg.norm(own) / np.linalg.norm(other))
    return result


def framed_with_prefix(positions, grid, place, num_prefix_tokens):
    vectors = normalize(positions, dim=1)
    return (vectors[num_prefix_tokens:] @ vectors[place[0] * grid[1] + place[1]]).view(grid)


def one_length(positions, grid, place, num_prefix_tokens):
    vectors = positions[num_prefix_tokens:]
    return (vectors @ normalize(vectors, dim=1)[place[0] * grid[1] + place[1]]).view(grid)


def distances(positions, grid, place, num_prefix_tokens):
    vectors = positions[num_prefix_tokens:]
    return (vectors - vectors[place[0] * grid[1] + place[1]]).norm(dim=1).view(grid)


WRONG_TILE = {
    "these are dot products": tile(scale=lambda vectors: vectors),
    "only one of the two vectors": one_length,
    "along the wrong axis": tile(scale=lambda vectors: normalize(vectors, dim=0)),
    "these are distances": distances,
    "prefix is still there": tile(cut=lambda p, k: p),
    "only the class token is gone": tile(cut=lambda p, k: p[1:]),
    "with one prefix token it works": lambda p, grid, place, k: tile_by_torch(p, grid, place, 1),
    "taken from the table with its prefix": framed_with_prefix,
    "in front, not at the end": tile(cut=lambda p, k: p[:-k]),
    "lie in one line": tile(end=lambda numbers, rows, columns: numbers),
    "exchanged in the reshape": tile(end=lambda numbers, rows, columns: numbers.view(columns, rows)),
    "come row by row": tile(end=lambda numbers, rows, columns: numbers.view(rows, columns).T),
    "tiles of all patches": lambda p, grid, place, k: positional_similarity(p, grid, k),
    "tile of another patch": tile(number=lambda row, column, rows, columns: row * rows + column),
}


# --- similarity_by_shift ------------------------------------------------------------------------------------


def pairs(similarity, down, across):
    rows, columns = similarity.shape[:2]
    places = [(r, c) for r in range(rows - down) for c in range(columns - across)]
    return torch.stack([similarity[r, c, r + down, c + across] for r, c in places])


def shift_by_loops(similarity, down, across):
    rows, columns = similarity.shape[:2]
    total, count = 0.0, 0
    for row in range(rows):
        for column in range(columns):
            if row + down < rows and column + across < columns:
                total += similarity[row, column, row + down, column + across].item()
                count += 1
    return total / count


def shift_by_diagonals(similarity, down, across):
    same_rows = similarity.diagonal(down, 0, 2)  # (columns, columns, rows - down)
    return same_rows.diagonal(across, 0, 1).mean()


def shift_by_distance(similarity, down, across):
    places = torch.cartesian_prod(*map(torch.arange, similarity.shape[:2]))
    shift = places[None] - places[:, None]
    return similarity.flatten(2).flatten(0, 1)[(shift == torch.tensor([down, across])).all(dim=-1)].mean()


def beyond_the_edge(similarity, down, across):
    rows, columns = similarity.shape[:2]
    places = [(r, c) for r in range(rows) for c in range(columns)]
    return torch.stack([similarity[r, c, r + down, c + across] for r, c in places]).mean()


def around_the_edge(similarity, down, across):
    moved = similarity.roll((-down, -across), dims=(2, 3))
    return torch.einsum("rcrc->rc", moved).mean()


def minus_zero(similarity, down, across):
    here = similarity[:-down, :-across] if down else similarity[:-down]
    return torch.einsum("rcrc->rc", here[..., down:, across:]).mean() if here.numel() else here.mean()


def to_the_left(similarity, down, across):
    rows, columns = similarity.shape[:2]
    places = [(r, c) for r in range(rows - down) for c in range(across, columns)]
    return torch.stack([similarity[r, c, r + down, c - across] for r, c in places]).mean()


WRONG_SHIFT = {
    "similarities are added": lambda s, down, across: pairs(s, down, across).sum(),
    "the number of patches": lambda s, down, across: pairs(s, down, across).sum() / (len(s) * s.shape[1]),
    "reach around the edge": around_the_edge,
    "that of the first patch": lambda s, down, across: s[0, 0, down, across],
    "goes beyond the edge": beyond_the_edge,
    "[:-down]": minus_zero,
    "lies to the left": to_the_left,
    "both sides are averaged": lambda s, d, a: (pairs(s, d, a).mean() + to_the_left(s, d, a)) / 2,
    "down and across are exchanged": lambda s, down, across: pairs(s, across, down).mean(),
    "one number is asked for": pairs,
    "Each patch has one partner": lambda s, d, a: s[: len(s) - d, : s.shape[1] - a, d:, a:].mean(),
}


# --- exchange_left_right ------------------------------------------------------------------------------------


def exchange(change, cut=lambda table, k: (table[:, :k], table[:, k:]), join=lambda a, b: [a, b]):
    def answer(table, grid, num_prefix_tokens):
        prefix, patches = cut(table, num_prefix_tokens)
        return torch.cat(join(prefix, change(patches, grid)), dim=1)

    return answer


def flip(*axes):
    return lambda patches, grid: patches.unflatten(1, grid).flip(axes).flatten(1, 2)


def in_numpy(table, grid, num_prefix_tokens):
    result = table.numpy().copy()
    patches = result[0, num_prefix_tokens:].reshape(*grid, -1)
    result[0, num_prefix_tokens:] = patches[:, ::-1].reshape(-1, result.shape[2])
    return torch.from_numpy(result)


def by_index(table, grid, num_prefix_tokens):
    places = torch.arange(grid[0] * grid[1]).view(grid).flip(1).flatten()
    return table[:, [*range(num_prefix_tokens), *(num_prefix_tokens + places).tolist()]]


def flipped_in_place(table, grid, num_prefix_tokens):
    table[:, num_prefix_tokens:] = flip(2)(table[:, num_prefix_tokens:], grid)
    return table


def halves(patches, grid):
    left, middle, right = patches.unflatten(1, grid).tensor_split([grid[1] // 2, -(grid[1] // 2)], dim=2)
    return torch.cat([right, middle, left], dim=2).flatten(1, 2)


def first_alone(table, k):
    return table[:, :1], table[:, 1:]


WRONG_EXCHANGE = {
    "prefix is lost": exchange(flip(2), join=lambda prefix, patches: [patches]),
    "prefix stands last": exchange(flip(2), join=lambda prefix, patches: [patches, prefix]),
    "top and bottom are exchanged": exchange(flip(1)),
    "whole list of patches is reversed": exchange(lambda patches, grid: patches.flip(1)),
    "prefix and all": lambda table, grid, k: table.flip(1),
    "inside each vector": exchange(lambda patches, grid: patches.flip(2)),
    "exchanged in the reshape": exchange(
        lambda patches, grid: patches.unflatten(1, grid[::-1]).flip(2).flatten(1, 2)
    ),
    "swaps rows with columns": exchange(
        lambda patches, grid: rearrange(patches, "b (r c) d -> b (c r) d", r=grid[0])
    ),
    "taken from the end": exchange(
        flip(2), lambda table, k: (table[:, -k:], table[:, :-k]), lambda prefix, patches: [patches, prefix]
    ),
    "halves changed places": exchange(halves),
    "the table should have shape": lambda table, grid, k: exchange(flip(2))(table, grid, k)[0],
    "nothing changed places": lambda table, grid, k: table,
    "with one prefix token it works": exchange(flip(2), first_alone),
    "changes the tensor": flipped_in_place,
}


# --- permute_positions --------------------------------------------------------------------------------------


def permute(change, copied=copy.deepcopy):
    def answer(model, order):
        model = copied(model)
        table = model.positional_encoding.positional_embedding.data
        model.positional_encoding.positional_embedding.data = change(table, order)
        return model

    return answer


def moved(table, order):
    return torch.cat([table[:, :1], table[:, 1:][:, order]], dim=1)


def by_a_new_model(model, order):
    weights = model.state_dict()
    weights["positional_encoding.positional_embedding"] = moved(
        weights["positional_encoding.positional_embedding"], order
    )
    new = vitlib.VisionTransformer(**model.config)
    new.load_state_dict(weights)
    return new


def by_one_index(model, order):
    model = copy.deepcopy(model)
    encoding = model.positional_encoding
    rows = torch.cat([torch.zeros(1, dtype=torch.long), 1 + order])
    encoding.positional_embedding = nn.Parameter(encoding.positional_embedding[:, rows])
    return model


def order_in_place(model, order):
    order += 1
    return permute(lambda table, rows: torch.cat([table[:, :1], table[:, rows]], dim=1))(model, order)


WRONG_PERMUTE = {
    "changes the tensor that it is given": order_in_place,
    "other weights now": permute(moved, copied=lambda model: model),
    "this is a tensor": lambda model, order: moved(
        model.positional_encoding.positional_embedding.detach(), order
    ),
    "those of before": permute(lambda table, order: table),
    "order backwards": permute(lambda table, order: moved(table, order.argsort())),
    "rows 1 + order": permute(lambda table, order: torch.cat([table[:, :1], table[:, order]], dim=1)),
    "position is lost": permute(lambda table, order: table[:, 1:][:, order]),
    "position stands last": permute(
        lambda table, order: torch.cat([table[:, 1:][:, order], table[:, :1]], dim=1)
    ),
    "a row for the class token, too": permute(lambda table, order: table[:, order]),
    "last patch's stayed": permute(
        lambda table, order: torch.cat([table[:, :-1][:, order], table[:, -1:]], dim=1)
    ),
    "this is a LearnedPositionalEncoding": lambda model, order: copy.deepcopy(model.positional_encoding),
}

WRONG = {
    "similarity_tile": WRONG_TILE,
    "similarity_by_shift": WRONG_SHIFT,
    "exchange_left_right": WRONG_EXCHANGE,
    "permute_positions": WRONG_PERMUTE,
}
RIGHT = {
    "similarity_tile": {
        "vitlib's": lambda p, grid, place, k: positional_similarity(p, grid, k)[place],
        "matrix": tile(),
        "torch": tile_by_torch,
        "loops": tile_by_loops,
        "float64": lambda p, *others: tile_by_torch(p.double(), *others),
    },
    "similarity_by_shift": {
        "loops, a float": shift_by_loops,
        "diagonals": shift_by_diagonals,
        "mask": shift_by_distance,
    },
    "exchange_left_right": {"flip": exchange(flip(2)), "numpy": in_numpy, "index": by_index},
    "permute_positions": {
        "cat": permute(moved),
        "new model": by_a_new_model,
        "one index": by_one_index,
    },
}


MIXED_UP = {
    "the row's length": lambda row, column, rows, columns: row * rows + column,
    "row and column": lambda row, column, rows, columns: (column * columns + row) % (rows * columns),
    "column by column": lambda row, column, rows, columns: column * rows + row,
}


@pytest.mark.parametrize("number", MIXED_UP.values(), ids=MIXED_UP)
def test_a_place_tells_rows_from_columns(capsys, number):
    """Fails where the place lies on the diagonal, or another where the wrong number is the right one."""
    for _ in range(30):
        assert not verdict(capsys, tile(number=number), "similarity_tile")[1]


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


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("unfilled", [TODO, ...], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    printed, accepted = verdict(capsys, lambda *_: unfilled, name)
    assert printed.startswith("[todo]") and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_return_is_told(capsys, name):
    """Fails where a learner who has worked is told that nothing was begun."""
    printed, accepted = verdict(capsys, lambda *_: None, name)
    assert printed.startswith("[not yet]") and "Does it end with return?" in printed and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def answer(*_):
        return torch.zeros(7).reshape(13)  # no such shape

    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "torch.zeros(7).reshape(13)" in printed and not accepted


# --- the stored results -------------------------------------------------------------------------------------

stored = results.load("positional_embeddings")
groups = ("changes", "shuffled", "enlarged")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(build_notebooks.ROOT / "experiments" / "positional_embeddings.py"))


def test_the_results_are_of_the_shipped_model():
    """Fails where a new checkpoint was put in, and the script was not run again."""
    assert stored["checkpoint"] == results.identity("cifar10")
    as_trained, described = stored["changes"]["as trained"], stored["checkpoint"]["test_accuracy"]
    assert abs(as_trained["accuracy"] - described) < 4 * as_trained["standard_error"]


def test_the_results_are_those_of_the_script(script):
    """Fails where the script's settings changed and it was not run again, or where a run is missing."""
    assert stored["config"] == script["CONFIG"]
    measured = [(group, name) for group in groups for name in stored[group]]
    assert measured == [(group, name) for group, name, *_ in script["jobs"]()]


def test_the_results_are_possible():
    """Fails where an error is not that of an accuracy, or where a model without positions knows the order."""
    for group in groups:
        for name, found in stored[group].items():
            accuracy, number = found["accuracy"], stored["config"]["test_pictures"]
            error = math.sqrt(accuracy * (1 - accuracy) / number)
            assert found["standard_error"] == pytest.approx(error, abs=1e-4), name
            assert found["change"] == pytest.approx(accuracy - as_trained(), abs=2e-4), name
    bare = [stored[group]["no positions"]["accuracy"] for group in ("changes", "shuffled")]
    assert abs(bare[0] - bare[1]) <= 3 / stored["config"]["test_pictures"]  # rounding may turn a close call


def as_trained():
    return stored["changes"]["as trained"]["accuracy"]


def test_the_stored_components_are_orthonormal_and_in_order():
    """Fails where components and variances do not belong together, or stand in columns."""
    components = torch.tensor(stored["patches"]["components"])
    torch.testing.assert_close(components @ components.T, torch.eye(48), rtol=0, atol=0.01)
    assert stored["patches"]["variances"] == sorted(stored["patches"]["variances"], reverse=True)
    assert components[0].std() < 0.1 * components[0].abs().mean()  # the strongest: how bright a patch is


# --- the script's own functions -----------------------------------------------------------------------------


def test_changes_of_the_table(script):
    """Fails where left and right are top and bottom, or where the class token's row is lost."""
    table = torch.randn(1, 65, 3)
    grid = table[:, 1:].view(8, 8, 3)
    for name, wanted in {
        "left and right exchanged": grid.flip(1),
        "top and bottom exchanged": grid.flip(0),
        "the same position for all patches": grid.mean(dim=(0, 1)).expand(8, 8, 3),
    }.items():
        changed = script["CHANGES"][name](table)
        assert torch.equal(changed[:, 0], table[:, 0])
        torch.testing.assert_close(changed[0, 1:].view(8, 8, 3), wanted)


def test_a_list_is_not_a_grid(script):
    """Fails where the mistake that is measured would be the right way, or has another shape."""
    table = torch.randn(1, 65, 3)
    for change in script["ENLARGED"].values():
        assert change(table).shape == (1, 145, 3)
    line = script["as_a_list"](table)
    assert torch.equal(line[:, 0], table[:, 0]) and torch.equal(line[:, 1], table[:, 1])
    assert torch.equal(line[:, -1], table[:, -1])


def test_shuffled_pictures_have_the_same_patches(script):
    images = torch.arange(2 * 3 * 32 * 32).view(2, 3, 32, 32)
    shuffled = script["shuffled"](images, seed=0)
    assert torch.equal(shuffled.flatten(1).sort(dim=1).values, images.flatten(1).sort(dim=1).values)
    assert not torch.equal(shuffled[0], images[0]) and not torch.equal(shuffled[0] + 3072, shuffled[1])
    assert torch.equal(shuffled, script["shuffled"](images, seed=0))


def test_the_error_of_a_change_is_that_of_pairs(script):
    """Fails where the errors of two accuracies are added, as if other pictures had been used."""
    right = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1, 1, 1], dtype=torch.float64)
    assert script["summary"](right, right)["change_error"] == 0
    less = right.clone()
    less[0] = 0
    found = script["summary"](less, right)
    assert found["change"] == -0.1 and found["change_error"] == pytest.approx(0.1, abs=1e-4)


# --- the figures --------------------------------------------------------------------------------------------


def test_the_tile_belongs_to_the_framed_patch():
    """Fails where the picture's frame is another patch than the tile's, or rows and columns are exchanged."""
    similarity = positional_similarity(torch.randn(1 + 2 * 3, 5), (2, 3))
    picture = torch.zeros(3, 20, 60, dtype=torch.uint8)  # patches of 10x20 pixels
    left, right = figures.one_tile(picture, similarity[1, 2], (1, 2)).axes[:2]
    np.testing.assert_array_equal(right.images[0].get_array(), similarity[1, 2])
    assert left.patches[-1].get_bbox().bounds == (39.5, 9.5, 20, 10)
    assert right.patches[-1].get_bbox().bounds == (1.5, 0.5, 1, 1)


def test_a_map_of_right_guesses_is_the_grid():
    """Fails where rows are drawn across, or a line leaves the row that it belongs to."""
    places = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    (ax,) = figures.probe_maps({"right": places}, (2, 3)).axes
    drawn = [np.unique(line.get_ydata()).tolist() for line in ax.lines]
    assert drawn == [[1], [2], [1, 2], [1, 2], [1, 2], [1, 2]]


def test_panels_of_filters_stand_apart():
    """Fails where the last column of one panel seems to belong to the next."""
    fig = figures.filter_panels({name: torch.rand(8, 4, 4, 3) for name in "ab"})
    fig.draw_without_rendering()
    left, right = (ax.get_window_extent() for ax in fig.axes)
    assert right.x0 - left.x1 > 0.1 * left.width


def test_bars_are_two_standard_errors():
    (ax,) = figures.accuracies({"a": (0.5, 0.1), "b": (0.9, 0.01)}).axes
    (segment,) = ax.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 0], [0.3, 0.7])
