"""Feature vectors in the place of images: each feature is the one pixel of a channel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastswa.data.images import Dataset, ImageSet
from fastswa.errors import RequestError

# A value this many deviations off says no more than "far out", and more would overflow on the way.
FARTHEST = 1e4


@dataclass(frozen=True)
class FeatureSet(ImageSet):
    """Standardised features with their labels; `pixels` is (N, F, 1, 1) float32."""

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.float32 or self.pixels.ndim != 4 or self.pixels.shape[2:] != (1, 1):
            raise RequestError(
                f"{self.name}: features must be float32 of shape (N, F, 1, 1), "
                f"not {self.pixels.dtype} of shape {tuple(self.pixels.shape)}."
            )
        if self.labels.shape != (len(self.pixels),):
            raise RequestError(f"{self.name}: {len(self.pixels)} rows but labels of shape {tuple(self.labels.shape)}.")


def feature_statistics(features: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column of (N, F); a constant column has the deviation 1."""
    features = np.asarray(features, dtype=np.float64)
    # Divided by the largest value first, so that squares of very large or very small ones stay numbers.
    largest = np.abs(features).max(axis=0)
    largest = np.where(largest > 0, largest, 1.0)
    scaled = features / largest
    mean, deviation = scaled.mean(axis=0), scaled.std(axis=0)
    std = np.where(deviation > 1e-14, deviation * largest, 0.0)
    return tuple(float(m) for m in mean * largest), tuple(float(s) if s > 0 else 1.0 for s in std)


def standardised(features: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Features (N, F) of any range as the (N, F, 1, 1) float32 that a network is trained on."""
    centre, scale = (torch.tensor(values, dtype=torch.float64, device=features.device) for values in (mean, std))
    scaled = (features.double() - centre) / scale
    return scaled.clamp(-FARTHEST, FARTHEST).float()[:, :, None, None]


def feature_dataset(features: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    """Features (N, F) to train on, standardised by themselves; `labels` (N,) as an ImageSet's."""
    mean, std = feature_statistics(features)
    pixels = standardised(torch.from_numpy(np.array(features, dtype=np.float64)), mean, std).numpy()
    train = FeatureSet(pixels, labels.astype(np.int64), classes, name="X")
    return Dataset(train, None, normalisation=(mean, std))
