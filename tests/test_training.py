"""The loop, its schedule and optimizers, going on after a stop, and the measuring."""

import csv
import errno
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from vitlib import VisionTransformer, checkpoint, training
from vitlib.augmentation import random_erasing
from vitlib.data import ImageData, augment, normalize, shapes
from vitlib.muon import Muon
from vitlib.patch_embedding import PatchEmbedding
from vitlib.training import TrainingConfig, evaluate, learning_rate_factor, make_optimizers, train

ROOT = Path(__file__).resolve().parents[1]
CLASSES = ["red", "green", "blue"]
GREY = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


def coloured(number, size=(8, 8), seed=0):
    """Noise that is brighter in one channel, the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % len(CLASSES)
    images = torch.randint(0, 160, (number, 3, *size), generator=generator, dtype=torch.uint8)
    images[torch.arange(number), labels] += 80
    return ImageData(images, labels, CLASSES)


def small_model(seed=0, **options):
    """A model with every kind of chance in it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        small = {"image_size": 8, "patch_size": 4, "num_classes": 3}
        small |= {"embed_dim": 16, "depth": 2, "num_heads": 2}
        chance = {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.1}
        return VisionTransformer(**{**small, **chance, **options})


def small_config(**options):
    small = {"epochs": 4, "batch_size": 7, "evaluations": 2, "precision": "fp32", "device": "cpu"}
    return TrainingConfig(**{**small, **GREY, **options})


TRAIN, VALIDATION = coloured(38), coloured(31, seed=1)  # 5 batches of 7 an epoch, 3 pictures left over


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_minutes(history):
    return [{name: value for name, value in row.items() if name != "minutes"} for row in history]


@pytest.fixture
def save_each_step(monkeypatch):
    """A run saves after every step, so that a stop anywhere finds a checkpoint."""
    monkeypatch.setattr(training, "SAVE_EVERY", -1)


# --- it learns, and from its seed alone ---------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_learns(tmp_path, optimizer):
    """A gradient that does not arrive, a step with the wrong sign, labels out of order."""
    model = small_model(dropout=0.0)
    config = small_config(epochs=12, optimizer=optimizer, learning_rate=5e-3, flip=False, shift=0)
    result = train(model, TRAIN, VALIDATION, config, tmp_path)
    assert result.finished and not model.training
    assert abs(result.history[0]["train_loss"] - math.log(3)) < 0.2
    assert result.history[-1]["validation_accuracy"] > 0.9
    assert evaluate(model, VALIDATION, **GREY).accuracy == result.history[-1]["validation_accuracy"]


def test_chance_comes_from_the_seed_alone(tmp_path):
    """Chance from the global generator, left-over state, or a seed that is not used."""
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, again, other = small_model(), small_model(), small_model()
    train(first, TRAIN, VALIDATION, small_config(), tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        train(again, TRAIN, VALIDATION, small_config(), tmp_path / "again")
    train(other, TRAIN, VALIDATION, small_config(seed=1), tmp_path / "other")
    assert same_weights(first, again) and not same_weights(first, other)


def test_dropout_and_augmentation_take_part(tmp_path):
    """Dropout that is off in training, or augmentation that the configuration does not reach."""
    still = {"dropout": 0, "attention_dropout": 0, "drop_path": 0}
    runs = {
        "plain": (small_model(**still), small_config(flip=False, shift=0)),
        "dropout": (small_model(**{**still, "dropout": 0.1}), small_config(flip=False, shift=0)),
        "augmented": (small_model(**still), small_config(flip=True, shift=4)),
    }
    losses = {
        name: train(model, TRAIN, VALIDATION, config, tmp_path / name).history[-1]["train_loss"]
        for name, (model, config) in runs.items()
    }
    assert len(set(losses.values())) == 3


def test_one_step_is_what_it_says(tmp_path):
    """Pictures that are not normalised, labels of other pictures, label smoothing that is dropped."""
    model, config = small_model(dropout=0, attention_dropout=0, drop_path=0), small_config(
        epochs=0.2, batch_size=38, flip=False, shift=0, label_smoothing=0.3, clip_norm=1e-3
    )  # fmt: skip
    logits = model(normalize(TRAIN.images, **GREY))  # before training; all pictures are one batch
    expected = cross_entropy(logits, TRAIN.labels, label_smoothing=0.3).item()
    result = train(model, TRAIN, VALIDATION, config, tmp_path)
    assert [row["step"] for row in result.history] == [1]
    assert result.history[0]["train_loss"] == pytest.approx(expected, rel=1e-5)
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    assert norm <= 1.01e-3  # clipped


# --- schedule and optimizers --------------------------------------------------------------------------------


def test_schedule():
    """A warm-up off by one, a cosine that ends early or late."""
    factor = [learning_rate_factor(step, 100, 0.1) for step in range(100)]
    assert factor[:3] == pytest.approx([0.1, 0.2, 0.3]) and factor[9:11] == [1.0, 1.0]
    assert factor[55] == pytest.approx(0.5)  # half-way from 10 to 100
    assert 0 < factor[-1] < 1e-3  # the last step still does something
    assert factor[:10] == sorted(factor[:10]) and factor[10:] == sorted(factor[10:], reverse=True)


@pytest.mark.parametrize("total", [1, 2, 3, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 1.0])
def test_schedule_of_a_very_short_run(total, warmup):
    """A division by zero, or steps of size 0."""
    factor = [learning_rate_factor(step, total, warmup) for step in range(total)]
    assert all(0 < value <= 1 for value in factor) and max(factor) == 1


def test_each_optimizer_follows_the_schedule(tmp_path):
    """One optimizer left at its full learning rate."""
    model, config = small_model(), small_config(warmup=0.5, learning_rate=0.01, muon_learning_rate=0.1)
    optimizers = make_optimizers(model, config)
    batches = training.Batches(TRAIN, 7, config, torch.device("cpu"))
    run = training.Run(tmp_path, config, {}, step=2, total_steps=20)
    training.training_step(model, optimizers, batches, run, config)
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    assert rates == pytest.approx([0.003, 0.003, 0.03])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_only_matrices_decay(optimizer, pool):
    """A class token, a position, a norm or a bias that is pulled to 0, or a parameter in no group."""
    model = small_model(pool=pool)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    config = small_config(optimizer=optimizer, weight_decay=0.5, learning_rate=0.1, muon_learning_rate=0.1)
    optimizers = make_optimizers(model, config)
    grouped = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))  # each one once
    for each in optimizers:
        each.step()
    moved = {name for name, parameter in model.named_parameters() if not torch.all(parameter == 1)}
    kept = {name for name, _ in model.named_parameters()} - moved
    assert all(name.endswith((".bias", "norm.weight", "norm1.weight", "norm2.weight", ".token",
                              ".positional_embedding")) for name in kept)  # fmt: skip
    assert len(moved) == 2 + 4 * 2  # patches, head; qkv, output, expand, contract of two blocks
    for name in moved:
        assert model.get_parameter(name).flatten()[0].item() == pytest.approx(1 - 0.1 * 0.5), name


