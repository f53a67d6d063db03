"""Several runs of one process on a device: a stream each on a GPU, where they take turns; in turn on the CPU.

Nothing a run computes depends on the others: its random numbers come from its own seed and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

from fastswa import beside
from fastswa.errors import RequestError
from fastswa.training.device import Compute

# Each takes a lane, a stream to be captured on and one beside each of the two (a lane's is for gradients that are
# recorded), and checkpoints have one for all.
MOST = (beside.POOL - 1) // 4
Made = TypeVar("Made")


@dataclass
class Beside:
    """How many runs share a CPU, each in a process of its own: at most, and at the moment."""

    most: int = 1
    now: int = 1


class Lanes:
    """Lane k is a CUDA stream of its own from the second run on; on the CPU lanes mean nothing."""

    def __init__(self, compute: Compute, beside: Beside | None = None) -> None:
        self._cuda = compute.device.type == "cuda"
        self._device = compute.device
        self._beside = beside or Beside()

    @property
    def running(self) -> int:
        """How many runs share the device at the moment."""
        return self._beside.now

    def at_once(self, runs: int) -> int:
        """How many of `runs` share the device when they begin; refuses what its streams would not do for."""
        if self._cuda and runs > MOST:
            raise RequestError(f"{runs} runs at once are too many for a GPU; train {MOST} together at most.")
        return runs if self._cuda else self._beside.most

    def _lane(self, number: int) -> AbstractContextManager[object]:
        if not self._cuda or number == 0:
            return nullcontext()
        return torch.cuda.stream(beside.own(self._device, "lane", number))

    def on(self, number: int, make: Callable[[], Made]) -> Made:
        """What `make` gives, made on lane `number`."""
        with self._lane(number):
            return make()

    def run(self, runs: Sequence[Iterator[None]]) -> None:
        """Every run to its end."""
        if not self._cuda:
            for run in runs:
                for _ in run:
                    pass
            return
        waiting = dict(enumerate(runs))
        while waiting:
            self._beside.now = len(waiting)
            for number, run in list(waiting.items()):
                with self._lane(number):
                    if next(run, True):
                        del waiting[number]
