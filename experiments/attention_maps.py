"""Lesson 08: how far can an attention map be trusted? Four measurements on the two shipped models.

    python experiments/attention_maps.py    writes vitlib/results/attention_maps.json; goes on where it was
                                            stopped, and measures a shipped model that was replaced anew

pointing: is a map brightest where the object is? On drawn shapes, where that is known.
deletion: how fast does the answer go when the patches that a map finds brightest are painted over first?
layers: what could be answered after each layer, and how far and how widely do the heads look?
misleading: how often does a map not explain the answer?

Needs CIFAR-10, which is found as in lesson 07. All numbers are means over test pictures with their standard
errors ("se"); those of untrained weights in "pointing" are means over seeds.
"""

import json
import math
import time
from pathlib import Path

import torch
from einops import rearrange, reduce
from torch.nn.functional import normalize, one_hot

from vitlib import VisionTransformer, load, results
from vitlib.attention import attend
from vitlib.attention_maps import (
    attention_gradients,
    class_attention,
    coverage,
    entropy,
    gradient_rollout,
    mass_on_mask,
    mean_attention_distance,
    relevance,
    remove_patches,
    residual_stream,
    rollout,
    to_grid,
)
from vitlib.checkpoint import write_whole
from vitlib.data import cifar10, shapes

CONFIG = {
    "pointing": {"pictures": 500, "pictures_to_choose_the_head": 500, "pictures_for_occlusion": 100,
                 "untrained_seeds": [0, 1, 2, 3, 4]},
    "deletion": {"pictures": 500, "numbers": [0, 4, 8, 16, 24, 32, 48], "random_seeds": [0, 1, 2],
                 "untrained_seed": 0},
    "layers": {"pictures": 500, "untrained_seed": 0},
    "misleading": {"pictures": 500, "random_seed": 0},
}  # fmt: skip
STORED = Path(__file__).parents[1] / "vitlib" / "results" / "attention_maps.json"