def test_muon_gets_the_matrices_of_the_blocks():
    model = small_model()
    adamw, muon = make_optimizers(model, small_config(optimizer="muon"))
    blocks = [module.weight for module in model.encoder.blocks.modules() if isinstance(module, nn.Linear)]
    assert isinstance(adamw, torch.optim.AdamW) and isinstance(muon, Muon)
    assert sorted(map(id, muon.param_groups[0]["params"])) == sorted(map(id, blocks))
    assert len(make_optimizers(model, small_config(optimizer="adamw"))) == 1


# --- batches ------------------------------------------------------------------------------------------------


def test_some_pictures_are_of_every_class():
    """The statistics of the first class taken for those of all pictures: they come sorted by class."""
    images = torch.arange(60).view(60, 1, 1, 1).expand(60, 1, 2, 2).byte()
    data = ImageData(images, torch.arange(60) // 20, ["a", "b", "c"])
    config = TrainingConfig(epochs=1, mean=(0.0,), std=(1.0,))
    some = training.Batches(data, 7, config, torch.device("cpu")).some(6)
    labels = (255 * some[:, 0, 0, 0]).round().long() // 20
    assert labels.bincount().tolist() == [2, 2, 2]


def test_an_epoch_shows_each_picture_once():
    """A picture seen twice in an epoch, the same order in every epoch, labels that lose their pictures."""
    data = ImageData(torch.arange(38, dtype=torch.uint8).view(38, 1, 1, 1), torch.arange(38), ["one"])
    config = small_config(flip=False, shift=0, mean=(0.0,), std=(1 / 255,))
    batches = training.Batches(data, 7, config, torch.device("cpu"))
    epochs = []
    for epoch in range(3):
        parts = [batches.get(5 * epoch + place) for place in range(5)]
        images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        assert torch.equal(images.flatten().round().long(), labels)
        assert len(labels.unique()) == len(labels) == 35
        epochs.append(labels.tolist())
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(epochs[0]) != sorted(epochs[1])  # others are left over
    assert torch.equal(batches.get(2)[1], torch.tensor(epochs[0][14:21]))  # back to an earlier epoch


@pytest.mark.parametrize("batch_size, steps", [(1000, 2), (38, 2), (20, 2), (1, 76)])
def test_batch_sizes(tmp_path, batch_size, steps):
    """A batch larger than the data, or a rest that becomes a step of its own."""
    result = train(small_model(), TRAIN, VALIDATION, small_config(epochs=2, batch_size=batch_size), tmp_path)
    assert result.finished and result.history[-1]["step"] == steps
    assert result.history[-1]["epoch"] == 2


# --- stopping and going on ----------------------------------------------------------------------------------

ODD = {"image_size": (8, 12), "in_channels": 1}  # not square, one channel


def odd_data(data):
    images = nn.functional.pad(data.images[:, :1], (0, 4))
    return ImageData(images + 40 * data.labels.to(torch.uint8)[:, None, None, None], data.labels, CLASSES)


KILLED_AT = 13  # in mid-epoch: 5 steps are an epoch; the second size begins with this step
ODD_CONFIG = {"mean": (0.5,), "std": (0.25,), "label_smoothing": 0.1}
ODD_CONFIG["image_sizes"] = ((0.65, (4, 8)), (0.85, (8, 4)))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, monkeypatch, optimizer):
    """Anything that a checkpoint forgets: moments, step, order of the pictures, chance, rows, losses."""
    code = f"""
        import os, signal, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        import torch
        torch.set_num_threads({torch.get_num_threads()})
        from test_training import *
        training.SAVE_EVERY = -1
        training.HISTORY_ROWS = 7
        training_step = training.training_step

        def step_or_die(model, optimizers, batches, run, config):
            if run.step == {KILLED_AT}:
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
            return training_step(model, optimizers, batches, run, config)

        training.training_step = step_or_die
        config = small_config(optimizer={optimizer!r}, **ODD_CONFIG)
        train(small_model(**ODD), odd_data(TRAIN), odd_data(VALIDATION), config, {str(tmp_path / "killed")!r})
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode in (-9, 15), ended.stderr
    _, about = checkpoint.read_tensors(tmp_path / "killed" / "last.safetensors")
    assert about["step"] == KILLED_AT and about["losses"]  # between two rows as well

    config = small_config(optimizer=optimizer, **ODD_CONFIG)
    monkeypatch.setattr(training, "HISTORY_ROWS", 7)
    resumed, whole = small_model(seed=5, **ODD), small_model(**ODD)
    result = train(resumed, odd_data(TRAIN), odd_data(VALIDATION), config, tmp_path / "killed")
    expected = train(whole, odd_data(TRAIN), odd_data(VALIDATION), config, tmp_path / "whole")
    assert result.finished and same_weights(resumed, whole)
    assert without_minutes(result.history) == without_minutes(expected.history)
    minutes = [row["minutes"] for row in result.history]
    assert minutes == sorted(minutes) and minutes[0] > 0


def press_once(at):
    """A function that presses Ctrl-C when it is called for the `at`-th time."""
    calls = []

    def press(*_):
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)

    return press


@pytest.mark.parametrize("training_mode", [True, False], ids=["in a step", "in an evaluation"])
def test_an_interrupt_loses_nothing(tmp_path, capsys, training_mode):
    """A step torn in two, an evaluation that is lost or done twice, a handler that stays."""
    before = signal.getsignal(signal.SIGINT)
    stopped, whole = small_model(), small_model()
    press = press_once(at=3)  # in evaluation mode, train() has run one picture of each set before

    def hook(head, *_):
        if head.training == training_mode:
            press()

    handle = stopped.head.register_forward_hook(hook)
    result = train(stopped, TRAIN, VALIDATION, small_config(), tmp_path / "stopped")
    handle.remove()
    assert not result.finished and not stopped.training
    assert result.history[-1]["step"] == (3 if training_mode else 10)
    assert (result.history[-1]["validation_accuracy"] is None) == training_mode
    assert "run the same to go on" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before
    assert same_weights(checkpoint.load(tmp_path / "stopped" / "model.safetensors").model, stopped)

    result = train(stopped, TRAIN, VALIDATION, small_config(), tmp_path / "stopped")
    expected = train(whole, TRAIN, VALIDATION, small_config(), tmp_path / "whole")
    assert f"Going on from step {3 if training_mode else 10} of 20" in capsys.readouterr().out
    assert result.finished and same_weights(stopped, whole)
    assert without_minutes(result.history) == without_minutes(expected.history)


def test_a_second_interrupt_acts_at_once_and_spoils_nothing(tmp_path, save_each_step):
    """A run that cannot be stopped, or gradients of a broken step that get into the next one."""
    stopped, whole = small_model(), small_model()
    calls = []

    def press_twice(*_):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    # In mid-backward: the head has its gradient by then, the first block not yet.
    handle = stopped.encoder.blocks[0].norm1.weight.register_post_accumulate_grad_hook(press_twice)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, TRAIN, VALIDATION, small_config(), tmp_path / "stopped")
    handle.remove()
    train(stopped, TRAIN, VALIDATION, small_config(), tmp_path / "stopped")
    train(whole, TRAIN, VALIDATION, small_config(), tmp_path / "whole")
    assert same_weights(stopped, whole)


def test_running_again_after_the_end_trains_nothing(tmp_path, monkeypatch, capsys):
    first, again = small_model(), small_model(seed=3)
    history = train(first, TRAIN, VALIDATION, small_config(), tmp_path).history
    monkeypatch.setattr(training, "training_step", lambda *_: pytest.fail("a step was made"))
    result = train(again, TRAIN, VALIDATION, small_config(), tmp_path)
    assert result.finished and result.history == history and same_weights(first, again)
    assert "nothing is left to train" in capsys.readouterr().out


def test_training_in_a_thread(tmp_path):
    """Only the main thread may handle signals."""
    results = []
    work = threading.Thread(
        target=lambda: results.append(train(small_model(), TRAIN, VALIDATION, small_config(), tmp_path))
    )
    work.start()
    work.join()
    assert results[0].finished


# --- budgets ------------------------------------------------------------------------------------------------


def test_minutes_become_steps_once(tmp_path, monkeypatch):
    """A resumed run that measures again would follow another schedule."""
    steps = [12]
    monkeypatch.setattr(training, "steps_in", lambda *_: steps.pop())
    stopped, config = small_model(), small_config(minutes=1, epochs=None)
    handle = stopped.register_forward_hook(press_once(at=4))
    assert not train(stopped, TRAIN, VALIDATION, config, tmp_path).finished
    handle.remove()
    result = train(stopped, TRAIN, VALIDATION, config, tmp_path)
    assert result.finished and result.history[-1]["step"] == 12
    assert json.loads((tmp_path / "config.json").read_text())["total_steps"] == 12


@pytest.mark.parametrize("minutes, evaluations, steps", [
    (1, 2, 118),  # 60 s less 2 evaluations of 0.5 s, at 0.5 s a step
    (1, 100, 60),  # evaluations would take 50 s: training keeps 30 s
    (0.001, 1, 1),  # one step, however short
])  # fmt: skip
def test_how_many_steps_fit(tmp_path, monkeypatch, minutes, evaluations, steps):
    """Seconds taken for minutes, evaluations left out, a trial that changes the model."""
    now = iter(range(1000))
    clock = SimpleNamespace(perf_counter=lambda: next(now) / 2, monotonic=float)
    monkeypatch.setattr(training, "time", clock)
    model, config = small_model(), small_config(minutes=minutes, epochs=None, evaluations=evaluations)
    before, chance = small_model(), torch.get_rng_state()
    batches = training.Batches(TRAIN, 7, config, torch.device("cpu"))
    run = training.Run(tmp_path, config, {})
    assert training.steps_in(minutes, model, batches, VALIDATION, run) == steps
    assert same_weights(model, before) and torch.equal(chance, torch.get_rng_state())
    assert run.step == 0 and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("options, said", [
    ({}, "epochs or minutes"),
    ({"epochs": 1, "minutes": 1}, "one of the two"),
    ({"epochs": 0}, "epochs must be above 0 and finite, got 0"),
    ({"minutes": -1}, "minutes must be above 0"),
    ({"minutes": math.inf}, "finite"),
    ({"epochs": math.nan}, "got nan"),
    ({"epochs": 1, "batch_size": 0}, "batch_size must be a whole number, at least 1; got 0"),
    ({"epochs": 1, "batch_size": 2.5}, "batch_size"),
    ({"epochs": 1, "batch_size": "128"}, "got '128'"),
    ({"epochs": 1, "shift": -1}, "shift must be a whole number, at least 0"),
    ({"epochs": 1, "muon_learning_rate": -1}, "muon_learning_rate must be above 0"),
    ({"epochs": 1, "learning_rate": -1e-3}, "learning_rate"),
    ({"epochs": 1, "clip_norm": 0}, "clip_norm"),
    ({"epochs": 1, "evaluations": 0}, "evaluations"),
    ({"epochs": 1, "warmup": 5}, "warmup is a share"),
    ({"epochs": 1, "label_smoothing": 1.5}, "label_smoothing"),
    ({"epochs": 1, "trivial_augment": 1.1}, "trivial_augment is a share, from 0 to 1, got 1.1"),
    ({"epochs": 1, "random_erasing": -0.2}, "random_erasing is a share, from 0 to 1, got -0.2"),
    ({"epochs": 1, "mixup": math.nan}, "mixup is a share, from 0 to 1, got nan"),
    ({"epochs": 1, "cutmix": 2}, "cutmix is a share, from 0 to 1, got 2"),
    ({"epochs": 1, "mixup": 0.6, "cutmix": 0.5}, "mixup 0.6 and cutmix 0.5"),
    ({"epochs": 1, "optimizer": "sgd"}, "adamw, muon"),
    ({"epochs": 1, "precision": "fp16"}, "fp32, bf16"),
    ({"epochs": 1, "device": "tpu"}, "cuda"),
])  # fmt: skip
def test_configurations_that_cannot_work(options, said):
    with pytest.raises(ValueError, match=said):
        TrainingConfig(**options)


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch, save_each_step):
    """A checkpoint overwritten by half of the next one, or files that stay."""
    fsync, calls = os.fsync, []

    def full_later(number):
        calls.append(number)
        if len(calls) > 1 + 3 * 5:  # config.json, then three files at the start and after each of four steps
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(number)

    model = small_model()
    monkeypatch.setattr(os, "fsync", full_later)
    with pytest.raises(OSError, match="last.safetensors.*Make room") as caught:
        train(model, TRAIN, VALIDATION, small_config(), tmp_path / "full")
    monkeypatch.setattr(os, "fsync", fsync)
    assert caught.value.errno == errno.ENOSPC
    names = {path.name for path in (tmp_path / "full").iterdir()}
    assert names == {"config.json", "history.csv", "last.safetensors", "model.safetensors"}
    assert checkpoint.load(tmp_path / "full" / "model.safetensors").notes["steps"] == 4

    whole = small_model()
    assert train(model, TRAIN, VALIDATION, small_config(), tmp_path / "full").finished  # there is room again
    train(whole, TRAIN, VALIDATION, small_config(), tmp_path / "whole")
    assert same_weights(model, whole)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, monkeypatch, save_each_step):
    """NaN in the weights or on the disk, or gradients of NaN that spoil the next run of the same model."""
    calls, model = [], small_model()

    def poisoned(*arguments):
        calls.append(1)
        return normalize(*arguments) * (math.nan if len(calls) == 6 else 1)

    monkeypatch.setattr(training, "normalize", poisoned)
    with pytest.raises(FloatingPointError, match="at step 5.*learning rate") as caught:
        train(model, TRAIN, VALIDATION, small_config(), tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)
    for name in ("last.safetensors", "model.safetensors"):
        tensors, about = checkpoint.read_tensors(tmp_path / "run" / name)
        assert all(value.isfinite().all() for value in tensors.values())
        assert about.get("step", about.get("notes", {}).get("steps")) == 5
    assert train(model, TRAIN, VALIDATION, small_config(), tmp_path / "other").finished


def test_pictures_that_are_not_normalised(tmp_path):
    with pytest.raises(FloatingPointError, match="normalised"):
        train(small_model(), TRAIN, VALIDATION, small_config(std=(0.0, 0.0, 0.0)), tmp_path)


@pytest.mark.parametrize("change, said", [
    ({"config": {"batch_size": 9}}, "batch_size: 7 there, 9 now"),
    ({"config": {"seed": 4}}, "seed: 0 there, 4 now"),
    ({"model": {"depth": 3}}, "depth: 2 there, 3 now"),
    ({"data": TRAIN[:35]}, "pictures: 38 there, 35 now"),
    ({"data": ImageData(TRAIN.images, TRAIN.labels, ["a", "b", "c"])}, "classes: .*red.* there, .*'c'.* now"),
])  # fmt: skip
def test_another_run_in_the_directory(tmp_path, change, said):
    """A run that goes on with other pictures or settings, and a directory that it overwrites."""
    train(small_model(), TRAIN, VALIDATION, small_config(epochs=1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    data = change.get("data", TRAIN)
    validation = ImageData(VALIDATION.images, VALIDATION.labels, data.classes)
    config = small_config(epochs=1, **change.get("config", {}))
    with pytest.raises(ValueError, match=said):
        train(small_model(**change.get("model", {})), data, validation, config, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_or_foreign_checkpoint(tmp_path):
    config, path = small_config(epochs=1), tmp_path / "last.safetensors"
    train(small_model(), TRAIN, VALIDATION, config, tmp_path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\0" * 100, os.urandom(1000)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a whole safetensors file"):
            train(small_model(), TRAIN, VALIDATION, config, tmp_path)
        assert path.read_bytes() == content
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="not a run of vitlib.training"):
        train(small_model(), TRAIN, VALIDATION, config, tmp_path)
    path.write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="not a run of vitlib.training"):
        train(small_model(), TRAIN, VALIDATION, config, tmp_path)


def test_model_and_data_that_do_not_fit(tmp_path):
    """An error in the first second, not at the first evaluation."""
    with pytest.raises(ValueError, match="num_classes=4, the data 3 classes .*num_classes=3"):
        train(small_model(num_classes=4), TRAIN, VALIDATION, small_config(), tmp_path)
    others = ImageData(VALIDATION.images, VALIDATION.labels, ["green", "red", "blue"])
    with pytest.raises(ValueError, match="same order"):
        train(small_model(), TRAIN, others, small_config(), tmp_path)
    with pytest.raises(ValueError, match="no pictures"):
        train(small_model(), TRAIN[:0], VALIDATION, small_config(), tmp_path)
    for datasets in ((coloured(38, (8, 16)), VALIDATION), (TRAIN, coloured(38, (8, 16)))):
        with pytest.raises(ValueError, match=r"\(8, 8\).*\(8, 16\)"):
            train(small_model(), *datasets, small_config(), tmp_path)
    for labels in (TRAIN.labels + 3, TRAIN.labels - 1, TRAIN.labels.int(), TRAIN.labels[:-1]):
        with pytest.raises(ValueError, match="Expected 38 labels from 0 to 2"):
            data = ImageData(TRAIN.images, labels, TRAIN.classes)
            train(small_model(), data, VALIDATION, small_config(), tmp_path)
    assert not (tmp_path / "last.safetensors").exists()


def test_a_model_in_the_directory_is_not_overwritten(tmp_path):
    """The weights of another program, in the usual file names, lost to a run."""
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(ValueError, match="no run to go on from"):
        train(small_model(), TRAIN, VALIDATION, small_config(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


def test_other_pictures_are_another_run(tmp_path):
    """As many pictures of the same classes, but not the same ones or other labels, taken for the run's."""
    train(small_model(), TRAIN, VALIDATION, small_config(), tmp_path)
    for others in (
        ImageData(255 - TRAIN.images, TRAIN.labels, TRAIN.classes),
        ImageData(TRAIN.images, TRAIN.labels.flip(0), TRAIN.classes),
    ):
        with pytest.raises(ValueError, match="checksum"):
            train(small_model(), others, VALIDATION, small_config(), tmp_path)


