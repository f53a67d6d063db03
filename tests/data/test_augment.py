"""Views against a naive loop over images with torch's reflection padding."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastswa.data.augment import Augment
from fastswa.noise import Noise, step_words

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CPU = torch.device("cpu")


def pixels(count: int, height: int = 7, width: int = 9, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)


def noise_of(step: int = 0) -> Noise:
    return Noise(torch.from_numpy(step_words(0, "step", step, 1)[0].copy()))


class Chosen(Noise):
    """Offsets (2, B) and flips (B,) that the test chooses."""

    def __init__(self, offsets: Tensor, flips: Tensor) -> None:
        super().__init__(torch.zeros(2, dtype=torch.int32))
        self.offsets, self.flips = offsets, flips

    def integers(self, name: str, shape: tuple[int, ...], low: int, high: int) -> Tensor:  # type: ignore[override]
        assert name == "translate"
        assert low <= int(self.offsets.min()) <= int(self.offsets.max()) <= high
        return self.offsets.reshape(shape)

    def uniform(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:  # type: ignore[override]
        assert name == "flip"
        return torch.where(self.flips, 0.49, 0.5).reshape(shape)


def normalised(image: Tensor) -> Tensor:
    """(H, W, C) uint8 to (C, H, W) float64, by the definition."""
    mean, std = (torch.tensor(v, dtype=torch.float64)[: image.shape[2]].view(-1, 1, 1) for v in (MEAN, STD))
    return (image.permute(2, 0, 1).double() / 255 - mean) / std


def shifted(image: Tensor, down: int, right: int, flip: bool, reach: int) -> Tensor:
    """The window of the reflected image that begins `down`, `right` of its corner, mirrored or not."""
    _, height, width = image.shape
    padded = F.pad(image[None], (reach, reach, reach, reach), mode="reflect")[0]
    window = padded[:, reach + down : reach + down + height, reach + right : reach + right + width]
    return window.flip(2) if flip else window


def augment(dtype: torch.dtype = torch.float64, **options: float) -> Augment:
    return Augment.normalising(MEAN, STD, CPU, dtype, **options)


def test_normalisation() -> None:
    images = pixels(4)
    plain = augment().plain(images)
    assert plain.shape == (4, 3, 7, 9)
    assert torch.allclose(plain, torch.stack([normalised(image) for image in images]), rtol=0, atol=1e-13)
    assert torch.allclose(augment(torch.float32).plain(images).double(), plain, rtol=0, atol=1e-6)


def test_normalised_mean_and_deviation_are_zero_and_one() -> None:
    images = pixels(50)
    unit = images.double() / 255
    mean, std = unit.mean(dim=(0, 1, 2)), unit.std(dim=(0, 1, 2), unbiased=False)
    plain = Augment.normalising(tuple(mean.tolist()), tuple(std.tolist()), CPU, torch.float64).plain(images)
    assert plain.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert plain.std(dim=(0, 2, 3), unbiased=False).tolist() == pytest.approx([1.0] * 3)


@pytest.mark.parametrize(("height", "width", "reach"), [(7, 9, 4), (8, 8, 1), (5, 6, 4), (3, 3, 2)])
def test_every_offset_and_flip_equals_reflection_padding(height: int, width: int, reach: int) -> None:
    moves = list(itertools.product(range(-reach, reach + 1), range(-reach, reach + 1), (False, True)))
    images = pixels(len(moves), height, width)
    order = torch.randperm(len(moves), generator=torch.Generator().manual_seed(1))
    offsets = torch.tensor([[down for down, _, _ in moves], [right for _, right, _ in moves]])
    noise = Chosen(offsets, torch.tensor([flip for _, _, flip in moves]))
    views = augment(translate=reach, flip=True).view(images, order, noise)
    for view, source, (down, right, flip) in zip(views, order.tolist(), moves, strict=True):
        expected = shifted(normalised(images[source]), down, right, flip, reach)
        assert torch.allclose(view, expected, rtol=0, atol=1e-12)


def test_translation_does_not_repeat_the_border() -> None:
    image = torch.arange(5, dtype=torch.uint8).view(1, 1, 5, 1).expand(1, 3, 5, 1).contiguous()
    plain = Augment(torch.ones(1), torch.zeros(1), translate=2)
    for right, expected in [(2, [2, 3, 4, 3, 2]), (-2, [2, 1, 0, 1, 2]), (0, [0, 1, 2, 3, 4])]:
        noise = Chosen(torch.tensor([[0], [right]]), torch.tensor([False]))
        assert plain.view(image, torch.tensor([0]), noise)[0, 0, 0].tolist() == expected


def test_flip_is_horizontal_only() -> None:
    images = pixels(2)
    noise = Chosen(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([True, False]))
    views = augment(flip=True).view(images, torch.tensor([0, 1]), noise)
    assert torch.allclose(views[0], normalised(images[0]).flip(2), rtol=0, atol=1e-12)
    assert torch.allclose(views[1], normalised(images[1]), rtol=0, atol=1e-12)


def test_without_options_a_view_is_the_plain_image() -> None:
    images, index = pixels(6), torch.tensor([5, 0, 0, 3])
    assert torch.equal(augment().view(images, index, noise_of()), augment().plain(images[index]))


def test_drawn_offsets_and_flips_are_uniform_and_independent() -> None:
    reach, count = 4, 8100
    image = torch.arange(81, dtype=torch.uint8).view(1, 9, 9, 1)
    plain = Augment(torch.ones(1), torch.zeros(1), translate=reach, flip=True)
    views = plain.view(image, torch.zeros(count, dtype=torch.int64), noise_of())[:, 0]
    # The middle pixel tells the offsets, its right neighbour whether the image was mirrored.
    middle, right = views[:, 4, 4].long(), views[:, 4, 5].long()
    down, across = middle // 9, middle % 9
    counts = torch.bincount(down * 9 + across, minlength=81)
    # 80 degrees of freedom: deviation 12.6.
    assert 80 - 60 < float(((counts - 100.0) ** 2 / 100).sum()) < 80 + 63
    # At the edge both neighbours are the same by reflection.
    inner = (across > 0) & (across < 8)
    flipped = right < middle
    assert abs(flipped[inner].double().mean().item() - 0.5) < 2.5 / math.sqrt(int(inner.sum()))
    table = torch.stack([down, across, flipped])[:, inner].double()
    assert float((torch.corrcoef(table) - torch.eye(3)).abs().max()) < 5 / math.sqrt(int(inner.sum()))


def test_gaussian_noise_has_its_deviation_after_normalisation() -> None:
    images, index = pixels(64, 16, 16), torch.arange(64)
    rest = augment(noise=0.15).view(images, index, noise_of()) - augment().plain(images)
    bound = 5 / math.sqrt(rest.numel())
    assert abs(rest.mean().item()) < 0.15 * bound
    assert rest.std().item() == pytest.approx(0.15, rel=bound)
    assert torch.allclose(
        rest, 0.15 * noise_of().normal("gaussian", (64, 3, 16, 16), torch.float64), rtol=0, atol=1e-12
    )


def test_two_views_of_a_step_differ_and_each_repeats() -> None:
    images, index = pixels(32), torch.arange(32)
    options = augment(translate=2, flip=True)
    student = options.view(images, index, noise_of().scope("view/student"))
    assert torch.equal(student, options.view(images, index, noise_of().scope("view/student")))
    for other in (noise_of().scope("view/teacher"), noise_of(1).scope("view/student")):
        view = options.view(images, index, other)
        same = (student == view).flatten(1).all(dim=1).sum().item()
        # Fifty equally likely views: two agree on one image in fifty.
        assert same <= 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_have_the_type_and_the_layout_that_networks_take(dtype: torch.dtype) -> None:
    view = augment(dtype, translate=1, flip=True, noise=0.1).view(pixels(4), torch.arange(3), noise_of())
    assert view.dtype == dtype
    assert view.shape == (3, 3, 7, 9)
    assert (
        augment(dtype, translate=1)
        .view(pixels(4), torch.arange(3), noise_of())
        .is_contiguous(memory_format=torch.channels_last)
    )
