# %% [markdown]
# # Attention maps: what did the model read, and what does that tell you?
#
# > Every head of every layer leaves a record of which tokens it read. You draw these records over a picture,
# > and then you measure how far to trust them.
#
# **After this lesson you can**
# - read an attention tensor: its shape, its rows, its columns, its layers;
# - draw one head, all heads, and a rollout through all layers over a picture;
# - put into numbers how far and how widely a head looks;
# - test a map against chance, against an untrained model, and by painting over what it points at;
# - name three things that an attention map does not tell.
#
# 45 minutes to read, 30 for the exercises · under 1 minute to run · needs attention from lesson
# [04](04_attention.ipynb): a token's query is compared with every token's key, and a softmax turns the
# scores into the shares that it takes from each. Each layer does this several times side by side, each time
# with weights of its own: these are its **heads**.

# %% [markdown]
# ## Where does it look?
#
# The cat from lesson 00 again. You get 288×288 pixels, the model gets 32×32 of the same view.

# %%
import torch
from skimage.data import chelsea

import vitlib
from vitlib import attention_maps, checks, plots
from vitlib.checks import TODO
from vitlib.data import fit_picture, normalize

photo = fit_picture(chelsea(), 288)  # uint8 (3, 288, 288), for you
small = fit_picture(chelsea(), 32)  # uint8 (3, 32, 32), for the model
medium = fit_picture(chelsea(), 96)  # for further figures: what they show is coarse anyway

# %% [markdown]
# The model from lesson 00 gives its answer, and on request the weights that it read with.

# %%
checkpoint = vitlib.load("cifar10")
model = checkpoint.model
images = normalize(small[None], checkpoint.mean, checkpoint.std)  # (1, 3, 32, 32)
with torch.no_grad():
    logits, attention = model(images, return_attention=True)

# %% [markdown]
# Two maps of what the class token reads. Same model, same picture, same layer. **Look for** a square that is
# bright in both.

# %%
heads = attention_maps.class_attention(attention)[0, -1]  # last layer: (num_heads, 64)
maps = attention_maps.to_grid(heads, model.grid)  # (num_heads, 8, 8)
plots.show(
    plots.attention_overlay(photo, {"last layer, head 1": maps[0], "last layer, head 2": maps[1]}),
    alt="A cat's face, and over it the attention of two heads of the last layer. The two maps differ.",
)

# %% [markdown]
# *Figure: the picture, and how much two heads of the last layer take from each patch, on one colour scale.
# Each of the 64 weights fills its own square, 36×36 pixels of the photograph.*

# %%
first_head, second_head = (set(head.topk(8).indices.tolist()) for head in heads[:2])
print(f"of the 8 brightest squares of each, both have {len(first_head & second_head)}")

# %% [markdown]
# So which of them is "where the model looks"? To answer, you have to know what these numbers are. Start
# small.
#
# ## What the numbers are
#
# Three tokens: the class token and two patches. One head in one layer gives one matrix,
# $A = \mathrm{softmax}(qk^\top/\sqrt{D_h})$ (paper, equation 6). **Look for** the sums: along a row, and down
# a column.

# %%
toy = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.3, 0.6], [0.5, 0.4, 0.1]])
plots.show(plots.attention_matrix(toy), alt="A 3 by 3 matrix with its numbers; every row sums to 1.")

# %% [markdown]
# *Figure: an attention matrix of three tokens. A row belongs to the token that reads, a column to the token
# that is read.*
#
# The first row says: the class token takes 20 % from itself, 70 % from patch 1, 10 % from patch 2.

# %%
toy.sum(dim=1), toy.sum(dim=0)

# %% [markdown]
# Rows sum to 1: each token has one whole to spend. Columns sum to whatever comes out: a token may be read by
# many or by none.
#
# Now the real thing. Our model has 6 layers with 6 heads, and 64 patches. **Predict before you run:** what is
# the length of `attention`, and what is the shape of one element?

# %%
len(attention), attention[0].shape  # (B, num_heads, T, T), T = 64 patches + 1 class token

# %% [markdown]
# One element for each **layer** (the paper's $L$). `attention[-1]` is the last layer, not the last step in
# time: a Vision Transformer has no time. It takes in the whole picture at once, and then its 65 tokens pass
# through layer after layer.
#
# Two questions tell attention from other tensors that one may catch on the way, such as scores before the
# softmax or weights after dropout. Is it square in its last two dimensions? Does every row sum to 1?

# %%
stacked = torch.stack(attention, dim=1)[0]  # (depth, num_heads, T, T)
print("square:             ", stacked.shape[-2] == stacked.shape[-1])
print("every row sums to 1:", torch.allclose(stacked.sum(dim=-1), torch.ones(1), atol=1e-5))

