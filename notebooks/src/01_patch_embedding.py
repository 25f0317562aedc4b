# %% [markdown]
# # Patch embedding: from a picture to a row of tokens
#
# > Cut a picture into squares, multiply each square by the same matrix, and you have what a Transformer
# > reads.
#
# **After this lesson you can**
# - say how many tokens an image gives, and what goes wrong when the patches don't fit;
# - cut a batch of images into patches in three ways, and put them together again;
# - recognise patches that have the right shape and the wrong pixels;
# - turn the weights of a linear layer into those of a convolution, and say why that works;
# - count the parameters of a patch embedding by hand.
#
# 35 minutes to read, 38 for the exercises · under 30 seconds to run · needs the idea of patches and tokens
# from [00 Start here](00_start_here.ipynb), and `Conv2d` and tensor shapes from PyTorch

# %%
from vitlib import diagrams, plots

plots.show(
    diagrams.vit_map("patch_embedding"),
    alt="The model as a map, from a picture to its class. "
    "The patch embedding is framed: a picture, cut into patches, becomes tokens.",
)

# %% [markdown]
# *Figure: the way from a picture to its class, with the number of each lesson and the shape of what is
# passed on. Here you build the framed part: from a picture to N tokens of D numbers.*
#
# ## What are the words of a picture?
#
# A Transformer reads a list of **tokens**. Each token is a vector, and all have the same length. The model
# was made for text, where it is easy to say what the list is: one token for a word, or for a piece of one.
# A picture is a grid of pixels. What could its words be?
#
# The Vision Transformer cuts the picture into squares, called **patches**, and reads them like a page: along
# the first row, then along the next.

# %%
import torch
from skimage.data import chelsea

from vitlib import checks
from vitlib.checks import TODO
from vitlib.data import fit_picture
from vitlib.figures.patch_embedding import cut_pictures, patch_as_row

photo = fit_picture(chelsea(), 192)  # uint8 (3, 192, 192): channels, height, width
corners = range(0, 192, 32)
squares = [[photo[:, top : top + 32, left : left + 32] for left in corners] for top in corners]
plots.show(
    cut_pictures({"one picture": [[photo]], "36 patches of 32×32 pixels": squares}, numbered=True),
    alt="A cat's face: left whole, right in 6 by 6 squares, numbered from 0 to 35 row by row.",
)

# %% [markdown]
# *Figure: left, the photograph; right, the same in 6 rows of 6 patches, in the order in which they will be
# read. We count from 0, as Python does.*
#
# Why not a token for each pixel? Because in a Transformer every token looks at every other one, so the work
# grows with the number of **pairs**. **Predict before you run:** an image of 224×224 pixels, one token per
# pixel. How many pairs?

# %%
print("image    patch     tokens           pairs")
for side, patch in ((224, 1), (224, 32), (224, 16), (224, 14), (384, 16), (32, 4)):
    tokens = (side // patch) ** 2
    print(f"{side:3}x{side:<3}  {patch:2}x{patch:<2}  {tokens:9,}  {tokens**2:14,}")

# %% [markdown]
# Two and a half billion pairs, in each layer, for each image. With patches of 16×16 there are 196 tokens,
# and fewer than 40,000 pairs. This gave the paper its title: *An Image is Worth 16x16 Words*. The paper
# writes $N = HW/P^2$ for the number of patches (section 3.1).
#
# The last row is the size of our own model: pictures of 32×32, patches of 4×4, 64 tokens.
#
# ### Exercise 1 · count the patches (3 minutes)
#
# Images may be wide, and even a patch may be. Fill in one line. Both sizes are (height, width), and the
# patches fill the image.
#
# <details><summary>Hint</summary>
#
# How many patches fit into the height? Into the width? For whole numbers, divide with <code>//</code>.
#
# </details>

# %% tags=["exercise"]
def num_patches(image_size, patch_size):
    """(height, width), (height, width) -> the number of patches"""
    return TODO  # your code here


num_patches = checks.use(num_patches, checks.patch_embedding.num_patches)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def num_patches_solution(image_size, patch_size):
    return (image_size[0] // patch_size[0]) * (image_size[1] // patch_size[1])


# %% [markdown]
# ## Sixteen numbers, by hand
#
# Here is an image of 4×4 pixels and one channel. Each number says where it is, counted from 1 for once: 23
# is in the second row, third column. We cut it into patches of 2×2, and write the four numbers of each
# patch in one row. **Do it in your head first:** which numbers are in patch 1, the upper right one?

# %%
toy = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34], [41, 42, 43, 44]])
by_hand = [toy[top : top + 2, left : left + 2].flatten() for top in (0, 2) for left in (0, 2)]
by_hand = torch.stack(by_hand)  # (N, P·P)
by_hand[1]

