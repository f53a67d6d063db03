"""Batch norm + LeakyReLU in training as four memory passes forward and backward, for channels-last CUDA tensors.

Unlike torch.compile's own kernels they never write out the gradient before the norm, nor what pooling drops. The
two passes that sum are still slower than they should be; benchmarks/LOG.md has the measurements. Statistics are
accumulated in float32 around the first row's value (no cancellation for means far from zero), in a fixed order
(the same sums every time).

x is (N, C, H, W), channels last, so M = N H W rows of C values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 8192
_PROGRAMS = 528  # four for each of an H200's 132 multiprocessors


@triton.jit
def _sums_kernel(x_ptr, partial_ptr, rows, C: tl.constexpr, R: tl.constexpr):
    """Each program's sums of x - x[0] and of its square, by channel, over every P-th block of R rows."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column, row = tl.arange(0, C), tl.arange(0, R)
    centre = tl.load(x_ptr + column).to(tl.float32)
    first = tl.zeros([R, C], tl.float32)
    second = tl.zeros([R, C], tl.float32)
    for start in range(program * R, rows, programs * R):
        inside = (start + row)[:, None] < rows
        x = tl.load(x_ptr + (start + row)[:, None] * C + column[None, :], mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, x - centre[None, :], 0.0)
        first += centred
        second += centred * centred
    tl.store(partial_ptr + program * 2 * C + column, tl.sum(first, axis=0))
    tl.store(partial_ptr + program * 2 * C + C + column, tl.sum(second, axis=0))


@triton.jit
def _statistics_kernel(
    partial_ptr, x_ptr, shift_ptr, mean_ptr, rstd_ptr, running_mean_ptr, running_var_ptr,
    programs, rows, momentum, eps,
    C: tl.constexpr, B: tl.constexpr, P: tl.constexpr, SHIFT: tl.constexpr, TRACK: tl.constexpr,
):  # fmt: skip
    """Mean and reciprocal deviation from the partial sums, and the running statistics moved towards them."""
    column, program = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, P)
    first = tl.zeros([P, B], tl.float32)
    second = tl.zeros([P, B], tl.float32)
    for start in range(0, programs, P):
        inside = (start + program)[:, None] < programs
        offset = (start + program)[:, None] * 2 * C + column[None, :]
        first += tl.load(partial_ptr + offset, mask=inside, other=0.0)
        second += tl.load(partial_ptr + offset + C, mask=inside, other=0.0)
    offset_mean = tl.sum(first, axis=0) / rows
    variance = tl.maximum(tl.sum(second, axis=0) / rows - offset_mean * offset_mean, 0.0)
    mean = tl.load(x_ptr + column).to(tl.float32) + offset_mean
    tl.store(mean_ptr + column, mean)
    tl.store(rstd_ptr + column, 1.0 / tl.sqrt(variance + eps))
    if TRACK:
        shifted = mean
        if SHIFT:
            shifted += tl.load(shift_ptr + column)
        old_mean, old_var = tl.load(running_mean_ptr + column), tl.load(running_var_ptr + column)
        unbiased = variance * (rows / (rows - 1.0))
        tl.store(running_mean_ptr + column, old_mean + momentum * (shifted - old_mean))
        tl.store(running_var_ptr + column, old_var + momentum * (unbiased - old_var))


@triton.jit
def _apply_kernel(
    x_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, slope, C: tl.constexpr, R: tl.constexpr
):
    """y = leaky((x - mean) rstd weight + bias)."""
    column = tl.arange(0, C)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row[:, None] < rows
    gain = tl.load(rstd_ptr + column) * tl.load(weight_ptr + column)
    offset = tl.load(bias_ptr + column) - tl.load(mean_ptr + column) * gain
    place = row[:, None] * C + column[None, :]
    z = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    tl.store(y_ptr + place, tl.where(z > 0, z, z * slope).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_sums_kernel(
    dy_ptr, x_ptr, partial_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, slope,
    C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Each program's sums of dz and of dz xhat by channel, dz being the gradient before the LeakyReLU."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column, row = tl.arange(0, C), tl.arange(0, R)
    mean, rstd = tl.load(mean_ptr + column), tl.load(rstd_ptr + column)
    weight, bias = tl.load(weight_ptr + column), tl.load(bias_ptr + column)
    first = tl.zeros([R, C], tl.float32)
    second = tl.zeros([R, C], tl.float32)
    for start in range(program * R, rows, programs * R):
        inside = (start + row)[:, None] < rows
        place = (start + row)[:, None] * C + column[None, :]
        normal = (tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dz = tl.where(normal * weight[None, :] + bias[None, :] > 0, dy, dy * slope)
        first += dz
        second += dz * normal
    tl.store(partial_ptr + program * 2 * C + column, tl.sum(first, axis=0))
    tl.store(partial_ptr + program * 2 * C + C + column, tl.sum(second, axis=0))


@triton.jit
def _total_kernel(partial_ptr, total_ptr, programs, C: tl.constexpr, B: tl.constexpr, P: tl.constexpr):
    """The programs' partial sums (P, 2 C) added up."""
    column, program = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, P)
    total = tl.zeros([P, B], tl.float32)
    for start in range(0, programs, P):
        inside = (start + program)[:, None] < programs
        offset = (start + program)[:, None] * 2 * C + column[None, :]
        total += tl.load(partial_ptr + offset, mask=inside, other=0.0)
    tl.store(total_ptr + column, tl.sum(total, axis=0))


@triton.jit
def _backward_apply_kernel(
    dy_ptr, x_ptr, dx_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, slope,
    C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dx = weight rstd (dz - mean(dz) - xhat mean(dz xhat))."""
    column = tl.arange(0, C)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row[:, None] < rows
    mean, rstd = tl.load(mean_ptr + column), tl.load(rstd_ptr + column)
    weight, bias = tl.load(weight_ptr + column), tl.load(bias_ptr + column)
    first, second = tl.load(total_ptr + column) / rows, tl.load(total_ptr + C + column) / rows
    place = row[:, None] * C + column[None, :]
    normal = (tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
    dz = tl.where(normal * weight[None, :] + bias[None, :] > 0, dy, dy * slope)
    dx = (weight * rstd)[None, :] * (dz - first[None, :] - normal * second[None, :])
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _window(x_ptr, pixel, column, inside, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    """The places of the four values that pooled pixel number `pixel` covers, row by row."""
    across, below = pixel % (W // 2), pixel // (W // 2)
    corner = (((below // (H // 2)) * H + 2 * (below % (H // 2))) * W + 2 * across)[:, None] * C + column[None, :]
    return corner, corner + C, corner + W * C, corner + W * C + C


@triton.jit
def _pool_apply_kernel(
    x_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, pixels, slope,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """y = the greatest of leaky((x - mean) rstd weight + bias) over 2x2 windows."""
    column = tl.arange(0, C)
    pixel = tl.program_id(0) * R + tl.arange(0, R)
    inside = pixel[:, None] < pixels
    gain = tl.load(rstd_ptr + column) * tl.load(weight_ptr + column)
    offset = tl.load(bias_ptr + column) - tl.load(mean_ptr + column) * gain
    p0, p1, p2, p3 = _window(x_ptr, pixel, column, inside, H, W, C)
    z0 = tl.load(x_ptr + p0, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z1 = tl.load(x_ptr + p1, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z2 = tl.load(x_ptr + p2, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z3 = tl.load(x_ptr + p3, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
    place = pixel[:, None] * C + column[None, :]
    tl.store(y_ptr + place, tl.where(z > 0, z, z * slope).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _pool_backward_sums_kernel(
    dy_ptr, x_ptr, partial_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, pixels, slope,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """As _backward_sums_kernel, the gradient going to the first greatest value of each window."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, C)
    mean, rstd = tl.load(mean_ptr + column)[None, :], tl.load(rstd_ptr + column)[None, :]
    weight, bias = tl.load(weight_ptr + column)[None, :], tl.load(bias_ptr + column)[None, :]
    first = tl.zeros([R, C], tl.float32)
    second = tl.zeros([R, C], tl.float32)
    for start in range(program * R, pixels, programs * R):
        pixel = start + tl.arange(0, R)
        inside = pixel[:, None] < pixels
        p0, p1, p2, p3 = _window(x_ptr, pixel, column, inside, H, W, C)
        n0 = (tl.load(x_ptr + p0, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        n1 = (tl.load(x_ptr + p1, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        n2 = (tl.load(x_ptr + p2, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        n3 = (tl.load(x_ptr + p3, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        z0, z1, z2, z3 = n0 * weight + bias, n1 * weight + bias, n2 * weight + bias, n3 * weight + bias
        z = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
        normal = tl.where(z0 == z, n0, tl.where(z1 == z, n1, tl.where(z2 == z, n2, n3)))
        dy = tl.load(dy_ptr + pixel[:, None] * C + column[None, :], mask=inside, other=0.0).to(tl.float32)
        dz = tl.where(z > 0, dy, dy * slope)
        first += dz
        second += dz * normal
    tl.store(partial_ptr + program * 2 * C + column, tl.sum(first, axis=0))
    tl.store(partial_ptr + program * 2 * C + C + column, tl.sum(second, axis=0))


@triton.jit
def _pool_backward_apply_kernel(
    dy_ptr, x_ptr, dx_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, pixels, slope,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """As _backward_apply_kernel for 2x2 windows."""
    column = tl.arange(0, C)
    pixel = tl.program_id(0) * R + tl.arange(0, R)
    inside = pixel[:, None] < pixels
    mean, rstd = tl.load(mean_ptr + column)[None, :], tl.load(rstd_ptr + column)[None, :]
    weight, bias = tl.load(weight_ptr + column)[None, :], tl.load(bias_ptr + column)[None, :]
    rows = pixels * 4.0
    first = (tl.load(total_ptr + column) / rows)[None, :]
    second = (tl.load(total_ptr + C + column) / rows)[None, :]
    p0, p1, p2, p3 = _window(x_ptr, pixel, column, inside, H, W, C)
    n0 = (tl.load(x_ptr + p0, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
    n1 = (tl.load(x_ptr + p1, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
    n2 = (tl.load(x_ptr + p2, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
    n3 = (tl.load(x_ptr + p3, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
    z0, z1, z2, z3 = n0 * weight + bias, n1 * weight + bias, n2 * weight + bias, n3 * weight + bias
    z = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
    dy = tl.load(dy_ptr + pixel[:, None] * C + column[None, :], mask=inside, other=0.0).to(tl.float32)
    dz = tl.where(z > 0, dy, dy * slope)
    is0 = z0 == z
    is1 = (z1 == z) & (z0 != z)
    is2 = (z2 == z) & (z0 != z) & (z1 != z)
    is3 = (z0 != z) & (z1 != z) & (z2 != z)
    gain = weight * rstd
    tl.store(
        dx_ptr + p0, (gain * (tl.where(is0, dz, 0.0) - first - n0 * second)).to(dx_ptr.dtype.element_ty), mask=inside
    )
    tl.store(
        dx_ptr + p1, (gain * (tl.where(is1, dz, 0.0) - first - n1 * second)).to(dx_ptr.dtype.element_ty), mask=inside
    )
    tl.store(
        dx_ptr + p2, (gain * (tl.where(is2, dz, 0.0) - first - n2 * second)).to(dx_ptr.dtype.element_ty), mask=inside
    )
    tl.store(
        dx_ptr + p3, (gain * (tl.where(is3, dz, 0.0) - first - n3 * second)).to(dx_ptr.dtype.element_ty), mask=inside
    )


def _shape(x: Tensor) -> tuple[int, int, int]:
    """(rows, channels, rows in a block) of a channels-last tensor."""
    channels = x.shape[1]
    return x.numel() // channels, channels, max(_ELEMENTS // channels, 1)


@torch.library.custom_op("fastswa::batch_statistics", mutates_args=("running_mean", "running_var"))
def batch_statistics(
    x: Tensor,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation by channel; the running statistics of x + shift move towards them."""
    rows, channels, block = _shape(x)
    programs = min(_PROGRAMS, triton.cdiv(rows, block))
    partial = torch.empty(programs, 2, channels, dtype=torch.float32, device=x.device)
    mean = torch.empty(channels, dtype=torch.float32, device=x.device)
    rstd = torch.empty_like(mean)
    _sums_kernel[(programs,)](x, partial, rows, C=channels, R=block, num_warps=8)
    columns = min(channels, 16)
    _statistics_kernel[(channels // columns,)](
        partial, x, shift, mean, rstd, running_mean, running_var, programs, rows, momentum, eps,
        C=channels, B=columns, P=128, SHIFT=shift is not None, TRACK=running_mean is not None, num_warps=4,
    )  # fmt: skip
    return mean, rstd


@batch_statistics.register_fake
def _(
    x: Tensor,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    mean = torch.empty(x.shape[1], dtype=torch.float32, device=x.device)
    return mean, torch.empty_like(mean)


def _pooled(x: Tensor) -> Tensor:
    """An empty tensor for x's 2x2 pooling."""
    batch, channels, height, width = x.shape
    return torch.empty(
        (batch, channels, height // 2, width // 2),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )


@torch.library.custom_op("fastswa::normalise_activate", mutates_args=())
def normalise_activate(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool
) -> Tensor:
    """leaky((x - mean) rstd weight + bias), with `pool` its 2x2 maxima; mean and rstd count as functions of x."""
    rows, channels, block = _shape(x)
    if not pool:
        y = torch.empty_like(x)
        _apply_kernel[(triton.cdiv(rows, block),)](
            x, y, mean, rstd, weight, bias, rows, slope, C=channels, R=block, num_warps=8
        )
        return y
    y = _pooled(x)
    block = max(block // 4, 1)
    _pool_apply_kernel[(triton.cdiv(rows // 4, block),)](
        x, y, mean, rstd, weight, bias, rows // 4, slope,
        H=x.shape[2], W=x.shape[3], C=channels, R=block, num_warps=8,
    )  # fmt: skip
    return y


@normalise_activate.register_fake
def _(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool) -> Tensor:
    return _pooled(x) if pool else torch.empty_like(x)


@torch.library.custom_op("fastswa::normalise_activate_backward", mutates_args=())
def normalise_activate_backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool
) -> tuple[Tensor, Tensor]:
    """dx, and the gradients of bias and weight as (2, C)."""
    rows, channels, block = _shape(x)
    dy = dy.contiguous(memory_format=torch.channels_last)
    items, block = (rows // 4, max(block // 4, 1)) if pool else (rows, max(block // 2, 1))
    sizes = {"H": x.shape[2], "W": x.shape[3]} if pool else {}
    sums, apply = (
        (_pool_backward_sums_kernel, _pool_backward_apply_kernel)
        if pool
        else (_backward_sums_kernel, _backward_apply_kernel)
    )
    programs = min(_PROGRAMS, triton.cdiv(items, block))
    partial = torch.empty(programs, 2, channels, dtype=torch.float32, device=x.device)
    total = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    sums[(programs,)](dy, x, partial, mean, rstd, weight, bias, items, slope, C=channels, R=block, num_warps=8, **sizes)
    columns = min(channels, 16)
    _total_kernel[(2 * channels // columns,)](partial, total, programs, C=channels, B=columns, P=128, num_warps=4)
    apply[(triton.cdiv(items, block),)](
        dy, x, dx, total, mean, rstd, weight, bias, items, slope, C=channels, R=block, num_warps=8, **sizes
    )
    return dx, total


@normalise_activate_backward.register_fake
def _(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty(2, x.shape[1], dtype=torch.float32, device=x.device)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.slope, ctx.pool = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, dy: Tensor):  # type: ignore[no-untyped-def]
    dx, total = normalise_activate_backward(dy, *ctx.saved_tensors, ctx.slope, ctx.pool)
    return dx, None, None, total[1], total[0], None, None


normalise_activate.register_autograd(_backward, setup_context=_save)
