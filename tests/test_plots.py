"""plots: what is drawn is what was passed in, and everything can be read. Content is tested, not pixels."""

import base64
import functools
import importlib
import io
import itertools
import sys

import matplotlib
import matplotlib.style
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from vitlib import diagrams, plots
from vitlib.figures import attention as attention_figures
from vitlib.figures import class_token, patch_embedding, positional_embeddings, positional_encoding, vit

RANDOM = np.random.RandomState(0)
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PICTURE = RANDOM.randint(0, 256, (3, 32, 64), dtype=np.uint8)
PICTURES = torch.tensor(RANDOM.randint(0, 256, (7, 3, 32, 32), dtype=np.uint8))
FIXED = np.linspace(0, 0.7, 8).reshape(2, 4)
PROBABILITIES = torch.tensor(RANDOM.dirichlet(np.ones(10), 7))
COUNTS = torch.tensor(RANDOM.randint(0, 1000, (10, 10)))
ROWS = [
    {"epoch": e / 4, "train_loss": 3 / (e + 1), "validation_loss": None if e % 4 else 4 / (e + 1)}
    for e in range(60)
]


def attention(*shape):
    """Random rows that sum to 1, in bfloat16, which NumPy has not."""
    return torch.tensor(RANDOM.dirichlet(np.full(shape[-1], 0.3), shape[:-1])).bfloat16()


