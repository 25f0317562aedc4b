"""What attention weights say about where a model looks, as numbers (lesson 08).

`attention` is always the second thing that `model(images, return_attention=True)` gives: a tuple with one
tensor (B, num_heads, T, T) for each layer, row = the token that reads (query), column = the token that is
read (key). Its last element is the last layer, not a last step in time. T = N patches + the prefix tokens,
which come first; a plain ViT has one prefix token, its class token. Patches are numbered row by row; `grid`
is (rows, columns). Every function keeps the batch: one map per image.
"""

import math

import torch
from einops import reduce, repeat
from torch.nn.functional import normalize

from vitlib.patch_embedding import as_pair, check_batch, patch_grid


def class_attention(attention, num_prefix_tokens=1):
    """How much the class token reads from each patch, in every layer and head.

    That is row 0 of each attention matrix without the prefix columns, so it sums to less than 1: the rest is
    what the class token reads from itself.
    Shapes: depth x (B, num_heads, T, T) -> (B, depth, num_heads, N).
    Raises ValueError where the model has no class token.
    Source: Caron et al. 2021 (DINO), figures 1 and 3.
    """
    if num_prefix_tokens < 1:
        raise ValueError(
            "A class token is needed, and this model has none (num_prefix_tokens=0, as with pool='mean'). "
            "Look at the patches' own rows, attention[layer][:, head], or train a model with pool='class'."
        )
    _check_attention(attention)
    return torch.stack([layer[:, :, 0, num_prefix_tokens:] for layer in attention], dim=1)


def to_grid(values, grid):
    """Lay one number per patch out as the patches lie in the image. Shapes: (..., N) -> (..., rows, columns).

    Raises ValueError where the grid has not N places.
    """
    _check_grid(values.shape[-1], grid)
    return values.unflatten(-1, tuple(grid))


def rollout(attention):
    """Follow attention through all layers: how much of each input token ends up in each output token.

    The residual connection carries a token past the attention, so each layer becomes Ã = (A + I) with rows
    scaled to sum 1, A being the mean over the heads; the layers then multiply, R = Ã_L ⋯ Ã_1. The class
    token's map is R[:, 0, num_prefix_tokens:].
    Shapes: depth x (B, num_heads, T, T) -> (B, T, T), every row sums to 1.
    Raises ValueError for anything that is not attention: wrong shapes, rows that do not sum to 1.
    Source: Abnar & Zuidema 2020, section 3.
    """
    _check_attention(attention)
    return _multiply_layers([layer.float().mean(dim=1) for layer in attention])


def gradient_rollout(attention, gradients):
    """Rollout that counts an attention weight only as far as it raises the score of a class.

    As `rollout`, but with the mean over the heads of A ⊙ ∂y/∂A, negative means set to 0, in place of A.
    `gradients` come from `attention_gradients`, one for each layer and in the same order.
    Shapes: two times depth x (B, num_heads, T, T) -> (B, T, T), every row sums to 1.
    Raises ValueError as `rollout` does, and where the gradients' shapes are not those of the attention.
    Source: Gildenblat 2020, "gradient attention rollout" (vit-explain). Chefer et al. 2021 is close to it,
    but sets negative weights to 0 before the mean over the heads and does not scale the rows.
    """
    _check_gradients(attention, gradients)
    pairs = zip(attention, gradients, strict=True)
    return _multiply_layers([(layer * gradient).float().mean(dim=1).relu() for layer, gradient in pairs])


def _multiply_layers(layers):
    """R = Ã_L ⋯ Ã_1, where Ã is a layer's matrix plus the identity with its rows scaled to sum 1."""
    identity = torch.eye(layers[0].shape[-1], device=layers[0].device)
    result = identity.expand_as(layers[0])
    for layer in layers:  # the first layer acts first, so it stands rightmost
        result = normalize(layer + identity, p=1, dim=-1) @ result  # (B, T, T)
    return result


