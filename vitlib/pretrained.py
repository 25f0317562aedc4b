"""Weights that others trained, put into our model: the same numbers under other names (lesson 10)."""

import math
import re

import numpy as np
import torch
from einops import EinopsError, rearrange

from vitlib.positional_encoding import RESIZE_MODES, resize_positional_embedding

# A layout is a table: our name on the left, theirs on the right. {i} stands for the number of a block,
# * for "weight" and "bias" (in JAX's names "kernel", or in a norm "scale", and "bias").
# Where theirs has [query|key|value], ours is those three tensors, one below the other.

TORCHVISION = {
    "class_token.token": "class_token",
    "positional_encoding.positional_embedding": "encoder.pos_embedding",
    "patch_embedding.projection.*": "conv_proj.*",
    "encoder.blocks.{i}.norm1.*": "encoder.layers.encoder_layer_{i}.ln_1.*",
    "encoder.blocks.{i}.attention.qkv.*": "encoder.layers.encoder_layer_{i}.self_attention.in_proj_*",
    "encoder.blocks.{i}.attention.output.*": "encoder.layers.encoder_layer_{i}.self_attention.out_proj.*",
    "encoder.blocks.{i}.norm2.*": "encoder.layers.encoder_layer_{i}.ln_2.*",
    "encoder.blocks.{i}.mlp.expand.*": "encoder.layers.encoder_layer_{i}.mlp.0.*",
    "encoder.blocks.{i}.mlp.contract.*": "encoder.layers.encoder_layer_{i}.mlp.3.*",
    "encoder.norm.*": "encoder.ln.*",
    "head.*": "heads.head.*",
}
TORCHVISION_FILES = {  # the files to download still have the MLP's first names
    **TORCHVISION,
    "encoder.blocks.{i}.mlp.expand.*": "encoder.layers.encoder_layer_{i}.mlp.linear_1.*",
    "encoder.blocks.{i}.mlp.contract.*": "encoder.layers.encoder_layer_{i}.mlp.linear_2.*",
}
TIMM = {  # DINO too
    "class_token.token": "cls_token",
    "positional_encoding.positional_embedding": "pos_embed",
    "patch_embedding.projection.*": "patch_embed.proj.*",
    "encoder.blocks.{i}.norm1.*": "blocks.{i}.norm1.*",
    "encoder.blocks.{i}.attention.qkv.*": "blocks.{i}.attn.qkv.*",
    "encoder.blocks.{i}.attention.output.*": "blocks.{i}.attn.proj.*",
    "encoder.blocks.{i}.norm2.*": "blocks.{i}.norm2.*",
    "encoder.blocks.{i}.mlp.expand.*": "blocks.{i}.mlp.fc1.*",
    "encoder.blocks.{i}.mlp.contract.*": "blocks.{i}.mlp.fc2.*",
    "encoder.norm.*": "norm.*",
    "head.*": "head.*",
}
HUGGINGFACE = {  # in memory, from transformers 5 on; with or without "vit." in front
    "class_token.token": "embeddings.cls_token",
    "positional_encoding.positional_embedding": "embeddings.position_embeddings",
    "patch_embedding.projection.*": "embeddings.patch_embeddings.projection.*",
    "encoder.blocks.{i}.norm1.*": "layers.{i}.layernorm_before.*",
    "encoder.blocks.{i}.attention.qkv.*": "layers.{i}.attention.[q|k|v]_proj.*",
    "encoder.blocks.{i}.attention.output.*": "layers.{i}.attention.o_proj.*",
    "encoder.blocks.{i}.norm2.*": "layers.{i}.layernorm_after.*",
    "encoder.blocks.{i}.mlp.expand.*": "layers.{i}.mlp.fc1.*",
    "encoder.blocks.{i}.mlp.contract.*": "layers.{i}.mlp.fc2.*",
    "encoder.norm.*": "layernorm.*",
    "head.*": "classifier.*",
}
HUGGINGFACE_FILES = {  # files on the hub, and older versions
    **HUGGINGFACE,
    "encoder.blocks.{i}.norm1.*": "encoder.layer.{i}.layernorm_before.*",
    "encoder.blocks.{i}.attention.qkv.*": "encoder.layer.{i}.attention.attention.[query|key|value].*",
    "encoder.blocks.{i}.attention.output.*": "encoder.layer.{i}.attention.output.dense.*",
    "encoder.blocks.{i}.norm2.*": "encoder.layer.{i}.layernorm_after.*",
    "encoder.blocks.{i}.mlp.expand.*": "encoder.layer.{i}.intermediate.dense.*",
    "encoder.blocks.{i}.mlp.contract.*": "encoder.layer.{i}.output.dense.*",
}
JEONSWORLD = {
    "class_token.token": "transformer.embeddings.cls_token",
    "positional_encoding.positional_embedding": "transformer.embeddings.position_embeddings",
    "patch_embedding.projection.*": "transformer.embeddings.patch_embeddings.*",
    "encoder.blocks.{i}.norm1.*": "transformer.encoder.layer.{i}.attention_norm.*",
    "encoder.blocks.{i}.attention.qkv.*": "transformer.encoder.layer.{i}.attn.[query|key|value].*",
    "encoder.blocks.{i}.attention.output.*": "transformer.encoder.layer.{i}.attn.out.*",
    "encoder.blocks.{i}.norm2.*": "transformer.encoder.layer.{i}.ffn_norm.*",
    "encoder.blocks.{i}.mlp.expand.*": "transformer.encoder.layer.{i}.ffn.fc1.*",
    "encoder.blocks.{i}.mlp.contract.*": "transformer.encoder.layer.{i}.ffn.fc2.*",
    "encoder.norm.*": "transformer.encoder.encoder_norm.*",
    "head.*": "head.*",
}
JAX_ATTENTION = "Transformer/encoderblock_{i}/MultiHeadDotProductAttention_1/"
JAX = {  # google's .npz files
    "class_token.token": "cls",
    "positional_encoding.positional_embedding": "Transformer/posembed_input/pos_embedding",
    "patch_embedding.projection.*": "embedding/*",
    "encoder.blocks.{i}.norm1.*": "Transformer/encoderblock_{i}/LayerNorm_0/*",
    "encoder.blocks.{i}.attention.qkv.*": JAX_ATTENTION + "[query|key|value]/*",
    "encoder.blocks.{i}.attention.output.*": JAX_ATTENTION + "out/*",
    "encoder.blocks.{i}.norm2.*": "Transformer/encoderblock_{i}/LayerNorm_2/*",
    "encoder.blocks.{i}.mlp.expand.*": "Transformer/encoderblock_{i}/MlpBlock_3/Dense_0/*",
    "encoder.blocks.{i}.mlp.contract.*": "Transformer/encoderblock_{i}/MlpBlock_3/Dense_1/*",
    "encoder.norm.*": "Transformer/encoder_norm/*",
    "head.*": "head/*",
}
LAYOUTS = {
    "torchvision": (TORCHVISION, TORCHVISION_FILES),
    "timm": (TIMM,),
    "huggingface": (HUGGINGFACE, HUGGINGFACE_FILES),
    "jeonsworld": (JEONSWORLD,),
    "jax": (JAX,),
}

