"""vitlib.augmentation: operations against torchvision's, shares counted in pixels, one draw a picture."""

import math

import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from vitlib import augmentation
from vitlib.augmentation import OPERATIONS, cutmix, mixup, random_erasing, trivial_augment

SHAPES = [(1, 3, 32, 32), (7, 3, 20, 33), (7, 1, 31, 12)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_pixels(shape, seed=0):
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded(seed))


def random_floats(shape, seed=0):
    return torch.randn(shape, generator=seeded(seed))


# One operation a picture


def affine(image, translate=(0, 0), shear=(0.0, 0.0)):
    degrees = [math.degrees(math.atan(slope)) for slope in shear]
    return reference.affine(image, 0.0, list(translate), 1.0, degrees, center=[0.0, 0.0])


# torchvision's functions for one picture and one strength. "exact": the same uint8 pixels. "rounded": there
# it truncates uint8 pixels, so it gets floats in 0..1, and ours must be its result, rounded to a whole level.
REFERENCE = {
    "identity": ("exact", lambda image, _: image),
    "autocontrast": ("rounded", lambda image, _: reference.autocontrast(image)),
    "equalize": ("exact", lambda image, _: reference.equalize(image)),
    "solarize": ("exact", lambda image, threshold: reference.solarize(image, min(threshold, 255))),
    "posterize": ("exact", lambda image, bits: reference.posterize(image, round(bits))),
    "brightness": ("rounded", reference.adjust_brightness),
    "color": ("rounded", reference.adjust_saturation),
    "contrast": ("rounded", reference.adjust_contrast),
    "sharpness": ("rounded", reference.adjust_sharpness),
    "rotate": ("exact", reference.rotate),
    "shear_x": ("exact", lambda image, slope: affine(image, shear=(slope, 0.0))),
    "shear_y": ("exact", lambda image, slope: affine(image, shear=(0.0, slope))),
    "translate_x": ("exact", lambda image, shift: affine(image, translate=(round(shift), 0))),
    "translate_y": ("exact", lambda image, shift: affine(image, translate=(0, round(shift)))),
}


@pytest.mark.parametrize("shape", [(24, 3, 32, 32), *SHAPES])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_that_of_torchvision(name, shape):
    """Catches uint8 that wraps around, height and width swapped, one strength for the whole batch, a turn to
    the other side, wrong weights of red, green and blue, statistics of the batch instead of the picture.

    Half a level is rounding; 0.03 more, since torchvision weighs red with 0.2989, where the norm has 0.299.
    """
    operation, low, high = OPERATIONS[name]
    kind, expected = REFERENCE[name]
    images = random_pixels(shape)
    images[-1] = images[-1] // 3 + 60  # a flat picture, or autocontrast has nothing to do
    strength = low + (high - low) * torch.rand(len(images), 1, 1, 1, generator=seeded(1))
    result = operation(images, strength)
    assert result.dtype == torch.uint8 and result.shape == images.shape
    scale = 255 if kind == "rounded" else 1
    pixels = images / 255 if kind == "rounded" else images
    wanted = torch.stack([scale * expected(pixels[i], strength[i].item()) for i in range(len(images))])
    wrong = (result - wanted.float()).abs() > (0.53 if kind == "rounded" else 0)
    # A point may lie so close to the border of two pixels that the order of the sums decides between them.
    assert wrong.float().mean() <= (1e-3 if name in ("rotate", "shear_x", "shear_y") else 0)


@pytest.mark.parametrize("value", [0, 7, 255])
def test_operations_on_pictures_of_one_colour(value):
    """Catches 0 / 0 in autocontrast and equalize. Two pixels high, so that nothing has eight neighbours."""
    images = torch.full((2, 3, 2, 9), value, dtype=torch.uint8)
    for name in ("identity", "autocontrast", "equalize", "color", "contrast", "sharpness"):
        operation, low, high = OPERATIONS[name]
        assert torch.equal(operation(images, torch.tensor([low, high]).view(2, 1, 1, 1)), images), name


