"""Images to be predicted: files, folders, manifests and .npz arrays, read some at a time and in order.

Nothing but the names is held for all of them, so that a million images need little memory.
"""

from __future__ import annotations

import os
import sys
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from fastswa.data.decode import read_array
from fastswa.data.images import UNLABELLED, ImageSet, PathTable
from fastswa.data.plan import Shape
from fastswa.data.sources import MANIFESTS
from fastswa.data.sources.folder import left_out
from fastswa.data.sources.manifest import find_listed, read_manifest
from fastswa.data.sources.parts import PARTS, find_part
from fastswa.data.sources.walk import walk
from fastswa.data.workers import WRITTEN, Outcome, Task, Workers, cores, decode_task
from fastswa.errors import RequestError

_CHUNK_FILES, _CHUNK_BYTES = 256, 8 << 20
_FIRST_FILES, _LONG_SECONDS = 16, 1.0


@dataclass(frozen=True)
class Chunk:
    """Some images: their names, `pixels` (n, C, H, W) of those that can be read, and by place why others cannot."""

    names: list[str]
    pixels: np.ndarray
    errors: dict[int, str]


class Inputs(Protocol):
    """Images in order."""

    def __len__(self) -> int: ...

    def chunks(self, shape: Shape, workers: int | None) -> Iterator[Chunk]:
        """All of them as uint8 of `shape` (C, H, W), by `workers` processes (None: as many as pay)."""
        ...


def find_inputs(targets: Sequence[str], part: str | None = None) -> tuple[list[Inputs], list[str]]:
    """What files, folders, manifests and .npz files hold, or only a `part` of it; and sentences for the person."""
    found: list[Inputs] = []
    loose = PathTable()  # neighbours are read together, wherever they lie
    ignored: Counter[str] = Counter()

    def then(others: Sequence[Inputs]) -> None:
        nonlocal loose
        found.extend([FileInputs(loose)] if len(loose) else [])
        found.extend(others)
        loose = PathTable()

    for target in targets:
        path = Path(target).expanduser()
        kind = path.suffix.lower()
        if not path.exists():
            raise RequestError(f"{target}: there is no such file or folder.")
        if path.is_dir():
            _add_folder(loose, path, part, ignored)
        elif kind not in (*MANIFESTS, ".npz"):
            if part is not None:
                raise RequestError(f"--part: {target} is a single file; aim at a folder, a manifest or an .npz file.")
            if path.is_file():
                loose.append(str(path))
            else:  # a pipe, which only this process can read, as it does the first of some files
                then([FileInputs(PathTable([str(path)]))])
        else:
            then(_npz_inputs(path, part) if kind == ".npz" else [_manifest_inputs(path, part)])
    then([])
    return found, left_out(ignored)


def part_named(word: str, parts: Iterable[str] = PARTS) -> str:
    """The part that a word means, in either spelling."""
    for part in parts:
        if word in (part, *PARTS.get(part, ())):
            return part
    raise RequestError(f"--part: '{word}' is not {', '.join(parts)}.")


@dataclass(frozen=True)
class FileInputs:
    """Image files; relative paths start at `root`."""

    names: PathTable
    root: Path | None = None

    def __len__(self) -> int:
        return len(self.names)

    def chunks(self, shape: Shape, workers: int | None) -> Iterator[Chunk]:
        most = _at_once(shape)

        def task(start: int, stop: int) -> Task:
            rows = list(range(start, min(stop, len(self))))
            return Task(rows, [self._place(self.names[row]) for row in rows], shape=shape)

        began = time.monotonic()
        first = decode_task(task(0, min(_FIRST_FILES, most)))
        done = len(first.rows)
        seconds = (time.monotonic() - began) / done * (len(self) - done)
        yield self._chunk(first)
        if workers is None:
            workers = min(cores(), 16) if seconds > _LONG_SECONDS and cores() > 1 and sys.executable else 0
        rest = (task(start, start + most) for start in range(done, len(self), most))
        with Workers() as crew, closing(crew.in_order(rest, workers)) as outcomes:
            for outcome in outcomes:
                yield self._chunk(outcome)

    def _place(self, name: str) -> str:
        return name if self.root is None else os.path.join(self.root, find_listed(self.root, name) or name)

    def _chunk(self, outcome: Outcome) -> Chunk:
        assert outcome.pixels is not None
        names = [self.names[row] for row in outcome.rows]
        errors = {row - outcome.rows[0]: reason for row, reason in outcome.refused.items()}
        return Chunk(names, outcome.pixels[outcome.written == WRITTEN], errors)


@dataclass(frozen=True)
class SetInputs:
    """Some images of an ImageSet by their numbers; those without a file are called `prefix`:NUMBER."""

    images: ImageSet
    rows: np.ndarray
    prefix: str

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self, shape: Shape, workers: int | None) -> Iterator[Chunk]:
        if self.images.shape != shape:
            raise RequestError(f"{self.images.name}: the images are {self.images.shape} now, and were {shape}.")
        most = _at_once(shape)
        for start in range(0, len(self), most):
            rows = self.rows[start : start + most]
            yield Chunk([self._name(int(row)) for row in rows], np.array(self.images.pixels[rows]), {})

    def _name(self, row: int) -> str:
        files = self.images.files
        return f"{self.prefix}:{row}" if files is None else os.path.join(self.prefix, files[row])


