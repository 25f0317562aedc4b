# %% [markdown]
# # Positional embeddings: what did the model find out about space?
#
# > Sixty-four vectors begin as noise, and nothing in the model says which patch lies beside which. After
# > training you can read the rows of the picture off them, and something of how the model was trained.
#
# **After this lesson you can**
# - read a figure of positional similarities, one tile at a time, and draw one yourself;
# - say what is learned and what is not, with a random start and other controls beside it;
# - measure how much of "where" can be read off the vectors, on patches held out;
# - test an idea about the vectors by changing them, and measure the accuracy with its error;
# - enlarge a trained model's pictures and say how much the way of interpolating matters.
#
# 35 minutes to read, 30 for the exercises · under 1 minute to run · needs positions from lesson
# [03](03_positional_encoding.ipynb) (why they are there, and how they are added) and, for one comparison,
# the patch embedding from lesson [01](01_patch_embedding.ipynb)

# %% [markdown]
# ## Which places does the model find alike?
#
# The model that has been with you since lesson 00 cuts a picture into 8 rows of 8 patches. To each patch it
# adds a vector of 192 numbers that belongs to the patch's **place**, and a 65th one to the class token.
# Training chose these numbers. Nothing in the model says that the patches form a square: it gets a list
# of vectors.

# %%
import torch
from skimage.data import chelsea
from torch.nn.functional import normalize

import vitlib
from vitlib import attention_maps, checks, plots, positional_encoding, results
from vitlib.checks import TODO
from vitlib.data import fit_picture
from vitlib.figures import positional_embeddings as figures
from vitlib.figures.positional_encoding import similarity_tiles

checkpoint = vitlib.load("cifar10")
model = checkpoint.model
table = model.positional_encoding.positional_embedding.detach()  # (1, 65, 192)

# %% [markdown]
# What could the model have learned about the patch in the fourth row, third column? 192 numbers tell you
# nothing by themselves. So ask: **which other places got similar vectors?** Here is the answer for this
# one patch. Take your time with it; the rest of the lesson is made of such tiles.

# %%
learned = attention_maps.positional_similarity(table, model.grid)  # (8, 8, 8, 8)
plots.show(
    figures.one_tile(fit_picture(chelsea(), 256), learned[3, 2], (3, 2)),
    alt="A cat in 8 by 8 patches, one framed; beside it 64 numbers, 1.0 in the framed place.",
)

# %% [markdown]
# *Figure: left, the framed patch. Right, a map of the same picture: in each place, how similar the vector
# of that place is to the vector of the framed place.*
#
# How to read it:
# - The tile is a **map of the picture**, with one cell for each patch. It says nothing about the cat: the
#   vectors are the same for every picture.
# - The framed cell compares the patch with itself: 1.0, always.
# - **Red** means that a place has a similar vector, **blue** that its vector points the other way.
# - **White**, about 0, means that the two have nothing to do with each other, as two random vectors
#   would.
#
# The measure is the cosine of the angle between two vectors: divide each by its length, multiply, add up.
# On two numbers instead of 192, with places A, B and C:

# %%
toy = torch.tensor([[3.0, 4.0], [6.0, 8.0], [-4.0, 3.0]])  # A, B twice as long, C at a right angle
directions = normalize(toy, dim=1)
directions @ directions[0]  # with A

# %% [markdown]
# B points where A points, so it is 1, however long it is. C stands at a right angle: 0.
#
# ### Exercise 1 · a tile (8 minutes)
#
# Make such a tile. The table has a row for each token: first the **prefix** (the class token; some models
# have *register* tokens behind it, which are no patches either), then the patches, row by row.
#
# <details><summary>Hint</summary>
#
# <code>vectors = normalize(positions[num_prefix_tokens:], dim=1)</code>. The patch in row r and column c has
# the number <code>r * columns + c</code>. One matrix product with its vector gives N numbers; lay them
# out with <code>reshape(rows, columns)</code>.
#
# </details>

# %% tags=["exercise"]
def similarity_tile(positions, grid, place, num_prefix_tokens=1):
    """(T, D), (rows, columns), (row, column) counted from 0 -> (rows, columns), from -1 to 1"""
    return TODO  # your code here


checks.value("similarity_tile", similarity_tile)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def similarity_tile_solution(positions, grid, place, num_prefix_tokens=1):
    rows, columns = grid
    vectors = normalize(positions[num_prefix_tokens:], dim=1)  # (N, D)
    own = vectors[place[0] * columns + place[1]]  # (D,)
    return (vectors @ own).reshape(rows, columns)


# %% [markdown]
# **Check** the tile above with PyTorch's own cosine. The framed patch has three rows of 8 before it, and
# two patches of its row; row 0 of the table is the class token's.