def pictures_of(name, number):
    """Test pictures, class by class, as many of each."""
    if name == "cifar10":
        data = cifar10("test")
        return data[:: len(data) // number]
    data = shapes("test", number)
    return data[data.labels.argsort(stable=True)]


def untrained(model, seed):
    """The same model with the random weights of a start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VisionTransformer(**model.config).eval()


def in_parts(function, model, *tensors):
    """What function(model, *tensors) gives, a dict of tensors (B, ...), for 100 pictures at a time."""
    parts = zip(*(tensor.split(100) for tensor in tensors), strict=True)
    results = [function(model, *part) for part in parts]
    return {name: torch.cat([result[name] for result in results]) for name in results[0]}


def summary(values):
    """Mean over the first dimension, and its standard error, of each tensor in a dict, or dict of dicts."""
    if isinstance(values, dict):
        return {name: summary(value) for name, value in values.items()}
    values = values.double()
    mean, se = values.mean(dim=0), values.std(dim=0) / len(values) ** 0.5
    return {"mean": mean.mul(1e4).round().div(1e4).tolist(), "se": se.mul(1e4).round().div(1e4).tolist()}


# --- maps: a number for each patch, (B, N) ------------------------------------------------------------------


def all_maps(model, images, classes):
    """Each method's map; the methods that need a class are asked for the one given."""
    attention, gradients = attention_gradients(model, images, classes)
    layers = class_attention(attention).mean(dim=2)  # (B, depth, N)
    return {
        "last layer": layers[:, -1],
        "middle layer": layers[:, layers.shape[1] // 2 - 1],  # the second of four, the third of six
        "rollout": rollout(attention)[:, 0, 1:],
        "gradient rollout": gradient_rollout(attention, gradients)[:, 0, 1:],
        "relevance": relevance(attention, gradients)[:, 0, 1:],
        "input gradient": input_gradient(model, images, classes),
    }


def input_gradient(model, images, classes):
    """How much the score of a class moves with the pixels of each patch: Σ |∂y/∂pixel|."""
    images = images.clone().requires_grad_()
    scores = model(images).gather(1, classes[:, None])
    (gradient,) = torch.autograd.grad(scores.sum(), images)
    rows, columns = model.grid
    return reduce(gradient.abs(), "b c (row h) (column w) -> b (row column)", "sum", row=rows, column=columns)


@torch.no_grad()
def occlusion(model, images, classes):
    """How far the log-odds of a class fall when one patch is painted over; 0 where they rise."""
    before = log_odds(model(images), classes)
    patches = torch.arange(model.patch_embedding.num_patches)[:, None].expand(-1, len(images))
    falls = [before - log_odds_without(model, images, classes, patch) for patch in patches]
    return {"occlusion": torch.stack(falls, dim=1).relu()}


@torch.no_grad()
def head_maps(model, images):
    return {"heads": class_attention(model(images, return_attention=True)[1])}  # (B, depth, num_heads, N)


def log_odds(logits, classes):
    """log(p / (1 - p)) of a class. Unlike p it still moves where the model is sure."""
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, classes[:, None], True)
    return logits[chosen] - logits.masked_fill(chosen, -torch.inf).logsumexp(dim=1)


def log_odds_without(model, images, classes, patches):
    """When one patch of each picture, (B,), is painted over."""
    order = one_hot(patches, model.patch_embedding.num_patches).argsort(dim=1, descending=True)
    return log_odds(model(painted(model, images, order, 1)), classes)


def painted(model, images, order, number):
    """Images without the first patches of an order. They are normalised: the fill, 0, is the mean colour."""
    return remove_patches(images, order, number, model.patch_embedding.patch_size)


# --- pointing -----------------------------------------------------------------------------------------------


def pointing(name):
    config, checkpoint = CONFIG["pointing"], load(name)
    model = checkpoint.model
    data = shapes("test", config["pictures"])
    others = shapes("validation", config["pictures_to_choose_the_head"])
    trained, best_head = score_methods(checkpoint, model, data, others)
    by_seed = [
        score_methods(checkpoint, untrained(model, seed), data, others)[0]
        for seed in config["untrained_seeds"]
    ]
    mean_of_each_seed = {
        method: {
            measure: torch.stack([seed[method][measure].mean() for seed in by_seed]) for measure in measures
        }
        for method, measures in trained.items()
    }
    often = coverage(others.masks, model.grid).mean(dim=0)  # (N,)
    controls = {"uniform": torch.ones_like(often), "where objects often are": often}
    controls = {
        control: score(values.expand(len(data), -1), data.masks, model.grid)
        for control, values in controls.items()
    }
    return {
        "best_head": best_head,
        "trained": summary(trained),
        "untrained": summary(mean_of_each_seed),
        "controls": summary(controls),
    }


def score_methods(checkpoint, model, data, others):
    """The scores of each method's maps of `data`, and the head that is best on `others`."""
    heads = in_parts(head_maps, model, checkpoint.prepare(others.images))["heads"]
    share, _ = mass_on_mask(to_grid(heads, model.grid), others.masks)  # (B, depth, num_heads)
    layer, head = divmod(share.mean(dim=0).argmax().item(), share.shape[2])
    images = checkpoint.prepare(data.images)
    few = CONFIG["pointing"]["pictures_for_occlusion"]
    maps = {
        "best head": in_parts(head_maps, model, images)["heads"][:, layer, head],
        **in_parts(all_maps, model, images, data.labels),
        **in_parts(occlusion, model, images[:few], data.labels[:few]),
    }
    scores = {method: score(values, data.masks[: len(values)], model.grid) for method, values in maps.items()}
    return scores, {"layer": layer + 1, "head": head + 1}


def score(maps, masks, grid):
    """How well maps (B, N) point at the object and, as a control, at the object of another picture.

    hit: is the brightest patch one that the object touches? hit_pixel: is a random pixel of it on the object?
    share: of the map, how much is on the object? Each (B,).
    """
    scores = {}
    for prefix, target in (("", masks), ("other_", masks.roll(1, dims=0))):
        cover = coverage(target, grid)
        scores[prefix + "hit"] = value_at_the_brightest(maps, (cover > 0).float())
        scores[prefix + "hit_pixel"] = value_at_the_brightest(maps, cover)
        scores[prefix + "share"], _ = mass_on_mask(to_grid(maps, grid), target)
    return scores


def value_at_the_brightest(maps, values):
    """Where several patches are brightest, the mean of their values. Shapes: twice (B, N) -> (B,)."""
    brightest = (maps == maps.amax(dim=1, keepdim=True)).float()
    return (brightest * values).sum(dim=1) / brightest.sum(dim=1)


# --- deletion -----------------------------------------------------------------------------------------------


def deletion(name):
    config, checkpoint = CONFIG["deletion"], load(name)
    model, data = checkpoint.model, pictures_of(name, config["pictures"])
    images, predicted = checkpoint.prepare(data.images), checkpoint.predict(data.images).argmax(dim=1)

    def curves_of(maps):
        order = maps.argsort(dim=1, descending=True, stable=True)
        return in_parts(paint_more_and_more, model, images, data.labels, predicted, order)

    maps = in_parts(all_maps, model, images, predicted)
    maps["last layer, least first"] = -maps["last layer"]
    start = untrained(model, config["untrained_seed"])
    maps["untrained last layer"] = in_parts(head_maps, start, images)["heads"][:, -1].mean(dim=1)
    rows, columns = (torch.arange(side) - (side - 1) / 2 for side in model.grid)
    from_centre = torch.cartesian_prod(rows, columns).norm(dim=1)  # (N,), in patches
    maps["centre first"] = -from_centre.expand(len(images), -1)
    curves = {method: curves_of(values) for method, values in maps.items()}

    by_seed = []
    for seed in config["random_seeds"]:
        generator = torch.Generator().manual_seed(seed)
        by_seed.append(curves_of(torch.rand(maps["centre first"].shape, generator=generator)))
    curves["random order"] = {
        measure: torch.stack([seed[measure] for seed in by_seed]).mean(dim=0) for measure in by_seed[0]
    }
    for measured in curves.values():  # paired: picture by picture
        measured["area_below_random"] = curves["random order"]["area"] - measured["area"]
    return {"numbers": config["numbers"], "curves": summary(curves)}


@torch.no_grad()
def paint_more_and_more(model, images, labels, predicted, order):
    """Along the numbers of painted patches: the probability of the class predicted at first, and whether the
    answer is right. And the area under the probability, over that of a model that stays sure."""
    numbers = CONFIG["deletion"]["numbers"]
    logits = torch.stack([model(painted(model, images, order, number)) for number in numbers], dim=1)
    probability = logits.softmax(dim=-1)[torch.arange(len(images)), :, predicted]  # (B, len(numbers))
    area = torch.trapezoid(probability, torch.tensor(numbers)) / (numbers[-1] - numbers[0])
    right = (logits.argmax(dim=-1) == labels[:, None]).float()
    return {"probability": probability, "right": right, "area": area}


# --- layers -------------------------------------------------------------------------------------------------


def layers(name):
    config, checkpoint = CONFIG["layers"], load(name)
    model, data = checkpoint.model, pictures_of(name, config["pictures"])
    images = checkpoint.prepare(data.images)
    models = {"trained": model, "untrained": untrained(model, config["untrained_seed"])}
    tokens = 1 + model.patch_embedding.num_patches
    even = (torch.full((1, 1, tokens, tokens), 1 / tokens),)
    distance = mean_attention_distance(even, model.grid, model.patch_embedding.patch_size).item()
    result = {
        weights: summary(in_parts(look_inside, model, images, data.labels))
        for weights, model in models.items()
    }
    return result | {"even": {"distance": round(distance, 4), "entropy": round(math.log2(tokens), 4)}}


@torch.no_grad()
def look_inside(model, images, labels):
    """Shapes: (B, depth + 1) for what is read from the tokens, which begin before the first layer;
    (B, depth, num_heads) for what is read from the attention."""
    _, attention = model(images, return_attention=True)
    stream = residual_stream(model, images).transpose(0, 1)  # (B, depth + 1, T, D)
    logits = model.head(model.encoder.norm(stream[:, :, 0]))  # the class token's answers, (B, depth + 1, K)
    bits, norms = entropy(attention), stream.norm(dim=-1)
    patches = norms[:, :, 1:]
    return {
        "right": (logits.argmax(dim=-1) == labels[:, None]).float(),
        "probability": logits.softmax(dim=-1)[torch.arange(len(images)), :, labels],  # of the right class
        "norm_class_token": norms[:, :, 0],
        "norm_patches": patches.mean(dim=-1),
        "norm_largest_patch": patches.amax(dim=-1),
        "largest_to_median": patches.amax(dim=-1) / patches.median(dim=-1).values,
        "distance": mean_attention_distance(attention, model.grid, model.patch_embedding.patch_size),
        "entropy_class_token": bits[..., 0],
        "entropy_patches": bits[..., 1:].mean(dim=-1),
    }


# --- misleading ---------------------------------------------------------------------------------------------


def misleading(name):
    config, checkpoint = CONFIG["misleading"], load(name)
    model, data = checkpoint.model, pictures_of(name, config["pictures"])
    images, predicted = checkpoint.prepare(data.images), checkpoint.predict(data.images).argmax(dim=1)

    rows = in_parts(class_rows, model, images)["rows"]  # (B, depth, num_heads, T)
    others = rows.roll(len(rows) // len(data.classes), dims=0)  # of a picture of the next class
    even = torch.full_like(rows, 1 / rows.shape[-1])
    ours, theirs = (
        normalize(part[..., 1:].mean(dim=2), p=1, dim=-1)
        for part in (rows, others)  # maps (B, depth, N)
    )
    maps = in_parts(all_maps, model, images, predicted)
    generator = torch.Generator().manual_seed(config["random_seed"])
    places = torch.randint(len(ours[0, 0]) // 2, (len(images), 1), generator=generator)
    one_patch = {}
    for method in ("last layer", "middle layer", "rollout", "relevance"):
        order = maps[method].argsort(dim=1)  # the least read first
        most, little, least = order[:, -1], order.gather(1, places)[:, 0], order[:, 0]
        one_patch[method] = in_parts(paint_one, model, images, predicted, most, little, least)
    return {
        "exchange": {
            "another_picture": summary(in_parts(exchange, model, images, predicted, others)),
            "even": summary(in_parts(exchange, model, images, predicted, even)),
            "common_share": summary(torch.minimum(ours, theirs).sum(dim=-1)),
        },
        "one_patch": summary(one_patch),
    }


@torch.no_grad()
def class_rows(model, images):
    attention = model(images, return_attention=True)[1]
    return {"rows": torch.stack([layer[:, :, 0] for layer in attention], dim=1)}  # (B, depth, num_heads, T)


@torch.no_grad()
def exchange(model, images, predicted, rows):
    """Is the answer the same when the class token reads by other rows, in one layer or in all?"""
    stream = residual_stream(model, images)
    depth = len(model.encoder.blocks)
    by_layer = [answers(model, stream, rows, [layer]) == predicted for layer in range(depth)]
    in_all = answers(model, stream, rows, range(depth)) == predicted
    return {
        "same_answer_by_layer": torch.stack(by_layer, dim=1).float(),
        "same_answer_all_layers": in_all.float(),
    }


def answers(model, stream, rows, exchanged):
    """The likeliest classes when, in the layers `exchanged`, the class token reads by `rows`."""
    tokens = stream[exchanged[0]]  # up to there nothing is new
    for layer in range(exchanged[0], len(model.encoder.blocks)):
        block = model.encoder.blocks[layer]
        attention = block.attention
        qkv = attention.qkv(block.norm1(tokens))
        axes = "b t (three head d) -> three b head t d"
        query, key, value = rearrange(qkv, axes, three=3, head=attention.num_heads)
        _, weights = attend(query, key, value, return_weights=True)
        if layer in exchanged:
            weights[:, :, 0] = rows[:, layer]
        tokens = tokens + attention.output(rearrange(weights @ value, "b head t d -> b t (head d)"))
        tokens = tokens + block.mlp(block.norm2(tokens))
    return model.head(model.encoder.norm(tokens)[:, 0]).argmax(dim=1)


@torch.no_grad()
def paint_one(model, images, predicted, most, little, least):
    """Does the answer suffer less without the patch read most than without another one?"""
    before = log_odds(model(images), predicted)
    falls = [before - log_odds_without(model, images, predicted, patch) for patch in (most, little, least)]
    return {
        "most_hurts_less_than_little": (falls[0] < falls[1]).float(),  # of the half that is read less
        "most_hurts_less_than_least": (falls[0] < falls[2]).float(),
        "answer_surer_without_most": (falls[0] < 0).float(),
        "fall_without_most": falls[0],
        "fall_without_little": falls[1],
        "fall_without_least": falls[2],
    }


# --- the file -----------------------------------------------------------------------------------------------


JOBS = [(pointing, "shapes")]
JOBS += [(part, name) for name in ("shapes", "cifar10") for part in (deletion, layers, misleading)]


def main():
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for part, name in JOBS:
        origin = {"config": CONFIG[part.__name__], "checkpoint": results.identity(name)}
        by_name = stored.setdefault(part.__name__, {})
        if by_name.get(name, {}).items() >= origin.items():
            continue
        start = time.time()
        by_name[name] = origin | part(name)
        write_whole(STORED, (json.dumps(stored, indent=1) + "\n").encode())
        print(f"{part.__name__}, {name}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
