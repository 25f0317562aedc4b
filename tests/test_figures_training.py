"""The figure of lesson 07."""

import torch

from vitlib.figures.training import patch_grids


def test_lines_lie_between_the_patches():
    """Lines through the middle of pixels, height taken for width, or patches counted wrongly: 2 rows of 3."""
    pictures = [torch.zeros(3, 8, 12, dtype=torch.uint8), torch.zeros(3, 4, 8, dtype=torch.uint8)]
    fig = patch_grids(pictures, 4)
    assert [ax.get_title() for ax in fig.axes] == ["8x12 pixels, 6 patches", "4x8 pixels, 2 patches"]
    down, across = fig.axes[0].collections
    assert [segment.tolist() for segment in down.get_segments()] == [
        [[3.5, -0.5], [3.5, 7.5]],
        [[7.5, -0.5], [7.5, 7.5]],
    ]
    assert [segment.tolist() for segment in across.get_segments()] == [[[-0.5, 3.5], [11.5, 3.5]]]
