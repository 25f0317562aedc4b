# %% [markdown]
# # Positional encoding: tell each patch where it is
#
# > Cut a picture into patches and shuffle them. You see the difference at once, and a transformer sees none,
# > unless you tell it where each patch was.
#
# **After this lesson you can**
# - show by experiment that without positions a shuffled picture gives the same answer, and say why;
# - add learned positions in the right shape, at the right moment, and say why adding is enough;
# - compute sine-cosine positions by hand, in one and in two dimensions, and read their pictures;
# - take positions from one picture size to another, and say which row must stay as it is;
# - say how much positions bring, and how much it matters which, with numbers.
#
# 35 minutes to read, 36 for the exercises · under 30 seconds to run · needs patch tokens from [01 Patch
# embedding](01_patch_embedding.ipynb) and the class token from [02 Class token](02_class_token.ipynb)

# %%
from vitlib import diagrams, plots

plots.show(
    diagrams.vit_map("positional_encoding"),
    alt="The model as a map, from a picture to its class. "
    "The positions are framed: one vector for each token, added to it.",
)

# %% [markdown]
# *Figure: the map of the series. Here you add to each token a vector that says where it belongs (green).*
#
# ## Is this the same picture?
#
# A photograph in 8×8 patches, and the same patches in a random order. **Ask yourself:** what do you know
# about the left picture that you don't know about the right one?

# %%
import torch
from einops import rearrange
from skimage.data import chelsea
from torch import nn

from vitlib import checks, positional_encoding
from vitlib.checks import TODO
from vitlib.data import fit_picture
from vitlib.patch_embedding import patchify, unpatchify

photo = fit_picture(chelsea(), 256)[None]  # uint8 (1, 3, 256, 256)
order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
shuffled_photo = unpatchify(patchify(photo, 32)[:, order], 256, 32)

# %% [markdown]
# Side by side:

# %%
plots.show(
    plots.picture_grid([photo[0], shuffled_photo[0]], ["in order", "shuffled"]),
    alt="A cat's face, and the same picture cut into 64 patches that lie in a random order.",
)

# %% [markdown]
# *Figure: left, the photograph; right, its 64 patches in a random order. No pixel was changed.*
#
# Each patch still shows fur, an eye, a whisker. What is lost is where. Now suppose a model gets the 64
# patches as a list of tokens. Does the order of a list count as "where"?
#
# ## To attention, order is nothing
#
# How tokens look at each other is the subject of [lesson 04](04_attention.ipynb). Here we use attention as
# a **black box**, PyTorch's own: tokens go in, each looks at all the others, as many tokens come out. Its
# weights are random; for this question any will do.
#
# Three tokens of two numbers go in: a class token and two patches. Then the same with the patches swapped.
# **Predict:** what happens to the three rows that come out?

# %%
torch.manual_seed(3)
look = nn.MultiheadAttention(embed_dim=2, num_heads=1, batch_first=True)
tokens = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]]])  # (1, 3, 2)
swapped = tokens[:, [0, 2, 1]]
with torch.no_grad():  # it takes three lists of tokens, here three times the same: see lesson 04
    out, out_swapped = (look(x, x, x)[0] for x in (tokens, swapped))

# %% [markdown]
# Orange is the class token, blue are the patches. Compare the second table with the fourth.

# %%
names, names_swapped = ["class", "patch 0", "patch 1"], ["class", "patch 1", "patch 0"]
color = [["class_token"] * 2, ["patch"] * 2, ["patch"] * 2]
plots.show(
    plots.number_tables(
        [tokens[0], out[0], swapped[0], out_swapped[0]],
        titles=["in", "out", "swapped, in", "swapped, out"],
        rows=[names, names, names_swapped, names_swapped],
        colors=[color] * 4,
        form="{:.2f}",
    ),
    alt="Four small tables: tokens in and out, and the same with the two patches swapped.",
)

# %% [markdown]
# *Figure: three tokens before and after attention, in two orders. Swap the patches going in, and the same
# rows come out, swapped.*
#
# Not by chance, and not only to two decimals:

# %%
print("patches come out swapped, else the same:", torch.allclose(out_swapped, out[:, [0, 2, 1]]))
print("the class token comes out the same:     ", torch.allclose(out_swapped[:, 0], out[:, 0]))

# %% [markdown]
# The first line has a name: attention is **permutation-equivariant**. Permute what goes in, and what comes
# out is permuted the same way. The second line follows from it: the class token was not moved, so nothing
# changes for it. And from the class token the picture is classified.
#
# Why? What a token takes from the others is a weighted **sum**, and a weight depends on what the two tokens
# hold, not on where they stand in the list. A sum does not know the order of its terms. (A convolution
# does: each weight of its window belongs to one neighbour.)
#
# ## The shuffle test
#
# Does it hold for a whole encoder? `Encoder` from `vitlib` is attention and more, several layers deep, and
# still a black box here. We feed it the cat, in order and shuffled, in double precision so that rounding
# does not blur the answer.

# %%
from vitlib.class_token import ClassToken
from vitlib.data import normalize
from vitlib.encoder import Encoder
from vitlib.patch_embedding import PatchEmbedding

torch.manual_seed(0)
to_tokens = PatchEmbedding(256, 32, in_channels=3, embed_dim=64).double()
class_token = ClassToken(64).double()
encoder = Encoder(64, depth=2, num_heads=4).double()

# %% [markdown]
# The class token goes in front, the positions are added, and we look at what comes out for the class token:

