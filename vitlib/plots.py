"""Every figure of the series, in one style: white, large type, a colour means the same everywhere.

Each function takes arrays or tensors and returns a Matplotlib Figure; `show(fig, alt)` displays it. Numbers
that need computing come from elsewhere (vitlib.attention_maps, vitlib.training): what is drawn here is what
was passed in. Pictures are uint8, (C, H, W) or (H, W, C), with one or three channels.
"""

import base64
import io
import math
import textwrap
import time
from itertools import cycle

import ipywidgets
import matplotlib
import numpy as np
import PIL.Image
import torch
from IPython.display import display
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

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
# Lines that are none of these (training, validation, trained, untrained) differ in shape as well as in tone.
LINES = [
    {"color": "black", "marker": "o", "linestyle": "-"},
    {"color": "#777777", "marker": "D", "linestyle": "--", "markerfacecolor": "white"},
    {"color": "black", "marker": "^", "linestyle": ":", "markerfacecolor": "white"},
    {"color": "#777777", "marker": "s", "linestyle": "-."},
    {"color": "black", "marker": "x", "linestyle": (0, (6, 3))},
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
    "figure.constrained_layout.w_pad": 0.08,  # inches, so that nothing touches the edge
    "figure.constrained_layout.h_pad": 0.08,
}
styled = matplotlib.rc_context(STYLE)  # a decorator: the style holds inside, the reader's own outside
TRAINING_PANELS = {"loss": ["train_loss", "validation_loss"], "accuracy": ["validation_accuracy"]}
WIDTH = 9  # inches, the widest figure that a notebook shows in full


# --- showing and describing ---------------------------------------------------------------------------------


def show(fig, alt):
    """Display a figure as a PNG with alternative text, and with a description in numbers as its plain text.

    A notebook test compares the plain text, not the pixels: changed data then fails, float noise does not.
    """
    picture = as_png(fig)
    width, height = PIL.Image.open(io.BytesIO(picture)).size
    data = {
        "image/png": base64.b64encode(picture).decode(),
        "text/plain": f"Figure {width}x{height}: {alt}\n{describe(fig)}",
    }
    display(data, raw=True, metadata={"image/png": {"alt": alt}})


def as_png(fig):
    """A figure as the bytes of a PNG file that are the same at every drawing."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=100, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def describe(fig):
    """What each pair of axes holds, in words and numbers, one line each."""
    lines = []
    for number, ax in enumerate(fig.axes):
        names = filter(None, (ax.get_title().replace("\n", " "), ax.get_xlabel(), ax.get_ylabel()))
        if ax.get_label() == "<colorbar>":
            parts = ["scale " + _in_numbers(ax.get_ylim() if ax.get_ylabel() else ax.get_xlim())]
        else:
            parts = [_describe_image(image.get_array()) for image in ax.images]
            parts += [_describe_line(line) for line in ax.lines]
            ticks = [*ax.get_xticklabels(), *ax.get_yticklabels()] if ax.axison else []
            parts += [", ".join(tick.get_text() for tick in ticks if any(map(str.isalpha, tick.get_text())))]
            parts += [f"bars {_in_numbers([bar.get_width() for bar in bars])}" for bars in ax.containers
                      if hasattr(bars, "patches")]  # fmt: skip
            if not ax.images and not ax.lines and not ax.containers:  # a diagram
                parts += [", ".join(text.get_text() for text in ax.texts)]
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


def _in_numbers(values):
    """Range, mean and centre of mass of an array, to three digits of its largest value."""
    values = np.ma.masked_invalid(np.ma.asarray(values, dtype=float))
    if not values.count():
        return "(nothing)"
    low, high, mean = values.min(), values.max(), values.mean()
    # Rounded first, so that 0.99999 and 1.00001 get equally many decimals. Beyond five there is float noise.
    largest = float(f"{max(abs(low), abs(high)):.2e}")
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 5) if largest else 5
    constant = high - low < 1e-5 * largest
    low, high, mean = (f"{round(float(x), decimals) + 0.0:.{max(decimals, 1)}f}" for x in (low, high, mean))
    if constant or low == high:
        return f"all {mean}"
    weights = (values - values.min()).filled(0)  # the centre of mass tells an image from its mirror image
    centre = [np.average(places, weights=weights) for places in np.indices(weights.shape)]
    return f"{low}..{high} mean {mean} centre {' '.join(f'{x:.2f}' for x in centre)}"


# --- helpers ------------------------------------------------------------------------------------------------


def as_numpy(values):
    """Tensors and lists as an array; half precision, which NumPy has not, as float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    return np.asarray(values)


