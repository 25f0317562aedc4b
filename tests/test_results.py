"""Stored runs are read as lessons and README quote them."""

import re
import statistics
from pathlib import Path

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


def test_readme_quotes_the_stored_runs():
    """An accuracy of five minutes in the README that no runs have, or that of the best seed."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    quoted = re.search(r"five minutes .* test accuracy of (\d+\.\d) % \(mean of\s+three seeds\)", text)
    runs = results.load("training")["runs"]
    reached = results.over_seeds(runs, "test", recipe="ours", budget="5 min", share=1.0)["ours"]
    assert len(reached) == 3 and quoted[1] == f"{100 * statistics.mean(reached):.1f}"


def mean_in_percent(runs, recipe, share=1.0):
    reached = results.over_seeds(runs, budget="8750 GMAC", share=share)[recipe]
    assert len(reached) == 3, (recipe, share)
    return f"{100 * statistics.mean(reached):.1f}"


def test_notes_quote_the_stored_runs():
    """A table that was typed, and not changed when a run was added or repeated."""
    text = (Path(__file__).parents[1] / "benchmarks" / "training_notes.md").read_text(encoding="utf-8")
    runs = results.load("training")["runs"]
    rows = {
        "the recipe": "ours",
        "AdamW in place of Muon": "without_muon",
        "twice the width": "width_192",
        "large pictures throughout": "without_small_pictures",
        "shifts of up to 4 pixels, too": "with_shift",
        "random start of the patch embedding": "without_whitening",
        "learned positions": "learned_positions",
        "class token in place of the mean": "class_token",
    }
    ingredients = text[text.index("## One ingredient less") : text.index("## CNN and ViT")]
    quoted = dict(re.findall(r"^\| ([^|]+?) \| (\d+\.\d) % \|", ingredients, re.MULTILINE))
    assert quoted == {words: mean_in_percent(runs, recipe) for words, recipe in rows.items()}
    row = r"^\| (\w+)(?:, seed (\d))? \| ([\d,]+) \|.*\| (\d+\.\d) % \| (\d+\.\d) % \|$"
    against = re.findall(row, text, re.MULTILINE)
    assert len(against) == 4
    for recipe, seed, gmac, *accuracies in against:
        wanted = (recipe, int(seed or 0), int(gmac.replace(",", "")))
        (run,) = (run for run in runs if (run["recipe"], run["seed"], run["gmac"]) == wanted)
        assert accuracies == [f"{100 * run[part]:.1f}" for part in ("validation", "test")]
    by_share = re.findall(r"^\| (\d+) % \| (\d+\.\d) % \| (\d+\.\d) % \|", text, re.MULTILINE)
    for percent, cnn, vit in by_share:
        share = int(percent) / 100
        assert (cnn, vit) == tuple(mean_in_percent(runs, kind, share) for kind in ("cnn", "vit"))
    assert [percent for percent, *_ in by_share] == ["5", "20", "100"]
