# %% [markdown]
# # Attention maps: what did the model read, and what does that tell you?
#
# > Every head of every layer leaves a record of which tokens it read. You draw these records over a picture,
# > ask them with the mouse, and then measure how far to trust them.
#
# **After this lesson you can**
# - read an attention tensor, and explore every head of every layer;
# - follow attention through all layers, with and without a class in mind;
# - put into numbers how far and how widely a head looks, how large a token is, and when the answer forms;
# - test a map against ground truth, against controls, and by painting over what it points at;
# - name three things that an attention map does not tell.
#
# 45 minutes to read, 50 for the explorer and the exercises · under 1 minute to run · needs attention from
# lesson [04](04_attention.ipynb): a token's query is compared with every token's key, and a softmax turns
# the scores into the shares that it takes from each. Each layer does this several times side by side, each
# time with weights of its own: these are its **heads**.

# %% [markdown]
# ## Where does it look?
#
# The cat from lesson 00 again. You get 288×288 pixels, the model gets 32×32 of the same view. It gives its
# answer, and on request the weights that it read with.

# %%
import torch
from skimage.data import chelsea

import vitlib
from vitlib import attention_maps, checks, plots
from vitlib.checks import TODO
from vitlib.data import fit_picture, normalize

photo = fit_picture(chelsea(), 288)  # uint8 (3, 288, 288), for you
small = fit_picture(chelsea(), 32)  # uint8 (3, 32, 32), for the model
medium = fit_picture(chelsea(), 80)  # for further figures: what they show is coarse anyway

# %%
checkpoint = vitlib.load("cifar10")
model = checkpoint.model
images = normalize(small[None], checkpoint.mean, checkpoint.std)  # (1, 3, 32, 32)
with torch.no_grad():
    logits, attention = model(images, return_attention=True)

# %% [markdown]
# Two maps of what the class token reads. Same model, same picture, same layer. **Look for** a square that
# is bright in both.

# %%
heads = attention_maps.class_attention(attention)[0, -1]  # last layer: (num_heads, 64)
maps = attention_maps.to_grid(heads, model.grid)  # (num_heads, 8, 8)
plots.show(
    plots.attention_overlay(photo, {"last layer, head 1": maps[0], "last layer, head 2": maps[1]}),
    alt="A cat's face, and over it the attention of two heads of the last layer, which differ.",
)

# %% [markdown]
# *Figure: the picture, and how much two heads of the last layer take from each patch, on one colour scale.
# The model knows nothing finer than these squares, so they are not smoothed: a blurred map looks more exact
# than it is.*

# %%
first_head, second_head = (set(head.topk(8).indices.tolist()) for head in heads[:2])
print(f"of the 8 brightest squares of each, both have {len(first_head & second_head)}")

# %% [markdown]
# So which of them is "where the model looks"? To answer, you have to know what these numbers are.
#
# ## What the numbers are
#
# Three tokens: the class token and two patches. One head in one layer gives one matrix,
# $A = \mathrm{softmax}(qk^\top/\sqrt{D_h})$ (paper, equation 6). **Look for** the sums: along a row, and
# down a column.

# %%
toy = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.3, 0.6], [0.5, 0.4, 0.1]])
plots.show(plots.attention_matrix(toy), alt="A 3 by 3 matrix of numbers; every row sums to 1.")

# %% [markdown]
# *Figure: an attention matrix of three tokens. A row belongs to the token that reads, a column to the token
# that is read. The class token takes 20 % from itself, 70 % from patch 1, 10 % from patch 2.*

# %%
toy.sum(dim=1), toy.sum(dim=0)

# %% [markdown]
# Rows sum to 1: each token has one whole to spend. Columns sum to whatever comes out: a token may be read
# by many or by none.
#
# Our model has 6 layers with 6 heads, and 64 patches. **Predict before you run:** what is the length of
# `attention`, and what is the shape of one element?

# %%
len(attention), attention[0].shape  # (B, num_heads, T, T), T = 64 patches + 1 class token

# %% [markdown]
# One element for each **layer** (the paper's $L$). `attention[-1]` is the last layer, not the last step in
# time: the model takes in the whole picture at once, and then its 65 tokens pass through layer after layer.
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
# ## To read and to be read
#
# Every token has a row, not only the class token. Take the patch of the cat's left eye (on your left). Its
# **row** says what the eye reads. Its **column** says who reads the eye. **Predict:** will these two maps
# be alike?

# %%
eye = 1 + 3 * 8 + 2  # the class token comes first, then three rows of 8 patches, then two patches
stacked = torch.stack(attention, dim=1)[0]  # (depth, num_heads, T, T)
layer = stacked[3].mean(dim=0)  # fourth layer, mean over the heads: (T, T)
two_rows = {"the eye reads (row)": layer[eye], "the eye is read by (column)": layer[:, eye]}
two_maps = {name: attention_maps.to_grid(row[1:], model.grid) for name, row in two_rows.items()}
plots.show(
    plots.attention_overlay(medium, two_maps),
    alt="The cat with two maps: what the patch of the left eye reads, and which patches read it.",
)

# %% [markdown]
# *Figure: left map, a row of the attention matrix; right map, a column of the same matrix.*
#
# A query is one projection of a token and a key is another one, so a row and a column answer two questions.
# For the same reason a token need not read most from itself, or from what looks like it. There are 6 layers
# · 6 heads · 65 tokens = 2,340 rows. **Predict:** in which share of them is a token's largest weight its
# own?

# %% tags=["nbval-rtol=0.05"]
own = stacked.argmax(dim=-1) == torch.arange(65)  # (depth, num_heads, T)
print(f"rows with the largest weight on the token itself: {own.float().mean():.3f}")
print(f"by chance: {1 / 65:.3f}")

