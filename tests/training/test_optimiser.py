"""Our SGD against torch.optim.SGD."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fastswa.config import OptimiserConfig
from fastswa.training.optimiser import SGD

SHAPES = [(4, 3), (5,), (2, 3, 3, 3), ()]


def draws(seed: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.5, True), (0.0, False)])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-4, 0.1])
def test_twenty_steps_equal_torchs(dtype: torch.dtype, momentum: float, nesterov: bool, weight_decay: float) -> None:
    ours, theirs = ([nn.Parameter(p) for p in draws(0, dtype)] for _ in range(2))
    config = OptimiserConfig(momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    optimiser = SGD(ours, config)
    oracle = torch.optim.SGD(theirs, lr=1.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for step in range(20):
        rate = 0.1 * (1 + step % 5) / (1 + step)
        gradients = draws(100 + step, dtype)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        oracle.param_groups[0]["lr"] = rate
        oracle.step()
        optimiser.step(gradients, torch.tensor(rate, dtype=dtype))
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)
    assert all(not torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, draws(0, dtype), strict=True))


def test_nesterovs_first_steps_have_the_values_worked_out_by_hand() -> None:
    weight = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimiser = SGD([weight], OptimiserConfig(momentum=0.9, nesterov=True, weight_decay=0.5))
    one, rate = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    optimiser.step([one], rate)
    # Gradient 1 + 0.5 = 1.5, buffer 1.5, update 1.5 + 0.9 * 1.5 = 2.85.
    assert weight.item() == pytest.approx(1 - 0.285)
    optimiser.step([one], rate)
    # Gradient 1 + 0.5 * 0.715 = 1.3575, buffer 1.35 + 1.3575 = 2.7075, update 1.3575 + 0.9 * 2.7075 = 3.79425.
    assert weight.item() == pytest.approx(0.715 - 0.379425)
    assert optimiser.momentum[0].item() == pytest.approx(2.7075)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, True)])
def test_gradients_and_addresses_stay_as_they_were(momentum: float, nesterov: bool) -> None:
    parameters = [nn.Parameter(p) for p in draws(0, torch.float64)]
    optimiser = SGD(parameters, OptimiserConfig(momentum=momentum, nesterov=nesterov, weight_decay=0.1))
    addresses = [t.data_ptr() for t in [*parameters, *optimiser.momentum]]
    gradients = draws(1, torch.float64)
    optimiser.step(gradients, torch.tensor(0.1, dtype=torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(gradients, draws(1, torch.float64), strict=True))
    assert [t.data_ptr() for t in [*optimiser.parameters, *optimiser.momentum]] == addresses


def test_a_rate_of_zero_moves_only_the_momentum() -> None:
    parameters = [nn.Parameter(p) for p in draws(0, torch.float64)]
    optimiser = SGD(parameters, OptimiserConfig())
    optimiser.step(draws(1, torch.float64), torch.tensor(0.0, dtype=torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(parameters, draws(0, torch.float64), strict=True))
    assert all(torch.count_nonzero(buffer) for buffer in optimiser.momentum)
