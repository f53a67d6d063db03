"""Strong views in one launch: the interpreted kernel's pixels are those of tensor operations, number for number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fastswa.data import strong
from fastswa.data.augment import Augment
from fastswa.noise import Noise, step_words
from interpreted.stand_in import plainly

OPTIONS: list[dict[str, float]] = [
    {"translate": 1, "flip": True},
    {"cutout": 0.0, "operations": 3},
    {"cutout": 0.3, "operations": 1, "flip": True},
]


def pictures(height: int, width: int, channels: int) -> Tensor:
    """Noise, a slope, a faint one, two colours, one colour: (5, H, W, C)."""
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 255, height * width).reshape(height, width, 1) * np.ones(channels)
    kinds = [
        rng.integers(0, 256, slope.shape),
        slope + rng.integers(-20, 20, slope.shape),
        40 + slope / 8 + rng.integers(0, 30, slope.shape),
        rng.choice([30, 200], slope.shape),
        np.full(slope.shape, 77),
    ]
    return torch.from_numpy(np.stack(kinds).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("shape", [(17, 16, 3), (28, 28, 1), (9, 31, 3), (2, 5, 3)])
def test_a_strong_view_has_the_same_pixels(shape: tuple[int, int, int]) -> None:
    pixels, index = pictures(*shape), torch.arange(20) % 5
    means, deviations = (0.4, 0.5, 0.6)[: shape[2]], (0.2, 0.3, 0.25)[: shape[2]]
    drawn: list[list[str]] = []
    for step, options in enumerate(OPTIONS, start=12):
        augment = Augment.normalising(means, deviations, pixels.device, **options)
        noise = Noise(torch.from_numpy(step_words(0, "step", step, 1)[0].copy())).scope("view/strong")
        assert augment.draws_strong(pixels)
        found = augment.view(pixels, index, noise)
        assert found.is_contiguous(memory_format=torch.channels_last)
        with plainly():
            assert not augment.draws_strong(pixels)
            expected = augment.view(pixels, index, noise)
            draws = strong.draw(noise, len(index), augment.operations)
        by_image = [[strong.OPERATIONS[int(draw.operation[k])] for draw in draws] for k in range(len(index))]
        apart = (found != expected).flatten(1).any(dim=1)
        assert not apart.any(), [names for names, other in zip(by_image, apart, strict=True) if other]
        drawn += by_image
    assert {name for names in drawn for name in names} == set(strong.OPERATIONS)
    # The first of two changes what fills an image up to a power of two, which the second must not count.
    assert any(names.count("contrast") > 1 for names in drawn)
