"""Checks of lesson 05: usual mistakes are refused in words that help, right answers pass however written."""

import json
import runpy

import build_notebooks
import pytest
import torch
from checking import judged_against
from einops import reduce
from torch import nn
from torch.nn import functional

from vitlib import results
from vitlib.checks import TODO
from vitlib.checks import encoder as lesson
from vitlib.encoder import EncoderBlock

verdict = judged_against(lambda name: getattr(lesson, name))


# --- layer_norm -----------------------------------------------------------------------------------------


def norm_with(dim=-1, unbiased=False):
    def layer_norm(tokens, weight, bias, eps):
        mean, variance = tokens.mean(dim, keepdim=True), tokens.var(dim, unbiased=unbiased, keepdim=True)
        return (tokens - mean) / torch.sqrt(variance + eps) * weight + bias

    return layer_norm


def norm_by_std(tokens, weight, bias, eps, unbiased=True):
    std = tokens.std(-1, keepdim=True, unbiased=unbiased)
    return weight * (tokens - tokens.mean(-1, keepdim=True)) / (std + eps) + bias


def norm_in_place(tokens, weight, bias, eps):
    """In place, on the tensor that it was given: wrong. `own` makes it right."""
    tokens -= tokens.mean(dim=2, keepdim=True)
    tokens /= (tokens.pow(2).mean(dim=2, keepdim=True) + eps) ** 0.5
    tokens *= weight
    tokens += bias
    return tokens


def own(function):
    """The same on a copy of the tokens."""
    return lambda tokens, *more: function(tokens.clone(), *more)


def norm_in_loops(x, gamma, beta, e):
    rows = []
    for picture in x:
        for token in picture:
            m = sum(token) / len(token)
            v = sum((n - m) ** 2 for n in token) / len(token)
            rows.append(torch.stack([(n - m) / (v + e) ** 0.5 for n in token]) * gamma + beta)
    return torch.stack(rows).view(x.shape)


def norm_by_einops(tokens, weight, bias, eps):
    centred = tokens - reduce(tokens, "b t d -> b t 1", "mean")
    return centred * torch.rsqrt(reduce(centred**2, "b t d -> b t 1", "mean") + eps) * weight + bias


WRONG_LAYER_NORM = {
    "unbiased variance": norm_with(unbiased=True),
    "eps stands outside": lambda x, w, b, eps: norm_by_std(x, w, b, eps, unbiased=False),
    "two things": norm_by_std,
    "eps is missing": lambda x, w, b, eps: norm_with()(x, w, b, 0),
    "another number stands in its place": lambda x, w, b, eps: norm_with()(x, w, b, 1e-6),
    "the root is missing": lambda x, w, b, eps: (
        (x - x.mean(-1, True)) / (x.var(-1, False, True) + eps) * w + b
    ),
    "mean is not subtracted": lambda x, w, b, eps: x / (x.var(-1, False, True) + eps).sqrt() * w + b,
    "mean distance from the mean": lambda x, w, b, eps: (
        (y := x - x.mean(-1, True)) / (y.abs().mean(-1, True) + eps) * w + b
    ),
    "not divided by the root": lambda x, w, b, eps: (x - x.mean(-1, True)) * w + b,
    "over the tokens (dim=1)": norm_with(1),
    "over the pictures of the batch": norm_with(0),
    "that is BatchNorm": norm_with((0, 1)),
    "over a whole picture": norm_with((1, 2)),
    "over all numbers": norm_with((0, 1, 2)),
    "weight and bias are forgotten": lambda x, w, b, eps: functional.layer_norm(x, w.shape, eps=eps),
    "bias is forgotten": lambda x, w, b, eps: functional.layer_norm(x, w.shape, w, eps=eps),
    "weight is forgotten": lambda x, w, b, eps: functional.layer_norm(x, w.shape, None, b, eps),
    "bias is added too early": lambda x, w, b, eps: (functional.layer_norm(x, w.shape, eps=eps) + b) * w,
    "added to each other": lambda x, w, b, eps: functional.layer_norm(x, w.shape, eps=eps) * (w + b),
    "with keepdim=True": lambda x, w, b, eps: (x - x.mean(-1)) / (x.var(-1, False) + eps).sqrt() * w + b,
    "should have shape": lambda x, w, b, eps: norm_with()(x, w, b, eps)[0],
    "changes the tensor that it is given": norm_in_place,
    "no gradient flows": torch.no_grad()(norm_with()),
    "no gradient reaches weight": lambda x, w, b, eps: norm_with()(x, w.detach(), b, eps),
    "should be of type torch.float32": lambda *inputs: norm_with()(*inputs).double(),
}


