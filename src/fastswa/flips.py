"""Test-time averaging over an image and its mirror image: asked for by name, and never what an error is quoted from."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class FlipAveraged(nn.Module):
    """A network whose prediction is the mean of its probabilities for an image (N, C, H, W) and its mirror image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, noise: Any = None) -> Any:
        """The network's output with logits (and consistency) that are the logarithm of that mean."""
        output = self.network(x, noise)
        straight, mirrored = (
            given.logits.float().log_softmax(dim=1) for given in (output, self.network(x.flip(3), noise))
        )
        mean = torch.logaddexp(straight, mirrored) - math.log(2.0)
        return output._replace(logits=mean, consistency=mean)
