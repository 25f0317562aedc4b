"""Checks of lesson 02: usual mistakes are refused in words that help, right answers pass however written."""

import itertools
import json
import runpy

import build_notebooks
import pytest
import torch
from checking import judged_against
from einops import pack, repeat
from torch import nn

from vitlib import checks, results
from vitlib.checks import TODO
from vitlib.checks import class_token as lesson

REFERENCE = {
    "add_class_token": lesson.add_class_token,
    "split_tokens": lesson.split_tokens,
    "PrefixTokens": lesson.PrefixTokens,
}


verdict = judged_against(REFERENCE.get)


# --- the shape -------------------------------------------------------------------------------------------

WRONG_SHAPE = {
    "The class token makes one more": (7, 24, 20),
    "as long as before": (7, 25, 21),
    "makes each token longer": (7, 24, 21),
    "one image more": (8, 24, 20),
    "still 7 images": (8, 25, 20),
    "The batch holds 7": (1, 25, 20),
    "batch of 7 comes first": (25, 20),
    "tokens come before their length": (7, 20, 25),
    "how many columns": (7, 17, 20),
    "how many rows": (7, 37, 20),
    "counts every pixel": (7, 1537, 20),
    "after the embedding": (7, 25, 192),
    "channels are gone": (7, 3, 25, 20),
    "is not it": (7, 26, 20),
    "three numbers in brackets": 25,
}


@pytest.mark.parametrize("words, answer", WRONG_SHAPE.items(), ids=WRONG_SHAPE)
def test_a_wrong_shape_is_explained(capsys, words, answer):
    checks.value("shape with a class token", answer)
    printed = capsys.readouterr().out
    assert printed.startswith("[not yet]") and words in printed, printed


@pytest.mark.parametrize("answer", [(7, 25, 20), [7, 25, 20], torch.Size([7, 25, 20])], ids=str)
def test_the_right_shape_passes(capsys, answer):
    checks.value("shape with a class token", answer)
    assert capsys.readouterr().out.startswith("[ok]")


# --- add_class_token -------------------------------------------------------------------------------------


def in_a_loop(tokens, class_token):
    result = []
    for image in tokens:
        result.append(torch.stack([class_token.view(-1)] + [token for token in image]))
    return torch.stack(result)


def by_filling(tokens, class_token):
    b, n, d = tokens.shape
    result = tokens.new_zeros(b, n + 1, d)
    result[:, 1:] = tokens
    result[:, 0] += class_token[0, 0]
    return result


def by_einops(tokens, class_token):
    return pack([repeat(class_token, "1 1 d -> b 1 d", b=len(tokens)), tokens], "b * d")[0]


def overwrite(tokens, class_token):
    tokens[:, 0] = class_token[0, 0]
    return tokens


def zeroed_after(tokens, class_token):
    result = torch.cat([class_token.expand(len(tokens), -1, -1), tokens], dim=1)
    tokens.zero_()
    return result


@torch.no_grad()
def without_gradient(tokens, class_token):
    return torch.cat([class_token.expand(len(tokens), -1, -1), tokens], dim=1)


