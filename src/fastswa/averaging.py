"""Averages of any nn.Module's weights along training: SWA, fast-SWA, EMA.

Knows nothing of the rest of the package but a kernel and `batch_norm`. An update is a few multi-tensor kernels with a
weight known on the host, so it never waits for the device. An average of every step can be part of the step itself.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fastswa import kernels
from fastswa.batch_norm import copy_all, refresh_batch_norm, wide


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


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy, also where a pass has left results in the model: kept activations, weights made of others by hooks
    (torch.nn.utils.weight_norm, pruning). Those are copied as values."""
    left = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in left if not value.is_leaf})


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

    With `inside` (and `every=0`) the average is taken by `take`, as the last part of a training step that may be
    compiled or captured once for the whole run: what weight an iterate has lies on the device. `expect`, before the
    step, says on the host whether it is to be averaged. Without `decay` what rounding loses is kept and given back, so
    that the mean of any number of iterates is theirs up to the last bit or two.

    >>> averaged = AveragedWeights(model, start=150, every=0, inside=True)
    >>> averaged.expect(epoch)  # the one that the step will have reached
    >>> step()  # which calls averaged.take()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        start: float = 0.0,
        every: float = 1.0,
        decay: float | None = None,
        inside: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"AveragedWeights takes the model itself, an nn.Module, not a {type(model).__name__}.")
        for name, value in (("start", start), ("every", every), ("decay", 0.0 if decay is None else decay)):
            if isinstance(value, str) or not hasattr(value, "__float__"):
                raise TypeError(f"{name} must be a number, not {value!r}.")
        if not start >= 0:
            raise ValueError(f"start must be an epoch, 0 or later, not {start}.")
        if not every >= 0 or (decay is not None and not 0 <= decay < 1):
            raise ValueError(f"every must be at least 0 and decay in [0, 1), not {every} and {decay}.")
        if inside and every > 0:
            raise ValueError(f"an average inside a step takes every step: every must be 0, not {every}.")
        self._source = unwrap(model)
        self.start, self.every, self.decay, self.inside = float(start), float(every), decay, inside
        self.last_due = -1
        self._module = _copied(self._source).requires_grad_(False).eval()
        # Means of 16-bit weights are kept in 32 bits: a running mean in bf16 stops moving after ~256 updates.
        self._means = [p.detach().to(wide(p)) for p in self._module.parameters()]
        self._stale = False
        self._lost = [torch.zeros_like(mean) for mean in self._means] if inside and decay is None else []
        # (1,): compiled code loses what is added to a 0-dim float64 tensor of the CPU (torch 2.13).
        like = self._means[0] if self._means else torch.zeros(())
        self._taken, self._open = (torch.zeros(1, dtype=like.dtype, device=like.device) for _ in range(2))
        self._opened = False
        self._count = 0

    @property
    def count(self) -> int:
        """How many iterates it holds."""
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count
        self._taken.fill_(count)

    @property
    def module(self) -> nn.Module:
        """The averaged network: same architecture, in evaluation mode, no gradients."""
        if self._stale:
            with torch.no_grad():
                for parameter, mean in zip(self._module.parameters(), self._means, strict=True):
                    # Another precision, or the module was moved since.
                    if parameter.data_ptr() != mean.data_ptr():
                        parameter.copy_(mean)
                if self.inside:
                    self._copy_buffers()
            self._stale = False
        return self._module

    def due(self, epoch: float) -> bool:
        """Whether `update(epoch)` would average."""
        if not math.isfinite(epoch):
            raise ValueError(f"an epoch must be a finite number, not {epoch}.")
        if epoch < self.start - 1e-9:
            return False
        return self.every == 0 or self._position(epoch) > self.last_due

    def _position(self, epoch: float) -> int:
        return math.floor((epoch - self.start) / self.every + 1e-6)

    @torch.no_grad()
    def update(self, epoch: float | None = None) -> bool:
        """Take the model's present weights into the average if due (no epoch: always); whether it did."""
        if self.inside:
            due = epoch is None or self.due(epoch)
            if due:
                self._turn(True)
                self.take()
                self._turn(False)
            return due
        if epoch is not None and not self.due(epoch):
            return False
        weight = 1.0 / (self.count + 1)
        if self.decay is not None:
            weight = max(weight, 1.0 - self.decay)
        parameters = list(self._source.parameters())
        if [p.shape for p in parameters] != [mean.shape for mean in self._means]:
            raise ValueError("the model has other parameters than when its average was made; make the average again.")
        self._copy_buffers()
        means, current = [], []
        for parameter, mean in zip(parameters, self._means, strict=True):
            if mean.is_floating_point() or mean.is_complex():
                means.append(mean)
                current.append(parameter.detach().to(mean.device, mean.dtype))
            else:
                # Whole numbers, such as quantised weights beside which adapters are trained.
                mean.copy_(parameter)
        if means:
            torch._foreach_lerp_(means, current, weight)
        if epoch is not None and self.every > 0:
            self.last_due = self._position(epoch)
        self._count += 1
        self._stale = True
        return True

    def _copy_buffers(self) -> None:
        own, theirs = list(self._module.buffers()), list(self._source.buffers())
        if [buffer.shape for buffer in own] == [buffer.shape for buffer in theirs]:
            copy_all(own, theirs)
            return
        modules, sources = list(self._module.modules()), list(self._source.modules())
        if len(modules) != len(sources):
            raise ValueError("the model has other layers than when its average was made; make the average again.")
        # Caches that were made or have grown since.
        for module, source in zip(modules, sources, strict=True):
            for name, buffer in source._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.detach().clone()

    def expect(self, epoch: float) -> bool:
        """Whether the step that ends at `epoch` is to be averaged by the `take` inside it: it is counted as done."""
        due = self.due(epoch)
        self._turn(due)
        return due

    def _turn(self, on: bool) -> None:
        if on != self._opened:
            self._open.fill_(float(on))
            self._opened = on
        if on:
            self._count += 1
            self._stale = True

    @property
    def at_once(self) -> bool:
        """Whether `take` is one launch: on a GPU, of 32-bit weights."""
        return kernels.averageable(list(self._source.parameters()), self._means)

    @torch.no_grad()
    def take(self) -> None:
        """Take the model's present weights in if that is expected, reading and writing device tensors alone.

        mean += (weights - mean) / n, where the true mean is `mean + lost`: `lost` is what was too small for the last
        digit of `mean`, and comes back when there is enough of it.
        """
        if not self.inside:
            raise ValueError("take is for AveragedWeights(…, every=0, inside=True); call update(epoch) instead.")
        parameters: list[Tensor] = list(self._source.parameters())
        # Compiled code fuses the operations below itself, and cannot look up addresses.
        if not torch.compiler.is_compiling() and self.at_once:
            from fastswa.kernels.average import take_in

            least = 0.0 if self.decay is None else 1.0 - self.decay
            with kernels.launching():
                take_in(parameters, self._means, self._lost, self._open, self._taken, least)
            return
        self._taken.add_(self._open)
        weight = self._open[0] / self._taken[0].clamp(min=1.0)
        if self.decay is not None:
            weight = torch.maximum(weight, self._open[0] * (1.0 - self.decay))
        # The first iterate is taken as it is: what the mean held before would leave its rounding.
        torch._foreach_mul_(self._means, 1.0 - self._open[0] * (self._taken[0] <= 1.0))
        current = [p.detach().to(mean.dtype) for p, mean in zip(parameters, self._means, strict=True)]
        change = list(torch._foreach_sub(current, self._means))
        if not self._lost:
            torch._foreach_mul_(change, weight)
            torch._foreach_add_(self._means, change)
            return
        torch._foreach_sub_(change, self._lost)
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(change, self._lost)
        moved = torch._foreach_add(self._means, change)
        torch._foreach_copy_(self._lost, torch._foreach_sub(change, torch._foreach_sub(moved, self._means)))
        torch._foreach_copy_(self._means, moved)

    def refresh(self, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None) -> None:
        """Batch-norm statistics of the average from training batches, as their cumulative mean."""
        if self.count == 0:
            warnings.warn(
                f"nothing has been averaged yet (start is {self.start:g}): it holds the weights it began with.",
                stacklevel=2,
            )
        refresh_batch_norm(self.module, batches, forward)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resume needs, under the plain model's names; copies, which later updates leave alone."""
        parts = {
            part: {name: tensor.detach().clone() for name, tensor in tensors.items()}
            for part, tensors in self.tensors().items()
        }
        return {"count": self.count, "last_due": self.last_due, "start": self.start, "every": self.every, **parts}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of `state_dict` themselves, which change with each update."""
        names = [canonical(name) for name, _ in self._module.named_parameters()]
        return {
            "parameters": dict(zip(names, self._means, strict=True)),
            "buffers": {canonical(name): buffer for name, buffer in self._module.named_buffers()},
            "inside": self._inside(names),
        }

    def _inside(self, names: list[str]) -> dict[str, Tensor]:
        """What an average inside a step keeps besides."""
        lost = {f"lost.{name}": tensor for name, tensor in zip(names, self._lost, strict=False)}
        return {"taken": self._taken, **lost} if self.inside else {}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. An average with another `start` or `every` goes on at its own times."""
        own = self.tensors()
        missing = [name for name in ("count", "last_due", "parameters", "buffers") if name not in state]
        if missing:
            raise ValueError(f"this is not the state of an average: it has no {', '.join(missing)}.")
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
        for name, tensor in own["inside"].items():
            if name in state.get("inside", {}):
                tensor.copy_(state["inside"][name])
        self.count, self.last_due = int(state["count"]), int(state["last_due"])
        start, every = state.get("start", self.start), state.get("every", self.every)
        if self.last_due >= 0 and self.every > 0 and (start, every) != (self.start, self.every):
            self.last_due = max(self._position(start + self.last_due * every), -1)
        self._stale = True
