"""Figures of lesson 08 that no other lesson needs."""

import textwrap

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitlib import plots


@plots.styled
def own_scales(image, maps, label):
    """A picture, and where each map looks, each on its own scale from its smallest to its largest number.

    Shapes: image uint8 (C, H, W) or (H, W, C); maps, a dict of title -> (rows, columns).
    """
    height, width, _ = plots.as_picture(image).shape
    grey = np.full((2, 256, 3), 128, np.uint8)
    over_grey = ListedColormap(plots.overlay(grey, np.linspace(0, 1, 256)[None])[0] / 255)
    side = min(plots.WIDTH / (len(maps) + 1), 3)  # inches
    fig = Figure(figsize=(side * (len(maps) + 1), side * height / width + 1.2), layout="compressed")
    first, *axes = fig.subplots(1, len(maps) + 1)
    first.imshow(plots.as_picture(image), interpolation="auto")
    first.set_title("picture")
    first.set_axis_off()
    for ax, (title, weights) in zip(axes, maps.items()):
        weights = plots.as_numpy(weights)
        low, high = weights.min(), weights.max()
        ax.imshow(plots.overlay(image, weights - low, high - low), interpolation="auto")
        ax.set_title(textwrap.fill(title, int(10 * side)))
        ax.set_axis_off()
        scale = ScalarMappable(Normalize(low, high), over_grey)
        ends = {"ticks": [low, high], "format": "{x:.1f}"}
        plots.add_scale(fig, scale, label, ax=ax, location="bottom", **ends)
    return fig


@plots.styled
def token_norms(norms):
    """How long each token's vector is on its way through the layers, a line for each patch.

    Shapes: norms, a dict of title -> (depth + 1, T), the class token first.
    """
    fig = Figure(figsize=(plots.WIDTH, 3.6), layout="constrained")
    axes = fig.subplots(1, len(norms), squeeze=False, sharey=True)[0]
    for ax, (title, values) in zip(axes, norms.items()):
        values = plots.as_numpy(values)
        layers = np.arange(len(values))
        ax.plot(layers, values[:, 1:], color=plots.COLORS["patch"], linewidth=1, alpha=0.6)
        ax.plot(layers, values[:, 0], "o-", color=plots.COLORS["class_token"], label="class token")
        ax.plot([], [], color=plots.COLORS["patch"], label="patches")
        ax.set(title=title, xlabel="after layer")
        ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        ax.grid(axis="y")
    axes[0].set(ylabel="norm of the token", ylim=(0, 1.05 * axes[0].get_ylim()[1]))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return fig


@plots.styled
def lens(probabilities, classes):
    """What the head would answer after each layer: a column of bars for each, the likeliest class in black.

    Shapes: probabilities (depth + 1, K), classes K names.
    """
    probabilities = plots.as_numpy(probabilities)
    fig = Figure(figsize=(plots.WIDTH, 0.9 + 0.28 * len(classes)), layout="constrained")
    axes = fig.subplots(1, len(probabilities), sharex=True, sharey=True)
    for layer, (ax, values) in enumerate(zip(axes, probabilities)):
        best = values.argmax()
        colors = ["black" if index == best else "#bbbbbb" for index in range(len(classes))]
        ax.barh(classes, values, color=colors)
        ax.annotate(f"{values[best]:.0%}", (values[best], best), (3, 0), textcoords="offset points",
                    va="center", fontsize=11)  # fmt: skip
        ax.set(title=f"layer {layer}" if layer else "before", xlim=(0, 1.5), xticks=[0, 1])
        ax.tick_params(axis="y", length=0)
    axes[0].invert_yaxis()
    fig.supxlabel("probability", fontsize=12)
    return fig


def with_error(measured):
    """A stored measure, {"mean": ..., "se": ...}, as its mean and two standard errors."""
    return np.asarray(measured["mean"]), 2 * np.asarray(measured["se"])


@plots.styled
def pointing(values, levels):
    """How well maps point, by method: with trained and with untrained weights, a panel for each measure.

    Shapes: values, a dict of measure -> method -> weights -> (mean, error); levels, a dict of measure ->
    name -> the number that a map which knows nothing gets, drawn as a line across.
    """
    methods = list(next(iter(values.values())))
    fig = Figure(figsize=(plots.WIDTH, 1.5 + 0.5 * len(methods)), layout="constrained")
    axes = fig.subplots(1, len(values), sharey=True)
    for ax, (measure, by_method) in zip(axes, values.items()):
        weights = next(iter(by_method.values()))
        for number, (name, line) in enumerate(zip(weights, plots.LINES)):
            means, errors = zip(*(by_method[method][name] for method in methods))
            style = {"linestyle": "", "color": line["color"], "marker": line["marker"], "capsize": 4}
            face = line.get("markerfacecolor", line["color"])
            places = np.arange(len(methods)) + 0.22 * (number - (len(weights) - 1) / 2)
            ax.errorbar(means, places, xerr=errors, markerfacecolor=face, label=name, **style)
        for (name, level), dashes in zip(levels[measure].items(), (":", "--")):
            ax.axvline(level, color=plots.COLORS["neutral"], linewidth=1.5, linestyle=dashes, label=name)
        ax.set(xlabel=measure, xlim=(0, 1), ylim=(len(methods) - 0.5, -0.5))
        ax.set_yticks(range(len(methods)), methods)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return fig
