"""Batch-norm statistics of any nn.Module: left as they are, or taken anew from batches.

Knows nothing of the rest of the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_HALF = (torch.float16, torch.bfloat16)


def wide(tensor: Tensor) -> torch.dtype:
    """What a tensor is summed in: itself, or 32 bits where it has 16."""
    return torch.float32 if tensor.dtype in _HALF else tensor.dtype


@torch.no_grad()
def copy_all(to: list[Tensor], tensors: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, tensors)


def _batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of its batch norms."""
    norms = [norm for norm in _batch_norms(model) if norm.track_running_stats]
    return [tensor for norm in norms for tensor in (norm.running_mean, norm.running_var) if tensor is not None]


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Each module's own mode, training or evaluation, is put back on leaving."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _trained_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Those whose running statistics move where the model trains."""
    with modes_kept(model):
        model.train()
        return [norm for norm in _batch_norms(model) if norm.track_running_stats and norm.training]


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


class FreshStatistics:
    """Batch-norm statistics of a model as the mean over the batches that are passed through it inside `with`.

    The model is in training mode there; `add` after each pass takes that batch's statistics in. Norms that stay in
    evaluation mode (a `train` of the model's own may see to it) keep theirs, and all do if the block fails. Nothing is
    read by the host and the sums stay where they are, so that pass and `add` can be captured as a CUDA graph and
    replayed.

    >>> with FreshStatistics(model) as statistics:
    ...     for batch in batches:
    ...         model(batch)
    ...         statistics.add()
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.norms = _trained_norms(model)
        running = [(norm.running_mean, norm.running_var) for norm in self.norms]
        self._running = [tensor for pair in running for tensor in pair if tensor is not None]
        # As with weights: a sum of 16-bit statistics in their own precision stops growing after a few hundred batches.
        self._sums = [torch.zeros_like(tensor, dtype=wide(tensor)) for tensor in self._running]
        self.count = torch.zeros((), device=self._sums[0].device if self._sums else None)
        self._before: list[tuple[nn.Module, bool]] = []
        self._momenta: list[float | None] = []
        self._buffers = [buffer for norm in self.norms for buffer in norm.buffers()]
        self._kept = [torch.empty_like(buffer) for buffer in self._buffers]
        self._uses: Counter[nn.Module] = Counter()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> FreshStatistics:
        self._before = [(module, module.training) for module in self.model.modules()]
        self._momenta = [norm.momentum for norm in self.norms]
        copy_all(self._kept, self._buffers)
        self._uses.clear()
        self.count.zero_()
        self.model.train()
        for norm in self.norms:
            norm.reset_running_stats()
            # A batch's statistics as they are; momentum=None would read the device's counter at every layer.
            norm.momentum = 1.0
            self._hooks.append(norm.register_forward_pre_hook(self._use))
        for total in self._sums:
            total.zero_()
        return self

    def _use(self, norm: nn.modules.batchnorm._BatchNorm, _: Any) -> None:
        """A norm that stands in several places of the model takes the mean over them."""
        self._uses[norm] += 1
        norm.momentum = 1.0 / self._uses[norm]

    def tensors(self) -> list[Tensor]:
        """What `add` changes."""
        return [*self._sums, self.count]

    @torch.no_grad()
    def add(self) -> None:
        """Take in the statistics of the batch just passed."""
        torch._foreach_add_(self._sums, self._running)
        self.count.add_(1)
        self._uses.clear()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            copy_all(self._buffers, self._kept)
        elif self.norms:
            with torch.no_grad():
                means = torch._foreach_div(self._sums, self.count.clamp(min=1))
                torch._foreach_copy_(self._running, means)
        while self._hooks:
            self._hooks.pop().remove()
        for norm, momentum in zip(self.norms, self._momenta, strict=True):
            norm.momentum = momentum
        for module, training in self._before:
            module.training = training


@torch.no_grad()
def refresh_batch_norm(
    model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None
) -> None:
    """Replace the running batch-norm statistics by their mean over `batches`, in training mode.

    A batch is passed as it is (the first element of a tuple or list), a tensor on the device that the model is on;
    `forward(model, batch)` overrides it.
    """
    statistics = FreshStatistics(model)
    if not statistics.norms:
        return
    rest = iter(batches)
    first = list(islice(rest, 1))
    if not first:
        raise ValueError("there is no batch to take batch-norm statistics from; is it an iterator that is used up?")
    with statistics:
        for batch in chain(first, rest):
            if forward is not None:
                forward(model, batch)
            else:
                inputs = batch[0] if isinstance(batch, tuple | list) else batch
                model(inputs.to(statistics.count.device) if isinstance(inputs, Tensor) else inputs)
            statistics.add()
