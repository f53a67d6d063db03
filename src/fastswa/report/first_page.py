"""The page of `fastswa suggest`: the images to label first, and what to do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fastswa.choose import WHY
from fastswa.errors import RequestError
from fastswa.report import words
from fastswa.report.page import render
from fastswa.report.remarks import Remark
from fastswa.report.thumbnails import thumbnail
from fastswa.report.write import refuse_strange, write_page
from fastswa.suggest import COLUMNS, Suggested

# As many pictures as a browser shows at once; the list names all.
PICTURED = 300
HEAD = ",".join(COLUMNS).encode() + b"\n"


def list_beside(page: Path) -> Path:
    """Where the list goes; RequestError where the page or the list would be written over what is something else."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise RequestError(f"--out: {page} does not end in .html.")
    refuse_strange(page)
    listed = page.with_suffix(".csv")
    try:
        known = listed.read_bytes()[: len(HEAD)] == HEAD
    except FileNotFoundError:
        return listed
    except OSError as error:
        raise RequestError(f"cannot write {listed}: {error.strerror}.") from error
    if not known:
        raise RequestError(f"{listed} is there already and is no list of suggestions; choose another --out.")
    return listed


def write_first(found: Suggested, source: str, page: Path) -> Path:
    """The page, and the list beside it, whose path this gives; each is written over nothing but an older one."""
    listed = list_beside(page)
    write_page(page, first_page(found, source, listed.name).encode("utf-8"))
    write_page(listed, found.csv())
    return listed


def first_page(found: Suggested, source: str, listed: str) -> str:
    """One page that holds all it shows."""
    return render(
        "first.html",
        title=source,
        count=len(found.rows),
        unlabelled=found.looked_at - found.labelled,
        remarks=[Remark(f"{note[:1].upper()}{note[1:].rstrip('.')}.") for note in found.notes],
        pictured=min(len(found.rows), PICTURED),
        why=WHY,
        listed=listed,
        items=[
            _item(found, rank, int(row), int(alike))
            for rank, (row, alike) in enumerate(zip(found.rows, found.alike, strict=True), 1)
        ][:PICTURED],
    )


def _item(found: Suggested, rank: int, row: int, alike: int) -> dict[str, Any]:
    path = found.path(row)
    return {
        "picture": thumbnail(np.asarray(found.images.pixels[row])),
        "alt": f"suggestion {rank}",
        "name": words.readable(path) if path is not None else f"image {row}",
        "lines": [("", str(rank), ""), ("of", words.count(alike), "alike")],
    }
