"""What a lesson owes its reader and a program can check; nbval compares the outputs.

`problems` names every rule that a stored notebook breaks. The tests at the end spoil a small lesson in one
way each, and see that the rule speaks up.
"""

import base64
import copy
import io
import re
from statistics import median

import build_notebooks
import nbformat
import PIL.Image
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

NOTEBOOKS = sorted(build_notebooks.NOTEBOOKS.glob("*.ipynb"))
WIDEST_LINE = 100
UNSTABLE = r"\binteract\(|\bclear_output\(|\bdisplay_id\b|\btqdm\.(auto|notebook)\b"
MACHINE_PATH = r"/(home|Users|root|tmp|var)/\w|[A-Z]:\\\w|site-packages"


def tags(cell):
    return cell.metadata.get("tags", [])


def printed(cell):
    """The text of each output that a reader sees, with the text that describes a figure."""
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]


def is_figure(output):
    return "image/png" in output.get("data", {})


def has_figure(cell):
    return cell.cell_type == "code" and any(is_figure(output) for output in cell.outputs)


def is_white_backed(output):
    """Whether the corners of a picture are white, and not transparent: text must be readable in dark mode."""
    picture = PIL.Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGBA")
    right, bottom = picture.width - 1, picture.height - 1
    return all(picture.getpixel((x, y)) == (255,) * 4 for x in (0, right) for y in (0, bottom))


def lines_of(cell):
    return sum(1 for line in cell.source.splitlines() if line.strip())


def structure_problems(name, cells):
    """The order and the parts of a lesson."""
    markdown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    prose = [re.sub(r"```.*?```", "", source, flags=re.S) for source in markdown]
    headings = re.findall(r"(?m)^(#{1,6}) (.*)", "\n".join(prose))
    head = prose[0] if prose and cells[0].cell_type == "markdown" else ""
    if not head.startswith("# "):
        yield "does not begin with a Markdown cell that begins with a title"
    objectives = re.search(r"\*\*After this lesson you can\*\*\n+((?:[-*] .*\n?(?:  .*\n?)*)+)", head)
    count = len(re.findall(r"(?m)^[-*] ", objectives[1])) if objectives else 0
    if not 3 <= count <= 5:
        yield f'has {count} objectives under "**After this lesson you can**" in its first cell, not 3 to 5'
    if not re.search(r"\d+ minutes? to read", head) or not re.search(r"(minute|second)s? to run", head):
        yield "does not say in its first cell how many minutes to read and how many minutes or seconds to run"
    first = name.startswith("00")
    if not first and "needs" not in head:
        yield "does not say in its first cell what it needs from earlier lessons"
    if [hashes for hashes, _ in headings].count("#") != 1:
        yield "does not have exactly one title"
    for (before, _), (hashes, text) in zip(headings, headings[1:], strict=False):
        if len(hashes) > len(before) + 1:
            yield f"jumps from heading level {len(before)} to {len(hashes)} at {text!r}"
    # A line that happens to begin with "1." opens a list in the middle of its paragraph.
    for broken in re.findall(r"(?m)^(?!\d+\. |[-*|#>] |\s)\S.*\n(\d+\. .{0,40})", "\n".join(prose)):
        yield f"breaks a paragraph with a list at {broken!r}"
    titles = [text.lower() for _, text in headings]
    for part in ["recap"] if first else ["recap", "common mistakes"]:
        if not any(part in title for title in titles):
            yield f"has no heading {part!r}"
    pictures = sum(is_figure(output) for cell in cells if cell.cell_type == "code" for output in cell.outputs)
    tables = sum(bool(re.search(r"(?m)^\|[ :|-]+\|$", text)) for text in prose)
    if pictures + tables < 2:
        yield "has fewer than two figures or tables"
    lengths = [lines_of(cell) for cell in cells if cell.cell_type == "code"]
    if lengths and median(lengths) > 6:
        yield f"has {median(lengths):g} lines in its median cell, not at most 6"


