"""Shake-Shake 26 2x96d (Gastaldi 2017), the "shake-shake-image" variant.

A 3x3 convolution to 16 channels, three stages of four blocks (96, 192, 384 channels), global average,
linear heads. With two heads 26,197,316 parameters (10 classes), 26,266,616 (100); 7.55 GFLOP forward for
one 32x32 image.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa import kernels
from fastswa.models.convolution import Convolutional, Weights
from fastswa.models.network import (
    Heads,
    Output,
    fuses,
    global_average,
    norm_leaky_relu,
    normalise,
    statistics,
)
from fastswa.noise import Noise


def shake(a: Tensor, b: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """forward * a + (1 - forward) * b, whose gradient is that of backward * a + (1 - backward) * b.

    `forward` and `backward` are (N, 1, 1, 1), one number per image. No custom backward is needed: the
    value is carried by a detached difference.
    """
    with torch.no_grad():
        value = b + forward * (a - b)
    through = b + backward * (a - b)
    return through + (value - through).detach()


class _Branch(nn.Module):
    """3x3 convolution, batch norm, ReLU, 3x3 convolution, for an input after its ReLU; `norm2` is applied later."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        x = norm_leaky_relu(self.norm1, weights.convolve(self.conv1, x), None, 0.0)
        return weights.convolve(self.conv2, x)


class _Widen(nn.Module):
    """The skip path where only the width changes: 1x1 convolution, batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, active: Tensor, weights: Weights) -> Tensor:
        return norm_leaky_relu(self.norm, weights.convolve(self.conv, x), None, 1.0)


class _Downsample(nn.Module):
    """The skip path between stages: even and odd-shifted pixels, ReLU, grouped 1x1 convolution, batch norm.

    The convolution's two groups are convolutions of their own, on pixels picked with channels last.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 * inputs, outputs, 1, groups=2)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, active: Tensor, weights: Weights) -> Tensor:
        weight = weights.of[self.conv]
        # As with the other kernels, whatever may be differentiated twice is left to torch.
        if (self.training or not torch.is_grad_enabled()) and kernels.pickable(active):
            from fastswa.kernels.pick import PickAndConvolve

            x = PickAndConvolve.apply(active.to(weight.dtype), weight, weights.beside)
        else:
            pixels = active.permute(0, 2, 3, 1)
            picked = (pixels[:, 0::2, 0::2], pixels[:, 1::2, 1::2])
            groups = zip(picked, weight.chunk(2), strict=True)
            x = torch.cat([F.conv2d(half.permute(0, 3, 1, 2), half_weight) for half, half_weight in groups], dim=1)
        return norm_leaky_relu(self.norm, x, self.conv.bias, 1.0)


class _Block(nn.Module):
    """Two branches mixed at random, plus the skip path.

    `after` is what reads the sum: a "block" (it and its ReLU), one that "halves" the size (its ReLU), or the "heads".
    """

    def __init__(self, name: str, inputs: int, outputs: int, stride: int, after: str = "block") -> None:
        super().__init__()
        self.name, self.after = name, after
        self.branch1 = _Branch(inputs, outputs, stride)
        self.branch2 = _Branch(inputs, outputs, stride)
        self.skip: nn.Module | None = None
        if stride == 2:
            self.skip = _Downsample(inputs, outputs)
        elif inputs != outputs:
            self.skip = _Widen(inputs, outputs)

    def forward(
        self, x: Tensor, first: Tensor, second: Tensor, weights: Weights, noise: Noise | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For x and its ReLU, once for each branch, the block's output and its ReLU, twice.

        One that nobody reads may be left empty.
        """
        skip = x if self.skip is None else self.skip(x, first, weights)
        a, b = self.branch1(first, weights), self.branch2(second, weights)
        forward, backward = self._mixing(a, noise)
        if fuses(self.branch1.norm2, a):
            from fastswa.kernels.shake import ShakeJoin

            one, two = self.branch1.norm2, self.branch2.norm2
            joined: tuple[Tensor, Tensor, Tensor] = ShakeJoin.apply(
                self.after != "halves", self.after != "heads", a, b, skip, *statistics(one, a), one.weight, one.bias,
                *statistics(two, b), two.weight, two.bias, forward, backward,
            )  # fmt: skip
            return joined
        a, b = normalise(self.branch1.norm2, a), normalise(self.branch2.norm2, b)
        if self.training:
            mixed = shake(a, b, *(each.to(a.dtype)[:, None, None, None] for each in (forward, backward)))
        else:
            mixed = 0.5 * (a + b)
        out = skip + mixed
        active = F.relu(out)
        return out, active, active

    def _mixing(self, like: Tensor, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """One number per image for the forward pass and one for the backward pass; halves in evaluation."""
        shape = (like.shape[0],)
        if not self.training:
            half = torch.full(shape, 0.5, device=like.device)
            return half, half
        if noise is None:
            return torch.rand(shape, device=like.device), torch.rand(shape, device=like.device)
        return noise.uniform(f"{self.name}/forward", shape), noise.uniform(f"{self.name}/backward", shape)


class ShakeShake(Convolutional):
    """(N, C, H, W) normalised images, H and W divisible by 4, to an `Output`."""

    smallest: ClassVar[int] = 8
    divisor: ClassVar[int] = 4

    def __init__(self, *, depth: int, width: int, channels: int = 3, classes: int = 10, heads: int = 1) -> None:
        super().__init__()
        if (depth - 2) % 6:
            raise ValueError(f"a Shake-Shake network has a depth of 6n + 2, not {depth}.")
        blocks = (depth - 2) // 6
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        layers: list[_Block] = []
        inputs = 16
        for stage in range(3):
            outputs = width * 2**stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                after = "block" if block < blocks - 1 else "halves" if stage < 2 else "heads"
                layers.append(_Block(f"block{len(layers) + 1}", inputs, outputs, stride, after))
                inputs = outputs
        self.blocks = nn.ModuleList(layers)
        self.heads = Heads(inputs, classes, heads)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.gather()

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        weights = self.weights()
        x = weights.convolve(self.stem, x)
        first = second = F.relu(x)
        for block in self.blocks:
            x, first, second = block(x, first, second, weights, noise)
        output: Output = self.heads(global_average(x))
        return output


class ShakeShake26(ShakeShake):
    """Shake-Shake 26 2x96d, the network of the paper's second set of tables."""

    def __init__(self, *, channels: int = 3, classes: int = 10, heads: int = 1) -> None:
        super().__init__(depth=26, width=96, channels=channels, classes=classes, heads=heads)
