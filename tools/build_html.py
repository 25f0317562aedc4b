"""Write the lessons as HTML pages that need no kernel, no server and no internet.

    python tools/build_html.py [--out build/html] [NAME ...]    these lessons, or all of them

A page holds all that it shows: pictures, formulas (as MathML, which browsers draw themselves) and, where a
lesson has an attention explorer, its script and its data. A stored notebook does not keep those, so a lesson
with an explorer is run once more; the others are converted as they are stored.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from build_notebooks import CELL_SECONDS, NOTEBOOKS, ROOT
from jinja2 import pass_context
from latex2mathml.converter import convert
from nbclient import NotebookClient
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

VIEW, STATE = "application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json"


class Renderer(IPythonRenderer):
    """Markdown with formulas as MathML, and links to the other pages instead of the other notebooks."""

    def inline_math(self, body):
        return convert(body)

    def block_math(self, body):
        return convert(body, display="block")

    def link(self, text, url, title=None):
        return super().link(text, re.sub(r"^(\d\d_\w+)\.ipynb", r"\1.html", url), title)


class Pages(HTMLExporter):
    """Notebooks to HTML with this project's template and renderer."""

    @pass_context
    def markdown2html(self, context, source):
        path = context["resources"]["metadata"]["path"]
        return MarkdownWithMath(Renderer(escape=False, embed_images=True, path=path)).render(source)


def run(notebook):
    """Run a notebook in notebooks/ and keep the state of its widgets."""
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources)
    with tempfile.TemporaryDirectory() as runs:  # neither finds nor leaves a learner's run or progress
        os.environ["VITLIB_RUNS"] = os.environ["VITLIB_PROGRESS"] = runs
        client.execute()


def bring_to_life(notebook):
    """Put each anywidget's data in the place of its view; give their scripts and styles, each once."""
    states = notebook.metadata.pop("widgets", {}).get(STATE, {}).get("state", {})
    live = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        view = output.get("data", {}).pop(VIEW, {})
        widget = states.get(view.get("model_id"), {"state": {}})
        values = {name: value for name, value in widget["state"].items() if not name.startswith("_")}
        if "_esm" not in widget["state"]:
            continue  # another kind of widget: its picture or text stays
        code = {"script": widget["state"]["_esm"], "style": widget["state"]["_css"]}
        if code not in live:
            live.append(code)
        buffers = {buffer["path"][0]: buffer["data"] for buffer in widget["buffers"]}
        # In JSON, \u003c is "<"; unescaped, a "</script>" in the data would end it.
        data = json.dumps({"values": values, "buffers": buffers}).replace("<", "\\u003c")
        output.data["text/html"] = (
            f'<div data-live="{live.index(code)}"><script type="application/json">{data}</script></div>'
        )
    return live


def to_html(notebook, name):
    """The page of a notebook that was run."""
    exporter = Pages(template_name="html_template", extra_template_basedirs=[str(ROOT / "tools")])
    resources = {"live": bring_to_life(notebook), "metadata": {"name": name, "path": str(NOTEBOOKS)}}
    return exporter.from_notebook_node(notebook, resources)[0]


def build(name, out):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    if any("explore(" in cell.source for cell in notebook.cells if cell.cell_type == "code"):
        run(notebook)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.html").write_text(to_html(notebook, name), encoding="utf-8")


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "html", help="folder for the pages")
    parser.add_argument("lessons", nargs="*", metavar="NAME", help="a lesson, such as 08_attention_maps")
    options = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    known = sorted(path.stem for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    for name in [Path(lesson).stem for lesson in options.lessons] or known:
        if name not in known:
            parser.error(f"no notebook {name!r}; there is {', '.join(known)}")
        build(name, options.out)
        print(f"{name}: written to {options.out / name}.html", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
