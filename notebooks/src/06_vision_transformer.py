# %% [markdown]
# # Vision Transformer: the pieces become one model
#
# > You put the pieces of five lessons together, count the result to the last parameter, and show that it is
# > the same model as torchvision's: same weights in, same logits out.
#
# **After this lesson you can**
# - assemble a Vision Transformer from its pieces, and say why each stands where it does;
# - tell the shape of every tensor on the way from a picture to its logits;
# - say what the initialisation does to the first logits and gradients;
# - count the parameters and FLOPs of any ViT on paper, and notice when a counting tool is wrong;
# - prove that two implementations are the same model, and notice when such a proof proves nothing.
#
# 45 minutes to read, 43 for the exercises · under 1 minute to run · needs the pieces from [01 Patch
# embedding](01_patch_embedding.ipynb), [02 Class token](02_class_token.ipynb), [03 Positional
# encoding](03_positional_encoding.ipynb), [04 Attention](04_attention.ipynb) and [05 Encoder
# block](05_encoder_block.ipynb)

# %%
from vitlib import diagrams, plots

plots.show(
    diagrams.vit_map("vit"),
    alt="The model as a map, from a picture to its class. "
    "All from the patch embedding to the head is framed.",
)

# %% [markdown]
# *Figure: the map of the series. Here you put all of it together, and add the head.*
#
# ## Which of these is the Vision Transformer?
#
# The cat of lesson 00, and the trained model that named it. You know all of its pieces by now.

# %%
import copy

import torch
from skimage.data import chelsea
from torch import nn

import vitlib
from vitlib import checks
from vitlib.attention import MultiHeadAttention
from vitlib.checks import TODO
from vitlib.checks import vit as answers
from vitlib.data import fit_picture, normalize
from vitlib.encoder import EncoderBlock
from vitlib.patch_embedding import PatchEmbedding

# %%
checkpoint = vitlib.load("cifar10")
trained = checkpoint.model
small = fit_picture(chelsea(), 32)  # uint8 (3, 32, 32)
cat = normalize(small[None], checkpoint.mean, checkpoint.std)  # (1, 3, 32, 32)

# %% [markdown]
# Four mistakes in putting them together: no positions, one block of six forgotten, no norm at the end, the
# mean of all tokens into the head where the class token should go. The weights stay as they were trained.
# **Predict:** which of the four models will run, and which will no longer say "cat"?

# %%
names = ("right", "no positions", "no block 3", "no last norm")
models = {name: copy.deepcopy(trained) for name in names}
models["no positions"].positional_encoding = nn.Identity()
del models["no block 3"].encoder.blocks[2]
models["no last norm"].encoder.norm = nn.Identity()

# %%
with torch.no_grad():
    logits = {name: model(cat) for name, model in models.items()}  # each (1, 10)
    logits["mean of all tokens"] = trained.head(trained.forward_features(cat).mean(dim=1))
said = torch.cat(list(logits.values())).softmax(dim=1)  # (5, 10)

# %%
animals = ["bird", "cat", "deer", "dog", "frog", "horse"]
columns = [checkpoint.classes.index(name) for name in animals]
table = {"rows": [list(logits)], "columns": [animals], "colors": ["viridis"], "form": "{:.0%}"}
plots.show(
    plots.number_tables([said[:, columns]], **table),
    alt="Probabilities of six animals from five models, one right. All give most to the cat.",
)

# %% [markdown]
# *Figure: what five models with the same trained weights say of the cat; the first is put together rightly.
# A column is a class. What is missing to 100 % went to the four classes that are no animals.*
#
# All run, all give ten numbers, all say cat. Two of the wrong ones are surer of it than the right one. So
# neither "it runs" nor "it is right about my picture" tells whether a model is put together rightly.
#
# Two questions, then. **In which order must the pieces stand, and why?** And **how do you know that yours is
# the Vision Transformer**, and not something else of the right shape? There are three ways to find out: look
# at every shape, count, and compare with somebody else's.
#
# ## The plan
#
# A picture of 2×3 patches is enough to see the plan. **Look for** the row in which a token comes, and the
# row in which six go.

# %%
patches = [(f"p{i}", "patch") for i in range(1, 7)]
plan = {
    "1. patch embedding": patches,
    "2. class token in front": [("cls", "class_token"), *patches],
    "3. plus positions": [("cls+0", "position")] + [(f"p{i}+{i}", "position") for i in range(1, 7)],
    "4. blocks, then norm": [("cls", "class_token"), *patches],
    "5. take token 0": [("cls", "class_token")],
    "6. head": [(name, "neutral") for name in ("bird", "cat", "dog")],
}

# %%
plots.show(
    plots.token_strip(plan),
    alt="Six rows of boxes: six patches, the class token in front, positions added, all through "
    "the blocks, then the class token alone, then the logits of three classes.",
)

# %% [markdown]
# *Figure: from patches to logits. A box is a vector of width D, but for the last row, where it is one
# number. "p3+3" is patch 3 plus the vector of position 3.*
#
# The paper says the same in four equations (section 3.1). MSA is multi-head self-attention, LN LayerNorm,
# and $\ell$ counts the L blocks:
#
# | | | in words |
# |---|---|---|
# | (1) | $z_0 = [x_{class}; x_p^1E; \dots; x_p^NE] + E_{pos}$ | class token, patches, positions |
# | (2) | $z'_\ell = \mathrm{MSA}(\mathrm{LN}(z_{\ell-1})) + z_{\ell-1}$ | a block: attention, |
# | (3) | $z_\ell = \mathrm{MLP}(\mathrm{LN}(z'_\ell)) + z'_\ell$ | then an MLP |
# | (4) | $y = \mathrm{LN}(z_L^0)$ | the class token after L blocks, normed |
#
# The head is a linear map of $y$ to one logit a class. (In pretraining the paper puts a hidden layer before
# it, D² + D parameters more, and drops it for fine-tuning. Nearly everyone leaves it out, and so do we.)
#
# ### Exercise 1 · put it together (10 minutes)
#
# All pieces are in `__init__`. Write `forward`: equations 1 to 4, and the head. Equations 2 and 3 are inside
# `EncoderBlock`, residuals and all. `self.dropout` comes directly after the positions (appendix B.1).
#
# <details><summary>Hint</summary>
#
# Follow the plan row by row; each row is a line. One class token for B images:
# <code>self.class_token.expand(len(tokens), -1, -1)</code>. <code>torch.cat([first, second], dim=1)</code>
# puts tokens one after the other. A block gives two things, the tokens and the attention:
# <code>tokens, _ = block(tokens)</code>.
#
# </details>

