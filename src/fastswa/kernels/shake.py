"""Where a Shake-Shake block's paths meet, in training: both batch norms applied, mixed and added in one pass.

out = skip + a norm(x) + (1 - a) norm(y), the gradient being that of the same sum with b instead of a; a and b are one
number per image. The sum's ReLU is given twice, for the two branches that read it: what they send back is then added up
in the same pass that sums for both norms, and one more writes both gradients. Tensors are channels last. Where nobody
reads the sum, or its ReLU, an empty tensor stands for it, and its gradient is not asked for.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fastswa.kernels.launch import kernel
from fastswa.kernels.norm import PROCESSORS, counter, mapping, summing
from fastswa.operation import operation


@kernel
def _join_kernel(
    x_ptr, y_ptr, skip_ptr, out_ptr, active_ptr, a_ptr,
    x_mean_ptr, x_rstd_ptr, x_weight_ptr, x_bias_ptr, y_mean_ptr, y_rstd_ptr, y_weight_ptr, y_bias_ptr,
    rows, pixels, C, OUT: tl.constexpr, ACTIVE: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The sum if OUT, and its ReLU if ACTIVE."""
    column = tl.program_id(1) * B + tl.arange(0, B)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row[:, None] < rows
    place = row[:, None] * C + column[None, :]
    a = tl.load(a_ptr + row // pixels, mask=row < rows, other=0.0)[:, None]
    gain = tl.load(x_rstd_ptr + column) * tl.load(x_weight_ptr + column)
    offset = tl.load(x_bias_ptr + column) - tl.load(x_mean_ptr + column) * gain
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    gain = tl.load(y_rstd_ptr + column) * tl.load(y_weight_ptr + column)
    offset = tl.load(y_bias_ptr + column) - tl.load(y_mean_ptr + column) * gain
    y = tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    out = tl.load(skip_ptr + place, mask=inside, other=0.0).to(tl.float32) + y + a * (x - y)
    if OUT:
        tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)
    if ACTIVE:
        tl.store(active_ptr + place, tl.maximum(out, 0.0).to(active_ptr.dtype.element_ty), mask=inside)


