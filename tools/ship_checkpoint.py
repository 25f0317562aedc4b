"""Train a model that vitlib ships, and put it among the checkpoints.

    python tools/ship_checkpoint.py NAME RUN_FOLDER [--trained]

NAME is cifar10 or shapes. Interrupted, it goes on where it stopped. With --trained, RUN_FOLDER holds a
finished run of another recipe (tools/train_on_gpu.py makes one), and nothing is trained. The weights are
rounded to half precision, and then measured on the test pictures, once. Written to vitlib/checkpoints/:
NAME.safetensors (the model), NAME.json (what it is, how it was trained and what it reached), NAME.csv (the
log of the run) and NAME_confusion.csv (what it takes for what). tools/model_card.py is to be run after it.
"""

import argparse
import json
from pathlib import Path

import model_card
import torch

from vitlib import VisionTransformer, checkpoint, vit_cifar
from vitlib.data import SHAPES_MEAN, SHAPES_STD, cifar10, shapes
from vitlib.training import TrainingConfig, evaluate, train


def recipe(name):
    """The model with its random start, training and validation pictures, and the configuration."""
    torch.manual_seed(0)
    if name == "cifar10":
        config = TrainingConfig(
            epochs=45,
            evaluations=9,
            learning_rate=1e-3,
            whiten=True,
            image_sizes=((0.5, 16), (0.75, 24)),
            trivial_augment=0.5,
            cutmix=0.5,
            precision="bf16",
        )
        return vit_cifar(), cifar10("train"), cifar10("validation"), config
    # A shift could push the shape out of view, and every picture is drawn anew: nothing to augment.
    config = TrainingConfig(
        epochs=7, evaluations=7, flip=False, shift=0, mean=SHAPES_MEAN, std=SHAPES_STD, precision="bf16"
    )
    model = VisionTransformer(image_size=32, patch_size=4, num_classes=10, embed_dim=96, depth=4, num_heads=4)
    return model, shapes("train", 40_000), shapes("validation", 2_000), config


def ship(name, run):
    """Round a trained model to half precision, measure it, and write it with its description and its log."""
    trained = checkpoint.load(run / "model.safetensors")
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.copy_(parameter.half())
    data = cifar10("test") if name == "cifar10" else shapes("test", 2_000)
    measured = evaluate(trained.model, data, trained.mean, trained.std)
    by_class = [round(accuracy, 4) for accuracy in measured.per_class_accuracy.tolist()]
    notes = {
        "trained_on": name,
        "test_accuracy": round(measured.accuracy, 4),
        "test_pictures": len(data),
        "per_class_accuracy": dict(zip(data.classes, by_class)),
        **trained.notes,
    }
    path = checkpoint.SHIPPED / f"{name}.safetensors"
    checkpoint.save(
        path, trained.model, trained.classes, trained.mean, trained.std, dtype=torch.float16, **notes
    )
    about = {"classes": trained.classes, "model": trained.model.config, **notes}
    checkpoint.write_whole(path.with_suffix(".json"), (json.dumps(about, indent=2) + "\n").encode())
    checkpoint.write_whole(path.with_suffix(".csv"), (run / "history.csv").read_bytes())
    model_card.write_confusion(name, measured.confusion, data.classes)
    print(f"test accuracy: {measured.accuracy:.2%} ({path}, {path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("cifar10", "shapes"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--trained", action="store_true")
    arguments = parser.parse_args()
    if not arguments.trained and not train(*recipe(arguments.name), arguments.run).finished:
        raise SystemExit("Not finished: run it again to go on.")
    ship(arguments.name, arguments.run)
