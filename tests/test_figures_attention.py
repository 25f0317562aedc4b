"""Figures of lesson 04: the numbers and the discs of the dissected row."""

import pytest
import torch

from vitlib.figures import attention as figures


def test_discs_and_numbers_are_those_of_their_step():
    """Steps in another order, discs on the scale of another row, or a sum of something else."""
    steps = {"score": torch.tensor([0.0, 4.0]), "share": torch.tensor([0.9, 0.1])}
    ax = figures.row_dissected(steps, ["a", "b"]).axes[0]
    radii = [disc.radius for disc in ax.patches]
    assert radii == pytest.approx([0, 0.4, 0.4, 0.4 / 9**0.75])
    heights = [disc.center[1] for disc in ax.patches]
    assert heights[0] == heights[1] > heights[2] == heights[3]
    texts = [text.get_text() for text in ax.texts]
    assert texts[:3] == ["a", "b", "sum of the row"]
    assert texts[3:] == ["score", "0.000", "4.000", "4.000", "share", "0.900", "0.100", "1.000"]
