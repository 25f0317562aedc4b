"""Checks of lesson 05, and the functions that the notebook goes on with while an exercise is open."""

import math
from statistics import fmean, pvariance
from types import SimpleNamespace

import torch
from torch import nn
from torch.autograd.graph import allow_mutation_on_saved_tensors
from torch.nn import functional

from vitlib.checks import NotYet, check, equal, need, reached, unchanged
from vitlib.encoder import DropPath, EncoderBlock


def layer_norm(tokens, weight, bias, eps):
    """Each token on its own: mean 0, variance 1, then times weight, plus bias. (B, T, D) -> (B, T, D)"""
    return functional.layer_norm(tokens, weight.shape, weight, bias, eps)


def drop_path(tokens, rate, training):
    """In training, set a random part of the images to 0 and divide the others by 1 - rate."""
    return DropPath(rate).train(training)(tokens)


def encode(tokens, blocks, norm):
    """Paper equations 2 to 4. (B, T, D) -> (B, T, D)"""
    for block in blocks:
        tokens = tokens + block.attention(block.norm1(tokens))[0]
        tokens = tokens + block.mlp(block.norm2(tokens))
    return norm(tokens)


class LayerScaleBlock(EncoderBlock):
    """A block that multiplies what each branch found by a learned number for each channel."""

    def __init__(self, embed_dim, num_heads, initial=1e-4):
        super().__init__(embed_dim, num_heads)
        self.scale1 = nn.Parameter(torch.full((embed_dim,), initial))
        self.scale2 = nn.Parameter(torch.full((embed_dim,), initial))

    def forward(self, tokens, return_attention=False):
        mixed, attention = self.attention(self.norm1(tokens), return_attention)
        tokens = tokens + self.scale1 * mixed
        return tokens + self.scale2 * self.mlp(self.norm2(tokens)), attention


# --- layer_norm ---------------------------------------------------------------------------------------------


@check("layer_norm")
def check_layer_norm(answer):
    with allow_mutation_on_saved_tensors():  # who works in place on tensors of their own is right
        for batch in (several(), 1):
            judge_layer_norm(answer, batch, *random_sizes())
    return "every token on its own, biased variance, eps inside the root."


def judge_layer_norm(answer, batch, num_tokens, embed_dim):
    # Channels of different height and spread: what is averaged over the wrong axis differs clearly.
    tokens = torch.randn(batch, num_tokens, embed_dim) * (0.5 + torch.rand(embed_dim))
    tokens = tokens + torch.randn(embed_dim) + 2 * torch.randn(num_tokens, 1)
    weight, bias = 1 + torch.rand(embed_dim), torch.randn(embed_dim)
    tokens, weight, bias = (tensor.requires_grad_() for tensor in (tokens, weight, bias))
    eps = 0.2 + 0.2 * torch.rand(()).item()  # large, so that its place shows
    try:
        got = unchanged(lambda *tensors: answer(*tensors, eps), tokens, weight, bias)
    except RuntimeError as error:
        if "must match the size" in str(error):
            raise NotYet(
                f"{error}. Does each mean keep its axis? mean(dim=-1) of {tuple(tokens.shape)} has shape "
                f"{tuple(tokens.shape[:2])}, which does not line up; with keepdim=True it does."
            ) from error
        raise
    equal("the result", got, token_by_token(tokens, weight, bias, eps), diagnoses=[
        (make(tokens, weight, bias, eps), words) for words, make in LAYER_NORM_MISTAKES.items()
    ])  # fmt: skip
    reached("the result", got, {"the tokens": tokens, "weight": weight, "bias": bias})


def token_by_token(tokens, weight, bias, eps):
    """Plain Python numbers, one token after the other."""
    rows = []
    for row in tokens.double().flatten(0, 1).tolist():
        mean, root = fmean(row), math.sqrt(pvariance(row) + eps)
        rows.append([(x - mean) / root * w + b for x, w, b in zip(row, weight.tolist(), bias.tolist())])
    return torch.tensor(rows).view_as(tokens)


def normed(tokens, eps, dims=-1, unbiased=False):
    variance, mean = torch.var_mean(tokens, dims, correction=int(unbiased), keepdim=True)
    return (tokens - mean) / (variance + eps).sqrt()


