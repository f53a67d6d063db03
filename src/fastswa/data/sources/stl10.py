"""STL-10's labelled part at 32x32: from the published 96x96 binary, or from an .npz file of either size.

The binary (`stl10_binary`: train_X.bin, train_y.bin, test_X.bin, test_y.bin) holds three planes of 96x96 an image, each
column by column, and labels from 1. Images are reduced by the rounded mean of each 3x3 block. The 100,000 unlabelled
images show other classes as well and are left alone; `--data.extra` takes files of them. A folder that holds a file
named `SUBSET` may hold fewer images than published.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastswa.data.images import Dataset, ImageSet
from fastswa.data.published import ELSEWHERE, SUBSET
from fastswa.data.sources.npz import load_npz
from fastswa.data.sources.places import first_file, folders
from fastswa.errors import RequestError

CLASSES = tuple("airplane bird car cat deer dog horse monkey ship truck".split())  # noqa: SIM905
SIDE = 32
_FOLDERS = ("stl10", "stl10_binary")
_PUBLISHED, _BLOCK = 96, 3
_COUNTS = {"train": 5_000, "test": 8_000}
_CHUNK = 500  # images reduced at a time


def load_stl10(root: Path) -> Dataset:
    """STL-10: 5,000 training and 8,000 test images, (N, 3, 32, 32), 10 classes."""
    root = Path(root)
    packed = first_file(root, _FOLDERS, ("stl10-32.npz", "stl10.npz"))
    if packed is not None:
        return _from_npz(packed)
    for folder in folders(root, *_FOLDERS):
        if (folder / "train_X.bin").is_file():
            return Dataset(_part(folder, "train"), _part(folder, "test"))
    raise RequestError(f"there is no STL-10 under {root}: {_ADVICE}.")


def block_means(images: np.ndarray) -> np.ndarray:
    """(N, C, 3H, 3W) uint8 as (N, C, H, W): the mean of each 3x3 block, rounded to the nearest (halves to even)."""
    count, channels, height, width = images.shape
    small = np.empty((count, channels, height // _BLOCK, width // _BLOCK), np.uint8)
    for start in range(0, count, _CHUNK):
        some = images[start : start + _CHUNK]
        blocks = some.reshape(len(some), channels, height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK)
        small[start : start + _CHUNK] = np.rint(blocks.sum(axis=(3, 5), dtype=np.uint16) / _BLOCK**2)
    return small


def _part(folder: Path, part: str) -> ImageSet:
    """One part of the published binary."""
    images, labels = folder / f"{part}_X.bin", folder / f"{part}_y.bin"
    record = 3 * _PUBLISHED**2
    for path in (images, labels):
        if not path.is_file():
            raise RequestError(f"{path} is missing: {_ADVICE}.")
    try:
        size = images.stat().st_size
        if size == 0 or size % record:
            raise RequestError(f"{images} is truncated: {size:,} bytes are no whole number of {record:,}-byte images.")
        # Planes are stored column by column: the last two axes change places.
        pixels = np.memmap(images, np.uint8, "r").reshape(-1, 3, _PUBLISHED, _PUBLISHED).transpose(0, 1, 3, 2)
        numbers = np.fromfile(labels, np.uint8).astype(np.int64) - 1
    except OSError as error:
        raise RequestError(f"{images} cannot be read: {error.strerror or error}.") from error
    if len(pixels) != len(numbers):
        raise RequestError(f"{images} has {len(pixels):,} images, but {labels} {len(numbers):,} labels.")
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(CLASSES)))
    if len(wrong):
        raise RequestError(f"{labels}: label {int(numbers[wrong[0]]) + 1} of image {int(wrong[0])} is not 1 to 10.")
    _refuse_count(images, part, len(numbers))
    return ImageSet(block_means(pixels), numbers, CLASSES, name=f"stl10 {part}")


def _from_npz(path: Path) -> Dataset:
    dataset = load_npz(path)
    if dataset.test is None:
        raise RequestError(f"{path} has no test images; {_ADVICE}.")
    sizes = ((3, SIDE, SIDE), (3, _PUBLISHED, _PUBLISHED))
    if dataset.train.shape not in sizes or dataset.classes not in (CLASSES, tuple(map(str, range(10)))):
        raise RequestError(f"{path} is not STL-10: images must be 32x32 or 96x96 RGB, of its ten classes.")
    parts = []
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        _refuse_count(path, part, len(images))
        pixels = images.pixels if images.shape == sizes[0] else block_means(images.pixels)
        parts.append(ImageSet(pixels, images.labels, CLASSES, name=f"stl10 {part}"))
    return Dataset(parts[0], parts[1])


def _refuse_count(path: Path, part: str, count: int) -> None:
    if count != _COUNTS[part] and not (path.parent / SUBSET).exists():
        raise RequestError(f"{path} has {count:,} {part} images instead of {_COUNTS[part]:,}: {_ADVICE}.")


_ADVICE = (
    "put stl10-32.npz or the folder stl10_binary there, or pass `--data.root` with the folder that holds it "
    f"({ELSEWHERE['stl10']})"
)
