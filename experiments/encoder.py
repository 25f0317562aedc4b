"""Lesson 05: does a stack of 12 blocks train with the norm before the branches, or after the sums?

    python experiments/encoder.py        writes vitlib/results/encoder.json; goes on where it was stopped

The blocks are PyTorch's own, which have a switch for the place of the norm.
"""

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vitlib.checkpoint import write_whole
from vitlib.class_token import ClassToken
from vitlib.data import normalize, shapes
from vitlib.patch_embedding import PatchEmbedding
from vitlib.positional_encoding import LearnedPositionalEncoding

CONFIG = {"depth": 12, "embed_dim": 48, "num_heads": 4, "patch_size": 8, "pictures": 4000, "batch_size": 32,
          "steps": 240, "optimizer": "AdamW", "learning_rate": 1e-3, "weight_decay": 0.01, "warmup_steps": 80,
          "every": 20, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}  # fmt: skip
SEEDS = [0, 1, 2]
KINDS = ["pre-norm", "post-norm", "post-norm, warm-up"]
STORED = Path(__file__).parents[1] / "vitlib" / "results" / "encoder.json"


def make_model(pre_norm, depth, embed_dim, num_heads, patch_size):
    """Pictures -> logits at every token, (B, T, 10); Xavier weights, as in the paper's code."""
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": pre_norm}
    model = nn.Sequential(
        PatchEmbedding(32, patch_size, 3, embed_dim),
        ClassToken(embed_dim),
        LearnedPositionalEncoding((32 // patch_size) ** 2 + 1, embed_dim),
        *[nn.TransformerEncoderLayer(embed_dim, num_heads, 4 * embed_dim, **options) for _ in range(depth)],
        nn.LayerNorm(embed_dim),
        nn.Linear(embed_dim, 10),
    )
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.ndim == 2 and name.endswith("weight"):
                nn.init.xavier_uniform_(weight)
    return model


def train(kind, seed, images, labels):
    """The loss, mean of every `every` steps."""
    torch.manual_seed(seed)
    names = ("depth", "embed_dim", "num_heads", "patch_size")
    model = make_model(kind == "pre-norm", **{name: CONFIG[name] for name in names})
    optimizer = getattr(torch.optim, CONFIG["optimizer"])(
        model.parameters(), CONFIG["learning_rate"], weight_decay=CONFIG["weight_decay"]
    )
    warmup = CONFIG["warmup_steps"] if "warm-up" in kind else 1
    losses = []
    for step in range(CONFIG["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = CONFIG["learning_rate"] * min(1, (step + 1) / warmup)
        chosen = torch.randint(len(images), (CONFIG["batch_size"],))
        loss = cross_entropy(model(images[chosen])[:, 0], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses).unflatten(0, (-1, CONFIG["every"])).mean(dim=1).tolist()


def main():
    data = shapes("train", CONFIG["pictures"])
    images = normalize(data.images, CONFIG["mean"], CONFIG["std"])
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if stored.get("config") != CONFIG:
        stored = {"config": CONFIG, "losses": {kind: {} for kind in KINDS}}
    stored["seeds"] = SEEDS
    for seed in SEEDS:
        for kind in KINDS:
            if str(seed) not in stored["losses"][kind]:
                losses = train(kind, seed, images, data.labels)
                stored["losses"][kind][str(seed)] = [round(loss, 4) for loss in losses]
                write_whole(STORED, (json.dumps(stored, indent=1) + "\n").encode())
                print(f"{kind:20} seed {seed}: loss {losses[0]:.2f} -> {losses[-1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
