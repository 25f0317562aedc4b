"""Every figure of the series, in one style: white, large type, and a colour that means the same thing everywhere.

Each function takes arrays or tensors and returns a Matplotlib Figure; `show(fig, alt)` displays it. Numbers that need
computing come from elsewhere (vitlib.attention_maps, vitlib.training): what is drawn here is what was passed in.
Pictures are uint8, (C, H, W) or (H, W, C), with one or three channels.
"""

import base64
import io
import math

import matplotlib
import numpy as np
import torch
from IPython.display import display
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Okabe & Ito's palette, safe for colour-blind readers.
COLORS = {
    "class_token": "#D55E00",
    "patch": "#56B4E9",
    "position": "#009E73",
    "query": "#0072B2",
    "key": "#E69F00",
    "value": "#CC79A7",
    "neutral": "#666666",  # the residual stream, too
}
# Lines that are none of these (training and validation, trained and untrained) differ in shape as well as in tone.
_LINES = [
    {"color": "black", "marker": "o", "linestyle": "-"},
    {"color": "#777777", "marker": "D", "linestyle": "--", "markerfacecolor": "white"},
    {"color": "black", "marker": "^", "linestyle": ":", "markerfacecolor": "white"},
    {"color": "#777777", "marker": "s", "linestyle": "-."},
]
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "text.color": "black",
    "axes.labelcolor": "black",
    "axes.titlecolor": "black",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "axes.edgecolor": COLORS["neutral"],
    "xtick.color": COLORS["neutral"],
    "ytick.color": COLORS["neutral"],
    "grid.color": "#dddddd",
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so that figures are alike everywhere
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "lines.markersize": 7,
    "image.cmap": "viridis",
    "image.interpolation": "nearest",
}
_styled = matplotlib.rc_context(STYLE)  # a decorator: the style holds inside, the reader's own settings outside
WIDTH = 9  # inches, the widest figure that a notebook shows in full


# --- showing and describing -----------------------------------------------------------------------------------------


def show(fig, alt):
    """Display a figure as a PNG with alternative text, and with a description in numbers as its plain text.

    A notebook test compares the plain text, not the pixels: changed data then fails, float noise does not.
    """
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=100, facecolor="white", metadata={"Software": None})
    width, height = (100 * fig.get_size_inches()).round().astype(int)
    data = {
        "image/png": base64.b64encode(buffer.getvalue()).decode(),
        "text/plain": f"Figure {width}x{height}: {alt}\n{describe(fig)}",
    }
    display(data, raw=True, metadata={"image/png": {"alt": alt}})


def describe(fig):
    """What each pair of axes holds, in words and numbers, one line each."""
    lines = []
    for number, ax in enumerate(fig.axes):
        names = [name.replace("\n", " ") for name in (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) if name]
        if ax.get_label() == "<colorbar>":
            parts = ["scale " + _in_numbers(ax.get_ylim())]
        else:
            parts = [_describe_image(image.get_array()) for image in ax.images]
            parts += [_describe_line(line) for line in ax.lines]
            parts += [_describe_points(points.get_offsets()) for points in ax.collections]
            parts += [f"bars {_in_numbers([bar.get_width() for bar in bars])}" for bars in ax.containers
                      if hasattr(bars, "patches")]  # fmt: skip
        lines.append(f"  {number} {' | '.join(names)}: {'; '.join(filter(None, parts)) or 'empty'}")
    return "\n".join(lines)


def _describe_image(image):
    size = "x".join(map(str, image.shape[:2]))
    if image.ndim == 2:
        return f"image {size} {_in_numbers(image)}"
    channels = [f"{name} {_in_numbers(channel)}" for name, channel in zip("rgb", np.moveaxis(image, -1, 0))]
    return f"picture {size} " + ", ".join(channels)


def _describe_line(line):
    name = line.get_label()
    name = "" if name.startswith("_") else f"{name!r} "
    return f"line {name}x {_in_numbers(line.get_xdata())}, y {_in_numbers(line.get_ydata())}"


def _describe_points(points):
    if len(points) > 1:  # error bars have one, without meaning
        return f"{len(points)} points x {_in_numbers(points[:, 0])}, y {_in_numbers(points[:, 1])}"