WRONG_ADD = {
    "it is of type list": lambda t, c: [torch.cat([c[0], image]) for image in t],
    "it is of type torch.float64": lambda t, c: torch.cat([c.expand(len(t), -1, -1).double(), t], dim=1),
    "changes the tensor that it is given": zeroed_after,
    "no gradient flows": without_gradient,
    "no gradient reaches tokens": lambda t, c: torch.cat([c.expand(len(t), -1, -1), t.detach()], dim=1),
    "comes last": lambda t, c: torch.cat([t, c.expand(len(t), -1, -1)], dim=1),
    "as many tokens as before": lambda t, c: t + c,
    "written over them": overwrite,
    "is one image more": lambda t, c: torch.cat([c.expand(1, t.shape[1], -1), t], dim=0),
    "joins along the axis dim": lambda t, c: torch.cat([c.expand(len(t), -1, -1), t]),
    "the numbers of a token": lambda t, c: torch.cat([c.expand(len(t), -1, -1), t], dim=2),
    "twice as long": lambda t, c: torch.cat([c.expand(*t.shape), t], dim=2),
    "works for one image": lambda t, c: torch.cat([c, t], dim=1),
    "works for 8 images": lambda t, c: torch.cat([c.expand(8, -1, -1), t], dim=1),
    "gives two results": lambda t, c: torch.cat([torch.randn(len(t), 1, t.shape[2]), t], dim=1),
    "all zeros": lambda t, c: torch.cat([torch.zeros(len(t), 1, t.shape[2]), t], dim=1),
    "training cannot change anything": lambda t, c: torch.cat([c.data.expand(len(t), -1, -1), t], dim=1),
    "no gradient reaches class_token": lambda t, c: torch.cat(
        [torch.tensor(c.tolist()).repeat(len(t), 1, 1), t], dim=1
    ),
    "One each is enough": lambda t, c: torch.cat([c.expand(len(t), len(t), -1), t], dim=1),
    "class token for each patch": lambda t, c: torch.cat([c.expand(*t.shape), t], dim=1),
    "Go through all images": lambda t, c: torch.cat([c, t[:1]], dim=1),
    "Keep the batch": lambda t, c: torch.cat([c[0], t[0]]),
}

# --- split_tokens ----------------------------------------------------------------------------------------


def split_in_place(tokens):
    first = tokens[:, 0].clone()
    tokens[:, 0] = 0
    return first, tokens[:, 1:]


WRONG_SPLIT = {
    "the class token's tensor should be a tensor": lambda t: (list(t[:, 0]), t[:, 1:]),
    "changes the tensor that it is given": split_in_place,
    "the class token's tensor has the right numbers, but no gradient": lambda t: (t[:, 0].detach(), t[:, 1:]),
    "the patches' tensor has the right numbers, but no gradient": lambda t: (t[:, 0], t[:, 1:].detach()),
    "this is the last token": lambda t: (t[:, -1], t[:, :-1]),
    "this is the first patch": lambda t: (t[:, 1], t[:, 1:]),
    "mean of all": lambda t: (t.mean(dim=1), t[:, 1:]),
    "axis of tokens, of length 1": lambda t: (t[:, 0:1], t[:, 1:]),
    "squeeze() takes away every axis": lambda t: (t[:, :1].squeeze(), t[:, 1:]),
    "first image with all": lambda t: (t[0], t[1:]),
    "one number of each token": lambda t: (t[..., 0], t[..., 1:]),
    "class token of one image": lambda t: (t[0, 0], t[:, 1:]),
    "one place off": lambda t: (t[:, 0], t[:, :-1]),
    "still holds the class token": lambda t: (t[:, 0], t),
    "leaves out an image": lambda t: (t[:, 0], t[1:]),
    "leaves out a number": lambda t: (t[:, 0], t[..., 1:]),
    "leaves out two": lambda t: (t[:, 0], t[:, 2:]),
    "a single token": lambda t: (t[:, 0], t[:, 1]),
    "order is exchanged": lambda t: (t[:, 1:], t[:, 0]),
    "two tensors": lambda t: t[:, 0],
}

# --- PrefixTokens ----------------------------------------------------------------------------------------


def prefix_class(make, new):
    """A layer from two functions: what __init__ keeps, and the new tokens (B, 1 + num_registers, D)."""

    class PrefixTokens(nn.Module):
        def __init__(self, embed_dim, num_registers):
            super().__init__()
            make(self, embed_dim, num_registers)

        def forward(self, tokens):
            return torch.cat([*new(self, tokens), tokens], dim=1)

    return PrefixTokens


def two_parameters(self, embed_dim, num_registers):
    self.cls = nn.Parameter(torch.zeros(embed_dim))
    self.reg = nn.Parameter(torch.randn(num_registers, embed_dim))


def two_expanded(self, tokens):
    b = tokens.shape[0]
    return self.cls.expand(b, 1, -1), self.reg.expand(b, -1, -1)


class Backwards(lesson.PrefixTokens):
    def forward(self, tokens):
        return torch.cat([tokens, self.prefix.expand(len(tokens), -1, -1)], dim=1)


