"""The code of the lessons, read as code: what ships is what is shown, nothing leaks, every exercise has a
solution that its check accepts, and colours can be told apart.

Each rule is a function that names what breaks it. Beside it, small lessons are spoiled in one way each.
"""

import ast
import builtins
import contextlib
import io
import re
import symtable

import build_notebooks
import matplotlib
import pytest
import torch
from nbformat.v4 import new_code_cell

from vitlib import checks

LESSONS = sorted(build_notebooks.SOURCES.glob("*.py"))
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in build_notebooks.read_source(path).cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def cells(*sources, **tagged):
    """Code cells: sources without a tag, then tag=source."""
    plain = [new_code_cell(source) for source in sources]
    return plain + [new_code_cell(source, metadata={"tags": [tag]}) for tag, source in tagged.items()]


# --- the finished class is the one that vitlib ships ----------------------------------------------------

SHIPPED = {
    "01": {"PatchEmbedding"},
    "02": {"ClassToken"},
    "03": {"LearnedPositionalEncoding", "sincos_2d", "FixedPositionalEncoding"},
    "04": {"attend", "MultiHeadAttention"},
    "05": {"MLP", "DropPath", "EncoderBlock", "Encoder"},
    "06": {"initialize", "VisionTransformer"},
    "07": {"orthogonalized"},
}


def definitions(source):
    """The syntax tree of each function and class at the top of some code; docstrings and comments aside."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return {node.name: ast.dump(node) for node in tree.body if hasattr(node, "name")}


def drift_problems(number, code, shipped):
    """Where the cells tagged `finished` and vitlib differ."""
    shown = definitions("\n".join(cell.source for cell in code if "finished" in tags(cell)))
    for name, tree in shown.items():
        if name not in shipped:
            yield f"vitlib has no {name}"
        elif tree != shipped[name]:
            yield f"{name} is not the same code as vitlib's"
    for name in SHIPPED.get(number, set()) - shown.keys():
        yield f"no cell tagged `finished` shows {name}"


@each_lesson
def test_the_finished_class_is_the_shipped_one(path):
    sources = (build_notebooks.ROOT / "vitlib").glob("*.py")
    shipped = definitions("\n".join(source.read_text(encoding="utf-8") for source in sources))
    assert list(drift_problems(path.stem[:2], code_cells(path), shipped)) == []


def test_drift_is_seen():
    shipped = definitions('class ClassToken:\n    """Words."""\n    def f(self):\n        return 1  # one')
    same = "class ClassToken:\n    def f(self):\n        '''Other words.'''\n        return 1"
    assert list(drift_problems("02", cells(finished=same), shipped)) == []
    for problem, code in {
        "no cell tagged `finished` shows ClassToken": cells(same),
        "ClassToken is not the same code as vitlib's": cells(finished=same.replace("1", "2")),
        "vitlib has no Extra": cells(finished=same + "\n\nclass Extra:\n    pass"),
    }.items():
        assert list(drift_problems("02", code, shipped)) == [problem]


# --- no function has an input that cannot be seen -------------------------------------------------------


def global_names(table):
    """The global names that are read in a scope, and in those inside it."""
    for symbol in table.get_symbols():
        if symbol.is_global() and (symbol.is_referenced() or symbol.is_declared_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from global_names(inner)


def table_of(code):
    return symtable.symtable(code if isinstance(code, str) else ast.unparse(code), "lesson", "exec")


def functions(node):
    """Functions, classes and lambdas in some code, the outermost.

    A lambda that is handed to a call, as in sorted(names, key=lambda name: counts[name]), is part of that
    statement, like a comprehension: it may read what the statement may.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield child
        elif isinstance(child, ast.Lambda) and not isinstance(node, ast.Call | ast.keyword):
            yield child
        else:
            yield from functions(child)


def leak_problems(code):
    """Functions and classes that read a variable of the notebook: its cells then depend on their order.

    What is imported or defined by def or class may be read. Default values, decorators and base classes are
    read when the cell runs, not later, so they are free.
    """
    tree = ast.parse("\n".join(cell.source for cell in code))
    allowed = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            allowed |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    allowed |= {node.name for node in functions(tree) if not isinstance(node, ast.Lambda)}
    for node in functions(tree):
        name = getattr(node, "name", "lambda")
        table = next(table for table in table_of(node).get_children() if table.get_name() == name)
        for leak in sorted(set(global_names(table)) - allowed):
            yield f"{name} (`{ast.unparse(node).splitlines()[-1].strip()[:60]}`) reads the variable {leak}"


@each_lesson
def test_no_function_reads_a_variable_of_the_notebook(path):
    assert list(leak_problems(code_cells(path))) == []


