"""Results of experiments that take longer than a lesson may. The scripts in experiments/ made them."""

import json
from pathlib import Path


def load(name):
    """What experiments/NAME.py stored: a dict with its configuration, its seeds and its numbers."""
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())
