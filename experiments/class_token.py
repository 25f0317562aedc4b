"""Lesson 02: is it better to classify from a class token, or from the mean of the patch tokens?

    python experiments/class_token.py    writes vitlib/results/class_token.json; goes on where it was stopped
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from vitlib import VisionTransformer
from vitlib.checkpoint import write_whole
from vitlib.data import SHAPES_MEAN, SHAPES_STD, shapes
from vitlib.training import TrainingConfig, train

CONFIG = {
    "pictures": {"train": 4000, "validation": 2000},  # of vitlib.data.shapes
    "model": {"image_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 64, "depth": 2,
              "num_heads": 4, "mlp_ratio": 2},
    "training": asdict(TrainingConfig(
        epochs=5, batch_size=50, flip=False, shift=0, evaluations=1, precision="fp32", device="cpu",
        mean=SHAPES_MEAN, std=SHAPES_STD)),
    "settings": {  # each replaces a part of "training", and so does each seed
        "400 steps": {"epochs": 5, "learning_rate": 1.5e-3, "muon_learning_rate": 0.01},  # the usual rates
        "400 steps, rate × 4": {"epochs": 5, "learning_rate": 6e-3, "muon_learning_rate": 0.04},
        "1200 steps": {"epochs": 15, "learning_rate": 1.5e-3, "muon_learning_rate": 0.01},
    },
}  # fmt: skip
SEEDS = [0, 1, 2, 3, 4]
STORED = Path(__file__).parents[1] / "vitlib" / "results" / "class_token.json"


def accuracy_of(pool, setting, seed, train_data, validation_data):
    """Build and train one model; its validation accuracy."""
    torch.manual_seed(seed)
    model = VisionTransformer(**CONFIG["model"], pool=pool)
    config = TrainingConfig(**CONFIG["training"] | CONFIG["settings"][setting] | {"seed": seed})
    with tempfile.TemporaryDirectory() as directory:
        result = train(model, train_data, validation_data, config, directory)
    return result.history[-1]["validation_accuracy"]


def main():
    data = [shapes(split, number) for split, number in CONFIG["pictures"].items()]
    config = json.loads(json.dumps(CONFIG))  # as JSON gives it back: pairs are lists
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    runs = stored["runs"] if stored.get("config") == config else []
    stored = {"config": config, "seeds": SEEDS, "runs": runs}
    done = [(run["pool"], run["setting"], run["seed"]) for run in runs]
    for seed in SEEDS:
        for setting in CONFIG["settings"]:
            for pool in ("class", "mean"):
                if (pool, setting, seed) not in done:
                    accuracy = round(accuracy_of(pool, setting, seed, *data), 4)
                    run = {"pool": pool, "setting": setting, "seed": seed, "accuracy": accuracy}
                    runs.append(run)
                    write_whole(STORED, (json.dumps(stored, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
