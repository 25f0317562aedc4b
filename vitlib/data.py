"""Pictures as uint8 tensors in memory: CIFAR-10, drawn shapes, and your own folders (lesson 07)."""

import contextlib
import hashlib
import http.client
import math
import os
import socket
import sys
import warnings
from collections.abc import Callable
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

from vitlib.checkpoint import write_whole
from vitlib.patch_embedding import as_pair

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# Mean and standard deviation of red, green and blue over the training pictures, for pixels in 0..1.
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
SHAPES_MEAN, SHAPES_STD = (0.361, 0.361, 0.361), (0.208, 0.208, 0.208)

_BATCHES, _ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
_URL = f"https://www.cs.toronto.edu/~kriz/{_ARCHIVE}"
_SPLITS = ("train", "validation", "test", "train+validation")
_PER_CLASS = {"train": 5000, "test": 1000}  # CIFAR-10's pictures of each class
_VALIDATION_PER_CLASS = 500  # of CIFAR-10's training pictures


@dataclass
class ImageData:
    """Pictures held in memory with their labels.

    images: uint8 (N, C, H, W). labels: int64 (N,), places in `classes`. masks: bool (N, H, W), true where the
    object is, or None where that is not known. `data[indices]` picks pictures, by a slice or by a tensor of
    indices or booleans, and is an ImageData again. A single index raises ValueError.
    """

    images: Tensor
    labels: Tensor
    classes: list[str]
    masks: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices) -> "ImageData":
        labels = self.labels[indices]
        if labels.ndim == 0:
            raise ValueError(
                f"One index, {indices}, gives no batch. For one picture write data[i : i + 1], or"
                " data.images[i] and data.labels[i]."
            )
        masks = None if self.masks is None else self.masks[indices]
        return ImageData(self.images[indices], labels, self.classes, masks)


# Batches


def normalize(images: Tensor, mean, std) -> Tensor:
    """Turn pixels 0..255 into numbers with mean about 0 and standard deviation about 1, channel by channel.

    images: uint8 (B, C, H, W). mean, std: C numbers each, for pixels in 0..1. Returns float32 (B, C, H, W).
    Raises ValueError for a picture that is not in a batch, for pixels that are not uint8, and for another
    number of channels.
    """
    if images.ndim != 4:
        raise ValueError(
            f"normalize() takes a batch (B, C, H, W), got shape {tuple(images.shape)}. Give one picture as a"
            " batch of one: image[None]."
        )
    if images.dtype != torch.uint8:
        raise ValueError(f"normalize() takes uint8 pixels, 0..255, got {images.dtype}: normalized before?")
    if len(mean) != images.shape[1] or len(std) != images.shape[1]:
        raise ValueError(
            f"The images have {images.shape[1]} channels, but there are {len(mean)} means and {len(std)}"
            " standard deviations. Give one of each per channel."
        )
    mean = torch.tensor(mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(std, device=images.device).view(-1, 1, 1)
    return (images / 255 - mean) / std


def shrink(images: Tensor, image_size) -> Tensor:
    """Pictures of another size, smoothed so that nothing is skipped: (B, C, H, W) -> (B, C, *image_size)."""
    from torchvision.transforms.v2.functional import resize

    return images if tuple(images.shape[2:]) == tuple(image_size) else resize(images, list(image_size))


def augment(images: Tensor, generator: torch.Generator, padding: int = 4, flip: bool = True) -> Tensor:
    """Shift every picture by up to `padding` pixels each way and mirror about half of them, each on its own.

    images: uint8 (B, C, H, W), and so is the result. What a shift uncovers is black (zero). Without `flip`
    none is mirrored.
    All chance comes from `generator`. Source: the usual CIFAR-10 augmentation (He et al. 2016, section 4.2).
    """
    batch, channels, height, width = images.shape
    shift = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator, device=generator.device)
    mirror = torch.randint(1 + flip, (batch, 1), generator=generator, device=generator.device).bool()

    # Which row and column of the padded picture each pixel of the result comes from: (B, H) and (B, W).
    rows = shift[0].to(images.device) + torch.arange(height, device=images.device)
    columns = shift[1].to(images.device) + torch.arange(width, device=images.device)
    columns = torch.where(mirror.to(images.device), columns.flip(1), columns)

    padded = F.pad(images, (padding, padding, padding, padding))
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (B, H, W), in the flattened picture
    places = places.view(batch, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, places).view(images.shape)


# CIFAR-10


