"""Train named recipes under one budget, and keep what each reached.

    python benchmarks/training.py RECIPE [RECIPE ...] --minutes 5 [--seeds 0 1 2] [--test]
    python benchmarks/training.py RECIPE [RECIPE ...] --gmac 90000 [--share 0.05] [--seeds 0 1 2] [--test]

The recipes of one call run one after another, seed by seed, so that they share the state of the machine. The
budget is in minutes, or in compute: billions of multiplications and additions of the model, forward and
backward, which are the same on every machine. (Muon's own products are not counted: 8 % more for `ours`.)
`--share` trains on the first part of each class only. Each run adds a line to vitlib/results/training.json.
It is kept in runs/benchmarks/: one that was stopped goes on when the same line is given again, and what is
stored already is not trained again. Accuracy is measured on the 5,000 validation pictures, and with --test on
the test pictures too, for what is to be reported.
"""

import argparse
import json
import platform
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitlib import checkpoint, vit_cifar
from vitlib.data import cifar10
from vitlib.training import TrainingConfig, evaluate, train

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "vitlib" / "results" / "training.json"
RUNS = ROOT / "runs" / "benchmarks"


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a way around them (He et al. 2016)."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.around = nn.Identity()
        if stride > 1 or width_in != width:
            self.around = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, images):
        return (self.branch(images) + self.around(images)).relu()


class SmallResNet(nn.Module):
    """A plain convolutional network with the parameters and the multiplications of a narrow ViT."""

    def __init__(self, num_classes=10, widths=(24, 48, 96, 192), blocks=(2, 1, 1, 1)):
        super().__init__()
        self.config = {"in_channels": 3, "num_classes": num_classes, "widths": widths, "blocks": blocks}
        layers = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
        width_in = widths[0]
        for stage, (width, number) in enumerate(zip(widths, blocks)):
            for block in range(number):
                layers.append(ResidualBlock(width_in, width, 2 if stage and not block else 1))
                width_in = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width_in, num_classes)

    def forward(self, images):
        return self.head(self.layers(images).mean(dim=(2, 3)))


ADAMW = {"optimizer": "adamw", "learning_rate": 1e-3}
SPEEDRUN = {
    "batch_size": 128,
    "learning_rate": 1e-3,
    "muon_learning_rate": 0.01,
    "whiten": True,
    "image_sizes": ((0.5, 16), (0.75, 24)),
    "shift": 0,
}


def narrow(**changes):
    return vit_cifar(**{"embed_dim": 96, "num_heads": 3, "pool": "mean", "positional": "sincos2d", **changes})


# name -> how to build the model, and how its training differs from TrainingConfig's defaults
RECIPES = {
    "ours": (narrow, SPEEDRUN),
    # One ingredient less each.
    "without_muon": (narrow, {**SPEEDRUN, **ADAMW}),
    "without_small_pictures": (narrow, {**SPEEDRUN, "image_sizes": ()}),
    "without_whitening": (narrow, {**SPEEDRUN, "whiten": False}),
    "learned_positions": (lambda: narrow(positional="learned"), SPEEDRUN),
    "class_token": (lambda: narrow(pool="class"), SPEEDRUN),
    "with_shift": (narrow, {**SPEEDRUN, "shift": 4}),
    "width_192": (lambda: narrow(embed_dim=192, num_heads=6), SPEEDRUN),
    # A widely read tutorial's, for ten epochs. Three things are not as there: the learning rate falls along
    # its cosine at every step, and not once an epoch; gradients are clipped; norms and biases do not decay.
    "tutorial": (
        lambda: vit_cifar(dropout=0.1, attention_dropout=0.1),
        {**ADAMW, "batch_size": 64, "warmup": 0.0, "flip": False, "shift": 0},
    ),
    # ViT-Lite-7/4 of Hassani et al. 2021, without AutoAugment, and with gradients clipped.
    "vit_lite": (
        lambda: vit_cifar(
            embed_dim=256, depth=7, num_heads=4, mlp_ratio=2.0, attention_dropout=0.1, drop_path=0.1
        ),
        {
            **ADAMW,
            "learning_rate": 5e-4,
            "weight_decay": 0.03,
            "label_smoothing": 0.1,
            "warmup": 0.025,
            "shift": 0,
        },
    ),
    "cnn": (SmallResNet, ADAMW),
    "vit": (lambda: vit_cifar(embed_dim=96, num_heads=3), ADAMW),  # the same training as the cnn's
}


