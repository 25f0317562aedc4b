"""vitlib: the finished pieces of a Vision Transformer, one module for each lesson."""

from vitlib.checkpoint import load
from vitlib.vit import VisionTransformer, vit_b_16, vit_b_32, vit_cifar, vit_h_14, vit_l_16, vit_l_32

__all__ = [
    "VisionTransformer",
    "explore",
    "load",
    "vit_b_16",
    "vit_b_32",
    "vit_cifar",
    "vit_h_14",
    "vit_l_16",
    "vit_l_32",
]


def __getattr__(name):  # widgets and figures take a second to import: only who explores waits for them
    if name == "explore":
        from vitlib.explorer import explore

        return explore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
