"""Lesson 09: what are the learned positions of the shipped CIFAR-10 model worth to it?

    python experiments/positional_embeddings.py    writes vitlib/results/positional_embeddings.json; goes on
                                                   where it was stopped, starts again with another checkpoint

The accuracy on test pictures when the positions, or the order of the patches, are changed after training; and
on pictures enlarged to 48 pixels, with positions enlarged in several ways. Beside it, for the figure of the
filters: what the patches of training pictures are made of. A few minutes on two cores, with CIFAR-10.
"""

import copy
import json
from pathlib import Path

import torch
from einops import rearrange
from torch.nn.functional import interpolate
from torchvision.transforms.v2.functional import InterpolationMode, resize

import vitlib
from vitlib import results
from vitlib.checkpoint import write_whole
from vitlib.data import cifar10, normalize
from vitlib.patch_embedding import patchify, unpatchify
from vitlib.positional_encoding import RESIZE_MODES, resize_positional_embedding

CONFIG = {
    "test_pictures": 2000,  # every fifth, so that all classes are alike
    "training_pictures": 2000,  # for the patches
    "large": 48,  # pixels
    "seed": 0,
}
STORED = Path(__file__).parents[1] / "vitlib" / "results" / "positional_embeddings.json"


def flipped(table, axis):
    """Positions (1, 65, D) with the patches' rows (axis 1) or columns (axis 2) in reverse order."""
    patches = rearrange(table[:, 1:], "1 (row column) d -> 1 row column d", row=8)
    return torch.cat([table[:, :1], patches.flip(axis).flatten(1, 2)], dim=1)


def mean_for_all(table):
    """Each patch gets the mean of the patches' positions: as large as before, and the same everywhere."""
    patches = table[:, 1:]
    return torch.cat([table[:, :1], patches.mean(dim=1, keepdim=True).expand_as(patches)], dim=1)


CHANGES = {  # of the table of positions (1, 65, D)
    "as trained": lambda table: table,
    "left and right exchanged": lambda table: flipped(table, 2),
    "top and bottom exchanged": lambda table: flipped(table, 1),
    "the same position for all patches": mean_for_all,
    "no positions": torch.zeros_like,
}


def as_a_list(table):
    """12x12 positions from 8x8 by a common mistake: the rows of the table, interpolated one after another."""
    patches = interpolate(table[:, 1:].mT, size=144, mode="linear").mT
    return torch.cat([table[:, :1], patches], dim=1)


ENLARGED = {mode: lambda table, mode=mode: resize_positional_embedding(table, (8, 8), (12, 12), mode=mode)
            for mode in RESIZE_MODES}  # fmt: skip
ENLARGED |= {
    "as a list": as_a_list,
    "no positions": lambda table: table.new_zeros(1, 145, table.shape[2]),
}


def shuffled(images, seed):
    """The same patches, in another random order in each picture. Shapes: (B, 3, 32, 32), the same."""
    patches = patchify(images, 4)  # (B, 64, 48)
    order = torch.rand(patches.shape[:2], generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    patches = patches.gather(1, order[..., None].expand_as(patches))
    return unpatchify(patches, 32, 4)


@torch.inference_mode()
def correct(checkpoint, images, labels, change, size=32):
    """For each picture, whether the model with changed positions is right. -> float64 (B,)"""
    model = copy.deepcopy(checkpoint.model)
    table = change(model.positional_encoding.positional_embedding.data)
    model.resize(size).positional_encoding.positional_embedding.data = table
    batches = normalize(images, checkpoint.mean, checkpoint.std).split(100)
    return (torch.cat([model(batch).argmax(dim=1) for batch in batches]) == labels).double()


def summary(right, reference):
    """Accuracy, and what it lost against the reference on the same pictures, each with its standard error."""
    change = right - reference
    error = len(right) ** -0.5
    return {
        "accuracy": round(right.mean().item(), 4),
        "standard_error": round(right.std().item() * error, 4),
        "change": round(change.mean().item(), 4),
        "change_error": round(change.std().item() * error, 4),
    }


def jobs():
    """All measurements: (group, name, which pictures, change of the table, size of the pictures)."""
    for name, change in CHANGES.items():
        yield "changes", name, "in order", change, 32
    for name in ("as trained", "no positions"):
        yield "shuffled", name, "shuffled", CHANGES[name], 32
    for name, change in ENLARGED.items():
        yield "enlarged", name, "large", change, CONFIG["large"]


def patch_statistics(checkpoint):
    """Principal components of the patches of training pictures, the strongest first, and their variances."""
    data = cifar10("train")
    images = data.images[:: len(data) // CONFIG["training_pictures"]]
    patches = patchify(normalize(images, checkpoint.mean, checkpoint.std), 4).flatten(0, 1).double()
    variances, components = torch.linalg.eigh(patches.T.cov())  # rising variances, components in columns
    components = [[round(value, 3) for value in row] for row in components.T.flip(0).tolist()]
    return {"variances": [round(value, 5) for value in variances.flip(0).tolist()], "components": components}


def main():
    checkpoint, data = vitlib.load("cifar10"), cifar10("test")
    data = data[:: len(data) // CONFIG["test_pictures"]]
    large = resize(data.images, [CONFIG["large"]] * 2, InterpolationMode.BICUBIC, antialias=True)
    pictures = {"in order": data.images, "shuffled": shuffled(data.images, CONFIG["seed"]), "large": large}
    reference = correct(checkpoint, data.images, data.labels, CHANGES["as trained"])
    begun = {"config": CONFIG, "checkpoint": results.identity("cifar10")}
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if any(stored.get(key) != value for key, value in begun.items()):
        stored = begun | {group: {} for group, *_ in jobs()} | {"patches": patch_statistics(checkpoint)}
    for group, name, which, change, size in jobs():
        if name not in stored[group]:
            right = correct(checkpoint, pictures[which], data.labels, change, size)
            stored[group][name] = summary(right, reference)
            write_whole(STORED, (json.dumps(stored, indent=1) + "\n").encode())
            print(f"{group:10} {name:28} {stored[group][name]}", flush=True)


if __name__ == "__main__":
    main()
