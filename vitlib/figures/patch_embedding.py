"""Figures of lesson 01: pictures cut into patches, and a patch beside its row of numbers."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from vitlib import plots


@plots.styled
def cut_pictures(panels, numbered=False):
    """Pictures side by side, each cut into patches with white gaps between them.

    `panels` is a dict of title -> patches, uint8 (rows, columns, C, P, P); a picture in one piece is one
    patch. `numbered` writes in each patch its number, where there are several.
    """
    tiles = {
        title: np.stack([[plots.as_picture(patch) for patch in row] for row in patches])
        for title, patches in panels.items()
    }
    gap = {title: max(1, picture.shape[3] // 10) for title, picture in tiles.items()}  # pixels
    mosaics = {title: plots.mosaic(picture, gap[title], fill=255) for title, picture in tiles.items()}
    sizes = np.array([mosaic.shape[:2] for mosaic in mosaics.values()])  # (height, width) in pixels
    between = 0.1  # inches, and half of it at the edges
    # A pixel is a whole number of screen pixels, so that all are alike, and the stored picture is small.
    inch = int(100 * min((plots.WIDTH - between * len(panels)) / sizes[:, 1].sum(), 4.4 / sizes.max())) / 100
    high = inch * sizes[:, 0].max()
    fig = Figure(figsize=(inch * sizes[:, 1].sum() + between * len(panels), high + between / 2 + 0.35))
    left = between / 2
    for (title, mosaic), (height, width) in zip(mosaics.items(), inch * sizes):
        bottom = between / 2 + high - height
        place = np.array([[left, bottom], [width, height]]) / fig.get_size_inches()
        left += width + between
        ax = fig.add_axes(place.ravel())
        ax.imshow(mosaic)
        ax.set_title(title)
        ax.set_axis_off()
        rows, columns, size = tiles[title].shape[:3]
        for number in range(rows * columns if numbered and rows * columns > 1 else 0):
            y, x = (place * (size + gap[title]) + size / 2 for place in divmod(number, columns))
            edge = [withStroke(linewidth=3, foreground="black")]
            ax.text(x, y, number, color="white", ha="center", va="center", path_effects=edge)
    return fig


@plots.styled
def patch_as_row(patch):
    """A patch as the eye sees it, as three tables of numbers, and as the one row that they make.

    The row is too long for one line, so each channel has a line. Shapes: patch uint8 (3, P, P), with P small
    enough for the numbers to be read.
    """
    patch = plots.as_numpy(patch)
    fig = Figure(figsize=(plots.WIDTH, 4.4))
    picture = fig.add_axes((0.01, 0.45, 0.23, 0.47))
    picture.imshow(plots.as_picture(patch))
    picture.set_title("the patch")
    for number, (name, channel) in enumerate(zip(("red", "green", "blue"), patch)):
        table = fig.add_axes((0.26 + 0.25 * number, 0.45, 0.23, 0.47))
        part = fig.add_axes((0.08, 0.24 - 0.11 * number, 0.91, 0.09))
        flat = channel.reshape(1, -1)
        for ax, values, aspect in ((table, channel, "equal"), (part, flat, "auto")):
            ax.imshow(values, cmap="gray", vmin=0, vmax=255, aspect=aspect)
            plots.write_numbers(ax, values, "{:d}")
        table.set_title(name)
        part.set_ylabel(name, rotation=0, ha="right", va="center")
    fig.text(0.5, 0.38, f"the same as one row of {patch.size} numbers: first red, then green, then blue",
             ha="center", va="center")  # fmt: skip
    for ax in fig.axes:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    return fig
