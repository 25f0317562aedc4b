"""Training and measuring a Vision Transformer (lesson 07).

The loop holds no hidden state: the order of the pictures, their augmentation and dropout follow from the seed
and the number of the step alone. So a run that was stopped at any step goes on exactly as if it had not been.
"""

import copy
import csv
import io
import json
import math
import signal
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from vitlib import checkpoint
from vitlib.augmentation import cutmix, mixup, random_erasing, trivial_augment
from vitlib.data import CIFAR10_MEAN, CIFAR10_STD, augment, normalize, shrink
from vitlib.muon import Muon
from vitlib.patch_embedding import as_pair, patch_grid, patchify

HISTORY_ROWS = 100  # how many points a curve of the training loss gets
SHARES = ("warmup", "label_smoothing", "trivial_augment", "random_erasing", "mixup", "cutmix")
ABOVE_ZERO = ("epochs", "minutes", "learning_rate", "muon_learning_rate", "clip_norm", "evaluations")
SAVE_EVERY = 30  # seconds: what a power cut costs at most


@dataclass
class TrainingConfig:
    """Everything that decides how a run goes, apart from the model and the pictures.

    Give a budget in `epochs` (passes over the training pictures) or in `minutes`; minutes become a number of
    steps at the start. `optimizer` is "adamw", or "muon" for the blocks' matrices and AdamW for the rest.
    Learning rates rise over the first `warmup` share of the steps, then fall to 0 along half a cosine.
    `image_sizes`, pairs of (share, size), shrink the pictures until that share of the steps is done: half the
    size means a quarter of the patches, and of the work. `flip` mirrors about half of the training pictures,
    `shift` moves each by up to so many pixels. `trivial_augment` and `random_erasing` (shares of the
    pictures), `mixup` and `cutmix` (shares of the batches, never both) are those of `vitlib.augmentation`.
    `whiten` starts the patch embedding from the statistics of the pictures (see `whiten`).
    `precision` is "fp32", "bf16", or "auto": whichever this machine does faster.
    """

    epochs: float | None = None
    minutes: float | None = None
    batch_size: int = 128
    optimizer: str = "muon"
    learning_rate: float = 1.5e-3
    muon_learning_rate: float = 0.01
    weight_decay: float = 0.05
    warmup: float = 0.05
    clip_norm: float = 1.0
    label_smoothing: float = 0.0
    image_sizes: tuple = ()
    whiten: bool = False
    flip: bool = True
    shift: int = 4
    trivial_augment: float = 0.0
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    evaluations: int = 5
    mean: tuple = CIFAR10_MEAN
    std: tuple = CIFAR10_STD
    precision: str = "auto"
    device: str = "auto"
    seed: int = 0

    def __post_init__(self):
        self.mean, self.std = tuple(map(float, self.mean)), tuple(map(float, self.std))
        if (self.epochs is None) == (self.minutes is None):
            raise ValueError(
                f"Give epochs or minutes, one of the two: epochs={self.epochs}, minutes={self.minutes}."
            )
        try:
            self.image_sizes = tuple((float(share), as_pair(size)) for share, size in self.image_sizes)
            shares = [share for share, _ in self.image_sizes]
            if shares != sorted(set(shares)) or not all(0 < share < 1 for share in shares):
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(
                "image_sizes are pairs (share, size), with rising shares between 0 and 1, such as "
                f"((0.5, 16), (0.75, 24)); got {self.image_sizes}."
            ) from None
        for name in ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # this refuses NaN too
                raise ValueError(f"{name} must be above 0 and finite, got {value}.")
        for name, least in {"batch_size": 1, "shift": 0}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number, at least {least}; got {value!r}.")
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, got {getattr(self, name)}.")
        if self.mixup + self.cutmix > 1:
            raise ValueError(
                f"A batch is mixed one way only: mixup {self.mixup} and cutmix {self.cutmix} are more than 1."
            )
        for name, choices in {
            "optimizer": ("adamw", "muon"),
            "precision": ("auto", "fp32", "bf16"),
            "device": ("auto", "cpu", "cuda", "mps"),
        }.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")


