# %% [markdown]
# # Train a Vision Transformer on CIFAR-10
#
# > Five minutes, one laptop, 45,000 small pictures. How far does it get, and how would you notice that it
# > is broken *before* the five minutes are over?
#
# **After this lesson you can**
# - find out in seconds, before a long run, whether a model is able to learn at all;
# - write the training loop of a ViT, line by line, and say what each line is for;
# - train on CIFAR-10, read the curves, stop, go on, save, load, and classify a picture of your own;
# - measure honestly: validation pictures for every choice, test pictures once;
# - tell from its symptom which of ten usual troubles a run has.
#
# 45 minutes to read, 30 for the exercises · 8 minutes to run on a 2-core laptop, 5 of them for training ·
# needs PyTorch basics (tensors, modules, autograd), and the whole model from lesson
# [06](06_vision_transformer.ipynb); who skips the lessons before needs patches, tokens and the class token
# from lesson [00](00_start_here.ipynb)

# %% [markdown]
# ## Five minutes, and a guess
#
# The largest model of the ViT paper puts 99.5 % of CIFAR-10's test pictures into the right one of ten
# classes (Dosovitskiy et al. 2020, Table 2). Ours is two hundred times smaller and gets five minutes.
# Drawing lots gets 10 %.
#
# **Write down your guess** for ours. You will need it at the test.

# %%
import math
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from vitlib import VisionTransformer, checks, load, plots, training, vit_cifar
from vitlib.checks import TODO

# %% [markdown]
# The budget. Longer is better: change the number and run all cells again. A machine with a GPU uses it by
# itself.

# %%
minutes = float(os.environ.get("VITLIB_MINUTES", 5))

# %% [markdown]
# ## The pictures
#
# CIFAR-10 is 60,000 photographs of 32x32 pixels (Krizhevsky 2009). The first run downloads 170 MB. Without
# the internet the lesson says so, and goes on with shapes that are drawn by code. Look at the labels that
# are printed.

# %% tags=["nbval-ignore-output"]
from vitlib.data import CIFAR10_MEAN, CIFAR10_STD, SHAPES_MEAN, SHAPES_STD, cifar10, shapes

try:
    parts = [cifar10(split) for split in ("train", "validation", "test")]
    name, mean, std = "cifar10", CIFAR10_MEAN, CIFAR10_STD
except FileNotFoundError as error:
    print("!" * 80, error, "This lesson goes on with 3: what you see below are shapes.", "!" * 80, sep="\n")
    parts = [shapes("train", 10_000), shapes("validation", 2_000), shapes("test", 2_000)]
    name, mean, std = "shapes", SHAPES_MEAN, SHAPES_STD
train_data, validation_data, test_data = parts
if minutes < 1:  # only a try whether everything runs: then a tenth is enough to measure on
    validation_data, test_data = validation_data[::10], test_data[::10]
    parts = [train_data, validation_data, test_data]
print(*(f"{len(part):,}" for part in parts), "pictures to train, to validate, to test")
print("labels:", *train_data.labels[:12].tolist(), "...", *train_data.labels[-12:].tolist())

# %% [markdown]
# Pictures are whole numbers from 0 to 255, `(channels, height, width)`, all of them in memory. There are
# three parts:
# - the **training** pictures teach the model;
# - the **validation** pictures help *you* to choose: when to stop, which learning rate, which model;
# - the **test** pictures are for one measurement at the very end. Whoever chooses by them has trained on
#   them by hand.

# %%
print("one picture:", tuple(train_data.images[0].shape), train_data.images.dtype)
print("classes:", len(train_data.classes))
print("every class is in every part:", all(len(part.labels.unique()) == 10 for part in parts))

# %% [markdown]
# `vitlib` keeps CIFAR-10 sorted by class: `0 0 0 ... 9 9 9`. To see something of everything, pick across the
# classes.

# %% tags=["nbval-ignore-output"]
chosen = torch.stack([(train_data.labels == k).nonzero()[:4, 0] for k in range(10)], dim=1).flatten()
titles = train_data.classes + [""] * 30
plots.show(
    plots.picture_grid(train_data.images[chosen], titles, columns=10),
    alt="Four training pictures of each of the ten classes.",
)

# %% [markdown]
# *Figure: four training pictures of each of the ten classes, one class a column, at 32x32 pixels. Some are
# hard for you, too.*
#
# ### Normalise: numbers of about one
#
# A network starts well when its inputs are about as large as its weights expect: their mean is 0 and their
# standard deviation is 1. Here are six pixels, from 0 to 1, with mean 0.5 and standard deviation 0.25:

# %%
pixels = torch.tensor([0, 51, 102, 153, 204, 255])
(pixels / 255 - 0.5) / 0.25

# %% [markdown]
# `normalize` does this to a batch, with the mean and standard deviation of each colour over the training
# pictures. They belong to the model as much as its weights do. Every picture that it ever sees must pass
# through the same two lines; the last section shows what happens otherwise.

# %%
from vitlib.data import normalize

normalized = normalize(train_data.images[::10], mean, std)
means, deviations = normalized.mean(dim=(0, 2, 3)), normalized.std(dim=(0, 2, 3))
print("mean of red, green, blue within 0.05 of 0:", (means.abs() < 0.05).tolist())
print("standard deviation within 0.05 of 1:", ((deviations - 1).abs() < 0.05).tolist())