# --- drop_path ------------------------------------------------------------------------------------------


def drop(shape, exchanged=False, divide=True, in_evaluation=False):
    """DropPath with a draw of this shape for (B, T, D), right or wrong."""

    def drop_path(tokens, rate, training):
        if not training and not in_evaluation:
            return tokens
        chance = rate if exchanged else 1 - rate
        sizes = [size if letter != "1" else 1 for size, letter in zip(tokens.shape, shape)]
        kept = (torch.rand(sizes) < chance).float()
        return tokens * kept / (1 - rate) if divide else tokens * kept

    return drop_path


def drop_in_place(tokens, rate, training):
    if training:
        gone = torch.rand(len(tokens)) < rate
        tokens[gone] = 0
        tokens /= 1 - rate
    return tokens


def drop_by_dropout(tokens, rate, training):
    return tokens * functional.dropout(torch.ones(tokens.shape[0], 1, 1), rate, training)


def drop_in_a_loop(x, p, training):
    if not training:
        return x
    return torch.stack([picture * 0 if torch.rand(()) < p else picture / (1 - p) for picture in x])


def drop_with_a_seed(tokens, rate, training):
    if not training:
        return tokens
    generator = torch.Generator().manual_seed(0)
    return tokens * (torch.rand(len(tokens), 1, 1, generator=generator) >= rate) / (1 - rate)


def drop_multiplied(tokens, rate, training):
    return drop("b11", divide=False)(tokens, rate, training) * (1 - rate if training else 1)


WRONG_DROP_PATH = {
    "left on in evaluation": drop("b11", in_evaluation=True),
    "in evaluation, the result: it is multiplied by 1 - rate": lambda x, rate, training: (
        drop("b11", divide=False)(x, rate, training) * (1 if training else 1 - rate)
    ),
    "in evaluation, the result: it is divided": lambda x, rate, training: (
        drop("b11")(x, rate, training) / (1 if training else 1 - rate)
    ),
    "not rescaled": drop("b11", divide=False),
    "multiplied by 1 - rate. Divide": drop_multiplied,
    "divided by rate": lambda x, rate, training: (
        drop("b11", divide=False)(x, rate, training) / (rate if training else 1)
    ),
    "one draw for the whole batch": drop("111"),
    "single numbers are dropped": lambda x, rate, training: functional.dropout(x, rate, training),
    "tokens are dropped one by one": drop("bt1"),
    "channels are dropped one by one": drop("b1d"),
    "Exchange them": lambda x, rate, training: drop("b11", exchanged=True)(x, rate, training),
    "nothing is dropped": lambda x, rate, training: x,
    "is (B, 1, 1)": lambda x, rate, training: x * (torch.rand(len(x)) > rate) if training else x,
    "two calls drop the same": drop_with_a_seed,
    "the result: everything is dropped": lambda x, rate, training: x * 0,
    "in training everything is dropped": lambda x, rate, training: x * 0 if training else x,
    "changes the tensor that it is given": drop_in_place,
    "no gradient flows": torch.no_grad()(drop("b11")),
    "should be of type torch.float32": lambda x, rate, training: (
        drop("b11")(x, rate, training).double() if training else x
    ),
    "for a single image, the result should have": lambda x, rate, training: drop("b11")(x, rate, training)[
        slice(None) if len(x) > 1 else 0
    ],
    "not by 1 / (1 - rate)": lambda x, rate, training: (
        drop("b11", divide=False)(x, rate, training) / ((1 - rate) ** 2 if training else 1)
    ),
}


