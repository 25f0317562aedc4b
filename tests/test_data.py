"""vitlib.data: splits, both CIFAR-10 layouts, the cache, shapes, your own pictures, and what goes wrong."""

import hashlib
import os
import pickle
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision.datasets.cifar
from PIL import Image
from torchvision.datasets import CIFAR10

from vitlib import data

REAL = os.environ.get("VITLIB_DATA")
PER_CLASS = {"train": 7, "test": 3}
VALIDATION = 2


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, request):
    """A cache of the test's own, CIFAR-10 in small, and no internet."""
    if "real" in request.fixturenames:
        return
    monkeypatch.delenv("VITLIB_DATA", raising=False)
    monkeypatch.setattr(data, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(data, "_PER_CLASS", PER_CLASS)
    monkeypatch.setattr(data, "_VALIDATION_PER_CLASS", VALIDATION)
    monkeypatch.setattr(urllib.request, "urlopen", offline)


def offline(*_, **__):
    raise urllib.error.URLError("no route to host")


@pytest.fixture
def real():
    if not REAL:
        pytest.skip("VITLIB_DATA is not set")


def random_pictures(number, height=32, width=32, seed=0):
    pixels = torch.randint(256, (number, height, width, 3), generator=torch.Generator().manual_seed(seed))
    return pixels.to(torch.uint8).numpy()


def save_picture(pixels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


# The same pictures in both layouts. The labels come in a mixed order, so that a reader has to sort by class.
LABELS = {part: torch.arange(10).repeat(number).flip(0) for part, number in PER_CLASS.items()}
PIXELS = {"train": random_pictures(70, seed=1), "test": random_pictures(30, seed=2)}


def write_folders(root):
    for part, labels in LABELS.items():
        for place, label in enumerate(labels.tolist()):
            name = data.CIFAR10_CLASSES[label]
            save_picture(PIXELS[part][place], root / part / name / f"{place:04}.png")


def write_batches(root, monkeypatch):
    """torchvision's files, and its list of expected MD5 sums changed to theirs."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(part, start, end):
        rows = PIXELS[part][start:end].transpose(0, 3, 1, 2).reshape(end - start, -1)
        return {"data": rows, "labels": LABELS[part][start:end].tolist()}

    train = [write(f"data_batch_{i + 1}", batch("train", 14 * i, 14 * (i + 1))) for i in range(5)]
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [write("test_batch", batch("test", 0, 30))])
    name, md5 = write("batches.meta", {"label_names": data.CIFAR10_CLASSES})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": name, "key": "label_names", "md5": md5})
    return folder


def as_set(images):
    return {image.numpy().tobytes() for image in images}


# CIFAR-10


def test_both_layouts_give_the_same_splits(tmp_path, monkeypatch):
    """Catches an order that depends on the layout, and channels-last pixels taken for channels-first."""
    write_folders(tmp_path / "folders")
    write_batches(tmp_path / "batches", monkeypatch)
    for split in ("train", "validation", "test", "train+validation"):
        one, other = data.cifar10(split, tmp_path / "folders"), data.cifar10(split, tmp_path / "batches")
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
        assert one.classes == other.classes == data.CIFAR10_CLASSES
        assert one.images.dtype == torch.uint8 and one.images.shape[1:] == (3, 32, 32)
        assert one.labels.dtype == torch.int64


def test_splits_are_cut_by_class_and_never_overlap(tmp_path):
    """Catches a validation split that takes the first of a class, whole classes, or test pictures."""
    write_folders(tmp_path)
    parts = {split: data.cifar10(split, tmp_path) for split in ("train", "validation", "test")}
    whole = data.cifar10("train+validation", tmp_path)
    assert {split: len(part) for split, part in parts.items()} == {"train": 50, "validation": 20, "test": 30}
    for part in (*parts.values(), whole):
        assert torch.equal(part.labels, part.labels.sort().values)
        assert part.labels.bincount().unique().numel() == 1
    last = [i for k in range(10) for i in (LABELS["train"] == k).nonzero().flatten().tolist()[-VALIDATION:]]
    assert torch.equal(parts["validation"].images.permute(0, 2, 3, 1), torch.tensor(PIXELS["train"][last]))
    sets = {split: as_set(part.images) for split, part in parts.items()}
    assert sum(map(len, sets.values())) == len(set.union(*sets.values())) == 100
    assert as_set(whole.images) == sets["train"] | sets["validation"]


def test_places_in_order(tmp_path, monkeypatch, capsys):
    """Catches a cache that wins over VITLIB_DATA, VITLIB_DATA that wins over an explicit root, and a wrong
    VITLIB_DATA that nobody hears of."""
    for name, colour in (("root", 10), ("named", 20), ("cache", 30)):
        for part, number in PER_CLASS.items():
            for label in data.CIFAR10_CLASSES:
                for i in range(number):
                    grey = np.full((32, 32, 3), colour, np.uint8)
                    save_picture(grey, tmp_path / name / part / label / f"{i}.png")
    monkeypatch.setenv("VITLIB_DATA", str(tmp_path / "named"))
    assert data.cifar10("test", tmp_path / "root").images.unique().item() == 10
    assert data.cifar10("test").images.unique().item() == 20
    assert "VITLIB_DATA" not in capsys.readouterr().out
    monkeypatch.setenv("VITLIB_DATA", str(tmp_path / "nothing here"))
    assert data.cifar10("test").images.unique().item() == 30
    said = f"VITLIB_DATA={tmp_path / 'nothing here'} holds neither cifar-10-batches-py nor train/ and test/"
    assert f"{said}: looking in {tmp_path / 'cache'}." in capsys.readouterr().out


def test_unknown_split():
    with pytest.raises(ValueError, match="'val'.*train, validation, test"):
        data.cifar10("val")


def test_no_root(tmp_path):
    with pytest.raises(FileNotFoundError, match="(?s)nowhere.*contains train/ and test/.*Three remedies"):
        data.cifar10("train", tmp_path / "nowhere")


def test_no_internet():
    with pytest.raises(FileNotFoundError, match="(?s)no route to host.*Three remedies.*VITLIB_DATA.*shapes"):
        data.cifar10("train")


def test_half_downloaded(monkeypatch):
    """A download that ends early has another MD5 sum; catches one that is used all the same."""
    half = lambda url, path: open(path, "wb").write(b"half")  # noqa: E731
    monkeypatch.setattr(torchvision.datasets.utils, "_get_redirect_url", lambda url, max_hops: url)
    monkeypatch.setattr(torchvision.datasets.utils, "_urlretrieve", half)
    with pytest.raises(FileNotFoundError, match="(?s)corrupted.*Three remedies"):
        data.cifar10("train")


def test_download_goes_into_the_cache(tmp_path, monkeypatch, capsys):
    """Catches a download into the working directory, and a second download when the files are there."""
    calls = []

    def download(url, root, filename, md5):
        calls.append(root)
        write_batches(tmp_path / "cache", monkeypatch)

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", download)
    assert len(data.cifar10("train")) == 50 and len(data.cifar10("test")) == 30
    assert [str(root) for root in calls] == [str(tmp_path / "cache")]
    assert "downloaded" in capsys.readouterr().out


def test_half_unpacked_cache_is_downloaded_again(tmp_path, monkeypatch):
    folder = write_batches(tmp_path / "cache", monkeypatch)
    whole = (folder / "data_batch_3").read_bytes()
    (folder / "data_batch_3").write_bytes(whole[:100])
    restore = lambda *_, **__: (folder / "data_batch_3").write_bytes(whole)  # noqa: E731
    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", restore)
    assert len(data.cifar10("train")) == 50


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("name", ["data_batch_5", "test_batch", "batches.meta"])
def test_nothing_is_unpickled_before_its_sum_is_checked(name, tmp_path, monkeypatch):
    """Catches our own pickle.load, or a torchvision that checks too late."""
    folder = write_batches(tmp_path / "batches", monkeypatch)
    (folder / name).write_bytes(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    with pytest.raises(ValueError, match="(?s)broken or incomplete.*Delete"):
        data.cifar10("train", tmp_path / "batches")
    assert not (tmp_path / "sprung").exists()


def test_archive(tmp_path, monkeypatch):
    """A truncated archive is an error with the remedy; a whole one is unpacked without the internet."""
    folder = write_batches(tmp_path / "source", monkeypatch)
    root = tmp_path / "root"
    root.mkdir()
    archive = root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="(?s)broken or incomplete.*Delete.*cifar-10-python.tar.gz"):
        data.cifar10("test", root)
    archive.write_bytes(whole)
    with monkeypatch.context() as patch:  # a whole one in a folder that cannot be written to
        refuse = PermissionError(13, "Permission denied")
        patch.setattr(tarfile.TarFile, "extractall", lambda *_, **__: (_ for _ in ()).throw(refuse))
        with pytest.raises(ValueError, match="could not be unpacked there.*denied.*Copy it into .*cache"):
            data.cifar10("test", root)
    assert len(data.cifar10("test", root)) == 30


def test_folders_that_are_not_cifar10(tmp_path):
    """Half-unpacked, of other classes, of other sizes: catches splits silently cut at the wrong places."""
    write_folders(tmp_path)
    (tmp_path / "test" / "dog" / "0000.png").unlink(missing_ok=True)
    picture = next((tmp_path / "test" / "dog").iterdir())
    picture.unlink()
    with pytest.raises(ValueError, match="dog holds 2 pictures, not 3.*Unpack"):
        data.cifar10("train", tmp_path)
    save_picture(random_pictures(1, 20, 30)[0], picture)
    with pytest.raises(ValueError, match="not all are 32x32.*image_folder"):
        data.cifar10("test", tmp_path)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "wolf")
    with pytest.raises(ValueError, match="wolf.*image_folder"):
        data.cifar10("test", tmp_path)


def test_real_cifar10(real):
    """The real one, from where VITLIB_DATA says. JPEG copies have the same means, a little less contrast."""
    train, test = data.cifar10("train"), data.cifar10("test")
    assert len(train) == 45_000 and len(data.cifar10("validation")) == 5_000 and len(test) == 10_000
    assert train.labels.bincount().tolist() == [4_500] * 10
    pixels = train.images[::9].float() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(data.CIFAR10_MEAN, abs=0.003)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(data.CIFAR10_STD, abs=0.004)


# The cache of decoded pictures


@pytest.fixture
def decoded(monkeypatch):
    """The list of the pictures that were decoded."""
    opened, open_picture = [], data._open_picture
    monkeypatch.setattr(data, "_open_picture", lambda path: opened.append(path) or open_picture(path))
    return opened


def test_decoded_once(tmp_path, decoded):
    """Catches a cache that is never hit, or that is hit after a picture has changed or changed its class."""
    write_folders(tmp_path)
    first = data.cifar10("train", tmp_path)
    assert len(decoded) == 100
    second = data.cifar10("train", tmp_path)
    assert len(decoded) == 100 and torch.equal(first.images, second.images)
    assert len(list((tmp_path / "cache").iterdir())) == 1, "one file, and no temporary one left"

    changed = tmp_path / "train" / "airplane" / sorted(os.listdir(tmp_path / "train" / "airplane"))[0]
    save_picture(np.zeros((32, 32, 3), np.uint8), changed)
    third = data.cifar10("train", tmp_path)
    assert len(decoded) == 200 and third.images[0].max() == 0


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "foreign", "folder"])
def test_broken_cache_is_rebuilt(damage, tmp_path, decoded):
    write_folders(tmp_path)
    first = data.cifar10("test", tmp_path)
    (file,) = (tmp_path / "cache").iterdir()
    if damage == "folder":  # nothing can be stored there: still an answer
        file.unlink()
        file.mkdir()
    elif damage == "foreign":
        safetensors.torch.save_file({"weight": torch.zeros(3)}, file)
    else:
        half = file.read_bytes()[: file.stat().st_size // 2]
        file.write_bytes({"truncated": half, "garbage": b"x" * 999, "empty": b""}[damage])
    again = data.cifar10("test", tmp_path)
    assert len(decoded) == 200 and torch.equal(first.images, again.images)


def test_cache_of_another_version(tmp_path, decoded, monkeypatch):
    """Catches pixels that an older version of the package decoded."""
    write_folders(tmp_path)
    data.cifar10("test", tmp_path)
    monkeypatch.setattr(data, "_DECODING", "another")
    data.cifar10("test", tmp_path)
    assert len(decoded) == 200


def test_cache_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    """As on a read-only file system, where even removing what is not there fails. Still an answer."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    write_folders(tmp_path)
    for name in ("mkdir", "unlink", "write_bytes"):
        monkeypatch.setattr(data.Path, name, refuse)
    assert len(data.cifar10("test", tmp_path)) == 30
    assert "next start will be slow" in capsys.readouterr().out


def test_class_that_moves_between_folders(tmp_path, decoded):
    """Catches a cache key made of file names alone: the labels would be the old ones."""
    for name, number in (("a", 4), ("b", 6)):
        for i in range(number):
            save_picture(random_pictures(1, seed=i)[0], tmp_path / "own" / name / f"{name}{i}.png")
    before = data.image_folder(tmp_path / "own", "train+validation", 32)
    (tmp_path / "own" / "b" / "b0.png").rename(tmp_path / "own" / "a" / "b0.png")
    after = data.image_folder(tmp_path / "own", "train+validation", 32)
    assert before.labels.bincount().tolist() == [3, 5] and after.labels.bincount().tolist() == [4, 4]


# Own pictures


MIXED = ((20, 30), (32, 64), (40, 40), (100, 20))  # (height, width)


def write_own(folder, sizes=MIXED, per_class=20, classes=("cup", "pen", "tin")):
    for k, name in enumerate(classes):
        for i in range(per_class):
            picture = random_pictures(1, *sizes[i % len(sizes)], seed=100 * k + i)[0]
            save_picture(picture, folder / name / f"{i:02}.png")


def test_own_pictures_are_split_by_seed(tmp_path):
    """Catches overlapping splits, a class missing from one, and a seed that is not used."""
    write_own(tmp_path / "own")
    splits = ("train", "validation", "test")
    parts = {split: data.image_folder(tmp_path / "own", split, 32) for split in splits}
    assert [part.labels.bincount().tolist() for part in parts.values()] == [[16] * 3, [2] * 3, [2] * 3]
    sets = [as_set(part.images) for part in parts.values()]
    assert len(set.union(*sets)) == 60
    assert as_set(data.image_folder(tmp_path / "own", "train+validation", 32).images) == sets[0] | sets[1]
    assert as_set(data.image_folder(tmp_path / "own", "test", 32).images) == sets[2]
    assert as_set(data.image_folder(tmp_path / "own", "test", 32, seed=1).images) != sets[2]
    assert parts["train"].classes == ["cup", "pen", "tin"] and parts["train"].masks is None


def test_own_pictures_with_train_and_test(tmp_path):
    """Catches validation pictures that come from test/, and a test split that loses some."""
    write_own(tmp_path / "train", per_class=10)
    write_own(tmp_path / "test", per_class=4, sizes=((32, 32),))
    expected = {"train": 27, "validation": 3, "test": 12, "train+validation": 30}
    assert {split: len(data.image_folder(tmp_path, split, 32)) for split in expected} == expected
    test = data.image_folder(tmp_path, "test", 32)
    assert torch.equal(test.images[5].permute(1, 2, 0), torch.tensor(random_pictures(1, seed=101)[0]))
    assert not as_set(test.images) & as_set(data.image_folder(tmp_path, "train+validation", 32).images)


@pytest.mark.parametrize("name", ["validation", "val"])
def test_own_pictures_with_a_folder_for_validation(name, tmp_path, capsys):
    """Catches one that is passed over: its pictures would be lost, and training ones taken in their place."""
    sizes = {"train": ((32, 32),), name: ((32, 40),), "test": ((32, 50),)}
    for number, part in ((10, "train"), (5, name), (4, "test")):
        write_own(tmp_path / part, sizes[part], number)
    expected = {"train": (30, 32), "validation": (15, 40), "test": (12, 50)}
    for split, (number, width) in expected.items():
        assert len(data.image_folder(tmp_path, split, 32)) == number
        said = capsys.readouterr().out
        assert "all were" in said if width == 32 else f"widths {width} to {width}" in said
    both = data.image_folder(tmp_path, "train+validation", 32)
    assert both.labels.bincount().tolist() == [15] * 3
    write_own(tmp_path / name, classes=("jar",))
    with pytest.raises(ValueError, match="train and validation.*only one of them has jar"):
        data.image_folder(tmp_path, "test", 32)


def test_own_pictures_without_a_test_folder(tmp_path):
    """Catches the advice to put train's pictures right into train/, which would merge the classes."""
    write_own(tmp_path / "own" / "train", per_class=3)
    for _ in range(2):  # train/ alone, then with val/
        with pytest.raises(ValueError, match="train/ but no test/. Rename val/.*train/ alone"):
            data.image_folder(tmp_path / "own", "train", 32)
        write_own(tmp_path / "own" / "val", per_class=3)
    write_own(tmp_path / "vehicles", per_class=3, classes=("bus", "train"))  # a class may have this name
    assert data.image_folder(tmp_path / "vehicles", "train", 32).classes == ["bus", "train"]


def test_what_was_changed_is_said(tmp_path, capsys):
    """Height and width apart, on a non-square size; on a second start, from the cache, too."""
    write_own(tmp_path / "own", per_class=40)
    for _ in range(2):
        images = data.image_folder(tmp_path / "own", "train", (32, 64)).images
        assert images.shape == (96, 3, 32, 64)
        said = capsys.readouterr().out.splitlines()[-1]
        assert "own, train: 96 pictures of 3 classes (cup, pen, tin)" in said
        assert "resized to 32x64" in said and "heights were 20 to 100, widths 20 to 64" in said
    write_own(tmp_path / "same", sizes=((32, 64),))
    capsys.readouterr()
    data.image_folder(tmp_path / "same", "test", (32, 64))
    assert "all were 32x64" in capsys.readouterr().out


def test_changes_are_counted():
    """Catches height taken for width, and pictures of the same shape counted as cropped."""
    sizes = torch.tensor([[32, 64], [16, 32], [64, 32], [33, 64], [48, 97]])
    said = data._what_was_changed(sizes, (32, 64), ["a", "b"])
    assert "; 4 resized" in said and "3 of them cropped" in said


def test_hidden_files_are_ignored(tmp_path):
    """Catches .DS_Store read as a picture, and notebooks' checkpoint folders taken for classes."""
    write_own(tmp_path)
    hidden = ("cup/.DS_Store", "pen/Thumbs.db", "tin/desktop.ini", ".ipynb_checkpoints/x", "__MACOSX/y")
    for name in (*hidden, "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not a picture")
    assert data.image_folder(tmp_path, "train", 32).classes == ["cup", "pen", "tin"]


def test_folders_that_cannot_be_used(tmp_path):
    """Each says what is wrong, by name, and what to do."""

    def refused(error, match, path=tmp_path / "own"):
        with pytest.raises(error, match=match):
            data.image_folder(path, "train", 32)

    refused(FileNotFoundError, "no folder.*own")
    write_own(tmp_path / "own")
    refused(ValueError, "00.png is not a folder", tmp_path / "own" / "cup" / "00.png")
    refused(ValueError, "no class folders", tmp_path / "own" / "cup")
    (tmp_path / "own" / "jar").mkdir()
    refused(ValueError, "jar is empty.*delete")
    save_picture(random_pictures(1)[0], tmp_path / "own" / "jar" / "only.png")
    refused(ValueError, "Class jar has 1 pictures")
    save_picture(random_pictures(1)[0], tmp_path / "own" / "jar" / "more" / "0.png")
    refused(ValueError, "more is a folder.*right into jar")
    write_own(tmp_path / "one", classes=("cup",))
    refused(ValueError, r"only one class \(cup\)", tmp_path / "one")
    write_own(tmp_path / "two" / "train")
    write_own(tmp_path / "two" / "test", classes=("cup", "pen", "jar"))
    refused(ValueError, "only one of them has jar, tin", tmp_path / "two")
    with pytest.raises(ValueError, match="'all'"):
        data.image_folder(tmp_path / "own", "all", 32)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets only administrators make links")
def test_broken_link(tmp_path):
    write_own(tmp_path)
    (tmp_path / "pen" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match="gone.png is a broken link"):
        data.image_folder(tmp_path, "train", 32)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, file names are Unicode")
def test_file_name_that_is_not_utf8(tmp_path):
    write_own(tmp_path, per_class=4)
    (tmp_path / "pen" / "00.png").rename(tmp_path / "pen" / os.fsdecode(b"\xff.png"))
    assert len(data.image_folder(tmp_path, "train+validation", 32)) == 9


def test_file_that_is_no_picture(tmp_path):
    """Not a picture, or half of one: the error names the file. Catches zeros in place of the missing half."""
    write_own(tmp_path / "own")
    (tmp_path / "own" / "pen" / "list.txt").write_text("not a picture")
    with pytest.raises(ValueError, match="list.txt cannot be read as a picture"):
        data.image_folder(tmp_path / "own", "train", 32)
    (tmp_path / "own" / "pen" / "list.txt").unlink()
    whole = tmp_path / "whole.jpg"
    save_picture(random_pictures(1, 200, 200)[0], whole)
    (tmp_path / "own" / "pen" / "half.jpg").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ValueError, match="half.jpg cannot be read.*half copied"):
        data.image_folder(tmp_path / "own", "train", 32)
    assert not (tmp_path / "cache").exists()


# One picture


def corner_colours(image):
    return [tuple(image[:, y, x].tolist()) for y, x in ((2, 2), (2, -3), (-3, 2), (-3, -3))]


RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def four_colours(height=40, width=40):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2], pixels[: height // 2, width // 2 :] = RED, GREEN
    pixels[height // 2 :, : width // 2], pixels[height // 2 :, width // 2 :] = BLUE, WHITE
    return Image.fromarray(pixels)


def test_load_picture_turns_it_upright(tmp_path):
    """Orientation 6: the camera was turned, and shown upright the left column is the top row, reversed."""
    exif = Image.Exif()
    exif[0x0112] = 6
    four_colours().save(tmp_path / "turned.png", exif=exif)
    image = data.load_picture(tmp_path / "turned.png", 40)
    assert image.dtype == torch.uint8 and image.shape == (3, 40, 40)
    assert corner_colours(image) == [BLUE, RED, WHITE, GREEN]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_load_picture_lays_it_on_white(mode, tmp_path):
    """Catches convert("RGB"), which shows the hidden colour (mostly black) under transparent pixels."""
    picture = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (0, 0, 10, 20))
    picture.convert(mode).save(tmp_path / "clear.png")
    image = data.load_picture(tmp_path / "clear.png", 20)
    assert (image[:, :, :9] == 0).all() and (image[:, :, 11:] == 255).all()


def test_load_picture_grey(tmp_path):
    """8 and 16 bits; catches 16 bits that are clipped to white."""
    ramp = np.linspace(0, 255, 32).round()[None].repeat(32, 0)
    Image.fromarray(ramp.astype(np.uint8)).save(tmp_path / "8.png")
    Image.fromarray((ramp * 257).astype(np.uint16)).save(tmp_path / "16.png")
    for name in ("8.png", "16.png"):
        image = data.load_picture(tmp_path / name, 32)
        assert image.shape == (3, 32, 32)
        assert torch.equal(image, torch.tensor(ramp).to(torch.uint8).expand(3, -1, -1))


def test_load_picture_of_32_bits(tmp_path):
    """Catches values of 8 or 16 bits, or fractions of 1, that come out black, and a wrap to dark pixels."""
    ramp = torch.arange(32, dtype=torch.int32).expand(32, -1)
    for name, pixels, expected in (
        ("8", 8 * ramp, 8 * ramp),
        ("16", 2048 * ramp, 8 * ramp),
        ("beyond", 70_000 + ramp, 255 + 0 * ramp),
    ):
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{name}.tif")
        image = data.load_picture(tmp_path / f"{name}.tif", 32)
        assert torch.equal(image, expected.to(torch.uint8).expand(3, -1, -1))
    Image.fromarray((ramp / 31).numpy()).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match="float.tif holds floating-point numbers.*8 or 16 bits"):
        data.load_picture(tmp_path / "float.tif", 32)