def cifar10(split: str, root=None) -> ImageData:
    """CIFAR-10: 32x32 colour pictures of ten classes.

    split: "train" (45,000), "validation" (5,000), "test" (10,000) or "train+validation" (50,000). Validation
    is the last 500 of each class of the training set. Order: by class, within it by file name or by place in
    the batches. Looked for in `root` if given, else in the folder that the environment variable VITLIB_DATA
    names, then in the user's cache; else downloaded into that cache. Two layouts are read: torchvision's
    `cifar-10-batches-py` (or the archive with it), and image folders `train/<class>/`, `test/<class>/`.
    Raises FileNotFoundError where there is no CIFAR-10 and no download, ValueError where it is broken.
    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images"; lesson 07.
    """
    _check_split(split, _SPLITS)
    folder = _find_cifar10(root)
    part = "test" if split == "test" else "train"
    if _has_train_and_test(folder):
        files = {name: _list_pictures(folder / name) for name in ("train", "test")}
        _check_cifar10_files(folder, files)
        tensors = _read_folders(folder, files, (32, 32), part)
        if (tensors["sizes"] != 32).any():
            raise ValueError(f"{folder} is not CIFAR-10: not all are 32x32. For your own, use image_folder.")
    else:
        tensors = _cached(
            f"{folder.resolve()} batches",
            files=lambda: sorted((folder / _BATCHES).glob("*")),
            read=lambda: _read_batches(folder),
            part=part,
        )
    data = ImageData(tensors["images"], tensors["labels"], list(CIFAR10_CLASSES))
    if split in ("train", "validation"):
        rank = torch.arange(len(data)) % _PER_CLASS["train"]
        is_validation = rank >= _PER_CLASS["train"] - _VALIDATION_PER_CLASS
        data = data[is_validation if split == "validation" else ~is_validation]
    return data


def _find_cifar10(root) -> Path:
    """The folder that holds CIFAR-10 in some form, or the cache, which it can be downloaded into."""
    named = root if root is not None else os.environ.get("VITLIB_DATA")
    if not named:
        return _cache()
    place = Path(named).expanduser()
    if _has_train_and_test(place) or (place / _BATCHES).is_dir() or (place / _ARCHIVE).is_file():
        return place
    lacking = f"holds neither {_BATCHES} nor train/ and test/"
    if root is not None:
        hint = "give the folder that contains train/ and test/"
        raise FileNotFoundError(_no_cifar10(f"{place} {lacking}; {hint}"))
    print(f"VITLIB_DATA={place} {lacking}: looking in {_cache()}.")
    return _cache()


def _no_cifar10(reason: str) -> str:
    looked = os.environ.get("VITLIB_DATA", "not set")
    return f"""CIFAR-10 was not found: {reason} (VITLIB_DATA: {looked}; cache: {_cache()}). Three remedies:
  1. Connect to the internet and run this again: cifar10() without root downloads 170 MB into the cache.
  2. Fetch {_URL} on another machine and put it into the cache folder, or set
     VITLIB_DATA to a folder that holds it, its {_BATCHES}, or image folders train/ and test/.
  3. Go on without CIFAR-10: vitlib.data.shapes(...) needs no download."""


def _read_batches(folder: Path) -> dict[str, Tensor]:
    """Read torchvision's layout. torchvision compares the MD5 sums before it unpickles anything."""
    # Imported here since it is slow and seldom needed: the decoded pictures are kept in the cache.
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    may_download = folder == _cache()
    whole_archive = check_integrity(folder / _ARCHIVE, CIFAR10.tgz_md5)
    if may_download and not whole_archive:
        print(f"CIFAR-10: what is missing in {folder} is downloaded (at most 170 MB).")
    download = may_download or whole_archive  # to unpack a whole archive, torchvision needs no internet
    try:
        # The progress bar goes to stdout, since notebooks paint stderr as an error.
        with _patience(seconds=30), contextlib.redirect_stderr(sys.stdout):
            datasets = {name: CIFAR10(folder, name == "train", download=download) for name in _PER_CLASS}
    except (OSError, http.client.HTTPException, RuntimeError) as error:
        if whole_archive and isinstance(error, OSError):  # nothing was downloaded, and the sum is right
            raise ValueError(
                f"{folder / _ARCHIVE} could not be unpacked there ({error}). Copy it into {_cache()}, or to a"
                " folder that you can write to and that root or VITLIB_DATA names."
            ) from error
        if may_download:
            raise FileNotFoundError(_no_cifar10(f"the download failed with {error!r}")) from error
        raise ValueError(
            f"The CIFAR-10 in {folder} is broken or incomplete (wrong MD5 sums). Delete {_BATCHES} and"
            f" {_ARCHIVE} there, put a whole copy of {_URL} in their place, and run this again."
        ) from error
    tensors = {}
    for part, dataset in datasets.items():
        labels = torch.tensor(dataset.targets)
        order = labels.argsort(stable=True)  # by class; within it, the order in the batches
        tensors[f"{part}.images"] = torch.from_numpy(dataset.data)[order].permute(0, 3, 1, 2).contiguous()
        tensors[f"{part}.labels"] = labels[order]
    return tensors