# --- encode ---------------------------------------------------------------------------------------------


def stack(step, final=True):
    """A whole answer from what one block does."""

    def encode(tokens, blocks, norm):
        for block in blocks:
            tokens = step(tokens, lambda x: block.attention(x)[0], block.mlp, block.norm1, block.norm2)  # noqa: B023
        return norm(tokens) if final else tokens

    return encode


def pre(x, a, m, n1, n2):
    x = x + a(n1(x))
    return x + m(n2(x))


def post(x, a, m, n1, n2):
    x = n1(x + a(x))
    return n2(x + m(x))


def from_the_normed(x, a, m, n1, n2):
    x = n1(x)
    x = x + a(x)
    x = n2(x)
    return x + m(x)


def from_the_normed_attention(x, a, m, n1, n2):
    x = n1(x)
    x = x + a(x)
    return x + m(n2(x))


def from_the_normed_mlp(x, a, m, n1, n2):
    x = x + a(n1(x))
    x = n2(x)
    return x + m(x)


def with_dropout(x, a, m, n1, n2):
    x = x + functional.dropout(a(n1(x)), 0.1)
    return x + functional.dropout(m(n2(x)), 0.1)


def two_steps(attention=True, mlp=True, norms=(1, 2)):
    """A residual that is left out, or another norm than norm1 and norm2."""

    def step(x, a, m, *both):
        first, second = (both[number - 1] if number else nn.Identity() for number in norms)
        x = attention * x + a(first(x))
        return mlp * x + m(second(x))

    return step


def encode_in_place(tokens, blocks, norm):
    for block in blocks:
        mixed, _ = block.attention(block.norm1(tokens))
        tokens += mixed
        tokens += block.mlp(block.norm2(tokens))
    return norm(tokens)


def encode_backwards(x, blocks, last):
    """The same as a recursion, with other names."""
    if not blocks:
        return last(x)
    block, *others = blocks
    y = block.attention(block.norm1(x), return_attention=True)[0] + x
    z = torch.add(block.mlp(block.norm2(y)), y)
    return encode_backwards(z, others, last)


def encode_from_the_input(tokens, blocks, norm):
    for block in blocks:
        out = pre(tokens, lambda x: block.attention(x)[0], block.mlp, block.norm1, block.norm2)  # noqa: B023
    return norm(out)


def encode_the_pair(tokens, blocks, norm):
    for block in blocks:
        tokens = tokens + block.attention(block.norm1(tokens))
    return norm(tokens)


def encode_by_calling(tokens, blocks, norm):
    for block in blocks:
        tokens, _ = block(tokens)
    return norm(tokens)


def encode_with_norms_between(tokens, blocks, norm):
    for block in blocks:
        tokens = stack(pre)(tokens, [block], norm)
    return tokens


