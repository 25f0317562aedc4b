"""Build notebooks/*.ipynb by running notebooks/src/*.py (percent format), from top to bottom.

    python tools/build_notebooks.py [NAME ...]               run these lessons, or all of them
    python tools/build_notebooks.py --check [NAME ...]       run nothing; do notebook and source agree?
    python tools/build_notebooks.py --update-source FILE ... write the source of an edited notebook

A second build changes only what the lesson itself makes different: cell ids are hashes of the cells, and what
belongs to one machine or one run (dates, widgets, paths in tracebacks) is left out.
"""

import argparse
import hashlib
import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "src"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}
CELL_METADATA = ("tags", "jupyter")
CELL_SECONDS = 3600


def kept(metadata):
    """The metadata of a cell that a lesson means; JupyterLab and jupytext add more."""
    return {key: value for key, value in metadata.items() if key in CELL_METADATA and value}


def read_source(path):
    """The notebook, not yet run, that a percent-format file stands for."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata, notebook.nbformat, notebook.nbformat_minor = nbformat.from_dict(METADATA), 4, 5
    seen = {}
    for cell in notebook.cells:
        digest = hashlib.sha1(cell.source.encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        cell.metadata = nbformat.from_dict(kept(cell.metadata))
    return notebook


def write(path, text):
    """Write a whole file or nothing: an interrupted run leaves the old one."""
    half = path.with_name(path.name + ".part")
    half.write_text(text, encoding="utf-8", newline="\n")
    half.replace(path)


def place(index, cell):
    """Words by which an author finds a cell."""
    return f"cell {index} ({cell.source.strip().partition(chr(10))[0][:70]!r})"


def build(name):
    """Run the source of a lesson in notebooks/ and store it there. ValueError names the cell that failed."""
    notebook = read_source(SOURCES / f"{name}.py")
    started = []
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        on_cell_start=lambda cell, cell_index: started.append(cell_index),
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    try:
        with tempfile.TemporaryDirectory() as runs:  # a stored run is a whole one, not an older one read back
            os.environ["VITLIB_RUNS"] = os.environ["VITLIB_PROGRESS"] = runs
            client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        where = place(started[-1], notebook.cells[started[-1]])
        raise ValueError(f"{name}: {where} failed.\n{error}") from None
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            # A widget's id is random, and dead without its kernel.
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
            if output.output_type == "error":
                output.traceback = [f"{output.ename}: {output.evalue}"]
    notebook.metadata = nbformat.from_dict(METADATA)
    nbformat.validate(notebook)
    write(NOTEBOOKS / f"{name}.ipynb", nbformat.writes(notebook) + "\n")


def check(name):
    """ValueError where the stored notebook is not what its source says, or holds a cell that was not run."""
    path = NOTEBOOKS / f"{name}.ipynb"
    if not path.exists():
        raise ValueError(f"{name}: there is a source but no notebook. Build it.")
    stored, source = nbformat.read(path, 4), read_source(SOURCES / f"{name}.py")
    for index, (old, new) in enumerate(zip(stored.cells, source.cells, strict=False)):
        if any(old.get(key) != new.get(key) for key in ("id", "cell_type", "source", "metadata")):
            raise ValueError(
                f"{name}: the notebook and its source differ from {place(index, new)} on. "
                "Build the notebook, or update the source if the notebook is the newer."
            )
    if len(stored.cells) != len(source.cells):
        raise ValueError(
            f"{name}: {len(stored.cells)} cells in the notebook, {len(source.cells)} in its source."
        )
    code = [cell for cell in stored.cells if cell.cell_type == "code" and cell.source.strip()]
    # nbval compares nothing in a cell without an execution count.
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        raise ValueError(f"{name}: not every cell was run, once and in order. Build the notebook.")


def update_source(notebook_path):
    """Write a lesson's source from its edited notebook. A cell that is as it was keeps its blank lines."""
    path = SOURCES / f"{notebook_path.stem}.py"
    before = jupytext.read(path, fmt="py:percent").cells if path.exists() else []
    spacing = {
        cell.source: {key: lines for key, lines in cell.metadata.items() if key == "lines_to_next_cell"}
        for cell in before
    }
    notebook = nbformat.read(notebook_path, 4)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(kept(cell.metadata) | spacing.get(cell.source, {}))
    notebook.metadata = nbformat.from_dict({"jupytext": {"notebook_metadata_filter": "-all"}})
    write(path, jupytext.writes(notebook, fmt="py:percent"))


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="compare notebooks with their sources")
    action.add_argument("--update-source", action="store_true", help="write sources from edited notebooks")
    parser.add_argument("lessons", nargs="*", metavar="NAME", help="a lesson, such as 00_start_here")
    options = parser.parse_args(arguments)

    if options.update_source:
        if not options.lessons:
            parser.error("--update-source needs the edited file, such as notebooks/00_start_here.ipynb")
        for lesson in map(Path, options.lessons):
            update_source(lesson)
            print(f"{lesson.stem}: source written. Next: python tools/build_notebooks.py {lesson.stem}")
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    known = sorted(path.stem for path in SOURCES.glob("*.py"))
    names = [Path(lesson).stem for lesson in options.lessons] or known
    for name in names:
        if name not in known:
            parser.error(f"no source for {name!r}; there is {', '.join(known)}")
        (check if options.check else build)(name)
        print(f"{name}: {'as its source says' if options.check else 'built'}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
