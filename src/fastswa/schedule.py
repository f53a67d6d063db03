"""Learning rate and ramps as pure functions of the epoch, and the rate for any torch optimiser.

The cyclic cosine of the paper (section 4): 0.5 lr (1 + cos(pi e / period)) for e < length; after that
the last `cycle` epochs repeat for ever, or the rate stays constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def cyclic_cosine(epoch: float, *, length: float, period: float, cycle: float) -> float:
    """The factor on the learning rate at a fractional epoch; `cycle` 0 holds the rate reached at `length`."""
    if epoch >= length:
        epoch = length - cycle + math.fmod(epoch - length, cycle) if cycle > 0 else length
    return 0.5 * (1.0 + math.cos(math.pi * epoch / period))


def sigmoid_ramp(epoch: float, length: float) -> float:
    """exp(-5 (1 - e/length)^2) with the whole-number epoch e, rising to 1 at `length`."""
    whole = math.floor(epoch)
    if length <= 0 or whole >= length:
        return 1.0
    return math.exp(-5.0 * (1.0 - whole / length) ** 2)


def ema_decay(step: int, highest: float) -> float:
    """The decay of an exponential moving average at a step counted from 1: min(1 - 1/(step + 1), highest)."""
    return min(1.0 - 1.0 / (step + 1), highest)


class CyclicCosine:
    """The cyclic cosine on an optimiser of one's own; each parameter group keeps its own base rate.

    Until epoch `length` the rate falls along a cosine that would reach zero at `period` (none given: at `length`); then
    the last `cycle` epochs repeat for ever, or with `cycle` 0 the rate stays as it is. It is no LRScheduler of torch's:
    call `step` yourself, rather than through a SequentialLR.

    >>> schedule = CyclicCosine(optimizer, length=180, period=210, cycle=30)
    >>> schedule.step(epoch + batch / batches_per_epoch)  # before each optimiser step
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        length: float,
        period: float | None = None,
        cycle: float = 0.0,
    ) -> None:
        period = length if period is None else period
        if not (0 < length <= period < math.inf and 0 <= cycle <= length):
            raise ValueError(
                f"CyclicCosine needs 0 < length <= period and 0 <= cycle <= length, "
                f"not length={length}, period={period}, cycle={cycle}."
            )
        self.optimizer = optimizer
        self.length, self.period, self.cycle = length, period, cycle
        self.epoch = 0.0
        self.step(0.0)

    def factor(self, epoch: float) -> float:
        """What the base rates are multiplied by at a fractional epoch."""
        return cyclic_cosine(epoch, length=self.length, period=self.period, cycle=self.cycle)

    def step(self, epoch: float | None = None) -> None:
        """Set the rates for a fractional epoch (none given: the next whole one)."""
        epoch = self.epoch + 1.0 if epoch is None else float(epoch)
        if not math.isfinite(epoch):
            raise ValueError(f"an epoch must be a finite number, not {epoch}.")
        self.epoch = epoch
        for group, rate in zip(self.optimizer.param_groups, self.get_last_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def get_last_lr(self) -> list[float]:
        """The current rate of each parameter group, as computed (nothing is read from a device)."""
        return [rate * self.factor(self.epoch) for rate in self._base_rates()]

    def _base_rates(self) -> list[float]:
        """The rate that each group began with, those of groups added since too."""
        return [group.setdefault("initial_lr", float(group["lr"])) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes to go on."""
        return {"epoch": self.epoch, "initial_lr": self._base_rates()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: its epoch and the base rate of each parameter group."""
        if not {"epoch", "initial_lr"} <= state.keys():
            raise ValueError("this is not the state of a CyclicCosine: it has no epoch or no initial_lr.")
        groups, rates = self.optimizer.param_groups, state["initial_lr"]
        if len(groups) != len(rates):
            raise ValueError(f"the state has {len(rates)} parameter groups, and the optimiser {len(groups)}.")
        for group, rate in zip(groups, rates, strict=True):
            group["initial_lr"] = rate
        self.step(state["epoch"])
