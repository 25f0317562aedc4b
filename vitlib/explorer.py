"""An attention explorer: where does this patch look, in every layer and head? (lesson 08)

The numbers are computed here, once. The page side is explorer.js with explorer.html and explorer.css, which
anywidget brings into JupyterLab, VS Code and Colab, and tools/build_html.py into pages without a kernel.
"""

import base64
import io
from pathlib import Path

import anywidget
import matplotlib
import numpy as np
import torch
import traitlets
from PIL import Image

from vitlib import plots
from vitlib.checkpoint import Checkpoint

HERE = Path(__file__).parent


def explore(checkpoint, images, titles=None, pictures=None):
    """An attention explorer for a few pictures: the last expression of a cell shows it.

    It lives where a notebook runs; a stored notebook keeps a picture of it and its numbers as text.
    `titles` are words for each picture, such as its true class. `pictures` are larger views of the same
    images, to be looked at; the model sees `images`.
    Shapes: images uint8 (B, C, H, W) as the model takes them; pictures uint8 (B, C, any height, any width).
    Raises ValueError where images are not uint8, or titles or pictures are not one for each.
    Source: lesson 08.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise ValueError(
            "explore needs a checkpoint, which knows its classes and how to prepare pictures, got "
            f"{type(checkpoint).__name__}. Use vitlib.load(...), or wrap your model: "
            "vitlib.checkpoint.Checkpoint(model, classes, mean, std, notes={})."
        )
    if not torch.is_tensor(images):
        kind = type(images).__name__
        raise ValueError(
            f"Expected a tensor of images (B, C, H, W), got {kind}. torch.stack makes one of many."
        )
    if images.dtype != torch.uint8 or images.ndim != 4 or not len(images):
        raise ValueError(
            f"Expected uint8 images (B, C, H, W), got {images.dtype} {tuple(images.shape)}. Pass them as "
            "they were before normalize(), and a single one as image[None]."
        )
    pictures = images if pictures is None else pictures
    if titles is None:
        titles = [f"picture {number}" for number in range(1, len(images) + 1)]
    titles = [str(title) for title in titles]
    if not len(images) == len(pictures) == len(titles):
        raise ValueError(
            f"{len(images)} images need as many titles and pictures, got {len(titles)} and {len(pictures)}."
        )
    attention = torch.stack(checkpoint.attention(images), dim=1).float().cpu().numpy()
    probabilities, indices = checkpoint.predict(images).topk(min(3, len(checkpoint.classes)))
    predictions = [
        [(checkpoint.classes[index], probability) for index, probability in zip(*best)]
        for best in zip(indices.tolist(), probabilities.tolist())
    ]
    model = checkpoint.model
    return Explorer(attention, model.grid, model.num_prefix_tokens, list(pictures), titles, predictions)


class Explorer(anywidget.AnyWidget):
    """The widget behind `explore`.

    Shapes: attention (B, depth, num_heads, T, T), rows sum to 1; pictures, B of uint8 (C, H, W); predictions,
    for each picture a list of (class, probability).
    """

    _esm = (HERE / "explorer.js").read_text(encoding="utf-8")
    _css = (HERE / "explorer.css").read_text(encoding="utf-8")
    about = traitlets.Dict().tag(sync=True)
    weights = traitlets.Bytes().tag(sync=True)
    palette = traitlets.Bytes().tag(sync=True)

    def __init__(self, attention, grid, num_prefix_tokens, pictures, titles, predictions):
        self.attention, self.grid, self.num_prefix_tokens = attention, grid, num_prefix_tokens
        self.picture, self.predictions = pictures[0], predictions
        depth, heads = attention.shape[1:3]
        height, width, _ = plots.as_picture(pictures[0]).shape
        about = {
            "markup": (HERE / "explorer.html").read_text(encoding="utf-8"),
            "grid": grid,
            "size": (height, width),
            "layers": depth,
            "heads": heads,
            "prefix": num_prefix_tokens,
            "top": float(np.quantile(attention, 0.995)),
            "colors": {name: plots.COLORS[name] for name in ("class_token", "query", "key")},
            "pictures": [
                {"source": as_data_url(picture), "title": title, "prediction": prediction}
                for picture, title, prediction in zip(pictures, titles, predictions)
            ],
        }
        colors = matplotlib.colormaps["viridis"](np.arange(256), bytes=True)  # (256, 4)
        super().__init__(about=about, weights=encode(attention).tobytes(), palette=colors.tobytes())

    def __repr__(self):
        depth, heads, tokens = self.attention.shape[1:4]
        rows, columns = self.grid
        size = f"{depth} layers, {heads} heads, {tokens} tokens, {rows}x{columns} of them patches"
        lines = [f"Attention explorer: {size}"]
        for number, (attention, prediction) in enumerate(zip(self.attention, self.predictions), start=1):
            (label, probability), row = prediction[0], attention[-1, 0, 0]
            lines.append(
                f"  picture {number}: {label} {probability:.2f}; layer {depth}, head 1: {self.token(0)} "
                f"reads {self.token(row.argmax())}: {row.max():.3f} = {row.max() * tokens:.1f} x uniform"
            )
        return "\n".join(lines)

    def token(self, index):
        """A token in words. Patches are (row, column), counted from 1."""
        if index < self.num_prefix_tokens:
            return "class token"
        row, column = divmod(int(index) - self.num_prefix_tokens, self.grid[1])
        return f"patch ({row + 1},{column + 1})"

    def atlas(self):
        """What stands for the explorer where no script runs: all heads for its first token, as a Figure."""
        maps = self.attention[0, :, :, 0, self.num_prefix_tokens :]  # (depth, num_heads, N)
        maps = maps.reshape(*maps.shape[:2], *self.grid)
        return plots.attention_grid(maps, self.picture, self.num_prefix_tokens, self.about["top"])

    def _repr_mimebundle_(self, **options):
        """The living widget, and for a stored notebook a picture and its numbers."""
        data, metadata = super()._repr_mimebundle_(**options)
        figure = self.atlas()
        alt = (
            f"Picture 1 and what its {self.token(0)} reads in every layer (down) and head (across), on one "
            "colour scale. Where the notebook runs, an explorer for all tokens stands here."
        )
        data |= {
            "text/plain": f"{self!r}\n{plots.describe(figure)}",
            "image/png": base64.b64encode(plots.as_png(figure)).decode(),
        }
        return data, metadata | {"image/png": {"alt": alt}}


def encode(attention):
    """Attention as one byte a weight: 255 √(a / largest of its row), rounded.

    The square root keeps small weights apart. Each row is scaled by its own largest weight, and no factor is
    sent: rows sum to 1, so squares that are scaled to sum 1 are the row again.
    Shapes: (..., T, T) -> uint8 (..., T, T).
    """
    shares = attention / attention.max(axis=-1, keepdims=True)
    return (255 * np.sqrt(shares)).round().astype(np.uint8)


def as_data_url(picture):
    """A uint8 picture (C, H, W) in a URL: to the byte if it is tiny, as JPEG if not."""
    image = Image.fromarray(np.ascontiguousarray(plots.as_picture(picture)))
    form = "png" if max(image.size) <= 64 else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, form, quality=90)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"