# %% [markdown]
# **Check, on the first layer,** that the model works with these weights. PyTorch's own attention keeps its
# weights to itself. But let it mix the rows of an identity matrix, and what comes out *is* the weights.
# **Look for** `True`.

# %%
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention

block = model.encoder.blocks[0]
with torch.no_grad():
    tokens = model.positional_encoding(model.class_token(model.patch_embedding(images)))  # (B, T, D)
    qkv = block.attention.qkv(block.norm1(tokens))  # (B, T, 3 D)
query, key, _ = rearrange(qkv, "b t (three head d) -> three b head t d", three=3, head=6)
weights = scaled_dot_product_attention(query, key, torch.eye(65).expand(1, 6, 65, 65))
torch.allclose(weights, attention[0], atol=1e-5)

# %% [markdown]
# ## One head on the picture
#
# The class token is what the answer is read from, so its row is the one that people draw. Three steps: take
# **row 0**, drop **column 0** (the class token itself is no place in the picture), and lay the other 64
# numbers out as the patches lie.
#
# ### Exercise 1 · the class token's row (5 minutes)
#
# Do the first two steps, for all layers and heads at once.
#
# <details><summary>Hint</summary>
#
# For one layer of shape (B, num_heads, T, T) it is <code>layer[:, :, 0, 1:]</code>. Collect the layers with
# <code>torch.stack</code>; which <code>dim</code> puts them second?
#
# </details>

# %% tags=["exercise"]
def class_attention(attention):
    """depth x (B, num_heads, T, T) -> (B, depth, num_heads, N)"""
    return TODO  # your code here


class_attention = checks.use(class_attention, attention_maps.class_attention)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def class_attention_solution(attention):
    return torch.stack([layer[:, :, 0, 1:] for layer in attention], dim=1)


# %% [markdown]
# What is left of the row sums to less than 1. The rest is what the class token reads from itself. **Look
# for** heads that keep much: they hardly read the picture at all.

# %% tags=["nbval-rtol=0.01"]
kept = 1 - class_attention(attention)[0].sum(dim=-1)  # (depth, num_heads)
layer, head = divmod(kept.argmax().item(), 6)
print(f"the class token reads from itself: {kept.min():.2f} to {kept.max():.2f}, depending on the head")
print(f"most in layer {layer + 1}, head {head + 1}")

# %% [markdown]
# Now the third step. **Predict:** will head 1 of the first layer look like head 1 of the last?

# %%
maps = attention_maps.to_grid(class_attention(attention), model.grid)[0]  # (depth, num_heads, 8, 8)
plots.show(
    plots.attention_overlay(medium, {"layer 1, head 1": maps[0, 0], "layer 6, head 1": maps[-1, 0]}),
    alt="The cat, and over it the class token's attention in head 1 of the first and of the last layer.",
)

# %% [markdown]
# *Figure: what the class token reads in head 1 of the first and of the last layer.*
#
# The two heads have only their number in common: every layer has its own weights. And mind the squares. The
# model knows nothing finer than these, so we don't smooth them. A blurred map looks more exact than it is.
#
# ## To read and to be read
#
# Every token has a row, not only the class token. Take the patch of the cat's left eye (on your left). Its
# **row** says what the eye reads. Its **column** says who reads the eye. **Predict:** will these two maps be
# alike?

# %%
eye = 1 + 3 * 8 + 2  # the class token comes first, then three rows of 8 patches, then two patches
layer = stacked[3].mean(dim=0)  # fourth layer, mean over the heads: (T, T)
reads, read_by = (attention_maps.to_grid(row[1:], model.grid) for row in (layer[eye], layer[:, eye]))
plots.show(
    plots.attention_overlay(medium, {"the eye reads (row)": reads, "the eye is read by (column)": read_by}),
    alt="The cat with two maps: what the patch of the left eye reads, and which patches read it.",
)

# %% [markdown]
# *Figure: left map, a row of the attention matrix; right map, a column of the same matrix.*
#
# A query is one projection of a token and a key is another one, so a row and a column answer two
# questions. For the same reason a token need not read most from itself, or from what looks like it.
# There are 6 layers · 6 heads · 65 tokens = 2,340 rows. **Predict:** in which share of them is a token's
# largest weight its own? More than by chance?

# %% tags=["nbval-rtol=0.05"]
own = stacked.argmax(dim=-1) == torch.arange(65)  # (depth, num_heads, T)
print(f"rows whose largest weight is on the token itself: {own.float().mean():.3f}, by chance: {1 / 65:.3f}")
print("more than twice as many as by chance:", (own.float().mean() > 2 / 65).item())