def relevance(attention, gradients):
    """How much each token counts for the score of a class, added up along all paths through the layers.

    Starts from the identity: each token counts for itself. Then each layer in turn adds what it moved,
    R ← R + Ā R with Ā = mean over the heads of relu(A ⊙ ∂y/∂A). Unlike in the rollouts, negative weights go
    before the mean, and no row is scaled: rows sum to 1 or more. `gradients` come from `attention_gradients`.
    The class token's map is R[:, 0, num_prefix_tokens:].
    Shapes: two times depth x (B, num_heads, T, T) -> (B, T, T).
    Raises ValueError as `gradient_rollout` does.
    Source: Chefer et al. 2021, "Generic Attention-model Explainability", equations 5 and 6.
    """
    _check_gradients(attention, gradients)
    result = torch.eye(attention[0].shape[-1], device=attention[0].device).expand_as(attention[0][:, 0])
    for layer, gradient in zip(attention, gradients, strict=True):
        moved = (layer * gradient).float().relu().mean(dim=1)  # (B, T, T)
        result = result + moved @ result
    return result


def attention_gradients(model, images, class_indices=None):
    """The attention of every layer, and how each weight changes the score (logit) of a class: ∂y/∂A.

    `class_indices` are B class numbers; without them, each image's likeliest class. Put the model in eval
    mode first. Works inside torch.no_grad() and torch.inference_mode() too, and leaves the parameters' .grad
    alone.
    Shapes: images (B, C, H, W) -> attention and gradients, two tuples of depth tensors (B, num_heads, T, T).
    Raises ValueError where there is not one class for each image.
    Source: ∇A in Chefer et al. 2021, section 3.
    """
    with torch.inference_mode(False):  # gradients are on in here, whatever the caller chose
        images = images.detach().clone()
        images.requires_grad_(images.is_floating_point())  # a model with frozen weights needs a graph, too
        logits, attention = model(images, return_attention=True)
        if class_indices is None:
            class_indices = logits.argmax(dim=1)
        class_indices = torch.as_tensor(class_indices, device=logits.device)
        if class_indices.shape != logits.shape[:1]:
            raise ValueError(
                f"Expected one class number for each of the {len(logits)} images, "
                f"got class_indices of shape {tuple(class_indices.shape)}."
            )
        scores = logits.gather(1, class_indices[:, None])  # (B, 1)
        gradients = torch.autograd.grad(scores.sum(), attention)  # images do not mix: each gets its own
    return tuple(layer.detach() for layer in attention), gradients


def residual_stream(model, images):
    """The tokens on their way through the encoder: before the first block, then after each block.

    Without the final norm: model.head(model.encoder.norm(stream[layer])[:, 0]) asks the class token for its
    answer after that layer, and after the last one it gives the model's logits. Put the model in eval mode
    first.
    Shapes: images (B, C, H, W) -> (depth + 1, B, T, D).
    Raises ValueError for images that the model was not built for.
    Source: nostalgebraist 2020, "the logit lens", for the reading; paper equations 1 to 3 for the tokens.
    """
    tokens = model.patch_embedding(images)  # (B, N, D)
    if model.class_token:
        tokens = model.class_token(tokens)  # (B, T, D)
    stream = [model.dropout(model.positional_encoding(tokens))]
    for block in model.encoder.blocks:
        tokens, _ = block(stream[-1])
        stream.append(tokens)
    return torch.stack(stream)


def mean_attention_distance(attention, grid, patch_size, num_prefix_tokens=1):
    """How far each head looks: the mean distance from a patch to the patches it reads, weighted by attention.

    In pixels, between patch centres, averaged over the reading patches. Prefix tokens have no place in the
    image and are left out; each row of the remaining weights is then scaled to sum 1 again. A patch that
    reads from prefix tokens only has no distance and does not count. `patch_size` is an int or (height,
    width).
    Shapes: depth x (B, num_heads, T, T) -> (B, depth, num_heads).
    Raises ValueError where the grid has not N places.
    Source: paper section 4.5, figure 7 right, and appendix D.7.
    """
    _check_attention(attention)
    _check_grid(attention[0].shape[-1] - num_prefix_tokens, grid)
    rows, columns = map(torch.arange, grid)
    centres = torch.cartesian_prod(rows, columns) * torch.tensor(as_pair(patch_size))  # (N, 2)
    distances = (centres[:, None] - centres).float().norm(dim=-1).to(attention[0].device)  # (N, N) pixels
    result = []
    for layer in attention:
        weights = layer[:, :, num_prefix_tokens:, num_prefix_tokens:].float()
        weights = weights / weights.sum(dim=-1, keepdim=True)
        result.append((weights * distances).sum(dim=-1).nanmean(dim=-1))  # (B, num_heads)
    return torch.stack(result, dim=1)


