"""Backbones of the package timm by name (`timm:resnet18`), under our own heads.

They come without their dropout and stochastic depth, so that nothing in them draws random numbers; dropout, where it is
asked for, is ours, on the features. Pretrained weights are fetched by timm and read without running code.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from fastswa.errors import RequestError, installing
from fastswa.models.network import Backboned, Dropout, Heads
from fastswa.registry import nearest

PREFIX = "timm:"
# From this one on timm reads every pretrained file by safetensors or with weights_only.
_SAFE = (1, 0, 30)


class TimmNetwork(Backboned):
    """(N, C, H, W) normalised images to an `Output`; `features` are what timm's own classifier would see."""

    smallest: ClassVar[int] = 32
    divisor: ClassVar[int] = 1

    def __init__(
        self,
        *,
        architecture: str,
        channels: int = 3,
        classes: int = 10,
        heads: int = 1,
        dropout: float = 0.0,
        pretrained: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        timm = _timm(architecture)
        if pretrained and _version(timm) < _SAFE:
            raise RequestError(
                f"model.pretrained: timm {timm.__version__} may run code from a file of weights; "
                f"install timm {'.'.join(map(str, _SAFE))} or newer."
            )
        try:
            backbone = timm.create_model(architecture, pretrained=pretrained, in_chans=channels, num_classes=0)
        except Exception as error:
            reason = " ".join(str(error).split()).split(". ")[0][:200] or type(error).__name__
            if pretrained:
                raise RequestError(
                    f"model.pretrained: the weights of {architecture} cannot be had here ({reason}); "
                    "connect to the network once, or train without them."
                ) from error
            raise RequestError(f"model.name: timm cannot build {architecture} ({reason}).") from error
        self.backbone = backbone
        self.drop = Dropout("features", dropout)
        width = getattr(backbone, "head_hidden_size", None) or backbone.num_features
        self.heads = Heads(int(width), classes, heads)
        if frozen:
            self.freeze()


def refuse_shape(architecture: str, shape: tuple[int, int, int]) -> None:
    """Refuse images (C, H, W) of another size than the one that some architectures are made for."""
    wanted = _timm(architecture).models.get_pretrained_cfg(architecture)
    if wanted is None or not wanted.fixed_input_size or tuple(wanted.input_size[1:]) == shape[1:]:
        return
    height, width = wanted.input_size[1:]
    raise RequestError(
        f"model.name: {PREFIX}{architecture} takes images of {height}x{width} alone, not {shape[1]}x{shape[2]}; "
        f"set --data.size {height} or choose another."
    )


def _timm(architecture: str) -> Any:
    """The package, once it is known to have the architecture."""
    try:
        timm = import_module("timm")
    except ImportError as error:
        missing = "is not installed" if error.name == "timm" else f"cannot be imported ({error})"
        raise RequestError(
            f"model.name: {PREFIX}{architecture} needs the package timm, which {missing}; "
            f"{installing('timm')} brings it."
        ) from error
    if ":" in architecture or "/" in architecture or not timm.is_model(architecture):
        near = nearest(architecture, timm.list_models(), "timm.list_models() lists them.")
        raise RequestError(f"model.name: timm has no architecture '{architecture}'; {near}")
    return timm


def _version(timm: Any) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    parts = timm.__version__.split(".")[:3]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