# %% tags=["exercise"]
class SmallViT(nn.Module):
    """Shapes: images (B, C, H, W) -> logits (B, num_classes)."""

    def __init__(self, image_size, patch_size, in_channels, num_classes, embed_dim, depth,
                 num_heads, dropout=0.0):  # fmt: skip
        super().__init__()
        self.patch_embedding = PatchEmbedding(image_size, patch_size, in_channels, embed_dim)
        num_patches = self.patch_embedding.num_patches
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, embed_dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, num_patches + 1, embed_dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(embed_dim, num_heads, dropout=dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images):
        return TODO  # your code here


SmallViT = checks.use(SmallViT, answers.SmallViT)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
class SmallViT_solution(SmallViT):
    def forward(self, images):
        tokens = self.patch_embedding(images)  # (B, N, D)
        class_token = self.class_token.expand(len(tokens), -1, -1)  # (B, 1, D)
        tokens = torch.cat([class_token, tokens], dim=1)  # (B, N + 1, D)
        tokens = self.dropout(tokens + self.positions)
        for block in self.blocks:
            tokens, _ = block(tokens)
        return self.head(self.norm(tokens)[:, 0])  # (B, num_classes)


# %% [markdown]
# Three places where the order matters:
# - The class token comes **before** the positions: it needs one too, and there are N + 1 of them.
# - The norm comes **after** the last block. In a pre-norm model nothing else limits the sum of all residuals.
# - Token **0** goes into the head, because that is where we put the class token.
#
# A width of 192, 6 blocks, 6 heads: the size of the trained model. It gives ten logits, but random ones:

# %%
small_vit = SmallViT(32, 4, 3, 10, 192, 6, 6).eval()
small_vit(cat).shape  # (B, num_classes)

# %% [markdown]
# Now **your** model gets the trained weights. Its parts have the same shapes, some under other names.
# **Predict:** what will it say of the cat?

# %%
renamed = {"class_token.token": "class_token", "positional_encoding.positional_embedding": "positions"}
weights = {
    renamed.get(name, name.removeprefix("encoder.")): weight
    for name, weight in trained.state_dict().items()
}
small_vit.load_state_dict(weights)

# %%
with torch.no_grad():
    logits, want = small_vit(cat), trained(cat)
print("the trained model's logits, to 1e-4:", torch.allclose(logits, want, atol=1e-4))
print("says:", checkpoint.classes[logits.argmax()])

# %% [markdown]
# ## The finished class
#
# The class that `vitlib` ships takes the same steps. It adds what earlier lessons have shown, and what the
# next ones need:
# - the choices of lessons 02 and 03: no class token but the mean of the patches, other positions or none;
# - `return_attention`: the attention of every block beside the logits (lesson 08);
# - `resize`: the model for pictures of another size (lesson 03);
# - `config`: all arguments, so that a saved model can be built again (lesson 07).
#
# And it decides how the weights start. `self.apply(initialize)` calls this function on every part:

# %% tags=["finished"]
def initialize(module):
    """Linear maps start truncated-normal, standard deviation 0.02, biases at 0 (BERT's start)."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# %% [markdown]
# The class is long, and there is little new in it. Read `encode` and `forward` first. **Look for** the lines
# of your own `forward`.

# %% tags=["finished"]
from vitlib.class_token import ClassToken
from vitlib.encoder import Encoder
from vitlib.patch_embedding import as_pair, patch_grid
from vitlib.positional_encoding import resize_positional_embedding
from vitlib.vit import make_positional_encoding


class VisionTransformer(nn.Module):
    """Patch tokens look at each other `depth` times, then one vector is classified.

    `image_size` and `patch_size` are an int or (height, width). `num_classes=0` gives features.
    `pool="class"` classifies from the class token, `pool="mean"` averages the patch tokens.
    `positional` is "learned", "sincos1d", "sincos2d" or "none".
    Shapes: images (B, C, H, W) -> logits (B, num_classes); with `return_attention=True` also
    `depth` tensors (B, num_heads, T, T), T = N + 1 with a class token, N without.
    Raises ValueError for sizes that do not fit each other, and for other images than these.
    Source: paper equations 1 to 4; lesson 06.
    """

    def __init__(
        self,
        image_size=224,
        patch_size=16,
        in_channels=3,
        num_classes=1000,
        embed_dim=768,
        depth=12,
        num_heads=12,
        mlp_ratio=4.0,
        qkv_bias=True,
        dropout=0.0,
        attention_dropout=0.0,
        drop_path=0.0,
        norm_eps=1e-6,
        gelu="erf",
        pool="class",
        positional="learned",
    ):
        super().__init__()
        self.config = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }  # everything needed to build the same model again
        self.config |= {"image_size": as_pair(image_size), "patch_size": as_pair(patch_size)}
        if pool not in ("class", "mean"):
            raise ValueError(f'pool must be "class" or "mean", got {pool!r}.')
        self.patch_embedding = PatchEmbedding(image_size, patch_size, in_channels, embed_dim)
        self.class_token = ClassToken(embed_dim) if pool == "class" else None
        self.num_prefix_tokens = 1 if pool == "class" else 0
        self.positional_encoding = make_positional_encoding(
            positional, self.grid, self.num_prefix_tokens, embed_dim
        )
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(embed_dim, depth, num_heads, mlp_ratio, qkv_bias, dropout,
                               attention_dropout, drop_path, norm_eps, gelu)  # fmt: skip
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self.apply(initialize)

    @property
    def grid(self):
        """How the patches lie: (rows, columns)."""
        return self.patch_embedding.grid

    def forward(self, images, return_attention=False):
        tokens, attention = self.encode(images, return_attention)
        pooled = tokens[:, 0] if self.class_token else tokens.mean(dim=1)  # (B, D)
        logits = self.head(pooled)  # (B, num_classes)
        return (logits, attention) if return_attention else logits

    def forward_features(self, images):
        """The encoder's normed tokens. Shapes: (B, C, H, W) -> (B, T, D)."""
        return self.encode(images)[0]

    def encode(self, images, return_attention=False):
        """Shapes: (B, C, H, W) -> tokens (B, T, D) and attention, `depth` tensors or None."""
        tokens = self.patch_embedding(images)  # (B, N, D)
        if self.class_token:
            tokens = self.class_token(tokens)  # (B, N + 1, D)
        tokens = self.dropout(self.positional_encoding(tokens))  # equation 1
        return self.encoder(tokens, return_attention)

    def resize(self, image_size, mode="timm"):
        """Make the model accept images of another size: interpolate its positions. Gives it back.

        `mode` is one of those of `resize_positional_embedding`. The patch size stays: a larger
        image has more tokens. An optimizer made before still holds what it knew of the old
        positions: make a new one.
        Source: paper section 3.2.
        """
        patches, encoding = self.patch_embedding, self.positional_encoding
        new_grid = patch_grid(image_size, patches.patch_size)
        if not isinstance(encoding, nn.Identity):
            encoding.positional_embedding.data = resize_positional_embedding(
                encoding.positional_embedding.data, self.grid, new_grid,
                self.num_prefix_tokens, mode,
            )  # fmt: skip
            encoding.positional_embedding.grad = None  # of the old shape
        patches.image_size, patches.grid = as_pair(image_size), new_grid
        patches.num_patches = new_grid[0] * new_grid[1]
        self.config["image_size"] = as_pair(image_size)
        return self


