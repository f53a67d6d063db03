"""resnet9 and the wide residual networks: sizes as published, values against the formula written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fastswa.errors import RequestError
from fastswa.models import build, refuse_size
from fastswa.models.resnet9 import ResNet9
from fastswa.models.wide_resnet import WideResNet

PARAMETERS = {
    ("wrn-28-2", 10, 1): 1_467_610,
    ("wrn-28-2", 10, 2): 1_467_610 + 129 * 10,
    ("wrn-28-8", 10, 1): 23_354_842,
    ("wrn-28-8", 100, 1): 23_354_842 + 513 * 90,
    ("resnet9", 10, 1): 6_573_130,
}
GFLOP = {"wrn-28-2": 0.43, "wrn-28-8": 6.72, "resnet9": 0.76}


def without_memory(name: str, classes: int = 10, heads: int = 1) -> nn.Module:
    with torch.device("meta"):
        return build(name, channels=3, classes=classes, heads=heads)


@pytest.mark.parametrize(("name", "classes", "heads"), PARAMETERS)
def test_numbers_of_parameters(name: str, classes: int, heads: int) -> None:
    count = sum(p.numel() for p in without_memory(name, classes, heads).parameters())
    assert count == PARAMETERS[name, classes, heads]


def test_published_sizes() -> None:
    found = [sum(p.numel() for p in without_memory(name).parameters()) / 1e6 for name in ("wrn-28-2", "wrn-28-8")]
    assert [f"{count:.3g}" for count in found] == ["1.47", "23.4"]


@pytest.mark.parametrize("name", GFLOP)
def test_cost_of_an_image(name: str) -> None:
    with FlopCounterMode(display=False) as counter:
        without_memory(name)(torch.empty(1, 3, 32, 32, device="meta"))
    assert counter.get_total_flops() / 1e9 == pytest.approx(GFLOP[name], abs=0.005)


def randomised(network: nn.Module) -> nn.Module:
    """In float64, with batch norm's scales and shifts away from 1 and 0."""
    network = network.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return network


class Formula:
    """Layers by the names of a state dict, batch norm by the batch's own mean and variance."""

    def __init__(self, network: nn.Module) -> None:
        self.tensors = dict(network.named_parameters())

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean, variance = x.mean(dim=(0, 2, 3), keepdim=True), x.var(dim=(0, 2, 3), unbiased=False, keepdim=True)
        scale, shift = (self.tensors[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("weight", "bias"))
        x = (x - mean) / (variance + 1e-5).sqrt() * scale + shift
        return torch.where(x > 0, x, 0.1 * x)

    def head(self, x: Tensor, name: str = "heads.first") -> Tensor:
        return x.mean(dim=(2, 3)) @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]


def test_a_wide_residual_network_is_its_formula() -> None:
    network = randomised(WideResNet(depth=16, widen=2, channels=3, classes=7, heads=2))
    x = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layer = Formula(network)
    expected, inputs = layer.conv(x, "stem"), 16
    for number in range(6):
        name, stride = f"blocks.{number}", 2 if number in (2, 4) else 1
        outputs = 32 * 2 ** (number // 2)
        active = layer.norm(expected, f"{name}.norm1")
        skip = expected if inputs == outputs else layer.conv(active, f"{name}.skip", stride)
        inner = layer.norm(layer.conv(active, f"{name}.conv1", stride), f"{name}.norm2")
        expected, inputs = skip + layer.conv(inner, f"{name}.conv2"), outputs
    expected = layer.norm(expected, "norm")
    output = network(x)
    assert torch.allclose(output.logits, layer.head(expected), rtol=1e-9, atol=1e-9)
    assert torch.allclose(output.consistency, layer.head(expected, "heads.second"), rtol=1e-9, atol=1e-9)
    assert output.features.shape == (4, 128)


def test_resnet9_is_its_formula() -> None:
    network = randomised(ResNet9(channels=1, classes=5, width=4))
    x = torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layer = Formula(network)

    def block(x: Tensor, name: str, pool: bool = False) -> Tensor:
        x = layer.norm(layer.conv(x, f"{name}.conv"), f"{name}.norm")
        return F.max_pool2d(x, 2) if pool else x

    expected = block(block(x, "stem"), "layer1", pool=True)
    expected = expected + block(block(expected, "residual1.0"), "residual1.1")
    expected = block(block(expected, "layer2", pool=True), "layer3", pool=True)
    expected = expected + block(block(expected, "residual2.0"), "residual2.1")
    assert torch.allclose(network(x).logits, layer.head(expected), rtol=1e-9, atol=1e-9)


def test_width_is_a_setting_of_resnet9_alone() -> None:
    network = build("resnet9", channels=3, classes=10, width=16)
    assert [network.layer1.conv.out_channels, network.layer3.conv.out_channels] == [32, 128]
    with pytest.raises(RequestError, match=r"^model\.width has no effect on the model wrn-28-2; leave it out\.$"):
        build("wrn-28-2", channels=3, classes=10, width=4)


@pytest.mark.parametrize("name", ["resnet9", "wrn-28-2"])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 14), (33, 32)])
def test_any_size_from_eight_pixels_on_is_taken(name: str, height: int, width: int) -> None:
    refuse_size(name, (3, height, width))
    output = without_memory(name)(torch.empty(2, 3, height, width, device="meta"))
    assert output.logits.shape == (2, 10)


def test_smaller_images_are_refused() -> None:
    with pytest.raises(RequestError, match="resnet9 takes images of at least 8x8, not 7x9"):
        refuse_size("resnet9", (3, 7, 9))


def test_a_depth_that_no_wide_residual_network_has() -> None:
    with pytest.raises(ValueError, match="depth of 6n \\+ 4, not 30"):
        WideResNet(depth=30, widen=1)