@dataclass
class TrainingResult:
    """What a run left behind.

    `history` is a list of dicts: step, epoch, minutes, learning_rate (its share of the full one), train_loss,
    and at some of the steps validation_loss and validation_accuracy (None at the others). `directory` holds
    model.safetensors, history.csv, config.json, and last.safetensors to go on from.
    """

    history: list
    finished: bool
    directory: Path


@dataclass
class Evaluation:
    """How a model does on pictures with known labels. K classes, N pictures.

    accuracy and loss: numbers. per_class_accuracy: (K,), NaN for a class without pictures.
    confusion: (K, K) counts, rows are the true classes, columns the predicted ones. probabilities: (N, K).
    """

    accuracy: float
    loss: float
    per_class_accuracy: torch.Tensor
    confusion: torch.Tensor
    probabilities: torch.Tensor


# --- the run ------------------------------------------------------------------------------------------------


def train(model, train_data, validation_data, config, directory, on_log=None):
    """Train `model` in place and keep everything in `directory`; called again, it goes on where it stopped.

    `on_log(history)` is called after every new row, for instance to draw the curves. Interrupting (the stop
    button, Ctrl-C) ends the run after the step at hand, saves it, and returns with `finished=False`.
    Raises ValueError where model, data and the run in the directory do not fit each other, FloatingPointError
    where the loss is no longer a number, OSError where the disk refuses; the last checkpoint stays intact.
    Source: paper section 4.1 and appendix B.1; lesson 07.
    """
    device = pick_device(config.device)
    model.to(device).eval()
    for data in (train_data, validation_data):
        check_data(model, data)
        with torch.no_grad():
            model(data.images[:1].to(device).float())  # pictures that do not fit are refused now, not later
    for _, size in config.image_sizes:
        patch_grid(size, model.config["patch_size"])
    if validation_data.classes != train_data.classes:
        raise ValueError(
            f"The classes for training are {train_data.classes}, for validation {validation_data.classes}: "
            "they must be the same, in the same order."
        )
    batches = Batches(train_data, min(config.batch_size, len(train_data)), config, device)
    optimizers = make_optimizers(model, config)
    run = begin_or_resume(Path(directory), model, optimizers, train_data, config)
    with torch.random.fork_rng(), interruptible() as interrupted:
        if run.total_steps == 0:
            if config.whiten:
                whiten(model.patch_embedding, batches.some(2000), torch.Generator().manual_seed(config.seed))
            run.plan(model, batches, validation_data, device)
            run.save(model, optimizers)  # whatever stops the first steps, the same start can be found again
        before = run.step
        try:
            with tqdm(total=run.total_steps, initial=run.step, unit="step", file=sys.stdout, ncols=90) as bar:
                while run.step < run.total_steps and not interrupted():
                    set_size(model, optimizers, run)
                    loss = training_step(model, optimizers, batches, run, config)
                    run.losses.append(loss)
                    bar.update()
                    if run.row_is_due():
                        run.add_row(model, batches, validation_data)
                        bar.set_postfix_str(run.summary())
                        if on_log is not None:
                            on_log(run.history)
                    if run.save_is_due():
                        run.save(model, optimizers)
            if run.step > before:
                run.save(model, optimizers)
        finally:
            if config.image_sizes:
                model.resize(run.setting["model"]["image_size"])  # as it was built, wherever the run stopped
            model.eval()
    if not run.finished:
        print(f"Stopped at step {run.step} of {run.total_steps}. Nothing is lost: run the same to go on.")
    return TrainingResult(run.history, run.finished, run.directory)


def training_step(model, optimizers, batches, run, config):
    """One batch: forward, backward, and one step of every optimizer. Gives the loss."""
    images, labels = batches.get(run.step, run.image_size)
    factor = learning_rate_factor(run.step, run.total_steps, config.warmup)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        optimizer.zero_grad()

    model.train()
    torch.manual_seed(seed_of(config.seed, run.step))  # for dropout, which knows the global generator only
    with torch.autocast(images.device.type, torch.bfloat16, enabled=run.precision == "bf16"):
        logits = model(images)
        loss = cross_entropy(logits.float(), labels, label_smoothing=config.label_smoothing)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
    if not (loss + norm).isfinite():
        raise FloatingPointError(
            f"The loss is {loss.item()} and the gradient norm {norm.item()} at step {run.step}, with a "
            f"learning rate of {config.learning_rate * factor:.2g}. Usual causes: too high a learning rate, "
            "no warm-up, pictures that are not normalised. What was saved before is still in "
            f"{run.directory}. Change the configuration, build the model anew and start in another directory."
        )
    for optimizer in optimizers:
        optimizer.step()
    run.step += 1
    return loss.item()


