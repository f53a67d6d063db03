"""Wide residual networks (Zagoruyko & Komodakis 2016), with the LeakyReLU(0.1) of the semi-supervised papers.

A 3x3 convolution to 16 channels, three stages of (depth - 4) / 6 blocks of 16k, 32k and 64k channels, batch norm,
LeakyReLU, global average, linear head. Convolutions have no bias. Every number that is trained counts as a parameter
(weights, the head's bias, batch norm's scales and shifts), running statistics do not: with one head and 10 classes
1,467,610 for WRN-28-2 and 23,354,842 for WRN-28-8 (published: 1.5M, 23.4M); a second head adds one more of the first's
size. 0.43 and 6.72 GFLOP forward for one 32x32 image, counting 2 per multiply-add of the convolutions.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fastswa.models.convolution import Convolutional, Weights
from fastswa.models.network import Heads, Output, global_average, norm_leaky_relu
from fastswa.noise import Noise

_SLOPE = 0.1


class _Block(nn.Module):
    """Norm, activation, 3x3 convolution, twice, added to what came in.

    Where width or size change, what came in goes through the first activation and a 1x1 convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = inputs != outputs or stride != 1
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        active = norm_leaky_relu(self.norm1, x, None, _SLOPE)
        inner = norm_leaky_relu(self.norm2, weights.convolve(self.conv1, active), None, _SLOPE)
        return (x if self.skip is None else weights.convolve(self.skip, active)) + weights.convolve(self.conv2, inner)


class WideResNet(Convolutional):
    """(N, C, H, W) normalised images, H and W at least 8, to an `Output`."""

    smallest: ClassVar[int] = 8
    divisor: ClassVar[int] = 1

    def __init__(self, *, depth: int, widen: int, channels: int = 3, classes: int = 10, heads: int = 1) -> None:
        super().__init__()
        if (depth - 4) % 6:
            raise ValueError(f"a wide residual network has a depth of 6n + 4, not {depth}.")
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks: list[_Block] = []
        inputs = 16
        for stage in range(3):
            outputs = 16 * widen * 2**stage
            for block in range((depth - 4) // 6):
                blocks.append(_Block(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.heads = Heads(inputs, classes, heads)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=_SLOPE, mode="fan_out", nonlinearity="leaky_relu")
        self.gather()

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        weights = self.weights()
        x = weights.convolve(self.stem, x)
        for block in self.blocks:
            x = block(x, weights)
        x = norm_leaky_relu(self.norm, x, None, _SLOPE)
        output: Output = self.heads(global_average(x))
        return output


class WideResNet28x2(WideResNet):
    """WRN-28-2, the network that semi-supervised methods are compared on for CIFAR-10."""

    def __init__(self, *, channels: int = 3, classes: int = 10, heads: int = 1) -> None:
        super().__init__(depth=28, widen=2, channels=channels, classes=classes, heads=heads)


class WideResNet28x8(WideResNet):
    """WRN-28-8, the one for CIFAR-100."""

    def __init__(self, *, channels: int = 3, classes: int = 10, heads: int = 1) -> None:
        super().__init__(depth=28, widen=8, channels=channels, classes=classes, heads=heads)