def as_picture(image):
    """uint8 (C, H, W) or (H, W, C) with 1 or 3 channels -> (H, W, 3)."""
    image = as_numpy(image)
    if image.ndim != 3 or image.dtype != np.uint8 or not {image.shape[0], image.shape[2]} & {1, 3}:
        raise ValueError(
            "Expected a uint8 picture (C, H, W) or (H, W, C) with 1 or 3 channels, got "
            f"{image.dtype} {image.shape}. Show pictures as they were before normalize()."
        )
    if image.shape[0] in (1, 3):
        image = np.moveaxis(image, 0, -1)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def mosaic(tiles, gap, fill=np.nan):
    """(R, C, h, w, ...) -> one array (R·h + gaps, C·w + gaps, ...), tile [r, c] in row r and column c."""
    rows, columns, height, width, *rest = tiles.shape
    tiles = np.pad(tiles, [(0, 0), (0, 0), (0, gap), (0, gap)] + [(0, 0)] * len(rest), constant_values=fill)
    return tiles.swapaxes(1, 2).reshape(rows * (height + gap), columns * (width + gap), *rest)[:-gap, :-gap]


def mosaic_figure(tiles, xlabel, ylabel, left=0, **options):
    """A mosaic of numbers with its tiles counted from 1: the figure, the image, and the place for its scale.

    A cell is a whole number of screen pixels, so that all are alike. `left` inches stay free.
    """
    rows, columns, height, width = tiles.shape
    gap = max(1, width // 10)
    tiled = mosaic(tiles, gap)
    down, across = tiled.shape
    cell = min((WIDTH - 2 - left) / across, 7.5 / down, max(0.7 / width, 3 / across))  # inches
    cell = math.floor(100 * cell) / 100 or cell
    down, across = cell * down, cell * across
    tall = max(down, 2.8)  # the scale is this long even beside a short mosaic
    size = np.array([left + across + 2, tall + 0.8])
    fig = Figure(figsize=size)
    ax = fig.add_axes((*([left + 0.75, 0.65 + (tall - down) / 2] / size), *([across, down] / size)))
    place = fig.add_axes((*([left + across + 0.95, 0.65] / size), *([0.2, tall] / size)))
    drawn = ax.imshow(tiled, **options)
    for axis, number, side in ((ax.xaxis, columns, width), (ax.yaxis, rows, height)):
        counted = np.arange(number)
        axis.set_ticks(counted * (side + gap) + (side - 1) / 2, counted + 1)
        axis.set_tick_params(length=0)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.spines[:].set_visible(False)
    return fig, drawn, place


def add_scale(fig, drawn, label, **options):
    bar = fig.colorbar(drawn, label=label, **{"ticks": MaxNLocator(4), **options})
    bar.outline.set_visible(False)
    return bar.ax


def write_numbers(ax, values, form):
    """Each number of a small matrix in its cell, black on light and white on dark."""
    image = ax.images[0]
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.to_rgba(image.get_array()[row, column])
        color = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "white"
        ax.text(column, row, form.format(value), color=color, fontsize=11, ha="center", va="center")


# --- numbers, tokens, lines and bars ------------------------------------------------------------------------


@styled
def number_tables(tables, titles=None, rows=None, columns=None, colors=None, form="{:g}", axes=None):
    """Small matrices side by side, with the number in each cell.

    For each table: a 2-D array, a title, names of its rows and columns (or None), and its color: a key of
    COLORS, an array of such keys in the table's shape, "viridis" (numbers from 0) or "signed" (around 0),
    these two on one scale for all tables. `axes` says what a row and a column is: ("query", "key") or None.
    """
    tables = [as_numpy(table) for table in tables]
    nothing = [None] * len(tables)
    titles, rows, columns = titles or nothing, rows or nothing, columns or nothing
    colors, axes = colors or nothing, axes or nothing
    kinds = [color if isinstance(color, str) else "" for color in colors]
    top = {kind: max(np.abs(t).max() for t, k in zip(tables, kinds) if k == kind) or 1 for kind in kinds}
    widths = [table.shape[1] for table in tables]
    # Inches: free for the names of rows at the left of a table, for a title as wide as its text, and above.
    left = [
        0.25 + (0.1 * max(map(len, names)) if names else 0) + 0.3 * bool(axis)
        for names, axis in zip(rows, axes)
    ]
    above = 0.1 + 0.25 * max(title.count("\n") + 1 if title else 0 for title in titles)
    above += 0.3 * any(columns) + 0.4 * any(axes)
    cell = min(0.62, (WIDTH - sum(left) - 0.2) / sum(widths))
    wide = [
        max(width * cell, 0.085 * max(map(len, (title or "").split("\n"))))
        for width, title in zip(widths, titles)
    ]
    size = np.array([sum(left) + sum(wide) + 0.2, above + cell * max(map(len, tables)) + 0.1])
    fig = Figure(figsize=size)
    x = 0.0
    for table, title, down, across, color, kind, axis, free, room in zip(
        tables, titles, rows, columns, colors, kinds, axes, left, wide
    ):
        width, height = cell * table.shape[1], cell * len(table)
        place = [x + free + (room - width) / 2, size[1] - above - height]
        x += free + room
        ax = fig.add_axes((*(place / size), *([width, height] / size)))
        scale = {
            "viridis": {"cmap": "viridis", "vmin": 0, "vmax": top[kind]},
            "signed": {"cmap": "RdBu_r", "vmin": -top[kind], "vmax": top[kind]},
        }
        ax.imshow(table, **scale.get(kind, {"cmap": ListedColormap(["white"])}))
        if color is not None and kind not in scale:
            for (row, column), key in np.ndenumerate(np.broadcast_to(np.asarray(color), table.shape)):
                ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=COLORS[key], alpha=0.35, lw=0))
        write_numbers(ax, table, form)
        ax.set_xticks(np.arange(table.shape[1]), across or [""] * table.shape[1])
        ax.set_yticks(np.arange(len(table)), down or [""] * len(table))
        ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
        height, width = table.shape
        ax.vlines(np.arange(1, width) - 0.5, -0.5, height - 0.5, color="#999999", linewidth=0.8)
        ax.hlines(np.arange(1, height) - 0.5, -0.5, width - 0.5, color="#999999", linewidth=0.8)
        ax.spines[:].set_visible(True)
        if axis:
            ax.xaxis.set_label_position("top")
            ax.set_ylabel(axis[0])
            ax.set_xlabel(axis[1], labelpad=8)
            ax.tick_params(pad=6)  # beyond the thick edges
            for name, side in zip(axis, ("left", "top")):
                if name in COLORS:
                    ax.spines[side].set(color=COLORS[name], linewidth=5)
        if title:
            ax.set_title(title, pad=8)
    return fig


