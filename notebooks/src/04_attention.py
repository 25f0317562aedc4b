# %% [markdown]
# # Attention: every token reads every other
#
# > Until now a token knows its own patch. After this lesson it can ask all the others, and take more from
# > those that matter to it.
#
# **After this lesson you can**
# - work out the attention of three tokens with pencil and paper;
# - say why scores are divided by $\sqrt d$, and show what happens without it;
# - write self-attention with many heads, and name the shape of every tensor on the way;
# - say what a head gets to see, and what the output projection is for;
# - predict how time and memory grow with the size of the picture.
#
# 45 minutes to read, 37 for the exercises · under 30 seconds to run · needs patch tokens from
# [01](01_patch_embedding.ipynb), the class token from [02](02_class_token.ipynb) and positions from
# [03](03_positional_encoding.ipynb)

# %%
from vitlib import diagrams, plots

plots.show(
    diagrams.vit_map("attention"),
    alt="The model as a map, from a picture to its class. "
    "Attention is framed, the first part of the encoder block.",
)

# %% [markdown]
# *Figure: the map of the series. Here you build the part in which tokens read each other. Its shape stays
# (B, T, D).*
#
# ## What is on this patch?
#
# The cat of lesson 00 again: 32×32 pixels for the model, in patches of 4×4; for you 288×288, with a white
# frame around the patch that we will follow.

# %%
import math

import numpy as np
import torch
from skimage.data import chelsea
from torch import nn

import vitlib
from vitlib import checks
from vitlib.checks import TODO
from vitlib.data import fit_picture, normalize

# %%
small = fit_picture(chelsea(), 32)  # uint8 (3, 32, 32)
photo = fit_picture(chelsea(), 288)  # uint8 (3, 288, 288)
framed_photo = photo.clone()
framed_photo[:, 108:144, 108:144] = 255
framed_photo[:, 111:141, 111:141] = photo[:, 111:141, 111:141]

# %% [markdown]
# **Look at the left picture first.** What could it be? Then move to the right.

# %%
pictures = [small[:, 12:16, 12:16], small[:, 8:20, 8:20], small, framed_photo]
titles = ["one patch", "its 8 neighbours", "all 64 patches", "the photograph"]
plots.show(
    plots.picture_grid(pictures, titles),
    alt="Brown squares; an eye and a cat in coarse pixels; the photograph with a white frame.",
)

# %% [markdown]
# *Figure: the patch in row 3, column 3 (we count from 0), alone and with its neighbours; the whole picture
# as the model gets it, and the photograph with the patch framed.*
#
# Alone, it is sixteen squares in brown. With its neighbours it is the corner of an eye; with all of them,
# the eye of a cat. What a patch means depends on others, near and far.
#
# After lesson 03 a token knows its own pixels and its place, and nothing else. A 3×3 convolution over the
# patches would show it its neighbours; news from the other eye, three patches away, would take three layers.
# **Attention** lets every token read every other in one step. But it should not take the same from each. So
# each token needs a way to ask.
#
# ## A soft look-up
#
# You know one way to ask: a dictionary. It compares your query with its keys, and gives the value of the one
# that is equal.

# %%
store = {"fur": 4, "green": 8}
store["fur"]

# %% [markdown]
# All or nothing: ask for "mostly fur" and you get a `KeyError`. Attention is a soft dictionary. Queries and
# keys are vectors. How well they match is a number, the **score**: their dot product. A softmax turns the
# scores of one query into shares that sum to 1. The answer is the mean of all values, weighted by the
# shares.
#
# Take three tokens: the class token, a patch of an ear, a patch of grass. Each has a **query** (what it asks
# for), a **key** (what it is found by) and a **value** (what it hands over). The numbers are made up; where
# real ones come from is for later.

# %%
query = torch.tensor([[1, 1], [0, 1], [1, 2.0]])
key = torch.tensor([[0, 0], [2, 0], [0, 1.0]])
value = torch.tensor([[1, 1], [4, 0], [0, 8.0]])

# %%
names, about, kinds = ["class", "ear", "grass"], ["fur", "green"], ["query", "key", "value"]
titles = ["query: asks for", "key: is found by", "value: hands over"]
columns = [about, about, None]
plots.show(
    plots.number_tables([query, key, value], titles, [names] * 3, columns, colors=kinds),
    alt="Three tables of three rows and two columns: the queries, keys and values of three tokens.",
)

# %% [markdown]
# *Figure: the queries (blue), keys (orange) and values (pink) of three tokens. These colours keep their
# meaning through the series.*
#
# See the ear: it is found by fur, but it asks for green. Query and key are two different things, so a token
# need not look for what is like itself.
#
# **By hand:** what does the class token take? Its query is (1, 1).
#
# | token | score: query · key | e^score | share |
# |---|---|---|---|
# | class | 1·0 + 1·0 = 0 | 1.00 | 1.00 / 11.11 = 0.090 |
# | ear | 1·2 + 1·0 = 2 | 7.39 | 7.39 / 11.11 = 0.665 |
# | grass | 1·0 + 1·1 = 1 | 2.72 | 2.72 / 11.11 = 0.245 |
# | sum | | 11.11 | 1.000 |
#
# Then the mean of the values: 0.090 · (1, 1) + 0.665 · (4, 0) + 0.245 · (0, 8) = **(2.75, 2.05)**. The third
# and fourth column together are the softmax.
#
# ### Exercise 1 · with pencil and paper (4 minutes)
#
# What does the **ear** take? Do as above with its query. Give the **second** of the two numbers, with two
# decimals. The check can tell which step went wrong.
#
# <details><summary>Hint</summary>
#
# The query is (0, 1), so the three scores are the second numbers of the three keys. e^0 = 1 and e^1 = 2.72.
#
# </details>

