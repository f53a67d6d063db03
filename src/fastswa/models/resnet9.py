"""A plain ResNet-9: eight 3x3 convolutions and a linear head, made for speed on images of about 32 pixels.

Widths w, 2w, then two more convolutions as a residual, 4w, 8w, and a residual again; 2x2 maxima after the second,
fifth and sixth convolution. Each is followed by batch norm and LeakyReLU(0.1); the head sees global averages. With the
width 64, one head and 10 classes 6,573,130 parameters and 0.76 GFLOP forward for one 32x32 image, counting 2 per
multiply-add of the convolutions; both grow with the square of the width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fastswa.models.convolution import Convolutional, Weights
from fastswa.models.network import Heads, Output, global_average, norm_leaky_relu
from fastswa.noise import Noise


class _Layer(nn.Module):
    """3x3 convolution, batch norm, LeakyReLU(0.1) and, with `pool`, 2x2 maxima."""

    def __init__(self, inputs: int, outputs: int, pool: bool = False) -> None:
        super().__init__()
        self.pool = pool
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        return norm_leaky_relu(self.norm, weights.convolve(self.conv, x), None, 0.1, self.pool)


class ResNet9(Convolutional):
    """(N, C, H, W) normalised images, H and W at least 8, to an `Output`."""

    smallest: ClassVar[int] = 8
    divisor: ClassVar[int] = 1

    def __init__(self, *, channels: int = 3, classes: int = 10, heads: int = 1, width: int = 64) -> None:
        super().__init__()
        self.stem = _Layer(channels, width)
        self.layer1 = _Layer(width, 2 * width, pool=True)
        self.residual1 = nn.ModuleList([_Layer(2 * width, 2 * width), _Layer(2 * width, 2 * width)])
        self.layer2 = _Layer(2 * width, 4 * width, pool=True)
        self.layer3 = _Layer(4 * width, 8 * width, pool=True)
        self.residual2 = nn.ModuleList([_Layer(8 * width, 8 * width), _Layer(8 * width, 8 * width)])
        self.heads = Heads(8 * width, classes, heads)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=0.1, mode="fan_out", nonlinearity="leaky_relu")
        self.gather()

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        weights = self.weights()
        x = self.layer1(self.stem(x, weights), weights)
        x = x + self.residual1[1](self.residual1[0](x, weights), weights)
        x = self.layer3(self.layer2(x, weights), weights)
        x = x + self.residual2[1](self.residual2[0](x, weights), weights)
        output: Output = self.heads(global_average(x))
        return output