@styled
def token_strip(strips):
    """Tokens as boxes in a row: a dict of name of the row -> list of (text in the box, key of COLORS)."""
    longest = max(len(boxes) for boxes in strips.values())
    left = 0.3 + 0.1 * max(map(len, strips))  # inches
    letters = max(len(text) for boxes in strips.values() for text, _ in boxes)
    box = min(max(0.5, 0.25 + 0.1 * letters), (WIDTH - left - 0.1) / longest)
    fig = Figure(figsize=(left + box * longest + 0.1, 0.65 * len(strips)))
    ax = fig.add_axes((left / fig.get_figwidth(), 0, box * longest / fig.get_figwidth(), 1))
    for row, boxes in enumerate(strips.values()):
        for column, (text, key) in enumerate(boxes):
            corner = (column + 0.04, row - 0.36)
            ax.add_patch(Rectangle(corner, 0.92, 0.72, color=COLORS[key], alpha=0.45, lw=0))
            ax.text(column + 0.5, row, text, ha="center", va="center", fontsize=11)
    ax.set(xlim=(0, longest), ylim=(len(strips) - 0.5, -0.5), xticks=[])
    ax.set_yticks(range(len(strips)), strips)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


@styled
def line_chart(lines, xlabel, ylabel, xscale="linear", yscale="linear", title=""):
    """Lines with their names: a dict of name -> (x, y) or (x, y, spread), the spread drawn as a band."""
    fig = Figure(figsize=(7, 4), layout="constrained")
    ax = fig.subplots()
    for (name, (x, y, *spread)), line in zip(lines.items(), cycle(LINES)):
        x, y = as_numpy(x), as_numpy(y)
        ax.plot(x, y, label=name, markevery=math.ceil(len(x) / 20), **line)
        for band in spread:
            ax.fill_between(x, y - as_numpy(band), y + as_numpy(band), color=line["color"], alpha=0.15, lw=0)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale, title=title)
    ax.grid(axis="y")
    places = sorted({float(place) for x, *_ in lines.values() for place in as_numpy(x)})
    for scale, axis in ((xscale, ax.xaxis), (yscale, ax.yaxis)):
        if scale == "log":  # 0.01 or 1e-14: the exponent of a power of ten would be small type
            axis.set_major_formatter("{x:g}")
    if xscale == "log" and len(places) <= 8:  # powers of ten alone say little about few points
        ax.set_xticks(places, [f"{place:g}" for place in places])
        ax.minorticks_off()
    if len(lines) > 1:
        fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return fig


