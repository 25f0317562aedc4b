"""The attention explorer in a real browser: the numbers of the tensor, by pointer, keys and touch."""

from pathlib import Path

import build_html
import nbformat.v4
import numpy as np
import pytest
import torch
from ipywidgets.embed import dependency_state

from conftest import same_text
from vitlib import attention_maps
from vitlib.explorer import Explorer

ROOT = Path(__file__).resolve().parents[2]
ROWS, COLUMNS, DEPTH, HEADS = 2, 3, 3, 2  # neither square nor as deep as wide
T = 1 + ROWS * COLUMNS


# --- the same in Python ---------------------------------------------------------------------------------


def made_up(seed, number=2, tokens=T):
    """Attention whose weights in a row are clearly apart: (number, DEPTH, HEADS, tokens, tokens)."""
    generator = torch.Generator().manual_seed(seed)
    ranks = 1 + torch.rand(number, DEPTH, HEADS, tokens, tokens, generator=generator).argsort(dim=-1)
    weights = ranks ** (0.5 + torch.rand(number, DEPTH, HEADS, tokens, 1, generator=generator))
    return weights / weights.sum(dim=-1, keepdim=True)


def explorer(attention, titles=("one", "two"), prefix=1):
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (len(attention), 3, 8, 12), dtype=torch.uint8, generator=generator)
    predictions = [[("cat", 0.75), ("dog", 0.25)], [("dog", 0.5), ("cat", 0.5)]][: len(attention)]
    titles = list(titles)[: len(attention)]
    return Explorer(attention.numpy(), (ROWS, COLUMNS), prefix, list(pictures), titles, predictions)


def name(token, prefix=1):
    if token < prefix:
        return "class token"
    row, column = divmod(token - prefix, COLUMNS)
    return f"patch ({row + 1},{column + 1})"


def number(value):
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def reads(where, matrix, token, partner=None):
    """The readout for a row of an attention matrix."""
    row = matrix[token]
    partner = row.argmax().item() if partner is None else partner
    entropy = -(row * row.log2()).sum().item()
    return (
        f"{where}: {name(token)} reads {'itself' if partner == token else name(partner)}: "
        f"{number(row[partner])} = {T * row[partner]:.1f} × uniform, rank {1 + (row > row[partner]).sum()}; "
        f"class token's share {row[0]:.2f}; entropy {entropy:.1f} bits"
    )


def is_read(where, matrix, token):
    """The readout for a column."""
    column = matrix[:, token]
    partner = column.argmax().item()
    return (
        f"{where}: {name(token)} is read by {'itself' if partner == token else name(partner)}: "
        f"{number(column[partner])} = {T * column[partner]:.1f} × uniform, rank 1; "
        f"class token reads {column[0]:.2f}; all together {column.sum():.1f} × the mean token"
    )


# --- the page -------------------------------------------------------------------------------------------


@pytest.fixture
def open_page(new_page, tmp_path):
    """Open explorers as an exported page, from a file, without a kernel."""

    def open_page(*explorers, width=1280, **options):
        notebook = nbformat.v4.new_notebook()
        for shown in explorers:
            data, metadata = shown._repr_mimebundle_()
            output = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
            notebook.cells.append(nbformat.v4.new_code_cell("explore()", outputs=[output]))
        state = dependency_state(explorers, drop_defaults=False)
        notebook.metadata["widgets"] = {build_html.STATE: {"state": state}}
        (tmp_path / "page.html").write_text(build_html.to_html(notebook, "page"), encoding="utf-8")
        page = new_page(viewport={"width": width, "height": 1400}, **options)
        page.goto((tmp_path / "page.html").as_uri())
        return page

    return open_page


def readout(page, which=0):
    """The readout, when the page has drawn what came before."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.locator(".readout").nth(which).text_content()


def says(page, expected, which=0):
    text = readout(page, which)
    assert same_text(text, expected, rtol=0.03), f"{text!r} is not {expected!r}"


def point(page, token, which=0, click=False):
    """Put the pointer on a token: a patch, or the class token's square."""
    box = page.locator(".square" if token == 0 else ".photo").nth(which).bounding_box()
    row, column = divmod(token - 1, COLUMNS)
    across, down = (0.5, 0.5) if token == 0 else ((column + 0.5) / COLUMNS, (row + 0.5) / ROWS)
    place = box["x"] + across * box["width"], box["y"] + down * box["height"]
    page.mouse.move(*place)
    if click:
        page.mouse.click(*place)