# %% [markdown]
# `Encoder` is the blocks and the final norm (lesson 05). `make_positional_encoding` picks one of lesson 03's
# classes by its name. `self.head` is the last thing built, so `self.apply` reaches all.
#
# **First proof: the trained weights fit.** The shipped model's weights in this notebook's class give the
# answer that we know, to the last digit.

# %%
model = VisionTransformer(**trained.config).eval()
model.load_state_dict(trained.state_dict())
with torch.no_grad():
    print("same logits:", torch.equal(model(cat), trained(cat)))
    print("says:       ", checkpoint.classes[model(cat).argmax()])

# %% [markdown]
# ## Every shape on the way
#
# A hook is a function that PyTorch calls whenever a part of a model has run. This one writes down what came
# out; of attention also its weights, and of the head also what went in. **Predict before you run it:** where
# do 64 tokens become 65, where does the width grow from 192 to 768, and where do all tokens but one
# disappear?

# %%
def trace(model, images):
    """Run the model once: name, kind, output shape and number of parameters of each part."""
    rows = []

    def note(name, module, inputs, output):
        count = sum(parameter.numel() for parameter in module.parameters())
        if isinstance(module, MultiHeadAttention):
            rows.append((f"{name}, weights", "", tuple(output[1].shape), 0))
        if name == "head":
            rows.append(("token 0, into the head", "", tuple(inputs[0].shape), 0))
        output = output[0] if isinstance(output, tuple) else output
        rows.append((name, type(module).__name__, tuple(output.shape), count))

    hooks = [
        part.register_forward_hook(lambda *three, name=name: note(name, *three))
        for name, part in model.named_modules() if any(True for _ in part.parameters())
    ]  # fmt: skip
    with torch.no_grad():
        model(images, return_attention=True)
    for hook in hooks:
        hook.remove()
    return rows


# %% [markdown]
# One image, all parts in the order in which they finish. Blocks 1 to 5 are like block 0, so their insides
# are left out.

# %%
rows = trace(model, cat)
for name, kind, shape, count in rows:
    if not any(f"blocks.{i}." in name for i in range(1, 6)):
        print(f"{name or 'the whole model':36}{kind:26}{str(shape):16}" + f"{count:>10,}" * (count > 0))

# %% [markdown]
# The convolution gives a grid, (192, 8, 8); flattened it is 64 tokens. The class token makes it 65, and
# there it stays: through all blocks the tokens have **one** shape, (1, 65, 192). Wider is only what is
# inside a block: query, key and value side by side (3 · 192 = 576), and the MLP (4 · 192 = 768). The
# attention weights are 65×65 for each of 6 heads. After the encoder, token 0 alone goes into the head.
#
# ### What `print(model)` tells, and what it does not
#
# The same model with one block, as PyTorch prints it. **Look for** the class token's size, the positions'
# size, and the residuals.

# %%
print(VisionTransformer(**{**trained.config, "depth": 1}))

# %% [markdown]
# You find none of the three. `print` lists modules in the order in which `__init__` made them, with their
# options: one map for query, key and value together, the exact GELU, an eps of 1e-6. What `forward` does
# with them, the sums and the token put in front, is code and not a module. And the class token and the
# positions are bare `nn.Parameter`s: no module of their own prints their size. Remember them. They will be
# overlooked again below.
#
# ## How it starts
#
# Before any training, weights are random, but not arbitrary. Ours start as those of BERT did, a Transformer
# for text: truncated-normal, with a standard deviation of 0.02. (PyTorch cuts at ±2, so far out that nothing
# is cut.) What would change in the first step with 0.01? With what PyTorch does by itself? With Kaiming's
# start for the convolution, which was made for ReLU networks? With a head of zeros, or one of 0.01?

# %%
def restart(model, std=0.02, kaiming=False, head=0.02):
    """Draw all linear weights anew; the head's with a standard deviation of its own."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(module.weight, std=std)
    if kaiming:
        nn.init.kaiming_normal_(model.patch_embedding.projection.weight)
    nn.init.normal_(model.head.weight, std=head)


def restart_as_pytorch(model):
    """What `nn.Linear` and `nn.Conv2d` do when they are made: uniform, smaller where more comes in."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.reset_parameters()


# %% [markdown]
# What to measure, on 32 labelled pictures: how large the patch tokens are (positions start at 0.02), how
# much the logits differ between pictures, how much they change when the patches are shuffled, the loss, and
# the gradients of the first and of the last weights.