def eps_outside(tokens, eps, unbiased):
    std, mean = torch.std_mean(tokens, -1, correction=int(unbiased), keepdim=True)
    return (tokens - mean) / (std + eps)


def divided(tokens, by, centred=True):
    """By the variance, by its root or by nothing (a function of the variance); with or without the mean."""
    variance, mean = torch.var_mean(tokens, -1, correction=0, keepdim=True)
    return (tokens - centred * mean) / by(variance)


def mean_distance(tokens, eps):
    centred = tokens - tokens.mean(-1, keepdim=True)
    return centred / (centred.abs().mean(-1, keepdim=True) + eps)


LAYER_NORM_MISTAKES = {
    "this is the unbiased variance, divided by D - 1. LayerNorm divides by D: var(..., unbiased=False).":
        lambda x, w, b, eps: normed(x, eps, unbiased=True) * w + b,
    "eps stands outside the root. It is added to the variance, before the root: (variance + eps).sqrt().":
        lambda x, w, b, eps: eps_outside(x, eps, False) * w + b,
    "two things: std() divides by D - 1, LayerNorm by D; and eps is added to the variance, inside the root.":
        lambda x, w, b, eps: eps_outside(x, eps, True) * w + b,
    "eps is missing, or another number stands in its place. Add eps to the variance, inside the root.":
        lambda x, w, b, eps: normed(x, 0) * w + b,
    "the root is missing: divide by the root of the variance (with eps), not by the variance.":
        lambda x, w, b, eps: divided(x, lambda v: v + eps) * w + b,
    "the mean is not subtracted.":
        lambda x, w, b, eps: divided(x, lambda v: (v + eps).sqrt(), centred=False) * w + b,
    "it is divided by the mean distance from the mean. Square the distances, take their mean, then the root.":
        lambda x, w, b, eps: mean_distance(x, eps) * w + b,
    "it is not divided by the root of the variance.":
        lambda x, w, b, eps: divided(x, lambda v: 1) * w + b,
    "mean and variance run over the tokens (dim=1): they get mixed. Take dim=-1, the channels.":
        lambda x, w, b, eps: normed(x, eps, 1) * w + b,
    "mean and variance run over the pictures of the batch (dim=0). Take dim=-1, the channels of one token.":
        lambda x, w, b, eps: normed(x, eps, 0) * w + b,
    "mean and variance run over pictures and tokens: that is BatchNorm. Take dim=-1 alone.":
        lambda x, w, b, eps: normed(x, eps, (0, 1)) * w + b,
    "mean and variance run over a whole picture, all its tokens. Take dim=-1 alone: each token by itself.":
        lambda x, w, b, eps: normed(x, eps, (1, 2)) * w + b,
    "mean and variance run over all numbers at once. Take dim=-1: each token by itself.":
        lambda x, w, b, eps: normed(x, eps, (0, 1, 2)) * w + b,
    "weight and bias are forgotten. Multiply by weight, then add bias.":
        lambda x, w, b, eps: normed(x, eps),
    "bias is forgotten: add it at the end.":
        lambda x, w, b, eps: normed(x, eps) * w,
    "weight is forgotten: multiply by it before bias is added.":
        lambda x, w, b, eps: normed(x, eps) + b,
    "bias is added too early. First times weight, then plus bias.":
        lambda x, w, b, eps: (normed(x, eps) + b) * w,
    "weight and bias are added to each other. First times weight, then plus bias.":
        lambda x, w, b, eps: normed(x, eps) * (w + b),
}  # fmt: skip


# --- drop_path ----------------------------------------------------------------------------------------------


