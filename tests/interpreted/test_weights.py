"""A network's weights normalised or cast at once: interpreted kernels against each layer's own in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from fastswa.models.convolution import Convolutional
from fastswa.models.weight_norm import weight_norm
from interpreted.stand_in import distance


class Layers(Convolutional):
    """Rows of 27, 144, 24 and 8 numbers."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 3), nn.Conv2d(24, 8, 1), nn.Linear(8, 5)])
        for part in self.parts if normed else []:
            weight_norm(part)
        self.gather()


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """As autocast on a GPU, of which torch sees none."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize(
    ("normed", "dtype", "bound"),
    [(True, torch.float32, 1e-6), (True, torch.bfloat16, 4e-3), (False, torch.bfloat16, 4e-3)],
)
def test_weights_and_their_gradients_are_each_layers_own(normed: bool, dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(1)
    network = Layers(normed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + torch.rand_like(parameter))
    plain = copy.deepcopy(network).double()
    with computing_in(dtype):
        weights = network.weights().of
    assert [weight.dtype for weight in weights.values()] == [dtype] * (4 if normed else 3)
    directions = [torch.randn(weight.shape).to(dtype) for weight in weights.values()]
    expected = [plain.parts[k].weight for k in range(len(weights))]
    for found, theirs in zip(weights.values(), expected, strict=True):
        assert distance(found, theirs) < bound
    trained = [name for name, _ in network.named_parameters() if "bias" not in name][: len(weights) * (1 + normed)]
    gradients = torch.autograd.grad(list(weights.values()), own(network, trained), directions)
    theirs = torch.autograd.grad(expected, own(plain, trained), [each.double() for each in directions])
    for name, mine, other in zip(trained, gradients, theirs, strict=True):
        assert mine.dtype == torch.float32
        assert distance(mine, other) < 1e-6, name


def own(network: nn.Module, names: list[str]) -> list[Tensor]:
    return [network.get_parameter(name) for name in names]