# %%
from torch.nn.functional import cross_entropy


def first_step(model, images, shuffled, labels):
    tokens, logits = model.patch_embedding(images), model(images)
    moved = (model(shuffled) - logits).std()
    loss = cross_entropy(logits, labels)
    loss.backward()
    first, last = model.patch_embedding.projection.weight.grad, model.head.weight.grad
    return [tokens.std(), logits.std(dim=0).mean(), moved, loss, first.norm(), last.norm()]


# %%
from vitlib.data import SHAPES_MEAN, SHAPES_STD, shapes
from vitlib.patch_embedding import patchify, unpatchify

data = shapes("train", 32)
images = normalize(data.images, SHAPES_MEAN, SHAPES_STD)  # (32, 3, 32, 32)
order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
shuffled = unpatchify(patchify(images, 4)[:, order], (32, 32), 4)  # patches in another order

# %% [markdown]
# Six starts, the mean over three seeds. A model that knows nothing has a loss of ln 10 = 2.30. **Predict:**
# Kaiming's start makes the patch tokens ten times as large. What does that do to the gradient of the
# convolution, and to what the model knows of the patches' order?

# %%
starts = {
    "0.02": {},
    "0.01": {"std": 0.01, "head": 0.01},
    "0.02, Kaiming conv": {"kaiming": True},
    "0.02, head at 0.01": {"head": 0.01},
    "0.02, head at 0": {"head": 0.0},
    "PyTorch's own": None,
}

# %% tags=["nbval-rtol=0.25"]
measured = {}
print("                     patch   logits   shuffled          gradient  gradient")
print("start               tokens   differ    patches   loss   of conv   of head")
for name, options in starts.items():
    results = []
    for seed in range(3):
        torch.manual_seed(seed)
        fresh = VisionTransformer(**trained.config)
        restart_as_pytorch(fresh) if options is None else restart(fresh, **options)
        results.append(torch.stack(first_step(fresh, images, shuffled, data.labels)))
    measured[name] = torch.stack(results).mean(dim=0).tolist()
    print("{:20}{:6.3f}{:9.3f}{:11.4f}{:7.2f}{:10.3f}{:10.2f}".format(name, *measured[name]))

# %%
ours, quiet, kaiming, small_head, zero, by_itself = measured.values()
print("0.01: logits differ less than half as much:      ", quiet[1] < ours[1] / 2)
print("Kaiming: the convolution's gradient is under 1/5:", kaiming[4] < ours[4] / 5)
print("Kaiming: shuffled patches change under 1/5:      ", kaiming[2] < ours[2] / 5)

# %%
halved = 0.4 < small_head[1] / ours[1] < 0.6 and 0.4 < small_head[4] / ours[4] < 0.6
print("head at 0.01: half the logits, half the gradient:", halved)
print("head at 0: no gradient but the head's:           ", zero[4] == 0 < zero[5])
print("PyTorch's own: over 1.5 times the logits:         ", by_itself[1] > 1.5 * ours[1])

# %% [markdown]
# - **0.02** starts near ln 10, and a gradient reaches the first weights as well as the last.
# - **0.01** starts quieter. A block's branch passes two matrices one after the other, so halving both makes
#   what it adds four times as small. Pictures are told apart less, and the gradients are smaller.
# - **Kaiming on the convolution** makes large tokens, and the first LayerNorm divides them again. So the
#   logits differ as before. But of what is divided by ten, a change counts a tenth: the gradient of the
#   convolution shrinks. And the positions, at 0.02, are one seventh of a token's size with our start, and one
#   seventieth with this one: the model begins almost blind to where a patch is.
# - **Head at 0.01** halves the logits, and on its way back the gradient passes the head's weights, so that
#   half as much arrives below it.
# - **Head at 0** starts at exactly ln 10, and in the first step nothing but the head learns: the gradient
#   must pass through the head's weights, and they are 0. From the second step on all is well. The paper's
#   code and torchvision's do so.
# - **PyTorch's own** has a standard deviation of 1/√(3·inputs), 0.042 at a width of 192, twice ours; and its
#   biases are random, too. The logits differ about twice as much, and the first loss is above ln 10: the
#   model is too sure of what it does not know. Your `SmallViT` started like this.
#
# None of these is wrong. But they differ, and the last one is about to play a trick on us.
#
# ## Is it the same model as torchvision's?
#
# [torchvision](https://docs.pytorch.org/vision/stable/models/vision_transformer.html) has a Vision
# Transformer, written by others. Equal weights must give equal logits. A small one with odd sizes is quick,
# and lets no two numbers be confused: 3 blocks, 5 heads, width 40, an MLP of 120, 7 classes.

# %%
from torchvision.models import VisionTransformer as TorchvisionViT

theirs = TorchvisionViT(
    image_size=30, patch_size=6, num_layers=3, num_heads=5,
    hidden_dim=40, mlp_dim=120, num_classes=7,
).eval()  # fmt: skip
ours = VisionTransformer(30, 6, 3, 7, embed_dim=40, depth=3, num_heads=5, mlp_ratio=3).eval()
print(sum(p.numel() for p in theirs.parameters()), sum(p.numel() for p in ours.parameters()))

# %% [markdown]
# As many parameters. Now the weights: theirs have other names. This table translates them; `{i}` is the
# number of a block, `*` stands for `weight` and `bias`.

# %%
from vitlib.pretrained import TORCHVISION, load_weights

for our_name, their_name in TORCHVISION.items():
    print(f"{our_name:41}{their_name}")

# %% [markdown]
# `load_weights` copies by this table, and refuses if anything is left over on either side. Then the same
# random images go through both. To be sure that we would notice a mistake, three more models are **broken on
# purpose**: one has lost all its blocks, one has the other GELU of lesson 05, and one has PyTorch's usual eps
# in its norms, 1e-5 in place of 1e-6.