# %% [markdown]
# ### Augment: more pictures for nothing
#
# A horse that is mirrored, or two pixels further left, is still a horse. `augment` shifts each picture by
# up to 4 pixels each way (black comes in from the edge) and mirrors half of them. **Predict:** how many
# different pictures can become of one?

# %% tags=["nbval-ignore-output"]
from vitlib.data import augment

one = train_data.images[(train_data.labels == 7).nonzero()[:1, 0]]  # (1, 3, 32, 32)
versions = augment(one.expand(2000, -1, -1, -1), torch.Generator().manual_seed(0))
plots.show(
    plots.picture_grid(torch.cat([one, versions[:15]])),
    alt="A training picture and fifteen augmented versions of it.",
)

# %% [markdown]
# *Figure: top left a training picture as it is, then fifteen versions of it. Each is shifted and perhaps
# mirrored; the black bars are what a shift uncovers.*
#
# Nine shifts each way, mirrored or not. Of 2,000 versions, so many differ:

# %%
print(len(versions.flatten(1).unique(dim=0)), "=", 9 * 9 * 2)

# %% [markdown]
# Only training pictures are augmented. Validation and test measure on pictures as they are.
#
# ## What should a model say that knows nothing?
#
# The model gives ten numbers a picture, the *logits*. Softmax turns them into probabilities, and the loss
# is minus the logarithm of the probability of the true class. With three classes you can do it by hand:

# %%
exponentials = [math.exp(2), math.exp(1), math.exp(0)]  # logits 2, 1, 0
probability = exponentials[0] / sum(exponentials)  # the true class is the first
print(f"probability {probability:.4f}, loss {-math.log(probability):.4f}")

# %% [markdown]
# PyTorch's `cross_entropy` does both steps at once: it takes *logits*.

