"""Diagrams drawn by code, in the colours of vitlib.plots: the whole model, attention, one encoder block.

A token is a row in the colour of what it is. Below a thing stands its shape. All lengths are in inches.
B pictures, N patches, T = N + 1 tokens, D numbers a token, d numbers a head, L blocks, as in the lessons.
"""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle
from matplotlib.transforms import Affine2D

from vitlib.plots import COLORS, WIDTH, styled

# The parts of the map: what is framed (left, bottom, right, top), and where it says "you are here".
PARTS = {
    "patch_embedding": ((1.07, 0.28, 2.94, 3.2), (1.97, 3.35)),
    "class_token": ((2.99, 0.28, 4.07, 3.2), (3.53, 3.35)),
    "positional_encoding": ((4.14, 0.28, 5.1, 3.2), (4.62, 3.35)),
    "attention": ((5.34, 1.73, 6.48, 2.35), (5.91, 1.57)),
    "encoder": ((5.16, 0.28, 6.81, 3.2), (5.97, 3.35)),
    "vit": ((1.07, 0.28, 8.93, 3.2), (5, 3.35)),
}


@styled
def vit_map(here=None):
    """The way from a picture to its class, with the number of the lesson above each part.

    `here` frames one part: "patch_embedding", "class_token", "positional_encoding", "attention", "encoder",
    or "vit" for all of them. Raises ValueError for another name.
    Source: paper figure 1.
    """
    if here is not None and here not in PARTS:
        raise ValueError(f"There is no part {here!r} on the map. Its parts are {', '.join(PARTS)}.")
    fig, ax = _canvas(WIDTH, 3.5 if here else 3.2)
    middle, patches = 1.6, ["patch"] * 9
    for x, number, name, words in (
        (0.52, "", "image", "(B, C, H, W)"),
        (1.97, "01", "patch embedding", ""),
        (1.63, "", "", "(B, N, C·P·P)"),
        (2.55, "", "", "(B, N, D)"),
        (3.53, "02", "class token", "(B, T, D)"),
        (4.62, "03", "positions", "(T, D)"),
        (5.97, "05", "encoder block", "(B, T, D)"),
        (7.18, "", "", "(B, D)"),
        (8.2, "06", "head", "(B, classes)"),
    ):
        ax.text(x, 3.03, number, ha="center", va="center", fontweight="bold")
        ax.text(x, 2.78, name, ha="center", va="center")
        ax.text(x, 0.45, words, ha="center", va="center", fontsize=11)
    _picture(ax, (0.12, middle - 0.4), 0.8, gap=0)
    _picture(ax, (1.2, middle - 0.46), 0.8, gap=0.06)
    _tokens(ax, 2.41, middle, patches)
    _tokens(ax, 3.33, middle, ["class_token", *patches])
    ax.text(4.28, middle, "+", ha="center", va="center", fontsize=16)
    _tokens(ax, 4.42, middle, ["position"] * 10)
    for shift in (0.16, 0.08, 0):  # a block, and more behind it
        _box(ax, (5.26 + shift, 0.65 + shift), 1.3, 1.78, "")
    _box(ax, (5.4, 1.79), 1.02, 0.5, "04\nattention")
    _box(ax, (5.4, 1.02), 1.02, 0.4, "MLP")
    ax.text(5.91, 0.82, "× L", ha="center", va="center", fontsize=11)
    _tokens(ax, 6.98, middle, ["class_token"])
    for row, (name, length) in enumerate({"cat": 0.5, "dog": 0.2, "bird": 0.08}.items()):
        y = middle + 0.25 * (1 - row)
        ax.text(8.15, y, name, ha="right", va="center", fontsize=11)
        ax.add_patch(Rectangle((8.23, y - 0.08), length, 0.16, color=COLORS["neutral"], lw=0))
    for start, end in ((0.95, 1.17), (2.15, 2.38), (2.84, 3.3), (4.85, 5.23), (6.74, 6.95), (7.41, 7.72)):
        _arrow(ax, (start, middle), (end, middle))
    ax.text(0.12, 0.13, "B pictures, N patches of P×P pixels, T = N + 1 tokens, D numbers a token, L blocks",
            fontsize=11, va="center")  # fmt: skip
    if here:
        (left, bottom, right, top), place = PARTS[here]
        frame = Rectangle((left, bottom), right - left, top - bottom, linewidth=3, zorder=2)
        frame.set(edgecolor="black", facecolor=(0, 0, 0, 0.07))
        ax.add_patch(frame)
        ax.text(*place, "you are here", ha="center", va="center", fontweight="bold", fontsize=11)
    return fig


