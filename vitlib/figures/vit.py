"""Figure of lesson 06: where the parameters and the work of a model are."""

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitlib import plots


@plots.styled
def cost_by_part(costs):
    """Bars for each part, one panel for each kind of cost: which share of the whole it has.

    `costs` is a dict of title of the panel -> dict of part -> number; all have the same parts.
    """
    parts = list(next(iter(costs.values())))
    fig = Figure(figsize=(plots.WIDTH, 1.1 + 0.45 * len(parts)), layout="constrained")
    for ax, (title, numbers) in zip(fig.subplots(1, len(costs), sharex=True, sharey=True), costs.items()):
        shares = [numbers[part] / sum(numbers.values()) for part in parts]
        bars = ax.barh(parts, shares, color=plots.COLORS["neutral"])
        ax.bar_label(bars, [f"{share:.1%}" for share in shares], padding=4, fontsize=11)
        ax.set(xlabel="share of the whole", title=title)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.tick_params(axis="y", length=0)
        ax.margins(x=0.25)  # room for the numbers
    ax.invert_yaxis()
    return fig