@styled
def bar_chart(groups, label, form="{:.1%}", start=0):
    """Bars, the first on top: a dict of name -> number, or numbers over seeds.

    Of several numbers the bar is the mean; it has the standard deviation as its error, and a dot for each.
    An axis that does not start at 0 shows small differences. It gets no bars, whose lengths would mislead.
    """
    groups = {name: np.atleast_1d(as_numpy(values)) for name, values in groups.items()}
    fig = Figure(figsize=(7, 0.8 + 0.45 * len(groups)), layout="constrained")
    ax = fig.subplots()
    means = [values.mean() for values in groups.values()]
    errors = [values.std(ddof=1) if len(values) > 1 else 0 for values in groups.values()]
    ends = [max(mean + error, values.max()) for mean, error, values in zip(means, errors, groups.values())]
    ax.barh(list(groups), means, color="#bbbbbb" if start == 0 else "none")
    for row, (mean, error, end, values) in enumerate(zip(means, errors, ends, groups.values())):
        words = form.format(mean)
        if len(values) > 1 or start:
            ax.errorbar(mean, row, xerr=error, marker="|", markersize=14, color="black", capsize=5, lw=1.5)
            ax.plot(values, np.full(len(values), row), "o", color=COLORS["neutral"], markersize=5, alpha=0.6)
        if len(values) > 1:
            words += f" ± {form.format(error)}"
        ax.annotate(words, (end, row), (8, 0), textcoords="offset points", va="center", fontsize=11)
    ax.invert_yaxis()
    ax.set(xlabel=label, xlim=(start, max(ends) + 0.4 * (max(ends) - start)))
    ax.set_xticks([x for x in MaxNLocator(4).tick_values(start, max(ends)) if start <= x <= max(ends)])
    ax.xaxis.set_major_formatter(PercentFormatter(1) if "%" in form else FuncFormatter(form.format))
    ax.spines["bottom"].set_bounds(start, max(ends))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig


# --- pictures and predictions -------------------------------------------------------------------------------


@styled
def picture_grid(images, titles=None, columns=8):
    """Pictures side by side, with a title above each.

    Shapes: images uint8 (N, C, H, W) or (N, H, W, C), or a list of pictures of different sizes; N titles.
    Raises ValueError for pictures of another type or shape, and for none.
    """
    images = [as_picture(image) for image in images]
    if not images:
        raise ValueError("There are no pictures to show.")
    titles = [""] * len(images) if titles is None else titles
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    side = min(WIDTH / columns, 2.8)  # inches
    height = side * max(image.shape[0] / image.shape[1] for image in images)
    above = 0.22 * max(title.count("\n") + 1 if title else 0 for title in titles)
    fig = Figure(figsize=(columns * side, rows * (height + above)), layout="compressed")
    axes = fig.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, image, title in zip(axes, images, titles):  # places are left over at the end of the last row
        ax.imshow(image, interpolation="auto")
        ax.set_title(title, fontsize=11)
    return fig


