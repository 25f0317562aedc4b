"""The figures of lesson 08."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from vitlib import plots
from vitlib.figures import attention_maps as figures


def test_each_map_has_its_own_scale():
    """Fails where maps share a scale, where it begins at 0, and where rows and columns are exchanged."""
    picture = torch.full((3, 16, 24), 128, dtype=torch.uint8)
    maps = {"one": torch.tensor([[5, 5, 9.0], [5, 5, 5]]), "two": torch.tensor([[0, 1, 0.0], [0, 0, 0]])}
    fig = figures.own_scales(picture, maps, "weight")
    shown = [ax for ax in fig.axes if ax.images and ax.get_title() in maps]
    scales = [ax.get_xlim() for ax in fig.axes if ax.get_xlabel() == "weight"]
    assert scales == [(5, 9), (0, 1)]
    ends = [
        [tick.get_text() for tick in ax.get_xticklabels()] for ax in fig.axes if ax.get_xlabel() == "weight"
    ]
    assert ends == [["5.0", "9.0"], ["0.0", "1.0"]]
    for ax, (row, column) in zip(shown, [(0, 2), (0, 1)]):
        image = ax.images[0].get_array()
        assert image.shape == (16, 24, 3)
        bright = image[8 * row + 4, 8 * column + 4]
        assert bright[1] > bright[2]  # yellow
        assert image[12, 4, 2] > image[12, 4, 1]  # dark blue
    assert (shown[0].images[0].get_array()[12, 4] == shown[1].images[0].get_array()[12, 4]).all()


def test_a_flat_map_is_drawn():
    figures.own_scales(torch.zeros(1, 8, 8, dtype=torch.uint8), {"flat": torch.ones(2, 2)}, "weight")


def test_an_error_is_two_standard_errors():
    mean, error = figures.with_error({"mean": [1, 2], "se": [0.1, 0.2]})
    assert mean.tolist() == [1, 2] and error.tolist() == [0.2, 0.4]


def test_the_class_token_is_told_apart_and_a_large_norm_is_in_view():
    """Fails where the last token is taken for the class token, and where the planted one is cut off."""
    norms = np.ones((4, 5))
    norms[:, 0], norms[2:, 3] = 2, 50
    fig = figures.token_norms({"as it is": np.ones((4, 5)), "planted": norms})
    (class_token,) = (line for line in fig.axes[1].lines if line.get_color() == plots.COLORS["class_token"])
    assert class_token.get_ydata().tolist() == [2, 2, 2, 2]
    for ax in fig.axes:
        assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 50


def test_the_likeliest_class_after_each_layer_is_black():
    fig = figures.lens(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]), ["a", "b", "c"])
    assert [ax.get_title() for ax in fig.axes] == ["before", "layer 1"]
    for ax, best in zip(fig.axes, (0, 2)):
        assert [to_hex(bar.get_facecolor()) == "#000000" for bar in ax.patches] == [
            index == best for index in range(3)
        ]
        bottom, top = ax.get_ylim()
        assert bottom > top  # the first class on top


def test_each_method_stands_in_its_row():
    """Fails where trained and untrained, mean and error, or the measures are mixed up."""
    values = {
        "hits": {"x": {"trained": (0.9, 0.1), "untrained": (0.4, 0.2)},
                 "y": {"trained": (0.8, 0.1), "untrained": (0.3, 0.2)}},
        "share": {"x": {"trained": (0.7, 0.1), "untrained": (0.2, 0.2)},
                  "y": {"trained": (0.6, 0.1), "untrained": (0.1, 0.2)}},
    }  # fmt: skip
    fig = figures.pointing(values, {"hits": {"even": 0.15}, "share": {"even": 0.25}})
    assert [text.get_text() for text in fig.legends[0].texts] == ["even", "trained", "untrained"]
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["x", "y"]
    for ax, (trained, untrained), level in zip(
        fig.axes, [((0.9, 0.8), (0.4, 0.3)), ((0.7, 0.6), (0.2, 0.1))], (0.15, 0.25)
    ):
        first, second = ax.containers
        assert first[0].get_xdata() == pytest.approx(trained)
        assert second[0].get_xdata() == pytest.approx(untrained)
        assert ax.get_ylim() == (1.5, -0.5)
        spans = [np.ptp(bars.get_segments()[0][:, 0]) for _, _, (bars,) in ax.containers]
        assert spans == pytest.approx([0.2, 0.4])
        assert level in [line.get_xdata()[0] for line in ax.lines]
