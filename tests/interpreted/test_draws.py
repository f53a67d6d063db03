"""Random numbers, dropout and weak views: interpreted kernels against the same numbers drawn by tensor operations."""

from __future__ import annotations

import pytest
import torch

from fastswa import kernels
from fastswa.data.augment import Augment
from fastswa.noise import Noise
from interpreted.stand_in import plainly

WORDS = torch.tensor([123456789, -987654321], dtype=torch.int32)


def test_uniform_numbers_are_the_same() -> None:
    noise = Noise(WORDS).scope("student")
    assert kernels.launchable(WORDS)
    drawn = noise.uniform("mixing", (7, 300))
    with plainly():
        assert not kernels.launchable(WORDS)
        assert torch.equal(drawn, noise.uniform("mixing", (7, 300)))


@pytest.mark.parametrize(("shape", "last"), [((7, 48, 6, 10), True), ((3, 5, 8, 9), False), ((5, 40), False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.5, 0.3])
def test_dropout_drops_and_scales_the_same(shape: tuple[int, ...], last: bool, dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    x, direction = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
    noise = Noise(WORDS).scope("student")
    assert kernels.drawable(x, WORDS)
    y = noise.dropout("dropout1", x, p)
    assert y.stride() == x.stride()
    found = y, *torch.autograd.grad(y, x, direction)
    with plainly():
        z = noise.dropout("dropout1", x, p)
        expected = z, *torch.autograd.grad(z, x, direction)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine == 0, theirs == 0)
        # The plain one rounds to 16 bits before it scales.
        torch.testing.assert_close(mine, theirs, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "options", [{"translate": 2, "flip": True, "noise": 0.15}, {}, {"translate": 3}, {"flip": True}, {"noise": 0.5}]
)
def test_a_view_is_the_same(channels: int, options: dict[str, float]) -> None:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (20, 9, 10, channels), dtype=torch.uint8)
    index = torch.tensor([3, 19, 0, 7, 7, 12, 1])
    augment = Augment.normalising((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels], pixels.device, **options)
    noise = Noise(WORDS).scope("view/student")
    assert augment.draws(pixels)
    found = augment.view(pixels, index, noise)
    assert found.is_contiguous(memory_format=torch.channels_last)
    with plainly():
        expected = augment.view(pixels, index, noise)
    if options.get("noise"):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(found, expected)
