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
    for one in reversed(draws):
        x, y = _mapped(one.shaped(1, 1), x, y, height, width)
    within = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    rows, columns = y.floor().to(torch.int64), x.floor().to(torch.int64)
    return rows.clamp(0, height - 1), columns.clamp(0, width - 1), within


def _mapped(one: Draw, x: Tensor, y: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where the operation takes the pixels at x, y from; one of its numbers at most is not that of the identity."""
    angle = one.signed("rotate", ANGLE)
    moves = (("shear_x", SHEAR), ("translate_x", TRANSLATE * width), ("shear_y", SHEAR),
             ("translate_y", TRANSLATE * height))  # fmt: skip
    numbers = (angle.cos(), angle.sin(), *(one.signed(*move) for move in moves))
    cosine, sine, shear_x, right, shear_y, low = (_rounded(number, 16) for number in numbers)
    across, down = x - width / 2, y - height / 2
    return (
        cosine * across - sine * down + (shear_x * y + right + width / 2),
        sine * across + cosine * down + (shear_y * x + low + height / 2),
    )


def recoloured(images: Tensor, one: Draw) -> Tensor:
    """The images (B, H, W, C) uint8 after those operations that leave every pixel in its place."""
    found = images
    if images.is_cuda or torch.compiler.is_compiling():
        each = one.shaped(1, 1, 1)
        for name, work in _RECOLOURING.items():
            found = torch.where(each.where(name), work(images, each.strength), found)
        return found
    for name, work in _RECOLOURING.items():
        rows = one.where(name).nonzero().flatten()
        if len(rows):
            changed = work(images[rows], one.strength[rows].view(-1, 1, 1, 1))
            found = found.index_copy(0, rows, changed)
    return found


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
    middle = torch.nn.functional.pad((2 * total + 13) // 26, (0, 0, 1, 1, 1, 1))
    row = torch.arange(height, device=images.device).view(-1, 1, 1)
    column = torch.arange(width, device=images.device).view(-1, 1)
    edge = (row == 0) | (row == height - 1) | (column == 0) | (column == width - 1)
    return torch.where(edge, wide, middle)


def _mixed(other: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """Between `other` and the images, 5% to 95% of the way; uint8 by cutting off the fraction, as Pillow does."""
    # In parts of 2^20; so little is added that only what rounding put below a whole number gets there again.
    kept = torch.round((FADED + (KEPT - FADED) * strength.double()) * 2.0**20).to(torch.int32)
    other, own = other.to(torch.int32), images.to(torch.int32)
    return (((other << 20) + kept * (own - other) + 256) >> 20).to(torch.uint8)


def _brightness(images: Tensor, strength: Tensor) -> Tensor:
    return _mixed(images.new_zeros(()), images, strength)


def _contrast(images: Tensor, strength: Tensor) -> Tensor:
    grey = luminance(images)
    pixels = grey[0].numel()
    mean = (2 * grey.sum(dim=(1, 2)) + pixels) // (2 * pixels)
    return _mixed(mean.view(-1, 1, 1, 1), images, strength)


def _colour(images: Tensor, strength: Tensor) -> Tensor:
    return _mixed(luminance(images)[..., None], images, strength)


def _sharpness(images: Tensor, strength: Tensor) -> Tensor:
    return _mixed(smoothed(images), images, strength)


def _solarise(images: Tensor, strength: Tensor) -> Tensor:
    wide, limit = images.to(torch.int32), (256 * strength).to(torch.int32)
    return torch.where(wide < limit, wide, 255 - wide).to(torch.uint8)


def _posterise(images: Tensor, strength: Tensor) -> Tensor:
    wide, lost = images.to(torch.int32), ((MOST_BITS_LOST + 1) * strength).to(torch.int32)
    return ((wide >> lost) << lost).to(torch.uint8)


def _autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    # Of 32-bit integers: compiled code finds other bounds of 8-bit ones that it has just made (torch 2.13, CPU).
    wide = images.to(torch.int32)
    low, high = wide.amin(dim=(1, 2), keepdim=True), wide.amax(dim=(1, 2), keepdim=True)
    stretched = (wide - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, wide).to(torch.uint8)


def _equalise(images: Tensor, strength: Tensor) -> Tensor:
    """Each value comes equally often, as nearly as can be: a table of 256 entries for each image and channel.

    A step is the number of pixels that one level of the result stands for; the pixels of the highest value do not
    count towards it. Images of fewer than 256 pixels stay as they are: their step is 0.
    """
    count, height, width, channels = images.shape
    wide = images.long()
    first = 256 * torch.arange(count * channels, device=images.device).view(count, 1, 1, channels)
    histogram = torch.zeros(count * channels * 256, dtype=torch.int32, device=images.device)
    ones = torch.ones(images.numel(), dtype=torch.int32, device=images.device)
    histogram = histogram.scatter_add(0, (first + wide).flatten(), ones).view(count, channels, 256)
    step = (height * width - histogram.gather(2, wide.amax(dim=(1, 2))[..., None])) // 255
    below = histogram.cumsum(dim=2, dtype=torch.int32) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    values = torch.arange(256, dtype=torch.int32, device=images.device)
    table = torch.where(step > 0, table, values).to(torch.uint8)
    return table.flatten()[first + wide]


_RECOLOURING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "colour": _colour,
    "sharpness": _sharpness,
    "solarise": _solarise,
    "posterise": _posterise,
    "autocontrast": _autocontrast,
    "equalise": _equalise,
}


def cut_side(height: int, width: int, part: float) -> int:
    """Pixels on a side of the square that is cut out."""
    return round(part * min(height, width))


def uncut(noise: Noise, images: int, height: int, width: int, part: float) -> Tensor:
    """False in a square of `part` of the shorter side about a random pixel, cut off at the edges: (B, 1, H, W)."""
    side = cut_side(height, width, part)
    centre = noise.uniform("cutout", (2, images, 1, 1, 1))
    top = (centre[0] * height).floor() - side // 2
    left = (centre[1] * width).floor() - side // 2
    row = torch.arange(height, device=top.device).view(height, 1)
    column = torch.arange(width, device=top.device)
    return (row < top) | (row >= top + side) | (column < left) | (column >= left + side)
