"""The files of a cache: where they lie, their names, who may write them, and which images are safely in them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fastswa.data.images import ImageFiles
from fastswa.data.plan import Options, Shape, plan_for
from fastswa.data.workers import WRITTEN
from fastswa.errors import FastswaError, RunError

try:
    import fcntl
except ImportError:  # Windows: two preparations at once do the same work twice
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
SYNC_SECONDS = 5.0


@dataclass(frozen=True)
class Store:
    """Where the caches of one source lie, and their names."""

    folder: Path
    source: str
    content: str
    sizes: str
    seconds: float

    @classmethod
    def of(cls, files: ImageFiles, options: Options) -> Store:
        """The folder that can be written, or that holds what is wanted already."""
        source = hashlib.blake2b(os.fsencode(files.source.name), digest_size=4).hexdigest()
        source = "folder" if files.source == files.root else source
        content, sizes, seconds = _content(files)
        beside, elsewhere = (cls(folder, source, content, sizes, seconds) for folder in cache_folders(files))
        if _writable(beside.folder):
            return beside
        if beside.facts.exists() and beside.is_whole(plan_for(np.load(beside.facts), options).shape):
            return beside
        if not _writable(elsewhere.folder):
            raise RunError(
                f"prepared images can be written neither to {beside.folder} nor to {elsewhere.folder}; "
                "make one of them writable, or set XDG_CACHE_HOME."
            )
        return elsewhere

    def _name(self, ending: str) -> Path:
        return self.folder / f"{self.source}-{self.content}{ending}"

    @property
    def facts(self) -> Path:
        return self._name(".facts.npy")

    def whole(self, shape: Shape) -> Path:
        return self._name(f"-{'x'.join(map(str, shape))}.npy")

    def notes(self, shape: Shape) -> Path:
        return self.whole(shape).with_suffix(".json")

    def part(self, shape: Shape) -> Path:
        return self.whole(shape).with_suffix(".part")

    def done(self, shape: Shape) -> Path:
        return self.whole(shape).with_suffix(".done")

    def refused(self, shape: Shape) -> dict[int, str]:
        """The files that a whole cache lacks, and why."""
        return {int(row): why for row, why in json.loads(self.notes(shape).read_text("utf-8")).items()}

    def is_whole(self, shape: Shape) -> bool:
        """Whether a cache of this shape is there, as long as it says it is."""
        try:
            np.load(self.whole(shape), mmap_mode="r")
            self.refused(shape)
        except (OSError, ValueError):
            return False
        return True

    def forget(self, shape: Shape) -> None:
        """Removes a whole cache and what is known of its files."""
        for path in (self.whole(shape), self.notes(shape), self.facts):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One preparation of a source at a time; others wait. A folder that cannot be written needs no lock."""
        try:
            file = self._name(".lock").open("w")
        except OSError:
            yield
            return
        with file:
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a network disk without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            with _writing(self.folder):
                yield

    def is_locked(self) -> bool:
        """Whether somebody is preparing this very content."""
        if fcntl is None:
            return False
        try:
            with self._name(".lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def prune(self, shape: Shape) -> None:
        """Removes caches of the source's former content and, of its present one, all but two other shapes."""
        others = []
        for path in self.folder.glob(f"{self.source}-*"):
            if not path.name.startswith(f"{self.source}-{self.content}"):
                # A run that maps it keeps what it maps; one that is making it keeps it altogether.
                content = path.name.removeprefix(f"{self.source}-")[: len(self.content)]
                if not replace(self, content=content).is_locked():
                    path.unlink(missing_ok=True)
            elif path.suffix == ".npy" and path not in (self.whole(shape), self.facts):
                others.append(path)
        for path in sorted(others, key=lambda path: path.stat().st_mtime)[:-2]:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)


def cache_folders(files: ImageFiles) -> tuple[Path, Path]:
    """The two places for a source's cache: beside the images, and in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = hashlib.blake2b(os.fsencode(os.path.realpath(files.root)), digest_size=8).hexdigest()
    return files.root / ".fastswa-cache", Path(home) / "fastswa" / place


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        (folder / ".gitignore").write_text("*\n", "utf-8")
        (folder / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n", "utf-8")
    except OSError:
        return False
    return True


def _content(files: ImageFiles) -> tuple[str, str, float]:
    """A name for exactly these files (their paths, sizes and times of change), one for files of these sizes, and about
    how long one core reads."""
    stamps, total, prefix = array("q"), 0, os.fsencode(f"{files.root}{os.sep}")
    # A folder's names are all relative.
    status, isabs = os.stat, os.path.isabs if files.source != files.root else (lambda name: False)
    for name in files.paths.encoded():
        try:
            found = status(name if isabs(name) else prefix + name)
            size, changed = found.st_size, found.st_mtime_ns
        except (OSError, ValueError):  # what is not there is refused later
            size, changed = 0, -1
        total += size
        stamps.append(size)
        stamps.append(changed)
    digest = hashlib.blake2b(f"{FORMAT} {len(files)} ".encode(), digest_size=10)
    digest.update(files.paths.content)
    digest.update(stamps.tobytes())
    sizes = hashlib.blake2b(stamps[::2].tobytes(), digest_size=10)
    return digest.hexdigest(), sizes.hexdigest(), 1e-4 * len(files) + 1.5e-8 * total


class Marks:
    """One byte per image, set once the pixels in the part file are safe on the disk."""

    def __init__(self, store: Store, shape: Shape, count: int) -> None:
        self._part, done = store.part(shape), store.done(shape)
        self._pending: list[np.ndarray] = []
        self._synced = time.monotonic()
        size = int(np.prod(shape)) * count
        head = io.BytesIO()
        write_head(head, (count, *shape))
        if not self._part.exists() or self._part.stat().st_size != head.tell() + size:
            done.unlink(missing_ok=True)
            free = shutil.disk_usage(store.folder).free
            if size > free:
                raise RunError(
                    f"the prepared images take {_size_text(size)}, but {store.folder} has {_size_text(free)} left; "
                    "make room or choose a smaller --data.size."
                )
            with self._part.open("wb") as file:
                file.write(head.getvalue())
                file.truncate(head.tell() + size)
        if not done.exists() or done.stat().st_size != count:
            done.write_bytes(bytes(count))
        self.done = np.memmap(done, np.uint8, "r+", shape=(count,))

    def add(self, rows: np.ndarray) -> None:
        """Notes rows that were written; now and then brings everything to the disk."""
        self._pending.append(rows)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        with self._part.open("rb") as file:
            os.fsync(file.fileno())
        for rows in self._pending:
            self.done[rows] = WRITTEN
        self.done.flush()
        self._pending.clear()
        self._synced = time.monotonic()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._sync()


def _size_text(size: int) -> str:
    """Bytes as people read them."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1e3:.1f} KB"


def write_head(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """The head of an .npy file of uint8."""
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": "|u1"})


@contextlib.contextmanager
def fresh(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is whole; where that fails nothing of it takes room."""
    scratch = path.with_name(path.name + ".new")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns the failures of a disk into one sentence."""
    try:
        yield
    except FastswaError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"the disk of {folder} is full; make room and run the command again to go on.") from error
        raise RunError(f"{folder} cannot be written to ({error.strerror or error}).") from error
