"""The figure of lesson 06: the shares that its bars have."""

import pytest

from vitlib.figures import vit as figures


def test_bars_are_shares_of_their_own_panel():
    """Shares of the wrong whole, parts in another order, or one panel's numbers in both."""
    fig = figures.cost_by_part({"parameters": {"a": 1, "b": 3, "c": 0}, "work": {"a": 6, "b": 3, "c": 1}})
    left, right = ([bar.get_width() for bar in ax.containers[0]] for ax in fig.axes)
    assert left == pytest.approx([0.25, 0.75, 0]) and right == pytest.approx([0.6, 0.3, 0.1])
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["a", "b", "c"]
    assert fig.axes[0].yaxis_inverted() and fig.axes[1].yaxis_inverted()  # the first part on top
