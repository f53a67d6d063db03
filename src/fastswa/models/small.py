"""A small CNN for images of about 8x8, made for the embedded digits on a CPU."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.models.network import Dropout, Heads, Output, norm_leaky_relu
from fastswa.noise import Noise


class _Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return norm_leaky_relu(self.norm, self.conv(x), None, 0.1)


class SmallCNN(nn.Module):
    """(N, C, H, W) normalised images, H and W at least 4, to an `Output`: four convolutions, one pooling."""

    smallest: ClassVar[int] = 4
    divisor: ClassVar[int] = 1

    def __init__(
        self, *, channels: int = 1, classes: int = 10, heads: int = 1, width: int = 32, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.block1 = nn.Sequential(_Layer(channels, width), _Layer(width, width))
        self.drop = Dropout("dropout1", dropout)
        self.block2 = nn.Sequential(_Layer(width, 2 * width), _Layer(2 * width, 2 * width))
        self.heads = Heads(2 * width, classes, heads)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        x = self.drop(F.max_pool2d(self.block1(x), 2), noise)
        output: Output = self.heads(self.block2(x).mean(dim=(2, 3)))
        return output
