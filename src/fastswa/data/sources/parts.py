"""The parts of a folder of images: which folder holds which, and which folders hold images that are in none."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fastswa.data.sources.walk import folders_in, identity, walk
from fastswa.errors import RequestError

# What the folder of a part is called, in upper or lower case.
PARTS = {"labelled": ("labeled", "labelled"), "unlabelled": ("unlabeled", "unlabelled"), "test": ("test",)}
# What other programs call the parts that have classes.
_ELSEWHERE = {"labelled": ("train", "training", "label"), "test": ("val", "valid", "validation", "tests", "testing")}


def find_parts(folder: Path, parts: Iterable[str] = PARTS) -> list[str | None]:
    """The names of the folders that hold these parts, None where there is none; RequestError where one has two."""
    folders = folders_in(str(folder))
    found: list[str | None] = []
    for part in parts:
        there = [name for name in folders if name.casefold() in PARTS[part]]
        if len(there) > 1:
            raise RequestError(f"{folder} has both {there[0]}/ and {there[1]}/; move the images into one of them.")
        found.append(there[0] if there else None)
    return found


def find_part(folder: Path, part: str) -> str | None:
    """The name of the folder that holds one part."""
    return find_parts(folder, (part,))[0]


def renaming(folder: Path) -> str:
    """What to rename where parts seem to be there by other names, as the end of a sentence; mostly nothing."""
    renamed: dict[str, str] = {}
    for name in folders_in(str(folder)):
        part = _meant(name)
        if part is not None and _holds_image(folder / name, set()):
            renamed.setdefault(part, name)
    lacking = [part for part, found in zip(PARTS, find_parts(folder), strict=True) if found is None]
    steps = [f"{renamed[part]}/ to {PARTS[part][0]}/" for part in lacking if part in renamed]
    return f", or rename {' and '.join(steps)}" if steps else ""


def _meant(name: str) -> str | None:
    """The part that a folder's name seems to mean."""
    letters = "".join(letter for letter in name.casefold() if letter.isalpha())
    for part, spellings in PARTS.items():
        if letters in (*spellings, *_ELSEWHERE.get(part, ())):
            return part
    # Too many words are but a letter away from the short ones.
    words = {word: part for part in ("labelled", "unlabelled") for word in PARTS[part]}
    near = difflib.get_close_matches(letters, words, n=1, cutoff=0.8)
    return words[near[0]] if near else None


def unused(folder: Path, parts: Iterable[str | None]) -> list[str]:
    """A sentence on the folders beside the parts that hold images, as where a part is misspelt."""
    used = {part for part in parts if part is not None}
    known = {identity(str(folder / name)) for name in (".", *used)}
    others = [f"{name}/" for name in folders_in(str(folder)) if name not in used and _holds_image(folder / name, known)]
    if not others:
        return []
    *first, last = others if len(others) < 6 else [*others[:5], "others"]
    named = f"{', '.join(first)} and {last} hold" if first else f"{last} holds"
    return [f"{named} images that are not used; only those in labeled/, unlabeled/ and test/ are."]


def _holds_image(folder: Path, entered: set[tuple[int, int]]) -> bool:
    """Whether there is an image anywhere below; nothing is said of what cannot be looked at."""
    try:
        return any(walk(str(folder), ".", set(entered), Counter()))
    except (OSError, RequestError):
        return False
