"""Which images to label next: uncertain ones, evenly over the classes, each unlike what is labelled already."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastswa.report.predictions import Predictions

WHY = (
    "Images over which the model hesitates between two classes, as many for each predicted class as for any other "
    "(those with the fewest labels first), each unlike the labelled images and those before it in the list."
)
SURE = 0.9
_CANDIDATES = 2000

# Rows of the unlabelled images to features (n, F) of length 1.
FeaturesOf = Callable[[np.ndarray], np.ndarray]


def suggest(
    predictions: Predictions, features_of: FeaturesOf, labelled: np.ndarray, label_counts: np.ndarray, count: int
) -> np.ndarray:
    """Positions among the predictions of up to `count` images, the most wanted first.

    `labelled` (M, F) holds features of labelled images, `label_counts` (classes,) how many labels each class has.
    """
    candidates = _candidates(predictions, count)
    if len(candidates) == 0:
        return candidates
    features = features_of(candidates)
    doubt = 1.0 - predictions.margin[candidates]
    said = predictions.first[candidates]
    distance = _nearest(features, labelled) if len(labelled) else np.full(len(candidates), 2.0)
    open_ = np.ones(len(candidates), dtype=bool)
    picked: list[int] = []
    picks = {int(label): 0 for label in np.unique(said)}
    while len(picked) < count and picks:
        label = min(picks, key=lambda k: (picks[k], label_counts[k], k))
        own = np.flatnonzero(open_ & (said == label))
        if len(own) == 0:
            del picks[label]
            continue
        best = own[np.argmax(doubt[own] * distance[own])]
        open_[best] = False
        picks[label] += 1
        picked.append(int(best))
        distance = np.minimum(distance, _nearest(features, features[best : best + 1]))
    return candidates[np.array(picked)]


def _candidates(predictions: Predictions, count: int) -> np.ndarray:
    """The images that the model is unsure of (or its least certain, if those are few), evenly over the classes."""
    order = np.argsort(predictions.margin, kind="stable")
    unsure = max(int((predictions.confidence < SURE).sum()), 2 * count)
    order = order[:unsure]
    said = predictions.first[order]
    classes = np.unique(said)
    each = max(_CANDIDATES // max(len(classes), 1), 1)
    chosen = [order[said == label][:each] for label in classes]
    return np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)


def _nearest(features: np.ndarray, others: np.ndarray) -> np.ndarray:
    """1 - cosine of each row with the most similar of the others, 0 to 2; features have length 1."""
    closest: np.ndarray = np.clip(1.0 - (features @ others.T).max(axis=1), 0.0, 2.0)
    return closest
