"""One's own images from an .npz file: x_train, y_train[, x_test, y_test][, x_unlabelled][, classes]."""

from __future__ import annotations

import difflib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.sources.folder import refuse_alike
from fastswa.errors import RequestError
from fastswa.whole import reason

_KEYS = ("x_train", "y_train", "x_test", "y_test", "x_unlabelled", "classes")


def load_npz(path: Path, *, target: bool = False) -> Dataset:
    """The Dataset of an .npz file, images as (N, C, H, W).

    Images are uint8 of shape (N, H, W), (N, H, W, C) or (N, C, H, W); the last axis holds the channels
    where its length is 1 or 3. Labels are integers, -1 where there is none; `x_unlabelled` joins the
    training images with label -1. `classes` names the labels, "0", "1", … where it is absent. The file of a `target`
    needs no training labels, and no x_train beside x_unlabelled.
    """
    path = Path(path)
    arrays = _read(path, target)
    if target:
        arrays.setdefault("x_train", arrays.pop("x_unlabelled", np.zeros(0, np.uint8)))
        arrays.setdefault("y_train", np.full(len(arrays["x_train"]), UNLABELLED))
    shape = arrays["x_train"].shape[1:]
    images = {key: _images(path, key, arrays[key], shape) for key in arrays if key.startswith("x_")}
    labels = {key: _labels(path, key, arrays[key]) for key in arrays if key.startswith("y_")}
    _check_parts(path, images, labels)
    classes = _classes(path, arrays.get("classes"), labels, needed=not target)
    if "x_unlabelled" in images:
        extra = images["x_unlabelled"]
        images["x_train"] = np.concatenate([images["x_train"], extra])
        labels["y_train"] = np.concatenate([labels["y_train"], np.full(len(extra), UNLABELLED)])
    train = ImageSet(images["x_train"], labels["y_train"], classes, name=f"{path} (train)")
    notes = () if target else _never_labelled(train)
    if "x_test" not in images:
        return Dataset(train, None, notes=notes)
    return Dataset(train, ImageSet(images["x_test"], labels["y_test"], classes, name=f"{path} (test)"), notes=notes)


def _never_labelled(train: ImageSet) -> tuple[str, ...]:
    """A sentence on classes that nothing can be learnt of, as where labels are numbered from 1."""
    counts = np.bincount(train.labels[train.labels != UNLABELLED], minlength=len(train.classes))
    none = [f"'{train.classes[number]}'" for number in np.flatnonzero(counts == 0)]
    named = ", ".join(none[:5]) + (", …" if len(none) > 5 else "")
    return (f"no training image is labelled {named}; labels are numbered from 0.",) if none else ()


def _read(path: Path, target: bool) -> dict[str, np.ndarray]:
    """The known arrays of the file, none of them pickled, with every key that must go with another."""
    if not path.is_file():
        raise RequestError(f"{path}: there is no such file; give the path of an .npz file.")
    try:
        with path.open("rb"):  # what may not be read is none of the following
            pass
    except OSError as error:
        raise RequestError(f"cannot read {path}: {reason(error)}.") from error
    try:
        if not zipfile.is_zipfile(path):
            raise RequestError(f"{path} is not an .npz file or is truncated; write it again with numpy.savez.")
        with np.load(path, allow_pickle=False) as file:
            keys = tuple(file.files)
            _check_keys(path, keys, target)
            arrays = {key: _member(path, file, key) for key in _KEYS if key in keys}
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"{path} is damaged or cannot be read ({error}); write it again.") from error
    return arrays


def _check_keys(path: Path, keys: tuple[str, ...], target: bool) -> None:
    needed = ["x_train", "y_train"]
    if target:
        needed = ["x_train"] if "y_train" in keys or "x_unlabelled" not in keys else []
    needed += ["x_test", "y_test"] if "x_test" in keys or "y_test" in keys else []
    absent = [key for key in needed if key not in keys]
    if absent:
        found = ", ".join(keys) or "nothing"
        raise RequestError(f"{path} lacks {' and '.join(absent)} (it holds {found}).")
    for key in set(keys) - set(_KEYS):
        near = difflib.get_close_matches(key, set(_KEYS) - set(keys), n=1, cutoff=0.9)
        if near:
            raise RequestError(f"{path}: {key!r} is not used; rename it to {near[0]!r} or to something else.")


