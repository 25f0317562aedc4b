"""Put a finished run among the checkpoints that vitlib ships: python tools/ship_checkpoint.py RUN_FOLDER NAME

NAME is cifar10 or shapes. The weights are rounded to half precision, and then measured on the test pictures, once.
Written to vitlib/checkpoints/: NAME.safetensors (the model), NAME.json (what it is, how it was trained and what it
reached, to read) and NAME.csv (the log of the run).
"""

import argparse
import json
from pathlib import Path

import torch

from vitlib import checkpoint
from vitlib.data import cifar10, shapes
from vitlib.training import evaluate

SHAPES_TEST = 2000  # pictures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=("cifar10", "shapes"))
    arguments = parser.parse_args()

    trained = checkpoint.load(arguments.run / "model.safetensors")
    config = json.loads((arguments.run / "config.json").read_text())
    log = (arguments.run / "history.csv").read_text()
    if trained.notes["steps"] != config["total_steps"]:
        raise SystemExit(f"The run is not finished: step {trained.notes['steps']} of {config['total_steps']}.")

    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.copy_(parameter.half())
    data = cifar10("test") if arguments.name == "cifar10" else shapes("test", SHAPES_TEST)
    measured = evaluate(trained.model, data, trained.mean, trained.std)

    notes = {
        "trained_on": arguments.name,
        "test_accuracy": round(measured.accuracy, 4),
        "test_pictures": len(data),
        "per_class_accuracy": {
            name: round(accuracy.item(), 4) for name, accuracy in zip(data.classes, measured.per_class_accuracy)
        },
        **trained.notes,
    }
    path = checkpoint.SHIPPED / f"{arguments.name}.safetensors"
    checkpoint.save(
        path, trained.model, trained.classes, trained.mean, trained.std, dtype=torch.float16, **notes
    )
    about = {"classes": trained.classes, "model": trained.model.config, **notes}
    checkpoint.write_whole(path.with_suffix(".json"), (json.dumps(about, indent=2) + "\n").encode())
    checkpoint.write_whole(path.with_suffix(".csv"), log.encode())
    print(f"test accuracy: {measured.accuracy:.2%} ({path}, {path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
