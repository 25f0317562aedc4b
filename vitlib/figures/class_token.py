"""The figure of lesson 02: pictures with the numbers of their patches."""

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from vitlib import plots


@plots.styled
def numbered_patches(pictures, patch_size):
    """Whole pictures side by side, with lines where they will be cut, and a number in each patch.

    `pictures` is a dict of title -> uint8 (C, H, W), all of one size.
    """
    fig = Figure(figsize=(plots.WIDTH, plots.WIDTH / len(pictures) + 0.3), layout="compressed")
    for ax, (title, picture) in zip(fig.subplots(1, len(pictures)), pictures.items()):
        image = plots.as_picture(picture)
        height, width, _ = image.shape
        ax.imshow(image, extent=(0, width, height, 0))
        ax.hlines(range(patch_size, height, patch_size), 0, width, color="white", linewidth=1)
        ax.vlines(range(patch_size, width, patch_size), 0, height, color="white", linewidth=1)
        corners = [(y, x) for y in range(0, height, patch_size) for x in range(0, width, patch_size)]
        for number, (y, x) in enumerate(corners):
            edge = [withStroke(linewidth=3, foreground="black")]
            ax.text(x + patch_size / 2, y + patch_size / 2, number, color="white", ha="center", va="center",
                    path_effects=edge)  # fmt: skip
        ax.set_title(title)
        ax.set_axis_off()
    return fig
