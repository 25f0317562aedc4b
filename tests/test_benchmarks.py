"""The recipes that are compared in training, their compute, and the stored runs."""

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from vitlib import results, vit_cifar
from vitlib.data import shapes
from vitlib.training import TrainingConfig, evaluate, train

PATH = Path(__file__).parents[1] / "benchmarks" / "training.py"
spec = importlib.util.spec_from_file_location("training_benchmark", PATH)
training = importlib.util.module_from_spec(spec)
spec.loader.exec_module(training)

ONE_LESS = ("without_muon", "without_small_pictures", "without_whitening", "learned_positions", "class_token",
            "with_shift", "width_192")  # fmt: skip


def settings(name):
    """Everything that a recipe sets, model and training, by name."""
    build, options = training.RECIPES[name]
    return build().config | asdict(TrainingConfig(**options, epochs=1))


@pytest.mark.parametrize("name", ONE_LESS)
def test_one_ingredient_is_changed(name):
    """Fails where a comparison changes two things at once. A width of 192 needs 6 heads of the same width."""
    ours, other = settings("ours"), settings(name)
    changed = {key for key in ours if ours[key] != other[key]}
    with_it = {"num_heads"} if name == "width_192" else set()
    assert len(changed - with_it) == 1, changed


def test_cnn_and_vit_are_alike_in_size_and_training():
    (cnn, cnn_training), (vit, vit_training) = training.RECIPES["cnn"], training.RECIPES["vit"]
    assert cnn_training == vit_training
    sizes = [sum(parameter.numel() for parameter in build().parameters()) for build in (cnn, vit)]
    work = [training.gmac_per_image(build()) for build in (cnn, vit)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05) and work[0] == pytest.approx(work[1], rel=0.05)


def test_compute_by_hand():
    """Fails where the counter misses attention, or forward and backward are not three forwards."""
    build, _ = training.RECIPES["ours"]
    tokens, width, depth = 64, 96, 6
    linear = 12 * tokens * width**2 + 2 * tokens**2 * width  # a block; the second part is attention
    by_hand = depth * linear + tokens * 48 * width + width * 10
    assert training.gmac_per_image(build()) == pytest.approx(3 * by_hand / 1e9, rel=1e-6)


def test_small_pictures_cost_less():
    parts = [(0.5, 1.0), (0.75, 2.0), (1.0, 4.0)]
    assert training.gmac_spent(parts, 100) == pytest.approx(50 * 1 + 25 * 2 + 25 * 4)
    assert training.gmac_spent(parts, 100, share=0.5) == pytest.approx(50)
    assert training.gmac_spent(parts, 100, share=0.6) == pytest.approx(50 + 10 * 2)


def test_the_network_takes_pictures_of_any_size():
    assert training.SmallResNet(num_classes=7)(torch.randn(2, 3, 20, 33)).shape == (2, 7)


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["training.py", *map(str, arguments)])
    training.main()
    return json.loads(training.RESULTS.read_text())["runs"]


def test_a_run_from_the_command_line(monkeypatch, tmp_path):
    """Some classes left out of a share, test accuracy of other pictures, another budget than the one given,
    one run stored twice, or a stored one lost.
    """
    given, splits = [], {"train": 400, "validation": 30, "test": 50}

    def pictures(split):
        data = shapes(split, splits[split])
        return data[data.labels.argsort(stable=True)]  # class by class, as CIFAR-10 is read

    def noted(model, data, *rest):
        given.append(("train", data.labels.bincount().tolist()))
        return train(model, data, *rest)

    def measured(model, data, *rest):
        given.append(("measure", len(data)))
        return evaluate(model, data, *rest)

    for name, value in {"RESULTS": tmp_path / "runs.json", "RUNS": tmp_path, "cifar10": pictures,
                        "train": noted, "evaluate": measured}.items():  # fmt: skip
        monkeypatch.setattr(training, name, value)
    small = lambda: vit_cifar(embed_dim=12, depth=1, num_heads=2, patch_size=8)  # noqa: E731
    monkeypatch.setitem(training.RECIPES, "small", (small, {"batch_size": 20, "image_sizes": ((0.5, 16),)}))
    line = ["small", "--gmac", 0.02, "--share", 0.2, "--precision", "fp32", "--seeds", 3]
    (first,) = run_main(monkeypatch, *line)
    assert given == [("train", [8] * 10), ("measure", 30)]
    assert first["images"] == first["steps"] * 20 and first["precision"] == "fp32"
    assert first["gmac"] == first["curve"][-1]["gmac"]
    full, quarter = (training.gmac_per_image(small().resize(size)) for size in (32, 16))
    assert first["images"] * (full + quarter) / 2 == pytest.approx(0.02, rel=0.2)
    assert run_main(monkeypatch, *line) == [first] and len(given) == 2  # stored: not trained again
    with_test = run_main(monkeypatch, *line, "--test")
    assert len(with_test) == 1 and given[-2:] == [("measure", 30), ("measure", 50)]
    assert with_test[0]["validation"] == first["validation"] and 0 <= with_test[0]["test"] <= 1
    other = run_main(monkeypatch, *line[:-1], 4)
    assert other[0] == with_test[0] and [run["seed"] for run in other] == [3, 4]


@pytest.mark.skipif(not training.RESULTS.exists(), reason="no stored runs")
def test_stored_runs_are_of_these_recipes():
    """Fails where a recipe was changed and its runs were not made again, or where a run is stored twice."""
    runs = results.load("training")["runs"]
    names = [tuple(run[name] for name in ("recipe", "budget", "share", "seed")) for run in runs]
    assert len(set(names)) == len(names)
    for run in runs:
        build, options = training.RECIPES[run["recipe"]]
        config = json.loads(json.dumps(asdict(TrainingConfig(**options, epochs=1, seed=run["seed"]))))
        free = ("epochs", "minutes", "precision")  # they come from the command line
        assert {k: v for k, v in run["training"].items() if k not in free} == {
            k: v for k, v in config.items() if k not in free
        }, run["recipe"]
        assert run["model"] == json.loads(json.dumps(build().config)), run["recipe"]
        assert run["gmac"] == run["curve"][-1]["gmac"] and run["steps"] == run["curve"][-1]["step"]
