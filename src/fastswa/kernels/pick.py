"""Shake-Shake's skip path between stages: pixels picked, and two groups of them through a 1x1 convolution each.

The first group are the pixels in even rows and columns, the second those in odd ones. Picked in one pass, both groups
are one batched product that writes where the convolution's channels belong; nothing is concatenated or sliced.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastswa import beside
from fastswa.kernels.launch import kernel
from fastswa.operation import operation

_BLOCK = 1024


@kernel
def _pick_kernel(x_ptr, out_ptr, size, height, width, C, BLOCK: tl.constexpr):
    """From (N, 2 height, 2 width, C), the places of both groups: (2, N, height, width, C); `size` is one group's."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < 2 * size
    group, rest = place // size, place % size
    channel, pixel = rest % C, rest // C
    column, line = pixel % width, pixel // width
    source = ((2 * line + group) * (2 * width) + 2 * column + group) * C + channel
    tl.store(out_ptr + place, tl.load(x_ptr + source, mask=inside, other=0.0), mask=inside)


@kernel
def _unpick_kernel(d_ptr, out_ptr, size, height, width, C, BLOCK: tl.constexpr):
    """The gradient of `_pick_kernel`: zero where nothing was picked."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < 4 * size
    channel, pixel = place % C, place // C
    column, line = pixel % (2 * width), pixel // (2 * width)
    group = line % 2
    source = group * size + ((line // 2) * width + column // 2) * C + channel
    picked = inside & (column % 2 == group)
    value = tl.load(d_ptr + source, mask=picked, other=0.0)
    tl.store(out_ptr + place, value, mask=inside)


def _groups(x: Tensor) -> Tensor:
    """(N, O, H, W), channels last, as two groups of channels: (2, N H W, O / 2), in place."""
    channels = x.shape[1]
    return x.permute(0, 2, 3, 1).view(-1, 2, channels // 2).transpose(0, 1)


def _by_group(weight: Tensor) -> Tensor:
    """(O, I, 1, 1) as (2, O / 2, I)."""
    return weight.flatten(1).view(2, len(weight) // 2, weight.shape[1])


@operation("pick_and_convolve")
def pick_and_convolve(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(N, O, H / 2, W / 2), channels last, and the picked pixels (2, N H W / 4, C) for the gradient."""
    images, channels, height, width = x.shape
    picked = torch.empty(2, x.numel() // channels // 4, channels, dtype=x.dtype, device=x.device)
    size = picked.numel() // 2
    _pick_kernel[(triton.cdiv(2 * size, _BLOCK),)](x, picked, size, height // 2, width // 2, channels, BLOCK=_BLOCK)
    out = _empty(x, (images, len(weight), height // 2, width // 2))
    torch.bmm(picked, _by_group(weight).transpose(1, 2), out=_groups(out))
    return out, picked


@pick_and_convolve.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    images, channels, height, width = x.shape
    picked = torch.empty(2, images * (height // 2) * (width // 2), channels, dtype=x.dtype, device=x.device)
    return _empty(x, (images, len(weight), height // 2, width // 2)), picked


# Two operations, as for other convolutions: where one of the gradients is not asked for, it is not made.
@operation("pick_and_convolve_input_gradient")
def _input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    images, _, height, width = dy.shape
    channels = weight.shape[1]
    back = torch.bmm(_groups(dy.contiguous(memory_format=torch.channels_last)), _by_group(weight))
    dx = _empty(dy, (images, channels, 2 * height, 2 * width))
    size = back.numel() // 2
    _unpick_kernel[(triton.cdiv(4 * size, _BLOCK),)](back, dx, size, height, width, channels, BLOCK=_BLOCK)
    return dx


@_input_gradient.register_fake
def _(dy: Tensor, weight: Tensor) -> Tensor:
    images, _, height, width = dy.shape
    return _empty(dy, (images, weight.shape[1], 2 * height, 2 * width))


@operation("pick_and_convolve_weight_gradient")
def _weight_gradient(dy: Tensor, picked: Tensor, weight: Tensor, alongside: bool) -> Tensor:
    """If `alongside`, made on the second stream; whoever uses it meets that one first."""
    groups = _groups(dy.contiguous(memory_format=torch.channels_last))
    with beside.stream(dy.device) if alongside else nullcontext():
        gradient = torch.bmm(groups.transpose(1, 2), picked).view(weight.shape)
    if alongside:
        beside.keep(groups, picked, gradient)
    return gradient


@_weight_gradient.register_fake
def _(dy: Tensor, picked: Tensor, weight: Tensor, alongside: bool) -> Tensor:
    return weight.new_empty(weight.shape)


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


class PickAndConvolve(torch.autograd.Function):
    """apply(x, weight, alongside): `pick_and_convolve` with its gradient."""

    @staticmethod
    def forward(ctx, x, weight, alongside):  # type: ignore[no-untyped-def]
        out, picked = pick_and_convolve(x, weight)
        ctx.alongside = alongside
        ctx.save_for_backward(picked, weight)
        return out

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        picked, weight = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        dweight = _weight_gradient(dy, picked, weight, ctx.alongside) if of_weight else None
        return _input_gradient(dy, weight) if of_x else None, dweight, None