def _picture(ax, corner, side, gap):
    """A cat's face in nine patches, with a gap between them. Each holds the whole face and shows its part."""
    ear, nose = np.array([(0.2, 0.55), (0.22, 0.92), (0.48, 0.7)]), [(0.44, 0.4), (0.56, 0.4), (0.5, 0.32)]
    for place in np.ndindex(3, 3):
        patch = Rectangle(np.array(place) / 3, 1 / 3, 1 / 3, color="#d5d5d5", lw=0)
        face = [
            Polygon(ear, color=COLORS["neutral"], lw=0),
            Polygon((1, 0) + (-1, 1) * ear, color=COLORS["neutral"], lw=0),
            Circle((0.5, 0.45), 0.33, color=COLORS["neutral"], lw=0),
            Circle((0.38, 0.53), 0.07, color="white", lw=0),
            Circle((0.62, 0.53), 0.07, color="white", lw=0),
            Polygon(nose, color="white", lw=0),
        ]
        where = Affine2D().scale(side).translate(*(np.array(corner) + gap * np.array(place)))
        for shape in (patch, *face):
            shape.set_transform(where + ax.transData)
            ax.add_patch(shape)
            shape.set_clip_path(patch)


@styled
def attention_steps():
    """One head of self-attention with the shape of every tensor, for four tokens of six numbers.

    A row is a token. The class token's is framed all the way: its query asks, and it takes what it is given.
    Source: paper equations 5 to 7.
    """
    fig, ax = _canvas(WIDTH, 4.4)
    drawn = np.array([[0, 2, -1, 1], [-0.5, 0, 1.5, 0.5], [1, -1, 0.5, 1], [0.5, 1, 0.5, -1]])
    shares = np.exp(drawn) / np.exp(drawn).sum(axis=1, keepdims=True)
    token_colors = [[COLORS[key]] * 6 for key in ("class_token", "patch", "patch", "patch")]
    top, middle, bottom, between, mixed = 3.6, 2.2, 0.8, 2.8, 1.6
    _matrix(ax, (0.15, middle), "tokens", "(T, D)", token_colors)
    for name, y in (("query", top), ("key", middle), ("value", bottom)):
        _matrix(ax, (2.6, y), name, "(T, d)", [[COLORS[name]] * 3] * 4, framed=name == "query")
        _arrow(ax, (1.52, middle), (2.52, y))
    scores = matplotlib.colormaps["RdBu_r"](drawn / 4 + 0.5)
    weights = matplotlib.colormaps["viridis"](shares / shares.max())
    for x, name, colors in ((4.6, "scores", scores), (6.65, "weights", weights)):
        _matrix(ax, (x, between), name, "(T, T)", colors, axes=True)
    _matrix(ax, (8.15, mixed), "mixed", "(T, d)", [[COLORS["value"]] * 3] * 4)
    for start, end in (
        ((3.32, top), (4.25, between + 0.2)),
        ((3.32, middle), (4.25, between - 0.2)),
        ((5.55, between), (6.3, between)),
        ((7.6, between - 0.2), (8.1, mixed + 0.2)),
        ((3.32, bottom), (8.1, mixed - 0.2)),
    ):
        _arrow(ax, start, end)
    for x, y, words in (
        (1.5, 3.2, "three\nlearned maps"),
        (3.75, between, "q · k / √d"),
        (5.92, between + 0.25, "softmax\nof a row"),
        (6, 0.85, "mean of the values,\nweighted"),
    ):
        ax.text(x, y, words, ha="center", va="center", fontsize=11)
    return fig