def set_size(model, optimizers, run):
    """Make the model ready for the size of the pictures at this step: other positions, the same weights.

    Source: paper section 3.2 (positions at another resolution); lesson 03.
    """
    if run.image_size and model.config["image_size"] != run.image_size:
        model.resize(run.image_size)
        positions = getattr(model.positional_encoding, "positional_embedding", None)
        for optimizer in optimizers:
            optimizer.state.pop(positions, None)  # what it knew of them has the old shape


def learning_rate_factor(step, total_steps, warmup):
    """The share of the full learning rate at a step: a straight rise, then half a cosine down to 0.

    Source: paper appendix B.1 (warm-up and cosine decay); Loshchilov & Hutter 2017.
    """
    warmup_steps = max(1, round(warmup * total_steps))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total_steps - warmup_steps)  # from 0 to 1
    return 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def whiten(patch_embedding, images, generator):
    """Start the patch embedding so that every way in which patches differ counts about equally.

    Neighbouring pixels are nearly equal, so the tokens of a random start hardly differ but in brightness and
    colour. Principal components of the patches, each divided by its standard deviation, make details count as
    much; a random rotation spreads them over the width. It stays one linear map, and training changes it.
    Shapes: images, normalised, (B, C, H, W).
    Source: as in Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds", there for a convolution.
    """
    patches = patchify(images, patch_embedding.patch_size).flatten(0, 1).float().cpu()  # (B · N, C·P·P)
    variances, components = torch.linalg.eigh(patches.T.cov())  # rising variances, components in columns
    width = patch_embedding.projection.out_channels
    kept = min(len(variances), width)
    variances, components = variances[-kept:], components[:, -kept:]
    rotation, _ = torch.linalg.qr(torch.randn(width, kept, generator=generator))  # columns are orthonormal
    # 0.01 keeps the noise of the faintest components small, 0.5 the tokens below the sines of the positions.
    scaled = 0.5 * (width / kept) ** 0.5 * components / (variances + 0.01).sqrt()
    matrix = rotation @ scaled.T  # (D, C·P·P)
    weight = patch_embedding.projection.weight
    weight.copy_(matrix.view_as(weight))


