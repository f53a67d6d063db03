"""Strong views: operations drawn for each image as in RandAugment, batched; what Pillow does, in tensor operations.

An image gets `count` draws from OPERATIONS, each with a magnitude of its own (the ranges are FixMatch's). All draws
that move pixels come first, as one map from places in the view to places in the image, so that they cost one gather;
the others follow in their order. On a CPU each is done to the images that drew it. Where a step is captured or
compiled no shape may depend on what was drawn, and each is done to all; a kernel (kernels/strong.py) spares a GPU that.

Factors are multiples of powers of two, so that every product and sum is exact: whatever order or fusion an engine
computes them in, the same pixels come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fastswa.noise import Noise

OPERATIONS = (
    "identity",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "brightness",
    "contrast",
    "colour",
    "sharpness",
    "solarise",
    "posterise",
    "autocontrast",
    "equalise",
)
ANGLE, SHEAR, TRANSLATE = math.radians(30.0), 0.3, 0.3
FADED, KEPT = 0.05, 0.95
MOST_BITS_LOST = 4


class Draw(NamedTuple):
    """One operation an image: `operation` (B,) int64 numbers OPERATIONS, `strength` (B,) is uniform in [0, 1)."""

    operation: Tensor
    strength: Tensor

    def shaped(self, *places: int) -> Draw:
        """The same with further axes of length 1, to meet pixels."""
        return Draw(self.operation.view(-1, *places), self.strength.view(-1, *places))

    def where(self, name: str) -> Tensor:
        """Where the operation `name` was drawn."""
        return self.operation == OPERATIONS.index(name)

    def signed(self, name: str, reach: float) -> Tensor:
        """Uniform in -reach .. reach where `name` was drawn, 0 elsewhere; float64."""
        return self.where(name) * (2.0 * self.strength.double() - 1.0) * reach


def _rounded(factor: Tensor, bits: int) -> Tensor:
    """To multiples of 2^-bits."""
    return torch.round(factor * 2.0**bits) * 2.0**-bits


def draw(noise: Noise, images: int, count: int) -> list[Draw]:
    """`count` operations for each image, in the order in which they are applied."""
    numbers = noise.uniform("operations", (count, 2, images))
    return [Draw((which * len(OPERATIONS)).to(torch.int64), strength) for which, strength in numbers.unbind()]


def places(draws: list[Draw], height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns (B, H, W) int64 of the image that the view's pixels come from, and which come from within it.

    As Pillow's nearest neighbour: a pixel's centre is mapped, the pixel it falls into is taken. Rotation turns about
    the middle, shears leave the first row or column where it is. Of two moves in a row the second one's border is
    not drawn by the first: the map is composed before anything is looked up.
    """
    device = draws[0].operation.device
    y = torch.arange(height, device=device, dtype=torch.float64).view(1, height, 1) + 0.5
    x = torch.arange(width, device=device, dtype=torch.float64).view(1, 1, width) + 0.5
    (x_by_x, x_by_y, right), (y_by_x, y_by_y, low) = _composed(draws, height, width)
    columns = (x_by_x * x + (x_by_y * y + right)).floor().to(torch.int64)
    rows = (y_by_x * x + (y_by_y * y + low)).floor().to(torch.int64)
    inner_rows, inner_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    return inner_rows, inner_columns, (rows == inner_rows) & (columns == inner_columns)


Map = tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _composed(draws: list[Draw], height: int, width: int) -> Map:
    """Where all draws together take a place (x, y) of the view from: by x, by y and constant for x, then for y.

    Each is (B, 1, 1). Two draws are composed without rounding, as one after the other is computed.
    """
    operations, strengths = (torch.stack(parts)[..., None, None] for parts in zip(*draws, strict=True))
    numbers = _numbers(Draw(operations, strengths), height, width)
    (a, b, c, d, e, f), *others = zip(*(number.unbind() for number in numbers), strict=True)
    for p, q, r, s, t, u in others:
        a, b, c, d, e, f = (
            a * p + b * s,
            a * q + b * t,
            a * r + b * u + c,
            d * p + e * s,
            d * q + e * t,
            d * r + e * u + f,
        )
    return (a, b, c), (d, e, f)


