"""Batch norm, LeakyReLU and pooling: interpreted kernels against torch's own operations in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastswa.kernels import norm
from fastswa.kernels.norm import batch_statistics, normalise_activate
from interpreted.stand_in import distance, pretend

Shape = tuple[int, int, int, int]

# Of processors: many leave a sum each, few go round several times.
CASES: list[tuple[Shape, int]] = [
    ((3, 64, 16, 16), 132),
    ((3, 64, 16, 16), 1),
    ((5, 32, 6, 10), 2),
    ((7, 48, 2, 4), 132),
    ((1, 128, 4, 6), 2),
]


def drawn(shape: Shape, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("shape", "processors"), CASES)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(
    ("slope", "dtype", "bound"), [(0.1, torch.float32, 1e-6), (0.0, torch.bfloat16, 4e-3), (1.0, torch.float32, 1e-6)]
)
def test_value_gradient_and_running_statistics(
    shape: Shape,
    processors: int,
    pool: bool,
    slope: float,
    dtype: torch.dtype,
    bound: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, processors)
    torch.manual_seed(2)
    channels = shape[1]
    x = (3 * drawn(shape) + 5).to(dtype).requires_grad_()
    weight, bias = torch.randn(channels).requires_grad_(), torch.randn(channels).requires_grad_()
    shift, mean, variance = torch.randn(channels), torch.randn(channels), torch.rand(channels)
    plain_x, plain_weight, plain_bias = (t.detach().double().requires_grad_() for t in (x, weight, bias))
    plain_mean, plain_variance = mean.double(), variance.double()

    statistics = batch_statistics(x.detach(), shift, mean, variance, 0.1, 1e-5)
    y = normalise_activate(x, *statistics, weight, bias, slope, pool)
    shifted = plain_x + shift.double()[:, None, None]
    normal = F.batch_norm(shifted, plain_mean, plain_variance, plain_weight, plain_bias, True, 0.1, 1e-5)
    normal = F.max_pool2d(normal, 2) if pool else normal
    z = F.leaky_relu(normal, slope)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert distance(y, z) < bound
    assert distance(mean, plain_mean) < 1e-6
    assert distance(variance, plain_variance) < 1e-6

    # None where rounding decides on which side of the kink a value lies.
    direction = torch.where(normal.detach().abs() < 1e-4, 0.0, torch.randn(y.shape)).to(dtype)
    found = torch.autograd.grad(y, (x, weight, bias), direction)
    expected = torch.autograd.grad(z, (plain_x, plain_weight, plain_bias), direction.double())
    for mine, theirs, allowed in zip(found, expected, (5 * bound, 1e-5, 1e-5), strict=True):
        assert distance(mine, theirs) < allowed


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    x = drawn((3, 16, 8, 8)) + 3000
    mean, rstd = batch_statistics(x, None, None, None, 0.1, 1e-5)
    by_channel = x.double().transpose(0, 1).flatten(1)
    assert distance(mean, by_channel.mean(dim=1)) < 1e-7
    assert distance(rstd, (by_channel.var(dim=1, correction=0) + 1e-5).rsqrt()) < 1e-6


def test_running_statistics_without_a_shift() -> None:
    x, mean, variance = drawn((3, 32, 4, 4)), torch.zeros(32), torch.ones(32)
    batch_statistics(x, None, mean, variance, 0.25, 1e-5)
    by_channel = x.double().transpose(0, 1).flatten(1)
    assert distance(mean, 0.25 * by_channel.mean(dim=1)) < 1e-6
    assert distance(variance, 0.75 + 0.25 * by_channel.var(dim=1)) < 1e-6


def test_of_equal_values_in_a_window_the_first_gets_the_gradient() -> None:
    x = drawn((4, 16, 8, 8)).round().clamp(-1, 1).requires_grad_()
    plain = x.detach().double().requires_grad_()
    weight, bias, direction = torch.ones(16), torch.full((16,), 0.3), drawn((4, 16, 4, 4), seed=2)
    y = normalise_activate(x, *batch_statistics(x.detach(), None, None, None, 0.1, 1e-5), weight, bias, 0.1, True)
    normal = F.batch_norm(plain, None, None, weight.double(), bias.double(), True, 0.1, 1e-5)
    z = F.max_pool2d(F.leaky_relu(normal, 0.1), 2)
    (found,) = torch.autograd.grad(y, x, direction)
    (expected,) = torch.autograd.grad(z, plain, direction.double())
    assert distance(found, expected) < 1e-5


@pytest.mark.parametrize("pool", [False, True])
def test_counters_are_left_as_a_captured_launch_needs_them_again(pool: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.zeros(64, dtype=torch.int32)
    used = []
    monkeypatch.setattr(norm, "counter", lambda device, groups: used.append(groups) or kept[:groups])
    found = []
    for _ in range(2):
        x = drawn((3, 96, 8, 8)).requires_grad_()
        statistics = batch_statistics(x.detach(), None, None, None, 0.1, 1e-5)
        y = normalise_activate(x, *statistics, torch.ones(96), torch.zeros(96), 0.1, pool)
        found.append(torch.autograd.grad(y.square().sum(), x)[0])
        assert not kept.any()
    assert used == [3, 3, 3, 3]
    assert torch.equal(*found)
