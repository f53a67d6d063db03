"""Many tensors in one launch: a kernel finds them by their distances, in elements, from the first one.

Their addresses must not change while the table is used: parameters and what goes with them, not what a step makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_tables: dict[Any, Tensor] = {}


def distances(tensors: Sequence[Tensor]) -> list[int]:
    """How many elements each tensor lies behind the first; they are of one type and on one device."""
    size = tensors[0].element_size()
    return [(tensor.data_ptr() - tensors[0].data_ptr()) // size for tensor in tensors]


def chunks_of(sizes: Iterable[int], places: Iterable[Sequence[int]], chunk: int) -> list[list[int]]:
    """A row for each `chunk` elements of tensors of these sizes: where it begins, in all its places, and its length."""
    return [
        [*(place + start for place in at), min(chunk, size - start)]
        for size, at in zip(sizes, places, strict=True)
        for start in range(0, size, chunk)
    ]


def table(name: str, tensors: Sequence[Tensor], make: Callable[[], list[list[int]]]) -> Tensor:
    """`make`'s rows on the tensors' device, made once and kept: a captured launch reads them for ever."""
    device = tensors[0].device
    key = (name, device, *((tensor.data_ptr(), tensor.shape) for tensor in tensors))
    if key not in _tables:
        _tables[key] = torch.tensor(make(), dtype=torch.int64, device=device)
    return _tables[key]
