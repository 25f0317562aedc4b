"""Batches of augmented, normalised pictures: vitlib in memory against torchvision + DataLoader, one process.

Run from the repository's root: python benchmarks/data.py
Both have the same pictures in memory: only the work per batch is timed (pick, shift, mirror, normalise).
Pass by pass in turn, median of five. Writes benchmarks/results/data.json.
"""

import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from vitlib.data import CIFAR10_MEAN, CIFAR10_STD, augment, cifar10, normalize, shapes

NUMBER, BATCH, PASSES = 10_000, 128, 5


class Pictures(Dataset):
    """What torchvision.datasets.CIFAR10 does for one picture, with pictures that are in memory already."""

    def __init__(self, data, transform):
        self.pixels = data.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels, self.transform = data.labels.tolist(), transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def in_memory(data):
    generator = torch.Generator().manual_seed(0)
    for indices in torch.randperm(len(data), generator=generator).split(BATCH):
        batch = data[indices]
        yield normalize(augment(batch.images, generator), CIFAR10_MEAN, CIFAR10_STD), batch.labels


def seconds(batches):
    start = time.perf_counter()
    count = sum(len(labels) for _, labels in batches())
    assert count == NUMBER
    return time.perf_counter() - start


def main():
    try:
        data, name = cifar10("test"), "CIFAR-10 test pictures"
    except FileNotFoundError:
        data, name = shapes("test", NUMBER), "shapes"
    end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(CIFAR10_MEAN, CIFAR10_STD)]
    transform = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *end])
    loader = DataLoader(Pictures(data, transform), batch_size=BATCH, shuffle=True, num_workers=0)
    ways = {"vitlib": lambda: in_memory(data), "torchvision + DataLoader": lambda: loader}

    times = {way: [] for way in ways}
    for _ in range(PASSES):
        for way, batches in ways.items():
            times[way].append(seconds(batches))
    rates = {way: round(NUMBER / statistics.median(passes)) for way, passes in times.items()}
    result = {
        "pictures": f"{NUMBER} {name}, batch {BATCH}, median of {PASSES} passes",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        "images_per_second": rates,
        "ratio": round(rates["vitlib"] / rates["torchvision + DataLoader"], 1),
    }
    print(json.dumps(result, indent=2))
    Path(__file__).with_name("results").joinpath("data.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