# %% [markdown]
# **Look for** the colours: in both tables, a number has the colour of its patch.

# %%
upper, lower = ["patch"] * 2 + ["neutral"] * 2, ["neutral"] * 2 + ["patch"] * 2
in_image = [upper, upper, lower, lower]  # the colour of each pixel
in_rows = [["patch"] * 4, ["neutral"] * 4, ["neutral"] * 4, ["patch"] * 4]
names = ["patch 0", "patch 1", "patch 2", "patch 3"]
plots.show(
    plots.number_tables(
        [toy, by_hand],
        titles=["the image", "one patch a row"],
        rows=[None, names],
        colors=[in_image, in_rows],
    ),
    alt="The 16 numbers of the image in four coloured squares, and again, one square a row.",
)

# %% [markdown]
# *Figure: left, the image with its four patches in two colours; right, one row for each patch.*
#
# ## The same without a loop
#
# The result has 4 rows of 4 numbers, and the image has 4 rows of 4 numbers. So why not
# `toy.view(num_patches, -1)`? **Predict** what is in patch 1 then.

# %%
plots.show(
    plots.number_tables(
        [toy, toy.view(4, -1)],
        titles=["the image", "wrong: view(4, -1)"],
        rows=[None, names],
        colors=[in_image, in_image],
    ),
    alt="After view, each row of the result has both colours: it mixes numbers of two patches.",
)

# %% [markdown]
# *Figure: the same colours as before. With `view` alone, each row mixes pixels of two patches.*
#
# The shape is right and the content is not. `view` moves no number: it reads the memory in the same order
# and breaks it into rows elsewhere. "Patch 1" is now a row of the image.
#
# To get squares, numbers have to change places. Give every pixel an address of four parts: which row of
# patches, which row inside the patch, which column of patches, which column inside the patch. Here `view`
# does help: it splits each axis in two. **Predict:** which number lives at the address below?

# %%
address = toy.view(2, 2, 2, 2)  # (rows, row inside, columns, column inside)
address[0, 1, 1, 0]

# %% [markdown]
# First row of patches, second row inside; second column of patches, first column inside: 23. Now bring the
# two axes that name a **patch** to the front. Then the two that name a place inside it come last, and merge
# into one.

# %%
swapped = address.transpose(1, 2)  # (rows, columns, row inside, column inside)
patches = swapped.reshape(4, 4)  # (N, P·P)
torch.equal(patches, by_hand)

# %% [markdown]
# It must be `reshape` here. `view` refuses, since this time numbers really have to be copied to new places:

# %%
import textwrap

try:
    swapped.view(4, 4)
except RuntimeError as error:
    print(textwrap.fill(f"RuntimeError: {error}", 90))

# %% [markdown]
# ## The same as one sentence
#
# The library einops writes these three steps as one line with named axes. On the left, `(rows ph)` splits
# the height into rows of patches and pixels of the patch's height. On the right, the brackets merge.

# %%
from einops import rearrange

patches = rearrange(toy, "(rows ph) (cols pw) -> (rows cols) (ph pw)", ph=2, pw=2)
torch.equal(patches, by_hand)