@check("drop_path")
def check_drop_path(answer):
    rate = 0.2 + 0.15 * torch.rand(()).item()
    num_images, num_tokens, embed_dim = int(torch.randint(1900, 2100, ())), *random_sizes()
    tokens = 0.5 + torch.rand(num_images, num_tokens, embed_dim)  # never 0: a 0 in the result was dropped
    tokens.requires_grad_()
    judge_evaluation(unchanged(lambda tokens: answer(tokens, rate, False), tokens), tokens, rate)
    try:
        got = unchanged(lambda tokens: answer(tokens, rate, True), tokens)
    except RuntimeError as error:
        if "must match the size" in str(error):
            raise NotYet(
                f"{error}. What does not line up with (B, T, D)? One draw for each image is (B, 1, 1)."
            ) from error
        raise
    need(got)
    if not torch.is_tensor(got) or got.shape != tokens.shape:
        raise NotYet(f"in training, give back a tensor of the input's shape, {tuple(tokens.shape)}.")
    factor = got / tokens  # 0, or by what a number was multiplied
    if factor.abs().max() < 1e-3 and all((answer(tokens.clone(), rate, True) == 0).all() for _ in range(12)):
        raise NotYet("in training everything is dropped.")
    judge_pattern(factor)
    judge_factor(factor[:, 0, 0], rate)
    equal("in training, the result", got, tokens / (1 - rate) * (got != 0))
    reached("in training, the result", got, {"the tokens": tokens})
    if torch.equal(got, answer(tokens.clone(), rate, True)):
        raise NotYet("two calls drop the same images: the draw must be a new one at each call.")
    alone = answer(tokens[:1].clone(), rate, True)
    equal("for a single image, the result", alone, tokens[:1] / (1 - rate) * bool(torch.count_nonzero(alone)))
    return f"drops whole images, {rate:.0%} of them, divides the rest by {1 - rate:.2f}; off in evaluation."


def judge_evaluation(got, tokens, rate):
    keep = 1 - rate
    diagnoses = [
        (tokens * keep, "it is multiplied by 1 - rate. Scaling is for training; here nothing is left to do."),
        (tokens / keep, "it is divided by 1 - rate. Nothing was dropped, so nothing is to be made up for."),
        (torch.zeros_like(tokens), "everything is dropped."),
    ]
    if torch.is_tensor(got) and (got == 0).any():
        words = "it is left on in evaluation. With training=False give tokens back as they are."
        diagnoses.append((got, words))
    equal("in evaluation, the result", got, tokens, diagnoses=diagnoses)


def judge_pattern(factor):
    """Within an image all factors should be equal, and between images not."""

    def same(values, axis):
        return (values - values.narrow(axis, 0, 1)).abs().max() < 1e-3

    across_images, across_tokens, across_channels = (same(factor, axis) for axis in range(3))
    if across_images and across_tokens and across_channels and (factor - 1).abs().max() < 1e-3:
        raise NotYet("in training nothing is dropped.")
    if across_images:
        raise NotYet("one draw for the whole batch: all images share it. Draw for each image: (B, 1, 1).")
    if not across_tokens and not across_channels:
        raise NotYet("single numbers are dropped: that is dropout. Draw once for each image: (B, 1, 1).")
    if not across_tokens:
        raise NotYet("tokens are dropped one by one. Draw once for each image: (B, 1, 1).")
    if not across_channels:
        raise NotYet("channels are dropped one by one. Draw once for each image: (B, 1, 1).")


def judge_factor(factor, rate):
    """How many images are dropped, and by what the others are multiplied."""
    keep = 1 - rate
    dropped = (factor.abs() < 1e-3).float().mean().item()
    left = factor[factor.abs() >= 1e-3].mean().item()
    diagnoses = {
        1.0: "what is kept is not rescaled, so the mean shrinks. Divide it by its chance, 1 - rate.",
        keep: "what is kept is multiplied by 1 - rate. Divide, so that the mean stays the same.",
        1 / rate: "what is kept is divided by rate. Divide by the chance to be kept, 1 - rate.",
        rate: "what is kept is multiplied by rate. Divide it by 1 - rate.",
    }
    if abs(dropped - keep) < 0.05:
        raise NotYet(f"at rate {rate:.2f} it drops {dropped:.0%}: that is what to keep. Exchange them.")
    if abs(dropped - rate) > 0.05:
        raise NotYet(f"at rate {rate:.2f} it drops {dropped:.0%} of the images.")
    for wrong, words in diagnoses.items():
        if abs(left - wrong) < 1e-3:
            raise NotYet(words)
    if abs(left - 1 / keep) > 1e-3:
        raise NotYet(f"what is kept is multiplied by {left:.3f}, not by 1 / (1 - rate) = {1 / keep:.3f}.")


