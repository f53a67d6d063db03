"""Which training images are labelled, unlabelled or held out for validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.errors import RequestError

if TYPE_CHECKING:
    from fastswa.config import SplitConfig


@dataclass(frozen=True)
class Split:
    """Indices into the training images, (N,) int64 each, disjoint. The labels of `unlabelled` are never used."""

    labelled: np.ndarray
    unlabelled: np.ndarray
    validation: np.ndarray


def split_by(settings: SplitConfig, dataset: Dataset) -> Split:
    """The split that the settings ask for; of two domains, the source's.

    There the unlabelled images are the target's: source images that split.labels leaves over stay out.
    """
    return make_split(
        dataset.train,
        labels=settings.labels,
        unlabelled=settings.unlabelled if dataset.domains is None else 0,
        validation=settings.validation or 0,
        seed=settings.seed or 0,
        file=None if settings.file is None else Path(settings.file),
    )


def make_split(
    images: ImageSet,
    *,
    labels: int | None = None,
    unlabelled: int | None = None,
    validation: int = 0,
    seed: int = 0,
    file: Path | None = None,
) -> Split:
    """A balanced split by seed: `labels` labelled images in all, or those that `file` lists.

    For one seed the labelled images of a smaller split are among those of a larger one.
    """
    order = np.random.default_rng([seed, 0]).permutation(len(images))
    known = order[images.labels[order] != UNLABELLED]
    chosen = None if file is None else _read_indices(file, images)
    if chosen is not None:
        known = known[~np.isin(known, chosen)]
    held_out = _stratified(images, known, validation, keep=int(chosen is None))
    rest = known[~np.isin(known, held_out)]
    if chosen is None:
        chosen = rest if labels is None else _balanced(images, rest, labels)
    if len(chosen) == 0:
        raise RequestError(f"{images.name}: no labelled image is left to train on.")
    taken = np.zeros(len(images), dtype=bool)
    taken[chosen] = taken[held_out] = True
    others = order[~taken[order]]
    if unlabelled is not None:
        if unlabelled > len(others):
            raise RequestError(
                f"split.unlabelled: {unlabelled} unlabelled images are wanted, but only {len(others)} are there."
            )
        others = others[:unlabelled]
    return Split(np.sort(chosen), np.sort(others), np.sort(held_out))


def _balanced(images: ImageSet, candidates: np.ndarray, count: int) -> np.ndarray:
    """`count` of the candidates with equally many per class (one more for the first classes if need be)."""
    classes = len(images.classes)
    if count < classes:
        raise RequestError(f"split.labels: {count} labels cannot cover {classes} classes; give at least {classes}.")
    share, extra = divmod(count, classes)
    parts = []
    for label, name in enumerate(images.classes):
        wanted = share + (label < extra)
        members = candidates[images.labels[candidates] == label]
        if len(members) < wanted:
            raise RequestError(
                f"split.labels: {count} labels want {wanted} images of class '{name}', "
                f"but only {len(members)} are there."
            )
        parts.append(members[:wanted])
    return np.concatenate(parts)


def _stratified(images: ImageSet, candidates: np.ndarray, count: int, keep: int) -> np.ndarray:
    """`count` of the candidates with each class's share kept (largest remainders first).

    Each class keeps `keep` of its own. Where the count is too small for all classes, the candidates' order says which
    of those with the same remainder get one: it would always be the first ones otherwise.
    """
    if count >= max(len(candidates), 1):
        raise RequestError(f"split.validation: {count} images cannot be held out of {len(candidates)} labelled ones.")
    labels = images.labels[candidates]
    sizes = np.bincount(labels, minlength=len(images.classes))
    room = np.maximum(sizes - keep, 0)
    if count > room.sum():
        raise RequestError(
            f"split.validation: {count} of {len(candidates)} labelled images cannot be held out without taking some "
            f"class its last one; hold out {room.sum()} at most."
        )
    quota = count * sizes / max(len(candidates), 1)
    wanted = np.minimum(np.floor(quota).astype(int), room)
    seen = np.full(len(sizes), len(candidates))
    np.minimum.at(seen, labels, np.arange(len(candidates)))
    while missing := count - wanted.sum():
        turn = np.lexsort((np.where(wanted == 0, seen, np.arange(len(sizes))), wanted - quota))
        wanted[turn[(wanted < room)[turn]][:missing]] += 1
    return np.concatenate([candidates[labels == label][:number] for label, number in enumerate(wanted)])


def _read_indices(file: Path, images: ImageSet) -> np.ndarray:
    try:
        words = file.read_text("utf-8").split()
        indices = np.array([int(word) for word in words], dtype=np.int64)
    except OSError as error:
        raise RequestError(f"split.file: cannot read {file}: {error.strerror}.") from error
    except (ValueError, OverflowError) as error:
        raise RequestError(f"split.file: {file} must hold one image number a line ({error}).") from error
    if len(indices) == 0:
        raise RequestError(f"split.file: {file} lists no image.")
    wrong = indices[(indices < 0) | (indices >= len(images))]
    if len(wrong):
        raise RequestError(
            f"split.file: {file} lists image {wrong[0]}, but the images are numbered 0 to {len(images) - 1}."
        )
    if len(np.unique(indices)) != len(indices):
        raise RequestError(f"split.file: {file} lists an image twice.")
    if (images.labels[indices] == UNLABELLED).any():
        missing = indices[images.labels[indices] == UNLABELLED][0]
        raise RequestError(f"split.file: {file} lists image {missing}, which has no label.")
    return indices
