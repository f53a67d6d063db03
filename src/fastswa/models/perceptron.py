"""A small fully connected network for feature vectors."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.models.network import Dropout, Heads, Output
from fastswa.noise import Noise


class _Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.linear(x)), 0.1)


class Perceptron(nn.Module):
    """(N, F, 1, 1) standardised features (each the one pixel of a channel) to an `Output`: two hidden layers."""

    smallest: ClassVar[int] = 1
    divisor: ClassVar[int] = 1
    largest: ClassVar[int] = 1

    def __init__(
        self, *, channels: int = 1, classes: int = 2, heads: int = 1, width: int = 128, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layer1 = _Layer(channels, width)
        self.drop = Dropout("dropout1", dropout)
        self.layer2 = _Layer(width, width)
        self.heads = Heads(width, classes, heads)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        x = self.drop(self.layer1(x.flatten(1)), noise)
        output: Output = self.heads(self.layer2(x))
        return output