def exercise_problems(name, cells):
    """Each exercise has a check, and a folded solution before the next one."""
    code = [(i, cell) for i, cell in enumerate(cells) if cell.cell_type == "code"]
    exercises = [k for k, (_, cell) in enumerate(code) if "exercise" in tags(cell)]
    if not name.startswith("00") and not 2 <= len(exercises) <= 4:
        yield f"has {len(exercises)} exercises, not 2 to 4"
    for k, end in zip(exercises, exercises[1:] + [len(code)], strict=True):
        where = build_notebooks.place(*code[k])
        solutions = [cell for _, cell in code[k:end] if "solution" in tags(cell)]
        if not re.search(r"\bchecks?\.\w+\(", "\n".join(cell.source for _, cell in code[k : k + 2])):
            yield f"{where}: an exercise without a check"
        if not solutions:
            yield f"{where}: an exercise without a solution"
        for cell in solutions:
            if not cell.source.startswith("# ") or not cell.metadata.get("jupyter", {}).get("source_hidden"):
                yield f"{where}: its solution is not folded, or does not begin with a comment to click on"


def output_problems(cells):
    """What is stored under the code cells."""
    for i, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        where = build_notebooks.place(i, cell)
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags(cell):
                yield f"{where}: ends with {output.ename}"
            if output.get("name") == "stderr":
                yield f"{where}: prints to stderr, which JupyterLab paints red: {output.text[:60]!r}"
            if is_figure(output) and not output.metadata.get("image/png", {}).get("alt"):
                yield f"{where}: a figure without alternative text"
            if is_figure(output) and not is_white_backed(output):
                yield f"{where}: a figure that is not on white"
        if has_figure(cell):
            caption = cells[i + 1].source if i + 1 < len(cells) else ""
            if not caption.startswith("*Figure"):
                yield f'{where}: a figure without a caption: a Markdown cell that begins with "*Figure"'
            elif len(caption.partition("\n\n")[0].split()) < 6:
                yield f"{where}: a caption that does not say what the figure shows"
        text = "\n".join(printed(cell))
        if re.search(MACHINE_PATH, text) or str(build_notebooks.ROOT) in text:
            yield f"{where}: prints a path of the machine that ran it: {text[:60]!r}"
        shown = [
            words for words, output in zip(printed(cell), cell.outputs, strict=True) if not is_figure(output)
        ]
        widest = max((len(line) for words in shown for line in words.splitlines()), default=0)
        if widest > WIDEST_LINE:
            yield f"{where}: prints a line of {widest} characters; more than {WIDEST_LINE} need a scroll bar"
        if "nbval-ignore-output" in tags(cell):
            following = next((other for other in cells[i + 1 :] if other.cell_type == "code"), None)
            if following is None or "nbval-ignore-output" in tags(following) or not following.outputs:
                yield f"{where}: its output is not compared, and the next code cell has none that is"
        elif re.search(r"\d\.(?!0+\b)\d{5,}", text):
            yield f"{where}: prints more than 4 decimals, which differ between machines: {text[:60]!r}"


def cell_problems(cells):
    """What is written in the cells."""
    for i, cell in enumerate(cells):
        where = build_notebooks.place(i, cell)
        if cell.cell_type == "code":
            if found := re.search(UNSTABLE, cell.source):
                yield f"{where}: {found[0]!r} cannot be compared, or stores nothing"
            if lines_of(cell) > 20 and not re.search(r"(?m)^class ", cell.source):
                yield f"{where}: {lines_of(cell)} lines; over 20 only for a finished class"
        else:
            if re.search(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"])", cell.source):
                yield f"{where}: an image without alternative text"
            for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", cell.source):
                if not (build_notebooks.NOTEBOOKS / link).exists():
                    yield f"{where}: a link to {link}, which does not exist"


def problems(name, notebook):
    cells = notebook.cells
    if "widgets" in notebook.metadata:
        yield "stores the state of widgets, which is dead without its kernel"
    for some in (structure_problems(name, cells), exercise_problems(name, cells)):
        yield from some
    yield from output_problems(cells)
    yield from cell_problems(cells)