@contextlib.contextmanager
def _patience(seconds: float):
    """Give up on a connection that stays silent, instead of waiting for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _check_cifar10_files(folder: Path, files: dict[str, dict[str, list]]):
    for part, classes in files.items():
        if list(classes) != CIFAR10_CLASSES:
            raise ValueError(
                f"{folder / part} is not CIFAR-10: its classes are {', '.join(classes)}. Point root or"
                " VITLIB_DATA at CIFAR-10; for your own pictures use image_folder."
            )
        for name, pictures in classes.items():
            if len(pictures) != _PER_CLASS[part]:
                raise ValueError(
                    f"{folder / part / name} holds {len(pictures)} pictures, not {_PER_CLASS[part]}: was it"
                    " unpacked to the end? Unpack CIFAR-10 again."
                )


# Shapes


# Signed distances: (x, y) in units of the shape's radius; negative inside, positive outside.
def _box(x, y, half_width, half_height):
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def _triangle(x, y):
    corner = math.sqrt(3) / 2
    return torch.maximum(y, corner * x.abs() - y / 2) - 0.5


def _star(x, y, points=5, inner=0.5):
    half = math.pi / points
    angle = ((torch.atan2(x, y) + half) % (2 * half) - half).abs()  # all points folded onto half a one
    radius = torch.hypot(x, y)
    edge_x, edge_y = inner * math.cos(half) - 1, inner * math.sin(half)  # from tip (1, 0) to inner corner
    return ((radius * angle.cos() - 1) * edge_y - radius * angle.sin() * edge_x) / math.hypot(edge_x, edge_y)


def _heart(x, y):
    u, v = (x - y) / math.sqrt(2), (-x - y) / math.sqrt(2)  # a square that stands on a corner, and two discs
    discs = torch.minimum(torch.hypot(u - 0.3, v + 0.2), torch.hypot(u + 0.2, v - 0.3)) - 0.5
    return torch.minimum(_box(u + 0.2, v + 0.2, 0.5, 0.5), discs)


_SHAPES = {
    "disc": lambda x, y: torch.hypot(x, y) - 0.85,
    "ring": lambda x, y: (torch.hypot(x, y) - 0.7).abs() - 0.22,
    "square": lambda x, y: _box(x, y, 0.72, 0.72),
    "triangle": _triangle,
    "cross": lambda x, y: torch.minimum(_box(x, y, 0.95, 0.27), _box(x, y, 0.27, 0.95)),
    "star": _star,
    "heart": _heart,
    "crescent": lambda x, y: torch.maximum(torch.hypot(x, y) - 0.95, 0.75 - torch.hypot(x - 0.5, y)),
    "bars": lambda x, y: _box(x.abs() - 0.5, y, 0.24, 0.8),
    "corner": lambda x, y: torch.minimum(_box(x + 0.5, y, 0.25, 0.75), _box(x, y - 0.5, 0.75, 0.25)),
}
_SIDE, _CHUNK = 32, 500


def shapes(split: str, number: int, seed: int = 0) -> ImageData:
    """Draw 32x32 colour pictures of ten shapes on cluttered backgrounds, with masks; nothing is downloaded.

    split: "train", "validation" or "test"; pictures of different splits or seeds are drawn independently.
    number: how many. Labels are balanced to within one and in random order. The first pictures of a larger
    number are those of a smaller one. masks: bool (number, 32, 32), true on the shape.
    Raises ValueError for another split, and for a number below 1.
    """
    _check_split(split, _SPLITS[:3])
    if number < 1:
        raise ValueError(f"shapes() draws at least 1 picture, asked for {number}.")
    generator = torch.Generator().manual_seed(3 * seed + _SPLITS.index(split))
    chunks = [_draw(generator) for _ in range(0, number, _CHUNK)]
    images, labels, masks = (torch.cat(parts)[:number] for parts in zip(*chunks, strict=True))
    return ImageData(images, labels, list(_SHAPES), masks)


def _draw(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    def random(*size, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(_CHUNK, *size, 1, 1, generator=generator)

    # Any ten pictures in a row show the ten shapes once each, in a random order: balanced at every number.
    labels = random(1).view(-1, len(_SHAPES)).argsort(1).flatten()
    pixel_y, pixel_x = torch.meshgrid(torch.arange(_SIDE) + 0.5, torch.arange(_SIDE) + 0.5, indexing="ij")

    def strip(half_length, half_width):  # cover of a short line at a random place
        angle = random(1, high=math.pi)
        dx, dy = pixel_x - random(1, high=_SIDE), pixel_y - random(1, high=_SIDE)
        x, y = angle.cos() * dx + angle.sin() * dy, angle.cos() * dy - angle.sin() * dx
        return (0.5 - _box(x, y, half_length, half_width)).clamp(0, 1)

    # Background: a gradient between two colours, waves, and a few strips that are not the object.
    angle = random(1, high=2 * math.pi)
    gradient = 0.5 + (angle.cos() * (pixel_x - _SIDE / 2) + angle.sin() * (pixel_y - _SIDE / 2)) / _SIDE
    images = torch.lerp(random(3, high=0.6), random(3, high=0.6), gradient)
    for _ in range(2):
        per_pixel_x, per_pixel_y = random(1, low=-0.8, high=0.8), random(1, low=-0.8, high=0.8)
        wave = (per_pixel_x * pixel_x + per_pixel_y * pixel_y + random(1, high=2 * math.pi)).sin()
        images = images + random(3, low=-0.08, high=0.08) * wave
    for _ in range(5):
        clutter = strip(random(1, high=4), random(1, low=0.5, high=1.5))
        images = torch.lerp(images, random(3, high=0.6), clutter)

    # The object: turned, somewhere wholly in view, mostly brighter than what is behind it and never like it.
    turn, radius = random(1, low=-0.4, high=0.4), random(1, low=7, high=12)
    centre_x, centre_y = (radius + (_SIDE - 2 * radius) * random(1) for _ in range(2))
    dx, dy = (pixel_x - centre_x) / radius, (pixel_y - centre_y) / radius
    x, y = (turn.cos() * dx + turn.sin() * dy)[:, 0], (turn.cos() * dy - turn.sin() * dx)[:, 0]
    distance = torch.empty_like(x)
    for label, shape in enumerate(_SHAPES.values()):
        distance[labels == label] = shape(x[labels == label], y[labels == label])
    cover = (0.5 - distance[:, None] * radius).clamp(0, 1)  # edges one pixel soft
    behind = (images * cover).sum((2, 3), keepdim=True) / cover.sum((2, 3), keepdim=True)
    contrast = random(3, low=0.4) - behind
    contrast = contrast * (0.35 / contrast.norm(dim=1, keepdim=True)).clamp(min=1)
    colour = behind + contrast
    colour = torch.where((colour < 0) | (colour > 1), behind - contrast, colour)
    images = torch.lerp(images, colour, cover)

    noise = 0.06 * (2 * torch.rand(images.shape, generator=generator) - 1)
    return ((images + noise).clamp(0, 1) * 255).round().to(torch.uint8), labels, cover[:, 0] > 0.5


# Your own pictures


def image_folder(path, split: str, image_size, seed: int = 0) -> ImageData:
    """Your own pictures, one folder a class, brought to one size; what was changed for that is printed.

    path: a folder that holds `<class>/` folders, or `train/<class>/`, `test/<class>/` and perhaps
    `validation/<class>/` (or `val/`). split: "train", "validation", "test" or "train+validation". Where there
    is no folder for validation, `seed` picks a tenth of each class of `train/` for it; without `train/` and
    `test/`, a tenth of each class for the test and another for validation. image_size: an int or
    (height, width). Pictures are turned upright, laid on white, made RGB and cropped as in `load_picture`.
    Raises FileNotFoundError where there is no such folder, ValueError for what cannot be used.
    """
    _check_split(split, _SPLITS)
    folder, image_size = Path(path).expanduser(), as_pair(image_size)
    if _has_train_and_test(folder):
        files = {name: _list_pictures(folder / name) for name in ("train", "test")}
        for name in ("validation", "val"):
            if (folder / name).is_dir():
                files["validation"] = _list_pictures(folder / name)
        for name, group in files.items():
            if list(group) != list(files["train"]):
                different = ", ".join(sorted(set(group) ^ set(files["train"])))
                raise ValueError(
                    f"train and {name} in {folder} have different classes: only one of them has {different}."
                    " Give both the same class folders."
                )
    elif (folder / "train").is_dir() and any(entry.is_dir() for entry in visible(folder / "train")):
        # With pictures straight in it, train/ is a class: of trains.
        raise ValueError(
            f"{folder} holds train/ but no test/. Rename val/ (or validation/) to test/, or give the path of"
            " train/ alone to split it by seed."
        )
    else:
        files = {"all": _list_pictures(folder)}
    by_seed = "all" in files or "validation" not in files and split != "test"
    parts = split.split("+") if not by_seed else ["all"] if "all" in files else ["train"]
    read = [_read_folders(folder, files, image_size, part) for part in parts]
    images, labels, sizes = (torch.cat([part[n] for part in read]) for n in ("images", "labels", "sizes"))
    data = ImageData(images, labels, list(files[parts[0]]))
    if by_seed:
        chosen = _split_by_seed(data, split, seed, test_too="all" in files)
        data, sizes = data[chosen], sizes[chosen]
    print(f"{folder.name}, {split}: " + _what_was_changed(sizes, image_size, data.classes))
    return data


def _split_by_seed(data: ImageData, split: str, seed: int, test_too: bool) -> Tensor:
    """Which pictures belong to a split, bool (N,)."""
    generator = torch.Generator().manual_seed(seed)
    member = {name: torch.zeros(len(data), dtype=torch.bool) for name in ("validation", "test")}
    for label, name in enumerate(data.classes):
        places = (data.labels == label).nonzero().flatten()
        parts = 3 if test_too else 2
        if len(places) < parts:
            raise ValueError(f"Class {name} has {len(places)} pictures: add some, a split takes {parts}.")
        places = places[torch.randperm(len(places), generator=generator)]
        tenth = max(1, round(len(places) / 10))
        member["validation"][places[:tenth]] = True
        if test_too:
            member["test"][places[tenth : 2 * tenth]] = True
    member["train+validation"] = ~member["test"]
    member["train"] = member["train+validation"] & ~member["validation"]
    return member[split]


def _what_was_changed(sizes: Tensor, image_size: tuple[int, int], classes: list[str]) -> str:
    target = torch.tensor(image_size)
    resized = (sizes != target).any(1)
    scale = (target / sizes).amax(1, keepdim=True)
    cropped = ((sizes * scale).round() > target).any(1)
    height, width = image_size
    report = f"{len(sizes)} pictures of {len(classes)} classes ({', '.join(classes)}); "
    if not resized.any():
        return report + f"all were {height}x{width} (height x width) already."
    low, high = sizes.amin(0).tolist(), sizes.amax(0).tolist()
    return (
        f"{report}{resized.sum()} resized to {height}x{width} (height x width; heights were {low[0]} to"
        f" {high[0]}, widths {low[1]} to {high[1]}), {cropped.sum()} of them cropped at the edges."
    )


def load_picture(path, image_size) -> Tensor:
    """Read one picture as uint8 (3, H, W): turned upright (EXIF), transparent parts on white, grey as RGB.

    It is then brought to image_size, an int or (height, width), by `fit_picture`.
    Raises FileNotFoundError where there is no such file, ValueError for a file that is not a usable picture.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no picture {path}: check the name and the folder.")
    return fit_picture(_open_picture(path), image_size)