def _numbers(draws: Draw, height: int, width: int) -> tuple[Tensor, ...]:
    """The six numbers of each draw's own map; one of its moves at most is not the identity."""
    angle = draws.signed("rotate", ANGLE)
    moves = (("shear_x", SHEAR), ("translate_x", TRANSLATE * width), ("shear_y", SHEAR),
             ("translate_y", TRANSLATE * height))  # fmt: skip
    numbers = (angle.cos(), angle.sin(), *(draws.signed(*move) for move in moves))
    cosine, sine, shear_x, right, shear_y, low = (_rounded(number, 16) for number in numbers)
    centre, middle = width / 2, height / 2
    still = 1 - cosine
    return (
        *(cosine, shear_x - sine, right + still * centre + sine * middle),
        *(shear_y + sine, cosine, low + still * middle - sine * centre),
    )


def recoloured(images: Tensor, one: Draw) -> Tensor:
    """The images (B, H, W, C) uint8 after those operations that leave every pixel in its place."""
    if images.is_cuda or torch.compiler.is_compiling():
        found, each = images, one.shaped(1, 1, 1)
        for name, other in _MIXED_WITH.items():
            found = torch.where(each.where(name), _mixed(other(images), images, each.strength), found)
        for name, work in _RECOLOURING.items():
            found = torch.where(each.where(name), work(images, each.strength), found)
        return found
    # Those of one operation lie side by side, so that each works on a slice.
    order = one.operation.argsort(stable=True)
    ends = one.operation.bincount(minlength=len(OPERATIONS)).cumsum(0).tolist()
    part = {name: slice(begin, end) for name, begin, end in zip(OPERATIONS, [0, *ends], ends, strict=False)}
    found, strength = images.index_select(0, order), one.strength[order].view(-1, 1, 1, 1)
    mixed = slice(part[next(iter(_MIXED_WITH))].start, part[next(reversed(_MIXED_WITH))].stop)
    others = torch.empty_like(found, dtype=torch.int32)
    for name, other in _MIXED_WITH.items():
        if len(found[part[name]]):
            others[part[name]] = other(found[part[name]])
    found[mixed] = _mixed(others[mixed], found[mixed], strength[mixed])
    for name, work in _RECOLOURING.items():
        if len(found[part[name]]):
            found[part[name]] = work(found[part[name]], strength[part[name]])
    return found.index_select(0, order.argsort())


def luminance(images: Tensor) -> Tensor:
    """(B, H, W) int32: the grey level of RGB images by ITU-R 601, rounded; grey ones as they are."""
    wide = images.to(torch.int32)
    if images.shape[3] == 1:
        return wide[..., 0]
    red, green, blue = wide.unbind(3)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


def smoothed(images: Tensor) -> Tensor:
    """Each pixel, counted five times, averaged with its eight neighbours; the border stays. (B, H, W, C) int16."""
    wide = images.to(torch.int16)
    height, width = images.shape[1:3]
    if min(height, width) < 3:
        return wide
    down = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    total = down[:, :, :-2] + down[:, :, 1:-1] + down[:, :, 2:] + 4 * wide[:, 1:-1, 1:-1]
    # (2 total + 13) // 26: integers up to 6,643 are divided by a product and a shift, which a CPU does faster.
    smooth = wide.clone()
    smooth[:, 1:-1, 1:-1] = ((2 * total.to(torch.int32) + 13) * 40330) >> 20
    return smooth


