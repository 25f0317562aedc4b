"""Other implementations' weights in our model: the same logits, the same attention; and what is refused."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import erf
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionViT
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from vitlib import VisionTransformer
from vitlib.positional_encoding import resize_positional_embedding
from vitlib.pretrained import LAYOUTS, load_weights

# --- the references, each filled with noise: fresh heads are 0 and give every image the same logits ---


def fill_with_noise(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


def random_images(batch, channels, size):
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(1))


def torchvision_vit(**options):
    defaults = {
        "image_size": 8,
        "patch_size": 4,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 24,
        "mlp_dim": 48,
    }
    return fill_with_noise(TorchvisionViT(**{**defaults, "num_classes": 5, **options}))


def timm_vit(**options):
    defaults = {
        "img_size": (8, 12),
        "patch_size": 4,
        "embed_dim": 24,
        "depth": 2,
        "num_heads": 3,
        "num_classes": 5,
    }
    return fill_with_noise(TimmViT(**{**defaults, **options}))


def huggingface_config(**options):
    defaults = {"image_size": (8, 12), "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 2,
                "num_labels": 5, "num_attention_heads": 3, "intermediate_size": 48, "layer_norm_eps": 1e-6,
                "attn_implementation": "eager"}  # fmt: skip
    return ViTConfig(**{**defaults, **options})


def ours(**options):
    defaults = {"image_size": (8, 12), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}
    torch.manual_seed(7)
    return VisionTransformer(**{**defaults, "num_classes": 5, "mlp_ratio": 2, **options}).eval()


def assert_same(model, images, logits, attention):
    """Logits within 1e-5 of their size, attention equal layer by layer, asked for or not."""
    got, maps = model(images, return_attention=True)
    size = logits.abs().max()
    assert (got - logits).abs().max() <= 1e-5 * size
    assert (model(images) - logits).abs().max() <= 1e-5 * size
    if len(images) > 1:
        assert (logits[0] - logits[1]).abs().max() > 1e-3 * size  # or the comparison could not fail
    assert len(maps) == len(attention)
    for layer, expected in zip(maps, attention, strict=True):
        assert layer.shape == expected.shape
        assert (layer - expected).abs().max() <= 1e-5
        assert expected.std(dim=-1).mean() > 1e-3  # far from uniform


# --- torchvision ---


def torchvision_attention(model, images):
    """torchvision asks its attention for no weights: hooks ask for them."""
    maps = []

    def ask(module, args, kwargs):
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    for block in model.encoder.layers:
        block.self_attention.register_forward_pre_hook(ask, with_kwargs=True)
        block.self_attention.register_forward_hook(lambda module, args, output: maps.append(output[1]))
    return model(images), maps


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("theirs, options", [
    ({}, {}),
    ({"image_size": 21, "patch_size": 7, "mlp_dim": 40, "num_classes": 3},
     {"image_size": 21, "patch_size": 7, "mlp_ratio": 40 / 24, "num_classes": 3}),
    ({"hidden_dim": 48, "mlp_dim": 96, "num_heads": 2, "num_layers": 3},  # heads of 24
     {"embed_dim": 48, "num_heads": 2, "depth": 3}),
])  # fmt: skip
def test_torchvision(theirs, options, batch):
    reference, model = torchvision_vit(**theirs), ours(**{"image_size": 8, **options})
    load_weights(model, reference.state_dict(), "torchvision")
    images = random_images(batch, 3, model.patch_embedding.image_size)
    assert_same(model, images, *torchvision_attention(reference, images))


def test_torchvisions_files_have_older_names():
    """Files to download call the MLP's layers linear_1 and linear_2; torchvision renames them."""
    state = torchvision_vit().state_dict()
    model, again = ours(image_size=8), ours(image_size=8)
    load_weights(model, state, "torchvision")
    old = {
        re.sub(r"mlp\.([03])\.", lambda m: f"mlp.linear_{1 if m[1] == '0' else 2}.", k): v
        for k, v in state.items()
    }
    assert old.keys() != state.keys()
    load_weights(again, old, "torchvision")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


# --- timm ---


