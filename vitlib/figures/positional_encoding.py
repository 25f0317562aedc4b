"""Figures of lesson 03."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitlib.plots import COLORS, WIDTH, add_scale, as_numpy, styled


@styled
def strips(vectors, signs):
    """Vectors of the same length, one below the other, each number a coloured cell; a sign before each.

    `vectors` is a dict of name -> (numbers (D,), key of COLORS for its frame). The scale ends where 95 % of
    the numbers lie, so that a few large ones do not turn the rest pale; those have the last colour.
    """
    fig = Figure(figsize=(WIDTH, 0.75 * len(vectors) + 0.5), layout="constrained")
    axes = fig.subplots(len(vectors), 1, sharex=True)
    top = np.quantile([np.abs(as_numpy(numbers)) for numbers, _ in vectors.values()], 0.95)
    for ax, (name, (numbers, color)), sign in zip(axes, vectors.items(), signs):
        drawn = ax.imshow(as_numpy(numbers)[None], cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto")
        ax.set_yticks([0], [f"{name}  {sign}"])
        ax.tick_params(length=0)
        ax.spines[:].set(visible=True, color=COLORS[color], linewidth=3)
    axes[-1].set_xlabel("which number of the vector")
    add_scale(fig, drawn, "value", ax=axes, extend="both")
    return fig


@styled
def encoding_table(encoding):
    """Every position's vector as a row of coloured cells. Shapes: encoding (positions, D), in -1..1."""
    encoding = as_numpy(encoding)
    fig = Figure(figsize=(WIDTH, 4), layout="constrained")
    ax = fig.subplots()
    drawn = ax.imshow(encoding, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    ax.set(xlabel="which number of the vector", ylabel="position")
    add_scale(fig, drawn, "value", ax=ax)
    return fig


@styled
def similarity_tiles(tiles):
    """How alike the position of one patch, framed, is to every patch's; each tile on the same scale.

    `tiles` is a dict of title -> (similarity (rows, columns, rows, columns), the patch (row, column)), the
    similarity as `attention_maps.positional_similarity` gives it.
    """
    fig = Figure(figsize=(min(WIDTH, 2.3 * len(tiles)), 3.4), layout="compressed")
    axes = fig.subplots(1, len(tiles), squeeze=False)[0]
    for ax, (title, (similarity, (row, column))) in zip(axes, tiles.items()):
        drawn = ax.imshow(as_numpy(similarity)[row, column], cmap="RdBu_r", vmin=-1, vmax=1)
        corner, frame = (column - 0.5, row - 0.5), {"edgecolor": "black", "linewidth": 3, "clip_on": False}
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, **frame))
        ax.set(title=title, xticks=[], yticks=[], xlabel="column")
    axes[0].set_ylabel("row")
    add_scale(fig, drawn, "cosine similarity", ax=axes, location="bottom", aspect=40, shrink=0.6)
    return fig