def _mixed(other: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """Between `other` and the images, 5% to 95% of the way; uint8 by cutting off the fraction, as Pillow does."""
    # In parts of 2^20; so little is added that only what rounding put below a whole number gets there again.
    kept = torch.round((FADED + (KEPT - FADED) * strength.double()) * 2.0**20).to(torch.int32)
    other = other.to(torch.int32)
    between = (images.to(torch.int32) - other).mul_(kept).add_((other << 20) + 256)
    return (between >> 20).to(torch.uint8)


def _black(images: Tensor) -> Tensor:
    return images.new_zeros(())


def _mean_grey(images: Tensor) -> Tensor:
    grey = luminance(images)
    pixels = grey[0].numel()
    mean = (2 * grey.sum(dim=(1, 2)) + pixels) // (2 * pixels)
    return mean.view(-1, 1, 1, 1)


def _grey(images: Tensor) -> Tensor:
    return luminance(images)[..., None]


def _solarise(images: Tensor, strength: Tensor) -> Tensor:
    return torch.where(images < (256 * strength).to(torch.uint8), images, 255 - images)


def _posterise(images: Tensor, strength: Tensor) -> Tensor:
    lost = ((MOST_BITS_LOST + 1) * strength).to(torch.int32)
    return images & ((255 >> lost) << lost).to(torch.uint8)


def _autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    # Of 32-bit integers: compiled code finds other bounds of 8-bit ones that it has just made (torch 2.13, CPU).
    wide = images.to(torch.int32)
    low, high = wide.amin(dim=(1, 2), keepdim=True), wide.amax(dim=(1, 2), keepdim=True)
    stretched = quotient((wide - low) * 255, (high - low).clamp(min=1))
    return torch.where(high > low, stretched.to(torch.uint8), images)


def quotient(dividend: Tensor, divisor: Tensor) -> Tensor:
    """Floats whose whole part is that of 0 to 65,025 divided by 1 to 255.

    None is near a whole number: on a GPU compiled code is off by some last digits when it divides.
    """
    return (dividend + 0.5) / divisor


def _equalise(images: Tensor, strength: Tensor) -> Tensor:
    """Each value comes equally often, as nearly as can be: a table of 256 entries for each image and channel.

    A step is the number of pixels that one level of the result stands for; the pixels of the highest value do not
    count towards it. Images of fewer than 256 pixels stay as they are: their step is 0.
    """
    count, height, width, channels = images.shape
    first = 256 * torch.arange(count * channels, device=images.device).view(count, 1, 1, channels)
    entries = (first + images).flatten()
    histogram = torch.zeros(count * channels * 256, dtype=torch.int32, device=images.device)
    ones = torch.ones(images.numel(), dtype=torch.int32, device=images.device)
    histogram = histogram.scatter_add(0, entries, ones).view(count, channels, 256)
    values = torch.arange(256, dtype=torch.int32, device=images.device)
    # From the histogram: of 8-bit values that it has just made, compiled code finds another maximum (torch 2.13, CPU).
    highest = torch.where(histogram > 0, values, 0).amax(dim=2, keepdim=True)
    step = (height * width - torch.where(values == highest, histogram, 0).sum(dim=2, keepdim=True)) // 255
    below = histogram.cumsum(dim=2, dtype=torch.int32) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, values).to(torch.uint8)
    return table.flatten().gather(0, entries).view(images.shape)


# In the order of OPERATIONS, one after the other.
_MIXED_WITH: dict[str, Callable[[Tensor], Tensor]] = {
    "brightness": _black,
    "contrast": _mean_grey,
    "colour": _grey,
    "sharpness": smoothed,
}
_RECOLOURING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "solarise": _solarise,
    "posterise": _posterise,
    "autocontrast": _autocontrast,
    "equalise": _equalise,
}


def cut_side(height: int, width: int, part: float) -> int:
    """Pixels on a side of the square that is cut out."""
    return round(part * min(height, width))


def cut(views: Tensor, noise: Noise, part: float) -> Tensor:
    """Views (B, C, H, W), channels last in memory, with zeros in a square of `part` of the shorter side.

    It lies about a random pixel of each and is cut off at the edges.
    """
    images = views.permute(0, 2, 3, 1)
    count, height, width, channels = images.shape
    side = cut_side(height, width, part)
    centre = noise.uniform("cutout", (2, count, 1))
    top = (centre[0] * height).floor() - side // 2
    left = (centre[1] * width).floor() - side // 2
    row = torch.arange(height, device=top.device)
    # A row of an image is one of W times C values: a CPU is slow at short ones.
    column = torch.arange(width * channels, device=top.device) // channels
    across = ((row >= top) & (row < top + side)).to(images.dtype)
    along = ((column >= left) & (column < left + side)).to(images.dtype)
    kept = 1.0 - across[:, :, None] * along[:, None, :]
    return (images.flatten(2) * kept).view(images.shape).permute(0, 3, 1, 2)