def test_load_picture_fits_the_shorter_side(tmp_path):
    """Catches stretching, and a crop that is not central, on portrait, landscape and a non-square target."""
    pixels = np.zeros((60, 180, 3), np.uint8)
    pixels[:, 60:120] = RED  # the middle third
    save_picture(pixels, tmp_path / "wide.png")
    save_picture(pixels.transpose(1, 0, 2), tmp_path / "high.png")
    for name in ("wide.png", "high.png"):
        image = data.load_picture(tmp_path / name, 30)
        assert image.shape == (3, 30, 30) and (image[0] > 200).all()
    assert data.load_picture(tmp_path / "wide.png", (20, 60)).shape == (3, 20, 60)
    wide = data.load_picture(tmp_path / "wide.png", (20, 60))
    assert wide[0, 0, 10] == 0 and wide[0, 0, 30] == 255 and wide[0, 0, 50] == 0


def test_pictures_that_cannot_be_loaded(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="There is no picture.*nowhere.jpg"):
        data.load_picture(tmp_path / "nowhere.jpg", 32)
    (tmp_path / "words.jpg").write_text("not a picture")
    with pytest.raises(ValueError, match="words.jpg cannot be read as a picture"):
        data.load_picture(tmp_path / "words.jpg", 32)
    half_a_number = b"Exif\0\0II*\0\x08\0\0"  # Pillow fails with a struct.error
    four_colours().save(tmp_path / "exif.png", exif=half_a_number)
    with pytest.raises(ValueError, match="exif.png cannot be read as a picture"):
        data.load_picture(tmp_path / "exif.png", 32)
    save_picture(random_pictures(1, 100, 100)[0], tmp_path / "huge.png")
    for limit in (4_000, 9_000):  # Pillow refuses twice its limit, and only warns above it
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ValueError, match="huge.png is too large: over .,000 pixels. Make it smaller"):
            data.load_picture(tmp_path / "huge.png", 32)


