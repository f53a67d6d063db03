"""Shake-Shake's skip path between stages: interpreted kernels against torch's convolution in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fastswa import beside, kernels
from fastswa.kernels.pick import PickAndConvolve
from interpreted.stand_in import distance


@pytest.mark.parametrize("alongside", [True, False])
@pytest.mark.parametrize("shape", [(5, 48, 12, 8, 32), (3, 3, 4, 6, 6), (1, 16, 2, 2, 8)])
def test_picked_pixels_are_convolved_as_two_groups(shape: tuple[int, ...], alongside: bool) -> None:
    images, channels, height, width, outputs = shape
    torch.manual_seed(2)
    x = torch.randn(shape[:4]).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, channels, 1, 1)
    direction = torch.randn(images, outputs, height // 2, width // 2)
    assert kernels.pickable(x)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y = PickAndConvolve.apply(x, weight, alongside)
    assert y.is_contiguous(memory_format=torch.channels_last)
    found = [y, *torch.autograd.grad(y, (x, weight), direction)]
    assert len(beside._used.get(x.device, [])) == (3 if alongside else 0)
    beside.meet(x.device)
    plain_x, plain_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    picked = torch.cat([plain_x[:, :, 0::2, 0::2], plain_x[:, :, 1::2, 1::2]], dim=1)
    z = F.conv2d(picked, plain_weight, groups=2)
    expected = [z, *torch.autograd.grad(z, (plain_x, plain_weight), direction.double())]
    for mine, theirs in zip(found, expected, strict=True):
        assert distance(mine, theirs) < 1e-6
