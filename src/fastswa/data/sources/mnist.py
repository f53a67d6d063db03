"""MNIST and USPS, handwritten digits: from IDX files, gzipped or not, or from one .npz file.

`mnist.npz` or `usps.npz` (x_train, y_train, x_test, y_test) is preferred. IDX files have MNIST's published names,
with or without `usps-` before them; MNIST is told from USPS by the size of its images. They lie in the folder of
downloaded sets or in one below it. A folder that holds a file named `SUBSET` may hold fewer images than published.

MNIST's digits fill 20x20 of their 28x28 pixels, those of USPS all of their 16x16: brought to one size they differ by a
factor of 1.4. `usps-margin` is USPS laid out as MNIST is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fastswa.data.fit import fit_set
from fastswa.data.images import Dataset, ImageSet
from fastswa.data.published import ELSEWHERE, SUBSET
from fastswa.data.sources.idx import idx_shape, read_idx
from fastswa.data.sources.npz import load_npz
from fastswa.data.sources.places import first_file, folders
from fastswa.errors import RequestError

CLASSES = tuple(str(digit) for digit in range(10))
_ENDINGS = ("-idx{axes}-ubyte", ".idx{axes}-ubyte", "-idx{axes}-ubyte.gz", ".idx{axes}-ubyte.gz")


@dataclass(frozen=True)
class _Published:
    name: str
    title: str
    side: int
    train: int
    test: int


_MNIST = _Published("mnist", "MNIST", 28, 60_000, 10_000)
_USPS = _Published("usps", "USPS", 16, 7_291, 2_007)
_DIGIT = 20  # the side of the box that MNIST's digits were made to fill


def load_mnist(root: Path) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images, (N, 1, 28, 28), 10 classes."""
    return _load(_MNIST, Path(root))


def load_usps(root: Path) -> Dataset:
    """USPS: 7,291 training and 2,007 test images, (N, 1, 16, 16), 10 classes."""
    return _load(_USPS, Path(root))


def load_usps_margin(root: Path) -> Dataset:
    """USPS enlarged to 20x20 in the middle of 28x28, (N, 1, 28, 28), 10 classes."""
    usps = load_usps(root)
    assert usps.test is not None
    return replace(usps, train=_with_margin(usps.train), test=_with_margin(usps.test))


def _with_margin(images: ImageSet) -> ImageSet:
    rim = (_MNIST.side - _DIGIT) // 2
    pixels = np.pad(fit_set(images, (1, _DIGIT, _DIGIT)).pixels, ((0, 0), (0, 0), (rim, rim), (rim, rim)))
    return replace(images, pixels=pixels, name=f"{images.name} with a margin")


def _load(published: _Published, root: Path) -> Dataset:
    names = (published.name, published.title, f"{published.title}/raw")
    packed = first_file(root, names, (f"{published.name}.npz",))
    if packed is not None:
        dataset = load_npz(packed)
        if dataset.train.shape[0] != 1:
            raise RequestError(f"{packed} is not {published.title}: its images are not grey.")
        if dataset.test is None:
            raise RequestError(f"{packed} has no test images; {_advice(published)}.")
        parts = [
            _part(published, packed.parent, images.pixels[:, 0], images.labels, images.name, k)
            for k, images in enumerate((dataset.train, dataset.test))
        ]
        return Dataset(parts[0], parts[1])
    for folder in folders(root, *names):
        files = _idx_files(folder, published)
        if files is not None:
            pixels = [read_idx(path) for path in files]
            parts = [_part(published, folder, pixels[2 * k], pixels[2 * k + 1], str(files[2 * k]), k) for k in (0, 1)]
            return Dataset(parts[0], parts[1])
    raise RequestError(f"there is no {published.title} under {root}: {_advice(published)}.")


def _part(
    published: _Published, folder: Path, pixels: np.ndarray, labels: np.ndarray, where: str, test: int
) -> ImageSet:
    """Images (N, H, W) and their labels, as many as published."""
    side, expected = published.side, published.test if test else published.train
    if pixels.shape[1:] != (side, side):
        raise RequestError(f"{where} is not {published.title}: its images are not {side}x{side}.")
    if len(pixels) != len(labels):
        raise RequestError(f"{where}: {len(pixels):,} images, but {len(labels):,} labels.")
    if len(pixels) != expected and not (folder / SUBSET).exists():
        raise RequestError(f"{where} has {len(pixels):,} images instead of {expected:,}; {_advice(published)}.")
    name = f"{published.name} {'test' if test else 'train'}"
    return ImageSet(np.ascontiguousarray(pixels)[:, None], labels.astype(np.int64), CLASSES, name=name)


def _idx_files(folder: Path, published: _Published) -> tuple[Path, Path, Path, Path] | None:
    """Training images and labels, test images and labels, where the folder holds them in this set's size."""
    found = []
    for stems in (("train-images",), ("train-labels",), ("t10k-images", "test-images"), ("t10k-labels", "test-labels")):
        axes = 3 if "images" in stems[0] else 1
        names = [
            prefix + stem + ending.format(axes=axes)
            for prefix in (f"{published.name}-", "")
            for stem in stems
            for ending in _ENDINGS
        ]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None or (axes == 3 and idx_shape(path)[1:] != (published.side, published.side)):
            return None
        found.append(path)
    return found[0], found[1], found[2], found[3]


def _advice(published: _Published) -> str:
    return (
        f"put {published.name}.npz or its IDX files there, or pass `--data.root` with the folder that holds them "
        f"({ELSEWHERE[published.name]})"
    )
