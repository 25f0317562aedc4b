# %% [markdown]
# # The encoder block: what attention needs around it
#
# > You build the block that a Vision Transformer repeats twelve times, and measure why attention needs the
# > norms and residuals around it.
#
# **After this lesson you can**
# - compute the LayerNorm of a token by hand, and say which numbers BatchNorm averages instead;
# - say what the MLP, the residual connections and the norms are for, and show it with a measurement;
# - tell pre-norm from post-norm in code, and say why a deep stack prefers one of them;
# - write DropPath, and a stack of blocks that you prove equal to PyTorch's;
# - count the parameters of a block on paper.
#
# 45 minutes to read, 33 for the exercises · under 1 minute to run · needs attention from [04
# Attention](04_attention.ipynb); the experiments also use tokens, class token and positions from lessons 01
# to 03

# %%
from vitlib import diagrams, plots

plots.show(
    diagrams.vit_map("encoder"),
    alt="The model as a map, from a picture to its class. "
    "The encoder block is framed: attention and an MLP, L times.",
)

# %% [markdown]
# *Figure: the map of the series. Here you build what stands around attention, and stack the block L times.*
#
# ## Is attention not enough?
#
# Attention lets tokens look at each other. So why not stack it, twelve layers of attention, and be done? Take
# four tokens of four numbers, and send them through three layers. Each row is one token. **Look for** what
# happens to the differences between the rows.

# %%
import torch
from torch import nn

from vitlib import checks
from vitlib.attention import MultiHeadAttention
from vitlib.checks import TODO
from vitlib.checks import encoder as exercises

# %%
torch.manual_seed(0)
states = [torch.randn(1, 4, 4)]  # (B, T, D)
with torch.no_grad():
    for _ in range(3):
        layer = MultiHeadAttention(embed_dim=4, num_heads=2)
        states.append(layer(states[-1])[0])  # attention gives back tokens and weights

# %%
plots.show(
    plots.number_tables(
        [tokens[0] for tokens in states],
        titles=["tokens", "after 1 layer", "after 2 layers", "after 3 layers"],
        colors=["signed"] * 4,
        form="{:.2f}",
        axes=[("token", "its numbers"), None, None, None],
    ),
    alt="Four tables of 4 by 4 numbers. Rows differ in the first, and are alike in the last two.",
)

# %% [markdown]
# *Figure: four tokens (rows) of four numbers before and after layers of attention with random weights. After
# two layers every row is the same, to two decimals.*
#
# Attention gives each token a *mean* of what all tokens hold. Means are more alike than what went into them,
# and means of means more so. After a few layers every token holds the same numbers, and nothing of the
# picture is left. How much of the numbers is difference between tokens?

# %%
def difference(tokens):
    """The part of (B, T, D) that differs from token to token: 0 if none does, 1 at most."""
    return ((tokens - tokens.mean(dim=1, keepdim=True)).norm() / tokens.norm()).item()


# %%
print("layers   difference")
for layers, tokens in enumerate(states):
    print(f"{layers:6} {difference(tokens):12.4f}")

# %% [markdown]
# This is called *rank collapse* (Dong et al. 2021 prove it for attention alone). So the block puts four
# things around attention. You build them one at a time:
#
# | part | its job |
# |---|---|
# | LayerNorm | keep the numbers of each token in one range |
# | MLP | work on each token by itself |
# | residual connection | add to what a token holds, do not replace it |
# | dropout, DropPath | in training, leave parts out, so that no part is relied on alone |
#
# ## LayerNorm by hand
#
# Four numbers: 1, 1, 5, 5. Their mean is 3. From it they differ by −2, −2, 2, 2. The mean of the squares of
# these is 4: the **variance**. Its root is 2. Subtract the mean, divide by the root: −1, −1, 1, 1.
#
# **Predict** the second and the third row before you run.

# %%
toy = torch.tensor([[1, 1, 5, 5], [10, 10, 50, 50], [7, 7, 7, 7.0]])  # three tokens (T, D)
mean = toy.mean(dim=-1, keepdim=True)  # (T, 1)
variance = ((toy - mean) ** 2).mean(dim=-1, keepdim=True)  # (T, 1)
(toy - mean) / variance.sqrt()

# %% [markdown]
# Row two is row one, ten times as large, and comes out the same: LayerNorm makes size disappear and keeps the
# pattern. Row three has no spread, and 0/0 is `nan`. So a tiny number $\varepsilon$ (`eps`, here
# $10^{-6}$) is added to the variance, **inside** the root:
#
# $$\mathrm{LN}(x) = \gamma\,\frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{variance}(x) + \varepsilon}} + \beta$$
#
# $\gamma$ (`weight`) and $\beta$ (`bias`) are learned, one number for each channel. They begin at 1 and 0,
# and let the model give a channel another size again. Is this what PyTorch computes?

# %%
by_hand = (toy - mean) / (variance + 1e-6).sqrt()
print(by_hand)
assert torch.allclose(by_hand, nn.LayerNorm(4, eps=1e-6)(toy), atol=1e-6)
print("the same as nn.LayerNorm")

# %% [markdown]
# ## Which numbers are averaged?
#
# You know BatchNorm from CNNs. It subtracts a mean and divides by a root, too. The difference is *whose*
# mean. Two pictures, three tokens each, four channels. **Look at** the
# blue numbers of each row of tables: they share one mean.

# %%
generator = torch.Generator().manual_seed(1)
pictures = torch.randint(0, 10, (2, 3, 4), generator=generator).float()  # (B, T, D)

