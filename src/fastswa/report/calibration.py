"""How far a model's confidence can be believed: the reliability diagram's bins and the calibration error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastswa.calibrate import BINS


@dataclass(frozen=True)
class Bin:
    """Images whose confidence lies above `low` and up to `high`: their mean confidence and how many are right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """`ece`: the expected calibration error, the bins' |accuracy - confidence| weighed by their images (0 to 1)."""

    bins: tuple[Bin, ...]
    ece: float
    confidence: float
    accuracy: float


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> Reliability:
    """Of N confidences (0 to 1) and whether each was right, in `bins` bins of one width (Guo et al., 2017)."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    places = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    confidences = np.bincount(places, weights=confidence, minlength=bins)
    rights = np.bincount(places, weights=correct, minlength=bins)
    images = max(len(confidence), 1)
    found = tuple(
        Bin(float(low), float(high), int(n), float(c / max(n, 1)), float(r / max(n, 1)))
        for low, high, n, c, r in zip(edges[:-1], edges[1:], counts, confidences, rights, strict=True)
    )
    return Reliability(
        bins=found,
        ece=float(np.abs(rights - confidences).sum() / images),
        confidence=float(confidence.sum() / images),
        accuracy=float(correct.sum() / images),
    )
