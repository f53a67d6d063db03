"""Networks by name. A new one is a file here and a line in MODELS."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from fastswa.errors import RequestError
from fastswa.registry import resolve

if TYPE_CHECKING:
    from torch import nn

MODELS = {
    "cnn13": "fastswa.models.cnn13:CNN13",
    "shake-shake-26-2x96d": "fastswa.models.shake_shake:ShakeShake26",
    "small": "fastswa.models.small:SmallCNN",
    "perceptron": "fastswa.models.perceptron:Perceptron",
}


def refuse_size(name: str, shape: tuple[int, int, int]) -> None:
    """Refuse images (C, H, W) that the network `name` cannot take: each says how small and how divisible."""
    network = resolve("model", name, MODELS)
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


def build(name: str, *, channels: int, classes: int, heads: int = 1, **options: object) -> nn.Module:
    """The network `name` for images of `channels` channels; `heads` 2 adds a consistency head."""
    make = resolve("model", name, MODELS)
    for option in options.keys() - inspect.signature(make).parameters.keys():
        raise RequestError(f"model.{option} has no effect on the model {name}; leave it out.")
    network: nn.Module = make(channels=channels, classes=classes, heads=heads, **options)
    return network