# %%
one_token = [["patch"] * 4 if row == 0 else ["neutral"] * 4 for row in range(3)]
one_channel = [["patch", *["neutral"] * 3]] * 3
nobody = [["neutral"] * 4] * 3
for norm, colors in {"LayerNorm": [one_token, nobody], "BatchNorm": [one_channel] * 2}.items():
    plots.show(
        plots.number_tables(
            list(pictures),
            titles=[f"{norm}, picture 1", f"{norm}, picture 2"],
            rows=[["token 0", "token 1", "token 2"], None],
            colors=colors,
        ),
        alt=f"Two pictures of 3 tokens and 4 channels. Blue: what {norm} averages.",
    )

# %% [markdown]
# *Figure: rows are tokens, columns are channels. Above, LayerNorm averages one token, across its
# channels. Below, BatchNorm averages one channel, across all tokens of all pictures.*
#
# In code the two differ in the axes alone:

# %%
def standardise(tokens, axes, eps=1e-6):
    mean = tokens.mean(dim=axes, keepdim=True)
    variance = ((tokens - mean) ** 2).mean(dim=axes, keepdim=True)
    return (tokens - mean) / (variance + eps).sqrt()


# %%
layer_norm_pytorch = nn.LayerNorm(4, eps=1e-6)(pictures)
batch_norm_pytorch = nn.BatchNorm1d(4, eps=1e-6)(pictures.flatten(0, 1)).view_as(pictures)
assert torch.allclose(standardise(pictures, axes=(2,)), layer_norm_pytorch, atol=1e-5)
assert torch.allclose(standardise(pictures, axes=(0, 1)), batch_norm_pytorch, atol=1e-5)
print("axes (2,) is LayerNorm, axes (0, 1) is BatchNorm")

# %% [markdown]
# It matters who sits beside you. Exchange picture 2 for another one. **Predict:** for which of the two norms
# does *picture 1* change?

# %%
others = pictures.clone()
others[1] = torch.arange(12).view(3, 4)
for name, axes in (("LayerNorm", (2,)), ("BatchNorm", (0, 1))):
    same = torch.allclose(standardise(pictures, axes)[0], standardise(others, axes)[0])
    print(f"{name}: picture 1 stays as it was: {same}")

# %% [markdown]
# With BatchNorm a picture's numbers depend on the rest of the batch. That is why it needs running means for
# evaluation, and suffers in small batches. LayerNorm treats every token alone, in training as in evaluation.
#
# ### Exercise 1 · LayerNorm (5 minutes)
#
# Write it with `weight` and `bias`. The variance divides by the number of channels, as above.
#
# <details><summary>Hint</summary>
#
# Beware of <code>tokens.var()</code>: PyTorch's default divides by one less than the number of values. Either
# pass <code>unbiased=False</code>, or take the mean of the squares as above. Keep the last axis with
# <code>keepdim=True</code>.
#
# </details>

# %% tags=["exercise"]
def layer_norm(tokens, weight, bias, eps):
    """(B, T, D), (D,), (D,), a number -> (B, T, D)"""
    return TODO  # your code here


layer_norm = checks.use(layer_norm, exercises.layer_norm)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def layer_norm_solution(tokens, weight, bias, eps):
    mean = tokens.mean(dim=-1, keepdim=True)  # (B, T, 1)
    variance = tokens.var(dim=-1, keepdim=True, unbiased=False)  # (B, T, 1)
    return (tokens - mean) / (variance + eps).sqrt() * weight + bias


# %% [markdown]
# ## The MLP: each token by itself
#
# Attention moves information *between* tokens. What it brings is a weighted sum of the values, and the values
# are a linear map of the tokens. Something has to work on what was brought. That is the MLP: a linear map to
# four times the width (paper, Table 1: 768 and 3072 in ViT-B), a **bend** (a nonlinearity, as after the
# convolutions of a CNN), and a linear map back.
#
# Why the bend? **Look for** `True`: without it, the two linear maps are a single one.

# %%
torch.manual_seed(0)
expand, contract = nn.Linear(6, 24), nn.Linear(24, 6)
tokens = torch.randn(2, 3, 6)
weight = contract.weight @ expand.weight  # (6, 6)
bias = contract.weight @ expand.bias + contract.bias
torch.allclose(contract(expand(tokens)), tokens @ weight.T + bias, atol=1e-6)

# %% [markdown]
# The bend of the Vision Transformer is **GELU**: $\mathrm{GELU}(x) = x\,\Phi(x)$, where $\Phi(x)$ is the
# share of a normal distribution below $x$. ReLU multiplies by 0 or 1; GELU multiplies by something in
# between. There are two forms: with the exact $\Phi$ (the function `erf`), and with a `tanh` that comes
# close and was once faster.

# %%
x = torch.linspace(-4, 4, 801)
phi = 0.5 * (1 + torch.erf(x / 2**0.5))  # the share of a normal distribution below x
phi_by_tanh = 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
erf_form, tanh_form = x * phi, x * phi_by_tanh

# %%
plots.show(
    plots.line_chart({"GELU": (x, erf_form), "ReLU": (x, x.relu())}, "x", "output"),
    alt="GELU and ReLU between minus 4 and 4. GELU is smooth and dips a little below 0 left of 0.",
)

# %% [markdown]
# *Figure: GELU is ReLU with its corner rounded. It dips below 0, so a slightly negative input still has a
# gradient.*
#
# The paper's own code uses the tanh form, PyTorch's default is the erf form. **How far apart** are they?

# %%
assert torch.allclose(erf_form, nn.GELU()(x), atol=1e-6)
assert torch.allclose(tanh_form, nn.GELU(approximate="tanh")(x), atol=1e-6)
print(f"largest difference: {(erf_form - tanh_form).abs().max():.1e}")

# %% [markdown]
# Too little to see on the chart. But weights that were trained with one form can give other last digits when
# they run with the other.
#
# Here is the finished MLP. Its dropout comes later in this lesson; at 0.0 it does nothing.