# %% [markdown]
# Read from right to left, the same sentence puts the image back together. It needs to know how many rows of
# patches there are, and how many rows each patch has.

# %%
image = rearrange(patches, "(rows cols) (ph pw) -> (rows ph) (cols pw)", rows=2, ph=2)
torch.equal(image, toy)

# %% [markdown]
# ## Colours and batches
#
# Real images come as `(B, C, H, W)`: batch, channels, height, width. A patch keeps all its channels, so its
# row has $C \cdot P \cdot P$ numbers (the paper's $P^2 \cdot C$). In which order? Any would do, if only
# every patch has the same one. We take **(channel, row, column)**: all of red, row by row, then green, then
# blue. You will soon see what this order is good for.
#
# ### Exercise 2 · patchify (12 minutes)
#
# Write it for any batch, number of channels, height and width. The patches are square, `patch_size` is one
# number, and it divides both sides.
#
# <details><summary>Hint 1</summary>
#
# With einops it is the sentence above with two more axes: <code>b</code> stands alone on both sides,
# <code>c</code> stands alone on the left. Where does it go on the right?
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# Without einops: <code>reshape</code> to six axes (B, C, rows, P, columns, P), then <code>permute</code>
# them to (B, rows, columns, C, P, P), then <code>reshape</code> to three.
#
# </details>

# %% tags=["exercise"]
from vitlib import patch_embedding


def patchify(images, patch_size):
    """(B, C, H, W) -> (B, N, C·P·P), the pixels of a patch in the order (channel, row, column)"""
    return TODO  # your code here


patchify = checks.use(patchify, patch_embedding.patchify)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def patchify_solution(images, patch_size):
    B, C, H, W = images.shape
    rows, columns = H // patch_size, W // patch_size
    six = images.reshape(B, C, rows, patch_size, columns, patch_size)
    return six.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, -1)


# %% [markdown]
# **A second opinion.** PyTorch has its own function that lays out the windows of an image, `unfold`. It was
# made for convolutions. It returns `(B, C·P·P, N)`, so its last two axes change places. **Look for**
# `True`, on random images that are not square.

# %%
from torch.nn.functional import unfold

images = torch.randn(7, 3, 32, 48, generator=torch.Generator().manual_seed(0))
patches = patchify(images, 4)
print(tuple(patches.shape))
torch.equal(patches, unfold(images, 4, stride=4).transpose(1, 2))

# %% [markdown]
# ## On a real picture
#
# Now the cat. Once with `patchify`, once with `view` alone. Both give the shape `(36, 3072)`. Each row is
# then drawn as a little picture again.

# %%
pixels = photo[None].float()  # (1, 3, 192, 192)
right = patchify(pixels, 32)[0]  # (36, 3072)
wrong = pixels.view(36, -1)  # (36, 3072)
axes = "(rows cols) (c ph pw) -> rows cols c ph pw"
cut = {
    name: rearrange(rows.byte(), axes, rows=6, c=3, ph=32)
    for name, rows in (("right: patchify", right), ("wrong: view(36, -1)", wrong))
}
plots.show(
    cut_pictures(cut),
    alt="Left, the cat in 36 patches; right, 36 squares of coloured stripes without any cat.",
)

# %% [markdown]
# *Figure: the rows of both results, each drawn as a patch. On the right, a "patch" is 16 whole rows of one
# channel, broken off in the wrong places.*
#
# A model fed with the right-hand side runs without an error. So draw your patches once, or compare with
# something independent, as we did with `unfold`.
#
# Now shrink the cat to 32×32 pixels, and look at one patch of 4×4, the one at the left eye. Follow a number
# from its table to its place in the row.

# %%
small = fit_picture(chelsea(), 32)  # uint8 (3, 32, 32)
eye = patchify(small[None].float(), 4)[0, 26]  # row 3, column 2: patch 3 · 8 + 2
plots.show(
    patch_as_row(eye.byte().view(3, 4, 4)),
    alt="A patch of 4 by 4 pixels, its red, green and blue numbers, and the 48 numbers in one row.",
)

