"""What each step of an epoch needs, on the device: indices, rates and random words, and a cursor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastswa.config import Config
from fastswa.data.batches import BatchPlan
from fastswa.methods.method import Method
from fastswa.noise import step_words
from fastswa.schedule import cyclic_cosine
from fastswa.training.ahead import Ahead


def learning_rate(config: Config, epoch: float) -> float:
    """The learning rate at a fractional epoch."""
    schedule = config.schedule
    if schedule.after == "constant" and schedule.constant_lr is not None and epoch >= schedule.length:
        return schedule.constant_lr
    cycle = schedule.cycle if schedule.after == "cycles" else 0.0
    return config.optimiser.lr * cyclic_cosine(epoch, length=schedule.length, period=schedule.period, cycle=cycle)


class StepValues(NamedTuple):
    """One step's values: `images` (B,) int64 numbers, `words` (2,) int32, and 0-dim rates."""

    images: Tensor
    words: Tensor
    learning_rate: Tensor
    consistency_weight: Tensor
    teacher_rate: Tensor


class Feed:
    """The epoch's table in buffers whose addresses never change; `take` reads the row under the cursor."""

    def __init__(
        self, config: Config, plan: BatchPlan, method: Method, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config, self.plan, self.method = config, plan, method
        most = plan.pace.most
        self.indices = torch.zeros(most, plan.size, dtype=torch.int64, device=device)
        self.words = torch.zeros(most, 2, dtype=torch.int32, device=device)
        self.rates = torch.zeros(most, 3, dtype=dtype, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._ahead = Ahead(self._rows)

    def load(self, epoch: int, position: int = 0) -> None:
        """Bring an epoch's rows to the device and set the cursor on the step at `position`."""
        for buffer, rows in zip((self.indices, self.words, self.rates), self._ahead(epoch), strict=True):
            buffer[: len(rows)].copy_(torch.from_numpy(rows))
        self.cursor.fill_(position)

    def _rows(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seed, plan = self.config.seed, self.plan
        first, count = plan.pace.before(epoch), plan.pace.of(epoch)
        return plan.rows(seed, epoch), step_words(seed, "step", first, count), self._rates(epoch, count)

    def _rates(self, epoch: int, count: int) -> np.ndarray:
        places = [(epoch * count + position) / count for position in range(count)]
        return np.array(
            [
                (learning_rate(self.config, place), self.method.weight(place), self._teacher_rate(epoch, number, count))
                for number, place in enumerate(places)
            ]
        ).reshape(count, 3)

    def _teacher_rate(self, epoch: int, position: int, count: int) -> float:
        """The method's, which counts epochs of equal length: a step of a shorter one stands for those it replaces."""
        steps = self.plan.steps
        before, after = (epoch * steps + -(-done * steps // count) for done in (position, position + 1))
        return max(self.method.teacher_rate(step, steps) for step in range(min(before + 1, after), after + 1))

    def take(self) -> StepValues:
        """The row under the cursor, which moves on; no value is read by the host."""
        images = self.indices.index_select(0, self.cursor)[0]
        words = self.words.index_select(0, self.cursor)[0]
        rates = self.rates.index_select(0, self.cursor)[0]
        self.cursor.add_(1)
        return StepValues(images, words, rates[0], rates[1], rates[2])