# %%
loss = cross_entropy(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
assert abs(loss.item() + math.log(probability)) < 1e-6
print(f"loss {loss.item():.4f}")

# %% [markdown]
# A model that knows nothing gives each of ten classes probability 1/10. So its loss is $-\ln 0.1 = \ln 10$:

# %%
print(f"{math.log(10):.4f}")

# %% [markdown]
# Keep this number in mind: **2.30** is the loss of a model that has learned nothing. It will come back.
#
# ### Exercise 1 · a hundred classes (2 minutes)
#
# CIFAR-100 has 100 classes. What loss should an untrained model have there? Replace `TODO` by your number.
#
# <details><summary>Hint</summary>
#
# Which probability does each class get? The loss is minus its natural logarithm, <code>math.log</code>.
#
# </details>

# %% tags=["exercise"]
checks.value("loss_at_start", TODO)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
loss_at_start_solution = math.log(100)  # = -math.log(1 / 100)

# %% [markdown]
# ## The model
#
# `vit_cifar` cuts a picture into 64 patches of 4x4 pixels. Each becomes a token, a vector of $D$ =
# `embed_dim` = 192 numbers. A class token joins them, and each token gets a position added: a learned vector
# that says where it stands. Then come $L$ = `depth` = 6 encoder blocks, and a linear head reads the ten
# logits from the class token (equations 1 to 4 of the paper).
#
# A block has two parts. In *attention* tokens take from each other: the *query* of each token is compared
# with the *keys* of all, and the better they fit, the more of that token's *value* is taken; $k$ =
# `num_heads` = 6 heads do so side by side. The *MLP* is two linear layers, applied to each token alone.
# Before each part a LayerNorm brings every token to mean 0 and standard deviation 1.
#
# **Predict:** which part holds the most parameters: patch embedding, positions, attention, MLP, or head?

# %%
torch.manual_seed(0)
model = vit_cifar()
counts = {"attention": 0, "mlp": 0}
for key, parameter in model.named_parameters():
    part = next((kind for kind in ("attention", "mlp", "norm") if kind in key), key.split(".")[0])
    counts[part] = counts.get(part, 0) + parameter.numel()
for part, count in sorted(counts.items(), key=lambda item: -item[1]):
    print(f"{part:20}{count:>10,}")
print(f"{'all':20}{sum(counts.values()):>10,}, a {630_764_800 / sum(counts.values()):.0f}th of ViT-H/14")

# %% [markdown]
# The MLPs hold two thirds, as in every ViT: $8D^2$ a block, against $4D^2$ in attention. ViT-H/14 is the
# model of the 99.5 %.
#
# ## Four questions before the long run
#
# Most bugs raise no error. The loss even falls a little, and hours later the model is merely mediocre. Four
# cheap questions catch most of them. First, a batch from all over the training set:

# %%
generator = torch.Generator().manual_seed(0)
batch = train_data[torch.randperm(len(train_data), generator=generator)[:64]]
images, labels = normalize(batch.images, mean, std), batch.labels  # (B, 3, 32, 32), (B,)

# %% [markdown]
# **1. Is the first loss near ln 10?** Far above it, the model is sure of nonsense: a start that is too
# wild, or pictures that are not normalised.

# %% tags=["nbval-ignore-output"]
logits = model(images)  # (B, 10)
loss = cross_entropy(logits, labels)
print(f"first loss {loss.item():.2f}, ln 10 is {math.log(10):.2f}")

# %% [markdown]
# **2. Do two pictures get different logits?** If not, the picture is lost on its way through the model, and
# training can at best learn how frequent each class is.

# %%
print("first loss within 0.3 of ln 10:", abs(loss.item() - math.log(10)) < 0.3)
print("two pictures' logits differ by over 0.01:", ((logits[0] - logits[1]).abs().max() > 0.01).item())

# %% [markdown]
# **3. Does the gradient reach every parameter?** A part that was forgotten in `forward`, or cut off by
# `.detach()`, gets none.

# %%
loss.backward()
named = dict(model.named_parameters())
print("without a gradient:", [key for key in named if named[key].grad is None])
print("with nothing but zeros:", [key for key in named if named[key].grad.abs().max() < 1e-8])

# %% [markdown]
# Nothing is missing. Yet a part of one parameter gets nothing, and rightly so. The bias of query, key and
# value is stored as one vector of $3D$ numbers. **Predict:** which third of it has no gradient?

# %%
query, key, value = named["encoder.blocks.0.attention.qkv.bias"].grad.chunk(3)
for third, gradient in {"query": query, "key": key, "value": value}.items():
    print(f"{third:6} above 1e-6: {(gradient.abs().max() > 1e-6).item()}")

# %% [markdown]
# A bias of the keys adds the same number to every score of a row, and softmax does not notice. Know your
# zeros: then the others are bugs.
#
# **4. Can it learn eight pictures by heart?** A model that cannot overfit one batch will learn nothing from
# 45,000 pictures. The loss must go to about 0. It takes seconds, and there is no better test:

# %%
def overfit(model, images, labels, steps=40, learning_rate=1e-3, loss_function=cross_entropy):
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(steps):
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# %% [markdown]
# Look at where the curve starts, and where it ends.

# %% tags=["nbval-ignore-output"]
losses = overfit(model, images[:8], labels[:8])
plots.show(
    plots.curves({"step": range(40), "eight pictures": losses}, "step", {"loss": ["eight pictures"]}),
    alt="The loss on eight pictures falls from 2.3 to 0.",
)

# %% [markdown]
# *Figure: the loss on the same eight pictures, step by step. It starts near 2.30 and falls to about 0: the
# model has learned them by heart.*

# %%
print("the last loss is below 0.1:", losses[-1] < 0.1)
print("all eight are right:", (model(images[:8]).argmax(dim=1) == labels[:8]).all().item())

# %% [markdown]
# ## The training loop, in the open
#
# The loop is that of `overfit` with four things more: new pictures in every batch, weight decay, a learning
# rate that changes, and a limit to the gradient (paper, section 4.1 and appendix B.1).
#
# ### Exercise 2 · what should decay? (10 minutes)
#
# Weight decay pulls weights towards 0 in every step, so that the model prefers simple functions. That makes
# sense for the weight matrices of linear layers; the patch embedding's convolution is one of them. It makes
# none for what sets a level or a place: biases, the weights of LayerNorm, the class token, the positions.
# Give the **names** of the parameters that decay.
#
# <details><summary>Hint</summary>
#
# Print <code>name, tuple(parameter.shape)</code> of all parameters of <code>vit_cifar(depth=1)</code>.
# Which names end in <code>weight</code>, and which of those have one axis only?
#
# </details>

# %% tags=["exercise"]
def decayed_names(model):
    """The names, as model.named_parameters() has them, of the parameters that should decay."""
    return TODO  # your code here


decayed_names = checks.use(decayed_names, checks.training.decayed_names)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def decayed_names_solution(model):
    return {name for name, p in model.named_parameters() if name.endswith("weight") and p.ndim > 1}


# %% [markdown]
# ### Exercise 3 · the learning rate's way up and down (10 minutes)
#
# At the start the gradients point anywhere, so the learning rate rises from almost nothing: *warm-up*.
# Towards the end it falls to 0 along half a cosine, so that the weights come to rest. Write the share of
# the full rate at a step:
# - in the warm-up, step 0 gets `1/warmup_steps` and step `warmup_steps - 1` gets 1, in a straight line;
# - then $\frac{1}{2}(1 + \cos(\pi x))$, where $x$ goes from 0 at step `warmup_steps` to 1 at step
#   `total_steps`.
#
# <details><summary>Hint</summary>
#
# $x$ is the number of steps since the warm-up, divided by the number of steps that there are after the
# warm-up. The cosine is <code>math.cos</code>.
#
# </details>

# %% tags=["exercise"]
def learning_rate_factor(step, total_steps, warmup):
    """The share of the full rate at a step. The first max(1, round(warmup * total_steps)) steps rise."""
    return TODO  # your code here


learning_rate_factor = checks.use(learning_rate_factor, training.learning_rate_factor)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def learning_rate_factor_solution(step, total_steps, warmup):
    warmup_steps = max(1, round(warmup * total_steps))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    x = (step - warmup_steps) / (total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * x))


# %% [markdown]
# This is the function that you or `vitlib` wrote, for a run of 1,000 steps with a full rate of 0.02.

