"""A forward pass and a training step beside torchvision, timm and transformers; where the time goes.

    OMP_WAIT_POLICY=passive python benchmarks/model.py [--sections speed ...] [--repetitions 7]

Sections, all by default:
  speed    images a second from the same weights, and how near that is to the machine's matrix products
  memory   peak memory of a training step, a fresh process for each number
  profile  where the milliseconds of vitlib's training step go
  ideas    what might make the training step faster, each alone
  imports  what `import vitlib` adds to `import torch`

Whatever is compared takes turns in random order, so that a busy moment of the machine hits all alike; the
tables show medians. On a machine that is busy all the time, one thread and --cpu-time still say something: it
measures the time that the process got, and not what passed.
Writes benchmarks/results/model.json and, from it, model.md. A section that is not run keeps its last results.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import timm
import torch
import torchvision
import transformers
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

import vitlib
from vitlib import attention, checkpoint
from vitlib.data import CIFAR10_MEAN, CIFAR10_STD, ImageData, augment, normalize
from vitlib.pretrained import LAYOUTS, written_out
from vitlib.training import Batches, Run, TrainingConfig, evaluate, make_optimizers, training_step

RESULTS = Path(__file__).parent / "results"
CIFAR = {"image_size": 32, "patch_size": 4, "num_classes": 10}
IMAGENET = {"image_size": 224, "patch_size": 16, "num_classes": 1000}
MODELS = {  # name -> configuration and batch
    "vit_cifar": ({**CIFAR, "embed_dim": 192, "depth": 6, "num_heads": 6}, 128),
    "vit_b_16": ({**IMAGENET, "embed_dim": 768, "depth": 12, "num_heads": 12}, 8),
}
SMALL = {**CIFAR, "embed_dim": 96, "depth": 6, "num_heads": 3, "pool": "mean", "positional": "sincos2d"}
LIBRARIES = (torch, torchvision, timm, transformers)
OTHERS = ("torchvision", "timm", "transformers")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
clock = time.perf_counter


# --- the same model from four libraries ---------------------------------------------------------------------


def build(library, image_size, patch_size, num_classes, embed_dim, depth, num_heads):
    """A model with random weights, as the library makes it but for transformers' eps, which is 1e-12."""
    if library == "vitlib":
        return vitlib.VisionTransformer(image_size, patch_size, 3, num_classes, embed_dim, depth, num_heads)
    if library == "torchvision":
        return torchvision.models.VisionTransformer(
            image_size, patch_size, depth, num_heads, embed_dim, 4 * embed_dim, num_classes=num_classes
        )
    if library == "transformers":
        config = transformers.ViTConfig(
            hidden_size=embed_dim,
            num_hidden_layers=depth,
            num_attention_heads=num_heads,
            intermediate_size=4 * embed_dim,
            image_size=image_size,
            patch_size=patch_size,
            num_labels=num_classes,
            layer_norm_eps=1e-6,
        )
        return transformers.ViTForImageClassification(config)
    model = timm.models.VisionTransformer(
        image_size, patch_size, 3, num_classes, embed_dim=embed_dim, depth=depth, num_heads=num_heads
    )
    for block in model.blocks if library == "timm, explicit attention" else ():
        block.attn.fused_attn = False
    return model


def give_weights(model, other, library):
    """Copy the weights of our model into another library's."""
    layout = {"transformers": "huggingface"}.get(library, library.partition(",")[0])
    ours, names, state = dict(model.named_parameters()), other.state_dict(), {}
    for our_name, their_names in written_out(LAYOUTS[layout][0], len(model.encoder.blocks), layout).items():
        for name, part in zip(their_names, ours[our_name].detach().chunk(len(their_names))):
            state[name if name in names else f"vit.{name}"] = part
    other.load_state_dict(state)


def same_models(config):
    """One model from each library, all with the same weights and, asserted here, the same logits."""
    torch.manual_seed(0)
    libraries = ("vitlib", *OTHERS, "timm, explicit attention")
    models = {library: build(library, **config).eval() for library in libraries}
    images = torch.randn(2, 3, config["image_size"], config["image_size"])
    with torch.no_grad():
        logits = models["vitlib"](images)
        for library in libraries[1:]:
            give_weights(models["vitlib"], models[library], library)
            torch.testing.assert_close(logits_of(models[library], images), logits, rtol=1e-4, atol=1e-4)
    return models