# %%
cosines = torch.cosine_similarity(table[0, 1:], table[0, 1 + 3 * 8 + 2][None])  # (64,)
assert torch.allclose(learned[3, 2].flatten(), cosines, atol=1e-5)
print("the tile is these 64 cosines, laid out as the patches lie")

# %% [markdown]
# ## Four tiles, then all
#
# Move along the fourth row, from the left edge to the right one. **Predict:** how will the red spot move?
# What will the last tile look like?

# %%
row_of_tiles = {f"column {column + 1}": (learned, (3, column)) for column in (0, 2, 4, 7)}
plots.show(
    similarity_tiles(row_of_tiles),
    alt="Four tiles of the fourth row; the red spot lies where the framed patch is.",
)

# %% [markdown]
# *Figure: the tiles of four patches of the fourth row; each frame is at the tile's own patch.*
#
# The red spot goes where the patch goes: near places are alike. But did you predict that the first and
# the last tile look alike? Keep it in mind.
#
# Now all 64, the paper's figure 7, centre, which you have met in lesson 03. Each small tile is one that
# you can read now; it lies where its patch lies. The framed tile from above is in the fourth row, third
# column. **Look for** what changes when you go down a column of tiles, and when you go along a row.

# %%
plots.show(
    plots.positional_similarity_grid(learned),
    alt="8 by 8 tiles of 8 by 8 cells; the red spot of each lies where the tile lies.",
)

# %% [markdown]
# *Figure: one tile for each patch, at its place in the picture. In each, red are the places with similar
# vectors.*
#
# ## Beside what?
#
# A picture of weights proves nothing on its own: who knows what *any* 64 vectors would show? So put three
# others beside it.
# - **Random start**: drawn as the table is before training.
# - **2-D sin-cos**, from lesson 03: made by a formula that knows rows and columns.
# - **Enlarged noise**: random vectors for 4×4 places, interpolated to 8×8. They know nothing about
#   pictures, but neighbours are alike, since interpolation makes them so.
#
# The third one is needed for a reason. A training can begin with smaller pictures, and enlarge the table
# on the way. How was ours made? (`whiten` is about the patch embedding; it comes up below.)

# %%
training = checkpoint.notes["training"]
sizes = [size for _, size in training.get("image_sizes", [])]
print("smaller pictures first:", sizes or "no, 32x32 from the start")
print("pictures mirrored at random:", training.get("flip", training.get("augment")))
print("patch embedding whitened at the start:", training.get("whiten", False))

# %%
torch.manual_seed(0)
start = vitlib.vit_cifar().positional_encoding.positional_embedding.detach()  # (1, 65, 192)
resize = positional_encoding.resize_positional_embedding
enlarged = resize(0.02 * torch.randn(1, 17, 192), (4, 4), (8, 8))  # (1, 65, 192)
sincos = torch.cat([torch.zeros(1, 192), positional_encoding.sincos_2d((8, 8), 192)])[None]
tables = {"learned": table, "random start": start, "enlarged noise": enlarged, "2-D sin-cos": sincos}

# %% [markdown]
# **Predict** each of them before you look.

# %%
similarity = {
    name: attention_maps.positional_similarity(each, model.grid) for name, each in tables.items()
}
others = {name: each for name, each in similarity.items() if name != "learned"}
plots.show(
    figures.similarity_grids(others),
    alt="Three times 64 tiles: single red cells, red spots on white, and smooth crosses of red.",
)

# %% [markdown]
# *Figure: all tiles of the three others, on the same scale. Random vectors are alike to themselves only.
# Enlarged noise has spots. With sines and cosines all places are alike, since most of their waves are too
# slow to turn within 8 patches; darkest are the place's own row and column.*
#
# So where a table was ever enlarged, red spots alone are no sign of learning: smoothness makes them. What
# the learned ones have beyond the spots is order far away, blue and red on the other side of the picture.
# Where noise was enlarged, far places are white. In numbers: of the pairs of places at least four patches
# apart, how large is the similarity, whatever its sign? (A part that all vectors share would count, too,
# and is no order. So it is taken off.)

# %%
places = torch.cartesian_prod(torch.arange(8), torch.arange(8)).float()  # (64, 2): row, column
apart = (places[:, None] - places).norm(dim=-1)  # (64, 64), in patches
far = {}
for name, each in tables.items():
    own = normalize(each[0, 1:] - each[0, 1:].mean(dim=0), dim=1)  # (64, 192), what they do not share
    far[name] = (own @ own.T)[apart >= 4].abs().mean().item()
    print(f"{name:15} {far[name]:.2f}")
noise = max(far["random start"], far["enlarged noise"])
print("learned is well above both kinds of noise:", far["learned"] > 1.5 * noise)

# %% [markdown]
# ## Similarity and distance
#
# 64 tiles are much to look at. One curve says most of it: for each distance between two patches, the mean
# similarity over all pairs that far apart. A line of three patches by hand: two pairs at distance 1, one
# at distance 2.

# %%
def mean_by_distance(similarity, apart):
    """Mean similarity of all pairs, for each distance. Shapes: two times (N, N) -> (K,), (K,)"""
    distances = apart[apart >= 0].unique()  # where it is negative, a pair is left out
    return distances, torch.stack([similarity[apart == distance].mean() for distance in distances])


line = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.4], [0.1, 0.4, 1.0]])
mean_by_distance(line, torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]]))

# %% [markdown]
# (0.6 + 0.4) / 2 is 0.5. Now ours and the others, with distances rounded to whole patches. **Predict**
# the random start's curve: it is the easiest.

# %%
flat = {name: each.flatten(2).flatten(0, 1) for name, each in similarity.items()}  # each (64, 64)
plots.show(
    plots.line_chart(
        {name: mean_by_distance(each, apart.round()) for name, each in flat.items()},
        "distance in patches",
        "mean cosine similarity",
    ),
    alt="Mean similarity against distance: all begin at 1; random falls to 0 at once.",
)

# %% [markdown]
# *Figure: mean similarity of two places by how far apart they are, for the learned vectors and three
# others.*
#
# Does the learned curve fall all the way, as one would think? A distance does not say in which direction.
# So keep two kinds of pairs apart: those in the same row, and those in the same column. **Predict:** will
# both curves fall?

# %%
rows, columns = places.T
down, across = (rows[:, None] - rows).abs(), (columns[:, None] - columns).abs()  # both (64, 64)
curves = {
    "side by side": mean_by_distance(flat["learned"], torch.where(down == 0, across, -1)),
    "one below the other": mean_by_distance(flat["learned"], torch.where(across == 0, down, -1)),
}
plots.show(
    plots.line_chart(curves, "distance in patches", "mean cosine similarity"),
    alt="Two curves: one below the other falls; side by side falls, then rises to the far edge.",
)

# %% [markdown]
# *Figure: the learned vectors; one curve for pairs in the same row, one for pairs in the same column.*

# %%
side, below = (mean[-1].item() for _, mean in curves.values())
print(f"left and right edge: {side:.2f}, top and bottom edge: {below:.2f}")
print("left and right are more alike than top and bottom:", side > below + 0.2)

# %% [markdown]
# There it is again: the left edge is like the right one. The top is not like the bottom. Half of the
# training pictures were mirrored, at random, so what is on the left may as well be on the right. None was
# turned upside down: sky is at the top. We call a place and the one as far from the other
# edge **mirror images**. So far this is a story. Below we shall test it.
#
# ### Exercise 2 · by shift (8 minutes)
#
# A distance has no direction. Write the mean similarity of all pairs of which the second patch lies
# `down` rows below and `across` columns to the right of the first. Only pairs inside the picture count.
#
# <details><summary>Hint</summary>
#
# <code>similarity[r, c, r + down, c + across]</code>, for every row r and column c where the second patch
# exists. Two loops will do.
#
# </details>

# %% tags=["exercise"]
def similarity_by_shift(similarity, down, across):
    """(rows, columns, rows, columns), two whole numbers >= 0 -> one number"""
    return TODO  # your code here


checks.value("similarity_by_shift", similarity_by_shift)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def similarity_by_shift_solution(similarity, down, across):
    rows, columns = similarity.shape[:2]
    pairs = [
        similarity[r, c, r + down, c + across]
        for r in range(rows - down)
        for c in range(columns - across)
    ]
    return torch.stack(pairs).mean()


# %% [markdown]
# Try it on `learned`: which is larger, the similarity 7 columns to the right or 7 rows below?
#
# ## Can you read the place off the vector?
#
# Similar is one thing. Does the vector of a place *contain* its row and its column? Test it with a
# **linear probe**: a linear map from the 192 numbers to the row (1 to 8), or to the column, fitted by
# least squares.
#
# One trap: 192 numbers and 64 places. Least squares then fits *anything* perfectly, random vectors too.
# So the probe never sees the patch that it is asked about. It is fitted to 63 places and guesses the
# 64th; 64 times. (A small penalty on large weights, "ridge", keeps the fit from running wild.)

# %%
def held_out(vectors, target, penalty=0.1):
    """For each place, what a linear map says that was fitted to the others. (N, D), (N, K) -> (N, K)"""
    guesses = []
    for place in range(len(vectors)):
        seen = torch.arange(len(vectors)) != place
        middle, mean = vectors[seen].mean(dim=0), target[seen].mean(dim=0)
        x, y = vectors[seen] - middle, target[seen] - mean
        ridge = penalty * x.square().sum() / len(x) * torch.eye(len(x), dtype=x.dtype)
        weights = x.T @ torch.linalg.solve(x @ x.T + ridge, y)  # (D, K)
        guesses.append((vectors[place] - middle) @ weights + mean)
    return torch.stack(guesses)


# %% [markdown]
# The trap, shown: a map fitted to all 64 *random* vectors and asked about the same ones, and one that is
# asked about the one that it has not seen. The score is the share of the variation that is explained
# (R²): 1 is perfect, and 0 is what you get by always guessing the middle.

# %%
def explained(guesses, target):
    """The share of each column's variation that the guesses explain. (N, K), (N, K) -> (K,)"""
    missed, spread = guesses - target, target - target.mean(dim=0)
    return 1 - missed.square().sum(dim=0) / spread.square().sum(dim=0)


noise, target = start[0, 1:].double(), places.double()  # (64, 192), (64, 2)
fitted = torch.linalg.pinv(noise) @ target
seen, unseen = explained(noise @ fitted, target), explained(held_out(noise, target), target)
print("random vectors, asked about what was seen, perfect:      ", (seen > 0.999).all().item())
print("random vectors, asked about the unseen, better than none:", (unseen > 0).any().item())

# %% [markdown]
# `True`: a perfect fit of nothing. `False`: held out, it is worse than always guessing the middle.
#
# Now all four tables. A picture says where the probe puts each patch; lines connect neighbours. If every
# guess is right, you see a square grid. **Predict:** what will the mirror images do to the learned one?

# %%
guesses = {name: held_out(each[0, 1:].double(), target) for name, each in tables.items()}
shown = ("learned", "random start", "2-D sin-cos")
plots.show(
    figures.probe_maps({name: guesses[name] for name in shown}, (8, 8)),
    alt="Three maps of guessed places: the learned one, a tangle for random, a grid for sin-cos.",
)

# %% [markdown]
# *Figure: where a linear probe puts each of the 64 places, never having seen the one it is asked about.
# Lines connect neighbours of a row (green) and of a column (grey).*
#
# In numbers, with a third target: how far a patch lies from the middle of the picture, to the left *or*
# to the right.

# %%
from_middle = (target[:, 1:] - 3.5).abs()  # (64, 1)
score = {}
for name, each in tables.items():
    side = held_out(each[0, 1:].double(), from_middle)
    score[name] = [*explained(guesses[name], target).tolist(), explained(side, from_middle).item()]
    row, column, middle = score[name]
    print(f"{name:15} row {row:5.2f}, column {column:5.2f}, from the middle {middle:5.2f}")

# %%
print("learned: the row is there:", score["learned"][0] > 0.9)
print("learned: how far from the middle is there:", score["learned"][2] > 0.8)
print("random start: nothing to be read:", max(score["random start"]) < 0.1)

# %% [markdown]
# Three findings.
# - The **row** of a patch can be read off its vector, though nothing in the model knows of rows.
# - Compare **column** with **from the middle**. Where the second is much the better, the vector says how
#   far out a patch lies, and not so well to which side: mirror images again.
# - The **enlarged noise** does very well! Its vectors never met a picture. The neighbours of a held-out
#   place are among the 63, and where neighbours are alike, the probe only has to guess in between. A good
#   probe proves that the vectors are in order, not that they were *learned*, and not that the model
#   *uses* them.
#
# To know what the model uses, change something and see.
#
# ## Does the model use it?
#
# Four questions to the trained model, with no further training. **Predict** the accuracy of each, from
# best to worst:
# - as trained;
# - the **patches shuffled**, another order in each picture, while the positions stay;
# - **no positions**: zeros added instead of the learned vectors;
# - no positions *and* the patches shuffled.
#
# And which is worse, wrong positions or none? First a small run of your own, on 200 pictures: CIFAR-10
# where it can be had, as in lesson 07, and otherwise the drawn shapes, with the model that was trained on
# them.

# %% tags=["nbval-ignore-output"]
from vitlib.data import cifar10, shapes

try:
    data, subject = cifar10("test")[::50], checkpoint
except FileNotFoundError:
    print("There is no CIFAR-10 here: these are shapes.")
    data, subject = shapes("test", 200), vitlib.load("shapes")
print(", ".join(data.classes))

# %%
print(len(data), "pictures of", len(data.classes), "classes")

# %% [markdown]
# The two changes, as functions:

# %%
import copy

from vitlib.patch_embedding import patchify, unpatchify


def shuffled(images, generator):
    """The same patches, in another random order in each picture. (B, 3, 32, 32) -> the same"""
    patches = patchify(images, 4)  # (B, 64, 48)
    order = torch.rand(patches.shape[:2], generator=generator).argsort(dim=1)  # (B, 64)
    return unpatchify(patches.gather(1, order[..., None].expand_as(patches)), 32, 4)


def without_positions(checkpoint):
    """A copy of the checkpoint whose model adds zeros."""
    bare = copy.deepcopy(checkpoint)
    bare.model.positional_encoding.positional_embedding.data.zero_()
    return bare


# %% tags=["nbval-ignore-output"]
mixed = shuffled(data.images, torch.Generator().manual_seed(0))
pictures, live = {"in order": data.images, "shuffled": mixed}, {}
for positions, asked in (("with positions", subject), ("no positions", without_positions(subject))):
    for order, images in pictures.items():
        right = asked.predict(images).argmax(dim=1) == data.labels  # (200,)
        live[positions, order] = right.float().mean().item()
        print(f"{positions:14}, {order:8}: {live[positions, order]:.3f}")

# %% [markdown]
# 200 pictures are few: such an accuracy is uncertain by several points. What holds on either data:

# %%
best, mixed, bare, bare_mixed = live.values()
print("to shuffle the patches costs accuracy:", mixed < best)
print("to take the positions costs accuracy: ", bare < best)
print("without positions, the order makes no difference:", abs(bare - bare_mixed) < 0.02)

# %% [markdown]
# The last line is lesson 03's: without positions the model takes a bag of patches, and a bag has no
# order. (Rounding may turn a close call; hence "no difference" and not "equal".)
#
# Now with numbers that count. `experiments/positional_embeddings.py` has asked the model about 2,000
# CIFAR-10 test pictures and stored what came out, with standard errors and with the fingerprint of the
# model. We read the file.

# %%
stored = results.load("positional_embeddings")
print("test pictures:", stored["config"]["test_pictures"])
same = stored["checkpoint"]["test_accuracy"] == checkpoint.notes["test_accuracy"]
print("of the model that is loaded here:", same)

# %%
ways = {"as trained": ("changes", "as trained")}
ways |= {"patches shuffled": ("shuffled", "as trained"), "no positions": ("changes", "no positions")}
ways |= {
    "no positions, shuffled": ("shuffled", "no positions"),
    "the same position for all": ("changes", "the same position for all patches"),
}
measured = {name: stored[group][key] for name, (group, key) in ways.items()}


def with_errors(measured):
    """What `accuracies` draws: {name: (accuracy, standard error)}."""
    return {name: (found["accuracy"], found["standard_error"]) for name, found in measured.items()}


plots.show(
    figures.accuracies(with_errors(measured), "accuracy on CIFAR-10 test pictures"),
    alt="Accuracy as trained is highest; all changes of positions or patches lower it.",
)

# %% [markdown]
# *Figure: accuracy of the trained model when positions or patches are changed at test time; a bar is two
# standard errors each way. Drawing lots gives 10 %.*

# %%
mixed, bare = measured["patches shuffled"]["accuracy"], measured["no positions"]["accuracy"]
print(f"patches at wrong positions {mixed:.3f}, without positions {bare:.3f}")
print("wrong is worse than none:", mixed < bare)

# %% [markdown]
# Mind what the zeros did: they took the class token's vector, too. The last line is a control for that.
# There the class token keeps its own, and each patch gets the mean of the 64, so that it cannot tell where
# it is. As far as the two lines differ, the zeros did more than hide the places.
#
# And mind what such a test asks: what *this* model lost, which had relied on its positions. What a model
# can do that never had any is another question; lesson 03 trained some.
#
# ## Testing the story
#
# The story was: this model hardly tells left from right, because half of its training pictures were
# mirrored. It makes a prediction that can fail. Exchange the vectors of the left and the right side, and
# little should happen. Exchange top and bottom, and much should.
#
# ### Exercise 3 · left and right (8 minutes)
#
# Give each patch the vector of its mirror image: the first of a row gets the last one's, the second that of
# the last but one. The prefix stays where it is, registers and all.
#
# <details><summary>Hint</summary>
#
# <code>prefix, patches = table[:, :num_prefix_tokens], table[:, num_prefix_tokens:]</code>. Lay the patches
# out with <code>patches.reshape(1, rows, columns, -1)</code>, reverse one axis with <code>flip</code>,
# and back: <code>flatten(1, 2)</code>, <code>torch.cat</code>.
#
# </details>

# %% tags=["exercise"]
def exchange_left_right(table, grid, num_prefix_tokens=1):
    """(1, T, D), (rows, columns) -> (1, T, D)"""
    return TODO  # your code here


checks.value("exchange_left_right", exchange_left_right)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def exchange_left_right_solution(table, grid, num_prefix_tokens=1):
    prefix, patches = table[:, :num_prefix_tokens], table[:, num_prefix_tokens:]
    patches = patches.reshape(1, *grid, -1).flip(2)  # (1, rows, columns, D)
    return torch.cat([prefix, patches.flatten(1, 2)], dim=1)


# %% [markdown]
# What it does to the accuracy, from the stored file. The pictures stay as they are; only the vectors are
# exchanged.

# %%
mirrored = ("as trained", "left and right exchanged", "top and bottom exchanged")
measured = {name: stored["changes"][name] for name in mirrored}
plots.show(
    figures.accuracies(with_errors(measured), "accuracy on CIFAR-10 test pictures"),
    alt="Accuracy as trained and with left and right exchanged alike; far lower upside down.",
)

# %% [markdown]
# *Figure: accuracy when the vectors of two sides are exchanged.*

# %%
left_right, top_bottom = (measured[name]["change"] for name in mirrored[1:])
errors = [measured[name]["change_error"] for name in mirrored[1:]]
print(f"left and right: {left_right:+.3f} ± {errors[0]:.3f}")
print(f"top and bottom: {top_bottom:+.3f} ± {errors[1]:.3f}")
print("top and bottom cost at least five times as much:", top_bottom < 5 * min(left_right, 0))

# %% [markdown]
# (The ± is one standard error of the *difference*: both were asked about the same pictures, so it is
# smaller than the bars suggest.) The story has passed a test that it could have failed. Two doubts remain.
# - Would *any* model bear this? The one for the drawn shapes never met a mirrored picture. Ask it, too.
# - A model that tells left from right, and has learned both versions of each picture, would bear it as
#   well: everything moved at once. So take away what tells the sides apart, and give both places of each
#   pair of mirror images the *mean* of their vectors. Then the same with top and bottom.

# %%
def accuracy_with(checkpoint, data, change):
    """The accuracy with other vectors for the patches. change: (1, 8, 8, D) -> the same"""
    asked = copy.deepcopy(checkpoint)
    table = asked.model.positional_encoding.positional_embedding.data  # (1, 65, D)
    table[:, 1:] = change(table[:, 1:].clone().unflatten(1, (8, 8))).flatten(1, 2)
    return (asked.predict(data.images).argmax(dim=1) == data.labels).float().mean().item()


# %% tags=["nbval-ignore-output"]
print(f"as trained: {best:.3f}")
for name, axis in (("left and right", 2), ("top and bottom", 1)):
    mean = accuracy_with(subject, data, lambda grid, axis=axis: (grid + grid.flip(axis)) / 2)
    print(f"mean of {name}: {mean:.3f}")

# %%
drawn, never = shapes("test", 200), vitlib.load("shapes")
kept = accuracy_with(never, drawn, lambda grid: grid)
exchanged = accuracy_with(never, drawn, lambda grid: grid.flip(2))
training = never.notes["training"]
print("shapes: pictures mirrored in training:", training.get("flip", training.get("augment")))
print("shapes: left and right exchanged costs much:", exchanged < kept - 0.1)

# %% [markdown]
# On CIFAR-10 the means of left and right cost little, those of top and bottom much more. And a model that
# never met mirrored pictures does mind the exchange. (But it learned other pictures. To be sure of the
# cause, train twice on the same ones, with and without mirroring.)
#
# ### Exercise 4 · move both (8 minutes)
#
# Shuffling patches hurts, since each then gets the vector of a wrong place. Now shuffle the positions
# **with** them. Write `permute_positions(model, order)`: a *copy* of the model that gives, for pictures
# whose patches were put in the order `order`, the very logits that the model gives for the pictures as
# they were. Patch $j$ of such a picture was patch `order[j]`.
#
# <details><summary>Hint</summary>
#
# <code>new = copy.deepcopy(model)</code>; the table is
# <code>new.positional_encoding.positional_embedding.data</code>, of shape (1, 1 + N, D). Which row must not
# move?
#
# </details>

# %% tags=["exercise"]
def permute_positions(model, order):
    """A model with a class token, a permutation (N,) -> a model"""
    return TODO  # your code here


checks.value("permute_positions", permute_positions)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def permute_positions_solution(model, order):
    new = copy.deepcopy(model)
    table = new.positional_encoding.positional_embedding.data
    moved = torch.cat([table[:, :1], table[:, 1:][:, order]], dim=1)
    new.positional_encoding.positional_embedding.data = moved
    return new


# %% [markdown]
# If that works, the order of the list is nothing at all, and the vectors are everything that the model
# knows about where a patch is.
#
# ## Larger pictures
#
# Lesson 03 enlarged the table from 8×8 to 12×12, so that the model takes pictures of 48×48 pixels. First
# by hand, with 100 of your 200 pictures, enlarged (which adds no detail): with the positions enlarged,
# too, and with none.

# %% tags=["nbval-ignore-output"]
from torchvision.transforms.v2 import functional as transforms

bicubic = transforms.InterpolationMode.BICUBIC
large = transforms.resize(data.images[::2], [48, 48], bicubic, antialias=True)  # (100, 3, 48, 48)
grown = copy.deepcopy(subject)
grown.model.resize(48, mode="timm")
live_large = {}
for name, asked in (("positions enlarged", grown), ("no positions", without_positions(grown))):
    right = asked.predict(large).argmax(dim=1) == data.labels[::2]
    live_large[name] = right.float().mean().item()
    print(f"{name:18} {live_large[name]:.2f}")

# %%
with_them, without_them = live_large.values()
print("enlarged positions are better than none:", with_them > without_them)

# %% [markdown]
# Lesson 03 found, too, that libraries interpolate in different ways. How much does the way matter to the
# answers? The script enlarged the table in six ways: those of four libraries, and two that should be worse.
# "As a list" interpolates the 64 rows of the table one after another, as if the picture were a line; "no
# positions" is zeros. **Predict** how far the four lie apart.

# %%
measured = {"32 pixels, as trained": stored["changes"]["as trained"], **stored["enlarged"]}
plots.show(
    figures.accuracies(with_errors(measured), "accuracy on CIFAR-10 test pictures"),
    alt="Accuracy at 48 pixels: four ways to interpolate alike, a list and no positions lower.",
)

# %% [markdown]
# *Figure: accuracy on enlarged pictures, by the way in which the positions were enlarged; on top, for
# comparison, with 32 pixels.*

# %%
four = [stored["enlarged"][mode]["accuracy"] for mode in positional_encoding.RESIZE_MODES]
listed = stored["enlarged"]["as a list"]["accuracy"]
print(f"the four ways differ by at most {max(four) - min(four):.3f}")
print(f"as a list: {min(four) - listed:.3f} below the worst of them")
print("the mistake matters more than the choice:", min(four) - listed > max(four) - min(four))

# %% [markdown]
# Learned positions are smooth, so it hardly matters how you look between them, as long as you look in two
# dimensions. What is lost against 32 pixels is another matter: each patch now shows a smaller piece of the
# thing than in training. The paper goes on training at the new size (section 3.2).
#
# ## And the patches themselves?
#
# The paper's figure 7 has a left part: the filters of the patch embedding, in 28 principal components,
# the strongest first. A filter has the numbers of a patch (lesson 01), so it can be drawn as a small
# picture, and a principal component of filters, too. People show it to say: look, it has learned edges
# and colours. Let us be careful, and put the start beside it.
#
# Two starts are common. **Random**: small random numbers. And **whitened** (`vitlib.training.whiten`): it
# measures what patches of pictures are made of, and makes the faint patterns as strong as the strong
# ones, so that brightness does not drown all else. You read above which one this model had.

# %%
patches = {name: torch.tensor(numbers) for name, numbers in stored["patches"].items()}
patterns, variances = patches["components"], patches["variances"]  # (48, 48), a row each; (48,)
whitened = patterns / (variances + 0.01).sqrt()[:, None]  # the larger, the fainter
torch.manual_seed(0)
weights = {
    "random start": vitlib.vit_cifar().patch_embedding.projection.weight.detach(),
    "whitened start": torch.cat([whitened, -whitened]).view(96, 3, 4, 4),  # two signs: the mean is 0
    "learned": model.patch_embedding.projection.weight.detach(),
}

# %%
panels = {name: attention_maps.embedding_filters(each) for name, each in weights.items()}
plots.show(
    figures.filter_panels(panels),
    alt="Three times 28 small pictures: random, whitened with fine patterns first, and learned.",
)

# %% [markdown]
# *Figure: the 28 strongest principal components of the patch filters, of two starts and of the trained
# model; each is scaled on its own.*
#
# **Compare** the learned panel with the start that this model had. As far as they agree, you are looking
# at the start, not at what was learned. With a whitened one, the strongest components are the *faintest*
# patterns of the pictures: they need the largest weights to be made equal.
#
# A fairer question: how strongly does each pattern of the pictures get **into the tokens**? Take the 48
# patterns that patches are made of, from the most common one (how bright is it?) to the finest. Multiply
# the size of the filters' answer to a pattern by how much of it pictures have.

