"""Each lesson as a learner meets it: in JupyterLab, in a browser, all cells run.

`run_all` runs an open notebook and gives all that is wrong with it, in words. A lesson is run twice in one
kernel, once in each theme. Pictures of the whole of it, for a person to look at, are left in build/browser/.
"""

import shutil
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = ROOT / "build" / "browser"
SECONDS_TO_RUN = 900
SECONDS_TO_DRAW = 20
# A laptop's window, with the list of files beside the notebook; then a projector's.
VIEWS = {"light": {"width": 1280, "height": 1600}, "dark": {"width": 1920, "height": 1600}}

# What the notebook that is open shows, a dictionary for each cell.
LOOK = r"""
() => window.jupyterapp.shell.currentWidget.content.widgets.map((cell) => {
    const find = (node, selector) => [...node.querySelectorAll(selector)];
    const scrolls = (e) => /auto|scroll/.test(getComputedStyle(e).overflowX);
    const wide = (e) => e.scrollWidth > e.clientWidth + 1 && scrolls(e);
    const folded = (pre) => {
        const lines = pre.textContent.replace(/\n$/, '').split('\n').length;
        return pre.clientHeight > (lines + 0.5) * parseFloat(getComputedStyle(pre).lineHeight);
    };
    const said = (e) => e.textContent.trim().slice(0, 60);
    const loaded = (e) => e.naturalWidth > 0 && e.getClientRects().length > 0;
    const OUT = '.jp-OutputArea-output', TEXT = '.jp-MarkdownOutput';
    const look = {
        wide: find(cell.node, `${OUT}, ${OUT} *, ${TEXT}, ${TEXT} *`).filter(wide).map(said),
        broken: find(cell.node, 'img').filter((e) => e.complete && e.naturalWidth === 0).length,
        formulas: find(cell.node, 'mjx-merror, mjx-mtext[style*="red"]').length,
    };
    if (cell.model.type === 'code') {
        const outputs = cell.model.toJSON().outputs;
        const isWidget = (output) => 'application/vnd.jupyter.widget-view+json' in (output.data ?? {});
        // A live widget stands in an output without a type; its picture or text stands in for it in one with.
        const views = find(cell.node, `${OUT}:not([data-mime-type]) > *`);
        const filled = (e) => e.tagName === 'IMG' ? e.naturalWidth > 0 : e.innerHTML !== '';
        const alive = (e) => filled(e) && !/^(Loading|Error displaying) widget/.test(e.textContent);
        look.count = cell.model.executionCount;
        look.errors = outputs.filter((o) => o.output_type === 'error').map((o) => `${o.ename}: ${o.evalue}`);
        look.stderr = outputs.filter((o) => o.name === 'stderr').map((o) => [o.text].flat().join(''));
        look.folded = find(cell.node, `${OUT} pre`).filter(folded).map(said);
        look.figures = find(cell.node, `${OUT}[data-mime-type="image/png"] img`).filter(loaded).length;
        look.widgets = outputs.filter(isWidget).length;
        look.alive = views.filter(alive).length;
    }
    return look;
})
"""


def settle(page, seconds=0.3):
    """Give the page time to draw."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_timeout(1000 * seconds)


def missing(cell, look):
    """Figures and widgets that the stored cell shows, or the new one should, and that are not there."""
    data = [output.get("data", {}) for output in cell.outputs]
    figures = sum("image/png" in shown for shown in data)  # a widget is stored as its picture, too
    widgets = sum(shown.get("text/plain", "").startswith("Attention explorer") for shown in data)
    widgets = max(widgets, look["widgets"])
    if look["alive"] < widgets:
        yield f"shows {look['alive']} of {widgets} widgets"
    elif look["figures"] + look["alive"] < figures:
        yield f"shows {look['figures'] + look['alive']} of {figures} figures"


def problems_of(cell, look):
    if look["broken"]:
        yield f"{look['broken']} pictures do not load"
    if look["formulas"]:
        yield f"{look['formulas']} formulas are broken"
    for what in look["wide"]:
        yield f"wider than its cell: {what}"
    if cell.cell_type != "code":
        return
    for what in look["folded"]:
        yield f"a printed line does not fit into one: {what}"
    if "raises-exception" not in cell.metadata.get("tags", []):
        yield from look["errors"]
    if cell.source.strip() and look["count"] is None:
        yield "was not run"
        return
    for text in look["stderr"]:
        yield f"prints to stderr: {text.strip()}"
    if not look["errors"]:
        yield from missing(cell, look)


def run_all(page, notebook):
    """Run all cells of the open notebook. Gives what is wrong, compared with how the notebook is stored."""
    page.evaluate("""() => {
        window.ended = false;
        const run = window.jupyterapp.commands.execute('notebook:run-all-cells');
        run.finally(() => { window.ended = true; });
    }""")
    page.wait_for_function("() => window.ended", timeout=1000 * SECONDS_TO_RUN)
    patience = time.monotonic() + SECONDS_TO_DRAW
    while True:  # widgets come after their cell is done
        settle(page)
        looks = page.evaluate(LOOK)
        both = list(zip(notebook.cells, looks, strict=True))
        if time.monotonic() > patience or not any(any(missing(*pair)) for pair in both if "count" in pair[1]):
            break
    problems = [
        f"cell {index} ({cell.source.strip().partition(chr(10))[0][:50]!r}): {problem}"
        for index, (cell, look) in enumerate(both)
        for problem in problems_of(cell, look)
    ]
    dialogs = page.locator(".jp-Dialog").all_text_contents()
    problems += [f"a dialog is open: {text}" for text in dialogs] + page.trouble
    page.trouble.clear()
    return problems


def change_theme(page, name):
    page.evaluate(
        "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
        f"JupyterLab {name.title()}",
    )
    light = "true" if name == "light" else "false"
    page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")


def take_pictures(page, name):
    """The whole notebook in slices, from top to bottom: name-01.png, name-02.png, ..."""
    pane = page.locator(".jp-WindowedPanel-outer")
    box = pane.bounding_box()
    end = pane.evaluate("""(pane) => {
        const bottoms = [...pane.querySelectorAll('.jp-Cell')].map((e) => e.getBoundingClientRect().bottom);
        return Math.max(...bottoms) - pane.getBoundingClientRect().top + pane.scrollTop;
    }""")
    top, number = 0, 1
    while top < end:
        reached = pane.evaluate("(e, top) => { e.scrollTop = top; return e.scrollTop; }", top)
        settle(page, 0.1)
        skip = top - reached  # the last slice cannot be scrolled that far
        height = min(box["height"] - skip, end - top)
        clip = {"x": box["x"], "y": box["y"] + skip, "width": box["width"], "height": max(height, 1)}
        page.screenshot(path=PICTURES / f"{name}-{number:02}.png", clip=clip)
        top, number = top + clip["height"], number + 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_runs_in_jupyterlab(path, lab, open_notebook):
    """A lesson that works from top to bottom, but not in its window, not again, or not in the dark."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for old in PICTURES.glob(f"{path.stem}-*.png"):
        old.unlink()
    shutil.copy(path, lab.folder)
    page = open_notebook(path.name, viewport=VIEWS["light"])
    problems = []
    for run, (theme, size) in enumerate(VIEWS.items(), start=1):
        page.set_viewport_size(size)
        change_theme(page, theme)
        problems += [f"run {run}, {theme}: {problem}" for problem in run_all(page, nbformat.read(path, 4))]
        take_pictures(page, f"{path.stem}-{theme}")
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