@dataclass(frozen=True)
class ArrayInputs:
    """The images of one array of an .npz file, all or those that are `chosen` (N,); read without unpacking the rest."""

    file: Path
    key: str
    chosen: np.ndarray

    def __len__(self) -> int:
        return int(self.chosen.sum())

    def chunks(self, shape: Shape, workers: int | None) -> Iterator[Chunk]:
        channels, height, width = shape
        start = 0
        for block in _blocks(self.file, self.key, _at_once(shape)):
            rows = np.flatnonzero(self.chosen[start : start + len(block)])
            if len(rows):
                pixels = np.stack([read_array(block[row], channels=channels, size=(height, width)) for row in rows])
                yield Chunk([f"{self.file}:{self.key}:{start + row}" for row in rows], pixels, {})
            start += len(block)


def _at_once(shape: Shape) -> int:
    return max(1, min(_CHUNK_FILES, _CHUNK_BYTES // int(np.prod(shape))))


def _add_folder(names: PathTable, folder: Path, part: str | None, ignored: Counter[str]) -> None:
    """Adds the images under a folder, or under the folder of a part."""
    if part is not None:
        name = find_part(folder, part)
        if name is None:
            raise RequestError(f"--part: {folder} has no folder '{PARTS[part][0]}'.")
        folder = folder / name
    before = len(names)
    for name in walk("", str(folder), set(), ignored):
        names.append(name)
    if len(names) == before:
        raise RequestError(f"{folder} holds no image (JPEG, PNG, WebP or BMP).")


def _manifest_inputs(file: Path, part: str | None) -> FileInputs:
    needed = {None: ("path",), "test": ("path", "split")}.get(part, ("path", "label"))
    names = PathTable()
    for _, path, label, split in read_manifest(file, needed):
        of = "test" if split.lower() == "test" else "labelled" if label else "unlabelled"
        if part in (None, of):
            names.append(path)
    if not len(names):
        raise RequestError(f"{file} lists no {'' if part is None else part + ' '}image.")
    return FileInputs(names, file.parent)


def _npz_inputs(file: Path, part: str | None) -> list[ArrayInputs]:
    """The arrays named x or x_…; of a part, those (rows) that training would take for it."""
    try:
        with zipfile.ZipFile(file) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
            lengths = {key: _length(file, archive, key) for key in keys if key == "x" or key.startswith("x_")}
        labels = _whole(file, "y_train") if part is not None and "y_train" in keys else None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"{file} is not an .npz file of plain arrays or is damaged; write it again.") from error
    wanted = {"labelled": ("x_train",), "unlabelled": ("x_train", "x_unlabelled"), "test": ("x_test",)}
    found = []
    for key, length in lengths.items():
        chosen = np.full(length, part is None or key in wanted[part])
        if part is not None and key == "x_train" and chosen.any():
            if labels is None or labels.shape != chosen.shape:
                raise RequestError(f"--part: {file} lacks y_train, or it has another length than x_train.")
            chosen = (labels != UNLABELLED) == (part == "labelled")
        if chosen.any():
            found.append(ArrayInputs(file, key, chosen))
    if not found:
        what = "array x or x_…" if part is None else f"{part} images"
        raise RequestError(f"{file} holds no {what} (it holds {', '.join(keys) or 'nothing'}).")
    return found


def _length(file: Path, archive: zipfile.ZipFile, key: str) -> int:
    """How many images an array holds."""
    with archive.open(f"{key}.npy") as stream:
        shape, _, dtype = _array_head(stream)
    if dtype != np.uint8 or len(shape) not in (3, 4):
        raise RequestError(
            f"{file}: {key} is {dtype} of shape {shape}; images are uint8 (N, H, W[, C]) or (N, C, H, W)."
        )
    return shape[0]


def _blocks(file: Path, key: str, most: int) -> Iterator[np.ndarray]:
    """An array of an .npz file, `most` images at a time."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(f"{key}.npy") as stream:
            shape, column_major, _ = _array_head(stream)
            if column_major:  # where an image is not one piece
                whole = _whole(file, key)
                yield from (whole[start : start + most] for start in range(0, len(whole), most))
                return
            each = int(np.prod(shape[1:]))
            for start in range(0, shape[0], most):
                count = min(most, shape[0] - start)
                content = stream.read(count * each)
                if len(content) != count * each:
                    raise EOFError
                yield np.frombuffer(content, np.uint8).reshape(count, *shape[1:])
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"{file}: the array {key} is damaged; write the file again.") from error


def _whole(file: Path, key: str) -> np.ndarray:
    with np.load(file, allow_pickle=False) as arrays:
        array: np.ndarray = arrays[key]
    return array


def _array_head(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether column-major, and type; the stream stands at the first value then."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)