WRONG_ENCODE = {
    "this is post-norm": stack(post),
    "And the last norm, equation 4, is missing": stack(post, final=False),
    "the last norm is forgotten": stack(pre, final=False),
    "after every block": encode_with_norms_between,
    "what each branch finds is added to the normed": stack(from_the_normed),
    "what attention finds is added to the normed": stack(from_the_normed_attention),
    "what the MLP finds is added to the normed": stack(from_the_normed_mlp),
    "both residuals are forgotten": stack(two_steps(attention=False, mlp=False)),
    "residual around attention": stack(two_steps(attention=False)),
    "residual around the MLP": stack(two_steps(mlp=False)),
    "norm1 is used twice": stack(two_steps(norms=(1, 1))),
    "norm2 is used twice": stack(two_steps(norms=(2, 2))),
    "norms are exchanged": stack(two_steps(norms=(2, 1))),
    "both norms of the block": stack(two_steps(norms=(0, 0))),
    "norm1 is forgotten": stack(two_steps(norms=(0, 2))),
    "norm2 is forgotten": stack(two_steps(norms=(1, 0))),
    "side by side": stack(lambda x, a, m, n1, n2: x + a(n1(x)) + m(n2(x))),
    "reads what attention found, alone": stack(
        lambda x, a, m, n1, n2: (y := a(n1(x))) + x + m(n2(y))
    ),
    "the first sum is left out": stack(lambda x, a, m, n1, n2: x + m(n2(a(n1(x))))),
    "begins at the block's input": stack(lambda x, a, m, n1, n2: x + m(n2(x + a(n1(x))))),
    "MLP comes before": stack(lambda x, a, m, n1, n2: pre(x, m, a, n2, n1)),
    "come after the branches": stack(lambda x, a, m, n1, n2: (y := x + n1(a(x))) + n2(m(y))),
    "functional.dropout drops": stack(with_dropout),
    "Is return inside": lambda tokens, blocks, norm: stack(pre)(tokens, blocks[:1], norm),
    "only the last block": encode_from_the_input,
    "reverse order": lambda tokens, blocks, norm: stack(pre)(tokens, blocks[::-1], norm),
    "no block was applied": lambda tokens, blocks, norm: norm(tokens),
    "mixed, _ = ...attention": encode_the_pair,
    "only its four parts": encode_by_calling,
    "There is no norm_1": lambda tokens, blocks, norm: norm(tokens + blocks[0].norm_1(tokens)),
    "one token of each picture": lambda tokens, blocks, norm: stack(pre)(tokens, blocks, norm)[:, 0],
    "changes the tensor that it is given": encode_in_place,
    "no gradient flows": torch.no_grad()(stack(pre)),
    "no gradient reaches blocks[0].attention": stack(
        lambda x, a, m, n1, n2: pre(x, lambda y: a(y).detach(), m, n1, n2)
    ),
    "the tokens alone": lambda tokens, blocks, norm: (stack(pre)(tokens, blocks, norm), None),
}


# --- LayerScaleBlock ------------------------------------------------------------------------------------


class Scaled(EncoderBlock):
    """A right answer. The wrong ones below change one method."""

    def __init__(self, embed_dim, num_heads, initial=1e-4):
        super().__init__(embed_dim, num_heads)
        self.make(embed_dim, initial)

    def make(self, embed_dim, initial):
        self.s1 = nn.Parameter(initial * torch.ones(embed_dim))
        self.s2 = nn.Parameter(initial * torch.ones(embed_dim))

    def step(self, x, a, m, n1, n2):
        x = x + self.s1 * a(n1(x))
        return x + self.s2 * m(n2(x))

    def forward(self, tokens, return_attention=False):
        weights = self.attention(self.norm1(tokens), return_attention)[1]
        branches = (lambda x: self.attention(x)[0], self.mlp, self.norm1, self.norm2)
        return self.step(tokens, *branches), weights


class OtherOrder(EncoderBlock):
    """Scales of another shape, defined and used the other way round, in a list, with drop_path."""

    def __init__(self, width, heads, initial=1e-4):
        super().__init__(width, heads)
        self.gamma = nn.ParameterList(nn.Parameter(torch.full((1, 1, width), initial)) for _ in range(2))

    def forward(self, x, return_attention=False):
        found, weights = self.attention(self.norm1(x), return_attention=return_attention)
        x = self.drop_path(found * self.gamma[1]) + x
        return x + self.drop_path(self.gamma[0] * self.mlp(self.norm2(x))), weights


