"""The 13-layer CNN of the paper (appendix, "Network Architectures"; Laine & Aila's network).

Each convolution and each linear layer is weight-normalised, with bias; convolutions are followed by batch
norm and LeakyReLU(0.1). With two heads 3,127,208 parameters (10 classes), 3,150,608 (100); 1.46 GFLOP
forward for one 32x32 image, counting 2 per multiply-add.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fastswa.models.network import Dropout, Heads, Output, convolve, global_average, norm_leaky_relu
from fastswa.noise import Noise


class _Layer(nn.Module):
    """Weight-normalised convolution, batch norm, LeakyReLU(0.1) and, with `pool`, 2x2 maxima."""

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int, pool: bool = False) -> None:
        super().__init__()
        self.pool = pool
        self.conv = weight_norm(nn.Conv2d(inputs, outputs, kernel, padding=padding))
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = convolve(x, self.conv.weight, self.conv.padding)
        return norm_leaky_relu(self.norm, x, self.conv.bias, 0.1, self.pool)


class CNN13(nn.Module):
    """(N, C, H, W) normalised images, H and W at least 12, to an `Output`."""

    smallest: ClassVar[int] = 12
    divisor: ClassVar[int] = 1

    def __init__(self, *, channels: int = 3, classes: int = 10, heads: int = 1, dropout: float = 0.5) -> None:
        super().__init__()
        self.block1 = nn.Sequential(
            _Layer(channels, 128, 3, 1), _Layer(128, 128, 3, 1), _Layer(128, 128, 3, 1, pool=True)
        )
        self.drop1 = Dropout("dropout1", dropout)
        self.block2 = nn.Sequential(_Layer(128, 256, 3, 1), _Layer(256, 256, 3, 1), _Layer(256, 256, 3, 1, pool=True))
        self.drop2 = Dropout("dropout2", dropout)
        self.block3 = nn.Sequential(_Layer(256, 512, 3, 0), _Layer(512, 256, 1, 0), _Layer(256, 128, 1, 0))
        self.heads = Heads(128, classes, heads)
        weight_norm(self.heads.first)
        if self.heads.second is not None:
            weight_norm(self.heads.second)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        x = self.drop1(self.block1(x), noise)
        x = self.drop2(self.block2(x), noise)
        features = global_average(self.block3(x))
        output: Output = self.heads(features)
        return output