def logits_of(model, images):
    output = model(images)
    return output if torch.is_tensor(output) else output.logits


def forward(model, images, labels, bf16):
    model.eval()
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        logits_of(model, images)


def step(model, images, labels, bf16=True):
    """A training step without its optimizer, which is the same for all."""
    model.train()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        loss = cross_entropy(logits_of(model, images).float(), labels)
    loss.backward()
    model.zero_grad()


def batch_for(config, batch, device="cpu"):
    size = config["image_size"]
    return torch.randn(batch, 3, size, size).to(device), torch.randint(10, (batch,)).to(device)


def gmac(config):
    """Billions of multiplications and additions in the forward pass of one picture."""
    model, images = vitlib.VisionTransformer(**config).eval(), batch_for(config, 2)[0]
    # In bfloat16 attention is written out, not fused: PyTorch's counter does not see the fused kernel.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(images)
    return counter.get_total_flops() / 2 / len(images) / 1e9


# --- timing -------------------------------------------------------------------------------------------------


def seconds(work):
    start = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


def race(works, repetitions, measure=seconds):
    """{name: seconds of each repetition}; the first, which warms up, is left out."""
    times, order = {name: [] for name in works}, random.Random(0)
    for _ in range(repetitions + 1):
        for name in order.sample(list(works), len(works)):  # who comes after whom must not matter
            times[name].append(measure(works[name]))
    return {name: values[1:] for name, values in times.items()}


def spread(values):
    """Half of the range from the first to the third quartile, as a share of the median: how noisy it was."""
    first, middle, third = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return (third - first) / 2 / middle


def medians(times):
    return {name: statistics.median(values) for name, values in times.items()}


def products(config, batch):
    """The products of one block's linear maps, forward and the two backward: (rows, inner, columns)."""
    width, grid = config["embed_dim"], config["image_size"] // config["patch_size"]
    tokens = batch * (grid**2 + 1)
    for inner, outer in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
        yield from ((tokens, inner, outer), (tokens, outer, inner), (outer, tokens, inner))


def multiply(rows, inner, columns, dtype, device):
    """A matrix product as a piece of work, into memory that is there already."""
    a = torch.randn(rows, inner).to(device, dtype)
    b = torch.randn(columns, inner).to(device, dtype).T  # transposed, as the weight of a linear map
    return partial(torch.mm, a, b, out=torch.empty(rows, columns, dtype=dtype, device=device))


# --- the sections: each gives a dict for the JSON -----------------------------------------------------------


def speed(options):
    rows = []
    for device in DEVICES:
        for name in options.models:
            config, batch = MODELS[name]
            models = {library: model.to(device) for library, model in same_models(config).items()}
            images, labels = batch_for(config, batch, device)
            square = 8192 if device == "cuda" else 2048
            shapes = [*products(config, batch), (square, square, square)]
            for bf16 in (False, True):
                for work in (forward, step):
                    works = {
                        library: partial(work, model, images, labels, bf16)
                        for library, model in models.items()
                    }
                    if work is step:
                        dtype = torch.bfloat16 if bf16 else torch.float32
                        works |= {shape: multiply(*shape, dtype, device) for shape in shapes}
                    times = race(works, options.repetitions)
                    row = {"device": device, "model": name, "batch": batch, "gmac": gmac(config)}
                    row |= {"numbers": "bf16" if bf16 else "fp32", "work": work.__name__}
                    row["seconds"] = {library: times[library] for library in models}
                    if work is step:
                        row["products"] = [[*shape, times[shape]] for shape in shapes]
                    rows.append(row)
                    print(speed_row(row), flush=True)
    return {"rows": rows}


def memory(options):
    rows = []
    for device in DEVICES:
        for name in options.models:
            for numbers in ("fp32", "bf16"):
                peak = {}
                for library in ("vitlib", *OTHERS):
                    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
                        peak[library] = fresh.submit(peak_memory, library, name, numbers, device).result()
                rows.append({"device": device, "model": name, "numbers": numbers, "bytes": peak})
                print(rows[-1], flush=True)
    return {"rows": rows}


