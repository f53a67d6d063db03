"""Arrays that people hold, as the training rooms take them: labels with gaps, and images of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastswa.data.images import UNLABELLED


def is_unlabelled(labels: np.ndarray, value: Any) -> np.ndarray:
    """Where (N,) labels are missing (None, NaN, NA, empty text) or equal to `value` (None: only where missing)."""
    if labels.dtype.kind == "O":
        return np.array([_missing(label) or (value is not None and label == value) for label in labels], dtype=bool)
    if labels.dtype.kind in "US":
        # numpy writes a number among texts as text: ["cat", -1] holds "-1".
        return (labels == "") | (labels == str(value))
    found = np.zeros(len(labels), dtype=bool) if value is None else np.asarray(labels == value)
    return found | np.isnan(labels) if labels.dtype.kind == "f" else found


def _missing(label: Any) -> bool:
    """NaN differs from itself, and pandas' NA does not even say whether it does."""
    if label is None or (isinstance(label, str) and label == ""):
        return True
    equal = label == label
    return not (isinstance(equal, bool | np.bool_) and bool(equal))


def class_numbers(labels: np.ndarray, classes: np.ndarray, unlabelled: np.ndarray) -> np.ndarray:
    """(N,) int64 positions in the sorted `classes`, `UNLABELLED` where the mask says so."""
    numbers = np.full(len(labels), UNLABELLED, dtype=np.int64)
    numbers[~unlabelled] = np.searchsorted(classes, labels[~unlabelled])
    return numbers


def white_of(images: np.ndarray) -> float:
    """The value that stands for white in images: 1 for truth values and for floats that reach no further, else 255."""
    return 1.0 if images.dtype.kind == "b" or (images.dtype.kind == "f" and images.max(initial=0) <= 1) else 255.0


def to_pixels(images: np.ndarray, white: float) -> np.ndarray:
    """Images (N, H, W) or (N, H, W, C) with values from 0 to `white` as (N, C, H, W) uint8."""
    if images.dtype.kind not in "biuf":
        raise ValueError(f"images must be numbers, not {images.dtype}.")
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    # Resized images overshoot a little.
    if low < -0.01 * white or high > 1.01 * white:
        raise ValueError(
            f"images must lie between 0 and {white:g}, and these go from {low:g} to {high:g}; scale them "
            "(feature vectors, of shape (N, features), may have any range)."
        )
    if images.dtype != np.uint8:
        images = np.rint(np.clip(images.astype(np.float32) * (255.0 / white), 0, 255)).astype(np.uint8)
    if images.ndim == 3:
        images = images[..., None]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
