"""Checks of lesson 02, and what the notebook goes on with while an exercise is open."""

import torch
from torch import nn

from vitlib.checks import NotYet, check, equal, need, reached, unchanged


def add_class_token(tokens, class_token):
    """The class token in front of every image's tokens. (B, N, D), (1, 1, D) -> (B, N + 1, D)."""
    return torch.cat([class_token.expand(len(tokens), -1, -1), tokens], dim=1)


def split_tokens(tokens):
    """The class token and the patch tokens. (B, N + 1, D) -> (B, D) and (B, N, D)."""
    return tokens[:, 0], tokens[:, 1:]


class PrefixTokens(nn.Module):
    """A class token and registers R in front of the patch tokens. (B, N, D) -> (B, 1 + R + N, D)."""

    def __init__(self, embed_dim, num_registers):
        super().__init__()
        self.prefix = nn.Parameter(0.02 * torch.randn(1, 1 + num_registers, embed_dim))

    def forward(self, tokens):
        return torch.cat([self.prefix.expand(len(tokens), -1, -1), tokens], dim=1)


# --- the shape ----------------------------------------------------------------------------------------------


@check("shape with a class token")
def check_shape(answer):
    try:
        got = tuple(int(length) for length in answer)
    except (TypeError, ValueError):
        raise NotYet(f"give a shape, three numbers in brackets like (2, 4, 3), not {answer!r}.") from None
    patches = len([(y, x) for y in range(0, 32, 8) for x in range(0, 48, 8)])  # each upper left corner
    mistakes = {
        (7, patches, 20): "that is the shape before. The class token makes one more.",
        (7, patches + 1, 21): "a token more is right. But each token is as long as before: 20 numbers.",
        (7, patches, 21): "this makes each token longer. The class token is a token more: the middle axis.",
        (8, patches, 20): "this is one image more. The class token is a token more in each image: the "
        "middle axis.",
        (8, patches + 1, 20): "a token more is right. But there are still 7 images.",
        (1, patches + 1, 20): "the tokens of one image. The batch holds 7.",
        (patches + 1, 20): "the tokens of one image. The batch of 7 comes first: three numbers.",
        (7, 20, patches + 1): "the right numbers, but the tokens come before their length: (B, N + 1, D).",
        (7, 17, 20): "the image is not square: 4 rows of patches, and how many columns?",
        (7, 37, 20): "the image is not square: 6 columns of patches, and how many rows?",
        (7, 32 * 48 + 1, 20): "this counts every pixel as a token. A patch has 8 times 8 of them.",
        (7, patches + 1, 192): "192 numbers are in a patch. What are they after the embedding?",
        (7, 3, patches + 1, 20): "the channels are gone: a patch's numbers of all three went into its token.",
    }
    if got in mistakes:
        raise NotYet(f"{got}: {mistakes[got]}")
    if got != (7, patches + 1, 20):
        raise NotYet(f"{got} is not it. How many rows of patches are there, how many columns? (B, N + 1, D)")
    return "7 images, 4 · 6 patches and one token more, 20 numbers each."


# --- add_class_token ----------------------------------------------------------------------------------------


@check("add_class_token")
def check_add_class_token(answer):
    for sizes in three_sizes():
        judge_add_class_token(answer, *sizes)
    return "first in every image, whatever the batch; the patches stay as they were; every image teaches it."


def three_sizes():
    """Three times (B, N, D), one with B = 1: one size alone could be the one that an answer has fixed.

    All are different, so that no axis passes for another: B is at most 5, N and D are at least 7.
    """
    few, many = sorted((torch.randperm(4) + 2)[:2].tolist())
    sides = (torch.randperm(6) + 7).tolist()
    return zip((many, 1, few), sides[:3], sides[3:])


def judge_add_class_token(answer, batch, patches, embed_dim):
    tokens = torch.randn(batch, patches, embed_dim, requires_grad=True)
    class_token = torch.randn(1, 1, embed_dim, requires_grad=True)

    def for_images(other):
        return answer(torch.randn(other, patches, embed_dim), torch.randn(1, 1, embed_dim))

    try:
        got = answer(tokens.clone(), class_token.clone())
    except RuntimeError as error:
        explain_failure(error, batch, for_images)
        raise
    need(got)
    want = torch.stack([torch.stack([class_token[0, 0], *image]) for image in tokens])
    explain_shape(got, want.shape, {
        (batch, patches, embed_dim): "has as many tokens as before. Nothing is added to the patch tokens or "
        "written over them: the class token is one more, in front of them (torch.cat).",
        (batch + 1, patches, embed_dim): "is one image more. Join along the tokens: dim=1.",
        (batch, patches, 2 * embed_dim): "makes every token twice as long. Join along the tokens: dim=1.",
        (batch, patches + batch, embed_dim): f"gives each image {batch} class tokens. One each is enough.",
        (1, patches + 1, embed_dim): "is one image's. Go through all images of the batch.",
        (patches + 1, embed_dim): "is one image's. Keep the batch: (B, N + 1, D).",
        (batch, 2 * patches, embed_dim): "has a class token for each patch. One for each image is enough.",
    })  # fmt: skip
    same_input = answer(tokens.clone(), class_token.clone())
    if got.shape == want.shape and not torch.equal(got, same_input):
        raise NotYet(
            "called twice with the same input it gives two results. Don't draw a new token: put in the "
            "class_token that is handed in."
        )
    last = torch.cat([want[:, 1:], want[:, :1]], dim=1)
    nothing = torch.cat([torch.zeros_like(want[:, :1]), want[:, 1:]], dim=1)
    equal("the result", got, want, diagnoses=[
        (last, "the class token comes last. It should be first: everything later looks for it at index 0."),
        (nothing, "the first token is all zeros. Put in the class_token that is handed in."),
    ])  # fmt: skip
    reached("the result", got[-1:], {"class_token": class_token, "tokens": tokens})
    unchanged(answer, tokens, class_token)