# %% [markdown]
# *Figure: one patch, its three channels as tables (a channel alone is a grey picture: 0 is black), and the
# same 48 numbers as one row: red, green, blue, each row by row. This row is all that the model gets of the
# patch.*
#
# Nothing is lost by cutting: `unpatchify` is the sentence read from right to left, with batch and channels.
# We give it the 36 patches of the big cat. **Look for** `True`: every pixel is back in its place.

# %%
from vitlib.patch_embedding import unpatchify

back = unpatchify(right[None], image_size=192, patch_size=32)
torch.equal(back, pixels)

# %% [markdown]
# ## From pixels to tokens
#
# A single pixel says little: an edge, or a texture, shows only in many of them together. So each row is
# multiplied by a matrix $E$, which training can shape. Each column of $E$ is a question to the whole patch,
# and each number of the token is an answer.
#
# A toy again, with two questions made by hand. *Mean:* how bright is the patch on average? *Edge:* how much
# brighter is its right half than its left? **Predict** from the first line of code: which two patches give
# the same answer to the first question, and different answers to the second?

# %%
picture = torch.tensor([[1, 1, 1, 9], [1, 1, 1, 9], [5, 5, 1, 1], [5, 5, 1, 1.0]])
rows = patchify(picture[None, None], 2)[0]  # (N, P·P)
E = torch.tensor([[0.25, -0.5], [0.25, 0.5], [0.25, -0.5], [0.25, 0.5]])  # (P·P, D)
tokens = rows @ E  # (N, D)
questions = ["mean", "edge"]
plots.show(
    plots.number_tables(
        [picture, rows, E, tokens],
        titles=["the image", "patches", "E", "tokens"],
        rows=[None, names, None, None],
        columns=[None, None, questions, questions],
        colors=[in_image, in_rows, "signed", "patch"],
    ),
    alt="The image, its patches as rows, the 4 by 2 matrix E, and two numbers for each patch.",
)

# %% [markdown]
# *Figure: patches times $E$ gives tokens, one row for each patch. Patches 1 and 2 are equally bright; the
# second question tells them apart.*
#
# This is a piece of the paper's equation 1:
#
# $$z_0 = [\,x_\text{class};\ x_p^1 E;\ x_p^2 E;\ \cdots;\ x_p^N E\,] + E_\text{pos},
# \qquad E \in \mathbb{R}^{(P^2 \cdot C) \times D}$$
#
# Symbol by symbol:
#
# | symbol | what it is | shape |
# |---|---|---|
# | $x_p^1$ to $x_p^N$ | the patches as rows; $x_p^1$ is patch 0, first in `patchify` | $1 \times P^2 C$ |
# | $E$ | the matrix, **one** for all patches | $P^2 C \times D$ |
# | $x_p^1 E$ | the token of a patch; $D$, `embed_dim` in the code, is its length | $1 \times D$ |
# | $[\,\cdot\,;\,\cdot\,]$ | rows, one below the other | $(N + 1) \times D$ |
# | $x_\text{class}$, $E_\text{pos}$ | one token more, and the places: lessons 02 and 03 | |
# | $z_0$ | the list of tokens, after 0 layers | $(N + 1) \times D$ |
#
# Each patch is multiplied on its own: a token knows nothing but its own pixels.
#
# In PyTorch, $E$ is an `nn.Linear`. Two things differ from the equation: it stores $E$ on its side, as
# `weight` of shape `(D, P·P·C)`, and it adds a `bias`, one number for each question. **Look for** `True`.

# %%
from torch import nn

as_layer = nn.Linear(4, 2, bias=False)  # without a bias, as in the equation
as_layer.weight.data = E.T  # (D, P·P)
torch.equal(as_layer(rows), rows @ E)