# %%
def compare(ours, theirs, images, tolerance=2e-5):
    """Give our model their weights; is it equal to theirs? And what if it is broken?"""
    load_weights(ours, theirs.state_dict(), layout="torchvision")
    models = {"ours": ours}
    for name in ("without blocks", "GELU by tanh", "eps of 1e-5"):
        models[name] = copy.deepcopy(ours)
    models["without blocks"].encoder.blocks = nn.ModuleList()
    for module in models["GELU by tanh"].modules():
        if isinstance(module, nn.GELU):
            module.approximate = "tanh"
    for module in models["eps of 1e-5"].modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    with torch.no_grad():
        want = theirs(images)
        for name, model in models.items():
            same = torch.allclose(model(images), want, rtol=0, atol=tolerance)
            print(f"theirs and {name:16}equal: {same}")


# %%
random_images = torch.randn(7, 3, 30, 30, generator=torch.Generator().manual_seed(0))
compare(ours, theirs, random_images)

# %% [markdown]
# Equal! And the broken models are equal as well. **So what have we proved?** Nothing. Before you go on: what
# might torchvision's logits be?

# %%
with torch.no_grad():
    print(theirs(random_images)[0].tolist())

# %% [markdown]
# A fresh torchvision model has a head of zeros, so its logits are 0, whatever comes before. Any model at all
# passes such a test. A proof counts only if it could have failed. So fill **every** weight with noise first,
# norms and biases too.