def gmac_per_image(model):
    """Billions of multiplications and additions for one picture, forward and backward (twice the forward)."""
    images = torch.zeros(2, 3, *model.config.get("image_size", (32, 32)))
    # In bfloat16 attention is written out, not fused: PyTorch's counter does not see the fused kernel.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(images)
    return 3 * counter.get_total_flops() / 2 / len(images) / 1e9


def gmac_by_share(model, config):
    """Pairs (share of the steps, billions for one picture): small pictures cost less."""
    sizes = config.image_sizes and (*config.image_sizes, (1.0, model.config["image_size"]))
    if not sizes:
        return [(1.0, gmac_per_image(model))]
    return [(end, gmac_per_image(model.resize(size))) for end, size in sizes]


def gmac_spent(parts, images, share=1.0):
    """What the first `share` of a run has spent that sees so many pictures in all."""
    begins = [0.0, *(end for end, _ in parts)]
    return sum(max(0.0, min(share, end) - begin) * images * gmac for begin, (end, gmac) in zip(begins, parts))


def run(name, seed, options):
    """One run of one recipe; its line of results."""
    build, training = RECIPES[name]
    data = cifar10("train")
    each = len(data) // len(data.classes)  # they come class by class
    data = data[[i for i in range(len(data)) if i % each < each * options.share]]
    settings = {**training, "seed": seed, "precision": options.precision}
    usual = TrainingConfig(**settings, epochs=1)
    parts, batch_size = gmac_by_share(build(), usual), min(usual.batch_size, len(data))
    per_epoch = len(data) // batch_size * batch_size
    epochs = options.gmac and options.gmac / gmac_spent(parts, per_epoch)
    config = TrainingConfig(**settings, minutes=options.minutes, epochs=epochs)
    directory = RUNS / f"{name} {budget(options)} {options.share:g} {seed}".replace(" ", "-")

    torch.manual_seed(seed)
    model, cpu_seconds = build(), time.process_time()
    result = train(model, data, cifar10("validation"), config, directory)
    if not result.finished:
        raise SystemExit("Stopped. Give the same line again to go on.")
    steps = result.history[-1]["step"]
    measured = {"validation": evaluate(model, cifar10("validation"), config.mean, config.std).accuracy}
    if options.test:
        measured["test"] = evaluate(model, cifar10("test"), config.mean, config.std).accuracy
    images = steps * batch_size
    return {
        **identity(name, seed, options),
        **{part: round(accuracy, 4) for part, accuracy in measured.items()},
        "minutes": round(result.history[-1]["minutes"], 2),
        "cpu_minutes": round((time.process_time() - cpu_seconds) / 60, 2),  # since it last went on
        "steps": steps,
        "images": images,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "gmac": round(gmac_spent(parts, images)),
        "curve": [
            {
                "minutes": round(row["minutes"], 2),
                "step": row["step"],
                "gmac": round(gmac_spent(parts, images, row["step"] / steps)),
                "validation": round(row["validation_accuracy"], 4),
            }
            for row in result.history
            if row["validation_accuracy"] is not None
        ],
        "model": model.config,
        "training": asdict(config),
        "precision": json.loads((directory / "config.json").read_text())["precision"],
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}",
    }


def budget(options):
    return f"{options.gmac:g} GMAC" if options.gmac else f"{options.minutes:g} min"


def identity(name, seed, options):
    """What tells one run from all others."""
    return {"recipe": name, "budget": budget(options), "share": options.share, "seed": seed}


def stored_but(wanted):
    """All stored runs but that one, and that one (None where it is not there)."""
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    found = [run for run in runs if wanted == {name: run[name] for name in wanted}]
    return [run for run in runs if run not in found], (found or [None])[0]


def add(line, wanted):
    """Put a run among the results, one a line."""
    lines = ",\n".join(json.dumps(run) for run in [*stored_but(wanted)[0], line])
    checkpoint.write_whole(RESULTS, f'{{"runs": [\n{lines}\n]}}\n'.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+", choices=RECIPES)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float)
    budget.add_argument("--gmac", type=float)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--test", action="store_true")
    options = parser.parse_args()
    for seed in options.seeds:
        for name in options.recipes:
            wanted = identity(name, seed, options)
            _, line = stored_but(wanted)
            if line is None or (options.test and "test" not in line):
                line = run(name, seed, options)
                add(line, wanted)
            reached = ", ".join(f"{part} {line[part]:.2%}" for part in ("validation", "test") if part in line)
            print(f"{name}, seed {seed}: {reached}")


if __name__ == "__main__":
    main()