# --- the test itself ------------------------------------------------------------------------------------

WIDGET = """
import anywidget
from IPython.display import HTML, Image, Javascript, display

class Widget(anywidget.AnyWidget):
    _esm = "export default { render({ el }) { el.textContent = 'drawn'; } }"

Widget()
"""
DEAD_WIDGET = """
class DeadWidget(Widget):
    _esm = "export default { render() { throw new Error('no'); } }"

DeadWidget()
"""
LOST_WIDGET = """
view = {"model_id": "lost", "version_major": 2, "version_minor": 0}
display({"application/vnd.jupyter.widget-view+json": view, "text/plain": "a widget"}, raw=True)
"""
LIVE_PICTURE = "ipywidgets.Image(format='png', value={})"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
FIGURE = new_output("display_data", data={"image/png": PIXEL, "text/plain": "a figure"})
EXPLORER = new_output("execute_result", data={"image/png": PIXEL, "text/plain": "Attention explorer: ..."})
SHOW = f"import base64\ndisplay(Image(base64.b64decode('{PIXEL}')))"


def test_what_is_wrong_is_said(lab, open_notebook):
    """Each kind of problem, and beside each a cell of the same kind without one."""
    cells = [
        (new_markdown_cell(r"Good: $\frac{1}{2}$"), []),
        (new_markdown_cell(r"Bad: $\unheardof{1}$"), ["1 formulas are broken"]),
        (new_code_cell(WIDGET), []),
        (new_code_cell("Widget()", outputs=[EXPLORER]), []),
        (new_code_cell(SHOW, outputs=[FIGURE]), []),
        (new_code_cell("import base64, ipywidgets"), []),
        (new_code_cell(LIVE_PICTURE.format(f"base64.b64decode('{PIXEL}')")), []),
        (new_code_cell(LIVE_PICTURE.format("b''")), ["1 pictures do not load", "shows 0 of 1 widgets"]),
        (new_code_cell("print('x' * 100)"), []),
        (new_code_cell(DEAD_WIDGET), ["shows 0 of 1 widgets"]),
        (new_code_cell(LOST_WIDGET), ["shows 0 of 1 widgets"]),
        (new_code_cell(SHOW, outputs=[EXPLORER]), ["shows 0 of 1 widgets"]),
        (new_code_cell("print('figure')", outputs=[FIGURE]), ["shows 0 of 1 figures"]),
        (new_code_cell("print('x' * 300)"), ["a printed line does not fit into one"]),
        (new_code_cell("HTML('<table><tr>' + 99 * '<td>wide' + '</table>')"), ["wider than its cell"]),
        (new_code_cell("HTML('<img src=missing.png>')"), ["1 pictures do not load"]),
        (new_code_cell("import sys\nprint('aside', file=sys.stderr)"), ["prints to stderr: aside"]),
        (new_code_cell("Javascript('console.error(1)')"), []),
        (new_code_cell("HTML('<img src=http://localhost:9/x.png>')"), ["1 pictures do not load"]),
        (new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}), []),
        (new_code_cell("1 / 0"), ["ZeroDivisionError: division by zero"]),
        (new_code_cell("print(2)"), ["was not run"]),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=[cell for cell, _ in cells], metadata=kernel)
    nbformat.write(notebook, lab.folder / "wrong.ipynb")
    page = open_notebook("wrong.ipynb", viewport=VIEWS["light"])
    problems = run_all(page, notebook)
    for index, (_, expected) in enumerate(cells):
        found = [problem.partition("): ")[2] for problem in problems if problem.startswith(f"cell {index} ")]
        assert len(found) == len(expected), (index, found, expected)
        assert all(map(str.startswith, found, expected)), (index, found, expected)
    for sign in ("page error: no", "console: 1 ", "console: Failed to load", "request: http://localhost:9/"):
        assert any(problem.startswith(sign) for problem in problems), sign
