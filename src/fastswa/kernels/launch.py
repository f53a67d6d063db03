"""Kernels that can be compiled ahead and side by side.

A kernel is compiled when it is first launched, a large part of a second each: one after the other that is most of a
start. A rehearsal goes through work without launching any, then compiles at once what it would have launched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from fastswa.kernels import rehearsal

_heard: dict[Hashable, Callable[[], object]] | None = None


@dataclass(frozen=True)
class _Pointer:
    """All of a tensor that Triton compiles for."""

    dtype: torch.dtype
    place: int

    def data_ptr(self) -> int:
        return self.place


class Kernel:
    """`kernel[grid](...)` launches, as triton.jit's own do; `jitted` is what Triton made of the function.

    `always` launches it in a rehearsal too: what it gives may become an index, which must not be just any number.
    """

    def __init__(self, function: Callable[..., None], *, always: bool = False, **options: Any) -> None:
        self.jitted, self.always = triton.jit(function, **options), always

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *given: Any, **named: Any) -> None:
        if _heard is None or self.always:
            self.jitted[grid](*given, **named)
            return
        values = {p.name for p in self.jitted.params if not p.is_constexpr}
        others = tuple((name, _kind(value) if name in values else value) for name, value in named.items())
        # Not the tensors themselves: a step's would be held until all is compiled.
        alike = [_Pointer(v.dtype, v.data_ptr() % 16) if isinstance(v, Tensor) else v for v in given]
        compiling = partial(self.jitted.warmup, *alike, grid=grid, **named)
        _heard.setdefault((self, *map(_kind, given), *others), compiling)


def kernel(function: Callable[..., None] | None = None, **options: Any) -> Any:
    """A function in Triton's language as a Kernel; `options` are its own and triton.jit's."""
    return partial(Kernel, **options) if function is None else Kernel(function)


def rehearse(work: Callable[[], object], device: torch.device) -> None:
    """Do `work` but for its kernels, which leave their outputs as they are, then compile these.

    What it changes by other means stays changed.
    """
    global _heard
    heard: dict[Hashable, Callable[[], object]] = {}
    with rehearsal:
        _heard = heard
        try:
            work()
        finally:
            _heard = None

    def ready(compiling: Callable[[], object]) -> None:
        # Whatever goes wrong here does so again, and is raised, when the kernel is launched.
        with suppress(Exception), torch.cuda.device(device):
            compiling()

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        list(threads.map(ready, heard.values()))


def _kind(value: object) -> Hashable:
    """What Triton compiles apart: types, alignment, and of integers whether they are 1 or multiples of 16."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value <= 1 else value % 16 == 0
    return type(value) if isinstance(value, float) else str(value)
