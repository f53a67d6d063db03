"""What every network gives, and the parts that networks share."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa import kernels
from fastswa.models.convolution import Weights
from fastswa.noise import Noise


class Output(NamedTuple):
    """`logits` (N, classes) predict; `consistency` (N, classes) are the second head's (one head: the same);
    `features` (N, F) are what the heads see."""

    logits: Tensor
    consistency: Tensor
    features: Tensor


class Heads(nn.Module):
    """One or two linear layers on the same features."""

    def __init__(self, features: int, classes: int, heads: int) -> None:
        super().__init__()
        if heads not in (1, 2):
            raise ValueError(f"a network has one or two heads, not {heads}.")
        self.first = nn.Linear(features, classes)
        self.second = nn.Linear(features, classes) if heads == 2 else None

    def forward(self, features: Tensor, weights: Weights | None = None) -> Output:
        weights = Weights({}, beside=False) if weights is None else weights
        if self.second is None:
            logits = weights.linear(self.first, features)
            return Output(logits, logits, features)
        # As one layer: half of the launches, and neither head has enough work for a GPU.
        logits, consistency = weights.linears([self.first, self.second], features)
        return Output(logits, consistency, features)


def global_average(x: Tensor) -> Tensor:
    """Means over pixels: (N, C, H, W) to (N, C); written so that the gradient has its channels last, as x has."""
    return x.permute(0, 2, 3, 1).mean(dim=(1, 2))


def normalise(norm: nn.BatchNorm2d, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `norm` gives for x (N, C, H, W) + bias (C,), in training mode without ever adding the bias.

    Batch norm subtracts the batch's mean, so a bias before it changes nothing but the running mean (and has no
    gradient): it is accounted for there, which saves a pass over x forward and one backward. The counter of
    batches, which only momentum=None reads, is left alone otherwise.
    """
    if not norm.training or norm.momentum is None:
        out: Tensor = norm(x if bias is None else x + bias[:, None, None])
        return out
    if not norm.track_running_stats:
        return F.batch_norm(x, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
    assert norm.running_mean is not None
    mean = norm.running_mean if bias is None else norm.running_mean - bias.detach()
    normal = F.batch_norm(x, mean, norm.running_var, norm.weight, norm.bias, True, norm.momentum, norm.eps)
    if bias is not None:
        norm.running_mean.copy_(mean + bias.detach())
    return normal


def fuses(norm: nn.BatchNorm2d, x: Tensor, pool: bool = False) -> bool:
    """Whether kernels of ours do what `norm` does to x: in training, or where no gradient is wanted."""
    wanted = norm.momentum is not None if norm.training else norm.track_running_stats and not torch.is_grad_enabled()
    return wanted and kernels.fusable(x, pool)


def statistics(norm: nn.BatchNorm2d, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean and reciprocal deviation that `norm`, which `fuses`, gives x by channel, without ever adding the bias.

    In training they are x's own, and the running statistics of x + bias move towards them.
    """
    if not norm.training:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean = norm.running_mean if bias is None else norm.running_mean - bias
        return mean, torch.rsqrt(norm.running_var + norm.eps)
    from fastswa.kernels.norm import batch_statistics

    tracked, momentum = norm.track_running_stats, norm.momentum
    assert momentum is not None
    return batch_statistics(
        x.detach(),
        bias.detach() if bias is not None else None,
        norm.running_mean if tracked else None,
        norm.running_var if tracked else None,
        momentum,
        norm.eps,
    )


def norm_leaky_relu(norm: nn.BatchNorm2d, x: Tensor, bias: Tensor | None, slope: float, pool: bool = False) -> Tensor:
    """LeakyReLU of `normalise(norm, x, bias)`, and with `pool` its 2x2 maxima; fused where a GPU allows it.

    A slope of 0 makes it a ReLU, one of 1 leaves the norm alone.
    """
    if fuses(norm, x, pool):
        from fastswa.kernels.norm import normalise_activate

        return normalise_activate(x, *statistics(norm, x, bias), norm.weight, norm.bias, slope, pool)
    x = normalise(norm, x, bias)
    if slope != 1:
        x = F.leaky_relu(x, slope, inplace=True) if slope else F.relu(x, inplace=True)
    return F.max_pool2d(x, 2) if pool else x


class Dropout(nn.Module):
    """Dropout that draws from the step's stateless noise where there is one, else from torch's generator."""

    def __init__(self, name: str, p: float) -> None:
        super().__init__()
        self.name, self.p = name, p

    def forward(self, x: Tensor, noise: Noise | None) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return F.dropout(x, self.p) if noise is None else noise.dropout(self.name, x, self.p)

    def extra_repr(self) -> str:
        return f"{self.name}, p={self.p}"


class Backboned(nn.Module):
    """A network of a `backbone` and, after dropout, `heads` on what it gives; frozen, only the heads learn.

    A frozen backbone is in evaluation mode, also while the heads train: its batch norms keep what they know. What it
    gives for an image is the same at every step then, so that it may be passed in the image's place.
    """

    backbone: nn.Module
    drop: Dropout
    heads: Heads
    frozen = False

    def freeze(self) -> None:
        """Hold the backbone as it is from now on."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def features(self, images: Tensor) -> Tensor:
        """What the heads see of normalised images (N, C, H, W): (N, F)."""
        found: Tensor = self.backbone(images)
        return found

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        """Images (N, C, H, W), or their `features` (N, F), to an `Output`."""
        output: Output = self.heads(self.drop(self.features(x) if x.dim() == 4 else x, noise))
        return output
