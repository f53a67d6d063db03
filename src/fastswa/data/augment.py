"""Batched augmentation on the device: one gather does indexing, translation with reflection and flips."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastswa.noise import Noise


@dataclass(frozen=True)
class Augment:
    """Random views of images kept on the device as (N, H, W, C) uint8.

    `scale` and `shift` are (C,): a view is pixel * scale + shift, so that pixels 0 to 255 come out with the
    mean and deviation that the network was promised.
    """

    scale: Tensor
    shift: Tensor
    translate: int = 0
    flip: bool = False
    noise: float = 0.0

    @classmethod
    def normalising(
        cls,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        **options: float,
    ) -> Augment:
        """An Augment for channel means and deviations of pixels taken as 0 to 1."""
        scale = torch.tensor([1.0 / (255.0 * s) for s in std], dtype=dtype, device=device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=device)
        return cls(scale, shift, **options)  # type: ignore[arg-type]

    def plain(self, pixels: Tensor) -> Tensor:
        """(B, H, W, C) uint8 to normalised (B, C, H, W), channels last in memory."""
        return (pixels.to(self.scale.dtype) * self.scale + self.shift).permute(0, 3, 1, 2)

    def view(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        """A random view of pixels[index], (B, C, H, W); `index` is (B,) int64."""
        _, height, width, _ = pixels.shape
        count = index.shape[0]
        rows = torch.arange(height, device=index.device).expand(count, height)
        columns = torch.arange(width, device=index.device).expand(count, width)
        if self.flip:
            flipped = noise.uniform("flip", (count, 1)) < 0.5
            columns = torch.where(flipped, width - 1 - columns, columns)
        if self.translate:
            offsets = noise.integers("translate", (2, count, 1), -self.translate, self.translate)
            rows = _reflect(rows + offsets[0], height)
            columns = _reflect(columns + offsets[1], width)
        images = self.plain(pixels[index[:, None, None], rows[:, :, None], columns[:, None, :]])
        if self.noise:
            images = images + self.noise * noise.normal("gaussian", images.shape, images.dtype)
        return images


def _reflect(position: Tensor, size: int) -> Tensor:
    """Positions beyond an edge mirrored back; the border pixel is not repeated."""
    return (size - 1) - ((size - 1) - position.abs()).abs()