FIGURES = {
    "pictures": lambda: plots.picture_grid(PICTURES, CLASSES[:7], columns=4),
    "one picture": lambda: plots.picture_grid(PICTURE[None]),
    "many pictures": lambda: plots.picture_grid(PICTURES[[0] * 16], ["automobile"] * 16),
    "predictions": lambda: plots.predictions(PICTURES, [1] * 7, PROBABILITIES, CLASSES),
    "class bars": lambda: plots.class_bars(PROBABILITIES[0], CLASSES, true=3),
    "confusion": lambda: plots.confusion_matrix(COUNTS, CLASSES),
    "confusion of 2": lambda: plots.confusion_matrix(COUNTS[:2, :2], ["cat", "a long class name"]),
    "confusion of 80": lambda: plots.confusion_matrix(
        np.eye(80, dtype=int), [f"class {i}" for i in range(80)]
    ),
    "curves": lambda: plots.curves(ROWS, "epoch", {"loss": ["train_loss", "validation_loss"]}),
    "curves of 1 point": lambda: plots.curves(
        ROWS[:1], "epoch", {"loss": ["train_loss"], "more": ["train_loss"]}
    ),
    "learning rate": lambda: plots.learning_rate_schedule(1e-3 * np.sin(np.linspace(0.1, 3, 900))),
    "tables": lambda: plots.number_tables(
        [np.arange(12).reshape(3, 4), FIXED, FIXED - 0.3],
        ["a title\nof two lines", "viridis", "signed"],
        [["class", "patch 1", "patch 2"], None, None],
        [None, ["q", "k", "v", "d"], None],
        ["patch", "viridis", "signed"],
        "{:.3g}",
        [None, ("query", "key"), ("who takes", "from whom")],
    ),
    "a table": lambda: plots.number_tables(
        [FIXED], None, [["class token", "a patch"]], [["q", "k", "v", "d"]], axes=[("query", "key")]
    ),
    "strip": lambda: plots.token_strip(
        {"before": [("p1", "patch")] * 3, "after": [("CLS", "class_token")] + [("p1", "patch")] * 9}
    ),
    "small numbers": lambda: plots.line_chart({"a": ([1, 2, 3], [1e-14, 1e-3, 1e5])}, "x", "y", yscale="log"),
    "lines": lambda: plots.line_chart(
        {"a": (range(1, 60), range(1, 60), 3), "b": ([1, 30, 59], [1, 3, 10])}, "x", "y", "log", "log", "t"
    ),
    "bars": lambda: plots.bar_chart({"patch embedding": 9e5, "encoder": 1.4e7}, "parameters", "{:,.0f}"),
    "seeds": lambda: plots.bar_chart({"class token": [0.92, 0.95], "mean": [0.97]}, "accuracy", start=0.9),
    "overlay": lambda: plots.attention_overlay(PICTURE, attention(2, 4)),
    "overlay of a query": lambda: plots.attention_overlay(PICTURE, attention(2, 4), query=(0, 3)),
    "overlays": lambda: plots.attention_overlay(
        PICTURE,
        {f"layer {i} of 6, mean of all heads": attention(8, 8) for i in range(6)},
        "attention of the class token",
    ),
    "grid": lambda: plots.attention_grid(attention(6, 6, 64).view(6, 6, 8, 8)),
    "grid with picture": lambda: plots.attention_grid(attention(6, 6, 64).view(6, 6, 8, 8), PICTURE),
    "grid 12 x 12": lambda: plots.attention_grid(attention(12, 12, 196).view(12, 12, 14, 14)),
    "grid 24 x 16": lambda: plots.attention_grid(attention(24, 16, 196).view(24, 16, 14, 14), PICTURE),
    "grid 1 x 1": lambda: plots.attention_grid(attention(1, 1, 10).view(1, 1, 2, 5)),
    "matrix": lambda: plots.attention_matrix(attention(65, 65)),
    "small matrix": lambda: plots.attention_matrix(attention(3, 3), num_prefix_tokens=0),
    "distance": lambda: plots.distance_by_depth(
        {"trained": RANDOM.rand(6, 6), "untrained": RANDOM.rand(6, 6)}, 0.5
    ),
    "entropy": lambda: plots.entropy_by_depth({"trained": RANDOM.rand(12, 12)}),
    "similarity": lambda: plots.positional_similarity_grid(RANDOM.uniform(-1, 1, (8, 8, 8, 8))),
    "similarity 24 x 24": lambda: plots.positional_similarity_grid(RANDOM.uniform(-1, 1, (24, 24, 24, 24))),
    "wide similarity": lambda: plots.positional_similarity_grid(RANDOM.uniform(-1, 1, (2, 4, 2, 4))),
    "filters": lambda: positional_embeddings.filter_panels({"a model": RANDOM.rand(28, 4, 4, 3)}),
    "grey filters": lambda: positional_embeddings.filter_panels({"a model": RANDOM.rand(10, 7, 7, 1)}),
}
# The diagrams, and what one lesson alone draws.
SQUARE, NUMBERS = PICTURE[:, :, :32], np.linspace(-1, 1, 64)
COSTS = {"patch embedding": 3, "attention: T×T products": 90, "MLP": 0}
FIGURES |= {f"map, {here}": functools.partial(diagrams.vit_map, here) for here in (None, *diagrams.PARTS)}
FIGURES |= {
    "attention": diagrams.attention_steps,
    "block": diagrams.block_wiring,
    "cut": lambda: patch_embedding.cut_pictures(
        {"one": [[SQUARE]], "four": [[SQUARE[:, :16, :16]] * 2] * 2}, numbered=True
    ),
    "patch": lambda: patch_embedding.patch_as_row(SQUARE[:, :4, :4]),
    "numbered": lambda: class_token.numbered_patches({"a star": SQUARE, "a third star": SQUARE}, 8),
    "ribbon": lambda: attention_figures.ribbon(192, 6),
    "strips": lambda: positional_encoding.strips(
        {"position": (NUMBERS, "position"), "token": (NUMBERS, "neutral")}, ["+", "="]
    ),
    "table": lambda: positional_encoding.encoding_table(NUMBERS.reshape(8, 8)),
    "tiles": lambda: positional_encoding.similarity_tiles(
        {f"2-D, at the edge {i}": (RANDOM.rand(8, 8, 8, 8), (3, 7)) for i in range(4)}
    ),
    "costs": lambda: vit.cost_by_part({"86.6 million parameters": COSTS, "17.6 billion steps": COSTS}),
}


def drawn(fig):
    canvas = FigureCanvasAgg(fig)
    fig.set_dpi(100)
    canvas.draw()
    return canvas.get_renderer()


def shown_tick_labels(axis):
    low, high = sorted(axis.get_view_interval())
    pairs = zip(axis.get_ticklabels(), axis.get_ticklocs())
    return [label for label, place in pairs if label.get_text() and low <= place <= high]


def shown_texts(fig):
    """All that can be read in a figure. Matplotlib keeps many more tick labels than it shows."""
    for ax in fig.axes:
        ticks = {label for axis in (ax.xaxis, ax.yaxis) for label in axis.get_ticklabels(which="both")}
        axis_texts = {text for axis in (ax.xaxis, ax.yaxis) for text in axis.findobj(Text)}
        if ax.axison:
            for axis in (ax.xaxis, ax.yaxis):
                yield from shown_tick_labels(axis)
                yield axis.label
        yield from (text for text in ax.findobj(Text) if text not in ticks | axis_texts)
    yield from fig.texts
    yield from (text for legend in fig.legends for text in legend.get_texts())


