"""Checks of lesson 04: usual mistakes are refused in words that help, right answers pass however written."""

import math

import numpy as np
import pytest
import torch
from checking import judged_against
from einops import einsum, rearrange
from torch.nn.functional import scaled_dot_product_attention

from vitlib import checks
from vitlib.checks import TODO
from vitlib.checks import attention as lesson

INPUTS = {
    "look_up": [torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 4)],
    "split_heads": [torch.rand(2, 5, 12), 3],
    "merge_heads": [torch.rand(2, 3, 5, 4)],
    "masked_look_up": [*torch.rand(3, 2, 3, 5, 4), torch.ones(5, 5).tril() > 0],
}


verdict = judged_against(lambda name: getattr(lesson, name))


def by_hand(capsys, number):
    checks.value("what the ear takes", number)
    return capsys.readouterr().out


# --- by hand -------------------------------------------------------------------------------------------


def toy():
    query = torch.tensor([[1, 1], [0, 1], [1, 2.0]])
    key = torch.tensor([[0, 0], [2, 0], [0, 1.0]])
    return query, key, torch.tensor([[1, 1], [4, 0], [0, 8.0]])


def toy_mistakes():
    """Words of the diagnosis -> the number that the mistake gives, computed from the lesson's toy."""
    query, key, value = toy()
    scores = query @ key.T
    right = scores.softmax(dim=1) @ value
    return {
        "first number": right[1, 0],
        "class token takes": right[0, 1],
        "grass takes": right[2, 1],
        "those of a column": (scores.softmax(dim=0) @ value)[1, 1],
        "ear's key asked": (scores.T.softmax(dim=1) @ value)[1, 1],
        "divided the scores by √2": ((scores / math.sqrt(2)).softmax(dim=1) @ value)[1, 1],
        "mixed with the scores": (scores @ value)[1, 1],
        "Divide each by the sum": (scores.exp() @ value)[1, 1],
        "share of the grass": scores.softmax(dim=1)[1, 2],
        "class token's part is missing": scores.softmax(dim=1)[1, 2] * 8,
        "4 is not it": 4,
        "4.9 is not it": 4.9,
        "nan is not it": math.nan,
        "expected one number": "five",
    }


@pytest.mark.parametrize("words, number", toy_mistakes().items(), ids=toy_mistakes())
def test_a_slip_in_the_hand_calculation_is_named(capsys, words, number):
    """Fails where the words belong to another slip, or the check uses another toy than the lesson."""
    printed = by_hand(capsys, number)
    assert printed.startswith("[not yet]") and words in printed, printed


@pytest.mark.parametrize("number", [4.82, 4.8, 4.83, 4.85, (1 + 8 * math.e) / 4.718, torch.tensor(4.8209)])
def test_a_right_hand_calculation_passes(capsys, number):
    assert by_hand(capsys, number).startswith("[ok]")


def test_no_number_is_not_done_yet(capsys):
    assert by_hand(capsys, TODO).startswith("[todo]")


# --- look_up -------------------------------------------------------------------------------------------


