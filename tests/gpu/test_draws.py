"""Numbers, views and dropout drawn by kernels, against the same numbers drawn by tensor operations on the CPU."""

from __future__ import annotations

import pytest
import torch

from fastswa import kernels
from fastswa.data.augment import Augment
from fastswa.noise import Noise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WORDS = torch.tensor([123456789, -987654321], dtype=torch.int32)


@pytest.mark.parametrize("shape", [(7, 48, 6, 10), (5, 40), (3, 1, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.5, 0.3])
def test_dropout_drops_and_scales_the_same(shape: tuple[int, ...], dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    x, factor = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    if len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    found = []
    for device in ("cpu", "cuda"):
        here, words = x.to(device).requires_grad_(), WORDS.to(device)
        assert kernels.drawable(here, words) == (device == "cuda")
        y = Noise(words).scope("student").dropout("dropout1", here, p)
        (gradient,) = torch.autograd.grad(y, here, factor.to(device))
        found.append((y.detach().cpu(), gradient.cpu()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one == 0, other == 0)
        torch.testing.assert_close(one, other, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "options", [{"translate": 2, "flip": True, "noise": 0.15}, {}, {"translate": 1}, {"flip": True}, {"noise": 0.5}]
)
def test_a_view_is_the_same(channels: int, options: dict[str, float]) -> None:
    pixels = torch.randint(0, 256, (20, 12, 10, channels), dtype=torch.uint8)
    index = torch.tensor([3, 19, 0, 7, 7])
    found = []
    for device in ("cpu", "cuda"):
        augment = Augment.normalising((0.4,) * channels, (0.2,) * channels, torch.device(device), **options)
        assert kernels.viewable(pixels.to(device), augment.scale) == (device == "cuda")
        view = augment.view(pixels.to(device), index.to(device), Noise(WORDS.to(device)).scope("view/student"))
        assert view.is_contiguous(memory_format=torch.channels_last)
        found.append(view.cpu())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (20, 70, 3), (9, 8, 1), (96, 96, 3)])
@pytest.mark.parametrize(
    "options",
    [{"translate": 4, "flip": True}, {"cutout": 0.0, "operations": 4}, {"flip": True, "operations": 1, "noise": 0.1}],
)
def test_a_strong_view_has_the_same_pixels(shape: tuple[int, ...], options: dict[str, float]) -> None:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (40, *shape), dtype=torch.uint8)
    pixels[20:] = (0.3 * pixels[20:] + 60).to(torch.uint8)  # autocontrast has something to do
    pixels[39] = 77
    index, means = torch.arange(200) % 40, (0.5,) * shape[2]
    found = []
    for device in ("cpu", "cuda"):
        augment = Augment.normalising(means, means, torch.device(device), **options)
        assert augment.draws_strong(pixels.to(device)) == (device == "cuda")
        found.append(augment.view(pixels.to(device), index.to(device), Noise(WORDS.to(device)).scope("view/strong")))
        assert found[-1].is_contiguous(memory_format=torch.channels_last)
    loose = {"rtol": 1e-5, "atol": 1e-5} if "noise" in options else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found[0], found[1].cpu(), **loose)


def test_uniform_numbers_are_the_same() -> None:
    plain, drawn = (Noise(WORDS.to(device)).scope("student").uniform("mixing", (7, 300)) for device in ("cpu", "cuda"))
    assert kernels.launchable(WORDS.cuda())
    assert torch.equal(plain, drawn.cpu())
