"""The fused batch-norm kernels against torch's own operations in float64, on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES = [(100, 128, 32, 32), (100, 256, 16, 16), (7, 512, 6, 6), (3, 16, 4, 6), (128, 96, 32, 32), (9, 192, 8, 8)]


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def close_but_for_kinks(found: Tensor, expected: Tensor, bound: float) -> bool:
    """Whether all but a few elements agree: of two almost equal greatest values either may get the gradient."""
    apart = (found.detach().double() - expected.detach()).abs() > bound * expected.detach().abs().mean().clamp(
        min=1e-12
    )
    return float(apart.double().mean()) < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("slope", [0.1, 0.0, 1.0])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_value_gradient_and_running_statistics(
    shape: tuple[int, int, int, int], pool: bool, slope: float, dtype: torch.dtype, bound: float
) -> None:
    from fastswa.kernels.norm import batch_statistics, normalise_activate

    generator = torch.Generator("cuda").manual_seed(1)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", generator=generator)

    channels = shape[1]
    x = (3 * random(*shape) + 5).to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias, shift = random(channels).requires_grad_(), random(channels).requires_grad_(), random(channels)
    mean, variance = random(channels), random(channels).square()
    plain = [t.detach().double().clone() for t in (x, weight, bias)]
    plain_x, plain_weight, plain_bias = (t.requires_grad_() for t in plain)
    plain_mean, plain_variance = mean.double(), variance.double()

    statistics = batch_statistics(x.detach(), shift, mean, variance, 0.1, 1e-5)
    y = normalise_activate(x, *statistics, weight, bias, slope, pool)
    shifted = plain_x + shift.double()[:, None, None]
    normal = F.batch_norm(shifted, plain_mean, plain_variance, plain_weight, plain_bias, True, 0.1, 1e-5)
    normal = F.max_pool2d(normal, 2) if pool else normal
    z = F.leaky_relu(normal, slope)
    assert y.shape == z.shape
    assert distance(y, z) < bound
    assert distance(mean, plain_mean) < 1e-6
    assert distance(variance, plain_variance) < 1e-6

    # None where rounding decides on which side of the kink a value lies: that would move its channel's sums.
    direction = torch.where(normal.detach().abs() < 1e-4, 0.0, random(*y.shape)).to(dtype)
    found = torch.autograd.grad(y, (x, weight, bias), direction)
    expected = torch.autograd.grad(z, (plain_x, plain_weight, plain_bias), direction.double())
    assert close_but_for_kinks(found[0], expected[0], max(30 * bound, 1e-3))
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert distance(mine, theirs) < max(bound, 1e-4)
