"""From a shell: python -m vitlib train | evaluate | predict (lesson 07)."""

import argparse
import csv
import io
import math
import sys
from pathlib import Path

# What takes long to import is imported by the command that needs it, so that --help answers at once.

SHAPES = {"train": 10_000, "validation": 2_000, "test": 2_000}  # how many are drawn
TOP = 5  # how many classes a prediction names


def main(arguments=None):
    """Run one command. Gives the exit code: 0, 1 for unreadable pictures in a folder, 2 for an error,
    130 for an interrupt.
    """
    options = parse(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        print("Error: out of memory. Try a smaller --batch-size, or --device cpu.", file=sys.stderr)
        return 2


def parse(arguments):
    """The command line as options; `options.command` is the function to call with them."""
    parser = argparse.ArgumentParser(prog="python -m vitlib", description="A small Vision Transformer.")
    commands = parser.add_subparsers(required=True, metavar="train | evaluate | predict")

    train = commands.add_parser("train", help="train a model; the same again goes on where it stopped")
    train.set_defaults(command=train_command)
    train.add_argument("--directory", type=Path, help="where the run is kept (default: runs/cifar10, ...)")
    budget = train.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="how long to train (default: 5)")
    budget.add_argument("--epochs", type=float, help="the same, in passes over the pictures")
    train.add_argument("--image-size", type=int, help="height and width of own pictures (default: 64)")
    train.add_argument("--batch-size", type=int, default=128, help="pictures in a step (default: 128)")
    train.add_argument("--optimizer", default="muon", help="muon or adamw (default: muon)")
    train.add_argument("--learning-rate", type=float, default=1.5e-3, help="of AdamW (default: 0.0015)")
    train.add_argument("--muon-learning-rate", type=float, default=0.01, help="of Muon (default: 0.01)")
    train.add_argument("--seed", type=int, default=0, help="another seed, another run (default: 0)")

    evaluate = commands.add_parser("evaluate", help="measure a model on pictures kept for the test")
    evaluate.set_defaults(command=evaluate_command)

    predict = commands.add_parser("predict", help="name the likeliest classes of pictures")
    predict.set_defaults(command=predict_command)
    predict.add_argument("path", type=Path, help="a picture; or a folder of pictures, which gives CSV")
    predict.add_argument("--output", type=Path, help="a CSV file to write")

    for command in (train, evaluate):
        command.add_argument(
            "--data",
            default="cifar10",
            help="cifar10, shapes, or a folder with a folder of pictures for each class (default: cifar10)",
        )
        command.add_argument("--device", default="auto", help="cuda, mps, cpu, or auto (default)")
    for command in (evaluate, predict):
        command.add_argument(
            "--model",
            default="cifar10",
            help="a file model.safetensors, or a shipped model: cifar10, shapes (default: cifar10)",
        )
    return parser.parse_args(arguments)


def pictures(data, split, image_size):
    """The pictures that --data names."""
    from vitlib.data import cifar10, image_folder, shapes

    if data == "cifar10":
        return cifar10(split)
    if data == "shapes":
        return shapes(split, SHAPES[split])
    return image_folder(data, split, image_size)


