# %% [markdown]
# # Start here: a Vision Transformer looks at a cat
#
# > In three short cells a trained model names what is in a photograph, and shows where it looked.
#
# **After this lesson you can**
# - tell whether your machine is ready, and what it will train on;
# - load a trained Vision Transformer and ask it what it sees in a picture;
# - read a map of where the model looks, and say what its squares are;
# - work with an exercise: try, check, read the hint, compare.
#
# 10 minutes to read, 4 for the exercises · under 30 seconds to run · no download, no graphics card
#
# New to notebooks? Click into a cell and press **Shift + Enter**. It runs, and the next cell is chosen.

# %% [markdown]
# ## Is everything here?
#
# The first cell prints what is installed and what the models will run on. Your lines will differ from
# these.

# %% tags=["nbval-ignore-output"]
import platform

import torch
import torchvision

import vitlib
from vitlib import checks
from vitlib.checks import TODO
from vitlib.training import pick_device

print("Python     ", platform.python_version())
print("torch      ", torch.__version__)
print("torchvision", torchvision.__version__)
print("runs on    ", pick_device(), "with", torch.get_num_threads(), "threads")

# %% [markdown]
# `cpu` is fine: every lesson was written for a laptop without a graphics card.
#
# ## What is in this picture?
#
# A photograph comes with scikit-image, so nothing has to be downloaded. The model reads pictures of only
# 32×32 pixels, so we shrink it. **Look at both:** could *you* name what is in the small one?

# %%
from skimage.data import chelsea

from vitlib import plots
from vitlib.data import fit_picture

photo = fit_picture(chelsea(), 288)  # uint8 (3, 288, 288)
small = fit_picture(chelsea(), 32)  # uint8 (3, 32, 32)
plots.show(
    plots.picture_grid([photo, small], ["the photograph, 288×288", "what the model gets, 32×32"]),
    alt="The photograph of a cat's face, sharp on the left, in 32 by 32 pixels on the right.",
)

# %% [markdown]
# *Figure: left, the photograph; right, all that the model will see of it.*
#
# Now the three cells. **One:** load a model that was trained on CIFAR-10, a collection of 60,000 small
# pictures of ten kinds of things. It comes with this package.

# %%
checkpoint = vitlib.load("cifar10")
checkpoint.classes

# %% [markdown]
# **Two:** ask it. Five bars appear, the likeliest class first. **Predict before you run it:** with which
# animals could it confuse this cat?

# %%
probabilities = checkpoint.predict(small[None])[0]  # (10,)
plots.show(
    plots.class_bars(probabilities, checkpoint.classes),
    alt="The five likeliest classes as bars.",
)

# %% [markdown]
# *Figure: how sure the model is of each of its five likeliest classes. All ten shares add up to 1.*
#
# **Three:** ask where it looked. Look for bright squares: from there its last layer took most.

# %%
from vitlib.attention_maps import class_attention, to_grid

attention = checkpoint.attention(small[None])
last_layer = class_attention(attention)[0, -1].mean(dim=0)  # one number for each of the 64 squares
plots.show(
    plots.attention_overlay(photo, to_grid(last_layer, checkpoint.model.grid)),
    alt="The photograph, and over it 8 by 8 squares, brighter where the model looked more.",
)

# %% [markdown]
# *Figure: left, the photograph; right, the attention of the last layer. The brighter a square, the more the
# model took from it. The map is coarse: the model cuts the picture into 8×8 squares, and attention knows a
# square only as a whole.*
#
# ## What just happened
#
# The picture was cut into squares, called **patches**. Each patch became a list of numbers, called a
# **token**. One more token, the **class token**, was put in front: its job is to collect what matters.
# In six layers, every token looked at all the others and took something from them. That is
# **attention**. Each layer does it six times side by side, each time with weights of its own: these are its
# six **heads**, and the map above is their average, for the class token. At the end the class token was
# turned into ten numbers, one for each class. **Follow** one patch from left to right:

# %%
from vitlib import diagrams

plots.show(
    diagrams.vit_map(),
    alt="The model as a map: a picture, its patches, tokens, one more token in front, positions "
    "added, a block of attention and MLP repeated, then the class token alone, then the classes.",
)

# %% [markdown]
# *Figure: the way from a picture to its class. The numbers above are the lessons that build each part, the
# brackets below are the shapes of what is passed on. Every lesson begins with this map.*
#
# And this is the whole model in numbers:

