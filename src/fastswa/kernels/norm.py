"""Batch norm + LeakyReLU in training as memory passes: two forward, two backward, for channels-last CUDA tensors.

Unlike torch.compile's own kernels they never write out the gradient before the norm, nor what pooling drops. A pass
that sums is one launch: the last program to finish adds up what the others left. Statistics are accumulated in float32
around the first row's value (no cancellation for means far from zero), in a fixed order (the same sums every time).

x is (N, C, H, W), channels last, so N H W rows of C values. A program takes B channels of some rows, R rows at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastswa.kernels.launch import kernel
from fastswa.operation import operation

PROCESSORS = 132  # an H200's; tilings were chosen by timing them there
_SLOTS = 1 << 15


@triton.jit
def _is_last(partial_ptr, counter_ptr, first, second, B: tl.constexpr):
    """Leave this program's two sums for its channels; whether all other programs have left theirs."""
    program, group, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    place = partial_ptr + (group * programs + program) * 2 * B + tl.arange(0, B)
    tl.store(place, tl.sum(first, axis=0))
    tl.store(place + B, tl.sum(second, axis=0))
    tl.debug_barrier()
    return tl.atomic_add(counter_ptr + group, 1, sem="acq_rel") == programs - 1


@triton.jit
def _totals(partial_ptr, counter_ptr, B: tl.constexpr, P: tl.constexpr):
    """Both sums over all programs in their order, past the first-level cache; the counter is ready for its next use."""
    group, programs, lane = tl.program_id(1), tl.num_programs(0), tl.arange(0, P)
    first = tl.zeros([P, B], tl.float32)
    second = tl.zeros([P, B], tl.float32)
    for start in range(0, programs, P):
        program = start + lane
        inside = program[:, None] < programs
        place = partial_ptr + (group * programs + program)[:, None] * 2 * B + tl.arange(0, B)[None, :]
        first += tl.load(place, mask=inside, other=0.0, cache_modifier=".cg")
        second += tl.load(place + B, mask=inside, other=0.0, cache_modifier=".cg")
    tl.store(counter_ptr + group, 0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@kernel
def _statistics_kernel(
    x_ptr, partial_ptr, counter_ptr, shift_ptr, mean_ptr, rstd_ptr, running_mean_ptr, running_var_ptr,
    rows, momentum, eps, C,
    B: tl.constexpr, R: tl.constexpr, U: tl.constexpr, P: tl.constexpr,
    SHIFT: tl.constexpr, TRACK: tl.constexpr,
):  # fmt: skip
    """Mean and reciprocal deviation by channel, and the running statistics moved towards them."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column, row = tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, R)
    centre = tl.load(x_ptr + column).to(tl.float32)
    first = tl.zeros([R, B], tl.float32)
    second = tl.zeros([R, B], tl.float32)
    for start in range(program * R * U, rows, programs * R * U):
        for part in tl.static_range(U):
            here = start + part * R + row
            inside = here[:, None] < rows
            x = tl.load(x_ptr + here[:, None] * C + column[None, :], mask=inside, other=0.0).to(tl.float32)
            centred = tl.where(inside, x - centre[None, :], 0.0)
            first += centred
            second += centred * centred
    if _is_last(partial_ptr, counter_ptr, first, second, B):
        total, squares = _totals(partial_ptr, counter_ptr, B, P)
        offset_mean = total / rows
        variance = tl.maximum(squares / rows - offset_mean * offset_mean, 0.0)
        mean = centre + offset_mean
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


@kernel
def _apply_kernel(
    x_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, slope, C,
    B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """y = leaky((x - mean) rstd weight + bias)."""
    column = tl.program_id(1) * B + tl.arange(0, B)
    row = tl.program_id(0) * R + tl.arange(0, R)
    inside = row[:, None] < rows
    gain = tl.load(rstd_ptr + column) * tl.load(weight_ptr + column)
    offset = tl.load(bias_ptr + column) - tl.load(mean_ptr + column) * gain
    place = row[:, None] * C + column[None, :]
    z = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    tl.store(y_ptr + place, tl.where(z > 0, z, z * slope).to(y_ptr.dtype.element_ty), mask=inside)


@kernel
def _backward_sums_kernel(
    dy_ptr, x_ptr, partial_ptr, counter_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, slope, C,
    B: tl.constexpr, R: tl.constexpr, U: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The sums of dz and of dz xhat by channel, dz being the gradient before the LeakyReLU."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column, row = tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, R)
    mean, rstd = tl.load(mean_ptr + column), tl.load(rstd_ptr + column)
    weight, bias = tl.load(weight_ptr + column), tl.load(bias_ptr + column)
    first = tl.zeros([R, B], tl.float32)
    second = tl.zeros([R, B], tl.float32)
    for start in range(program * R * U, rows, programs * R * U):
        for part in tl.static_range(U):
            here = start + part * R + row
            inside = here[:, None] < rows
            place = here[:, None] * C + column[None, :]
            normal = (tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
            dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
            dz = tl.where(normal * weight[None, :] + bias[None, :] > 0, dy, dy * slope)
            first += dz
            second += dz * normal
    if _is_last(partial_ptr, counter_ptr, first, second, B):
        total, product = _totals(partial_ptr, counter_ptr, B, P)
        tl.store(total_ptr + column, total)
        tl.store(total_ptr + C + column, product)


@kernel
def _backward_apply_kernel(
    dy_ptr, x_ptr, dx_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, slope, C,
    B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dx = weight rstd (dz - mean(dz) - xhat mean(dz xhat))."""
    column = tl.program_id(1) * B + tl.arange(0, B)
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
def _window(pixel, column, C, H: tl.constexpr, W: tl.constexpr):
    """The places of the four values that pooled pixel number `pixel` covers, row by row."""
    across, below = pixel % (W // 2), pixel // (W // 2)
    corner = (((below // (H // 2)) * H + 2 * (below % (H // 2))) * W + 2 * across)[:, None] * C + column[None, :]
    return corner, corner + C, corner + W * C, corner + W * C + C


@kernel
def _pool_apply_kernel(
    x_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, pixels, slope, C,
    H: tl.constexpr, W: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """y = the greatest of leaky((x - mean) rstd weight + bias) over 2x2 windows."""
    column = tl.program_id(1) * B + tl.arange(0, B)
    pixel = tl.program_id(0) * R + tl.arange(0, R)
    inside = pixel[:, None] < pixels
    gain = tl.load(rstd_ptr + column) * tl.load(weight_ptr + column)
    offset = tl.load(bias_ptr + column) - tl.load(mean_ptr + column) * gain
    p0, p1, p2, p3 = _window(pixel, column, C, H, W)
    z0 = tl.load(x_ptr + p0, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z1 = tl.load(x_ptr + p1, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z2 = tl.load(x_ptr + p2, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z3 = tl.load(x_ptr + p3, mask=inside, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
    place = pixel[:, None] * C + column[None, :]
    tl.store(y_ptr + place, tl.where(z > 0, z, z * slope).to(y_ptr.dtype.element_ty), mask=inside)


@kernel
def _pool_backward_sums_kernel(
    dy_ptr, x_ptr, partial_ptr, counter_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, pixels, slope, C,
    H: tl.constexpr, W: tl.constexpr,
    B: tl.constexpr, R: tl.constexpr, U: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """As _backward_sums_kernel, the gradient going to the first greatest value of each window."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * B + tl.arange(0, B)
    mean, rstd = tl.load(mean_ptr + column)[None, :], tl.load(rstd_ptr + column)[None, :]
    weight, bias = tl.load(weight_ptr + column)[None, :], tl.load(bias_ptr + column)[None, :]
    first = tl.zeros([R, B], tl.float32)
    second = tl.zeros([R, B], tl.float32)
    for start in range(program * R * U, pixels, programs * R * U):
        for part in tl.static_range(U):
            pixel = start + part * R + tl.arange(0, R)
            inside = pixel[:, None] < pixels
            p0, p1, p2, p3 = _window(pixel, column, C, H, W)
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
    if _is_last(partial_ptr, counter_ptr, first, second, B):
        total, product = _totals(partial_ptr, counter_ptr, B, P)
        tl.store(total_ptr + column, total)
        tl.store(total_ptr + C + column, product)


@kernel
def _pool_backward_apply_kernel(
    dy_ptr, x_ptr, dx_ptr, total_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, pixels, slope, C,
    H: tl.constexpr, W: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """As _backward_apply_kernel for 2x2 windows."""
    column = tl.program_id(1) * B + tl.arange(0, B)
    pixel = tl.program_id(0) * R + tl.arange(0, R)
    inside = pixel[:, None] < pixels
    mean, rstd = tl.load(mean_ptr + column)[None, :], tl.load(rstd_ptr + column)[None, :]
    weight, bias = tl.load(weight_ptr + column)[None, :], tl.load(bias_ptr + column)[None, :]
    rows = pixels * 4.0
    first = (tl.load(total_ptr + column) / rows)[None, :]
    second = (tl.load(total_ptr + C + column) / rows)[None, :]
    p0, p1, p2, p3 = _window(pixel, column, C, H, W)
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


class _Tiling(NamedTuple):
    """How a pass over (items, channels) is cut: B channels by R items a program at once, U times in a row; `programs`
    of `warps` warps share the items of each of `groups` channel groups."""

    B: int
    R: int
    U: int
    warps: int
    programs: int
    groups: int


def _block(channels: int) -> int:
    return next(b for b in (64, 32, 16) if channels % b == 0)


def summing(items: int, channels: int, unroll: int, warps: int, programs: int) -> _Tiling:
    """Few, equally loaded programs with many loads in flight: what each leaves has to be added up again."""
    block = _block(channels)
    rows, groups = warps * 256 // block, channels // block
    wanted = max(programs // groups, 1)
    while unroll > 1 and triton.cdiv(items, rows * unroll) < wanted:
        unroll //= 2
    chunks = triton.cdiv(items, rows * unroll)
    return _Tiling(block, rows, unroll, warps, triton.cdiv(chunks, max(round(chunks / wanted), 1)), groups)


def mapping(items: int, channels: int, elements: int) -> _Tiling:
    """One tile of `elements` a program."""
    block = _block(channels)
    rows = elements // block
    return _Tiling(block, rows, 1, 8, triton.cdiv(items, rows), channels // block)


_slots: dict[torch.device, Tensor] = {}
_taken: dict[torch.device, int] = {}


def counter(device: torch.device, groups: int) -> Tensor:
    """Zeros (groups,) for a launch's programs to count themselves, left zero by it.

    A captured launch is replayed with the same ones for ever, so it gets its own out of a store; others get new ones.
    """
    if device not in _slots and not torch.cuda.is_current_stream_capturing():
        _slots[device], _taken[device] = torch.zeros(_SLOTS, dtype=torch.int32, device=device), 0
    # From a place that divides by 16 bytes, as others do: Triton compiles a kernel of its own for any other.
    reserved = -(-groups // 4) * 4
    if device in _slots and torch.cuda.is_current_stream_capturing() and _taken[device] + reserved <= _SLOTS:
        start = _taken[device]
        _taken[device] += reserved
        return _slots[device][start : start + groups]
    return torch.zeros(groups, dtype=torch.int32, device=device)


def _partial(tiling: _Tiling, device: torch.device) -> Tensor:
    return torch.empty(tiling.groups * tiling.programs * 2 * tiling.B, dtype=torch.float32, device=device)


@operation("batch_statistics", mutates=("running_mean", "running_var"))
def batch_statistics(
    x: Tensor,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation by channel; the running statistics of x + shift move towards them."""
    channels = x.shape[1]
    rows = x.numel() // channels
    narrow = _block(channels) < 64
    tiling = summing(rows, channels, unroll=8, warps=8 if narrow else 4, programs=2 * PROCESSORS)
    mean = torch.empty(channels, dtype=torch.float32, device=x.device)
    rstd = torch.empty_like(mean)
    _statistics_kernel[(tiling.programs, tiling.groups)](
        x, _partial(tiling, x.device), counter(x.device, tiling.groups), shift, mean, rstd,
        running_mean, running_var, rows, momentum, eps,
        C=channels, B=tiling.B, R=tiling.R, U=tiling.U, P=tiling.warps * 8,
        SHIFT=shift is not None, TRACK=running_mean is not None, num_warps=tiling.warps,
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


@operation("normalise_activate", differentiable=True)
def normalise_activate(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool
) -> Tensor:
    """leaky((x - mean) rstd weight + bias), with `pool` its 2x2 maxima; mean and rstd count as functions of x."""
    channels = x.shape[1]
    rows = x.numel() // channels
    if not pool:
        y = torch.empty_like(x)
        tiling = mapping(rows, channels, 8192)
        _apply_kernel[(tiling.programs, tiling.groups)](
            x, y, mean, rstd, weight, bias, rows, slope, C=channels, B=tiling.B, R=tiling.R, num_warps=8
        )
        return y
    y = _pooled(x)
    tiling = mapping(rows // 4, channels, 2048)
    _pool_apply_kernel[(tiling.programs, tiling.groups)](
        x, y, mean, rstd, weight, bias, rows // 4, slope,
        H=x.shape[2], W=x.shape[3], C=channels, B=tiling.B, R=tiling.R, num_warps=8,
    )  # fmt: skip
    return y


@normalise_activate.register_fake
def _(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool) -> Tensor:
    return _pooled(x) if pool else torch.empty_like(x)


@operation("normalise_activate_backward")
def normalise_activate_backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, slope: float, pool: bool
) -> tuple[Tensor, Tensor]:
    """dx, and the gradients of bias and weight as (2, C)."""
    channels = x.shape[1]
    rows = x.numel() // channels
    dy = dy.contiguous(memory_format=torch.channels_last)
    items = rows // 4 if pool else rows
    sizes = {"H": x.shape[2], "W": x.shape[3]} if pool else {}
    sums, apply = (
        (_pool_backward_sums_kernel, _pool_backward_apply_kernel)
        if pool
        else (_backward_sums_kernel, _backward_apply_kernel)
    )
    if pool:
        tiling = summing(items, channels, unroll=2, warps=4, programs=2 * PROCESSORS)
    else:
        narrow = _block(channels) < 64
        tiling = summing(items, channels, unroll=4, warps=8, programs=(2 if narrow else 1) * PROCESSORS)
    total = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    sums[(tiling.programs, tiling.groups)](
        dy, x, _partial(tiling, x.device), counter(x.device, tiling.groups), total, mean, rstd, weight, bias, items,
        slope, C=channels, B=tiling.B, R=tiling.R, U=tiling.U, P=tiling.warps * 8, num_warps=tiling.warps, **sizes,
    )  # fmt: skip
    dx = torch.empty_like(x)
    tiling = mapping(items, channels, 2048 if pool else 4096)
    apply[(tiling.programs, tiling.groups)](
        dy, x, dx, total, mean, rstd, weight, bias, items, slope,
        C=channels, B=tiling.B, R=tiling.R, num_warps=8, **sizes,
    )  # fmt: skip
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