# %% tags=["finished"]
class MLP(nn.Module):
    """Two linear layers with a GELU between them, applied to each token on its own.

    `gelu` is "erf" (exact) or "tanh" (the approximation that the paper's code uses).
    Shapes: (B, T, D) -> (B, T, D), through (B, T, hidden_dim).
    """

    def __init__(self, embed_dim, hidden_dim, dropout=0.0, gelu="erf"):
        super().__init__()
        if gelu not in ("erf", "tanh"):
            raise ValueError(f'gelu must be "erf" or "tanh", got {gelu!r}.')
        self.expand = nn.Linear(embed_dim, hidden_dim)
        self.gelu = nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
        self.contract = nn.Linear(hidden_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens):
        hidden = self.dropout(self.gelu(self.expand(tokens)))  # (B, T, hidden_dim)
        return self.dropout(self.contract(hidden))  # (B, T, D)


# %% [markdown]
# **Predict:** change the second token. Which tokens come out different?

# %%
mlp = MLP(embed_dim=6, hidden_dim=24)
changed = tokens.clone()
changed[:, 1] += 1
moved = (mlp(tokens) - mlp(changed)).abs().amax(dim=(0, 2))  # (T,)
print("changed:", [bool(distance > 1e-6) for distance in moved])

# %% [markdown]
# Only the second. Attention mixes tokens, the MLP does not: the two take turns.
#
# ## The residual: add, do not replace
#
# In a stack of plain layers, each layer *replaces* the tokens. With a residual connection (He et al. 2015,
# you know it from ResNet) a layer *adds*: $z \leftarrow z + f(z)$. Call $f$ a **branch**, and the sum that
# runs through all layers the **residual stream**.
#
# We measure both. For that, a block of two branches, attention and MLP, each with a LayerNorm at hand. The
# linear maps start as in the paper's code (Xavier).

# %%
def make_block(embed_dim, num_heads):
    """Two pairs (branch, norm): attention and MLP."""
    attention, mlp = MultiHeadAttention(embed_dim, num_heads), MLP(embed_dim, 4 * embed_dim)
    for linear in (attention.qkv, attention.output, mlp.expand, mlp.contract):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    norms = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
    return (lambda tokens: attention(tokens)[0], norms[0]), (mlp, norms[1])


# %% [markdown]
# The three ways to use a branch that we compare first:

# %%
def replace(tokens, branch, norm):
    return branch(tokens)


def add(tokens, branch, norm):
    return tokens + branch(tokens)


def pre_norm(tokens, branch, norm):
    return tokens + branch(norm(tokens))


# %% [markdown]
# And a walk through many blocks that keeps what the tokens are after each.

# %%
def walk(tokens, blocks, step):
    """The tokens before the first block and after each: a list, one longer than the blocks."""
    states = [tokens]
    for block in blocks:
        for branch, norm in block:
            tokens = step(tokens, branch, norm)
        states.append(tokens)
    return states


# %% [markdown]
# Now 24 blocks. The **signal** is the standard deviation of the tokens' numbers after each block. For the
# **gradient**, the last tokens are summed up with random weights, as if that were the loss, and we take the
# gradient at the tokens after each block. **Predict:** what happens to both over 24 blocks if layers replace?
# If they add? (In numbers of 64 bits: what explodes magnifies each rounding.)

# %%
steps = {"replace": replace, "add": add, "norm, then add": pre_norm}
signal, gradient = {}, {}
torch.set_default_dtype(torch.float64)
for name, step in steps.items():
    torch.manual_seed(0)
    blocks = [make_block(64, 4) for _ in range(24)]
    states = walk(torch.randn(4, 17, 64, requires_grad=True), blocks, step)
    end = (states[-1] * torch.randn(4, 17, 64)).mean()
    gradients = torch.autograd.grad(end, states)
    signal[name] = (range(25), [tokens.std().item() for tokens in states])
    gradient[name] = (range(25), [g.norm().item() for g in gradients])
torch.set_default_dtype(torch.float32)

# %% tags=["nbval-rtol=0.02"]
plots.show(
    plots.line_chart(signal, "blocks passed", "standard deviation of the tokens", yscale="log"),
    alt="Signal over 24 blocks on a logarithmic scale: it vanishes, it explodes, or it triples.",
)

# %% [markdown]
# *Figure: the size of the tokens' numbers (logarithmic). Where layers replace, the signal fades with each
# block. Where they add without a norm it grows about a thousandfold, with a norm before each branch to three
# and a half times its size.*

# %% tags=["nbval-rtol=0.02"]
plots.show(
    plots.line_chart(gradient, "blocks passed", "norm of the gradient", yscale="log"),
    alt="Gradient norm by block, logarithmic; from the right end back to the first block.",
)

# %% [markdown]
# *Figure: the gradient that reaches the tokens at each depth (logarithmic). Read from right to left, the way
# it travels: where layers replace it fades, where they add without a norm it explodes, and with a norm it
# stays within a factor of four.*

# %% tags=["nbval-rtol=0.02"]
for name in signal:
    after, back = signal[name][1][-1], gradient[name][1][0] / gradient[name][1][-1]
    print(f"{name:15} signal after 24 blocks: {after:.1e}   gradient left at the first: {back:.1e}")

# %% [markdown]
# Where layers replace, less than a trillionth of the gradient comes back to the first block: it would not
# learn. A residual alone trades fading for exploding: each branch reads larger numbers and adds larger ones.
# **Residual and norm together** keep signal and gradient within a factor of four. Along the sums the gradient
# has a path on which nothing multiplies it, and each branch reads numbers of one size, however large the
# stream has become. On the way back the norm helps as well: it divided by the size of the stream, so the
# gradient that comes out of a branch is divided by that size, too.
#
# And the collapse from the beginning of the lesson? **Predict:** is adding enough to keep the tokens apart?

