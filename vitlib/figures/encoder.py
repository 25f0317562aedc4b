"""Figures of lesson 05."""

from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from vitlib.plots import COLORS, WIDTH, styled

STREAM = {"color": COLORS["neutral"], "linewidth": 6, "solid_capstyle": "butt", "zorder": 1}
BRANCH = {"color": COLORS["neutral"], "linewidth": 1.5, "solid_capstyle": "butt", "zorder": 1}


@styled
def block_wiring():
    """How the tokens run through one block: pre-norm (the paper's figure 1, laid flat) and post-norm."""
    fig = Figure(figsize=(WIDTH, 4.8))
    for number, pre_norm in enumerate((True, False)):
        ax = fig.add_axes((0.01, 0.5 - 0.5 * number, 0.98, 0.5))
        ax.set(xlim=(0, 9), ylim=(0.3, 2.67), aspect="equal")
        ax.set_axis_off()
        ax.plot([0.1, 8.6], [1, 1], **STREAM)
        ax.plot(8.65, 1, ">", color=COLORS["neutral"], markersize=14)
        name = "pre-norm: no norm on the stream" if pre_norm else "post-norm: every norm on the stream"
        ax.text(0.1, 2.48, name, fontweight="bold")
        ax.text(0.1, 0.42, "tokens (B, T, D)", fontsize=11)
        ax.text(8.9, 0.42, "tokens (B, T, D)", fontsize=11, ha="right")
        for start, words in ((0.7, "attention"), (4.6, "MLP")):
            _branch(ax, start, words, pre_norm)
    return fig


def _branch(ax, start, words, pre_norm):
    """Away from the stream, through the boxes, and back by a plus."""
    plus = start + (3.2 if pre_norm else 2.2)
    ax.plot([start, start, plus, plus], [1, 1.9, 1.9, 1.2], **BRANCH)
    ax.plot(plus, 1.24, "v", color=COLORS["neutral"], markersize=7)
    if pre_norm:
        boxes = [("norm", start + 0.3, 1.9), (words, start + 1.5, 1.9)]
    else:
        boxes = [(words, start + 0.5, 1.9), ("norm", plus + 0.3, 1)]
    for text, left, middle in boxes:
        width, color = (1.0, "#d5d5d5") if text == "norm" else (1.3, "white")
        box = Rectangle((left, middle - 0.27), width, 0.54, facecolor=color, edgecolor="black", zorder=2)
        ax.add_patch(box)
        ax.text(left + width / 2, middle, text, ha="center", va="center", zorder=3)
    ax.add_patch(Circle((plus, 1), 0.2, facecolor="white", edgecolor="black", zorder=2))
    ax.text(plus, 0.99, "+", ha="center", va="center", zorder=3, fontsize=14)