# %% [markdown]
# ## All heads, all layers: explore
#
# 36 heads, 65 tokens, two directions: too many figures to print, so ask for them. Below is an **explorer**,
# with the cat and its mirror image. Hover over a patch to see what it reads; click to keep it, Esc to let
# go. `[` `]` change the head, `,` `.` the layer. All heads have one colour scale, with a mark at 1/65: so
# much would each token get if attention were spread evenly.

# %%
mirrored = small.flip(-1)
vitlib.explore(
    checkpoint,
    torch.stack([small, mirrored]),
    titles=["the cat", "in a mirror"],
    pictures=torch.stack([photo, photo.flip(-1)]),
)

# %% [markdown]
# *Figure: what the class token reads, by layer (down) and head (across). Equal colours are equal weights.
# In a running notebook the explorer stands here, otherwise this picture of its atlas.*
#
# Four things to find, ten minutes:
#
# 1. **Guess first.** Press that button, choose a head, and click the patch that you expect the class token
#    to read most. Try five heads. How often were you right?
# 2. **What or where?** Keep a head and go from the cat to the mirrored cat. Does the map turn with the cat,
#    or does it stay where it was? Compare layer 1 with layer 6.
# 3. **Reading itself.** The line below the panels tells the class token's share of what it reads. Which
#    head keeps most for itself, and so hardly reads the picture?
# 4. **A trap.** Press *per head*. Now each head has a scale of its own, up to its largest weight, as in
#    many tools. Which heads look stronger than they are?
#
# The next cells answer 2 and 3 for all heads. For 2, we correlate the mirrored cat's map with the cat's,
# turned back and as it is: 1 means that the map has turned with the cat, or that it has stayed in place.

# %%
def correlation(one, other):
    """Of maps (..., 8, 8), over their 64 squares."""
    one, other = (x.flatten(-2) - x.flatten(-2).mean(dim=-1, keepdim=True) for x in (one, other))
    return torch.cosine_similarity(one, other, dim=-1)


# %% tags=["nbval-rtol=0.05"]
maps, in_mirror = (  # two times (depth, num_heads, 8, 8)
    attention_maps.to_grid(class_attention(checkpoint.attention(picture[None])), model.grid)[0]
    for picture in (small, mirrored)
)
for name, mirror_map in (("turned", in_mirror.flip(-1)), ("stayed", in_mirror)):
    alike = correlation(maps, mirror_map).mean(dim=1)  # mean over the heads: (depth,)
    print(f"{name}, layer 1 to 6: ", " ".join(f"{value:.2f}" for value in alike))

# %% [markdown]
# In layer 1 the class token has read nothing yet: its query is the same for every picture. What it reads
# there follows from the keys alone, and a key tells of the patch's place as well as of its content. From
# layer 2 on, query and keys know something of the whole picture. **Compare** layer 1 with the others.

# %% tags=["nbval-rtol=0.01"]
kept = 1 - maps.sum(dim=(-2, -1))  # what is missing in the row: (depth, num_heads)
layer, head = divmod(kept.argmax().item(), 6)
favourites = maps.flatten(2).argmax(dim=-1)  # (depth, num_heads)
print(f"the class token reads {kept.min():.2f} to {kept.max():.2f} from itself, ", end="")
print(f"most in layer {layer + 1}, head {head + 1}")
print(f"{favourites.numel()} heads, {len(favourites.unique())} favourite patches")

# %% [markdown]
# Fewer favourites than heads: some maps agree on their brightest patch, but not all. There is no such thing
# as *the* attention map. Whoever shows you one has chosen a layer and a head, or a way to average. Ask
# which.
#
# ## Through all layers: rollout
#
# There is a second reason not to trust one layer. Three tokens, two layers, by hand:
#
# - in layer 1, patch 1 reads patch 2; the others read only themselves;
# - in layer 2, the class token reads patch 1; the others read only themselves.
#
# A layer adds what it read to what was there (the residual connection), so a token keeps itself as well.
# The simplest bookkeeping is half and half: $\tilde A = (A + I)/2$.

# %%
layer_1 = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 1.0]])
layer_2 = torch.tensor([[0, 1, 0], [0, 1, 0], [0, 0, 1.0]])
half_1, half_2 = (layer_1 + torch.eye(3)) / 2, (layer_2 + torch.eye(3)) / 2
titles = ["layer 2, half and half", "layer 1, half and half"]
rows, columns = [["class", "patch 1", "patch 2"]] * 2, [["class", "1", "2"]] * 2
plots.show(
    plots.number_tables([half_2, half_1], titles, rows, columns, colors=["viridis", "viridis"]),
    alt="Two 3 by 3 matrices, whose entries are 0, 0.5 and 1.",
)

# %% [markdown]
# *Figure: what each token (row) is made of after a layer: half itself, half what it read (columns).*
#
# The class token never reads patch 2. **Predict:** does anything of patch 2 end up in the class token?
#
# Walk backwards. Half of the class token is itself; half of it is patch 1, and half of patch 1 is patch 2.
# So a quarter of the class token comes from patch 2. To walk all paths at once is a matrix product. **Look
# for** the 0.25 in the first row.

# %%
by_hand = sum(half_2[0, middle] * half_1[middle, 2] for middle in range(3))
by_hand, half_2 @ half_1

# %% [markdown]
# This is **attention rollout** (Abnar & Zuidema 2020; figure 6 of the paper): average the heads of each
# layer, add the identity, scale the rows to sum 1, multiply through. The first layer acts first, so it
# stands rightmost: $R = \tilde A_L \cdots \tilde A_1$.
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
# On the toy it gives the same numbers as by hand:

# %%
torch.equal(rollout([layer_1[None, None], layer_2[None, None]])[0], half_2 @ half_1)

# %% [markdown]
# Now on the cat. One scale for both maps would paint rollout in a single colour, so here each has **a scale
# of its own**. **Read the numbers** below each map before you compare.

# %%
from vitlib.figures import attention_maps as figures

last = maps[-1].mean(dim=0)  # (8, 8)
rolled = attention_maps.to_grid(rollout(attention)[0, 0, 1:], model.grid)  # (8, 8)
two = {"last layer, mean of heads": last / last.mean(), "rollout": rolled / rolled.mean()}
plots.show(
    figures.own_scales(medium, two, "× the mean patch"),
    alt="The cat with the last layer's attention and the rollout, each on its own scale.",
)

# %% [markdown]
# *Figure: what the class token reads in the last layer, and what reaches it through all six layers by
# rollout's bookkeeping. Each map runs from its own smallest to its own largest number: the same yellow
# means more on the left.*

# %% tags=["nbval-rtol=0.05"]
for name, weights in two.items():
    row, column = divmod(weights.argmax().item(), 8)
    print(f"{name:25} {weights.min():.1f} to {weights.max():.1f}, ", end="")
    print(f"most in row {row + 1}, column {column + 1}")

# %% [markdown]
# Bookkeeping it is. Half of every token stays where it is in every layer, and all heads count alike: that
# is assumed, not measured, and it makes the map flat. What the values and the MLPs do is left out.
#
# ## For one class: relevance
#
# Ask "why *cat*?" and "why *dog*?": attention and rollout show the same map, for no class went into them. A
# gradient begins at one class. $\partial y/\partial A$ says, for each weight, by how much the score $y$ of
# the class would rise if that weight rose a little. Weight times gradient is then, roughly, what the weight
# does for the class. One row of three weights:

# %%
weights, gradient = torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([[-1.0, 2.0, 0.0]])
product = weights * gradient
plots.show(
    plots.number_tables(
        [weights, gradient, product, product.relu()],
        ["attention", "gradient", "product", "without negative"],
        colors=["viridis", "signed", "signed", "viridis"],
        form="{:.1f}",
    ),
    alt="Three numbers four times: attention, gradient, product, product without negatives.",
)

# %% [markdown]
# *Figure: the token that is read most (0.6) speaks against the class, so nothing of it is left; the second
# one remains.*
#
# Chefer et al. (2021) do this in every head of every layer, take the mean over the heads, which gives
# $\bar A$, and add up. At first each token is relevant for itself alone, $R = I$. Then, layer by layer, it
# keeps what it has and adds what it took over: $R \leftarrow R + \bar A R$. No row is scaled.
#
# ### Exercise 3 · relevance (10 minutes)
#
# `gradients` has the shapes of `attention`.
#
# <details><summary>Hint</summary>
#
# As in rollout, begin with the identity and go through <code>zip(attention, gradients)</code>. What one
# layer moves is <code>(layer * gradient).relu().mean(dim=1)</code>: relu first, so that no head cancels
# another.
#
# </details>

# %% tags=["exercise"]
def relevance(attention, gradients):
    """two times depth x (B, num_heads, T, T) -> (B, T, T)"""
    return TODO  # your code here


relevance = checks.use(relevance, attention_maps.relevance)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def relevance_solution(attention, gradients):
    result = torch.eye(attention[0].shape[-1])
    for layer, gradient in zip(attention, gradients):
        moved = (layer * gradient).relu().mean(dim=1)  # (B, T, T)
        result = result + moved @ result
    return result


# %% [markdown]
# Does it find what was asked for? To know, we need two objects in one picture, and their pixels. So from
# here on we also use **drawn** pictures of one shape each, with a **mask** of where the shape is, and a
# small model that was trained on others of the kind.

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
# *Figure: eight of the 500 test pictures.*
#
# Now paste the shape of one picture into another, where the two don't overlap. The model never saw two
# shapes in training.

# %%
one, other = data[:250], data[250:]
overlap = one.masks.flatten(1).float() @ other.masks.flatten(1).float().T  # (250, 250), in pixels
pairs = ((overlap == 0) & (one.labels[:, None] != other.labels)).nonzero()  # (P, 2)
pairs = pairs[:: len(pairs) // 100][:100]
one, other = one[pairs[:, 0]], other[pairs[:, 1]]
both_shapes = torch.where(other.masks[:, None], other.images, one.images)  # (100, 3, 32, 32)

# %% [markdown]
# For each we ask twice: once for the class of the one shape, once for that of the other.

# %%
def relevance_map(model, images, labels):
    """What is relevant for the class of each label: (B, rows, columns)."""
    layers, gradients = attention_maps.attention_gradients(model, images, labels)  # by autograd
    return attention_maps.to_grid(relevance(layers, gradients)[:, 0, 1:], model.grid)


# %%
inputs = shapes_checkpoint.prepare(both_shapes)
for_one = relevance_map(shapes_model, inputs, one.labels)  # (100, 8, 8)
for_other = relevance_map(shapes_model, inputs, other.labels)
class_blind = rollout(shapes_checkpoint.attention(both_shapes))[:, 0, 1:]
class_blind = attention_maps.to_grid(class_blind, grid)

# %%
case = 26  # a typical one
asked = {"rollout": class_blind}
asked[f"relevance for {data.classes[one.labels[case]]}"] = for_one
asked[f"relevance for {data.classes[other.labels[case]]}"] = for_other
of_case = {name: found[case] / found[case].mean() for name, found in asked.items()}
plots.show(
    figures.own_scales(both_shapes[case], of_case, "× the mean patch"),
    alt="A picture with two shapes: rollout, and relevance for the one and the other class.",
)

# %% [markdown]
# *Figure: one picture, two questions. Rollout has one answer to both, relevance has two. Each map has its
# own scale.*
#
# One picture proves little. Over all 100, which share of the map lies on the shape that was asked for, and
# which on the other one?

# %% tags=["nbval-rtol=0.02"]
def on_shape(found, part):
    return attention_maps.mass_on_mask(found, part.masks)[0].mean()  # mean over the pictures


for name, first, second in (
    ("rollout", class_blind, class_blind),
    ("relevance", for_one, for_other),
):
    asked_for = (on_shape(first, one) + on_shape(second, other)) / 2
    not_asked_for = (on_shape(first, other) + on_shape(second, one)) / 2
    print(f"{name:10} on the shape asked for {asked_for:.2f}, on the other {not_asked_for:.2f}")

# %% [markdown]
# For rollout both numbers must be the same: each shape is asked for once, and its map does not change.
# Relevance does tell the two apart, though not cleanly.
#
# ## Heads compared: how far, how widely
#
# Pictures invite stories. Numbers can be compared. Two of them, each on a toy first.
#
# **How far?** Three patches in a line, each 4 pixels wide. The first one reads 50 % from itself, 25 % from
# its neighbour and 25 % from the last one. Weigh the distances 0, 4 and 8 by these: that is its attention
# distance, in pixels.

# %%
0.5 * 0 + 0.25 * 4 + 0.25 * 8

# %% [markdown]
# The paper averages this over all reading patches (figure 7, right). It is to attention what the size of
# the receptive field is to a convolution.
#
# ### Exercise 4 · mean attention distance (15 minutes)
#
# The class token has no place in the picture. Drop its row and its column, then scale each row to sum 1
# again.
#
# <details><summary>Hint</summary>
#
# Places: <code>torch.cartesian_prod(torch.arange(rows), torch.arange(columns))</code>, in patches; make
# them float and multiply with <code>patch_size</code>. All distances between them:
# <code>torch.cdist(places, places)</code>, (N, N). Then, for each layer: weights times distances, summed
# over the keys, averaged over the queries.
#
# </details>

# %% tags=["exercise"]
def mean_attention_distance(attention, grid, patch_size):
    """depth x (B, num_heads, T, T), (rows, columns), pixels -> (B, depth, num_heads)"""
    return TODO  # your code here


reference = attention_maps.mean_attention_distance
mean_attention_distance = checks.use(mean_attention_distance, reference)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def mean_attention_distance_solution(attention, grid, patch_size):
    rows, columns = grid
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))  # (N, 2), in patches
    places = places.float() * patch_size  # in pixels
    distances = torch.cdist(places, places)  # (N, N)
    weights = torch.stack(attention, dim=1)[..., 1:, 1:]  # (B, depth, num_heads, N, N)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights * distances).sum(dim=-1).mean(dim=-1)


# %% [markdown]
# A distance alone says little, so we put a **control** beside it: the same model with random weights, as
# before training. And a line for attention that is spread evenly. **Predict:** which of the two will lie on
# that line?

# %%
torch.manual_seed(0)
untrained = vitlib.VisionTransformer(**model.config).eval()
with torch.no_grad():
    _, untrained_attention = untrained(images, return_attention=True)
both = {"trained": attention, "untrained": untrained_attention}

# %%
even = (torch.full((1, 1, 65, 65), 1 / 65),)  # one layer, one head, all weights alike
evenly = mean_attention_distance(even, model.grid, 4).item()
distances = {
    name: mean_attention_distance(layers, model.grid, 4)[0] for name, layers in both.items()
}
plots.show(
    plots.distance_by_depth(distances, uniform=evenly),
    alt="Mean attention distance of each head by layer, for the trained and the untrained model.",
)

# %% [markdown]
# *Figure: how far each head looks, by layer; one mark a head, a line through their means. Below the dotted
# line a head prefers what is near, above it what is far. The axis does not begin at 0.*
#
# In the first layers of the paper's large models, some heads look near and some far; in the last ones most
# look far (figure 11 of its appendix). Those models had seen millions of pictures. **Compare:** how much of
# that does this small one show, on the cat and over 500 pictures of CIFAR-10 from a stored run
# ([experiments/attention_maps.py](../experiments/attention_maps.py))?

# %% tags=["nbval-rtol=0.01"]
from vitlib import results

stored = results.load("attention_maps")
inside = stored["layers"]["cifar10"]["trained"]
of_heads = torch.tensor(inside["distance"]["mean"])  # (depth, num_heads)
for number, heads in enumerate(of_heads, start=1):
    print(f"layer {number}: {heads.min():.1f} to {heads.max():.1f} pixels, mean {heads.mean():.1f}")

# %% [markdown]
# This is what near and far mean for the eye's patch:

# %%
places = 4 * torch.cartesian_prod(torch.arange(8), torch.arange(8)).float()  # (64, 2), in pixels
from_eye = (places - places[eye - 1]).norm(dim=-1)  # (64,)
eye_row = stacked[:, :, eye, 1:]  # (depth, num_heads, 64)
how_far = (eye_row * from_eye).sum(dim=-1) / eye_row.sum(dim=-1)  # (depth, num_heads)
eye_reads = {}
for index in (how_far.argmin(), how_far.argmax()):
    layer, head = divmod(index.item(), 6)
    name = f"layer {layer + 1}, head {head + 1}: {how_far[layer, head]:.1f} pixels"
    eye_reads[name] = attention_maps.to_grid(eye_row[layer, head], model.grid)
plots.show(
    plots.attention_overlay(medium, eye_reads),
    alt="The cat, and what the left eye's patch reads in the nearest and in the farthest head.",
)

# %% [markdown]
# *Figure: what the patch of the left eye reads in the head where it looks nearest, and in the one where it
# looks farthest.*
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
# ## Behind the weights: the tokens
#
# The weights say who reads whom. What is read are the tokens. `residual_stream` gives them before the first
# layer and after each.

# %%
with torch.no_grad():
    stream = attention_maps.residual_stream(model, images)[:, 0]  # of the cat: (depth + 1, T, D)
stream.shape

# %% [markdown]
# **When does the answer form?** The head turns the class token into ten numbers after the last layer.
# Nothing keeps us from asking it earlier. **Predict:** after which layer is it a cat for good?

# %%
with torch.no_grad():
    answers = model.head(model.encoder.norm(stream[:, 0])).softmax(dim=-1)  # (depth + 1, 10)
plots.show(
    figures.lens(answers, checkpoint.classes),
    alt="Seven columns of ten bars: the class probabilities before layer 1 and after each layer.",
)

# %% [markdown]
# *Figure: what the head answers when it is asked after each layer. Black: the likeliest class.*
#
# This is the **logit lens**. Read its first columns with care: the head was trained on what comes out of
# the last layer, and may not understand what an early layer means. The accuracy of these early answers over
# 500 pictures (stored), for this model and for the small one that names shapes:

# %% tags=["nbval-rtol=0.01"]
for name, inside in stored["layers"].items():
    right = inside["trained"]["right"]["mean"]  # before layer 1, then after each layer
    print(f"{name:8} right, by layer: ", "  ".join(f"{value:.2f}" for value in right))

# %% [markdown]
# After which layer is the answer as good as there? Remember it: what the class token reads *later* can
# hardly be the reason.
#
# **Is a token unusually large?** In large models that were trained for long, Darcet et al. (2024) found
# about 2 patches in 100 whose vectors are some ten times as long as the others. They lie in dull
# background. The model has given up their content and uses their place to keep notes about the whole
# picture: as a **register**. Everybody reads them, so attention maps get bright spots where nothing is to
# be seen.
#
# To find one, look at the norms. So that you know the sight, we **plant** one: a hook makes the token of the
# upper left corner ten times as long after layer 3.

# %%
stretch = torch.ones(65, 1)
stretch[1] = 10  # the first patch
block = model.encoder.blocks[2]
hook = block.register_forward_hook(lambda module, inputs, out: (out[0] * stretch, out[1]))
with torch.no_grad():
    planted = attention_maps.residual_stream(model, images)[:, 0]  # (depth + 1, T, D)
    _, planted_attention = model(images, return_attention=True)
hook.remove()

# %%
norms = {"this model": stream.norm(dim=-1), "with one planted": planted.norm(dim=-1)}
plots.show(
    figures.token_norms(norms),
    alt="Norms of all tokens by layer: close together on the left, one far above on the right.",
)

# %% [markdown]
# *Figure: the norm of every token by layer, in this model and with one planted.*

# %% tags=["nbval-rtol=0.05"]
for name, values in norms.items():
    patches = values[-1, 1:]  # after the last layer: (64,)
    large = (patches > 3 * patches.median()).nonzero().flatten().tolist()
    ratio = patches.max() / patches.median()
    print(f"{name:16} largest norm {ratio:4.1f} x the median; patches over 3 x: {large}")
for name, layers in zip(norms, (attention, planted_attention)):
    read = 65 * torch.stack(layers)[3:, ..., 1].mean()  # in layers 4 to 6, by all tokens
    print(f"{name:16} the first patch is read {read:.1f} x the even share")
largest = stored["layers"]["cifar10"]["trained"]["largest_to_median"]["mean"][-1]
print(f"over 500 pictures (stored), the largest is {largest:.1f} x the median")

# %% [markdown]
# The list names the patches that stand out: of the cat's own, none. In other pictures a patch may pass 3 ×,
# but the mean is far from ten (Darcet et al. found no registers in small models). The planted one is
# only long: the LayerNorm before the next attention takes length away, so it is read about as much as
# before. A real register is long *and* read.
#
# If you find some in a model of yours, leave them out of the map and say so. Models built *with* registers
# have extra tokens for this purpose beside the class token: then drop **all** of these from the map.
#
# ## Does the map point at the object?
#
# A story about one cat can't be wrong. On the drawn pictures we know which pixels belong to the object, so
# we can measure. First, is the small model any good? Chance would be 0.1.

# %% tags=["nbval-rtol=0.01"]
inputs = shapes_checkpoint.prepare(data.images)  # (500, 3, 32, 32)
with torch.no_grad():
    shapes_logits, shapes_attention = shapes_model(inputs, return_attention=True)
right = shapes_logits.argmax(dim=1) == data.labels  # (500,)
print(f"named right: {right.float().mean():.3f} of the pictures")

# %% [markdown]
# Two measures. The **hit rate** of the pointing game (Zhang et al. 2016): throw a dart at the brightest
# patch; how often does it hit the object? And the **share** of the whole map that falls on the object,
# where a patch that the object covers by half counts half.

# %%
def hit_and_share(found, masks):
    """Of maps (B, 8, 8), each the mean over the pictures."""
    covered = torch.nn.functional.avg_pool2d(masks.float(), 4).flatten(1)  # of each patch: (B, 64)
    hits = covered.gather(1, found.flatten(1).argmax(dim=1, keepdim=True))  # (B, 1)
    share, _ = attention_maps.mass_on_mask(found, masks)  # (B,)
    return hits.mean().item(), share.mean().item()


# %% [markdown]
# Four methods on 100 pictures. **Gradient rollout** is an older cousin of relevance: it brings in the
# class, and scales the rows as rollout does. For comparison, maps that know nothing: **uniform** attention,
# and **where objects often are**, the mean of 400 other masks.

# %%
def all_maps(model, images, labels):
    """name -> maps (B, rows, columns). The labels are the classes that the last two ask for."""
    layers, gradients = attention_maps.attention_gradients(model, images, labels)
    rows = {
        "last layer": layers[-1].mean(dim=1)[:, 0, 1:],
        "rollout": attention_maps.rollout(layers)[:, 0, 1:],
        "gradient rollout": attention_maps.gradient_rollout(layers, gradients)[:, 0, 1:],
        "relevance": attention_maps.relevance(layers, gradients)[:, 0, 1:],
    }
    return {name: attention_maps.to_grid(values, model.grid) for name, values in rows.items()}


few, labels, masks = inputs[:100], data.labels[:100], data.masks[:100]
often_there = torch.nn.functional.avg_pool2d(data.masks[100:].float(), 4).mean(dim=0)  # (8, 8)
found = all_maps(shapes_model, few, labels)
controls = {"where objects often are": often_there.expand(100, 8, 8)}

# %% [markdown]
# And the strictest control: the same model, **untrained**. **Predict** its hit rate.

# %%
torch.manual_seed(0)
untrained_shapes = vitlib.VisionTransformer(**shapes_model.config).eval()
controls["untrained, last layer"] = all_maps(untrained_shapes, few, labels)["last layer"]

# %% tags=["nbval-rtol=0.05"]
for name, some_maps in (found | controls).items():
    hit, share = hit_and_share(some_maps, masks)
    print(f"{name:24} hit rate {hit:.2f}   share {share:.2f}")
area = masks.float().mean()
print(f"{'uniform':24} hit rate {area:.2f}   share {area:.2f}")

# %% [markdown]
# Compare hit rates. A map that never saw the picture, *where objects often are*, hits as often as the
# trained model's last layer. So does this untrained model (not every one does, see below): the shape is
# what stands out in these pictures, and even with random weights one of its patches may come out on top, if
# only by a hair. The share sees that hair: it is at chance. **A peak without a control proves nothing.**
#
# More of it, from the stored run: 500 pictures, five untrained models, and one more control, the trained
# model's maps on the mask of **another picture**. And two methods: **best head** is the one head of all that
# points best on other pictures; **occlusion** (on 100) does without attention: each patch alone is painted
# over, and its number is how far the score falls.

# %%
game = stored["pointing"]["shapes"]
trained, untrained_five, nothing = (game[part] for part in ("trained", "untrained", "controls"))
methods = ["last layer", "best head", "rollout", "gradient rollout", "relevance", "occlusion"]
values, levels = {}, {}
for title, measure in {"hit rate": "hit_pixel", "share on the object": "share"}.items():
    values[title] = {
        name: {
            "trained": figures.with_error(trained[name][measure]),
            "trained, another mask": figures.with_error(trained[name]["other_" + measure]),
            "untrained": figures.with_error(untrained_five[name][measure]),
        }
        for name in methods
    }
    levels[title] = {name: numbers[measure]["mean"] for name, numbers in nothing.items()}

# %%
plots.show(
    figures.pointing(values, levels),
    alt="Hit rate and share for six methods: trained, trained on another mask, untrained.",
)

# %% [markdown]
# *Figure: how well each method points, in hit rate (left) and share (right). Error bars: two standard
# errors, over pictures, or over five models for the untrained ones. Lines across: maps that know nothing of
# the picture.*
#
# Which methods are above *where objects often are*, by more than their error?

# %%
for title, by_method in values.items():
    level = levels[title]["where objects often are"]
    above = [name for name, of in by_method.items() if of["trained"][0] - of["trained"][1] > level]
    print(f"{title}, above: {', '.join(above)}")

# %% [markdown]
# So these maps do point at the object. By share, that is plain for every method. By hit rate, most are no
# better than a habit of looking at the right part of the frame. What tells them from it is the other mask:
# a habit would hit that as often, they hit it much less.
#
# ## Is it what the answer rests on?
#
# "It says *ring* because it looked there." That is a claim about causes, so test it like one: paint over
# what a map is brightest on, with the mean colour, and look at the probability of the right class. If the
# map shows what the answer rests on, the answer must fall soon. **Predict** the order of the curves.

# %%
ranked = found | {
    "relevance, wrong class": relevance_map(shapes_model, few, (labels + 1) % 10),
    "random": torch.rand(100, 8, 8, generator=torch.Generator().manual_seed(0)),
}
orders = {name: some.flatten(1).argsort(dim=1, descending=True) for name, some in ranked.items()}


@torch.no_grad()
def probability(model, images, labels):
    """The mean probability of the right class."""
    return model(images).softmax(dim=1).gather(1, labels[:, None]).mean().item()


# %% tags=["nbval-rtol=0.05"]
for name, order in orders.items():
    left = []
    for number in (4, 8, 16):
        painted = attention_maps.remove_patches(few, order, number, patch_size=4)
        left.append(probability(shapes_model, painted, labels))
    print(f"{name:23} 4, 8, 16 gone: " + "  ".join(f"{value:.2f}" for value in left))

# %% [markdown]
# A like test on 500 pictures of CIFAR-10, stored, with a control that knows nothing: the **centre first**.

# %%
deletion = stored["deletion"]["cifar10"]
shown = ("relevance", "rollout", "last layer", "centre first", "random order")
numbers, curves = deletion["numbers"], deletion["curves"]
lines = {name: (numbers, *figures.with_error(curves[name]["probability"])) for name in shown}
plots.show(
    plots.line_chart(lines, "patches painted over, of 64", "probability of the first answer"),
    alt="Probability of the first answer against the number of painted patches, for five orders.",
)

# %% [markdown]
# *Figure: how the probability of the model's first answer falls when patches are painted over, the
# brightest of each map first. Bands: two standard errors over 500 pictures.*

# %% tags=["nbval-rtol=0.01"]
print("mean height of the curve:", *(f"{name:15}" for name in stored["deletion"]))
for name in (*shown, "untrained last layer"):
    of_models = (part["curves"][name]["area"] for part in stored["deletion"].values())
    heights = (figures.with_error(area) for area in of_models)
    print(f"{name:25}", *(f"{height:.3f} ± {error:.3f}  " for height, error in heights))

# %% [markdown]
# The lower, the better the map found what the answer needs (± two standard errors). To beat random order is
# easy: the shapes' untrained model does, and so does *centre first*, since objects are mostly in the middle.
# **Compare** each map with these two. Relevance was told which answer is asked about, and that helps: see
# the wrong class above. (A caution about the test itself: the model never saw painted squares in training.
# It may stumble over the square, and not over the lack of what was there.)
#
# ## What attention does not explain
#
# The last layer's map is the one that most people draw. Suppose that it shows why the model answers *ring*.
# Then with the map of another picture the answer should be gone. We do the last layer by hand, and let the
# class token read by weights that we choose.

# %%
from einops import rearrange


@torch.no_grad()
def answer(model, tokens, rows):
    """The logits when the class token reads `tokens` (B, T, D) by `rows` (B, num_heads, T)."""
    block = model.encoder.blocks[-1]
    qkv = block.attention.qkv(block.norm1(tokens))  # (B, T, 3 D)
    heads = rows.shape[1]
    _, _, value = rearrange(qkv, "b t (three head d) -> three b head t d", three=3, head=heads)
    mixed = rearrange(rows[:, :, None] @ value, "b head one d -> b one (head d)")  # (B, 1, D)
    class_token = tokens[:, :1] + block.attention.output(mixed)
    class_token = class_token + block.mlp(block.norm2(class_token))
    return model.head(model.encoder.norm(class_token[:, 0]))


# %% [markdown]
# With its own weights it must answer as ever. **Predict:** with those of the next picture, how many of the
# 500 answers stay the same?

# %%
with torch.no_grad():
    before_last = attention_maps.residual_stream(shapes_model, inputs)[-2]  # (500, T, D)
own_rows = shapes_attention[-1][:, :, 0]  # the class token's: (500, num_heads, T)
borrowed = own_rows.roll(1, dims=0)
as_ever = answer(shapes_model, before_last, own_rows)
print("by its own, the same logits:", torch.allclose(as_ever, shapes_logits, atol=1e-3))

# %% tags=["nbval-rtol=0.01"]
changed = answer(shapes_model, before_last, borrowed).argmax(dim=1)  # (500,)
same = changed == shapes_logits.argmax(dim=1)
print(f"by the next picture's: {same.float().mean():.2f} of the answers stay the same")

# %%
case = (same & (data.labels != data.labels.roll(1))).nonzero()[0].item()
two_maps = {
    name: attention_maps.to_grid(rows[case, :, 1:].mean(dim=0), grid)  # mean over the heads
    for name, rows in (("its own", own_rows), ("borrowed", borrowed))
}
plots.show(
    plots.attention_overlay(data.images[case], two_maps),
    alt="A drawn picture with its own map of the last layer and with that of another picture.",
)
print("the answer, both times:", data.classes[changed[case]])

# %% [markdown]
# *Figure: two maps of the last layer by which the model gives the same answer. The borrowed one was made for
# another picture.*
#
# For the last layer the lens has shown why: the answer is mostly made before. What about the others? From
# the stored run, each layer alone with the rows of a picture of another class, then all together:

# %% tags=["nbval-rtol=0.01"]
for name, part in stored["misleading"].items():
    kept = part["exchange"]["another_picture"]
    by_layer = "  ".join(f"{value:.2f}" for value in kept["same_answer_by_layer"]["mean"])
    everywhere = kept["same_answer_all_layers"]["mean"]
    print(f"{name:8} same answer, by layer exchanged: {by_layer}; in all at once: {everywhere:.2f}")

# %% [markdown]
# Taken all together the weights matter. But whoever had explained these answers by the last layer's map
# would have been wrong for most of them: the model *read* by it, and did not *need* it.
#
# An attention map tells **how much of each token one head in one layer took**. It does not tell
# - **what** was taken: that is in the values, and they are not in the map;
# - **where in the picture** it came from: after the first layer, the token at the eye's place holds more
#   than the eye;
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
row = attention[-1][0, 0, 0]  # head 1 of the last layer: 65 numbers
try:
    attention_maps.to_grid(row, model.grid)
except ValueError as error:
    print(str(error).replace(". ", ".\n"))
for name, kept in (("right: drop the first", row[1:]), ("wrong: drop the last", row[:-1])):
    print(f"{name:22} brightest patch: number {kept.argmax()} of 0 to 63")

# %% [markdown]
# **Height and width swapped.** With square pictures nobody notices, so test with others. The model takes
# 32×48 pixels once its positions are resized (lesson 03): 8 rows of 12 patches. Laid out as 12 rows of 8,
# the same 96 numbers are a map without an error and without a meaning.

# %%
wide_model = vitlib.load("cifar10").model.resize((32, 48))
wide, wide_view = fit_picture(chelsea(), (32, 48)), fit_picture(chelsea(), (64, 96))
with torch.no_grad():
    _, wide_attention = wide_model(checkpoint.prepare(wide[None]), return_attention=True)
row = class_attention(wide_attention)[0, -1].mean(dim=0)  # (96,)
layouts = {
    "right: 8 rows of 12": attention_maps.to_grid(row, (8, 12)),
    "wrong: 12 rows of 8": attention_maps.to_grid(row, (12, 8)),
}
plots.show(
    plots.attention_overlay(wide_view, layouts),
    alt="The whole photograph and the same attention laid out in 8 rows of 12 and in 12 rows of 8.",
)

# %% [markdown]
# *Figure: the same numbers, laid out rightly and wrongly. In the wrong map the squares have become flat,
# and what lay in one place is strewn over the frame.*
#
# **The hook that catches nothing.** Other libraries don't hand out attention, so one hooks it. But fused
# attention never makes the matrix, and a hook on it is skipped or gets `None`, without a word. Here with
# torchvision:

# %%
from torchvision.models import VisionTransformer

theirs = VisionTransformer(32, 4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32).eval()
caught = []
for block in theirs.encoder.layers:
    block.self_attention.register_forward_hook(lambda module, inputs, out: caught.append(out[1]))
theirs(images)
caught

# %% [markdown]
# The cause: its blocks call `need_weights=False`. The way out is a second hook that changes the call. (timm
# has a switch for fused attention.) Whatever you caught, look at its shape and at the sums of its rows.

# %%
def ask_for_weights(module, inputs, options):
    return inputs, {**options, "need_weights": True, "average_attn_weights": False}


caught.clear()
for block in theirs.encoder.layers:
    block.self_attention.register_forward_pre_hook(ask_for_weights, with_kwargs=True)
theirs(images)
sums = torch.stack(caught).sum(dim=-1)
caught[0].shape, torch.allclose(sums, torch.ones(1), atol=1e-5)

# %% [markdown]
# **Weights after dropout.** A hook on the dropout behind the softmax, in a model that is still in training
# mode, catches weights of which some are 0 and the rest too large. The symptom: rows that don't sum to 1.
# `vitlib` records before dropout, and refuses such rows.

# %%
dropped = [torch.nn.functional.dropout(layer, 0.1) for layer in attention]
try:
    attention_maps.rollout(dropped)
except ValueError as error:
    print("refused:", "sum to 1" in str(error) and "dropout" in str(error))

# %% [markdown]
# **`sum` without `keepdim`.** In rollout, `(B, T, T)` divided by `(B, T)` lines up columns instead of rows.
# With two pictures it stops with an error. With one, as in most scripts, it runs, and in plain rollout
# nobody notices, since all rows of $A + I$ sum to 2. But a popular script,
# [jacobgil/vit-explain](https://github.com/jacobgil/vit-explain), first sets the smallest weights to 0.
# Then the rows differ. The symptom: rows that no longer sum to 1.

# %% tags=["nbval-rtol=0.01"]
wrong = good = torch.eye(65)
for layer in attention:
    mean = layer.mean(dim=1)  # (1, 65, 65)
    mixed = mean.where(mean > mean.quantile(0.9), 0) + torch.eye(65)
    wrong = mixed / mixed.sum(dim=-1) @ wrong
    good = mixed / mixed.sum(dim=-1, keepdim=True) @ good
for name, matrix in (("without keepdim", wrong), ("with keepdim", good)):
    sums = matrix.sum(dim=-1)
    print(f"{name:16} rows sum to {sums.min():.2f} ... {sums.max():.2f}")

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - `attention` is a tuple over layers; a row is a token that reads, and sums to 1. There are as many maps
#   as heads and layers: name the one you show, and the scale.
# - Rollout multiplies the layers, with the identity for the residual: bookkeeping with assumptions.
#   Relevance brings in a class by its gradient.
# - Numbers compare heads: distance, entropy. Norms find registers; the lens shows when the answer forms.
# - A map means something beside a control: uniform, where objects often are, untrained.
# - A map says where a head read, not why the model answered. Take something away and see.
#
# Previous: [07 Train on CIFAR-10](07_train_cifar10.ipynb) · Next: [09 Positional
# embeddings](09_positional_embeddings.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, section 4.5, figures 6, 7 and 11,
# [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Abnar & Zuidema 2020, *Quantifying Attention Flow
# in Transformers*, [arXiv:2005.00928](https://arxiv.org/abs/2005.00928) · Chefer et al. 2021, *Generic
# Attention-model Explainability*, [arXiv:2103.15679](https://arxiv.org/abs/2103.15679) · Darcet et al.
# 2024, *Vision Transformers Need Registers*, [arXiv:2309.16588](https://arxiv.org/abs/2309.16588) ·
# nostalgebraist 2020, *interpreting GPT: the logit lens* · Zhang et al. 2016, *Top-down Neural Attention by
# Excitation Backprop*, [arXiv:1608.00507](https://arxiv.org/abs/1608.00507) · Jain & Wallace 2019,
# *Attention is not Explanation*, [arXiv:1902.10186](https://arxiv.org/abs/1902.10186) · Adebayo et al.
# 2018, *Sanity Checks for Saliency Maps*, [arXiv:1810.03292](https://arxiv.org/abs/1810.03292). Photograph:
# Chelsea the cat, by Stéfan van der Walt, CC0.