class ByDiagonal(Scaled):
    """The scale as a matrix product with a diagonal matrix."""

    def step(self, x, a, m, n1, n2):
        x = x + a(n1(x)) @ torch.diag(self.s1)
        return x + m(n2(x)) @ torch.diag(self.s2)


class OneMatrix(Scaled):
    """Both scales as the rows of one parameter."""

    def make(self, embed_dim, initial):
        self.both = nn.Parameter(torch.full((2, embed_dim), initial))

    def step(self, x, a, m, n1, n2):
        x = x + torch.einsum("btd,d->btd", a(n1(x)), self.both[0])
        return x + torch.einsum("btd,d->btd", m(n2(x)), self.both[1])


def changed(make=None, step=None, forward=None):
    """A block with one method of `Scaled` exchanged."""
    methods = {"make": make, "step": step, "forward": forward}
    return type("LayerScaleBlock", (Scaled,), {name: method for name, method in methods.items() if method})


def scales(make):
    """A block whose two scales are what `make(embed_dim, initial)` gives."""

    def make_both(self, embed_dim, initial):
        self.s1, self.s2 = make(embed_dim, initial), make(embed_dim, initial)

    return changed(make_both)


def one_scale(self, embed_dim, initial):
    self.s1 = self.s2 = nn.Parameter(torch.full((embed_dim,), initial))


def three_scales(self, embed_dim, initial):
    Scaled.make(self, embed_dim, initial)
    self.s3 = nn.Parameter(torch.ones(1))


def scales_for_tokens(self, embed_dim, initial):
    self.s1, self.s2 = nn.Parameter(torch.ones(5, embed_dim)), nn.Parameter(torch.ones(5, embed_dim))


def no_scale(self, embed_dim, initial):
    self.s1 = self.s2 = 1.0


def on_the_residual(self, x, a, m, n1, n2):
    x = self.s1 * x + a(n1(x))
    return self.s2 * x + m(n2(x))


def on_the_sum(self, x, a, m, n1, n2):
    x = self.s1 * (x + a(n1(x)))
    return self.s2 * (x + m(n2(x)))


def on_the_input(self, x, a, m, n1, n2):
    x = x + a(self.s1 * n1(x))
    return x + m(self.s2 * n2(x))


def scaled_post(self, x, a, m, n1, n2):
    x = n1(x + self.s1 * a(x))
    return n2(x + self.s2 * m(x))


def attention_only(self, x, a, m, n1, n2):
    return pre(x, lambda y: self.s1 * a(y), m, n1, n2)


def mlp_only(self, x, a, m, n1, n2):
    return pre(x, a, lambda y: self.s2 * m(y), n1, n2)


def first_scale_twice(self, x, a, m, n1, n2):
    return pre(x, lambda y: self.s1 * a(y), lambda y: self.s1 * m(y), n1, n2)


def whole_block(self, x, a, m, n1, n2):
    return x + self.s1 * (pre(x, a, m, n1, n2) - x)


def without_residual(self, x, a, m, n1, n2):
    x = self.s1 * a(n1(x))
    return self.s2 * m(n2(x))


def norm_twice(self, x, a, m, n1, n2):
    return Scaled.step(self, x, a, m, n1, n1)


def detached_scale(self, x, a, m, n1, n2):
    x = x + self.s1.data * a(n1(x))
    return x + self.s2 * m(n2(x))


def scaled_with_a_stop(self, x, a, m, n1, n2):
    x = x + self.s1 * a(n1(x))
    x += self.s2 * m(n2(x))
    return x


class TwoHeads(Scaled):
    def __init__(self, embed_dim, num_heads, initial=1e-4):
        super().__init__(embed_dim, 2, initial)


def scaled_in_place(self, tokens, return_attention=False):
    mixed, weights = self.attention(self.norm1(tokens), return_attention)
    tokens += self.s1 * mixed
    return tokens + self.s2 * self.mlp(self.norm2(tokens)), weights