def point_at_cell(page, query, key, click=False):
    box = page.locator(".field").bounding_box()
    place = box["x"] + (key + 0.5) / T * box["width"], box["y"] + (query + 0.5) / T * box["height"]
    page.mouse.move(*place)
    if click:
        page.mouse.click(*place)


def press(page, button, value=None, which=0):
    exactly = "" if value is None else f"[value='{value}']"
    page.locator(f"button[name={button}]{exactly}").nth(which).click()
    readout(page)  # drawn


def colors(page, selector, which=0):
    """The colours of a canvas, one for each weight: (height, width, 3)."""
    readout(page)
    read = "(c) => [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]"
    width, height, data = page.locator(selector).nth(which).evaluate(read)
    return np.array(data).reshape(height, width, 4)[..., :3]


def same_colors(page, selector, values, top, which=0):
    """Whether a canvas shows these values on a scale that ends at `top`, up to one of 256 steps or 1 %."""
    palette = np.frombuffer(explorer(made_up(0)).palette, np.uint8).reshape(256, 4)[:, :3].astype(int)
    seen = colors(page, selector, which)
    steps = np.abs(seen[..., None, :] - palette).sum(axis=-1).argmin(axis=-1)
    wanted = np.minimum(np.floor(256 * np.asarray(values / top)), 255)
    assert steps.shape == wanted.shape
    assert (np.abs(steps - wanted) <= 2 + 0.01 * wanted).all(), (steps, wanted)


# --- what it shows --------------------------------------------------------------------------------------


def test_it_opens_on_the_last_layer_head_1_and_the_class_token(open_page):
    attention = made_up(1)
    page = open_page(explorer(attention))
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 0))
    assert page.locator(".uniform").text_content() == f"uniform 1/{T}"
    assert page.locator(".strip button").all_text_contents() == ["onecat 0.75", "twodog 0.50"]


def test_hovering_shows_each_tokens_row(open_page):
    """Rows and columns swapped; a patch off by one for the class token; height and width swapped."""
    attention, shown = made_up(2), explorer(made_up(2))
    page = open_page(shown)
    for token in range(T):
        point(page, token)
        patches = attention[0, 2, 0, token, 1:].reshape(ROWS, COLUMNS)
        says(page, reads("layer 3, head 1", attention[0, 2, 0], token))
        same_colors(page, ".photo canvas", patches, shown.about["top"])
        same_colors(page, ".atlas canvas", patches, shown.about["top"], 2 * (HEADS + 2))
    same_colors(page, ".field canvas", attention[0, 2, 0], shown.about["top"])
    page.mouse.move(0, 0)
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 0))


def test_every_layer_and_head_is_in_the_atlas(open_page):
    """Layers counted from the end, heads and layers swapped, average or rollout taken for a head."""
    attention, shown = made_up(3), explorer(made_up(3))
    page = open_page(shown)
    mean = attention[0].mean(dim=1)
    for layer in range(DEPTH):
        rolled = attention_maps.rollout(list(attention[:1].transpose(0, 1))[: layer + 1])[0]
        for column in range(HEADS + 2):
            page.locator(".atlas canvas").nth(layer * (HEADS + 2) + column).hover()
            where = f"layer {layer + 1}, head {column + 1}"
            if column == HEADS:
                where = f"layer {layer + 1}, average of {HEADS} heads"
            if column == HEADS + 1:
                where = f"rollout, layers 1 to {layer + 1}"
            matrix = [*attention[0, layer], mean[layer], rolled][column]
            says(page, reads(where, matrix, 0))
            same_colors(page, ".field canvas", matrix, shown.about["top"])
    page.locator(".atlas canvas").nth(1).click()
    page.mouse.move(0, 0)
    says(page, reads("layer 1, head 2", attention[0, 0, 1], 0))