# %%
def fill_with_noise(model, std, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(std=std, generator=generator)


fill_with_noise(theirs, std=0.3, seed=0)
compare(ours, theirs, random_images)

# %% [markdown]
# Two broken ones are found out, the GELU too, although it is off by 0.0005 at most (lesson 05). But **the
# wrong eps passes**: what it changes is less than the tolerance of 2e-5. Too small a tolerance would refuse
# ours as well, for two ways to compute the same may differ in their last digits. With 64 bits there are nine
# digits more, and the tolerance can be 1e-10. **Predict:** which models are equal now?

# %%
ours, theirs, random_images = ours.double(), theirs.double(), random_images.double()
compare(ours, theirs, random_images, tolerance=1e-10)

# %% [markdown]
# All three are found out, and ours is equal still: a tolerance is part of the proof. Would a mistake in any
# *other* place be seen as well? Change one tensor of weights, look at the logits, put it back, and so on
# with all of them.

# %%
with torch.no_grad():
    want, seen = ours(random_images), 0
    for parameter in ours.parameters():
        kept = parameter.clone()
        parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        seen += not torch.allclose(ours(random_images), want, rtol=0, atol=1e-10)
        parameter.copy_(kept)
print(f"{seen} of {len(list(ours.parameters()))} changes are seen")

# %% [markdown]
# That is a proof. (One thing in these 44 may be anything, the biases of the keys: they add the same to all
# scores of a row, and the softmax does not see that.) And the real thing, ViT-B/16 with its 86 million
# weights: `torch.device("meta")` builds a model whose tensors have a shape but no numbers, in no time.
# `to_empty` gives them memory, and noise fills it.

# %%
from torchvision.models import vit_b_16 as torchvision_vit_b_16

with torch.device("meta"):
    ours, theirs = VisionTransformer(), torchvision_vit_b_16()  # our defaults are those of B/16
ours, theirs = ours.to_empty(device="cpu").eval(), theirs.to_empty(device="cpu").eval()

# %%
fill_with_noise(theirs, std=0.05, seed=0)
load_weights(ours, theirs.state_dict(), layout="torchvision")
photo = fit_picture(chelsea(), 224)[None]  # (1, 3, 224, 224)
photo = normalize(photo, checkpoint.mean, checkpoint.std)
with torch.no_grad():
    logits, want = ours(photo), theirs(photo)  # (1, 1000)
print("ViT-B/16, same logits: ", torch.allclose(logits, want, rtol=1e-3, atol=1e-3))
print("they differ by class:  ", (want.std() > 0.1).item())

# %% [markdown]
# Same weights in, same logits out: this *is* the Vision Transformer. Weights that others have trained will
# work in it as they are. And of the four mistakes at the beginning, the mean of all tokens changes no shape
# and no count: only such a comparison finds it.

# %%
del ours, theirs  # 700 MB

# %% [markdown]
# ## How many parameters?
#
# You have all the pieces of the count: the projection of lesson 01, the class token of lesson 02, the
# positions of lesson 03, and from lesson 05 a block's 12·D² + 13·D. (Where these come from: attention has
# four maps D → D, the MLP two with 4·D in between, and there are two norms.)
#
# ### Exercise 2 · count them (8 minutes)
#
# Fill in the six numbers. N `num_patches`, P `patch_size`, C `in_channels`, K `num_classes`, D `embed_dim`,
# L `depth`. And think: why does the number of **heads** not appear?
#
# <details><summary>Hint</summary>
#
# A linear map from a to b has a·b weights and b biases. A patch has P·P·C numbers. A LayerNorm has a weight
# and a bias for each entry. The heads: they cut the projected vectors, lesson 04, and cutting needs no
# weights.
#
# </details>

# %% tags=["exercise"]
def count_parameters(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    return {
        "patch embedding": TODO,
        "class token": TODO,
        "positions": TODO,
        "blocks": TODO,
        "final norm": TODO,
        "head": TODO,
    }


count_parameters = checks.use(count_parameters, answers.count_parameters)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def count_parameters_solution(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    return {
        "patch embedding": patch_size**2 * in_channels * embed_dim + embed_dim,
        "class token": embed_dim,
        "positions": (num_patches + 1) * embed_dim,
        "blocks": depth * (12 * embed_dim**2 + 13 * embed_dim),
        "final norm": 2 * embed_dim,
        "head": embed_dim * num_classes + num_classes,
    }


# %% [markdown]
# The paper's Table 1 names three sizes; "/16" is the patch size. **Look for** the row where formula and
# model disagree (there should be none), and the row that does not fit the paper's number.

# %%
VARIANTS = {  # patch size, width D, depth L, heads; what the paper's Table 1 says
    "B/16": (16, 768, 12, 12, "86M"),
    "B/32": (32, 768, 12, 12, "86M"),
    "L/16": (16, 1024, 24, 16, "307M"),
    "L/32": (32, 1024, 24, 16, "307M"),
    "H/14": (14, 1280, 32, 16, "632M"),
}


def build(patch_size, embed_dim, depth, num_heads, num_classes=1000):
    """A variant for 224 pixels, without numbers in its tensors."""
    with torch.device("meta"):
        return VisionTransformer(224, patch_size, 3, num_classes, embed_dim, depth, num_heads)


# %%
print("        formula        model   same   paper")
for name, (patch_size, width, depth, heads, paper) in VARIANTS.items():
    model = build(patch_size, width, depth, heads)
    counted = sum(parameter.numel() for parameter in model.parameters())
    num_patches = (224 // patch_size) ** 2
    parts = count_parameters(num_patches, patch_size, 3, 1000, width, depth)
    formula = sum(parts.values())
    print(f"{name}{formula:>13,}{counted:>13,}   {formula == counted}{paper:>7}")

# %% [markdown]
# The paper gives one number for each size, but a model with larger patches has another: more pixels in the
# projection, fewer positions. **L/16 has 304.3 million, not 307.** How its numbers were counted, the paper
# does not say. Let us try: with or without the head, with or without the hidden layer of pretraining. **Look
# for** a column in which 86, 307 and 632 appear.

# %%
print("         body   + head  + hidden   + both   paper")
for name, (patch_size, width, depth, _, paper) in VARIANTS.items():
    body = sum(count_parameters((224 // patch_size) ** 2, patch_size, 3, 0, width, depth).values())
    head, hidden = 1000 * (width + 1), width**2 + width
    counts = [body, body + head, body + hidden, body + head + hidden]
    millions = [count / 1e6 for count in counts]
    print("{}{:9.1f}{:9.1f}{:10.1f}{:9.1f}{:>8}".format(name, *millions, paper))

# %% [markdown]
# One column fits all three: the body with the hidden layer, for B/16, **L/32** and H/14. So the 307 was
# probably counted with patches of 32. That is a guess. What is certain: L/16 does not come to 307 in any
# column. A table of rounded numbers can't prove an implementation; an exact count with its configuration
# can.
#
# ### Five numbers from a tutorial
#
# A widely read tutorial prints its models with the tool torchsummary, for 4 classes: 85,651,204 for B/16.
# Ours has 85,801,732. **Who is wrong?** torchsummary works with hooks, as our `trace` did: it adds up
# `weight` and `bias` of every module that runs. Let us count in this way. **Look for** two equal columns.

# %%
def seen_by_hooks(model, images):
    """Add up `weight` and `bias` of the modules whose forward runs."""
    seen = {}

    def note(module, inputs, output):
        tensors = (getattr(module, name, None) for name in ("weight", "bias"))
        seen[module] = sum(tensor.numel() for tensor in tensors if tensor is not None)

    for module in model.modules():
        module.register_forward_hook(note)
    model(images)
    return sum(seen.values())


# %%
printed = [85_651_204, 87_420_676, 303_105_028, 305_464_324, 630_442_244]  # by the tutorial
image = torch.empty(1, 3, 224, 224, device="meta")

# %%
print("            exact     by hooks overlooked  by hooks + 2·D  the tutorial")
for (name, (patch_size, width, depth, heads, _)), theirs in zip(VARIANTS.items(), printed):
    model = build(patch_size, width, depth, heads, num_classes=4)
    exact, seen = sum(p.numel() for p in model.parameters()), seen_by_hooks(model, image)
    assert exact - seen == width + (model.patch_embedding.num_patches + 1) * width
    print(f"{name}{exact:>13,}{seen:>13,}{exact - seen:>11,}{seen + 2 * width:>16,}{theirs:>14,}")

# %% [markdown]
# The hooks overlook exactly the class token and the positions, D + (N + 1)·D: bare parameters, which are no
# module's `weight` or `bias`. The tutorial's own model has a LayerNorm more in its patch embedding, 2·D, and
# with it all five printed numbers follow. (It has yet another norm at the end that is never used, 2·D. Hooks
# don't see that either, since it never runs. So its true total for B/16 is 85,801,732 + 4·768 = 85,804,804.)
#
# `sum(p.numel() for p in model.parameters())` overlooks nothing that is registered. Use that.
#
# ## How much work?
#
# Work is counted in multiplications and additions, FLOPs. Nearly all of it is in matrix products. A product
# of (a, b) with (b, c) has a·b·c multiplications, each with an addition. So **2·a·b·c FLOPs**, or a·b·c
# *multiply-adds* (MACs). Papers and tools print either, and call both FLOPs. Ask which.
#
# ### Exercise 3 · the FLOPs of a ViT (10 minutes)
#
# Count all matrix products for **one** image, two FLOPs for each multiply-add. Leave out biases, norms,
# GELU, softmax and sums: they are little. How many tokens run through the patch embedding, through the
# blocks, through the head?
#
# <details><summary>Hint</summary>
#
# With T = N + 1 tokens, each of a block's 12·D² weights is used once a token. Attention has two more
# products, without weights: queries with keys, (T, D) with (D, T), and attention with values, (T, T) with
# (T, D). The heads share the width between them, so together they are as much work as one.
#
# </details>

# %% tags=["exercise"]
def count_flops(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    return TODO  # your code here


count_flops = checks.use(count_flops, answers.count_flops)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def count_flops_solution(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    T, D = num_patches + 1, embed_dim
    embedding = num_patches * patch_size**2 * in_channels * D
    block = 12 * T * D**2 + 2 * T**2 * D
    return 2 * (embedding + depth * block + D * num_classes)


# %% [markdown]
# PyTorch has a counter too. It watches every operation and knows what a product of its shapes costs. On
# tensors without numbers it takes no time. **Look for** the row where the two disagree.

# %%
from torch.utils.flop_counter import FlopCounterMode

print("         formula, GFLOPs   counter      GMACs")
for name, (patch_size, width, depth, heads, _) in VARIANTS.items():
    with FlopCounterMode(display=False) as counter:
        build(patch_size, width, depth, heads)(image, return_attention=True)
    formula = count_flops((224 // patch_size) ** 2, patch_size, 3, 1000, width, depth)
    assert counter.get_total_flops() == formula
    counted = counter.get_total_flops()
    print(f"{name}{formula / 1e9:>18.3f}{counted / 1e9:>12.3f}{formula / 2e9:>11.3f}")

# %% [markdown]
# None: the same to the last FLOP. You will find ViT-B/16 quoted as 17.6 G and as 35.1 G. Both are right, the
# first in multiply-adds.
#
# ### When a counter is wrong
#
# **Fused attention.** The cell above asked for the attention. Without that, our model hands attention to
# one PyTorch function (lesson 04, `scaled_dot_product_attention`), and a counter must know that function.
# Here on real numbers, on the CPU:

# %% tags=["nbval-ignore-output"]
model = VisionTransformer(**trained.config).eval()
with FlopCounterMode(display=False) as explicit:
    model(cat, return_attention=True)
with FlopCounterMode(display=False) as fused:
    model(cat)
million = [counter.get_total_flops() / 1e6 for counter in (explicit, fused)]
print("explicit products: {:.1f} million FLOPs, fused attention: {:.1f} million".format(*million))

# %%
formula = count_flops(64, 4, 3, 10, 192, 6)
print("explicit is what the formula says:", explicit.get_total_flops() == formula)
print("fused counts nothing more:        ", fused.get_total_flops() <= explicit.get_total_flops())

# %% [markdown]
# If your second number is the smaller one, your PyTorch's counter does not know the CPU's fused function,
# and counts it as 0 (later versions may). The work was done all the same.
#
# **Counting by modules.** Other tools put hooks on `nn.Linear` and `nn.Conv2d`, and multiply the size of the
# output with the number of inputs of each. **Predict:** what do they miss in our B/16? And in torchvision's,
# which has the same 17.56 G?

# %%
def macs_by_modules(model, images):
    counts = []
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(
                lambda m, _, out: counts.append(out.numel() * m.weight[0].numel())
            )
    model(images)
    return sum(counts)


# %%
with torch.device("meta"):
    for name, model in (("ours", VisionTransformer()), ("torchvision's", torchvision_vit_b_16())):
        seen, formula = macs_by_modules(model, image), count_flops(196, 16, 3, 1000, 768, 12) / 2
        missing = 1 - seen / formula
        print(f"{name:15}{seen / 1e9:.2f} of {formula / 1e9:.2f} GMACs, {missing:.0%} are missing")

# %% [markdown]
# In ours the two T×T products are missing: they have no weights, so there is no module to hook. In
# torchvision's more than a third of everything is gone. Its `nn.MultiheadAttention` keeps the projections
# of query, key and value as a bare parameter, and reads the output projection's weight without running the
# module.
#
# The tools that people use do the same. *thop* counts by modules, as the cell above, and a little for the
# norms; it also leaves bare parameters out of its parameter count. *fvcore* watches operations, but skips
# `scaled_dot_product_attention` with a warning, so that for both models it comes to what our first line
# says. Both count multiply-adds, and fvcore calls them flops. Before you wonder why two tables give one
# model different FLOPs, ask how they were counted.
#
# ## What the pieces cost
#
# Now the count by part, for B/16. **Predict:** which part has most of the parameters? Which most of the
# work: attention or MLP?

# %%
def costs_by_part(num_patches, patch_size, in_channels, num_classes, embed_dim, depth):
    """Parameters and multiply-adds of each part."""
    T, D = num_patches + 1, embed_dim
    parts = count_parameters(num_patches, patch_size, in_channels, num_classes, embed_dim, depth)
    pixels = patch_size**2 * in_channels
    return {  # part: (parameters, multiply-adds)
        "patch embedding": (parts["patch embedding"], num_patches * pixels * D),
        "class token, positions": (parts["class token"] + parts["positions"], 0),
        "attention: projections": (depth * (4 * D**2 + 4 * D), depth * 4 * T * D**2),
        "attention: T×T products": (0, depth * 2 * T**2 * D),
        "MLP": (depth * (8 * D**2 + 5 * D), depth * 8 * T * D**2),
        "norms": (depth * 4 * D + 2 * D, 0),
        "head": (parts["head"], D * num_classes),
    }


# %%
b_16 = (196, 16, 3, 1000, 768, 12)
costs = costs_by_part(*b_16)
parameters, work = ({part: pair[kind] for part, pair in costs.items()} for kind in (0, 1))
assert sum(parameters.values()) == 86_567_656 and 2 * sum(work.values()) == count_flops(*b_16)

# %%
from vitlib.figures import vit as figures

plots.show(
    figures.cost_by_part(
        {"86.6 million parameters": parameters, "17.6 billion multiply-adds": work}
    ),
    alt="Shares of parameters and work by part. MLP: nearly two thirds; projections: about a third.",
)

# %% [markdown]
# *Figure: which share of ViT-B/16 each part has; left, of its parameters, right, of its work for one picture
# of 224×224, as far as we count it: norms do a little work too.*
#
# Nearly two thirds are MLP, in both. A Vision Transformer is mostly an MLP applied to every token; the
# famous T×T products are 4 % of the work. That holds at 196 patches. Now let the picture grow, with the
# patch size fixed. **Predict:** at which side do the T×T products cost as much as all the rest of a block?
# (Set 12·T·D² equal to 2·T²·D.)

# %%
sides = [224, 384, 512, 768, 1024, 1536, 2048]
rest, square = [], []
for side in sides:
    work = {part: pair[1] for part, pair in costs_by_part((side // 16) ** 2, *b_16[1:]).items()}
    square.append(work.pop("attention: T×T products") / 1e9)
    rest.append(sum(work.values()) / 1e9)

# %%
for side, products, others in zip(sides, square, rest):
    print(f"{side:5} pixels: T×T products are {products / (products + others):4.0%} of the work")
lines = {"T×T products": (sides, square), "everything else": (sides, rest)}
plots.show(
    plots.line_chart(lines, "side of the picture (pixels)", "billion multiply-adds", "log", "log"),
    alt="Two straight lines; that of the T×T products is twice as steep, and crosses near 1100.",
)

# %% [markdown]
# *Figure: work of ViT-B/16 against the side of the picture, both axes logarithmic. The steeper line is
# quadratic in the number of tokens, the other linear.*
#
# They are equal at T = 6·D. For a width of 768 that is 4608 tokens, a picture of about 1086×1086 pixels.
# Below it, whoever wants a cheaper ViT should look at the MLP and at the number of tokens first.
#
# ## A change of design
#
# ### Exercise 4 · two questions at once (15 minutes)
#
# One model shall answer two questions about a picture, say "which shape?" (10 classes) and "in which half?"
# (2 classes), with one run of the encoder. Build `TwoQuestions` on `VisionTransformer`: `TwoQuestions((10,
# 2), image_size=32, ...)` takes two numbers of classes, and gives two tensors of logits.
#
# <details><summary>Hint</summary>
#
# What must change is the head alone. <code>super().__init__(num_classes=0, **options)</code> builds the
# model without one, and <code>self.config["embed_dim"]</code> is its width. In <code>forward</code>,
# <code>self.forward_features(images)</code> gives the normed tokens (B, T, D); both heads read token 0.
#
# </details>

# %% tags=["exercise"]
class TwoQuestions(VisionTransformer):
    """Shapes: images (B, C, H, W) -> logits (B, K1) and (B, K2)."""

    def __init__(self, num_classes, **options):
        super().__init__(num_classes=0, **options)
        # your code here: two heads

    def forward(self, images):
        return TODO  # your code here: two tensors


TwoQuestions = checks.use(TwoQuestions, answers.TwoQuestions)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
class TwoQuestions_solution(VisionTransformer):
    """Shapes: images (B, C, H, W) -> logits (B, K1) and (B, K2)."""

    def __init__(self, num_classes, **options):
        super().__init__(num_classes=0, **options)
        width = self.config["embed_dim"]
        self.heads = nn.ModuleList(nn.Linear(width, number) for number in num_classes)

    def forward(self, images):
        features = self.forward_features(images)[:, 0]  # (B, D)
        return tuple(head(features) for head in self.heads)


# %% [markdown]
# It trains like any other: one loss for each question, added. An object is in the half that has more of its
# pixels. **Predict** the loss at the start: what do ten classes and two classes give?

# %% tags=["nbval-rtol=0.1"]
torch.manual_seed(0)
two = TwoQuestions((10, 2), image_size=32, patch_size=4, embed_dim=96, depth=4, num_heads=4)
left, right = data.masks[:, :, :16], data.masks[:, :, 16:]
half = (right.sum(dim=(1, 2)) > left.sum(dim=(1, 2))).long()  # 1: right
shape_logits, half_logits = two(images)
loss = cross_entropy(shape_logits, data.labels) + cross_entropy(half_logits, half)
print(f"{tuple(shape_logits.shape)}, {tuple(half_logits.shape)}, loss at the start: {loss:.1f}")

# %% [markdown]
# About ln 10 + ln 2 = 3.0: it knows neither answer yet. (Heads that are made after `super().__init__()`
# start as PyTorch starts a linear map. For 0.02 call `self.apply(initialize)` once more.)
#
# ## Common mistakes
#
# **`strict=False`.** Weights with other names don't fit, `load_state_dict` complains, and someone finds the
# option that makes it quiet. The symptom: the "pretrained" model is right as often as chance.

# %%
theirs = TorchvisionViT(32, 4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=64, num_classes=7)
ours = VisionTransformer(32, 4, 3, 7, embed_dim=16, depth=2, num_heads=2)
before = copy.deepcopy(ours.state_dict())

# %%
result = ours.load_state_dict(theirs.state_dict(), strict=False)  # no error
changed = [name for name, weight in ours.state_dict().items() if not weight.equal(before[name])]
missing, unexpected = len(result.missing_keys), len(result.unexpected_keys)
print(f"missing: {missing}, unexpected: {unexpected}, loaded: {len(changed)}")

# %% [markdown]
# Nothing was loaded. The cause: no name fits. Translate the names, leave `strict` on, and compare logits.
#
# **Blocks in a plain list.** `self.blocks = [EncoderBlock(...), ...]` runs and gives logits of the right
# shape. But PyTorch looks for parameters in modules and in `nn.ModuleList`, not in lists. The symptom: far
# too few parameters, and a model that hardly learns, since the optimizer never gets the blocks.

# %%
listed = SmallViT(32, 4, 3, 10, 192, 6, 6)
blocks = list(listed.blocks)
del listed.blocks
listed.blocks = blocks
for name, model in (("nn.ModuleList", small_vit), ("plain list", listed)):
    print(f"{name:15}{sum(p.numel() for p in model.parameters()):>10,} parameters")

# %% [markdown]
# **`model.eval()` forgotten.** The symptom: the same picture gets another answer each time. The cause:
# dropout is on. A new model is in training mode until you say otherwise.

# %%
noisy = SmallViT(32, 4, 3, 10, 192, 6, 6, dropout=0.1)
with torch.no_grad():
    print("in training mode, twice the same:", torch.equal(noisy(cat), noisy(cat)))
    noisy.eval()
    print("in evaluation, twice the same:   ", torch.equal(noisy(cat), noisy(cat)))

# %% [markdown]
# How far are you?

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - Patches, class token, positions, L blocks, norm, token 0, head: equations 1 to 4 are the whole forward
#   pass.
# - Through all blocks the tokens keep one shape, (B, N + 1, D).
# - Parameters: P²·C·D + D, D, (N + 1)·D, L·(12·D² + 13·D), 2·D, D·K + K. Work in a block: 12·T·D² + 2·T²·D
#   multiply-adds.
# - Tools that count by modules miss bare parameters and products without weights. Count on paper once.
# - A proof of equality needs weights that are all noise, a small tolerance (64 bits allow 1e-10), and broken
#   models that it finds out.
#
# Previous: [05 Encoder block](05_encoder_block.ipynb) · Next: [07 Train on CIFAR-10](07_train_cifar10.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, section 3.1, table 1, appendix B.1,
# [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Devlin et al. 2018 (BERT),
# [arXiv:1810.04805](https://arxiv.org/abs/1810.04805) · He et al. 2015, *Delving Deep into Rectifiers*
# (Kaiming's start), [arXiv:1502.01852](https://arxiv.org/abs/1502.01852). Photograph: Chelsea the cat, by
# Stéfan van der Walt, CC0.