# %% [markdown]
# ## The same as a convolution
#
# Most code has no `patchify`. It has a `Conv2d` whose stride is its kernel size, and people wonder whether
# that is something else. A convolution multiplies a window by its weights, sums, and moves on by its
# stride. With a stride as wide as the window, the windows lie side by side: they are the patches. And one
# output channel is one question.
#
# So take a `Linear` with random weights, and write the same weights into a `Conv2d`. **Predict** the shape
# that the convolution gives for `images`, which is `(7, 3, 32, 48)`.

# %%
torch.manual_seed(0)
linear = nn.Linear(3 * 4 * 4, 5)  # weight: (D, C·P·P)
conv = nn.Conv2d(3, 5, kernel_size=4, stride=4)  # weight: (D, C, P, P)
with torch.no_grad():
    conv.weight.copy_(linear.weight.view(5, 3, 4, 4))
    conv.bias.copy_(linear.bias)
    maps = conv(images)
maps.shape

# %% [markdown]
# It keeps the patches as a picture, `(B, D, rows, columns)`. The size is that of any convolution without
# padding, $\lfloor (H - K)/S \rfloor + 1$ with kernel $K$ and stride $S$. With $K = S = P$ that is $H/P$:
# here 8 rows and 12 columns. To make it a list of tokens, flatten rows and columns into one axis, and put
# it second.

# %%
with torch.no_grad():
    by_conv = maps.flatten(2).transpose(1, 2)  # (B, N, D)
    by_linear = linear(patchify(images, 4))  # (B, N, D)
difference = (by_conv - by_linear).abs().max().item()
print(f"numbers up to {by_linear.abs().max():.1f}, largest difference below 1e-5: {difference < 1e-5}")

# %% [markdown]
# The same numbers. And `view` was enough for the weights, because a filter of a `Conv2d` has its numbers in
# the order (channel, row, column). That is what our order was good for.
#
# ### Exercise 3 · weights from elsewhere (8 minutes)
#
# Other code writes the pixels of a patch in the order **(row, column, channel)**: red, green and blue of
# the first pixel, then of the second. You want to use its weights, of shape `(D, P·P·C)`, in a `Conv2d`.
# Put them in order.
#
# <details><summary>Hint</summary>
#
# Split the second axis first, in the order in which it was made: three axes. Which of them must move, and
# where to? <code>permute</code> takes the new order of all axes.
#
# </details>

# %% tags=["exercise"]
def to_conv_weight(weight, in_channels, patch_size):
    """(D, P·P·C) -> (D, C, P, P)"""
    return TODO  # your code here


to_conv_weight = checks.use(to_conv_weight, checks.patch_embedding.to_conv_weight)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
def to_conv_weight_solution(weight, in_channels, patch_size):
    split = weight.reshape(-1, patch_size, patch_size, in_channels)  # (D, P, P, C)
    return split.permute(0, 3, 1, 2)  # (D, C, P, P)


# %% [markdown]
# ## When the patches don't fit
#
# An image of 222×222 pixels and patches of 16×16: $222/16 = 13.875$. What does the convolution do with the
# pixels that are left over? To see which pixels it reads, we poison some: NaN ("not a number") spoils every
# sum that it enters. **Predict:** will there be NaN in what comes out?

# %%
conv = nn.Conv2d(3, 8, kernel_size=16, stride=16)
image = torch.zeros(1, 3, 222, 222)
image[..., 208:, :] = torch.nan  # the last 14 rows of pixels
image[..., :, 208:] = torch.nan  # the last 14 columns
maps = conv(image)
print("shape:", tuple(maps.shape), "  any NaN in it:", maps.isnan().any().item())
print(f"pixels that were never read: {1 - 208**2 / 222**2:.1%}")

# %% [markdown]
# $\lfloor 13.875 \rfloor = 13$ patches each way. The last 14 rows and columns hold the poison, and nothing
# shows: the convolution never read them, and did not say so. We want to be told. `patch_grid` gives the
# number of rows and columns of patches, or refuses.

