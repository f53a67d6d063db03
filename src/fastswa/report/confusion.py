"""Which classes are taken for which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mixup:
    """`count` images of class `true` were taken for `said`: `share` of all that class has."""

    true: int
    said: int
    count: int
    share: float


@dataclass(frozen=True)
class ClassFigures:
    """One class: its images, how many were wrong, how often others were taken for it, and what it is taken for."""

    label: int
    images: int
    wrong: int
    taken: int
    mostly: int | None

    @property
    def error(self) -> float:
        """In percent."""
        return 100.0 * self.wrong / self.images if self.images else float("nan")


def confusion_matrix(labels: np.ndarray, said: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes) counts: row the true class, column the predicted one."""
    counts: np.ndarray = np.bincount(labels * classes + said, minlength=classes * classes)
    return counts.reshape(classes, classes)


def largest_mixups(matrix: np.ndarray, most: int) -> list[Mixup]:
    """The largest entries beside the diagonal, at most `most`; of equals the larger share first."""
    wrong = matrix - np.diag(np.diag(matrix))
    rows = matrix.sum(axis=1)
    true, said = np.nonzero(wrong)
    shares = wrong[true, said] / rows[true]
    order = np.lexsort((said, true, -shares, -wrong[true, said]))[:most]
    return [Mixup(int(true[k]), int(said[k]), int(wrong[true[k], said[k]]), float(shares[k])) for k in order]


def class_figures(matrix: np.ndarray) -> list[ClassFigures]:
    """Every class's figures, in the order of the classes."""
    wrong = matrix - np.diag(np.diag(matrix))
    images, lost, taken = matrix.sum(axis=1), wrong.sum(axis=1), wrong.sum(axis=0)
    return [
        ClassFigures(k, int(images[k]), int(lost[k]), int(taken[k]), int(wrong[k].argmax()) if lost[k] else None)
        for k in range(len(matrix))
    ]