def test_the_start_is_kept(tmp_path):
    """Whatever stops the first steps, another process begins from the same weights."""
    model, other = small_model(), small_model()
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def broken(history):
        raise RuntimeError("the curves cannot be drawn")

    with pytest.raises(RuntimeError):
        train(model, TRAIN, VALIDATION, small_config(), tmp_path, broken)
    kept = checkpoint.load(tmp_path / "model.safetensors").model.state_dict()
    assert all(torch.equal(kept[name], start[name]) for name in start)
    assert train(other, TRAIN, VALIDATION, small_config(), tmp_path).finished


# --- what a run leaves --------------------------------------------------------------------------------------


def test_history_and_configuration_on_disk(tmp_path, monkeypatch):
    """Rows at the wrong steps, a column that shifts, a number that is lost."""
    monkeypatch.setattr(training, "HISTORY_ROWS", 4)
    seen = []
    config = small_config(epochs=2, evaluations=3, warmup=0.3, seed=5)  # 10 steps
    result = train(small_model(), TRAIN, VALIDATION, config, tmp_path, lambda rows: seen.append(len(rows)))
    assert [row["step"] for row in result.history] == [1, 3, 4, 5, 7, 8, 10]
    evaluated = [row["step"] for row in result.history if row["validation_accuracy"] is not None]
    assert evaluated == [4, 7, 10]
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    for row in result.history:
        assert row["epoch"] == row["step"] / 5
        assert row["learning_rate"] == learning_rate_factor(row["step"] - 1, 10, 0.3)

    with open(tmp_path / "history.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["step", "epoch", "minutes", "learning_rate", "train_loss", "validation_loss",
                              "validation_accuracy"]  # fmt: skip
    as_numbers = [{name: float(text) if text else None for name, text in row.items()} for row in table]
    assert as_numbers == result.history

    about = json.loads((tmp_path / "config.json").read_text())
    assert about["training"]["seed"] == 5 and about["training"]["mean"] == [0.5, 0.5, 0.5]
    assert (about["precision"], about["total_steps"]) == ("fp32", 10)
    checksum = about["data"].pop("checksum")
    assert about["data"] == {"pictures": 38, "classes": CLASSES} and checksum
    assert VisionTransformer(**about["model"]).config == small_model().config
    notes = checkpoint.load(tmp_path / "model.safetensors").notes
    assert notes == {"training": about["training"], "steps": 10, "precision": "fp32"}