# %%
from vitlib.patch_embedding import patch_grid

print(patch_grid((32, 48), 4))
try:
    patch_grid(222, 16)
except ValueError as error:
    print(textwrap.fill(str(error), 90))

# %% [markdown]
# ## The piece we keep
#
# The finished class: sizes, one convolution, two steps to make a list of it. `check` is for people who mix
# up their axes. `as_pair` makes `(4, 4)` of `4`, and `check_batch` refuses what is not `(B, C, H, W)`.

# %% tags=["finished"]
from vitlib.patch_embedding import as_pair, check_batch


class PatchEmbedding(nn.Module):
    """Turn an image into one token per patch, by one linear map shared by all patches.

    A convolution whose stride is its kernel size is that linear map: `projection.weight.flatten(1)`
    is its matrix, and it meets the pixels of a patch in the order of `patchify`.
    Shapes: (B, C, H, W) -> (B, N, D).
    Raises ValueError for images of another size or number of channels, or not floating point.
    Source: paper equation 1, the matrix E; lesson 01.
    """

    def __init__(self, image_size, patch_size, in_channels, embed_dim):
        super().__init__()
        self.image_size, self.patch_size = as_pair(image_size), as_pair(patch_size)
        self.grid = patch_grid(image_size, patch_size)
        self.num_patches = self.grid[0] * self.grid[1]
        self.projection = nn.Conv2d(in_channels, embed_dim, self.patch_size, stride=self.patch_size)

    def forward(self, images):
        self.check(images)
        tokens = self.projection(images)  # (B, D, rows, columns)
        return tokens.flatten(2).transpose(1, 2)  # (B, N, D)

    def check(self, images):
        """Refuse images that this layer was not built for, and say what to do."""
        check_batch(images)
        channels, size = self.projection.in_channels, tuple(images.shape[-2:])
        if images.shape[1] != channels:
            swapped = images.shape[3] == channels
            hint = (
                " They look like (B, H, W, C): use images.permute(0, 3, 1, 2)." if swapped else ""
            )
            raise ValueError(
                f"The model was built for in_channels={channels}, the images have "
                f"{images.shape[1]} channels: shape {tuple(images.shape)}.{hint}"
            )
        if size != self.image_size:
            patch_grid(size, self.patch_size)  # where no patches fit, that is what to say
            raise ValueError(
                f"The model was built for images of {self.image_size}, "
                f"these are {size} (height, width). "
                f"Resize the images to {self.image_size}, or the model with model.resize({size})."
            )
        if not images.is_floating_point():
            raise ValueError(
                f"Expected normalised floating-point images, got {images.dtype}. "
                "Use vitlib.data.normalize(images, mean, std)."
            )


# %% [markdown]
# **Proof.** Two independent ways to the same tokens. First torchvision's Vision Transformer, with our
# weights copied into its patch embedding. Its `_process_input` is all that it does before the class token.

# %%
from torchvision.models import VisionTransformer

torch.manual_seed(0)
ours = PatchEmbedding(image_size=32, patch_size=4, in_channels=3, embed_dim=24)
theirs = VisionTransformer(32, 4, num_layers=1, num_heads=1, hidden_dim=24, mlp_dim=24)
theirs.conv_proj.load_state_dict(ours.projection.state_dict())
square = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    assert torch.allclose(ours(square), theirs._process_input(square), atol=1e-5)
print("the same tokens as torchvision's ViT, (B, N, D) =", tuple(ours(square).shape))

# %% [markdown]
# Then `unfold` and a matrix product, on images that are not square, with patches that are not square
# either, and one channel.

# %%
ours = PatchEmbedding(image_size=(12, 40), patch_size=(4, 8), in_channels=1, embed_dim=6)
images = torch.randn(2, 1, 12, 40, generator=torch.Generator().manual_seed(2))
E = ours.projection.weight.flatten(1).T  # (C·P·P, D), the paper's matrix
with torch.no_grad():
    by_product = unfold(images, (4, 8), stride=(4, 8)).transpose(1, 2) @ E + ours.projection.bias
    assert torch.allclose(ours(images), by_product, atol=1e-5)
