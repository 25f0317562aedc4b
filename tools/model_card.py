"""Write vitlib/checkpoints/MODEL_CARD.md from the files beside it, so that no measured number is typed.

    python tools/model_card.py [--measure cifar10 shapes]

With --measure, the named checkpoints are first asked about all their test pictures, and what they took each
class for is written to NAME_confusion.csv; cifar10 needs the pictures (VITLIB_DATA). Without, nothing is
measured, and nothing but the files in vitlib/checkpoints/ is read.
"""

import argparse
import csv
import io
import json

import vitlib
from vitlib.checkpoint import SHIPPED, write_whole
from vitlib.data import cifar10, shapes
from vitlib.training import evaluate

CARD = SHIPPED / "MODEL_CARD.md"
NAMES = ("cifar10", "shapes")

TOP = """# Model card

Two small Vision Transformers come with `vitlib`: `vitlib.load("cifar10")` and `vitlib.load("shapes")`.
This page is written by `tools/model_card.py` from the files beside it.

**What they are for.** Learning. The lessons look inside them: they are small enough for any laptop, and
trained well enough that attention and positions show something learned. They can also be the start of an
experiment, or what a better model is compared with.

**What they are not for.** Anything that matters to anyone: no decisions about people, no safety, no medicine.
Each knows ten classes, and none of them are people. For naming photographs take a larger model, trained on
more.

**Limits**

- A picture is 32x32 pixels, in colour. Larger ones are shrunk to that before the model sees them.
- One object, large and near the middle. Small, half hidden or many objects were hardly ever trained on.
- The answer is always one of the ten classes, for a picture of something else too. How far its probabilities
  can be trusted was not measured.
- Attention maps show what was read, not why a class was chosen. Lesson 08 measures how far to trust them.

**Licence.** The weights come under the licence of this package, MIT. It does not speak for the training data:
see below.
"""

DATA = {
    "cifar10": """[CIFAR-10](https://www.cs.toronto.edu/~kriz/cifar.html) (Krizhevsky 2009): 50,000 pictures
for training and 10,000 for the test, 32x32 pixels in colour, as many of each class. Of those for training,
5,000 were held out as validation pictures, to choose settings by. Used here as JPEG copies (quality 75,
colour at half the resolution); on the originals, numbers may differ a little.

- The pictures were collected from the web and labelled by people. No licence is stated, and who took them is
  not known. They are a part of the "80 million tiny images", which were withdrawn in 2020 since other parts
  held offensive labels and pictures (Prabhu & Birhane 2020, arXiv:2006.16923).
- About 0.5 % of the test labels are wrong (Northcutt et al. 2021, arXiv:2103.14749).
- About 3 % of the test pictures have a near-duplicate among those for training (Barz & Denzler 2020,
  arXiv:1902.00423): on really new pictures the accuracy is a little lower.""",
    "shapes": """Pictures drawn by `vitlib.data.shapes`: ten shapes of random colour, size and place on a
cluttered background. No photographs, no people, nobody's property. They are far easier than photographs: the
accuracy says that the model has learned this task, not that it sees well.""",
}

# Settings that are only named where they were used.
IN_WORDS = {
    "whiten": "The patch embedding began from the statistics of the pictures.",
    "flip": "About half of the pictures were mirrored.",
    "shift": "Each picture was moved by up to {value} pixels each way.",
    "trivial_augment": "About {percent} of the pictures were changed by a random operation (TrivialAugment).",
    "random_erasing": "In about {percent} of the pictures a rectangle was covered (random erasing).",
    "mixup": "About {percent} of the batches were blends of two pictures and their labels (mixup).",
    "cutmix": "In about {percent} of the batches a piece of another picture was pasted in (CutMix).",
    "label_smoothing": "{percent} of each label was spread over all classes (label smoothing).",
}


def measure(name):
    """Ask a shipped checkpoint about its test pictures, and write its confusions."""
    loaded = vitlib.load(name)
    data = cifar10("test") if name == "cifar10" else shapes("test", loaded.notes["test_pictures"])
    write_confusion(name, evaluate(loaded.model, data, loaded.mean, loaded.std).confusion, data.classes)