def mass_mask(weights, mass=0.6):
    """The fewest patches that together hold the share `mass` of the attention.

    Sort ascending, scale to sum 1, keep where the cumulative sum is greater than 1 - mass.
    Shapes: (..., N) -> bool (..., N).
    Raises ValueError where mass is not a share or a weight is negative.
    Source: Caron et al. 2021 (DINO), figure 4, with 60 % of the mass.
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass is a share of the attention, greater than 0 and at most 1, got {mass}.")
    if (weights < 0).any():
        raise ValueError(f"Attention is never negative, these weights go down to {weights.min():.4f}.")
    ordered, order = weights.float().sort(dim=-1, stable=True)
    cumulative = ordered.cumsum(dim=-1)
    kept = cumulative / cumulative[..., -1:] > 1 - mass
    return torch.zeros_like(kept).scatter(-1, order, kept)  # from sorted order back to patch order


def entropy(attention):
    """How widely each token looks, in bits: 0 for a single token, log2(T) for all alike.

    Shapes: depth x (B, num_heads, T, T) -> (B, depth, num_heads, T), one number for each row.
    Source: Shannon 1948, H = -Σ p log2 p.
    """
    _check_attention(attention)
    nats = [torch.special.entr(layer.float()).sum(dim=-1) for layer in attention]  # -Σ p ln p
    return torch.stack(nats, dim=1) / math.log(2)


def coverage(masks, grid):
    """The share of each patch that the object covers. Shapes: masks bool (B, H, W) -> (B, N)."""
    rows, columns = grid
    return reduce(masks.float(), "b (r h) (c w) -> b (r c)", "mean", r=rows, c=columns)


def mass_on_mask(weights, masks):
    """The share of the attention that falls on the object, and the share that chance would give it.

    Weights are scaled to sum 1 over the patches. A patch that the object covers by half counts half. Chance
    is the share of attention spread evenly: the object's share of the picture's area.
    Shapes: weights (B, ..., rows, columns), masks bool (B, H, W) -> share (B, ...), chance (B,).
    Raises ValueError where the patches do not divide the masks, or the batches differ.
    Source: lesson 08.
    """
    (batch, height, width), (rows, columns) = masks.shape, weights.shape[-2:]
    if len(weights) != batch or height % rows or width % columns:
        raise ValueError(
            f"Weights of shape {tuple(weights.shape)} do not fit masks of shape {tuple(masks.shape)}: "
            "expected (B, ..., rows, columns) and (B, H, W), with H and W divisible by rows and columns."
        )
    covered = coverage(masks, (rows, columns))  # (B, N)
    weights = normalize(weights.float().flatten(-2), p=1, dim=-1)  # (B, ..., N)
    return torch.einsum("b...n,bn->b...", weights, covered), covered.mean(dim=-1)


def remove_patches(images, order, number, patch_size, fill=0.0):
    """Paint over the first `number` patches of each image's own order; the given images stay as they are.

    `order` lists every patch of an image once: maps.argsort(dim=1, descending=True) takes what is largest in
    the maps (B, N) first. `fill` is a number (0 is the mean colour after `normalize`) or a tensor that fits
    the images, such as one colour (C, 1, 1) or other images. `patch_size` is an int or (height, width).
    Shapes: images (B, C, H, W), order (B, N) -> (B, C, H, W).
    Raises ValueError where the order is not one of the images' patches, or has not `number` of them.
    Source: Samek et al. 2017, "Evaluating the visualization of what a deep neural network has learned".
    """
    check_batch(images)
    rows, columns = patch_grid(images.shape[-2:], patch_size)
    num_patches = rows * columns
    if order.shape != (len(images), num_patches):
        raise ValueError(
            f"These {len(images)} images have {rows}x{columns} patches each, so order must have shape "
            f"{(len(images), num_patches)}, got {tuple(order.shape)}. The prefix tokens are no patches."
        )
    patches = torch.arange(num_patches, device=order.device)
    if order.is_floating_point() or not (order.sort(dim=1).values == patches).all():
        raise ValueError(
            f"Each row of order must list the patches 0 to {num_patches - 1} once each, got {order.dtype} "
            f"from {order.min()} to {order.max()}. For maps (B, N) use maps.argsort(dim=1, descending=True)."
        )
    if not 0 <= number <= num_patches:
        raise ValueError(f"Of {num_patches} patches, number={number} cannot be painted over.")
    fill = torch.as_tensor(fill, dtype=images.dtype, device=images.device)
    if fill.ndim in (1, 2):
        raise ValueError(
            f"fill of shape {tuple(fill.shape)} does not fit images {tuple(images.shape)}: give a number, "
            "one colour as (C, 1, 1), or other images."
        )
    gone = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :number], True)  # (B, N)
    height, width = as_pair(patch_size)
    gone = repeat(gone, "b (r c) -> b 1 (r height) (c width)", r=rows, height=height, width=width)
    return torch.where(gone, fill, images)


def positional_similarity(positional_embedding, grid, num_prefix_tokens=1):
    """How alike the positions of any two patches are: the cosine of the angle between them, -1 to 1.

    Tile [i, j] of the result compares patch (i, j) with every patch. The prefix tokens come first and are
    left out.
    Shapes: (T, D) or (1, T, D) -> (rows, columns, rows, columns).
    Raises ValueError where the grid has not N places.
    Source: paper section 4.5, figure 7 centre.
    """
    vectors = positional_embedding.detach().float().flatten(0, -2)[num_prefix_tokens:]  # (N, D)
    _check_grid(len(vectors), grid)
    vectors = normalize(vectors, dim=-1)
    return (vectors @ vectors.T).view(*grid, *grid)


def embedding_filters(weight, number=28):
    """What a patch embedding's filters are made of: their first principal components, as pictures.

    Each is scaled on its own for display: 0 becomes 0.5 (mid-grey), the largest entry in size becomes 1. A
    component has no sign of its own, so that entry is made positive.
    Shapes: the convolution's weight (D, C, P, P) -> (number, P, P, C), in 0..1.
    Raises ValueError where there are not that many components.
    Source: paper section 4.5, figure 7 left.
    """
    filters = weight.detach().cpu().double().flatten(1)  # (D, C·P·P), in float64 so that machines agree
    if not 1 <= number <= min(filters.shape):
        raise ValueError(
            f"A weight of shape {tuple(weight.shape)} has {min(filters.shape)} principal components, "
            f"number={number} were asked for."
        )
    _, _, components = torch.linalg.svd(filters - filters.mean(dim=0), full_matrices=False)
    components = components[:number]  # one a row, the largest first
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))  # (number, 1), with its sign
    pictures = 0.5 + 0.5 * components / largest
    return pictures.unflatten(1, weight.shape[1:]).movedim(1, -1).float()


def _check_attention(attention):
    """Not every tensor caught by a hook is attention: look at the shapes and at the sums of the rows."""
    shapes = [tuple(layer.shape) for layer in attention]
    if not shapes or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3] or len(set(shapes)) > 1:
        raise ValueError(
            f"Expected a tuple of layers, each (B, num_heads, T, T), got shapes {shapes}. "
            "Pass the whole second result of model(images, return_attention=True)."
        )
    for number, layer in enumerate(attention, start=1):
        sums = layer.detach().float().sum(dim=-1)
        if not ((sums - 1).abs() < 0.02).all():  # bfloat16 is off by up to 0.004; NaN fails too
            raise ValueError(
                f"Attention rows sum to 1, in layer {number} they sum to {sums.min():.3f}..{sums.max():.3f}. "
                "These may be scores before the softmax, or weights after dropout."
            )


def _check_gradients(attention, gradients):
    _check_attention(attention)
    shapes = [[tuple(layer.shape) for layer in layers] for layers in (attention, gradients)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"Each layer's attention needs its own gradient, got attention of shapes {shapes[0]} "
            f"and gradients of shapes {shapes[1]}. attention_gradients(model, images) gives both."
        )


def _check_grid(num_patches, grid):
    rows, columns = grid
    if rows * columns != num_patches:
        raise ValueError(
            f"{num_patches} patches do not fill a grid of {rows} rows and {columns} columns, "
            f"which has {rows * columns} places. Use model.grid, and check num_prefix_tokens."
        )
