"""Changed pictures to train on, a whole batch at a time (lesson 07).

Every picture gets its own draw. All chance comes from the generator (on the CPU) that is passed in; the drawn
numbers then move to where the pictures are, so that a run draws the same on every device.
Order: trivial_augment on uint8 pixels, `vitlib.data.normalize`, random_erasing, then mixup or cutmix.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# --- one operation a picture --------------------------------------------------------------------------------


def trivial_augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Change every picture by one of OPERATIONS, drawn with equal chances, at a strength drawn uniformly.

    images: uint8 (B, C, H, W) of one channel or three, and so is the result. Raises ValueError for others.
    Strengths lie in the paper's wide range, anywhere in it, where the paper takes one of 31 steps. That range
    destroys some pictures: a shift by 32 pixels leaves nothing of a CIFAR-10 picture.
    Source: Müller & Hutter 2021, "TrivialAugment", arXiv:2103.10158, algorithm 1.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            "trivial_augment() takes uint8 pictures (B, C, H, W) of one channel or three, got "
            f"{images.dtype} of shape {tuple(images.shape)}. Call it before normalize()."
        )
    kind = torch.randint(len(OPERATIONS), (len(images),), generator=generator)
    level = torch.rand(len(images), 1, 1, 1, generator=generator)
    result = images.clone()
    for number, (operation, low, high) in enumerate(OPERATIONS.values()):
        chosen = (kind == number).nonzero().flatten()
        strength = low + (high - low) * level[chosen]
        chosen, strength = chosen.to(images.device), strength.to(images.device)
        result[chosen] = operation(images[chosen], strength)
    return result


# Each operation below takes uint8 (n, C, H, W) and strengths (n, 1, 1, 1), and gives uint8 (n, C, H, W).

# A new value for every pixel, which depends on its old value.


def identity(images, strength):
    return images


def autocontrast(images, strength):
    """Stretch every channel, so that its darkest pixel becomes 0 and its brightest 255."""
    low, high = images.amin((2, 3), keepdim=True).float(), images.amax((2, 3), keepdim=True).float()
    stretched = to_pixels((images - low) * (255 / (high - low)))
    return torch.where(high > low, stretched, images)


def equalize(images, strength):
    """Give all levels about the same number of pixels: a pixel's value is how many of its channel are darker.

    In whole steps, as in Pillow; a channel with too few pixels for that stays as it is.
    """
    pixels = images.flatten(2).long()
    count = pixels.new_zeros(*pixels.shape[:2], 256).scatter_add_(2, pixels, torch.ones_like(pixels))
    darker = count.cumsum(2) - count  # than each of the 256 values
    brightest = count.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255  # so many pixels a level
    levels = ((darker + step // 2) // step.clamp(min=1)).clamp(max=255)
    result = torch.where(step > 0, levels.gather(2, pixels), pixels)
    return result.to(torch.uint8).view(images.shape)


def solarize(images, threshold):
    """Turn bright into dark from the threshold on."""
    return torch.where(images >= threshold, 255 - images, images)


def posterize(images, bits):
    """Keep only the first bits of the eight: fewer shades."""
    step = (2 ** (8 - bits.round())).to(torch.uint8)
    return images // step * step


# A blend with a poorer picture: factor 0 is that one, 1 the picture as it is, 2 as far on the other side.


def blend(images, poorer, factor):
    return to_pixels(poorer + factor * (images - poorer))


def to_pixels(values):
    return values.round().clamp(0, 255).to(torch.uint8)


def gray(images):
    """Brightness as the eye weighs red, green and blue (ITU-R BT.601): (n, 1, H, W)."""
    if images.shape[1] == 1:
        return images.float()
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(3, 1, 1)
    return (weights * images).sum(1, keepdim=True)


def brightness(images, factor):
    return blend(images, torch.zeros_like(factor), factor)


def color(images, factor):
    return blend(images, gray(images), factor)


def contrast(images, factor):
    return blend(images, gray(images).mean((1, 2, 3), keepdim=True), factor)


def sharpness(images, factor):
    """The poorer picture is blurred: each pixel five times and its eight neighbours once; the rim stays."""
    poorer = images.float()
    rows = poorer[..., :-2, :] + poorer[..., 1:-1, :] + poorer[..., 2:, :]
    nine = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    poorer[..., 1:-1, 1:-1] = (nine + 4 * poorer[..., 1:-1, 1:-1]) / 13
    return blend(images, poorer, factor)


# Other places: each pixel of the result says from which point of the picture it comes.


def pixel_centres(images):
    """(y, x) of the middle of every pixel, in pixels from the top left corner: (H, 1) and (W,)."""
    height, width = images.shape[2:]
    y, x = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    return y[:, None] + 0.5, x + 0.5


def take(images, y, x):
    """The pixel in which the point (y, x) lies, and black where there is none."""
    height, width = images.shape[2:]
    row, column = y.floor().long(), x.floor().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)  # (n, 1, H, W)
    place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)  # in the flattened picture
    place = place.expand(images.shape).flatten(2)
    return images.flatten(2).gather(2, place).view(images.shape) * inside


def rotate(images, degrees):
    """Counter-clockwise, about the middle."""
    height, width = images.shape[2:]
    y, x = pixel_centres(images)
    y, x, angle = y - height / 2, x - width / 2, degrees.deg2rad()
    sine, cosine = angle.sin(), angle.cos()
    return take(images, sine * x + cosine * y + height / 2, cosine * x - sine * y + width / 2)


def shear_x(images, slope):
    y, x = pixel_centres(images)
    return take(images, y, x + slope * y)


def shear_y(images, slope):
    y, x = pixel_centres(images)
    return take(images, y + slope * x, x)


def translate_x(images, shift):
    y, x = pixel_centres(images)
    return take(images, y, x - shift)


def translate_y(images, shift):
    y, x = pixel_centres(images)
    return take(images, y - shift, x)


# With the lowest and the highest strength.
OPERATIONS = {
    "identity": (identity, 0, 0),
    "autocontrast": (autocontrast, 0, 0),
    "equalize": (equalize, 0, 0),
    "solarize": (solarize, 0, 256),
    "posterize": (posterize, 2, 8),
    "brightness": (brightness, 0.01, 2),
    "color": (color, 0.01, 2),
    "contrast": (contrast, 0.01, 2),
    "sharpness": (sharpness, 0.01, 2),
    "rotate": (rotate, -135, 135),  # degrees
    "shear_x": (shear_x, -0.99, 0.99),  # pixels to the side for each pixel down
    "shear_y": (shear_y, -0.99, 0.99),
    "translate_x": (translate_x, -32, 32),  # pixels
    "translate_y": (translate_y, -32, 32),
}


# --- rectangles and mixtures --------------------------------------------------------------------------------


def random_erasing(images: Tensor, generator: torch.Generator, probability=0.25, area=(0.02, 0.33)) -> Tensor:
    """Cover a rectangle in about this share of the pictures: size, form and place drawn for each.

    images: floats (B, C, H, W) from normalize(), where 0 is the mean colour of the data: that is the cover.
    area: the least and the greatest share of the picture that is covered. The sides are up to 3.3 : 1.
    Returns the same type and shape. Raises ValueError for uint8 pixels.
    Source: Zhong et al. 2017, "Random Erasing Data Augmentation", arXiv:1708.04896, algorithm 1.
    """
    check_normalized("random_erasing", images)
    height, width = images.shape[2:]
    draws = torch.rand(5, len(images), 1, 1, 1, generator=generator).to(images.device)
    chance, level, form, down, right = draws
    pixels = height * width * (area[0] + (area[1] - area[0]) * level)
    ratio = 3.3 ** (2 * form - 1)  # from flat, 1 : 3.3, to tall, 3.3 : 1
    high = (pixels * ratio).sqrt().clamp(max=height).maximum(pixels / width)  # so that it fits in
    wide = pixels / high
    middle = (high / 2 + (height - high) * down, wide / 2 + (width - wide) * right)
    return images.masked_fill(rectangle(images, middle, (high, wide)) & (chance < probability), 0)


def mixup(images: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator, alpha: float):
    """Blend every picture with its neighbour in the batch, and their labels in the same shares.

    images: floats (B, C, H, W) from normalize(). labels: int64 (B,). The share λ that a picture keeps comes
    from Beta(alpha, alpha), for each picture anew, so that every step sees the whole range of mixtures. The
    neighbour is a random partner, since training batches are in random order.
    Returns images of the same type and shape, and labels float32 (B, num_classes) for cross_entropy.
    Raises ValueError for uint8 pixels. Source: Zhang et al. 2017, "mixup", arXiv:1710.09412, section 2.
    """
    check_normalized("mixup", images)
    share = draw_shares(len(images), alpha, generator).to(images)
    mixed = share * images + (1 - share) * images.roll(1, 0)
    return mixed, mix_labels(labels, num_classes, share)


def cutmix(images: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator, alpha: float):
    """Paste a rectangle of its neighbour in the batch into every picture; labels follow the area.

    The rectangle has the picture's form and the share 1 - λ of its area, about a random middle; what lies
    outside the picture is cut off. The labels count the pixels that were really pasted.
    Arguments, results, errors and partners as in mixup.
    Source: Yun et al. 2019, "CutMix", arXiv:1905.04899, section 3.1.
    """
    check_normalized("cutmix", images)
    height, width = images.shape[2:]
    side = (1 - draw_shares(len(images), alpha, generator)).sqrt().to(images.device)
    down, right = torch.rand(2, len(images), 1, 1, 1, generator=generator).to(images.device)
    pasted = rectangle(images, (height * down, width * right), (height * side, width * side))
    share = 1 - pasted.float().mean((1, 2, 3), keepdim=True)
    return torch.where(pasted, images.roll(1, 0), images), mix_labels(labels, num_classes, share)


def draw_shares(number, alpha, generator):
    """λ from Beta(alpha, alpha): (number, 1, 1, 1). torch.distributions.Beta takes no generator."""
    seed = torch.randint(2**63 - 1, (), generator=generator).item()
    shares = np.random.default_rng(seed).beta(alpha, alpha, (number, 1, 1, 1))
    return torch.from_numpy(shares).float()


def mix_labels(labels, num_classes, share):
    own = F.one_hot(labels, num_classes).float()
    share = share.flatten(1).float()
    return share * own + (1 - share) * own.roll(1, 0)


def rectangle(images, middle, size):
    """True where a pixel's centre lies inside: (B, 1, H, W). middle is (y, x), size (height, width)."""
    y, x = pixel_centres(images)
    return ((y - middle[0]).abs() < size[0] / 2) & ((x - middle[1]).abs() < size[1] / 2)


def check_normalized(name, images):
    if not images.is_floating_point() or images.ndim != 4:
        raise ValueError(
            f"{name}() takes a batch of normalized floats (B, C, H, W), got {images.dtype} of shape "
            f"{tuple(images.shape)}. Call normalize() before."
        )
