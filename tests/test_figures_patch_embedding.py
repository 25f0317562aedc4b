"""Figures of lesson 01: the row of a patch."""

import numpy as np

from vitlib.figures import patch_embedding


def test_a_patch_is_the_row_that_its_channels_make():
    """Numbers of another channel beside a name, or columns before rows; turned numbers that nobody reads."""
    patch = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    fig = patch_embedding.patch_as_row(patch)
    for name, channel in zip(("red", "green", "blue"), patch):
        (table,) = [ax for ax in fig.axes if ax.get_title() == name]
        (part,) = [ax for ax in fig.axes if ax.get_ylabel() == name]
        np.testing.assert_array_equal(table.images[0].get_array(), channel)
        assert [text.get_text() for text in part.texts] == [str(number) for number in channel.ravel()]
        assert not any(text.get_rotation() for text in part.texts)
