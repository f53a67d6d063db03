"""Batched augmentation on the device: one gather does indexing, translation with reflection and flips.

A view's name decides how strong it is: "strong" is, "student" where it is told to be, every other one is weak. Weak
views are warped instead of gathered (fastswa.data.warp) where they are asked to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastswa import kernels
from fastswa.data import strong
from fastswa.data.warp import draw_maps, warped
from fastswa.noise import Noise

# Added to the variance of an image's values 0 to 255, for images of one colour.
LEAST_VARIANCE = 0.01


def each_standardised(images: Tensor) -> Tensor:
    """Images (B, ...) of values 0 to 255, each with mean 0 and variance 1 over all of its own values."""
    rest = tuple(range(1, images.dim()))
    centred = images - images.mean(dim=rest, keepdim=True)
    variance = centred.square().mean(dim=rest, keepdim=True)
    return centred * torch.rsqrt(variance + LEAST_VARIANCE)


@dataclass(frozen=True)
class Augment:
    """Random views of images kept on the device as (N, H, W, C) uint8.

    `scale` and `shift` are (C,): a view is pixel * scale + shift, so that pixels 0 to 255 come out with the
    mean and deviation that the network was promised; with `standardise` each image is brought to mean 0 and deviation
    1 of its own instead. With `warp` weak views are translated by parts of a pixel and through random matrices
    (`affine`), and see what `beyond` says where they look beyond the image: zero after normalisation, or its edge.
    Strong views get `operations` of fastswa.data.strong after translation and flip, black where they look beyond the
    image, and a square of `cutout` of the shorter side is painted over with the mean colour.
    """

    scale: Tensor
    shift: Tensor
    translate: int = 0
    flip: bool = False
    warp: bool = False
    affine: float = 0.0
    beyond: str = "zero"
    standardise: bool = False
    noise: float = 0.0
    student: str = "weak"
    operations: int = 2
    cutout: float = 0.5

    @classmethod
    def normalising(
        cls,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        **options: float | str,
    ) -> Augment:
        """An Augment for channel means and deviations of pixels taken as 0 to 1."""
        scale = torch.tensor([1.0 / (255.0 * s) for s in std], dtype=dtype, device=device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=device)
        return cls(scale, shift, **options)  # type: ignore[arg-type]

    def plain(self, pixels: Tensor) -> Tensor:
        """(B, H, W, C) uint8 to normalised (B, C, H, W), channels last in memory."""
        values = pixels.to(self.scale.dtype)
        if self.standardise:
            return each_standardised(values).permute(0, 3, 1, 2)
        # By rows of W times C values: a CPU is slow at short ones.
        scale, shift = (each.repeat(pixels.shape[2]) for each in (self.scale, self.shift))
        return (values.flatten(2) * scale + shift).view(pixels.shape).permute(0, 3, 1, 2)

    def view(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        """A random view of pixels[index], (B, C, H, W); `index` is (B,) int64, `noise` is scoped by the view's name."""
        strongly = noise.name == "strong" or (noise.name == "student" and self.student == "strong")
        if not strongly and self.draws(pixels):
            return self._drawn(pixels, index, noise)
        images = self._strong(pixels, index, noise) if strongly else self._weak(pixels, index, noise)
        if self.noise:
            images = images + self.noise * noise.normal("gaussian", images.shape, images.dtype)
        return images

    def draws(self, pixels: Tensor) -> bool:
        """Whether a weak view is one launch."""
        return not (self.warp or self.standardise) and kernels.viewable(pixels, self.scale)

    def draws_strong(self, pixels: Tensor) -> bool:
        """Whether a strong view is one launch, but for noise."""
        return not self.standardise and kernels.recolourable(pixels, self.scale)

    def _drawn(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        """The weak view in one launch."""
        from fastswa.kernels.draws import weak_view

        constants = _constants(noise, "flip", "translate", "gaussian/radius", "gaussian/angle")
        return weak_view(
            pixels, index, noise.words, self.scale, self.shift, constants, self.translate, self.flip, self.noise
        )

    def _drawn_strong(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        """The strong view in one launch, without noise."""
        from fastswa.kernels.strong import strong_view

        _, height, width, _ = pixels.shape
        constants = _constants(noise, "flip", "translate", "operations", "cutout")
        side = strong.cut_side(height, width, self.cutout)
        return strong_view(
            *(pixels, index, noise.words, self.scale, self.shift, constants),
            *(self.translate, self.flip, self.operations, side),
        )

    def _weak(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        if self.warp:
            images = self.plain(pixels[index])
            maps = draw_maps(
                noise,
                len(index),
                translate=self.translate,
                flip=self.flip,
                affine=self.affine,
                dtype=images.dtype,
            )
            return warped(images, *maps, self.beyond)
        return self.plain(self._gathered(pixels, index, noise))

    def _strong(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        if self.draws_strong(pixels):
            return self._drawn_strong(pixels, index, noise)
        _, height, width, _ = pixels.shape
        draws = strong.draw(noise, len(index), self.operations)
        rows, columns, within = strong.places(draws, height, width)
        images = self._gathered(pixels, index, noise, rows, columns) * within[..., None]
        for one in draws:
            images = strong.recoloured(images, one)
        view = self.plain(images)
        return strong.cut(view, noise, self.cutout) if self.cutout else view

    def _gathered(
        self, pixels: Tensor, index: Tensor, noise: Noise, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> Tensor:
        """The pixels (B, H, W, C) uint8 that translation and flip put at these rows and columns, (B, H, W) or all."""
        count, height, width, channels = len(index), *pixels.shape[1:]
        row = torch.arange(height, device=index.device).expand(count, height)
        column = torch.arange(width, device=index.device).expand(count, width)
        if self.flip:
            flipped = noise.uniform("flip", (count, 1)) < 0.5
            column = torch.where(flipped, width - 1 - column, column)
        if self.translate:
            offsets = noise.integers("translate", (2, count, 1), -self.translate, self.translate)
            row, column = _reflect(row + offsets[0], height), _reflect(column + offsets[1], width)
        if rows is None or columns is None:
            row, column = row[:, :, None], column[:, None, :]
        else:
            row, column = (
                each.gather(1, wanted.flatten(1)).view(wanted.shape)
                for each, wanted in ((row, rows), (column, columns))
            )
        if not pixels.is_contiguous():  # such as the memory map of prepared files
            return pixels[index[:, None, None], row, column]
        places = (index[:, None, None] * height + row) * width + column
        return pixels.view(-1, channels).index_select(0, places.flatten()).view(count, height, width, channels)


def _constants(noise: Noise, *purposes: str) -> list[int]:
    """What kernels draw these purposes' numbers by."""
    return [constant for purpose in purposes for constant in noise.constants(purpose)]


def _reflect(position: Tensor, size: int) -> Tensor:
    """Positions beyond an edge mirrored back; the border pixel is not repeated."""
    return (size - 1) - ((size - 1) - position.abs()).abs()
