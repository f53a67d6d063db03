"""Strong views: each operation by value against Pillow, then how they are drawn and composed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fastswa.data.augment import Augment
from fastswa.data.strong import OPERATIONS, Draw, cut, draw, places, quotient, recoloured
from fastswa.noise import Noise, step_words

STRENGTHS = [0.0, 0.13, 0.37, 0.5, 0.61, 0.86, 0.9999]
RAW = Augment(torch.ones(3), torch.zeros(3), cutout=0.0)


def noise_of(step: int = 0) -> Noise:
    return Noise(torch.from_numpy(step_words(0, "step", step, 1)[0].copy()))


def pictures(channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """(5, H, W, C): noise, a smooth slope, a dark one, one of two levels, one of a single level."""
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 255, height * width).reshape(height, width, 1) * np.ones(channels)
    kinds = [
        rng.integers(0, 256, (height, width, channels)),
        slope + rng.integers(-20, 20, slope.shape),
        40 + slope / 8 + rng.integers(0, 30, slope.shape),
        rng.choice([30, 200], (height, width, channels)),
        np.full((height, width, channels), 77),
    ]
    return torch.from_numpy(np.stack(kinds).clip(0, 255).astype(np.uint8))


def pillow(image: Tensor) -> Image.Image:
    array = image.numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def tensor(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array.reshape(*array.shape[:2], -1))


def affine(image: Image.Image, *numbers: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, numbers)


def factor(strength: float) -> float:
    return 0.05 + 0.9 * strength


def signed(strength: float, reach: float) -> float:
    return (2 * strength - 1) * reach


POINTWISE: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, s: image,
    "brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(factor(s)),
    "contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(factor(s)),
    "colour": lambda image, s: ImageEnhance.Color(image).enhance(factor(s)),
    "sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(factor(s)),
    "solarise": lambda image, s: ImageOps.solarize(image, int(256 * s)),
    "posterise": lambda image, s: ImageOps.posterize(image, 8 - int(5 * s)),
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalise": lambda image, s: ImageOps.equalize(image),
}
MOVES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "rotate": lambda image, s: image.rotate(signed(s, 30)),
    "shear_x": lambda image, s: affine(image, 1, signed(s, 0.3), 0, 0, 1, 0),
    "shear_y": lambda image, s: affine(image, 1, 0, 0, signed(s, 0.3), 1, 0),
    "translate_x": lambda image, s: affine(image, 1, 0, signed(s, 0.3) * image.width, 0, 1, 0),
    "translate_y": lambda image, s: affine(image, 1, 0, 0, 0, 1, signed(s, 0.3) * image.height),
}


def drawn(name: str, strength: float, images: int) -> Draw:
    return Draw(torch.full((images,), OPERATIONS.index(name)), torch.full((images,), strength))


def moved(images: Tensor, *draws: Draw) -> Tensor:
    rows, columns, within = places(list(draws), *images.shape[1:3])
    numbers = torch.arange(len(images)).view(-1, 1, 1)
    return images[numbers, rows, columns] * within[..., None]


def test_every_operation_is_compared() -> None:
    assert {*POINTWISE, *MOVES} == {*OPERATIONS}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", POINTWISE)
def test_a_colour_operation_is_pillows_within_a_grey_level(name: str, channels: int) -> None:
    for images in (pictures(channels), pictures(channels, 24, 40)):
        for strength in STRENGTHS:
            ours = recoloured(images, drawn(name, strength, len(images)))
            for image, found in zip(images, ours, strict=True):
                theirs = tensor(POINTWISE[name](pillow(image), strength))
                assert int((found.int() - theirs.int()).abs().max()) <= 1
                # What is off by one is rounding in the last bit, never a whole area.
                assert float((found != theirs).double().mean()) < 0.02


def test_a_quotient_has_the_right_whole_part_whatever_rounding_does_to_it() -> None:
    divisor = torch.arange(1, 256)[:, None]
    dividend = torch.arange(256) * 255
    exact = dividend // divisor
    found = quotient(dividend, divisor)
    for off in (-1e-6, 0.0, 1e-6):
        assert ((found * (1 + off)).long() == exact).all()


@pytest.mark.parametrize("name", MOVES)
def test_a_move_takes_the_pixels_that_pillow_takes(name: str) -> None:
    """Pillow counts in 1/65536 of a pixel: only centres that fall on an edge between pixels may go the other way."""
    for images in (pictures(), pictures(1, 24, 40)):
        for strength in STRENGTHS:
            ours = moved(images, drawn(name, strength, len(images)))
            for image, found in zip(images, ours, strict=True):
                theirs = tensor(MOVES[name](pillow(image), strength))
                assert float((found != theirs).any(dim=2).double().mean()) < 0.01


@pytest.mark.parametrize("name", MOVES)
def test_a_move_beyond_the_image_is_black_as_in_pillow(name: str) -> None:
    images = torch.full((1, 32, 32, 3), 255, dtype=torch.uint8)
    for strength in (0.0, 0.3, 0.9):
        ours = moved(images, drawn(name, strength, 1))[0]
        theirs = tensor(MOVES[name](pillow(images[0]), strength))
        assert int((ours == 0).sum()) > 0
        assert abs(int((ours == 0).sum()) - int((theirs == 0).sum())) <= 6


def test_two_moves_are_one_after_the_other() -> None:
    """Whole shifts leave no rounding: 9.6 pixels times 2s - 1, chosen to be 3 and 6."""
    images = pictures()
    first, second = (drawn(name, (shift / 9.6 + 1) / 2, 5) for name, shift in (("translate_x", 3), ("translate_y", 6)))
    found = moved(images, first, second)
    assert torch.equal(found[:, :26, :29], images[:, 6:, 3:])
    assert int(found[:, 26:].sum()) == int(found[:, :, 29:].sum()) == 0
    # A turn before a shift is another view than a turn after it: Pillow says which. The three columns that the shift
    # brings in are black there, and here what the turn would have left in them.
    turn = drawn("rotate", 0.8, 5)
    theirs = tensor(MOVES["translate_x"](MOVES["rotate"](pillow(images[1]), 0.8), (3 / 9.6 + 1) / 2))[:, :29]
    after, before = (moved(images, *order)[1, :, :29] for order in ((turn, first), (first, turn)))
    assert float((after != theirs).any(dim=2).double().mean()) < 0.01
    assert float((before != theirs).any(dim=2).double().mean()) > 0.5


def test_a_batch_mixes_operations() -> None:
    """Each image of a batch gets its own operation: what it gets alone."""
    image = pictures()[1]
    names = [*POINTWISE]
    batch = image.expand(len(names), -1, -1, -1)
    draws = Draw(torch.tensor([OPERATIONS.index(name) for name in names]), torch.full((len(names),), 0.37))
    for name, found in zip(names, recoloured(batch, draws), strict=True):
        assert torch.equal(found, recoloured(image[None], drawn(name, 0.37, 1))[0]), name


def test_a_strong_view_is_gather_then_colours_then_cutout() -> None:
    images, index = pictures(), torch.tensor([3, 1, 1, 0])
    augment = Augment(torch.full((3,), 0.5), torch.full((3,), -3.0), translate=2, flip=True, operations=2)
    noise = noise_of().scope("view/strong")
    view = augment.view(images, index, noise)
    weak = Augment(torch.ones(3), torch.zeros(3), translate=2, flip=True)._weak(images, index, noise)
    expected = weak.permute(0, 2, 3, 1).to(torch.uint8)
    draws = draw(noise, 4, 2)
    expected = moved(expected, *draws)
    for one in draws:
        expected = recoloured(expected, one)
    shown = cut((0.5 * expected.float() - 3.0).permute(0, 3, 1, 2), noise, 0.5)
    assert torch.equal(view, shown)
    assert view.is_contiguous(memory_format=torch.channels_last)


def test_the_cut_square_is_half_as_wide_and_clipped() -> None:
    views = torch.full((4000, 32, 24, 2), 7.0).permute(0, 3, 1, 2)
    cut_views = cut(views, noise_of(), 0.5)
    assert torch.equal(cut_views[:, 0], cut_views[:, 1])
    assert cut_views.unique().tolist() == [0.0, 7.0]
    gone = (cut_views[:, 0] == 0).double()
    heights, widths = gone.amax(dim=2).sum(dim=1), gone.amax(dim=1).sum(dim=1)
    assert torch.equal(gone.sum(dim=(1, 2)), heights * widths)
    assert (heights.max(), widths.max()) == (12, 12)
    assert (heights.min(), widths.min()) == (6, 6)
    # The middle pixel is covered by twelve of the centres each way.
    assert gone[:, 16, 12].mean().item() == pytest.approx(12 / 32 * 12 / 24, abs=5 * math.sqrt(0.16 / 4000))


def test_operations_are_drawn_evenly_and_strengths_fill_their_range() -> None:
    first, second = draw(noise_of(), 14_000, 2)
    for one in (first, second):
        counts = torch.bincount(one.operation, minlength=14)
        # 13 degrees of freedom: deviation 5.1.
        assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 13 + 26
        assert one.strength.mean().item() == pytest.approx(0.5, abs=0.013)
    pairs = torch.stack([first.operation, second.operation, first.strength, second.strength]).double()
    assert float((torch.corrcoef(pairs) - torch.eye(4)).abs().max()) < 5 / math.sqrt(14_000)


@pytest.mark.parametrize(("name", "student", "strong"), [
    ("strong", "weak", True), ("student", "strong", True), ("student", "weak", False), ("teacher", "strong", False),
    ("weak", "strong", False),
])  # fmt: skip
def test_the_name_of_a_view_says_how_strong_it_is(name: str, student: str, strong: bool) -> None:
    images, index = pictures(), torch.arange(5)
    augment = Augment(torch.ones(3), torch.zeros(3), student=student)
    plain = torch.equal(augment.view(images, index, noise_of().scope(f"view/{name}")), augment.plain(images))
    assert plain != strong


def test_a_view_repeats_and_another_step_differs() -> None:
    images, index = pictures(), torch.arange(5)
    views = [RAW.view(images, index, noise_of(step).scope("view/strong")) for step in (0, 0, 1)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])


def test_small_grey_images_are_taken() -> None:
    images = pictures(1, 8, 8)
    view = Augment(torch.ones(1), torch.zeros(1), translate=1).view(images, torch.arange(5), noise_of().scope("strong"))
    assert view.shape == (5, 1, 8, 8)
    assert torch.equal(recoloured(images, drawn("equalise", 0.5, 5)), images)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_operations_in_a_row_are_the_same_compiled() -> None:
    """With something after them, so that compiled code keeps nothing of what is between."""
    weight = torch.randn(8, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    images = pictures(3)

    def work(first: Tensor, second: Tensor, strength: Tensor) -> Tensor:
        changed = recoloured(recoloured(images, Draw(first, strength)), Draw(second, strength))
        return torch.conv2d(changed.double().permute(0, 3, 1, 2), weight)

    compiled = torch.compile(work)
    strength = torch.linspace(0.1, 0.9, len(images))
    for first in range(len(OPERATIONS)):
        for second in range(len(OPERATIONS)):
            drawn = [torch.full((len(images),), number) for number in (first, second)]
            torch.testing.assert_close(compiled(*drawn, strength), work(*drawn, strength), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("size", [8, 28])
def test_whatever_was_drawn_is_the_same_compiled(size: int) -> None:
    """All operations in a batch, twice, with nothing before or after: torch 2.13 once read beyond a table here."""
    images = pictures(1, size, size)

    def work(index: Tensor, words: Tensor) -> Tensor:
        found = images[index]
        for one in draw(Noise(words).scope("view/strong"), len(index), 2):
            found = recoloured(found, one)
        return found.double().mean(dim=(1, 2, 3))

    compiled, index = torch.compile(work), torch.arange(70) % len(images)
    for step in range(10):
        words = torch.from_numpy(step_words(0, "step", step, 1)[0].copy())
        torch.testing.assert_close(compiled(index, words), work(index, words), rtol=0, atol=1e-9)