# %%
with torch.no_grad():
    torch.manual_seed(0)
    blocks = [make_block(64, 4) for _ in range(24)]
    tokens = torch.randn(4, 17, 64)
    print(f"difference at the start: {difference(tokens):.2f}, and after 24 blocks:")
    for name, step in steps.items():
        print(f"{name:15} {difference(walk(tokens, blocks, step)[-1]):.2f}")

# %% [markdown]
# Not for long. Without a norm, what the branches add grows with the stream, and drowns what the tokens were.
# Behind a norm, what is added keeps its size, and the tokens stay apart.
#
# ## Where does the norm go?
#
# There are two places for it. The first Transformer (Vaswani et al. 2017) normed after each sum; the Vision
# Transformer norms before each branch. **Look:** in which one can you follow the thick line from left to
# right without passing a norm?

# %%
plots.show(
    diagrams.block_wiring(),
    alt="Two diagrams of a block. Pre-norm: norm and attention on a branch, added to the stream; "
    "the same with norm and MLP. Post-norm: the norms sit on the stream, after each sum.",
)

# %% [markdown]
# *Figure: the thick line is the residual stream, the thin ones are branches. Above, pre-norm, as in the
# Vision Transformer (paper, figure 1, laid flat). Below, post-norm.*
#
# As code, pre-norm was `tokens + branch(norm(tokens))`. Post-norm:

# %%
def post_norm(tokens, branch, norm):
    return norm(tokens + branch(tokens))


# %% [markdown]
# Which one trains better? Begin with the gradients of a fresh stack of 24 blocks with a classifier behind it:
# in each block, the gradient of the MLP's second matrix, `mlp.contract.weight`.

# %%
def gradients_by_block(step, seed, depth):
    """The norm of the gradient of each block's last matrix, (depth,)."""
    torch.manual_seed(seed)
    blocks = [make_block(64, 4) for _ in range(depth)]
    last = walk(torch.randn(4, 17, 64), blocks, step)[-1]
    logits = nn.LayerNorm(64)(last)[:, 0] @ torch.randn(64, 10) / 64**0.5  # from the first token
    loss = nn.functional.cross_entropy(logits, torch.arange(4))
    matrices = [mlp.contract.weight for _, (mlp, _) in blocks]
    return torch.stack([g.norm() for g in torch.autograd.grad(loss, matrices)])


# %%
lines, last_of_6 = {}, {}
for name, step in {"pre-norm": pre_norm, "post-norm": post_norm}.items():
    seeds = torch.stack([gradients_by_block(step, seed, 24) for seed in range(5)])  # (5, 24)
    lines[name] = (range(1, 25), seeds.mean(dim=0), seeds.std(dim=0))
    last_of_6[name] = sum(gradients_by_block(step, seed, 6)[-1] for seed in range(5)) / 5

# %% tags=["nbval-rtol=0.02"]
plots.show(
    plots.line_chart(lines, "block", "norm of the gradient"),
    alt="Gradient norm by block: pre-norm falls from above 3 to below 1, post-norm stays near 3.",
)

# %% [markdown]
# *Figure: the gradient of the MLP's second matrix in each of 24 blocks at the start of training. Mean of five
# seeds, the band is one standard deviation.*

# %% tags=["nbval-rtol=0.05"]
for name, (_, mean, _) in lines.items():
    first, last, of_6 = mean[0], mean[-1], last_of_6[name]
    print(f"{name:10} of 24 blocks: first {first:.2f}, last {last:.2f}   of 6: last {of_6:.2f}")

# %% [markdown]
# (Means of the same five seeds.) In pre-norm the stream grows, and the last norm divides by its size: with
# 24 blocks the last one gets half the gradient that it gets with 6. In post-norm it does not shrink. Xiong
# et al. 2020 found the same, and say that post-norm therefore needs a **warm-up**, a learning rate that
# rises slowly from 0: at the full rate its first steps are too large.
#
# True? Twelve blocks of PyTorch's own, which have a switch for it (`norm_first`), learn ten drawn shapes.
# That takes some minutes, so `experiments/encoder.py` ran it with three seeds and stored what came out.

# %%
from vitlib import results

stored = results.load("encoder")
every = stored["config"]["every"]
lines = {}
for name, seeds in stored["losses"].items():
    losses = torch.tensor(list(seeds.values()))  # (seeds, steps / every)
    steps_taken = torch.arange(1, losses.shape[1] + 1) * every
    lines[name] = (steps_taken, losses.mean(dim=0), losses.std(dim=0))

# %%
plots.show(
    plots.line_chart(lines, "step", "training loss"),
    alt="Training loss by step: pre-norm falls; post-norm stays near 2.3, falls late with warm-up.",
)

# %% [markdown]
# *Figure: training loss of 12 blocks at learning rate 0.001, mean of three seeds, the band is one standard
# deviation. Guessing among ten classes gives 2.30.*

# %%
for names in (("depth", "embed_dim", "learning_rate"), ("batch_size", "steps", "warmup_steps")):
    print(", ".join(f"{name} {stored['config'][name]}" for name in names))
for name, seeds in stored["losses"].items():
    last = " ".join(f"{losses[-1]:.2f}" for losses in seeds.values())
    print(f"{name:20} last loss of each seed:", last)

# %% [markdown]
# Same blocks, same learning rate, same pictures: pre-norm learns, post-norm stays at guessing. With warm-up
# it begins to learn, and is still behind after as many steps. (That is at this size and this rate. With
# enough care post-norm trains as well: the first Transformer did. And the size of the gradients need not be
# the reason: AdamW, with which these runs were made, evens out their sizes.)
#
# Do not take a stored file on trust. Here are the first 20 steps of two of the runs, live.