def scaled_side_by_side(self, x, a, m, n1, n2):
    return x + self.s1 * a(n1(x)) + self.s2 * m(n2(x))


def scaled_dropout(self, x, a, m, n1, n2):
    return functional.dropout(Scaled.step(self, x, a, m, n1, n2), 0.1)


def scaled_pair(self, tokens, return_attention=False):
    tokens = tokens + self.s1 * self.attention(self.norm1(tokens), return_attention)
    return tokens + self.s2 * self.mlp(self.norm2(tokens)), None


def tokens_alone(self, tokens, return_attention=False):
    return Scaled.forward(self, tokens)[0]


def without_attention(self, tokens, return_attention=False):
    return Scaled.forward(self, tokens)[0], None


def always_attention(self, tokens, return_attention=False):
    return Scaled.forward(self, tokens, True)


def scale_added(self, x, a, m, n1, n2):
    x = x + self.s1 + a(n1(x))
    return x + self.s2 + m(n2(x))


WRONG_LAYER_SCALE = {
    "there is no new parameter": changed(no_scale),
    "is a plain tensor": scales(lambda width, initial: torch.full((width,), initial)),
    "there is one new parameter": changed(one_scale),
    "there are 3 new parameters": changed(three_scales),
    "is a single number": scales(lambda width, initial: nn.Parameter(torch.tensor(initial))),
    "One number for each channel": changed(scales_for_tokens, lambda self, *parts: pre(*parts)),
    "requires_grad=False": scales(lambda width, initial: nn.Parameter(torch.full((width,), initial), False)),
    "starts at 1 ... 1": scales(lambda width, initial: nn.Parameter(torch.ones(width))),
    "multiplies the residual": changed(step=on_the_residual),
    "multiplies the whole sum": changed(step=on_the_sum),
    "multiplies what goes into": changed(step=on_the_input),
    "this is post-norm": changed(step=scaled_post),
    "only attention is scaled": changed(step=attention_only),
    "only the MLP is scaled": changed(step=mlp_only),
    "used for both branches": changed(step=first_scale_twice),
    "the whole block adds": changed(step=whole_block),
    "residuals are forgotten": changed(step=without_residual),
    "the scale is added": changed(step=scale_added),
    "norm1 is used twice": changed(step=norm_twice),
    "no gradient flows": changed(forward=torch.no_grad()(Scaled.forward)),
    "no gradient reaches s1": changed(step=detached_scale),
    "backward() stops": changed(step=scaled_with_a_stop),
    "Pass the argument on": TwoHeads,
    "changes the tensor that it is given": changed(forward=scaled_in_place),
    "what attention has already added": changed(step=scaled_side_by_side),
    "functional.dropout drops": changed(step=scaled_dropout),
    "forward does not use them": changed(step=lambda self, *parts: pre(*parts)),
    "mixed, _ = ...attention": changed(forward=scaled_pair),
    "forward gives back two things": changed(forward=tokens_alone),
    "Pass it on": changed(forward=without_attention),
    "should be None": changed(forward=always_attention),
}


WRONG = {
    "layer_norm": WRONG_LAYER_NORM,
    "drop_path": WRONG_DROP_PATH,
    "encode": WRONG_ENCODE,
    "LayerScaleBlock": WRONG_LAYER_SCALE,
}
RIGHT = {
    "layer_norm": [norm_with(), own(norm_in_place), norm_in_loops, norm_by_einops],
    "drop_path": [drop("b11"), own(drop_in_place), drop_by_dropout, drop_in_a_loop],
    "encode": [stack(pre), own(encode_in_place), encode_backwards],
    "LayerScaleBlock": [Scaled, OtherOrder, ByDiagonal, OneMatrix],
}