# How flax lays its arrays out, and how PyTorch does. The first ending that fits counts.
JAX_AXES = {
    "embedding/kernel": "height width channels outputs -> outputs channels height width",
    "query/kernel": "inputs heads d -> (heads d) inputs",
    "key/kernel": "inputs heads d -> (heads d) inputs",
    "value/kernel": "inputs heads d -> (heads d) inputs",
    "query/bias": "heads d -> (heads d)",
    "key/bias": "heads d -> (heads d)",
    "value/bias": "heads d -> (heads d)",
    "out/kernel": "heads d outputs -> outputs (heads d)",
    "kernel": "inputs outputs -> outputs inputs",
}

POSITIONS = "positional_encoding.positional_embedding"
MISSING, UNKNOWN = "is missing", "has no place in the model"


def load_weights(model, state_dict, layout, new_head=False, resize_positions=None):
    """Copy the weights of a plain ViT into `model`: all of them or, where anything does not fit, none.

    `layout` says whose names they have: "torchvision", "timm" (DINO too), "huggingface" (old and new names),
    "jeonsworld" or "jax". `state_dict` maps names to tensors, for "jax" to arrays: np.load("ViT-B_16.npz").
    `new_head=True` keeps the model's own head, and says so, where the checkpoint's does not fit: another
    number of classes, none on one side, or a pre-logits layer before it. Hugging Face's pooler is never read.
    `resize_positions` names the mode of `resize_positional_embedding` to use where the checkpoint has another
    number of patches. Its grid is then taken to be square, since no shape tells its sides.
    The weights do not tell `norm_eps` and `gelu` (JAX: 1e-6 and "tanh"; torchvision, timm: 1e-6 and "erf";
    Hugging Face: 1e-12 and "erf") nor, but for JAX, `num_heads`: build the model with the right ones.
    Raises ValueError that lists every name that is missing, unknown or of another shape.
    Source: paper section 3.2; lesson 10.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"Unknown layout {layout!r}: choose one of {', '.join(map(repr, LAYOUTS))}.")
    if resize_positions not in (None, *RESIZE_MODES):
        modes = ", ".join(map(repr, RESIZE_MODES))
        raise ValueError(f"Unknown resize_positions {resize_positions!r}: choose one of {modes}.")

    # Hugging Face puts "vit." in front where a head follows, and a pooler at the end where none does.
    given = {name.removeprefix("vit."): value for name, value in state_dict.items()}
    if layout == "huggingface":
        given = {name: value for name, value in given.items() if not name.startswith("pooler.dense.")}
    parameters = dict(model.named_parameters())
    table = names_in(layout, given, model)
    note = leave_out_head(given, parameters, table) if new_head else None

    problems, loaded = {}, {}
    for ours, parameter in parameters.items():
        parts, theirs = [], table[ours]
        shape = (parameter.shape[0] // len(theirs), *parameter.shape[1:])
        for name in theirs:
            try:
                part = from_jax(name, given[name], model) if layout == "jax" else torch.as_tensor(given[name])
                if ours == POSITIONS:
                    part = fit_positions(part, model, resize_positions)
                if part.shape != shape:
                    raise ValueError(f"has shape {tuple(part.shape)}, the model needs {shape}")
                parts.append(part)
            except KeyError:
                problems[name] = MISSING
            except ValueError as error:
                problems[name] = str(error)
        loaded[ours] = parts
    known = {name for ours in parameters for name in table[ours]}
    problems |= {name: UNKNOWN for name in given if name not in known}
    if problems:
        lines = [f"These weights, read as layout={layout!r}, do not fit the model. Nothing was loaded."]
        lines += [f"  {name} {problem}" for name, problem in problems.items()]
        raise ValueError("\n".join([*lines, *advice(problems, table, given, model)]))
    with torch.no_grad():
        for ours, parts in loaded.items():
            parameters[ours].copy_(torch.cat(parts))
    if note:
        print(note)


def names_in(layout, given, model):
    """The table that fits best, written out: {our name: their names}."""
    tables = [written_out(table, len(model.encoder.blocks), layout) for table in LAYOUTS[layout]]
    return max(tables, key=lambda table: count_known(table, given))


def written_out(table, depth, layout):
    """A table with every block, and with "weight" and "bias", in the place of {i} and *."""
    names = {}
    for ours, theirs in table.items():
        before, *parts, after = re.split(r"[\[|\]]", theirs) if "[" in theirs else (theirs, "", "")
        for i in range(depth if "{i}" in ours else 1):
            for end in ("weight", "bias") if "*" in ours else ("",):
                their_end = end
                if layout == "jax" and end == "weight":
                    their_end = "scale" if "norm" in ours else "kernel"
                names[ours.format(i=i).replace("*", end)] = [
                    (before + part + after).format(i=i).replace("*", their_end) for part in parts
                ]
    return names


def count_known(table, given):
    return sum(name in given for theirs in table.values() for name in theirs)


def leave_out_head(given, parameters, table):
    """Take the head out of both where the checkpoint's does not fit; what to say about it, or None."""
    theirs, ours = given.get(table["head.bias"][0], ()), parameters.get("head.bias", ())
    pre_logits = [name for name in given if "pre_logits" in name]
    if len(theirs) == len(ours) and not pre_logits:
        return None
    for name in [*table["head.weight"], *table["head.bias"], *pre_logits]:
        given.pop(name, None)
    for name in ("head.weight", "head.bias"):
        parameters.pop(name, None)
    layer = ", after a pre-logits layer" if pre_logits else ""
    return f"The model keeps its own head ({len(ours)} classes), not the checkpoint's ({len(theirs)}{layer})."


