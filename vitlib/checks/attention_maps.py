"""Checks of lesson 08."""

import functools
import itertools
import math

import torch

from vitlib.checks import NotYet, check, equal, explain, unchanged


@check("class_attention")
def _(answer):
    attention = random_attention(depth=3, batch=2, heads=4, tokens=7)
    want = torch.zeros(2, 3, 4, 6)
    for layer, matrices in enumerate(attention):
        for image in range(2):
            for head in range(4):
                for patch in range(6):
                    want[image, layer, head, patch] = matrices[image, head, 0, patch + 1]
    stacked = torch.stack(attention, dim=1)  # (B, depth, num_heads, T, T)
    got = unchanged(lambda *layers: answer(layers), *attention)
    explain(
        got,
        (stacked[..., 1:, 0], "this is column 0, who reads the class token. Take row 0, what it reads."),
        (stacked[..., 0, :], "column 0 is still there: the class token itself, which is no patch."),
        (stacked[..., 1, 1:], "this is row 1, what the first patch reads. The class token's row is row 0."),
        (want / want.sum(dim=-1, keepdim=True), "the rows are scaled to sum 1 again. Leave the weights as "
         "they are: what is missing is what the class token reads from itself."),
        (stacked[..., -1, 1:], "this is the last row, the last patch. The class token comes first."),
        (stacked[..., -1, :-1], "this is the last row without the last column. The class token comes first."),
        (stacked[..., 0, :-1], "the last column is missing, but the class token is the first one."),
        (want.mean(dim=2), "the heads are averaged. Keep them apart: (B, depth, num_heads, N)."),
        (want.transpose(0, 1), "the layers come first, not the images: stack with dim=1."),
        (want[:, -1], "this is the last layer only. Stack all of them: (B, depth, num_heads, N)."),
    )  # fmt: skip
    if isinstance(got, list | tuple):
        raise NotYet(f"this is a {type(got).__name__} of {len(got)}. Make it one tensor with torch.stack.")
    equal("the result", got, want)
    return "row 0 of every layer and head, without column 0."


@check("rollout")
def _(answer):
    attention = random_attention(depth=3, batch=2, heads=4, tokens=5)
    try:
        got = unchanged(lambda *layers: answer(layers), *attention)
    except RuntimeError as error:
        if "65" in str(error):
            raise NotYet(
                "here are 5 tokens, not 65. Take their number from the input: T = attention[0].shape[-1]."
            ) from error
        explain_failure(answer, attention)
        raise
    mean = [layer.mean(dim=1) for layer in attention]
    half = [(layer + torch.eye(5)) / 2 for layer in mean]  # rows sum to 1
    right = half[2] @ half[1] @ half[0]
    each_head = torch.stack([follow([layer[:, head] for layer in attention]) for head in range(4)], dim=1)
    uneven = onto_result = torch.eye(5)
    for layer in mean:
        uneven = (layer / 2 + torch.eye(5)) / 1.5 @ uneven
        mixed = layer + onto_result
        onto_result = mixed / mixed.sum(dim=-1, keepdim=True) @ onto_result
    largest, summed = (follow([fuse(layer, 1) for layer in attention]) for fuse in (torch.amax, torch.sum))
    explain(
        got,
        (mean[2] @ mean[1] @ mean[0], "the identity is missing: each token also keeps itself (residual)."),
        (8 * right, "the rows sum to 8. Scale each row of A + I to sum 1 before you multiply."),
        (half[0], "this is the first layer alone. Does the return stand inside the loop? Take it out."),
        (half[2], "this is the last layer alone. Multiply it with the result so far."),
        (onto_result, "the result so far is added to A. Add the identity, then multiply with the result."),
        (uneven, "the identity counts twice as much as A. Add them, A + I, then divide by the sums."),
        (half[0] @ half[1] @ half[2], "the layers stand in the wrong order. The last one stands leftmost."),
        (right.transpose(1, 2), "rows and columns are exchanged: here the columns sum to 1."),
        (sum(half) / 3, "the layers are averaged. One after the other means a matrix product, not a mean."),
        (math.prod(half), "* multiplies entry by entry. A walk through the layers is a matrix product, @."),
        (right[:, 0], "this is the class token's row alone. Give the whole matrix (B, T, T)."),
        (right[:, 0, 1:], "this is the class token's row alone. Give the whole matrix (B, T, T)."),
        (each_head, "every head is rolled out on its own. Average the heads of each layer first."),
        (largest, "this takes the largest of the heads. Take their mean."),
        (summed, "the heads are summed. Take their mean, or the identity counts too little."),
    )  # fmt: skip
    equal("the result", got, walk_all_paths(attention))
    return "the sum over all paths through the layers, and every row sums to 1."


