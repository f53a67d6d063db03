"""Averages of any nn.Module's weights along training: SWA, fast-SWA, EMA; and fresh batch-norm statistics.

Knows nothing of the rest of the package. An update is a few multi-tensor kernels with a weight known on
the host, so it never waits for the device.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_HALF = (torch.float16, torch.bfloat16)


def unwrap(model: nn.Module) -> nn.Module:
    """The plain module inside torch.compile's and DataParallel's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def canonical(name: str) -> str:
    """A tensor's name without the wrappers of compiled submodules."""
    return name.replace("_orig_mod.", "")


class AveragedWeights:
    """A running average of a model's parameters, taken when due.

    `start` and `every` are in epochs, `start` included; fractions are fine, and `every=0` averages at each
    call. Without `decay` all iterates weigh the same (SWA with `every` = the cycle, fast-SWA below it); with
    it the average is an exponential one that starts at the first iterate taken (not at the initial weights) and
    whose first updates are plain means until that decay is reached.

    >>> averaged = AveragedWeights(model, start=150, every=3)
    >>> averaged.update(epoch)  # at each epoch's start, or after each batch with a fractional epoch
    >>> averaged.refresh(batches)  # batch-norm statistics, before use
    >>> averaged.module(images)
    """

    def __init__(self, model: nn.Module, *, start: float = 0.0, every: float = 1.0, decay: float | None = None) -> None:
        if not every >= 0 or start != start or (decay is not None and not 0 <= decay < 1):
            raise ValueError(f"every must be at least 0 and decay in [0, 1), not {every} and {decay}.")
        self._source = unwrap(model)
        self.start, self.every, self.decay = float(start), float(every), decay
        self.count = 0
        self.last_due = -1
        self._module = copy.deepcopy(self._source).requires_grad_(False).eval()
        # Means of 16-bit weights are kept in 32 bits: a running mean in bf16 stops moving after ~256 updates.
        self._means = [p.detach().float() if p.dtype in _HALF else p.detach() for p in self._module.parameters()]
        self._stale = False

    @property
    def module(self) -> nn.Module:
        """The averaged network: same architecture, in evaluation mode, no gradients."""
        if self._stale:
            with torch.no_grad():
                for parameter, mean in zip(self._module.parameters(), self._means, strict=True):
                    if mean.dtype != parameter.dtype:
                        parameter.copy_(mean)
            self._stale = False
        return self._module

    def due(self, epoch: float) -> bool:
        """Whether `update(epoch)` would average."""
        if epoch < self.start - 1e-9:
            return False
        return self.every == 0 or self._position(epoch) > self.last_due

    def _position(self, epoch: float) -> int:
        return math.floor((epoch - self.start) / self.every + 1e-6)

    @torch.no_grad()
    def update(self, epoch: float | None = None) -> bool:
        """Take the model's present weights into the average if due (no epoch: always); whether it did."""
        if epoch is not None:
            if not self.due(epoch):
                return False
            if self.every > 0:
                self.last_due = self._position(epoch)
        weight = 1.0 / (self.count + 1)
        if self.decay is not None:
            weight = max(weight, 1.0 - self.decay)
        current = [
            p.detach().to(mean.device, mean.dtype)
            for p, mean in zip(self._source.parameters(), self._means, strict=True)
        ]
        torch._foreach_lerp_(self._means, current, weight)
        own, theirs = list(self._module.buffers()), list(self._source.buffers())
        if own:
            torch._foreach_copy_(own, theirs)
        self.count += 1
        self._stale = True
        return True

    def refresh(self, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None) -> None:
        """Batch-norm statistics of the average from training batches, as their cumulative mean."""
        refresh_batch_norm(self.module, batches, forward)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resume needs, under the plain model's names."""
        names = [canonical(name) for name, _ in self._module.named_parameters()]
        return {
            "count": self.count,
            "last_due": self.last_due,
            "parameters": dict(zip(names, self._means, strict=True)),
            "buffers": {canonical(name): buffer for name, buffer in self._module.named_buffers()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict()
        for part in ("parameters", "buffers"):
            if own[part].keys() != state[part].keys():
                odd = sorted(own[part].keys() ^ state[part].keys())
                raise ValueError(f"the state is of another model: {part} {', '.join(odd[:3])} do not match.")
            for name, tensor in own[part].items():
                if tensor.shape != state[part][name].shape:
                    raise ValueError(f"the state is of another model: {name} has another shape.")
        for part in ("parameters", "buffers"):
            for name, tensor in own[part].items():
                tensor.copy_(state[part][name])
        self.count, self.last_due = int(state["count"]), int(state["last_due"])
        self._stale = True


def _batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Forward passes inside leave the running batch-norm statistics as they are, in training mode too."""
    norms = [m for m in _batch_norms(model) if m.track_running_stats]
    for norm in norms:
        # Without tracking a batch norm in training mode normalises by the batch and writes nothing.
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@torch.no_grad()
def refresh_batch_norm(
    model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None
) -> None:
    """Replace the running batch-norm statistics by the cumulative mean over `batches`, in training mode.

    A batch is passed as it is (the first element of a tuple or list); `forward(model, batch)` overrides it.
    """
    norms = [m for m in _batch_norms(model) if m.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        for norm in norms:
            norm.reset_running_stats()
        for seen, batch in enumerate(batches):
            for norm in norms:
                # Set on the host: momentum=None would read the device's counter at every layer.
                norm.momentum = 1.0 / (seen + 1)
            if forward is not None:
                forward(model, batch)
            else:
                model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
