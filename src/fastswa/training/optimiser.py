"""SGD and AdamW whose learning rate is a device value, so that one captured step serves the whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fastswa import kernels
from fastswa.config import OptimiserConfig
from fastswa.errors import RequestError
from fastswa.registry import nearest


class Optimiser:
    """Updates `parameters` in place; parameter k learns at the step's rate times `multipliers[k]` (1 where not given).

    `slots` are what it remembers of each parameter, by name, and `counters` what it counts; all of it lies on the
    device, changes in place and is saved with the run.
    """

    def __init__(
        self, parameters: Sequence[Tensor], config: OptimiserConfig, multipliers: Sequence[float] | None = None
    ) -> None:
        self.parameters = list(parameters)
        self.config = config
        self.slots: dict[str, list[Tensor]] = {}
        self.counters: dict[str, Tensor] = {}
        chosen = [1.0] * len(self.parameters) if multipliers is None else list(multipliers)
        self.groups = [(m, [k for k, own in enumerate(chosen) if own == m]) for m in dict.fromkeys(chosen)]
        decays = [config.decay_all is not False or is_kernel(p) for p in self.parameters]
        self.decayed, self.spared = ([k for k, own in enumerate(decays) if own == wanted] for wanted in (True, False))

    @property
    def moves_teacher(self) -> bool:
        """Whether `move` does a whole update in a launch or two."""
        return False

    def move(
        self, gradients: Sequence[Tensor], rate: Tensor, teacher: Sequence[Tensor] | None, teacher_rate: Tensor
    ) -> None:
        """`step`, and then the teacher moved towards the parameters by `teacher_rate`."""
        raise NotImplementedError

    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """One update with the learning rate `rate`, a 0-dim tensor of the parameters' type."""
        raise NotImplementedError

    def _descend(self, update: Sequence[Tensor], rate: Tensor, decay: float = 0.0) -> None:
        """parameter -= its rate * update, after the parameter itself shrinks by its rate * decay."""
        for multiplier, members in self.groups:
            own = rate if multiplier == 1.0 else rate * multiplier
            parameters = [self.parameters[k] for k in members]
            shrinking = [self.parameters[k] for k in members if k in self.decayed]
            if decay and shrinking:
                torch._foreach_mul_(shrinking, 1.0 - own * decay)
            torch._foreach_sub_(parameters, torch._foreach_mul([update[k] for k in members], own))

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p) for p in self.parameters]


class SGD(Optimiser):
    """Momentum (Nesterov's by default) and weight decay, as torch.optim.SGD computes them."""

    def __init__(
        self, parameters: Sequence[Tensor], config: OptimiserConfig, multipliers: Sequence[float] | None = None
    ) -> None:
        super().__init__(parameters, config, multipliers)
        self.momentum = self._zeros()
        self.slots = {"momentum": self.momentum}

    @property
    def moves_teacher(self) -> bool:
        return kernels.movable(self.parameters) and self.config.momentum > 0 and [m for m, _ in self.groups] == [1.0]

    @torch.no_grad()
    def move(
        self, gradients: Sequence[Tensor], rate: Tensor, teacher: Sequence[Tensor] | None, teacher_rate: Tensor
    ) -> None:
        from fastswa.kernels.update import sgd_and_teacher

        config = self.config
        for members, decay in ((self.decayed, config.weight_decay), (self.spared, 0.0)):
            if members:
                parameters, momenta, own = (
                    [each[k] for k in members] for each in (self.parameters, self.momentum, gradients)
                )
                sgd_and_teacher(
                    parameters, momenta, None if teacher is None else [teacher[k] for k in members], own, rate,
                    teacher_rate, momentum=config.momentum, weight_decay=decay, nesterov=config.nesterov,
                )  # fmt: skip

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        config = self.config
        update = list(gradients)
        if config.weight_decay and self.decayed:
            own, theirs = ([each[k] for k in self.decayed] for each in (update, self.parameters))
            for k, pulled in zip(self.decayed, torch._foreach_add(own, theirs, alpha=config.weight_decay), strict=True):
                update[k] = pulled
        if config.momentum:
            torch._foreach_mul_(self.momentum, config.momentum)
            torch._foreach_add_(self.momentum, update)
            if config.nesterov:
                update = list(torch._foreach_add(update, self.momentum, alpha=config.momentum))
            else:
                update = self.momentum
        self._descend(update, rate)


class AdamW(Optimiser):
    """Adam with decoupled weight decay, as torch.optim.AdamW computes it; `momentum` is beta 1.

    The steps are counted on the device: the correction of the two means' start at zero is part of a captured step.
    """

    def __init__(
        self, parameters: Sequence[Tensor], config: OptimiserConfig, multipliers: Sequence[float] | None = None
    ) -> None:
        super().__init__(parameters, config, multipliers)
        self.mean, self.square = self._zeros(), self._zeros()
        first = self.parameters[0]
        # (1,): compiled code loses what is added to a 0-dim float64 tensor of the CPU (torch 2.13).
        self.count = torch.zeros(1, dtype=first.dtype, device=first.device)
        self.slots = {"adam_mean": self.mean, "adam_square": self.square}
        self.counters = {"adam_count": self.count}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        config, gradients = self.config, list(gradients)
        self.count.add_(1.0)
        torch._foreach_lerp_(self.mean, gradients, 1.0 - config.momentum)
        torch._foreach_mul_(self.square, config.beta2)
        torch._foreach_addcmul_(self.square, gradients, gradients, 1.0 - config.beta2)
        size = torch._foreach_sqrt(self.square)
        torch._foreach_div_(size, self._grown(config.beta2).sqrt())
        torch._foreach_add_(size, config.epsilon)
        update = torch._foreach_div(self.mean, size)
        torch._foreach_div_(update, self._grown(config.momentum))
        self._descend(update, rate, config.weight_decay)

    def _grown(self, beta: float) -> Tensor:
        """1 - beta^count, exact for the first steps too, where the difference would lose digits."""
        return -torch.expm1(self.count[0] * (math.log(beta) if beta else -math.inf))


def is_kernel(parameter: Tensor) -> bool:
    """Whether it is a kernel of a convolution or linear layer, rather than a bias or a gain (weight norm's too)."""
    return parameter.dim() > 1 and parameter[0].numel() > 1


_KINDS: dict[str, type[Optimiser]] = {"sgd": SGD, "adamw": AdamW}


def learning(network: nn.Module) -> dict[str, nn.Parameter]:
    """A network's parameters by name, but for those that are held as they are."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def build_optimiser(network: nn.Module, config: OptimiserConfig) -> Optimiser:
    """The optimiser that `config` names for those of a network's parameters that learn."""
    named = learning(network)
    multipliers = rate_multipliers(list(named), config.rates) if config.rates else None
    return _KINDS[config.name](list(named.values()), config, multipliers)


def rate_multipliers(names: Sequence[str], patterns: Mapping[str, float]) -> list[float]:
    """What each named parameter's learning rate is multiplied by: by the last of the patterns (`*`, `?`) it matches."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            parts = {f"{name.rsplit('.', depth)[0]}.*" for name in names for depth in range(1, name.count(".") + 1)}
            near = nearest(pattern, [*names, *parts], f"the first is {names[0]}.")
            raise RequestError(f"optimiser.rates: no parameter is named '{pattern}'; {near}")
    return [
        next((rate for pattern, rate in reversed(list(patterns.items())) if fnmatchcase(name, pattern)), 1.0)
        for name in names
    ]