assert ours.num_patches == num_patches((12, 40), (4, 8))
print(f"the same tokens as unfold and E: {ours.grid} rows and columns, {ours.num_patches} tokens")

# %% [markdown]
# ## How many parameters?
#
# **Count by hand first.** Patches of 16×16 with 3 channels, tokens of length 768. How many weights has $E$?
# And how many biases are there?

# %%
by_hand = 3 * 16 * 16 * 768 + 768
layer = PatchEmbedding(image_size=224, patch_size=16, in_channels=3, embed_dim=768)
assert sum(parameter.numel() for parameter in layer.parameters()) == by_hand
print(f"{by_hand:,}")

# %% [markdown]
# $C \cdot P^2 \cdot D + D$. The image size is not in it: more patches use the same $E$. Now for the paper's
# models: B, L and H are Base, Large and Huge, the number is $P$. **Look for** the model in which a token is
# as long as its patch has numbers.

# %%
print("model  numbers in a patch  token length  parameters")
variants = (("B/16", 16, 768), ("B/32", 32, 768), ("L/16", 16, 1024), ("H/14", 14, 1280))
for name, patch, embed_dim in variants:
    layer = nn.Conv2d(3, embed_dim, patch, stride=patch)
    number = sum(parameter.numel() for parameter in layer.parameters())
    print(f"{name}  {3 * patch**2:18,}  {embed_dim:12,}  {number:10,}")

# %% [markdown]
# In ViT-B/16, $3 \cdot 16 \cdot 16 = 768 = D$: the matrix is square, and the token has room for all that
# was in its patch. In B/32 four numbers have to share the room of one; in L/16 and H/14 there is room to
# spare.
#
# ### Exercise 4 · patches that overlap (15 minutes)
#
# An eye may lie across the border of two patches. Change the design: patches of $P$ pixels, but a new one
# begins every `stride` pixels, with `stride` smaller than $P$. Write the layer. It needs
# `self.num_patches`, and one linear map with a bias. No padding: the sizes are such that the last patch ends
# at the border of the image. (How many tokens do you get for 32×32 pixels, patches of 8 and a stride of 4?
# How many times the pairs that you have without overlap?)
#
# <details><summary>Hint</summary>
#
# The formula $\lfloor (H - K)/S \rfloor + 1$ is above, for the height. The class above needs two changes.
#
# </details>

# %% tags=["exercise"]
class OverlappingPatches(nn.Module):
    """(B, C, H, W) -> (B, N, D). image_size: (height, width); patch_size, stride: numbers."""

    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        self.num_patches = TODO  # your code here
        self.projection = TODO

    def forward(self, images):
        return TODO


OverlappingPatches = checks.use(OverlappingPatches, checks.patch_embedding.OverlappingPatches)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
class OverlappingPatches_solution(nn.Module):
    def __init__(self, image_size, patch_size, stride, in_channels, embed_dim):
        super().__init__()
        height, width = image_size
        rows, columns = (height - patch_size) // stride + 1, (width - patch_size) // stride + 1
        self.num_patches = rows * columns
        self.projection = nn.Conv2d(in_channels, embed_dim, patch_size, stride=stride)

    def forward(self, images):
        return self.projection(images).flatten(2).transpose(1, 2)


# 32×32, patches of 8, stride 4: 7 · 7 = 49 tokens instead of 16, and 49² / 16² = 9.4 times the pairs.

# %% [markdown]
# ## Common mistakes
#
# **`view` on what the convolution gives.** `(B, D, rows, columns)` has $D \cdot N$ numbers for each image,
# and so has `(B, N, D)`. So `view(B, N, D)` runs, and each "token" mixes numbers of many patches. The
# symptom: brighten **one** patch, and count the tokens that change.