# %% tags=["exercise"]
ear_takes = TODO  # your number here

checks.value("what the ear takes", ear_takes)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
# Scores 0, 0, 1. Shares 1/4.72, 1/4.72, 2.72/4.72 = 0.21, 0.21, 0.58. Second numbers of the values: 1, 0, 8.
ear_takes_solution = (1 * 1 + 1 * 0 + math.e * 8) / (1 + 1 + math.e)

# %% [markdown]
# ## The same, line by line
#
# **Scores.** Row $i$ belongs to the token that asks, column $j$ to the token that is asked.

# %%
scores = torch.zeros(3, 3)
for i in range(3):
    for j in range(3):
        scores[i, j] = query[i] @ key[j]
scores

# %% [markdown]
# All dot products of rows of $Q$ with rows of $K$: that is one matrix product, $QK^\top$. Look for `True`.

# %%
torch.equal(query @ key.T, scores)

# %% [markdown]
# **Shares,** usually called attention **weights**. One softmax for each token that asks. **Predict:** will
# the rows sum to 1, or the columns?

# %%
weights = scores.softmax(dim=-1)
print("rows   ", weights.sum(dim=1))
print("columns", weights.sum(dim=0))

# %% [markdown]
# Rows: each token has one whole to spend. A column sums to whatever comes out: the class token is read
# little, the ear much.
#
# **Weighted sum.** Again one matrix product: row $i$ of the weights mixes all values for token $i$. The
# first row should be (2.75, 2.05), the second has your answer.

# %%
mixed = weights @ value
mixed

# %% [markdown]
# All three steps at a glance:

# %%
tables = {"scores": scores, "weights": weights, "mixed": mixed}
colors, columns = [None, "viridis", "value"], [names, names, None]
axes = [("query", "key"), ("query", "key"), None]
looks = {"colors": colors, "form": "{:.2f}", "axes": axes}
plots.show(
    plots.number_tables([*tables.values()], [*tables], [names] * 3, columns, **looks),
    alt="The scores, the weights and the mixed values of the three tokens, with their numbers.",
)

# %% [markdown]
# *Figure: each row is a token that asks, each column of the first two tables a token that is asked. Scores,
# their softmax along each row, and the values mixed by it.*
#
# The ear takes 0.58 from the grass, the grass takes 0.47 from the ear. A **row** says what a token reads, a
# **column** who reads it, and these are two questions.
#
# And the dictionary? It is what remains when scores are large. **Predict** the shares of the class token if
# all its scores were ten times as large.

# %%
(10 * scores[0]).softmax(dim=-1).round(decimals=2)

# %% [markdown]
# All or nothing. That looks harmless, but it brings us to the one thing that is missing.
#
# ## Why divide by $\sqrt d$?
#
# A score is a sum of $d$ products. The more products, the larger it gets. Take random queries and keys whose
# numbers have variance 1. **Predict:** the variance of their dot product for $d$ = 64?

# %% tags=["nbval-rtol=0.02"]
generator = torch.Generator().manual_seed(0)
widths, drawn = [1, 4, 16, 64, 256, 1024], {}
print("   d   variance   largest of 65 shares   the same after / √d")
for d in widths:
    asked = torch.randn(1000, 1, d, generator=generator)
    keys = torch.randn(1000, 65, d, generator=generator)
    drawn[d] = raw = (asked @ keys.mT)[:, 0]  # 1000 queries, 65 keys each: (1000, 65)
    before, after = (x.softmax(dim=-1).amax(dim=-1).mean() for x in (raw, raw / d**0.5))
    print(f"{d:4} {raw.var():10.1f} {before:15.2f} {after:22.2f}")

# %% [markdown]
# The variance is $d$: each product has variance 1, and variances add up. So the scores themselves are of
# size $\sqrt d$. At $d$ = 64, the width of a head in ViT-B, random queries give most of their row to a
# single token, for no reason. Divided by $\sqrt d$, the scores have variance 1 at every width.
#
# And a row that is all or nothing is slow to learn better. When a score rises by a little, its share $a$
# rises by $a(1-a)$ times as much, which is 0 where $a$ is 0 or 1. Measure it: we send random gradients into
# the shares, and see how much comes out at the scores. **Look for** the width from which on the dashed line
# is below the other, and by how much.

# %%
def gradient_at_scores(scores, generator):
    """The length of the gradient that passes a softmax, for a typical (median) row."""
    scores = scores.clone().requires_grad_()
    weights = scores.softmax(dim=-1)
    weights.backward(torch.randn(weights.shape, generator=generator))
    return scores.grad.norm(dim=-1).median().item()