def attention(query, key, value, scale=None, axis=-1):
    """Right as it is, and wrong in the usual ways."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = (query @ key.transpose(-2, -1) * scale).softmax(dim=axis)
    return weights @ value, weights


def look_up_by_einsum(query, key, value):
    scores = torch.einsum("...id,...jd->...ij", query, key)
    a = torch.softmax(scores / math.sqrt(query.size(-1)), -1)
    return torch.einsum("...ij,...jd->...id", a, value), a


def look_up_in_loops(query, key, value):
    weights = torch.zeros(*query.shape[:-1], key.shape[-2])
    for i in range(query.shape[-2]):
        for j in range(key.shape[-2]):
            weights[..., i, j] = (query[..., i, :] * key[..., j, :]).sum(-1) / query.shape[-1] ** 0.5
    weights = weights.exp()
    weights /= weights.sum(dim=-1, keepdim=True)
    return weights @ value, weights


def look_up_fused(q, k, v):
    one_hot = torch.eye(k.shape[-2]).expand(*k.shape[:-1], -1)
    return scaled_dot_product_attention(q, k, v), scaled_dot_product_attention(q, k, one_hot)


def look_up_in_place(query, key, value):
    query /= query.shape[-1] ** 0.5
    return (weights := (query @ key.mT).softmax(-1)) @ value, weights


def untrained(function):
    """A right answer that no gradient passes."""
    return torch.no_grad()(function)


def by_numpy(function):
    """An answer that leaves torch for NumPy: its numbers are right, but they come from nowhere."""
    return lambda x, *more: torch.from_numpy(np.array(function(x.detach(), *more).numpy()))


def doubled(function):
    return lambda *inputs: tuple(part.double() for part in function(*inputs))


def look_up_whole_softmax(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.flatten(-2).softmax(-1).view_as(scores)
    return weights @ v, weights


def scaled_after(q, k, v):
    weights = (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5
    return weights @ v, weights


def unfinished(function):
    """The weights replaced by a function of the scaled scores."""

    def answer(q, k, v):
        weights = function(q @ k.mT / q.shape[-1] ** 0.5)
        return weights @ v, weights

    return answer


def not_transposed(q, k, v):
    weights = (q @ k / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v, weights


def for_one_matrix(q, k, v):
    weights = (q @ k.transpose(0, 1) / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v, weights


def for_four_axes(q, k, v):
    weights = (einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v, weights


def with_weights(mix):
    """Right weights, and `mixed` from a wrong product."""
    return lambda q, k, v: (mix(weights := attention(q, k, v)[1], q, k, v), weights)


WRONG_LOOK_UP = {
    "not divided by √d": lambda q, k, v: attention(q, k, v, scale=1),
    "√D, the width of the whole token": lambda q, k, v: attention(
        q, k, v, (q.shape[1] * q.shape[-1]) ** -0.5
    ),
    "** 1/2 means": lambda q, k, v: attention(q, k, v, 1 / q.shape[-1] ** 1 / 2),
    "1/2 means": lambda q, k, v: attention(q, k, v, 1 / (q.shape[-1] ** 1 / 2)),
    "divided by √2": lambda q, k, v: attention(q, k, v, 2**-0.5),
    "by d, and not by its square root": lambda q, k, v: attention(q, k, v, 1 / q.shape[-1]),
    "multiplied by √d": lambda q, k, v: attention(q, k, v, q.shape[-1] ** 0.5),
    "√T, the number of tokens": lambda q, k, v: attention(q, k, v, q.shape[-2] ** -0.5),
    "root of axis 1": lambda q, k, v: attention(q, k, v, q.shape[1] ** -0.5),
    "down the columns": lambda q, k, v: attention(q, k, v, axis=-2),
    "over both token axes": look_up_whole_softmax,
    "axis 1, which is the heads": lambda q, k, v: attention(q, k, v, axis=1),
    "axis 0, which is the images": lambda q, k, v: attention(q, k, v, axis=0),
    "not divided by √d. the softmax runs down": lambda q, k, v: attention(q, k, v, scale=1, axis=-2),
    "query and key have changed places": lambda q, k, v: attention(k, q, v),
    "weights are divided by √d": scaled_after,
    "softmax of a softmax": unfinished(lambda scores: scores.softmax(-1).softmax(-1)),
    "these are the scores": unfinished(lambda scores: scores),
    "every number is e^score": unfinished(torch.exp),
    "key is not transposed": not_transposed,
    "right for one matrix (T, d), and stops": for_one_matrix,
    "not for (T, d). Count axes": for_four_axes,
    "weights are transposed here": with_weights(lambda weights, q, k, v: weights.mT @ v),
    "mix the keys": with_weights(lambda weights, q, k, v: weights @ k),
    "mix the queries": with_weights(lambda weights, q, k, v: weights @ q),
    "keeps its own value": with_weights(lambda weights, q, k, v: v),
    "result is divided": with_weights(lambda weights, q, k, v: weights @ v / q.shape[-1] ** 0.5),
    "give back only mixed": lambda q, k, v: attention(q, k, v)[0],
    "give back only the weights": lambda q, k, v: attention(q, k, v)[1],
    "weights come first": lambda q, k, v: attention(q, k, v)[::-1],
    "give back 3.0.": lambda q, k, v: 3.0,
    "3 things": lambda q, k, v: (*attention(q, k, v), q),
    "weights should have shape": lambda q, k, v: (v, attention(q, k, v)[1].mean(1)),
    "changes the tensor that it is given": look_up_in_place,
    "weights should be of type torch.float32": doubled(attention),
    "no gradient flows": untrained(attention),
    "no gradient reaches the key": lambda q, k, v: attention(q, k.detach(), v),
    "not for (B, T, d). Count axes": lambda q, k, v: attention(q, k, v) if k.ndim != 3 else (v, v @ v.mT),
    "the largest difference": unfinished(torch.sigmoid),
}


# --- split_heads and merge_heads -----------------------------------------------------------------------


def split_by_slices(tokens, num_heads):
    d = tokens.shape[2] // num_heads
    return torch.stack([tokens[:, :, h * d : h * d + d] for h in range(num_heads)], 1)


WRONG_SPLIT = {
    "one view cuts in the wrong place": lambda x, h: x.view(len(x), h, x.shape[1], -1),
    "exchange axes 1 and 2": lambda x, h: x.view(*x.shape[:2], h, -1),
    "the first head gets numbers 0, ": lambda x, h: x.view(*x.shape[:2], -1, h).permute(0, 3, 1, 2),
    "moves the images": lambda x, h: x.view(*x.shape[:2], h, -1).transpose(0, 1),
    "in the view, and the heads": lambda x, h: x.view(*x.shape[:2], -1, h),
    "changed places in the view.": lambda x, h: x.view(*x.shape[:2], -1, h).transpose(1, 2),
    "before the images": lambda x, h: x.view(*x.shape[:2], h, -1).permute(2, 0, 1, 3),
    "tokens are last": lambda x, h: x.view(*x.shape[:2], h, -1).permute(0, 2, 3, 1),
    "a transpose before the view": lambda x, h: x.mT.reshape(len(x), h, x.shape[1], -1),
    "become one axis": lambda x, h: x.view(-1, h, x.shape[2] // h),
    "a tuple of": lambda x, h: x.chunk(h, dim=-1),
    "should have shape (1, ": lambda x, h: split_by_slices(x, h).repeat(1 + (len(x) == 1), 1, 1, 1),
    "no gradient flows": by_numpy(split_by_slices),
    "changes the tensor that it is given": lambda x, h: split_by_slices(x.mul_(2) / 2, h),
    "belongs the number from [0, 0, 0]": lambda x, h: split_by_slices(x.flip(-1), h),
    "a number that is not in the input": lambda x, h: split_by_slices(x + 0.5, h),
}
WRONG_MERGE = {
    "not moved back": lambda x: x.reshape(len(x), x.shape[2], -1),
    "alternate": lambda x: rearrange(x, "b h t d -> b t (d h)"),
    "heads are added": lambda x: x.sum(1),
    "heads are averaged": lambda x: x.mean(1),
    "not side by side yet": lambda x: x.transpose(1, 2),
    "heads and tokens have become": lambda x: x.flatten(1, 2),
    "Use reshape": lambda x: x.transpose(1, 2).view(len(x), x.shape[2], -1),
    "a list of": lambda x: [x[:, 0], x[:, 1]],
    "no gradient flows": untrained(lambda x: x.transpose(1, 2).flatten(2)),
    "changes the tensor that it is given": lambda x: x.mul_(2).transpose(1, 2).flatten(2) / 2,
}


# --- masked_look_up ------------------------------------------------------------------------------------


def masked(hide, scale=None, axis=-1):
    """An answer whose scores go through `hide(scores, may_read)` before the softmax."""

    def answer(q, k, v, may_read):
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        weights = hide(scores, may_read).softmax(dim=axis)
        return weights @ v, weights

    return answer


def filled(scores, may_read):
    return scores.masked_fill(~may_read, -math.inf)


def after_softmax(rescale):
    def answer(q, k, v, may_read):
        weights = attention(q, k, v)[1] * may_read
        if rescale:
            weights /= weights.sum(-1, keepdim=True)
        return weights @ v, weights

    return answer


def masked_fused(q, k, v, may_read):
    one_hot = torch.eye(k.shape[-2]).expand(*k.shape[:-1], -1)
    return tuple(scaled_dot_product_attention(q, k, x, attn_mask=may_read) for x in (v, one_hot))


def mask_changed(q, k, v, may_read):
    may_read.logical_not_()
    return masked(lambda scores, hidden: scores.masked_fill(hidden, -math.inf))(q, k, v, may_read)


def masked_by_index(q, k, v, may_read):
    scores = q @ k.mT
    scores[~may_read] = -math.inf  # (T, T) does not index (B, num_heads, T, T)
    return scores.softmax(-1) @ v, scores.softmax(-1)


WRONG_MASKED = {
    "still has weight": masked(lambda scores, may_read: scores.masked_fill(~may_read, -5)),
    "may read its own token does not": masked(
        lambda scores, may_read: filled(scores, may_read & ~torch.eye(len(may_read), dtype=torch.bool))
    ),
    "the mask changes nothing": masked(lambda scores, may_read: scores),
    "wrong way round": masked(lambda scores, may_read: scores.masked_fill(may_read, -math.inf)),
    "rows and columns of the mask": masked(lambda scores, may_read: filled(scores, may_read.T)),
    "set to 0 after the softmax": after_softmax(rescale=False),
    "e^0 is 1": masked(torch.mul),
    "added to the scores": masked(torch.add),
    "0·∞ is NaN": masked(lambda scores, may_read: scores + (~may_read).float() * -math.inf),
    "became plus infinity": masked(lambda scores, may_read: scores.masked_fill(~may_read, math.inf)),
    "mask of as many axes": masked_by_index,
    "without the mask": lambda q, k, v, m: (attention(q, k, v)[0], masked(filled)(q, k, v, m)[1]),
    "not divided by √d.": masked(filled, scale=1),
    "down the columns": masked(lambda s, may_read: s.masked_fill(~may_read, -1e9), axis=-2),
    "Its opposite is ~may_read": masked(lambda scores, may_read: scores + (1 - may_read) * -1e9),
    "changes the tensor that it is given": mask_changed,
    "no gradient flows": untrained(masked(filled)),
    "weights should be of type torch.float32": doubled(masked(filled)),
    "not for (T, d). Count axes": lambda q, k, v, m: masked(filled)(q, k, v, m[None, None]),
    "give back only mixed": lambda *inputs: masked(filled)(*inputs)[0],
}

WRONG = {
    "look_up": WRONG_LOOK_UP,
    "split_heads": WRONG_SPLIT,
    "merge_heads": WRONG_MERGE,
    "masked_look_up": WRONG_MASKED,
}
RIGHT = {
    "look_up": [attention, look_up_by_einsum, look_up_in_loops, look_up_fused],
    "split_heads": [
        split_by_slices,
        lambda x, h: x.view(*x.shape[:2], h, x.shape[2] // h).transpose(1, 2),
        lambda x, h: x.unflatten(-1, (h, -1)).permute(0, 2, 1, 3).contiguous(),
    ],
    "merge_heads": [
        lambda x: torch.cat(list(x.unbind(1)), dim=-1),
        lambda x: x.transpose(1, 2).reshape(len(x), x.shape[2], -1),
        lambda x: x.transpose(1, 2).contiguous().view(len(x), x.shape[2], -1),
        lambda x: x.transpose(1, 2).flatten(2),
    ],
    "masked_look_up": [
        masked(filled),
        masked(lambda s, may_read: torch.where(may_read, s, torch.tensor(-1e9))),
        masked(lambda s, may_read: s + (~may_read) * -1e9),
        masked(lambda s, may_read: s.masked_fill_(~may_read, -math.inf)),  # in place, but on its own
        after_softmax(rescale=True),
        masked_fused,
    ],
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
    ("look_up", lambda q, k, v: attention(q.view(2, *q.shape[1:]), k, v)),
    ("split_heads", lambda x, h: x.view(2, 9, h, -1).transpose(1, 2)),
    ("split_heads", lambda x, h: torch.stack([split_by_slices(x[i : i + 1], h)[0] for i in range(2)])),
    ("merge_heads", lambda x: x.transpose(1, 2).reshape(2, 9, -1)),
    ("merge_heads", lambda x: x.squeeze().transpose(-3, -2).flatten(-2)),
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
        for _ in range(3):
            printed, accepted = verdict(capsys, answer, name)
            assert printed.startswith("[ok]") and accepted, printed


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("unfilled", [TODO, ..., (TODO, TODO)], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    if isinstance(unfilled, tuple) and not name.endswith("look_up"):
        return
    printed, accepted = verdict(capsys, lambda *_: unfilled, name)
    assert printed.startswith("[todo]") and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_forgotten_return_is_named(capsys, name):
    printed, accepted = verdict(capsys, lambda *_: None, name)
    assert "Does it end with return?" in printed and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def answer(tensor, *_):
        return tensor.reshape(13)  # no such shape

    printed, accepted = verdict(capsys, answer, name)
    assert printed.startswith("[not yet]") and "tensor.reshape(13)" in printed and not accepted


@pytest.mark.parametrize("name", WRONG)
def test_the_function_that_the_notebook_goes_on_with_equals_another(name):
    """Fails where vitlib's own answer is wrong: most learners will run on it."""
    inputs = INPUTS[name]
    ours, other = getattr(lesson, name)(*inputs), RIGHT[name][-1](*inputs)
    torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
