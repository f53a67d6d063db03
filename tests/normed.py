"""For tests of averages and statistics: a small network with batch norm, its batches, a guard against host reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._python_dispatch import TorchDispatchMode


class Normed(nn.Module):
    """Weight-normalised convolution, batch norm, dropout, linear."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv2d(2, 4, 3))
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).mean(dim=(2, 3)))


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> Normed:
    torch.manual_seed(seed)
    return Normed().to(dtype)


def images(count: int, size: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Batches of different sizes, means and spreads."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3 + i % 3, 2, size, size, generator=generator, dtype=dtype) * (1 + i) + i for i in range(count)]


class Synchronised(AssertionError):
    """A value was read from the device."""


class _NoScalars(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise Synchronised(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails whatever reads a tensor's value on the host, from Python or from within an operator."""

    def refuse(*arguments: Any) -> Any:
        raise Synchronised("a tensor was read on the host")

    names = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
    with monkeypatch.context() as patch, _NoScalars():
        for name in names:
            patch.setattr(Tensor, name, refuse)
        yield