# %%
rates = torch.tensor([0.02 * learning_rate_factor(step, 1000, warmup=0.05) for step in range(1000)])
plots.show(
    plots.learning_rate_schedule(rates),
    alt="The learning rate rises for 50 steps, then falls to 0 along half a cosine.",
)

# %% [markdown]
# *Figure: the learning rate of each step. The warm-up takes the first 5 % of the steps (the figure counts
# steps from 1); half a cosine takes the rest: slowly, fast, slowly down to 0.*
#
# ### All lines together
#
# The loop is shown on a *tiny* ViT (16 tokens of width 48, two blocks) and 640 drawn shapes, so that a pass
# takes a second and everybody gets the same numbers.

# %%
def tiny_vit():
    torch.manual_seed(0)  # the same start every time
    return VisionTransformer(image_size=32, patch_size=8, num_classes=10, embed_dim=48, depth=2, num_heads=3)


few = shapes("train", 640)

# %% [markdown]
# An optimizer takes groups of parameters, each with settings of its own. Yours says which is which.

# %%
def make_optimizer(model):
    decayed = decayed_names(model)
    shrink = [parameter for name, parameter in model.named_parameters() if name in decayed]
    keep = [parameter for name, parameter in model.named_parameters() if name not in decayed]
    return torch.optim.AdamW(
        [{"params": shrink, "weight_decay": 0.05}, {"params": keep, "weight_decay": 0.0}]
    )


# %% [markdown]
# Now read the loop line by line. `order` says in which order the pictures come, 32 in each batch.