def test_a_click_pins_and_esc_releases(open_page):
    attention = made_up(4)
    page = open_page(explorer(attention))
    spoken = page.locator(".spoken")
    point(page, 4)
    readout(page)
    assert spoken.text_content() == ""
    point(page, 4, click=True)
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 4))
    assert spoken.text_content() == readout(page)
    for partner in (1, 6, 0):  # the token stays, its weights are read one by one
        point(page, partner)
        says(page, reads("layer 3, head 1", attention[0, 2, 0], 4, partner))
    assert reads("", attention[0, 2, 0], 4)[:20] in spoken.text_content()
    page.mouse.move(0, 0)
    page.keyboard.press("Escape")
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 0))
    assert page.locator("button[name=pin]").text_content() == "pin"


def test_the_matrix_shows_single_weights(open_page):
    attention = made_up(5)
    page = open_page(explorer(attention))
    for query, key in ((0, 3), (5, 2), (6, 6)):
        point_at_cell(page, query, key)
        says(page, reads("layer 3, head 1", attention[0, 2, 0], query, key))
    point_at_cell(page, 5, 2, click=True)
    page.mouse.move(0, 0)
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 5, 2))
    press(page, "pin")
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 0))


def test_is_read_by_shows_columns(open_page):
    attention, shown = made_up(6), explorer(made_up(6))
    page = open_page(shown)
    press(page, "readBy", "1")
    for token in (0, 2, 6):
        point(page, token)
        says(page, is_read("layer 3, head 1", attention[0, 2, 0], token))
        column = attention[0, 2, 0, 1:, token].reshape(ROWS, COLUMNS)
        same_colors(page, ".photo canvas", column, shown.about["top"])
    same_colors(page, ".field canvas", attention[0, 2, 0], shown.about["top"])


def test_scales(open_page):
    """A scale that is not the one its label names."""
    attention, shown = made_up(7), explorer(made_up(7))
    page = open_page(shown)
    matrix, other = attention[0, 2, 0], attention[0, 0, 1]
    same_colors(page, ".atlas canvas", other[0, 1:].reshape(ROWS, COLUMNS), shown.about["top"], 1)
    assert "can be compared" in page.locator(".meaning").text_content()
    assert page.locator("span.top").text_content().endswith(" and more")
    press(page, "scale", "head")
    same_colors(page, ".field canvas", matrix, matrix.max())
    same_colors(page, ".atlas canvas", other[0, 1:].reshape(ROWS, COLUMNS), other.max(), 1)
    assert "can't be compared" in page.locator(".meaning").text_content()
    assert float(page.locator("span.top").text_content()) == pytest.approx(matrix.max().item(), abs=0.005)
    press(page, "scale", "row")
    same_colors(page, ".field canvas", matrix, matrix.amax(dim=1, keepdim=True))
    same_colors(page, ".photo canvas", matrix[0, 1:].reshape(ROWS, COLUMNS), matrix[0].max())
    press(page, "readBy", "1")
    assert page.locator("[value=row]").text_content() == "per column"
    same_colors(page, ".field canvas", matrix, matrix.amax(dim=0, keepdim=True))


def test_keys(open_page):
    """Keys that do nothing, that reach the page around, or that need more than one tab stop a panel."""
    attention = made_up(8)
    page = open_page(explorer(attention))
    page.evaluate("() => { heard = []; document.addEventListener('keydown', (e) => heard.push(e.key)); }")
    panels = page.locator(".vitlib-explorer [tabindex]")
    names = panels.evaluate_all("all => all.map(p => p.className)")
    assert names == ["panel picture", "panel matrix", "panel all"]
    panels.nth(0).focus()

    def typed(*keys):
        for key in keys:
            page.keyboard.press(key)

    last = attention[0, 2, 0]
    for keys, token in ((["ArrowDown"], 1), (["ArrowRight", "ArrowRight"], 3), (["ArrowDown"], 6),
                        (["ArrowDown", "ArrowRight"], 6), (["ArrowLeft"], 5), (["Home"], 0),
                        (["ArrowRight", "ArrowRight"], 2), (["ArrowUp"], 0)):  # fmt: skip
        typed(*keys)
        says(page, reads("layer 3, head 1", last, token))
    typed("ArrowDown", "ArrowRight", "Enter", "ArrowDown")
    says(page, reads("layer 3, head 1", last, 2, 5))
    typed("]", ",")
    says(page, reads("layer 2, head 2", attention[0, 1, 1], 2))
    typed("]")
    assert readout(page).startswith("layer 2, average of 2 heads: patch (1,2) reads")
    typed("]", "]")
    assert readout(page).startswith("rollout, layers 1 to 2: patch (1,2) reads")
    typed("[", "[", "[", "[", ".", ".")
    says(page, reads("layer 3, head 1", last, 2))
    typed("Escape")
    says(page, reads("layer 3, head 1", last, 0))
    panels.nth(1).focus()
    typed("ArrowDown", "ArrowDown")
    key = last[0].argmax().item()
    says(page, reads("layer 3, head 1", last, 2, key))
    panels.nth(2).focus()
    typed("ArrowUp", "ArrowRight")
    says(page, reads("layer 2, head 2", attention[0, 1, 1], 0))
    assert page.evaluate("() => heard") == []


