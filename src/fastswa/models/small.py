"""A light CNN that adapts to the size of its images; made for CPUs.

Images of 8 pixels are halved once, as the embedded digits need it; larger ones more often, half of the halvings in
the first convolution, where they save most, so that the last layers see about 4x4 to 7x7 positions whatever the size.
With width 32 the forward pass of one grey image takes 3 MFLOP at 8x8, 13 at 28x28, 24 at 32x32, 311 at 224x224.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.models.network import Dropout, Heads, Output, global_average, norm_leaky_relu
from fastswa.noise import Noise

_WIDEST = 4


class _Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return norm_leaky_relu(self.norm, self.conv(x), None, 0.1)


class SmallCNN(nn.Module):
    """(N, C, H, W) normalised images, H and W at least 4, to an `Output`: four convolutions, one pooling at 8x8.

    `size` is the shorter side: from 16 on a strided convolution comes first, from 32 on there are more blocks.
    """

    smallest: ClassVar[int] = 4
    divisor: ClassVar[int] = 1

    def __init__(
        self,
        *,
        channels: int = 1,
        classes: int = 10,
        heads: int = 1,
        width: int = 32,
        dropout: float = 0.5,
        size: int = 8,
    ) -> None:
        super().__init__()
        halvings = max(int(math.log2(size / 4)), 1)
        stride = 2 ** (halvings // 2)
        self.stem = _Layer(channels, width, 2 * stride + 1, stride) if stride > 1 else None
        inputs = channels if self.stem is None else width
        self.block1 = nn.Sequential(_Layer(inputs, width), _Layer(width, width))
        self.drop = Dropout("dropout1", dropout)
        self.block2 = nn.Sequential(_Layer(width, 2 * width), _Layer(2 * width, 2 * width))
        self.more = nn.ModuleList()
        inputs = 2 * width
        for _ in range(halvings - halvings // 2 - 1):
            outputs = min(2 * inputs, _WIDEST * width)
            self.more.append(nn.Sequential(_Layer(inputs, outputs), _Layer(outputs, outputs)))
            inputs = outputs
        self.heads = Heads(inputs, classes, heads)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        if self.stem is not None:
            x = self.stem(x)
        x = self.drop(F.max_pool2d(self.block1(x), 2), noise)
        x = self.block2(x)
        for block in self.more:
            x = block(F.max_pool2d(x, 2))
        output: Output = self.heads(global_average(x))
        return output
