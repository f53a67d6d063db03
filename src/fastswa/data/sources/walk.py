"""What lies in a folder and below it: sorted by name, hidden files passed over, links followed but never round."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from fastswa.data.decode import SUFFIXES
from fastswa.errors import RequestError


def walk(root: str, folder: str, entered: set[tuple[int, int]], ignored: Counter[str]) -> Iterator[str]:
    """Paths of images relative to `root`, in sorted order; one list of names is held at a time and level."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        place = os.path.join(root, folder)
        known_as = identity(place)
        if known_as in entered:
            continue
        entered.add(known_as)
        inner = []
        for entry in entries(place):
            if is_folder(entry):
                inner.append(f"{folder}/{entry.name}")
            elif is_image(entry.name) and _is_file(entry):
                yield f"{folder}/{entry.name}"
            else:
                ignored[os.path.splitext(entry.name)[1].lower() or "no suffix"] += 1
        waiting += reversed(inner)


def entries(place: str) -> list[os.DirEntry[str]]:
    """What lies in a folder, hidden files apart, sorted by name."""
    try:
        with os.scandir(place) as found:
            return sorted((entry for entry in found if entry.name[0] != "."), key=attrgetter("name"))
    except OSError as error:
        raise RequestError(f"{place} cannot be listed: {error.strerror}.") from error


def folders_in(place: str) -> list[str]:
    """The names of the folders in a folder, hidden ones apart."""
    return [entry.name for entry in entries(place) if is_folder(entry)]


def identity(place: str) -> tuple[int, int]:
    """What a folder is known by, whichever way leads to it."""
    status = os.stat(place)
    return status.st_dev, status.st_ino


def is_image(name: str) -> bool:
    """Whether a file's name ends as that of an image we read."""
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and dot + suffix.lower() in SUFFIXES


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link that leads to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link that leads nowhere, which reading will say; not a pipe, which would never end."""
    if not entry.is_symlink():
        return entry.is_file()
    return os.path.isfile(entry.path) or not os.path.exists(entry.path)
