"""Figures of lesson 04: one row of attention step by step; how wide a token is on its way through heads."""

from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle

from vitlib import plots


@plots.styled
def row_dissected(steps, tokens):
    """One token's row of attention on its way from scores to shares.

    `steps` is a dict of words -> numbers from 0, (T,): a row of discs for each step, a column for each of the
    `tokens` that are asked, and the sum of the row. The radius of a disc is its number to the power of 0.75,
    in proportion to the largest of its row, so that small ones can be seen.
    """
    fig = Figure(figsize=(plots.WIDTH, 0.85 * len(steps) + 0.5))
    ax = fig.add_axes((0, 0, 1, 1))
    places = [2.1 * column for column in range(len(tokens) + 1)]
    for x, token in zip(places, [*tokens, "sum of the row"]):
        ax.text(x + 0.25, 0.65, token, ha="center", va="center")
    for down, (words, numbers) in enumerate(steps.items()):
        numbers = plots.as_numpy(numbers)
        ax.text(-0.6, -down, words, ha="right", va="center")
        for x, number in zip(places, numbers):
            radius = 0.4 * (number / numbers.max()) ** 0.75
            ax.add_patch(Circle((x, -down), radius, color=plots.COLORS["key"], alpha=0.6, lw=0))
            ax.text(x + 0.45, -down, f"{number:.3f}", va="center")
        ax.text(places[-1] + 0.25, -down, f"{numbers.sum():.3f}", ha="center", va="center")
    width = plots.WIDTH / 0.85
    ax.set(xlim=(-3, width - 3), ylim=(-len(steps) + 0.45, 1.05), aspect="equal")
    ax.set_axis_off()
    return fig


@plots.styled
def ribbon(embed_dim, num_heads):
    """One token on its way through attention: all of it goes into each head, a small part comes out of each.

    The heights of the boxes are in proportion to the widths. Head 1 is followed in colour.
    """
    query, value, neutral = (plots.COLORS[name] for name in ("query", "value", "neutral"))
    fig = Figure(figsize=(plots.WIDTH, 4.1))
    ax = fig.add_axes((0, 0, 1, 1))
    bottom, top, box = 0.15, 3.3, 1.0
    high = (top - bottom) / num_heads  # of one head
    whole, first = (bottom, top), (top - high, top)
    width = embed_dim // num_heads
    for left, color, title in (
        (0.15, neutral, f"token\n{embed_dim} numbers"),
        (2.25, query, f"its query\n{num_heads} heads of {width}"),
        (4.5, value, f"heads side by side\n{num_heads} · {width} = {embed_dim}"),
        (7.0, neutral, f"token again\n{embed_dim} numbers"),
    ):
        ax.text(left + box / 2, top + 0.12, title, ha="center", va="bottom")
        ax.add_patch(Rectangle((left, bottom), box, top - bottom, color=color, alpha=0.25, lw=0))
        if color == neutral:
            continue
        ax.add_patch(Rectangle((left, top - high), box, high, color=color, alpha=0.65, lw=0))
        ax.hlines([top - number * high for number in range(1, num_heads)], left, left + box, "white")
        for number in range(num_heads):
            ax.text(
                left + box / 2, top - (number + 0.5) * high, f"head {number + 1}", ha="center", va="center"
            )
    for left, right, start, end, color, words in (
        (1.15, 2.25, whole, first, query, "query\nprojection"),
        (3.25, 4.5, first, first, value, "attention\nin head 1"),
        (5.5, 7.0, first, whole, neutral, "output\nprojection"),
    ):
        corners = [(left, start[0]), (left, start[1]), (right, end[1]), (right, end[0])]
        ax.add_patch(Polygon(corners, color=color, alpha=0.18, lw=0))
        height = top - (0.5 if start == end else 1.2) * high
        ax.text((left + right) / 2, height, words, ha="center", va="center", fontsize=11)
    ax.set(xlim=(0, 8.15), ylim=(0, 4.1))
    ax.set_axis_off()
    return fig