def make_optimizers(model, config):
    """AdamW, or Muon for the matrices inside the blocks and AdamW for the rest.

    Weights of linear maps decay; class token, positions, norms and biases do not.
    Source: Loshchilov & Hutter 2019 (AdamW); Jordan et al. 2024 (Muon).
    """
    matrices = {
        f"{name}.weight": module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }
    by_muon = [name for name in matrices if config.optimizer == "muon" and ".blocks." in name]
    decayed = [weight for name, weight in matrices.items() if name not in by_muon]
    kept = [parameter for name, parameter in model.named_parameters() if name not in matrices]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    optimizers = [torch.optim.AdamW(groups, lr=config.learning_rate)]
    if by_muon:
        weights = [matrices[name] for name in by_muon]
        optimizers.append(Muon(weights, config.muon_learning_rate, config.weight_decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


class Batches:
    """Batch number i of the run, always the same for the same seed. Every epoch has its own order."""

    def __init__(self, data, batch_size, config, device):
        self.images, self.labels = data.images.to(device), data.labels.to(device)
        self.num_classes = len(data.classes)
        self.batch_size, self.config, self.device = batch_size, config, device
        self.per_epoch = len(data) // batch_size  # the few pictures left over differ every epoch
        self.epoch = None

    def some(self, number):
        """So many pictures from all over the data, normalised, always the same ones."""
        places = torch.linspace(0, len(self.images) - 1, min(number, len(self.images))).long()
        return normalize(self.images[places], self.config.mean, self.config.std)

    def get(self, step, image_size=None):
        """Normalised images (B, C, H, W), of another size if one is given; labels (B,), or (B, K) if mixed.

        K classes. Only what the configuration asks for is drawn from the generator.
        """
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(seed_of(self.config.seed, epoch))
            order = torch.randperm(len(self.images), generator=generator)
            self.epoch, self.order = epoch, order.to(self.device)
        indices = self.order[place * self.batch_size : (place + 1) * self.batch_size]
        generator = torch.Generator().manual_seed(seed_of(self.config.seed, step))
        config, labels = self.config, self.labels[indices]
        images = augment(self.images[indices], generator, config.shift, config.flip)
        if config.trivial_augment:
            changed = torch.rand(len(images), generator=generator).to(self.device) < config.trivial_augment
            images[changed] = trivial_augment(images[changed], generator)
        images = shrink(images, image_size) if image_size else images
        images = normalize(images, config.mean, config.std)
        if config.random_erasing:
            images = random_erasing(images, generator, config.random_erasing)
        draw = torch.rand((), generator=generator) if config.mixup or config.cutmix else 1.0
        if draw < config.mixup:
            return mixup(images, labels, self.num_classes, generator, alpha=0.8)
        if draw < config.mixup + config.cutmix:
            return cutmix(images, labels, self.num_classes, generator, alpha=1.0)
        return images, labels


def seed_of(seed, number):
    """One seed from two numbers, so that runs with neighbouring seeds share nothing."""
    return (seed * 1_000_003 + number) % 2**63


# --- where a run stands, and how it is kept -----------------------------------------------------------------


@dataclass
class Run:
    """Where a run stands. Everything here is stored, so that another process can go on."""

    directory: Path
    config: TrainingConfig
    setting: dict  # what must be the same for the run to go on
    step: int = 0
    total_steps: int = 0
    precision: str = "fp32"
    seconds: float = 0.0
    history: list = field(default_factory=list)
    losses: list = field(default_factory=list)  # since the last row of the history

    def __post_init__(self):
        self.started = self.saved = time.monotonic()

    def plan(self, model, batches, validation_data, device):
        """Decide the precision and the number of steps, once."""
        config = self.config
        self.precision = config.precision
        if self.precision == "auto":
            self.precision = "bf16" if bf16_is_faster(device) else "fp32"
        self.total_steps = (
            max(1, round(config.epochs * batches.per_epoch))
            if config.epochs is not None
            else steps_in(config.minutes, model, batches, validation_data, self)
        )
        about = {**self.setting, "precision": self.precision, "total_steps": self.total_steps}
        checkpoint.write_whole(self.directory / "config.json", json.dumps(about, indent=2).encode())
        self.started = time.monotonic()  # the budget is for training: looking for the plan takes seconds more

    @property
    def image_size(self):
        """The size of the pictures at this step, (height, width); None where it never changes."""
        if not self.config.image_sizes:
            return None
        shrunk = [size for share, size in self.config.image_sizes if self.step < share * self.total_steps]
        return shrunk[0] if shrunk else tuple(self.setting["model"]["image_size"])

    @property
    def finished(self):
        return self.step >= self.total_steps

    def evaluation_is_due(self):
        return self.reached(self.config.evaluations)

    def row_is_due(self):
        return self.step == 1 or self.reached(HISTORY_ROWS) or self.evaluation_is_due()

    def reached(self, parts):
        """Whether this step completes one of so many equal parts of the run; the last step always does."""
        return self.step * parts // self.total_steps > (self.step - 1) * parts // self.total_steps

    def save_is_due(self):
        return time.monotonic() - self.saved > SAVE_EVERY

    def add_row(self, model, batches, validation_data):
        row = {
            "step": self.step,
            "epoch": self.step / batches.per_epoch,
            "minutes": (self.seconds + time.monotonic() - self.started) / 60,
            "learning_rate": learning_rate_factor(self.step - 1, self.total_steps, self.config.warmup),
            "train_loss": sum(self.losses) / len(self.losses),
            "validation_loss": None,
            "validation_accuracy": None,
        }
        if self.evaluation_is_due():
            if self.config.image_sizes:
                images = shrink(validation_data.images, model.config["image_size"])
                validation_data = replace(validation_data, images=images)
            measured = evaluate(model, validation_data, self.config.mean, self.config.std, self.precision)
            row |= {"validation_loss": measured.loss, "validation_accuracy": measured.accuracy}
        self.history.append(row)
        self.losses.clear()

    def summary(self):
        """The last row in a few words, for the progress bar."""
        text = f"loss {self.history[-1]['train_loss']:.2f}"
        accuracy = [row["validation_accuracy"] for row in self.history]
        measured = [value for value in accuracy if value is not None]
        return text + f", val {measured[-1]:.1%}" if measured else text

    def save(self, model, optimizers):
        """One file to go on from, one to use, one table to read."""
        now = time.monotonic()
        self.seconds, self.started, self.saved = self.seconds + now - self.started, now, now
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        for i, optimizer in enumerate(optimizers):
            for parameter, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{i}.{parameter}.{name}": value for name, value in state.items()}
        about = {name: getattr(self, name) for name in ("setting", *STORED)}
        about["image_size"] = model.config.get("image_size")
        checkpoint.write_tensors(self.directory / "last.safetensors", tensors, about)
        config, classes = self.config, self.setting["data"]["classes"]
        notes = {"training": asdict(config), "steps": self.step, "precision": self.precision}
        path = self.directory / "model.safetensors"
        if config.image_sizes:  # to be used on pictures of full size, wherever the run stands
            model = copy.deepcopy(model).resize(self.setting["model"]["image_size"])
        checkpoint.save(path, model, classes, config.mean, config.std, **notes)
        checkpoint.write_whole(self.directory / "history.csv", as_csv(self.history).encode())


STORED = ("step", "total_steps", "precision", "seconds", "history", "losses")  # fields of Run


def begin_or_resume(directory, model, optimizers, train_data, config):
    """Read where the run in `directory` stands into the model and the optimizers, or begin a new one."""
    checksum = 0
    for tensor in (train_data.images, train_data.labels):
        checksum = zlib.crc32(tensor.cpu().contiguous().numpy(), checksum)
    data = {"pictures": len(train_data), "classes": train_data.classes, "checksum": checksum}
    setting = {"training": asdict(config), "model": model.config, "data": data}
    setting = json.loads(json.dumps(setting))  # as JSON gives it back: pairs are lists
    run, path = Run(directory, config, setting), directory / "last.safetensors"
    if not path.exists():
        if (directory / "model.safetensors").exists():
            raise ValueError(
                f"{directory} holds a model.safetensors, but no run to go on from (no {path.name}). "
                "Choose another directory, so that the model is not overwritten."
            )
        return run
    tensors, about = checkpoint.read_tensors(path)
    if "setting" not in about:
        raise ValueError(f"{path} is not a run of vitlib.training. Choose another directory.")
    differing = [
        f"{name}: {about['setting'][part].get(name)} there, {value} now"
        for part, values in setting.items()
        for name, value in values.items()
        if about["setting"][part].get(name) != value
    ]
    if differing:
        raise ValueError(
            f"{directory} holds a run with another configuration ({'; '.join(differing)}). "
            "Choose another directory, or delete that one to start afresh."
        )
    for name in STORED:
        setattr(run, name, about[name])
    if config.image_sizes:
        model.resize(about["image_size"])  # the positions as they were stored
    weights = {name: value for name, value in tensors.items() if name.startswith("model.")}
    model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    for i, optimizer in enumerate(optimizers):
        content = optimizer.state_dict()
        for name, value in tensors.items():
            if name.startswith(f"optimizer.{i}."):
                parameter, key = name.split(".")[2:]
                content["state"].setdefault(int(parameter), {})[key] = value
        optimizer.load_state_dict(content)
    if run.finished:
        print(f"The run in {directory} has done all its {run.total_steps} steps: nothing is left to train.")
    else:
        print(f"Going on from step {run.step} of {run.total_steps} in {directory}.")
    return run


def as_csv(history):
    """The history as text: one row a line, empty where nothing was measured."""
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(history[0]) if history else ["step"], lineterminator="\n")
    table.writeheader()
    table.writerows(history)
    return text.getvalue()


@contextmanager
def interruptible():
    """Inside, an interrupt does not break a step in two: it is noted, and the loop asks for it.

    A second interrupt acts at once.
    """
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield noted.is_set
        return

    def note(number, frame):
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, before)