def train_command(options):
    import torch

    from vitlib.data import SHAPES_MEAN, SHAPES_STD
    from vitlib.training import TrainingConfig, train
    from vitlib.vit import vit_cifar

    own = options.data not in ("cifar10", "shapes")
    size = options.image_size if options.image_size is not None else 64 if own else 32
    if size != 32 and not own:
        raise ValueError(f"--image-size is for your own pictures: those of {options.data} are 32x32.")
    if size < 8 or size % 8:
        raise ValueError(f"--image-size must be a multiple of 8, for 8x8 patches, got {size}.")
    config = TrainingConfig(
        epochs=options.epochs,
        minutes=5 if options.epochs is None and options.minutes is None else options.minutes,
        batch_size=options.batch_size,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        muon_learning_rate=options.muon_learning_rate,
        device=options.device,
        seed=options.seed,
        **({"mean": SHAPES_MEAN, "std": SHAPES_STD} if options.data == "shapes" else {}),
    )
    train_data, validation_data = (pictures(options.data, split, size) for split in ("train", "validation"))
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = vit_cifar(image_size=size, patch_size=size // 8, num_classes=len(train_data.classes))
    directory = options.directory or Path("runs") / Path(options.data).resolve().name
    result = train(model, train_data, validation_data, config, directory)
    if not result.finished:
        return 130
    path = directory / "model.safetensors"
    print(f"validation accuracy: {100 * result.history[-1]['validation_accuracy']:.2f} %")
    print(f"The model is in {path}. To measure and to use it:")
    print(f'  python -m vitlib evaluate --model "{path}" --data "{options.data}"')
    print(f'  python -m vitlib predict photo.jpg --model "{path}"')
    return 0


def evaluate_command(options):
    from vitlib.checkpoint import load
    from vitlib.training import evaluate, pick_device

    found = load(options.model)
    data = pictures(options.data, "test", found.model.config["image_size"])
    if data.classes != found.classes:
        raise ValueError(
            f"The model knows the classes {', '.join(found.classes)}; {options.data} has "
            f"{', '.join(data.classes)}. Give --model and --data that belong together."
        )
    print(f"measuring on {len(data):,} pictures ...", file=sys.stderr)
    measured = evaluate(found.model.to(pick_device(options.device)), data, found.mean, found.std)
    print(f"test accuracy: {100 * measured.accuracy:.2f} %")
    width = max(map(len, found.classes))
    for name, accuracy in zip(found.classes, measured.per_class_accuracy.tolist(), strict=True):
        print(f"{name:{width}}", "no pictures" if math.isnan(accuracy) else f"{100 * accuracy:6.2f} %")
    return 0


def predict_command(options):
    from vitlib.checkpoint import load

    found = load(options.model)
    if options.path.is_dir():
        return predict_folder(found, options.path, options.output)
    if options.output:
        raise ValueError("--output is for a folder of pictures; the classes of one picture are printed.")
    top = likeliest(found, options.path)
    width = max(len(name) for name, _ in top)
    for name, probability in top:
        print(f"{name:{width}} {100 * probability:6.2f} %")
    return 0


def predict_folder(found, folder, output):
    """A table with a row for each file of a folder; a file that cannot be read gets the reason instead."""
    from tqdm import tqdm

    from vitlib.checkpoint import write_whole
    from vitlib.data import visible

    files = [Path(entry) for entry in visible(folder) if entry.is_file()]
    if not files:
        raise ValueError(f"There are no files in {folder}: name the folder that holds the pictures.")
    numbers = range(1, min(TOP, len(found.classes)) + 1)
    columns = ["file", *(f"{column} {number}" for number in numbers for column in ("class", "probability"))]
    text, unreadable = io.StringIO(), 0
    table = csv.DictWriter(text, [*columns, "error"], lineterminator="\n")
    table.writeheader()
    for file in tqdm(files, unit="picture", file=sys.stderr, disable=None):  # on a terminal only
        try:
            values = [value for pair in likeliest(found, file) for value in pair]
            table.writerow(dict(zip(columns, [file.name, *values], strict=True)))
        except ValueError as error:
            table.writerow({"file": file.name, "error": error})
            unreadable += 1
    content = text.getvalue().encode(errors="backslashreplace")  # a file's name need not be valid UTF-8
    if output:
        write_whole(output, content)
    else:
        print(content.decode(), end="")
    if unreadable:
        print(f"{unreadable} of {len(files)} files could not be read: see the last column.", file=sys.stderr)
    return 1 if unreadable else 0


def likeliest(found, path):
    """The likeliest classes of a picture, as pairs (name, probability)."""
    from vitlib.data import load_picture

    image = load_picture(path, found.model.config["image_size"])
    probabilities, indices = found.predict(image[None])[0].topk(min(TOP, len(found.classes)))
    return [(found.classes[i], round(p, 4)) for i, p in zip(indices, probabilities.tolist(), strict=True)]


if __name__ == "__main__":
    sys.exit(main())