def series_problems(notebooks):
    """Lessons that are missing, or that a reader cannot get to from their neighbours and from the first."""
    names = sorted(notebooks)
    numbers = [name[:2] for name in names]
    if numbers != [f"{number:02}" for number in range(len(names))]:
        yield f"the lessons are numbered {', '.join(numbers)}"
    prose = {name: [c.source for c in notebooks[name].cells if c.cell_type == "markdown"] for name in names}
    for name in names[1:]:
        if f"({name}.ipynb)" not in "\n".join(prose[names[0]]):
            yield f"{names[0]}: its map of the series has no link to {name}"
    for before, after in zip(names, names[1:]):
        for name, other in ((before, after), (after, before)):
            if f"({other}.ipynb)" not in prose[name][-1]:
                yield f"{name}: its last cell has no link to {other}"


def test_the_series_is_complete_and_linked():
    notebooks = {path.stem: nbformat.read(path, 4) for path in NOTEBOOKS}
    assert len(notebooks) >= 9
    assert list(series_problems(notebooks)) == []


def test_each_lesson_has_a_source_and_a_notebook():
    """A notebook without source is never built again; an empty folder passes every other test."""
    sources = sorted(path.stem for path in build_notebooks.SOURCES.glob("*.py"))
    assert NOTEBOOKS
    assert [path.stem for path in NOTEBOOKS] == sources


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson(path):
    build_notebooks.check(path.stem)
    assert path.stat().st_size < 2_000_000
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    found = list(problems(path.stem, notebook))
    assert not found, "\n".join([path.stem, *found])


# The rules themselves.

HEAD = """# A lesson

**After this lesson you can**
- one;
- two, which goes on
  in a second line;
- three.

5 minutes to read · under 1 minute to run · needs nothing from earlier lessons"""


def image(alt="A square.", corner=(255, 255, 255, 255)):
    """A white picture, but for its last pixel."""
    picture = PIL.Image.new("RGBA", (3, 2), "white")
    picture.putpixel((2, 1), corner)
    file = io.BytesIO()
    picture.save(file, format="png")
    data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": "Figure: " + "long " * 30}
    return new_output("display_data", data=data, metadata={"image/png": {"alt": alt}})


def text(words, name="stdout"):
    return new_output("stream", name=name, text=words)


def folded(source="# Solution: click to open\n1"):
    return new_code_cell(source, metadata={"tags": ["solution"], "jupyter": {"source_hidden": True}})


def exercise(source="checks.use(1)"):
    return new_code_cell(source, metadata={"tags": ["exercise"]}, outputs=[text("[todo]\n")])


def good():
    """A lesson that breaks no rule."""
    ignore = {"tags": ["nbval-ignore-output"]}
    ignored = new_code_cell("accuracy", metadata=ignore, outputs=[text("0.7123456\n")])
    return new_notebook(
        cells=[
            new_markdown_cell(HEAD),
            new_code_cell("show()", outputs=[image()]),
            new_markdown_cell(
                "*Figure: a square and its area.*\n\n| a |\n|---|\n| 1 |\n\n## Exercises\n\n### One"
            ),
            ignored,
            new_code_cell("accuracy > 0.5", outputs=[text("accuracy above 0.5: True\n")]),
            exercise(),
            folded(),
            exercise("x = 1"),
            new_code_cell("checks.use(x)"),
            folded(),
            new_code_cell("class A:\n" + "    a = 1\n" * 25),
            new_markdown_cell(
                "## Common mistakes\n\n```\n#### no heading\n```\n\n## Recap\n\n[tests](../tests)"
            ),
        ]
    )


def test_a_good_lesson_breaks_no_rule():
    assert list(problems("01_good", good())) == []


def edit(index, **changes):
    return lambda notebook: notebook.cells[index].update(copy.deepcopy(changes))


def insert(index, cell):
    return lambda notebook: notebook.cells.insert(index, cell)


