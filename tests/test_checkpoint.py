"""A model in one file: what comes back, what is refused, what a full disk leaves."""

import errno
import os

import pytest
import torch
from safetensors.torch import save_file

from vitlib import VisionTransformer, checkpoint
from vitlib.data import normalize

NOTES = {"accuracy": 0.5, "about": {"seed": 3, "run": [1, 2]}}
MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


def make_model(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        small = {"image_size": 8, "patch_size": 4, "num_classes": 3}
        small |= {"embed_dim": 16, "depth": 2, "num_heads": 2}
        model = VisionTransformer(**{**small, **options})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
    return model.eval()


def save(path, model=None, **options):
    model = make_model() if model is None else model
    checkpoint.save(path, model, ["cat", "dog", "Ångström"], MEAN, STD, **options)
    return path


@pytest.mark.parametrize("options", [
    {},
    {"image_size": (8, 20), "patch_size": (4, 2)},
    {"pool": "mean", "positional": "sincos2d", "qkv_bias": False, "gelu": "tanh", "norm_eps": 1e-5},
    {"positional": "none", "dropout": 0.5},
])  # fmt: skip
def test_a_model_comes_back_whole(tmp_path, options):
    """A tensor, an option or a description that is lost on the way."""
    model = make_model(**options).train()
    found = checkpoint.load(save(tmp_path / "new" / "model.safetensors", model, **NOTES))
    assert (found.classes, found.mean, found.std) == (["cat", "dog", "Ångström"], MEAN, STD)
    assert found.notes == NOTES
    assert not found.model.training
    height, width = model.patch_embedding.image_size
    images = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found.model(images), model.eval()(images))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.safetensors"]


def test_half_precision(tmp_path):
    """A file that is not halved, or a model that computes in half precision afterwards."""
    model = make_model(embed_dim=64)
    whole = save(tmp_path / "whole.safetensors", model)
    half = save(tmp_path / "half.safetensors", model, dtype=torch.float16)
    assert half.stat().st_size < 0.6 * whole.stat().st_size
    found = checkpoint.load(half).model
    assert {value.dtype for value in found.state_dict().values()} == {torch.float32}
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}  # untouched
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    difference = (found(images) - model(images)).abs().max() / model(images).abs().max()
    assert 0 < difference < 5e-3


def test_one_channel_and_predict(tmp_path):
    """Probabilities of pictures that are not normalised, or that do not sum to 1."""
    model = make_model(image_size=(8, 12), in_channels=1)
    path = tmp_path / "grey.safetensors"
    checkpoint.save(path, model, ["a", "b", "c"], (0.3,), (0.2,))
    found = checkpoint.load(path)
    images = torch.arange(7 * 8 * 12).mul(37).remainder(256).to(torch.uint8).view(7, 1, 8, 12)
    probabilities = found.predict(images)
    assert probabilities.shape == (7, 3) and not probabilities.requires_grad
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(7))
    assert torch.equal(probabilities, model(normalize(images, (0.3,), (0.2,))).softmax(dim=1))
    with pytest.raises(ValueError, match="3 channels"):
        found.predict(images.expand(7, 3, 8, 12))


def test_loading_leaves_the_global_chance_alone(tmp_path):
    path, before = save(tmp_path / "model.safetensors"), torch.get_rng_state()
    checkpoint.load(path)
    assert torch.equal(before, torch.get_rng_state())


def test_what_was_loaded_does_not_hang_on_the_file(tmp_path):
    """Tensors that are the mapped file itself change with it, and keep Windows from replacing it."""
    path = save(tmp_path / "model.safetensors")
    tensors, _ = checkpoint.read_tensors(path)
    with open(path, "r+b") as file:  # the same file, not a new one of that name
        file.write(b"\xff" * path.stat().st_size)
    assert all(torch.equal(tensors[name], value) for name, value in make_model().state_dict().items())


def test_shipped_models_have_names(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "shipped")
    save(tmp_path / "shipped" / "pets.safetensors", which="shipped")
    save(tmp_path / "mine.safetensors", which="mine")
    monkeypatch.chdir(tmp_path)
    assert checkpoint.load("pets").notes == {"which": "shipped"}
    for name in ("mine.safetensors", tmp_path / "mine.safetensors"):
        assert checkpoint.load(name).notes == {"which": "mine"}
    for name in ("cats", "pets.pt", "", ".", "shipped", "../../etc/passwd", "a\0b", "C:\\pets", "*"):
        with pytest.raises(FileNotFoundError, match="no checkpoint .*or one of: pets"):
            checkpoint.load(name)


