"""Stored runs are read as lessons quote them."""

from vitlib import results

RUNS = [
    {"recipe": "ours", "seed": 1, "share": 1.0, "validation": 0.7, "test": 0.6},
    {"recipe": "ours", "seed": 0, "share": 1.0, "validation": 0.8, "test": 0.5},
    {"recipe": "cnn", "seed": 0, "share": 1.0, "validation": 0.4},
    {"recipe": "ours", "seed": 0, "share": 0.05, "validation": 0.1, "test": 0.2},
]


def test_runs_are_grouped_by_recipe_in_the_order_of_their_seeds():
    """Seeds in the order of the file would pair the wrong runs of two recipes."""
    assert results.over_seeds(RUNS, share=1.0) == {"ours": [0.8, 0.7], "cnn": [0.4]}


def test_only_the_runs_that_are_asked_for_count():
    """A run on a part of the pictures would be averaged with those on all, or the wrong value be read."""
    assert results.over_seeds(RUNS, "test", share=0.05) == {"ours": [0.2]}
    assert results.over_seeds(RUNS, "test", recipe="ours", share=1.0) == {"ours": [0.5, 0.6]}
    assert results.over_seeds(RUNS, share=0.2) == {}