@pytest.mark.parametrize("evaluations, expected", [(1, 1), (3, 3), (7, 7), (20, 20), (50, 20)])
def test_number_of_evaluations(tmp_path, monkeypatch, evaluations, expected):
    """One too many or too few; more than steps means one after every step."""
    calls, measure = [], evaluate
    monkeypatch.setattr(training, "evaluate", lambda *a, **k: calls.append(1) or measure(*a, **k))
    train(small_model(), TRAIN, VALIDATION, small_config(evaluations=evaluations), tmp_path)
    assert len(calls) == expected


def test_train_loss_is_the_mean_since_the_last_row(tmp_path, monkeypatch):
    losses, step = [], training.training_step

    def recorded(*arguments):
        losses.append(step(*arguments))
        return losses[-1]

    monkeypatch.setattr(training, "training_step", recorded)
    monkeypatch.setattr(training, "HISTORY_ROWS", 2)
    result = train(small_model(), TRAIN, VALIDATION, small_config(), tmp_path)
    expected = [losses[0], sum(losses[1:10]) / 9, sum(losses[10:]) / 10]
    assert [row["train_loss"] for row in result.history] == pytest.approx(expected)


# --- small pictures first -----------------------------------------------------------------------------------


@pytest.mark.parametrize("positional", ["learned", "sincos2d", "none"])
def test_pictures_grow(tmp_path, monkeypatch, positional):
    """A size that comes a step too late, is forgotten in the end, or that evaluation does not follow."""
    seen, validated, step = [], [], training.training_step
    sizes = ((0.25, 4), (0.5, (4, 8)))

    def noted(model, optimizers, batches, run, config):
        seen.append((model.config["image_size"], tuple(batches.get(run.step, run.image_size)[0].shape[2:])))
        return step(model, optimizers, batches, run, config)

    def evaluate(model, data, *rest):
        validated.append(tuple(data.images.shape[2:]))
        return training_evaluate(model, data, *rest)

    training_evaluate = training.evaluate
    monkeypatch.setattr(training, "training_step", noted)
    monkeypatch.setattr(training, "evaluate", evaluate)
    model = small_model(positional=positional)
    result = train(model, TRAIN, VALIDATION, small_config(image_sizes=sizes, evaluations=4), tmp_path)
    assert seen == [((4, 4),) * 2] * 5 + [((4, 8),) * 2] * 5 + [((8, 8),) * 2] * 10
    assert validated == [(4, 4), (4, 8), (8, 8), (8, 8)]  # at the size of the steps before
    assert result.finished and model.config["image_size"] == (8, 8)
    assert checkpoint.load(tmp_path / "model.safetensors").model.grid == (2, 2)


