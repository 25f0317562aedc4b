"""The figure of lesson 02."""

import torch

from vitlib.figures.class_token import numbered_patches


def test_each_patch_has_its_number_in_reading_order():
    """Numbers that run down instead of across, or that take height for width: 2 rows of 3 patches."""
    picture = torch.zeros(3, 16, 24, dtype=torch.uint8)
    fig = numbered_patches({"one": picture, "two": picture}, 8)
    texts = {text.get_text(): text.get_position() for text in fig.axes[1].texts}
    assert texts == {"0": (4, 4), "1": (12, 4), "2": (20, 4), "3": (4, 12), "4": (12, 12), "5": (20, 12)}