# %%
@torch.no_grad()
def class_output(images, positions, to_tokens, class_token, encoder):
    """What an encoder makes of the class token. Shapes: (B, C, H, W), (1, T, D) -> (B, D)."""
    tokens = class_token(to_tokens(images)) + positions  # (B, T, D)
    return encoder(tokens)[0][:, 0]  # an encoder gives (tokens, attention or None)


# %% [markdown]
# Zeros as positions are no positions. **Predict both lines** before you run.

# %%
model_parts = (to_tokens, class_token, encoder)
images, shuffled = (normalize(p, [0.5] * 3, [0.25] * 3).double() for p in (photo, shuffled_photo))
for name, positions in (
    ("without positions", torch.zeros(1, 65, 64)),
    ("with positions", torch.randn(1, 65, 64, generator=torch.Generator().manual_seed(0))),
):
    first, second = (class_output(x, positions, *model_parts) for x in (images, shuffled))
    difference = (first - second).abs().max().item()
    print(f"{name:18} largest difference below 1e-6: {difference < 1e-6}, above 0.01: {difference > 0.01}")

# %% [markdown]
# Without positions, cat and shuffled cat are one and the same. With any positions at all, even random ones,
# they differ. A model that cannot see the order takes a picture for a *bag of patches*.
#
# A trained model can tell us what this means for an answer. This one learned CIFAR-10 *with* positions. A
# copy of it gets `nn.Identity()`, which adds nothing, in the place of its positions.

# %%
import copy

import vitlib

checkpoint = vitlib.load("cifar10")
trained = checkpoint.model
bare = copy.deepcopy(trained)
bare.positional_encoding = nn.Identity()

# %% [markdown]
# And the cat once more, small enough for this model, in order and shuffled:

# %%
small = fit_picture(chelsea(), 32)[None]  # uint8 (1, 3, 32, 32): 64 patches of 4x4 pixels
small_shuffled = unpatchify(patchify(small, 4)[:, order], 32, 4)
both = torch.cat([small, small_shuffled])  # (2, 3, 32, 32)
both = normalize(both, checkpoint.mean, checkpoint.std)
cat = checkpoint.classes.index("cat")

# %% [markdown]
# What do the two say? **Predict:** in which pair of columns are the numbers the same?

# %% tags=["nbval-rtol=0.01"]
with torch.no_grad():
    answers = torch.cat([model(both) for model in (trained, bare)]).softmax(dim=1)  # (4, 10)
print("             with positions      without positions")
print("             in order  shuffled  in order  shuffled")
for name, column in zip(checkpoint.classes, answers.T):
    print(f"{name:10}", "".join(f"{probability:10.2f}" for probability in column))

# %% [markdown]
# With positions the shuffled cat is much less of a cat, and other classes gain. Without them all ten
# probabilities stay as they are, right or wrong. Notice that "without" still says cat: fur and eyes alone go
# a long way.
#
# ## One learned vector for each place
#
# The remedy of the paper is one line (equation 1): add to each token a vector that belongs to its
# **place**.
#
# $$\mathbf{z}_0 = [\mathbf{x}_{class};\, \mathbf{x}_p^1\mathbf{E};\, \dots;\,
# \mathbf{x}_p^N\mathbf{E}] + \mathbf{E}_{pos}$$
#
# The brackets hold the class token and the patch tokens, one below the other; the positions
# $\mathbf{E}_{pos}$ have $N + 1$ rows of $D$ numbers, too. By hand, with two patches and $D = 4$:

# %%
tokens = torch.tensor([[9.0, 9, 9, 9], [1, 2, 3, 4], [5, 6, 7, 8]])
positions = torch.tensor([[0.1, 0, 0, 0], [0, 0.1, 0, 0], [0, 0, 0.1, 0]])
tokens + positions

# %% [markdown]
# Each token got the vector of its place. The class token has a place too, in row 0.
#
# A place is the same in every picture. So there is one table for all of them, of shape $(1, N + 1, D)$, and
# `+` repeats it along the batch. **Predict** the shape that comes out of this sum of a batch of 5 and the
# table:

# %%
(torch.zeros(5, 3, 4) + positions[None]).shape  # (B, T, D) + (1, T, D)

# %% [markdown]
# Which vectors? The paper's answer: start with small random numbers and let training find out, as for any
# other weight. In PyTorch that is an `nn.Parameter`.
#
# ### Exercise 1 · class token and positions (6 minutes)
#
# Put both steps of equation 1, prepend and add, into one module. The class token is there already. How many
# positions do you need, and what comes first: to prepend or to add?
#
# <details><summary>Hint</summary>
#
# <code>self.positions = nn.Parameter(torch.zeros(1, ..., embed_dim))</code>. In <code>forward</code>:
# <code>token = self.token.expand(len(tokens), -1, -1)</code>, then <code>torch.cat([token, tokens],
# dim=1)</code>, then the sum.
#
# </details>

# %% tags=["exercise"]
class TokensWithPositions(nn.Module):
    """A class token in front, then a learned position for each. (B, N, D) -> (B, N + 1, D)"""

    def __init__(self, num_patches, embed_dim):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.positions = TODO  # your code here

    def forward(self, tokens):
        return TODO  # your code here


checks.value("TokensWithPositions", TokensWithPositions)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
class TokensWithPositions_solution(nn.Module):
    def __init__(self, num_patches, embed_dim):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, num_patches + 1, embed_dim))

    def forward(self, tokens):
        token = self.token.expand(len(tokens), -1, -1)  # (B, 1, D)
        return torch.cat([token, tokens], dim=1) + self.positions  # (B, N + 1, D)