def write_confusion(name, confusion, classes):
    """One line for each true class: its name, and how many of its pictures were taken for each class."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["class", *classes])
    table.writerows([true, *counts] for true, counts in zip(classes, confusion.tolist()))
    write_whole(SHIPPED / f"{name}_confusion.csv", text.getvalue().encode())


def read_confusion(name, accuracy):
    """{true class: {class that it was taken for: pictures}}.

    `accuracy`: {class: its accuracy, rounded to four places}, from the model's description.
    Raises ValueError where the two are of different models.
    """
    with open(SHIPPED / f"{name}_confusion.csv", newline="", encoding="utf-8") as file:
        rows = {row.pop("class"): row for row in csv.DictReader(file)}
    confusion = {true: {taken: int(count) for taken, count in row.items()} for true, row in rows.items()}
    counted = {true: round(row[true] / sum(row.values()), 4) for true, row in confusion.items()}
    if counted != accuracy:
        raise ValueError(
            f"{name}_confusion.csv gives the accuracies {counted}, {name}.json {accuracy}: they are of "
            f"different models. Run: python tools/model_card.py --measure {name}"
        )
    return confusion


def describe(name):
    """The section on one checkpoint."""
    model, path = vitlib.load(name).model, SHIPPED / f"{name}.safetensors"
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with open(path.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        last = {column: float(value) for column, value in list(csv.DictReader(file))[-1].items()}
    confusion = read_confusion(name, about["per_class_accuracy"])
    accuracy, pictures, training = about["test_accuracy"], about["test_pictures"], about["training"]
    standard_error = (accuracy * (1 - accuracy) / pictures) ** 0.5
    config, parameters = model.config, sum(parameter.numel() for parameter in model.parameters())
    height, width = config["patch_size"]
    return f"""## {name}

{percent(accuracy, 2)} of {pictures:,} test pictures are right (standard error {percent(standard_error, 2)}).
The test pictures had no part in training, nor in choosing anything.

**Model.** {model.grid[0] * model.grid[1]} patches of {height}x{width} pixels, width {config["embed_dim"]},
{config["depth"]} layers, {config["num_heads"]} heads, a class token, and positions learned from a random
start. {parameters:,} parameters, {path.stat().st_size / 1e6:.1f} MB in half precision.

**Data.** {DATA[name]}

**Training.** From a random start, on no other data: {about["steps"]:,} steps of {training["batch_size"]}
pictures, {last["epoch"]:.0f} passes over them, in {last["minutes"]:.0f} minutes.
In the end, {percent(last["validation_accuracy"], 2)} of the validation pictures were right.
The log is [{name}.csv]({name}.csv). All settings, as `vitlib.training.TrainingConfig` names them, follow.

{in_parts([*about.get("trained_before", []), training])}

**Accuracy by class**

{by_class(confusion)}

**What it gets wrong.** {what_it_gets_wrong(confusion)}
The whole table is [{name}_confusion.csv]({name}_confusion.csv): rows are the true classes.
"""


def percent(share, decimals=0):
    return f"{100 * share:.{decimals}f} %"


def in_parts(configurations):
    """What was used, and all settings, for each part of the training."""
    parts = [f"{training_in_words(training)}\n\n{settings(training)}" for training in configurations]
    if len(parts) == 1:
        return parts[0]
    return "\n\n".join(
        f"Part {number}{', from the weights of the part before' if number > 1 else ''}. {part}"
        for number, part in enumerate(parts, 1)
    )


def training_in_words(training):
    """One sentence a line, of what was used."""
    by = {"muon": "Muon for the blocks' matrices and AdamW for the rest", "adamw": "AdamW"}
    sentences = [
        f"The optimizer is {by[training['optimizer']]}. Learning rates rise over the first "
        f"{percent(training['warmup'])} of the steps, then fall to 0 along half a cosine."
    ]
    for share, (height, width) in training.get("image_sizes", ()):
        sentences.append(f"Until {percent(share)} of the steps, the pictures were {height}x{width} pixels.")
    for name, words in IN_WORDS.items():
        if training.get(name):
            sentences.append(words.format(value=training[name], percent=percent(training[name])))
    return "\n".join(sentences)


def settings(training):
    given = {name: value for name, value in training.items() if value is not None}
    return "\n".join(f"- `{name}`: {json.dumps(value)}" for name, value in given.items())


def errors_of(confusion):
    """[(pictures, true class, class that they were taken for)], the most frequent first."""
    errors = [
        (count, true, taken)
        for true, row in confusion.items()
        for taken, count in row.items()
        if taken != true and count
    ]
    return sorted(errors, key=lambda error: -error[0])


def by_class(confusion):
    lines = ["| class | right | most often taken for |", "|---|---|---|"]
    errors = errors_of(confusion)
    for true, row in confusion.items():
        worst = next((f"{taken} ({count})" for count, other, taken in errors if other == true), "nothing")
        lines.append(f"| {true} | {row[true]} of {sum(row.values())} | {worst} |")
    return "\n".join(lines)


def what_it_gets_wrong(confusion):
    errors = errors_of(confusion)
    wrong = sum(count for count, *_ in errors)
    most = ", ".join(f"{true} taken for {taken} ({count})" for count, true, taken in errors[:5])
    return f"{wrong:,} pictures are wrong. The most frequent errors: {most}."


def card():
    return "\n".join([TOP, *(describe(name) for name in NAMES)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="+", choices=NAMES, default=[])
    for name in parser.parse_args().measure:
        measure(name)
    write_whole(CARD, card().encode())
    print(CARD)
