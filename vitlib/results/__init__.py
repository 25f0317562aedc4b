"""Results of experiments that take longer than a lesson may. The scripts in experiments/ made them."""

import hashlib
import json
from pathlib import Path

from vitlib.checkpoint import SHIPPED


def load(name):
    """What experiments/NAME.py stored: a dict with its configuration, its seeds and its numbers."""
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())


def identity(name):
    """What tells one shipped model from another, to be stored with what was measured on it."""
    digest = hashlib.sha256((SHIPPED / f"{name}.safetensors").read_bytes()).hexdigest()
    described = json.loads((SHIPPED / f"{name}.json").read_text())
    return {"sha256": digest, "test_accuracy": described["test_accuracy"]}
