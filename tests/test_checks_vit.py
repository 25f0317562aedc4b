"""Checks of lesson 06: usual mistakes are refused in words that help, right answers pass however written."""

import pytest
import torch
import torchvision
from checking import judged_against
from einops import rearrange, repeat
from torch import nn
from torch.nn.functional import dropout

from vitlib import VisionTransformer
from vitlib.checks import TODO
from vitlib.checks import vit as lesson

verdict = judged_against(lambda name: getattr(lesson, name))


# --- SmallViT ------------------------------------------------------------------------------------------


def small_vit(written):
    """A SmallViT whose forward is the given function of (self, images)."""
    return type("Learners", (lesson.SmallViT,), {"forward": written})


def embedded(self, images):
    """The right tokens at the entry of the encoder."""
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
    return self.dropout(tokens + self.positions)


def encoded(self, tokens, norm=True):
    for block in self.blocks:
        tokens = block(tokens)[0]
    return self.norm(tokens) if norm else tokens


def by_einops(self, images):
    tokens = self.patch_embedding(images)
    token = repeat(self.class_token, "one t d -> (one b) t d", b=images.shape[0])
    tokens = torch.concatenate((token, tokens), 1)
    tokens += self.positions
    tokens = self.dropout(tokens)
    for block in self.blocks:
        tokens, attention = block(tokens, return_attention=True)
    return self.head(self.norm(rearrange(tokens, "b t d -> t b d")[0]))


def by_parts(self, images):
    """Positions added to each part before they are joined, the functional dropout, norm of one token."""
    patches = self.patch_embedding(images) + self.positions[:, 1:]
    first = (self.class_token + self.positions[:, :1]).repeat(patches.shape[0], 1, 1)
    tokens = dropout(torch.cat([first, patches], dim=1), self.dropout.p, self.training)
    return self.head(encoded(self, tokens)[:, 0, :])


def class_token_last(self, images, read=-1):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([tokens, self.class_token.expand(len(tokens), -1, -1)], dim=1) + self.positions
    return self.head(encoded(self, tokens)[:, read])


def positions_first(self, images, positions=slice(None)):
    tokens = self.patch_embedding(images) + self.positions[:, positions]
    tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
    return self.head(encoded(self, tokens)[:, 0])


def without_positions(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
    return self.head(encoded(self, tokens)[:, 0])


def no_expand(self, images):
    return torch.cat([self.class_token, self.patch_embedding(images)], dim=1)


def zero_class_token(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], dim=1) + self.positions
    return self.head(encoded(self, tokens)[:, 0])


def tuple_kept(self, images):
    tokens = embedded(self, images)
    for block in self.blocks:
        tokens = block(tokens)
    return self.head(self.norm(tokens)[:, 0])


def return_in_the_loop(self, images):
    tokens = embedded(self, images)
    for block in self.blocks:
        tokens, _ = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


def each_block_from_the_start(self, images):
    tokens = embedded(self, images)
    for block in self.blocks:
        out, _ = block(tokens)
    return self.head(self.norm(out)[:, 0])


def norm_after_each(self, images):
    tokens = embedded(self, images)
    for block in self.blocks:
        tokens = self.norm(block(tokens)[0])
    return self.head(tokens[:, 0])


def residual_twice(self, images):
    tokens = embedded(self, images)
    for block in self.blocks:
        tokens = tokens + block(tokens)[0]
    return self.head(self.norm(tokens)[:, 0])


