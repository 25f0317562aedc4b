"""A model in one file: weights (safetensors) and what is needed to use them (JSON in the file's header)."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from vitlib.vit import VisionTransformer

SHIPPED = Path(__file__).parent / "checkpoints"


@dataclass
class Checkpoint:
    """A trained model and what belongs to it.

    `mean` and `std` normalise the pixels as in training; `notes` tell where the model comes from.
    """

    model: VisionTransformer
    classes: list
    mean: tuple
    std: tuple
    notes: dict

    @torch.no_grad()
    def predict(self, images):
        """Class probabilities. Shapes: uint8 images (B, C, H, W) -> (B, K); rows sum to 1."""
        logits = [self.model(self.prepare(part)) for part in images.split(250)]  # at once they take gigabytes
        return torch.cat(logits).float().softmax(dim=-1).cpu()

    @torch.no_grad()
    def attention(self, images):
        """What every token read. Shapes: uint8 images (B, C, H, W) -> depth tensors (B, num_heads, T, T)."""
        return self.model(self.prepare(images), return_attention=True)[1]

    def prepare(self, images):
        """Bytes as the model wants them: normalised, on its device, in its precision."""
        from vitlib.data import normalize

        weight = self.model.patch_embedding.projection.weight
        return normalize(images.to(weight.device), self.mean, self.std).to(weight.dtype)


def save(path, model, classes, mean, std, dtype=torch.float32, **notes):
    """Write a model to one file, whole or not at all.

    `dtype=torch.float16` halves the file. Further keyword arguments become the checkpoint's notes (JSON).
    Raises ValueError where classes, mean or std do not fit the model, or where a weight is too large for
    `dtype`; OSError where the disk refuses.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile wraps a model and renames its weights
    if len(classes) != model.config["num_classes"]:
        raise ValueError(
            f"{len(classes)} class names for a model with num_classes={model.config['num_classes']}: "
            "give one name for each class."
        )
    mean, std = [float(value) for value in mean], [float(value) for value in std]
    if not len(mean) == len(std) == model.config["in_channels"]:
        raise ValueError(
            f"mean={mean} and std={std} need one number for each of the model's "
            f"{model.config['in_channels']} channels."
        )
    tensors = {name: value.to(dtype) for name, value in model.state_dict().items()}
    if not all(value.isfinite().all() for value in tensors.values()):
        raise ValueError(f"Some weights are NaN or too large for {dtype}: this model is not worth keeping.")
    about = {"model": model.config, "classes": list(classes), "mean": mean, "std": std, "notes": notes}
    write_tensors(path, tensors, about)


def load(name_or_path):
    """Read a model that `save` wrote, or a shipped one by its name: "cifar10" or "shapes".

    Gives a Checkpoint whose model is on the CPU, in float32, in evaluation mode.
    Raises FileNotFoundError for a file that is not there, ValueError for one that `save` did not write.
    """
    path = SHIPPED / f"{name_or_path}.safetensors"
    if not path.exists():
        path = Path(name_or_path)
    tensors, about = read_tensors(path)
    if "classes" not in about:
        raise ValueError(
            f"{path} holds no vitlib model: its header does not describe one. A run keeps its model in "
            "model.safetensors; weights from another library are loaded with vitlib.pretrained.load_weights."
        )
    try:
        with torch.random.fork_rng(devices=[]):  # the random start is overwritten at once
            model = VisionTransformer(**about["model"])
        model.load_state_dict(tensors)
        mean, std = tuple(about["mean"]), tuple(about["std"])
        return Checkpoint(model.eval(), about["classes"], mean, std, about["notes"])
    except (TypeError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{path} does not fit this vitlib ({error}). Was it written by another version? "
            "Update vitlib, or train the model again."
        ) from error


def write_tensors(path, tensors, about):
    """Write named tensors and a JSON description to one safetensors file, whole or not at all."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_whole(path, to_bytes(tensors, {"vitlib": json.dumps(about)}))


def read_tensors(path):
    """Read what `write_tensors` wrote: (tensors, about); `about` is empty for another library's file.

    Raises FileNotFoundError, or ValueError for a file that is damaged or of another format.
    """
    if not Path(path).is_file():
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.safetensors")))
        raise FileNotFoundError(
            f"There is no checkpoint {path}. Give the path of a .safetensors file, or one of: {shipped}."
        )
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: what safetensors gives is the file itself, which Windows could then not replace.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
            return tensors, json.loads((file.metadata() or {}).get("vitlib", "{}"))
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}). If it was damaged, copy or download it "
            "again, or delete it to start afresh. Files of another kind are not read: .pt and .pth are "
            "pickles, which can run code."
        ) from error


def write_whole(path, content):
    """Write bytes under a temporary name, then rename: a reader never sees half a file."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Could not write {path} ({error.strerror}). An earlier version of the file is intact. "
            f"Make room for {len(content) / 1e6:.1f} MB or choose another folder, and run again.",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # it is there only if something went wrong
            temporary.unlink()
