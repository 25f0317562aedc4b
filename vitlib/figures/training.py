"""The figure of lesson 07: a picture that grows during training."""

import numpy as np
from matplotlib.figure import Figure

from vitlib import plots


@plots.styled
def patch_grids(pictures, patch_size):
    """One picture at several sizes, all drawn equally large, with lines between its patches.

    Shapes: pictures, a list of uint8 (C, H, W) whose sides `patch_size` divides.
    """
    fig = Figure(figsize=(plots.WIDTH, 3.3), layout="constrained")
    for ax, picture in zip(fig.subplots(1, len(pictures)), pictures):
        picture = plots.as_picture(picture)
        height, width, _ = picture.shape
        ax.imshow(picture)
        line = {"color": "white", "linewidth": 1.5}
        ax.vlines(np.arange(patch_size, width, patch_size) - 0.5, -0.5, height - 0.5, **line)
        ax.hlines(np.arange(patch_size, height, patch_size) - 0.5, -0.5, width - 0.5, **line)
        patches = (height // patch_size) * (width // patch_size)
        ax.set_title(f"{height}x{width} pixels, {patches} patches")
        ax.set_axis_off()
    return fig