# Batches


def test_image_data_picks_pictures():
    """Catches masks or labels left behind."""
    drawn = data.shapes("train", 20)
    for indices in (torch.tensor([3, 1]), slice(2, 9, 3), drawn.labels == 4):
        part = drawn[indices]
        for name in ("images", "labels", "masks"):
            assert torch.equal(getattr(part, name), getattr(drawn, name)[indices])
        assert part.classes == drawn.classes and len(part) == len(drawn.labels[indices])
    assert data.ImageData(drawn.images, drawn.labels, drawn.classes)[:3].masks is None
    for index in (3, torch.tensor(3)):  # or the images would be one (C, H, W), and len() would be 3
        with pytest.raises(ValueError, match="gives no batch.*i : i"):
            drawn[index]


@pytest.mark.parametrize("batch, channels", [(1, 1), (7, 3)])
def test_normalize(batch, channels):
    """By hand, per channel; catches mean and deviation swapped or taken in 0..255."""
    images = torch.randint(256, (batch, channels, 4, 6), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3)[:channels], (0.5, 0.6, 0.7)[:channels]
    result = data.normalize(images, mean, std)
    assert result.dtype == torch.float32 and result.shape == images.shape
    for c in range(channels):
        torch.testing.assert_close(result[:, c], (images[:, c].float() / 255 - mean[c]) / std[c])