def _member(path: Path, file: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    try:
        array = file[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise RequestError(
            f"{path}: {key} is an array of Python objects, which could run code when read; "
            "save it as an array of numbers (classes: of text)."
        ) from error
    if not isinstance(array, np.ndarray):
        raise RequestError(f"{path}: {key} is not a NumPy array; write the file with numpy.savez.")
    return array


def _images(path: Path, key: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images (N, C, H, W) from any of the accepted shapes; `shape` is that of one image of x_train."""
    if array.dtype != np.uint8:
        example = " with `(x * 255).round().astype('uint8')` if they are 0 to 1" if array.dtype.kind == "f" else ""
        raise RequestError(f"{path}: {key} is {array.dtype}; convert the images to uint8, 0 to 255{example}.")
    if array.ndim not in (3, 4) or 0 in array.shape[1:]:
        raise RequestError(
            f"{path}: {key} has shape {array.shape}; images must be (N, H, W), (N, H, W, C) or (N, C, H, W)."
        )
    if array.shape[1:] != shape:
        raise RequestError(f"{path}: {key} has images of shape {array.shape[1:]}, but x_train of {shape}.")
    if array.ndim == 3:
        return array[:, None]
    if shape[-1] in (1, 3):
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    if shape[-1] <= 4 < shape[0]:
        raise RequestError(f"{path}: {key} has {shape[-1]} channels; keep 1 (grey) or 3 (red, green, blue).")
    return array


def _labels(path: Path, key: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise RequestError(
            f"{path}: {key} is {array.dtype} of shape {array.shape}; labels must be integers of shape (N,)."
        )
    if array.size and not UNLABELLED <= int(array.min()) <= int(array.max()) < 1 << 31:
        wrong = int(array.min()) if int(array.min()) < UNLABELLED else int(array.max())
        raise RequestError(f"{path}: {key} holds {wrong}; labels are 0, 1, … or {UNLABELLED} for unlabelled.")
    return array.astype(np.int64)


def _classes(path: Path, names: np.ndarray | None, labels: Mapping[str, np.ndarray], needed: bool) -> tuple[str, ...]:
    if names is not None:
        if names.ndim != 1 or names.dtype.kind not in "US":
            raise RequestError(f"{path}: classes is {names.dtype} of shape {names.shape}; it must be a list of names.")
        found = tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names.tolist())
        _refuse_names(path, found)
        return found
    highest = max((int(values.max()) for values in labels.values() if len(values)), default=UNLABELLED)
    if highest == UNLABELLED and not needed:
        return ()
    if highest == UNLABELLED:
        raise RequestError(f"{path}: y_train holds no label, and there is no `classes`.")
    if highest >= 1 << 16:
        raise RequestError(f"{path}: label {highest} means {highest + 1:,} classes; number them from 0.")
    return tuple(str(k) for k in range(highest + 1))


def _refuse_names(path: Path, names: tuple[str, ...]) -> None:
    """Refuses classes that could not be told apart by their names, or have none."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if not name.strip():
            raise RequestError(f"{path}: classes has no name for label {number}; give each class one.")
        if name in seen:
            raise RequestError(f"{path}: classes holds '{name}' twice; give each class a name of its own.")
        seen.add(name)
    refuse_alike(str(path), names)


def _check_parts(path: Path, images: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> None:
    """Refuses images without labels to match, and a test part that cannot be tested on."""
    for key, values in labels.items():
        of = key.replace("y_", "x_")
        if not len(images[of]):
            raise RequestError(f"{path}: {of} holds no images.")
        if len(images[of]) != len(values):
            raise RequestError(f"{path}: {of} has {len(images[of])} images, but {key} {len(values)} labels.")
    if "y_test" in labels and (labels["y_test"] == UNLABELLED).any():
        raise RequestError(f"{path}: y_test holds {UNLABELLED}, but every test image needs its label.")