@pytest.mark.parametrize(
    "name, words, answer",
    [(name, words, answer) for name, answers in WRONG.items() for words, answer in answers.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_usual_mistake_is_named(capsys, name, words, answer):
    """Fails where a wrong answer passes, or is refused for another mistake. Three random tries."""
    for _ in range(3):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and words in printed and not accepted, printed


FIXED = [
    ("layer_norm", lambda x, w, b, eps: norm_with()(x.squeeze(), w, b, eps)),
    ("drop_path", lambda x, rate, training: functional.dropout(torch.ones(2000, 1, 1), rate, training) * x),
    ("encode", lambda x, blocks, norm: stack(pre)(x, [blocks[number] for number in range(3)], norm)),
    ("encode", lambda x, blocks, norm: stack(pre)(x.squeeze(), blocks, norm)),
]


@pytest.mark.parametrize("name, answer", FIXED, ids=lambda value: value if isinstance(value, str) else "")
def test_sizes_that_are_written_as_numbers_are_refused(capsys, name, answer):
    """Fails where a check always asks with the same batch, length, depth or number of heads."""
    for _ in range(5):
        printed, accepted = verdict(capsys, answer, name)
        assert printed.startswith("[not yet]") and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_right_answer_passes(capsys, name):
    """Fails where a check asks for one way to write it, or for more exact numbers than float32 gives."""
    for answer in [*RIGHT[name], getattr(lesson, name)]:
        for _ in range(5):
            printed, accepted = verdict(capsys, answer, name)
            assert printed.startswith("[ok]") and accepted, printed


@pytest.mark.parametrize("name", ["layer_norm", "drop_path", "encode"])
@pytest.mark.parametrize("unfilled", [TODO, ...], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    printed, accepted = verdict(capsys, lambda *_: unfilled, name)
    assert printed.startswith("[todo]") and not accepted


@pytest.mark.parametrize("unfilled", [TODO, ..., (TODO, None)], ids=str)
def test_an_unfilled_class_is_not_done_yet(capsys, unfilled):
    printed, accepted = verdict(capsys, changed(forward=lambda *_: unfilled), "LayerScaleBlock")
    assert printed.startswith("[todo]") and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_a_forgotten_return_is_named(capsys, name):
    answer = changed(forward=lambda *_: None) if name == "LayerScaleBlock" else lambda *_: None
    printed, accepted = verdict(capsys, answer, name)
    assert "Does it end with return?" in printed and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def answer(tokens, *_):
        return tokens.reshape(1301)  # no such shape

    if name == "LayerScaleBlock":
        answer = changed(forward=lambda self, tokens: tokens.reshape(1301))
    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "tokens.reshape(1301)" in printed and not accepted


def test_the_stored_losses_are_those_of_the_script():
    """Fails where the script's settings changed and it was not run again, or where a run is missing."""
    script = runpy.run_path(str(build_notebooks.ROOT / "experiments" / "encoder.py"))
    stored = results.load("encoder")
    assert stored["config"] == script["CONFIG"] and stored["seeds"] == script["SEEDS"]
    assert list(stored["losses"]) == script["KINDS"]
    for runs in stored["losses"].values():
        assert list(runs) == [str(seed) for seed in script["SEEDS"]]
        assert {len(run) for run in runs.values()} == {script["CONFIG"]["steps"] // script["CONFIG"]["every"]}


def test_a_resumed_experiment_names_all_its_seeds(monkeypatch, tmp_path):
    """Fails where a file that was begun with fewer seeds keeps their list."""
    script = runpy.run_path(str(build_notebooks.ROOT / "experiments" / "encoder.py"))
    file, module = tmp_path / "encoder.json", script["main"].__globals__
    monkeypatch.setitem(module, "STORED", file)
    monkeypatch.setitem(module, "train", lambda *_: [1.0])
    for seeds in ([0], [0, 1]):
        monkeypatch.setitem(module, "SEEDS", seeds)
        script["main"]()
        assert json.loads(file.read_text())["seeds"] == seeds
