"""CIFAR-10 and CIFAR-100 from the published files, in the binary or the Python layout.

The folder (`cifar-10-batches-bin`, `cifar-10-batches-py`, `cifar-100-binary` or `cifar-100-python`) may be
`root` itself, lie in it, or lie one folder deeper; the binary layout is preferred. Every file must have
its published number of images and, in the binary layout, its published MD5, unless the folder holds a file
named `SUBSET` (any content): tests and smoke runs mark their small copies so.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastswa.data.images import Dataset, ImageSet
from fastswa.data.published import ARCHIVES, SUBSET, md5
from fastswa.data.sources import cifar_names
from fastswa.data.sources.batch_pickle import RefusedPickle, read_batch
from fastswa.errors import RequestError

# CIFAR-10's own statistics; the recipes of CIFAR-100 use them too.
NORMALISATION = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_TRAIN, _TEST = 50_000, 10_000


@dataclass(frozen=True)
class _Published:
    """One of the two sets as published; `label_bytes` precede each binary image, the last is the label."""

    name: str
    title: str
    classes: tuple[str, ...]
    label_bytes: int
    label_key: str
    layouts: tuple[_Layout, ...]


@dataclass(frozen=True)
class _Layout:
    """A folder's name, its files, and the function that gives a file's pixels (n, 3072) and labels (n,)."""

    folder: str
    train: tuple[str, ...]
    test: str
    read: Callable[[Path, _Published], tuple[np.ndarray, np.ndarray]]

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


def load_cifar10(root: Path) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images, (N, 3, 32, 32), 10 classes."""
    return _load(_CIFAR10, Path(root))


def load_cifar100(root: Path) -> Dataset:
    """CIFAR-100 with its fine labels: 50,000 training and 10,000 test images, (N, 3, 32, 32), 100 classes."""
    return _load(_CIFAR100, Path(root))


def _load(published: _Published, root: Path) -> Dataset:
    folder, layout = _locate(published, root)
    train = _read(published, layout, folder, layout.train, _TRAIN, "train")
    test = _read(published, layout, folder, (layout.test,), _TEST, "test")
    return Dataset(train, test, NORMALISATION)


def _locate(published: _Published, root: Path) -> tuple[Path, _Layout]:
    """The folder to read and its layout: a complete one where there is one."""
    incomplete: list[tuple[Path, str]] = []
    for layout in published.layouts:
        for folder in _candidates(layout, root):
            missing = [name for name in layout.files if not (folder / name).is_file()]
            if not missing:
                return folder, layout
            incomplete.append((folder, missing[0]))
    if incomplete:
        folder, name = incomplete[0]
        raise RequestError(f"{folder / name} is missing: {_advice(published, folder.parent)}.")
    raise RequestError(f"there is no {published.title} under {root}: {_advice(published, root)}.")


def _candidates(layout: _Layout, root: Path) -> Iterator[Path]:
    """The folders that may hold the layout, nearest first."""
    if root.name == layout.folder or any((root / name).is_file() for name in layout.files):
        yield root
    try:
        inner = sorted(path for path in root.iterdir() if path.is_dir())
        yield from (path / layout.folder for path in (root, *inner) if (path / layout.folder).is_dir())
    except OSError:
        return


def _advice(published: _Published, root: Path) -> str:
    return (
        f"run `fastswa data download {published.name} --root {shlex.quote(str(root))}`, "
        f"or pass `--data.root` with the folder that holds {published.layouts[0].folder}"
    )


def _read(
    published: _Published, layout: _Layout, folder: Path, names: tuple[str, ...], total: int, part: str
) -> ImageSet:
    """The images of some files of a folder, one after the other."""
    whole, expected = not (folder / SUBSET).exists(), total // len(names)
    highest, advice = len(published.classes) - 1, _advice(published, folder.parent)
    parts = []
    digests = ARCHIVES[published.name].files if whole and folder.name == ARCHIVES[published.name].folder else {}
    for path in (folder / name for name in names):
        try:
            pixels, labels = layout.read(path, published)
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from error
        if whole and len(labels) != expected:
            raise RequestError(f"{path} has {len(labels):,} images instead of {expected:,}: {advice}.")
        if path.name in digests and md5(path) != digests[path.name]:
            raise RequestError(f"{path} is not the published file (its MD5 differs): {advice}.")
        wrong = np.flatnonzero((labels < 0) | (labels > highest))
        if len(wrong):
            raise RequestError(
                f"{path}: label {int(labels[wrong[0]])} of image {int(wrong[0])} is out of range "
                f"(0 to {highest}): {advice}."
            )
        parts.append((pixels, labels))
    pixels = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, *_IMAGE)
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return ImageSet(pixels, labels, published.classes, name=f"{published.name} {part}")


def _read_binary(path: Path, published: _Published) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels (n,) of records of label bytes, then red, green and blue planes by rows."""
    record = published.label_bytes + _PIXELS
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % record:
        raise RequestError(
            f"{path} is truncated ({len(content):,} bytes are not a whole number of {record}-byte records): "
            f"{_advice(published, path.parent.parent)}."
        )
    records = content.reshape(-1, record)
    return records[:, published.label_bytes :], records[:, published.label_bytes - 1].astype(np.int64)


def _read_python(path: Path, published: _Published) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels (n,) of a pickled dictionary, of which nothing is ever run."""
    try:
        batch = read_batch(path)
        pixels, labels = batch.get("data"), batch.get(published.label_key)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
            raise RefusedPickle(f"has no 'data' of uint8 and shape (N, {_PIXELS})")
        if isinstance(labels, list) and all(type(label) is int for label in labels):
            labels = np.array([min(max(label, -1 << 31), 1 << 31) for label in labels], dtype=np.int64)
        if not isinstance(labels, np.ndarray) or labels.shape != (len(pixels),) or not len(pixels):
            raise RefusedPickle(f"has no {published.label_key!r} with one integer per image")
    except RefusedPickle as refusal:
        raise RequestError(
            f"{path} {refusal}, so it was refused and nothing in it was run: {_advice(published, path.parent.parent)}."
        ) from refusal
    return pixels, labels.astype(np.int64)


_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
_CIFAR10 = _Published(
    name="cifar10",
    title="CIFAR-10",
    classes=cifar_names.CIFAR10,
    label_bytes=1,
    label_key="labels",
    layouts=(
        _Layout("cifar-10-batches-bin", tuple(f"{b}.bin" for b in _BATCHES), "test_batch.bin", _read_binary),
        _Layout("cifar-10-batches-py", _BATCHES, "test_batch", _read_python),
    ),
)
_CIFAR100 = _Published(
    name="cifar100",
    title="CIFAR-100",
    classes=cifar_names.CIFAR100,
    label_bytes=2,  # coarse, then fine
    label_key="fine_labels",
    layouts=(
        _Layout("cifar-100-binary", ("train.bin",), "test.bin", _read_binary),
        _Layout("cifar-100-python", ("train",), "test", _read_python),
    ),
)
