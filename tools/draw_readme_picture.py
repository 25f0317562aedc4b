"""Draw images/where_it_looks.png, the picture at the top of the README, from the shipped model."""

from pathlib import Path

import torch
from skimage.data import chelsea

import vitlib
from vitlib import plots
from vitlib.attention_maps import class_attention, rollout, to_grid
from vitlib.data import fit_picture, normalize

OUT = Path(__file__).parents[1] / "images" / "where_it_looks.png"

if __name__ == "__main__":
    checkpoint = vitlib.load("cifar10")
    model = checkpoint.model
    images = normalize(fit_picture(chelsea(), 32)[None], checkpoint.mean, checkpoint.std)
    with torch.no_grad():
        logits, attention = model(images, return_attention=True)
    heads = class_attention(attention)[0]  # (depth, num_heads, N)
    maps = {
        "first layer": heads[0].mean(dim=0),
        "last layer": heads[-1].mean(dim=0),
        "all layers (rollout)": rollout(attention)[0, 0, 1:],
    }
    maps = {name: to_grid(weights, model.grid) for name, weights in maps.items()}
    photo = fit_picture(chelsea(), 288)
    fig = plots.attention_overlay(photo, maps, label="share of the class token's attention")
    OUT.parent.mkdir(exist_ok=True)
    fig.savefig(OUT, dpi=120, facecolor="white", metadata={"Software": None})
    print(f"{OUT.name}: {checkpoint.classes[logits.argmax()]}, says the model")