def test_a_run_stopped_among_small_pictures_goes_on_with_the_same_model(tmp_path):
    """A model left with the small size: the pictures would not fit it when the same cell is run again."""
    config = small_config(image_sizes=((0.5, 4),))
    stopped, whole = small_model(), small_model()
    press = press_once(at=3)
    handle = stopped.head.register_forward_hook(lambda head, *_: press() if head.training else None)
    assert not train(stopped, TRAIN, VALIDATION, config, tmp_path / "stopped").finished
    handle.remove()
    assert stopped.config["image_size"] == (8, 8) and stopped.grid == (2, 2)
    assert same_weights(checkpoint.load(tmp_path / "stopped" / "model.safetensors").model, stopped)
    assert train(stopped, TRAIN, VALIDATION, config, tmp_path / "stopped").finished
    train(whole, TRAIN, VALIDATION, config, tmp_path / "whole")
    assert same_weights(stopped, whole)


def test_small_pictures_count_in_the_budget(monkeypatch, tmp_path):
    """A budget in minutes that takes every step for one of full size."""
    clock, seconds = [0.0], {(4, 4): 1.0, (8, 8): 4.0}

    def step(model, optimizers, batches, run, config):
        clock[0] += seconds[run.image_size]
        run.step += 1

    config = small_config(epochs=None, minutes=1, image_sizes=((0.5, 4),))
    model = small_model()
    setting = {"model": {"image_size": [8, 8]}}
    batches = training.Batches(TRAIN, 7, config, torch.device("cpu"))
    monkeypatch.setattr(training, "training_step", step)
    monkeypatch.setattr(training, "evaluate", lambda *_: None)
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    run = training.Run(tmp_path, config, setting)
    assert training.steps_in(1, model, batches, VALIDATION, run) == 24  # half at 1 s, half at 4 s
    assert model.config["image_size"] == (8, 8)


@pytest.mark.parametrize("sizes", [
    ((0.5, 4), (0.5, 8)), ((0.6, 4), (0.3, 8)), ((0, 4),), ((1, 4),),
    (0.5, 4), ((4, 0.5),), ((0.5, "four"),),
])  # fmt: skip
def test_sizes_that_make_no_sense_are_refused(sizes):
    """A phase without steps, or one that never ends; a comma forgotten, a pair turned round."""
    with pytest.raises(ValueError, match="image_sizes are pairs"):
        small_config(image_sizes=sizes)


