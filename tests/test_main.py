"""The command line: what it prints, what it writes, how it ends."""

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitlib.__main__ as command_line
from vitlib import checkpoint, data, training, vit_cifar
from vitlib.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
COLOURS = {"zebra": (210, 60, 60), "mango": (60, 210, 60), "apple": (60, 60, 210)}  # not sorted


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    """No shipped model, no cache and no working directory but the test's own; few shapes."""
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(data, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(command_line, "SHAPES", {"train": 64, "validation": 20, "test": 30})
    monkeypatch.chdir(tmp_path)


def draw(path, colour, size=(40, 30), seed=0):
    """A noisy picture of about one colour; size is (width, height), as Pillow has it."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(-30, 31, (size[1], size[0], 3), generator=generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((torch.tensor(colour) + noise).to(torch.uint8).numpy()).save(path)
    return path


def own_pictures(folder, number=10):
    for place, (name, colour) in enumerate(COLOURS.items()):
        for i in range(number):
            draw(folder / name / f"{i}.png", colour, (30 + i, 45 - i), seed=100 * place + i)
    return folder


def ship(name, classes, bias=None, **options):
    """A shipped model with a random start; its head's biases may decide all it says."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = vit_cifar(num_classes=len(classes), embed_dim=24, depth=2, num_heads=2, **options)
    if bias is not None:
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.copy_(torch.tensor(bias))
    path = checkpoint.SHIPPED / f"{name}.safetensors"
    checkpoint.save(path, model, classes, data.CIFAR10_MEAN, data.CIFAR10_STD)
    return model


TEN = list(data.CIFAR10_CLASSES)
# Probabilities 0.4, 0.3, 0.15, 0.08, 0.04 for frog, cat, ship, dog, truck, the rest for the others.
BIAS = torch.tensor([0.006, 0.006, 0.006, 0.3, 0.006, 0.08, 0.4, 0.006, 0.15, 0.04]).log().tolist()


# --- predict ------------------------------------------------------------------------------------------------


def test_predict_names_the_five_likeliest(tmp_path, capsys):
    ship("cifar10", TEN, BIAS)
    assert main(["predict", str(draw(tmp_path / "photo.jpg", (9, 200, 9)))]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [word[0] for word in words] == ["frog", "cat", "ship", "dog", "truck"]
    assert [float(word[1]) for word in words] == pytest.approx([40, 30, 15, 8, 4], abs=0.05)
    assert all(word[2] == "%" for word in words)


def test_predict_prepares_a_picture_as_in_training(tmp_path, capsys):
    """A picture that is not normalised or not resized gives other probabilities. The model is not square."""
    model = ship("wide", ["a", "b", "c"], image_size=(16, 32))
    path = draw(tmp_path / "photo.png", (200, 100, 50), (64, 32))
    image = data.load_picture(path, (16, 32))
    with torch.no_grad():
        logits = model.eval()(data.normalize(image[None], data.CIFAR10_MEAN, data.CIFAR10_STD))
    expected = dict(zip("abc", logits.softmax(dim=1)[0].tolist(), strict=True))
    assert main(["predict", str(path), "--model", "wide"]) == 0
    printed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    assert {name: float(value) / 100 for name, value in printed.items()} == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("to_file", [True, False])
def test_predict_a_folder(tmp_path, capsys, to_file):
    """Rows out of order, a column that shifts, a hidden file or a folder taken for a picture."""
    ship("cifar10", TEN, BIAS)
    for name in ("b, with comma.png", "a.jpg", "ü.png"):
        draw(tmp_path / "photos" / name, (9, 200, 9))
    for hidden in (".hidden", "Thumbs.db", "desktop.ini"):
        (tmp_path / "photos" / hidden).write_text("not a picture")
    (tmp_path / "photos" / "more").mkdir()
    output = ["--output", str(tmp_path / "new" / "table.csv")] if to_file else []
    assert main(["predict", str(tmp_path / "photos"), *output]) == 0
    printed = capsys.readouterr().out
    text = (tmp_path / "new" / "table.csv").read_text(encoding="utf-8") if to_file else printed
    assert (printed == "") == to_file
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["file"] for row in rows] == ["a.jpg", "b, with comma.png", "ü.png"]
    columns = [f"{column} {number}" for number in range(1, 6) for column in ("class", "probability")]
    assert list(rows[0]) == ["file", *columns, "error"]
    for row in rows:
        assert [row[f"class {number}"] for number in range(1, 6)] == ["frog", "cat", "ship", "dog", "truck"]
        assert float(row["probability 2"]) == pytest.approx(0.3, abs=1e-3) and row["error"] == ""


def test_an_unreadable_file_in_a_folder(tmp_path, capsys):
    """One bad file that ends the run, or that is passed over in silence."""
    ship("pets", ["cat", "dog"])
    draw(tmp_path / "photos" / "good.png", (9, 200, 9))
    whole = draw(tmp_path / "photos" / "half.png", (9, 200, 9)).read_bytes()
    (tmp_path / "photos" / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos" / "notes.txt").write_text("not a picture")
    assert main(["predict", str(tmp_path / "photos"), "--model", "pets"]) == 1
    told = capsys.readouterr()
    rows = {row["file"]: row for row in csv.DictReader(io.StringIO(told.out))}
    assert list(rows) == ["good.png", "half.png", "notes.txt"]
    assert rows["good.png"]["class 2"] in ("cat", "dog") and "class 3" not in rows["good.png"]
    for name in ("half.png", "notes.txt"):
        assert "cannot be read as a picture" in rows[name]["error"] and rows[name]["class 1"] == ""
    assert "2 of 3 files could not be read" in told.err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, file names are Unicode")
@pytest.mark.parametrize("to_file", [True, False])
def test_a_file_name_that_is_not_utf8(tmp_path, capsys, to_file):
    """A table that is lost, after all the work, to one name."""
    ship("pets", ["cat", "dog"])
    photo = draw(tmp_path / "photos" / "a.png", (9, 200, 9))
    photo.rename(photo.with_name(os.fsdecode(b"caf\xe9.png")))
    output = ["--output", "table.csv"] if to_file else []
    assert main(["predict", str(tmp_path / "photos"), "--model", "pets", *output]) == 0
    printed = capsys.readouterr().out
    text = Path("table.csv").read_text(encoding="utf-8") if to_file else printed
    assert [row["file"] for row in csv.DictReader(io.StringIO(text))] == ["caf\\udce9.png"]


def error_of(capsys, *arguments):
    """What a command that must fail says: one message, on stderr, with exit code 2."""
    assert main([str(argument) for argument in arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("Error: ") and "Traceback" not in told.err
    return told.err


def test_pictures_that_cannot_be_used(tmp_path, capsys, monkeypatch):
    ship("cifar10", TEN)
    assert "no picture" in error_of(capsys, "predict", tmp_path / "nowhere.jpg")
    (tmp_path / "text.jpg").write_text("not a picture")
    assert "text.jpg cannot be read as a picture" in error_of(capsys, "predict", tmp_path / "text.jpg")
    (tmp_path / "empty").mkdir()
    assert "no files in" in error_of(capsys, "predict", tmp_path / "empty")
    photo = draw(tmp_path / "photo.png", (9, 200, 9), (50, 40))
    assert "is for a folder" in error_of(capsys, "predict", photo, "--output", tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()
    for limit in (1500, 100):  # Pillow warns above the limit, and refuses above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert f"too large: over {limit:,} pixels" in error_of(capsys, "predict", photo)


def test_a_table_that_cannot_be_written(tmp_path, capsys):
    ship("cifar10", TEN)
    draw(tmp_path / "photos" / "a.png", (9, 200, 9))
    told = error_of(capsys, "predict", tmp_path / "photos", "--output", tmp_path / "photos")
    assert "Could not write" in told


def test_models_that_cannot_be_used(tmp_path, capsys):
    ship("cifar10", TEN)
    photo = draw(tmp_path / "photo.png", (9, 200, 9))
    told = error_of(capsys, "predict", photo, "--model", "cifar100")
    assert "no checkpoint cifar100" in told and "one of: cifar10" in told
    assert "not a whole safetensors file" in error_of(capsys, "predict", photo, "--model", photo)
    assert "no checkpoint" in error_of(capsys, "evaluate", "--model", tmp_path / "nowhere.safetensors")


# --- evaluate -----------------------------------------------------------------------------------------------


def cifar10_of_one_colour(split):
    """25 pictures: 10 frogs, 10 cats, 5 dogs, none of the others."""
    assert split == "test"
    labels = torch.tensor([6] * 10 + [3] * 10 + [5] * 5)
    return data.ImageData(torch.full((25, 3, 32, 32), 99, dtype=torch.uint8), labels, TEN)


def test_evaluate_without_arguments(monkeypatch, capsys):
    """The shipped model, on the test pictures of CIFAR-10; a model that always says frog is right on 40 %."""
    ship("cifar10", TEN, BIAS)
    monkeypatch.setattr(data, "cifar10", cifar10_of_one_colour)
    assert main(["evaluate", "--device", "cpu"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "test accuracy: 40.00 %"
    assert [line.split()[0] for line in rest] == TEN
    said = {line.split()[0]: line.split(maxsplit=1)[1] for line in rest}
    assert (said["frog"], said["cat"], said["ship"]) == ("100.00 %", "0.00 %", "no pictures")


def test_model_and_data_that_do_not_belong_together(tmp_path, monkeypatch, capsys):
    """Accuracy computed with the names of other classes."""
    monkeypatch.setattr(data, "cifar10", cifar10_of_one_colour)
    ship("cifar10", TEN[::-1])
    told = error_of(capsys, "evaluate")
    assert "The model knows the classes truck" in told and "cifar10 has airplane" in told
    ship("shapes", ["only", "two"])
    assert "classes only, two" in error_of(capsys, "evaluate", "--model", "shapes", "--data", "shapes")


def test_data_that_is_not_there(tmp_path, monkeypatch, capsys):
    ship("cifar10", TEN)
    told = error_of(capsys, "evaluate", "--data", tmp_path / "nowhere")
    assert "nowhere" in told
    assert "nowhere" in error_of(capsys, "train", "--data", tmp_path / "nowhere", "--epochs", 1)
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ship("cifar10", TEN)
    monkeypatch.setattr(data, "cifar10", cifar10_of_one_colour)
    assert main(["evaluate", "--device", "cuda"]) == 2
    assert "no device 'cuda' here: choose auto, cpu" in capsys.readouterr().err


# --- train --------------------------------------------------------------------------------------------------


def test_own_pictures_from_folder_to_prediction(tmp_path, capsys):
    """Class names that lose their order, sizes that are forgotten, a second run that starts again."""
    folder, directory = own_pictures(tmp_path / "my pictures"), tmp_path / "runs" / "my pictures"
    command = ["train", "--data", "my pictures", "--epochs", "5", "--batch-size", "8", "--image-size", "32"]
    assert main([*command, "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "validation accuracy: 100.00 %" in told
    path = directory / "model.safetensors"
    assert f'evaluate --model "{path.relative_to(tmp_path)}" --data "my pictures"' in told
    found = checkpoint.load(path)
    assert found.classes == ["apple", "mango", "zebra"]
    assert found.model.patch_embedding.num_patches == 64 and found.notes["training"]["batch_size"] == 8

    before = path.read_bytes()
    assert main([*command, "--device", "cpu"]) == 0
    assert "nothing is left to train" in capsys.readouterr().out and path.read_bytes() == before

    assert main(["evaluate", "--model", str(path), "--data", str(folder), "--device", "cpu"]) == 0
    assert "test accuracy: 100.00 %" in capsys.readouterr().out
    for name, colour in COLOURS.items():
        photo = draw(tmp_path / "new" / f"{name}.png", colour, (90, 50), seed=999)
        assert main(["predict", str(photo), "--model", str(path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split()[0] == name and len(lines) == 3
    assert main(["predict", str(tmp_path / "new"), "--model", str(path)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["file"], row["class 1"]) for row in rows] == [
        ("apple.png", "apple"), ("mango.png", "mango"), ("zebra.png", "zebra")
    ]  # fmt: skip


def test_the_same_model_as_in_a_notebook(tmp_path, capsys):
    """A seed that does not reach the model, other defaults, or shapes normalised as photographs."""
    torch_state = torch.get_rng_state()
    command = ["train", "--data", "shapes", "--epochs", "1", "--seed", "3", "--directory", "run"]
    assert main([*command, "--device", "cpu"]) == 0
    assert torch.equal(torch_state, torch.get_rng_state())
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = vit_cifar(num_classes=10)
    config = training.TrainingConfig(
        epochs=1, seed=3, mean=data.SHAPES_MEAN, std=data.SHAPES_STD, device="cpu",
        precision=checkpoint.load("run/model.safetensors").notes["precision"],  # as measured there
    )  # fmt: skip
    pictures = data.shapes("train", 64), data.shapes("validation", 20)
    training.train(model, *pictures, config, tmp_path / "notebook")
    found = checkpoint.load("run/model.safetensors").model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("options, said", [
    (["--image-size", "30", "--data", "folder"], "multiple of 8"),
    (["--image-size", "0", "--data", "folder"], "multiple of 8"),
    (["--image-size", "64", "--data", "shapes"], "those of shapes are 32x32"),
    (["--minutes", "-1"], "minutes must be above 0"),
    (["--epochs", "nan"], "epochs must be above 0"),
    (["--batch-size", "0"], "batch_size must be a whole number"),
    (["--optimizer", "sgd"], "adamw, muon"),
    (["--device", "tpu"], "auto, cpu"),
])  # fmt: skip
def test_options_that_cannot_work(tmp_path, capsys, options, said):
    assert said in error_of(capsys, "train", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [
    [], ["fly"], ["predict"], ["train", "--epochs", "1", "--minutes", "1"], ["train", "--seed", "x"],
])  # fmt: skip
def test_a_command_line_that_is_not_understood(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and "usage: python -m vitlib" in capsys.readouterr().err


def test_another_run_in_the_directory(tmp_path, capsys):
    command = ["train", "--data", "shapes", "--epochs", "1", "--device", "cpu", "--directory", "run"]
    assert main(command) == 0
    assert main([*command, "--seed", "1"]) == 2
    told = capsys.readouterr()
    assert "seed: 0 there, 1 now" in told.err and "Traceback" not in told.err


def test_out_of_memory_says_what_to_change(monkeypatch, capsys):
    """Other errors of the kind are defects, and keep their traceback."""
    ship("cifar10", TEN)

    def fail(*arguments, message):
        raise RuntimeError(message)

    monkeypatch.setattr(data, "cifar10", lambda split: fail(message="CUDA out of memory. Tried to ..."))
    assert "--batch-size" in error_of(capsys, "evaluate")
    monkeypatch.setattr(data, "cifar10", lambda split: fail(message="mat1 and mat2 shapes"))
    with pytest.raises(RuntimeError, match="shapes"):
        main(["evaluate"])


# --- as a process -------------------------------------------------------------------------------------------


def start(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cwd / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "vitlib", *arguments], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_defaults_are_those_of_the_configuration():
    """A recipe changed in one place: --help must not import the other, so the numbers stand twice."""
    options, config = command_line.parse(["train"]), training.TrainingConfig(epochs=1)
    for name in ("batch_size", "optimizer", "learning_rate", "muon_learning_rate", "device", "seed"):
        assert getattr(options, name) == getattr(config, name), name


def test_help_is_quick_to_import(tmp_path):
    """Modules that are not needed to show the help."""
    code = (
        "import sys; sys.argv = ['vitlib', '--help']; import runpy\n"
        "try: runpy.run_module('vitlib', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, {'torchvision', 'matplotlib', 'PIL'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.stdout.startswith("usage: python -m vitlib"), ended.stderr
    assert ended.stdout.endswith("0 set()\n"), ended.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no Ctrl-C to one process")
def test_ctrl_c_in_a_shell(tmp_path):
    """A run that dies with a traceback, or that cannot go on."""
    own_pictures(tmp_path / "pictures")
    command = ["train", "--data", "pictures", "--epochs", "5000", "--batch-size", "8", "--image-size", "8",
               "--device", "cpu"]  # fmt: skip
    process = start(*command, cwd=tmp_path)
    while not (tmp_path / "runs" / "pictures" / "config.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert "Stopped at step" in told and "run the same to go on" in told
    found = checkpoint.load(tmp_path / "runs" / "pictures" / "model.safetensors")
    assert found.notes["steps"] > 0 and found.classes == ["apple", "mango", "zebra"]
