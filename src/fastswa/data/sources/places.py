"""Where the files of a published data set may lie under the folder of downloaded sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def folders(root: Path, *names: str) -> Iterator[Path]:
    """Folders that are there, likeliest first: those of these names under `root`, `root`, and what lies in it."""
    seen: set[Path] = set()
    try:
        inner = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        inner = []
    for folder in (*(root / name for name in names), root, *inner, *(path / name for path in inner for name in names)):
        if folder not in seen and folder.is_dir():
            seen.add(folder)
            yield folder


def first_file(root: Path, folder_names: tuple[str, ...], files: tuple[str, ...]) -> Path | None:
    """The first file of one of these names in one of those folders."""
    for folder in folders(root, *folder_names):
        for name in files:
            if (folder / name).is_file():
                return folder / name
    return None