def peak_memory(library, name, numbers, device):
    """Bytes that the first training step of this process takes at its peak, beyond what was there before."""
    config, batch = MODELS[name]
    model, (images, labels) = build(library, **config).to(device), batch_for(config, batch, device)
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(model, images, labels, numbers == "bf16")
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is counted anew from here
    before = resident("VmRSS")
    step(model, images, labels, numbers == "bf16")
    return resident("VmHWM") - before


def resident(name):
    """Memory of this process in bytes, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


# The first group fits of which the operator, or what called it, has one of the names.
GROUPS = {
    "optimizer: Muon": ["Optimizer.step#Muon.step"],
    "optimizer: AdamW": ["Optimizer.step#AdamW.step"],
    "clipping the gradients": ["aten::_foreach_norm", "aten::linalg_vector_norm", "aten::_foreach_mul_"],
    "augment and normalize": ["batch"],
    "patch embedding": ["aten::conv2d", "ConvolutionBackward0"],
    "matrix products": ["aten::addmm", "aten::mm"],
    "attention products": ["aten::bmm", "aten::baddbmm"],
    "softmax": ["aten::_softmax", "aten::_softmax_backward_data"],
    "GELU": ["aten::gelu", "aten::gelu_backward"],
    "norms": ["aten::native_layer_norm", "aten::native_layer_norm_backward"],
    "casts between fp32 and bf16": ["aten::_to_copy"],
    "copies (heads, class token)": ["aten::copy_", "aten::cat", "aten::clone", "aten::stack"],
    "sums, products, biases": ["aten::add", "aten::add_", "aten::mul", "aten::sum", "aten::div"],
}


def profile_steps(options):
    tables = {}
    for name, config, batch in (("vit_cifar", *MODELS["vit_cifar"]), ("width 96", SMALL, 64)):
        work = whole_step(config, batch)
        work()
        with profile(activities=[ProfilerActivity.CPU]) as measured:
            for _ in range(options.repetitions):
                work()
        milliseconds = dict.fromkeys([*GROUPS, "everything else"], 0.0)
        for event in measured.events():
            milliseconds[group_of(event)] += event.self_cpu_time_total / 1000 / options.repetitions
        whole = [seconds(work) for _ in range(options.repetitions)]
        tables[f"{name}, batch {batch}"] = {"milliseconds": milliseconds, "seconds": whole}
    return {"tables": tables}


def group_of(event):
    callers = []
    while event is not None:
        callers.append(event.name)
        event = event.cpu_parent
    for group, names in GROUPS.items():
        if not set(names).isdisjoint(callers):
            return group
    return "everything else"


def whole_step(config, batch):
    """vitlib.training's step with everything that belongs to it, as a piece of work."""
    torch.manual_seed(0)
    settings = TrainingConfig(epochs=1, batch_size=batch, precision="bf16")
    data = ImageData(torch.randint(256, (16 * batch, 3, 32, 32)).byte(), torch.randint(10, (16 * batch,)), [])
    batches = Batches(data, batch, settings, torch.device("cpu"))
    model = vitlib.VisionTransformer(**config)
    optimizers = make_optimizers(model, settings)
    run = Run(Path(), settings, {}, total_steps=10**6, precision="bf16")
    batches.get = record_function("batch")(batches.get)  # a name for the profiler
    return partial(training_step, model, optimizers, batches, run, settings)


# --- ideas --------------------------------------------------------------------------------------------------


def ideas(options):
    rows = []
    for idea, prediction, works in [*step_ideas(), *optimizer_ideas(), *other_ideas()]:
        begin = time.perf_counter()
        works["changed"]()  # compiling happens here, in other processes too
        first = time.perf_counter() - begin
        times = race(works, options.repetitions)
        rows.append({"idea": idea, "prediction": prediction, "seconds": times, "first": first})
        print(idea_row(rows[-1]), flush=True)
    for idea, environment in ENVIRONMENTS.items():
        times = race_of_environments({"as it is": {}, "changed": environment}, options.repetitions)
        prediction = "5 to 10 % faster: no pages given back and asked for again"
        rows.append({"idea": idea, "prediction": prediction, "seconds": times})
        print(idea_row(rows[-1]), flush=True)
    tables = {
        "whole step of `vitlib.training`": {
            f"{name}, batch {batch}": [time / batch for time in times]
            for name, config in (("vit_cifar", MODELS["vit_cifar"][0]), ("width 96", SMALL))
            for batch, times in race(
                {batch: whole_step(config, batch) for batch in (32, 64, 128, 256)}, options.repetitions
            ).items()
        },
        "`evaluate()`, vit_cifar": evaluation_batches(options.repetitions),
    }
    return {"rows": rows, "tables": tables}