# %% [markdown]
# ## All heads, all layers
#
# Now all 36 maps of the class token, on one scale. A mark on the scale is at 1/65: so much would each token
# get if attention were spread evenly. **Look for** two maps that agree.

# %%
plots.show(
    plots.attention_grid(maps, medium),
    alt="The picture and 6 by 6 small maps, one for each layer and head, on one colour scale.",
)

# %% [markdown]
# *Figure: what the class token reads, by layer (rows) and head (columns). Equal colours are equal weights.*

# %%
favourites = maps.flatten(2).argmax(dim=-1)  # (depth, num_heads)
print(f"{favourites.numel()} heads, {len(favourites.unique())} different favourite patches")

# %% [markdown]
# Fewer favourites than heads means that some maps agree, at least on their brightest patch. More than one
# means that not all do.
#
# There is no such thing as *the* attention map. Whoever shows you one has chosen a layer and a head, or a way
# to average. Ask which.
#
# ## Through all layers: rollout
#
# There is a second reason not to trust one layer. Three tokens, two layers, by hand:
#
# - in layer 1, patch 1 reads patch 2; the others read only themselves;
# - in layer 2, the class token reads patch 1; the others read only themselves.
#
# The class token never reads patch 2. **Predict:** does anything of patch 2 end up in the class token?

# %%
layer_1 = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 1.0]])
layer_2 = torch.tensor([[0, 1, 0], [0, 1, 0], [0, 0, 1.0]])

# %% [markdown]
# A layer adds what it read to what was there (the residual connection), so a token keeps itself as well. The
# simplest bookkeeping is half and half: $\tilde A = (A + I)/2$.

# %%
half_1, half_2 = (layer_1 + torch.eye(3)) / 2, (layer_2 + torch.eye(3)) / 2
half_1, half_2

# %% [markdown]
# Walk backwards from the class token. Half of it is itself; half of it is patch 1, and half of patch 1 is
# patch 2. So a quarter of the class token comes from patch 2, which it never read. To walk all paths at once
# is a matrix product. **Look for** the 0.25 in the first row.

# %%
by_hand = sum(half_2[0, middle] * half_1[middle, 2] for middle in range(3))
by_hand, half_2 @ half_1

# %% [markdown]
# This is **attention rollout** (Abnar & Zuidema 2020; figure 6 of the paper): average the heads of each
# layer, add the identity, scale the rows to sum 1, multiply through. The first layer acts first, so it stands
# rightmost: $R = \tilde A_L \cdots \tilde A_1$.
#
# ### Exercise 2 · rollout (10 minutes)
#
# Write it for any number of layers.
#
# <details><summary>Hint</summary>
#
# Begin with <code>result = torch.eye(T)</code>. For each layer, take
# <code>layer.mean(dim=1) + torch.eye(T)</code>, divide by <code>.sum(dim=-1, keepdim=True)</code>, and
# multiply with <code>@</code>. On which side does the new layer stand?
#
# </details>

# %% tags=["exercise"]
def rollout(attention):
    """depth x (B, num_heads, T, T) -> (B, T, T), every row sums to 1"""
    return TODO  # your code here


rollout = checks.use(rollout, attention_maps.rollout)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def rollout_solution(attention):
    identity = torch.eye(attention[0].shape[-1])
    result = identity
    for layer in attention:
        mixed = layer.mean(dim=1) + identity  # (B, T, T)
        result = mixed / mixed.sum(dim=-1, keepdim=True) @ result
    return result


# %% [markdown]
# First on the toy: the same numbers as by hand.

# %%
torch.equal(rollout([layer_1[None, None], layer_2[None, None]])[0], half_2 @ half_1)

# %% [markdown]
# Now on the cat. **Look for** where rollout is brightest, and how much flatter it is.

# %%
rolled = attention_maps.to_grid(rollout(attention)[0, 0, 1:], model.grid)  # (8, 8)
plots.show(
    plots.attention_overlay(medium, {"last layer, mean of heads": maps[-1].mean(dim=0), "rollout": rolled}),
    alt="The cat with the last layer's attention and with the rollout through all six layers.",
)

# %% [markdown]
# *Figure: what the class token reads in the last layer, and what reaches it through all six layers by
# rollout's bookkeeping.*

# %% tags=["nbval-rtol=0.05"]
for name, weights in (("last layer", maps[-1].mean(dim=0)), ("rollout", rolled)):
    row, column = divmod(weights.argmax().item(), 8)
    ratio = weights.max() / weights.mean()
    print(f"{name:10} brightest in row {row + 1}, column {column + 1}: {ratio:.1f} times the mean patch")

