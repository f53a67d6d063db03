"""ImageSet: uint8 pixels in memory or memory-mapped, with labels where they are known; ImageFiles: before that."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fastswa.errors import RequestError

if TYPE_CHECKING:
    from fastswa.data.domains import Domains

UNLABELLED = -1
_HASHED, _MEASURED = 1 << 26, 1 << 28  # bytes of pixels


class PathTable:
    """Many file names in one block of bytes, so that a million of them take little more than their letters."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._letters, self._ends = bytearray(), array("q", [0])
        for name in names:
            self.append(name)

    def append(self, name: str) -> None:
        self._letters += os.fsencode(name)
        self._ends.append(len(self._letters))

    @property
    def content(self) -> bytes:
        """All the names and where each ends, for hashing."""
        return bytes(self._letters) + self._ends.tobytes()

    def encoded(self) -> Iterator[bytes]:
        """The names as the system has them."""
        start, letters = 0, self._letters
        for end in self._ends[1:]:
            yield bytes(letters[start:end])
            start = end

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return os.fsdecode(bytes(self._letters[self._ends[index] : self._ends[index + 1]]))

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self.encoded())

    def take(self, indices: Iterable[int]) -> PathTable:
        """The names at `indices`, in that order."""
        return PathTable(self[int(index)] for index in indices)


@dataclass(frozen=True)
class ImageFiles:
    """Image files that a source lists: the training images, labelled or not, and then `tests` test images.

    `paths` are relative to `root` or absolute; `labels` is (N,) int64, `UNLABELLED` where there is none;
    `ignored` counts the files left aside by their suffix; `missing` says of files that are listed and not there, by
    name, that they are not; `notes` are sentences for the person.
    """

    source: Path
    root: Path
    paths: PathTable
    labels: np.ndarray
    classes: tuple[str, ...]
    tests: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> str:
        """Where the image lies."""
        name = self.paths[index]
        return name if os.path.isabs(name) else f"{self.root}{os.sep}{name}"


@dataclass(frozen=True)
class ImageSet:
    """Images of one size with their labels.

    `pixels` is (N, C, H, W) uint8 (an array or a memory map); `labels` is (N,) int64, `UNLABELLED` where
    there is none; `classes` names the labels; `files` names the images where they came from files.
    """

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str = "images"
    files: PathTable | None = None

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
        """Mean and standard deviation of each channel, pixels taken as 0 to 1; read in blocks.

        Of very many images a part is looked at, block by block and evenly spread.
        """
        channels = self.shape[0]
        total, square, count = np.zeros(channels), np.zeros(channels), 0
        size = max(int(np.prod(self.shape)), 1)
        step = min(4096, max(1, (1 << 24) // size))
        stride = step * max(1, len(self) * size // _MEASURED)
        for start in range(0, len(self), stride):
            block = np.asarray(self.pixels[start : start + step], dtype=np.float64) / 255.0
            total += block.sum(axis=(0, 2, 3))
            square += (block**2).sum(axis=(0, 2, 3))
            count += block.shape[0] * block.shape[2] * block.shape[3]
        mean = total / max(count, 1)
        deviation = np.sqrt(np.maximum(square / max(count, 1) - mean**2, 1e-12))
        return tuple(float(m) for m in mean), tuple(float(max(s, 1e-3)) for s in deviation)


@dataclass(frozen=True)
class Dataset:
    """What a source gives: training images, test images (possibly none), and what its recipes assume.

    `normalisation` is (mean, std) per channel for pixels taken as 0 to 1, or None to measure it; `origin` a hash of
    the sizes of the files that the images come from, where they come from files; `notes` say what was left out.
    With two `domains` the training images are the source's, all of them labelled, and the test images the target's.
    """

    train: ImageSet
    test: ImageSet | None
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = field(default=None)
    origin: str | None = None
    notes: tuple[str, ...] = ()
    domains: Domains | None = None

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

    def digest(self) -> str:
        """A hash of the images and their labels, in their order; where they lie and what they are called is no part.

        Of many images that come from files it takes every size and, evenly spread, as many pixels as are read at once.
        """
        digest = hashlib.blake2b(repr((self.classes, self.origin)).encode(), digest_size=10)
        domains = () if self.domains is None else (self.domains.images, self.domains.source_test)
        for images in (self.train, self.test, *domains):
            if images is None:
                continue
            digest.update(repr(images.pixels.shape).encode())
            digest.update(np.ascontiguousarray(images.labels).data)
            size = max(images.pixels[:1].nbytes, 1)
            most = len(images) if self.origin is None else min(len(images), max(_HASHED // size, 1))
            rows = np.linspace(0, len(images) - 1, most).astype(np.int64)
            for start in range(0, most, 1024):
                digest.update(np.ascontiguousarray(images.pixels[rows[start : start + 1024]]).data)
        return digest.hexdigest()
