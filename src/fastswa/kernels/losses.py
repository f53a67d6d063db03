"""The terms of the consistency methods and their gradients, a launch each: as separate operations they are fifty.

first (N, K) are the logits that predict, second (N, K) those that must agree with the target; with one head they are
the same tensor. The first `labelled` rows have labels. Everything is computed in 32 bits, as fastswa.methods.losses
does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastswa.kernels.launch import kernel
from fastswa.operation import operation

_ELEMENTS = 4096


@triton.jit
def _softmax(x):
    power = tl.exp(x - tl.max(x, axis=1)[:, None])
    return power / tl.sum(power, axis=1)[:, None]


@triton.jit
def _logarithm(x):
    """Of the sum of each row's powers."""
    greatest = tl.max(x, axis=1)
    return greatest + tl.log(tl.sum(tl.exp(x - greatest[:, None]), axis=1))


@triton.jit
def _row(ptr, row, column, stride, inside, K):
    """Rows of logits, nothing of what lies beyond the classes."""
    x = tl.load(ptr + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.where(column[None, :] < K, x, -float("inf"))


@kernel
def _terms_kernel(
    first_ptr, second_ptr, target_ptr, share_ptr, labels_ptr, weight_ptr, out_ptr,
    rows, labelled, K, first_stride, second_stride, tie,
    TWO: tl.constexpr, SHARE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """This program's part of cross entropy, divergence and tie."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    inside = (row[:, None] < rows) & (column[None, :] < K)
    first = _row(first_ptr, row, column, first_stride, inside, K)
    label = tl.load(labels_ptr + row, mask=row < labelled, other=0)
    said = tl.sum(tl.where(column[None, :] == label[:, None], first, 0.0), axis=1)
    entropy = tl.sum(tl.where(row < labelled, _logarithm(first) - said, 0.0), axis=0)
    second = first
    if TWO:
        second = _row(second_ptr, row, column, second_stride, inside, K)
    between = tl.where(inside, first - second, 0.0)
    apart = tl.sum(tl.sum(between * between, axis=1), axis=0)
    target = tl.load(target_ptr + row[:, None] * K + column[None, :], mask=inside, other=0.0)
    difference = tl.where(inside, _softmax(second) - target, 0.0)
    divergence = tl.sum(difference * difference, axis=1)
    if SHARE:
        divergence *= tl.load(share_ptr + row, mask=row < rows, other=0.0)
    out = out_ptr + tl.program_id(0) * 3
    tl.store(out, entropy / rows)
    tl.store(out + 1, tl.load(weight_ptr) * (tl.sum(divergence, axis=0) / (rows * K)))
    tl.store(out + 2, tie * (apart / (rows * K)))


@kernel
def _gradients_kernel(
    first_ptr, second_ptr, target_ptr, share_ptr, labels_ptr, weight_ptr, by_ptr0, by_ptr1, by_ptr2,
    d_first_ptr, d_second_ptr, rows, labelled, K, first_stride, second_stride, tie,
    TWO: tl.constexpr, SHARE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The gradients of the three terms, times `by`, added up."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    inside = (row[:, None] < rows) & (column[None, :] < K)
    place = row[:, None] * K + column[None, :]
    first = _row(first_ptr, row, column, first_stride, inside, K)
    label = tl.load(labels_ptr + row, mask=row < labelled, other=0)
    wrong = _softmax(first) - tl.where(column[None, :] == label[:, None], 1.0, 0.0)
    d_first = tl.where(row[:, None] < labelled, wrong * (tl.load(by_ptr0) / rows), 0.0)
    second = first
    if TWO:
        second = _row(second_ptr, row, column, second_stride, inside, K)
    d_second = tl.where(inside, second - first, 0.0) * (tl.load(by_ptr2) * (2.0 * tie) / (rows * K))
    d_first -= d_second
    chance = _softmax(second)
    target = tl.load(target_ptr + place, mask=inside, other=0.0)
    difference = tl.where(inside, chance - target, 0.0)
    slope = chance * (difference - tl.sum(difference * chance, axis=1)[:, None])
    if SHARE:
        slope *= tl.load(share_ptr + row, mask=row < rows, other=0.0)[:, None]
    d_second += slope * (tl.load(by_ptr1) * tl.load(weight_ptr) * 2.0 / (rows * K))
    if TWO:
        tl.store(d_second_ptr + place, d_second.to(d_second_ptr.dtype.element_ty), mask=inside)
    else:
        d_first += d_second
    tl.store(d_first_ptr + place, d_first.to(d_first_ptr.dtype.element_ty), mask=inside)


def _tiling(rows: int, classes: int) -> dict[str, int]:
    width = triton.next_power_of_2(classes)
    return {"R": min(triton.next_power_of_2(rows), max(_ELEMENTS // width, 1)), "C": width}


@operation("agreement_terms")
def agreement_terms(
    first: Tensor, second: Tensor, target: Tensor, share: Tensor, labels: Tensor, weight: Tensor, tie: float, two: bool
) -> Tensor:
    """(3,): the cross entropy of the labelled, the weighted squared divergence from the target, and the heads' tie.

    `share` (N,) multiplies each row's divergence; empty, it is 1.
    """
    rows, classes = first.shape
    tiling = _tiling(rows, classes)
    programs = triton.cdiv(rows, tiling["R"])
    parts = torch.empty(programs, 3, dtype=torch.float32, device=first.device)
    _terms_kernel[(programs,)](
        first, second, target, share, labels, weight, parts, rows, len(labels), classes,
        first.stride(0), second.stride(0), tie, TWO=two, SHARE=len(share) > 0, **tiling, num_warps=4,
    )  # fmt: skip
    return parts[0] if programs == 1 else parts.sum(dim=0)


@agreement_terms.register_fake
def _(first: Tensor, *others: object) -> Tensor:
    return torch.empty(3, dtype=torch.float32, device=first.device)


@operation("agreement_gradients")
def agreement_gradients(
    by: list[Tensor],
    first: Tensor,
    second: Tensor,
    target: Tensor,
    share: Tensor,
    labels: Tensor,
    weight: Tensor,
    tie: float,
    two: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of the logits, `by` being those of the three terms; with one head all of it is in the first."""
    rows, classes = first.shape
    tiling = _tiling(rows, classes)
    d_first = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    d_second = torch.empty(second.shape if two else (0, classes), dtype=first.dtype, device=first.device)
    _gradients_kernel[(triton.cdiv(rows, tiling["R"]),)](
        first, second, target, share, labels, weight, *by, d_first, d_second, rows, len(labels), classes,
        first.stride(0), second.stride(0), tie, TWO=two, SHARE=len(share) > 0, **tiling, num_warps=4,
    )  # fmt: skip
    return d_first, d_second


@agreement_gradients.register_fake
def _(by: list[Tensor], first: Tensor, second: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    two = bool(others[-1])
    whole = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    return whole, torch.empty(second.shape if two else (0, first.shape[1]), dtype=first.dtype, device=first.device)


class Agreement(torch.autograd.Function):
    """apply(first, second, target, share, labels, weight, tie, two) gives the three terms, each 0-dim."""

    @staticmethod
    def forward(ctx, *given):  # type: ignore[no-untyped-def]
        *tensors, ctx.tie, ctx.two = given
        ctx.save_for_backward(*tensors)
        return agreement_terms(*given).unbind()

    @staticmethod
    def backward(ctx, *by):  # type: ignore[no-untyped-def]
        d_first, d_second = agreement_gradients(list(by), *ctx.saved_tensors, ctx.tie, ctx.two)
        return d_first, d_second if ctx.two else None, None, None, None, None, None, None
