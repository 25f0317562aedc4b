"""Figures of lesson 03: what is compared shares one scale, and each tile is that of the patch it frames."""

import numpy as np
import pytest
import torch

from vitlib.figures import positional_encoding as figures


def test_strips_share_a_scale_that_a_few_large_numbers_do_not_stretch():
    numbers = torch.linspace(-1, 1, 200)
    numbers[0] = 50
    fig = figures.strips({"patch": (numbers, "patch"), "position": (numbers / 10, "position")}, ["", "+"])
    scales = {ax.images[0].get_clim() for ax in fig.axes if ax.images and ax.get_label() != "<colorbar>"}
    ((low, high),) = scales
    assert low == -high and 0.5 < high < 1
    assert [ax.get_yticklabels()[0].get_text() for ax in fig.axes[:2]] == ["patch  ", "position  +"]


def test_a_tile_is_that_of_its_patch():
    """Rows and columns swapped, or the tile of another patch."""
    similarity = torch.rand(2, 3, 2, 3)
    fig = figures.similarity_tiles({"a": (similarity, (1, 2)), "b": (similarity, (0, 1))})
    for ax, (row, column) in zip(fig.axes, [(1, 2), (0, 1)]):
        np.testing.assert_array_equal(ax.images[0].get_array(), similarity[row, column])
        assert ax.patches[0].get_xy() == (column - 0.5, row - 0.5)
        assert ax.images[0].get_clim() == (-1, 1)


def test_a_table_has_a_row_for_each_position():
    fig = figures.encoding_table(torch.eye(3, 5))
    assert fig.axes[0].images[0].get_array().shape == (3, 5)
    assert fig.axes[0].get_ylabel() == "position"


@pytest.mark.parametrize("number", [1, 4])
def test_tiles_fit_the_page(number):
    fig = figures.similarity_tiles({str(i): (torch.rand(2, 2, 2, 2), (0, 0)) for i in range(number)})
    assert fig.get_figwidth() <= 9