def _open_picture(path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.load()
                image = ImageOps.exif_transpose(image)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{path} is too large: over {Image.MAX_IMAGE_PIXELS:,} pixels. Make it smaller first."
        ) from error
    except Exception as error:  # Pillow's readers raise whatever their parsing of a broken file runs into
        raise ValueError(
            f"{path} cannot be read as a picture ({error}). Is it another kind of file, or only half copied?"
            " Copy it again, or take it out of the folder."
        ) from error
    if image.mode == "F":
        raise ValueError(
            f"{path} holds floating-point numbers, which do not say what is white. Save it with 8 or 16 bits."
        )
    if image.mode.startswith("I"):  # grey in 16 or 32 bits, which convert would clip
        pixels = np.asarray(image)
        pixels = pixels // 256 if image.mode != "I" or pixels.max() > 255 else pixels  # 32 may hold 8 bits
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def fit_picture(image, image_size) -> Tensor:
    """One picture in memory as uint8 (3, H, W): the shorter side is resized to fit, the middle is cut out.

    image: a PIL image, or a uint8 array (height, width, 3). image_size: an int or (height, width).
    """
    height, width = as_pair(image_size)
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    fitted = ImageOps.fit(image.convert("RGB"), (width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1).contiguous()


# Files


def _check_split(split: str, splits):
    if split not in splits:
        raise ValueError(f"There is no split {split!r}: choose one of {', '.join(splits)}.")


def _has_train_and_test(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "test").is_dir()


def _list_pictures(folder: Path) -> dict[str, list[os.DirEntry]]:
    """The classes of a folder, sorted, and the files of each, sorted by name."""
    if not folder.exists():
        raise FileNotFoundError(f"There is no folder {folder}: check the path.")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give one that holds a folder a class.")
    classes = {entry.name: visible(entry) for entry in visible(folder) if entry.is_dir()}
    if len(classes) < 2:
        found = f"only one class ({', '.join(classes)})" if classes else "no class folders"
        raise ValueError(f"{folder} has {found}: put in two or more folders of pictures, one for each class.")
    for name, files in classes.items():
        if not files:
            raise ValueError(f"Class folder {folder / name} is empty: put pictures into it, or delete it.")
        for file in files:
            if file.is_dir():
                raise ValueError(f"{file.path} is a folder in a class: put its pictures right into {name}.")
            if not file.is_file():
                raise ValueError(f"{file.path} is a broken link: delete it, or restore what it points to.")
    return classes


def visible(folder) -> list[os.DirEntry]:
    """What a folder holds, sorted by name, without what systems hide in it."""
    hidden = (".", "__macosx", "thumbs.db", "desktop.ini")
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.lower().startswith(hidden)]
    return sorted(visible, key=lambda entry: entry.name)