@pytest.mark.parametrize("source", [
    "def f(a):\n    return len([a * b for b in a])",  # its own names and builtins
    "import torch\ndef f():\n    return torch.zeros(1)",
    "import os.path\ndef f():\n    return os.path",
    "def f():\n    return g()\n\ndef g():\n    return A()\n\nclass A:\n    pass",  # defined later is fine
    "width = 3\ndef f(a=width):\n    return a",  # a default is read at once
    "width = 3\ndef f(a=[width for _ in range(2)]):\n    return a",
    "base = object\nclass A(base):\n    pass",
    "counts = {}\nsorted(counts, key=lambda name: counts[name])",
    "x = 1\n[x for _ in range(3)]",
    "def f():\n    x = 1\n    return lambda: x",  # of the function around it, not of the notebook
    "def f():\n    return 1\n\nf = str(f)\n\ndef g():\n    return f",  # a function, whoever wrote it
])  # fmt: skip
def test_what_a_function_may_read(source):
    assert list(leak_problems(cells(*source.split("\n\n")))) == []


@pytest.mark.parametrize("source", [
    "x = 1\ndef f():\n    return x",
    "def f():\n    return x\n\nx = 1",
    "x = 1\ndef f():\n    return [x for _ in range(3)]",
    "x = 1\ndef f():\n    return lambda: x",
    "x = 1\ndef f():\n    def g():\n        return x\n    return g",
    "x = 1\nclass A:\n    def f(self):\n        return x",
    "x = 1\nclass A:\n    y = x",
    "def f():\n    global x\n    x = 1",
    "x = 1\nkept = {'a': lambda: x}",
    "for x in range(3):\n    pass\n\nif True:\n    def f():\n        return x",
    "def f():\n    return x",  # nothing of that name: an error that waits
])  # fmt: skip
def test_a_leak_is_seen(source):
    (problem,) = leak_problems(cells(*source.split("\n\n")))
    assert problem.endswith("reads the variable x")


# --- exercises: unfilled, and with their solutions ------------------------------------------------------


def bound(statement):
    """The names that a statement gives a value to."""
    return {
        symbol.get_name()
        for symbol in table_of(statement).get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }


def needed(statements, source):
    """Those of the statements before it that some code needs: they give a value to a name that it reads, or
    to one that these need. What only draws, prints or trains is left out, so this takes no time.
    """
    wanted, kept = set(global_names(table_of(source))), []
    for statement in reversed(statements):
        if bound(statement) & wanted:
            kept.insert(0, statement)
            wanted |= set(global_names(table_of(statement)))
    return kept


def filled(exercise, solution):
    """An exercise as a learner solves it: a statement with a TODO gives way to NAME = NAME_solution.

    In checks.value("name", TODO), where there is no NAME, the one solution takes the place of the TODO.
    """
    (first, *_) = [name for name in bound(solution) if name.endswith("_solution")]
    lines = []
    for statement in map(ast.unparse, ast.parse(exercise).body):
        if "TODO" in global_names(table_of(statement)):
            answers = [f"{name} = {name}_solution" for name in bound(statement)]
            statement = "\n".join(answers) or statement.replace("TODO", first)
        lines.append(statement)
    return "\n".join(lines)


def run(statements, *sources):
    """What each of some pieces of code prints, after the statements that they need."""
    scope, printed = {"__name__": "lesson"}, []
    before = "\n".join(map(ast.unparse, needed(statements, "\n".join(sources))))
    with torch.random.fork_rng():
        for source in (before, *sources):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(source, scope)
            printed.append(output.getvalue())
    return printed[1:]


def exercise_problems(code, registered):
    """Exercises that don't say [todo] while they are open and [ok] with their solution; forgotten checks."""
    exercises = [k for k, cell in enumerate(code) if "exercise" in tags(cell)]
    passed = set()
    for k, end in zip(exercises, exercises[1:] + [len(code)]):
        where, exercise = build_notebooks.place(k, code[k]), code[k].source
        statements = [statement for cell in code[:k] for statement in ast.parse(cell.source).body]
        solution = "\n".join(cell.source for cell in code[k:end] if "solution" in tags(cell))
        try:
            unfilled, _, solved = run(statements, exercise, solution, filled(exercise, solution))
        except Exception as error:
            yield f"{where}: stops with {error!r}"
            continue
        for wanted, printed in {"todo": unfilled, "ok": solved}.items():
            verdicts = re.findall(r"(?m)^\[(.*?)\] (.*?): ", printed)
            if {sign for sign, _ in verdicts} != {wanted}:
                yield f"{where}: not [{wanted}], it prints {printed!r}"
        passed |= {name for _, name in verdicts}
    if passed != registered:
        yield f"checks in vitlib.checks and in the exercises differ: {sorted(passed ^ registered)}"


