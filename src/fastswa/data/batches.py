"""An epoch as an index matrix, made from the seed and the epoch number alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastswa.data.pace import Pace
from fastswa.data.splits import Split
from fastswa.errors import RequestError
from fastswa.noise import derive_seed


@dataclass(frozen=True)
class BatchPlan:
    """How an epoch is cut into batches: each row holds `labelled` labelled images, then unlabelled ones.

    The training images are numbered from 0 and `extras` extra unlabelled ones from `first_extra` on, of which each
    epoch draws `extra_per_epoch` anew. With `windowed` only the epoch's draw lies on the device, in that order.
    `classes` are those of the labelled images where each class is to come equally often, None where each image is.
    `unlabelled_images` may hold the labelled ones too: in an unlabelled place of a row nobody looks at their labels.
    `changes` are those of the number of steps that training's epochs have, of which there is room for `longest` (Pace).
    """

    labelled_images: np.ndarray
    unlabelled_images: np.ndarray
    size: int
    labelled: int
    steps: int
    first_extra: int = 0
    extras: int = 0
    extra_per_epoch: int = 0
    windowed: bool = False
    classes: np.ndarray | None = None
    changes: tuple[tuple[int, int], ...] = ()
    longest: int = 0

    @property
    def pace(self) -> Pace:
        """How many steps each of training's epochs has."""
        return Pace(self.steps, self.changes, self.longest)

    @property
    def unlabelled(self) -> int:
        """How many images the unlabelled places are drawn from, the extra ones included."""
        return len(self.unlabelled_images) + self.extras

    def epoch(self, seed: int, epoch: int, purpose: str = "batches") -> np.ndarray:
        """The epoch's index matrix, (steps, size) int64: numbers of images."""
        matrix = self._places(seed, epoch, purpose)
        if self.extra_per_epoch:
            extra = matrix >= self.first_extra
            matrix[extra] = self.first_extra + self.drawn(seed, epoch, purpose)[matrix[extra] - self.first_extra]
        return matrix

    def rows(self, seed: int, epoch: int) -> np.ndarray:
        """The matrix of an epoch of training as rows of the images on the device, one for each step that it has."""
        plan = replace(self, steps=self.pace.of(epoch))
        return plan._places(seed, epoch, "batches") if self.windowed else plan.epoch(seed, epoch)

    def drawn(self, seed: int, epoch: int, purpose: str = "batches") -> np.ndarray:
        """The epoch's extra images, (extra_per_epoch,) int64, counted from 0 and sorted."""
        if self.extra_per_epoch == self.extras:
            return np.arange(self.extras)
        rng = np.random.default_rng(derive_seed(seed, f"{purpose}/extra", epoch))
        return np.sort(rng.choice(self.extras, self.extra_per_epoch, replace=False, shuffle=False))

    def _places(self, seed: int, epoch: int, purpose: str) -> np.ndarray:
        """The epoch's matrix with the extra images numbered by their place in the draw."""
        rng = np.random.default_rng(derive_seed(seed, purpose, epoch))
        pool = self.unlabelled_images
        if self.extra_per_epoch:
            pool = np.concatenate([pool, np.arange(self.first_extra, self.first_extra + self.extra_per_epoch)])
        unlabelled = _chain(rng, pool, self.steps * (self.size - self.labelled))
        labelled = _chain(rng, self.labelled_images, self.steps * self.labelled, self.classes)
        return np.concatenate([labelled.reshape(self.steps, -1), unlabelled.reshape(self.steps, -1)], axis=1)


def plan_batches(
    split: Split,
    *,
    size: int,
    labelled: int,
    steps: int | None,
    labelled_only: bool = False,
    classes: np.ndarray | None = None,
    first_extra: int = 0,
    extras: int = 0,
    extra_per_epoch: int | None = None,
    two_domains: bool = False,
    reuse_labelled: bool = False,
) -> BatchPlan:
    """The plan of a run: an epoch is one pass over the unlabelled images, the incomplete last batch dropped.

    The unlabelled images are those of the split and the extra ones, or as many of these as an epoch may draw; with
    `reuse_labelled` the labelled ones are among them, and still come as labelled ones as often as without.
    Where nothing is unlabelled the whole batch is labelled and an epoch is one pass over the labelled images.
    `labelled_only` (supervised training) fills whole batches with labelled images for as many steps as the
    other methods take. Where `steps` are given, a batch may hold an image more than once. With `two_domains` the
    extra images are the target's and the labelled ones the source's: an epoch is a pass over the larger set, and the
    other one is gone through as often as that takes.
    """
    unlabelled = split.unlabelled
    if reuse_labelled:
        unlabelled = np.sort(np.concatenate([unlabelled, split.labelled]))
    drawn = extras if extra_per_epoch is None else min(extra_per_epoch, extras)
    available = len(unlabelled) + drawn
    if available == 0:
        labelled = size
    if labelled < 1 or len(split.labelled) == 0:
        raise RequestError("a batch holds no labelled image; give batch.labelled and split.labels at least 1.")
    if available and labelled == size and not labelled_only:
        raise RequestError(f"batch.labelled ({labelled}) leaves no room for unlabelled images in a batch of {size}.")
    if two_domains and steps is None:
        # Where source images fill whole batches, as many target images as these are passed over.
        steps = max(len(split.labelled) // labelled, available // (size - labelled or size), 1)
    pool, share = (available, size - labelled) if available and labelled < size else (len(split.labelled), size)
    if share > pool and steps is None:
        kind = "unlabelled" if share < size else "labelled"
        raise RequestError(
            f"batch.size: a batch takes {share} {kind} images, but only {pool} are there; make the batch smaller."
        )
    steps = pool // share if steps is None else steps
    if labelled_only:
        labelled, unlabelled, drawn = size, unlabelled[:0], 0
    return BatchPlan(split.labelled, unlabelled, size, labelled, steps, first_extra, extras, drawn, classes=classes)


def _chain(rng: np.random.Generator, items: np.ndarray, count: int, classes: np.ndarray | None = None) -> np.ndarray:
    """The first `count` items of an endless chain of shuffles.

    With `classes` (N,) each class has a chain of its own, and all take turns in an order drawn anew for each round.
    """
    if count == 0:
        return items[:0]
    if classes is not None:
        present = np.unique(classes)
        rounds = -(-count // len(present))
        turns = np.stack([_chain(rng, items[classes == label], rounds) for label in present], axis=1)
        return rng.permuted(turns, axis=1).reshape(-1)[:count]
    shuffles = [rng.permutation(items) for _ in range(-(-count // len(items)))]
    return np.concatenate(shuffles)[:count]