# %%
def strength(weight, patches):
    """How much of each pattern of the pictures a token holds. (D, C, P, P) -> (48,)"""
    answers = weight.flatten(1) @ patches["components"].T  # (D, 48)
    return answers.norm(dim=0) * patches["variances"].sqrt()


relative = {}
for name, weight in weights.items():
    found = strength(weight, patches)
    relative[name] = (torch.arange(1, 49), found / found.mean())
plots.show(
    plots.line_chart(relative, "pattern, the most common first", "strength (mean: 1)", yscale="log"),
    alt="Strength of 48 patterns in a token: random falls steeply, whitened is nearly flat.",
)

# %% [markdown]
# *Figure: how strongly each of the 48 patterns of the pictures arrives in the tokens, for two starts and
# the trained model.*

# %%
for name, (_, found) in relative.items():
    print(f"{name:15} the 4 most common patterns: {found[:4].sum() / found.sum():.0%} of the whole")

# %% [markdown]
# From a random start a token is mostly brightness, and coarse contrasts across the patch. A whitened one
# treats all patterns alike, but for the faintest. Hold the learned curve against that of its own start: it
# lies above where training turned a pattern up, and below where it let it fade. That is a statement about
# learning. The panel, alone, was not.
#
# ## Common mistakes
#
# **The wrong end is cut off.** The class token's row goes, to draw the patches; it is the first one.
# `[:-1]` gives the same shape as `[1:]`, and no error comes. **Look for** the first tile, and then for
# the first cell of every tile.

# %%
wrong = attention_maps.positional_similarity(table[:, :-1], (8, 8), num_prefix_tokens=0)
plots.show(
    figures.similarity_grids({"right: table[:, 1:]": learned, "wrong: table[:, :-1]": wrong}),
    alt="All tiles twice; cut wrongly, the first is pale, and so is the first cell of every other.",
)

# %% [markdown]
# *Figure: all 64 tiles, cut rightly and cut wrongly.*
#
# The wrong table begins with the class token, so the first tile compares the class token with patches,
# and the first cell of every tile compares a patch with the class token. All else has moved on by one
# place: the last patch of a row is drawn as the first one of the next. Where left and right are alike
# anyway, that is easily overlooked.
#
# **Each tile on its own scale.** Many scripts let every tile stretch from its own smallest to its own
# largest number, and leave out the 1 in the middle "for contrast". Do that to random vectors, and they
# seem to have found something.

# %%
noise = similarity["random start"].clone()
noise[3, 2, 3, 2] = noise[3, 2].median()  # without the patch itself
stretched = 2 * (noise[3, 2] - noise[3, 2].min()) / (noise[3, 2].max() - noise[3, 2].min()) - 1
honest = similarity["random start"]
plots.show(
    similarity_tiles({
        "scale -1 to 1": (honest, (3, 2)),
        "stretched": (stretched.expand(8, 8, 8, 8), (3, 2)),
    }),
    alt="The same tile of a random vector: nearly white, and stretched to strong red and blue.",
)  # fmt: skip
print(f"before it was stretched: {noise[3, 2].min():.2f} to {noise[3, 2].max():.2f}")

# %% [markdown]
# *Figure: the tile of one random vector, on the scale of this lesson and stretched to its own range. The
# contrast on the right is made by the scale, and the colour bar is true on the left only.*

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - A tile is a map of the picture: how similar each place's vector is to that of one place. Compare it
#   with a random start, and with smooth noise, which has red spots, too.
# - Learned vectors come to hold rows and columns, as far as the training needed them: with mirrored
#   pictures, left is like right.
# - A probe needs held-out places and a control. It shows what *can* be read, not what the model uses.
# - To see what is used, change it: zero, shuffle, exchange, and measure with an error.
# - For larger pictures, interpolate in two dimensions and keep the prefix; which way hardly matters here.
#
# Previous: [08 Attention maps](08_attention_maps.ipynb) · First: [00 Start here](00_start_here.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, sections 3.2 and 4.5, figure 7,
# appendix D.4, [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · Alain & Bengio 2016, *Understanding
# Intermediate Layers Using Linear Classifier Probes*,
# [arXiv:1610.01644](https://arxiv.org/abs/1610.01644) · Darcet et al. 2024, *Vision Transformers Need
# Registers*, [arXiv:2309.16588](https://arxiv.org/abs/2309.16588). Photograph: Chelsea the cat, by Stéfan
# van der Walt, CC0.
