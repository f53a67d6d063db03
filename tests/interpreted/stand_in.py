"""What lets kernels take tensors of the CPU: these count as a GPU's, and there is one stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from fastswa import beside
from fastswa.config import Config
from fastswa.data.images import Dataset, ImageSet
from fastswa.kernels import norm, shake
from fastswa.training.device import Compute
from fastswa.training.feed import Feed
from fastswa.training.setup import prepare
from fastswa.training.state import build_state
from fastswa.training.step import Step


def pretend(patch: pytest.MonkeyPatch, processors: int = 2) -> None:
    """Let kernels take tensors of the CPU until `patch` is undone, as if the GPU had this many processors.

    What they refuse a GPU's tensors for, such as their type, they refuse these for too.
    """
    patch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(beside, "stream", lambda device: nullcontext())
    patch.setattr(beside, "meet", lambda device: beside._used.pop(device, None))
    patch.setattr(beside, "wait", lambda device: None)
    for module in (norm, shake):
        patch.setattr(module, "PROCESSORS", processors)


@contextmanager
def plainly() -> Iterator[None]:
    """Inside, a tensor of the CPU is one again, and what has a kernel is done by tensor operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", False, raising=False)
        yield


def distance(found: Tensor, expected: Tensor) -> float:
    """How far `found` is off, as a part of what is expected."""
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm())


def synthetic(images: int, side: int) -> Dataset:
    """Square colour images of ten classes, to train on and as many to test on."""
    rng = np.random.default_rng(0)

    def some() -> ImageSet:
        pixels = rng.integers(0, 256, (images, 3, side, side), dtype=np.uint8)
        return ImageSet(pixels, np.arange(images) % 10, tuple("abcdefghij"))

    return Dataset(some(), some(), ((0.5,) * 3, (0.29,) * 3))


def first_step(config: Config, side: int, precision: str) -> Step:
    """A run's first step on synthetic images, ready to be launched."""
    compute = Compute(torch.device("cpu"), precision, "eager", deterministic=False)
    data = synthetic(200, side)
    material = prepare(config, data, compute)
    state = build_state(config, compute, material.facts, images=len(data.train))
    feed = Feed(config, material.plan, state.method, compute.device, compute.dtype)
    feed.load(0)
    return Step(state, feed, material.augment, material.pixels, material.labels, compute)