class Between(lesson.PrefixTokens):
    def forward(self, tokens):
        prefix = self.prefix.expand(len(tokens), -1, -1)
        return torch.cat([prefix[:, :1], tokens, prefix[:, 1:]], dim=1)


class Filling(lesson.PrefixTokens):
    def forward(self, tokens):
        b, n, d = tokens.shape
        result = torch.empty(b, self.prefix.shape[1] + n, d)
        result[:, -n:] = tokens
        for i in range(b):
            result[i, :-n] = self.prefix[0]
        return result


def keep(shape, wrap=nn.Parameter):
    """What __init__ keeps: one tensor of a shape that follows from embed_dim and num_registers."""

    def make(self, embed_dim, num_registers):
        self.new = wrap(torch.randn(shape(embed_dim, num_registers)))
        self.num = 1 + num_registers

    return make


def expanded(self, tokens):
    return (self.new.expand(len(tokens), -1, -1),)


def drawn(self, tokens):
    return (torch.randn(len(tokens), self.num, tokens.shape[2]),)


def made_in_forward(self, tokens):
    self.new = nn.Parameter(torch.randn(len(tokens), self.num, tokens.shape[2]))
    return (self.new,)


def only_number(self, embed_dim, num_registers):
    self.num = 1 + num_registers


def one_shared(self, embed_dim, num_registers):
    two_parameters(self, embed_dim, 1)
    self.num = num_registers


class InPlace(lesson.PrefixTokens):
    def forward(self, tokens):
        result = super().forward(tokens).clone()
        tokens.zero_()
        return result


both = keep(lambda d, r: (1, 1 + r, d))
RIGHT_PREFIX = [
    prefix_class(two_parameters, two_expanded),
    prefix_class(keep(lambda d, r: (1 + r, d)), expanded),
    prefix_class(both, lambda self, tokens: (self.new.repeat(len(tokens), 1, 1),)),
    Filling,
]
WRONG_PREFIX = {
    "it is of type torch.float64": prefix_class(both, lambda s, t: (s.new.double().expand(len(t), -1, -1),)),
    "changes the tensor that it is given": InPlace,
    "no gradient flows": type(
        "WithoutGradient", (lesson.PrefixTokens,), {"forward": torch.no_grad()(lesson.PrefixTokens.forward)}
    ),
    "the patches come first": Backwards,
    "registers stand behind the patches": Between,
    "class token stands behind": prefix_class(two_parameters, lambda s, t: two_expanded(s, t)[::-1]),
    "class token is one more": prefix_class(keep(lambda d, r: (1, r, d)), expanded),
    "has one token in front": prefix_class(keep(lambda d, r: (1, 1, d)), expanded),
    "gives two results": prefix_class(only_number, drawn),
    "no optimizer will ever see": prefix_class(only_number, made_in_forward),
    "works for 2 images": prefix_class(keep(lambda d, r: (2, 1 + r, d)), lambda s, t: (s.new,)),
    "works for one image": prefix_class(both, lambda self, tokens: (self.new,)),
    "are the same vector": prefix_class(
        one_shared, lambda s, t: (s.cls.expand(len(t), 1, -1), s.reg.expand(len(t), s.num, -1))
    ),
    "is never trained": prefix_class(keep(lambda d, r: (1, 1 + r, d), wrap=lambda t: t), expanded),
    "One vector for each new token": prefix_class(
        keep(lambda d, r: (1, 2 + r, d)), lambda s, t: (s.new[:, :-1].expand(len(t), -1, -1),)
    ),
    "different tokens in front": prefix_class(
        keep(lambda d, r: (64, 1 + r, d)), lambda s, t: (s.new[: len(t)],)
    ),
    "no gradient reaches new": prefix_class(both, lambda s, t: (s.new.detach().expand(len(t), -1, -1),)),
    "no nn.Module": lambda embed_dim, num_registers: torch.zeros(1, 1 + num_registers, embed_dim),
}


# --- all of them -----------------------------------------------------------------------------------------