@each_lesson
def test_every_exercise_is_open_at_first_and_solved_by_its_solution(path, tmp_path, monkeypatch):
    """Fails where a folded solution is wrong, a check is fooled by a stub, or a check is in no exercise:
    progress would never be complete."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITLIB_PROGRESS", str(tmp_path))
    module = f"vitlib.checks.{checks.LESSONS[int(path.stem[:2])]}"
    registered = {name for name, function in checks._checks.items() if function.__module__ == module}
    assert list(exercise_problems(code_cells(path), registered)) == []


def imports(cell):
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def import_problems(code):
    """What an exercise imports for other cells: if a teacher leaves the exercise out, the lesson stops."""
    kept = [cell for cell in code if not {"exercise", "solution"} & set(tags(cell))]
    given = set().union(*map(imports, kept))
    for k, cell in enumerate(code):
        if "exercise" in tags(cell):
            others = [table_of(c.source) for c in code if c is not cell and "solution" not in tags(c)]
            needed = {name for table in others for name in global_names(table)}
            for name in sorted(imports(cell) & needed - given):
                yield f"{build_notebooks.place(k, cell)}: imports {name}, which other cells need"


@each_lesson
def test_a_lesson_goes_on_without_an_exercise(path):
    assert list(import_problems(code_cells(path))) == []


def test_an_import_in_an_exercise_is_seen():
    source = "from math import pi as p, tau\nimport os.path\nx = p * tau"
    assert list(import_problems(cells("import os", "os.sep", exercise=source))) == []
    (problem,) = import_problems(cells("import os", "y = 2 * p", exercise=source))
    assert problem.endswith("imports p, which other cells need")


START = "from vitlib import checks\nfrom vitlib.checks import TODO"
STUB = 'num_patches = TODO\nchecks.value("number of patches", num_patches)'
NAME = {"number of patches"}


@pytest.mark.parametrize("solution, stub", [
    ("num_patches_solution = 196", STUB),
    ("def f():\n    return side**2\nnum_patches_solution = f()", STUB),  # needs a value from above
    ("num_patches_solution = 196", 'checks.value("number of patches", TODO)'),
])  # fmt: skip
def test_an_exercise_that_works(solution, stub, tmp_path, monkeypatch):
    monkeypatch.setenv("VITLIB_PROGRESS", str(tmp_path))
    slow = "raise RuntimeError('no exercise needs this')"
    code = cells(START, "side = 7\nside = 2 * side", slow, exercise=stub, solution=solution)
    assert list(exercise_problems(code, NAME)) == []


@pytest.mark.parametrize("words, solution, stub, registered", [
    ("not [ok]", "num_patches_solution = 14", STUB, NAME),
    ("num_patches_solution' is not defined", "other_solution = 196", STUB, NAME),
    ("'no_such_value' is not defined", "num_patches_solution = no_such_value", STUB, NAME),
    ("not [todo]", "num_patches_solution = 196", STUB.replace("TODO", "196"), NAME),
    ("not [todo]", "num_patches_solution = 196", "num_patches = TODO", NAME),
    ("differ: ['rollout']", "num_patches_solution = 196", STUB, NAME | {"rollout"}),
    ("differ: ['number of patches']", "num_patches_solution = 196", STUB, set()),
])  # fmt: skip
def test_an_exercise_that_does_not(words, solution, stub, registered, tmp_path, monkeypatch):
    monkeypatch.setenv("VITLIB_PROGRESS", str(tmp_path))
    code = cells(START, exercise=stub, solution=solution)
    found = list(exercise_problems(code, registered))
    assert any(words in problem for problem in found), found


# --- colours that everybody can tell apart --------------------------------------------------------------

# Perceptually uniform, or plain grey; and diverging ones that are safe for colour-blind readers.
COLOR_MAPS = {"viridis", "cividis", "gray", "grey", "Greys", "RdBu", "PuOr", "BrBG"}


def color_map_problems(source):
    """Other colour maps of Matplotlib, by any way to name them: "jet", cm.jet, cmap="jet"."""
    for node in ast.walk(ast.parse(source)):
        name = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Attribute) and re.search(r"\bcm$", ast.unparse(node.value)):
            name = node.attr
        if name in matplotlib.colormaps and name.removesuffix("_r") not in COLOR_MAPS:
            yield f"line {node.lineno}: colour map {name}"


DRAWING = [
    path
    for folder in ("vitlib", "notebooks/src", "tools", "benchmarks", "experiments")
    for path in sorted((build_notebooks.ROOT / folder).rglob("*.py"))
]


def test_color_maps():
    found = {path.name: list(color_map_problems(path.read_text(encoding="utf-8"))) for path in DRAWING}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_a_rainbow_is_seen():
    assert not list(color_map_problems('show(x, cmap="RdBu_r"); plt.cm.viridis; y.cm; words = "blue"'))
    for source in (
        'show(x, cmap="jet")',
        "plt.cm.jet",
        "cm.turbo_r(x)",
        'colormaps["hsv"]',
        "d = {1: 'hot'}",
    ):
        assert len(list(color_map_problems(source))) == 1, source
