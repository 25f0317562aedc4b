"""Lesson 03: what do positions bring, and does it matter which?

    python experiments/positional_encoding.py    writes vitlib/results/positional_encoding.json; goes on where
                                                 it was stopped

Two questions about the same pictures: what is drawn (the ten shapes), and where (which quarter of the picture
holds the middle of the shape). "where" is trained for a few passes only, too; the lesson repeats one of these
runs live.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from vitlib import VisionTransformer
from vitlib.checkpoint import write_whole
from vitlib.data import SHAPES_MEAN, SHAPES_STD, ImageData, shapes
from vitlib.training import TrainingConfig, train

CONFIG = {
    "pictures": {"train": 2000, "test": 2000},  # of vitlib.data.shapes
    "model": {"image_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2},
    "training": asdict(TrainingConfig(
        epochs=10, batch_size=32, learning_rate=3e-3, muon_learning_rate=0.02, flip=False, shift=0,
        evaluations=1, precision="fp32", device="cpu", mean=SHAPES_MEAN,
        std=SHAPES_STD)),  # each run replaces the seed
    "short_epochs": 3,
    "patch_size": {"where": 8, "what": 4},
    "positional": ["none", "learned", "sincos1d", "sincos2d"],
}  # fmt: skip
SEEDS = [0, 1, 2, 3, 4]
STORED = Path(__file__).parents[1] / "vitlib" / "results" / "positional_encoding.json"


def ask_where(data):
    """The same pictures, labelled by the quarter that holds the middle of the shape."""
    places = torch.arange(32) + 0.5
    masks = data.masks.float()  # (B, 32, 32)
    middle_row = (masks.sum(dim=2) @ places) / masks.sum(dim=(1, 2))  # (B,)
    middle_column = (masks.sum(dim=1) @ places) / masks.sum(dim=(1, 2))
    labels = 2 * (middle_row > 16).long() + (middle_column > 16).long()
    return ImageData(data.images, labels, ["upper left", "upper right", "lower left", "lower right"])


def accuracy_of(question, positional, seed, epochs, train_data, test_data):
    """Build and train one model; its accuracy on the test pictures."""
    torch.manual_seed(seed)
    model = VisionTransformer(
        **CONFIG["model"],
        patch_size=CONFIG["patch_size"][question],
        num_classes=len(train_data.classes),
        positional=positional,
    )
    config = TrainingConfig(**CONFIG["training"] | {"epochs": epochs, "seed": seed})
    with tempfile.TemporaryDirectory() as directory:
        result = train(model, train_data, test_data, config, directory)
    return result.history[-1]["validation_accuracy"]


def jobs():
    """All the runs, in the order in which they are made."""
    lengths = [(question, CONFIG["training"]["epochs"]) for question in CONFIG["patch_size"]]
    return [
        {"question": question, "positional": positional, "seed": seed, "epochs": epochs}
        for seed in SEEDS
        for question, epochs in [*lengths, ("where", CONFIG["short_epochs"])]
        for positional in CONFIG["positional"]
    ]


def main():
    what = [shapes(split, number) for split, number in CONFIG["pictures"].items()]
    data = {"where": [ask_where(part) for part in what], "what": what}
    config = json.loads(json.dumps(CONFIG))  # as JSON gives it back: pairs are lists
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    runs = stored["runs"] if stored.get("config") == config else []
    stored = {"config": config, "seeds": SEEDS, "runs": runs}
    done = [{name: value for name, value in run.items() if name != "accuracy"} for run in runs]
    for job in jobs():
        if job not in done:
            train_data, test_data = data[job["question"]]
            accuracy = accuracy_of(**job, train_data=train_data, test_data=test_data)
            runs.append(job | {"accuracy": round(accuracy, 4)})
            write_whole(STORED, (json.dumps(stored, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