def test_equalize_spreads_the_levels():
    """As many pixels of every level, wherever the levels lay before."""
    images = (torch.arange(1024).view(1, 1, 32, 32) // 16 + 100).to(torch.uint8)  # 64 levels close together
    result = augmentation.equalize(images, None)
    assert result.min() == 0 and result.max() > 240
    assert result.unique().diff().float().std() < 1


def test_each_picture_gets_its_own_operation_and_strength(monkeypatch):
    """Catches one draw for the batch, a strength that two pictures share, results at the places of other
    pictures, operations that are never drawn, and ends of the range that are not reached.

    The four operations here write their strength, from 0 up, 1000 up, 2000 up and 3000 up, into the second
    and third channel of a picture, whose first says which one it is.
    """

    def write(images, strength):
        return torch.cat([images[:, :1], strength // 256, strength % 256], dim=1).to(torch.uint8)

    operations = {low: (write, low, low + 1000) for low in (0, 1000, 2000, 3000)}
    monkeypatch.setattr(augmentation, "OPERATIONS", operations)
    images = torch.arange(200, dtype=torch.uint8).view(200, 1, 1, 1).repeat(1, 3, 1, 1)
    for seed in range(10):
        place, high, low = trivial_augment(images, seeded(seed)).flatten(1).long().unbind(1)
        assert torch.equal(place, torch.arange(200))
        strength = 256 * high + low
        assert len((strength % 1000).unique()) > 165  # of 200 drawn from 1000: 181 on average
        assert (strength // 1000).bincount(minlength=4).min() > 25
        assert (strength // 100 % 10).bincount(minlength=10).min() > 5


@pytest.mark.parametrize("shape", SHAPES)
def test_trivial_augment_keeps_type_shape_and_its_argument(shape):
    """Catches an operation that writes into the pictures, which are the training set or a part of it."""
    images = random_pixels(shape)
    before = images.clone()
    results = [trivial_augment(images, seeded(seed)) for seed in range(60)]
    assert all(result.dtype == torch.uint8 and result.shape == shape for result in results)
    assert torch.equal(images, before)
    assert len({result.numpy().tobytes() for result in results}) > 40


def test_trivial_augment_takes_any_memory_layout():
    """Catches a view() that only fits pictures whose rows follow each other in memory."""
    images = random_pixels((60, 20, 33, 3)).permute(0, 3, 1, 2)
    assert torch.equal(trivial_augment(images, seeded()), trivial_augment(images.contiguous(), seeded()))


@pytest.mark.parametrize(
    "shape, dtype",
    [((2, 3, 8, 8), torch.float32), ((3, 8, 8), torch.uint8), ((2, 4, 8, 8), torch.uint8)],
)
def test_trivial_augment_refuses(shape, dtype):
    """Normalized floats would come out black, and four channels have no colour."""
    images = torch.zeros(shape, dtype=dtype)
    with pytest.raises(ValueError, match=r"uint8 .*got torch\.\w+ of shape \(.*before normalize"):
        trivial_augment(images, seeded())


# Rectangles


def box(mask):
    """(top, left, height, width) of the true pixels of (H, W), which must fill a rectangle."""
    rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
    assert mask.sum() == len(rows) * len(columns) == (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return rows[0].item(), columns[0].item(), len(rows), len(columns)


def test_random_erasing_covers_a_rectangle():
    """Catches one rectangle for the batch, a form measured in shares of the sides, an area of a cut-off
    rectangle, sides swapped, and places that never reach the rim."""
    height, width = 40, 60
    images = random_floats((2000, 3, height, width)).abs() + 1  # no pixel is 0
    result = random_erasing(images, seeded(1), probability=1, area=(0.1, 0.5))
    covered = result == 0
    assert torch.equal(covered[:, 0], covered[:, 1]) and torch.equal(covered[:, 0], covered[:, 2])
    assert torch.equal(torch.where(covered, 0, images), result)
    top, left, high, wide = torch.tensor([box(mask[0]) for mask in covered]).unbind(1)
    share = covered[:, 0].float().mean((1, 2))
    assert 0.085 < share.min() < 0.12 and 0.48 < share.max() < 0.52  # a pixel more or less on each side
    assert abs(share.mean() - 0.3) < 0.01
    ratio = high / wide
    assert 0.25 < ratio.min() < 0.37 and 2.6 < ratio.max() < 3.9  # up to 3.3 with a pixel more or less
    assert abs(ratio.log().median()) < 0.12, "as often tall as flat, where both fit in"
    for gap in (top, left, height - top - high, width - left - wide):
        assert gap.min() == 0
    assert len(set(zip(top.tolist(), left.tolist(), high.tolist(), wide.tolist()))) > 1800


@pytest.mark.parametrize("probability", [0, 0.25, 1])
def test_random_erasing_covers_so_many(probability):
    """Catches `>` for `<`, and one throw for the whole batch."""
    result = random_erasing(torch.ones(1000, 1, 16, 16), seeded(), probability)
    share = (result == 0).flatten(1).any(1).float().mean().item()
    assert share == probability if probability in (0, 1) else abs(share - probability) < 0.05


# Mixtures


@pytest.mark.parametrize("shape", [(1, 32, 32), (7, 15, 22), (64, 9, 9)])
@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_labels_are_mixed_as_the_pixels(mix, shape):
    """Pictures of class k have ones in channel k alone, so that a channel's mean is its class's share.

    Catches labels with λ where the rectangle was cut off at the rim, shares of the wrong partner, λ and 1 - λ
    swapped, and two partners of one class that count once.
    """
    labels = torch.randint(5, shape[:1], generator=seeded(2))
    images = torch.nn.functional.one_hot(labels, 5)[:, :, None, None].expand(-1, -1, *shape[1:]).float()
    for seed in range(5):
        mixed, soft = mix(images, labels, 5, seeded(seed), alpha=1.0)
        assert soft.shape == (len(labels), 5) and soft.dtype == torch.float32
        torch.testing.assert_close(soft, mixed.mean((2, 3)), rtol=0, atol=1e-6)
        torch.testing.assert_close(soft.sum(1), torch.ones(len(labels)), rtol=0, atol=1e-6)
    if len(labels) == 1:  # its own neighbour
        torch.testing.assert_close(mixed, images)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_come_from_beta(alpha):
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)). Catches one share for the batch, and Beta(alpha, 1)."""
    images = torch.eye(2).repeat(2000, 1).view(4000, 2, 1, 1)
    _, soft = mixup(images, torch.arange(4000) % 2, 2, seeded(), alpha)
    share = soft[torch.arange(4000), torch.arange(4000) % 2]
    assert abs(share.mean() - 0.5) < 0.03
    assert abs(share.var() * 4 * (2 * alpha + 1) - 1) < 0.1


@pytest.mark.parametrize("shape", [(7, 3, 20, 33), (16, 1, 8, 8)])
def test_mixup_is_the_line_between_two_pictures(shape):
    """Catches a blend of pixels from different places, and one that leaves the range of the two."""
    images, labels = random_floats(shape), torch.arange(shape[0])
    mixed, soft = mixup(images, labels, shape[0], seeded(), alpha=0.8)
    torch.testing.assert_close(mixed, torch.einsum("bk,kchw->bchw", soft, images))
    other = images.roll(1, 0)
    low, high = torch.minimum(images, other), torch.maximum(images, other)
    assert (mixed >= low - 1e-6).all() and (mixed <= high + 1e-6).all()


def test_cutmix_pastes_a_rectangle_of_the_pictures_form():
    """Catches one rectangle for the batch, sides swapped, a side of 1 - λ instead of its root, pixels that
    move, and rectangles that never reach the rim."""
    height, width = 40, 20
    images = random_floats((1000, 2, height, width))
    mixed, _ = cutmix(images, torch.zeros(1000, dtype=torch.long), 1, seeded(), alpha=1.0)
    pasted = mixed != images
    assert torch.equal(pasted[:, 0], pasted[:, 1])
    assert torch.equal(torch.where(pasted, images.roll(1, 0), images), mixed)
    boxes = torch.tensor([box(mask[0]) for mask in pasted if mask.any()])
    assert len(boxes) > 950 and len(boxes.unique(dim=0)) > 800
    top, left, high, wide = boxes.unbind(1)
    for gap in (top, left, height - top - high, width - left - wide):
        assert gap.min() == 0
    whole = (top > 0) & (left > 0) & (top + high < height) & (left + wide < width)
    assert whole.sum() > 100
    assert ((high / height - wide / width)[whole].abs() < 1 / height + 1 / width).all()
    # Of a side s, s - s² / 4 is left in the mean after the rim has cut it off. With alpha 1, s² is uniform:
    # (s - s² / 4)² is 1/2 - 1/5 + 1/48 in the mean.
    assert abs(pasted.float().mean() - 0.321) < 0.02


# All of them

CALLS = {
    "trivial_augment": trivial_augment,
    "random_erasing": lambda pixels, generator: random_erasing(pixels / 255, generator),
    "mixup": lambda pixels, generator: mixup(pixels / 255, labels_on(pixels.device), 2, generator, 0.8)[0],
    "cutmix": lambda pixels, generator: cutmix(pixels / 255, labels_on(pixels.device), 2, generator, 1.0)[0],
}


def labels_on(device):
    return (torch.arange(16) % 2).to(device)


@pytest.mark.parametrize("name", CALLS)
def test_chance_comes_from_the_generator_only(name):
    """Catches a draw from a global generator: a resumed run would then go another way."""
    pixels = random_pixels((16, 3, 12, 10))
    state = torch.get_rng_state()
    one, same, other = (CALLS[name](pixels, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("name", CALLS)
def test_any_device(name):
    """Catches drawn numbers or coordinates that stay on the CPU. The device "meta" computes shapes only."""
    pixels = random_pixels((16, 3, 12, 10)).to("meta")
    assert CALLS[name](pixels, seeded()).device == pixels.device


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_floats_keep_type_shape_and_the_argument(shape, dtype):
    images, labels = random_floats(shape).to(dtype), torch.zeros(shape[0], dtype=torch.long)
    before = images.clone()
    mixed, pasted = mixup(images, labels, 2, seeded(), 0.8), cutmix(images, labels, 2, seeded(), 1.0)
    for result in (random_erasing(images, seeded(), 1), mixed[0], pasted[0]):
        assert result.dtype == dtype and result.shape == shape
    assert torch.equal(images, before) and mixed[1].dtype == pasted[1].dtype == torch.float32


@pytest.mark.parametrize("images", [random_pixels((2, 3, 8, 8)), torch.zeros(3, 8, 8)])
def test_floats_are_asked_for(images):
    """In uint8 pixels 0 is black, not the mean; a mixture of them would go into the model as it is."""
    labels = torch.tensor([0, 1])
    for name, call in {
        "random_erasing": lambda: random_erasing(images, seeded()),
        "mixup": lambda: mixup(images, labels, 2, seeded(), 1.0),
        "cutmix": lambda: cutmix(images, labels, 2, seeded(), 1.0),
    }.items():
        with pytest.raises(ValueError, match=rf"{name}\(\) takes .*got torch\..*normalize\(\) before"):
            call()
