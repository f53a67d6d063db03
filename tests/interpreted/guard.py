"""Kernels' accesses checked: the interpreter reads and writes wherever a pointer points to, as a GPU does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from fastswa.kernels import table
from fastswa.kernels.launch import Kernel


def guard(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone, a kernel may reach only what it is given and what tables made since then lead to."""
    own = {name: getattr(InterpreterBuilder, name) for name in _POINTERS_AND_MASK}
    launch, bounds = Kernel._launch, np.zeros((2, 0), dtype=np.uint64)
    patch.setattr(table, "_tables", {})

    def launched(kernel: Kernel, grid: tuple[int, ...], *given: Any, **named: Any) -> None:
        nonlocal bounds
        tensors = [value for value in (*given, *named.values()) if isinstance(value, Tensor) and value.numel()]
        bounds = _united([*map(_range, tensors), *_ranges_of_tables()])
        # A GPU warns of nothing either: what is not a number may be left out later.
        with np.errstate(all="ignore"):
            launch(kernel, grid, *given, **named)

    def accessing(name: str) -> Any:
        pointers_at, mask_at = _POINTERS_AND_MASK[name]

        def checked(builder: InterpreterBuilder, *given: Any) -> Any:
            pointers, mask = given[pointers_at], given[mask_at]
            first = pointers.data[mask.data]
            size = pointers.get_element_ty().primitive_bitwidth // 8
            held = np.searchsorted(bounds[0], first, side="right").astype(np.int64) - 1
            inside = (held >= 0) & (first + np.uint64(size) <= bounds[1][held])
            assert inside.all(), f"{name}: {int((~inside).sum())} of {first.size} accesses are outside of all tensors"
            return own[name](builder, *given)

        return checked

    patch.setattr(Kernel, "_launch", launched)
    for name in own:
        patch.setattr(InterpreterBuilder, name, accessing(name))


# Which of a method's arguments these are.
_POINTERS_AND_MASK = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}


def _range(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _ranges_of_tables() -> Iterable[tuple[int, int]]:
    """Of the 32-bit tensors that tables lead to, which are part of the name that a table is kept under."""
    return ((at, at + 4 * prod(shape)) for _, _, *tensors in table._tables for at, shape in tensors)


def _united(ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Where ranges begin and where they end, in order, those that overlap as one."""
    united: list[list[int]] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1][1] = max(end, united[-1][1])
        else:
            united.append([start, end])
    return np.array(united, dtype=np.uint64).reshape(-1, 2).T