# --- encode -------------------------------------------------------------------------------------------------


@check("encode")
def check_encode(answer):
    with allow_mutation_on_saved_tensors():  # as for layer_norm
        for batch, depth in zip((several(), 1), (torch.randperm(3) + 2).tolist()):
            judge_encode(answer, batch, depth)
    return "the blocks and the last norm give what PyTorch's pre-norm encoder gives from the same weights."


def judge_encode(answer, batch, depth):
    """The parts handed to the learner are those of PyTorch's layers, and PyTorch's layers judge."""
    layers = [torch_layer(embed_dim=8, num_heads=2) for _ in range(depth)]
    norm = noisy(nn.LayerNorm(8))
    blocks = [parts_of(layer) for layer in layers]
    num_tokens, _ = random_sizes()
    tokens = torch.randn(batch, num_tokens, 8, requires_grad=True)
    try:
        got, again = (unchanged(lambda tokens: answer(tokens, blocks, norm), tokens) for _ in range(2))
    except AttributeError as error:
        if "SimpleNamespace" in str(error):
            raise NotYet(
                f"a block has four parts, norm1, attention, norm2 and mlp. There is no {error.name}."
            ) from error
        raise
    except TypeError as error:
        if "SimpleNamespace" in str(error):
            raise NotYet("a block here is only its four parts: write out equations 2 and 3.") from error
        raise_if_pair(error)
        raise
    need(got)
    if isinstance(got, tuple):
        raise NotYet("give back the tokens alone, not a tuple.")
    want = tokens
    with torch.no_grad():
        for layer in layers:
            want = layer(want)
        diagnoses = list(encode_mistakes(tokens, blocks, norm))
        want = norm(want)
    if torch.is_tensor(got) and not torch.equal(got, again):
        raise NotYet(NOISE_IN_EVALUATION)
    if torch.is_tensor(got) and got.shape == want[:, 0].shape:
        raise NotYet("this is one token of each picture. Give back all of them, (B, T, D).")
    equal("the result", got, want, 1e-4, diagnoses)
    learned = {"the tokens": tokens, "norm": norm.weight}
    for number, layer in enumerate(layers):
        learned[f"blocks[{number}].attention"] = layer.self_attn.in_proj_weight
        learned[f"blocks[{number}].mlp"] = layer.linear1.weight
    reached("the result", got, learned)


NOISE_IN_EVALUATION = (
    "two calls on the same tokens differ: something random is left on in evaluation. "
    "functional.dropout drops unless it is told training=False; a module is told by eval()."
)


def raise_if_pair(error):
    """Name the mistake to use the pair that attention gives back as if it were the tokens."""
    if any(words in str(error) for words in ("tuple", "converted to an index", "multiply sequence")):
        raise NotYet(
            "attention gives two things back, the mixed tokens and the weights. "
            "Take the first: mixed, _ = ...attention(...)"
        ) from error


