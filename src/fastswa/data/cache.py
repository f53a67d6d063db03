"""Image files prepared once: a memory-mapped uint8 .npy file of one size, beside the images.

The cache lies in FOLDER/.fastswa-cache, or in $XDG_CACHE_HOME/fastswa where that cannot be written. Its name says
what it was made from (path, size and modification time of every file, in order) and the shape, so that a changed
file means a new cache. A file under construction ends in .part; beside it one byte per image says which are
done, written only after the pixels are on the disk: an interrupted preparation goes on, and a whole cache appears
by one rename. Old caches of the same source are removed.

Where the size is not given and the images look alike, they are decoded on the guess that all have one size, in the
pass that looks at the sizes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fastswa.data.decode import COLOUR, GREY, WRITTEN, Task, Workers, read_header, read_image
from fastswa.data.images import UNLABELLED, Dataset, ImageFiles, ImageSet
from fastswa.errors import FastswaError, RequestError, RunError

try:
    import fcntl
except ImportError:  # Windows: two preparations at once do the same work twice
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
SMALLEST, LARGEST = 8, 224
SYNC_SECONDS = 5.0
_CHUNK_FILES, _CHUNK_BYTES = 128, 8 << 20
_MANY_FILES = 10_000

Shape = tuple[int, int, int]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """How image files become arrays: `size` (H, W) and `channels` (1 or 3), None to decide from the images."""

    size: tuple[int, int] | None = None
    channels: int | None = None
    skip_bad: bool = False
    workers: int | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Plan:
    """What the images are and what they become; sizes are (height, width)."""

    channels: int
    height: int
    width: int
    images: int
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    sizes: int
    grey: int
    enlarged: int
    cropped: int

    @property
    def shape(self) -> Shape:
        """(C, H, W) of a prepared image."""
        return self.channels, self.height, self.width

    @property
    def notes(self) -> list[str]:
        """Sentences on what preparing changes."""
        side, notes = f"{self.height}x{self.width}", []
        if self.enlarged:
            notes.append(f"{self.enlarged} images are smaller than {side} and are enlarged.")
        if self.cropped:
            notes.append(f"{self.cropped} images lose more than a third of their longer side to the crop to {side}.")
        if self.channels == 1 and self.grey < self.images:
            notes.append(f"{self.images - self.grey} coloured images become grey.")
        return notes


@dataclass(frozen=True)
class Prepared:
    """`pixels` (M, C, H, W) uint8, memory-mapped; `kept` (M,) numbers of their files; what was refused, and why."""

    pixels: np.ndarray
    kept: np.ndarray
    unreadable: dict[str, str]
    plan: Plan
    place: Path


def plan(files: ImageFiles, options: Options | None = None) -> Plan:
    """What `prepare` would make of the files; looks at each of them once, and remembers."""
    options = options or Options()
    with _crew(files, options) as crew:
        store = _Store.of(files, options)
        with store.locked():
            return _plan(_survey(files, store, options, crew), options)


def prepare(files: ImageFiles, options: Options | None = None) -> Prepared:
    """The files as one memory-mapped array, made where it is not there already."""
    options = options or Options()
    with _crew(files, options) as crew:
        store = _Store.of(files, options)
        with store.locked():
            chosen = _plan(_survey(files, store, options, crew), options)
            if _mended(files, store, chosen.shape):
                store.forget(chosen.shape)
                chosen = _plan(_survey(files, store, options, crew), options)
            if not store.is_whole(chosen.shape):
                _fill(files, store, chosen.shape, options, crew)
                store.prune(chosen.shape)
            refused = store.refused(chosen.shape)
            pixels = np.load(store.whole(chosen.shape), mmap_mode="r")
    if refused and not options.skip_bad:
        raise refusal(list(refused.values()))
    kept = np.setdiff1d(np.arange(len(files)), np.array(list(refused), dtype=np.int64), assume_unique=True)
    return Prepared(pixels, kept, {files.path(row): why for row, why in refused.items()}, chosen, store.folder)


def load_files(files: ImageFiles, options: Options | None = None) -> Dataset:
    """The Dataset of listed files: training and test images as views of one memory map."""
    return as_dataset(files, prepare(files, options))


def as_dataset(files: ImageFiles, prepared: Prepared) -> Dataset:
    """Prepared files with their labels."""
    kept = prepared.kept
    first_test = int(np.searchsorted(kept, len(files) - files.tests))
    labels = files.labels[kept]
    known = labels[:first_test][labels[:first_test] != UNLABELLED]
    for name, count in zip(files.classes, np.bincount(known, minlength=len(files.classes)), strict=True):
        if count == 0:
            raise RequestError(f"{files.source}: no labelled image of class '{name}' can be read.")

    def part(rows: slice, name: str) -> ImageSet:
        names = files.paths if len(kept) == len(files) == len(kept[rows]) else files.paths.take(kept[rows])
        return ImageSet(prepared.pixels[rows], labels[rows], files.classes, f"{files.source} ({name})", names)

    train = part(slice(0, first_test), "train")
    return Dataset(train, part(slice(first_test, None), "test") if first_test < len(kept) else None)


def refusal(reasons: list[str]) -> RequestError:
    """One sentence about files that cannot be read."""
    if len(reasons) == 1:
        return RequestError(f"{reasons[0][:-1]} (--data.skip_bad leaves it out).")
    return RequestError(
        f"{len(reasons)} images cannot be used (`fastswa check` lists them, --data.skip_bad leaves them out); "
        f"the first: {reasons[0]}"
    )


@dataclass(frozen=True)
class _Store:
    """Where the caches of one source lie, and their names."""

    folder: Path
    source: str
    content: str
    seconds: float

    @classmethod
    def of(cls, files: ImageFiles, options: Options) -> _Store:
        """The folder that can be written, or that holds what is wanted already."""
        source = hashlib.blake2b(os.fsencode(files.source.name), digest_size=4).hexdigest()
        source = "folder" if files.source == files.root else source
        content, seconds = _content(files)
        beside, elsewhere = (cls(folder, source, content, seconds) for folder in cache_folders(files))
        if _writable(beside.folder):
            return beside
        if beside.facts.exists() and beside.is_whole(_plan(np.load(beside.facts), options).shape):
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


def _content(files: ImageFiles) -> tuple[str, float]:
    """A name for exactly these files (their paths, sizes and times of change), and about how long one core reads."""
    stamps, total, prefix = array("q"), 0, f"{files.root}{os.sep}"
    status, isabs = os.stat, os.path.isabs if files.source != files.root else (lambda name: False)
    for name in files.paths:
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
    return digest.hexdigest(), 1e-4 * len(files) + 1.5e-8 * total


def _survey(files: ImageFiles, store: _Store, options: Options, crew: Workers) -> np.ndarray:
    """Height, width and kind of every file, (N, 3) int32; decodes as well while the images seem to be of one size."""
    if store.facts.exists():
        facts: np.ndarray = np.load(store.facts, mmap_mode="r")
        return facts
    unfinished = store.facts.with_suffix(".part")
    if not unfinished.exists() or unfinished.stat().st_size != 12 * len(files):
        unfinished.write_bytes(b"")
        os.truncate(unfinished, 12 * len(files))
    facts = np.memmap(unfinished, np.int32, "r+", shape=(len(files), 3))
    guess = _guess(files, options)
    refused = _pass(files, store, options, crew, facts, guess, surveying=True)
    if not (facts[:, 2] > 0).any():
        unfinished.unlink()
        raise RequestError(f"{files.source}: no image can be read; the first: {next(iter(refused.values()), '?')}")
    chosen = _plan(facts, options).shape
    if guess is not None and guess != chosen:
        store.part(guess).unlink(missing_ok=True)
        store.done(guess).unlink(missing_ok=True)
    with _fresh(store.facts) as file:
        np.save(file, facts)
    unfinished.unlink()
    return facts


def _mended(files: ImageFiles, store: _Store, shape: Shape) -> bool:
    """Whether a file that a whole cache lacks can be read by now, as after a change of its permissions."""
    if not store.is_whole(shape) or not os.access(store.folder, os.W_OK):
        return False
    for row in list(store.refused(shape))[:100]:
        with contextlib.suppress(RequestError):
            read_image(files.path(row), channels=shape[0], size=shape[1:])
            return True
    return False


def _guess(files: ImageFiles, options: Options) -> Shape | None:
    """The shape that the images will have if all are like some of them; None where those differ."""
    headers = []
    for row in np.linspace(0, len(files) - 1, min(16, len(files))).astype(int):
        with contextlib.suppress(RequestError):
            headers.append(read_header(files.path(row)))
    if not headers:
        return None
    facts = np.array([(h.height, h.width, GREY if h.grey else COLOUR) for h in headers])
    chosen = _plan(facts, options)
    alike = chosen.sizes == 1 and chosen.smallest == (chosen.height, chosen.width)
    return chosen.shape if options.size is not None or alike else None


def _plan(facts: np.ndarray, options: Options) -> Plan:
    """The shape for images of these heights, widths and kinds, (N, 3)."""
    facts = facts[facts[:, 2] > 0]
    heights, widths = facts[:, 0].astype(np.int64), facts[:, 1].astype(np.int64)
    sizes = np.unique(heights << 32 | widths)
    height, width = int(heights[0]), int(widths[0])
    if options.size is not None:
        height, width = options.size
    elif len(sizes) > 1 or not SMALLEST <= min(height, width) <= max(height, width) <= LARGEST:
        median = float(np.median(np.minimum(heights, widths)))
        height = width = int(np.clip(4 * round(median / 4), SMALLEST, LARGEST))
    grey = int((facts[:, 2] == GREY).sum())
    scale = np.minimum(heights / height, widths / width)
    kept = np.minimum(height * scale / heights, width * scale / widths)
    by_area = np.argsort(heights * widths, kind="stable")[[0, -1]]
    return Plan(
        channels=options.channels or (1 if grey == len(facts) else 3),
        height=height,
        width=width,
        images=len(facts),
        smallest=(int(heights[by_area[0]]), int(widths[by_area[0]])),
        median=(int(np.median(heights)), int(np.median(widths))),
        largest=(int(heights[by_area[1]]), int(widths[by_area[1]])),
        sizes=len(sizes),
        grey=grey,
        enlarged=int((scale < 1).sum()),
        cropped=int((kept < 2 / 3).sum()),
    )


def _fill(files: ImageFiles, store: _Store, shape: Shape, options: Options, crew: Workers) -> None:
    """Decodes what is still to be done and, when all is, makes the whole cache appear."""
    part, whole = store.part(shape), store.whole(shape)
    facts = np.load(store.facts, mmap_mode="r")
    refused = _pass(files, store, options, crew, facts, shape, surveying=False)
    if len(refused) == len(files):
        raise RequestError(f"{files.source}: no image can be read; the first: {next(iter(refused.values()))}")
    if refused and not options.skip_bad:
        raise refusal([refused[row] for row in sorted(refused)])
    with _fresh(store.notes(shape)) as file:
        file.write(json.dumps({row: refused[row] for row in sorted(refused)}).encode())
    if refused:
        images = np.load(part, mmap_mode="r")
        kept = np.setdiff1d(np.arange(len(files)), np.array(list(refused)))
        with _fresh(whole) as file:
            _write_head(file, (len(kept), *shape))
            step = max(1, _CHUNK_BYTES // int(np.prod(shape)))
            for start in range(0, len(kept), step):
                file.write(images[kept[start : start + step]].tobytes())
        part.unlink()
    else:
        os.replace(part, whole)
    store.done(shape).unlink(missing_ok=True)


def _pass(
    files: ImageFiles,
    store: _Store,
    options: Options,
    crew: Workers,
    facts: np.ndarray,
    shape: Shape | None,
    surveying: bool,
) -> dict[int, str]:
    """Goes once over what is not done: headers into `facts` if `surveying`, pixels while `shape` stands.

    Gives the reasons, by row, for which files were refused.
    """
    marks = None if shape is None else _Marks(store, shape, len(files))
    wanted = facts[:, 2] == 0 if surveying else np.zeros(len(files), bool)
    if marks is not None:
        wanted |= marks.done != WRITTEN
    rows = np.flatnonzero(wanted)
    standing = shape

    def tasks() -> Iterator[Task]:
        most = _CHUNK_FILES if shape is None else max(1, min(_CHUNK_FILES, _CHUNK_BYTES // int(np.prod(shape))))
        for start in range(0, len(rows), most):
            some = rows[start : start + most].tolist()
            target = None if standing is None else str(store.part(standing))
            exact = surveying and options.size is None
            yield Task(some, [files.path(row) for row in some], target, len(files), standing, exact)

    refused: dict[int, str] = {}
    finished = len(files) - len(rows)
    count = _workers(options, store.seconds * len(rows) / max(len(files), 1)) if len(rows) else 0
    with contextlib.closing(crew.run(tasks(), count)) as outcomes, marks or _NOTHING:
        for outcome in outcomes:
            refused |= outcome.refused
            if surveying:
                facts[outcome.rows] = outcome.facts
            if marks is not None:
                marks.add(np.array(outcome.rows)[outcome.written == WRITTEN])
            if surveying and standing is not None and not _stands(standing, outcome.facts, options):
                standing = None
            finished += len(outcome.rows)
            if options.progress is not None:
                options.progress("looking at sizes" if standing is None else "preparing", finished, len(files))
    return refused


def _stands(guess: Shape, facts: np.ndarray, options: Options) -> bool:
    """Whether files of these facts leave the guess possible."""
    facts = facts[facts[:, 2] > 0]
    same = options.size is not None or bool((facts[:, :2] == guess[1:]).all())
    return same and (guess[0] == 3 or options.channels is not None or bool((facts[:, 2] == GREY).all()))


def _workers(options: Options, seconds: float) -> int:
    """How many processes are worth starting for work that would take one core so long."""
    if options.workers is not None:
        return options.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16) if seconds > 1.0 and cores > 1 and sys.executable else 0


def _crew(files: ImageFiles, options: Options) -> Workers:
    """Workers; where much work is certain they start at once, and get ready while the files are being counted."""
    crew = Workers()
    if len(files) > _MANY_FILES and not any(list(folder.glob("*.facts.npy")) for folder in cache_folders(files)):
        crew.start(_workers(options, 60.0))
    return crew


_NOTHING: contextlib.nullcontext[None] = contextlib.nullcontext()


class _Marks:
    """One byte per image, set once the pixels in the part file are safe on the disk."""

    def __init__(self, store: _Store, shape: Shape, count: int) -> None:
        self._part, done = store.part(shape), store.done(shape)
        self._pending: list[np.ndarray] = []
        self._synced = time.monotonic()
        size = int(np.prod(shape)) * count
        head = io.BytesIO()
        _write_head(head, (count, *shape))
        if not self._part.exists() or self._part.stat().st_size != head.tell() + size:
            done.unlink(missing_ok=True)
            free = shutil.disk_usage(store.folder).free
            if size > free:
                raise RunError(
                    f"the prepared images take {size / 1e9:.1f} GB, but {store.folder} has {free / 1e9:.1f} GB left; "
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


def _write_head(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """The head of an .npy file of uint8."""
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": "|u1"})


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is whole."""
    scratch = path.with_name(path.name + ".new")
    with scratch.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


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
