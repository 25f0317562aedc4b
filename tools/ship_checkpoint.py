"""Train a model that vitlib ships, and put it among the checkpoints.

    python tools/ship_checkpoint.py NAME RUN_FOLDER [--trained]

NAME is cifar10 or shapes. Interrupted, it goes on where it stopped. Each part of the training has a folder of
its own in RUN_FOLDER. With --trained, RUN_FOLDER holds a finished run of another recipe
(tools/train_on_gpu.py makes one), and nothing is trained. The weights are rounded to half precision, and then
measured on the test pictures, once. Written to vitlib/checkpoints/:
NAME.safetensors (the model), NAME.json (what it is, how it was trained and what it reached), NAME.csv (the
log of the run) and NAME_confusion.csv (what it takes for what). tools/model_card.py is to be run after it.
"""

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path

import model_card
import torch

from vitlib import VisionTransformer, checkpoint, vit_cifar
from vitlib.data import SHAPES_MEAN, SHAPES_STD, cifar10, shapes
from vitlib.training import TrainingConfig, as_csv, evaluate, train


def recipe(name):
    """The model with its random start, training and validation pictures, a configuration for each part."""
    torch.manual_seed(0)
    if name == "cifar10":
        first = TrainingConfig(
            epochs=45,
            evaluations=9,
            learning_rate=1e-3,
            whiten=True,
            image_sizes=((0.5, 16), (0.75, 24)),
            trivial_augment=0.5,
            cutmix=0.5,
            precision="bf16",
        )
        # The first part ends with 94 % of the training pictures right and 84 % of the validation pictures: so
        # the second, which begins at its weights, changes more of the pictures.
        second = replace(
            first,
            epochs=36,
            learning_rate=6e-4,
            muon_learning_rate=6e-3,
            whiten=False,
            image_sizes=((0.25, 16), (0.7, 24)),
            trivial_augment=0.75,
            random_erasing=0.25,
            seed=1,  # or the pictures would come in the same order, and changed in the same way
        )
        return vit_cifar(), cifar10("train"), cifar10("validation"), [first, second]
    # A shift could push the shape out of view, and every picture is drawn anew: nothing to augment.
    once = TrainingConfig(
        epochs=7, evaluations=7, flip=False, shift=0, mean=SHAPES_MEAN, std=SHAPES_STD, precision="bf16"
    )
    model = VisionTransformer(image_size=32, patch_size=4, num_classes=10, embed_dim=96, depth=4, num_heads=4)
    return model, shapes("train", 40_000), shapes("validation", 2_000), [once]


def train_in_parts(model, train_data, validation_data, configs, run):
    """Train with one configuration after the other, each from the weights that the one before left.

    Gives the folders of the parts.
    """
    folders = [run / f"part{number}" for number, _ in enumerate(configs, 1)]
    for config, folder in zip(configs, folders):
        if not train(model, train_data, validation_data, config, folder).finished:
            raise SystemExit("Not finished: run it again to go on.")
    return folders


def is_finished(folder):
    planned = json.loads((folder / "config.json").read_text())["total_steps"]
    return checkpoint.load(folder / "model.safetensors").notes["steps"] == planned


def whole_history(folders):
    """The rows of all parts; step, epoch and minutes count on."""
    rows, before = [], {"step": 0, "epoch": 0.0, "minutes": 0.0}
    for folder in folders:
        with open(folder / "history.csv", newline="") as file:
            part = list(csv.DictReader(file))
        rows += [
            row | {name: type(sofar)(row[name]) + sofar for name, sofar in before.items()} for row in part
        ]
        before = {name: rows[-1][name] for name in before}
    return rows


def ship(name, folders):
    """Round a trained model to half precision, measure it, and write it with its description and its log."""
    *earlier, trained = (checkpoint.load(folder / "model.safetensors") for folder in folders)
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
        "trained_before": [part.notes["training"] for part in earlier],
        "steps": sum(part.notes["steps"] for part in (*earlier, trained)),
    }
    path = checkpoint.SHIPPED / f"{name}.safetensors"
    checkpoint.save(
        path, trained.model, trained.classes, trained.mean, trained.std, dtype=torch.float16, **notes
    )
    about = {"classes": trained.classes, "model": trained.model.config, **notes}
    checkpoint.write_whole(path.with_suffix(".json"), (json.dumps(about, indent=2) + "\n").encode())
    checkpoint.write_whole(path.with_suffix(".csv"), as_csv(whole_history(folders)).encode())
    model_card.write_confusion(name, measured.confusion, data.classes)
    print(f"test accuracy: {measured.accuracy:.2%} ({path}, {path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("cifar10", "shapes"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--trained", action="store_true")
    arguments = parser.parse_args()
    folders = [arguments.run]
    if not arguments.trained:
        folders = train_in_parts(*recipe(arguments.name), arguments.run)
    elif not is_finished(arguments.run):
        raise SystemExit(f"The run in {arguments.run} is not finished: go on with it first.")
    ship(arguments.name, folders)
