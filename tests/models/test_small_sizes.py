"""The small CNN on images of 8 to 224 pixels: what it adapts, what it costs, and that digits are as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fastswa.models import build
from fastswa.models.small import SmallCNN


def convolutions(network: nn.Module) -> list[tuple[int, int, int]]:
    """(inputs, outputs, stride) of each convolution in order."""
    found = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    return [(m.in_channels, m.out_channels, m.stride[0]) for m in found]


@pytest.mark.parametrize(
    ("size", "first", "blocks"),
    [(4, 1, 2), (8, 1, 2), (15, 1, 2), (16, 2, 2), (28, 2, 2), (32, 2, 3), (63, 2, 3), (64, 4, 3), (128, 4, 4)],
)
def test_larger_images_are_halved_more_often(size: int, first: int, blocks: int) -> None:
    network = build("small", channels=3, classes=5, heads=2, width=8, size=size)
    strides = [stride for _, _, stride in convolutions(network)]
    assert strides[0] == first
    assert set(strides[1:]) == {1}
    assert len(strides) == 2 * blocks + (first > 1)
    seen: list[torch.Size] = []
    network.heads.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    last = [m for m in network.modules() if isinstance(m, nn.Conv2d)][-1]
    last.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    output = network.eval()(torch.zeros(2, 3, size, size + 3))
    assert output.logits.shape == output.consistency.shape == (2, 5)
    assert min(size // 2, 4) <= seen[0][2] <= 8
    assert seen[1] == output.features.shape


def test_a_small_image_sees_the_network_of_the_digits() -> None:
    torch.manual_seed(0)
    plain = SmallCNN(channels=1, classes=10, heads=2)
    torch.manual_seed(0)
    sized = build("small", channels=1, classes=10, heads=2, size=8)
    assert plain.state_dict().keys() == sized.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), sized.parameters(), strict=True))
    assert convolutions(sized) == [(1, 32, 1), (32, 32, 1), (32, 64, 1), (64, 64, 1)]


@pytest.mark.parametrize(("size", "mflop"), [(8, 3), (28, 13), (32, 24), (224, 311)])
def test_cost_of_a_forward_pass(size: int, mflop: float) -> None:
    with torch.device("meta"):
        network = build("small", channels=1, classes=10, heads=2, size=size).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.empty(1, 1, size, size, device="meta"))
    assert counter.get_total_flops() / 1e6 == pytest.approx(mflop, rel=0.1)