def test_every_action_is_a_button(open_page):
    attention = made_up(9)
    page = open_page(explorer(attention))
    press(page, "layer", "-1")
    press(page, "head", "1")
    says(page, reads("layer 2, head 2", attention[0, 1, 1], 0))
    press(page, "picture", "1")
    says(page, reads("layer 2, head 2", attention[1, 1, 1], 0))
    press(page, "together", "0")
    says(page, reads("layer 2, average of 2 heads", attention[1, 1].mean(dim=0), 0))
    press(page, "together", "1")
    rolled = attention_maps.rollout(list(attention[1:].transpose(0, 1))[:2])[0]
    says(page, reads("rollout, layers 1 to 2", rolled, 0))
    assert page.locator("button[name=together][value='1']").get_attribute("aria-pressed") == "true"
    press(page, "overlay")
    assert not page.locator(".photo canvas").is_visible()
    point(page, 3, click=True)
    press(page, "home")
    assert "class token reads" in readout(page)
    press(page, "pin")
    assert page.locator("button[name=pin]").text_content() == "pin"
    names = page.locator("button").evaluate_all("all => all.map(b => b.ariaLabel || b.textContent.trim())")
    assert all(names)


def test_guess_first(open_page):
    """An answer that shows before the guess; a guess of the class token; no answer afterwards."""
    attention = made_up(10)
    page = open_page(explorer(attention))
    press(page, "guess")
    question = "layer 3, head 1: which patch does the class token read most? Click the one that you expect."
    assert readout(page) == question
    assert not page.locator(".photo canvas").is_visible()
    filters = "all => all.map(c => getComputedStyle(c).filter)"  # without contrast, all colours are one grey
    assert set(page.locator(".field canvas, .atlas canvas").evaluate_all(filters)) == {"contrast(0)"}
    for act in (lambda: point(page, 5), lambda: point_at_cell(page, 3, 3), lambda: point(page, 0, click=True),
                lambda: page.locator(".atlas canvas").nth(0).hover()):  # fmt: skip
        act()
        assert readout(page) == question
    point(page, 5, click=True)
    page.mouse.move(0, 0)
    row = attention[0, 2, 0, 0]
    best = 1 + row[1:].argmax().item()
    expected = (
        f"layer 3, head 1: class token reads your {name(5)}: {number(row[5])} = {T * row[5]:.1f} × uniform, "
        f"rank {1 + (row[1:] > row[5]).sum()} of 6 patches; "
        f"most: {name(best)}, {number(row[best])} = {T * row[best]:.1f} × uniform"
    )
    says(page, expected)
    assert same_text(page.locator(".spoken").text_content(), expected, rtol=0.03)
    press(page, "head", "1")
    assert readout(page).startswith("layer 3, head 2: which patch does the class token read most?")
    press(page, "guess")
    says(page, reads("layer 3, head 2", attention[0, 2, 1], 0))


def test_two_explorers_do_not_mix(open_page):
    """Shared ids, globals or styles; data that end a script element."""
    first, second = made_up(11), made_up(12)
    page = open_page(explorer(first, ["</script><b>", "x"]), explorer(second, ["</script><!--", "y"]))
    assert page.locator(".strip span").first.text_content() == "</script><b>cat 0.75"
    point(page, 3, which=1)
    says(page, reads("layer 3, head 1", second[0, 2, 0], 3), which=1)
    says(page, reads("layer 3, head 1", first[0, 2, 0], 0), which=0)
    press(page, "layer", "-1", which=0)
    says(page, reads("layer 2, head 1", first[0, 1, 0], 0), which=0)
    says(page, reads("layer 3, head 1", second[0, 2, 0], 0), which=1)
    assert page.locator("script[type=module]").count() == 1
    ids = page.locator(".vitlib-explorer [id]").count()
    assert ids == 0


def test_without_a_class_token(open_page):
    attention = made_up(13, tokens=6)
    page = open_page(explorer(attention, prefix=0))
    assert readout(page).startswith("layer 3, head 1: patch (1,1) reads ")
    assert "class token" not in readout(page)
    assert not page.locator(".beside").is_visible()
    assert page.locator("button[name=home]").text_content() == "patch (1,1)"
    page.locator(".panel").first.focus()
    page.keyboard.press("ArrowUp")
    assert readout(page).startswith("layer 3, head 1: patch (1,1) reads ")


# --- where it is shown ----------------------------------------------------------------------------------


def test_narrow_pages_stack_the_panels(open_page):
    for width, side_by_side in ((1280, True), (900, True), (560, False)):
        page = open_page(explorer(made_up(1)), width=width)
        readout(page)
        boxes = [panel.bounding_box() for panel in page.locator(".panel").all()]
        assert (boxes[0]["y"] == boxes[1]["y"] == boxes[2]["y"]) == side_by_side, width
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_many_pictures_and_long_titles_leave_room_for_the_panels(open_page):
    """Fails where a title runs out of the page, and where the panels lie screens below their pictures."""
    generator = torch.Generator().manual_seed(0)
    pictures = list(torch.randint(256, (100, 3, 8, 12), dtype=torch.uint8, generator=generator))
    titles, predictions = ["a long title " * 30] * 100, [[("cat " * 99, 0.75)]] * 100
    attention = made_up(0, 100).numpy()
    page = open_page(Explorer(attention, (ROWS, COLUMNS), 1, pictures, titles, predictions))
    strip, panels = page.locator(".strip"), page.locator(".panels")
    assert strip.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    assert panels.bounding_box()["y"] < 500
    page.locator("[name=picture]").last.click()  # the browser brings it into view
    says(page, reads("layer 3, head 1", made_up(0, 100)[99, 2, 0], 0))


def test_projector_mode_is_larger(open_page):
    page = open_page(explorer(made_up(1)), width=1920)
    size = "(e) => ['fontSize', 'borderLeftWidth'].map(name => parseFloat(getComputedStyle(e)[name]))"
    readout(page)
    type_before, _ = page.locator(".readout").evaluate(size)
    _, line_before = page.locator(".photo .mark").first.evaluate(size)
    press(page, "projector")
    readout(page)
    assert page.locator(".readout").evaluate(size)[0] == pytest.approx(1.6 * type_before, rel=0.01)
    assert page.locator(".photo .mark").first.evaluate(size)[1] > line_before


def test_themes_are_followed(open_page):
    """JupyterLab's attribute before VS Code's, before the system's; and a change of each."""
    page = open_page(explorer(made_up(1)), color_scheme="dark")

    def theme():
        readout(page)
        ink = page.locator(".vitlib-explorer").evaluate("(e) => getComputedStyle(e).color")
        bright = int(ink.partition("(")[2].partition(",")[0]) > 128
        name = page.locator(".vitlib-explorer").get_attribute("data-theme")
        assert bright == (name == "dark")
        return name

    assert theme() == "dark"
    page.emulate_media(color_scheme="light")
    assert theme() == "light"
    page.evaluate("() => { document.body.dataset.vscodeThemeKind = 'vscode-dark'; }")
    assert theme() == "dark"
    page.evaluate("() => { document.body.dataset.jpThemeLight = 'true'; }")
    assert theme() == "light"
    page.evaluate("() => { document.body.dataset.jpThemeLight = 'false'; }")
    assert theme() == "dark"


def test_a_tap_pins_and_the_page_can_be_scrolled(open_page):
    attention = made_up(14)
    page = open_page(explorer(attention), has_touch=True, width=560)
    readout(page)
    box = page.locator(".photo").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 2))
    assert page.locator("button[name=pin]").text_content() == "release"
    action = "all => all.map(e => getComputedStyle(e).touchAction)"
    assert set(page.locator(".field, .atlas, .panel").evaluate_all(action)) == {"auto"}
    assert page.locator(".photo").evaluate_all(action) == ["none"]


