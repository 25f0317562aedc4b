"""diagrams: the frame is around the right part, and the parts are named in order, each with its shape.

That every word can be read is seen in test_plots.
"""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from vitlib import diagrams, plots


def words_and_places(fig):
    """The words in a diagram with the box (in pixels) that each takes."""
    canvas = FigureCanvasAgg(fig)
    texts = [text for text in fig.axes[0].texts if text.get_text()]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]


INSIDE = {
    "patch_embedding": {"01", "patch embedding", "(B, N, C·P·P)", "(B, N, D)"},
    "class_token": {"02", "class token", "(B, T, D)"},
    "positional_encoding": {"03", "positions", "+", "(T, D)"},
    "attention": {"04\nattention"},
    "encoder": {"05", "encoder block", "04\nattention", "MLP", "× L", "(B, T, D)"},
}


@pytest.mark.parametrize("here", INSIDE)
def test_the_frame_is_around_its_part(here):
    """Catches the frame of another part, and a frame that cuts through a word."""
    fig = diagrams.vit_map(here)
    found = words_and_places(fig)
    (frame,) = [patch.get_window_extent() for patch in fig.axes[0].patches if patch.get_linewidth() == 3]
    for words, box in found:
        inside = frame.containsx(box.x0) and frame.containsx(box.x1) and frame.containsy(box.y0)
        assert inside or not frame.overlaps(box), words
        if words == "you are here":
            assert frame.containsx((box.x0 + box.x1) / 2)
    assert {words for words, box in found if frame.overlaps(box)} == INSIDE[here]


def test_the_last_lesson_frames_all_that_is_built():
    fig = diagrams.vit_map("vit")
    (frame,) = [patch.get_window_extent() for patch in fig.axes[0].patches if patch.get_linewidth() == 3]
    outside = {words for words, box in words_and_places(fig) if not frame.overlaps(box)}
    assert {"image", "(B, C, H, W)", "you are here"} < outside and len(outside) == 4  # and the legend


def test_each_lesson_has_a_map_of_its_own():
    drawings = {plots.as_png(diagrams.vit_map(here)) for here in (None, *diagrams.PARTS)}
    assert len(drawings) == 7
    assert "you are here" not in plots.describe(diagrams.vit_map())
    with pytest.raises(ValueError, match="no part 'patches' on the map. Its parts are patch_embedding"):
        diagrams.vit_map("patches")


def test_the_map_names_its_parts_in_order_and_has_one_token_for_each_patch_and_one_more():
    """Catches a part that is missing or elsewhere, and T that is not N + 1."""
    fig = diagrams.vit_map()
    text = plots.describe(fig)
    places = [text.index(word) for word in ("image", "patch emb", "class token", "positions", "enc", "head")]
    assert places == sorted(places)
    (ax,) = fig.axes
    counts = {
        key: sum(patch.get_facecolor()[:3] == to_rgb(plots.COLORS[key]) for patch in ax.patches)
        for key in ("patch", "class_token", "position")
    }
    assert counts == {"patch": 9 + 9, "class_token": 1 + 1, "position": 9 + 1}


def test_attention_is_drawn_with_its_shapes():
    """Catches a shape that does not belong, and another token's row framed on the way."""
    fig = diagrams.attention_steps()
    text = plots.describe(fig)
    assert all(name in text for name in ("tokens", "query", "key", "value", "scores", "weights", "mixed"))
    assert text.count("(T, D)") == 1 and text.count("(T, d)") == 4 and text.count("(T, T)") == 2
    framed = [patch for patch in fig.axes[0].patches if patch.get_linewidth() == 2.5]
    assert len(framed) == 5  # tokens, query, scores, weights, mixed: the class token's row
    orange = [patch.get_y() for patch in fig.axes[0].patches
              if patch.get_facecolor()[:3] == to_rgb(plots.COLORS["class_token"])]  # fmt: skip
    assert len(orange) == 6 and set(orange) == {framed[0].get_y()}


def test_in_the_block_only_post_norm_has_norms_on_the_stream():
    fig = diagrams.block_wiring()
    heights = [round(text.get_position()[1], 2) for text in fig.axes[0].texts if text.get_text() == "norm"]
    streams = [text.get_position()[1] for text in fig.axes[0].texts if text.get_text() == "+"]
    above, below = max(streams), min(streams)
    assert streams == [above, above, below, below]
    assert heights[2:] == [below, below] and all(height > above for height in heights[:2])
    assert plots.describe(fig).count("(B, T, D)") == 4
