"""Train a model that vitlib ships, and put it among the checkpoints: python tools/ship_checkpoint.py NAME RUN_FOLDER

NAME is cifar10 or shapes. Interrupted, it goes on where it stopped. The weights are rounded to half precision, and
then measured on the test pictures, once. Written to vitlib/checkpoints/: NAME.safetensors (the model), NAME.json
(what it is, how it was trained and what it reached) and NAME.csv (the log of the run).
"""

import argparse
import json
from pathlib import Path

import torch

from vitlib import VisionTransformer, checkpoint, vit_cifar
from vitlib.data import SHAPES_MEAN, SHAPES_STD, cifar10, shapes
from vitlib.training import TrainingConfig, evaluate, train

SETTINGS = {"batch_size": 128, "learning_rate": 1.5e-3, "muon_learning_rate": 0.01, "precision": "bf16"}


def recipe(name):
    """The model with its random start, training, validation and test pictures, and the configuration."""
    torch.manual_seed(0)
    if name == "cifar10":
        data = [cifar10(split) for split in ("train", "validation", "test")]
        return vit_cifar(), data, TrainingConfig(epochs=14, evaluations=7, **SETTINGS)
    # A shift could push the shape out of view, and every picture is drawn anew: nothing to augment.
    config = TrainingConfig(
        epochs=7, evaluations=7, augment=False, mean=SHAPES_MEAN, std=SHAPES_STD, **SETTINGS
    )
    model = VisionTransformer(
        image_size=32, patch_size=4, num_classes=10, embed_dim=96, depth=4, num_heads=4
    )
    return model, [shapes("train", 40_000), shapes("validation", 2_000), shapes("test", 2_000)], config


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("cifar10", "shapes"))
    parser.add_argument("run", type=Path)
    arguments = parser.parse_args()

    model, (train_data, validation_data, test_data), config = recipe(arguments.name)
    if not train(model, train_data, validation_data, config, arguments.run).finished:
        raise SystemExit("Not finished: run it again to go on.")

    trained = checkpoint.load(arguments.run / "model.safetensors")
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.copy_(parameter.half())
    measured = evaluate(trained.model, test_data, trained.mean, trained.std)
    notes = {
        "trained_on": arguments.name,
        "test_accuracy": round(measured.accuracy, 4),
        "test_pictures": len(test_data),
        "per_class_accuracy": {
            name: round(accuracy.item(), 4)
            for name, accuracy in zip(test_data.classes, measured.per_class_accuracy)
        },
        **trained.notes,
    }
    path = checkpoint.SHIPPED / f"{arguments.name}.safetensors"
    checkpoint.save(
        path, trained.model, trained.classes, trained.mean, trained.std, dtype=torch.float16, **notes
    )
    about = {"classes": trained.classes, "model": trained.model.config, **notes}
    checkpoint.write_whole(path.with_suffix(".json"), (json.dumps(about, indent=2) + "\n").encode())
    checkpoint.write_whole(path.with_suffix(".csv"), (arguments.run / "history.csv").read_bytes())
    print(f"test accuracy: {measured.accuracy:.2%} ({path}, {path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
