"""Extra unlabelled images from a second source, brought to the shape of the training images.

Their labels are never looked at, and their test images are left out. Of a memory map (a folder's cache, an .npy file,
the Tiny Images binary) only what is asked for is read.
"""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fastswa.data.decode import read_array
from fastswa.data.images import UNLABELLED, ImageFiles, ImageSet, PathTable
from fastswa.data.plan import Options, Shape
from fastswa.data.sources import MANIFESTS, SOURCES, load, place
from fastswa.data.sources.tiny_images import SUFFIX, map_tiny_images
from fastswa.errors import RequestError

_BLOCK = 1 << 24  # bytes read at a time


@dataclass(frozen=True)
class ExtraImages:
    """Images of a second source, numbered from 0; they come out in `shape` (C, H, W).

    `pixels` is (N, C, H, W) uint8 of any size, an array or a memory map; `chosen` (E,) are the rows taken, None all.
    `kind` is what they are called: extra ones of the same domain, or those of another that is the target.
    """

    name: str
    pixels: np.ndarray
    shape: Shape
    chosen: np.ndarray | None = None
    kind: Literal["extra", "target"] = "extra"

    def __len__(self) -> int:
        return len(self.pixels) if self.chosen is None else len(self.chosen)

    def read(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """The images of these numbers into `out`, (n, H, W, C) uint8; a file is read in its own order."""
        rows = numbers if self.chosen is None else self.chosen[numbers]
        order = np.argsort(rows, kind="stable")
        step = max(1, _BLOCK // int(np.prod(self.pixels.shape[1:])))
        for start in range(0, len(order), step):
            some = order[start : start + step]
            out[some] = self._fitting(self.pixels[rows[some]]).transpose(0, 2, 3, 1)

    def _fitting(self, images: np.ndarray) -> np.ndarray:
        """(n, C, H, W) in the wanted shape, by the rules that image files are read by."""
        if images.shape[1:] == self.shape:
            return images
        channels, *size = self.shape
        fitted = [
            read_array(image, channels=channels, size=(size[0], size[1])) for image in images.transpose(0, 2, 3, 1)
        ]
        return np.stack(fitted)


def load_extra(
    source: str,
    root: Path,
    train: ImageSet,
    *,
    options: Options | None = None,
    file: Path | None = None,
    images: int | None = None,
    seed: int = 0,
) -> ExtraImages:
    """The extra images of a source for the training images `train`.

    `file` lists those to take; of all or of these at most `images` are drawn by `seed`. The source is a built-in
    name, a folder (with or without the layout of one's own data), a manifest (of which the paths are enough), an .npz
    or .npy file, or the Tiny Images binary.
    """
    options = options or Options()
    options = Options(train.shape[1:], train.shape[0], options.skip_bad, options.workers, options.progress)
    pixels = _pixels(source, Path(root).expanduser(), options)
    if len(pixels) == 0:
        raise RequestError(f"data.extra: {source} holds no images.")
    chosen = None if file is None else _listed(file, source, len(pixels))
    available = len(pixels) if chosen is None else len(chosen)
    if images is not None and images < available:
        drawn = np.sort(np.random.default_rng([seed, 1]).choice(available, images, replace=False, shuffle=False))
        chosen = drawn if chosen is None else chosen[drawn]
    return ExtraImages(source, pixels, train.shape, chosen)


def _pixels(source: str, root: Path, options: Options) -> np.ndarray:
    """(N, C, H, W) uint8, of the wanted shape where files are decoded and otherwise of the source's own."""
    if source in SOURCES:
        return load(source, root).train.pixels
    path = place(source, root)
    suffix = path.suffix.lower()
    if path.is_dir():
        return _folder(path, options)
    if not path.is_file():
        advice = (
            " (Tiny Images was withdrawn; docs/extra-images.md shows what to use instead)" if suffix == SUFFIX else ""
        )
        raise RequestError(f"data.extra: there is no {source}, neither here nor under {root}{advice}.")
    if suffix in MANIFESTS:
        return _manifest(path, options)
    if suffix == ".npy":
        return _array(path)
    if suffix == ".npz":
        return _arrays(path)
    if suffix == SUFFIX:
        return map_tiny_images(path)
    raise RequestError(
        f"data.extra: {source} is none of {', '.join(SOURCES)}, a folder, a .csv/.tsv manifest, an .npz or .npy file, "
        "or tiny_images.bin."
    )


def _folder(folder: Path, options: Options) -> np.ndarray:
    """The images below a folder; of one in the layout of one's own data, those that are not for testing."""
    from fastswa.data.sources.folder import list_folder
    from fastswa.data.sources.parts import find_part
    from fastswa.data.sources.walk import walk

    if find_part(folder, "labelled") is not None:
        return _prepared(list_folder(folder), options)
    folder = folder / (find_part(folder, "unlabelled") or "")
    return _prepared(_files(folder, folder, PathTable(walk(str(folder), ".", set(), Counter()))), options)


def _manifest(file: Path, options: Options) -> np.ndarray:
    """The images that a manifest lists, those for testing left out; a label, if there is one, says nothing."""
    from fastswa.data.sources.manifest import find_listed, read_manifest

    paths = PathTable()
    for line, name, _, split in read_manifest(file, ("path",)):
        found = find_listed(file.parent, name)
        if found is None and not options.skip_bad:
            raise RequestError(f"data.extra: {file}, line {line}: there is no file {name}.")
        if found is not None and split.lower() != "test":
            paths.append(found)
    return _prepared(_files(file, file.parent, paths), options)


def _files(source: Path, root: Path, paths: PathTable) -> ImageFiles:
    if len(paths) == 0:
        raise RequestError(f"data.extra: {source} holds no image (JPEG, PNG, WebP or BMP).")
    return ImageFiles(source, root, paths, np.full(len(paths), UNLABELLED, dtype=np.int64), ())


def _prepared(files: ImageFiles, options: Options) -> np.ndarray:
    """The files as a memory map, test images left out."""
    from fastswa.data.cache import prepare

    prepared = prepare(files, options)
    return prepared.pixels[: int(np.searchsorted(prepared.kept, len(files) - files.tests))]


def _array(path: Path) -> np.ndarray:
    """An .npy file as a memory map."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        # What is no array at all numpy takes for a pickle, and advises to run it.
        reason = "it is no array of numbers" if "pickle" in str(error) else error
        raise RequestError(f"data.extra: {path} cannot be read as an .npy file ({reason}).") from error
    return _in_order(array, str(path))


def _arrays(path: Path) -> np.ndarray:
    """The images of an .npz file: x_unlabelled and x_train, of which one may be missing; no label is read."""
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is not an archive or is truncated")
        with np.load(path, allow_pickle=False) as file:
            found = [_in_order(file[key], f"{path}: {key}") for key in ("x_train", "x_unlabelled") if key in file.files]
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds Python objects" if "pickle" in str(error) else error
        raise RequestError(f"data.extra: {path} is damaged or cannot be read ({reason}).") from error
    if not found:
        raise RequestError(f"data.extra: {path} holds neither x_unlabelled nor x_train.")
    if found[0].shape[1:] != found[-1].shape[1:]:
        raise RequestError(f"data.extra: {path}: x_train and x_unlabelled have images of different shapes.")
    return found[0] if len(found) == 1 else np.concatenate(found)


def _in_order(array: np.ndarray, name: str) -> np.ndarray:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W) as a view (N, C, H, W); a last axis of 1 or 3 is the channels."""
    if array.dtype != np.uint8:
        raise RequestError(f"data.extra: {name} is {array.dtype}; convert the images to uint8, 0 to 255.")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[-1] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape[1:]:
        raise RequestError(
            f"data.extra: {name} has shape {array.shape}; images must be (N, H, W), (N, H, W, C) or (N, C, H, W), grey "
            "or RGB."
        )
    return array


def _listed(file: Path, source: str, count: int) -> np.ndarray:
    """The image numbers that a text file lists, one or FIRST-LAST (both included) a line, sorted."""
    try:
        words = file.read_text("utf-8").split()
        ends = [[int(number) for number in word.split("-")] for word in words]
        ranges = [np.arange(end[0], end[-1] + 1) for end in ends if len(end) <= 2]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"data.extra_file: cannot read {file}: {getattr(error, 'strerror', error)}.") from error
    except (ValueError, OverflowError, MemoryError) as error:
        raise RequestError(f"data.extra_file: {file} must hold one number or FIRST-LAST a line ({error}).") from error
    if len(ranges) < len(words):
        raise RequestError(f"data.extra_file: {file} must hold one number or FIRST-LAST a line.")
    backwards = [word for word, end in zip(words, ends, strict=True) if end[-1] < end[0]]
    if backwards:
        raise RequestError(f"data.extra_file: {file} lists {backwards[0]}, whose first number is above its last.")
    chosen = np.concatenate([np.zeros(0, np.int64), *ranges])
    if len(chosen) == 0:
        raise RequestError(f"data.extra_file: {file} lists no image.")
    wrong = chosen[(chosen < 0) | (chosen >= count)]
    if len(wrong):
        raise RequestError(
            f"data.extra_file: {file} lists image {wrong[0]}, but those of {source} are numbered 0 to {count - 1}."
        )
    distinct = np.unique(chosen)
    if len(distinct) < len(chosen):
        raise RequestError(f"data.extra_file: {file} lists an image twice.")
    return distinct