# %% tags=["nbval-rtol=0.05"]
divided = [gradient_at_scores(drawn[d] / d**0.5, generator) for d in widths]
not_divided = [gradient_at_scores(drawn[d], generator) for d in widths]
lines = {"divided by √d": (widths, divided), "not divided": (widths, not_divided)}
plots.show(
    plots.line_chart(lines, "d, numbers in a query", "gradient at the scores", "log", "log"),
    alt="Gradient behind a softmax against d: level when divided by √d, else falling steeply.",
)

# %% [markdown]
# *Figure: the gradient that gets through a softmax over 65 scores, for a typical query (both axes
# logarithmic). Divided, it is nearly the same at every width. Not divided, it is a little larger in narrow
# heads, smaller from d = 64 on, and at d = 1024 less than a thousandth of the other.*
#
# With the division, this is the whole of attention, equations 6 and 7 of the paper (appendix A). $z$ are the
# tokens, $D_h$ is our $d$:
#
# $$A = \mathrm{softmax}\left(qk^\top / \sqrt{D_h}\right), \qquad \mathrm{SA}(z) = A v$$
#
# Once more the row of the class token, now with the division ($d$ = 2). Its shares were 0.090, 0.665 and
# 0.245. **Predict:** will the largest be larger or smaller?

# %%
from vitlib.figures.attention import ribbon, row_dissected

scaled = scores[0] / 2**0.5
exponentials = scaled.exp()
shares = exponentials / exponentials.sum()
steps = {"score": scores[0], "÷ √d": scaled, "e^…": exponentials, "÷ sum = share": shares}
plots.show(
    row_dissected(steps, names),
    alt="Scores, divided, exponentials and shares of the class token's row, as discs with numbers.",
)

# %% [markdown]
# *Figure: the row of the class token, step by step. Each column is a token that is asked; a disc grows with
# its number, the largest of its row being as wide as a disc may be. The shares sum to 1.*
#
# A little smaller: the division makes a row more even. And whatever the scores are, at the end the sum of
# the row is 1.
#
# ### Exercise 2 · the look-up (8 minutes)
#
# Put it into one function: scores, division, softmax, weighted sum. Give back both the mixed values and the
# weights. It should work for one picture, `(T, d)`, and for any number of axes before these two.
#
# <details><summary>Hint</summary>
#
# Four lines. The width is <code>query.shape[-1]</code>. With more than two axes, <code>key.T</code> would
# turn them all: <code>key.transpose(-2, -1)</code> exchanges only the last two.
#
# </details>

# %% tags=["exercise"]
def look_up(query, key, value):
    """Three of (..., T, d) -> mixed (..., T, d), weights (..., T, T)"""
    mixed, weights = TODO, TODO  # your code here
    return mixed, weights


look_up = checks.use(look_up, checks.attention.look_up)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def look_up_solution(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5  # (..., T, T)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


# %% [markdown]
# ## Self-attention, version 1: one picture
#
# Where do queries, keys and values come from? From the tokens themselves: three learned linear maps, called
# **projections**, look at the same token in three ways (paper, equation 5). That is why it is called
# *self*-attention.

# %%
plots.show(
    diagrams.attention_steps(),
    alt="Tokens give queries, keys and values; these give scores, weights, and mixed values.",
)

# %% [markdown]
# *Figure: one head, here for T = 4 tokens of D = 6 numbers, with d = 3. A row is a token, and the frame
# follows the class token: its query meets all keys, its row of weights mixes all values. In the class below,
# d = D.*

# %%
class SelfAttention1(nn.Module):
    """One picture, one head. Shapes: (T, D) -> (T, D)."""

    def __init__(self, embed_dim):
        super().__init__()
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, tokens):
        query, key, value = self.query(tokens), self.key(tokens), self.value(tokens)  # each (T, D)
        scores = query @ key.transpose(0, 1) / query.shape[-1] ** 0.5  # (T, T)
        weights = scores.softmax(dim=-1)
        return weights @ value  # (T, D)


# %% [markdown]
# Three tokens of width 4 go in, three come out. The layer has no number in it that depends on T.
# **Predict:** does it take 50 tokens as well?

# %%
torch.manual_seed(0)
version1 = SelfAttention1(4)
tokens = torch.randn(3, 4)
version1(tokens).shape, version1(torch.randn(50, 4)).shape

# %% [markdown]
# ## Version 2: a batch
#
# A batch has one axis more. Your `look_up` counts axes from the end, so it takes that already. And since the
# three maps all read the same tokens, we make them one map, three times as wide, and cut what comes out:
# $[q, k, v] = z\,U_{qkv}$ in equation 5.

# %%
class SelfAttention2(nn.Module):
    """Many pictures, one head. Shapes: (B, T, D) -> (B, T, D)."""

    def __init__(self, embed_dim):
        super().__init__()
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)  # CHANGED: three maps in one

    def forward(self, tokens):
        query, key, value = self.qkv(tokens).chunk(3, dim=-1)  # CHANGED: each (B, T, D)
        mixed, _ = look_up(query, key, value)  # CHANGED: counts axes from the end
        return mixed  # (B, T, D)