def _in_numbers(values):
    """Range, mean and centre of mass of an array, to three digits of its largest value."""
    values = np.ma.masked_invalid(np.ma.asarray(values, dtype=float))
    if not values.count():
        return "(nothing)"
    low, high, mean = values.min(), values.max(), values.mean()
    # Rounded first, so that 0.99999 and 1.00001 get equally many decimals. Five at most: what is left is float noise.
    largest = float(f"{max(abs(low), abs(high)):.2e}")
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 5) if largest else 0
    low, high, mean = (f"{round(float(x), decimals) + 0.0:.{max(decimals, 1)}f}" for x in (low, high, mean))
    if low == high:
        return f"all {low}"
    weights = (values - values.min()).filled(0)  # where the large values are: a flipped image is another image
    centre = [np.average(places, weights=weights) for places in np.indices(weights.shape)]
    return f"{low}..{high} mean {mean} centre {' '.join(f'{x:.2f}' for x in centre)}"


# --- helpers --------------------------------------------------------------------------------------------------------


def _numpy(values):
    """Tensors and lists as an array; half precision, which NumPy has not, as float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    return np.asarray(values)


def _pictures(images):
    """uint8 (N, C, H, W) or (N, H, W, C) with 1 or 3 channels -> (N, H, W, 3)."""
    images = _numpy(images)
    if images.ndim != 4 or images.dtype != np.uint8 or not {images.shape[1], images.shape[3]} & {1, 3}:
        raise ValueError(
            "Expected uint8 pictures (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, got "
            f"{images.dtype} {images.shape}. Show the pictures as they were before normalize(); "
            "one picture alone needs images[None]."
        )
    if images.shape[1] in (1, 3):
        images = np.moveaxis(images, 1, -1)
    return np.broadcast_to(images, (*images.shape[:3], 3))


def _mosaic(tiles, gap, fill=np.nan):
    """(R, C, h, w, ...) -> one array (R·h + gaps, C·w + gaps, ...), tile [r, c] in row r and column c."""
    rows, columns, height, width, *rest = tiles.shape
    tiles = np.pad(tiles, [(0, 0), (0, 0), (0, gap), (0, gap)] + [(0, 0)] * len(rest), constant_values=fill)
    return tiles.swapaxes(1, 2).reshape(rows * (height + gap), columns * (width + gap), *rest)[:-gap, :-gap]


def _number_tiles(axis, number, size, gap):
    """Ticks 1, 2, ... at the middle of each tile of a mosaic; some are left out where they would touch."""
    tiles = np.arange(0, number, math.ceil(number / 14))
    axis.set_ticks(tiles * (size + gap) + (size - 1) / 2, tiles + 1, color="black")
    axis.set_tick_params(length=0)


def _write_numbers(ax, values, form):
    """Each number of a small matrix in its cell, black on light and white on dark."""
    image = ax.images[0]
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.to_rgba(image.get_array()[row, column])
        color = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "white"
        ax.text(column, row, form.format(value), color=color, fontsize=11, ha="center", va="center")


# --- pictures and predictions ---------------------------------------------------------------------------------------


@_styled
def picture_grid(images, titles=None, columns=8):
    """Pictures side by side, with a title above each.

    Shapes: images uint8 (N, C, H, W) or (N, H, W, C); titles N strings.
    Raises ValueError for pictures of another type or shape.
    """
    images = _pictures(images)
    number, height, width, _ = images.shape
    columns = min(columns, number)
    rows = math.ceil(number / columns)
    side = min(WIDTH / columns, 2.5)  # inches
    lines = max((title.count("\n") + 1 for title in titles), default=0) if titles is not None else 0
    fig = Figure(figsize=(columns * side, rows * (side * height / width + 0.22 * lines)), layout="compressed")
    axes = fig.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, image in zip(axes, images):
        ax.imshow(image, interpolation="auto")
    for ax, title in zip(axes, titles if titles is not None else []):
        ax.set_title(title, fontsize=11)
    return fig


def predictions(images, labels, probabilities, classes, columns=5):
    """Pictures with what the model says, how sure it is, and what is right.

    Shapes: images uint8 (N, C, H, W); labels (N,); probabilities (N, K); classes K names.
    """
    titles = []
    for label, row in zip(_numpy(labels), _numpy(probabilities)):
        verdict = "✓" if row.argmax() == label else f"✗ {classes[label]}"
        titles.append(f"{classes[row.argmax()]} {row.max():.0%}\n{verdict}")
    fig = picture_grid(images, titles, columns)
    for ax in fig.axes:
        if "✗" in ax.get_title():
            ax.title.set_fontweight("bold")
    return fig


@_styled
def class_bars(probabilities, classes, true=None):
    """The five likeliest classes as bars, the likeliest on top; the true class, if given, in black.

    Shapes: probabilities (K,), classes K names, true an index.
    """
    probabilities = _numpy(probabilities)
    best = np.argsort(-probabilities, kind="stable")[:5]
    names = [classes[index] + (" (true)" if index == true else "") for index in best]
    fig = Figure(figsize=(6, 0.6 + 0.42 * len(best)), layout="constrained")
    ax = fig.subplots()
    bars = ax.barh(names, probabilities[best], color=["black" if i == true else COLORS["neutral"] for i in best])
    ax.bar_label(bars, [f"{value:.1%}" for value in probabilities[best]], padding=4, fontsize=11)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.14), xlabel="probability", xticks=np.linspace(0, 1, 5))
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig


@_styled
def confusion_matrix(counts, classes):
    """How often each true class (row) was taken for each class (column). The colour is the share of the row.

    Shapes: counts (K, K), classes K names. Numbers are written for at most 12 classes.
    """
    counts = _numpy(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    number = len(classes)
    side = min(max(0.5 * number, 2.5), 6.2)
    fig = Figure(figsize=(side + 2.8, side + 1.2), layout="compressed")
    ax = fig.subplots()
    image = ax.imshow(shares, vmin=0, vmax=1)
    named = range(0, number, math.ceil(number / 30))  # more names than that would touch
    ax.set_xticks(named, [classes[i] for i in named], rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(named, [classes[i] for i in named])
    ax.set(xlabel="predicted class", ylabel="true class")
    if number <= 12:
        _write_numbers(ax, counts, "{:d}")
    bar = fig.colorbar(image, ax=ax, label="share of the true class", format=PercentFormatter(1), shrink=0.7)
    bar.outline.set_visible(False)
    return fig


# --- training -------------------------------------------------------------------------------------------------------


@_styled
def curves(history, x, panels):
    """How numbers change during training.

    `history` names columns: dict of name -> list, NaN or None where nothing was measured. `x` is the column for the
    horizontal axis. `panels` says what to draw: dict of vertical label -> list of columns, one panel for each label.
    """
    fig = Figure(figsize=(min(5 * len(panels), WIDTH), 3.6), layout="constrained")
    for ax, (label, names) in zip(fig.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for name, line in zip(names, _LINES):
            values = np.array(history[name], dtype=float)
            measured = np.isfinite(values)
            few = measured.sum() <= 30
            ax.plot(np.array(history[x])[measured], values[measured], label=name,
                    **{**line, "marker": line["marker"] if few else ""})  # fmt: skip
        ax.set(xlabel=x, ylabel=label)
        ax.grid(axis="y")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.legend()
    return fig


@_styled
def learning_rate_schedule(rates):
    """The learning rate at each step: warm-up, then decay. Shapes: rates (number of steps,)."""
    rates = _numpy(rates)
    fig = Figure(figsize=(6, 3), layout="constrained")
    ax = fig.subplots()
    ax.plot(np.arange(1, len(rates) + 1), rates, color="black")
    peak = rates.argmax()
    ax.plot(peak + 1, rates[peak], "o", color="black")
    ax.annotate(f"{rates[peak]:g} at step {peak + 1}", (peak + 1, rates[peak]), (8, 4), textcoords="offset points")
    ax.set(xlabel="step", ylabel="learning rate", ylim=(0, 1.15 * rates[peak]))
    ax.grid(axis="y")
    return fig


# --- attention ------------------------------------------------------------------------------------------------------


def spread_over_pixels(weights, height, width):
    """Give each pixel the weight of its patch. Shapes: (rows, columns) -> (height, width).

    A pixel belongs to the patch that its centre lies in, so edges are exact where the grid divides the picture, and
    right to half a pixel where it does not.
    """
    rows, columns = weights.shape
    row = ((np.arange(height) + 0.5) * rows / height).astype(int)
    column = ((np.arange(width) + 0.5) * columns / width).astype(int)
    return weights[row][:, column]


def overlay(image, weights, top=None):
    """The picture in grey with the weights in colour over it: dark blue at 0, yellow at `top` (the largest weight).

    The result has the picture's full resolution; a patch colours exactly its own pixels.
    Shapes: image uint8 (C, H, W) or (H, W, C), weights (rows, columns) -> uint8 (H, W, 3).
    """
    image, weights = _pictures(_numpy(image)[None])[0], _numpy(weights)
    grey = image @ np.array([0.3, 0.6, 0.1]) / 255  # (H, W), as bright as the eye finds each colour
    height, width = grey.shape
    color = matplotlib.colormaps["viridis"](spread_over_pixels(weights, height, width) / (top or weights.max() or 1))
    return (255 * _over(grey[..., None], color[..., :3])).round().astype(np.uint8)


def _over(grey, color):
    return 0.4 * grey + 0.6 * color


@_styled
def attention_overlay(image, maps, label="attention"):
    """A picture, and beside it where each map looks, all on one scale from 0.

    `maps` is a dict of title -> weights, one number for each patch. `label` names the scale.
    Shapes: image uint8 (C, H, W) or (H, W, C) at any resolution, each map (rows, columns).
    """
    maps = {name: _numpy(weights) for name, weights in maps.items()}
    top = max(weights.max() for weights in maps.values())
    panels = {"picture": _pictures(_numpy(image)[None])[0]}
    panels |= {name: overlay(image, weights, top) for name, weights in maps.items()}
    height, width, _ = panels["picture"].shape
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    side = min((WIDTH - 1.2) / columns, 3)
    fig = Figure(figsize=(columns * side + 1.2, rows * (side * height / width + 0.4)), layout="compressed")
    axes = fig.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, (name, panel) in zip(axes.flat, panels.items()):
        ax.imshow(panel, interpolation="auto")
        ax.set_title(name)
    viridis = matplotlib.colormaps["viridis"](np.linspace(0, 1, 256))[:, :3]
    over_grey = ListedColormap(_over(0.5, viridis))  # the colours as they come out over a mid-grey pixel
    bar = fig.colorbar(ScalarMappable(Normalize(0, top), over_grey), ax=axes, label=label, ticks=MaxNLocator(4))
    bar.outline.set_visible(False)
    return fig


@_styled
def attention_grid(maps, image=None, num_prefix_tokens=1):
    """Every layer and head at once, on one scale from 0 with a mark at 1/T, where attention spread evenly would be.

    The scale ends where 99 % of the weights lie, so that a few large ones do not turn the rest dark; those share the
    last colour, as the arrow on the scale says.
    Shapes: maps (depth, num_heads, rows, columns); image as in `attention_overlay`, shown beside them.
    """
    maps = _numpy(maps)
    depth, num_heads, rows, columns = maps.shape
    uniform = 1 / (rows * columns + num_prefix_tokens)
    top = np.quantile(maps, 0.99) or maps.max()
    widths = [] if image is None else [1.8]  # inches
    tile = min((WIDTH - 2.2 - sum(widths)) / num_heads, 1.0)
    widths.append(tile * num_heads)
    size = sum(widths) + 2.2, max(tile * depth * rows / columns + 0.8, 2.4)
    fig = Figure(figsize=size, layout="constrained")
    *beside, ax = fig.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for picture in beside:
        picture.imshow(_pictures(_numpy(image)[None])[0], interpolation="auto")
        picture.set_title("picture")
        picture.set_axis_off()
    gap = max(1, columns // 10)
    drawn = ax.imshow(_mosaic(maps, gap), vmin=0, vmax=top)
    _number_tiles(ax.xaxis, num_heads, columns, gap)
    _number_tiles(ax.yaxis, depth, rows, gap)
    ax.set(xlabel="head", ylabel="layer")
    ax.spines[:].set_visible(False)
    bar = fig.colorbar(drawn, ax=ax, label="attention", extend="max" if maps.max() > top else "neither")
    bar.set_ticks([0, uniform, top], labels=["0", f"1/{round(1 / uniform)}", f"{top:.2f}"])
    bar.outline.set_visible(False)
    return fig


@_styled
def attention_matrix(attention, num_prefix_tokens=1):
    """One head's attention: a row for each token that reads (query), a column for each that is read (key).

    Rows sum to 1. Up to 10 tokens, the numbers are written.
    Shapes: attention (T, T), the prefix tokens first, the class token first of all.
    """
    attention = _numpy(attention)
    tokens = len(attention)
    fig = Figure(figsize=(6.6, 5.4), layout="constrained")
    ax = fig.subplots()
    drawn = ax.imshow(attention, vmin=0)
    ticks = np.arange(0, tokens, math.ceil(tokens / 10))
    names = ["class" if tick < min(num_prefix_tokens, 1) else str(tick) for tick in ticks]
    ax.set_xticks(ticks, names)
    ax.set_yticks(ticks, names)
    ax.set(xlabel="key: the token that is read", ylabel="query: the token that reads")
    for axis, side, color in ((ax.xaxis, "bottom", COLORS["key"]), (ax.yaxis, "left", COLORS["query"])):
        ax.spines[side].set(color=color, linewidth=5)
        axis.set_tick_params(length=0, pad=6)
        if num_prefix_tokens:
            axis.get_ticklabels()[0].set(color=COLORS["class_token"], fontweight="bold")
    if tokens <= 10:
        _write_numbers(ax, attention, "{:.2f}")
    bar = fig.colorbar(drawn, ax=ax, label="attention (each row sums to 1)", ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    return fig


@_styled
def distance_by_depth(distances, uniform=None):
    """How far each head looks, by layer (paper, figure 7 right).

    Shapes: distances, a dict of name -> (depth, num_heads) in pixels; uniform, the distance that attention spread
    evenly would have.
    """
    return _heads_by_depth(distances, "mean attention distance (pixels)", uniform)


@_styled
def entropy_by_depth(entropies, uniform=None):
    """How widely each head looks, by layer.

    Shapes: entropies, a dict of name -> (depth, num_heads) in bits; uniform, the entropy of attention spread evenly.
    """
    return _heads_by_depth(entropies, "entropy of attention (bits)", uniform)


def _heads_by_depth(values, label, uniform):
    """A mark for each head, a line through the means of the layers."""
    fig, ax = _layers_axes(label)
    for number, ((name, heads), line) in enumerate(zip(values.items(), _LINES)):
        heads = _numpy(heads)
        layers = np.arange(1, len(heads) + 1)
        shift = 0.16 * (number - (len(values) - 1) / 2)  # or the marks of two models would hide each other
        ax.plot(layers, heads.mean(axis=1), color=line["color"], linestyle=line["linestyle"], linewidth=1.5)
        ax.scatter(np.repeat(layers + shift, heads.shape[1]), heads, s=45, marker=line["marker"], label=name,
                   color=line.get("markerfacecolor", line["color"]), edgecolor=line["color"], zorder=3)  # fmt: skip
    return _finish_layers(fig, ax, uniform, "spread evenly")


@_styled
def share_by_layer(shares, chance):
    """The share of attention on the object, by layer, against chance.

    Shapes: shares, a dict of name -> (mean (depth,), error (depth,)), drawn as a line with error bars; chance, a number.
    """
    fig, ax = _layers_axes("share of attention on the object")
    for (name, (mean, error)), line in zip(shares.items(), _LINES):
        mean = _numpy(mean)
        ax.errorbar(np.arange(1, len(mean) + 1), mean, _numpy(error), label=name, capsize=4, **line)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return _finish_layers(fig, ax, chance, "chance")


def _layers_axes(label):
    fig = Figure(figsize=(7, 4), layout="constrained")
    ax = fig.subplots()
    ax.set(xlabel="layer", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    ax.grid(axis="y")
    return fig, ax


def _finish_layers(fig, ax, level, name):
    """A line across at a level to compare with, the vertical axis from 0, and what is what."""
    if level is not None:
        ax.axhline(level, color=COLORS["neutral"], linewidth=1.5, linestyle=(0, (1, 1)), label=name)
    ax.set_ylim(bottom=0)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=4)
    return fig


# --- what the weights have learned ----------------------------------------------------------------------------------


@_styled
def positional_similarity_grid(similarity):
    """One tile for each patch: how alike its position is to every patch's (paper, figure 7 centre).

    Shapes: similarity (rows, columns, rows, columns), as `attention_maps.positional_similarity` gives it.
    """
    similarity = _numpy(similarity)
    rows, columns = similarity.shape[:2]
    gap = max(1, columns // 7)
    width = 5.2 * min(1, columns / rows)
    fig = Figure(figsize=(width + 2, width * rows / columns + 0.8), layout="constrained")
    ax = fig.subplots()
    drawn = ax.imshow(_mosaic(similarity, gap), cmap="RdBu_r", vmin=-1, vmax=1)
    _number_tiles(ax.xaxis, columns, columns, gap)
    _number_tiles(ax.yaxis, rows, rows, gap)
    ax.set(xlabel="column of the patch", ylabel="row of the patch")
    ax.spines[:].set_visible(False)
    bar = fig.colorbar(drawn, ax=ax, label="cosine similarity", ticks=[-1, -0.5, 0, 0.5, 1])
    bar.outline.set_visible(False)
    return fig


@_styled
def rgb_filters(filters, columns=7):
    """Filters of the patch embedding as pictures, in reading order (paper, figure 7 left).

    Shapes: filters (number, P, P, C) in 0..1, C one or three, as `attention_maps.embedding_filters` gives them.
    """
    filters = _numpy(filters)
    number, height, width, channels = filters.shape
    rows = math.ceil(number / columns)
    empty = np.ones((rows * columns - number, height, width, channels))
    tiles = np.concatenate([filters, empty]).reshape(rows, columns, height, width, channels)
    fig = Figure(figsize=(columns, rows * height / width), layout="compressed")
    ax = fig.subplots()
    ax.imshow(np.broadcast_to(tiles := _mosaic(tiles, 1, fill=1), (*tiles.shape[:2], 3)))
    ax.set_axis_off()
    return fig
