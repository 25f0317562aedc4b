"""Pictures as uint8 tensors in memory: CIFAR-10, drawn shapes, and your own folders (lesson 07)."""

import contextlib
import hashlib
import http.client
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
import safetensors.torch
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# Mean and standard deviation of red, green and blue over the training pictures, for pixels in 0..1.
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

_BATCHES, _ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_CIFAR10_PER_CLASS = {"train": 5000, "test": 1000}
_CIFAR10_VALIDATION_PER_CLASS = 500
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass
class ImageData:
    """Pictures held in memory with their labels.

    images: uint8 (N, C, H, W). labels: int64 (N,), indices into `classes`.
    masks: bool (N, H, W), true where the object is, or None when that is not known.
    `data[indices]` picks pictures (a slice, or a tensor of indices or booleans) and gives an ImageData again.
    """

    images: Tensor
    labels: Tensor
    classes: list[str]
    masks: Tensor | None = None

    def __len__(self):
        return len(self.images)

    def __getitem__(self, indices) -> "ImageData":
        masks = None if self.masks is None else self.masks[indices]
        return ImageData(self.images[indices], self.labels[indices], self.classes, masks)


def normalize(images: Tensor, mean, std) -> Tensor:
    """Turn pixels 0..255 into numbers with mean about 0 and standard deviation about 1, channel by channel.

    images: uint8 (B, C, H, W); mean, std: C numbers each, for pixels in 0..1. Returns float32 (B, C, H, W).
    """
    mean = torch.tensor(mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(std, device=images.device).view(-1, 1, 1)
    return (images / 255 - mean) / std


def augment(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift every picture by up to `padding` pixels each way and mirror half of them, each on its own.

    images: uint8 (B, C, H, W), and so is the result; what a shift uncovers is black (zero).
    All the chance comes from `generator`.
    """
    batch, channels, height, width = images.shape
    shift = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator, device=generator.device)
    flip = torch.randint(2, (batch, 1), generator=generator, device=generator.device).bool()
    shift, flip, device = shift.to(images.device), flip.to(images.device), images.device

    rows = shift[0] + torch.arange(height, device=device)  # (B, H): which padded row each output row shows
    columns = shift[1] + torch.arange(width, device=device)  # (B, W)
    columns = torch.where(flip, columns.flip(1), columns)
    picture = torch.arange(batch, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    padded = F.pad(images, (padding, padding, padding, padding))
    return padded[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cifar10(split: str, root=None) -> ImageData:
    """CIFAR-10: 32×32 colour pictures of ten classes (Krizhevsky 2009, "Learning Multiple Layers of Features").

    split: "train" (45,000), "validation" (5,000), "test" (10,000) or "train+validation" (50,000). The validation
    pictures are the last 500 of each class of the training set. Order: by class, then by rank within the class.
    Looked for in `root`, or else in the folder that the environment variable VITLIB_DATA names, then in the
    user's cache; otherwise downloaded into the cache. Two layouts are read: torchvision's `cifar-10-batches-py`,
    and image folders `train/<class>/` and `test/<class>/`.
    Errors: FileNotFoundError when there is no copy and no download, ValueError when a copy is broken.
    """
    if split not in ("train", "validation", "test", "train+validation"):
        raise ValueError(f"unknown split {split!r}: choose train, validation, test or train+validation")
    folder, layout = _find_cifar10(root)
    part = "test" if split == "test" else "train"
    if layout == "folders":
        files = {name: _list_pictures(folder / name) for name in ("train", "test")}
        flat = [file for classes in files.values() for paths in classes.values() for file in paths]
        tensors = _cached("cifar10-folders", flat, lambda: _read_folders(files), part)
    else:
        flat = list(os.scandir(folder / _BATCHES)) if (folder / _BATCHES).is_dir() else []
        tensors = _cached("cifar10-batches", flat, lambda: _read_batches(folder), part)
    data = ImageData(tensors["images"], tensors["labels"], list(CIFAR10_CLASSES))
    if part == "train" and split != "train+validation":
        number = _CIFAR10_PER_CLASS["train"]
        is_validation = torch.arange(len(data)) % number >= number - _CIFAR10_VALIDATION_PER_CLASS
        data = data[is_validation if split == "validation" else ~is_validation]
    return data


def _find_cifar10(root) -> tuple[Path, str]:
    """Return the folder that holds CIFAR-10 and its layout: "batches", "folders", or "download" for nowhere."""
    places = [Path(root).expanduser()] if root is not None else _default_places()
    for place in places:
        if (place / _BATCHES).is_dir() or (place / _ARCHIVE).is_file():
            return place, "batches"
        if (place / "train").is_dir() and (place / "test").is_dir():
            return place, "folders"
    if root is not None:
        raise FileNotFoundError(_no_cifar10(places))
    return _cache(), "batches"


def _default_places() -> list[Path]:
    named = os.environ.get("VITLIB_DATA")
    return ([Path(named).expanduser()] if named else []) + [_cache()]


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("vitlib", appauthor=False))


def _no_cifar10(places: list[Path]) -> str:
    return (
        "CIFAR-10 was not found. Looked for a folder cifar-10-batches-py, or folders train and test, in: "
        + ", ".join(map(str, places))
        + ".\nThree remedies:\n"
        f"  1. Go online and run this again: it is downloaded (170 MB) into {_cache()}.\n"
        f"  2. Get {_URL} in another way, put it into that folder, and run this again; or set the environment"
        " variable VITLIB_DATA to a folder that holds CIFAR-10.\n"
        "  3. Go on with vitlib.data.shapes(...), which needs no data."
    )


def _read_batches(folder: Path) -> dict[str, Tensor]:
    """Read torchvision's files, downloading them if `folder` is the cache. MD5 sums are compared before unpickling."""
    from torchvision.datasets import CIFAR10  # slow to import, and seldom needed: the decoded pictures are cached

    tensors = {}
    for part in ("train", "test"):
        dataset = CIFAR10(folder, train=part == "train", download=folder == _cache())
        labels = torch.tensor(dataset.targets)
        order = labels.argsort(stable=True)  # by class; within it, the order in the batches
        tensors[f"{part}.images"] = torch.from_numpy(dataset.data).permute(0, 3, 1, 2)[order].contiguous()
        tensors[f"{part}.labels"] = labels[order]
    return tensors


def _read_folders(files: dict[str, dict[str, list]]) -> dict[str, Tensor]:
    tensors = {}
    with _progress(sum(len(paths) for classes in files.values() for paths in classes.values())) as bar:
        for part, classes in files.items():
            images = []
            for paths in classes.values():
                for path in paths:
                    images.append(torch.from_numpy(np.array(_open_picture(path))))
                    bar.update()
            tensors[f"{part}.images"] = torch.stack(images).permute(0, 3, 1, 2).contiguous()
            tensors[f"{part}.labels"] = torch.arange(len(classes)).repeat_interleave(
                torch.tensor([len(paths) for paths in classes.values()])
            )
    return tensors


def _progress(number: int) -> tqdm:
    return tqdm(total=number, desc="reading pictures", unit=" pictures", file=sys.stdout)


def _open_picture(path) -> Image.Image:
    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")


def _list_pictures(folder) -> dict[str, list[os.DirEntry]]:
    """Class names, sorted, and each one's files, sorted by name."""
    classes = sorted((entry for entry in os.scandir(folder) if entry.is_dir()), key=lambda entry: entry.name)
    return {entry.name: sorted(os.scandir(entry.path), key=lambda file: file.name) for entry in classes}


def _cached(name: str, files: list[os.DirEntry], build, part: str) -> dict[str, Tensor]:
    """Return build()'s tensors of one part, kept in one file of the user's cache until the source changes."""
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file.path} {about.st_size} {about.st_mtime_ns}\n".encode())
    path = _cache() / f"{name}.safetensors"
    try:
        with safe_open(path, "pt") as stored:
            if stored.metadata()["source"] == digest.hexdigest():
                return {key: stored.get_tensor(f"{part}.{key}") for key in ("images", "labels")}
    except (OSError, SafetensorError, KeyError, TypeError):
        pass  # absent or broken: read the pictures again
    tensors = build()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(safetensors.torch.save(tensors, {"source": digest.hexdigest()}))
    os.replace(temporary, path)
    return {key: tensors[f"{part}.{key}"] for key in ("images", "labels")}
