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
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastswa.data.decode import read_image
from fastswa.data.images import UNLABELLED, Dataset, ImageFiles, ImageSet
from fastswa.data.plan import Options, Plan, Shape, guess_shape, plan_for, still_stands
from fastswa.data.store import Marks, Store, cache_folders, fresh, write_head
from fastswa.data.workers import WRITTEN, Task, Workers, cores
from fastswa.errors import RequestError

_CHUNK_FILES, _CHUNK_BYTES = 128, 8 << 20
_MANY_FILES = 10_000


@dataclass(frozen=True)
class Prepared:
    """`pixels` (M, C, H, W) uint8, memory-mapped; `kept` (M,) numbers of their files; what was refused, and why.

    `sizes` is a hash of all the files' sizes.
    """

    pixels: np.ndarray
    kept: np.ndarray
    unreadable: dict[str, str]
    plan: Plan
    place: Path
    sizes: str


def plan(files: ImageFiles, options: Options | None = None) -> Plan:
    """What `prepare` would make of the files; looks at each of them once, and remembers."""
    options = options or Options()
    with _crew(files, options) as crew:
        store = Store.of(files, options)
        with store.locked():
            return plan_for(_survey(files, store, options, crew), options)


def prepare(files: ImageFiles, options: Options | None = None) -> Prepared:
    """The files as one memory-mapped array, made where it is not there already."""
    options = options or Options()
    with _crew(files, options) as crew:
        store = Store.of(files, options)
        with store.locked():
            chosen = plan_for(_survey(files, store, options, crew), options)
            if _mended(files, store, chosen.shape):
                store.forget(chosen.shape)
                chosen = plan_for(_survey(files, store, options, crew), options)
            if not store.is_whole(chosen.shape):
                _fill(files, store, chosen.shape, options, crew)
                store.prune(chosen.shape)
            refused = store.refused(chosen.shape)
            # Copy on write: nobody writes, but torch takes no array that could not be written.
            pixels = np.load(store.whole(chosen.shape), mmap_mode="c")
    if refused and not options.skip_bad:
        raise refusal(list(refused.values()))
    kept = np.setdiff1d(np.arange(len(files)), np.array(list(refused), dtype=np.int64), assume_unique=True)
    unreadable = {files.path(row): why for row, why in refused.items()}
    return Prepared(pixels, kept, unreadable, chosen, store.folder, store.sizes)


def load_files(files: ImageFiles, options: Options | None = None) -> Dataset:
    """The Dataset of listed files: training and test images as views of one memory map."""
    return as_dataset(files, prepare(files, options))


def as_dataset(files: ImageFiles, prepared: Prepared, *, every_class: bool = True) -> Dataset:
    """Prepared files with their labels; of `every_class` there must be one to train on."""
    kept = prepared.kept
    first_test = int(np.searchsorted(kept, len(files) - files.tests))
    labels = files.labels[kept]
    known = labels[:first_test][labels[:first_test] != UNLABELLED]
    for name, count in zip(files.classes, np.bincount(known, minlength=len(files.classes)), strict=True):
        if count == 0 and every_class:
            raise RequestError(f"{files.source}: no labelled image of class '{name}' can be read.")

    def part(rows: slice, name: str) -> ImageSet:
        names = files.paths if len(kept) == len(files) == len(kept[rows]) else files.paths.take(kept[rows])
        return ImageSet(prepared.pixels[rows], labels[rows], files.classes, f"{files.source} ({name})", names)

    train = part(slice(0, first_test), "train")
    test = part(slice(first_test, None), "test") if first_test < len(kept) else None
    notes, bad = files.notes, len(files.missing) + len(prepared.unreadable)
    if bad:
        notes += (f"images that are missing or cannot be read are left out: {bad} (`fastswa check` lists them).",)
    return Dataset(train, test, origin=prepared.sizes, notes=notes)


def refusal(reasons: list[str]) -> RequestError:
    """One sentence about files that cannot be read."""
    if len(reasons) == 1:
        return RequestError(f"{reasons[0][:-1]} (--data.skip_bad leaves it out).")
    return RequestError(
        f"{len(reasons)} images cannot be used (`fastswa check` lists them, --data.skip_bad leaves them out); "
        f"the first: {reasons[0]}"
    )