# %%
from vitlib.class_token import ClassToken
from vitlib.data import normalize, shapes
from vitlib.patch_embedding import PatchEmbedding
from vitlib.positional_encoding import LearnedPositionalEncoding


# %%
def make_model(pre_norm, depth, embed_dim, num_heads, patch_size):
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": pre_norm}
    model = nn.Sequential(
        PatchEmbedding(32, patch_size, 3, embed_dim),
        ClassToken(embed_dim),
        LearnedPositionalEncoding((32 // patch_size) ** 2 + 1, embed_dim),
        *[
            nn.TransformerEncoderLayer(embed_dim, num_heads, 4 * embed_dim, **options)
            for _ in range(depth)
        ],
        nn.LayerNorm(embed_dim),
        nn.Linear(embed_dim, 10),
    )
    for module in model.modules():  # Xavier weights, as in the paper's code
        for name, weight in module.named_parameters(recurse=False):
            if weight.ndim == 2 and name.endswith("weight"):
                nn.init.xavier_uniform_(weight)
    return model


# %%
def train(model, images, labels, steps, config):
    rate, decay = config["learning_rate"], config["weight_decay"]
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)
    losses = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (config["batch_size"],))
        loss = nn.functional.cross_entropy(model(images[chosen])[:, 0], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


# %%
config = stored["config"]
sizes = {name: config[name] for name in ("depth", "embed_dim", "num_heads", "patch_size")}
data = shapes("train", config["pictures"])
images = normalize(data.images, config["mean"], config["std"])

# %%
for name, switch in (("pre-norm", True), ("post-norm", False)):
    torch.manual_seed(0)
    losses = train(make_model(switch, **sizes), images, data.labels, every, config)
    close = abs(losses.mean() - stored["losses"][name]["0"][0]) < 0.02
    print(f"{name:10} the first {every} steps give the stored loss, to 0.02: {close.item()}")

# %% [markdown]
# ## Dropout and DropPath
#
# Two ways to leave things out in training, so that the model cannot rely on one number or one branch.
# **Dropout** sets single numbers of a branch to 0. **DropPath**, or stochastic depth (Huang et al. 2016),
# sets the *whole branch* to 0 for some pictures of the batch: for them the block is skipped, only the
# stream goes on. By hand, with four pictures of one token that holds only ones, and a rate of 0.25:

# %%
generator = torch.Generator().manual_seed(7)
ones, keep = torch.ones(4, 6), 1 - 0.25
single = (torch.rand(4, 6, generator=generator) < keep).float()  # one draw for each number
whole = (torch.rand(4, 1, generator=generator) < keep).float()  # one draw for each picture

# %%
names = [f"picture {number}" for number in (1, 2, 3, 4)]
plots.show(
    plots.number_tables(
        [ones * single / keep, ones * whole / keep],
        titles=["dropout", "DropPath"],
        rows=[names, names],
        colors=["viridis", "viridis"],
        form="{:.2f}",
    ),
    alt="Two tables of zeros and 1.33s: scattered zeros for dropout, whole rows for DropPath.",
)

# %% [markdown]
# *Figure: what is left of ones at a rate of 0.25. Dropout takes single numbers, DropPath whole pictures.
# What is kept becomes 1 / 0.75 = 1.33.*
#
# Why divide? So that the **mean stays**. In evaluation nothing is dropped and nothing scaled, and the next
# layer must find numbers of the size it was trained on.

# %%
kept = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) < keep
for name, numbers in {"divided by 0.75": kept / keep, "not divided": kept.float()}.items():
    print(f"{name:16} mean of many ones: {numbers.mean():.2f}")

# %% [markdown]
# ### Exercise 2 · DropPath (8 minutes)
#
# In training, drop each picture with the chance `rate`: all its numbers become 0. Divide the others so that
# the mean stays. In evaluation, give back the tokens as they are.
#
# <details><summary>Hint</summary>
#
# One draw for each picture, in a shape that fits to (B, T, D): <code>torch.rand(len(tokens), 1, 1)</code>.
# When is it smaller than the chance to be kept?
#
# </details>

# %% tags=["exercise"]
def drop_path(tokens, rate, training):
    """(B, T, D), chance to be dropped, True or False -> (B, T, D)"""
    return TODO  # your code here


drop_path = checks.use(drop_path, exercises.drop_path)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def drop_path_solution(tokens, rate, training):
    if not training:
        return tokens
    keep = 1 - rate
    kept = torch.rand(len(tokens), 1, 1) < keep  # one draw for each picture
    return tokens * kept / keep


# %% [markdown]
# As a module it learns from `model.train()` and `model.eval()` which of the two it should do.

# %% tags=["finished"]
class DropPath(nn.Module):
    """In training, skip a residual branch for a random part of the images.

    What is kept is divided by the chance to be kept, so that the mean stays the same.
    Identity in evaluation.
    Shapes: (B, T, D) -> (B, T, D), a whole image kept or set to 0.
    """

    def __init__(self, rate):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(
                f"DropPath needs 0 <= rate < 1, got {rate}: at 1 nothing would be left."
            )
        self.rate = rate

    def forward(self, tokens):
        if not self.training or self.rate == 0:
            return tokens
        keep = 1 - self.rate
        kept = tokens.new_empty(tokens.shape[0], 1, 1).bernoulli_(keep)  # one 0 or 1 for each image
        return tokens * kept / keep

    def extra_repr(self):
        return f"rate={self.rate:.3g}"