def explain_failure(error, batch, run):
    """An answer that stops at one size of the batch may have another size built in."""
    if "except in dimension 0" in str(error) or "except in dimension 2" in str(error):
        raise NotYet(
            "torch.cat joins along the axis dim. 0 is the images, 2 the numbers of a token; the tokens of an "
            "image are dim=1."
        ) from error
    for other in [number for number in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64) if number != batch]:
        try:
            run(other)
        except RuntimeError:
            continue
        if other == 1:
            raise NotYet(
                f"it works for one image, and stops for {batch}. What is learned is there once, and there "
                f"are {batch} images: show it once for each with expand(B, -1, -1)."
            ) from error
        raise NotYet(
            f"it works for {other} images, and stops for {batch}. What is learned is there once, with 1 as "
            "its first length, and shown to any batch: take B from the tokens, B = tokens.shape[0]."
        ) from error


# --- split_tokens -------------------------------------------------------------------------------------------


@check("split_tokens")
def check_split_tokens(answer):
    for sizes in three_sizes():
        judge_split_tokens(answer, *sizes)
    return "index 0 for the class token, everything from index 1 on for the patches."


def judge_split_tokens(answer, batch, num_tokens, embed_dim):
    tokens = torch.randn(batch, num_tokens, embed_dim, requires_grad=True)
    parts = [list(image) for image in tokens]  # one tensor for each token
    want_class = torch.stack([first for first, *_ in parts])
    want_patches = torch.stack([torch.stack(rest) for _, *rest in parts])
    got = answer(tokens.clone())
    need(got)
    if torch.is_tensor(got) or not isinstance(got, list | tuple) or len(got) != 2:
        raise NotYet("give back two tensors: the class token's, and the patches': return ..., ...")
    for part in got:
        need(part)
    first, rest = got
    if torch.is_tensor(first) and first.shape == want_patches.shape:
        raise NotYet("the order is exchanged: the class token first, then the patches.")
    explain_shape(first, want_class.shape, {
        (batch, 1, embed_dim): "still has the axis of tokens, of length 1. An index takes it away, a slice "
        "such as 0:1 keeps it.",
        (num_tokens, embed_dim): "is the first image with all its tokens. The images come first: keep them "
        "all with a colon, and take the token with the second index.",
        (batch, num_tokens): "is one number of each token. The third axis stays whole.",
        (embed_dim,): "is the class token of one image. Keep all images: a colon for the first index."
        if batch > 1 else "has lost the axis of images, since there is only one: squeeze() takes away every "
        "axis of length 1. Use an index, or squeeze(1).",
    }, "the class token's tensor")  # fmt: skip
    middle = "The class token was put in front: index 0."
    equal("the class token's tensor", first, want_class, diagnoses=[
        (tokens[:, -1], f"this is the last token, a patch. {middle}"),
        (tokens[:, 1], f"this is the first patch. {middle}"),
        (tokens.mean(dim=1), f"this is the mean of all tokens. {middle}"),
    ])  # fmt: skip
    explain_shape(rest, want_patches.shape, {
        (batch, num_tokens, embed_dim): "still holds the class token. Leave out the first token.",
        (batch - 1, num_tokens, embed_dim): "leaves out an image. The tokens are the second index.",
        (batch, num_tokens, embed_dim - 1): "leaves out a number of each token. The tokens are the second "
        "index.",
        (batch, num_tokens - 2, embed_dim): "leaves out two tokens. Only one is not a patch.",
        (batch, embed_dim): "is a single token of each image. A slice keeps many: from 1 on.",
    }, "the patches' tensor")  # fmt: skip
    equal("the patches' tensor", rest, want_patches, diagnoses=[
        (tokens[:, :-1], "this leaves out the last token, a patch, and keeps the class token: every patch is "
         "one place off. Leave out the first: [:, 1:]."),
    ])  # fmt: skip
    reached("the class token's tensor", first, {"tokens": tokens})
    reached("the patches' tensor", answer(tokens.clone())[1], {"tokens": tokens})
    unchanged(answer, tokens)


