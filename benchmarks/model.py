"""One forward pass and one training step of vit_cifar, beside torchvision, timm and transformers.

    python benchmarks/model.py [--batch 128] [--repetitions 7]

All four models have the same configuration. The repetitions are interleaved, so that a busy moment of the
machine hits all alike; the table shows medians.
Writes benchmarks/results/model.md.
"""

import argparse
import platform
import random
import statistics
import time
from pathlib import Path

import timm
import torch
import torchvision
import transformers
from torch.nn.functional import cross_entropy

import vitlib

RESULTS = Path(__file__).parent / "results" / "model.md"


def models():
    width, depth, heads = 192, 6, 6
    hugging_face = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            image_size=32,
            patch_size=4,
            num_labels=10,
        )
    )
    return {
        "vitlib": vitlib.vit_cifar(),
        "torchvision": torchvision.models.VisionTransformer(
            32, 4, depth, heads, width, 4 * width, num_classes=10
        ),
        "timm": timm.models.VisionTransformer(
            img_size=32, patch_size=4, embed_dim=width, depth=depth, num_heads=heads, num_classes=10
        ),
        "transformers": hugging_face,
    }


def logits_of(model, images):
    output = model(images)
    return output if torch.is_tensor(output) else output.logits


def forward(model, images, labels, bf16):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits_of(model, images)


def training_step(model, images, labels, bf16):
    model.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = cross_entropy(logits_of(model, images).float(), labels)
    loss.backward()
    model.zero_grad()


def images_per_second(work, all_models, images, labels, bf16, repetitions):
    """Median speed of each model; the first round, which warms up, is not counted."""
    seconds, order = {name: [] for name in all_models}, random.Random(0)
    for _ in range(repetitions + 1):
        for name in order.sample(list(all_models), len(all_models)):  # who comes after whom must not matter
            start = time.perf_counter()
            work(all_models[name], images, labels, bf16)
            seconds[name].append(time.perf_counter() - start)
    return {name: len(images) / statistics.median(times[1:]) for name, times in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    all_models = models()
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in all_models.items()}
    assert len(set(sizes.values())) == 1, f"not the same configuration: {sizes}"
    images, labels = torch.randn(arguments.batch, 3, 32, 32), torch.randint(10, (arguments.batch,))

    lines = [
        f"Images a second, vit_cifar ({sizes['vitlib']:,} parameters), batch {arguments.batch}, "
        f"medians of {arguments.repetitions} interleaved repetitions in random order.",
        "",
        f"{platform.machine()} CPU, {torch.get_num_threads()} threads; torch {torch.__version__}, "
        f"torchvision {torchvision.__version__}, timm {timm.__version__}, "
        f"transformers {transformers.__version__}.",
        "",
        f"| | {' | '.join(all_models)} | vitlib is … times as fast as the fastest other |",
        "|---|" + "---|" * (len(all_models) + 1),
    ]
    for work in (forward, training_step):
        for bf16 in (False, True):
            speed = images_per_second(work, all_models, images, labels, bf16, arguments.repetitions)
            ratio = speed["vitlib"] / max(value for name, value in speed.items() if name != "vitlib")
            cells = " | ".join(f"{value:.0f}" for value in speed.values())
            name = f"{work.__name__.replace('_', ' ')}, {'bf16' if bf16 else 'fp32'}"
            lines.append(f"| {name} | {cells} | {ratio:.2f} |")
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
