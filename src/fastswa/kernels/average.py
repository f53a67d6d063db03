"""A running mean of all parameters in one launch, its count included."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from fastswa.kernels.launch import kernel
from fastswa.kernels.table import chunks_of, distances, table

_CHUNK = 2048


@kernel
def _average_kernel(
    p_ptr, mean_ptr, lost_ptr, table_ptr, open_ptr, taken_ptr, arrived_ptr, least,
    LOST: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One chunk of one parameter into its mean; the last program, when all have read the count, raises it."""
    entry = table_ptr + tl.program_id(0) * 4
    p_at, mean_at, lost_at, count = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    taken = tl.load(taken_ptr) + 1.0
    if tl.load(open_ptr) == 0:
        return
    weight = tl.maximum(tl.div_rn(1.0, taken), least)
    place = tl.arange(0, CHUNK)
    inside = place < count
    p = tl.load(p_ptr + p_at + place, mask=inside, other=0.0)
    # The first iterate is taken as it is: what the mean held before would leave its rounding.
    mean = tl.where(taken == 1.0, 0.0, tl.load(mean_ptr + mean_at + place, mask=inside, other=0.0))
    if LOST:
        lost = tl.where(taken == 1.0, 0.0, tl.load(lost_ptr + lost_at + place, mask=inside, other=0.0))
        change = (p - mean - lost) * weight + lost
        moved = mean + change
        # What the sum has of the change, and of the mean: exact whichever of the two is the greater.
        of_change = moved - mean
        of_mean = moved - of_change
        tl.store(lost_ptr + lost_at + place, (mean - of_mean) + (change - of_change), mask=inside)
    else:
        moved = mean + (p - mean) * weight
    tl.store(mean_ptr + mean_at + place, moved, mask=inside)
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(arrived_ptr, 0)
        tl.store(taken_ptr, taken)


def take_in(
    parameters: Sequence[Tensor],
    means: Sequence[Tensor],
    lost: Sequence[Tensor],
    opened: Tensor,
    taken: Tensor,
    least: float,
) -> None:
    """Where `opened` is 1, count the iterate in `taken` and move the means towards it by 1 / taken, `least` at least.

    Each of `opened` and `taken` is one number on the device. `lost` is what the means are too coarse for, or empty.
    All are dense and in 32 bits; a parameter, its mean and what that lost are laid out alike.
    """
    kept = lost or means

    def make() -> list[list[int]]:
        places = zip(*map(distances, (parameters, means, kept)), strict=True)
        return chunks_of((p.numel() for p in parameters), places, _CHUNK)

    # The current device need not be the parameters'.
    with torch.cuda.device_of(taken):
        chunks = table("average", [*parameters, *means, *kept], make)
        arrived = table("average, arrived", [taken], lambda: [[0]])
        _average_kernel[(len(chunks),)](
            parameters[0], means[0], kept[0], chunks, opened, taken, arrived, least,
            LOST=bool(lost), CHUNK=_CHUNK, num_warps=8,
        )  # fmt: skip