# %% [markdown]
# In `vitlib` the class token is a module of its own (lesson 02), and so are the positions. The finished
# class does nothing but add. Its start, a truncated normal distribution with standard deviation 0.02, is
# what the paper's code and most others use, give or take the truncation.

# %% tags=["finished"]
class LearnedPositionalEncoding(nn.Module):
    """Add one learned vector for each position, the class token's included.

    Shapes: (B, T, D) -> (B, T, D).
    """

    def __init__(self, num_tokens, embed_dim):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.zeros(1, num_tokens, embed_dim))
        nn.init.trunc_normal_(self.positional_embedding, std=0.02)

    def forward(self, tokens):
        return tokens + self.positional_embedding.to(tokens.dtype)


# %% [markdown]
# **Proof.** PyTorch has a table of learned vectors, `nn.Embedding`. Look up rows 0, 1, 2, … of the same
# table, add them, and compare; with a batch of 7 and odd sizes.

# %%
torch.manual_seed(0)
encoding, table = LearnedPositionalEncoding(num_tokens=13, embed_dim=10), nn.Embedding(13, 10)
table.weight.data = encoding.positional_embedding.data[0]
tokens = torch.randn(7, 13, 10)
assert torch.equal(encoding(tokens), tokens + table(torch.arange(13)))
print("the same numbers as nn.Embedding, looked up by place")

# %% [markdown]
# What does it cost? Only the table. **Count by hand first:** 64 patches and a class token of 192 numbers
# for our small model; 196 patches and a class token of 768 for the paper's ViT-B/16, which has 86,567,656
# parameters in all.

# %%
for name, num_tokens, embed_dim, total in (
    ("CIFAR-10", 65, 192, sum(p.numel() for p in trained.parameters())),
    ("ViT-B/16", 197, 768, 86_567_656),
):
    count = LearnedPositionalEncoding(num_tokens, embed_dim).positional_embedding.numel()
    print(f"{name}: {count:>7,} numbers, {count / total:.1%} of the model")

# %% [markdown]
# ## Is it not a mess, to add?
#
# One patch of the cat as the trained model sees it: what is in it, where it is, and the sum, which is all
# that the layers get. **Look for** something in the third strip that tells its two parts apart.

# %%
with torch.no_grad():
    patch = trained.patch_embedding(both[:1])[0, 26]  # fourth row, third column: an eye
# Row 0 is the class token's.
position = trained.positional_encoding.positional_embedding[0, 27].detach()

# %% [markdown]
# Red is positive, blue is negative, in all three on one scale.

# %%
from vitlib.figures import positional_encoding as figures

plots.show(
    figures.strips(
        {
            "patch": (patch[:64], "patch"),
            "position": (position[:64], "position"),
            "token": ((patch + position)[:64], "neutral"),
        },
        signs=["", "+", "="],
    ),
    alt="Three strips of 64 coloured cells: a patch, its position, and their sum.",
)

# %% [markdown]
# *Figure: a patch, plus its place, gives the token. Drawn are the first 64 of 192 numbers.*
#
# You can't tell them apart by eye. Would it not be cleaner to **append** the position, and keep the two
# apart? That is what many people think happens here. Two experiments say why adding will do.
#
# **First: in many dimensions there is room.** Take 64 random patches and 64 random positions, add them, and
# ask of each sum: which of the 64 positions points most in its direction? **Predict** how many are found,
# of width 2, and of width 64. Guessing would find 1 in 64.

# %%
def share_found(embed_dim, seed):
    """Of 64 sums patch + position, the share whose position is found again by its direction."""
    generator = torch.Generator().manual_seed(seed)
    patches, positions = torch.randn(2, 64, embed_dim, generator=generator)
    directions = nn.functional.normalize(positions, dim=1)
    found = ((patches + positions) @ directions.T).argmax(dim=1)  # (64,)
    return (found == torch.arange(64)).float().mean().item()


# %% [markdown]
# Each width is tried with 20 seeds:

# %% tags=["nbval-rtol=0.02"]
widths = [2, 4, 8, 16, 32, 48, 64]
shares = [sum(share_found(width, seed) for seed in range(20)) / 20 for width in widths]
print(f"width 2: {shares[0]:.2f}, width 64: {shares[-1]:.2f}")
plots.show(
    plots.line_chart({"positions found": (widths, shares)}, "width D", "share found"),
    alt="Share of positions found again in the sum, against the width: 0.05 at 2, near 1 from 32.",
)

# %% [markdown]
# *Figure: the share of positions that can be read off the sum, by width, mean of 20 tries.*
#
# In two dimensions a sum of arrows is a mess. Why not in 64? Measure the angle between two random
# directions. **Predict:** how far from a right angle is it, typically, in two dimensions and in 192?

# %% tags=["nbval-rtol=0.02"]
for width in (2, 64, 192):
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 10_000, width, generator=generator)
    angles = torch.cosine_similarity(first, second).acos().rad2deg()
    print(f"width {width:3}: {(angles - 90).abs().median():4.1f} degrees from a right angle (median)")

# %% [markdown]
# In many dimensions two random directions are nearly at right angles. So the patch hardly disturbs the
# position, and the other way round. A layer that wants to know the place can look along one set of
# directions, and along another for the content.
#
# **Second: to the matrix that reads it, appending comes to the same.** Append the position to the patch, and
# the matrix must be twice as wide. Cut it in two, and you see what it does. **Look for** the `+`.

# %%
torch.manual_seed(0)
matrix = torch.randn(192, 2 * 192)
appended = matrix @ torch.cat([patch, position])
summed = matrix[:, :192] @ patch + matrix[:, 192:] @ position
torch.allclose(appended, summed, atol=1e-3)