def from_jax(name, array, model):
    """An array of flax as the tensor that PyTorch would have."""
    tensor = torch.tensor(np.asarray(array))
    axes = next((axes for ending, axes in JAX_AXES.items() if name.endswith(ending)), None)
    if axes is None:
        return tensor
    heads = {"heads": model.config["num_heads"]} if "heads" in axes else {}
    try:
        return rearrange(tensor, axes, **heads)
    except EinopsError:
        wanted = f"({axes.partition(' ->')[0]})" + "".join(f" with {n} {axis}" for axis, n in heads.items())
        raise ValueError(f"has shape {tuple(tensor.shape)}, the model needs {wanted}") from None


def fit_positions(positions, model, mode):
    """The checkpoint's positions on the model's grid."""
    if positions.ndim != 3 or positions.shape[2] != model.config["embed_dim"]:
        return positions  # the check of the shape says what is wrong
    num_patches = positions.shape[1] - model.num_prefix_tokens
    if num_patches == model.patch_embedding.num_patches:
        return positions
    rows, columns = model.grid
    side = math.isqrt(max(num_patches, 0))
    if side**2 != num_patches:
        raise ValueError(
            f"has {num_patches} patches, which make no square grid; the model has {rows}x{columns}. "
            "Resize it with resize_positional_embedding, which takes any grid"
        )
    if mode is None:
        raise ValueError(
            f"has a grid of {side}x{side} patches, the model {rows}x{columns}. "
            'To interpolate, say how: resize_positions="timm", for instance'
        )
    return resize_positional_embedding(positions, (side, side), model.grid, model.num_prefix_tokens, mode)


def advice(problems, table, given, model):
    """What to do about the usual problems, a line each."""
    known = {layout: count_known(names_in(layout, given, model), given) for layout in LAYOUTS}
    fitting = max(known, key=known.get)
    if known[fitting] > count_known(table, given):
        yield f"The names are those of layout={fitting!r}."
    if table["head.bias"][0] in problems or any("pre_logits" in name for name in problems):
        yield "new_head=True leaves out the head, and a pre-logits layer, which this model does not have."
    if table["class_token.token"][0] in problems:
        yield 'Only a model with pool="class" has a class token.'
    if problems.get(table[POSITIONS][0]) in (MISSING, UNKNOWN):
        yield 'Only a model with positional="learned" has positions to load.'
    if any(name.startswith("fc_norm.") for name in problems):
        yield "fc_norm follows the mean over the patches, this model's norm comes before it: another model."