@kernel
def _sums_kernel(
    d_out_ptr, d_first_ptr, d_second_ptr, active_ptr, d_ptr, x_ptr, y_ptr, b_ptr, partial_ptr, counter_ptr, total_ptr,
    x_mean_ptr, x_rstd_ptr, y_mean_ptr, y_rstd_ptr, rows, pixels, C,
    OUT: tl.constexpr, ACTIVE: tl.constexpr, B: tl.constexpr, R: tl.constexpr, U: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """d, the sum's whole gradient: its own if OUT, and the two of its ReLU if ACTIVE.

    By channel, sums of dx, dx xhat, dy and dy yhat; dx = b d and dy = (1 - b) d are the norms' gradients.
    """
    program, group, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    column = group * B + tl.arange(0, B)
    x_mean, x_rstd = tl.load(x_mean_ptr + column)[None, :], tl.load(x_rstd_ptr + column)[None, :]
    y_mean, y_rstd = tl.load(y_mean_ptr + column)[None, :], tl.load(y_rstd_ptr + column)[None, :]
    first = tl.zeros([R, B], tl.float32)
    second = tl.zeros([R, B], tl.float32)
    third = tl.zeros([R, B], tl.float32)
    fourth = tl.zeros([R, B], tl.float32)
    for start in range(program * R * U, rows, programs * R * U):
        for part in tl.static_range(U):
            row = start + part * R + tl.arange(0, R)
            inside = row[:, None] < rows
            place = row[:, None] * C + column[None, :]
            d = tl.zeros([R, B], tl.float32)
            if OUT:
                d += tl.load(d_out_ptr + place, mask=inside, other=0.0).to(tl.float32)
            if ACTIVE:
                back = tl.load(d_first_ptr + place, mask=inside, other=0.0).to(tl.float32)
                back += tl.load(d_second_ptr + place, mask=inside, other=0.0).to(tl.float32)
                d += tl.where(tl.load(active_ptr + place, mask=inside, other=0.0) > 0, back, 0.0)
            rounded = d.to(d_ptr.dtype.element_ty)
            tl.store(d_ptr + place, rounded, mask=inside)
            d = rounded.to(tl.float32)
            dx = tl.load(b_ptr + row // pixels, mask=row < rows, other=0.0)[:, None] * d
            dy = d - dx
            first += dx
            second += dx * ((tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - x_mean) * x_rstd)
            third += dy
            fourth += dy * ((tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32) - y_mean) * y_rstd)
    own = partial_ptr + (group * programs + program) * 4 * B + tl.arange(0, B)
    tl.store(own, tl.sum(first, axis=0))
    tl.store(own + B, tl.sum(second, axis=0))
    tl.store(own + 2 * B, tl.sum(third, axis=0))
    tl.store(own + 3 * B, tl.sum(fourth, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(counter_ptr + group, 1, sem="acq_rel") == programs - 1:
        lane = tl.arange(0, P)
        for which in tl.static_range(4):
            total = tl.zeros([P, B], tl.float32)
            for start in range(0, programs, P):
                other = start + lane
                left = partial_ptr + (group * programs + other)[:, None] * 4 * B + which * B + tl.arange(0, B)[None, :]
                total += tl.load(left, mask=other[:, None] < programs, other=0.0, cache_modifier=".cg")
            tl.store(total_ptr + which * C + column, tl.sum(total, axis=0))
        tl.store(counter_ptr + group, 0)


@kernel
def _backward_kernel(
    d_ptr, x_ptr, y_ptr, b_ptr, dx_ptr, dy_ptr, total_ptr,
    x_mean_ptr, x_rstd_ptr, x_weight_ptr, y_mean_ptr, y_rstd_ptr, y_weight_ptr,
    rows, pixels, C, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The gradients of x and y, before their norms."""
    column = tl.program_id(1) * B + tl.arange(0, B)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row[:, None] < rows
    place = row[:, None] * C + column[None, :]
    d = tl.load(d_ptr + place, mask=inside, other=0.0).to(tl.float32)
    dx = tl.load(b_ptr + row // pixels, mask=row < rows, other=0.0)[:, None] * d
    dy = d - dx
    mean, rstd = tl.load(x_mean_ptr + column), tl.load(x_rstd_ptr + column)
    first, second = tl.load(total_ptr + column) / rows, tl.load(total_ptr + C + column) / rows
    normal = (tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    dx = (tl.load(x_weight_ptr + column) * rstd)[None, :] * (dx - first[None, :] - normal * second[None, :])
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    mean, rstd = tl.load(y_mean_ptr + column), tl.load(y_rstd_ptr + column)
    first, second = tl.load(total_ptr + 2 * C + column) / rows, tl.load(total_ptr + 3 * C + column) / rows
    normal = (tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    dy = (tl.load(y_weight_ptr + column) * rstd)[None, :] * (dy - first[None, :] - normal * second[None, :])
    tl.store(dy_ptr + place, dy.to(dy_ptr.dtype.element_ty), mask=inside)


@operation("shake_join")
def shake_join(
    x: Tensor,
    y: Tensor,
    skip: Tensor,
    x_norm: list[Tensor],
    y_norm: list[Tensor],
    forward: Tensor,
    wants_out: bool,
    wants_active: bool,
) -> tuple[Tensor, Tensor]:
    """skip + forward norm(x) + (1 - forward) norm(y), and its ReLU; a norm is mean, rstd, weight and bias by channel.

    `forward` is (N,), in 32 bits. The means and deviations count as functions of x and y. What is not wanted is empty.
    """
    channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
    rows = x.numel() // channels
    out, active = _wanted(x, wants_out), _wanted(x, wants_active)
    tiling = mapping(rows, channels, 4096)
    _join_kernel[(tiling.programs, tiling.groups)](
        x, y, skip.contiguous(memory_format=torch.channels_last), out, active, forward, *x_norm, *y_norm, rows, pixels,
        C=channels, OUT=wants_out, ACTIVE=wants_active, B=tiling.B, R=tiling.R, num_warps=8,
    )  # fmt: skip
    return out, active


@shake_join.register_fake
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, wants_out, wants_active = others
    return _wanted(x, wants_out), _wanted(x, wants_active)


def _wanted(like: Tensor, wanted: bool) -> Tensor:
    return torch.empty_like(like) if wanted else like.new_empty(0)


@operation("shake_join_backward")
def shake_join_backward(
    d_out: Tensor,
    d_first: Tensor,
    d_second: Tensor,
    active: Tensor,
    x: Tensor,
    y: Tensor,
    x_norm: list[Tensor],
    y_norm: list[Tensor],
    backward: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of skip, x and y, and (4, C): those of x's bias and weight and of y's.

    Empty gradients are those of empty tensors.
    """
    channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
    rows = x.numel() // channels
    given = (
        each.contiguous(memory_format=torch.channels_last) if each.numel() else each
        for each in (d_out, d_first, d_second)
    )
    d = torch.empty_like(x)
    tiling = summing(rows, channels, unroll=2, warps=8, programs=2 * PROCESSORS)
    partial = torch.empty(tiling.groups * tiling.programs * 4 * tiling.B, dtype=torch.float32, device=x.device)
    total = torch.empty(4, channels, dtype=torch.float32, device=x.device)
    _sums_kernel[(tiling.programs, tiling.groups)](
        *given, active, d, x, y, backward, partial, counter(x.device, tiling.groups), total,
        *x_norm[:2], *y_norm[:2], rows, pixels,
        C=channels, OUT=d_out.numel() > 0, ACTIVE=d_first.numel() > 0,
        B=tiling.B, R=tiling.R, U=tiling.U, P=tiling.warps * 8, num_warps=tiling.warps,
    )  # fmt: skip
    dx, dy = torch.empty_like(x), torch.empty_like(y)
    tiling = mapping(rows, channels, 4096)
    _backward_kernel[(tiling.programs, tiling.groups)](
        d, x, y, backward, dx, dy, total, *x_norm[:3], *y_norm[:3], rows, pixels,
        C=channels, B=tiling.B, R=tiling.R, num_warps=8,
    )  # fmt: skip
    return d, dx, dy, total


@shake_join_backward.register_fake
def _(
    d_out: Tensor, d_first: Tensor, d_second: Tensor, active: Tensor, x: Tensor, y: Tensor, *others: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = torch.empty(4, x.shape[1], dtype=torch.float32, device=x.device)
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(y), total


class ShakeJoin(torch.autograd.Function):
    """`shake_join`, its ReLU twice, with the gradients of everything but means, deviations and mixing numbers.

    apply(wants_out, wants_active, x, y, skip, mean, rstd, weight, bias of x, the same of y, forward, backward)
    """

    @staticmethod
    def forward(ctx, wants_out, wants_active, x, y, skip, *others):  # type: ignore[no-untyped-def]
        norms = list(others[:4]), list(others[4:8])
        out, active = shake_join(x, y, skip, *norms, others[8], wants_out, wants_active)
        ctx.save_for_backward(x, y, active, *others)
        return out, active, active.detach()

    @staticmethod
    def backward(ctx, d_out, d_first, d_second):  # type: ignore[no-untyped-def]
        x, y, active, *others = ctx.saved_tensors
        d, dx, dy, total = shake_join_backward(
            d_out, d_first, d_second, active, x, y, others[:4], others[4:8], others[9]
        )
        norms = None, None, total[1], total[0], None, None, total[3], total[2]
        return None, None, dx, dy, d, *norms, None, None