# --- what the machine does fastest --------------------------------------------------------------------------


def pick_device(name="auto"):
    """CUDA where there is one, else Apple's MPS, else the CPU; ValueError for one that is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [device for device in there if there[device]]
    if name not in ("auto", *available):
        raise ValueError(f"There is no device {name!r} here: choose auto, {' or '.join(available)}.")
    return torch.device(available[0] if name == "auto" else name)


def bf16_is_faster(device):
    """Time one matrix product both ways: without hardware for it, bfloat16 is slower than float32."""

    def seconds(dtype):
        a = torch.ones(4096, 192, dtype=dtype, device=device)  # sizes as in a small ViT's MLP
        b = torch.ones(192, 768, dtype=dtype, device=device)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            (a @ b).sum().item()  # .item() waits for the device
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(torch.bfloat16) < 0.8 * seconds(torch.float32)


def steps_in(minutes, model, batches, validation_data, run):
    """How many steps fit in so many minutes, by timing a few on a copy of the model.

    The evaluations are part of the time, but never take more than half of it from the training.
    """
    config, copied = run.config, copy.deepcopy(model)
    trial = Run(run.directory, config, run.setting, total_steps=10**6, precision=run.precision)
    optimizers = make_optimizers(copied, config)
    shares, step = [0.0, *(share for share, _ in config.image_sizes), 1.0], 0.0
    with torch.random.fork_rng():
        for begin, end in zip(shares, shares[1:]):  # each size of the pictures has a time of its own
            trial.step, times = math.ceil(begin * trial.total_steps), []
            set_size(copied, optimizers, trial)
            while len(times) < 3 or (sum(times) < 2 and len(times) < 20):
                start = time.perf_counter()
                training_step(copied, optimizers, batches, trial, config)
                times.append(time.perf_counter() - start)
            step += (end - begin) * sorted(times)[len(times) // 2]
    few = validation_data[:500]
    start = time.perf_counter()
    evaluate(copied, few, config.mean, config.std, run.precision)
    evaluations = config.evaluations * (time.perf_counter() - start) * len(validation_data) / len(few)
    return max(1, int((60 * minutes - min(evaluations, 30 * minutes)) / step))


# --- measuring ----------------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(model, data, mean, std, precision="fp32", batch_size=250):
    """Accuracy, loss, accuracy by class and confusion matrix of a model on pictures with known labels.

    `mean` and `std` normalise the pixels as in training. The model stays on its device and in its mode.
    Raises ValueError where the model's number of classes is not the data's, or where there are no pictures.
    """
    check_data(model, data)
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    logits = []
    for start in range(0, len(data), batch_size):
        images = normalize(data.images[start : start + batch_size].to(device), mean, std)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits.append(model(images).float().cpu())
    model.train(was_training)
    logits, number = torch.cat(logits), len(data.classes)
    pairs = data.labels * number + logits.argmax(dim=1)  # (true, predicted) as one number
    confusion = pairs.bincount(minlength=number**2).view(number, number)
    return Evaluation(
        accuracy=(confusion.trace() / len(data)).item(),
        loss=cross_entropy(logits, data.labels).item(),
        per_class_accuracy=confusion.diagonal() / confusion.sum(dim=1),
        confusion=confusion,
        probabilities=logits.softmax(dim=1),
    )


def check_data(model, data):
    """Refuse classes that the model cannot tell apart, labels that are none of them, or no pictures."""
    number = len(data.classes)
    if number != model.config["num_classes"]:
        raise ValueError(
            f"The model has num_classes={model.config['num_classes']}, the data {number} classes "
            f"({', '.join(data.classes)}). Build the model with num_classes={number}, or take its own data."
        )
    if len(data) == 0:
        raise ValueError("There are no pictures in the data.")
    labels = data.labels
    if len(labels) != len(data) or labels.dtype != torch.int64 or labels.min() < 0 or labels.max() >= number:
        raise ValueError(
            f"Expected {len(data)} labels from 0 to {number - 1}, of type torch.int64; got {len(labels)} "
            f"from {labels.min()} to {labels.max()}, of type {labels.dtype}."
        )