# %% [markdown]
# Give it the weights of version 1, one below the other: then each picture of a batch comes out as if it had
# been alone.

# %%
version2 = SelfAttention2(4)
maps = [version1.query, version1.key, version1.value]
version2.qkv.weight.data = torch.cat([part.weight.data for part in maps])  # (3 D, D)
version2.qkv.bias.data = torch.cat([part.bias.data for part in maps])  # (3 D,)
batch = torch.stack([tokens, 10 * tokens])
torch.allclose(version2(batch)[0], version1(tokens), atol=1e-6)

# %% [markdown]
# Tokens read each other, pictures don't.
#
# ## Many heads
#
# One softmax gives one set of shares. Suppose that the corner of the eye wants two things: the shape from
# the other eye and the colour from the fur around it. Its one row can give half to each. What comes back is
# the *mean* of two values, and from a mean nobody can tell what came from where. So we let the token ask
# several times side by side, each time with maps of its own. Each of these is a **head** (paper, equation
# 8; $k$ heads there, `num_heads` here).
#
# To keep the cost, each head is narrow: with width 192 and 6 heads, $d$ = 192 / 6 = 32. **Look at what is
# narrow and what is not.**

# %%
plots.show(ribbon(192, 6), alt="All of a token goes into each of 6 heads; then they are joined.")

# %% [markdown]
# *Figure: the way of head 1. It sees the whole token (blue fan), and makes a query of 32 numbers; keys and
# values likewise. What the heads bring back is put side by side, and the output projection (grey fan)
# spreads each head's part over the whole token.*
#
# A common mistake is to think that head 1 gets the first 32 numbers *of the token*. It gets the first 32
# numbers *of the projection*, and each of these was made from all 192. To see it, change only the last
# number of a token. **Predict:** does the query of head 1 change?

# %%
project = nn.Linear(192, 192)
token = torch.randn(192)
other = token.clone()
other[-1] += 1
changed = project(other) != project(token)
print("numbers of head 1's query that change:", changed[:32].sum().item(), "of 32")

# %% [markdown]
# ### Cut the width, not the tokens
#
# Now we have to cut `(T, D)` into `(num_heads, T, d)`. The sizes invite a single `view`, and it would even
# run. **Look for** the difference. In the toy, the numbers of token 2 are 20 to 23, and the shade says which
# head a number belongs to.

# %%
toy = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])  # 3 tokens, D = 4
right = toy.view(3, 2, 2)  # first cut the width: (T, num_heads, d)
right = right.transpose(0, 1)  # then heads to the front: (num_heads, T, d)
wrong = toy.view(2, 3, 2)

# %%
tables = [toy, *right, *wrong]
titles = ["tokens", "head 1", "head 2", "head 1,\none view", "head 2,\none view"]
colors = [np.where(table % 10 < 2, "patch", "neutral") for table in tables]
plots.show(
    plots.number_tables(tables, titles, colors=colors),
    alt="Numbers of three tokens, cut into two heads in the right way and by one view.",
)

# %% [markdown]
# *Figure: left, three tokens, one a row; blue numbers belong to head 1, grey ones to head 2. Middle, cut the
# right way: each head has a part of every token. Right, one `view`: head 1 has all of token 1 and half of
# token 2, the heads are mixed up, and the second "token" of head 1 is the other half of the first.*
#
# `view` never moves a number, as in lesson 01. So it can cut each token's width in two, but it can't bring
# the heads in front of the tokens. That takes a `transpose`. With one `view` alone the shapes are right,
# nothing complains, and what attention then takes for tokens are halves of them.
#
# ### Exercise 3 · there and back (10 minutes)
#
# Write both ways for a batch: `split_heads` cuts, `merge_heads` puts the heads side by side again.
#
# <details><summary>Hint</summary>
#
# Splitting: <code>B, T, D = tokens.shape</code>, then a view to (B, T, num_heads, D // num_heads), then
# exchange axes 1 and 2. Merging is the same backwards: exchange first. After a transpose,
# <code>view</code> may refuse; <code>reshape</code> copies where it has to. Or one line each with
# <code>einops.rearrange</code>.
#
# </details>

# %% tags=["exercise"]
def split_heads(tokens, num_heads):
    """(B, T, D) -> (B, num_heads, T, D // num_heads)"""
    return TODO  # your code here


def merge_heads(mixed):
    """(B, num_heads, T, d) -> (B, T, num_heads * d)"""
    return TODO  # your code here


