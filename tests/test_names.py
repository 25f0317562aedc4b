"""What the text of the lessons, the README and vitlib's own comments call by name exists.

A function that is renamed keeps its old name in prose, where nothing runs it. Each rule is a function that
gives the names that it cannot find; small texts show that it does.
"""

import ast
import builtins
import functools
import importlib
import inspect
import io
import keyword
import re
import shlex
import tokenize
import types

import build_notebooks
import einops
import pytest
import torch

import vitlib
import vitlib.__main__
from vitlib import checks

ROOT = build_notebooks.ROOT
LESSONS = sorted(build_notebooks.SOURCES.glob("*.py"))
PACKAGE = sorted((ROOT / "vitlib").rglob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROOTS = {"vitlib": vitlib, "checks": checks}  # by these names README and package speak of them
FOLDERS = "vitlib|notebooks|tests|tools|benchmarks|experiments|images"


@functools.cache
def lesson(path):
    """The Markdown and the code of a lesson."""
    cells = build_notebooks.read_source(path).cells
    return ["\n\n".join(c.source for c in cells if c.cell_type == kind) for kind in ("markdown", "code")]


def tokens(code):
    return list(tokenize.generate_tokens(io.StringIO(code).readline))


def comments(code):
    return "\n".join(token.string for token in tokens(code) if token.type == tokenize.COMMENT)


def words(code):
    """The words that some code uses, in its strings too, but not in its comments and docstrings."""
    prose = re.compile(r"#|\w{,2}\"{3}")
    used = " ".join(token.string for token in tokens(code) if not prose.match(token.string))
    return set(re.findall(r"[A-Za-z_]\w*", used))


def code_spans(prose):
    """What stands between backticks, or in <code> in the hints."""
    prose = re.sub(r"(?s)```.*?```", "", prose)
    return [a or b for a, b in re.findall(r"`([^`]+)`|<code>(.*?)</code>", prose, flags=re.S)]


def from_vitlib(code):
    """What a lesson imports from vitlib: {its name there: the thing}."""
    found = {"vitlib": vitlib}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "vitlib":
            for alias in node.names:
                module = importlib.import_module(node.module)
                found[alias.asname or alias.name] = look_up(module, [alias.name])
    return found


def look_up(thing, names):
    """What thing.name.name... is; None where it does not exist. Of a class, any name in its code counts."""
    for name in names:
        if isinstance(thing, types.ModuleType) and not hasattr(thing, name):
            try:
                importlib.import_module(f"{thing.__name__}.{name}")
            except ImportError:
                return None
        if not hasattr(thing, name):
            return thing if isinstance(thing, type) and name in words(inspect.getsource(thing)) else None
        thing = getattr(thing, name)
    return thing


def missing_attributes(text, roots):
    """Dotted names in a text that begin with one of the roots, {name: thing}, and do not exist."""
    dotted = re.findall(rf"(?<![\w./])((?:{'|'.join(roots)})(?:\.(?!py\b)[A-Za-z_]\w*)+)", text)
    return [name for name in dotted if look_up(roots[name.split(".")[0]], name.split(".")[1:]) is None]


def missing_paths(text):
    """Paths in the repository that are not there."""
    paths = re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*-]*[\w/*])", text.replace("\\", "/"))
    return [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]


def missing_settings(text, code):
    """Environment variables of ours that no code reads."""
    return [name for name in re.findall(r"\bVITLIB_[A-Z]+", text) if name not in code]


def wrong_commands(text):
    """Calls of python -m vitlib that its command line refuses."""
    for command in re.findall(r"-m vitlib ([^`\n]*)", text):
        try:
            vitlib.__main__.parse(shlex.split(command))
        except SystemExit:
            yield command


def unknown_names(prose, known):
    """Names between backticks that nobody knows: not the lesson's code, not vitlib, not PyTorch."""
    for span in code_spans(prose):
        plain = re.sub(r"([\"']).*?\1|\S*[/\\]\S*|\S+\.(?:py|ipynb|png|jpg|safetensors)\b", " ", span)
        # One or two letters are symbols, or axes as einops writes them.
        yield from (name for name in re.findall(r"(?<![\w])[A-Za-z_]\w{2,}", plain) if name not in known)


@functools.cache
def known_to_all():
    libraries = (builtins, torch, torch.Tensor, torch.nn, torch.nn.functional, torch.optim, einops)
    known = set(keyword.kwlist).union(*map(dir, libraries))
    return known.union(*(words(path.read_text(encoding="utf-8")) for path in PACKAGE))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_names_in_a_lesson(path):
    prose, code = lesson(path)
    roots = from_vitlib(code)
    text = "\n".join([*code_spans(prose), *re.findall(r"(?s)```.*?```", prose), comments(code)])
    everywhere = prose + comments(code)
    assert missing_attributes(text, roots) + missing_paths(everywhere) == []
    assert list(unknown_names(prose, known_to_all() | words(code))) == []
    assert list(wrong_commands(prose)) == []


def test_names_in_the_readme():
    assert missing_attributes(README, ROOTS) + missing_paths(README) == []
    assert list(wrong_commands(README)) == []


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_in_the_package(path):
    """In comments, docstrings and error messages: "use vitlib.data.normalize"."""
    assert missing_attributes(path.read_text(encoding="utf-8"), ROOTS) == []


def test_settings():
    """An environment variable in README or prose that the code calls otherwise."""
    prose, code = zip(*map(lesson, LESSONS))
    used = "\n".join([*code, *(path.read_text(encoding="utf-8") for path in PACKAGE)])
    text = "\n".join([README, *prose])
    assert missing_settings(text, used) == []


# --- the rules themselves -------------------------------------------------------------------------------

CODE = """import vitlib
from vitlib import attention_maps as maps
from vitlib.vit import VisionTransformer
"""


@pytest.mark.parametrize("text", [
    "vitlib.load('cifar10'), vitlib.attention and vitlib.data.image_folder",
    "maps.rollout, and x.maps.nothing",  # of something else
    "VisionTransformer.grid, VisionTransformer.patch_embedding",  # a property; set in __init__
    "see vitlib/vit.py.",
])  # fmt: skip
def test_attributes_that_exist(text):
    assert missing_attributes(text, from_vitlib(CODE)) == []


@pytest.mark.parametrize("name", [
    "vitlib.lode", "vitlib.attention.atend", "vitlib.nothing.at_all", "maps.roll", "VisionTransformer.gird",
    "vitlib.load.wrong", "vitlib.plots.rollout",
])  # fmt: skip
def test_a_missing_attribute_is_seen(name):
    assert missing_attributes(f"Use {name}(x).", from_vitlib(CODE)) == [name]


def test_a_missing_path_is_seen():
    good = "vitlib/vit.py, notebooks/*.ipynb, tools\\open_lab.py, `notebooks/src/`, https://a.b/tests/no.py"
    assert missing_paths(good) == []
    assert missing_paths("vitlib/vti.py and notebooks/*.txt") == ["vitlib/vti.py", "notebooks/*.txt"]


def test_a_missing_setting_is_seen():
    assert missing_settings("VITLIB_DATA or VITLIB_DATUM", 'environ["VITLIB_DATA"]') == ["VITLIB_DATUM"]


def test_a_wrong_command_is_seen(capsys):
    good, bad = "python -m vitlib train --data pictures", "python -m vitlib train --minuets 3"
    assert list(wrong_commands(f"`{good}`\n    {bad}\n")) == ["train --minuets 3"]


def test_an_unknown_name_is_seen():
    known = known_to_all() | words('"""no_where"""\nrows = "columns"  # no_where')
    good = '`torch.cat`, `rows columns (b c)`, `x = "holiday.jpg"`, `model.safetensors`, `nn.Linear`, `1e-6`'
    assert list(unknown_names(good + " no_where", known)) == []
    assert list(unknown_names("`rolout(attention)`, <code>no_where</code>", known)) == ["rolout", "no_where"]


def test_a_comment_counts_as_prose():
    assert missing_attributes(comments("x = 1  # as vitlib.lode"), {"vitlib": vitlib}) == ["vitlib.lode"]
