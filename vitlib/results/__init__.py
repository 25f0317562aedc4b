"""Results of experiments that take longer than a lesson may. The scripts that made them are in experiments/
and benchmarks/."""

import hashlib
import json
from pathlib import Path

from vitlib.checkpoint import SHIPPED


def load(name):
    """What the script NAME.py stored: a dict with its configuration, its seeds and its numbers."""
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())


def identity(name):
    """What tells one shipped model from another, to be stored with what was measured on it."""
    digest = hashlib.sha256((SHIPPED / f"{name}.safetensors").read_bytes()).hexdigest()
    described = json.loads((SHIPPED / f"{name}.json").read_text())
    return {"sha256": digest, "test_accuracy": described["test_accuracy"]}


def over_seeds(runs, value="validation", **which):
    """{recipe: [the value of each of its runs, by seed]}, of those runs that are as `which` says.

    `runs` are dicts, as in load("training")["runs"]. over_seeds(runs, "test", share=0.05) gives the test
    accuracy of the runs on 5 % of the pictures.
    """
    found = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        if all(run[name] == wanted for name, wanted in which.items()):
            found.setdefault(run["recipe"], []).append(run[value])
    return found