def predictions(images, labels, probabilities, classes, columns=5):
    """Pictures with what the model says, how sure it is, and what is right.

    Shapes: images uint8 (N, C, H, W); labels (N,); probabilities (N, K); classes K names.
    """
    titles = []
    for label, row in zip(as_numpy(labels), as_numpy(probabilities)):
        best = row.argmax()
        says = f"{classes[best]} {row[best]:.0%}"
        titles.append(f"✓ {says}" if best == label else f"✗ {says}\ntrue: {classes[label]}")
    fig = picture_grid(images, titles, columns)
    for ax in fig.axes:
        if "✗" in ax.get_title():
            ax.title.set_fontweight("bold")
    return fig


@styled
def class_bars(probabilities, classes, true=None):
    """The five likeliest classes as bars, the likeliest on top; the true class, if given, in black.

    Shapes: probabilities (K,), classes K names, true an index.
    """
    probabilities = as_numpy(probabilities)
    best = np.argsort(-probabilities, kind="stable")[:5]
    names = [classes[index] + (" (true)" if index == true else "") for index in best]
    fig = Figure(figsize=(6, 0.6 + 0.42 * len(best)), layout="constrained")
    ax = fig.subplots()
    colors = ["black" if index == true else COLORS["neutral"] for index in best]
    bars = ax.barh(names, probabilities[best], color=colors)
    ax.bar_label(bars, [f"{value:.1%}" for value in probabilities[best]], padding=4, fontsize=11)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.14), xlabel="probability", xticks=np.linspace(0, 1, 5))
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines["bottom"].set_bounds(0, 1)  # what lies right of it is room for the last number
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig


@styled
def confusion_matrix(counts, classes):
    """How often each true class (row) was taken for each class (column). The colour is the share of the row.

    Shapes: counts (K, K), classes K names. Numbers are written for at most 12 classes.
    """
    counts = as_numpy(counts)
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
        write_numbers(ax, counts, "{:.0f}")
    add_scale(fig, image, "share of the true class", ax=ax, format=PercentFormatter(1), shrink=0.7)
    return fig


# --- training -----------------------------------------------------------------------------------------------