@pytest.mark.parametrize("name", FIGURES)
def test_everything_can_be_read(name):
    """At least 11 points, at most 9 inches, white; nothing cut off or at the edge; a name on every axis and
    scale; no exponent in small type; no tick labels, titles or words inside on top of each other."""
    fig = FIGURES[name]()
    renderer = drawn(fig)
    assert fig.get_figwidth() <= 9.001 and fig.get_figheight() <= 9
    assert fig.get_facecolor() == (1, 1, 1, 1)
    texts = [text for text in shown_texts(fig) if text.get_text().strip()]
    for text in texts:
        assert text.get_fontsize() >= 11 and "^" not in text.get_text(), text
        box = text.get_window_extent(renderer)
        assert fig.bbox.x0 + 3 < box.x0 and box.x1 < fig.bbox.x1 - 3, text
        assert fig.bbox.y0 + 3 < box.y0 and box.y1 < fig.bbox.y1 - 3, text
    groups = [[ax.title for ax in fig.axes if ax.get_title()]]
    for ax in fig.axes:
        if ax.get_label() == "<colorbar>":
            assert ax.get_ylabel() or ax.get_xlabel()
        elif ax.axison:
            for axis, label in ((ax.xaxis, ax.get_xlabel()), (ax.yaxis, ax.get_ylabel())):
                words = [text.get_text() for text in shown_tick_labels(axis)]
                assert label or all(word[0].isalpha() for word in words)  # names on the ticks need no other
        if ax.axison:
            groups += [shown_tick_labels(ax.xaxis), shown_tick_labels(ax.yaxis)]
        groups += [[text for text in ax.texts if text.get_text()]]
    for group in groups:
        boxes = [text.get_window_extent(renderer) for text in group if not text.get_rotation()]
        for one, two in itertools.combinations(boxes, 2):
            assert not one.overlaps(two)


def test_the_readers_settings_stay_as_they_were_and_do_not_matter():
    """Catches settings changed at import or left behind, and a dark notebook theme turning figures dark."""
    with matplotlib.style.context("dark_background"):
        before = dict(matplotlib.rcParams)
        importlib.reload(plots)
        fig = FIGURES["curves"]()
        assert dict(matplotlib.rcParams) == before
        buffer = io.BytesIO()
        fig.savefig(buffer, facecolor=fig.get_facecolor())
    assert np.asarray(Image.open(buffer).convert("L"))[0].min() == 255
    assert fig.axes[0].xaxis.label.get_color() == "black"
    assert fig.axes[0].get_legend().get_texts()[0].get_color() == "black"


def test_one_colour_one_meaning():
    assert plots.COLORS == {
        "class_token": "#D55E00",
        "patch": "#56B4E9",
        "position": "#009E73",
        "query": "#0072B2",
        "key": "#E69F00",
        "value": "#CC79A7",
        "neutral": "#666666",
    }


# --- show and describe --------------------------------------------------------------------------------------


def test_show_gives_a_png_with_alternative_text_and_numbers(monkeypatch):
    calls = []
    monkeypatch.setattr(plots, "display", lambda *args, **kwargs: calls.append((*args, kwargs)))
    assert plots.show(FIGURES["grid"](), alt="Six by six maps.") is None
    ((data, options),) = calls
    assert options["metadata"]["image/png"]["alt"] == "Six by six maps."
    picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert data["text/plain"].startswith(f"Figure {picture.width}x{picture.height}: Six by six maps.\n")
    assert "head | layer: image 53x53 0.00" in data["text/plain"]
    for name in ("overlay", "pictures", "filters"):  # sizes that are no whole number of pixels
        plots.show(FIGURES[name](), alt=name)
        picture = Image.open(io.BytesIO(base64.b64decode(calls[-1][0]["image/png"])))
        assert f"Figure {picture.width}x{picture.height}: {name}" in calls[-1][0]["text/plain"]
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()  # a notebook would show it a second time


def text_of(array):
    fig = plots.Figure()
    fig.subplots().imshow(array)
    return plots.describe(fig)


def test_float_noise_does_not_change_the_description():
    """Catches three significant digits of a mean near zero, and decimals that jump at powers of ten."""
    image = RANDOM.randn(8, 8)
    image -= image.mean()
    for noise in 1e-7 * RANDOM.randn(20, 8, 8):
        assert text_of(image + noise) == text_of(image)
    assert (
        text_of(np.full((2, 2), 1 - 1e-7)) == text_of(np.full((2, 2), 1 + 1e-7)) == text_of(np.ones((2, 2)))
    )
    straddling = np.tile([0.1235 - 1e-8, 0.1235 + 1e-8], (2, 2))  # 0.123 and 0.124 when rounded
    assert ".." not in text_of(straddling)
    assert text_of(1e-8 * image) == text_of(np.zeros((8, 8))) == "  0 : image 8x8 all 0.00000"