def step_ideas():
    """(what is changed, what was expected, {"as it is": work, "changed": work}), all in bf16 but one."""
    config, batch = MODELS["vit_cifar"]
    images, labels = batch_for(config, batch)

    def model(**options):
        torch.manual_seed(0)
        return vitlib.VisionTransformer(**{**config, **options})

    plain = partial(step, model(), images, labels)

    def idea(name, prediction, changed, as_it_is=plain):
        return name, prediction, {"as it is": as_it_is, "changed": changed}

    yield idea("nothing (how far chance goes)", "0", partial(step, model(), images, labels))
    yield idea("GELU in the tanh form", "1 %: erf costs more than tanh",
               partial(step, model(gelu="tanh"), images, labels))  # fmt: skip

    wide = model()
    wide.dropout.register_forward_hook(lambda module, inputs, tokens: tokens.float())
    yield idea("residual stream in fp32 (it is bf16)", "5 % slower: twice the bytes in norms and sums",
               partial(step, wide, images, labels))  # fmt: skip
    yield idea("weights in bf16 too, no autocast", "1 %: no casts",
               partial(step, model().bfloat16(), images.bfloat16(), labels, bf16=False))  # fmt: skip

    yield idea("torch.compile", "10 %: GELU, norms and sums fused; the products stay",
               partial(step, torch.compile(model()), images, labels))  # fmt: skip

    for name, prediction, attend in (
        ("attention: baddbmm scales the scores", "1 %: one pass over the queries less", attend_baddbmm),
        ("attention: scores scaled, not queries", "slower: twice as many numbers", attend_scaling_scores),
        ("attention: fused", "half as fast (results/attention.md)", partial(attention.attend, fused=True)),
    ):
        changed = partial(with_attribute, attention, "attend", attend, plain)
        yield idea(name, prediction, changed)
    for name, prediction, forward_of_layer in (
        ("view and permute in place of rearrange", "0: the same copies", forward_with_views),
        ("heads of q, k and v copied at once", "1 %: one copy for three", forward_one_copy),
    ):
        layer = attention.MultiHeadAttention
        yield idea(name, prediction, partial(with_attribute, layer, "forward", forward_of_layer, plain))

    channels_last = images.to(memory_format=torch.channels_last)
    yield idea("images channels_last", "0: the patch embedding is 1 % of the step",
               partial(step, model(), channels_last, labels))  # fmt: skip

    yield idea("zero_grad(set_to_none=False)", "slower: zeros are written, then added to",
               partial(step_keeping_gradients, model(), images, labels))  # fmt: skip
    yield idea('fp32, set_float32_matmul_precision("medium")', "40 %: oneDNN multiplies in bf16",
               partial(with_medium_precision, model(), images, labels),
               partial(step, model(), images, labels, bf16=False))  # fmt: skip


def with_attribute(thing, name, value, work):
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        work()
    finally:
        setattr(thing, name, before)


def attend_baddbmm(query, key, value, dropout=0.0, return_weights=False):
    batch, num_heads, num_tokens, width = query.shape
    query, key, value = (tensor.reshape(-1, num_tokens, width) for tensor in (query, key, value))
    nothing = query.new_zeros(1)
    scores = torch.baddbmm(nothing, query, key.transpose(1, 2), beta=0, alpha=width**-0.5)
    mixed = scores.softmax(dim=-1) @ value
    return mixed.view(batch, num_heads, num_tokens, width), None


def attend_scaling_scores(query, key, value, dropout=0.0, return_weights=False):
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ value, None