@check("relevance")
def _(answer):
    attention = random_attention(depth=3, batch=2, heads=4, tokens=5)
    gradients = tuple(torch.randn_like(layer) for layer in attention)
    try:
        got = unchanged(lambda *layers: answer(layers[:3], layers[3:]), *attention, *gradients)
    except RuntimeError as error:
        if "65" in str(error):
            raise NotYet(
                "here are 5 tokens, not 65. Take their number from the input: T = attention[0].shape[-1]."
            ) from error
        raise
    identity = torch.eye(5)
    pairs = list(zip(attention, gradients, strict=True))
    moved = [(layer * gradient).relu().mean(dim=1) for layer, gradient in pairs]
    right = add_up(moved)
    replaced = onto_one = by_entry = identity
    for layer in moved:
        replaced = layer @ replaced
        onto_one = identity + layer @ onto_one
        by_entry = by_entry + layer * by_entry
    gradient_alone = add_up([gradient.relu().mean(dim=1) for gradient in gradients])
    attention_alone = add_up([layer.mean(dim=1) for layer in attention])
    mean_first = add_up([(layer * gradient).mean(dim=1).relu() for layer, gradient in pairs])
    means_apart = add_up([layer.mean(dim=1) * gradient.mean(dim=1).relu() for layer, gradient in pairs])
    explain(
        got,
        (torch.zeros_like(right), "all is 0. Start from the identity, torch.eye(T): each token counts for "
         "itself."),
        (replaced, "what was there is lost in each layer. Add to it: result = result + moved @ result."),
        (onto_one, "in each layer the identity is added, and not the result so far. Start from the identity, "
         "then result = result + moved @ result."),
        (by_entry, "* multiplies entry by entry. A walk through the layers is a matrix product, @."),
        (identity + sum(moved), "the layers are only added. What a layer moves is moved @ result."),
        (right - identity, "the identity is taken away at the end. Leave it in."),
        (mean_first, "the mean over the heads comes first, so a negative head cancels a positive one. First "
         "relu, then the mean."),
        (means_apart, "attention and gradient are averaged over the heads before they meet. Multiply them "
         "head by head."),
        (add_up([(layer * gradient).mean(dim=1) for layer, gradient in pairs]), "negative weights are still "
         "there. Set them to 0 with relu, before the mean over the heads."),
        (add_up([(layer * gradient).abs().mean(dim=1) for layer, gradient in pairs]), "abs counts what "
         "speaks against the class as if it spoke for it. Set it to 0 with relu."),
        (gradient_alone, "these are the gradients without the attention. Multiply the two, entry by entry."),
        (attention_alone, "no gradient is in it: this map would be the same for every class."),
        (follow(moved), "the rows are scaled to sum 1, as in rollout. Here they are not."),
        (add_up([4 * layer for layer in moved]), "the heads are summed. Take their mean."),
        (add_up([(layer * gradient).relu().amax(dim=1) for layer, gradient in pairs]), "this takes the "
         "largest of the heads. Take their mean."),
        (add_up(moved[::-1]), "the layers stand in the wrong order: moved @ result, and the first layer acts "
         "first."),
        (identity + moved[0], "this is the first layer alone. Does the return stand inside the loop?"),
        (identity + moved[2], "this is the last layer alone. Add to the result so far, layer by layer."),
        (right[:, 0], "this is the class token's row alone. Give the whole matrix (B, T, T)."),
        (right[:, 0, 1:], "this is the class token's row alone. Give the whole matrix (B, T, T)."),
        (right.mT, "rows and columns are exchanged. The token that reads is the row."),
    )  # fmt: skip
    equal("the result", got, collect_all_paths(moved))
    return "what all paths through the layers carry together, head by head and without what is negative."