# %%
ones = torch.ones(10_000, 1, 1)
torch.manual_seed(0)
in_training, in_evaluation = DropPath(0.25).train()(ones), DropPath(0.25).eval()(ones)
print("mean kept to 0.02:      ", abs(in_training.mean().item() - 1) < 0.02)
print("identity in evaluation: ", torch.equal(in_evaluation, ones))

# %% [markdown]
# ## The block, and the stack of blocks
#
# All parts are there. The paper writes a block as two lines, and the end of the stack as a third ($z$ are the
# tokens, MSA is the attention of lesson 04, LN is LayerNorm, $\ell$ counts the $L$ blocks):
#
# $$z'_\ell = \mathrm{MSA}(\mathrm{LN}(z_{\ell-1})) + z_{\ell-1} \qquad (2)$$
# $$z_\ell = \mathrm{MLP}(\mathrm{LN}(z'_\ell)) + z'_\ell \qquad (3)$$
# $$y = \mathrm{LN}(z_L^0) \qquad (4)$$
#
# Equation 4 is needed because of pre-norm: nothing norms the stream on its way. You measured that it grew
# to three and a half times its size in 24 blocks. What reads it at the end, a linear classifier, should get
# numbers of one size. (The 0 in $z_L^0$ means the class token. We norm all tokens, so that they can be
# used, too.)
#
# ### Exercise 3 · equations 2 to 4 (10 minutes)
#
# Here a block is nothing but its four parts: `block.norm1`, `block.attention`, `block.norm2`, `block.mlp`.
# As in lesson 04, attention gives back two things, the tokens and the weights. Leave out dropout.
#
# <details><summary>Hint</summary>
#
# <code>mixed, _ = block.attention(...)</code> keeps the first of the two things. What goes into a branch is
# normed. What it is added to is not.
#
# </details>

# %% tags=["exercise"]
def encode(tokens, blocks, norm):
    """(B, T, D) -> (B, T, D): all blocks in turn, then the last norm."""
    return TODO  # your code here


encode = checks.use(encode, exercises.encode)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def encode_solution(tokens, blocks, norm):
    for block in blocks:
        mixed, _ = block.attention(block.norm1(tokens))
        tokens = tokens + mixed  # equation 2
        tokens = tokens + block.mlp(block.norm2(tokens))  # equation 3
    return norm(tokens)  # equation 4


# %% [markdown]
# The finished block is your loop's body as a module, with DropPath on both branches. On request it passes on
# what attention looked at.

# %% tags=["finished"]
class EncoderBlock(nn.Module):
    """Attention, then an MLP; each sees normalised tokens and adds what it found (pre-norm).

    Shapes: (B, T, D) -> tokens (B, T, D) and, if asked for, attention (B, num_heads, T, T).
    """

    def __init__(self, embed_dim, num_heads, mlp_ratio=4.0, qkv_bias=True, dropout=0.0,
                 attention_dropout=0.0, drop_path=0.0, norm_eps=1e-6, gelu="erf"):  # fmt: skip
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, qkv_bias, attention_dropout, dropout
        )
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = MLP(embed_dim, int(embed_dim * mlp_ratio), dropout, gelu)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens, return_attention=False):
        mixed, attention = self.attention(self.norm1(tokens), return_attention)
        tokens = tokens + self.drop_path(mixed)  # equation 2
        tokens = tokens + self.drop_path(self.mlp(self.norm2(tokens)))  # equation 3
        return tokens, attention


# %% [markdown]
# The encoder is the stack and the last norm. DropPath's rate rises from block to block: what early blocks
# find is used by all that follow, so they are skipped more rarely.

# %% tags=["finished"]
class Encoder(nn.Module):
    """`depth` blocks, then a last LayerNorm.

    The drop-path rate rises linearly from 0 in the first block to `drop_path` in the last.
    Shapes: (B, T, D) -> tokens (B, T, D) and attention, `depth` times (B, num_heads, T, T) or None.
    """

    def __init__(self, embed_dim, depth, num_heads, mlp_ratio=4.0, qkv_bias=True, dropout=0.0,
                 attention_dropout=0.0, drop_path=0.0, norm_eps=1e-6, gelu="erf"):  # fmt: skip
        super().__init__()
        rates = torch.linspace(0, drop_path, depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(
            EncoderBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, dropout, attention_dropout,
                         rate, norm_eps, gelu)  # fmt: skip
            for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)

    def forward(self, tokens, return_attention=False):
        attention = []
        for block in self.blocks:
            tokens, weights = block(tokens, return_attention)
            attention.append(weights)
        return self.norm(tokens), tuple(attention) if return_attention else None


# %% [markdown]
# **Predict** the shape that comes out of three blocks, and the rate of each.

# %%
torch.manual_seed(0)
encoder = Encoder(embed_dim=24, depth=3, num_heads=4, drop_path=0.1).eval()
tokens = torch.randn(7, 5, 24)
print(encoder(tokens)[0].shape, [round(block.drop_path.rate, 3) for block in encoder.blocks])

# %% [markdown]
# ## Proof
#
# PyTorch has a block of its own, and torchvision has another. We copy our weights into both, where they have
# other names, and compare. First every weight becomes noise: in a fresh block, norms are ones and zeros, and
# a norm that is left out would hardly show.

# %%
for parameter in encoder.parameters():
    nn.init.normal_(parameter, std=0.3)

# %%
PYTORCH = {"norm1.": "norm1.", "attention.qkv.": "self_attn.in_proj_", "norm2.": "norm2.",
           "attention.output.": "self_attn.out_proj.", "mlp.expand.": "linear1.",
           "mlp.contract.": "linear2."}  # fmt: skip


def renamed(block, names):
    """The weights of our block under other names."""
    weights = block.state_dict()
    parts = ("weight", "bias")
    return {names[ours] + part: weights[ours + part] for ours in names for part in parts}


