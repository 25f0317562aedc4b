"""The checkpoints that come with the package are what their descriptions, the README and the lessons say."""

import csv
import json
import os
import re
from pathlib import Path

import pytest
import torch

import vitlib
from vitlib import checkpoint
from vitlib.data import cifar10, shapes
from vitlib.training import evaluate

ROOT = Path(__file__).parents[1]
NAMES = ("cifar10", "shapes")


def about(name):
    return json.loads((checkpoint.SHIPPED / f"{name}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_description_belongs_to_the_file(name):
    """Catches: a new model with the description or the log of an old one."""
    loaded, described = vitlib.load(name), about(name)
    assert described == json.loads(
        json.dumps({"classes": loaded.classes, "model": loaded.model.config, **loaded.notes})
    )
    with open(checkpoint.SHIPPED / f"{name}.csv") as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["step"]) == described["steps"]
    assert {"seed", "batch_size", "learning_rate", "optimizer"} <= described["training"].keys()
    classes = described["per_class_accuracy"]
    mean = sum(classes.values()) / len(classes)  # as many test pictures of each class
    assert list(classes) == described["classes"] and abs(mean - described["test_accuracy"]) < 2e-4


@pytest.mark.parametrize("name", NAMES)
def test_small_and_in_half_precision(name):
    """Catches: float32 weights, which a notebook would load twice as long; numbers that are not finite."""
    path = checkpoint.SHIPPED / f"{name}.safetensors"
    tensors, _ = checkpoint.read_tensors(path)
    assert path.stat().st_size < 8e6
    assert all(value.dtype == torch.float16 and value.isfinite().all() for value in tensors.values())


@pytest.mark.parametrize("name", NAMES)
def test_what_the_lessons_need(name):
    """Lessons 08 and later show a class token and positions that were learned from a random start."""
    config = vitlib.load(name).model.config
    assert (config["pool"], config["positional"]) == ("class", "learned")


def test_shapes_accuracy_is_as_described():
    """Catches: a change of the drawn pictures, of the model or of the preparation after the training."""
    loaded = vitlib.load("shapes")
    measured = evaluate(loaded.model, shapes("test", loaded.notes["test_pictures"]), loaded.mean, loaded.std)
    assert abs(measured.accuracy - loaded.notes["test_accuracy"]) < 0.005


@pytest.mark.skipif("VITLIB_DATA" not in os.environ, reason="VITLIB_DATA does not say where CIFAR-10 is")
def test_cifar10_accuracy_is_as_described():
    """Catches: a described accuracy that the shipped weights do not have. Every fifth test picture."""
    loaded, data = vitlib.load("cifar10"), cifar10("test")[::5]
    measured = evaluate(loaded.model, data, loaded.mean, loaded.std)
    described = loaded.notes["test_accuracy"]
    four_standard_errors = 4 * (described * (1 - described) / len(data)) ** 0.5
    assert abs(measured.accuracy - described) < four_standard_errors


def test_readme_quotes_the_measured_accuracy():
    """Catches: an accuracy in the README that no shipped model has."""
    quoted = re.findall(r"(\d+\.\d+) % of (?:its|the) test pictures", (ROOT / "README.md").read_text())
    assert quoted == [f"{100 * about('cifar10')['test_accuracy']:.2f}"]
