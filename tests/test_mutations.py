"""The tests of the model can fail: each of these one-line bugs in vitlib is found by the tests of its module.

All of them run, keep every shape, and are mistakes that people make.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MUTATIONS = {  # bug: (module, right, wrong)
    "scores not divided by the root of d": (
        "attention",
        "query = query * query.shape[-1] ** -0.5",
        "query = query",
    ),
    "softmax over the queries": ("attention", "scores.softmax(dim=-1)", "scores.softmax(dim=-2)"),
    "heads split without a transpose": (
        "attention",
        'self.qkv(tokens), "b t (three head d) -> three b head t d", three=3, head=self.num_heads',
        "[x.reshape(len(x), self.num_heads, x.shape[1], -1) for x in self.qkv(tokens).chunk(3, dim=-1)], "
        '"three b head t d -> three b head t d"',
    ),
    "heads merged without a transpose": (
        "attention",
        'rearrange(mixed, "b head t d -> b t (head d)")',
        "mixed.reshape(tokens.shape)",
    ),
    "attention recorded after dropout": (
        "attention",
        "mixed = drop(weights, dropout) @ value",
        "weights = drop(weights, dropout); mixed = weights @ value",
    ),
    "norm after the branch (post-norm)": (
        "encoder",
        "tokens + self.drop_path(self.mlp(self.norm2(tokens)))",
        "self.norm2(tokens + self.drop_path(self.mlp(tokens)))",
    ),
    "first norm forgotten": ("encoder", "self.attention(self.norm1(tokens)", "self.attention((tokens)"),
    "residual forgotten": ("encoder", "tokens + self.drop_path(mixed)", "self.drop_path(mixed)"),
    "final norm forgotten": ("encoder", "return self.norm(tokens), tuple", "return tokens, tuple"),
    "DropPath not rescaled": ("encoder", "return tokens * kept / keep", "return tokens * kept"),
    "GELU always by tanh": ("encoder", '"tanh" if gelu == "tanh" else "none"', '"tanh"'),
    "class token last": ("class_token", "torch.cat([class_token, tokens]", "torch.cat([tokens, class_token]"),
    "patches column by column": (
        "patch_embedding",
        "-> b (rows cols) (c ph pw)",
        "-> b (cols rows) (c ph pw)",
    ),
    "tokens column by column": (
        "patch_embedding",
        "tokens.flatten(2).transpose(1, 2)",
        "tokens.mT.flatten(2).transpose(1, 2)",
    ),
    "frequencies fall twice as fast": (
        "positional_encoding",
        "torch.arange(0, embed_dim, 2, dtype",
        "torch.arange(0, 2 * embed_dim, 4, dtype",
    ),
    "cosine before sine": ("positional_encoding", "[angle.sin(), angle.cos()]", "[angle.cos(), angle.sin()]"),
    "rows and columns of positions exchanged": (
        "positional_encoding",
        "return torch.cat([row, column], dim=1)",
        "return torch.cat([column, row], dim=1)",
    ),
    "table of positions read column by column": (
        "positional_encoding",
        '"... (rows columns) d -> (...) d rows columns", rows=rows',
        '"... (columns rows) d -> (...) d rows columns", rows=rows',
    ),
    "class token's position put last": (
        "positional_encoding",
        "torch.cat([prefix, patches.to(embedding.dtype)], dim=-2)",
        "torch.cat([patches.to(embedding.dtype), prefix], dim=-2)",
    ),
    "positions not added": ("vit", "self.dropout(self.positional_encoding(tokens))", "self.dropout(tokens)"),
    "another token read out": ("vit", "pooled = tokens[:, 0]", "pooled = tokens[:, 1]"),
}
SLOW = "not compile and not export and not light"  # and not about the numbers that a model gives


def mutate(text, right, wrong):
    assert text.count(right) == 1, f"{right!r} is {text.count(right)} times in the module: adapt the mutation"
    return text.replace(right, wrong)


# Run the tests in each folder against the vitlib that lies there, and say how it went, one line each. One
# interpreter does it all, since it takes far longer to import torch than to run the tests.
RUN = """
import contextlib, io, json, sys
import pytest

for folder in sys.argv[2:]:
    sys.path.insert(0, folder)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main(["-qx", "-p", "no:cacheprovider", "-k", sys.argv[1], folder])
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vitlib" or "test_" in name]:
        del sys.modules[name]
    print(json.dumps([code, output.getvalue()]))
"""
NO_BUG = "no bug"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the tests say to each bug: {bug: (exit code, output)}."""
    everything = {module for module, _, _ in MUTATIONS.values()}
    folders = []
    for bug in (NO_BUG, *MUTATIONS):
        folder = tmp_path_factory.mktemp("bug")
        ignored = shutil.ignore_patterns("__pycache__", "checkpoints", "results")
        shutil.copytree(ROOT / "vitlib", folder / "vitlib", ignore=ignored)
        (folder / "pytest.ini").write_text("[pytest]\n")  # none of the settings that are for notebooks
        if bug != NO_BUG:
            module, right, wrong = MUTATIONS[bug]
            path = folder / "vitlib" / f"{module}.py"
            path.write_text(mutate(path.read_text(encoding="utf-8"), right, wrong), encoding="utf-8")
        for name in everything if bug == NO_BUG else [module]:
            shutil.copy(ROOT / "tests" / f"test_{name}.py", folder)
        folders.append(folder)
    command = [sys.executable, "-c", RUN, SLOW, *folders]
    run = subprocess.run(command, cwd=folders[0], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return dict(zip([NO_BUG, *MUTATIONS], map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("bug", MUTATIONS)
def test_the_bug_is_found(results, bug):
    code, output = results[bug]
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert re.search(r"(?m)^E +(AssertionError|assert )", output), output  # wrong numbers, not a crash


def test_without_a_bug_the_same_tests_pass(results):
    """Or every bug above is "found" by tests that cannot pass at all."""
    code, output = results[NO_BUG]
    assert code == pytest.ExitCode.OK, output


def test_a_mutation_of_a_line_that_is_gone_fails():
    with pytest.raises(AssertionError, match="0 times"):
        mutate("x = 1", "y = 1", "y = 2")
    with pytest.raises(AssertionError, match="2 times"):
        mutate("x = 1; x = 1", "x = 1", "x = 2")