# %% [markdown]
# To append and multiply is to multiply both and **add**. Since both parts are learned, each can become what
# it would have been. (For this one matrix. Appended, the two would also stay apart in all that follows, in a
# model twice as wide. Adding saves that width, and the first experiment says why it can.)
#
# ## Positions without learning
#
# One may also write the table down by a formula. The best known is from the first transformer (Vaswani et
# al. 2017): hands of clocks. A clock tells the time with hands of different speed; the fast one says where
# within the minute, the slow one where within the hour. Here are $D/2$ hands. At position $pos$, hand $i$
# has turned by the angle $pos / 10000^{2i/D}$, and we write down where it points, as its sine and its
# cosine:
#
# $$PE(pos, 2i) = \sin\frac{pos}{10000^{2i/D}} \qquad PE(pos, 2i + 1) = \cos\frac{pos}{10000^{2i/D}}$$
#
# By hand, for $D = 4$: two hands, $i = 0$ and $i = 1$. At position 3 the fast one has turned by
# $3 / 10000^0 = 3$, the slow one by $3 / 10000^{1/2} = 0.03$ (in radians, so 6.28 is a full turn).

# %%
import math

fast, slow = 3 / 10000 ** (0 / 4), 3 / 10000 ** (2 / 4)
by_hand = torch.tensor([math.sin(fast), math.cos(fast), math.sin(slow), math.cos(slow)])
print([f"{number:.4f}" for number in by_hand.tolist()])

# %% [markdown]
# ### Exercise 2 · sine and cosine (8 minutes)
#
# Now for all positions 0, 1, 2, … and any even width. Sine and cosine of a hand stand side by side, as in
# the formula: sin, cos, sin, cos, … (Some code writes all sines first, then all cosines. To a network that
# is the same up to the order of the numbers; the check wants the formula's.)
#
# <details><summary>Hint</summary>
#
# <code>torch.arange(0, embed_dim, 2)</code> is already $2i$. The angles are a table: positions as a column
# <code>[:, None]</code>, divided by one power of 10000 for each hand, (num_positions, D/2). Fill
# <code>table[:, 0::2]</code> and <code>table[:, 1::2]</code>.
#
# </details>

# %% tags=["exercise"]
def sincos_1d(num_positions, embed_dim):
    """-> (num_positions, embed_dim)"""
    return TODO  # your code here


sincos_1d = checks.use(sincos_1d, positional_encoding.sincos_1d)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def sincos_1d_solution(num_positions, embed_dim):
    power = 10000.0 ** (torch.arange(0, embed_dim, 2) / embed_dim)  # (D/2,)
    angle = torch.arange(num_positions)[:, None] / power  # (num_positions, D/2)
    table = torch.zeros(num_positions, embed_dim)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


# %% [markdown]
# It contains what we did by hand. Then 64 positions of width 64 as a picture. **Look for** the fast hands
# and the slow ones.

# %%
assert torch.allclose(sincos_1d(10, 4)[3], by_hand, atol=1e-6)
plots.show(
    figures.encoding_table(sincos_1d(64, 64)),
    alt="64 rows and 64 columns: quick stripes at the left, ever slower towards the right.",
)

# %% [markdown]
# *Figure: each row is the vector of one position. At the left the fastest hand: its stripes change from row
# to row. At the right the slowest: over 64 positions it does not move visibly.*
#
# ## A picture is not a line
#
# Count the patches 0 to 63, row by row, and patch 7 is at the right end of the first row. **Ask yourself:**
# which patch comes next in the list? Which lies just below? Which of the two should have the more similar
# position?
#
# For a picture, use two clocks: the first half of the width for the row, the second half for the column. In
# a grid of 2×3 the rows and columns of the six patches are:

# %%
torch.arange(2).repeat_interleave(3), torch.arange(3).repeat(2)

# %% [markdown]
# That is all that is new. The finished function, and the module that adds a fixed table. A **buffer**
# travels with the model, to a GPU and into its files, and is never trained. (The class token needs a row,
# too. `vitlib` gives it position 0 in one dimension, and zeros in two, where it has no place.)

