"""Checks of lesson 06, and the answers that the notebook goes on with while an exercise is open."""

import copy
from itertools import chain
from numbers import Real
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import unfold
from torch.utils.flop_counter import FlopCounterMode

from vitlib.checks import TODO, NotYet, Unfilled, check, equal, need, reached, unchanged
from vitlib.encoder import EncoderBlock
from vitlib.patch_embedding import PatchEmbedding
from vitlib.vit import VisionTransformer

PARTS = ["patch embedding", "class token", "positions", "blocks", "final norm", "head"]


class SmallViT(nn.Module):
    """Equations 1 to 4 of the paper and the head. Shapes: images (B, C, H, W) -> logits (B, num_classes)."""

    def __init__(
        self, image_size, patch_size, in_channels, num_classes, embed_dim, depth, num_heads, dropout=0.0
    ):
        super().__init__()
        self.patch_embedding = PatchEmbedding(image_size, patch_size, in_channels, embed_dim)
        num_patches = self.patch_embedding.num_patches
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, embed_dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, num_patches + 1, embed_dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(EncoderBlock(embed_dim, num_heads, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images):
        tokens = self.patch_embedding(images)  # (B, N, D)
        class_token = self.class_token.expand(len(tokens), -1, -1)  # (B, 1, D)
        tokens = torch.cat([class_token, tokens], dim=1)  # (B, N + 1, D)
        tokens = self.dropout(tokens + self.positions)
        for block in self.blocks:
            tokens, _ = block(tokens)
        return self.head(self.norm(tokens)[:, 0])  # (B, num_classes)


def count_parameters(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    """How many numbers each part of a ViT has: a dict."""
    return {
        "patch embedding": patch_size**2 * in_channels * embed_dim + embed_dim,
        "class token": embed_dim,
        "positions": (num_patches + 1) * embed_dim,
        "blocks": depth * (12 * embed_dim**2 + 13 * embed_dim),
        "final norm": 2 * embed_dim,
        "head": embed_dim * num_classes + num_classes,
    }


def count_flops(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    """The FLOPs of the matrix products of a ViT for one image, two for each multiply-add."""
    T, D = num_patches + 1, embed_dim
    embedding = num_patches * patch_size**2 * in_channels * D
    block = 12 * T * D**2 + 2 * T**2 * D
    return 2 * (embedding + depth * block + D * num_classes)


class TwoQuestions(VisionTransformer):
    """A ViT with two heads on one class token. Shapes: images (B, C, H, W) -> (B, K1) and (B, K2)."""

    def __init__(self, num_classes, **options):
        super().__init__(num_classes=0, **options)
        width = self.config["embed_dim"]
        self.heads = nn.ModuleList(nn.Linear(width, number) for number in num_classes)

    def forward(self, images):
        features = self.forward_features(images)[:, 0]  # (B, D)
        return tuple(head(features) for head in self.heads)


# --- the whole model ----------------------------------------------------------------------------------------


@check("SmallViT")
def check_small_vit(answer):
    judge_small_vit(answer, batch=at_random(2, 5), depth=at_random(4, 5))
    judge_small_vit(answer, batch=1, depth=at_random(2, 3))
    return "the logits of an independent model with your weights; dropout in training only."


def judge_small_vit(answer, batch, depth):
    num_heads, channels, rows, patch, num_classes = (at_random(*ends) for ends in SIZES)
    image_size, width = (rows * patch, (rows + 2) * patch), 6 * num_heads
    arguments = (image_size, patch, channels, num_classes, width, depth, num_heads)
    model = answer(*arguments, dropout=0.5).eval()
    parts = ("patch_embedding", "class_token", "positions", "dropout", "blocks", "norm", "head")
    for name in parts:
        if not hasattr(model, name):
            raise NotYet(f"self.{name} is missing. Leave __init__ as it is; only forward is yours.")
    for name, number in (("class_token", 1), ("positions", rows * (rows + 2) + 1)):
        if (shape := getattr(model, name).shape) != (1, number, width):
            raise NotYet(f"self.{name} should have shape {(1, number, width)}, but it has {tuple(shape)}.")
    if isinstance(model.blocks, list | tuple):
        raise NotYet(
            "self.blocks is a plain list, in which PyTorch finds no parameters: no optimizer would train "
            "them, and eval() does not reach them. Keep them in nn.ModuleList."
        )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        model.class_token.normal_()
        model.positions.normal_()
    images = torch.randn(batch, channels, *image_size)
    got = run(model, images)
    with torch.no_grad():
        if torch.is_tensor(got) and not torch.equal(got, model(images)):
            raise NotYet(
                "in evaluation, the same images give other logits the second time: dropout is on. "
                "self.dropout goes by model.eval(); the function dropout() needs training=self.training."
            )
        judge_logits(got, model, images)
    reached("the logits", got, dict(model.named_parameters()))
    with torch.no_grad():
        judge_dropout(model, images)


SIZES = [(2, 3), (1, 3), (2, 3), (2, 4), (4, 6)]  # heads, channels, rows, patch size, classes


def at_random(low, high):
    return int(torch.randint(low, high + 1, ()))


def run(model, images):
    """The learner's logits; the usual errors in words."""
    try:
        return unchanged(model, images)
    except (RuntimeError, AttributeError, TypeError) as error:
        words = str(error)
        if "ModuleList" in words:
            raise NotYet(
                "self.blocks is a list. Send the tokens through its blocks one by one, in a loop."
            ) from error
        if "tuple" in words:
            raise NotYet(
                "a block gives back two things, tokens and attention: tokens, _ = block(tokens)."
            ) from error
        if "must match the size of tensor b" in words:
            raise NotYet(
                "self.positions has one vector for each patch and one for the class token. "
                "Put the class token in front first, then add the positions."
            ) from error
        if "Sizes of tensors must match" in words:
            raise NotYet(
                f"here are {len(images)} images, and each needs the class token: "
                "self.class_token.expand(len(tokens), -1, -1)."
            ) from error
        raise


def judge_logits(got, model, images):
    need(got)
    right, depth = by_hand(model, images), len(model.blocks)
    tokens = by_hand(model, images, read="all")  # (B, T, D), normed
    width, num_tokens = tokens.shape[2], tokens.shape[1]
    if torch.is_tensor(got) and got.shape != right.shape:
        if got.shape == (len(images), num_tokens, right.shape[1]):
            raise NotYet(f"the head is on all {num_tokens} tokens. Only the class token goes into it.")
        if got.shape[-1] == width:
            raise NotYet(f"these are vectors of the width D={width}, not logits: the head is missing.")
    wrong = {
        "the final norm is missing (equation 4).": {"norm": "none"},
        "the final norm stands before the blocks. It comes after them (equation 4).": {"norm": "first"},
        "the final norm is applied after every block. It comes once, after the last.": {"norm": "each"},
        "the class token was put last. It goes in front, at index 0, and so do its position and its "
        "output.": {"place": "last"},
        "the class token was put last, and the first patch goes into the head.": {"place": "last", "read": 0},
        "the positions were added before the class token was put in front: it has none. First the token, "
        "then all positions.": {"positions": "patches"},
        "the positions were added before the class token was put in front, and every patch has that of its "
        "neighbour.": {"positions": "shifted"},
        "the positions are missing (equation 1).": {"positions": "none"},
        "the class token has no values of its own: use self.class_token.": {"token": "zeros"},
        "the last token goes into the head, a patch. The class token is at index 0.": {"read": -1},
        "token 1 goes into the head, the first patch. The class token is at index 0.": {"read": 1},
        "the mean of all tokens goes into the head, class token included. Take token 0.": {"read": "mean"},
        "the mean of the patches goes into the head. Take token 0.": {"read": "patches"},
        "the tokens are added to what a block gives. Its residuals (equations 2 and 3) are inside it.": {
            "residual": True
        },
        "only the last block did something: each must get what the one before it gave.": {"blocks": [-1]},
        "only the first block did something. Does something after it stand inside the loop?": {"blocks": [0]},
        "the blocks are missing.": {"blocks": []},
        "the blocks run in reverse order.": {"blocks": range(depth)[::-1]},
    }
    for number in range(2, depth):
        words = f"only {number} of {depth} blocks did something. Loop over all: for block in self.blocks."
        wrong[words] = {"blocks": range(number)}
    diagnoses = ((by_hand(model, images, **mistake), words) for words, mistake in wrong.items())
    softmaxed = [
        (right.softmax(dim=1), "these are probabilities. Give logits: the loss does the softmax itself."),
        (right.log_softmax(dim=1), "these are logarithms of probabilities. Give logits: the loss does the "
                                   "log_softmax itself."),
    ]  # fmt: skip
    equal("the logits", got, right, 1e-4, chain(softmaxed, diagnoses))


def by_hand(model, images, place="first", positions="all", norm="last", read="class", token="own",
            blocks=None, residual=False, dropped=False):  # fmt: skip
    """The logits of a ViT with the weights of `model`, from PyTorch's own layers, with mistakes on demand."""
    projection = model.patch_embedding.projection
    pixels = unfold(images, projection.kernel_size, stride=projection.stride)  # (B, C·P·P, N)
    patches = torch.einsum("b p n, d p -> b n d", pixels, projection.weight.flatten(1)) + projection.bias
    first, others = model.positions[:, :1], model.positions[:, 1:]
    own = model.class_token * (token == "own")
    if positions == "all" and place == "first":
        own, patches = own + first, patches + others
    elif positions == "all":  # the class token last gets the last position
        own, patches = own + model.positions[:, -1:], patches + model.positions[:, :-1]
    elif positions == "patches":
        patches = patches + others
    elif positions == "shifted":
        patches = patches + model.positions[:, :-1]
    own = own.repeat(len(images), 1, 1)
    tokens = torch.cat([own, patches] if place == "first" else [patches, own], dim=1)
    tokens = model.norm(tokens) if norm == "first" else tokens
    tokens = tokens * (not dropped)  # a dropout of everything, after the positions
    for number in range(len(model.blocks)) if blocks is None else blocks:
        tokens = torch_block(model.blocks[number]).to(tokens.dtype)(tokens) + tokens * residual
        tokens = model.norm(tokens) if norm == "each" else tokens
    tokens = model.norm(tokens) if norm == "last" else tokens
    if read == "all":
        return tokens
    index = (0 if place == "first" else -1) if read == "class" else read
    pooled = {"mean": tokens.mean(dim=1), "patches": tokens[:, 1:].mean(dim=1)}
    return model.head(pooled[read] if read in pooled else tokens[:, index])


def torch_block(block):
    """PyTorch's encoder layer with the weights of one of ours."""
    width, hidden = block.mlp.expand.in_features, block.mlp.expand.out_features
    layer = nn.TransformerEncoderLayer(
        width, block.attention.num_heads, hidden, 0.0, "gelu", block.norm1.eps, True, norm_first=True
    )
    theirs = [layer.norm1, layer.norm2, layer.self_attn.out_proj, layer.linear1, layer.linear2]
    ours = [block.norm1, block.norm2, block.attention.output, block.mlp.expand, block.mlp.contract]
    for to, source in zip(theirs, ours):
        to.load_state_dict(source.state_dict())
    layer.self_attn.in_proj_weight.copy_(block.attention.qkv.weight)
    layer.self_attn.in_proj_bias.copy_(block.attention.qkv.bias)
    return layer.train()  # without dropout this is the same, and never takes the fast path of evaluation


def judge_dropout(model, images):
    """The model's own dropout, and no other, drops everything: nothing is left where it stands."""
    expected = model(images)
    model.dropout.train()
    model.training = True
    model.dropout.p = 1.0
    got = model(images)
    if torch.equal(got, expected):
        raise NotYet("right in evaluation, but self.dropout is not used. It follows the positions.")
    if not torch.allclose(got, by_hand(model, images, dropped=True), atol=1e-4, rtol=1e-4):
        raise NotYet(
            "right in evaluation, but self.dropout stands elsewhere. It takes the tokens with positions, "
            "before the first block."
        )


# --- its size -----------------------------------------------------------------------------------------------


@check("count_parameters")
def check_count_parameters(answer):
    for _ in range(2):
        sizes = random_sizes()
        judge_counts(answer(*sizes), sizes)
    return "every part, as PyTorch's own layers have it, for two random models."


def random_sizes():
    """Sizes in the order of the exercises: N, P, C, K, D, L. D is a multiple of 4, for heads.

    T lies between D and 2·D: were it one of these, two different mistakes would give the same number.
    """
    limits = [(90, 110), (5, 9), (2, 4), (11, 29), (15, 20), (3, 5)]
    sizes = [at_random(*ends) for ends in limits]
    sizes[4] *= 4
    return sizes


def number(what, got):
    """A learner's number, or what is given in its place."""
    if torch.is_tensor(got) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, Real):
        raise NotYet(f"{what} should be a number, but it is of type {type(got).__name__}.")
    return got


def judge_counts(got, sizes):
    need(got)
    num_patches, patch, channels, num_classes, width, depth = sizes
    if not isinstance(got, dict):
        raise NotYet(f"give a dict with the parts {', '.join(PARTS)}, not a {type(got).__name__}.")
    if missing := [name for name in PARTS if name not in got]:
        raise NotYet(f"your dict has no {missing[0]!r}.")
    todo = [name for name in PARTS if any(got[name] is nothing for nothing in (TODO, None, ...))]
    if len(todo) == len(PARTS):
        raise Unfilled
    got = {name: number(name, got[name]) for name in PARTS if name not in todo}
    with torch.device("meta"):
        layers = {
            "patch embedding": [nn.Conv2d(channels, width, patch)],
            "blocks": [nn.TransformerEncoderLayer(width, 4, 4 * width)] * depth,
            "final norm": [nn.LayerNorm(width)],
            "head": [nn.Linear(width, num_classes)],
        }
        bare = {"class token": torch.empty(1, 1, width), "positions": torch.empty(num_patches + 1, width)}
    wanted = {name: tensor.numel() for name, tensor in bare.items()}
    for name, parts in layers.items():
        wanted[name] = sum(parameter.numel() for part in parts for parameter in part.parameters())
    block, pixels = wanted["blocks"] // depth, patch**2 * channels
    usual = {
        "patch embedding": {
            pixels * width: "the bias is missing: one number for each of the D outputs.",
            patch**2 * width + width: "the channels are missing: a patch has P·P·C numbers.",
            patch * channels * width + width: "a patch has P·P·C numbers, not P·C.",
            num_patches * (pixels * width + width): "all patches share one projection. Don't multiply by N.",
            num_patches * pixels * width: "all patches share one projection. Don't multiply by N.",
            pixels + 1: "every pixel has a weight for each of the D outputs.",
        },
        "class token": {
            1: "the class token is a vector of the width D.",
            0: "the class token is learned: D numbers.",
            2 * width: "its position belongs to the positions.",
            num_patches * width: "there is one class token, not one for each patch.",
        },
        "positions": {
            num_patches * width: "the class token has a position too.",
            (num_patches + 2) * width: "there is one position more than patches, N + 1 in all.",
            num_patches + 1: "each position is a vector of the width D.",
            num_patches: "each position is a vector of the width D, and the class token has one too.",
        },
        "blocks": {
            block: "this is one block. There are L.",
            depth * (block - 3 * width): "the biases of query, key and value are missing: 3·D a block.",
            depth * (block - 4 * width): "the two norms of a block are missing: 4·D a block.",
            depth * (block - 2 * width): "a block has two norms of 2·D each.",
            depth * (block - width**2 - width): "attention's output projection is missing: D² + D a block.",
            depth * (block - 9 * width): "the biases are missing: 9·D a block.",
            depth * 12 * width**2: "biases and norms are missing: 13·D a block.",
            depth * block + 2 * width: "the final norm is counted here. It has a place of its own.",
            depth * (block - 6 * width**2 - 3 * width): "the MLP is 4 times as wide inside: 8·D² + 5·D.",
        },
        "final norm": {
            0: "the final norm is missing: a weight and a bias for each of the D entries.",
            width: "a norm has a weight and a bias, D numbers each.",
            2 * depth * width: "this norm comes once. Those of the blocks belong to the blocks.",
            2 * (num_patches + 1) * width: "all tokens share the norm.",
        },
        "head": {
            width * num_classes: "the bias is missing: one number for each class.",
            (num_patches + 1) * width * num_classes + num_classes: "only the class token goes in, not all.",
        },
    }
    for name in PARTS:
        if name in todo:
            continue
        if got[name] in usual[name]:
            raise NotYet(f"{name}: {usual[name][got[name]]}")
        if got[name] != wanted[name]:
            raise NotYet(
                f"{name}: with N={num_patches}, P={patch}, C={channels}, K={num_classes}, D={width}, "
                f"L={depth} it has {wanted[name]:,} numbers, and you count {got[name]:,}."
            )
    if todo:
        raise NotYet(f"right so far. Still open: {', '.join(todo)}.")


@check("count_flops")
def check_count_flops(answer):
    for _ in range(2):
        sizes = random_sizes()
        judge_flops(answer(*sizes), sizes)
    return "as many as PyTorch counts while two random models of this size run."


def judge_flops(got, sizes):
    need(got)
    got = number("the result", got)
    num_patches, patch, channels, num_classes, width, depth = sizes
    tokens, square = num_patches + 1, 4 * depth * (num_patches + 1) ** 2 * width
    right = counted(*sizes)
    embedding, head = counted(*sizes[:5], 0) - 2 * width * num_classes, 2 * width * num_classes
    blocks = right - embedding - head
    without_class_token, one_more = (
        depth * (24 * number * width**2 + 4 * number**2 * width) for number in (num_patches, num_patches + 2)
    )
    usual = {
        right // 2: "these are multiply-adds (MACs). Each is two FLOPs: a multiplication and an addition.",
        right - square: "the products of T×T are missing: queries with keys, and weights with values.",
        right - square // 2: "attention has two products with T×T: queries with keys, weights with values.",
        right - blocks + without_class_token: "the class token runs through the blocks too: T = N + 1.",
        right - blocks + one_more: "one token too many runs through the blocks: T = N + 1.",
        counted(num_patches + 1, *sizes[1:]): "N counts the patches, without the class token. T is N + 1.",
        right + embedding // num_patches: "the class token does not go through the patch embedding: N there.",
        right + (tokens - 1) * head: "the head is on all tokens. It gets the class token alone.",
        right + num_patches * head - head: "the head is on the patches. It gets the class token alone.",
        right - blocks + blocks // depth: "this is one block. There are L.",
        right - embedding: "the patch embedding is missing.",
        right - embedding + embedding // num_patches: "the projection is used for each of the N patches.",
        right - num_patches * depth * 24 * width**2: "a block's 12·D² weights are used for all T tokens.",
        right - square + square // width: "each entry of T×T is a product of D numbers, not of one.",
        right + depth * 26 * tokens * width: "13·D of a block are biases and norms. Leave them out.",
        right - head: "the head is missing.",
        blocks: "these are the blocks alone. Patch embedding and head are missing.",
        right - depth * 8 * tokens * width**2: "the MLP has two maps, D to 4·D and back: 8·D² a token.",
        right - depth * 12 * tokens * width**2: "the MLP is 4 times as wide inside: 8·D² a token.",
        right - depth * 2 * tokens * width**2: "attention's output projection is missing: D² a token.",
        right - depth * 4 * tokens * width**2: "query, key and value are three products of D², not one.",
        3 * right: "this is a training step, forward and backward. Count the forward pass.",
    }
    if got in usual:
        raise NotYet(usual[got])
    if 2 * got in usual:
        raise NotYet(f"{usual[2 * got]} And a multiply-add is two FLOPs.")
    if got != right:
        raise NotYet(
            f"with N={num_patches}, P={patch}, C={channels}, K={num_classes}, D={width}, L={depth} PyTorch "
            f"counts {right:,}, and you {got:,}: {got / right:.4g} times as many."
        )


def counted(num_patches, patch, channels, num_classes, width, depth):
    """What PyTorch's counter sees where these products run, on tensors that have a shape and no numbers."""
    heads, tokens = 4, num_patches + 1
    size = {"device": "meta"}
    with FlopCounterMode(display=False) as counter:
        image = torch.empty(1, channels, patch, patch * num_patches, **size)
        nn.Conv2d(channels, width, patch, patch, **size)(image)
        x = torch.empty(tokens, width, **size)
        per_head = torch.empty(heads, tokens, width // heads, **size)
        for _ in range(depth):
            nn.Linear(width, 3 * width, **size)(x)
            weights = per_head @ per_head.mT
            weights @ per_head
            nn.Linear(width, width, **size)(x)
            nn.Linear(4 * width, width, **size)(nn.Linear(width, 4 * width, **size)(x))
        nn.Linear(width, num_classes, **size)(x[:1])
    return counter.get_total_flops()


# --- another design -----------------------------------------------------------------------------------------


@check("TwoQuestions")
def check_two_questions(answer):
    first, width = at_random(2, 3), 12
    second = first + at_random(2, 3)
    options = {"image_size": (6, 9), "patch_size": 3, "in_channels": 2, "embed_dim": width, "num_heads": 2}
    model = answer((first, second), depth=2, **options).eval()
    if not hasattr(model, "encode"):
        raise NotYet(
            "build it on the Vision Transformer itself, not around one: "
            "class TwoQuestions(VisionTransformer), with super().__init__(...)."
        )
    images = torch.randn(8 * width, 2, 6, 9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # With biases class tokens may differ so little that a ReLU on them looks like a linear map.
            parameter.normal_(std=0 if name.endswith("bias") else 1)
        judge_outputs(unchanged(model, images), len(images), first, second, num_tokens=7)
        judge_outputs(model(images[:1]), 1, first, second, num_tokens=7)
        judge_registered(model, images)
        model, images = model.double(), images.double()  # what is linear then is so to many digits
        got = model(images)
        features = features_by_hand(model, images)  # (B, T, D)
        for name, logits in zip(("first", "second"), got):
            judge_linear(name, logits, features)
        matrix, _ = linear_map(features[:, 0], got[1])  # the second head's, or what stands for it
        if torch.linalg.matrix_rank(matrix, rtol=1e-6) < second:
            raise NotYet("the second head reads the logits of the first. Both read the class token.")
    judge_waste(model, images)
    return "two linear heads on one class token, both registered, and the encoder runs once."


def features_by_hand(model, images):
    """The normed tokens of a model that has vitlib's parts: (B, C, H, W) -> (B, T, D)."""
    parts = SimpleNamespace(
        patch_embedding=model.patch_embedding,
        class_token=model.class_token.token,
        positions=model.positional_encoding.positional_embedding,
        blocks=model.encoder.blocks,
        norm=model.encoder.norm,
    )
    return by_hand(parts, images, read="all")


def judge_outputs(got, batch, first, second, num_tokens):
    need(got)
    if torch.is_tensor(got) and got.shape == (batch, first + second):
        raise NotYet("the answers to both questions stand in one tensor. Give two: (B, K1) and (B, K2).")
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise NotYet("give two tensors, the logits of the first question and of the second.")
    for part in got:
        need(part)
    shapes, wanted = [tuple(part.shape) for part in got], [(batch, first), (batch, second)]
    if shapes == [(batch, num_tokens, first), (batch, num_tokens, second)]:
        raise NotYet("the heads are on all tokens. Take the class token first: tokens[:, 0].")
    if shapes == wanted[::-1]:
        raise NotYet("the two answers have changed places.")
    if shapes != wanted:
        raise NotYet(
            f"with num_classes=({first}, {second}) the logits should have shapes {wanted}, not {shapes}."
        )


def judge_registered(model, images):
    """With every parameter at 0 the logits are 0, unless one of them is hidden in a plain list."""
    empty = copy.deepcopy(model)
    for parameter in empty.parameters():
        parameter.zero_()
    for name, logits in zip(("first", "second"), empty(images)):
        if logits.any() and not is_softmax(logits):
            raise NotYet(
                f"the {name} head has weights that model.parameters() does not know, so no optimizer would "
                "train them. Keep heads in self.name = nn.Linear(...) or in nn.ModuleList, not in a list or "
                "a dict."
            )


def is_softmax(logits):
    return (logits.sum(dim=1) - 1).abs().max() < 1e-5


def linear_map(inputs, outputs):
    """The best affine map from one to the other, by least squares: its matrix (D, K), and its error."""
    inputs, outputs = inputs - inputs.mean(dim=0), outputs - outputs.mean(dim=0)
    matrix = torch.linalg.lstsq(inputs, outputs).solution
    return matrix, (inputs @ matrix - outputs).std() / outputs.std()


def is_linear(inputs, outputs):
    return linear_map(inputs, outputs)[1] < 1e-6


def judge_linear(name, logits, features):
    """A head on the class token is an affine map of it, whichever way it was written."""
    if is_linear(features[:, 0], logits):
        return
    if is_softmax(logits):
        raise NotYet(f"the {name} answer sums to 1: a softmax. Give logits; the loss does the softmax.")
    readers = {
        "the mean of all tokens, class token included": features.mean(dim=1),
        "the mean of the patches": features[:, 1:].mean(dim=1),
        "token 1, a patch": features[:, 1],
        "the last token, a patch": features[:, -1],
    }
    for words, inputs in readers.items():
        if is_linear(inputs, logits):
            raise NotYet(f"the {name} head reads {words}. The class token is token 0.")
    raise NotYet(
        f"the {name} answer is no linear map of self.forward_features(images)[:, 0], the normed class token."
    )


def judge_waste(model, images):
    """Parameters that learn nothing, and work that is done twice."""
    for index, name in enumerate(("first", "second")):
        begin = {"the patch embedding": model.patch_embedding.projection.weight}
        reached(f"the {name} answer", model(images)[index], begin)
    runs = []
    model.encoder.register_forward_hook(lambda *_: runs.append(1))
    sum(part.sum() for part in model(images)).backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    if unused:
        raise NotYet(
            f"{unused[0]} is a parameter that learns from no answer. Either none uses it (num_classes=0 "
            "leaves out the old head), or .data or .detach() keeps the gradient from it."
        )
    if len(runs) > 1:
        raise NotYet(f"right, but the encoder runs {len(runs)} times. Run it once, share the class token.")