@styled
def curves(history, x, panels):
    """How numbers change during training.

    `history` has a list for each name, or is a list of rows (dicts), as training gives it; None or NaN where
    nothing was measured. `x` is the name for the horizontal axis. `panels` is a dict of vertical label ->
    names to draw.
    """
    if isinstance(history, list):
        history = {name: [row[name] for row in history] for name in history[0]}
    columns = {name: np.array(values, dtype=float) for name, values in history.items()}  # None becomes NaN
    fig = Figure(figsize=(7 if len(panels) == 1 else WIDTH, 4), layout="constrained")
    for ax, (label, names) in zip(fig.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for name, line in zip(names, cycle(LINES)):
            measured = np.isfinite(columns[name])
            place, value = columns[x][measured], columns[name][measured]
            every = math.ceil(len(place) / 20)  # a mark at each of many points would hide the line
            many = {"linewidth": 1.5, "alpha": 0.7} if len(place) > 40 else {}
            ax.plot(place, value, label=name.replace("_", " "), markevery=every, **line, **many)
        ax.set(xlabel=x, ylabel=label)
        ax.grid(axis="y")
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # above, where no curve runs
    return fig


class LiveCurves:
    """Curves that grow while a notebook trains: train(..., on_log=LiveCurves()).

    Called with the history after each of its rows. The picture below the cell is drawn again in place, at
    most every two seconds, and at each evaluation: the last row has one, so the whole run is drawn in the
    end. Where nobody watches (a notebook that is run by a program) only this line of text is left.
    """

    def __init__(self):
        self.widget, self.drawn = None, 0.0

    def __call__(self, history):
        if self.widget is None:
            # No margin: beside the whole width of a narrow cell there is no room for one.
            self.widget = ipywidgets.Image(format="png", layout={"max_width": "100%", "margin": "0"})
            display(
                {**self.widget._repr_mimebundle_(), "text/plain": "(curves, live while it trains)"}, raw=True
            )
        evaluated = history[-1]["validation_accuracy"] is not None
        if evaluated or time.monotonic() - self.drawn > 2:
            self.widget.value = as_png(curves(history, "step", TRAINING_PANELS))
            self.drawn = time.monotonic()


@styled
def learning_rate_schedule(rates):
    """The learning rate at each step: warm-up, then decay. Shapes: rates (number of steps,)."""
    rates = as_numpy(rates)
    fig = Figure(figsize=(6, 3), layout="constrained")
    ax = fig.subplots()
    ax.plot(np.arange(1, len(rates) + 1), rates, color="black")
    peak = rates.argmax()
    ax.plot(peak + 1, rates[peak], "o", color="black")
    text = f"{rates[peak]:g} at step {peak + 1}"
    ax.annotate(text, (peak + 1, rates[peak]), (8, 4), textcoords="offset points")
    ax.set(xlabel="step", ylabel="learning rate", ylim=(0, 1.15 * rates[peak]))
    ax.grid(axis="y")
    return fig


# --- attention ----------------------------------------------------------------------------------------------


def spread_over_pixels(weights, height, width):
    """Give each pixel the weight of its patch. Shapes: (rows, columns) -> (height, width).

    A pixel belongs to the patch that its centre lies in, so edges are exact where the grid divides the
    picture, and right to half a pixel where it does not.
    """
    rows, columns = weights.shape
    row = ((np.arange(height) + 0.5) * rows / height).astype(int)
    column = ((np.arange(width) + 0.5) * columns / width).astype(int)
    return weights[row][:, column]


def overlay(image, weights, top=None):
    """The picture in grey with the weights in colour over it, from dark blue at 0 to yellow at `top`.

    `top` is the largest weight unless given. The result has the picture's full resolution; a patch colours
    exactly its own pixels.
    Shapes: image uint8 (C, H, W) or (H, W, C), weights (rows, columns) -> uint8 (H, W, 3).
    """
    image, weights = as_picture(image), as_numpy(weights)
    grey = image @ np.array([0.3, 0.6, 0.1]) / 255  # (H, W), as bright as the eye finds each colour
    height, width = grey.shape
    shares = spread_over_pixels(weights, height, width) / (top or weights.max() or 1)
    color = matplotlib.colormaps["viridis"](shares)
    return (255 * _over(grey[..., None], color[..., :3])).round().astype(np.uint8)


def _over(grey, color):
    return 0.4 * grey + 0.6 * color


@styled
def attention_overlay(image, maps, label="attention", query=None):
    """A picture, and beside it where each map looks, all on one scale from 0.

    `maps` is one map, or a dict of title -> map; `label` names the scale; `query`, the (row, column) of the
    patch that reads, is framed.
    Shapes: image uint8 (C, H, W) or (H, W, C) at any resolution; a map is (rows, columns), one weight for
    each patch.
    """
    maps = maps if isinstance(maps, dict) else {"where it looks": maps}
    maps = {name: as_numpy(weights) for name, weights in maps.items()}
    top = max(weights.max() for weights in maps.values())
    panels = {"picture": as_picture(image)}
    panels |= {name: overlay(image, weights, top) for name, weights in maps.items()}
    height, width, _ = panels["picture"].shape
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    side = min(WIDTH / columns, 3)  # inches
    titles = [textwrap.fill(name, int(10 * side)) for name in panels]
    above = 0.25 * max(title.count("\n") + 1 for title in titles)
    fig = Figure(figsize=(columns * side, rows * (side * height / width + above) + 0.8), layout="compressed")
    axes = fig.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, title, panel in zip(axes.flat, titles, panels.values()):
        ax.imshow(panel, interpolation="auto")
        ax.set_title(title)
        if query:
            grid = np.array(next(iter(maps.values())).shape)
            top_left, size = np.array(query) * (height, width) / grid - 0.5, (height, width) / grid
            for color, line in (("white", 5), (COLORS["query"], 2.5)):
                frame = {"edgecolor": color, "linewidth": line, "fill": False}
                ax.add_patch(Rectangle(top_left[::-1], *size[::-1], **frame))
    viridis = matplotlib.colormaps["viridis"](np.linspace(0, 1, 256))[:, :3]
    over_grey = ScalarMappable(Normalize(0, top), ListedColormap(_over(0.5, viridis)))  # a mid-grey pixel
    add_scale(fig, over_grey, label, ax=axes, location="bottom", aspect=30, shrink=0.6)
    return fig


@styled
def attention_grid(maps, image=None, num_prefix_tokens=1, top=None):
    """Every layer and head at once, on one scale from 0.

    The line at 1/T is where attention spread evenly would be. The scale ends at `top`, which two figures to
    be compared should share. By default that is where 99 % of the weights lie, so that a few large ones do
    not turn the rest dark; those have the last colour, as the arrow says.
    Shapes: maps (depth, num_heads, rows, columns); image as in `attention_overlay`, shown beside them.
    """
    maps = as_numpy(maps)
    top = top or np.quantile(maps, 0.99) or maps.max()
    tokens = maps.shape[2] * maps.shape[3] + num_prefix_tokens
    left = 0 if image is None else 2
    fig, drawn, place = mosaic_figure(maps, "head", "layer", left, vmin=0, vmax=top)
    extend = "max" if maps.max() > top else "neither"
    scale = add_scale(fig, drawn, f"attention (white line: 1/{tokens})", cax=place, extend=extend)
    for color, width in (("black", 4), ("white", 2)):  # white with a black edge is seen on every colour
        scale.axhline(1 / tokens, color=color, linewidth=width)
    if image is not None:
        maps_at, inch = drawn.axes.get_position(), 1 / fig.get_figwidth()
        picture = fig.add_axes((0.1 * inch, maps_at.y0, left * inch, maps_at.height))
        picture.imshow(as_picture(image), interpolation="auto")
        picture.set_title("picture")
        picture.set_axis_off()
    return fig


@styled
def attention_matrix(attention, num_prefix_tokens=1):
    """One head's attention: a row for each token that reads (query), a column for each that is read (key).

    Rows sum to 1. Up to 10 tokens, the numbers are written.
    Shapes: attention (T, T), the prefix tokens first, the class token first of all.
    """
    attention = as_numpy(attention)
    tokens = len(attention)
    fig = Figure(figsize=(6.6, 5.4), layout="compressed")
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
        write_numbers(ax, attention, "{:.2f}")
    add_scale(fig, drawn, "attention (each row sums to 1)", ax=ax)
    return fig


@styled
def distance_by_depth(distances, uniform=None):
    """How far each head looks, by layer (paper, figure 7 right).

    Shapes: distances, a dict of name -> (depth, num_heads) in pixels; uniform, the distance that attention
    spread evenly would have.
    """
    return _heads_by_depth(distances, "mean attention distance (pixels)", uniform, bottom=None)


@styled
def entropy_by_depth(entropies, uniform=None):
    """How widely each head looks, by layer.

    Shapes: entropies, a dict of name -> (depth, num_heads) in bits; uniform, the entropy of attention spread
    evenly.
    """
    return _heads_by_depth(entropies, "entropy of attention (bits)", uniform)


def _heads_by_depth(values, label, uniform, bottom=0):
    """A mark for each head, a line through the means of the layers. No bottom: the axis begins near them."""
    fig = Figure(figsize=(7, 4), layout="constrained")
    ax = fig.subplots()
    ax.set(xlabel="layer", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    ax.grid(axis="y")
    for number, ((name, heads), line) in enumerate(zip(values.items(), cycle(LINES))):
        heads = as_numpy(heads)
        layers = np.arange(1, len(heads) + 1)
        shift = 0.16 * (number - (len(values) - 1) / 2)  # or the marks of two models would hide each other
        ax.plot(layers, heads.mean(axis=1), **{**line, "marker": "", "linewidth": 1.5})
        places = np.repeat(layers + shift, heads.shape[1])
        ax.plot(places, heads.ravel(), label=name, **{**line, "linestyle": ""})
    if uniform is not None:
        level = {"color": COLORS["neutral"], "linewidth": 1.5, "linestyle": (0, (1, 1))}
        ax.axhline(uniform, label="spread evenly", **level)
    ax.set_ylim(bottom, 1.05 * ax.get_ylim()[1])
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=4)
    return fig


# --- what the weights have learned --------------------------------------------------------------------------


@styled
def positional_similarity_grid(similarity):
    """One tile for each patch: how alike its position is to every patch's (paper, figure 7 centre).

    Shapes: similarity (rows, columns, rows, columns), as `attention_maps.positional_similarity` gives it.
    """
    similarity = as_numpy(similarity)
    options = {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}
    fig, drawn, place = mosaic_figure(similarity, "column of the patch", "row of the patch", **options)
    add_scale(fig, drawn, "cosine similarity", cax=place)
    return fig