def _read_folders(folder: Path, files: dict[str, dict], image_size, part: str) -> dict[str, Tensor]:
    """Images, labels and original sizes (height, width) of one part of `files`: {part: {class: [file]}}."""
    pairs = {  # part -> [(label, file)]
        name: [(label, file) for label, group in enumerate(classes.values()) for file in group]
        for name, classes in files.items()
    }
    flat = [file for group in pairs.values() for _, file in group]

    def read():
        tensors = {}
        with tqdm(total=len(flat), desc="reading pictures", file=sys.stdout) as bar:
            for name, group in pairs.items():
                images, sizes = [], []
                for _, file in group:
                    image = _open_picture(file.path)
                    images.append(fit_picture(image, image_size))
                    sizes.append((image.height, image.width))
                    bar.update()
                tensors[f"{name}.images"] = torch.stack(images)
                tensors[f"{name}.labels"] = torch.tensor([label for label, _ in group])
                tensors[f"{name}.sizes"] = torch.tensor(sizes)
        return tensors

    return _cached(f"{folder.resolve()} {image_size}", lambda: flat, read, part)


# To be changed with _open_picture and fit_picture, so that nobody is given the pixels of an older version.
_DECODING = "v1"


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("vitlib", appauthor=False))


def _cached(source: str, files: Callable, read: Callable, part: str) -> dict[str, Tensor]:
    """One part of what `read()` gives, kept in a file of the user's cache until one of `files()` changes."""
    key = hashlib.sha256(os.fsencode(f"{_DECODING} {source}")).hexdigest()[:16]
    path = _cache() / f"pictures-{key}.safetensors"
    prefix = f"{part}."
    try:
        with safe_open(path, "pt") as stored:
            if stored.metadata()["state"] == _state(files()):
                names = [name for name in stored.keys() if name.startswith(prefix)]
                return {name.removeprefix(prefix): stored.get_tensor(name) for name in names}
    except (OSError, SafetensorError, TypeError, KeyError):
        pass  # there is none yet, or it is broken: read the pictures
    tensors = read()
    try:
        write_whole(path, safetensors.torch.save(tensors, {"state": _state(files())}))
    except OSError as error:
        print(f"The decoded pictures could not be kept, so the next start will be slow: {error}")
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _state(files) -> str:
    """A digest of the files' names, sizes and times of change."""
    state = hashlib.sha256()
    for file in files:
        about = file.stat()
        state.update(os.fsencode(f"{os.fspath(file)} {about.st_size} {about.st_mtime_ns}\n"))
    return state.hexdigest()
