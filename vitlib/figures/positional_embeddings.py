"""Figures of lesson 09."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitlib.plots import COLORS, WIDTH, add_scale, as_numpy, as_picture, mosaic, styled, write_numbers

SIGNED = {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}


def frame(ax, corner, width, height):
    """A black line with a white edge around a patch: seen on every colour."""
    for color, linewidth in (("white", 5), ("black", 2.5)):
        ax.add_patch(
            Rectangle(corner, width, height, fill=False, ec=color, linewidth=linewidth, clip_on=False)
        )


@styled
def one_tile(picture, tile, place):
    """A picture with one patch framed, and how alike the position of that patch is to every other's.

    Shapes: picture uint8 (C, H, W) or (H, W, C), tile (rows, columns) from -1 to 1, place (row, column).
    """
    picture, tile, (row, column) = as_picture(picture), as_numpy(tile), place
    (height, width), (rows, columns) = picture.shape[:2], tile.shape
    fig = Figure(figsize=(WIDTH, 4.6), layout="compressed")
    left, right = fig.subplots(1, 2)
    left.imshow(picture, interpolation="auto")
    for side, number, axis in ((height, rows, "h"), (width, columns, "v")):
        lines = left.hlines if axis == "h" else left.vlines
        places = np.arange(1, number) * side / number - 0.5
        lines(places, -0.5, (width if axis == "h" else height) - 0.5, color="white", linewidth=0.7)
    tall, wide = height / rows, width / columns
    frame(left, (column * wide - 0.5, row * tall - 0.5), wide, tall)
    left.set(xticks=[], yticks=[], title=f"the patch in row {row + 1}, column {column + 1}")
    drawn = right.imshow(tile, **SIGNED)
    write_numbers(right, tile.round(1) + 0.0, "{:.1f}")  # + 0.0: no "-0.0"
    frame(right, (column - 0.5, row - 0.5), 1, 1)
    right.set_xticks(range(columns), range(1, columns + 1))
    right.set_yticks(range(rows), range(1, rows + 1))
    right.tick_params(length=0)
    right.set(xlabel="column", ylabel="row", title="its tile")
    add_scale(fig, drawn, "cosine similarity", ax=right, shrink=0.8)
    return fig


@styled
def similarity_grids(grids):
    """Several pictures of all tiles side by side, on one scale.

    `grids` is a dict of title -> similarity (rows, columns, rows, columns), as
    `attention_maps.positional_similarity` gives it.
    """
    fig = Figure(figsize=(WIDTH, WIDTH / len(grids) + 1), layout="compressed")
    axes = fig.subplots(1, len(grids), squeeze=False)[0]
    for ax, (title, similarity) in zip(axes, grids.items()):
        drawn = ax.imshow(mosaic(as_numpy(similarity), 1), **SIGNED)
        ax.set(title=title, xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    add_scale(fig, drawn, "cosine similarity", ax=axes, location="bottom", aspect=40, shrink=0.5)
    return fig


@styled
def filter_panels(panels, columns=4):
    """Filters as small pictures, several kinds side by side, each in reading order (paper, figure 7 left).

    `panels` is a dict of title -> filters (number, P, P, C) in 0..1, C one or three, as
    `attention_maps.embedding_filters` gives them.
    """
    fig = Figure(figsize=(WIDTH, 4.8), layout="compressed")
    fig.get_layout_engine().set(wspace=0.12)  # else the panels look like one
    for ax, (title, filters) in zip(fig.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        filters = as_numpy(filters)
        rows = math.ceil(len(filters) / columns)
        empty = np.ones((rows * columns - len(filters), *filters.shape[1:]))
        tiles = np.concatenate([filters, empty]).reshape(rows, columns, *filters.shape[1:])
        tiles = mosaic(tiles, 1, fill=1)
        ax.imshow(np.broadcast_to(tiles, (*tiles.shape[:2], 3)))
        ax.set_title(title)
        ax.set_axis_off()
    return fig


@styled
def probe_maps(maps, grid):
    """Where a probe puts each patch: a mark for each, and lines between neighbours in the picture.

    `maps` is a dict of title -> (N, 2), row and column, counted from 0. Right guesses make a grid.
    """
    rows, columns = grid
    fig = Figure(figsize=(WIDTH, WIDTH / len(maps) + 0.6), layout="constrained")
    axes = fig.subplots(1, len(maps), squeeze=False, sharex=True, sharey=True)[0]
    for ax, (title, places) in zip(axes, maps.items()):
        places = as_numpy(places).reshape(rows, columns, 2) + 1
        for line in places:  # the patches of one row
            ax.plot(line[:, 1], line[:, 0], color=COLORS["position"], linewidth=1.5)
        for line in places.swapaxes(0, 1):
            ax.plot(line[:, 1], line[:, 0], color=COLORS["neutral"], linewidth=1)
        ax.plot(places[..., 1].ravel(), places[..., 0].ravel(), "o", color="black", markersize=3)
        ax.set(title=title, aspect="equal", xlabel="column, guessed")
        ax.set(xlim=(0, columns + 1), ylim=(rows + 1, 0))
        ax.set_xticks(range(1, columns + 1))
        ax.set_yticks(range(1, rows + 1))
        ax.tick_params(length=0)
    axes[0].set_ylabel("row, guessed")
    return fig


@styled
def accuracies(measured, label="accuracy"):
    """Accuracies as marks with error bars, the first on top; the line down is the first one's.

    `measured` is a dict of name -> (accuracy, standard error). A bar is two standard errors long each way.
    """
    fig = Figure(figsize=(WIDTH, 1 + 0.45 * len(measured)), layout="constrained")
    ax = fig.subplots()
    for row, (accuracy, error) in enumerate(measured.values()):
        ax.errorbar(accuracy, row, xerr=2 * error, fmt="o", color="black", capsize=5, lw=1.5)
        ax.annotate(f"{accuracy:.1%}", (accuracy + 2 * error, row), (10, 0), textcoords="offset points",
                    va="center", fontsize=11)  # fmt: skip
    first = next(iter(measured.values()))[0]
    ax.axvline(first, color=COLORS["neutral"], linewidth=1.5, linestyle=(0, (1, 1)))
    ax.set_yticks(range(len(measured)), list(measured))
    places = np.arange(0, 1.01, 0.2)
    ax.set_xticks(places, [f"{place:.0%}" for place in places])
    ax.set(xlim=(0, 1.12), ylim=(len(measured) - 0.5, -0.5), xlabel=label)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig
