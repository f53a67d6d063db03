"""The warp against rotations, flips and shifts made by hand, and against a loop in float64; images standardised."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fastswa.data.augment import Augment, each_standardised
from fastswa.data.warp import draw_maps, warped
from fastswa.noise import Noise, step_words

CPU = torch.device("cpu")


def images(count: int = 2, channels: int = 3, height: int = 6, width: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, channels, height, width, generator=generator, dtype=torch.float64)


def noise_of(step: int = 0) -> Noise:
    return Noise(torch.from_numpy(step_words(0, "step", step, 1)[0].copy()))


def one(rows: list[list[float]], offset: tuple[float, float] = (0.0, 0.0), count: int = 2) -> tuple[Tensor, Tensor]:
    matrix, moved = torch.tensor(rows, dtype=torch.float64), torch.tensor(offset, dtype=torch.float64)
    return matrix.expand(count, 2, 2), moved.expand(count, 2)


IDENTITY = [[1.0, 0.0], [0.0, 1.0]]


def test_nothing_moves_under_the_identity() -> None:
    assert torch.allclose(warped(images(), *one(IDENTITY)), images(), atol=1e-12)


def test_a_quarter_turn_is_torchs() -> None:
    """What is drawn at (across, down) comes from (-down, across): the picture turns to the left."""
    turned = warped(images(), *one([[0.0, -1.0], [1.0, 0.0]]))
    assert torch.allclose(turned, images().rot90(1, (2, 3)), atol=1e-12)


@pytest.mark.parametrize("width", [5, 6])
def test_a_flip_mirrors_columns(width: int) -> None:
    picture = images(width=width)
    assert torch.allclose(warped(picture, *one([[-1.0, 0.0], [0.0, 1.0]])), picture.flip(3), atol=1e-12)


def test_a_shift_by_whole_pixels_moves_in_zeros() -> None:
    picture = images(height=5, width=7)
    expected = torch.zeros_like(picture)
    expected[:, :, 1:, :-2] = picture[:, :, :-1, 2:]
    assert torch.allclose(warped(picture, *one(IDENTITY, (2.0, -1.0))), expected, atol=1e-12)


def test_beyond_the_edge_lies_the_edge_where_asked() -> None:
    picture = images(height=5, width=7)
    columns = torch.arange(2, 9).clamp(max=6)
    rows = torch.arange(-1, 4).clamp(min=0)
    expected = picture[:, :, rows][..., columns]
    assert torch.allclose(warped(picture, *one(IDENTITY, (2.0, -1.0)), beyond="edge"), expected, atol=1e-12)


def test_a_shift_by_part_of_a_pixel_mixes_neighbours() -> None:
    picture = images(height=4, width=5)
    beside = torch.cat([picture[..., 1:], torch.zeros_like(picture[..., :1])], dim=3)
    found = warped(picture, *one(IDENTITY, (0.25, 0.0)))
    assert torch.allclose(found, 0.75 * picture + 0.25 * beside, atol=1e-12)


def by_hand(picture: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """(C, H, W), pixel by pixel."""
    channels, height, width = picture.shape
    out = torch.zeros_like(picture)
    for row in range(height):
        for column in range(width):
            x, y = column - (width - 1) / 2, row - (height - 1) / 2
            u = float(matrix[0, 0]) * x + float(matrix[0, 1]) * y + float(offset[0]) + (width - 1) / 2
            v = float(matrix[1, 0]) * x + float(matrix[1, 1]) * y + float(offset[1]) + (height - 1) / 2
            for r in (math.floor(v), math.floor(v) + 1):
                for c in (math.floor(u), math.floor(u) + 1):
                    if 0 <= r < height and 0 <= c < width:
                        part = (1 - abs(v - r)) * (1 - abs(u - c))
                        out[:, row, column] += part * picture[:, r, c]
    assert channels == len(out)
    return out


@pytest.mark.parametrize("shape", [(6, 6), (5, 8)])
def test_random_maps_are_those_of_a_loop(shape: tuple[int, int]) -> None:
    picture = images(count=8, height=shape[0], width=shape[1])
    matrix, offset = draw_maps(noise_of(), 8, translate=2, flip=True, affine=0.2, dtype=torch.float64)
    found = warped(picture, matrix, offset)
    for number in range(8):
        assert torch.allclose(found[number], by_hand(picture[number], matrix[number], offset[number]), atol=1e-10)


def test_maps_are_drawn_as_said() -> None:
    matrix, offset = draw_maps(noise_of(), 20_000, translate=2, flip=True, affine=0.1, dtype=torch.float64)
    flipped = matrix[:, 0, 0] < 0
    assert flipped.double().mean().item() == pytest.approx(0.5, abs=0.02)
    straight = matrix.clone()
    straight[flipped, :, 0] *= -1
    spread = straight - torch.eye(2, dtype=torch.float64)
    assert spread.mean(dim=0).abs().max().item() < 0.005
    assert spread.std(dim=0).flatten().tolist() == pytest.approx([0.1] * 4, rel=0.03)
    assert offset.abs().max().item() <= 2
    assert offset.mean(dim=0).abs().max().item() < 0.05
    # Uniform in [-2, 2]: parts of a pixel, not whole ones.
    assert offset.std(dim=0).tolist() == pytest.approx([4 / math.sqrt(12)] * 2, rel=0.02)
    assert torch.unique(offset).numel() > 30_000


def test_without_flip_and_affine_only_the_offset_is_random() -> None:
    matrix, offset = draw_maps(noise_of(), 50, translate=1, flip=False, affine=0.0, dtype=torch.float32)
    assert torch.equal(matrix, torch.eye(2).expand(50, 2, 2))
    assert 0 < offset.abs().max().item() <= 1


def test_a_weak_view_is_standardised_and_then_warped() -> None:
    pixels = torch.randint(0, 256, (5, 6, 6, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    options = {"translate": 2, "flip": True, "warp": True, "affine": 0.1, "standardise": True}
    augment = Augment.normalising((0.5,) * 3, (0.25,) * 3, CPU, torch.float64, **options)
    index, noise = torch.tensor([4, 0, 3]), noise_of()
    view = augment.view(pixels, index, noise.scope("student"))
    maps = draw_maps(noise.scope("student"), 3, translate=2, flip=True, affine=0.1, dtype=torch.float64)
    plain = each_standardised(pixels[index].double()).permute(0, 3, 1, 2)
    assert torch.equal(view, warped(plain, *maps))
    assert torch.equal(augment.plain(pixels[index]), plain)
    assert view.is_contiguous(memory_format=torch.channels_last)
    # Another view of the same images, and the noise on top of one.
    assert not torch.equal(view, augment.view(pixels, index, noise.scope("teacher")))


def test_each_image_is_standardised_by_itself() -> None:
    generator = torch.Generator().manual_seed(2)
    picture = torch.randint(0, 256, (4, 5, 7, 3), generator=generator).double() * torch.tensor(
        [1, 0.1, 0.5, 0.01]
    ).view(4, 1, 1, 1).double() + torch.tensor([0.0, 50, 100, 9]).view(4, 1, 1, 1)
    found = each_standardised(picture)
    for number in range(4):
        flat = picture[number].flatten()
        centred = flat - flat.mean()
        expected = centred / math.sqrt(float(centred.square().mean()) + 0.01)
        assert torch.allclose(found[number].flatten(), expected, atol=1e-12)
    assert torch.equal(each_standardised(torch.full((1, 4, 4, 3), 77.0)), torch.zeros(1, 4, 4, 3))