# %%
layer = PatchEmbedding(image_size=32, patch_size=4, in_channels=3, embed_dim=24)
dark = torch.zeros(1, 3, 32, 32)
bright = dark.clone()
bright[:, :, :4, :4] = 1  # patch 0
with torch.no_grad():
    change = layer.projection(bright) - layer.projection(dark)  # (1, D, rows, columns)
right, wrong = change.flatten(2).transpose(1, 2), change.view(1, 64, 24)
for name, tokens in (("right", right), ("wrong", wrong)):
    print(f"{name}: {(tokens[0].abs().sum(dim=1) > 0).sum()} of 64 tokens change")

# %% [markdown]
# 24, because each of the 24 channels put its change into another token.
#
# **Height and width exchanged.** PIL says (width, height), PyTorch says (height, width). On square images
# nobody notices. The symptom, on a wide picture of 4 rows of 6 patches put back as 6 rows of 4: no error,
# and this.

# %%
wide = patchify(pixels[..., :128, :], 32)  # the upper two thirds: (1, 24, 3072)
back = {size: unpatchify(wide, size, 32)[0].byte() for size in ((128, 192), (192, 128))}
plots.show(
    cut_pictures({f"put back as {size}": [[picture]] for size, picture in back.items()}),
    alt="Left, the upper part of the cat's face; right, its patches in rows of four: a jumble.",
)

# %% [markdown]
# *Figure: the same 24 patches, in rows of 6 and, wrongly, in rows of 4.*
#
# **`reshape` where `permute` is meant.** NumPy and PIL give pictures as `(H, W, C)`. To bring the channels
# to the front, an axis has to move. `reshape` only breaks the memory elsewhere: the mistake of the
# `view`-only patches in another coat.

# %%
array = photo.permute(1, 2, 0).contiguous()  # (192, 192, 3), as NumPy and PIL have it
plots.show(
    cut_pictures({
        "permute(2, 0, 1)": [[array.permute(2, 0, 1)]],
        "wrong: reshape(3, 192, 192)": [[array.reshape(3, 192, 192)]],
    }),
    alt="Left, the cat; right, after reshape, a coloured weave in which no cat can be seen.",
)  # fmt: skip

# %% [markdown]
# *Figure: right, three thirds of the picture on top of each other: the upper third is taken for red, the
# middle one for green, the lower one for blue.*
#
# If you hand over `(H, W, C)` as it is, our class says so:

# %%
try:
    layer(array[None].float())
except ValueError as error:
    print(textwrap.fill(str(error), 90))

# %% [markdown]
# Which exercises have passed on this machine, and what comes next:

# %%
checks.progress()

# %% [markdown]
# ## Recap
#
# - A picture becomes a list: $N = HW/P^2$ patches, each a row of $C \cdot P^2$ numbers.
# - Split height and width in two, bring the patch axes to the front, merge. `view` alone gives the right
#   shape and the wrong pixels.
# - One matrix $E$ turns every patch into a token. Flatten + `Linear` and `Conv2d` with stride $P$ are the
#   same map, with $C P^2 D + D$ parameters.
# - Patches that don't cover the image are dropped without a word, unless you check.
# - A token knows the pixels of its own patch, and neither its neighbours nor its place.
#
# The last line leaves two questions. From which of the 64 tokens should the answer be read? And how should
# the model know where each came from?
#
# Previous: [00 Start here](00_start_here.ipynb) · Next: [02 Class token](02_class_token.ipynb)
#
# References: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*, section 3.1, equation 1,
# [arXiv:2010.11929](https://arxiv.org/abs/2010.11929) · [einops](https://einops.rocks) · The overlapping
# patches of exercise 4: Yuan et al. 2021, *Tokens-to-Token ViT*,
# [arXiv:2101.11986](https://arxiv.org/abs/2101.11986). Photograph: Chelsea the cat, by Stéfan van der Walt,
# CC0.