# %%
options = {"activation": "gelu", "layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True}
theirs = nn.ModuleList(nn.TransformerEncoderLayer(24, 4, 96, **options) for _ in range(3)).eval()
expected = tokens
for layer, block in zip(theirs, encoder.blocks):
    layer.load_state_dict(renamed(block, PYTORCH))
    expected = layer(expected)

# %%
ours, last_norm = encoder(tokens)[0], encoder.norm
assert torch.allclose(ours, last_norm(expected), atol=1e-4)
assert torch.allclose(ours, encode(tokens, encoder.blocks, encoder.norm), atol=1e-4)
print("3 blocks and a norm: the same as torch.nn.TransformerEncoderLayer, and as encode above")

# %%
from torchvision.models.vision_transformer import EncoderBlock as TorchvisionBlock

TORCHVISION = {"norm1.": "ln_1.", "attention.qkv.": "self_attention.in_proj_", "norm2.": "ln_2.",
               "attention.output.": "self_attention.out_proj.", "mlp.expand.": "mlp.0.",
               "mlp.contract.": "mlp.3."}  # fmt: skip

# %%
block = encoder.blocks[0]
theirs = TorchvisionBlock(4, 24, 96, dropout=0.0, attention_dropout=0.0).eval()
theirs.load_state_dict(renamed(block, TORCHVISION))
assert torch.allclose(block(tokens)[0], theirs(tokens), atol=1e-4)
print("one block: the same as torchvision's EncoderBlock")

# %% [markdown]
# ## How many parameters?
#
# Count on paper, with the width $D$: a linear map from $a$ to $b$ numbers has $a \cdot b$ weights and $b$
# biases.
#
# | part | weights | the rest |
# |---|---|---|
# | queries, keys, values: $D \to 3D$ | $3D^2$ | $3D$ |
# | output projection: $D \to D$ | $D^2$ | $D$ |
# | MLP: $D \to 4D \to D$ | $8D^2$ | $5D$ |
# | two norms: $\gamma$ and $\beta$ | | $4D$ |
# | **a block** | $12D^2$ | $13D$ |
#
# The number of tokens is not in it, and neither is the number of heads. The formula against the module, at
# the width of ViT-B:

# %%
embed_dim = 768
block = EncoderBlock(embed_dim, num_heads=12)
counted = sum(parameter.numel() for parameter in block.parameters())
assert counted == 12 * embed_dim**2 + 13 * embed_dim
for name, part in block.named_children():
    print(f"{name:10} {sum(parameter.numel() for parameter in part.parameters()):>10,}")
print(f"{'a block':10} {counted:>10,}, 12 of them: {12 * counted:,}")

# %% [markdown]
# Two thirds of a block are the MLP. And twelve blocks are 85 of the 86.6 million parameters of ViT-B/16:
# nearly all of the model is what you have just built.
#
# ## Reading the stream on the way
#
# Each block adds to the stream, so one can stop anywhere and ask: what would the answer be if this were the
# end? Apply the last norm and the classifier after each block. We do that with the trained model of lesson 00
# and its cat. **Predict:** from which block on does it say "cat"?

# %%
from skimage.data import chelsea

import vitlib
from vitlib.data import fit_picture

checkpoint = vitlib.load("cifar10")
model = checkpoint.model
image = checkpoint.prepare(fit_picture(chelsea(), 32)[None])  # (1, 3, 32, 32)

# %%
answers = []
with torch.no_grad():
    tokens = model.positional_encoding(model.class_token(model.patch_embedding(image)))
    for block in [None, *model.encoder.blocks]:
        tokens = block(tokens)[0] if block else tokens
        answers.append(model.head(model.encoder.norm(tokens[:, 0])).softmax(dim=-1)[0])
answers = torch.stack(answers)  # (depth + 1, classes)

# %%
leaders = answers.argmax(dim=-1).unique()  # every class that is ahead somewhere on the way
best = leaders[answers[-1, leaders].argsort(descending=True)]  # the final winner first
passed = range(len(answers))
lines = {checkpoint.classes[index]: (passed, answers[:, index]) for index in best.tolist()}

# %% tags=["nbval-rtol=0.02"]
plots.show(
    plots.line_chart(lines, "blocks passed", "probability"),
    alt="Probability of the classes that lead at some depth, after 0 to 6 blocks. The cat wins.",
)

# %% [markdown]
# *Figure: what the classifier would say if the stream ended after so many blocks. Shown is every class that
# leads at some depth.*

# %% tags=["nbval-rtol=0.02"]
for depth, answer in enumerate(answers):
    print(f"after {depth} blocks: {checkpoint.classes[answer.argmax()]:10} {answer.max():.2f}")

# %% [markdown]
# No block decides alone: each adds to the sum, and the answer changes on the way. (A caution: the classifier
# was trained for the last block's stream. What it says earlier is a hint, no more.)
#
# ## A change of design
#
# ### Exercise 4 · LayerScale (10 minutes)
#
# Very deep Vision Transformers (CaiT, Touvron et al. 2021; later DINOv2) multiply what each branch found by a
# learned vector before it is added, one number for each channel:
# $z \leftarrow z + \lambda \odot f(\mathrm{LN}(z))$. The numbers start tiny, so that at the start every block
# hardly changes the stream, and training turns up what helps. Attention and MLP have a $\lambda$ each.
#
# Extend `EncoderBlock`; name the new numbers as you like. They must be trained, so an optimizer must find
# them.
#
# <details><summary>Hint</summary>
#
# In <code>__init__</code>, twice: <code>nn.Parameter(torch.full((embed_dim,), initial))</code>. Then take
# <code>forward</code> from <code>EncoderBlock</code> and multiply in two places. Forget
# <code>drop_path</code> or keep it, as you like.
#
# </details>

# %% tags=["exercise"]
class LayerScaleBlock(EncoderBlock):
    """Shapes: (B, T, D) -> tokens (B, T, D) and attention, as in EncoderBlock."""

    def __init__(self, embed_dim, num_heads, initial=1e-4):
        super().__init__(embed_dim, num_heads)
        # your code here

    def forward(self, tokens, return_attention=False):
        return TODO  # your code here


LayerScaleBlock = checks.use(LayerScaleBlock, exercises.LayerScaleBlock)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
class LayerScaleBlock_solution(EncoderBlock):
    def __init__(self, embed_dim, num_heads, initial=1e-4):
        super().__init__(embed_dim, num_heads)
        self.scale1 = nn.Parameter(torch.full((embed_dim,), initial))
        self.scale2 = nn.Parameter(torch.full((embed_dim,), initial))

    def forward(self, tokens, return_attention=False):
        mixed, attention = self.attention(self.norm1(tokens), return_attention)
        tokens = tokens + self.scale1 * mixed
        tokens = tokens + self.scale2 * self.mlp(self.norm2(tokens))
        return tokens, attention


# %% [markdown]
# What it changes at the start: how far do 24 fresh blocks move the tokens?

# %% tags=["nbval-rtol=0.02"]
torch.manual_seed(0)
start = torch.randn(4, 17, 64)
with torch.no_grad():
    for kind in (EncoderBlock, LayerScaleBlock):
        tokens = start
        for _ in range(24):
            tokens = kind(64, 4)(tokens)[0]
        moved = (tokens - start).norm() / start.norm()
        print(f"{kind.__name__:16} moved by {moved:.4f} of their size")

# %% [markdown]
# ## Common mistakes
#
# **`std()` in LayerNorm.** `tokens.std()` divides by $D - 1$, and `std + eps` puts eps outside the root.
# The symptom: none at first. With four channels the numbers are visibly off, with 192 the difference is
# below 0.3 % and nothing complains; but the same weights no longer give the same logits as elsewhere.

# %% tags=["nbval-rtol=0.01"]
for width in (4, 192):
    row = torch.randn(1, width, generator=torch.Generator().manual_seed(0))
    wrong = (row - row.mean()) / (row.std() + 1e-6)
    right = nn.LayerNorm(width, eps=1e-6)(row)
    print(f"{width:3} channels: {(wrong - right).norm() / right.norm():.2%} off")

# %% [markdown]
# **Dropout that stays on.** `functional.dropout(x, 0.1)` drops *always*: its argument `training` is `True`
# unless you pass `self.training`. The symptom: after `eval()`, the same picture gives different answers.
# `nn.Dropout` listens to `eval()`.

# %%
class Forgetful(nn.Module):
    def forward(self, tokens):
        return nn.functional.dropout(tokens, 0.1)


tokens = torch.ones(1, 5, 24)
for dropout in (Forgetful().eval(), nn.Dropout(0.1).eval()):
    same = torch.equal(dropout(tokens), dropout(tokens))
    print(f"{type(dropout).__name__:10} gives the same twice:", same)

# %% [markdown]
# **PyTorch's layer with its defaults.** `nn.TransformerEncoderLayer` by default is post-norm with ReLU, and
# reads the *first* axis as the tokens (`batch_first=False`). The shapes fit all the same. The symptom:
# pictures of one batch look at each other. Exchange picture 2, and picture 1 changes.

# %%
torch.manual_seed(0)
pictures = torch.randn(2, 5, 24)
others = pictures.clone()
others[1] = torch.randn(5, 24)
for batch_first in (False, True):
    layer = nn.TransformerEncoderLayer(24, 4, 96, batch_first=batch_first).eval()
    same = torch.allclose(layer(pictures)[0], layer(others)[0], atol=1e-6)
    print(f"batch_first={batch_first}: picture 1 stays as it was: {same}")

# %% [markdown]
# ## Recap
#
# - Attention alone makes tokens alike. A block adds what its branches find to a stream that keeps them apart.
# - LayerNorm: one token, across its channels; variance over $D$, eps inside the root.
# - Pre-norm: norm what goes into a branch, leave the stream alone, and norm once at the end.
# - DropPath skips a branch for whole pictures, in training only, and keeps the mean.
# - A block has $12D^2 + 13D$ parameters; two thirds are the MLP.

# %%
checks.progress()

# %% [markdown]
# Previous: [04 Attention](04_attention.ipynb) · Next: [06 Vision Transformer](06_vision_transformer.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, section 3.1, equations 2 to 4,
# appendix B.1, [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Ba et al. 2016, *Layer
# Normalization*, [arXiv:1607.06450](https://arxiv.org/abs/1607.06450) · Hendrycks & Gimpel 2016, *Gaussian
# Error Linear Units*, [arXiv:1606.08415](https://arxiv.org/abs/1606.08415) · He et al. 2015, *Deep Residual
# Learning*, [arXiv:1512.03385](https://arxiv.org/abs/1512.03385) · Huang et al. 2016, *Deep Networks with
# Stochastic Depth*, [arXiv:1603.09382](https://arxiv.org/abs/1603.09382) · Xiong et al. 2020, *On Layer
# Normalization in the Transformer Architecture*, [arXiv:2002.04745](https://arxiv.org/abs/2002.04745) ·
# Dong et al. 2021, *Attention is not all you need*, [arXiv:2103.03404](https://arxiv.org/abs/2103.03404) ·
# Touvron et al. 2021, *Going deeper with Image Transformers*,
# [arXiv:2103.17239](https://arxiv.org/abs/2103.17239). Photograph: Chelsea the cat, by Stéfan van der Walt,
# CC0.
