"""The attention explorer as Python sees it: what is sent, what is stored, what is refused."""

import base64
import dataclasses
import io
import re

import build_html
import build_notebooks
import nbformat.v4
import numpy as np
import PIL.Image
import pytest
import torch
from ipywidgets import IntSlider
from ipywidgets.embed import dependency_state
from skimage.data import chelsea

import vitlib
from vitlib import data
from vitlib.checkpoint import Checkpoint
from vitlib.explorer import Explorer, as_data_url, encode, explore


def decode(sent):
    """As explorer.js does it."""
    squares = sent.astype(np.float64) ** 2
    return squares / squares.sum(axis=-1, keepdims=True)


def small(**options):
    """A model that was not trained, on pictures that are not square."""
    options = {"image_size": (8, 12), "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3} | options
    torch.manual_seed(0)
    model = vitlib.VisionTransformer(num_classes=2, **options).eval()
    channels = model.config["in_channels"]
    return Checkpoint(model, ["left", "right"], (0.5,) * channels, (0.5,) * channels, {})


def pictures(number, channels=3):
    generator = torch.Generator().manual_seed(number)
    return torch.randint(256, (number, channels, 8, 12), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def shapes_explorer():
    return explore(vitlib.load("shapes"), data.shapes("test", 4).images)


def test_trained_attention_survives_one_byte_a_weight():
    """A linear byte, a missing square root, a row scaled by another row's largest weight."""
    images = data.fit_picture(chelsea(), 32)[None]
    attention = torch.stack(vitlib.load("cifar10").attention(images), dim=1).numpy()  # (1, 6, 6, 65, 65)
    sent = encode(attention)
    assert (sent.dtype, sent.shape) == (np.uint8, attention.shape)
    decoded = decode(sent)
    assert np.median(np.abs(decoded - attention) / attention) < 0.01
    assert np.abs(decoded - attention).max() < 0.002
    assert (decoded.argmax(axis=-1) == attention.argmax(axis=-1)).mean() > 0.98
    linear = np.round(255 * attention) / 255
    assert (linear == 0).mean() > 0.1 > 100 * (sent == 0).mean()


def test_rows_of_any_kind_come_back():
    """Rows that are even, that read one token only, and that are float32 a little off 1."""
    even, one = np.full((5, 5), 0.2), np.eye(5)
    assert np.allclose(decode(encode(even)), even)
    assert np.allclose(decode(encode(one)), one)
    assert np.allclose(decode(encode((1.0001 * even).astype(np.float32))), even)


@pytest.mark.parametrize("number, options", [
    (1, {}), (7, {}), (2, {"in_channels": 1}), (2, {"pool": "mean"}), (1, {"patch_size": (2, 4)}),
])  # fmt: skip
def test_what_is_sent_is_the_models(number, options):
    """Height and width swapped, layers and heads swapped, pictures mixed up."""
    checkpoint = small(**options)
    images = pictures(number, checkpoint.model.config["in_channels"])
    explorer = explore(checkpoint, images)
    about = explorer.about
    prefix = checkpoint.model.num_prefix_tokens
    rows, columns = about["grid"]
    tokens = prefix + rows * columns
    assert (rows, columns) == checkpoint.model.grid
    assert (about["layers"], about["heads"], about["prefix"]) == (2, 3, prefix)
    assert tuple(about["size"]) == (8, 12)
    sent = np.frombuffer(explorer.weights, np.uint8).reshape(number, 2, 3, tokens, tokens)
    wanted = torch.stack(checkpoint.attention(images), dim=1).numpy()
    assert np.abs(decode(sent) - wanted).max() < 0.004
    for picture, image, wanted in zip(about["pictures"], images, checkpoint.predict(images)):
        shown = PIL.Image.open(io.BytesIO(base64.b64decode(picture["source"].partition(",")[2])))
        assert shown.size == (12, 8)
        assert (np.asarray(shown).transpose(2, 0, 1) == np.broadcast_to(image, (3, 8, 12))).all()
        (label, share), _ = picture["prediction"]
        assert label == checkpoint.classes[wanted.argmax()]
        assert share == pytest.approx(wanted.max().item(), abs=1e-5)


def test_the_scale_does_not_depend_on_what_is_chosen(shapes_explorer):
    """One scale for all: most weights below its end, and the end above 1/T."""
    top = shapes_explorer.about["top"]
    assert 0.99 < (shapes_explorer.attention <= top).mean() < 1
    assert top > 1 / 65


def test_four_pictures_stay_below_a_megabyte():
    """A weight in more than a byte; large pictures that are not compressed."""
    photo = data.fit_picture(chelsea(), 288)
    checkpoint = small(image_size=32, depth=6, num_heads=6)
    explorer = explore(checkpoint, data.shapes("test", 4).images, pictures=[photo] * 4)
    assert len(explorer.weights) == 4 * 6 * 6 * 65 * 65
    pictures = sum(len(picture["source"]) for picture in explorer.about["pictures"])
    assert 4 / 3 * len(explorer.weights) + pictures < 1_000_000


def test_the_script_is_small_and_stands_alone():
    """A library or a font that is loaded from elsewhere; ids and globals, which two explorers would share."""
    script, style = Explorer._esm, Explorer._css
    markup = explore(small(), pictures(1)).about["markup"]
    assert len(str(script).encode()) <= 20_000
    for text in (str(script), str(style), markup):
        assert re.findall(r"http|\bimport\b|@font-face|url\(|</script|\bid=", text) == []
    assert "window." not in str(script) and "globalThis" not in str(script)


def test_a_stored_notebook_keeps_a_picture_and_numbers(shapes_explorer):
    """An untrusted notebook runs no script: HTML or JavaScript in the bundle would be lost."""
    bundle, metadata = shapes_explorer._repr_mimebundle_()
    view = "application/vnd.jupyter.widget-view+json"
    assert set(bundle) == {view, "image/png", "text/plain"}
    assert PIL.Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).format == "PNG"
    assert "what its class token reads in every layer" in metadata["image/png"]["alt"]
    attention = shapes_explorer.attention
    text = bundle["text/plain"]
    assert text.startswith("Attention explorer: 4 layers, 4 heads, 65 tokens, 8x8 of them patches")
    best = attention[2, -1, 0, 0].argmax()
    row, column = divmod(best - 1, 8)
    value = attention[2, -1, 0, 0, best]
    assert f"class token reads patch ({row + 1},{column + 1}): {value:.3f}" in text.splitlines()[3]
    assert f"= {65 * value:.1f} x uniform" in text.splitlines()[3]


def test_without_a_class_token():
    explorer = explore(small(pool="mean"), pictures(1))
    assert "head 1: patch (1,1) reads patch (" in repr(explorer)
    assert "what its patch (1,1) reads" in explorer._repr_mimebundle_()[1]["image/png"]["alt"]


def test_titles_and_larger_pictures_are_shown():
    explorer = explore(small(), pictures(2), ["a </script>", "b"], pictures(2).repeat_interleave(20, -1))
    assert [picture["title"] for picture in explorer.about["pictures"]] == ["a </script>", "b"]
    assert tuple(explorer.about["size"]) == (8, 240)
    assert explorer.about["pictures"][0]["source"].startswith("data:image/jpeg;base64,")
    assert as_data_url(pictures(1)[0]).startswith("data:image/png;base64,")


def test_titles_may_be_an_array_and_pictures_may_have_their_channels_last():
    """An array has no truth value, its numbers no JSON; (H, W, C) taken for (C, H, W) is drawn stretched."""
    explorer = explore(small(), pictures(2), np.array([3, 5]), pictures(2).movedim(1, -1))
    assert [picture["title"] for picture in explorer.about["pictures"]] == ["3", "5"]
    assert tuple(explorer.about["size"]) == (8, 12)


@pytest.mark.parametrize("arguments, words", [
    (lambda: (small().model, pictures(1)), "needs a checkpoint.*VisionTransformer.*vitlib.load"),
    (lambda: (small(), pictures(1) / 255), "float32 .1, 3, 8, 12.*before normalize"),
    (lambda: (small(), pictures(1)[0]), r"uint8 \(3, 8, 12\).*image\[None\]"),
    (lambda: (small(), pictures(1)[:0]), r"uint8 \(0, 3, 8, 12\)"),
    (lambda: (small(), list(pictures(2))), "got list.*torch.stack"),
    (lambda: (small(), pictures(2), ["one"]), "2 images need as many titles and pictures, got 1 and 2"),
    (lambda: (small(), pictures(2), None, pictures(3)), "got 2 and 3"),
])  # fmt: skip
def test_mistakes_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        explore(*arguments())


def test_a_model_of_ones_own():
    """The remedy that the error names works, and so does a control with other weights."""
    checkpoint = vitlib.load("shapes")
    untrained = vitlib.VisionTransformer(**checkpoint.model.config).eval()
    explorer = explore(dataclasses.replace(checkpoint, model=untrained), data.shapes("test", 1).images)
    assert explorer.about["top"] < 3 / 65


# --- pages without a kernel -----------------------------------------------------------------------------


def shown(widget):
    data, metadata = widget._repr_mimebundle_(), {}
    if isinstance(data, tuple):
        data, metadata = data
    output = nbformat.v4.new_output("display_data", data=dict(data), metadata=metadata)
    return nbformat.v4.new_code_cell("widget", outputs=[output])


def page(*cells, widgets=()):
    state = dependency_state(widgets, drop_defaults=False) if widgets else {}
    metadata = {"widgets": {build_html.STATE: {"state": state}}}
    return build_html.to_html(nbformat.v4.new_notebook(cells=list(cells), metadata=metadata), "lesson")


def test_a_page_holds_the_script_once_and_the_data_of_each():
    """An explorer without its data; a script twice, whose names then clash; another widget taken for one."""
    one, two, slider = explore(small(), pictures(1)), explore(small(), pictures(2)), IntSlider()
    html = page(shown(one), shown(two), shown(slider), widgets=[one, two, slider])
    assert html.count("export default") == 1
    assert html.count("data-live=") - html.count("[data-live=") == 2
    for explorer in (one, two):
        assert html.count(base64.b64encode(explorer.weights).decode()) == 1
    assert "IntSlider(value=0)" in html


def test_data_cannot_end_their_script():
    one = explore(small(), pictures(1), ["</script><script>alert(1)"])
    html = page(shown(one), widgets=[one])
    assert "</script><script>alert" not in html and "\\u003c/script>\\u003cscript>alert(1)" in html


def test_a_page_asks_nothing_from_elsewhere():
    """nbconvert's own templates load MathJax, require.js and mermaid from the internet."""
    one = explore(small(), pictures(1))
    html = page(nbformat.v4.new_markdown_cell("$a$"), shown(one), widgets=[one])
    elements = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(?!data:)[^>]*>", html)
    assert elements == []
    assert "cdnjs" not in html and "unpkg" not in html and "jsdelivr" not in html


def test_a_picture_keeps_its_alternative_text():
    data, metadata = {"image/png": "AAAA", "text/plain": "numbers"}, {"image/png": {"alt": 'a "cat"'}}
    output = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    html = page(nbformat.v4.new_code_cell("plots.show()", outputs=[output]))
    assert re.search(r"<img alt=['\"]a (\"|&quot;|&#34;)cat(\"|&quot;|&#34;)['\"] src", html)


def test_links_lead_to_the_other_pages():
    text = "[next](04_attention.ipynb) [part](04_attention.ipynb#Scores) [source](https://a.org/04_x.ipynb)"
    html = page(nbformat.v4.new_markdown_cell(text))
    for address in ("04_attention.html", "04_attention.html#Scores", "https://a.org/04_x.ipynb"):
        assert f'href="{address}"' in html


def test_solutions_are_folded():
    html = page(nbformat.v4.new_code_cell("answer = 42", metadata={"tags": ["solution"]}))
    assert re.search(r"<details class=\"solution\"><summary>.*42.*</details>", html, re.DOTALL)


@pytest.mark.parametrize("path", sorted(build_notebooks.SOURCES.glob("*.py")), ids=lambda path: path.stem)
def test_every_formula_of_every_lesson_is_drawn(path):
    """A command that the conversion does not know stays as it is, with its backslash; so does a stray $."""
    renderer = build_html.Renderer(escape=False)
    for cell in build_notebooks.read_source(path).cells:
        if cell.cell_type == "markdown":
            html = build_html.MarkdownWithMath(renderer=renderer).render(cell.source)
            formulas = re.findall(r"<math.*?</math>", html, re.DOTALL)
            assert [formula for formula in formulas if "\\" in formula] == []
            assert "$" not in re.sub(r"<(math|code|pre).*?</\1>", "", html, flags=re.DOTALL), cell.source
