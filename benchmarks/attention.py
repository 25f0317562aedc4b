"""Explicit against fused attention on a CPU: the rule in vitlib/attention.py comes from here.

Run from the repository's root: OMP_WAIT_POLICY=passive python benchmarks/attention.py
One `MultiHeadAttention` layer, the number of tokens in a batch held about constant. The two ways take turns,
so that both meet the same load from elsewhere; the fastest of many runs counts.
Writes benchmarks/results/attention.md; takes minutes.
"""

import platform
import time
from pathlib import Path

import torch

from vitlib import attention

LENGTHS = [17, 65, 197, 257, 577]  # tokens: CIFAR-10 with patches of 8 and 4, 224/16, 224/14 and 384/16
LAYERS = [(192, 6), (768, 12)]  # width, heads: vit_cifar and ViT-B
WORK = 8192 * 192  # tokens x width in a batch
RUNS = 12


def seconds(layer, tokens, fused, dtype, training):
    attention.fused_is_faster = lambda query: fused
    start = time.perf_counter()
    with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        mixed = layer(tokens)[0]
    if training:
        mixed.sum().backward()
    return time.perf_counter() - start


def row(embed_dim, num_heads, num_tokens, dtype, training):
    torch.manual_seed(0)
    layer = attention.MultiHeadAttention(embed_dim, num_heads).train(training)
    batch = WORK // embed_dim // num_tokens
    tokens = torch.randn(batch, num_tokens, embed_dim, requires_grad=training)
    times = {False: [], True: []}
    for _ in range(RUNS):
        for fused in times:
            times[fused].append(seconds(layer, tokens, fused, dtype, training))
    explicit, fused = (1000 * min(times[way][2:]) for way in (False, True))  # the first two runs warm up
    what = "training step" if training else "forward"
    cells = [f"{embed_dim} / {num_heads}", num_tokens, batch, dtype, what]
    return [*cells, f"{explicit:.1f}", f"{fused:.1f}", f"{explicit / fused:.2f}"]


def main():
    heads = ["width / heads", "tokens T", "batch", "numbers", "what"]
    heads += ["explicit (ms)", "fused (ms)", "explicit / fused"]
    table = [heads, ["---"] * len(heads)]
    for embed_dim, num_heads in LAYERS:
        for training in (False, True):
            for dtype in ("fp32", "bf16"):
                for num_tokens in LENGTHS:
                    table.append(row(embed_dim, num_heads, num_tokens, dtype, training))
                    print(*table[-1], sep="\t", flush=True)
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in table]
    about = (
        "# Explicit and fused attention on a CPU\n\n"
        f"One `MultiHeadAttention` layer; milliseconds, the fastest of {RUNS - 2} runs that alternate. "
        "Above 1 in the last column the fused kernel is faster. bf16 is autocast.\n"
        "Other work on the machine slows both ways: compare them, and not with other days.\n"
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}. "
        "Written by `benchmarks/attention.py`.\n\n"
    )
    path = Path(__file__).with_name("results") / "attention.md"
    path.write_text(about + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