# %%
model = checkpoint.model
patches = model.patch_embedding
print("patches     ", patches.num_patches, "of", patches.patch_size, "pixels")
print("token width ", model.config["embed_dim"])
print("layers      ", model.config["depth"], "with", model.config["num_heads"], "heads each")
print("parameters  ", f"{sum(p.numel() for p in model.parameters()):,}")

# %% [markdown]
# A map is not a reason. It says where the last layer read, not why the model decided as it did. Lesson
# 08 is about what such maps show, and what they don't.
#
# ## The map of the series
#
# | lesson | what you leave with |
# |---|---|
# | **00 Start here** | you are here |
# | [**01 Patch embedding**](01_patch_embedding.ipynb) | from a picture to tokens, in three ways |
# | [**02 Class token**](02_class_token.ipynb) | one more token to classify from, and what it costs |
# | [**03 Positional encoding**](03_positional_encoding.ipynb) | how a token knows its place |
# | [**04 Attention**](04_attention.ipynb) | queries, keys, values by hand; many heads; the price |
# | [**05 Encoder block**](05_encoder_block.ipynb) | norms, residuals, MLP: what each is for, measured |
# | [**06 Vision Transformer**](06_vision_transformer.ipynb) | the whole model, equal to torchvision's |
# | [**07 Train on CIFAR-10**](07_train_cifar10.ipynb) | your own run, its curves, what can go wrong |
# | [**08 Attention maps**](08_attention_maps.ipynb) | where each head looks, how far to trust a map |
# | [**09 Positional embeddings**](09_positional_embeddings.ipynb) | what the model learned about space |
#
# Lessons 01 to 06 build the model, one piece each. The finished pieces are in the package `vitlib`, one short
# file for each lesson. In a hurry? 07 and 08 can be read before them: they say what they need.
#
# ## How to work with a lesson
#
# 1. **Predict.** Where the text asks what will happen, say it aloud before you run the cell.
# 2. **Run** the cell, and compare.
# 3. **Exercise.** Replace `TODO` with your answer and run the cell. The check tells you in words what is
#    right or wrong. Nothing breaks when you leave an exercise out.
# 4. **Look up.** Under each exercise there are a hint and a solution. Click to open them.
# 5. **See how far you are.** `checks.progress()` counts what you have solved, in all lessons on this machine.
#
# Try it now.
#
# ## Exercise 1 · count the patches (1 minute)
#
# The model above cuts 32×32 pixels into patches of 4×4, which makes 8 rows of 8. The model of the paper gets
# pictures of 224×224 pixels and cuts them into patches of 16×16. How many patches are there? Replace `TODO`
# by your number.
#
# <details><summary>Hint</summary>
#
# How many patches fit side by side? And how many such rows are there?
#
# </details>

# %% tags=["exercise"]
num_patches = TODO  # your answer here

checks.value("number of patches", num_patches)

# %% jupyter={"source_hidden": true} tags=["solution", "hide-input"]
# Solution: click to open
num_patches_solution = (224 // 16) * (224 // 16)

# %% [markdown]
# (Where solutions are not folded, as on some web pages, look away.)
#
# How far are you in the whole series? Run this cell whenever you like to know.

# %%
checks.progress()

# %% [markdown]
# ## Exercise 2 · your own picture (3 minutes)
#
# Put a photograph of yours into the folder of this notebook, and write its name into the cell:
# `my_photo = "holiday.jpg"`. What does the model say? Then try something that is none of its ten classes.
# There is nothing to check here: look, and wonder.

# %%
from pathlib import Path

import skimage

from vitlib.data import load_picture

my_photo = Path(skimage.__file__).parent / "data" / "chelsea.png"  # the cat again, as a file

picture = load_picture(my_photo, 32)
probabilities = checkpoint.predict(picture[None])[0]  # (10,)
plots.show(
    plots.class_bars(probabilities, checkpoint.classes),
    alt="The five likeliest classes of the picture as bars.",
)

# %% [markdown]
# *Figure: the five likeliest classes. Whatever you show it, the answer is one of its ten: it has no "none of
# these".*
#
# ## Recap
#
# - A Vision Transformer cuts a picture into patches and turns each into a token.
# - In every layer, every token can look at every other.
# - A class token collects what is needed for the answer.
# - Its attention weights can be drawn as a map over the picture. A map is a hint, not a reason.
# - Exercises check themselves, and nothing breaks when you skip one.
#
# Next: [01 Patch embedding](01_patch_embedding.ipynb)
#
# Reference: Dosovitskiy et al. 2020, *An Image is Worth 16x16 Words*,
# [arXiv:2010.11929](https://arxiv.org/abs/2010.11929). Photograph: Chelsea the cat, by Stéfan van der
# Walt, CC0.
