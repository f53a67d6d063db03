"""All weight norms of a network in one launch, and their gradients in another.

A weight is an output's row of `length` numbers, dense in memory: w = gain v / |v|. All rows of all layers share one
launch, a program each; what it makes lies in one flat tensor, layer after layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastswa import beside
from fastswa.kernels.launch import kernel
from fastswa.kernels.table import distances, table
from fastswa.operation import operation


@kernel
def _unit_kernel(v_ptr, gain_ptr, w_ptr, table_ptr, L: tl.constexpr):
    """w = gain v / |v| for one row."""
    entry = table_ptr + tl.program_id(0) * 4
    at, gain_at, out, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    place = tl.arange(0, L)
    inside = place < length
    v = tl.load(v_ptr + at + place, mask=inside, other=0.0)
    scale = tl.load(gain_ptr + gain_at) / tl.sqrt(tl.sum(v * v, axis=0))
    tl.store(w_ptr + out + place, (v * scale).to(w_ptr.dtype.element_ty), mask=inside)


@kernel
def _unit_backward_kernel(dw_ptr, v_ptr, gain_ptr, dv_ptr, dgain_ptr, table_ptr, L: tl.constexpr):
    """dgain = dw.v / |v| and dv = gain / |v| (dw - v dw.v / |v|^2) for one row."""
    row = tl.program_id(0)
    entry = table_ptr + row * 4
    at, gain_at, out, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    place = tl.arange(0, L)
    inside = place < length
    v = tl.load(v_ptr + at + place, mask=inside, other=0.0)
    dw = tl.load(dw_ptr + out + place, mask=inside, other=0.0).to(tl.float32)
    norm = tl.sqrt(tl.sum(v * v, axis=0))
    along = tl.sum(dw * v, axis=0) / norm
    tl.store(dgain_ptr + row, along)
    dv = tl.load(gain_ptr + gain_at) / norm * (dw - v * (along / norm))
    tl.store(dv_ptr + out + place, dv, mask=inside)


def _rows(v: Sequence[Tensor], gain: Sequence[Tensor]) -> tuple[Tensor, int, int]:
    """The table of all rows, their number, and a power of two that holds the longest."""

    def make() -> list[list[int]]:
        found, out = [], 0
        for layer, at, gain_at in zip(v, distances(v), distances(gain), strict=True):
            length = layer[0].numel()
            for row in range(len(layer)):
                found.append([at + row * length, gain_at + row, out, length])
                out += length
        return found

    rows = table("unit weights", [*v, *gain], make)
    return rows, len(rows), triton.next_power_of_2(max(layer[0].numel() for layer in v))


@operation("unit_weights")
def unit_weights(v: list[Tensor], gain: list[Tensor], dtype: torch.dtype) -> Tensor:
    """gain v / |v| of every layer, flat and in the order of the layers' memory."""
    rows, count, length = _rows(v, gain)
    w = torch.empty(sum(layer.numel() for layer in v), dtype=dtype, device=v[0].device)
    _unit_kernel[(count,)](v[0], gain[0], w, rows, L=length, num_warps=4)
    return w


@unit_weights.register_fake
def _(v: list[Tensor], gain: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.empty(sum(layer.numel() for layer in v), dtype=dtype, device=v[0].device)


@operation("unit_weights_backward")
def unit_weights_backward(dw: list[Tensor], v: list[Tensor], gain: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients of every v and of every gain, flat; waits for what the second stream makes of dw."""
    beside.meet(v[0].device)
    rows, count, length = _rows(v, gain)
    flat = torch.cat([in_memory_order(gradient) for gradient in dw])
    dv = torch.empty(len(flat), dtype=torch.float32, device=flat.device)
    dgain = torch.empty(count, dtype=torch.float32, device=flat.device)
    _unit_backward_kernel[(count,)](flat, v[0], gain[0], dv, dgain, rows, L=length, num_warps=4)
    return dv, dgain


@unit_weights_backward.register_fake
def _(dw: list[Tensor], v: list[Tensor], gain: list[Tensor]) -> tuple[Tensor, Tensor]:
    size, rows = sum(layer.numel() for layer in v), sum(len(layer) for layer in v)
    flat = torch.empty(size, dtype=torch.float32, device=v[0].device)
    return flat, flat.new_empty(rows)


@operation("cast_weights")
def cast_weights(w: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Every layer's weights as another type, flat and in the order of the layers' memory."""
    flat = torch.empty(sum(layer.numel() for layer in w), dtype=dtype, device=w[0].device)
    torch._foreach_copy_(list(flat.split([layer.numel() for layer in w])), [in_memory_order(layer) for layer in w])
    return flat


@cast_weights.register_fake
def _(w: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.empty(sum(layer.numel() for layer in w), dtype=dtype, device=w[0].device)


@operation("cast_weights_backward")
def cast_weights_backward(dw: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Every layer's gradient as another type, flat; waits for what the second stream makes of them."""
    beside.meet(dw[0].device)
    return cast_weights(dw, dtype)


@cast_weights_backward.register_fake
def _(dw: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.empty(sum(layer.numel() for layer in dw), dtype=dtype, device=dw[0].device)


def in_memory_order(weight: Tensor) -> Tensor:
    """(O, I, H, W), channels last, as the flat numbers that lie in memory."""
    return weight.permute(0, 2, 3, 1).reshape(-1)


def layers_of(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A flat tensor's parts, each shaped (O, I, H, W) and channels last as the tensors of `like` are."""
    sizes = [layer.numel() for layer in like]
    starts = accumulate(sizes, initial=0)
    return [
        flat[start : start + size].view(o, h, w, i).permute(0, 3, 1, 2)
        for start, size, (o, i, h, w) in zip(starts, sizes, (layer.shape for layer in like), strict=False)
    ]


class UnitWeights(torch.autograd.Function):
    """apply(dtype, v…, gain…) gives every layer's weight-normalised weights."""

    @staticmethod
    def forward(ctx, dtype, *tensors):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*tensors)
        v, gain = list(tensors[: len(tensors) // 2]), list(tensors[len(tensors) // 2 :])
        return tuple(layers_of(unit_weights(v, gain, dtype), v))

    @staticmethod
    def backward(ctx, *dw):  # type: ignore[no-untyped-def]
        tensors = ctx.saved_tensors
        v, gain = list(tensors[: len(tensors) // 2]), list(tensors[len(tensors) // 2 :])
        dv, dgain = unit_weights_backward(list(dw), v, gain)
        parts = dgain.split([len(layer) for layer in v])
        return None, *layers_of(dv, v), *(part.view(layer.shape) for part, layer in zip(parts, gain, strict=True))


class CastWeights(torch.autograd.Function):
    """apply(dtype, w…) gives every layer's weights in the type that it computes in."""

    @staticmethod
    def forward(ctx, dtype, *w):  # type: ignore[no-untyped-def]
        ctx.dtype = w[0].dtype
        return tuple(layers_of(cast_weights(list(w), dtype), w))

    @staticmethod
    def backward(ctx, *dw):  # type: ignore[no-untyped-def]
        return None, *layers_of(cast_weights_backward(list(dw), ctx.dtype), dw)