def torch_layer(embed_dim, num_heads):
    """PyTorch's own pre-norm block, in evaluation, all its weights noise."""
    options = {"layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(embed_dim, num_heads, 4 * embed_dim, 0.0, "gelu", **options)
    return noisy(layer.eval())


def noisy(module):
    """Fresh norms and biases are ones and zeros, and would hide that one is left out or exchanged."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape))
    return module


def parts_of(layer):
    """The parts of PyTorch's block under the names that the lesson has for them."""

    def attention(tokens, return_attention=False):
        return layer.self_attn(tokens, tokens, tokens, need_weights=return_attention)

    def mlp(tokens):
        return layer.linear2(functional.gelu(layer.linear1(tokens)))

    return SimpleNamespace(norm1=layer.norm1, attention=attention, norm2=layer.norm2, mlp=mlp)


def post_norm(x, a, m, n1, n2):
    x = n1(x + a(x))
    return n2(x + m(x))


def residual_from_the_normed(x, a, m, n1, n2):
    x = n1(x)
    x = n2(x + a(x))
    return x + m(x)


def attention_residual_from_the_normed(x, a, m, n1, n2):
    x = n1(x)
    x = x + a(x)
    return x + m(n2(x))


def mlp_residual_from_the_normed(x, a, m, n1, n2):
    x = n2(x + a(n1(x)))
    return x + m(x)


def norms_after_the_branches(x, a, m, n1, n2):
    x = x + n1(a(x))
    return x + n2(m(x))


def mlp_first(x, a, m, n1, n2):
    x = x + m(n2(x))
    return x + a(n1(x))


FROM_NORMED = "is added to the normed tokens. Norm what goes into the branch, add to the tokens as they were."
STEP_MISTAKES = {
    "this is post-norm: each norm comes after the sum. Here it comes before the branch (equations 2 and 3), "
    "and the sum is left alone.": post_norm,
    f"what each branch finds {FROM_NORMED}": residual_from_the_normed,
    f"what attention finds {FROM_NORMED}": attention_residual_from_the_normed,
    f"what the MLP finds {FROM_NORMED}": mlp_residual_from_the_normed,
    "both residuals are forgotten: what a branch finds is added to the tokens, it does not replace them.":
        lambda x, a, m, n1, n2: m(n2(a(n1(x)))),
    "the residual around attention is forgotten: tokens = tokens + mixed.":
        lambda x, a, m, n1, n2: (y := a(n1(x))) + m(n2(y)),
    "the residual around the MLP is forgotten: tokens = tokens + mlp(...).":
        lambda x, a, m, n1, n2: m(n2(x + a(n1(x)))),
    "norm1 is used twice. The MLP has a norm of its own, norm2.":
        lambda x, a, m, n1, n2: (y := x + a(n1(x))) + m(n1(y)),
    "norm2 is used twice. Attention has a norm of its own, norm1.":
        lambda x, a, m, n1, n2: (y := x + a(n2(x))) + m(n2(y)),
    "the two norms are exchanged: norm1 goes before attention, norm2 before the MLP.":
        lambda x, a, m, n1, n2: (y := x + a(n2(x))) + m(n1(y)),
    "both norms of the block are forgotten.":
        lambda x, a, m, n1, n2: (y := x + a(x)) + m(y),
    "norm1 is forgotten: attention reads normed tokens.":
        lambda x, a, m, n1, n2: (y := x + a(x)) + m(n2(y)),
    "norm2 is forgotten: the MLP reads normed tokens.":
        lambda x, a, m, n1, n2: (y := x + a(n1(x))) + m(y),
    "attention and MLP run side by side: the MLP should read what attention has already added.":
        lambda x, a, m, n1, n2: x + a(n1(x)) + m(n2(x)),
    "the MLP reads what attention found, alone. It reads the sum, tokens + mixed.":
        lambda x, a, m, n1, n2: (y := a(n1(x))) + x + m(n2(y)),
    "the first sum is left out: the MLP reads what attention found, and adds to the block's input.":
        lambda x, a, m, n1, n2: x + m(n2(a(n1(x)))),
    "the second sum begins at the block's input, so what attention found is lost. Go on from the first sum.":
        lambda x, a, m, n1, n2: x + m(n2(x + a(n1(x)))),
    "the MLP comes before attention. Equation 2 is attention, equation 3 the MLP.": mlp_first,
    "the norms come after the branches. They come before: attention(norm1(tokens)).":
        norms_after_the_branches,
}  # fmt: skip


def right_step(x, a, m, n1, n2):
    y = x + a(n1(x))
    return y + m(n2(y))


def branches_and_norms(block):
    return lambda x: block.attention(x)[0], block.mlp, block.norm1, block.norm2


def encode_mistakes(tokens, blocks, norm):
    """Pairs (what a mistake gives, words), each with and without the last norm."""

    def stack(step, some=blocks):
        result = tokens
        for block in some:
            result = step(result, *branches_and_norms(block))
        return result

    yield stack(right_step), "the last norm is forgotten (equation 4): return norm(tokens) after the loop."
    each_normed = tokens
    for block in blocks:
        each_normed = norm(right_step(each_normed, *branches_and_norms(block)))
    yield each_normed, "the last norm is applied after every block. It comes once, after the loop."
    for some, words in (
        (blocks[:1], "only the first block was applied. Is return inside the loop?"),
        (blocks[-1:], "only the last block counts: each block should read what the one before it gave."),
        (blocks[::-1], "the blocks are applied in reverse order."),
        ([], "no block was applied."),
    ):
        for result in (stack(right_step, some), norm(stack(right_step, some))):
            yield result, words
    for words, step in STEP_MISTAKES.items():
        yield norm(stack(step)), words
        yield stack(step), f"{words} And the last norm, equation 4, is missing."


# --- LayerScaleBlock ----------------------------------------------------------------------------------------


@check("LayerScaleBlock")
def check_layer_scale_block(answer):
    num_heads, others = (torch.randperm(3)[:2] + 2).tolist()
    judge_layer_scale_block(answer, several(), num_heads)
    judge_layer_scale_block(answer, 1, others)
    return "two learned scales; folded into the branches' last weights they give the same."


def judge_layer_scale_block(answer, batch, num_heads):
    embed_dim = 2 * num_heads * int(torch.randint(2, 5, ()))
    initial = 0.01 + 0.1 * torch.rand(()).item()
    block = answer(embed_dim, num_heads, initial=initial).eval()
    num_tokens, _ = random_sizes()
    tokens = torch.randn(batch, num_tokens, embed_dim)
    scales = judge_scales(block, tokens, initial)
    if block.attention.num_heads != num_heads:
        raise NotYet(
            f"for num_heads={num_heads} its attention has {block.attention.num_heads} heads. Pass the "
            "argument on: super().__init__(embed_dim, num_heads)."
        )
    for parameter in block.parameters():
        parameter.data.copy_(0.4 * torch.randn(parameter.shape))
    with torch.no_grad():
        got, again = block(tokens.clone())[0], block(tokens.clone())[0]
        if not torch.equal(got, again):
            raise NotYet(NOISE_IN_EVALUATION)
        first, second = (scale.flatten() for scale in scales)
        if torch.allclose(got, scaled_layer(block, second, first)(tokens), atol=1e-4, rtol=1e-4):
            first, second = second, first  # defined in the other order
        diagnoses = list(layer_scale_mistakes(tokens, block, first, second))
        equal("the first output", got, scaled_layer(block, first, second)(tokens), 1e-4, diagnoses)
    try:
        reached("the first output", block(tokens)[0], dict(block.named_parameters()))
    except RuntimeError as error:
        if "inplace" in str(error):
            raise NotYet(
                "right, but backward() stops: += changes tokens that an earlier step still needs for its "
                "gradient. Make new ones: tokens = tokens + ..."
            ) from error
        raise
    judge_attention(block, tokens)


def judge_scales(block, tokens, initial):
    """The two new parameters of a learner's block, or what is wrong with them."""
    try:
        out = unchanged(block, tokens)
    except TypeError as error:
        raise_if_pair(error)
        raise
    for part in out if isinstance(out, tuple) else (out,):
        if part is not None or not isinstance(out, tuple):
            need(part)
    if not isinstance(out, tuple) or len(out) != 2:
        raise NotYet("forward gives back two things, as EncoderBlock does: tokens, attention.")
    width = tokens.shape[-1]
    known = dict(EncoderBlock(width, 2).named_parameters())
    new = {name: parameter for name, parameter in block.named_parameters() if name not in known}
    if not new:
        held = [*vars(block).items(), *block.named_buffers()]
        loose = [name for name, thing in held if torch.is_tensor(thing)]
        if loose:
            raise NotYet(f"{loose[0]} is a plain tensor, which no optimizer sees. Wrap it in nn.Parameter.")
        raise NotYet("there is no new parameter. Make two in __init__ with nn.Parameter.")
    if len(new) == 1:
        ((name, both),) = new.items()
        if both.numel() != 2 * width or both.shape[-1] % width:
            raise NotYet(f"there is one new parameter, {name}. Each of the two branches has its own.")
        new = {f"{name}[{row}]": scale for row, scale in enumerate(both.view(2, width))}  # two in one
    if len(new) > 2:
        raise NotYet(f"there are {len(new)} new parameters, {', '.join(new)}. One for each branch is enough.")
    for name, scale in new.items():
        if scale.numel() == 1:
            raise NotYet(f"{name} is a single number. Make it one number for each of the {width} channels.")
        if scale.shape[-1] != width or scale.numel() != width:
            raise NotYet(f"{name} has shape {tuple(scale.shape)}. One number for each channel is ({width},).")
        if not scale.requires_grad:
            raise NotYet(f"{name} has requires_grad=False: it would never be trained.")
        if (scale - initial).abs().max() > 1e-6:
            low, high = scale.min().item(), scale.max().item()
            raise NotYet(f"{name} starts at {low:.3g} ... {high:.3g}. All its numbers start at `initial`.")
    return list(new.values())


def scaled_layer(block, first, second):
    """PyTorch's block with the scales folded into the last weights of its two branches."""
    width = len(first)
    layer = torch_layer(width, block.attention.num_heads)
    weights = {
        "self_attn.in_proj_weight": block.attention.qkv.weight,
        "self_attn.in_proj_bias": block.attention.qkv.bias,
        "self_attn.out_proj.weight": first[:, None] * block.attention.output.weight,
        "self_attn.out_proj.bias": first * block.attention.output.bias,
        "linear1.weight": block.mlp.expand.weight,
        "linear1.bias": block.mlp.expand.bias,
        "linear2.weight": second[:, None] * block.mlp.contract.weight,
        "linear2.bias": second * block.mlp.contract.bias,
        "norm1.weight": block.norm1.weight,
        "norm1.bias": block.norm1.bias,
        "norm2.weight": block.norm2.weight,
        "norm2.bias": block.norm2.bias,
    }
    layer.load_state_dict(weights)
    return layer


def layer_scale_mistakes(x, block, s1, s2):
    """Pairs (what a mistake gives, words)."""

    a, m, n1, n2 = branches_and_norms(block)
    y = x + s1 * a(n1(x))
    plain = x + a(n1(x))
    residual = "the scale multiplies the residual. It belongs to the branch: tokens + scale * mixed."
    the_sum = "the scale multiplies the whole sum. It belongs to the branch alone: tokens + scale * mixed."
    for one, two in ((s1, s2), (s2, s1)):
        z = one * x + a(n1(x))
        yield two * z + m(n2(z)), residual
        z = one * (x + a(n1(x)))
        yield two * (z + m(n2(z))), the_sum
        z = x + a(one * n1(x))
        yield z + m(two * n2(z)), "the scale multiplies what goes into the branch. It belongs behind it."
        z = n1(x + one * a(x))
        yield n2(z + two * m(z)), "this is post-norm. Keep the norms before the branches, as in EncoderBlock."
        yield x + one * a(n1(x)) + two * m(n2(x)), "the MLP should read what attention has already added."
        z = x + one * a(n1(x))
        yield z + m(n2(z)), "only attention is scaled. The MLP has a scale of its own."
        yield plain + one * m(n2(plain)), "only the MLP is scaled. Attention has a scale of its own."
        yield z + one * m(n2(z)), "one scale is used for both branches, the other one nowhere."
        yield two * m(n2(one * a(n1(x)))), "the residuals are forgotten: tokens + scale * mixed."
        z = x + one + a(n1(x))
        yield z + two + m(n2(z)), "the scale is added. It multiplies what the branch found: scale * mixed."
        whole = plain + m(n2(plain)) - x
        yield x + one * whole, "what the whole block adds is scaled at once. Scale each branch by itself."
    yield plain + m(n2(plain)), "the scales exist, but forward does not use them."
    yield y + s2 * m(n1(y)), "norm1 is used twice. The MLP has a norm of its own, norm2."


def judge_attention(block, tokens):
    attention = block(tokens, return_attention=True)[1]
    shape = (len(tokens), block.attention.num_heads, tokens.shape[1], tokens.shape[1])
    if not torch.is_tensor(attention) or attention.shape != shape:
        raise NotYet("with return_attention=True the second output is the attention weights. Pass it on.")
    if block(tokens)[1] is not None:
        raise NotYet("without return_attention the second output should be None, as EncoderBlock has it.")


# --- helpers ------------------------------------------------------------------------------------------------


def several():
    """More than one picture, and fewer than there are tokens."""
    return int(torch.randint(2, 4, ()))


def random_sizes():
    """Tokens and channels: small, and different."""
    return int(torch.randint(4, 6, ())), int(torch.randint(6, 9, ()))