def test_sizes_that_cannot_be_cut_are_refused_at_once(tmp_path):
    """An error after half of the run."""
    with pytest.raises(ValueError, match="6x6 pixels cannot be cut into patches of 4x4"):
        train(small_model(), TRAIN, VALIDATION, small_config(image_sizes=((0.5, 4), (0.7, 6))), tmp_path)
    assert not (tmp_path / "last.safetensors").exists()


def test_an_error_among_small_pictures_leaves_a_model_of_full_size(tmp_path):
    """A model that refuses the pictures it was built for when the same cell is run again."""
    model, config = small_model(), small_config(image_sizes=((0.5, 4),))

    def broken(history):
        raise RuntimeError("the curves cannot be drawn")

    with pytest.raises(RuntimeError):
        train(model, TRAIN, VALIDATION, config, tmp_path, broken)
    assert model.config["image_size"] == (8, 8)
    assert train(model, TRAIN, VALIDATION, config, tmp_path).finished


# --- a start from the statistics of the pictures ------------------------------------------------------------


@pytest.mark.parametrize("width", [48, 80, 16], ids=["as wide as a patch", "wider", "narrower"])
def test_whitened_tokens_are_uncorrelated(width):
    """Components divided by the wrong number, mixed in the wrong order, or a weight of the wrong layout."""
    smooth = torch.randn(500, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    images = nn.functional.interpolate(smooth, (8, 8), mode="bicubic")  # neighbours are alike
    images += 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    embedding = PatchEmbedding(8, 4, 3, width)
    training.whiten(embedding, images, torch.Generator().manual_seed(0))
    with torch.no_grad():
        tokens = embedding(images).flatten(0, 1)
    variances = torch.linalg.eigvalsh(tokens.T.cov())
    kept = min(width, 48)
    assert variances[-kept:].max() < 1.6 * variances[-kept:].min()
    assert variances.mean() == pytest.approx(0.25, rel=0.2)


def test_whitening_bears_what_never_varies_and_follows_the_seed():
    """A division by a variance of 0, or a random rotation that does not come from the given generator."""
    images = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images[:, 2] = 0.3  # one colour is the same everywhere

    def start(seed):
        embedding = PatchEmbedding(8, 4, 3, 60)
        with torch.no_grad():
            training.whiten(embedding, images, torch.Generator().manual_seed(seed))
        return embedding.projection.weight

    first, again, other = start(0), start(0), start(1)
    assert first.abs().max() < 10  # NaN fails, too
    assert torch.equal(first, again) and (first - other).abs().max() > 0.1


def test_a_run_begins_whitened_once(tmp_path):
    """A switch that nothing is behind, or one that spoils a run that goes on."""
    start, plain = small_model(), small_model()
    config = small_config(whiten=True, epochs=1, learning_rate=1e-12, muon_learning_rate=1e-12)
    train(start, TRAIN, VALIDATION, config, tmp_path)
    weights = [model.patch_embedding.projection.weight for model in (start, plain)]
    assert not torch.allclose(*weights, atol=1e-3)
    again = small_model()
    train(again, TRAIN, VALIDATION, config, tmp_path)
    assert same_weights(start, again)


@pytest.mark.parametrize("flip, shift", [(True, 0), (False, 2)])
def test_flip_and_shift_reach_the_pictures(flip, shift):
    """A switch that nothing is behind."""
    config = small_config(flip=flip, shift=shift)
    got, _ = training.Batches(TRAIN, 38, config, torch.device("cpu")).get(0)
    same, _ = training.Batches(TRAIN, 38, small_config(flip=False, shift=0), torch.device("cpu")).get(0)
    kept = [torch.equal(a, b) for a, b in zip(got, same)]
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(got, same)]
    assert any(mirrored) == flip and (all(k or m for k, m in zip(kept, mirrored)) == (shift == 0))


# --- changed and mixed pictures -----------------------------------------------------------------------------

EVERYTHING = {"trivial_augment": 0.5, "random_erasing": 0.5, "mixup": 0.3, "cutmix": 0.3}
AS_IT_IS = {"flip": False, "shift": 0, "mean": (0.0,), "std": (1 / 255,)}  # numbers are pixels 0..255
FLAT = torch.tensor([10.0, 40.0, 80.0, 130.0, 190.0])  # a grey for each class


def flat_pictures(number=38, size=(8, 12)):
    """Pictures of one grey each, the class: a mixture shows what is in it."""
    labels = torch.arange(number) % len(FLAT)
    images = FLAT[labels].to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, *size)
    return ImageData(images, labels, ["a", "b", "c", "d", "e"])


def batches_of(data, batch_size=7, **options):
    config = small_config(batch_size=batch_size, **options)
    return training.Batches(data, batch_size, config, torch.device("cpu"))


def close_to(share, count, number):
    """Whether that many of so many is what chance gives: exact at 0 and 1, four standard errors between."""
    return abs(count - share * number) <= 4 * (share * (1 - share) * number) ** 0.5


def test_a_batch_follows_from_seed_and_step():
    """Chance from left-over state: a run that goes on would see other pictures than one that never stops."""
    in_order = [batches_of(TRAIN, **EVERYTHING).get(step) for step in range(12)]
    assert {labels.ndim for _, labels in in_order} == {1, 2}  # some mixed, some not
    batches = batches_of(TRAIN, **EVERYTHING)
    for step in (11, 3, 7, 0, 4, 3):
        for one, other in zip(batches.get(step), in_order[step]):
            assert torch.equal(one, other)
    others = [in_order[4], batches_of(TRAIN, seed=1, **EVERYTHING).get(3)]
    assert not any(torch.equal(images, in_order[3][0]) for images, _ in others)


