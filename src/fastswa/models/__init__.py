"""Networks by name. A new one is a file here and a line in MODELS; `timm:NAME` is any that the package timm has."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from fastswa.errors import RequestError
from fastswa.registry import resolve

if TYPE_CHECKING:
    from torch import nn

MODELS = {
    "cnn13": "fastswa.models.cnn13:CNN13",
    "shake-shake-26-2x96d": "fastswa.models.shake_shake:ShakeShake26",
    "resnet9": "fastswa.models.resnet9:ResNet9",
    "wrn-28-2": "fastswa.models.wide_resnet:WideResNet28x2",
    "wrn-28-8": "fastswa.models.wide_resnet:WideResNet28x8",
    "efficientnet-lite0": "fastswa.models.efficientnet_lite:EfficientNetLite0",
    "small": "fastswa.models.small:SmallCNN",
    "perceptron": "fastswa.models.perceptron:Perceptron",
}
_TIMM = "timm:"


def refuse_size(name: str, shape: tuple[int, int, int]) -> None:
    """Refuse images (C, H, W) that the network `name` cannot take: each says how small and how divisible."""
    network = _network(name)
    _, height, width = shape
    if max(height, width) > getattr(network, "largest", max(height, width)):
        raise RequestError(f"model.name: {name} takes feature vectors, not images of {height}x{width}.")
    if min(height, width) < network.smallest:
        raise RequestError(
            f"model.name: {name} takes images of at least {network.smallest}x{network.smallest}, not {height}x{width}."
        )
    if height % network.divisor or width % network.divisor:
        raise RequestError(
            f"model.name: {name} takes images whose sides are multiples of {network.divisor}, not {height}x{width}."
        )
    if name.startswith(_TIMM):
        from fastswa.models.timm import refuse_shape

        refuse_shape(name.removeprefix(_TIMM), shape)


def normalisation(name: str, *, pretrained: bool) -> tuple[float, float] | None:
    """The mean and deviation, of values from 0 to 1, that the network's pretrained weights know images by, if any."""
    known: tuple[float, float] | None = getattr(_network(name), "pretrained_normalisation", None)
    return known if pretrained else None


def build(
    name: str, *, channels: int, classes: int, heads: int = 1, size: int | None = None, **options: object
) -> nn.Module:
    """The network `name` for images of `channels` channels; `heads` 2 adds a consistency head.

    `size` is the images' shorter side, for networks that adapt to it.
    """
    make = _network(name)
    if name.startswith(_TIMM):
        make = partial(make, architecture=name.removeprefix(_TIMM))
    known = inspect.signature(make).parameters.keys()
    for option in options.keys() - known:
        raise RequestError(f"model.{option} has no effect on the model {name}; leave it out.")
    if size is not None and "size" in known:
        options["size"] = size
    network: nn.Module = make(channels=channels, classes=classes, heads=heads, **options)
    return network


def _network(name: str) -> Any:
    if name.startswith(_TIMM):
        from fastswa.models.timm import TimmNetwork

        return TimmNetwork
    return resolve("model", name, MODELS)