def test_normalize_refuses():
    """Floats would be divided by 255 twice; one channel and three means would broadcast to three channels."""
    with pytest.raises(ValueError, match="float32"):
        data.normalize(torch.zeros(2, 3, 4, 4), (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match=r"\(3, 4, 4\).*image\[None\]"):  # not "4 channels"
        data.normalize(torch.zeros(3, 4, 4, dtype=torch.uint8), (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match="1 channels.*3 means"):
        data.normalize(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), (0.5,) * 3, (0.5,) * 3)


def every_shift(image, padding):
    """All results that augment may give for one picture, by slicing."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=torch.uint8)
    padded[:, padding : padding + height, padding : padding + width] = image
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            cut = padded[:, top : top + height, left : left + width]
            yield (top, left, False), cut
            yield (top, left, True), cut.flip(2)


@pytest.mark.parametrize("shape, padding", [((1, 3, 5, 9), 2), ((7, 1, 8, 4), 1), ((300, 3, 6, 6), 1)])
def test_augment_shifts_and_mirrors_each_picture(shape, padding):
    """Every result is one of the possible ones; catches one shift for the whole batch, height and width
    swapped, and shifts that are never drawn."""
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator)
    result = data.augment(images, generator, padding)
    assert result.dtype == torch.uint8 and result.shape == images.shape
    found = []
    for image, changed in zip(images, result, strict=True):
        (way,) = [way for way, cut in every_shift(image, padding) if torch.equal(cut, changed)]
        found.append(way)
    if len(found) == 300:  # 18 ways: each one comes up
        assert len(set(found)) == 18
        assert 110 < sum(mirrored for *_, mirrored in found) < 190


def test_augment_takes_chance_from_its_generator_only():
    images = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8)
    state = torch.get_rng_state()
    one, same, other = (data.augment(images, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same) and not torch.equal(one, other)


# Shapes


def test_shapes_come_from_the_seed():
    """Same picture for the same (split, seed, place) at any number; splits and seeds share none."""
    state = torch.get_rng_state()
    few, many = data.shapes("train", 7, seed=5), data.shapes("train", 1203, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(few) == 7 and len(many) == 1203
    for name in ("images", "labels", "masks"):
        assert torch.equal(getattr(few, name), getattr(many, name)[:7])
    others = [data.shapes(split, 500, seed) for split in ("train", "validation", "test") for seed in (0, 1)]
    sets = [as_set(other.images) for other in others]
    assert len(set.union(*sets)) == 6 * 500
    assert not torch.equal(others[0].labels, others[1].labels)


def test_shapes_are_what_they_say():
    drawn = data.shapes("train", 1234)
    assert drawn.images.shape == (1234, 3, 32, 32) and drawn.images.dtype == torch.uint8
    assert drawn.masks.shape == (1234, 32, 32) and drawn.masks.dtype == torch.bool
    assert len(drawn.classes) == 10 and drawn.labels.dtype == torch.int64
    counts = drawn.labels.bincount(minlength=10)
    assert counts.max() - counts.min() <= 1
    assert len(drawn.labels[:1230].view(-1, 10).unique(dim=0)) > 110, "the order of the classes differs"
    pixels = data.shapes("train", 5000).images.float() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(data.SHAPES_MEAN, abs=0.005)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(data.SHAPES_STD, abs=0.005)


def test_shape_masks_lie_on_the_object():
    """Catches rows and columns swapped between picture and mask, and objects like what is behind them."""
    drawn = data.shapes("test", 500)
    pixels, masks = drawn.images.float() / 255, drawn.masks[:, None].float()
    near = torch.nn.functional.max_pool2d(masks, 5, 1, 2) - torch.nn.functional.max_pool2d(masks, 3, 1, 1)
    inside = (pixels * masks).sum((2, 3)) / masks.sum((2, 3))
    outside = (pixels * near).sum((2, 3)) / near.sum((2, 3))
    contrast = (inside - outside).norm(dim=1)
    assert (contrast > 0.2).float().mean() > 0.97
    area = drawn.masks.float().mean((1, 2))
    assert area.min() > 0.02 and area.max() < 0.4
    for side in (drawn.masks[:, 0], drawn.masks[:, -1], drawn.masks[..., 0], drawn.masks[..., -1]):
        assert side.float().mean() < 0.02, "wholly in view"


def test_each_shape_has_its_form():
    """Holes and number of parts, from the masks; catches labels that do not belong to the drawing."""
    drawn = data.shapes("train", 200)
    right = torch.zeros(10)
    for label, mask in zip(drawn.labels.tolist(), drawn.masks.numpy(), strict=True):
        name = drawn.classes[label]
        objects, grounds = 1 + (name == "bars"), 1 + (name == "ring")
        right[label] += parts(mask, diagonal=True) == objects and parts(~mask, diagonal=False) == grounds
    assert (right >= 17).all(), right  # of 20; a sharp tip may lose a pixel


def parts(mask, diagonal):
    """How many connected parts a mask has; pixels that touch at a corner are connected if `diagonal`."""
    steps = [(0, 1), (1, 0), (0, -1), (-1, 0)] + diagonal * [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    left, count = set(zip(*np.nonzero(mask), strict=True)), 0
    while left:
        count, todo = count + 1, [left.pop()]
        while todo:
            y, x = todo.pop()
            for near in ((y + dy, x + dx) for dy, dx in steps):
                if near in left:
                    left.remove(near)
                    todo.append(near)
    return count


def test_shapes_are_not_linearly_separable():
    """Ridge regression on pixels stays near chance; catches a class given away by colour or brightness."""
    train, test = data.shapes("train", 2000), data.shapes("test", 1000)
    x, y = ((part.images.flatten(1).float() / 255 - 0.35) for part in (train, test))
    kernel = x @ x.T + 100 * torch.eye(len(x))
    weights = x.T @ torch.linalg.solve(kernel, torch.nn.functional.one_hot(train.labels, 10).float() - 0.1)
    assert ((y @ weights).argmax(1) == test.labels).float().mean() < 0.35


@pytest.mark.parametrize("arguments", [("all", 10), ("train+validation", 10), ("train", 0)])
def test_shapes_refuse(arguments):
    with pytest.raises(ValueError, match="choose one of|at least 1"):
        data.shapes(*arguments)


def test_import_is_light():
    """Catches a torchvision import at the top: seconds on a slow disk."""
    code = "import sys, vitlib.data; print('torchvision' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