# %%
def one_pass(model, data, order, full_rate=1.5e-3):
    optimizer = make_optimizer(model)
    for step, indices in enumerate(order.split(32)):
        for group in optimizer.param_groups:
            group["lr"] = full_rate * learning_rate_factor(step, len(order) // 32, warmup=0.05)
        chance = torch.Generator().manual_seed(step)  # so that step 17 is the same in every run
        pictures = augment(data.images[indices], chance)  # uint8 (B, 3, 32, 32)
        logits = model(normalize(pictures, SHAPES_MEAN, SHAPES_STD))  # (B, 10)
        loss = cross_entropy(logits, data.labels[indices])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # a longer gradient is cut to 1
        optimizer.step()
        optimizer.zero_grad()  # the next gradient starts from zero
    return model


# %% [markdown]
# `vitlib.training.train` is the same loop. Around it, it keeps a history and checkpoints, evaluates, draws
# progress, picks the device, stops politely and goes on again. It keeps its files in a folder:

# %%
import shutil


def fresh(folder):
    """An empty folder for a short experiment, whatever an earlier run left there."""
    shutil.rmtree(Path("runs") / folder, ignore_errors=True)
    return Path("runs") / folder


short = {"batch_size": 32, "optimizer": "adamw", "mean": SHAPES_MEAN, "std": SHAPES_STD}
short |= {"device": "cpu", "precision": "fp32"}  # the same numbers on every machine

# %% [markdown]
# **Proof.** One pass with your loop and one with `train`, from the same start and in the same order, which
# follows from the seed 0. Both end at the same weights.

# %%
from vitlib.training import TrainingConfig, train

order = torch.randperm(640, generator=torch.Generator().manual_seed(0))
ours = one_pass(tiny_vit(), few, order)
theirs = tiny_vit()
train(theirs, few, few[:100], TrainingConfig(epochs=1, **short), fresh("07-proof"))
differences = [(a - b).abs().max() for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
print("largest difference between all weights below 1e-6:", (max(differences) < 1e-6).item())

# %% [markdown]
# ### Where is the `DataLoader`?
#
# All our pictures fit into memory as bytes (60,000 x 3,072, that is 184 MB), so a batch is an index into a
# tensor. PyTorch's usual way is a `DataLoader`. It gives the same kind of batches:

# %%
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(few.images, few.labels), batch_size=32, shuffle=True, drop_last=True)
pictures, answers = next(iter(loader))  # or: for pictures, answers in loader: ...
print(len(loader), "batches of", tuple(pictures.shape), pictures.dtype, "and", tuple(answers.shape))

# %% [markdown]
# You need one when the pictures do **not** fit into memory: large photographs are read and decoded while
# the model computes, by worker processes. On Windows and macOS (and on Linux from Python 3.14) each
# worker imports your script again. Without the guard in the last lines it would start workers of its own,
# which start workers; and they cannot find a dataset class that was defined in a cell of a notebook. Put it
# into a `.py` file.
#
# ```python
# # train.py
# def main():
#     dataset = torchvision.datasets.ImageFolder("photos/train", transform=...)
#     loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4, persistent_workers=True)
#     ...
#
# if __name__ == "__main__":
#     main()
# ```
#
# ## Train
#
# Now the real thing: `vit_cifar`, fresh weights, all training pictures. The budget becomes a number of
# steps once, at the start, by timing a few: the schedule must know where it ends. Matrices inside the
# blocks are trained with Muon (Jordan et al. 2024), which replaces each update by the nearest orthogonal
# matrix, so that no direction drowns the others; all else with AdamW, as in your loop. `optimizer="adamw"`
# uses AdamW throughout; the paper used Adam to pre-train and SGD to fine-tune. Try both of ours.
#
# Beyond that: batches of 128, a full rate of 0.0015 (Muon: 0.01), weight decay 0.05, 5 % warm-up, gradients
# clipped to length 1, and bfloat16 where a quick trial at the start finds it faster.
#
# - **Watch** the training loss leave 2.30, and the validation loss follow it.
# - **Stop** whenever you like (the ■ button). Nothing is lost.
# - **Run the cell again** and it goes on where it stopped; a finished run is only read back.
#
# 500 validation pictures, from all classes, are enough for a curve.

# %%
picked = torch.randperm(len(validation_data), generator=torch.Generator().manual_seed(0))[:500]
some = validation_data[picked]

# %% [markdown]
# `on_log` is called after each new row of the history; here it redraws the curves while you watch.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = vit_cifar()
config = TrainingConfig(minutes=minutes, evaluations=max(2, round(2 * minutes)), mean=mean, std=std)
directory = Path(os.environ.get("VITLIB_RUNS", "runs")) / f"07-{name}-{minutes:g}min"
result = train(model, train_data, some, config, directory, on_log=plots.LiveCurves())

# %% [markdown]
# Everything that the run was and became is in its folder: four files.

# %%
print(*sorted(file.name for file in directory.iterdir()), sep="\n")
print("finished:", result.finished)

# %% [markdown]
# ### Read the curves

# %% tags=["nbval-ignore-output"]
history = {column: [row[column] for row in result.history] for column in result.history[0]}
panels = {"loss": ["train_loss", "validation_loss"], "accuracy": ["validation_accuracy"]}
plots.show(plots.curves(history, "step", panels), alt="Loss and validation accuracy by step.")

# %% [markdown]
# *Figure: left, the loss on training batches (line) and on 500 validation pictures (dashed); right, the
# share of the validation pictures that is recognised.*
#
# How to read them:
# - **Both losses still fall at the end:** the model has not had enough. More minutes. This is what five
#   minutes give.
# - **Training falls, validation rises:** it learns by heart. More augmentation, more weight decay, or a
#   smaller model.
# - **Validation lies *below* training:** no miracle. The training loss is that of augmented, harder
#   pictures, and an average over steps that are already past.
# - **The last stretch falls fastest:** the learning rate goes to 0, and the weights come to rest.

# %%
rows = result.history
print("every loss is a number:", all(math.isfinite(row["train_loss"]) for row in rows))
print("the last row is the last step, and was evaluated:", rows[-1]["validation_accuracy"] is not None)

# %% [markdown]
# ## Where is it wrong?
#
# One number hides much. `evaluate` measures on all validation pictures and keeps the details.
#
# **Predict:** which class will it know best, and which two will it confuse?

# %% tags=["nbval-ignore-output"]
from vitlib.training import evaluate

measured = evaluate(model, validation_data, mean, std)
print(f"validation accuracy {measured.accuracy:.1%}, loss {measured.loss:.2f}")

# %% [markdown]
# ### Exercise 4 · accuracy class by class (8 minutes)
#
# Of the pictures of each class, which share is recognised? The model's answer is the class with the largest
# logit. A class without pictures gets NaN, "not a number": nobody knows.
#
# <details><summary>Hint</summary>
#
# <code>right = logits.argmax(dim=1) == labels</code>. Then, for each class, the mean of <code>right</code>
# over the pictures of that class. The mean of no numbers is NaN by itself.
#
# </details>

# %% tags=["exercise"]
def per_class_accuracy(logits, labels, num_classes):
    """(B, K) and (B,) -> (K,), from 0 to 1"""
    return TODO  # your code here


per_class_accuracy = checks.use(per_class_accuracy, checks.training.per_class_accuracy)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def per_class_accuracy_solution(logits, labels, num_classes):
    right = (logits.argmax(dim=1) == labels).float()  # (B,), 1 where it is right
    return torch.stack([right[labels == k].mean() for k in range(num_classes)])


# %% [markdown]
# Probabilities have their largest value where the logits have theirs, so they serve as well.

# %% tags=["nbval-ignore-output"]
by_class = per_class_accuracy(measured.probabilities, validation_data.labels, 10)
for k in by_class.argsort(descending=True).tolist():
    print(f"{validation_data.classes[k]:12}{by_class[k]:6.1%}")

# %% [markdown]
# The same, from `vitlib`'s confusion matrix: the diagonal divided by the row.

# %%
print("vitlib counts the same:", torch.allclose(by_class.float(), measured.per_class_accuracy, atol=1e-6))

# %% [markdown]
# The confusion matrix says *what* a class is taken for. Look for bright squares off the diagonal.

# %% tags=["nbval-ignore-output"]
plots.show(
    plots.confusion_matrix(measured.confusion, validation_data.classes),
    alt="Confusion matrix of the ten classes.",
)

# %% [markdown]
# *Figure: each row is a true class, each column a predicted one; a number counts pictures, a colour is its
# share of the row. A perfect model has a diagonal only. On CIFAR-10, cats and dogs, cars and trucks are
# taken for each other.*

# %%
print("every picture is counted once:", measured.confusion.sum().item() == len(validation_data))
share = measured.confusion.trace().item() / len(validation_data)
print("the diagonal is what is right:", abs(share - measured.accuracy) < 1e-6)

# %% [markdown]
# Now look at the pictures: the mistakes of which the model is surest. Wrong labels, odd views and plain
# errors all show up here, and each asks for another remedy.

# %% tags=["nbval-ignore-output"]
confidence, guess = measured.probabilities.max(dim=1)  # (N,), (N,)
wrong = guess != validation_data.labels
worst = (confidence * wrong).argsort(descending=True)[:10]
shown = validation_data[worst]
plots.show(
    plots.predictions(shown.images, shown.labels, measured.probabilities[worst], shown.classes),
    alt="Ten pictures with a wrong answer of great confidence.",
)

# %% [markdown]
# *Figure: the ten validation pictures that the model got wrong with the greatest confidence: what it says
# with which probability, and below it the truth.*

# %%
print("all ten are mistakes:", wrong[worst].all().item())
print("from the surest down:", (confidence[worst].diff() <= 0).all().item())

# %% [markdown]
# ## Keep it, stop it, go on
#
# `model.safetensors` holds the weights, and beside them all that is needed to use them: the model's
# configuration, the class names, mean and standard deviation. So one line brings the model back, in another
# notebook or another year.

# %%
again = load(directory / "model.safetensors")
here = evaluate(model, some[:16], mean, std).probabilities
print("the same probabilities:", torch.allclose(again.predict(some.images[:16]), here, atol=1e-4))

# %% [markdown]
# What if you need the laptop before the run is over? Let us stop a run of the tiny model, in the same way as
# the ■ button does, and then call `train` again with a new, untrained model. It reads the last checkpoint
# and goes on. (A stop writes one last checkpoint. A crash cannot; but one is written every 30 seconds, and
# more than those it does not cost.)

# %% tags=["nbval-ignore-output"]
import signal


def press_stop(history):
    if history[-1]["step"] == 15:
        signal.raise_signal(signal.SIGINT)  # what the ■ button sends


two_passes = TrainingConfig(epochs=2, **short)
train(tiny_vit(), few, few[:100], two_passes, fresh("07-stopped"), on_log=press_stop)
resumed = tiny_vit()
train(resumed, few, few[:100], two_passes, Path("runs/07-stopped"));

# %% [markdown]
# **Predict:** are its weights the same as those of a run that was never stopped? About the same? Neither?

# %%
never_stopped = tiny_vit()
train(never_stopped, few, few[:100], two_passes, fresh("07-whole"))
pairs = zip(resumed.parameters(), never_stopped.parameters(), strict=True)
print("the same weights, to the last bit:", all(torch.equal(a, b) for a, b in pairs))

# %% [markdown]
# To the last bit, on the same machine. For this, a checkpoint must hold more than weights: the optimizer's
# memory and the number of the step. Order and augmentation of the pictures follow from the seed and the
# step, as you saw in the loop.
#
# ## The test, once
#
# All choices are made. Only now do the test pictures come out of their drawer.

# %% tags=["nbval-ignore-output"]
tested = evaluate(model, test_data, mean, std)
uncertainty = math.sqrt(tested.accuracy * (1 - tested.accuracy) / len(test_data))  # standard error
print(f"test accuracy       {tested.accuracy:.1%} ± {uncertainty:.1%}")
print(f"validation accuracy {measured.accuracy:.1%}, known before the test")

# %% [markdown]
# The ± is one standard error: of many test sets as large as this one, two in three would give a number
# within it. Now take out your guess. By how many of these ± does it miss?
#
# Is the distance between the two numbers no more than chance? Both vary, so their squared errors add up.
# Chance almost never makes more than four standard errors.

# %%
variance = measured.accuracy * (1 - measured.accuracy) / len(validation_data)
distance = abs(tested.accuracy - measured.accuracy)
print("within four standard errors:", distance <= 4 * math.sqrt(uncertainty**2 + variance))

# %% [markdown]
# The two agree, since you chose nothing by either. Had you picked the best of fifty runs by validation, its
# validation accuracy would be too high, and only the test would tell.
#
# ### Is that good?
#
# A pass over the training pictures is an *epoch*. Good recipes take hundreds.

# %% tags=["nbval-ignore-output"]
passes, used = result.history[-1]["epoch"], result.history[-1]["minutes"]
print(f"{passes:.2f} passes in {used:.1f} minutes")
print(f"300 passes would take {300 / passes * used / 60:.1f} hours on this machine")

# %% [markdown]
# `vitlib` ships the same model after a longer run. Its file says what it reached on the test pictures:

# %%
shipped = load("cifar10")
print(f"shipped vit_cifar, test accuracy: {shipped.notes['test_accuracy']:.1%}")

# %% [markdown]
# What others reached with plain ViTs, trained on CIFAR-10's 50,000 pictures alone. ("Plain": patches,
# linear embedding, encoder, no convolutions.) The figures are the authors' own, as quoted in their
# repositories and papers; we did not repeat those runs. Several public recipes choose their best epoch by
# the test pictures: read such numbers as a little too high.
#
# | test accuracy | model | how | who |
# |---|---|---|---|
# | 75.5 % | $D$ 48, $L$ 4, 0.12 million parameters | 100 epochs | [tintn] |
# | 75.6 % | $D$ 256, $L$ 6 | 180 epochs, AdamW, flips and crops | UvA Deep Learning, tutorial 15 |
# | 80 / 85 / 89 % | $D$ 512, $L$ 6, 9.5 million | 200 / 500 / 1000 epochs, Adam, RandAugment | [kentaroy47] |
# | 91.4 % | $D$ 256, $L$ 7, 3.7 million (ViT-Lite-7/4) | 200 epochs, AdamW | [Hassani et al. 2021] |
# | 96.4 % | 2.8 million | first taught without labels, on CIFAR's own pictures | [hananshafi] |
#
# [tintn]: https://github.com/tintn/vision-transformer-from-scratch
# [kentaroy47]: https://github.com/kentaroy47/vision-transformers-cifar10
# [Hassani et al. 2021]: https://arxiv.org/abs/2104.05704
# [hananshafi]: https://github.com/hananshafi/vits-for-small-scale-datasets
#
# **And the 99.5 %?** They are not from scratch. The paper's models first learned from 14 million
# (ImageNet-21k) or 300 million (JFT) *other* pictures and then saw CIFAR-10 for a little while (Table 2). A
# ViT knows nothing about pictures beforehand, not even that neighbouring pixels belong together; it learns
# that from many pictures, or from many passes over few. So in five minutes a laptop can show you every part
# of training at work, and a model far above chance. It cannot give you 90 %: that takes hundreds of passes
# and strong augmentation.
#
# ## Your own picture
#
# `load_picture` turns a photograph upright, lays transparent parts on white, shrinks its shorter side to
# what the model wants and cuts out the middle. Here it is a cat that scikit-image brings along. For your
# own, put its file beside this notebook and write `photo = "my_photo.jpg"`.

# %%
import skimage

from vitlib.data import load_picture

photo = Path(skimage.__file__).parent / "data" / "chelsea.png"
picture = load_picture(photo, 32)  # uint8 (3, 32, 32)
plots.show(
    plots.picture_grid([load_picture(photo, 256), picture], ["for you", "for the model"]),
    alt="A cat's face, and the same at 32x32 pixels.",
)

# %% [markdown]
# *Figure: left the middle of the photograph, right the 32x32 pixels that the model gets.*

# %%
probabilities = shipped.predict(picture[None])[0]  # (10,)
plots.show(
    plots.class_bars(probabilities, shipped.classes),
    alt="The five likeliest classes of the photograph, as bars.",
)

# %% [markdown]
# *Figure: the five classes that the shipped model finds likeliest for this photograph, with their
# probabilities.*
#
# With `again.predict` you ask your own model. A whole folder of pictures, one folder a class, is read by
# `vitlib.data.image_folder`, and trains with the same cells as above: give it in place of `cifar10(...)`.
# Whatever you show it, the answer is one of its classes: it has no "none of these".
#
# ## Common mistakes
#
# | symptom | usual cause | what to do |
# |---|---|---|
# | the loss stays at 2.30 | rate far too small; labels of other pictures | overfit one batch; look at it |
# | the loss sticks at 1.46 | softmax before `cross_entropy` | give it the logits |
# | always the same class | pictures sorted by class; rate too high | shuffle; questions 2 and 3 |
# | NaN | rate too high; no warm-up; NaN in the data | read the error of `train`: it names the step |
# | out of memory | large batches; many tokens, squared in attention | halve `batch_size`; restart kernels |
# | size mismatch | other pictures or classes than the model's | `model.resize(...)`, `num_classes=...` |
# | validation beats training | training pictures are augmented | nothing: see *Read the curves* |
# | slow on a CPU | a large model; other programs | `vit_cifar`; close them; a machine with a GPU |
# | the download fails | no internet; a proxy; half a file | the three remedies in the error's text |
# | right in training, wrong in use | pictures prepared in another way | the same `normalize`, colours, size |
#
# The most frequent ones, now on purpose.
#
# **The loss stays at 2.30, or sinks to 1.46.** Question 4, overfitting one batch, with one bug at a time,
# on the tiny model and 32 shapes. **Predict** all three before you look: which curve goes where?

# %% tags=["nbval-ignore-output"]
pictures, answers = normalize(few.images[:32], SHAPES_MEAN, SHAPES_STD), few.labels[:32]
task = pictures, answers, 60  # steps
bugs = {
    "no bug": overfit(tiny_vit(), *task, 3e-3),
    "rate 1e-6": overfit(tiny_vit(), *task, 1e-6),
    "labels shuffled": overfit(tiny_vit(), *task, 3e-3, lambda z, y: cross_entropy(z, y[torch.randperm(32)])),
    "softmax twice": overfit(tiny_vit(), *task, 3e-3, lambda z, y: cross_entropy(z.softmax(dim=1), y)),
}
plots.show(
    plots.curves({"step": range(60), **bugs}, "step", {"loss": list(bugs)}),
    alt="Four loss curves, three of them with a bug.",
)

# %% [markdown]
# *Figure: the loss on one batch. Without a bug it falls to 0. With a learning rate that is far too small,
# and with labels shuffled apart from their pictures, it stays: these two curves lie almost on each other,
# near 2.30. With softmax twice it falls, and then it sticks above 1.46.*

# %%
for bug, losses in bugs.items():
    last = losses[-1]
    print(f"{bug:16}below 0.1: {last < 0.1!s:6} above 1.46: {last > 1.46!s:6} above 2.2: {last > 2.2}")

# %% [markdown]
# Why 1.46? `cross_entropy` takes softmax of what it gets. Feed it probabilities, and even a *perfect*
# answer, 1 for the true class and 0 for the others, is softened to $e/(e + 9)$:

# %%
perfect = torch.zeros(1, 10)
perfect[0, 3] = 1
print(f"{cross_entropy(perfect, torch.tensor([3])).item():.4f}")

# %% [markdown]
# **Always the same class.** Here the pictures come sorted by class, as from any folder with one subfolder a
# class. Take the batches in that order, and each teaches the model to forget the one before. **Predict:**
# after five steps on discs, then five on rings, squares and so on up to the last class, what does it say?

# %%
forgetful = tiny_vit()
for k in range(10):
    of_class = normalize(few.images[few.labels == k], SHAPES_MEAN, SHAPES_STD)  # (64, 3, 32, 32)
    overfit(forgetful, of_class, torch.full((64,), k), steps=5, learning_rate=3e-3)
answers = forgetful(normalize(few.images, SHAPES_MEAN, SHAPES_STD)).argmax(dim=1)
print("answers by class:", *answers.bincount(minlength=10).tolist())

# %% [markdown]
# **NaN.** A learning rate that is a million times too high. `train` stops at the first loss or gradient
# that is not a number, says so, and leaves the last good checkpoint alone.

# %% tags=["nbval-ignore-output"]
import textwrap

broken = tiny_vit()
wild = TrainingConfig(epochs=2, learning_rate=1e6, **short)
try:
    train(broken, few, few[:100], wild, fresh("07-nan"))
except FloatingPointError as error:
    print(textwrap.fill(f"FloatingPointError: {error}", 95))

# %% [markdown]
# It stopped before that step was taken. So the weights are numbers still, if useless ones; a single NaN
# among them would spread to every logit.

# %%
largest = max(parameter.abs().max().item() for parameter in broken.parameters())
print("all weights are numbers:", math.isfinite(largest))
print("above a thousand:", largest > 1000)

# %% [markdown]
# **Size mismatch.** A model for 32x32 gets a picture of 64x64. The error names both sizes, and the remedy.

# %%
try:
    shipped.model(torch.zeros(1, 3, 64, 64))
except ValueError as error:
    print(textwrap.fill(f"ValueError: {error}", 95))

# %% [markdown]
# **Right in training, wrong in prediction.** Nothing complains here: the shape is right, the numbers are
# not. The shipped model of shapes, on 500 pictures that it has never seen, with its own preparation and
# with two that were forgotten:

# %%
expert, unseen = load("shapes"), shapes("test", 500)
prepared = {
    "as in training": normalize(unseen.images, expert.mean, expert.std),
    "not normalised": unseen.images / 255,
    "pixels 0 to 255": unseen.images.float(),
}
with torch.no_grad():
    guesses = {how: expert.model(images).argmax(dim=1) for how, images in prepared.items()}

# %% [markdown]
# **Predict:** how much does it lose?

# %% tags=["nbval-rtol=0.02"]
for how, guess in guesses.items():
    print(f"{how:18}{(guess == unseen.labels).float().mean():.3f}")

# %% [markdown]
# This is why a checkpoint of `vitlib` carries mean and standard deviation, and why `predict` takes bytes
# and prepares them itself.
#
# ## Whose pictures?
#
# CIFAR-10 comes without a licence. Its pictures were collected from the web, as a part of a larger
# collection, *80 Million Tiny Images*, that its makers withdrew in 2020. So learn with it, but do not pass it
# on. `vitlib`'s code and the weights that it ships are under the MIT licence; for weights from elsewhere read
# theirs. Ask people before you put their pictures into a training folder, and do not use a model like this
# one to judge anything about a person: it has no class for people, and would call your friend a frog.

# %%
checks.progress()

# %% [markdown]
# Above: how many exercises of each lesson you have solved so far.
#
# ## Recap
#
# - A model that knows nothing has loss $\ln 10$ = 2.30. Start there, then overfit one batch, before
#   anything long.
# - The loop: pick, augment, normalise, forward, loss, backward, clip, step. All else is bookkeeping.
# - Warm-up and cosine; decay for matrices only; the budget decides the schedule.
# - Validation chooses, the test measures once. From scratch, five minutes are not 99.5 %.
# - Preparation belongs to the model: the same in training and in prediction.
#
# Previous: [06 Vision Transformer](06_vision_transformer.ipynb) · Next:
# [08 Attention maps](08_attention_maps.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, section 4.1, Table 2 and appendix
# B.1 · Krizhevsky 2009, *Learning Multiple Layers of Features from Tiny Images* · Loshchilov & Hutter 2017
# (cosine) and 2019 (AdamW) · Jordan et al. 2024 (Muon) · Hassani et al. 2021 (Compact Transformers)