def _survey(files: ImageFiles, store: Store, options: Options, crew: Workers) -> np.ndarray:
    """Height, width and kind of every file, (N, 3) int32; decodes as well while the images seem to be of one size."""
    if store.facts.exists():
        facts: np.ndarray = np.load(store.facts, mmap_mode="r")
        return facts
    unfinished = store.facts.with_suffix(".part")
    if not unfinished.exists() or unfinished.stat().st_size != 12 * len(files):
        # Real bytes: a full disk refuses them, but kills whoever writes to the map of a file that has holes.
        unfinished.write_bytes(bytes(12 * len(files)))
    facts = np.memmap(unfinished, np.int32, "r+", shape=(len(files), 3))
    guess = guess_shape(files, options)
    refused = _pass(files, store, options, crew, facts, guess, surveying=True)
    if not (facts[:, 2] > 0).any():
        unfinished.unlink()
        raise RequestError(f"{files.source}: no image can be read; the first: {next(iter(refused.values()), '?')}")
    chosen = plan_for(facts, options).shape
    if guess is not None and guess != chosen:
        store.part(guess).unlink(missing_ok=True)
        store.done(guess).unlink(missing_ok=True)
    with fresh(store.facts) as file:
        file.write(_as_npy(facts))  # of a full disk np.save says in numbers alone that it is
    unfinished.unlink()
    return facts


def _as_npy(array: np.ndarray) -> bytes:
    """What np.save would write."""
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _mended(files: ImageFiles, store: Store, shape: Shape) -> bool:
    """Whether a file that a whole cache lacks can be read by now, as after a change of its permissions."""
    if not store.is_whole(shape) or not os.access(store.folder, os.W_OK):
        return False
    for row in list(store.refused(shape))[:100]:
        with contextlib.suppress(RequestError):
            read_image(files.path(row), channels=shape[0], size=shape[1:])
            return True
    return False


def _fill(files: ImageFiles, store: Store, shape: Shape, options: Options, crew: Workers) -> None:
    """Decodes what is still to be done and, when all is, makes the whole cache appear."""
    part, whole = store.part(shape), store.whole(shape)
    facts = np.load(store.facts, mmap_mode="r")
    refused = _pass(files, store, options, crew, facts, shape, surveying=False)
    if len(refused) == len(files):
        raise RequestError(f"{files.source}: no image can be read; the first: {next(iter(refused.values()))}")
    if refused and not options.skip_bad:
        raise refusal([refused[row] for row in sorted(refused)])
    with fresh(store.notes(shape)) as file:
        file.write(json.dumps({row: refused[row] for row in sorted(refused)}).encode())
    if refused:
        images = np.load(part, mmap_mode="r")
        kept = np.setdiff1d(np.arange(len(files)), np.array(list(refused)))
        with fresh(whole) as file:
            write_head(file, (len(kept), *shape))
            step = max(1, _CHUNK_BYTES // int(np.prod(shape)))
            for start in range(0, len(kept), step):
                file.write(images[kept[start : start + step]].tobytes())
        part.unlink()
    else:
        os.replace(part, whole)
    store.done(shape).unlink(missing_ok=True)


def _pass(
    files: ImageFiles,
    store: Store,
    options: Options,
    crew: Workers,
    facts: np.ndarray,
    shape: Shape | None,
    surveying: bool,
) -> dict[int, str]:
    """Goes once over what is not done: headers into `facts` if `surveying`, pixels while `shape` stands.

    Gives the reasons, by row, for which files were refused.
    """
    marks = None if shape is None else Marks(store, shape, len(files))
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
            if surveying and standing is not None and not still_stands(standing, outcome.facts, options):
                standing = None
            finished += len(outcome.rows)
            if options.progress is not None:
                options.progress("looking at sizes" if standing is None else "preparing", finished, len(files))
    return refused


def _workers(options: Options, seconds: float) -> int:
    """How many processes are worth starting for work that would take one core so long."""
    if options.workers is not None:
        return options.workers
    return min(cores(), 16) if seconds > 1.0 and cores() > 1 and sys.executable else 0


def _crew(files: ImageFiles, options: Options) -> Workers:
    """Workers; where much work is certain they start at once, and get ready while the files are being counted."""
    crew = Workers()
    if len(files) > _MANY_FILES and not any(list(folder.glob("*.facts.npy")) for folder in cache_folders(files)):
        crew.start(_workers(options, 60.0))
    return crew


_NOTHING: contextlib.nullcontext[None] = contextlib.nullcontext()