def timm_attention(model, images):
    """timm's own softmax, seen where it goes through the dropout of the weights."""
    maps = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: maps.append(args[0]))
    return model(images), maps


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("theirs, options", [
    ({"mlp_ratio": 2}, {}),
    ({"in_chans": 1, "img_size": 28, "patch_size": 7, "mlp_ratio": 2.5, "act_layer": "gelu_tanh"},
     {"in_channels": 1, "image_size": 28, "patch_size": 7, "mlp_ratio": 2.5, "gelu": "tanh"}),
    ({"mlp_ratio": 2, "img_size": (32, 64), "patch_size": (16, 8), "embed_dim": 48, "num_heads": 2,
      "depth": 3},
     {"image_size": (32, 64), "patch_size": (16, 8), "embed_dim": 48, "num_heads": 2, "depth": 3}),
    ({"mlp_ratio": 2, "qkv_bias": False, "norm_layer": partial(nn.LayerNorm, eps=1e-2)},
     {"qkv_bias": False, "norm_eps": 1e-2}),
    ({"mlp_ratio": 2, "class_token": False, "global_pool": "avg", "fc_norm": False}, {"pool": "mean"}),
    ({"mlp_ratio": 2, "pos_embed": "none"}, {"positional": "none"}),
])  # fmt: skip
def test_timm(theirs, options, batch):
    reference, model = timm_vit(**theirs), ours(**options)
    load_weights(model, reference.state_dict(), "timm")
    images = random_images(batch, model.config["in_channels"], model.patch_embedding.image_size)
    assert_same(model, images, *timm_attention(reference, images))
    features = reference.forward_features(images)
    assert (model.forward_features(images) - features).abs().max() <= 1e-5 * features.abs().max()


# --- Hugging Face ---


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("theirs, options", [
    ({}, {}),
    ({"num_channels": 1, "image_size": (6, 9), "patch_size": 3, "hidden_act": "gelu_pytorch_tanh"},
     {"in_channels": 1, "image_size": (6, 9), "patch_size": 3, "gelu": "tanh"}),
    ({"qkv_bias": False, "layer_norm_eps": 1e-12, "hidden_size": 48, "num_attention_heads": 2},
     {"qkv_bias": False, "norm_eps": 1e-12, "embed_dim": 48, "num_heads": 2, "mlp_ratio": 1}),
])  # fmt: skip
def test_huggingface(theirs, options, batch, tmp_path):
    """Both namings: as transformers has them in memory, and as it writes them to files."""
    reference = fill_with_noise(ViTForImageClassification(huggingface_config(**theirs)))
    model = ours(**options)
    images = random_images(batch, model.config["in_channels"], model.patch_embedding.image_size)
    expected = reference(images, output_attentions=True)
    load_weights(model, reference.state_dict(), "huggingface")
    assert_same(model, images, expected.logits, expected.attentions)

    reference.save_pretrained(tmp_path)
    old_names = load_file(tmp_path / "model.safetensors")
    assert "vit.encoder.layer.1.attention.attention.query.weight" in old_names
    again = ours(**options)
    load_weights(again, old_names, "huggingface")
    assert_same(again, images, expected.logits, expected.attentions)


