"""One's own images from a folder: labeled/CLASS/…, unlabeled/… and, if wanted, test/CLASS/….

Both spellings of labelled will do, and any depth below. Hidden files are passed over; files of other kinds are
counted by their suffix. Links to folders are followed, but never upwards, and no folder is entered twice in one
class, so that a loop of links ends.
"""

from __future__ import annotations

import os
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path

import numpy as np

from fastswa.data.decode import SUFFIXES
from fastswa.data.images import UNLABELLED, ImageFiles, PathTable
from fastswa.errors import RequestError

_LABELLED, _UNLABELLED = ("labeled", "labelled"), ("unlabeled", "unlabelled")
_UNREAD = frozenset({".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".dng", ".cr2"})


def list_folder(folder: Path) -> ImageFiles:
    """The image files of a folder, classes and names in sorted order."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RequestError(f"{folder}: there is no such folder.")
    labelled, unlabelled, test = _parts(folder)
    ignored: Counter[str] = Counter()
    paths, labels = PathTable(), array("q")
    notes: list[str] = []
    names = _class_folders(folder, labelled)
    classes: list[str] = []
    for name in sorted(names):
        before = len(paths)
        _collect(folder, f"{labelled}/{names[name]}", len(classes), paths, labels, ignored)
        if len(paths) > before:
            classes.append(name)
        else:
            notes.append(f"class '{name}' has no image and is left out.")
    refuse_few_classes(str(folder / labelled), classes, len(paths))
    if unlabelled is not None:
        _collect(folder, unlabelled, UNLABELLED, paths, labels, ignored)
    trained = len(paths)
    if test is not None:
        tested = _class_folders(folder, test)
        refuse_strange_classes(str(folder / test), tested, classes)
        for name in sorted(tested):
            _collect(folder, f"{test}/{tested[name]}", classes.index(name), paths, labels, ignored)
    return _listed(folder, paths, labels, classes, trained, ignored, notes)


def list_target(folder: Path) -> ImageFiles:
    """As `list_folder`, but no label is needed; classes are those of labeled/ and of test/ that hold an image.

    Without labeled/ and unlabeled/ all images below are unlabelled, those in test/ apart.
    """
    folder = Path(folder)
    names = {entry.name for entry in _entries(str(folder)) if _is_folder(entry)}
    labelled, unlabelled = _spelling(folder, names, _LABELLED), _spelling(folder, names, _UNLABELLED)
    ignored: Counter[str] = Counter()
    paths, labels = PathTable(), array("q")
    classes: dict[str, int] = {}

    def collect(part: str) -> None:
        inner = _class_folders(folder, part)
        for name in sorted(inner):
            before = len(paths)
            _collect(folder, f"{part}/{inner[name]}", classes.get(name, len(classes)), paths, labels, ignored)
            if len(paths) > before:
                classes.setdefault(name, len(classes))

    if labelled is not None:
        collect(labelled)
    if unlabelled is not None:
        _collect(folder, unlabelled, UNLABELLED, paths, labels, ignored)
    elif labelled is None:
        passed_over = {_identity(str(folder / "test"))} if "test" in names else set()
        for path in walk(str(folder), ".", passed_over, ignored):
            paths.append(path)
            labels.append(UNLABELLED)
    trained = len(paths)
    if "test" in names:
        collect("test")
    return _listed(folder, paths, labels, classes, trained, ignored)


def _listed(
    folder: Path,
    paths: PathTable,
    labels: array[int],
    classes: Iterable[str],
    trained: int,
    ignored: Counter[str],
    notes: Iterable[str] = (),
) -> ImageFiles:
    """What was found, the first `trained` images for training; what was passed over is noted last."""
    return ImageFiles(
        source=folder,
        root=folder,
        paths=paths,
        labels=np.array(labels, dtype=np.int64),
        classes=tuple(classes),
        tests=len(paths) - trained,
        ignored=dict(ignored.most_common()),
        notes=(*notes, *left_out(ignored)),
    )


def refuse_few_classes(where: str, classes: Iterable[str], images: int) -> None:
    """RequestError unless there are two classes at least, no two of them the same but for case."""
    names = sorted(classes)
    if images == 0:
        raise RequestError(f"{where} holds no labelled image (JPEG, PNG, WebP or BMP).")
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise RequestError(f"{where}: the classes '{other}' and '{name}' differ only in case; rename one of them.")
    if len(names) < 2:
        count = "one labelled image, and so" if images == 1 else f"{images} labelled images of"
        raise RequestError(f"{where} holds {count} only one class, '{names[0]}'; a classifier needs at least two.")


def refuse_strange_classes(where: str, tested: Iterable[str], classes: Iterable[str]) -> None:
    """RequestError where the test images have a class that no labelled training image has."""
    known = {name.casefold(): name for name in classes}
    for name in sorted(tested):
        other = known.get(name.casefold())
        if other is None:
            raise RequestError(f"{where} has the class '{name}', of which there is no labelled training image.")
        if other != name:
            raise RequestError(f"{where}: the class '{name}' is '{other}' in training; give it one spelling.")


def left_out(ignored: Counter[str]) -> list[str]:
    """A sentence on the images that were passed over for their kind, if any."""
    unread = sorted(suffix for suffix in ignored if suffix in _UNREAD)
    if not unread:
        return []
    count = sum(ignored[suffix] for suffix in unread)
    return [f"{count} {' and '.join(unread)} files are left out; save them as JPEG, PNG, WebP or BMP."]


def is_image(name: str) -> bool:
    """Whether a file's name ends as that of an image we read."""
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and dot + suffix.lower() in SUFFIXES


def _parts(folder: Path) -> tuple[str, str | None, str | None]:
    """The names of the labelled, the unlabelled and the test folder."""
    names = {entry.name for entry in _entries(str(folder)) if _is_folder(entry)}
    if not any(_entries(str(folder))):
        raise RequestError(f"{folder} is empty; put labelled images in {folder / 'labeled'}/CLASS/.")
    labelled, unlabelled = _spelling(folder, names, _LABELLED), _spelling(folder, names, _UNLABELLED)
    if labelled is None:
        raise RequestError(
            f"{folder} has no folder 'labeled'; put labelled images in {folder / 'labeled'}/CLASS/, "
            f"others in {folder / 'unlabeled'}/."
        )
    return labelled, unlabelled, "test" if "test" in names else None


def _spelling(folder: Path, names: set[str], spellings: tuple[str, str]) -> str | None:
    """The one of two spellings that is there."""
    there = [name for name in spellings if name in names]
    if len(there) == 2:
        raise RequestError(f"{folder} has both {there[0]}/ and {there[1]}/; move the images into one of them.")
    return there[0] if there else None


def _class_folders(folder: Path, part: str) -> dict[str, str]:
    """Class names (composed Unicode) and the folders that hold them."""
    found: dict[str, str] = {}
    for entry in _entries(str(folder / part)):
        if _is_folder(entry):
            name = unicodedata.normalize("NFC", entry.name)
            if name in found:
                raise RequestError(f"{folder / part} has two folders that are both written '{name}'; rename one.")
            found[name] = entry.name
        elif is_image(entry.name):
            raise RequestError(f"{entry.path} lies in no class; put it in {folder / part}/CLASS/.")
    return found


def _collect(folder: Path, part: str, label: int, paths: PathTable, labels: array[int], ignored: Counter[str]) -> None:
    """Adds the images under `part` with one label."""
    above = {_identity(str(place)) for place in (folder, (folder / part).parent)}
    for name in walk(str(folder), part, above, ignored):
        paths.append(name)
        labels.append(label)


def walk(root: str, folder: str, entered: set[tuple[int, int]], ignored: Counter[str]) -> Iterator[str]:
    """Paths of images relative to `root`, in sorted order; one list of names is held at a time and level."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        place = os.path.join(root, folder)
        identity = _identity(place)
        if identity in entered:
            continue
        entered.add(identity)
        inner = []
        for entry in _entries(place):
            if _is_folder(entry):
                inner.append(f"{folder}/{entry.name}")
            elif is_image(entry.name) and _is_file(entry):
                yield f"{folder}/{entry.name}"
            else:
                ignored[os.path.splitext(entry.name)[1].lower() or "no suffix"] += 1
        waiting += reversed(inner)


def _identity(place: str) -> tuple[int, int]:
    """What a folder is known by, whichever way leads to it."""
    status = os.stat(place)
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link that leads nowhere, which reading will say; not a pipe, which would never end."""
    if not entry.is_symlink():
        return entry.is_file()
    return os.path.isfile(entry.path) or not os.path.exists(entry.path)


def _entries(place: str) -> list[os.DirEntry[str]]:
    """What lies in a folder, hidden files apart, sorted by name."""
    try:
        with os.scandir(place) as entries:
            return sorted((entry for entry in entries if entry.name[0] != "."), key=attrgetter("name"))
    except OSError as error:
        raise RequestError(f"{place} cannot be listed: {error.strerror}.") from error