# %% [markdown]
# Bookkeeping it is. Half of every token stays where it is in every layer, and all heads count alike: that is
# assumed, not measured, and it makes the map flat. What the values and the MLPs do is left out.
#
# ## How far, how widely, how much
#
# Pictures invite stories. Numbers can be compared. Three of them, each on a toy first.
#
# **How far?** Three patches in a line, each 4 pixels wide. The first one reads 50 % from itself, 25 % from
# its neighbour and 25 % from the last one. Weigh the distances 0, 4 and 8 by these: that is its attention
# distance, in pixels.

# %%
torch.tensor([0.5, 0.25, 0.25]) @ torch.tensor([0, 4, 8.0])

# %% [markdown]
# The paper averages this over all reading patches (figure 7, right). It is to attention what the size of the
# receptive field is to a convolution.
#
# ### Exercise 3 · mean attention distance (15 minutes)
#
# The class token has no place in the picture. Drop its row and its column, then scale each row to sum 1
# again.
#
# <details><summary>Hint</summary>
#
# Places: <code>torch.cartesian_prod(torch.arange(rows), torch.arange(columns))</code>, in patches; make them
# float and multiply with <code>patch_size</code>. All distances between them: <code>torch.cdist(places,
# places)</code>, (N, N). Then, for each layer: weights times distances, summed over the keys, averaged over
# the queries.
#
# </details>

# %% tags=["exercise"]
def mean_attention_distance(attention, grid, patch_size):
    """depth x (B, num_heads, T, T), (rows, columns), pixels -> (B, depth, num_heads)"""
    return TODO  # your code here


mean_attention_distance = checks.use(mean_attention_distance, attention_maps.mean_attention_distance)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def mean_attention_distance_solution(attention, grid, patch_size):
    rows, columns = grid
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float() * patch_size  # (N, 2)
    distances = torch.cdist(places, places)  # (N, N)
    weights = torch.stack(attention, dim=1)[..., 1:, 1:]  # (B, depth, num_heads, N, N)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights * distances).sum(dim=-1).mean(dim=-1)


# %% [markdown]
# A distance alone says little, so we put a **control** beside it: the same model with the random weights it
# had before training. And a line for attention that is spread evenly. **Predict:** which of the two will lie
# on that line?

# %%
torch.manual_seed(0)
untrained = vitlib.VisionTransformer(**model.config).eval()
with torch.no_grad():
    _, untrained_attention = untrained(images, return_attention=True)
both = {"trained": attention, "untrained": untrained_attention}

# %%
even = (torch.full((1, 1, 65, 65), 1 / 65),)  # one layer, one head, all weights alike
distances = {name: mean_attention_distance(layers, model.grid, 4)[0] for name, layers in both.items()}
plots.show(
    plots.distance_by_depth(distances, uniform=mean_attention_distance(even, model.grid, 4).item()),
    alt="Mean attention distance of each head by layer, for the trained and the untrained model.",
)

# %% [markdown]
# *Figure: how far each head looks, by layer; one mark a head, a line through their means. Below the dotted
# line a head prefers what is near, above it what is far; the untrained model's heads lie almost on it. The
# axis does not begin at 0.*
#
# In the first layers of the paper's large models, some heads look near and some far; in the last ones most
# look far. Those models had seen millions of pictures. **Compare:** how much of that does a small model show?

# %% tags=["nbval-rtol=0.01"]
for name, values in distances.items():
    low, high = values.amin(dim=1), values.amax(dim=1)  # over the heads: (depth,)
    print(f"{name:10} layer 1: {low[0]:.1f} to {high[0]:.1f}, layer 6: {low[-1]:.1f} to {high[-1]:.1f}")

# %% [markdown]
# These are pixels, nearest to farthest head. A small model that did as the large ones would show a wide range
# in layer 1, and in layer 6 only the upper end of it. Hold the first line against that.
#
# **How widely?** The entropy of a row, $-\sum_j a_j \log_2 a_j$, in bits. One token alone gives 0. Four
# tokens read alike give 2, since $2^2 = 4$. All 65 alike give $\log_2 65 = 6.02$, the most there is.

# %%
four_alike = torch.full((1, 1, 4, 4), 0.25)  # (B, num_heads, T, T)
attention_maps.entropy([four_alike])  # (B, depth, num_heads, T)

# %% tags=["nbval-rtol=0.01"]
for name, layers in both.items():
    bits = attention_maps.entropy(layers)[0].mean(dim=(1, 2))  # (depth,)
    print(f"{name:10}", " ".join(f"{value:.2f}" for value in bits), " bits, layer 1 to 6")

