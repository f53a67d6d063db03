"""Files that are there as a whole or not at all, and why one could not be written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastswa.errors import RequestError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` that takes its place once the block is over; where that fails nothing is left behind."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        # On a full disk half a file would take the room that is left.
        with suppress(OSError):
            temporary.unlink()


def _flush(path: Path) -> None:
    """Have a file on the disk before it takes another's place: a power cut would leave an empty one."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def reason(error: Exception) -> str:
    """Why a file could not be written, in the system's words, also where safetensors wraps them in its own."""
    wrapped = re.search(r"I/O error: (.+) \(os error \d+\)", str(error))
    return getattr(error, "strerror", None) or (wrapped[1] if wrapped else str(error))


def refuse_unwritable(out: Path) -> None:
    """Refuse a folder that could not be written to, before work is done for it; nothing is made yet."""
    nearest = out
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise RequestError(f"cannot write into {out}: {nearest} is no folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RequestError(f"cannot write into {out}: {nearest} may not be written to.")
