"""Train a good CIFAR-10 model on one GPU, on a machine without the internet.

Here, with VITLIB_DATA at a folder that holds train/<class>/ and test/<class>/ with pictures:

    python tools/train_on_gpu.py pack gpu.tar.xz

There, with PyTorch, torchvision, NumPy, Pillow, safetensors and tqdm:

    tar -xf gpu.tar.xz
    OUT=run python train_on_gpu.py train

The pictures and all that is done to them stay on the GPU. The run is kept in the folder that OUT names, and
saved there twice a minute. Stopped, it goes on when the same line is given again, with OUT at that folder or
at a copy of it. The minutes (8 unless given) are for training alone; unpacking and reading come on top.
What is left in OUT is a run of vitlib.training: model.safetensors, history.csv, config.json, and
last.safetensors to go on from.
"""

import argparse
import importlib.util
import os
import tarfile
from pathlib import Path

import torch

from vitlib import vit_cifar
from vitlib.data import cifar10
from vitlib.training import TrainingConfig, train

# What goes along: Python only, so that it runs on any machine.
PACKAGES = ("vitlib", "einops", "platformdirs")


def pack(path, pictures):
    """Write this script, what it imports and the pictures to one compressed archive."""
    with tarfile.open(path, "w:xz") as archive:
        archive.add(__file__, "train_on_gpu.py")
        for name in PACKAGES:
            folder = Path(importlib.util.find_spec(name).origin).parent
            for file in sorted(folder.rglob("*.py")):
                archive.add(file, f"{name}/{file.relative_to(folder).as_posix()}")
        for part in ("train", "test"):
            archive.add(pictures / part, f"pictures/{part}")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def build_model():
    """3.72 million parameters, 7.4 MB in half precision. A narrow MLP pays for more layers.

    The form is that of ViT-Lite-7/4 (Hassani et al. 2021, arXiv:2104.05704), with a class token, learned
    positions and twice the heads.
    """
    torch.manual_seed(0)
    return vit_cifar(embed_dim=256, depth=7, num_heads=8, mlp_ratio=2.0, drop_path=0.1)


def configuration(minutes, seed):
    """For hundreds of passes: pictures that are changed so much that the model cannot learn them by heart.

    The shares of mixing, erasing, smoothing and DropPath, and the weight decay are those of the usual recipes
    for small ViTs. The batches are large, since a small model leaves a GPU idle with less.
    """
    return TrainingConfig(
        minutes=minutes,
        seed=seed,
        batch_size=1024,
        learning_rate=2e-3,  # of AdamW, for batches eight times as large as those that 1e-3 is for
        muon_learning_rate=0.01,
        weight_decay=0.05,
        whiten=True,
        label_smoothing=0.1,
        trivial_augment=1.0,
        random_erasing=0.25,
        mixup=0.25,
        cutmix=0.25,
        evaluations=20,
        precision="bf16",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write code and pictures to one archive")
    packing.add_argument("path", type=Path)
    training = commands.add_parser("train", help="train on what the archive brought")
    training.add_argument("--minutes", type=float, default=8)
    training.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pictures = Path(os.environ.get("VITLIB_DATA") or "(not set)")
        if not ((pictures / "train").is_dir() and (pictures / "test").is_dir()):
            parser.error(f"VITLIB_DATA must name a folder with train/ and test/; it is {str(pictures)!r}.")
        pack(arguments.path, pictures)
        return
    if not os.environ.get("OUT"):
        parser.error("OUT must name the folder to keep the run in: OUT=run python train_on_gpu.py train")
    pictures = Path(__file__).parent / "pictures"
    train_data, validation_data = cifar10("train", pictures), cifar10("validation", pictures)
    config = configuration(arguments.minutes, arguments.seed)
    result = train(build_model(), train_data, validation_data, config, os.environ["OUT"])
    if result.finished:
        print(f"{result.history[-1]['validation_accuracy']:.2%} of the validation pictures are right.")


if __name__ == "__main__":
    main()
