"""Checks of lesson 04, and the functions that the notebook goes on with while an exercise is open."""

import math

import torch
from einops import rearrange
from torch.autograd.graph import allow_mutation_on_saved_tensors
from torch.nn.functional import scaled_dot_product_attention

from vitlib.attention import attend
from vitlib.checks import NotYet, alike, check, equal, explain, need, reached, unchanged


def look_up(query, key, value):
    """softmax(Q Kᵀ / √d) V. Shapes: three of (..., T, d) -> mixed (..., T, d) and weights (..., T, T)."""
    return attend(query, key, value, return_weights=True)


def split_heads(tokens, num_heads):
    """Cut the width of each token into heads. Shapes: (B, T, D) -> (B, num_heads, T, D / num_heads)."""
    return rearrange(tokens, "b t (head d) -> b head t d", head=num_heads)


def merge_heads(mixed):
    """Put the heads of each token side by side. Shapes: (B, num_heads, T, d) -> (B, T, num_heads · d)."""
    return rearrange(mixed, "b head t d -> b t (head d)")


def masked_look_up(query, key, value, may_read):
    """As `look_up`, but query i reads only the keys j where may_read[i, j], bool (T, T), is true."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~may_read, -math.inf).softmax(dim=-1)
    return weights @ value, weights


# --- by hand ------------------------------------------------------------------------------------------------


@check("what the ear takes")
def check_what_the_ear_takes(answer):
    try:
        number = float(answer)
    except (TypeError, ValueError):
        raise NotYet(f"expected one number, such as 2.05, but got {answer!r}.") from None
    known = [
        (1.06, "that is the first number of what it takes. The exercise asks for the second."),
        (2.05, "that is what the class token takes. Begin with the ear's query, (0, 1)."),
        (3.81, "that is what the grass takes. Begin with the ear's query, (0, 1)."),
        (2.03, "your shares are those of a column of scores. Take the row: what the ear asks, 0, 0, 1."),
        (4.21, "the ear's key asked, and the queries answered. The ear's query asks, the keys answer."),
        (4.28, "you divided the scores by √2. A real layer does; here it comes in a later section."),
        (8, "you mixed with the scores. Turn them into shares first: e to the power of each, then divide."),
        (22.75, "you mixed with e^score. Divide each by the sum of the three."),
        (0.58, "that is the share of the grass. Mix the second numbers of the values with all three shares."),
        (4.61, "the class token's part is missing: its value ends in 1, and its share is not 0."),
    ]
    for wrong, words in known:
        if abs(number - wrong) < 0.008:
            raise NotYet(words)
    shares = [math.exp(score) for score in (0, 0, 1)]
    right = (1 * shares[0] + 0 * shares[1] + 8 * shares[2]) / sum(shares)
    if not abs(number - right) <= 0.045:  # shares of two decimals give 4.85; NaN does not pass
        raise NotYet(f"{number:.4g} is not it. What are the ear's three scores, and what is their softmax?")
    return f"scores 0, 0, 1; shares 0.21, 0.21, 0.58; 0.21·1 + 0.21·0 + 0.58·8 = {right:.2f}."


# --- look_up ------------------------------------------------------------------------------------------------


@check("look_up")
def check_look_up(answer):
    with allow_mutation_on_saved_tensors():  # who works in place on tensors of their own is right
        for batch in (several(), 1):
            judge_look_up(answer, *random_qkv(batch))
    return "rows that sum to 1, and the numbers of PyTorch's own attention, from 2 axes to 4."


def judge_look_up(answer, query, key, value):
    try:
        got = unchanged(answer, query, key, value)
    except (RuntimeError, IndexError):
        explain_stop(answer, query, key, value)
        raise
    mixed, weights = two_things(got, value, query @ key.mT)
    explain_weights(weights, query, key)
    right = scaled_dot_product_attention(query, key, value)
    one_hot = torch.eye(key.shape[-2]).expand(*key.shape[:-1], -1)
    equal("weights", weights, scaled_dot_product_attention(query, key, one_hot))
    explain_mixed(mixed, weights, query, key, value)
    equal("mixed", mixed, right)
    reached("mixed", mixed, {"the query": query, "the key": key, "the value": value})
    needs_any_axes(answer, query, key, value)


def needs_any_axes(answer, *tensors, may_read=None):
    """(B, heads, T, d) was right; is it with fewer axes?"""
    for axes, shape in ((2, "(T, d)"), (3, "(B, T, d)")):
        fewer = [tensor.flatten(0, -3)[0] if axes == 2 else tensor[0] for tensor in tensors]
        words = (
            f"it is right for (B, num_heads, T, d), but not for {shape}. Count axes from the end: dim=-1, "
            "transpose(-2, -1); in einsum and einops, begin with '...'."
        )
        try:
            mixed, weights = answer(*fewer)
        except Exception as error:
            raise NotYet(words) from error
        right, sums = scaled_dot_product_attention(*fewer, attn_mask=may_read), torch.ones(weights.shape[:-1])
        if not (alike(mixed, right) and alike(weights.sum(dim=-1), sums)):
            raise NotYet(words)


def explain_stop(answer, query, key, value):
    """It stops for (B, heads, T, d): perhaps the key is not transposed, or too much of it is."""
    width = query.shape[-1]
    square = [tensor[0, 0, :width] for tensor in (query, key, value)]  # T = d: any order fits
    try:
        _, weights = answer(*square)
    except Exception:
        return
    for scale, _ in scales(query):
        if alike(weights, (square[0] @ square[1] * scale).softmax(dim=-1)):
            raise NotYet("the key is not transposed: Q is (T, d) and K too, so the scores are Q Kᵀ, (T, T).")
    if alike(weights, (square[0] @ square[1].T * width**-0.5).softmax(dim=-1)):
        raise NotYet(
            "it is right for one matrix (T, d), and stops for (B, num_heads, T, d). .T and transpose(0, 1) "
            "turn other axes there. Count from the end: transpose(-2, -1)."
        )


def explain_weights(got, query, key):
    """Name the mistakes that these weights come from; one, or several at once."""
    axes = [
        (-1, ""),
        (-2, "the softmax runs down the columns, so that they sum to 1, and not the rows: use dim=-1. "),
        ((-2, -1), "the softmax runs over both token axes. Each row is a softmax of its own: dim=-1. "),
        (1, "the softmax runs over axis 1, which is the heads here. Count from the end: dim=-1. "),
        (0, "the softmax runs over axis 0, which is the images here. Count from the end: dim=-1. "),
    ]
    products = [
        (query @ key.mT, ""),
        (key @ query.mT, "query and key have changed places: row i holds the scores of query i, Q Kᵀ. "),
    ]
    for product, exchanged in products:
        for scale, scaled in scales(query):
            for axis, softmaxed in axes:
                if (problem := exchanged + scaled + softmaxed) and alike(got, softmax(product * scale, axis)):
                    raise NotYet(problem.strip())
            if alike(got, product * scale):
                raise NotYet("these are the scores. A softmax along each row turns them into shares.")
            if alike(got, (product * scale).exp()):
                raise NotYet("every number is e^score. Divide each row by its sum, or use softmax(dim=-1).")
    width = query.shape[-1]
    if alike(got, (query @ key.mT * width**-0.5).softmax(dim=-1).softmax(dim=-1)):
        raise NotYet("there is a softmax of a softmax: the shares come out too even. One is enough.")
    if alike(got, (query @ key.mT).softmax(dim=-1) * width**-0.5):
        raise NotYet("the weights are divided by √d. Divide the scores: only then do rows still sum to 1.")


def explain_mixed(got, weights, query, key, value):
    mistakes = [
        (weights.mT @ value,
         "the weights are transposed here: row i of the weights mixes the values for query i."),
        (weights @ key,
         "the weights mix the keys. Keys are only compared; the values are what is handed over."),
        (weights @ query, "the weights mix the queries. The values are what is handed over."),
        (value * weights.sum(dim=-1, keepdim=True),
         "every token keeps its own value: use the product weights @ V."),
        (weights @ value * query.shape[-1] ** -0.5, "the result is divided by √d. Only the scores are."),
    ]  # fmt: skip
    for wrong, words in mistakes:
        if alike(got, wrong):
            raise NotYet(words)


def scales(query):
    """Factors that people put on the scores, with what is wrong with them: nothing for the right one."""
    _, heads, tokens, width = query.shape
    return [
        (width**-0.5, ""),
        (1.0, "the scores are not divided by √d. "),
        ((heads * width) ** -0.5,
         "the scores are divided by √D, the width of the whole token. A head compares d numbers, and has to "
         "divide by √d: query.shape[-1]. "),
        (1 / width, "the scores are divided by d, and not by its square root. "),
        (1 / (2 * width), "** 1/2 means ** 1, and then / 2. Write ** 0.5. "),
        (2 / width, "** 1/2 means ** 1, and then / 2. Write ** 0.5. "),
        (2**-0.5, "the scores are divided by √2. d is 2 in the toy; in general it is query.shape[-1]. "),
        (width**0.5, "the scores are multiplied by √d. Divide. "),
        (tokens**-0.5,
         "the scores are divided by √T, the number of tokens. d is the last axis of the query. "),
        (heads**-0.5,
         "the scores are divided by the root of axis 1, the heads. d is the last axis: shape[-1]. "),
    ]  # fmt: skip


# --- heads --------------------------------------------------------------------------------------------------


@check("split_heads")
def check_split_heads(answer):
    for batch in (several(), 1):
        tokens, num_heads = random_tokens(batch)
        judge_split_heads(answer, tokens.requires_grad_(), num_heads)
    return f"each of the {num_heads} heads gets {tokens.shape[2] // num_heads} numbers of every token."


def judge_split_heads(answer, tokens, num_heads):
    batch, number, width = tokens.shape
    d = width // num_heads
    got = unchanged(lambda tokens: answer(tokens, num_heads), tokens)
    want = torch.empty(batch, num_heads, number, d)
    for head in range(num_heads):
        for inside in range(d):
            want[:, head, :, inside] = tokens[:, :, head * d + inside]
    apart = tokens.reshape(batch, number, num_heads, d)
    inside_first = tokens.reshape(batch, number, d, num_heads)
    refuse_list(got)
    explain(
        got,
        (tokens.reshape(want.shape),
         f"one view cuts in the wrong place: in the first head, the second token gets numbers {d} to "
         f"{2 * d - 1} of the first token. Cut the width first, (B, T, num_heads, d), then exchange two "
         "axes."),
        (apart, "the width is cut, but the heads are still behind the tokens: exchange axes 1 and 2."),
        (apart.transpose(0, 1),
         "transpose(0, 1) moves the images. The toy had no axis for them: here tokens and heads are axes 1 "
         "and 2."),
        (inside_first.permute(0, 3, 1, 2),
         "num_heads and d have changed places in the view: the first head gets numbers 0, "
         f"{num_heads}, {2 * num_heads}, … of a token. It should get the first {d}."),
        (inside_first,
         "num_heads and d have changed places in the view, and the heads are behind the tokens."),
        (inside_first.transpose(1, 2), "num_heads and d have changed places in the view."),
        (apart.permute(2, 0, 1, 3), "the heads come before the images. The order is (B, num_heads, T, d)."),
        (apart.permute(0, 2, 3, 1), "the tokens are last. The order is (B, num_heads, T, d)."),
        (tokens.transpose(1, 2).reshape(want.shape),
         "a transpose before the view mixes tokens. First cut the width with view, then exchange axes 1 "
         "and 2."),
        (apart.flatten(0, 1), "images and tokens have become one axis. The order is (B, num_heads, T, d)."),
    )  # fmt: skip
    equal("the result", got, want, diagnoses=[(got, misplaced(got, want, tokens))])
    reached("the result", got, {"the tokens": tokens})


@check("merge_heads")
def check_merge_heads(answer):
    for batch in (several(), 1):
        tokens, num_heads = random_tokens(batch)
        mixed = torch.stack(tokens.chunk(num_heads, dim=-1), dim=1)  # (B, num_heads, T, d)
        judge_merge_heads(answer, mixed.requires_grad_())
    return f"the {num_heads} heads of each token side by side: what split_heads took apart."


def judge_merge_heads(answer, mixed):
    batch, num_heads, number, d = mixed.shape
    try:
        got = unchanged(answer, mixed)
    except RuntimeError as error:
        if "view size is not compatible" in str(error):
            raise NotYet(
                "view needs numbers that lie side by side in memory, and after transpose they don't. "
                "Use reshape, which copies them where it must."
            ) from error
        raise
    want = torch.empty(batch, number, num_heads * d)
    for head in range(num_heads):
        want[:, :, head * d : (head + 1) * d] = mixed[:, head]
    refuse_list(got)
    explain(
        got,
        (mixed.reshape(want.shape),
         "the heads are not moved back before the view: each row holds several tokens of one head. Exchange "
         "axes 1 and 2 first."),
        (mixed.permute(0, 2, 3, 1).reshape(want.shape),
         "num_heads and d have changed places: the numbers of the heads alternate. All numbers of the first "
         "head come first, then all of the second."),
        (mixed.sum(dim=1), "the heads are added. Put them side by side: the width is D again."),
        (mixed.mean(dim=1), "the heads are averaged. Put them side by side: the width is D again."),
        (mixed.transpose(1, 2), "the axes are exchanged, but the heads are not side by side yet: reshape."),
        (mixed.flatten(1, 2), "heads and tokens have become one axis. Exchange them first, then reshape."),
    )  # fmt: skip
    equal("the result", got, want, diagnoses=[(got, misplaced(got, want, mixed))])
    reached("the result", got, {"mixed": mixed})


def misplaced(got, want, source):
    """Where the first wrong number is, and which one stands there. All numbers of `source` differ."""
    if not torch.is_tensor(got) or got.shape != want.shape:
        return ""
    wrong = (got != want).nonzero()
    if not len(wrong):
        return ""
    place = wrong[0].tolist()
    stands, belongs = ((source == numbers[tuple(place)]).nonzero().tolist() for numbers in (got, want))
    return (
        f"at {place} belongs the number from {belongs[0]} of the input, but there stands "
        f"{f'the one from {stands[0]}' if stands else 'a number that is not in the input'}."
    )


# --- masked_look_up -----------------------------------------------------------------------------------------


@check("masked_look_up")
def check_masked_look_up(answer):
    with allow_mutation_on_saved_tensors():  # as for look_up
        for batch in (several(), 1):
            judge_masked_look_up(answer, *random_qkv(batch))
    return "forbidden keys have weight 0, and every row still sums to 1, from 2 axes to 4."


def judge_masked_look_up(answer, query, key, value):
    tokens = query.shape[-2]
    may_read = torch.rand(tokens, tokens) < 0.5
    may_read |= torch.eye(tokens).roll(1, dims=0) > 0  # each reads and is read somewhere, and nowhere all
    may_read &= torch.eye(tokens).roll(3, dims=0) == 0
    try:
        got = unchanged(answer, query, key, value, may_read)
    except (RuntimeError, TypeError) as error:
        if "bool" in str(error).lower():
            raise NotYet(
                "may_read holds true and false, not numbers. Its opposite is ~may_read, not 1 - may_read; "
                "masked_fill and torch.where take it as it is."
            ) from error
        raise
    except IndexError as error:
        if "shape of the mask" in str(error):
            raise NotYet(
                "scores[mask] needs a mask of as many axes as the scores. scores.masked_fill(mask, ...) uses "
                "one of (T, T) for all images and heads."
            ) from error
        raise
    mixed, weights = two_things(got, value, query @ key.mT)
    explain_mask(weights, query, key, may_read)
    want = torch.zeros(weights.shape)
    for i in range(tokens):  # a softmax over the allowed keys alone
        allowed = may_read[i].nonzero()[:, 0].tolist()
        for j in allowed:
            differences = [(query[:, :, i] * (key[:, :, k] - key[:, :, j])).sum(dim=-1) for k in allowed]
            want[:, :, i, j] = 1 / sum(torch.exp(x / math.sqrt(query.shape[-1])) for x in differences)
    equal("weights", weights, want)
    not_masked = scaled_dot_product_attention(query, key, value)
    explain(mixed, (not_masked, "mixed was made without the mask. Use the masked weights for it, too."))
    explain_mixed(mixed, weights, query, key, value)
    equal("mixed", mixed, torch.einsum("bhij,bhjd->bhid", want, value))
    reached("mixed", mixed, {"the query": query, "the key": key, "the value": value})
    needs_any_axes(lambda *fewer: answer(*fewer, may_read), query, key, value, may_read=may_read)


def explain_mask(got, query, key, may_read):
    if torch.is_tensor(got) and got.isnan().any():
        raise NotYet(
            "there are NaN. Either hidden scores became plus infinity, or the mask was multiplied with minus "
            "infinity: 0·∞ is NaN. Put minus infinity in their place: scores.masked_fill(~may_read, "
            "-math.inf)."
        )
    hide = -math.inf
    for scale, scaled in scales(query):
        scores = query @ key.mT * scale
        right = scores.masked_fill(~may_read, hide)
        tries = [
            (right.softmax(dim=-1), ""),
            (scores.softmax(dim=-1), "the mask changes nothing: every key is still read."),
            (scores.masked_fill(may_read, hide).softmax(dim=-1),
             "the mask is the wrong way round: what may be read is hidden. masked_fill fills where its mask "
             "is true, so it needs ~may_read."),
            (scores.masked_fill(~may_read.T, hide).softmax(dim=-1),
             "rows and columns of the mask have changed places: may_read[i, j] is about query i and key j, "
             "as in the scores."),
            (scores.softmax(dim=-1) * may_read,
             "the weights are set to 0 after the softmax, so that rows no longer sum to 1. Hide the scores "
             "before it, with minus infinity."),
            ((scores * may_read).softmax(dim=-1),
             "the hidden scores are set to 0, and e^0 is 1: these keys are still read. Only minus infinity "
             "gives a share of 0."),
            ((scores + may_read.float()).softmax(dim=-1),
             "the mask is added to the scores as 0 and 1. The hidden scores have to become minus infinity."),
            (right.softmax(dim=-2).nan_to_num(), "the softmax runs down the columns: use dim=-1."),
            (right, "these are the scores. A softmax along each row turns them into shares."),
        ]  # fmt: skip
        for wrong, words in tries:
            if (problem := scaled + words) and alike(got, wrong):
                raise NotYet(problem.strip())
    if not torch.is_tensor(got):
        return
    if (largest := got[..., ~may_read].abs().max()) > 0:
        raise NotYet(
            f"a key that may not be read still has weight {largest:.2g}. Its score has to be so low that "
            "e^score is 0: minus infinity."
        )
    if (got.diagonal(dim1=-2, dim2=-1)[..., may_read.diag()] == 0).any():
        raise NotYet("some query that may read its own token does not. Hide only where may_read is false.")


# --- helpers ------------------------------------------------------------------------------------------------


def several():
    """A batch of more than one image, and of fewer than there are heads."""
    return int(torch.randint(2, 4, ()))


def random_qkv(batch):
    """Three of (B, heads, T, d), all sizes different, so that one is not taken for another."""
    heads, width = int(torch.randint(4, 6, ())), int(torch.randint(6, 9, ()))
    return [torch.randn(batch, heads, width + 4, width, requires_grad=True) for _ in range(3)]


def random_tokens(batch):
    """(B, T, D), no two numbers alike, and a number of heads that D is divisible by."""
    num_heads, d, number = (int(torch.randint(*ends, ())) for ends in ((4, 6), (6, 9), (9, 12)))
    tokens = torch.randperm(batch * number * num_heads * d).float()
    return tokens.reshape(batch, number, num_heads * d), num_heads


def two_things(got, value, scores):
    """Take `mixed` and `weights` apart, or say what was given back instead."""
    need(got)
    if torch.is_tensor(got):
        names = {scores.shape: "the weights", value.shape: "mixed"}
        which = names.get(got.shape, f"one tensor {tuple(got.shape)}")
        raise NotYet(f"you give back only {which}. The end should be: return mixed, weights")
    if not isinstance(got, tuple | list):
        raise NotYet(f"you give back {got!r:.40}. The end should be: return mixed, weights")
    if len(got) != 2:
        raise NotYet(f"you give back {len(got)} things. The end should be: return mixed, weights")
    mixed, weights = got
    need(mixed)
    need(weights)
    shapes = [getattr(part, "shape", None) for part in (mixed, weights)]
    if shapes == [scores.shape, value.shape]:
        raise NotYet("the weights come first. The end should be: return mixed, weights")
    for name, part, like in (("weights", weights, scores), ("mixed", mixed, value)):
        if torch.is_tensor(part) and part.shape != like.shape:
            raise NotYet(f"{name} should have shape {tuple(like.shape)}, but it has {tuple(part.shape)}.")
    return mixed, weights


def softmax(scores, axis):
    if axis == (-2, -1):
        return scores.flatten(-2).softmax(dim=-1).reshape(scores.shape)
    return scores.softmax(dim=axis)


def refuse_list(got):
    if isinstance(got, list | tuple):
        raise NotYet(f"this is a {type(got).__name__} of {len(got)}. Make it one tensor.")
