"""One's own images from a CSV or TSV file with the columns path, label and, if wanted, split (train or test).

An empty label means unlabelled; an empty split means train. Relative paths start at the manifest's folder, and
backslashes will do. Other columns are passed over.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from fastswa.data.images import UNLABELLED, ImageFiles, PathTable
from fastswa.data.sources.folder import refuse_few_classes, refuse_strange_classes
from fastswa.errors import RequestError

# What programs, spreadsheets and people write where there is no label. A class may well be called so.
_NOTHING = {"nan", "<na>", "na", "n/a", "#n/a", "none", "null", "unlabeled", "unlabelled", "unknown", "?", "-"}


def list_manifest(file: Path, *, skip_bad: bool = False, target: bool = False) -> ImageFiles:
    """The image files that a manifest lists; with `skip_bad` those that are not there are left out.

    The manifest of a `target` needs no label but those of its test images, whose classes may be any.
    """
    rows = _Rows(Path(file))
    for line, path, label, split in read_manifest(rows.file, ("path",) if target else ("path", "label")):
        rows.add(line, path, label, split, skip_bad)
    rows.refuse_duplicates()
    return rows.listing(target)


def read_manifest(file: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, str, str, str]]:
    """(line, path, label, split) of each row; columns that are not `needed` are empty where there is none."""
    if not file.is_file():
        raise RequestError(f"{file}: there is no such file.")
    try:
        with _text(file) as text:
            yield from _records(file, text, needed)
    except UnicodeError as error:
        raise RequestError(f"{file} is not UTF-8 text; save it as 'CSV UTF-8'.") from error
    except csv.Error as error:
        raise RequestError(f"{file} is not a table of comma- or tab-separated values ({error}).") from error
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}.") from error


@dataclass
class _Rows:
    """The rows read so far, a few bytes each."""

    file: Path
    paths: PathTable = field(default_factory=PathTable)
    lines: array[int] = field(default_factory=lambda: array("q"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    tests: array[int] = field(default_factory=lambda: array("b"))
    keys: array[int] = field(default_factory=lambda: array("Q"))
    names: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, line: int, path: str, label: str, split: str, skip_bad: bool) -> None:
        """Takes in one row, or refuses it."""
        if split.lower() not in ("", "train", "test"):
            raise RequestError(f"{self.file}, line {line}: the split '{split}' is not train, test or empty.")
        test = split.lower() == "test"
        if test and not label:
            raise RequestError(f"{self.file}, line {line}: a test image needs a label.")
        found = find_listed(self.file.parent, path)
        if found is None:
            elsewhere = " beside it, where its paths begin; there is one in the current folder"
            here = elsewhere if os.path.isfile(path) else ""
            self.missing[path] = f"{self.file}, line {line}: there is no file {path}{here}."
            if not skip_bad:
                raise RequestError(self.missing[path])
            return
        place = os.path.normpath(os.path.join(self.file.parent.absolute(), found))
        digest = hashlib.blake2b(os.fsencode(place), digest_size=8).digest()
        self.keys.append(int.from_bytes(digest, "little"))
        self.paths.append(found)
        self.lines.append(line)
        self.tests.append(test)
        self.labels.append(self.names.setdefault(label, len(self.names)) if label else UNLABELLED)

    def refuse_duplicates(self) -> None:
        """RequestError where one file stands in two rows."""
        keys = np.array(self.keys, dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        repeated = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        if len(repeated) == 0:
            return
        first, second = sorted((int(order[repeated[0]]), int(order[repeated[0] + 1])))
        conflict = ""
        if self.labels[first] != self.labels[second]:
            conflict = " with different labels"
        elif self.tests[first] != self.tests[second]:
            conflict = ", for training and for test"
        raise RequestError(
            f"{self.file} lists {self.paths[second]} twice{conflict} "
            f"(lines {self.lines[first]} and {self.lines[second]}); keep one of them."
        )

    def _refuse_minus_one(self, classes: list[str]) -> None:
        """RequestError where -1 is a label beside 0 or several others: elsewhere it means that there is none."""
        others = sorted({*classes} - {"-1"})
        if len(others) < len(classes) and ("0" in others or len(others) > 1):
            line = self.lines[self.labels.index(self.names["-1"])]
            raise RequestError(
                f"{self.file}, line {line}: -1 would be a class beside {others[0]}; leave the label of an unlabelled "
                "image empty, or call the class otherwise."
            )

    def _notes(self) -> Iterator[str]:
        """Which labels may have been meant as none."""
        counts = np.bincount(np.array(self.labels, dtype=np.int64) + 1, minlength=len(self.names) + 1)[1:]
        for name, number in self.names.items():
            count = counts[number]
            if name.casefold() in _NOTHING and count:
                have = "image has" if count == 1 else "images have"
                yield f"{count:,} {have} the label '{name}', which is taken as a class; leave it empty for none."

    def listing(self, target: bool = False) -> ImageFiles:
        """The rows as ImageFiles, training images first, classes sorted."""
        tests = np.array(self.tests, dtype=bool)
        labels = np.array(self.labels, dtype=np.int64)
        by_number = list(self.names)
        known = ~tests & (labels != UNLABELLED)
        classes = sorted(by_number if target else {by_number[n] for n in np.unique(labels[known])})
        where = f"{self.file} ({len(self.missing)} of its files not being there)" if self.missing else str(self.file)
        if not target:
            self._refuse_minus_one(classes)
            refuse_few_classes(where, classes, int(known.sum()))
            refuse_strange_classes(str(self.file), {by_number[n] for n in np.unique(labels[tests])}, classes)
        position = {name: place for place, name in enumerate(classes)}
        # The last entry is what label -1 finds.
        renumbered = np.array([*(position[name] for name in by_number), UNLABELLED], dtype=np.int64)[labels]
        order = np.argsort(tests, kind="stable")
        sorted_already = bool((order[1:] > order[:-1]).all())
        return ImageFiles(
            source=self.file,
            root=self.file.parent,
            paths=self.paths if sorted_already else self.paths.take(order),
            labels=renumbered[order],
            classes=tuple(classes),
            tests=int(tests.sum()),
            missing=self.missing,
            notes=tuple(self._notes()),
        )


def _text(file: Path) -> TextIO:
    """The file as text, whichever byte-order mark it begins with."""
    with file.open("rb") as raw:
        start = raw.read(2)
    wide = start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return file.open(encoding="utf-16" if wide else "utf-8-sig", newline="")


def _records(file: Path, text: TextIO, needed: tuple[str, ...]) -> Iterator[tuple[int, str, str, str]]:
    """(line, path, label, split) of each row below the header."""
    head = text.readline()
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    if delimiter not in head:  # some spreadsheets write semicolons, or tabs into a .csv
        delimiter = next((mark for mark in ("\t", ";", ",") if mark in head), delimiter)
    header = [name.strip().lower() for name in next(csv.reader(io.StringIO(head), delimiter=delimiter), [])]
    for name in ("path", "label", "split"):
        if header.count(name) > 1:
            raise RequestError(f"{file} has two columns named '{name}'; keep one.")
        if name not in header and name in needed:
            found = ", ".join(header) or "nothing"
            raise RequestError(f"{file} has no column '{name}' in its first line (which holds: {found}).")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    where = [header.index(name) if name in header else None for name in ("path", "label", "split")]
    for row in reader:
        line = reader.line_num + 1
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > len(header):
            raise RequestError(
                f"{file}, line {line}: {len(row)} values for {len(header)} columns; put quotes around commas in a path."
            )
        path, label, split = (row[at].strip() if at is not None and at < len(row) else "" for at in where)
        if not path:
            raise RequestError(f"{file}, line {line}: the path is empty.")
        yield line, path, label, split


def find_listed(folder: Path, path: str) -> str | None:
    """The path as the disk has it, backslashes turned where that is what it takes; None if it is not there."""
    for candidate in (path, path.replace("\\", "/")):
        if os.path.isfile(os.path.join(folder, candidate)):
            return candidate
    return None
