"""Train named recipes under one budget, and keep what each reached.

    python benchmarks/training.py RECIPE [RECIPE ...] [--minutes 5 | --epochs 10] [--seeds 0 1 2] [--share 1.0]

Runs come one after another, seed by seed, so that the recipes of one call share the state of the machine. Each
appends a line to benchmarks/results/training.jsonl. A run is kept in runs/benchmark/ until it is done: stopped,
it goes on where it was when the same line is given again. Accuracy is measured on the 5,000 validation
pictures, and with --test on the test pictures too: only for what is going to be reported.
"""

import argparse
import json
import platform
import resource
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitlib import VisionTransformer, vit_cifar
from vitlib.data import cifar10
from vitlib.training import TrainingConfig, evaluate, train

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "training.jsonl"


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a way around them (He et al. 2016)."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.around = nn.Identity()
        if stride > 1 or width_in != width:
            self.around = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, images):
        return (self.branch(images) + self.around(images)).relu()


class SmallResNet(nn.Module):
    """A plain convolutional network with the parameters and the multiplications of vit_cifar."""

    def __init__(self, num_classes=10, widths=(48, 96, 192, 384), blocks=(2, 1, 1, 1)):
        super().__init__()
        self.config = {"num_classes": num_classes, "widths": widths, "blocks": blocks}
        layers = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
        width_in = widths[0]
        for stage, (width, number) in enumerate(zip(widths, blocks)):
            for block in range(number):
                layers.append(ResidualBlock(width_in, width, 2 if stage and not block else 1))
                width_in = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width_in, num_classes)

    def forward(self, images):
        return self.head(self.layers(images).mean(dim=(2, 3)))
