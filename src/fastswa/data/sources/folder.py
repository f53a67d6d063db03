"""One's own images from a folder: labeled/CLASS/…, unlabeled/… and, if wanted, test/CLASS/….

Both spellings of labelled will do, in upper or lower case, and any depth below. Hidden files are passed over; files of
other kinds are counted by their suffix, and other folders that hold images are named. Links to folders are followed,
but never upwards, and no folder is entered twice in one class, so that a loop of links ends.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fastswa.data.images import UNLABELLED, ImageFiles, PathTable
from fastswa.data.sources.parts import find_parts, renaming, unused
from fastswa.data.sources.walk import entries, identity, is_folder, is_image, walk
from fastswa.errors import RequestError

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
    notes += unused(folder, (labelled, unlabelled, test))
    return _listed(folder, paths, labels, classes, trained, ignored, notes)


def list_target(folder: Path) -> ImageFiles:
    """As `list_folder`, but no label is needed; classes are those of labeled/ and of test/ that hold an image.

    Without labeled/ and unlabeled/ all images below are unlabelled, those in test/ apart.
    """
    folder = Path(folder)
    labelled, unlabelled, test = find_parts(folder)
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
        passed_over = set() if test is None else {identity(str(folder / test))}
        for path in walk(str(folder), ".", passed_over, ignored):
            paths.append(path)
            labels.append(UNLABELLED)
    trained = len(paths)
    if test is not None:
        collect(test)
    everything = labelled is None and unlabelled is None
    notes = [] if everything else unused(folder, (labelled, unlabelled, test))
    return _listed(folder, paths, labels, classes, trained, ignored, notes)


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
    refuse_alike(where, names)
    if len(names) < 2:
        count = "one labelled image, and so" if images == 1 else f"{images} labelled images of"
        raise RequestError(f"{where} holds {count} only one class, '{names[0]}'; a classifier needs at least two.")


def refuse_alike(where: str, names: Iterable[str]) -> None:
    """RequestError where two classes are the same but for case."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise RequestError(f"{where}: the classes '{other}' and '{name}' differ only in case; rename one of them.")


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


def _parts(folder: Path) -> tuple[str, str | None, str | None]:
    """The names of the labelled, the unlabelled and the test folder."""
    if not entries(str(folder)):
        raise RequestError(f"{folder} is empty; put labelled images in {folder / 'labeled'}/CLASS/.")
    labelled, unlabelled, test = find_parts(folder)
    if labelled is None:
        raise RequestError(
            f"{folder} has no folder 'labeled'; put labelled images in {folder / 'labeled'}/CLASS/, "
            f"others in {folder / 'unlabeled'}/{renaming(folder)}."
        )
    return labelled, unlabelled, test


def _class_folders(folder: Path, part: str) -> dict[str, str]:
    """Class names (composed Unicode) and the folders that hold them."""
    found: dict[str, str] = {}
    for entry in entries(str(folder / part)):
        if is_folder(entry):
            name = unicodedata.normalize("NFC", entry.name)
            if name in found:
                raise RequestError(f"{folder / part} has two folders that are both written '{name}'; rename one.")
            found[name] = entry.name
        elif is_image(entry.name):
            raise RequestError(f"{entry.path} lies in no class; put it in {folder / part}/CLASS/.")
    return found


def _collect(folder: Path, part: str, label: int, paths: PathTable, labels: array[int], ignored: Counter[str]) -> None:
    """Adds the images under `part` with one label."""
    above = {identity(str(place)) for place in (folder, (folder / part).parent)}
    for name in walk(str(folder), part, above, ignored):
        paths.append(name)
        labels.append(label)