def test_huggingface_without_a_head(tmp_path):
    """ViTModel's names have no "vit." in front, and a pooler behind that its features do not pass through."""
    reference = fill_with_noise(ViTModel(huggingface_config()))
    reference.save_pretrained(tmp_path)
    images = random_images(2, 3, (8, 12))
    expected = reference(images).last_hidden_state
    for state in (reference.state_dict(), load_file(tmp_path / "model.safetensors")):
        assert "pooler.dense.weight" in state
        model = ours(num_classes=0)
        load_weights(model, state, "huggingface")
        assert (model.forward_features(images) - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert (model(images) - expected[:, 0]).abs().max() <= 1e-5 * expected.abs().max()


# --- google's .npz and jeonsworld's names, against a forward pass in NumPy ---


def flax_arrays(depth=2, width=24, heads=3, hidden=40, channels=3, patch=4, tokens=7, classes=5, seed=0):
    """Noise under the names and in the shapes of google's .npz files."""
    shapes = {
        "cls": (1, 1, width),
        "Transformer/posembed_input/pos_embedding": (1, tokens, width),
        "embedding/kernel": (patch, patch, channels, width),
        "embedding/bias": (width,),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
        "head/kernel": (width, classes),
        "head/bias": (classes,),
    }
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}/"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}{norm}/scale": (width,), f"{block}{norm}/bias": (width,)}
        attention = block + "MultiHeadDotProductAttention_1/"
        for part in ("query", "key", "value"):
            shapes[f"{attention}{part}/kernel"] = (width, heads, width // heads)
            shapes[f"{attention}{part}/bias"] = (heads, width // heads)
        shapes |= {f"{attention}out/kernel": (heads, width // heads, width), f"{attention}out/bias": (width,)}
        mlp = block + "MlpBlock_3/"
        shapes |= {f"{mlp}Dense_0/kernel": (width, hidden), f"{mlp}Dense_0/bias": (hidden,)}
        shapes |= {f"{mlp}Dense_1/kernel": (hidden, width), f"{mlp}Dense_1/bias": (width,)}
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def numpy_forward(arrays, images, gelu, depth=2):
    """A ViT with google's arrays as they are, pictures (B, H, W, C): logits and attention."""

    def layer_norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * arrays[name + "/scale"] + arrays[name + "/bias"]

    batch, height, width, _ = images.shape
    patch, width_of_tokens = arrays["embedding/kernel"].shape[0], arrays["cls"].shape[-1]
    tokens = np.zeros((batch, (height // patch) * (width // patch), width_of_tokens))
    for row in range(height // patch):
        for column in range(width // patch):
            square = images[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            token = np.einsum("bhwc,hwcd->bd", square, arrays["embedding/kernel"]) + arrays["embedding/bias"]
            tokens[:, row * (width // patch) + column] = token
    x = np.concatenate([np.repeat(arrays["cls"], batch, axis=0), tokens], axis=1)
    x = x + arrays["Transformer/posembed_input/pos_embedding"]
    attention = []
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}/"
        heads = block + "MultiHeadDotProductAttention_1/"
        y = layer_norm(x, block + "LayerNorm_0")
        query, key, value = (
            np.einsum("btd,dhe->bhte", y, arrays[f"{heads}{part}/kernel"])
            + arrays[f"{heads}{part}/bias"][None, :, None]
            for part in ("query", "key", "value")
        )
        weights = np.exp(np.einsum("bhqe,bhke->bhqk", query, key) / math.sqrt(query.shape[-1]))
        weights = weights / weights.sum(-1, keepdims=True)
        attention.append(weights)
        mixed = np.einsum("bhqk,bhke->bqhe", weights, value)
        x = x + np.einsum("bqhe,hed->bqd", mixed, arrays[heads + "out/kernel"]) + arrays[heads + "out/bias"]
        mlp = block + "MlpBlock_3/"
        y = layer_norm(x, block + "LayerNorm_2")
        y = gelu(y @ arrays[mlp + "Dense_0/kernel"] + arrays[mlp + "Dense_0/bias"])
        x = x + y @ arrays[mlp + "Dense_1/kernel"] + arrays[mlp + "Dense_1/bias"]
    x = layer_norm(x, "Transformer/encoder_norm")
    return x[:, 0] @ arrays["head/kernel"] + arrays["head/bias"], attention


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def to_jeonsworld(arrays):
    """The same weights under jeonsworld's names, in PyTorch's shapes."""
    renames = {
        "cls": "transformer.embeddings.cls_token",
        "Transformer/posembed_input/pos_embedding": "transformer.embeddings.position_embeddings",
        "embedding/": "transformer.embeddings.patch_embeddings.",
        "Transformer/encoderblock_": "transformer.encoder.layer.",
        "Transformer/encoder_norm/": "transformer.encoder.encoder_norm.",
        "/LayerNorm_0/": ".attention_norm.",
        "/LayerNorm_2/": ".ffn_norm.",
        "/MultiHeadDotProductAttention_1/": ".attn.",
        "/MlpBlock_3/Dense_0/": ".ffn.fc1.",
        "/MlpBlock_3/Dense_1/": ".ffn.fc2.",
        "/": ".",
        "kernel": "weight",
        "scale": "weight",
    }
    width, state = arrays["cls"].shape[-1], {}
    for name, array in arrays.items():
        if name == "embedding/kernel":
            array = array.transpose(3, 2, 0, 1)
        elif "MultiHead" in name:
            array = array.reshape(-1) if name.endswith("bias") else array.reshape(width, width).T
        elif name.endswith("kernel"):
            array = array.T
        for old, new in renames.items():
            name = name.replace(old, new)
        state[name] = torch.tensor(array)
    return state


@pytest.mark.parametrize("layout, gelu, form", [("jax", gelu_tanh, "tanh"), ("jeonsworld", gelu_erf, "erf")])
@pytest.mark.parametrize("batch, sizes", [
    (7, {}),
    (1, {"channels": 1, "tokens": 17, "heads": 2, "width": 48}),  # gray, 4 x 4 patches, heads of 24
])  # fmt: skip
def test_google_and_jeonsworld(layout, gelu, form, batch, sizes, tmp_path):
    """Dense kernels that are not transposed, heads that are cut along the wrong axis, HWIO taken for OIHW."""
    arrays = flax_arrays(**sizes)
    np.savez(tmp_path / "vit.npz", **arrays)
    state = np.load(tmp_path / "vit.npz") if layout == "jax" else to_jeonsworld(arrays)
    width, channels = sizes.get("width", 24), sizes.get("channels", 3)
    size = (16, 16) if sizes else (8, 12)
    model = ours(image_size=size, in_channels=channels, embed_dim=width, num_heads=sizes.get("heads", 3),
                 mlp_ratio=40 / width, gelu=form)  # fmt: skip
    load_weights(model, state, layout)
    images = random_images(batch, channels, size)
    logits, attention = numpy_forward(arrays, images.permute(0, 2, 3, 1).double().numpy(), gelu)
    assert_same(model, images, torch.tensor(logits), [torch.tensor(weights) for weights in attention])


# --- what does not fit ---


def states():
    """A whole state dict in each layout, for `ours(image_size=8)`."""
    arrays = flax_arrays(hidden=48, tokens=5)
    huggingface = fill_with_noise(ViTForImageClassification(huggingface_config(image_size=8)))
    return {
        "torchvision": torchvision_vit().state_dict(),
        "timm": timm_vit(img_size=8, mlp_ratio=2).state_dict(),
        "huggingface": huggingface.state_dict(),
        "jeonsworld": to_jeonsworld(arrays),
        "jax": arrays,
    }


@pytest.fixture(scope="module")
def whole():
    return states()


def refused(model, state, layout, **options):
    """The error's message, after a check that the model is as it was."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError) as error:
        load_weights(model, state, layout, **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    return str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_missing_unknown_and_misshapen_name_is_listed_at_once(whole, layout):
    """An error that names the first problem only, or a model that is half loaded after it."""
    state = dict(whole[layout])
    load_weights(ours(image_size=8), state, layout)
    names = sorted(state)
    missing, misshapen = names[:2] + names[-3:-1], names[5:7]
    for name in missing:
        del state[name]
    for name in misshapen:
        state[name] = state[name][:-1] if layout == "jax" else state[name][:-1].clone()
    state["blocks.7.extra"] = torch.zeros(3)
    state["and.more"] = {"nested": 1}
    message = refused(ours(image_size=8), state, layout)
    for name in missing:
        assert f"{name.removeprefix('vit.')} is missing" in message
    for name in misshapen:
        assert f"{name.removeprefix('vit.')} has shape" in message
    for name in ("blocks.7.extra", "and.more"):
        assert f"{name} has no place in the model" in message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_layout_is_recognised(whole, layout):
    """A mixed-up layout lists every name; one line says what it is."""
    wrong = "timm" if layout != "timm" else "torchvision"
    assert f"The names are those of layout={layout!r}." in refused(ours(image_size=8), whole[layout], wrong)


def test_unknown_layouts_and_modes(whole):
    assert "'torchvision', 'timm', 'huggingface'" in refused(ours(image_size=8), whole["timm"], "keras")
    message = refused(ours(image_size=8), whole["timm"], "timm", resize_positions="bicubic")
    assert "'bicubic'" in message and "'huggingface'" in message


def test_shapes_that_only_seem_to_fit(whole):
    """As many numbers, but transposed; or query and key that make 2 D rows together, but not D each."""
    state, block = dict(whole["jeonsworld"]), "transformer.encoder.layer.0."
    state[block + "ffn.fc1.weight"] = state[block + "ffn.fc1.weight"].T
    state[block + "attn.query.weight"], state[block + "attn.key.weight"] = (
        torch.zeros(23, 24),
        torch.zeros(25, 24),
    )
    message = refused(ours(image_size=8), state, "jeonsworld")
    assert "attn.query.weight has shape (23, 24), the model needs (24, 24)" in message
    assert "attn.key.weight has shape (25, 24)" in message
    assert "ffn.fc1.weight has shape (24, 48), the model needs (48, 24)" in message


def test_jaxs_shapes_tell_the_number_of_heads(whole):
    """6 heads of 4 have as many numbers as 3 of 8: another model with the same parameters."""
    message = refused(ours(image_size=8, num_heads=6), whole["jax"], "jax")
    assert re.search(r"query/kernel has shape \(24, 3, 8\).*with 6 heads", message)
    assert re.search(r"out/kernel has shape \(3, 8, 24\).*with 6 heads", message)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_head_keeps_the_models_own(whole, layout, capsys):
    """The checkpoint has 5 classes, the model 10."""
    message = refused(ours(image_size=8, num_classes=10), whole[layout], layout)
    assert "new_head=True" in message and re.search(r"has shape \((5, 24|24, 5)\)|needs \(10, 24\)", message)
    model, other = ours(image_size=8, num_classes=10), ours(image_size=8)
    head = model.head.weight.detach().clone()
    load_weights(model, whole[layout], layout, new_head=True)
    assert "own head (10 classes)" in (said := capsys.readouterr().out) and "(5)" in said
    load_weights(
        other, whole[layout], layout, new_head=True
    )  # as many classes: the head comes too, nothing is said
    assert capsys.readouterr().out == ""
    images = random_images(2, 3, (8, 8))
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.forward_features(images), other.forward_features(images))
    assert other.head.weight.std() > 0.1  # the checkpoint's noise


def test_a_new_head_where_one_side_has_none(whole, capsys):
    headless = {name: tensor for name, tensor in whole["timm"].items() if not name.startswith("head.")}
    assert "head.bias is missing" in refused(ours(image_size=8), headless, "timm")
    load_weights(ours(image_size=8), headless, "timm", new_head=True)
    assert "own head (5 classes)" in capsys.readouterr().out
    assert "head.bias has no place" in refused(ours(image_size=8, num_classes=0), whole["timm"], "timm")
    load_weights(ours(image_size=8, num_classes=0), whole["timm"], "timm", new_head=True)
    load_weights(ours(image_size=8, num_classes=0), headless, "timm")


def test_nothing_is_said_where_nothing_is_loaded(whole, capsys):
    state = {name: tensor for name, tensor in whole["timm"].items() if name != "cls_token"}
    refused(ours(image_size=8, num_classes=10), state, "timm", new_head=True)
    assert capsys.readouterr().out == ""


def test_a_pre_logits_layer_is_refused_with_the_remedy(capsys):
    """A head that reads another layer's output gives nonsense without that layer."""
    state = torchvision_vit(representation_size=24).state_dict()
    message = refused(ours(image_size=8), state, "torchvision")
    assert "heads.pre_logits.weight has no place in the model" in message and "new_head=True" in message
    model = ours(image_size=8)
    load_weights(model, state, "torchvision", new_head=True)
    assert "pre-logits" in capsys.readouterr().out
    arrays = flax_arrays(hidden=48, tokens=5) | {
        "pre_logits/kernel": np.zeros((24, 24)),
        "pre_logits/bias": np.zeros(24),
    }
    assert "new_head=True" in refused(ours(image_size=8), arrays, "jax")
    load_weights(ours(image_size=8), arrays, "jax", new_head=True)


def test_another_number_of_blocks(whole):
    message = refused(ours(image_size=8, depth=3), whole["timm"], "timm")
    assert "blocks.2.norm1.weight is missing" in message and "blocks.1" not in message
    message = refused(ours(image_size=8, depth=1), whole["huggingface"], "huggingface")
    assert "layers.1.mlp.fc2.bias has no place" in message and "layers.0" not in message


def test_models_that_differ_in_kind(whole):
    """A class token, positions or a norm after the mean that only one of the two has."""
    message = refused(ours(image_size=8, pool="mean"), whole["timm"], "timm")
    assert (
        "cls_token has no place" in message
        and 'pool="class"' in message
        and "pos_embed has 5 patches" in message
    )
    message = refused(ours(image_size=8, positional="sincos2d"), whole["timm"], "timm")
    assert "pos_embed has no place" in message and 'positional="learned"' in message
    mean = timm_vit(img_size=8, mlp_ratio=2, class_token=False, global_pool="avg").state_dict()
    message = refused(ours(image_size=8, pool="mean"), mean, "timm")
    assert (
        "fc_norm.weight has no place" in message and "norm.weight is missing" in message and "mean" in message
    )


@pytest.mark.parametrize("mode", ["timm", "torchvision", "huggingface", "jax"])
@pytest.mark.parametrize("layout", ["timm", "jax"])
def test_positions_are_resized_where_a_mode_is_named(layout, mode):
    arrays = flax_arrays(hidden=48, tokens=17)  # 4 x 4 patches
    state = arrays if layout == "jax" else timm_vit(img_size=16, mlp_ratio=2).state_dict()
    message = refused(ours(), state, layout)
    assert "4x4" in message and "2x3" in message and 'resize_positions="timm"' in message
    model = ours()
    load_weights(model, state, layout, resize_positions=mode)
    positions = state["Transformer/posembed_input/pos_embedding" if layout == "jax" else "pos_embed"]
    expected = resize_positional_embedding(torch.as_tensor(positions), (4, 4), (2, 3), mode=mode)
    assert torch.equal(model.positional_encoding.positional_embedding, expected)
    assert model(random_images(2, 3, (8, 12))).shape == (2, 5)


def test_positions_without_a_class_token_are_resized():
    state = timm_vit(
        img_size=16, mlp_ratio=2, class_token=False, global_pool="avg", fc_norm=False
    ).state_dict()
    model = ours(pool="mean")
    load_weights(model, state, "timm", resize_positions="timm")
    expected = resize_positional_embedding(state["pos_embed"], (4, 4), (2, 3), num_prefix_tokens=0)
    assert torch.equal(model.positional_encoding.positional_embedding, expected)


def test_positions_that_fit_or_that_nobody_can_place():
    """A grid that fits is taken as it is; 2 x 3 for a model of 4 x 4 is no square: it could be 1 x 6."""
    state = timm_vit(mlp_ratio=2).state_dict()
    model = ours()
    load_weights(model, state, "timm", resize_positions="timm")
    assert torch.equal(model.positional_encoding.positional_embedding, state["pos_embed"])
    message = refused(ours(image_size=16), state, "timm", resize_positions="timm")
    assert "pos_embed has 6 patches, which make no square grid" in message
    state["pos_embed"] = torch.zeros(1, 17, 23)
    assert "pos_embed has shape (1, 17, 23)" in refused(ours(), state, "timm", resize_positions="timm")


def test_half_precision_and_gradients(whole):
    """Weights keep the model's type, whatever the file has, and go on being trained."""
    model = ours(image_size=8)
    load_weights(model, {name: tensor.half() for name, tensor in whole["timm"].items()}, "timm")
    assert all(
        parameter.dtype == torch.float32 and parameter.requires_grad for parameter in model.parameters()
    )
    model(random_images(2, 3, (8, 8))).sum().backward()