# %% [markdown]
# An untrained head reads everything almost alike. Training makes heads choose.
#
# **How much?** Shades are hard to judge. DINO's mass mask (Caron et al. 2021, figure 4) keeps the fewest
# patches that together hold, say, 60 % of the attention. On four numbers: 0.50 is too little, 0.50 + 0.35 is
# enough.

# %%
attention_maps.mass_mask(torch.tensor([0.10, 0.50, 0.05, 0.35]), mass=0.6)

# %% [markdown]
# On the cat, beside the control. Patches outside the mask are dark. **Look for** the difference in number.

# %%
from einops import repeat

windows = []
for layers in both.values():
    last = class_attention(layers)[0, -1].mean(dim=0)  # last layer, mean over the heads: (N,)
    mask = attention_maps.mass_mask(last, mass=0.6)
    pixels = repeat(mask, "(row col) -> (row p) (col q)", row=8, p=12, q=12)  # (96, 96)
    windows.append(torch.where(pixels, medium, medium // 5))
    print(f"{mask.sum()} of 64 patches")

# %%
plots.show(
    plots.picture_grid([medium, *windows], ["picture", *both], columns=3),
    alt="The cat, and the patches that hold 60 % of the attention, trained and untrained.",
)

# %% [markdown]
# *Figure: the fewest patches that hold 60 % of the class token's attention in the last layer, mean over the
# heads; of the trained model in the middle, of the untrained one on the right.*
#
# The control reads everything nearly alike, so to hold 60 % of its attention takes about 60 % of the patches.
# Which ones is an accident. Training made a choice. But is it a *good* choice? With a photograph you can only
# nod or shake your head.
#
# ## Does it point at the object?
#
# To measure it, we need pictures where we know which pixels belong to the object. So the second half of this
# lesson uses drawn ones, and a small model that was trained on others of the kind. It names shapes; the
# strips behind them mean nothing.

# %%
from vitlib.data import shapes

shapes_checkpoint = vitlib.load("shapes")
shapes_model, grid = shapes_checkpoint.model, shapes_checkpoint.model.grid
data = shapes("test", 500)
plots.show(
    plots.picture_grid(data.images[:8], [data.classes[label] for label in data.labels[:8]]),
    alt="Eight drawn pictures, each with one bright shape before a cluttered background.",
)

# %% [markdown]
# *Figure: eight of the 500 test pictures. Each comes with a mask: the pixels of the shape.*
#
# First see whether the model is any good at it. Chance would be 0.1.

# %% tags=["nbval-rtol=0.01"]
inputs = normalize(data.images, shapes_checkpoint.mean, shapes_checkpoint.std)  # (500, 3, 32, 32)
with torch.no_grad():
    shapes_logits, shapes_attention = shapes_model(inputs, return_attention=True)
right = shapes_logits.argmax(dim=1) == data.labels  # (500,)
print(f"named right: {right.float().mean():.3f} of the pictures")

# %% [markdown]
# The measure: which share of the class token's attention falls on the object? A patch that the object covers
# by half counts half; attention to the outline of an object therefore counts, for a good part, as beside it.
# **Chance** is the share that evenly spread attention would have, and that is the object's share of the area.
#
# Two controls. The untrained model again. And the *trained* model's maps on the mask of **another** picture:
# objects are often near the middle, so a model that only looks there would do well on that mask too. What
# "other mask" has above chance needs no understanding.

# %%
def share_on_object(attention, masks, grid):
    """The share for each layer: mean over the pictures, and two standard errors of that mean."""
    heads = attention_maps.class_attention(attention)  # (B, depth, num_heads, 64)
    maps = attention_maps.to_grid(heads.mean(dim=2), grid)  # (B, depth, 8, 8)
    share, _ = attention_maps.mass_on_mask(maps, masks)  # (B, depth)
    return share.mean(dim=0), 2 * share.std(dim=0) / len(share) ** 0.5


# %% [markdown]
# **Predict** the order of the three lines, and which layer points best.

# %%
torch.manual_seed(0)
with torch.no_grad():
    _, control = vitlib.VisionTransformer(**shapes_model.config).eval()(inputs, return_attention=True)
chance = data.masks.float().mean().item()
shares = {
    "trained": share_on_object(shapes_attention, data.masks, grid),
    "trained, other mask": share_on_object(shapes_attention, data.masks.roll(1, dims=0), grid),
    "untrained": share_on_object(control, data.masks, grid),
}
plots.show(
    plots.share_by_layer(shares, chance),
    alt="Share of the class token's attention on the object by layer: trained model and two controls.",
)

# %% [markdown]
# *Figure: the share of the class token's attention on the object, by layer. Error bars: two standard errors
# over 500 pictures. Dotted: chance.*

# %% tags=["nbval-rtol=0.01"]
for name, (mean, _) in shares.items():
    print(f"{name:20}", " ".join(f"{value:.2f}" for value in mean))
print(f"{'chance':20} {chance:.2f}")
trained, elsewhere, random = (mean for mean, _ in shares.values())
print("trained above the same maps elsewhere, in every layer:", (trained > elsewhere).all().item())
print("untrained within 0.02 of chance:", ((random - chance).abs() < 0.02).all().item())
print("the trained model points best in layer", trained.argmax().item() + 1)

# %% [markdown]
# So these maps do point at the object: more than chance, more than the untrained model's, and more than a
# habit of looking at some part of the frame would explain. But not equally in every layer, and the last one,
# which most people draw, need not be the best.
#
# An average hides cases. Of the pictures that the model names right, here is the one whose map in the last
# layer has the least on the object. Because of the outline, take a second number with it: the share on all
# the patches that **touch** the object, each counted in full.

# %%
from einops import reduce

touches = reduce(data.masks.float(), "b (row p) (col q) -> b (row col)", "max", p=4, q=4) > 0  # (500, 64)
read = class_attention(shapes_attention)[:, -1].mean(dim=1)  # last layer, mean over the heads: (500, 64)
last_map = attention_maps.to_grid(read, grid)  # (500, 8, 8)
share, _ = attention_maps.mass_on_mask(last_map, data.masks)  # (500,)
worst = torch.where(right, share, 1).argmin()
touching = (read * touches)[worst].sum() / read[worst].sum()
title = f"{share[worst]:.0%} on the object, {touching:.0%} on patches that touch it"
plots.show(
    plots.attention_overlay(data.images[worst], {title: last_map[worst]}),
    alt="A drawn picture that the model names right, and its map of the last layer.",
)
sure = shapes_logits[worst].softmax(dim=0).max()
print(f"named {data.classes[data.labels[worst]]}, which is right, with probability {sure:.2f}")

# %% [markdown]
# *Figure: named right, though little of the last layer's attention is on the object itself.*
#
# ## What attention does not explain
#
# "It says *cat* because it looked at the eye." That is a claim about causes, so test it like one: take the
# thing away and see what happens. Here we paint patches over with the mean colour, and look at the
# probability of the right class. If a map shows what the answer rests on, then the patches it reads most must
# hurt most, and those it reads least must hardly hurt.

# %%
def paint_over(images, gone):
    """Paint over the patches where `gone`, bool (B, 64), is true."""
    gone = repeat(gone, "b (row col) -> b 1 (row p) (col q)", row=8, p=4, q=4)  # (B, 1, 32, 32)
    return images.masked_fill(gone, 0.0)  # after normalize(), 0 is the mean colour


def first(order, number):
    """The first `number` patches of each picture's own order (B, 64), as bool (B, 64)."""
    return torch.zeros(order.shape, dtype=torch.bool).scatter(1, order[:, :number], True)


@torch.no_grad()
def probability(model, images, labels):
    """The mean probability of the right class."""
    return model(images).softmax(dim=1).gather(1, labels[:, None]).mean().item()


# %% [markdown]
# Five orders to take patches away. What the last layer reads most comes first; what it reads least comes
# first; random; by **rollout**, through all layers; and by **gradient rollout**, which is rollout again, but
# counts an attention weight only as far as a larger one would raise the score of the class. **Predict** the
# five curves before you run.

# %%
few, labels = inputs[:200], data.labels[:200]
gradients = attention_maps.attention_gradients(shapes_model, few, labels)
by_gradient = attention_maps.gradient_rollout(*gradients)[:, 0, 1:]  # (200, 64)
orders = {
    "most read first": read[:200].argsort(dim=1, descending=True),
    "least read first": read[:200].argsort(dim=1),
    "random order": torch.rand(200, 64, generator=torch.Generator().manual_seed(0)).argsort(dim=1),
    "rollout": rollout(shapes_attention)[:200, 0, 1:].argsort(dim=1, descending=True),
    "gradient rollout": by_gradient.argsort(dim=1, descending=True),
}

# %%
numbers = [0, 2, 4, 8, 12, 16, 24, 32, 48, 64]
curves = {
    name: [probability(shapes_model, paint_over(few, first(order, number)), labels) for number in numbers]
    for name, order in orders.items()
}
columns = {"patches painted over": numbers, **curves}
plots.show(
    plots.curves(columns, "patches painted over", {"probability of the right class": list(curves)}),
    alt="Probability of the right class against the number of painted patches, for five orders.",
)

# %% [markdown]
# *Figure: how the probability of the right class falls as patches are painted over, mean over 200 pictures,
# for five orders.*

# %% tags=["nbval-rtol=0.02"]
for name, curve in curves.items():
    print(f"{name:17} 8 gone: {curve[3]:.2f}   16 gone: {curve[5]:.2f}   24 gone: {curve[6]:.2f}")
most, least, chance_order, by_rollout, by_class = curves.values()
print("8 gone: most read hurts more than random:       ", most[3] < chance_order[3])
print("8 gone: gradient rollout hurts more than rollout:", by_class[3] < by_rollout[3])
print("24 gone: gradient rollout hurts more than rollout:", by_class[6] < by_rollout[6])

# %% [markdown]
# On average the map passes: what is read most hurts most, and what is read least can go. Rollout and gradient
# rollout both use all layers, so to see what the class adds, compare these two with each other and not with
# the last layer. Here it helps to find the first eight patches; with 24 gone, rollout, which knows no class,
# has hurt more. (A caution about the test itself: painted squares are something that the model never saw in
# training. It may stumble over the square, and not over the lack of what was there.)
#
# But averages hide much. Look at the heads of the last layer one by one. Which of them reads most from
# patches where **no pixel** of the object is?

# %% tags=["nbval-rtol=0.01"]
each_head = class_attention(shapes_attention)[:, -1]  # last layer: (500, num_heads, 64)
elsewhere = (each_head * ~touches[:, None]).sum(dim=-1)  # on patches without the object: (500, num_heads)
print("on patches without the object:", " ".join(f"{value:.2f}" for value in elsewhere[right].mean(dim=0)))
head = elsewhere[right].mean(dim=0).argmax().item()
print("most in head", head + 1)

# %% [markdown]
# Take this head, and the 50 pictures, all named right, in which it reads most from such patches. We paint
# over the eight of them that it reads most; then all of them; then the object. **Predict** for each: does the
# probability fall a lot, a little, or not at all?

# %%
cases = torch.where(right, elsewhere[:, head], 0).argsort(descending=True)[:50]
head_reads, holds_object = each_head[cases, head], touches[cases]  # both (50, 64)
free = head_reads.masked_fill(holds_object, 0)  # what it reads where no object is
painted = {
    "nothing": torch.zeros_like(holds_object),
    "8 patches without the object": first(free.argsort(dim=1, descending=True), 8),
    "all patches without the object": ~holds_object,
    "the object": holds_object,
}

# %% tags=["nbval-rtol=0.02"]
print(f"share read from patches without the object: {free.sum(dim=1).mean():.2f}")
for name, gone in painted.items():
    held = (head_reads * gone).sum(dim=1).mean()
    left = probability(shapes_model, paint_over(inputs[cases], gone), data.labels[cases])
    print(f"painted over: {name:31} {held:.2f} of what it reads; probability left: {left:.2f}")

# %% [markdown]
# In these pictures the head reads mostly where no pixel of the object is, and all of that can go: the model
# is as sure as before. Take the object, of which this head reads little, and the answer is gone. So the head
# *read* those patches, and the model did not *need* them. Whoever had explained these answers by this head's
# map would have been wrong. Averaged over the heads, the map is largely right about its brightest patches:
# that is what the curves above say.
#
# A last point needs no statistics. Ask "why *cat*?" and "why *dog*?": the attention map is the same, for no
# class went into it. A gradient begins at one class, so gradient rollout gives two answers. **Look for**
# where they differ.

# %%
for_class = {}
for name in ("cat", "dog"):
    pair = attention_maps.attention_gradients(model, images, [checkpoint.classes.index(name)])
    row = attention_maps.gradient_rollout(*pair)[0, 0, 1:]  # (64,)
    for_class[f"for {name}"] = attention_maps.to_grid(row, model.grid)
plots.show(
    plots.attention_overlay(medium, for_class, label="gradient rollout"),
    alt="The cat with gradient rollout for the class cat and for the class dog.",
)

# %% [markdown]
# *Figure: gradient rollout for two classes, on one scale.*
#
# So an attention map tells **how much of each token one head in one layer took**. It does not tell
# - **what** was taken: that is in the values, and they are not in the map;
# - **where in the picture** it came from: after the first layer, the token at the eye's place holds more than
#   the eye;
# - **what for**: no class goes into it.
#
# Use it to form a guess. Then take something away.
#
# ## Common mistakes
#
# **The class token is left in the map.** 65 numbers don't fill a grid of 8×8. The error is a gift; the
# mistake is the quick fix of dropping the *last* number. Everything then moves on by one patch, and the map
# looks fine.

# %%
try:
    attention_maps.to_grid(attention[-1][0, 0, 0], model.grid)
except ValueError as error:
    print(str(error).replace(". ", ".\n"))

# %%
row = attention[-1][0, 0, 0]  # head 1 of the last layer: 65 numbers
for name, kept in (("right: drop the first", row[1:]), ("wrong: drop the last", row[:-1])):
    print(f"{name:22} brightest patch: number {kept.argmax()} of 0 to 63")

# %% [markdown]
# **Each map is scaled on its own.** Many tools stretch every map from its own smallest to its own largest
# weight. Then a map of nothing looks like a finding. **Look for** what the untrained model seems to have
# found.

# %%
def stretch(weights):
    return (weights - weights.min()) / (weights.max() - weights.min())


peaked, flat = (
    attention_maps.to_grid(class_attention(layers)[0, -1, 0], model.grid)  # last layer, head 1: (8, 8)
    for layers in both.values()
)
scale = "0 = smallest, 1 = largest of each map"
plots.show(
    plots.attention_overlay(medium, {"trained": stretch(peaked), "untrained": stretch(flat)}, scale),
    alt="Two stretched maps: the untrained model's has contrasts as strong as the trained one's.",
)
for name, weights in (("trained", peaked), ("untrained", flat)):
    print(f"{name:10} before it was stretched: {weights.min():.3f} to {weights.max():.3f}")

# %% [markdown]
# *Figure: the same head of the trained and of the untrained model, each stretched to its own range. You can't
# tell any more that one of them was all but flat.*
#
# **`sum` without `keepdim`.** In rollout, `(B, T, T)` divided by `(B, T)` lines up columns instead of rows.
# With two pictures it stops with an error. With one, as in most scripts, it runs, and in plain rollout nobody
# notices, since all rows of $A + I$ sum to 2. But a popular script,
# [jacobgil/vit-explain](https://github.com/jacobgil/vit-explain), first sets the smallest weights to 0. Then
# the rows differ. The symptom: rows that no longer sum to 1.

# %% tags=["nbval-rtol=0.01"]
wrong = good = torch.eye(65)
for layer in attention:
    mean = layer.mean(dim=1)  # (1, 65, 65)
    mixed = mean.where(mean > mean.quantile(0.9), 0) + torch.eye(65)
    wrong = mixed / mixed.sum(dim=-1) @ wrong
    good = mixed / mixed.sum(dim=-1, keepdim=True) @ good
for name, matrix in (("without keepdim", wrong), ("with keepdim", good)):
    print(f"{name:16} rows sum to {matrix.sum(dim=-1).min():.2f} ... {matrix.sum(dim=-1).max():.2f}")

# %% [markdown]
# **Height and width swapped.** A picture of 2×4 patches, of which only the one in the upper right corner is
# read. As (4, 2) the bright patch sits elsewhere, and nothing complains. With square pictures you can't
# notice, so test with others.

# %%
corner = torch.tensor([0, 0, 0, 1, 0, 0, 0, 0])
attention_maps.to_grid(corner, (2, 4)), attention_maps.to_grid(corner, (4, 2))

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - `attention` is a tuple over layers. A row is a token that reads, a column a token that is read; rows sum
#   to 1.
# - There are as many maps as heads and layers. Name the one you show, and show several on one scale.
# - Rollout multiplies the layers, with the identity for the residual. It is bookkeeping with assumptions.
# - A map means something beside a control: evenly spread, untrained, another picture's mask.
# - A map says where a head read, not why the model answered. Take something away and see.
#
# Previous: [07 Train on CIFAR-10](07_train_cifar10.ipynb) · First: [00 Start here](00_start_here.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, section 4.5, figures 6 and 7,
# appendices D.7 and D.8, [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Abnar & Zuidema 2020,
# *Quantifying Attention Flow in Transformers*, [arXiv:2005.00928](https://arxiv.org/abs/2005.00928) · Caron
# et al. 2021 (DINO), [arXiv:2104.14294](https://arxiv.org/abs/2104.14294) · Jain & Wallace 2019, *Attention
# is not Explanation*, [arXiv:1902.10186](https://arxiv.org/abs/1902.10186) · Adebayo et al. 2018, *Sanity
# Checks for Saliency Maps*, [arXiv:1810.03292](https://arxiv.org/abs/1810.03292). Photograph: Chelsea the
# cat, by Stéfan van der Walt, CC0.
