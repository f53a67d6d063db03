"""The 13-layer CNN of the paper (appendix, "Network Architectures"; Laine & Aila's network).

Each convolution and each linear layer is weight-normalised, with bias; convolutions are followed by batch
norm and LeakyReLU(0.1). With two heads 3,127,208 parameters (10 classes), 3,150,608 (100); 1.46 GFLOP
forward for one 32x32 image, counting 2 per multiply-add.

Domain adaptation uses it without weight norm and with ReLU; the published network there (French et al. 2018) also pads
its 1x1 convolutions and pools the top left of what they give (`padded`).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fastswa.models.convolution import Convolutional, Weights
from fastswa.models.network import Dropout, Heads, Output, global_average, norm_leaky_relu
from fastswa.models.weight_norm import weight_norm as normalise_weights
from fastswa.noise import Noise

SLOPES = {"leaky-relu": 0.1, "relu": 0.0}


class _Layer(nn.Module):
    """Convolution, batch norm, LeakyReLU (by default of slope 0.1) and, with `pool`, 2x2 maxima."""

    slope = 0.1

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int, pool: bool = False) -> None:
        super().__init__()
        self.pool = pool
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=padding)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        x = weights.convolve(self.conv, x)
        return norm_leaky_relu(self.norm, x, self.conv.bias, self.slope, self.pool)


class CNN13(Convolutional):
    """(N, C, H, W) normalised images, H and W at least 12, to an `Output`."""

    smallest: ClassVar[int] = 12
    divisor: ClassVar[int] = 1

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 10,
        heads: int = 1,
        dropout: float = 0.5,
        weight_norm: bool = True,
        activation: str = "leaky-relu",
        padded: bool = False,
    ) -> None:
        super().__init__()
        self.padded = padded
        self.block1 = nn.ModuleList(
            [_Layer(channels, 128, 3, 1), _Layer(128, 128, 3, 1), _Layer(128, 128, 3, 1, pool=True)]
        )
        self.drop1 = Dropout("dropout1", dropout)
        self.block2 = nn.ModuleList([_Layer(128, 256, 3, 1), _Layer(256, 256, 3, 1), _Layer(256, 256, 3, 1, pool=True)])
        self.drop2 = Dropout("dropout2", dropout)
        self.block3 = nn.ModuleList(
            [_Layer(256, 512, 3, 0), _Layer(512, 256, 1, int(padded)), _Layer(256, 128, 1, int(padded))]
        )
        self.heads = Heads(128, classes, heads)
        for module in list(self.modules()):
            if isinstance(module, _Layer):
                module.slope = SLOPES[activation]
            elif weight_norm and isinstance(module, nn.Conv2d | nn.Linear):
                normalise_weights(module)
        self.gather()

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        weights = self.weights()
        for layer in self.block1:
            x = layer(x, weights)
        x = self.drop1(x, noise)
        for layer in self.block2:
            x = layer(x, weights)
        x = self.drop2(x, noise)
        for layer in self.block3:
            x = layer(x, weights)
        if self.padded:
            # The two paddings added two pixels on each side; what the published network pools is as large as before.
            x = x[:, :, :-4, :-4]
        output: Output = self.heads(global_average(x), weights)
        return output