@check("mean_attention_distance")
def _(answer):
    grid, patch_size = (2, 4), 3
    attention = random_attention(depth=2, batch=3, heads=2, tokens=9)
    right = distance(attention, grid, patch_size)
    try:
        got = unchanged(lambda *layers: answer(layers, grid, patch_size), *attention)
    except RuntimeError as error:
        if "64" in str(error):
            raise NotYet(
                "here are 2 rows of 4 patches, not 8 of 8. Take the numbers from grid: rows, columns = grid."
            ) from error
        if "9" in str(error) and "8" in str(error):
            raise NotYet(
                "9 tokens meet 8 patches. Leave the class token out of rows and columns: layer[:, :, 1:, 1:]."
            ) from error
        raise
    sums = attention[0][:, :, 1:, 1:].sum(dim=-1)
    unscaled, last_left_out, steps = (
        distance(attention, grid, patch_size, **mistake)
        for mistake in ({"rescale": False}, {"last": True}, {"power": 1})
    )
    explain(
        got,
        (right / patch_size, "this is in patches. Multiply by patch_size."),
        (unscaled, "the rows are not scaled to sum 1 again. Without the class token's column they sum to "
         f"{sums.min():.2f} ... {sums.max():.2f}."),
        (distance(attention, (4, 2), patch_size), "the grid's sides are exchanged. It is (rows, columns)."),
        (last_left_out, "the last token is left out. The class token is the first one."),
        (steps, "this adds the way down and the way across. A straight line is shorter: Pythagoras."),
        (right.mean(dim=0), "the images are averaged. Keep one number for each: (B, depth, num_heads)."),
        (right.mean(dim=2), "the heads are averaged. Keep one number for each: (B, depth, num_heads)."),
        (right.transpose(0, 1), "the layers come first, not the images: stack with dim=1."),
        (right / 8, "the keys are averaged. Sum over them: the weights of a row sum to 1 already."),
        (8 * right, "the reading patches are summed. Take their mean."),
    )  # fmt: skip
    equal("the result", got, right)
    return "in pixels, on a grid of 2 rows and 4 columns, without the class token."


# --- helpers ------------------------------------------------------------------------------------------------


def random_attention(depth, batch, heads, tokens):
    """A tuple as a model gives it: depth x (B, num_heads, T, T), rows sum to 1."""
    return tuple((2 * torch.randn(batch, heads, tokens, tokens)).softmax(dim=-1) for _ in range(depth))


def explain_failure(answer, attention):
    """Works for one image and not for two: most likely it divides by row sums that lost their dimension."""
    try:
        answer(tuple(layer[:1] for layer in attention))
    except Exception:
        return
    raise NotYet(
        "it works for one image and stops for two. Does sum(dim=-1) keep its dimension? (B, T, T) divided by "
        "(B, T) lines up columns, not rows: use keepdim=True."
    )


def follow(layers):
    """Rollout of matrices (B, T, T) that need not have rows of sum 1."""
    result = torch.eye(layers[0].shape[-1])
    for layer in layers:
        layer = layer + torch.eye(layer.shape[-1])
        result = layer / layer.sum(dim=-1, keepdim=True) @ result
    return result


def add_up(layers):
    """R ← R + Ā R for matrices (B, T, T), from the identity."""
    result = torch.eye(layers[0].shape[-1])
    for layer in layers:
        result = result + layer @ result
    return result


def collect_all_paths(layers):
    """The same without R: a path takes some of the layers and skips the others; all paths add up."""
    total = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(layers[0].shape)
    for number in range(1, len(layers) + 1):
        for taken in itertools.combinations([layer.double() for layer in layers], number):
            total = total + functools.reduce(torch.matmul, reversed(taken))
    return total.float()


def walk_all_paths(attention):
    """Rollout without a matrix product: weights along a path multiply, paths from i to j add up."""
    tokens = attention[0].shape[-1]
    steps = [((layer.double().mean(dim=1) + torch.eye(tokens)) / 2).tolist() for layer in attention]

    def reached(image, token, layers):
        """How much of each input token is in this token after so many layers."""
        if layers == 0:
            return [float(other == token) for other in range(tokens)]
        weights = steps[layers - 1][image][token]
        before = [reached(image, other, layers - 1) for other in range(tokens)]
        return [sum(w * b[j] for w, b in zip(weights, before, strict=True)) for j in range(tokens)]

    batch = range(len(attention[0]))
    return torch.tensor([[reached(b, token, len(attention)) for token in range(tokens)] for b in batch])


def distance(attention, grid, patch_size, rescale=True, last=False, power=2):
    """Mean attention distance by loops over pairs of patches, with the usual mistakes on demand."""
    places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    patches = slice(None, -1) if last else slice(1, None)
    result = torch.zeros(attention[0].shape[0], len(attention), attention[0].shape[1])
    for number, layer in enumerate(attention):
        weights = layer[:, :, patches, patches]
        for i, here in enumerate(places):
            total = weights[:, :, i].sum(dim=-1) if rescale else 1.0
            for j, there in enumerate(places):
                length = sum(abs(a - b) ** power for a, b in zip(here, there, strict=True)) ** (1 / power)
                result[:, number] += weights[:, :, i, j] / total * length * patch_size / len(places)
    return result