# --- PrefixTokens -------------------------------------------------------------------------------------------


@check("PrefixTokens")
def check_prefix_tokens(answer):
    for registers, sizes in zip((3, 2, 4), three_sizes()):
        judge_prefix_tokens(answer, registers, *sizes)
    return "class token, registers, patches, in this order; all learned, and shared by all images."


def judge_prefix_tokens(answer, registers, batch, patches, embed_dim):
    prefix = 1 + registers
    layer = answer(embed_dim, registers)
    if not isinstance(layer, nn.Module):
        raise NotYet("what it builds is no nn.Module: class PrefixTokens(nn.Module), and super().__init__().")
    made_at_start = len(list(layer.parameters()))
    for parameter in layer.parameters():
        nn.init.normal_(parameter)  # whatever they start with, each number is now of its own
    tokens = torch.randn(batch, patches, embed_dim, requires_grad=True)
    try:
        got = layer(tokens.clone())
    except RuntimeError as error:
        explain_failure(error, batch, lambda other: layer(torch.randn(other, patches, embed_dim)))
        raise
    need(got)
    if len(list(layer.parameters())) > made_at_start:
        raise NotYet("forward makes an nn.Parameter, which no optimizer will ever see. Make it in __init__.")
    shape = (batch, prefix + patches, embed_dim)
    explain_shape(got, shape, {
        (batch, patches + 1, embed_dim): f"has one token in front. With {registers} registers there should "
        f"be {prefix}: the class token is one more.",
        (batch, patches + registers, embed_dim): f"has {registers} tokens in front. With {registers} "
        f"registers there should be {prefix}: the class token is one more.",
        (batch, patches + 2 * prefix, embed_dim): "has all of them twice.",
        (batch + prefix, patches, embed_dim): "has more images. Join along the tokens: dim=1.",
    })  # fmt: skip
    if (tuple(got.shape), got.dtype) != (shape, tokens.dtype):
        equal("the result", got, torch.empty(shape))
    judge_order(got, tokens, prefix, [p for p in layer.parameters() if p.numel() == embed_dim])
    if not torch.equal(got, layer(tokens.clone())):
        raise NotYet(
            "called twice with the same tokens it gives two results. Draw the numbers once, in __init__, and "
            "keep them in an nn.Parameter."
        )
    judge_parameters(layer, got, prefix, embed_dim)
    reached("the result", got, {"tokens": tokens, **dict(layer.named_parameters())})
    unchanged(layer, tokens)


def judge_order(got, tokens, prefix, alone):
    """Where the patches are, and where the class token is, if it is a parameter of its own (`alone`)."""
    patches = tokens.shape[1]
    if not torch.equal(got[:, prefix:], tokens):
        if torch.equal(got[:, :patches], tokens):
            raise NotYet("the patches come first. Everything new goes in front of them.")
        if torch.equal(got[:, 1 : 1 + patches], tokens):
            raise NotYet("the registers stand behind the patches. Both kinds of new tokens go in front.")
        raise NotYet(f"the last {patches} tokens should be the patches, unchanged. They are not.")
    if len(alone) == 1 and torch.equal(got[0, prefix - 1], alone[0].flatten()):
        raise NotYet("the class token stands behind the registers. Later code looks for it at index 0.")


def judge_parameters(layer, got, prefix, embed_dim):
    """One learned vector for each new token, the same for all images."""
    number, needed = sum(parameter.numel() for parameter in layer.parameters()), prefix * embed_dim
    if not torch.equal(got[:, :prefix], got[:1, :prefix].expand(len(got), -1, -1)):
        raise NotYet(
            "the images have different tokens in front. All share the same ones: they must serve images that "
            "nobody has seen yet."
        )
    new = got[0, :prefix]
    new = new[new.any(dim=1)]
    if len(new.unique(dim=0)) < len(new):
        raise NotYet(
            "some of the new tokens are the same vector. Give each a row of its own to learn: "
            "(1, num_registers, D)."
        )
    if number < needed:
        raise NotYet(
            f"{prefix} tokens of {embed_dim} numbers make {needed}, but the layer has {number} parameters. "
            "What is not an nn.Parameter is never trained."
        )
    if number > needed:
        raise NotYet(
            f"{prefix} tokens of {embed_dim} numbers make {needed}, but the layer has {number} parameters. "
            "One vector for each new token is all that is learned."
        )


# --- helpers ------------------------------------------------------------------------------------------------


def explain_shape(got, right, mistakes, what="the result"):
    """Refuse a shape that tells what went wrong: a dict of shape -> words about it."""
    if not torch.is_tensor(got):
        equal(what, got, torch.empty(right))
    words = mistakes.get(tuple(got.shape))
    if words and got.shape != right:
        raise NotYet(f"{what}, of shape {tuple(got.shape)}, {words}")
