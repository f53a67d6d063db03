"""Where a Shake-Shake block's paths meet: interpreted kernels against plain operations in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastswa.kernels import shake as kernels
from fastswa.kernels.shake import ShakeJoin
from fastswa.models.shake_shake import shake
from interpreted.stand_in import distance, pretend


def given(shape: tuple[int, int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """x, y, skip, and weight and bias of both norms."""
    torch.manual_seed(3)
    images = [(torch.randn(shape) + k).contiguous(memory_format=torch.channels_last).to(dtype) for k in range(3)]
    return [tensor.requires_grad_() for tensor in (*images, *(torch.randn(shape[1]) for _ in range(4)))]


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation by channel."""
    variance, mean = torch.var_mean(x.detach().double(), dim=(0, 2, 3), correction=0)
    return mean.float(), torch.rsqrt(variance + 1e-5).float()


@pytest.mark.parametrize(("wants_out", "wants_active"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("shape", "processors", "dtype", "bound"),
    [
        ((7, 64, 15, 20), 132, torch.float32, 1e-6),
        ((5, 96, 4, 4), 1, torch.float32, 1e-6),
        ((7, 16, 6, 6), 2, torch.bfloat16, 4e-3),
    ],
)
def test_the_sum_its_relu_and_their_gradients(
    shape: tuple[int, int, int, int],
    processors: int,
    dtype: torch.dtype,
    bound: float,
    wants_out: bool,
    wants_active: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, processors)
    kept = torch.zeros(shape[1] // 16, dtype=torch.int32)
    monkeypatch.setattr(kernels, "counter", lambda device, groups: kept[:groups])
    tensors = given(shape, dtype)
    x, y, skip, *norms = tensors
    forward, backward = torch.rand(shape[0]), torch.rand(shape[0])
    x_norm, y_norm = ([*statistics(each), *own] for each, own in ((x, norms[:2]), (y, norms[2:])))
    joined = ShakeJoin.apply(wants_out, wants_active, x, y, skip, *x_norm, *y_norm, forward, backward)

    plain = [tensor.detach().double().requires_grad_() for tensor in tensors]
    a, b = (F.batch_norm(plain[k], None, None, *plain[3 + 2 * k : 5 + 2 * k], True, 0.1, 1e-5) for k in range(2))
    out = plain[2] + shake(a, b, *(each.double()[:, None, None, None] for each in (forward, backward)))
    active = F.relu(out)

    wanted = [wants_out, wants_active, wants_active]
    assert [each.numel() > 0 for each in joined] == wanted
    pairs = [pair for pair, taken in zip(zip(joined, (out, active, active), strict=True), wanted, strict=True) if taken]
    for found, expected in pairs:
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert distance(found, expected) < bound
    # None where rounding decides on which side of zero a value lies.
    clear = out.detach().abs() > 1e-3
    directions = [(torch.randn(shape) * clear).to(dtype) for _ in pairs]
    found = torch.autograd.grad([mine for mine, _ in pairs], tensors, directions)
    expected = torch.autograd.grad([theirs for _, theirs in pairs], plain, [each.double() for each in directions])
    for mine, theirs in zip(found, expected, strict=True):
        assert distance(mine, theirs) < 5 * bound
    # As a captured launch needs them again.
    assert not kept.any()