SPOILED = {
    "begins with a title": edit(0, source=HEAD.replace("# A", "A")),
    "exactly one title": edit(2, source="*Figure*\n# Another\n|-|\n"),
    "2 objectives": edit(0, source=HEAD.replace("- three.\n", "")),
    "minutes to read": edit(0, source=HEAD.replace("5 minutes to read", "short")),
    "minutes or seconds to run": edit(0, source=HEAD.replace("to run", "to wait")),
    "needs from earlier": edit(0, source=HEAD.replace("needs", "has")),
    "breaks a paragraph": edit(2, source="*Figure*\n\nA standard deviation of\n1. And so on.\n|-|\n"),
    "level 1 to 3": edit(2, source="*Figure*\n### One\n|-|\n"),
    "heading 'recap'": edit(11, source="## Common mistakes"),
    "heading 'common mistakes'": edit(11, source="## Recap"),
    "fewer than two figures": edit(2, source="*Figure*"),
    "median cell": lambda notebook: [
        c.update(source="1\n" * 7) for c in notebook.cells if c.cell_type == "code"
    ],
    "has 1 exercises": lambda notebook: notebook.cells.__delitem__(slice(7, 10)),
    "without a check": edit(5, source="x = 1"),
    "without a solution": lambda notebook: notebook.cells.pop(9),
    "not folded": edit(6, metadata={"tags": ["solution"]}),
    "comment to click": edit(9, source="x = 1"),
    "ends with NameError": edit(
        4, outputs=[new_output("error", ename="NameError", evalue="x", traceback=[])]
    ),
    "stderr": edit(4, outputs=[text("careful\n", "stderr")]),
    "figure without alternative": edit(1, outputs=[image("")]),
    "figure that is not on white": edit(1, outputs=[image(corner=(255, 255, 255, 0))]),
    "is not on white": edit(1, outputs=[image(corner=(0, 0, 0, 255))]),
    "without a caption": insert(2, new_markdown_cell("A square.")),
    "does not say what the figure shows": insert(
        2, new_markdown_cell("*Figure: a square.*\n\nAnd then more.")
    ),
    "path of the machine": edit(4, outputs=[text("saved in /home/ann/runs\n")]),
    "line of 101": edit(4, outputs=[text("x" * 101)]),
    "next code cell has none": edit(4, outputs=[]),
    "more than 4 decimals": edit(4, outputs=[text("0.12345\n")]),
    "cannot be compared": edit(4, source="interact(f)"),
    "over 20 only": edit(10, source="a = 1\n" * 21),
    "image without": edit(11, source="## Common mistakes\n## Recap\n![](a.png)"),
    "does not exist": edit(11, source="## Common mistakes\n## Recap\n[next](99_none.ipynb)"),
    "state of widgets": lambda notebook: notebook.metadata.update(widgets={}),
}


@pytest.mark.parametrize("words, spoil", SPOILED.items(), ids=SPOILED)
def test_each_rule_speaks_up(words, spoil):
    notebook = good()
    spoil(notebook)
    found = list(problems("01_good", notebook))
    assert any(words in problem for problem in found), found


def series(**changes):
    """Three lessons that link to each other as they should, but for the changes: {name: its last cell}."""
    last = {
        "00_a": "[1](01_b.ipynb)",
        "01_b": "[0](00_a.ipynb) · [2](02_c.ipynb)",
        "02_c": "[1](01_b.ipynb)",
    } | changes
    first = "[1](01_b.ipynb) [2](02_c.ipynb)"
    texts = {name: [first, text] for name, text in last.items() if text is not None}
    return {name: new_notebook(cells=list(map(new_markdown_cell, cells))) for name, cells in texts.items()}


def test_a_gap_in_the_series_is_seen():
    """A lesson that is missing, is not in the map, or does not link to a neighbour."""
    assert list(series_problems(series())) == []
    for name, last, words in (
        ("01_b", None, "numbered 00, 02"),
        ("03_d", "[2](02_c.ipynb)", "00_a: its map of the series has no link to 03_d"),
        ("01_b", "[0](00_a.ipynb)", "01_b: its last cell has no link to 02_c"),
        ("02_c", "the end", "02_c: its last cell has no link to 01_b"),
    ):
        found = list(series_problems(series(**{name: last})))
        assert any(words in problem for problem in found), found