SOURCE = """
import torch
import vitlib
from vitlib.checkpoint import Checkpoint
from vitlib.explorer import explore

torch.manual_seed(0)
model = vitlib.VisionTransformer((8, 12), 4, 3, 2, 12, 3, 2).eval()
for block in model.encoder.blocks:
    block.attention.qkv.weight.data *= 30  # as uneven as after training
checkpoint = Checkpoint(model, ["left", "right"], (0.5,) * 3, (0.1,) * 3, {})
images = torch.arange(2 * 3 * 8 * 12).view(2, 3, 8, 12).to(torch.uint8)
"""


def small_model():
    names = {}
    exec(SOURCE, names)
    return torch.stack(names["checkpoint"].attention(names["images"]), dim=1)


def test_a_lesson_is_exported_alive(new_page, tmp_path, monkeypatch):
    """A page without its data or its script; formulas, pictures or scripts that come from elsewhere."""
    monkeypatch.setattr(build_html, "NOTEBOOKS", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for key in ("VITLIB_RUNS", "VITLIB_PROGRESS"):
        monkeypatch.setenv(key, str(tmp_path))
    text = r"A formula $\sqrt{d} < 1$, another $$\frac{1}{2}$$ and [the next](02_class_token.ipynb)."
    cells = [
        nbformat.v4.new_markdown_cell(text),
        nbformat.v4.new_code_cell(SOURCE + "explore(checkpoint, images)"),
        nbformat.v4.new_code_cell("# Solution\nprint(1)", metadata={"tags": ["solution"]}),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "01_small.ipynb")
    before = (tmp_path / "01_small.ipynb").read_bytes()
    build_html.build("01_small", tmp_path / "out")
    assert (tmp_path / "01_small.ipynb").read_bytes() == before
    html = (tmp_path / "out" / "01_small.html").read_text(encoding="utf-8")
    assert "cdnjs" not in html and "<script src" not in html and "unpkg" not in html
    page = new_page(offline=True)
    page.goto((tmp_path / "out" / "01_small.html").as_uri())
    says(page, reads("layer 3, head 1", small_model()[0, 2, 0], 0))
    assert page.locator("math").count() == 2
    assert page.locator("math[display=block] mfrac").count() == 1
    assert page.locator("a[href='02_class_token.html']").count() == 1
    assert not page.locator("details.solution pre").first.is_visible()


def test_in_jupyterlab(lab, open_notebook):
    """Two explorers in one notebook, live: the tensor's numbers, the notebook's shortcuts, its themes."""
    sources = [SOURCE + "explore(checkpoint, images)", "explore(checkpoint, images.flip(0))", "print(1)"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), lab.folder / "two.ipynb")
    page = open_notebook("two.ipynb", viewport={"width": 1280, "height": 2400})
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator(".vitlib-explorer").nth(1).wait_for()
    attention = small_model()
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 0))
    says(page, reads("layer 3, head 1", attention[1, 2, 0], 0), which=1)
    page.wait_for_timeout(500)  # cells move while outputs arrive
    point(page, 4, which=1, click=True)
    says(page, reads("layer 3, head 1", attention[1, 2, 0], 4), which=1)
    says(page, reads("layer 3, head 1", attention[0, 2, 0], 0))

    state = """() => { const notebook = window.jupyterapp.shell.currentWidget.content;
        return [notebook.activeCellIndex, notebook.mode, notebook.widgets.map(c => c.model.type),
                document.querySelector('.jp-WindowedPanel-outer').scrollTop]; }"""
    before = page.evaluate(state)
    for key in "b a d d m x j ArrowDown ArrowDown ArrowUp Home Enter , 0 0".split():
        page.keyboard.press(key)
    assert page.evaluate(state) == before
    says(page, reads("layer 2, head 1", attention[1, 1, 0], 0), which=1)

    explorers = page.locator(".vitlib-explorer")
    # The keys stop on their way up; this is for a JupyterLab that is told to listen on the way down.
    assert explorers.first.get_attribute("data-lm-suppress-shortcuts") == "true"
    assert explorers.first.get_attribute("data-theme") == "light"
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    assert explorers.first.get_attribute("data-theme") == "dark"
