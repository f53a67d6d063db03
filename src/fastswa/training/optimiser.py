"""SGD whose learning rate is a device value, so that one captured step serves the whole run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastswa.config import OptimiserConfig


class SGD:
    """Momentum (Nesterov's by default) and weight decay on every parameter, as torch.optim.SGD computes them."""

    def __init__(self, parameters: Sequence[Tensor], config: OptimiserConfig) -> None:
        self.parameters = list(parameters)
        self.config = config
        self.momentum = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """One update with the learning rate `rate`, a 0-dim tensor of the parameters' type."""
        config = self.config
        update = list(gradients)
        if config.weight_decay:
            update = list(torch._foreach_add(update, self.parameters, alpha=config.weight_decay))
        if config.momentum:
            torch._foreach_mul_(self.momentum, config.momentum)
            torch._foreach_add_(self.momentum, update)
            if config.nesterov:
                update = list(torch._foreach_add(update, self.momentum, alpha=config.momentum))
            else:
                update = self.momentum
        torch._foreach_sub_(self.parameters, torch._foreach_mul(update, rate))