def test_files_of_another_kind(tmp_path):
    """A pickle that is run, or a file that is taken for a model because it is a safetensors file."""

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code was run"),)

    torch.save({"model": Bomb()}, tmp_path / "model.pt")
    (tmp_path / "text.safetensors").write_text("not a model, only text that is longer than a header")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    whole = save(tmp_path / "whole.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    for name in ("model.pt", "text.safetensors", "empty.safetensors", "half.safetensors"):
        with pytest.raises(ValueError, match=f"{name} is not a whole safetensors file.*pickles"):
            checkpoint.load(tmp_path / name)
    assert not (tmp_path / "code was run").exists()

    save_file({"weight": torch.ones(2)}, tmp_path / "foreign.safetensors")
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors", {"format": "pt"})
    checkpoint.write_tensors(tmp_path / "last.safetensors", {"model.head.bias": torch.ones(2)}, {"step": 3})
    for name in ("foreign.safetensors", "other.safetensors", "last.safetensors"):
        with pytest.raises(ValueError, match="holds no vitlib model.*model.safetensors.*load_weights"):
            checkpoint.load(tmp_path / name)


def test_one_name_for_each_class(tmp_path):
    with pytest.raises(ValueError, match="2 class names for a model with num_classes=3"):
        checkpoint.save(tmp_path / "model.safetensors", make_model(), ["a", "b"], MEAN, STD)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_earlier_file(tmp_path):
    """A checkpoint that is overwritten in place, or a temporary file that stays. The limit is a real one."""
    resource = pytest.importorskip("resource")
    path = save(tmp_path / "model.safetensors", which="earlier")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # bytes in one file
    try:
        with pytest.raises(OSError, match="Could not write .*model.safetensors.*Make room for") as caught:
            save(path, make_model(embed_dim=64), which="later")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert checkpoint.load(path).notes == {"which": "earlier"}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path, monkeypatch):
    path = save(tmp_path / "model.safetensors", which="earlier")

    def interrupted(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(path, which="later")
    assert checkpoint.load(path).notes == {"which": "earlier"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced(tmp_path, monkeypatch):
    """Windows refuses while another program holds the file. Only the renaming may touch the old one."""
    path = save(tmp_path / "model.safetensors", which="earlier")

    def refused(source, target):
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(PermissionError, match="Could not write .*Access is denied"):
        save(path, which="later")
    assert checkpoint.load(path).notes == {"which": "earlier"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        save(tmp_path / "file" / "model.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(OSError, match="Could not write .*folder.safetensors"):
        save(tmp_path / "folder.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.safetensors"]


def test_attention_and_predictions_of_many_pictures(tmp_path):
    """Pictures lost or mixed where they are taken in parts; attention of other pictures."""
    found = checkpoint.load(save(tmp_path / "model.safetensors"))
    images = torch.randint(256, (501, 3, 8, 8), dtype=torch.uint8)
    probabilities = found.predict(images)
    assert probabilities.shape == (501, 3)
    torch.testing.assert_close(probabilities[-1:], found.predict(images[-1:]))
    logits, attention = found.model(normalize(images[:7], MEAN, STD), return_attention=True)
    torch.testing.assert_close(found.attention(images[:7]), attention)
    torch.testing.assert_close(probabilities[:7], logits.softmax(dim=1))


def test_what_does_not_fit_the_model_is_not_written(tmp_path):
    """A file whose model nobody can use."""
    model, path = make_model(), tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match="3 channels"):
        checkpoint.save(path, model, ["a", "b", "c"], (0.5,), (0.5,))
    with torch.no_grad():
        model.head.weight[0, 0] = 1e5
    with pytest.raises(ValueError, match="too large"):
        save(path, model, dtype=torch.float16)
    assert not path.exists()


def test_of_another_version(tmp_path):
    """A bare TypeError, KeyError or RuntimeError, which does not say what to do."""
    model, path = make_model(), tmp_path / "model.safetensors"
    about = {"model": model.config, "classes": ["a", "b", "c"], "mean": MEAN, "std": STD, "notes": {}}
    tensors = model.state_dict()
    for change in ({"model": {**model.config, "registers": 4}}, {"mean": None}, {"model": {"depth": 1}}):
        checkpoint.write_tensors(path, tensors, {**about, **change})
        with pytest.raises(ValueError, match="another version"):
            checkpoint.load(path)


def test_a_compiled_model(tmp_path):
    """torch.compile renames the weights: the file could not be read again."""
    model = make_model()
    found = checkpoint.load(save(tmp_path / "model.safetensors", model=torch.compile(model)))
    assert found.model.state_dict().keys() == model.state_dict().keys()