def test_changed_data_change_the_description():
    """Catches a description that only knows range and mean: flips and swaps keep those."""
    maps = RANDOM.rand(2, 3, 4, 4) / 17
    swapped = maps[:, [1, 0, 2]]
    assert (
        len({plots.describe(plots.attention_grid(m)) for m in (maps, swapped, maps[..., ::-1], 1.01 * maps)})
        == 4
    )
    pictures = [PICTURE, PICTURE[:, ::-1], PICTURE[::-1], PICTURE // 2]
    assert len({plots.describe(plots.picture_grid([p])) for p in pictures}) == 4
    bars = [(PROBABILITIES[0], CLASSES), (PROBABILITIES[1], CLASSES), (PROBABILITIES[0], CLASSES[::-1])]
    assert len({plots.describe(plots.class_bars(*b)) for b in bars}) == 3
    heads = RANDOM.rand(6, 4)
    assert (
        len({plots.describe(plots.distance_by_depth({"a": h})) for h in (heads, heads[::-1], heads + 0.01)})
        == 3
    )
    lines = [{"t": [1, 2, 3], "y": y} for y in ([3, 2, 1], [1, 2, 3], [3, 2, 0.9])]
    assert len({plots.describe(plots.curves(line, "t", {"y": ["y"]})) for line in lines}) == 3


def test_description_names_what_is_drawn():
    text = plots.describe(plots.distance_by_depth({"a": RANDOM.rand(6, 4)}, uniform=0.2))
    assert "layer | mean attention distance (pixels)" in text and "'spread evenly'" in text
    assert "'train loss' x 0.0..14.8" in plots.describe(FIGURES["curves"]())
    text = plots.describe(plots.attention_overlay(PICTURE, FIXED))
    assert "0 picture: picture 32x64 r 0.0..255.0" in text and "attention: scale 0.00" in text
    assert f"..{np.max(FIXED):.3f} mean" in text.splitlines()[-1]  # lies on its side: the numbers are its x
    assert "deer" in plots.describe(FIGURES["confusion"]())
    assert plots.describe(plots.picture_grid(PICTURES[:1])).count("picture 32x32") == 1


# --- pictures and predictions -------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_may_have_their_channels_first_or_last(channels):
    """Catches height and width swapped, and a picture drawn in another's place."""
    first = RANDOM.randint(0, 256, (7, channels, 5, 9), dtype=np.uint8)
    for images in (first, torch.tensor(first), np.moveaxis(first, 1, -1), list(first)):
        fig = plots.picture_grid(images, [str(i) for i in range(7)], columns=3)
        assert [ax.get_title() for ax in fig.axes] == [*"0123456", "", ""]
        for ax, image in zip(fig.axes, first):
            np.testing.assert_array_equal(
                ax.images[0].get_array(), np.moveaxis(image, 0, -1).repeat(3 // channels, -1)
            )


def test_pictures_of_different_sizes():
    fig = plots.picture_grid([PICTURE, PICTURES[0]], ["wide", "square"])
    assert [ax.images[0].get_array().shape for ax in fig.axes] == [(32, 64, 3), (32, 32, 3)]


def test_what_is_not_a_picture_is_refused():
    for wrong in (PICTURES / 255, PICTURES[0], PICTURES[:, :2], torch.zeros(2, 4, 4, 4, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="Expected a uint8 picture"):
            plots.picture_grid(wrong)


def test_no_pictures_are_refused():
    with pytest.raises(ValueError, match="There are no pictures to show."):
        plots.picture_grid([])
    with pytest.raises(ValueError, match="There are no pictures to show."):
        plots.predictions(PICTURES[:0], [], torch.zeros(0, 2), ["cat", "dog"])


def test_predictions_say_what_is_right():
    probabilities = torch.tensor([[0.1, 0.9, 0], [0.2, 0.3, 0.5]])
    fig = plots.predictions(PICTURES[:2], torch.tensor([1, 0]), probabilities, ["cat", "dog", "ship"])
    assert [ax.get_title() for ax in fig.axes] == ["✓ dog 90%", "✗ ship 50%\ntrue: cat"]
    assert [ax.title.get_fontweight() for ax in fig.axes] == ["normal", "bold"]


def test_class_bars_are_the_five_likeliest():
    (ax,) = plots.class_bars(torch.tensor([0.05, 0.4, 0.02, 0.3, 0.2, 0.03]), list("abcdef"), true=3).axes
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx([0.4, 0.3, 0.2, 0.05, 0.03])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "d (true)", "e", "a", "f"]
    assert ax.yaxis_inverted() and [text.get_text() for text in ax.texts][:2] == ["40.0%", "30.0%"]
    assert len(plots.class_bars([0.3, 0.7], ["cat", "dog"]).axes[0].patches) == 2  # fewer than five


def test_confusion_matrix_writes_every_count_where_it_belongs():
    """Catches rows and columns swapped, and colours by count, where a large class outshines the others."""
    counts = np.array([[8, 2, 0], [1, 0, 1], [0, 0, 0]])
    ax, _ = plots.confusion_matrix(counts, ["cat", "dog", "ship"]).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted class", "true class")
    assert {(text.get_position()[::-1], text.get_text()) for text in ax.texts} == {
        (index, str(count)) for index, count in np.ndenumerate(counts)
    }
    np.testing.assert_allclose(ax.images[0].get_array(), [[0.8, 0.2, 0], [0.5, 0, 0.5], [0, 0, 0]])
    assert ax.images[0].get_clim() == (0, 1)
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["cat", "dog", "ship"]
    colors = {text.get_text(): text.get_color() for text in ax.texts}
    assert colors["8"] == "black" and colors["0"] == "white"  # on yellow, on dark blue


# --- training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_rows", [True, False])
def test_curves_skip_what_was_not_measured(as_rows):
    history = {
        "step": [10, 20, 30],
        "train_loss": [3, 2, 1],
        "validation_loss": [None, 2.5, np.nan],
        "acc": [0, 0, 1],
    }
    if as_rows:
        history = [dict(zip(history, values)) for values in zip(*history.values())]
    loss, accuracy = plots.curves(
        history, "step", {"loss": ["train_loss", "validation_loss"], "accuracy": ["acc"]}
    ).axes
    assert [line.get_xydata().tolist() for line in loss.lines] == [[[10, 3], [20, 2], [30, 1]], [[20, 2.5]]]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["train loss", "validation loss"]
    assert [ax.get_ylabel() for ax in (loss, accuracy)] == [
        "loss",
        "accuracy",
    ] and loss.get_xlabel() == "step"


def test_five_curves_can_be_told_apart_and_no_legend_hides_them():
    """Catches two lines of one look, marks left out of long curves, a legend on the curves."""
    names = list("abcde")
    (ax,) = plots.curves({"t": range(60), **{n: range(60) for n in names}}, "t", {"y": names}).axes
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in ax.lines}
    assert len(looks) == 5 and all(line.get_marker() and line.get_markevery() == 3 for line in ax.lines)
    drawn(ax.figure)
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1


def test_live_curves_draw_at_once_then_rarely_and_always_the_end(monkeypatch):
    """Catches a picture for every row, a second widget, and a last row that is left out as too soon."""
    shown, history, pictures = [], [], []
    monkeypatch.setattr(plots, "display", lambda data, raw: shown.append(data))
    live = plots.LiveCurves()
    for seconds, accuracy in ((100, None), (101, None), (103, None), (104, 0.5)):
        row = {"step": seconds, "train_loss": 1 / seconds}
        history.append(row | {"validation_loss": accuracy, "validation_accuracy": accuracy})
        monkeypatch.setattr(plots.time, "monotonic", lambda seconds=seconds: seconds)
        live(history)
        pictures.append(live.widget.value)
    assert len(shown) == 1 and "application/vnd.jupyter.widget-view+json" in shown[0]
    first, second, third, last = pictures
    assert first == second and len({second, third, last}) == 3
    assert Image.open(io.BytesIO(last)).format == "PNG"


def test_learning_rate_schedule_counts_steps_from_1():
    (ax,) = plots.learning_rate_schedule([0.1, 0.2, 0.15]).axes
    assert ax.lines[0].get_xydata().tolist() == [[1, 0.1], [2, 0.2], [3, 0.15]]
    assert [text.get_text() for text in ax.texts] == ["0.2 at step 2"]


# --- attention ----------------------------------------------------------------------------------------------


def test_number_tables_write_each_number_on_its_colour():
    """A number in another cell (rows and columns swapped), or a cell in another's colour."""
    keys = np.array([["patch", "key", "patch"], ["patch", "patch", "patch"]])
    fig = plots.number_tables([[[1, 2, 3], [4, 5, 6]], [[7]]], colors=[keys, "patch"])
    first, second = fig.axes
    placed = {tuple(map(round, text.get_position())): text.get_text() for text in first.texts}
    assert placed == {(0, 0): "1", (1, 0): "2", (2, 0): "3", (0, 1): "4", (1, 1): "5", (2, 1): "6"}
    odd = [patch for patch in first.patches if patch.get_facecolor()[:3] == to_rgb(plots.COLORS["key"])]
    assert [patch.get_xy() for patch in odd] == [(0.5, -0.5)] and len(first.patches) == 6
    cells = [ax.get_position().width * fig.get_figwidth() / n for ax, n in ((first, 3), (second, 1))]
    assert cells[0] == pytest.approx(cells[1])  # or equal numbers would look unequal


def test_number_tables_share_a_scale_from_0_or_around_0():
    """A scale of its own for each, where equal numbers look unequal and 0 has a colour of something else."""
    tables = [[[1.0, 3.0]], [[-1.0, 2.0]], [[4.0, 9.0]], [[0.0, 5.0]]]
    fig = plots.number_tables(tables, colors=["viridis", "signed", None, "viridis"])
    assert [ax.images[0].get_clim() for ax in fig.axes[:2]] == [(0, 5), (-2, 2)]
    assert fig.axes[3].images[0].get_clim() == (0, 5)
    assert plots.number_tables([[[0.0]]], colors=["viridis"]).axes[0].images[0].get_clim() == (0, 1)


def test_number_tables_say_which_axis_asks():
    """Query and key swapped."""
    first, second = plots.number_tables([FIXED, FIXED], axes=[("query", "key"), None]).axes
    assert (first.get_ylabel(), first.get_xlabel()) == ("query", "key")
    assert first.spines["left"].get_edgecolor()[:3] == to_rgb(plots.COLORS["query"])
    assert first.spines["top"].get_edgecolor()[:3] == to_rgb(plots.COLORS["key"])
    assert (second.get_ylabel(), second.get_xlabel()) == ("", "")


def test_token_strip_is_described_by_its_words():
    """Tokens in another order that no comparison of outputs would see."""
    strip = plots.token_strip({"with class token": [("CLS", "class_token"), ("p1", "patch")]})
    assert "with class token; CLS, p1" in plots.describe(strip)


def test_line_chart_draws_its_numbers_and_spread():
    """Swapped axes, or a band of another width than the spread."""
    (ax,) = plots.line_chart({"a": ([1, 2, 4], [10, 30, 20], [1, 2, 3])}, "x", "y").axes
    assert ax.lines[0].get_xydata().tolist() == [[1, 10], [2, 30], [4, 20]]
    band = ax.collections[0].get_paths()[0].vertices
    assert {(1, 9), (1, 11), (4, 17), (4, 23)} <= set(map(tuple, band.tolist()))


@pytest.mark.parametrize("chart", ["class bars", "bars", "seeds"])
def test_the_axis_of_bars_ends_where_there_is_something_to_measure(chart):
    """An axis that goes on to 114 %, under the room for the numbers beside the bars."""
    (ax,) = FIGURES[chart]().axes
    drawn(ax.figure)
    low, high = ax.spines["bottom"].get_bounds()
    assert low == ax.get_xlim()[0] and high < ax.get_xlim()[1] and max(ax.get_xticks()) <= high
    if chart == "class bars":
        assert (low, high) == (0, 1)
    assert all("%" in tick.get_text() for tick in ax.get_xticklabels()) == (chart != "bars")


def test_bar_chart_of_seeds():
    """A spread of another formula; bars that start elsewhere than at 0; an order turned round."""
    (ax,) = plots.bar_chart({"a": [0.5, 0.7], "b": [0.9]}, "accuracy").axes
    assert [text.get_text() for text in ax.texts] == ["60.0% ± 14.1%", "90.0%"]
    assert ax.get_xlim()[0] == 0 and ax.get_ylim()[0] > ax.get_ylim()[1]
    bars = plots.bar_chart({"a": [0.5, 0.7], "b": [0.9]}, "accuracy", start=0.4).axes[0].containers[0]
    assert all(bar.get_facecolor()[3] == 0 for bar in bars)


def test_a_bright_patch_colours_exactly_its_own_square():
    """The top-right patch of a 32x64 picture. Catches smoothing, an edge off by a pixel, swapped sides."""
    weights = torch.zeros(2, 4)
    weights[0, 3] = 0.3
    dark, lit = plots.overlay(PICTURE, 0 * weights), plots.overlay(PICTURE, weights)
    changed = (dark != lit).any(axis=-1)
    assert dark.shape == (32, 64, 3) and dark.dtype == np.uint8
    expected = np.zeros((32, 64), dtype=bool)
    expected[:16, 48:] = True
    np.testing.assert_array_equal(changed, expected)


def test_the_patch_that_reads_is_framed():
    """Row and column swapped, or a frame that does not lie on its patch: 2 rows of 4 on 32x64 pixels."""
    fig = plots.attention_overlay(PICTURE, FIXED, query=(0, 3))
    for ax in fig.axes[:2]:
        assert {patch.get_bbox().bounds for patch in ax.patches} == {(47.5, -0.5, 16, 16)}
        assert ax.patches[-1].get_edgecolor()[:3] == to_rgb(plots.COLORS["query"])
    assert not any(ax.patches for ax in plots.attention_overlay(PICTURE, FIXED).axes[:2])


def test_overlay_lies_on_a_photograph_larger_than_the_models_input():
    """Full resolution, where the grid divides the picture and where it does not."""
    weights = RANDOM.rand(8, 8)
    np.testing.assert_array_equal(
        plots.spread_over_pixels(weights, 304, 448), np.kron(weights, np.ones((38, 56)))
    )
    ours = plots.spread_over_pixels(weights, 451, 300)
    for row, column in itertools.product(range(451), range(300)):
        assert ours[row, column] == weights[int((row + 0.5) / (451 / 8)), int((column + 0.5) / (300 / 8))]
    photo = RANDOM.randint(0, 256, (451, 300, 3), dtype=np.uint8)
    assert plots.overlay(photo, weights).shape == photo.shape


def test_overlay_shows_picture_and_weight():
    """White and black pixels under the same weight differ; equal pixels under different weights differ;
    weights past the top do not wrap around."""
    photo = np.zeros((1, 2, 4), dtype=np.uint8)
    photo[0, 0] = 255
    (white, black) = plots.overlay(photo, np.array([[0, 0.5, 1, 2]]), top=1)
    assert (white[:, :].astype(int) - black[:, :] == 102).all()  # 0.4 of 255
    assert len({tuple(pixel) for pixel in black[:3].tolist()}) == 3 and (black[2] == black[3]).all()
    viridis = 255 * np.array(matplotlib.colormaps["viridis"](1.0)[:3])
    np.testing.assert_allclose(black[2], 0.6 * viridis, atol=1)


def test_attention_overlay_shares_one_scale_from_zero():
    """Catches each map scaled on its own, as most tools do."""
    weak, strong = np.full((2, 4), 0.1), np.full((2, 4), 0.5)
    fig = plots.attention_overlay(
        PICTURE, {"weak": weak, "strong": strong}, label="attention of the class token"
    )
    picture, *maps, scale = fig.axes
    assert [ax.get_title() for ax in (picture, *maps)] == ["picture", "weak", "strong"]
    np.testing.assert_array_equal(picture.images[0].get_array(), np.moveaxis(PICTURE, 0, -1))
    for ax, weights in zip(maps, (weak, strong)):
        np.testing.assert_array_equal(ax.images[0].get_array(), plots.overlay(PICTURE, weights, top=0.5))
    assert scale.get_xlim() == (0, 0.5) and scale.get_xlabel() == "attention of the class token"
    assert len(plots.attention_overlay(PICTURE, weak).axes) == 3  # one map needs no dict


def test_attention_grid_puts_every_map_in_its_place_on_one_scale():
    """Catches layers and heads swapped, a scale that does not begin at 0, maps scaled one by one."""
    maps = RANDOM.rand(2, 3, 4, 5) / 21
    ax, scale = plots.attention_grid(maps).axes
    mosaic = ax.images[0].get_array()
    assert mosaic.shape == (2 * 4 + 1, 3 * 5 + 2)
    for layer, head in itertools.product(range(2), range(3)):
        rows, columns = slice(5 * layer, 5 * layer + 4), slice(6 * head, 6 * head + 5)
        np.testing.assert_array_equal(mosaic[rows, columns], maps[layer, head])
        assert ax.get_xticks()[head] == 6 * head + 2 and ax.get_yticks()[layer] == 5 * layer + 1.5
    assert mosaic.mask[4].all() and mosaic.mask[:, 5].all() and mosaic.mask.sum() == mosaic.size - maps.size
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
    assert ax.images[0].get_clim() == (0, np.quantile(maps, 0.99))
    assert scale.lines[0].get_ydata() == pytest.approx([1 / 21, 1 / 21]) and "1/21" in scale.get_ylabel()


def test_attention_grid_of_a_single_bright_patch():
    """The scale would end at 0, where 99 % of the weights lie."""
    maps = np.zeros((4, 4, 8, 8))
    maps[3, 3, 0, 7] = 0.5
    assert plots.attention_grid(maps).axes[0].images[0].get_clim() == (0, 0.5)
    fig = plots.attention_grid(maps, image=PICTURE, num_prefix_tokens=0)
    assert "1/64" in fig.axes[1].get_ylabel() and fig.axes[2].get_title() == "picture"
    assert plots.attention_grid(maps, top=0.2).axes[0].images[0].get_clim() == (0, 0.2)


def test_cells_of_a_grid_are_whole_pixels():
    """Catches cells of unequal size on the screen."""
    for shape in ((6, 6, 8, 8), (12, 12, 14, 14), (2, 3, 2, 5)):
        fig = plots.attention_grid(RANDOM.rand(*shape))
        drawn(fig)
        ax = fig.axes[0]
        down, across = ax.images[0].get_array().shape
        width, height = ax.get_window_extent().size
        assert width / across == pytest.approx(round(width / across)) == pytest.approx(height / down)


def test_attention_matrix_says_which_axis_reads():
    weights = RANDOM.dirichlet(np.ones(4), 4)
    ax, scale = plots.attention_matrix(weights).axes
    np.testing.assert_array_equal(ax.images[0].get_array(), weights)
    assert ax.get_xlabel().startswith("key") and ax.get_ylabel().startswith("query")
    assert ax.spines["bottom"].get_edgecolor() == matplotlib.colors.to_rgba(plots.COLORS["key"])
    assert ax.spines["left"].get_edgecolor() == matplotlib.colors.to_rgba(plots.COLORS["query"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["class", "1", "2", "3"]
    assert ax.get_yticklabels()[0].get_color() == plots.COLORS["class_token"]
    assert ax.images[0].get_clim()[0] == 0 and len(ax.texts) == 16
    assert {text.get_position()[::-1]: text.get_text() for text in ax.texts}[2, 1] == f"{weights[2, 1]:.2f}"
    none = plots.attention_matrix(weights, num_prefix_tokens=0).axes[0]
    assert [label.get_text() for label in none.get_xticklabels()] == ["0", "1", "2", "3"]
    assert not plots.attention_matrix(RANDOM.rand(65, 65)).axes[0].texts  # too many numbers to read


@pytest.mark.parametrize("function", [plots.distance_by_depth, plots.entropy_by_depth])
def test_heads_by_depth_marks_every_head(function):
    """Catches layers and heads swapped: 3 layers of 2 heads."""
    values = np.array([[1, 2], [3, 4], [5, 6.0]])
    (ax,) = function({"trained": values}, uniform=7).axes
    mean, marks, uniform = ax.lines
    assert marks.get_xydata().tolist() == [[1, 1], [1, 2], [2, 3], [2, 4], [3, 5], [3, 6]]
    assert mean.get_xydata().tolist() == [[1, 1.5], [2, 3.5], [3, 5.5]] and uniform.get_ydata() == [7, 7]
    low, high = ax.get_ylim()
    assert low < 1 and high > 7 and ax.get_xlabel() == "layer"
    (ax,) = function({"trained": values + 10}).axes  # distances are compared with each other, not with 0
    low = ax.get_ylim()[0]
    assert 9 < low < 11 if function.__name__ == "distance_by_depth" else low == 0
    assert ("pixels" in ax.get_ylabel()) != ("bits" in ax.get_ylabel())
    (ax,) = function({"trained": values, "untrained": values}).axes
    _, one, _, two = (line.get_xdata() for line in ax.lines)
    assert (one != two).all() and len(ax.figure.legends[0].get_texts()) == 2


# --- what the weights have learned --------------------------------------------------------------------------


def test_positional_similarity_grid_puts_every_tile_in_its_place():
    similarity = RANDOM.uniform(-1, 1, (2, 3, 2, 3))
    ax, scale = plots.positional_similarity_grid(similarity).axes
    mosaic = ax.images[0].get_array()
    for row, column in itertools.product(range(2), range(3)):
        tile = mosaic[3 * row : 3 * row + 2, 4 * column : 4 * column + 3]
        np.testing.assert_array_equal(tile, similarity[row, column])
    assert ax.images[0].get_clim() == (-1, 1)  # signed values: a diverging map, centred on 0
    assert ax.images[0].get_cmap().name == "RdBu_r"
    assert scale.get_ylabel() == "cosine similarity"


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_come_in_reading_order(channels):
    filters = RANDOM.rand(5, 2, 4, channels)
    (ax,) = positional_embeddings.filter_panels({"a model": torch.tensor(filters)}, columns=3).axes
    mosaic = ax.images[0].get_array()
    assert mosaic.shape == (5, 14, 3)
    for number, picture in enumerate(filters):
        row, column = divmod(number, 3)
        tile = mosaic[3 * row : 3 * row + 2, 5 * column : 5 * column + 4]
        np.testing.assert_allclose(tile, picture.repeat(3 // channels, axis=-1))
    assert (mosaic[3:, 10:] == 1).all()  # the sixth place stays white
