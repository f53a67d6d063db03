"""ImageSet: uint8 pixels in memory or memory-mapped, with labels where they are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastswa.errors import RequestError

UNLABELLED = -1


@dataclass(frozen=True)
class ImageSet:
    """Images of one size with their labels.

    `pixels` is (N, C, H, W) uint8 (an array or a memory map); `labels` is (N,) int64, `UNLABELLED` where
    there is none; `classes` names the labels.
    """

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str = "images"

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4:
            raise RequestError(
                f"{self.name}: images must be uint8 of shape (N, C, H, W), "
                f"not {self.pixels.dtype} of shape {tuple(self.pixels.shape)}."
            )
        if self.labels.shape != (len(self.pixels),):
            raise RequestError(
                f"{self.name}: {len(self.pixels)} images but labels of shape {tuple(self.labels.shape)}."
            )
        if len(self.labels):
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < UNLABELLED or high >= len(self.classes):
                wrong = low if low < UNLABELLED else high
                raise RequestError(
                    f"{self.name}: label {wrong} is out of range for {len(self.classes)} classes "
                    f"(0 to {len(self.classes) - 1}; {UNLABELLED} means unlabelled)."
                )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, pixels taken as 0 to 1; read in blocks."""
        channels = self.shape[0]
        total, square, count = np.zeros(channels), np.zeros(channels), 0
        for start in range(0, len(self), 4096):
            block = np.asarray(self.pixels[start : start + 4096], dtype=np.float64) / 255.0
            total += block.sum(axis=(0, 2, 3))
            square += (block**2).sum(axis=(0, 2, 3))
            count += block.shape[0] * block.shape[2] * block.shape[3]
        mean = total / max(count, 1)
        deviation = np.sqrt(np.maximum(square / max(count, 1) - mean**2, 1e-12))
        return tuple(float(m) for m in mean), tuple(float(max(s, 1e-3)) for s in deviation)


@dataclass(frozen=True)
class Dataset:
    """What a source gives: training images, test images (possibly none), and what its recipes assume.

    `normalisation` is (mean, std) per channel for pixels taken as 0 to 1, or None to measure it.
    """

    train: ImageSet
    test: ImageSet | None
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.test is not None and self.test.shape != self.train.shape:
            raise RequestError(
                f"{self.test.name}: test images have shape {self.test.shape}, "
                f"training images {self.train.shape}; both must have the same size and channels."
            )
        if self.test is not None and self.test.classes != self.train.classes:
            raise RequestError(f"{self.test.name}: the classes of test and training images differ.")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes
