"""Strong views (fastswa.data.strong) in one launch, a program an image: the same pixels, number for number.

What was drawn for an image is known to the whole program, so that it does that and nothing else; tensor operations do
all fourteen for every image. Neighbours and tables are looked up in the program's own memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastswa.data.strong import ANGLE, FADED, KEPT, MOST_BITS_LOST, OPERATIONS, SHEAR, TRANSLATE
from fastswa.kernels.draws import _empty, _reflected, _uniform
from fastswa.kernels.launch import kernel
from fastswa.operation import operation

_COUNT = tl.constexpr(len(OPERATIONS))
_ANGLE, _SHEAR, _FAR = tl.constexpr(ANGLE), tl.constexpr(SHEAR), tl.constexpr(TRANSLATE)
_FADED, _RANGE, _STEPS = tl.constexpr(FADED), tl.constexpr(KEPT - FADED), tl.constexpr(MOST_BITS_LOST + 1)
_ROTATE, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y = (
    tl.constexpr(OPERATIONS.index(name)) for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
)
_BRIGHTNESS, _CONTRAST, _COLOUR, _SHARPNESS = (
    tl.constexpr(OPERATIONS.index(name)) for name in ("brightness", "contrast", "colour", "sharpness")
)
_SOLARISE, _POSTERISE, _AUTOCONTRAST, _EQUALISE = (
    tl.constexpr(OPERATIONS.index(name)) for name in ("solarise", "posterise", "autocontrast", "equalise")
)


@triton.jit
def _whole(x):
    """To the nearest whole number, halves to the even one; float64, below 2^51."""
    return (x + 6755399441055744.0) - 6755399441055744.0


@triton.jit
def _sixteen(x):
    return _whole(x * 65536.0) * 0.0000152587890625


@triton.jit
def _drawn(number, image, images, words_ptr, draw0, draw1, draw2):
    which = _uniform(number * 2 * images + image, words_ptr, draw0, draw1, draw2)
    strength = _uniform((number * 2 + 1) * images + image, words_ptr, draw0, draw1, draw2)
    return (which * _COUNT).to(tl.int32), strength


@triton.jit
def _moved(which, strength, x, y, height, width):
    """strong._mapped: where the operation takes the pixels at x, y from."""
    if (which >= _ROTATE) & (which <= _TRANSLATE_Y):
        signed = 2.0 * strength.to(tl.float64) - 1.0
        angle = tl.where(which == _ROTATE, signed, 0.0) * _ANGLE
        cosine, sine = _sixteen(tl.cos(angle)), _sixteen(tl.sin(angle))
        shear_x = _sixteen(tl.where(which == _SHEAR_X, signed, 0.0) * _SHEAR)
        shear_y = _sixteen(tl.where(which == _SHEAR_Y, signed, 0.0) * _SHEAR)
        right = _sixteen(tl.where(which == _TRANSLATE_X, signed, 0.0) * (width.to(tl.float64) * _FAR))
        low = _sixteen(tl.where(which == _TRANSLATE_Y, signed, 0.0) * (height.to(tl.float64) * _FAR))
        middle, centre = height.to(tl.float64) * 0.5, width.to(tl.float64) * 0.5
        across, down = x - centre, y - middle
        moved_x = cosine * across - sine * down + (shear_x * y + right + centre)
        moved_y = sine * across + cosine * down + (shear_y * x + low + middle)
        x, y = moved_x, moved_y
    return x, y


@triton.jit
def _mixed(other, own, strength):
    """strong._mixed."""
    kept = _whole((strength.to(tl.float64) * _RANGE + _FADED) * 1048576.0).to(tl.int32)
    return ((other << 20) + kept * (own - other) + 256) >> 20


@triton.jit
def _smoothed(value, place, row, column, height, width):
    """strong.smoothed, of one channel."""
    edge = (row == 0) | (row >= height - 1) | (column == 0) | (column == width - 1)
    # Beside an inner pixel may lie one of the edge: its column's sum is wanted too.
    inner = (row > 0) & (row < height - 1)
    above, below = tl.where(inner, place - width, place), tl.where(inner, place + width, place)
    down = value + tl.gather(value, above, 0) + tl.gather(value, below, 0)
    left, right = tl.where(edge, place, place - 1), tl.where(edge, place, place + 1)
    total = down + tl.gather(down, left, 0) + tl.gather(down, right, 0) + 4 * value
    return tl.where(edge, value, (2 * total + 13) // 26)


@triton.jit
def _stretched(value, inside):
    """strong._autocontrast of one channel."""
    low, high = tl.min(tl.where(inside, value, 255), 0), tl.max(tl.where(inside, value, 0), 0)
    stretched = (value - low) * 255 // tl.maximum(high - low, 1)
    return tl.where(high > low, tl.minimum(tl.maximum(stretched, 0), 255), value)


@triton.jit
def _equalised(value, inside, pixels):
    """strong._equalise of one channel."""
    levels = tl.arange(0, 256)
    histogram = tl.histogram(value, 256, mask=inside)
    high = tl.max(tl.where(inside, value, 0), 0)
    step = (pixels - tl.sum(tl.where(levels == high, histogram, 0), 0)) // 255
    below = tl.cumsum(histogram, 0) - histogram
    table = tl.minimum((step // 2 + below) // tl.maximum(step, 1), 255)
    return tl.gather(tl.where(step > 0, table, levels), value, 0)


@triton.jit
def _recoloured(
    which, strength, red, green, blue, place, row, column, inside, height, width, COLOURED: tl.constexpr
):  # fmt: skip
    """strong.recoloured; grey images are `red`, and the others the same."""
    pixels = height * width
    grey = red
    if COLOURED:
        grey = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    if which == _BRIGHTNESS:
        zero = tl.zeros_like(red)
        red, green, blue = _mixed(zero, red, strength), _mixed(zero, green, strength), _mixed(zero, blue, strength)
    elif which == _CONTRAST:
        mean = (2 * tl.sum(tl.where(inside, grey, 0), 0) + pixels) // (2 * pixels) + tl.zeros_like(red)
        red, green, blue = _mixed(mean, red, strength), _mixed(mean, green, strength), _mixed(mean, blue, strength)
    elif which == _COLOUR:
        red, green, blue = _mixed(grey, red, strength), _mixed(grey, green, strength), _mixed(grey, blue, strength)
    elif which == _SHARPNESS:
        red = _mixed(_smoothed(red, place, row, column, height, width), red, strength)
        if COLOURED:
            green = _mixed(_smoothed(green, place, row, column, height, width), green, strength)
            blue = _mixed(_smoothed(blue, place, row, column, height, width), blue, strength)
    elif which == _SOLARISE:
        limit = (256.0 * strength).to(tl.int32)
        red, green = tl.where(red < limit, red, 255 - red), tl.where(green < limit, green, 255 - green)
        blue = tl.where(blue < limit, blue, 255 - blue)
    elif which == _POSTERISE:
        lost = (strength * _STEPS).to(tl.int32)
        red, green, blue = (red >> lost) << lost, (green >> lost) << lost, (blue >> lost) << lost
    elif which == _AUTOCONTRAST:
        red = _stretched(red, inside)
        if COLOURED:
            green, blue = _stretched(green, inside), _stretched(blue, inside)
    elif which == _EQUALISE:
        red = _equalised(red, inside, pixels)
        if COLOURED:
            green, blue = _equalised(green, inside, pixels), _equalised(blue, inside, pixels)
    return red, green, blue


@triton.jit
def _put(value, channel: tl.constexpr, out_ptr, place, kept, inside, scale_ptr, bias_ptr, CHANNELS: tl.constexpr):
    normal = value.to(tl.float32) * tl.load(scale_ptr + channel) + tl.load(bias_ptr + channel)
    tl.store(out_ptr + place * CHANNELS + channel, tl.where(kept, normal, 0.0), mask=inside)


@kernel(do_not_specialize=[f"{kind}{k}" for kind in ("flip", "shift", "draw", "cut") for k in range(3)])
def _strong_kernel(
    pixels_ptr, index_ptr, out_ptr, words_ptr, scale_ptr, bias_ptr,
    flip0, flip1, flip2, shift0, shift1, shift2, draw0, draw1, draw2, cut0, cut1, cut2,
    translate, side, images, height, width,
    FLIP: tl.constexpr, TRANSLATE: tl.constexpr, DRAWS: tl.constexpr, CUT: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One image: gathered through all that moves pixels, recoloured, cut, normalised."""
    image = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < height * width
    row, column = place // width, place % width
    x, y = column.to(tl.float64) + 0.5, row.to(tl.float64) + 0.5
    for number in tl.static_range(DRAWS):
        which, strength = _drawn(DRAWS - 1 - number, image, images, words_ptr, draw0, draw1, draw2)
        x, y = _moved(which, strength, x, y, height, width)
    within = inside & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    from_row = tl.minimum(tl.maximum(tl.floor(y).to(tl.int32), 0), height - 1)
    from_column = tl.minimum(tl.maximum(tl.floor(x).to(tl.int32), 0), width - 1)
    if FLIP:
        flipped = _uniform(image, words_ptr, flip0, flip1, flip2) < 0.5
        from_column = tl.where(flipped, width - 1 - from_column, from_column)
    if TRANSLATE:
        span = 2.0 * translate + 1.0
        down = (_uniform(image, words_ptr, shift0, shift1, shift2) * span).to(tl.int32) - translate
        across = (_uniform(image + images, words_ptr, shift0, shift1, shift2) * span).to(tl.int32) - translate
        from_row, from_column = _reflected(from_row + down, height), _reflected(from_column + across, width)
    first = (tl.load(index_ptr + image) * height + from_row) * width + from_column
    red = tl.load(pixels_ptr + first * CHANNELS, mask=within, other=0).to(tl.int32)
    green, blue = red, red
    if CHANNELS == 3:
        green = tl.load(pixels_ptr + first * CHANNELS + 1, mask=within, other=0).to(tl.int32)
        blue = tl.load(pixels_ptr + first * CHANNELS + 2, mask=within, other=0).to(tl.int32)
    for number in tl.static_range(DRAWS):
        which, strength = _drawn(number, image, images, words_ptr, draw0, draw1, draw2)
        red, green, blue = _recoloured(
            which, strength, red, green, blue, place, row, column, inside, height, width, CHANNELS == 3
        )
    kept = inside
    if CUT:
        top = (_uniform(image, words_ptr, cut0, cut1, cut2) * height).to(tl.int32) - side // 2
        left = (_uniform(image + images, words_ptr, cut0, cut1, cut2) * width).to(tl.int32) - side // 2
        kept = (row < top) | (row >= top + side) | (column < left) | (column >= left + side)
    out_ptr += image.to(tl.int64) * height * width * CHANNELS
    _put(red, 0, out_ptr, place, kept, inside, scale_ptr, bias_ptr, CHANNELS)
    if CHANNELS == 3:
        _put(green, 1, out_ptr, place, kept, inside, scale_ptr, bias_ptr, CHANNELS)
        _put(blue, 2, out_ptr, place, kept, inside, scale_ptr, bias_ptr, CHANNELS)


@operation("strong_view")
def strong_view(
    pixels: Tensor,
    index: Tensor,
    words: Tensor,
    scale: Tensor,
    shift: Tensor,
    constants: list[int],
    translate: int,
    flip: bool,
    draws: int,
    side: int,
) -> Tensor:
    """Strong views of images pixels[index], (B, C, H, W) with channels last; a square of `side` pixels is cut out.

    `constants` are those of the purposes "flip", "translate", "operations" and "cutout".
    """
    _, height, width, channels = pixels.shape
    out = _empty(pixels, index)
    # No more threads than pixels: each pixel is counted by one.
    block = max(triton.next_power_of_2(height * width), 64)
    # As written, product by product: fused ones would round otherwise than tensor operations do.
    _strong_kernel[(len(index),)](
        pixels, index, out, words, scale, shift, *constants, translate, side, len(index), height, width,
        FLIP=flip, TRANSLATE=translate > 0, DRAWS=draws, CUT=side > 0, CHANNELS=channels, BLOCK=block,
        num_warps=min(max(block // 128, 1), 32), enable_fp_fusion=False,
    )  # fmt: skip
    return out


@strong_view.register_fake
def _(pixels: Tensor, index: Tensor, *others: object) -> Tensor:
    return _empty(pixels, index)