# %% tags=["finished"]
def sincos_2d(grid, embed_dim):
    """The first half of the width encodes a patch's row, the second half its column. -> (N, D)"""
    if embed_dim % 4:
        raise ValueError(
            f"sincos_2d needs an embed_dim divisible by 4, got {embed_dim}: pairs for two axes."
        )
    rows, columns = grid
    row = sincos_1d(rows, embed_dim // 2).repeat_interleave(columns, dim=0)  # (N, D/2): 0 0 0 1 1 1
    column = sincos_1d(columns, embed_dim // 2).repeat(rows, 1)  # (N, D/2): 0 1 2 0 1 2
    return torch.cat([row, column], dim=1)


class FixedPositionalEncoding(nn.Module):
    """Add a given vector for each position; nothing is learned. (B, T, D) -> (B, T, D)"""

    def __init__(self, embedding):
        super().__init__()
        self.register_buffer("positional_embedding", embedding[None])

    def forward(self, tokens):
        return tokens + self.positional_embedding.to(tokens.dtype)


# %% [markdown]
# **Proof,** from the formula and one number at a time, on a grid that is not square.

# %%
def by_formula(place, width):
    """Sine and cosine of one place, in plain Python."""
    angles = [place / 10000 ** (2 * i / width) for i in range(width // 2)]
    return [wave(angle) for angle in angles for wave in (math.sin, math.cos)]


want = [by_formula(row, 6) + by_formula(column, 6) for row in range(3) for column in range(5)]
assert torch.allclose(sincos_2d((3, 5), 12), torch.tensor(want), atol=1e-5)
fixed = FixedPositionalEncoding(sincos_2d((3, 5), 12))
print("every number is the formula's; learned numbers:", sum(p.numel() for p in fixed.parameters()))

# %% [markdown]
# Now compare them. The similarity of two positions is the cosine of the angle between their vectors: 1 is
# the same direction, 0 a right angle. Each tile below shows how similar one place (framed) is to all 64.
# **Look for** the difference between a neighbour to the side and a neighbour below.

# %%
from vitlib.attention_maps import positional_similarity

# No class token in front, so 0 prefix tokens. Shapes: (8, 8, 8, 8)
line = positional_similarity(sincos_1d(64, 192), (8, 8), num_prefix_tokens=0)
plane = positional_similarity(sincos_2d((8, 8), 192), (8, 8), num_prefix_tokens=0)

# %% [markdown]
# Two places, one in the middle and one at the right edge, in both kinds:

# %%
plots.show(
    figures.similarity_tiles(
        {"1-D": (line, (3, 4)), "1-D, at the edge": (line, (3, 7)),
         "2-D": (plane, (3, 4)), "2-D, at the edge": (plane, (3, 7))}
    ),
    alt="Four tiles of 8 by 8: in 1-D similarity spreads along the row, in 2-D in all directions.",
)  # fmt: skip

# %% [markdown]
# *Figure: how similar the position of the framed patch is to every position. With 1-D positions similarity
# follows the reading order: along the row, and from the right edge on to the left edge of the next row.
# With 2-D positions it falls off up and down as it does left and right.*
#
# ## Must somebody tell it that a picture is flat?
#
# Learned positions start as random numbers. Nothing in the code says that patch 8 lies below patch 0: to
# the model, the table is a list of 65 rows. **Predict:** what will the tile of a *learned* position look
# like before training? And after?

# %%
torch.manual_seed(0)
untrained = LearnedPositionalEncoding(65, 192)
before = positional_similarity(untrained.positional_embedding, (8, 8))
after = positional_similarity(trained.positional_encoding.positional_embedding, (8, 8))
plots.show(
    figures.similarity_tiles({"before training": (before, (3, 4)), "after": (after, (3, 4))}),
    alt="Two tiles: before training noise around the framed patch, after it round similarity.",
)

# %% [markdown]
# *Figure: learned positions before training and after, on CIFAR-10. Before, a position is similar to itself
# only. After, to what lies around it, in both directions.*
#
# Did really nobody tell it? Had the pictures changed their size during training, the positions would have
# been interpolated from one size to the next, and that alone makes neighbours alike.

# %%
print("picture sizes changed in training:", bool(checkpoint.notes["training"].get("image_sizes")))

# %% [markdown]
# They did not. Neighbouring patches have much to do with each other, in every picture, and training found
# that out. All 64 tiles (the paper's figure 7, centre). **Look for** what the left and the right edge have
# to do with each other, and guess why.

# %%
plots.show(
    plots.positional_similarity_grid(after),
    alt="8 by 8 tiles of 8 by 8 cells; in each, the places around the tile's own stand out.",
)

# %% [markdown]
# *Figure: one tile for each patch, at its place in the picture (here counted from 1, as in the paper's
# figure); in each, the similarity to all 64 patches.*
#
# How often is the most similar *other* position a direct neighbour (up, down, left or right)? And what
# about the mirror image, the place as far from the other edge?

# %%
def most_similar(similarity):
    """For how many patches the most similar other is a neighbour, for how many the mirror image."""
    rows, columns = similarity.shape[:2]
    table = similarity.reshape(rows * columns, rows * columns).clone().fill_diagonal_(-2)
    place, best = torch.arange(rows * columns), table.argmax(dim=1)
    down, across = best // columns - place // columns, best % columns - place % columns
    neighbour = down.abs() + across.abs() == 1
    mirrored = (down == 0) & (best % columns + place % columns == columns - 1) & ~neighbour
    return neighbour.sum().item(), mirrored.sum().item()


for name, similarity in (("before", before), ("after", after)):
    neighbours, mirrored = most_similar(similarity)
    print(f"{name:6}: {neighbours:2} neighbours and {mirrored:2} mirror images, of 64 patches")

# %% [markdown]
# Nearly all are one or the other. A guess at why: in training half of the pictures, at random, were
# mirrored, so that left and right may have meant little. Lesson [09](09_positional_embeddings.ipynb) puts
# this guess to a test. If it is right, positions show what a model needed to know, not the truth about
# pictures. They need neither be sines nor know of two dimensions to work.
#
# ## How much do positions bring?
#
# It depends on what you ask. On the same drawn pictures we ask two questions: **what** is drawn, one of ten
# shapes, and **where** is it, in which quarter of the picture is its middle? **Predict** for each: how well
# can a model answer that sees no positions?

# %%
from vitlib.data import ImageData, shapes

data = shapes("test", 1000)
names = [data.classes[label] for label in data.labels[:6]]
plots.show(
    plots.picture_grid(data.images[:6], names, columns=6),
    alt="Six drawn pictures, each with one shape of its own colour before a cluttered background.",
)

# %% [markdown]
# *Figure: six of the pictures. "What" is written above them; "where" you see.*
#
# "Where" needs labels. And a model that sees nothing at all can still name the commonest quarter each time:
# how often is that right?

# %%
def ask_where(data):
    """The same pictures, labelled by the quarter that holds the middle of the shape."""
    places, masks = torch.arange(32) + 0.5, data.masks.float()  # masks: (B, 32, 32), 1 on the shape
    middle_row = (masks.sum(dim=2) @ places) / masks.sum(dim=(1, 2))  # (B,)
    middle_column = (masks.sum(dim=1) @ places) / masks.sum(dim=(1, 2))
    labels = 2 * (middle_row > 16).long() + (middle_column > 16).long()
    quarters = ["upper left", "upper right", "lower left", "lower right"]
    return ImageData(data.images, labels, quarters)


# %% [markdown]
# On the 2000 pictures that the models below are tested on:

# %%
in_quarters = ask_where(shapes("test", 2000)).labels.bincount()
commonest = in_quarters.max().item() / 2000
print("pictures in each quarter:", in_quarters.tolist(), f"the commonest: {commonest:.1%}")

# %% [markdown]
# `experiments/positional_encoding.py` trained small models with each kind of positions, five seeds each, and
# stored every result with its configuration. We read the file.

# %%
from vitlib import results

stored = results.load("positional_encoding")
config, seeds = stored["config"], stored["seeds"]
print("pictures", config["pictures"], "· passes over them", config["training"]["epochs"])
print("model   ", {name: config["model"][name] for name in ("embed_dim", "depth", "num_heads")})
print("patches ", config["patch_size"], "pixels · seeds", seeds)

# %% [markdown]
# From its lines, those that answer one question after one length of training:

# %%
def accuracies(stored, question, epochs):
    """Name of the positions -> test accuracy of each seed, after so many passes over the data."""
    names = {"none": "none", "learned": "learned"}
    names |= {"sincos1d": "1-D sin-cos", "sincos2d": "2-D sin-cos"}
    runs = [run for run in stored["runs"] if (run["question"], run["epochs"]) == (question, epochs)]
    return {
        name: [run["accuracy"] for run in runs if run["positional"] == kind]
        for kind, name in names.items()
    }


# %% [markdown]
# First, where?

# %%
where = accuracies(stored, "where", 10)
plots.show(
    plots.bar_chart(where, f"accuracy on: where? (commonest quarter: {commonest:.1%})"),
    alt="Bars of accuracy for the question where: near 28 % without positions, else high.",
)

# %% [markdown]
# *Figure: where is the shape? Test accuracy, mean and standard deviation over the seeds; a dot is a run.*
#
# Without positions the model does no better, after the same training, than one that always names the
# commonest quarter: no patch shows where it lies. With any positions the answer is right for most
# pictures; that is what they are for. (Two of the five runs with learned ones lag behind.)
#
# And **what** is it? (With patches of 4×4 pixels, so that no patch shows a whole shape.) **Predict** again.

# %%
plots.show(
    plots.bar_chart(accuracies(stored, "what", 10), "accuracy on: what? (guessing: 10 %)"),
    alt="Bars of accuracy for the question what: without positions lowest but far above guessing.",
)

# %% [markdown]
# *Figure: what is drawn? Test accuracy, mean and standard deviation over the seeds; a dot is a run.*
#
# A surprise, perhaps: without positions most shapes are still named right. A patch holds a piece of an
# outline, and which pieces there are (straight, bent, at which angle) tells much of what they belong to. It
# is the cat's fur and eyes again. Sines add how the pieces lie to each other, worth a good ten points;
# whether in one dimension or two is within what the seeds differ.
#
# And learned positions? They bring less here, and a likely reason is that the training is short. They start
# as noise of size 0.02, and have 620 steps to become useful. The sines are in order from the first step, and
# 35 times larger. If that is the reason, a still shorter training must show it more clearly.
# **Try it live:** "where", 3 passes instead of 10, 2-D sines. (Training is the subject of
# [lesson 07](07_train_cifar10.ipynb); here it is a black box, too.)

# %% tags=["nbval-ignore-output"]
import tempfile

from vitlib.training import TrainingConfig, train

pictures = config["pictures"].items()
train_data, test_data = (ask_where(shapes(split, number)) for split, number in pictures)
torch.manual_seed(0)
model = vitlib.VisionTransformer(
    **config["model"], patch_size=8, num_classes=4, positional="sincos2d"
)
short = TrainingConfig(**config["training"] | {"epochs": 3, "seed": 0})
with tempfile.TemporaryDirectory() as directory:
    run = train(model, train_data, test_data, short, directory)

# %% [markdown]
# The stored results of the same short training, the lowest and the highest of five seeds, and whether ours
# is clearly above all those with learned positions. (It need not be one of the stored ones to the digit:
# another processor rounds otherwise, and early in a training small differences grow.)

# %%
stored_short = accuracies(stored, "where", 3)
print("  ".join(f"{name} {min(runs):.2f}–{max(runs):.2f}" for name, runs in stored_short.items()))
live = run.history[-1]["validation_accuracy"]
print("ours is 0.1 above every run with learned positions:", live > max(stored_short["learned"]) + 0.1)

# %% [markdown]
# After 186 steps the sines are far above guessing and the learned positions still guess, with every seed.
# After 620, in the figure for "where", three of the five had nearly caught up. They need time, not another
# design: the tiles above show what a longer training finds.
#
# The paper measured the same on real pictures (appendix D.4, table 8): ViT-B/16, and on its features a
# linear classifier that saw five pictures of each class of ImageNet.
#
# | positions | accuracy in the paper |
# |---|---|
# | none | 61.4 % |
# | 1-D, learned (the usual ones) | 64.2 % |
# | 2-D, learned: one half of the width for rows, one for columns | 64.0 % |
# | relative: by the distance of two patches, inside attention | 64.0 % |
#
# There too, most of the answer is in the patches themselves, and positions add a few points. But after
# training on so many pictures, *which* positions hardly matters. The paper's guess at why: on a grid as
# small as 14×14 patches, where a patch lies is easy to learn in any of these ways.

# %% [markdown]
# ## Another picture size
#
# Models are often trained on small pictures and used on larger ones; the paper does so in fine-tuning
# (section 3.2). The patch size stays, so there are more patches. **Predict:** which part of the model does
# not fit a picture of 48×48 pixels?

# %%
larger = fit_picture(chelsea(), 48)[None]  # (1, 3, 48, 48)
larger = normalize(larger, checkpoint.mean, checkpoint.std)
try:
    trained(larger)
except ValueError as error:
    print(str(error).replace(". ", ".\n"))

# %% [markdown]
# The layers would not mind: none of their weights knows how many tokens there are. Only the table of
# positions has one row for each of 8×8 patches, and now there are 12×12. To invent 80 rows would be a pity,
# after what we saw: neighbours have similar positions. So treat the table as a picture, 8×8 pixels with 192
# channels, and **enlarge** it, with the interpolation that enlarges photographs.
#
# The class token's row takes no part. It stands for no place on the grid, so it has no neighbours to be
# mixed with: take it off, and put it back unchanged.
#
# ### Exercise 3 · resize the positions (10 minutes)
#
# Four steps: split off row 0; lay the rest out as (1, D, rows, columns), since that is what `interpolate`
# wants; enlarge with `mode="bicubic", antialias=True`; and all the way back. Grids need not be square.
#
# <details><summary>Hint</summary>
#
# <code>rearrange(patches, "1 (row column) d -> 1 d row column", row=...)</code>, or <code>reshape</code> to
# (1, rows, columns, D) and then <code>permute(0, 3, 1, 2)</code>. Then <code>interpolate(image,
# size=new_grid, mode="bicubic", antialias=True)</code>, the same backwards, and <code>torch.cat</code>
# along <code>dim=1</code>.
#
# </details>

# %% tags=["exercise"]
from torch.nn.functional import interpolate


def resize_positional_embedding(embedding, old_grid, new_grid):
    """(1, 1 + old rows * old columns, D) -> (1, 1 + new rows * new columns, D)"""
    return TODO  # your code here


resize_positional_embedding = checks.use(
    resize_positional_embedding, positional_encoding.resize_positional_embedding
)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def resize_positional_embedding_solution(embedding, old_grid, new_grid):
    class_token, patches = embedding[:, :1], embedding[:, 1:]
    image = rearrange(patches, "1 (row column) d -> 1 d row column", row=old_grid[0])
    image = interpolate(image, size=new_grid, mode="bicubic", antialias=True)
    patches = rearrange(image, "1 d row column -> 1 (row column) d")
    return torch.cat([class_token, patches], dim=1)


# %% [markdown]
# The trained table, before and after. **Look for** the same shape, drawn finer.

# %%
table = trained.positional_encoding.positional_embedding.data  # (1, 65, 192)
resized = resize_positional_embedding(table, (8, 8), (12, 12))  # (1, 145, 192)
print("the class token's row is unchanged:", torch.equal(resized[:, 0], table[:, 0]))
fine = positional_similarity(resized, (12, 12))
plots.show(
    figures.similarity_tiles({"8×8 patches": (after, (3, 4)), "12×12 patches": (fine, (5, 6))}),
    alt="Two tiles: similarity around a patch in the middle, on 8 by 8 and on 12 by 12 patches.",
)

# %% [markdown]
# *Figure: similarity to a patch near the middle, on the grid that was trained and on the one that was
# interpolated.*
#
# In `vitlib` a model does this to itself. It was never trained on 48×48 pixels. **Predict:** does it still
# know the cat?

# %% tags=["nbval-rtol=0.01"]
grown = copy.deepcopy(trained).resize(48)
with torch.no_grad():
    for name, model, picture in (("32 pixels", trained, both[:1]), ("48 pixels", grown, larger)):
        print(f"{name}: probability of cat {model(picture).softmax(dim=1)[0, cat]:.2f}")

# %% [markdown]
# It is even surer of it: the larger picture shows more of the cat, and the enlarged table works at once,
# without any training. (One photograph proves no more than that. Lesson 09 counts over many pictures.)
#
# "Interpolate" is not one recipe. Well-known libraries differ: bilinear or bicubic, with or without
# smoothing (`antialias`), and in what they align, the corners or the edges. In `vitlib`'s function the
# argument `mode` names whose recipe to follow; the one that you wrote is timm's. **Look at** how far the
# others are from it: on our trained positions, from 8×8 to 12×12, and on random ones.

# %%
def difference(mode, embedding, old_grid, new_grid):
    """How far a recipe's result is from timm's, as a share of the size of timm's."""
    resize = positional_encoding.resize_positional_embedding
    modes = (mode, "timm")
    theirs, ours = (resize(embedding, old_grid, new_grid, mode=m)[:, 1:] for m in modes)
    return ((theirs - ours).norm() / ours.norm()).item()


# %% [markdown]
# Each recipe's distance from the first:

# %%
random_table = torch.randn(1, 65, 192, generator=torch.Generator().manual_seed(0))
for mode in positional_encoding.RESIZE_MODES:
    on_trained = difference(mode, table, (8, 8), (12, 12))
    on_random = difference(mode, random_table, (8, 8), (12, 12))
    print(f"{mode:12} trained {on_trained:4.0%}, random {on_random:4.0%}")

# %% [markdown]
# Trained positions are smooth, so the recipes agree within a tenth or so. Random ones are as rough as can
# be, and two recipes miss by a quarter. To repeat somebody's number, use their recipe. (Precision is a part
# of it: `vitlib` interpolates in float32, whatever the weights are stored in.)
#
# **Proof** that the name is earned: torchvision's own function on the same table.

# %%
from torchvision.models.vision_transformer import interpolate_embeddings

weights = {"encoder.pos_embedding": table.clone()}  # under torchvision's name
theirs = interpolate_embeddings(48, 4, weights)["encoder.pos_embedding"]
ours = positional_encoding.resize_positional_embedding(table, (8, 8), (12, 12), mode="torchvision")
assert torch.allclose(ours, theirs, atol=1e-6)
print('mode="torchvision" gives what torchvision gives')

# %% [markdown]
# ## Change the design
#
# The paper tried a learned encoding that does know of two dimensions (appendix D.4): one learned vector for
# each **row** and one for each **column**, each of half the width; a patch gets its row's and its column's,
# side by side. Like our `sincos_2d`, but learned.
#
# ### Exercise 4 · learned, by row and column (12 minutes)
#
# Write it, for any grid. The class token has neither row nor column: learn a vector of full width for it.
#
# <details><summary>Hint</summary>
#
# Three parameters: (rows, D/2), (columns, D/2) and (1, D). In <code>forward</code> lay them out as
# <code>sincos_2d</code> does, with <code>repeat_interleave(columns, dim=0)</code> and <code>repeat(rows,
# 1)</code>, then <code>torch.cat</code> twice: along the width, and with the class token's in front.
#
# </details>

# %% tags=["exercise"]
class PositionsByAxis(nn.Module):
    """Learned vectors for rows, for columns and for the class token. (B, T, D) -> (B, T, D)"""

    def __init__(self, grid, embed_dim):
        super().__init__()
        # your code here

    def forward(self, tokens):
        return TODO  # your code here


checks.value("PositionsByAxis", PositionsByAxis)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
class PositionsByAxis_solution(nn.Module):
    def __init__(self, grid, embed_dim):
        super().__init__()
        self.grid = grid
        self.rows = nn.Parameter(0.02 * torch.randn(grid[0], embed_dim // 2))
        self.columns = nn.Parameter(0.02 * torch.randn(grid[1], embed_dim // 2))
        self.class_token = nn.Parameter(0.02 * torch.randn(1, embed_dim))

    def forward(self, tokens):
        rows, columns = self.grid
        row = self.rows.repeat_interleave(columns, dim=0)  # (N, D/2): 0 0 0 1 1 1
        column = self.columns.repeat(rows, 1)  # (N, D/2): 0 1 2 0 1 2
        patches = torch.cat([row, column], dim=1)  # (N, D)
        return tokens + torch.cat([self.class_token, patches])


# %% [markdown]
# For our 8×8 patches of width 192 it learns 16 half vectors and a whole one, $16 \cdot 96 + 192 = 1{,}728$
# numbers instead of $65 \cdot 192 = 12{,}480$. The paper's line "2-D" in the table above is this one.
#
# ## Common mistakes
#
# **The wrong end is cut off.** To draw the patches' positions, the class token's row must go, the first
# one. `[:-1]` gives the same shape and no error: the class token's row stays, and every patch moves on by
# one place. The symptom: the first patch is like none of its neighbours, since it is really the class token.

# %%
wrong = positional_similarity(table[:, :-1], (8, 8), num_prefix_tokens=0)
for name, similarity in (("right, [:, 1:]", after), ("wrong, [:, :-1]", wrong)):
    first = similarity[0, 0, 0, 1]
    print(f"{name:15}: similarity of the first patch and its right neighbour {first:.2f}")

# %% [markdown]
# **A plain tensor instead of a parameter.** `self.positions = torch.randn(...)` runs, and the model trains.
# But no optimizer ever sees the tensor, `.to("cuda")` leaves it behind, and it is missing from the saved
# file. The symptom: fewer parameters than you counted.

# %%
class Forgotten(nn.Module):
    def __init__(self, num_tokens, embed_dim):
        super().__init__()
        self.positional_embedding = 0.02 * torch.randn(1, num_tokens, embed_dim)


for module in (Forgotten(65, 192), FixedPositionalEncoding(sincos_1d(65, 192)), untrained):
    learned = sum(p.numel() for p in module.parameters())
    kind, in_file = type(module).__name__, list(module.state_dict())
    print(f"{kind:26} learned {learned:>6}, in its file: {in_file}")

# %% [markdown]
# Which exercises have you solved so far, in all lessons?

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - Attention does not see the order of its tokens: shuffled patches, same class token.
# - So each token gets the vector of its place *added*, one table $(1, N + 1, D)$ for all pictures, after
#   the class token is in front.
# - The vectors may be learned, or sines and cosines, of one axis or two. Learned ones find the two
#   dimensions by themselves.
# - Asked *where*, a model without positions guesses. Asked *what*, it does well, and better with positions.
#   Which kind matters in a short training; in the paper's long one it hardly did.
# - For another picture size, interpolate the patches' rows as a picture and keep the class token's row.
#
# Previous: [02 Class token](02_class_token.ipynb) · Next: [04 Attention](04_attention.ipynb), which opens
# the black box
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, equation 1, section 3.2, figure 7,
# appendix D.4, [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Vaswani et al. 2017, *Attention Is
# All You Need*, section 3.5, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762). Photograph: Chelsea the
# cat, by Stéfan van der Walt, CC0.