WRONG = {"add_class_token": WRONG_ADD, "split_tokens": WRONG_SPLIT, "PrefixTokens": WRONG_PREFIX}
RIGHT = {
    "add_class_token": [in_a_loop, by_filling, by_einops],
    "split_tokens": [
        lambda t: [t.select(1, 0), t.narrow(1, 1, t.shape[1] - 1)],
        lambda t: (t[:, :1].squeeze(1), t[:, -(t.shape[1] - 1) :]),
        lambda t: (torch.stack([image[0] for image in t]), torch.stack([image[1:] for image in t])),
    ],
    "PrefixTokens": RIGHT_PREFIX,
}


@pytest.mark.parametrize(
    "name, words, answer",
    [(name, words, answer) for name, answers in WRONG.items() for words, answer in answers.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_usual_mistake_is_named(capsys, name, words, answer):
    """Fails where a wrong answer passes, or is refused for another mistake. Random sizes, so many tries."""
    for _ in range(10):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and words in printed and not accepted, printed


FIXED = [  # right for one number of tokens, or one width
    ("add_class_token", lambda t, c: torch.cat([c.expand(len(t), -1, -1), t[:, -7:]], dim=1)),
    ("add_class_token", lambda t, c: torch.cat([c.expand(len(t), -1, 9), t], dim=1)),
    ("split_tokens", lambda t: (t[:, 0], t[:, -7:])),
    ("PrefixTokens", prefix_class(keep(lambda d, r: (1, 1 + r, 11)), expanded)),
]


@pytest.mark.parametrize("name, answer", FIXED)
def test_an_answer_for_one_size_is_refused(capsys, name, answer):
    """Fails where all the sizes that a check tries are the same."""
    for _ in range(10):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_right_answer_passes(capsys, name):
    """Fails where a check asks for one way to write it."""
    for answer in [*RIGHT[name], REFERENCE[name]]:
        for _ in range(10):
            printed, accepted = verdict(capsys, answer, name)
            assert printed.startswith("[ok]") and accepted, printed


def unfilled_layer(*_):
    """As the stub of the exercise: everything is still to do."""
    layer = nn.Module()
    layer.forward = lambda tokens: TODO
    return layer


@pytest.mark.parametrize(
    "name, answer",
    [("add_class_token", lambda *_: TODO), ("split_tokens", lambda _: TODO), ("PrefixTokens", unfilled_layer),
     ("split_tokens", lambda _: (TODO, TODO)), ("PrefixTokens", TODO)],
)  # fmt: skip
def test_an_unfilled_stub_is_not_done_yet(capsys, name, answer):
    if answer is TODO:
        checks.value(name, answer)
        assert capsys.readouterr().out.startswith("[todo]")
        return
    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[todo]") and not accepted


def forgets_return(*_):
    layer = nn.Module()
    layer.forward = lambda tokens: None
    return layer


@pytest.mark.parametrize(
    "name, answer",
    [
        ("add_class_token", lambda *_: None),
        ("split_tokens", lambda _: None),
        ("PrefixTokens", forgets_return),
    ],
)
def test_a_missing_return_is_told(capsys, name, answer):
    """Fails where a learner who has worked is told that nothing was begun."""
    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "Does it end with return?" in printed and not accepted


def test_the_stored_runs_are_those_of_the_script():
    """Fails where the script's settings changed and it was not run again, or where a run is missing."""
    script = runpy.run_path(str(build_notebooks.ROOT / "experiments" / "class_token.py"))
    stored = results.load("class_token")
    assert stored["config"] == json.loads(json.dumps(script["CONFIG"]))  # pairs are lists in JSON
    assert stored["seeds"] == script["SEEDS"]
    runs = [(run["pool"], run["setting"], run["seed"]) for run in stored["runs"]]
    wanted = itertools.product(("class", "mean"), script["CONFIG"]["settings"], script["SEEDS"])
    assert sorted(runs) == sorted(wanted)


def test_an_unanswered_question_is_not_done_yet(capsys):
    checks.value("shape with a class token", TODO)
    assert capsys.readouterr().out.startswith("[todo]")


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def answer(tokens, *_):
        return tokens.reshape(13, 17)  # no such shape

    if name == "PrefixTokens":
        answer = type(name, (lesson.PrefixTokens,), {"forward": lambda self, tokens: tokens.reshape(13, 17)})
    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "tokens.reshape(13, 17)" in printed and not accepted