def forward_with_views(self, tokens, return_attention=False):
    batch, num_tokens, width = tokens.shape
    heads = self.qkv(tokens).view(batch, num_tokens, 3, self.num_heads, width // self.num_heads)
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    mixed, _ = attention.attend(query, key, value)
    return self.output(mixed.transpose(1, 2).reshape(batch, num_tokens, width)), None


def forward_one_copy(self, tokens, return_attention=False):
    batch, num_tokens, width = tokens.shape
    heads = self.qkv(tokens).view(batch, num_tokens, 3, self.num_heads, width // self.num_heads)
    query, key, value = heads.permute(2, 0, 3, 1, 4).contiguous()
    mixed, _ = attention.attend(query, key, value)
    return self.output(mixed.transpose(1, 2).reshape(batch, num_tokens, width)), None


def step_keeping_gradients(model, images, labels):
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(model(images).float(), labels)
    loss.backward()
    model.zero_grad(set_to_none=False)


def with_medium_precision(model, images, labels):
    torch.set_float32_matmul_precision("medium")
    step(model, images, labels, bf16=False)
    torch.set_float32_matmul_precision("highest")


def optimizer_ideas():
    """Optimizers alone, beside a step without them."""
    for name, (config, batch) in {"vit_cifar": MODELS["vit_cifar"], "width 96": (SMALL, 64)}.items():
        model = vitlib.VisionTransformer(**config)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        adamw = partial(torch.optim.AdamW, list(model.parameters()), lr=1e-4)
        muon, fewer = (make_optimizers(model, TrainingConfig(epochs=1))[1] for _ in range(2))
        fewer.param_groups[0]["ns_steps"] = 3
        plain = partial(step, vitlib.VisionTransformer(**config), *batch_for(config, batch))
        for idea, prediction, as_it_is, changed in (
            ("AdamW on everything, foreach", "0: made for GPUs", adamw(), adamw(foreach=True)),
            ("AdamW on everything, fused", "AdamW 3 times as fast", adamw(), adamw(fused=True)),
            ("Muon, ns_steps 3 for 5", "Muon 1.6 times as fast", muon, fewer),
            ("fused AdamW on everything for Muon", "Muon is 5 % of the step", muon, adamw(fused=True)),
        ):
            works = {"as it is": as_it_is.step, "changed": changed.step, "step": plain}
            yield f"{name}: {idea}", prediction, works


def other_ideas():
    """What a batch costs before the model sees it."""
    config, batch = MODELS["vit_cifar"]
    plain = partial(step, vitlib.VisionTransformer(**config), *batch_for(config, batch))
    pixels, generator = torch.randint(256, (batch, 3, 32, 32)).byte(), torch.Generator().manual_seed(0)

    def prepare(augmented):
        normalize(augment(pixels, generator) if augmented else pixels, CIFAR10_MEAN, CIFAR10_STD)

    works = {"as it is": partial(prepare, True), "changed": partial(prepare, False), "step": plain}
    yield "pictures: normalized, not augmented", "under 1 %", works


KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**31), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ENVIRONMENTS = {  # Linux with glibc
    "malloc keeps what was freed": KEPT,
    "malloc in huge pages": HUGE,
    "both": KEPT | HUGE,
    "PyTorch's THP_MEM_ALLOC_ENABLE": {"THP_MEM_ALLOC_ENABLE": "1"},
}


def race_of_environments(environments, repetitions):
    """The same training step in processes that differ in their environment only. They take turns."""
    workers = {}
    for name, environment in environments.items():
        os.environ.update(environment)
        workers[name] = ProcessPoolExecutor(1, get_context("spawn"), prepare_worker, (clock,))
        workers[name].submit(seconds_in_worker).result()  # the process starts here
        for variable in environment:
            del os.environ[variable]
    works = {name: partial(worker.submit, seconds_in_worker) for name, worker in workers.items()}
    times = race(works, repetitions, lambda work: work().result())
    for worker in workers.values():
        worker.shutdown()
    return times


def prepare_worker(same_clock):
    global clock, worker_step
    clock = same_clock
    config, batch = MODELS["vit_cifar"]
    worker_step = partial(step, vitlib.VisionTransformer(**config), *batch_for(config, batch))


def seconds_in_worker():
    return seconds(worker_step)


def evaluation_batches(repetitions):
    """Seconds that evaluate() takes for a picture, by precision and size of its batches."""
    number = 1000
    classes = [str(i) for i in range(10)]
    data = ImageData(torch.randint(256, (number, 3, 32, 32)).byte(), torch.randint(10, (number,)), classes)
    model = vitlib.vit_cifar()
    works = {
        f"{precision}, batch {batch}": partial(
            evaluate, model, data, CIFAR10_MEAN, CIFAR10_STD, precision, batch
        )
        for precision in ("fp32", "bf16")
        for batch in (50, 125, 250, 500, 1000)
    }
    return {name: [t / number for t in times] for name, times in race(works, repetitions).items()}


IMPORT = "import time; a = time.perf_counter(); import {}; print(time.perf_counter() - a)"


def imports(options):
    """Seconds to import torch, vitlib with it, and vitlib after it; five fresh processes each."""
    code = {"torch": IMPORT.format("torch"), "vitlib": IMPORT.format("vitlib")}
    code["vitlib after torch"] = f"import torch; {IMPORT.format('vitlib')}"
    works = {name: [sys.executable, "-c", line] for name, line in code.items()}
    times = race(works, 5, lambda line: float(subprocess.check_output(line, text=True)))
    return {"seconds": times}


# --- the tables ---------------------------------------------------------------------------------------------


def table(*rows):
    head, *rows = [[str(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def speed_row(row):
    seconds = medians(row["seconds"])
    ours = seconds["vitlib"]
    what = f"{row['device']}, {row['model']}, batch {row['batch']}, {row['work']}, {row['numbers']}"
    images = [f"{row['batch'] / value:.4g}" for value in seconds.values()]
    fastest = min(seconds[name] for name in OTHERS)
    ratios = [f"{value / ours:.2f}" for value in (fastest, seconds["torchvision"], seconds["timm"])]
    noise = max(spread(values) for values in row["seconds"].values())
    return [what, *images, *ratios, f"± {noise:.0%}"]


def utilisation_row(row):
    alone = {tuple(shape): statistics.median(times) for *shape, times in row["products"]}
    gflops = {shape: 2 * math.prod(shape) / value / 1e9 for shape, value in alone.items()}
    *own, square = gflops
    peak, best = max((speed, shape) for shape, speed in gflops.items())
    seconds, depth = medians(row["seconds"]), MODELS[row["model"]][0]["depth"]
    spent = 2 * 3 * row["gmac"] * row["batch"]  # the backward pass is twice the forward
    share = {name: spent / value / peak for name, value in seconds.items()}
    return [
        f"{row['device']}, {row['model']}, {row['numbers']}",
        f"{gflops[square]:.0f}",
        f"{min(gflops[shape] for shape in own):.0f} to {max(gflops[shape] for shape in own):.0f}",
        f"{peak:.0f} ({'x'.join(map(str, best))})",
        f"{spent / seconds['vitlib']:.0f}",
        f"**{share['vitlib']:.0%}**",
        ", ".join(f"{share[name]:.0%}" for name in OTHERS),
        f"{depth * sum(alone[shape] for shape in own) / seconds['vitlib']:.0%}",
    ]


def idea_row(row):
    seconds = medians(row["seconds"])
    before, after = seconds["as it is"], seconds["changed"]
    whole = seconds.get("step", before)
    noise = max(spread(values) for values in row["seconds"].values())
    cells = [f"{1000 * value:.4g}" for value in (before, after, whole)]
    return [row["idea"], row["prediction"], *cells, f"{(before - after) / whole:+.1%}", f"± {noise:.0%}"]


SPEED = """
Images a second. All models have the same weights and gave the same logits before the race. A step is
forward, backward and `zero_grad`. "To the fastest" says how many times as fast vitlib is as the fastest of
torchvision, timm and transformers; the next two compare with torchvision and timm as they come. timm with
explicit attention shows how much of that is the choice of the kernel. The last column is the spread of the
noisiest contestant: half of the range of the middle half of its repetitions.
"""
LIMIT = """
## How near to the machine's matrix products

GFLOPS of the training step, counting only its matrix products (a forward pass once, the backward pass
twice), and of plain products measured in turns with it: a large square, and those of the model's own linear
maps. Utilisation is the speed of the step divided by the fastest of these. The last column is the share of
vitlib's step that the products of its linear maps take when run alone: the rest is attention, and what is
no product.
"""
MEMORY = """
## Peak memory of a training step

MB beyond what the process held before: the first step of a fresh process, forward, backward and gradients,
without an optimizer. On a CPU it is the peak of the resident memory (Linux's VmHWM, set back just before
the step), on a GPU what PyTorch allocated.
"""
PROFILE = """
## Where the milliseconds go

One step of `vitlib.training` in bf16 with Muon and AdamW, everything included, by torch.profiler: the time
inside each operator, not counting those that it calls, by the wall-clock. The profiler itself takes time:
the last line is the step without it.
"""
IDEAS = """
## What might make the step faster

Each alone, against the step as it is, in turns; vit_cifar, batch 128, bf16, unless it says otherwise. The
gain is a share of the whole step (in the column before the last but one), above 0 where the idea is faster.
For an optimizer and for the pictures, the first two numbers are that part alone.
"""


def written_speed(results):
    yield SPEED
    libraries = list(results["rows"][0]["seconds"])
    head = ["", *libraries, "to the fastest", "to torchvision", "to timm", "spread"]
    yield table(head, *map(speed_row, results["rows"]))
    yield LIMIT
    gmac = {row["model"]: f"{row['gmac']:.3f} ({row['model']})" for row in results["rows"]}
    yield f"GMAC of a forward pass of one picture: {', '.join(gmac.values())}."
    head = ["", "large square", "own products", "peak", "step of vitlib", "utilisation"]
    head += [f"that of {', '.join(OTHERS)}", "products alone"]
    yield table(head, *(utilisation_row(row) for row in results["rows"] if row["work"] == "step"))


def written_memory(results):
    yield MEMORY
    rows = []
    for row in results["rows"]:
        megabytes = [f"{peak / 1e6:.0f}" for peak in row["bytes"].values()]
        rows.append([f"{row['device']}, {row['model']}, {row['numbers']}", *megabytes])
    yield table(["", *results["rows"][0]["bytes"]], *rows)


def written_profile(results):
    yield PROFILE
    head, *rows = [[""], *([group] for group in (*GROUPS, "everything else", "all", "without the profiler"))]
    for name, measured in results["tables"].items():
        head += [f"{name} (ms)", "share"]
        values = list(measured["milliseconds"].values())
        values += [sum(values), 1000 * statistics.median(measured["seconds"])]
        for row, value in zip(rows, values):
            row += [f"{value:.1f}", f"{value / values[-2]:.1%}"]
    yield table(head, *rows)


def written_ideas(results):
    yield IDEAS
    head = ["idea", "prediction", "as it is (ms)", "changed (ms)", "step (ms)", "gain", "spread"]
    yield table(head, *map(idea_row, results["rows"]))
    compiled = next(row for row in results["rows"] if row["idea"] == "torch.compile")
    yield f"The first step with torch.compile took {compiled['first']:.0f} s."
    for what, times in results["tables"].items():
        rows = [
            [name, f"{1 / statistics.median(values):.0f}", f"± {spread(values):.0%}"]
            for name, values in times.items()
        ]
        yield table([what, "images a second", "spread"], *rows)


def written_imports(results):
    yield "## Time to import\n\nSeconds in fresh processes, in turns: the median of five, and the fastest."
    rows = [
        [name, f"{statistics.median(times):.2f}", f"{min(times):.2f}"]
        for name, times in results["seconds"].items()
    ]
    yield table(["import", "median", "fastest"], *rows)


SECTIONS = {  # name -> what measures it, what writes it down
    "speed": (speed, written_speed),
    "memory": (memory, written_memory),
    "profile": (profile_steps, written_profile),
    "ideas": (ideas, written_ideas),
    "imports": (imports, written_imports),
}


def machine(options):
    """What every section says about its run."""
    device = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    libraries = [f"{library.__name__} {library.__version__}" for library in LIBRARIES]
    return (
        f"{device}{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, threads: "
        f"{torch.get_num_threads()} for {os.cpu_count()} cores; {', '.join(libraries)}. "
        f"Repetitions: {options.repetitions}, {'CPU time' if options.cpu_time else 'wall-clock'}. Other work "
        f"on the machine: load {os.getloadavg()[0]:.1f} before the start."
    )


def main():
    global clock
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    path = RESULTS / "model.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in options.sections:
        about = machine(options)
        results[name] = {"about": about, **SECTIONS[name][0](options)}
        checkpoint.write_whole(path, (json.dumps(results, indent=1) + "\n").encode())
        text = ["# vitlib's model beside others\n\nWritten by `benchmarks/model.py`."]
        for section in SECTIONS:
            if section in results:
                text += [part.strip() for part in SECTIONS[section][1](results[section])]
                text += [results[section]["about"]]
        checkpoint.write_whole(RESULTS / "model.md", ("\n\n".join(text) + "\n").encode())


if __name__ == "__main__":
    main()