split_heads = checks.use(split_heads, checks.attention.split_heads)
merge_heads = checks.use(merge_heads, checks.attention.merge_heads)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def split_heads_solution(tokens, num_heads):
    B, T, D = tokens.shape
    return tokens.view(B, T, num_heads, D // num_heads).transpose(1, 2)


def merge_heads_solution(mixed):
    B, num_heads, T, d = mixed.shape
    return mixed.transpose(1, 2).reshape(B, T, num_heads * d)


# %% [markdown]
# ## Version 3: many heads
#
# Now all together, and with `trace=True` the layer prints the shape of every tensor on the way.

# %%
def print_shapes(**tensors):
    for name, tensor in tensors.items():
        print(f"{name:8} {tuple(tensor.shape)}")


# %%
class SelfAttention3(nn.Module):
    """Many pictures, many heads. Shapes: (B, T, D) -> (B, T, D)."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads  # CHANGED
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)  # CHANGED: mixes the heads

    def forward(self, tokens, trace=False):
        qkv = self.qkv(tokens)
        three = qkv.chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.num_heads) for part in three)  # CHANGED
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5  # look_up, written out
        weights = scores.softmax(dim=-1)
        mixed = weights @ value
        merged = merge_heads(mixed)  # CHANGED
        output = self.output(merged)  # CHANGED
        if trace:
            print_shapes(tokens=tokens, qkv=qkv, query=query, key=key, value=value, scores=scores,
                         weights=weights, mixed=mixed, merged=merged, output=output)  # fmt: skip
        return output


# %% [markdown]
# **Predict before you run,** on paper: two pictures, 65 tokens of width 192, 6 heads. What is the shape of
# each step?

# %%
torch.manual_seed(0)
version3 = SelfAttention3(192, 6)
tokens = torch.randn(2, 65, 192)
output = version3(tokens, trace=True)

# %% [markdown]
# The weights are 6 matrices of 65×65 for each picture: each head has an opinion of its own.
#
# ### What the output projection is for
#
# After `merge_heads` it looks as if we were done. But then the first $d$ numbers of a token would be what
# head 1 found, the next $d$ what head 2 found, and so on. To see it, silence one head after the other, and
# look which part of the token changes.

# %%
def influence(mixed, project):
    """How much each part of the token (column) changes when a head (row) is silenced.

    Shapes: mixed (B, num_heads, T, d) -> (num_heads, num_heads).
    """
    num_heads = mixed.shape[1]
    rows = []
    for head in range(num_heads):
        silenced = mixed.clone()
        silenced[:, head] = 0
        change = project(merge_heads(mixed)) - project(merge_heads(silenced))  # (B, T, D)
        rows.append(split_heads(change, num_heads).abs().mean(dim=(0, 2, 3)))
    return torch.stack(rows)


# %% [markdown]
# With three heads of 4 numbers, before and after the output projection. **Predict** where the zeros are.

# %%
mixed = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))  # (B, num_heads, T, d)
tables = [influence(mixed, nn.Identity()), influence(mixed, nn.Linear(12, 12))]

# %%
titles, colors = ["side by side", "after the output projection"], ["viridis"] * 2
heads, parts = [["head 1", "head 2", "head 3"]] * 2, [["1-4", "5-8", "9-12"]] * 2
plots.show(
    plots.number_tables(tables, titles, heads, parts, colors, form="{:.2f}"),
    alt="Two tables, heads by parts of the token: diagonal on the left, full on the right.",
)

# %% [markdown]
# *Figure: how much the numbers 1-4, 5-8 and 9-12 of a token change when a head is silenced. Side by side,
# each head reaches its own part only; the output projection gives each head access to the whole token.*
#
# So concatenating does not end attention. The output projection $U_{msa}$ of equation 8 mixes the heads, and
# also lets each head choose where in the token its finding is written.
#
# ## The finished layer
#
# This is what `vitlib.attention` ships. It is version 3 with five additions:
#
# - `rearrange` from einops cuts and moves axes in one line that names them. (The order is that of version 3:
#   first query, key, value; then head after head.)
# - The query is scaled *before* the product. The numbers are the same, but in half precision the product
#   could overflow first.
# - Where the weights are not asked for, one **fused** kernel of PyTorch does the same without ever storing
#   the T×T matrix. Whether it is faster depends on the machine; `fused_is_faster` knows.
# - Dropout on the weights and on the result, in training only. Weights are handed out *before* dropout, so
#   that rows sum to 1.
# - A width that does not divide into heads is refused.

# %% tags=["finished"]
from einops import rearrange
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from vitlib.attention import fused_is_faster


def attend(query, key, value, dropout=0.0, return_weights=False, fused=None):
    """softmax(Q Kᵀ / √d) V (paper, equations 6 and 7), and the weights if asked for.

    Shapes: query, key, value (B, num_heads, T, d) -> (B, num_heads, T, d),
    and (B, num_heads, T, T) or None.
    """
    if fused is None:
        fused = fused_is_faster(query)
    if fused and not return_weights:
        return scaled_dot_product_attention(query, key, value, dropout_p=dropout), None
    query = query * query.shape[-1] ** -0.5  # before the product: float16 would overflow after it
    scores = query @ key.transpose(-2, -1)  # (B, num_heads, T, T): rows queries, columns keys
    weights = scores.softmax(dim=-1)  # every row sums to 1
    mixed = drop(weights, dropout) @ value  # (B, num_heads, T, d)
    return mixed, weights if return_weights else None


# %% tags=["finished"]
class MultiHeadAttention(nn.Module):
    """Every token asks, in several heads at once, what the others have to say.

    Shapes: (B, T, D) -> tokens (B, T, D) and, if asked for, attention (B, num_heads, T, T).
    Source: paper, equations 5 to 8.
    """

    def __init__(self, embed_dim, num_heads, qkv_bias=True, attention_dropout=0.0, dropout=0.0):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}: "
                "the heads would not be equally wide. "
                f"Try embed_dim={embed_dim // max(num_heads, 1) * num_heads or num_heads}."
            )
        self.num_heads, self.attention_dropout = num_heads, attention_dropout
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)  # three maps in one
        self.output = nn.Linear(embed_dim, embed_dim)  # mixes the heads
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, return_attention=False):
        query, key, value = rearrange(
            self.qkv(tokens), "b t (three head d) -> three b head t d", three=3, head=self.num_heads
        )
        dropout = self.attention_dropout if self.training else 0.0
        # mixed: (B, num_heads, T, d)
        mixed, attention = attend(query, key, value, dropout, return_attention)
        tokens = rearrange(mixed, "b head t d -> b t (head d)")  # the heads side by side
        return self.dropout(self.output(tokens)), attention


# %% [markdown]
# **Proof.** First against your own version 3, with the same weights; then against two implementations of
# PyTorch. All weights and biases are filled with noise, so that none is 0 and could be forgotten unnoticed.

# %%
layer = MultiHeadAttention(192, 6)
for parameter in layer.parameters():
    nn.init.normal_(parameter, std=0.1)
version3.load_state_dict(layer.state_dict())
ours, weights = layer(tokens, return_attention=True)
assert torch.allclose(ours, version3(tokens), atol=1e-4)
print("the finished layer gives the numbers of version 3")

# %%
theirs = nn.MultiheadAttention(192, 6, batch_first=True)
theirs.in_proj_weight.data, theirs.in_proj_bias.data = layer.qkv.weight.data, layer.qkv.bias.data
theirs.out_proj.load_state_dict(layer.output.state_dict())
expected, expected_weights = theirs(tokens, tokens, tokens, average_attn_weights=False)
assert torch.allclose(ours, expected, atol=1e-4)
assert torch.allclose(weights, expected_weights, atol=1e-5)
print("nn.MultiheadAttention gives the same tokens, and the same weights in each head")

# %%
query, key, value = torch.randn(3, 2, 6, 65, 32, generator=generator)  # each (B, num_heads, T, d)
expected = scaled_dot_product_attention(query, key, value)
for fused in (False, True):
    assert torch.allclose(attend(query, key, value, fused=fused)[0], expected, atol=1e-5)
print("scaled_dot_product_attention gives the same, explicit or fused")

# %% [markdown]
# One more property, which you know from lesson 03: attention knows no order. Shuffle the tokens, and the
# same tokens come out, shuffled alike.

# %%
order = torch.randperm(65, generator=generator)
torch.allclose(layer(tokens[:, order])[0], layer(tokens)[0][:, order], atol=1e-4)

# %% [markdown]
# ## A look at it
#
# Back to the corner of the eye. We take the tokens of the cat as they enter the fourth layer of the trained
# model from lesson 00, and give them to two layers: a fresh one with random weights, and the trained one.
# **Predict** what the row of our patch looks like with random weights.

# %%
checkpoint = vitlib.load("cifar10")
model = checkpoint.model
with torch.no_grad():
    cat = normalize(small[None], checkpoint.mean, checkpoint.std)  # (1, 3, 32, 32)
    cat = model.patch_embedding(cat)  # (1, 64, 192)
    cat = model.positional_encoding(model.class_token(cat))  # (1, 65, 192)
    for block in model.encoder.blocks[:3]:
        cat, _ = block(cat)
    fourth = model.encoder.blocks[3]
    cat = fourth.norm1(cat)  # lesson 05 explains blocks and norms

# %%
torch.manual_seed(0)
framed = 1 + 3 * 8 + 3  # the class token, three rows of 8 patches, three patches
fresh, rows = MultiHeadAttention(192, 6), {}
for name, layer in (("random", fresh), ("trained", fourth.attention)):
    with torch.no_grad():
        _, weights = layer(cat, return_attention=True)  # (1, 6, 65, 65)
    rows[name] = weights[0, :, framed, 1:].unflatten(1, (8, 8))  # (6, 8, 8)

# %%
maps = {"random, head 1": rows["random"][0]}
maps |= {f"trained, head {head}": rows["trained"][head - 1] for head in (4, 6)}
plots.show(
    plots.attention_overlay(photo, maps, query=(3, 3)),
    alt="The cat, and what the framed patch reads: evenly spread with random weights only.",
)

# %% [markdown]
# *Figure: what the patch in the blue frame reads, in a head with random weights and in two trained heads of
# layer 4, on one scale.*
#
# In numbers, over all six heads. The last line is the random layer once more, without the division by
# $\sqrt d$.

# %% tags=["nbval-rtol=0.02"]
with torch.no_grad():
    q, k, _ = (split_heads(part, 6) for part in fresh.qkv(cat).chunk(3, dim=-1))
    undivided = (q @ k.mT).softmax(dim=-1)[0, :, framed, 1:]  # (6, 64)
for name, shares in {**rows, "random, not divided": undivided}.items():
    low, high = shares.min(), shares.max()
    print(f"{name:19} shares from {low:.4f} to {high:.4f}; all alike: {1 / 65:.4f}")

# %% [markdown]
# A fresh layer gives each token between a half and twice an equal share; trained heads give some tokens
# fifteen times as much, and others next to nothing. It starts with little prejudice and learns where to
# look; without the division it would start with favourites, drawn by chance. What trained heads read, and
# how far such a map may be trusted, is lesson [08](08_attention_maps.ipynb).
#
# ## What it costs
#
# Every token asks every token: $T^2$ scores. Take ViT-B/16 (width 768, 12 heads in each of 12 layers), with
# a picture of 224 pixels and with one twice as wide and high. **Predict:** how many times more tokens, and
# how many times more scores?

# %%
print("pixels   tokens   scores in a head   MB in all heads and layers   attention / projections")
for side in (224, 448, 896):
    T = (side // 16) ** 2 + 1
    print(f"{side:6} {T:8} {T**2:18,} {12 * 12 * T**2 * 4 / 1e6:28,.0f} {T / (2 * 768):25.2f}")

# %% [markdown]
# Twice the side: 4 times the tokens, 16 times the scores (nearly: the class token does not multiply). The
# fourth column is what a training step has to keep for one picture in float32, if all weights are stored.
#
# The last column weighs attention against the rest of the layer. $QK^\top$ and $AV$ take $2T^2D$
# multiplications, the four projections $4TD^2$; their ratio is $T/2D$. At 224 pixels the square is only an
# eighth. It takes over as pictures grow.
#
# Now measure it, on your machine: one picture, width 192, 6 heads. Time is the fastest of five runs. Memory
# is what PyTorch keeps for the backward pass; it tells us through a hook. **Look for** the slopes, and for
# what the fused kernel saves.

# %%
import time


def milliseconds(query, key, value, fused):
    """The fastest of five forward passes."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        attend(query, key, value, fused=fused)
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


# %%
def megabytes_kept(query, key, value, fused):
    """What the backward pass needs: each piece of memory counted once."""
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() / 1e6
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        mixed, _ = attend(query, key, value, fused=fused)  # alive until we have counted
    return sum(kept.values())


# %% tags=["nbval-ignore-output"]
counts = [(side // 16) ** 2 + 1 for side in (128, 224, 336, 448, 672)]  # tokens
took, kept = {}, {}
for name, fused in (("explicit", False), ("fused", True)):
    inputs = [torch.randn(3, 1, 6, T, 32) for T in counts]  # query, key and value for each T
    took[name] = counts, [milliseconds(*qkv, fused) for qkv in inputs]
    kept[name] = counts, [megabytes_kept(*qkv.requires_grad_(), fused) for qkv in inputs]
for lines, what in ((took, "milliseconds"), (kept, "megabytes kept")):
    plots.show(
        plots.line_chart(lines, "tokens T", what, xscale="log", yscale="log"),
        alt=f"Attention, {what} against tokens, explicit and fused; both axes logarithmic.",
    )

# %% [markdown]
# *Figures: time and memory of attention against the number of tokens, explicit and fused. On these axes what
# grows in proportion is a line, and what grows with the square is a line twice as steep. The explicit form
# keeps a T×T matrix for each head; the fused kernel does not. But it still computes all scores, so its time
# grows with the square, too. (On a busy machine the times scatter, and long runs come out too slow.)*

# %%
print("one picture,", counts[1], "and", counts[3], "tokens, memory kept:")
for name, (_, megabytes) in kept.items():
    print(f"  {name:8} more than 8 times as much: {megabytes[3] > 8 * megabytes[1]}")
grows = all(times[-1] > times[0] for _, times in took.values())
print("the largest took longer than the smallest:", grows)

# %% [markdown]
# ### Exercise 4 · change the design: look only near (15 minutes)
#
# Must every token read every other? Suppose that a patch may read only itself, its neighbours and the class
# token. Here is who may read whom: `near[i, j]` is true where query $i$ may read key $j$.

# %%
place = torch.cartesian_prod(torch.arange(8), torch.arange(8))  # row, column of a patch: (64, 2)
steps_apart = (place[:, None] - place).abs().amax(dim=-1)  # (64, 64), a king's moves in chess
near = torch.ones(65, 65, dtype=torch.bool)  # the class token reads all, and is read by all
near[1:, 1:] = steps_apart <= 1
readers = {"the class token": 0, "the upper left patch": 1, "the framed patch": framed}
for name, row in readers.items():
    print(f"{name:20} may read {near[row].sum():2} tokens")

# %% [markdown]
# Write `look_up` with such a mask, one `(T, T)` for all pictures and heads: forbidden tokens get weight
# exactly 0, and rows still sum to 1.
#
# <details><summary>Hint</summary>
#
# A weight that is set to 0 *after* the softmax spoils the sum of its row. Before it: which score gives a
# share of 0? e^s is 0 for s = −∞. <code>scores.masked_fill(where, -math.inf)</code> fills where its mask is
# true, so which way round does it have to be?
#
# </details>

# %% tags=["exercise"]
def masked_look_up(query, key, value, may_read):
    """Three of (..., T, d), bool (T, T) -> mixed (..., T, d), weights (..., T, T)"""
    mixed, weights = TODO, TODO  # your code here
    return mixed, weights


masked_look_up = checks.use(masked_look_up, checks.attention.masked_look_up)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def masked_look_up_solution(query, key, value, may_read):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~may_read, -math.inf).softmax(dim=-1)
    return weights @ value, weights


# %% [markdown]
# Put it between the trained projections, and see what the patch at the corner of the eye reads now.

# %%
with torch.no_grad():
    qkv = [split_heads(part, 6) for part in fourth.attention.qkv(cat).chunk(3, dim=-1)]
    _, local = masked_look_up(*qkv, near)  # (1, 6, 65, 65)
maps = {"all tokens": rows["trained"][5], "only near": local[0, 5, framed, 1:].reshape(8, 8)}
plots.show(
    plots.attention_overlay(photo, maps, query=(3, 3)),
    alt="The cat, and what the patch at the corner of the eye reads, without and with the mask.",
)
print("rows still sum to 1:", torch.allclose(local.sum(dim=-1), torch.ones(1), atol=1e-5))

# %% [markdown]
# *Figure: what the framed patch reads in layer 4, head 6: from all tokens, and only from near ones.*
#
# Besides the class token, each patch now sees what a 3×3 convolution sees. Yet it is no convolution: that
# has nine weights which are the same at every place, while these depend on what is there. The other eye is
# lost, and nothing is gained: our code still computes all $T^2$ scores, then hides them. Models that save
# the work cut the picture into windows and never compute the rest.
#
# ## Common mistakes
#
# **The softmax runs over the wrong axis.** `dim=1` is right for a matrix `(T, T)`, and in `(B, num_heads,
# T, T)` it is the heads. Others take both token axes at once, so that a whole *matrix* sums to 1. The shape
# is right and the numbers are between 0 and 1. The symptom: rows that don't sum to 1. Ask for it in a test.

# %%
scores = torch.randn(2, 6, 65, 65, generator=generator)
both = scores.flatten(-2).softmax(dim=-1).view_as(scores)
tries = {"dim=1": scores.softmax(dim=1), "both token axes": both, "dim=-1": scores.softmax(dim=-1)}
for name, shares in tries.items():
    sums = shares.sum(dim=-1)
    print(f"{name:16} rows sum to {sums.min():.2f} ... {sums.max():.2f}")

# %% [markdown]
# **Scores are divided by $\sqrt D$ instead of $\sqrt{D / \text{heads}}$.** A head compares $d$ numbers, not
# $D$. The symptom: shares that are too even, and nothing else. It shows as soon as you compare with another
# implementation.

# %%
expected = scaled_dot_product_attention(query, key, value)  # 6 heads, d = 32, D = 192
for name, width in (("√(D / heads)", 32), ("√D", 192)):
    shares = (query @ key.mT / width**0.5).softmax(dim=-1)
    equal = torch.allclose(shares @ value, expected, atol=1e-4)
    largest = shares.amax(dim=-1).mean()
    print(f"{name:13} largest share of a row {largest:.2f}, equal to PyTorch's: {equal}")

# %% [markdown]
# **`nn.MultiheadAttention` without `batch_first=True`.** By default it expects `(T, B, D)`. Given `(B, T,
# D)` it takes pictures for tokens: the pictures of a batch read each other. Shapes are right and nothing
# complains, but what the model says about a picture depends on what else is in the batch. The symptom:
# change picture 2 and see picture 1 change.

# %%
changed = tokens.clone()
changed[1] += 1
for batch_first in (False, True):
    module = nn.MultiheadAttention(192, 6, batch_first=batch_first)
    before, after = (module(x, x, x)[0][0] for x in (tokens, changed))
    print(f"batch_first={batch_first!s:5}  picture 1 changes: {not torch.allclose(before, after)}")

# %% [markdown]
# How far are you?

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - Attention is a soft look-up: query · key gives scores, a softmax along each row gives shares, the shares
#   mix the values.
# - Scores are divided by $\sqrt d$. Otherwise wide heads start out all or nothing, and gradients vanish.
# - Each head sees the whole token through maps of its own. Cut the *projected* width, `view` and then
#   `transpose`; the output projection mixes what the heads found.
# - It has no idea of order, and takes any number of tokens. Pictures of a batch stay apart.
# - $T^2$ scores: twice the side is 4 times the tokens and 16 times the scores. A fused kernel saves the
#   memory, not the work.
#
# Previous: [03 Positional encoding](03_positional_encoding.ipynb) · Next:
# [05 Encoder block](05_encoder_block.ipynb), where attention gets what it needs to be stacked.
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, appendix A, equations 5 to 8,
# [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Vaswani et al. 2017, *Attention Is All You Need*,
# section 3.2, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762) · Dao et al. 2022, *FlashAttention*,
# [arXiv:2205.14135](https://arxiv.org/abs/2205.14135) · Liu et al. 2021, *Swin Transformer* (windows),
# [arXiv:2103.14030](https://arxiv.org/abs/2103.14030). Photograph: Chelsea the cat, by Stéfan van der Walt,
# CC0.
