"""The numbers of fastswa.noise, and views and dropout made of them, each in one pass.

Drawn one integer operation a kernel they are a third of a captured step. A purpose's constants are three integers, the
step's two words lie on the device; `_bits` is `Noise.bits` at one position, and positions count as there: in the order
(N, C, H, W), whatever the order in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from fastswa.kernels.launch import kernel
from fastswa.operation import operation

_BLOCK = 1024


@triton.jit
def _bits(position, words_ptr, offset, multiplier, key):
    offset = (tl.load(words_ptr) ^ offset).to(tl.uint32, bitcast=True)
    key = (tl.load(words_ptr + 1) ^ key).to(tl.uint32, bitcast=True)
    x = (position.to(tl.uint32) + offset) * multiplier.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ key
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def _uniform(position, words_ptr, offset, multiplier, key):
    return (_bits(position, words_ptr, offset, multiplier, key) >> 8).to(tl.float32) * 5.9604644775390625e-08


@kernel(always=True, do_not_specialize=["offset", "multiplier", "key"])
def _uniform_kernel(out_ptr, words_ptr, offset, multiplier, key, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, _uniform(place, words_ptr, offset, multiplier, key), mask=place < size)


@kernel(do_not_specialize=["offset", "multiplier", "key"])
def _dropout_kernel(
    x_ptr, y_ptr, words_ptr, offset, multiplier, key, p, scale, size, channels, pixels,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x where the number at its position is at least p, times `scale`; zero elsewhere."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    position = place
    if LAST:
        pixel = place // channels
        position = ((pixel // pixels) * channels + place % channels) * pixels + pixel % pixels
    kept = _uniform(position, words_ptr, offset, multiplier, key) >= p
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, tl.where(kept, x * scale, 0.0).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _reflected(position, size):
    """A position beyond an edge mirrored back; the border pixel is not repeated."""
    return (size - 1) - tl.abs((size - 1) - tl.abs(position))


@kernel(do_not_specialize=[f"{kind}{k}" for kind in ("flip", "shift", "radius", "angle") for k in range(3)])
def _view_kernel(
    pixels_ptr, index_ptr, out_ptr, words_ptr, scale_ptr, bias_ptr,
    flip0, flip1, flip2, shift0, shift1, shift2, radius0, radius1, radius2, angle0, angle1, angle2,
    noise, translate, images, height, width, channels,
    FLIP: tl.constexpr, TRANSLATE: tl.constexpr, NOISE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One value of a view: where it comes from, normalised, and noise added (log and cos as torch computes them)."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < images * height * width * channels
    channel, rest = place % channels, place // channels
    column, rest = rest % width, rest // width
    row, image = rest % height, rest // height
    position = ((image * channels + channel) * height + row) * width + column
    if FLIP:
        column = tl.where(_uniform(image, words_ptr, flip0, flip1, flip2) < 0.5, width - 1 - column, column)
    if TRANSLATE:
        span = 2.0 * translate + 1.0
        down = (_uniform(image, words_ptr, shift0, shift1, shift2) * span).to(tl.int32) - translate
        across = (_uniform(image + images, words_ptr, shift0, shift1, shift2) * span).to(tl.int32) - translate
        row, column = _reflected(row + down, height), _reflected(column + across, width)
    number = tl.load(index_ptr + image, mask=inside, other=0)
    pixel = ((number * height + row) * width + column) * channels + channel
    value = tl.load(pixels_ptr + pixel, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(scale_ptr + channel, mask=inside, other=0.0)
    value += tl.load(bias_ptr + channel, mask=inside, other=0.0)
    if NOISE:
        radius = _uniform(position, words_ptr, radius0, radius1, radius2) + 2.9802322387695312e-08
        angle = _uniform(position, words_ptr, angle0, angle1, angle2) * 6.283185307179586
        value += noise * (tl.sqrt(-2.0 * libdevice.log(radius)) * libdevice.cos(angle))
    tl.store(out_ptr + place, value.to(out_ptr.dtype.element_ty), mask=inside)


def _last(x: Tensor) -> bool:
    """Whether x lies in memory with its channels last; its positions then do not count as its places do."""
    return x.dim() == 4 and not x.is_contiguous()


@operation("uniform")
def uniform(words: Tensor, constants: list[int], size: int) -> Tensor:
    """`Noise.uniform` of a purpose, in 32 bits: (size,)."""
    out = torch.empty(size, dtype=torch.float32, device=words.device)
    _uniform_kernel[(triton.cdiv(size, _BLOCK),)](out, words, *constants, size, BLOCK=_BLOCK, num_warps=4)
    return out


@uniform.register_fake
def _(words: Tensor, constants: list[int], size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=words.device)


@operation("dropout", differentiable=True)
def dropout(x: Tensor, words: Tensor, constants: list[int], p: float) -> Tensor:
    """`Noise.dropout` for a dense x, in the purpose's constants; the gradient is the same function of its own."""
    y = torch.empty_like(x)
    channels, pixels = (x.shape[1], x.shape[2] * x.shape[3]) if _last(x) else (1, 1)
    _dropout_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
        x, y, words, *constants, p, 1.0 / (1.0 - p), x.numel(), channels, pixels,
        LAST=_last(x), BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return y


@dropout.register_fake
def _(x: Tensor, words: Tensor, constants: list[int], p: float) -> Tensor:
    return torch.empty_like(x)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, words, ctx.constants, ctx.p = inputs
    ctx.last = _last(x)
    ctx.save_for_backward(words)


def _backward(ctx, dy: Tensor):  # type: ignore[no-untyped-def]
    dy = dy.contiguous(memory_format=torch.channels_last) if ctx.last else dy.contiguous()
    return dropout(dy, *ctx.saved_tensors, ctx.constants, ctx.p), None, None, None


dropout.register_autograd(_backward, setup_context=_save)


@operation("weak_view")
def weak_view(
    pixels: Tensor,
    index: Tensor,
    words: Tensor,
    scale: Tensor,
    shift: Tensor,
    constants: list[int],
    translate: int,
    flip: bool,
    noise: float,
) -> Tensor:
    """Flipped, translated, normalised and noisy images pixels[index], (B, C, H, W) with channels last.

    `constants` are those of the purposes "flip", "translate", "gaussian/radius" and "gaussian/angle".
    """
    _, height, width, channels = pixels.shape
    out = _empty(pixels, index)
    _view_kernel[(triton.cdiv(out.numel(), _BLOCK),)](
        pixels, index, out, words, scale, shift, *constants, noise, translate, len(index), height, width, channels,
        FLIP=flip, TRANSLATE=translate > 0, NOISE=noise > 0, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


@weak_view.register_fake
def _(pixels: Tensor, index: Tensor, *others: object) -> Tensor:
    return _empty(pixels, index)


def _empty(pixels: Tensor, index: Tensor) -> Tensor:
    _, height, width, channels = pixels.shape
    return torch.empty(
        (len(index), channels, height, width),
        dtype=torch.float32,
        device=pixels.device,
        memory_format=torch.channels_last,
    )