def dropout_before_positions(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
    return self.head(encoded(self, self.dropout(tokens) + self.positions)[:, 0])


def list_called(self, images):
    tokens, _ = self.blocks(embedded(self, images))
    return self.head(self.norm(tokens)[:, 0])


def dropout_always(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
    return self.head(encoded(self, dropout(tokens + self.positions, 0.1))[:, 0])


def dropout_forgotten(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
    return self.head(encoded(self, tokens)[:, 0])


def three_blocks(self, images):
    tokens = embedded(self, images)
    for number in range(3):
        tokens, _ = self.blocks[number](tokens)
    return self.head(self.norm(tokens)[:, 0])


def batch_of_six(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.repeat(6, 1, 1), tokens], dim=1)
    return self.head(encoded(self, tokens + self.positions)[:, 0])


def class_token_detached(self, images):
    tokens = self.patch_embedding(images)
    tokens = torch.cat([self.class_token.detach().expand(len(tokens), -1, -1), tokens], dim=1)
    return self.head(encoded(self, self.dropout(tokens + self.positions))[:, 0])


def images_changed(self, images):
    return by_einops(self, images.mul_(2) / 2)


class Listed(lesson.SmallViT):
    """Blocks in a plain list, and dropout in them, which eval() does not reach."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        blocks = list(self.blocks)
        del self.blocks
        self.blocks = blocks


class PositionsForEachImage(lesson.SmallViT):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.positions = nn.Parameter(self.positions.repeat(4, 1, 1).detach())


def read_out(pool):
    return lambda self, images: self.head(pool(encoded(self, embedded(self, images))))


WRONG_VIT = {
    "class token was put last. It goes in front": class_token_last,
    "first patch goes into the head": lambda self, images: class_token_last(self, images, read=0),
    "class token in front first": positions_first,
    "it has none": lambda self, images: positions_first(self, images, slice(1, None)),
    "of its neighbour": lambda self, images: positions_first(self, images, slice(None, -1)),
    "positions are missing": without_positions,
    "self.class_token.expand": no_expand,
    "use self.class_token": zero_class_token,
    "final norm is missing": lambda self, images: self.head(
        encoded(self, embedded(self, images), norm=False)[:, 0]
    ),
    "norm stands before the blocks": lambda self, images: self.head(
        encoded(self, self.norm(embedded(self, images)), norm=False)[:, 0]
    ),
    "after every block": norm_after_each,
    "two things, tokens and attention": tuple_kept,
    "only the first block": return_in_the_loop,
    "only the last block": each_block_from_the_start,
    "blocks are missing": lambda self, images: self.head(self.norm(embedded(self, images))[:, 0]),
    "head is on all": read_out(lambda tokens: tokens),
    "last token goes into the head": read_out(lambda tokens: tokens[:, -1]),
    "token 1 goes into the head": read_out(lambda tokens: tokens[:, 1]),
    "mean of all tokens": read_out(lambda tokens: tokens.mean(dim=1)),
    "mean of the patches": read_out(lambda tokens: tokens[:, 1:].mean(dim=1)),
    "head is missing": lambda self, images: encoded(self, embedded(self, images))[:, 0],
    "these are probabilities": lambda self, images: by_einops(self, images).softmax(dim=-1),
    "these are logarithms of": lambda self, images: by_einops(self, images).log_softmax(dim=-1),
    "only 3 of": three_blocks,
    "each needs the class token": batch_of_six,
    "should have shape (1, ": lambda self, images: by_einops(self, images).squeeze(),
    "no gradient flows": torch.no_grad()(by_einops),
    "no gradient reaches class_token": class_token_detached,
    "changes the tensor that it is given": images_changed,
    "residuals (equations 2 and 3) are inside it": residual_twice,
    "self.blocks is a list": list_called,
    "dropout is on": dropout_always,
    "self.dropout stands elsewhere": dropout_before_positions,
    "self.dropout is not used": dropout_forgotten,
}


# --- count_parameters ----------------------------------------------------------------------------------


def counted_by_torchvision(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    """By building a model; torchvision's takes square grids and three channels, so those parts are redone."""
    with torch.device("meta"):
        model = torchvision.models.VisionTransformer(8, 4, depth, 1, embed_dim, 4 * embed_dim,
                                                     num_classes=num_classes)  # fmt: skip

    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    return {
        "patch embedding": embed_dim * (1 + in_channels * patch_size * patch_size),
        "class token": model.class_token.numel(),
        "positions": embed_dim * num_patches + embed_dim,
        "blocks": count(model.encoder.layers),
        "final norm": count(model.encoder.ln),
        "head": float(count(model.heads)),
    }


def counted_by_layers(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    """Linear map by linear map, each with its bias."""

    def size(*maps):
        return sum(width_in * width + width for width_in, width in maps)

    square, wide = (embed_dim, embed_dim), (embed_dim, 4 * embed_dim)
    return {
        "patch embedding": size((patch_size**2 * in_channels, embed_dim)),
        "class token": embed_dim,
        "positions": (num_patches + 1) * embed_dim,
        "blocks": depth * (size(square, square, square, square, wide, wide[::-1]) + 4 * embed_dim),
        "final norm": 2 * embed_dim,
        "head": size((embed_dim, num_classes)),
    }


def count_with(part, wrong):
    """The right counts, but for one part."""
    return lambda *sizes: lesson.count_parameters(*sizes) | {part: wrong(*sizes)}


WRONG_COUNT = {
    "patch embedding: the bias is missing": count_with(
        "patch embedding", lambda N, P, C, K, D, L: P * P * C * D
    ),
    "the channels are missing": count_with("patch embedding", lambda N, P, C, K, D, L: P * P * D + D),
    "P·P·C numbers, not P·C": count_with("patch embedding", lambda N, P, C, K, D, L: P * C * D + D),
    "share one projection": count_with("patch embedding", lambda N, P, C, K, D, L: N * (P * P * C * D + D)),
    "class token: the class token is learned": count_with("class token", lambda *sizes: 0),
    "a vector of the width D": count_with("class token", lambda *sizes: 1),
    "positions: the class token has a position too": count_with("positions", lambda N, P, C, K, D, L: N * D),
    "one position more than patches": count_with("positions", lambda N, P, C, K, D, L: (N + 2) * D),
    "each position is a vector": count_with("positions", lambda N, P, C, K, D, L: N + 1),
    "this is one block": count_with("blocks", lambda N, P, C, K, D, L: 12 * D * D + 13 * D),
    "query, key and value are missing": count_with(
        "blocks", lambda N, P, C, K, D, L: L * (12 * D * D + 10 * D)
    ),
    "two norms of a block are missing": count_with(
        "blocks", lambda N, P, C, K, D, L: L * (12 * D * D + 9 * D)
    ),
    "output projection is missing": count_with("blocks", lambda N, P, C, K, D, L: L * (11 * D * D + 12 * D)),
    "biases and norms are missing": count_with("blocks", lambda N, P, C, K, D, L: L * 12 * D * D),
    "final norm is missing": count_with("final norm", lambda *sizes: 0),
    "a weight and a bias, D numbers each": count_with("final norm", lambda N, P, C, K, D, L: D),
    "head: the bias is missing": count_with("head", lambda N, P, C, K, D, L: D * K),
    "only the class token goes in": count_with("head", lambda N, P, C, K, D, L: (N + 1) * D * K + K),
    "Still open: head": count_with("head", lambda *sizes: TODO),
    "give a dict": lambda *sizes: sum(lesson.count_parameters(*sizes).values()),
    "your dict has no 'head'": lambda *sizes: {
        name: count for name, count in lesson.count_parameters(*sizes).items() if name != "head"
    },
    "and you count": count_with("blocks", lambda *sizes: 17),
    "head should be a number, but it is of type str": count_with("head", lambda *sizes: "7,690"),
    "blocks should be a number, but it is of type list": count_with("blocks", lambda *sizes: [1, 2]),
}


# --- count_flops ---------------------------------------------------------------------------------------


def flops(N, P, C, K, D, L, tokens=1, embedded=0, head=1, square=2, width=12, each=2):
    """The right number of FLOPs, with mistakes on demand."""
    T = N + tokens
    block = width * T * D * D + square * T * T * D
    return each * ((N + embedded) * P * P * C * D + L * block + head * D * K)


def flops_by_matrices(N, P, C, K, D, L):
    """Every product as (rows, inner, columns)."""
    T = N + 1
    block = [(T, D, 3 * D), (T, D, T), (T, T, D), (T, D, D), (T, D, 4 * D), (T, 4 * D, D)]
    return sum(2 * a * b * c for a, b, c in [(N, P * P * C, D), *(L * block), (1, D, K)])


WRONG_FLOPS = {
    "these are multiply-adds": lambda *sizes: flops(*sizes, each=1),
    "products of T×T are missing: queries": lambda *sizes: flops(*sizes, square=0),
    "attention has two products": lambda *sizes: flops(*sizes, square=1),
    "values. And a multiply-add is two FLOPs": lambda *sizes: flops(*sizes, square=0, each=1),
    "T = N + 1. And a multiply-add is two": lambda *sizes: flops(*sizes, tokens=0, each=1),
    "one token too many": lambda *sizes: flops(*sizes, tokens=2),
    "without the class token": lambda N, *sizes: flops(N + 1, *sizes),
    "the MLP has two maps": lambda *sizes: flops(*sizes, width=8),
    "runs through the blocks too": lambda *sizes: flops(*sizes, tokens=0),
    "does not go through the patch embedding": lambda *sizes: flops(*sizes, embedded=1),
    "head is on all tokens": lambda N, *sizes: flops(N, *sizes, head=N + 1),
    "this is one block": lambda N, P, C, K, D, L: flops(N, P, C, K, D, 1),
    "patch embedding is missing": lambda N, *sizes: flops(N, *sizes, embedded=-N),
    "head is missing": lambda *sizes: flops(*sizes, head=0),
    "the MLP is 4 times as wide": lambda *sizes: flops(*sizes, width=6),
    "output projection is missing": lambda *sizes: flops(*sizes, width=11),
    "three products of D²": lambda *sizes: flops(*sizes, width=10),
    "this is a training step": lambda *sizes: 3 * flops(*sizes),
    "each of the N patches": lambda N, *sizes: flops(N, *sizes, embedded=1 - N),
    "all T tokens": lambda N, P, C, K, D, L: flops(N, P, C, K, D, L) - L * 24 * N * D * D,
    "product of D numbers": lambda N, P, C, K, D, L: flops(N, P, C, K, D, L, square=2 / D),
    "biases and norms": lambda N, P, C, K, D, L: flops(N, P, C, K, D, L) + L * 26 * (N + 1) * D,
    "times as many": lambda *sizes: flops(*sizes) + 1,
    "should be a number, but it is of type str": lambda *sizes: f"{flops(*sizes):,}",
    "should be a number, but it is of type dict": lambda *sizes: {"all": flops(*sizes)},
}


# --- TwoQuestions --------------------------------------------------------------------------------------


def two_questions(written, prepare=None):
    """A TwoQuestions whose forward is the given function of (self, images)."""

    def __init__(self, num_classes, **options):
        lesson.TwoQuestions.__init__(self, num_classes, **options)
        if prepare:
            prepare(self, *num_classes)

    return type("Learners", (lesson.TwoQuestions,), {"__init__": __init__, "forward": written})


def heads_of(pool):
    def written(self, images):
        pooled = pool(self.forward_features(images))
        return tuple(head(pooled) for head in self.heads)

    return two_questions(written)


class TwoByOneMatrix(VisionTransformer):
    """One linear map, its result cut in two."""

    def __init__(self, num_classes, **options):
        super().__init__(num_classes=sum(num_classes), **options)
        self.sizes = num_classes

    def forward(self, images):
        return super().forward(images).split(self.sizes, dim=1)


class TwoByNames(VisionTransformer):
    """The old head answers the first question."""

    def __init__(self, num_classes, **options):
        super().__init__(num_classes=num_classes[0], **options)
        self.second = nn.Sequential(nn.Linear(self.config["embed_dim"], num_classes[1]))

    def forward(self, images):
        tokens, _ = self.encode(images)
        return [self.head(tokens[:, 0]), self.second(tokens[:, 0])]


class HeadLeftOver(lesson.TwoQuestions):
    def __init__(self, num_classes, **options):
        super().__init__(num_classes, **options)
        self.head = nn.Linear(12, 1000)


def plain_list(self, first, second):
    del self.heads
    self.heads = [nn.Linear(12, first), nn.Linear(12, second)]


def chain(self, first, second):
    self.heads = nn.ModuleList([nn.Linear(12, first), nn.Linear(first, second)])


def chained(self, images):
    logits = self.heads[0](self.forward_features(images)[:, 0])
    return logits, self.heads[1](logits)


def both(self, images):
    return tuple(head(self.forward_features(images)[:, 0]) for head in self.heads)


right_two = lesson.TwoQuestions.forward


def second_detached(self, images):
    features = self.forward_features(images)[:, 0]
    return self.heads[0](features), self.heads[1](features.detach())


class AroundOne(nn.Module):
    def __init__(self, num_classes, **options):
        super().__init__()
        self.inside = lesson.TwoQuestions(num_classes, **options)

    def forward(self, images):
        return self.inside(images)


class SizesFixed(lesson.TwoQuestions):
    def __init__(self, num_classes, **options):
        super().__init__((10, 2), **options)


WRONG_TWO = {
    "with num_classes=(": SizesFixed,
    "in one tensor": two_questions(lambda self, images: torch.cat(right_two(self, images), dim=1)),
    "give two tensors": two_questions(lambda self, images: right_two(self, images)[0]),
    "heads are on all tokens": heads_of(lambda tokens: tokens),
    "changed places": two_questions(lambda self, images: right_two(self, images)[::-1]),
    "model.parameters() does not know": two_questions(right_two, plain_list),
    "the first answer sums to 1": two_questions(
        lambda self, images: tuple(logits.softmax(dim=-1) for logits in right_two(self, images))
    ),
    "mean of all tokens": heads_of(lambda tokens: tokens.mean(dim=1)),
    "mean of the patches": heads_of(lambda tokens: tokens[:, 1:].mean(dim=1)),
    "token 1, a patch": heads_of(lambda tokens: tokens[:, 1]),
    "the last token, a patch": heads_of(lambda tokens: tokens[:, -1]),
    "no linear map": heads_of(lambda tokens: tokens[:, 0].relu()),
    "reads the logits of the first": two_questions(chained, chain),
    "learns from no answer": HeadLeftOver,
    "no gradient flows": two_questions(torch.no_grad()(right_two)),
    "the second answer: no gradient reaches": two_questions(second_detached),
    "should have shapes [(1,": two_questions(
        lambda self, images: tuple(logits.squeeze(0) for logits in right_two(self, images))
    ),
    "not around one": AroundOne,
    "changes the tensor that it is given": two_questions(
        lambda self, images: right_two(self, images.mul_(2) / 2)
    ),
    "encoder runs 2 times": two_questions(both),
}

WRONG = {
    "SmallViT": {words: small_vit(written) for words, written in WRONG_VIT.items()}
    | {"self.blocks is a plain list": Listed, "self.positions should have shape": PositionsForEachImage},
    "count_parameters": WRONG_COUNT,
    "count_flops": WRONG_FLOPS,
    "TwoQuestions": WRONG_TWO,
}
RIGHT = {
    "SmallViT": [small_vit(by_einops), small_vit(by_parts)],
    "count_parameters": [counted_by_torchvision, counted_by_layers],
    "count_flops": [flops, flops_by_matrices, lambda *sizes: float(flops(*sizes))],
    "TwoQuestions": [TwoByOneMatrix, TwoByNames],
}
UNFILLED = {
    "SmallViT": small_vit,
    "count_parameters": lambda written: lambda *sizes: written(None, None),
    "count_flops": lambda written: lambda *sizes: written(None, None),
    "TwoQuestions": two_questions,
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


@pytest.mark.parametrize("name", WRONG)
def test_a_right_answer_passes(capsys, name):
    """Fails where a check asks for one way to write it, or for more exact numbers than float32 gives."""
    for answer in [*RIGHT[name], getattr(lesson, name)]:
        for _ in range(3):
            printed, accepted = verdict(capsys, answer, name)
            assert printed.startswith("[ok]") and accepted, printed


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("unfilled", [TODO, ...], ids=str)
def test_an_unfilled_stub_is_not_done_yet(capsys, name, unfilled):
    printed, accepted = verdict(capsys, UNFILLED[name](lambda self, images: unfilled), name)
    assert printed.startswith("[todo]") and not accepted, printed


@pytest.mark.parametrize("name", WRONG)
def test_a_forgotten_return_is_named(capsys, name):
    printed, accepted = verdict(capsys, UNFILLED[name](lambda self, images: None), name)
    assert "Does it end with return?" in printed and not accepted, printed


def test_a_dict_of_todos_is_not_done_yet(capsys):
    printed, _ = verdict(capsys, lambda *sizes: dict.fromkeys(lesson.PARTS, TODO), "count_parameters")
    assert printed.startswith("[todo]"), printed


@pytest.mark.parametrize("name", WRONG)
def test_an_exception_is_reported_with_the_learners_line(capsys, name):
    """Fails where the line of torch, or of the check, is shown."""

    def written(self, images):
        return torch.zeros(2).reshape(13)  # no such shape

    printed, accepted = verdict(capsys, UNFILLED[name](written), name)
    assert printed.startswith("[not yet]") and "torch.zeros(2).reshape(13)" in printed, printed
    assert not accepted


def test_an_attribute_that_was_renamed_is_named(capsys):
    class Renamed(lesson.SmallViT):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.layers, self.blocks_ = self.blocks, None
            del self.blocks

    printed, _ = verdict(capsys, Renamed, "SmallViT")
    assert "self.blocks is missing" in printed


def test_the_independent_formulations_agree_with_vitlib():
    """Fails where the judge's own model, or a count that the lesson quotes, is wrong."""
    torch.manual_seed(0)
    model = lesson.SmallViT((6, 9), 3, 2, 5, 12, 3, 2).eval()
    images = torch.randn(7, 2, 6, 9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        assert torch.allclose(model(images), lesson.by_hand(model, images), atol=1e-5)
    b_16 = (196, 16, 3, 1000, 768, 12)
    assert sum(lesson.count_parameters(*b_16).values()) == 86_567_656
    assert lesson.counted(*b_16) == lesson.count_flops(*b_16) == 35_127_656_448
