"""An epoch as an index matrix, made from the seed and the epoch number alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastswa.data.splits import Split
from fastswa.errors import RequestError
from fastswa.noise import derive_seed


@dataclass(frozen=True)
class BatchPlan:
    """How an epoch is cut into batches: each row holds `labelled` labelled images, then unlabelled ones."""

    labelled_images: np.ndarray
    unlabelled_images: np.ndarray
    size: int
    labelled: int
    steps: int

    def epoch(self, seed: int, epoch: int, purpose: str = "batches") -> np.ndarray:
        """The epoch's index matrix, (steps, size) int64 into the training images."""
        rng = np.random.default_rng(derive_seed(seed, purpose, epoch))
        unlabelled = _chain(rng, self.unlabelled_images, self.steps * (self.size - self.labelled))
        labelled = _chain(rng, self.labelled_images, self.steps * self.labelled)
        return np.concatenate([labelled.reshape(self.steps, -1), unlabelled.reshape(self.steps, -1)], axis=1)


def plan_batches(
    split: Split, *, size: int, labelled: int, steps: int | None, labelled_only: bool = False
) -> BatchPlan:
    """The plan of a run: an epoch is one pass over the unlabelled images, the incomplete last batch dropped.

    Where nothing is unlabelled the whole batch is labelled and an epoch is one pass over the labelled images.
    `labelled_only` (supervised training) fills whole batches with labelled images for as many steps as the
    other methods take.
    """
    unlabelled = split.unlabelled
    if len(unlabelled) == 0:
        labelled = size
    if labelled < 1 or len(split.labelled) == 0:
        raise RequestError("a batch holds no labelled image; give batch.labelled and split.labels at least 1.")
    if len(unlabelled) and labelled == size and not labelled_only:
        raise RequestError(f"batch.labelled ({labelled}) leaves no room for unlabelled images in a batch of {size}.")
    pool, share = (
        (len(unlabelled), size - labelled) if len(unlabelled) and labelled < size else (len(split.labelled), size)
    )
    if share > pool:
        kind = "unlabelled" if share < size else "labelled"
        raise RequestError(
            f"batch.size: a batch takes {share} {kind} images, but only {pool} are there; make the batch smaller."
        )
    steps = pool // share if steps is None else steps
    if labelled_only:
        labelled, unlabelled = size, unlabelled[:0]
    return BatchPlan(split.labelled, unlabelled, size, labelled, steps)


def _chain(rng: np.random.Generator, items: np.ndarray, count: int) -> np.ndarray:
    """The first `count` items of an endless chain of shuffles."""
    if count == 0:
        return items[:0]
    shuffles = [rng.permutation(items) for _ in range(-(-count // len(items)))]
    return np.concatenate(shuffles)[:count]