@pytest.mark.parametrize("seed, step", [(0, 0), (0, 8), (3, 4)])
def test_without_them_nothing_else_is_drawn(seed, step):
    """A number that is drawn and not used: every run that was ever described by its seed would differ."""
    images, labels = batches_of(TRAIN, seed=seed).get(step)
    epoch, place = divmod(step, 5)
    order = torch.randperm(38, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    indices = order[7 * place : 7 * place + 7]
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    moved = normalize(augment(TRAIN.images[indices], generator, 4, True), **GREY)
    assert torch.equal(images, moved) and torch.equal(labels, TRAIN.labels[indices])
    erased, _ = batches_of(TRAIN, seed=seed, random_erasing=0.5).get(step)
    assert torch.equal(erased, random_erasing(moved, generator, 0.5))  # the very next numbers


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_is_not_chosen_stays_as_it_was(name):
    """A draw that comes before those of flip and shift, or pictures that are changed without being drawn."""
    plain, changed = batches_of(TRAIN), batches_of(TRAIN, **{name: 0.5})
    same = []
    for step in range(20):
        before, after = plain.get(step), changed.get(step)
        if after[1].ndim == 2:
            same += [False] * 7
        else:
            assert torch.equal(before[1], after[1])
            same += [torch.equal(a, b) for a, b in zip(before[0], after[0])]
    assert 0.3 < sum(same) / len(same) < 0.75  # some draws change nothing: a turn by hardly any degree


@pytest.mark.parametrize("share", [0, 0.1, 0.7, 1])
def test_share_of_changed_pictures(monkeypatch, share):
    """The others changed instead, whole batches, or a share that is not the one asked for."""
    monkeypatch.setattr(training, "trivial_augment", lambda images, generator: 255 - images)
    data = flat_pictures(1000)
    images, labels = batches_of(data, 1000, trivial_augment=share, **AS_IT_IS).get(0)
    grey = FLAT[labels].view(-1, 1, 1, 1)
    changed = ((images - (255 - grey)).abs() < 0.01).all((1, 2, 3))
    kept = ((images - grey).abs() < 0.01).all((1, 2, 3))
    assert (changed ^ kept).all() and close_to(share, changed.sum(), 1000)


@pytest.mark.parametrize("share", [0, 0.25, 0.7, 1])
def test_share_of_erased_pictures(share):
    """A share that is not the one asked for, or a cover that is not the mean colour, 0."""
    data = flat_pictures(1000, (32, 20))
    images, labels = batches_of(data, 1000, random_erasing=share, **AS_IT_IS).get(0)
    covered = images == 0
    assert ((images - FLAT[labels].view(-1, 1, 1, 1)).abs() < 0.01)[~covered].all()
    assert close_to(share, covered.any(3).any(2).any(1).sum(), 1000)


@pytest.mark.parametrize("mixup, cutmix", [(0, 0), (1, 0), (0, 1), (0.3, 0), (0.2, 0.5), (0.5, 0.5)])
def test_share_of_mixed_batches(mixup, cutmix):
    """One taken for the other, both at once, a share that is not the one asked for; labels that say
    something else than the pictures: the mean grey of a mixture must be that of its labels.
    """
    batches = batches_of(flat_pictures(), mixup=mixup, cutmix=cutmix, **AS_IT_IS)
    seen = {"plain": 0, "mixup": 0, "cutmix": 0}
    for step in range(200):
        images, labels = batches.get(step)
        pixels = images.flatten(1)
        flat = ((pixels - pixels[:, :1]).abs() < 0.01).all()
        of_the_data = (pixels[..., None] - FLAT).abs().min(-1).values.max() < 0.01
        if labels.ndim == 1:
            assert labels.dtype == torch.int64 and flat and of_the_data
            labels = one_hot(labels, len(FLAT)).float()
            seen["plain"] += 1
        else:
            assert flat != of_the_data  # all pixels blended alike, or pixels of two pictures side by side
            seen["mixup" if flat else "cutmix"] += 1
        assert labels.shape == (7, len(FLAT)) and (labels >= 0).all()
        assert torch.allclose(labels.sum(1), torch.ones(7))
        assert torch.allclose(labels @ FLAT, pixels.mean(1), atol=0.05)
    assert close_to(mixup, seen["mixup"], 200) and close_to(cutmix, seen["cutmix"], 200)


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_order_of_the_changes(monkeypatch, mix):
    """Operations on pictures that are small already, where a shift by 32 pixels means something else; a
    rectangle that is black instead of mean; a rectangle that covers both parts of a mixture.
    """
    calls = []

    def noted(name, function):
        def call(images, *rest, **options):
            calls.append((name, tuple(images.shape[2:])))
            return function(images, *rest, **options)

        return call

    for name in ("augment", "trivial_augment", "shrink", "normalize", "random_erasing", "mixup", "cutmix"):
        monkeypatch.setattr(training, name, noted(name, getattr(training, name)))
    options = {"trivial_augment": 1.0, "random_erasing": 1.0, mix: 1.0}
    images, _ = batches_of(TRAIN, **options).get(0, (4, 6))
    large, small = (8, 8), (4, 6)
    assert calls == [("augment", large), ("trivial_augment", large), ("shrink", large), ("normalize", small),
                     ("random_erasing", small), (mix, small)]  # fmt: skip
    assert images.shape == (7, 3, *small)


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("channels, size", [(1, (8, 8)), (1, (12, 5)), (3, (5, 12))])
def test_changes_of_odd_pictures(channels, size, batch_size):
    """One channel taken for three, height for width, a batch of one that has no neighbour."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (14, channels, *size), generator=generator, dtype=torch.uint8)
    data = ImageData(images, torch.arange(14) % 3, CLASSES)
    options = {"mean": (0.5,) * channels, "std": (0.25,) * channels}
    batches = batches_of(data, batch_size, **{**EVERYTHING, "mixup": 0.4, "cutmix": 0.4}, **options)
    for step in range(30):
        images, labels = batches.get(step)
        assert images.shape == (batch_size, channels, *size) and images.dtype == torch.float32
        assert images.abs().max() <= 2.01  # (0..1 - 0.5) / 0.25
        assert labels.shape in ((batch_size,), (batch_size, 3))
        assert labels.ndim == 1 or torch.allclose(labels.sum(1), torch.ones(batch_size))


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_the_loss_of_mixed_labels(tmp_path, mix):
    """A loss against one of the two labels only, or label smoothing that mixed labels go without."""
    still = {"dropout": 0, "attention_dropout": 0, "drop_path": 0}
    model, options = small_model(**still), {mix: 1.0, "batch_size": 38, "flip": False, "shift": 0}
    images, labels = batches_of(TRAIN, **options).get(0)
    logs = model(images).log_softmax(1)
    expected = -(0.7 * (labels * logs).sum(1) + 0.3 * logs.mean(1)).mean()
    config = small_config(epochs=0.2, label_smoothing=0.3, **options)
    loss = train(model, TRAIN, VALIDATION, config, tmp_path).history[0]["train_loss"]
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_run_with_all_of_them_goes_on_to_the_same_weights(tmp_path):
    """A stop between a mixed and an unmixed batch, small pictures and large ones, one epoch and the next."""
    train_data, validation_data = shapes("train", 60), shapes("validation", 20)
    model = {"image_size": 32, "patch_size": 8, "num_classes": 10}
    config = small_config(epochs=2, batch_size=20, image_sizes=((0.5, 16),), **EVERYTHING)
    for _ in range(2):  # stopped after two steps and after four
        stopped = small_model(**model)  # as another process builds it
        handle = stopped.head.register_forward_hook(press_in_the_second_step())
        assert not train(stopped, train_data, validation_data, config, tmp_path / "stopped").finished
        handle.remove()
    stopped, whole, start = (small_model(**model) for _ in range(3))
    result = train(stopped, train_data, validation_data, config, tmp_path / "stopped")
    expected = train(whole, train_data, validation_data, config, tmp_path / "whole")
    assert result.finished and same_weights(stopped, whole)
    assert without_minutes(result.history) == without_minutes(expected.history)
    assert not torch.equal(stopped.head.weight, start.head.weight)


def press_in_the_second_step():
    press = press_once(at=2)
    return lambda head, *_: press() if head.training else None


# --- precision and device -----------------------------------------------------------------------------------


@pytest.mark.parametrize("faster", [True, False])
def test_auto_precision_is_measured(tmp_path, monkeypatch, faster):
    """A choice by guess, one that the forward pass ignores, or one that a resumed run makes anew."""
    monkeypatch.setattr(training, "bf16_is_faster", lambda device: faster)
    model, dtypes = small_model(), set()

    def note(head, inputs, logits):
        if len(logits) > 1:  # a single picture is how train() finds out whether the data fit
            dtypes.add(logits.dtype)

    model.head.register_forward_hook(note)
    train(model, TRAIN, VALIDATION, small_config(epochs=1, precision="auto"), tmp_path)
    assert dtypes == {torch.bfloat16 if faster else torch.float32}
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["precision"] == ("bf16" if faster else "fp32") and about["training"]["precision"] == "auto"
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    monkeypatch.setattr(training, "bf16_is_faster", lambda device: pytest.fail("measured again"))
    train(model, TRAIN, VALIDATION, small_config(epochs=1, precision="auto"), tmp_path)


@pytest.mark.parametrize("bf16_seconds, expected", [(0.5, True), (0.9, False), (3.0, False)])
def test_bf16_is_chosen_where_it_is_faster(monkeypatch, bf16_seconds, expected):
    """A comparison the wrong way round, or one that compares the same type with itself."""
    now = [0.0]

    class Clock(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
            if function is torch.ops.aten.mm.default:
                now[0] += bf16_seconds if arguments[0].dtype == torch.bfloat16 else 1.0
            return function(*arguments, **(kwargs or {}))

    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with Clock():
        assert training.bf16_is_faster(torch.device("cpu")) is expected
    assert now[0] > 0


def test_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert training.pick_device() == training.pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="no device 'cuda' here: choose auto, cpu"):
        training.pick_device("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert training.pick_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert training.pick_device() == torch.device("cuda")
    assert training.pick_device("cpu") == torch.device("cpu")


# --- measuring ----------------------------------------------------------------------------------------------


class FirstPixel(nn.Module):
    """Predicts the class that the first pixel names."""

    def __init__(self, number):
        super().__init__()
        self.config, self.scale = {"num_classes": number}, nn.Parameter(torch.tensor(4.0))

    def forward(self, images):
        return self.scale * one_hot(images[:, 0, 0, 0].round().long(), self.config["num_classes"])


def test_confusion_matrix_by_hand():
    """Rows and columns swapped, a class without pictures, a last batch that is not whole."""
    true, predicted = torch.tensor([0, 0, 0, 1, 1, 3, 3]), torch.tensor([0, 1, 1, 1, 3, 3, 3])
    images = predicted.to(torch.uint8).view(7, 1, 1, 1).repeat(1, 1, 2, 3)
    data = ImageData(images, true, ["a", "b", "never seen", "d"])
    for batch_size in (1, 3, 7, 250):
        measured = evaluate(FirstPixel(4), data, (0.0,), (1 / 255,), batch_size=batch_size)
        assert measured.confusion.tolist() == [[1, 2, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 2]]
        assert measured.accuracy == pytest.approx(4 / 7)
        assert measured.per_class_accuracy[[0, 1, 3]].tolist() == pytest.approx([1 / 3, 1 / 2, 1])
        assert measured.per_class_accuracy[2].isnan()
        assert measured.probabilities.argmax(dim=1).tolist() == predicted.tolist()


@pytest.mark.parametrize("training_mode", [True, False])
def test_evaluate_against_a_slow_loop(training_mode):
    """Dropout that is on, normalisation left out, batches out of order, a mode that is not given back."""
    model, data = small_model(image_size=(8, 12)), coloured(31, (8, 12))
    with torch.no_grad():
        model.head.weight.mul_(50)
    model.train(training_mode)
    measured = evaluate(model, data, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), batch_size=7)
    assert model.training == training_mode and not measured.probabilities.requires_grad
    model.eval()
    mean, std = (torch.tensor(x)[:, None, None] for x in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    right, losses = 0, []
    with torch.no_grad():
        for image, label, probability in zip(data.images, data.labels, measured.probabilities, strict=True):
            logits = model(((image / 255 - mean) / std)[None])
            assert torch.allclose(logits.softmax(dim=1)[0], probability, atol=1e-5)
            right += int(logits.argmax() == label)
            losses.append(-logits.log_softmax(dim=1)[0, label])
    assert measured.accuracy == pytest.approx(right / 31)
    assert measured.loss == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    assert measured.confusion.sum() == 31


def test_evaluate_in_bf16_is_close():
    model = small_model()
    exact = evaluate(model, VALIDATION, **GREY).probabilities
    rough = evaluate(model, VALIDATION, **GREY, precision="bf16").probabilities
    assert rough.dtype == torch.float32
    assert 0 < (exact - rough).abs().max() < 0.02


def test_evaluate_refuses_what_it_cannot_measure():
    with pytest.raises(ValueError, match="num_classes=10, the data 3 classes .*red, green, blue"):
        evaluate(small_model(num_classes=10), VALIDATION, **GREY)
    with pytest.raises(ValueError, match="num_classes=0"):
        evaluate(small_model(num_classes=0), VALIDATION, **GREY)
    with pytest.raises(ValueError, match="no pictures"):
        evaluate(small_model(), VALIDATION[:0], **GREY)