@styled
def block_wiring():
    """How the tokens run through one block: pre-norm (paper figure 1, laid flat) and post-norm."""
    fig, ax = _canvas(WIDTH, 4.6)
    for stream, pre_norm in ((3.2, True), (0.8, False)):
        _arrow(ax, (0.12, stream), (8.85, stream), width=6, head=30)
        name = "pre-norm: no norm on the stream" if pre_norm else "post-norm: every norm on the stream"
        ax.text(0.12, stream + 1.2, name, va="center", fontweight="bold")
        for x in (0.6, 8.3):
            ax.text(x, stream - 0.4, "(B, T, D)", ha="center", va="center", fontsize=11)
        _branch(ax, 0.7, stream, "attention", "T tokens mixed", pre_norm)
        _branch(ax, 4.6, stream, "MLP", "D → 4·D → D", pre_norm)
    return fig


def _branch(ax, start, stream, name, what, pre_norm):
    """Away from the stream, through the boxes, and back by a plus."""
    plus, high = start + (3.2 if pre_norm else 2.2), stream + 0.75
    left = start + (1.5 if pre_norm else 0.45)
    _line(ax, (start, stream), (start, high), (plus, high))
    _arrow(ax, (plus, high), (plus, stream + 0.2))
    norm = (start + 0.3, high) if pre_norm else (plus + 0.3, stream)
    _box(ax, (norm[0], norm[1] - 0.25), 1, 0.5, "norm", "#d5d5d5")
    _box(ax, (left, high - 0.25), 1.3, 0.5, name)
    ax.text(left + 0.65, high - 0.42, what, ha="center", va="center", fontsize=11)
    ax.add_patch(Circle((plus, stream), 0.2, facecolor="white", edgecolor="black"))
    ax.text(plus, stream, "+", ha="center", va="center", fontsize=14)


# --- pieces -------------------------------------------------------------------------------------------------


def _canvas(width, height):
    fig = Figure(figsize=(width, height))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    return fig, ax


def _tokens(ax, left, middle, keys):
    """Tokens one below the other, in the colours of their keys."""
    for row, key in enumerate(keys):
        bottom = middle + 0.2 * (len(keys) / 2 - row) - 0.17
        ax.add_patch(Rectangle((left, bottom), 0.4, 0.14, color=COLORS[key], lw=0))


def _box(ax, corner, width, height, name, color="white"):
    ax.add_patch(Rectangle(corner, width, height, facecolor=color, edgecolor="black"))
    ax.text(corner[0] + width / 2, corner[1] + height / 2, name, ha="center", va="center")


def _arrow(ax, start, end, width=1.5, head=14):
    style = {"arrowstyle": "-|>", "mutation_scale": head, "shrinkA": 0, "shrinkB": 0}
    ax.add_patch(FancyArrowPatch(start, end, color=COLORS["neutral"], linewidth=width, **style))


def _line(ax, *places):
    ax.add_patch(Polygon(places, closed=False, fill=False, edgecolor=COLORS["neutral"], linewidth=1.5))


def _matrix(ax, place, name, shape, colors, framed=True, axes=False):
    """A matrix as coloured cells, from its left edge and its middle; its name above, its shape below.

    `framed` frames the first row; `axes` says which axis asks (query) and which is asked (key).
    """
    rows, columns, cell = len(colors), len(colors[0]), 0.22
    left, right = place[0], place[0] + cell * columns
    bottom, top = place[1] - cell * rows / 2, place[1] + cell * rows / 2
    for row, column in np.ndindex(rows, columns):
        corner = (left + cell * column, top - cell * (row + 1))
        ax.add_patch(Rectangle(corner, cell, cell, facecolor=colors[row][column], edgecolor="white"))
    if axes:
        ax.hlines(top + 0.03, left, right, color=COLORS["key"], linewidth=4)
        ax.vlines(left - 0.03, bottom, top, color=COLORS["query"], linewidth=4)
        ax.text((left + right) / 2, top + 0.16, "key", ha="center", va="center", fontsize=11)
        ax.text(left - 0.17, place[1], "query", ha="center", va="center", fontsize=11, rotation=90)
    if framed:
        ax.add_patch(Rectangle((left, top - cell), cell * columns, cell, fill=False, lw=2.5))
    ax.text((left + right) / 2, top + (0.38 if axes else 0.15), name, ha="center", va="center")
    ax.text((left + right) / 2, bottom - 0.15, shape, ha="center", va="center", fontsize=11)
