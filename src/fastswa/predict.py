"""Predictions for any number of images, written as they are made: CSV, TSV or JSON lines."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from fastswa.data.inputs import Inputs, SetInputs
from fastswa.data.sources import MANIFESTS
from fastswa.errors import RequestError, RunError
from fastswa.modelfile import TrainedModel, likeliest, softmax
from fastswa.training.again import images_of_run, refuse_other_held_out
from fastswa.training.folder import RunFolder
from fastswa.training.setup import split_of, unlabelled_of

FORMS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
Progress = Callable[[int], None]
RUN_PARTS = ("labelled", "unlabelled", "validation", "test")


class Row(NamedTuple):
    """One image: `probabilities` (classes,), or None and why it could not be read."""

    path: str
    probabilities: np.ndarray | None
    error: str | None


@dataclass(frozen=True)
class Columns:
    """What is written of each image beside its path, label, confidence and error.

    `top` likeliest classes with their probabilities; the probability of every class.
    """

    top: int = 0
    every_class: bool = True


def predicted(model: TrainedModel, inputs: Iterable[Inputs], workers: int | None = None) -> Iterator[Row]:
    """The images in order; those that cannot be read are rows too."""
    if model.facts.features:
        raise RequestError("the model takes feature vectors, not images; use fastswa.load(RUN).predict(features).")
    for some in inputs:
        for chunk in some.chunks(model.facts.shape, workers):
            probabilities = iter(softmax(model.logits(torch.from_numpy(chunk.pixels))))
            for place, name in enumerate(chunk.names):
                error = chunk.errors.get(place)
                yield Row(name, next(probabilities) if error is None else None, error)


def part_of_run(run: Path, part: str) -> SetInputs:
    """A part of the images that a run was trained on, as its split has them."""
    config = RunFolder.open(run).config()
    now = images_of_run(run, config)
    dataset = now.dataset
    if part in ("labelled", "validation"):
        refuse_other_held_out(run, now, f"--part {part} would not be what it was")
    if part == "test":
        if dataset.test is None:
            raise RequestError(f"--part: {run} has no test images.")
        images, rows = dataset.test, np.arange(len(dataset.test))
    else:
        split = split_of(config, dataset)
        images, rows = unlabelled_of(dataset, split) if part == "unlabelled" else (dataset.train, getattr(split, part))
        if not len(rows):
            raise RequestError(f"--part: {run} has no {part} images.")
    data = config.data
    source = data.target if data.target is not None and part in ("test", "unlabelled") else data.source
    if images.files is None:
        return SetInputs(images, rows, f"{source}:{'test' if part == 'test' else 'train'}")
    return SetInputs(images, rows, _folder_of(source, data.root))


def _folder_of(source: str, root: str) -> str:
    """What the names of a data set's files begin at: a folder; nothing for a manifest, which names them as it likes."""
    if source.lower().endswith(MANIFESTS):
        return ""
    return source if Path(source).exists() else os.path.join(root, source)


class Sheet:
    """Rows in one of FORMS on an open stream."""

    def __init__(self, stream: TextIO, form: str, classes: Sequence[str], columns: Columns) -> None:
        self._stream, self._classes, self._columns = stream, classes, columns
        self._top = min(columns.top, len(classes))
        delimiter = "\t" if form == "tsv" else ","
        self._csv = None if form == "jsonl" else csv.writer(stream, delimiter=delimiter, lineterminator="\n")
        if self._csv is not None:
            self._csv.writerow(self._header())

    def _header(self) -> list[str]:
        names = ["path", "label", "confidence"]
        for place in range(2, self._top + 1):
            names += [f"label_{place}", f"confidence_{place}"]
        if self._columns.every_class:
            names += [f"p_{name}" for name in self._classes]
        return [*names, "error"]

    def write(self, row: Row) -> None:
        """One image."""
        if self._csv is None:
            self._stream.write(json.dumps(self._record(row)) + "\n")
        elif row.probabilities is None:
            self._csv.writerow([row.path, *[""] * (len(self._header()) - 2), row.error])
        else:
            best = likeliest(row.probabilities, max(self._top, 1))
            cells = [cell for c in best for cell in (self._classes[c], _figure(row.probabilities[c]))]
            if self._columns.every_class:
                cells += map(_figure, row.probabilities)
            self._csv.writerow([row.path, *cells, ""])

    def _record(self, row: Row) -> dict[str, Any]:
        if row.probabilities is None:
            return {"path": row.path, "label": None, "confidence": None, "error": row.error}
        figures = [float(_figure(p)) for p in row.probabilities]
        best = likeliest(row.probabilities, max(self._top, 1))
        record: dict[str, Any] = {"path": row.path, "label": self._classes[best[0]], "confidence": figures[best[0]]}
        if self._top:
            record["top"] = [[self._classes[c], figures[c]] for c in best]
        if self._columns.every_class:
            record["probabilities"] = dict(zip(self._classes, figures, strict=True))
        return {**record, "error": None}


def _figure(probability: float) -> str:
    """Six digits: float32 has seven."""
    return f"{probability:.6g}"


@dataclass
class Summary:
    """How many images there were, and how many of them could not be read."""

    images: int = 0
    failed: int = 0


def write_predictions(
    rows: Iterable[Row], classes: Sequence[str], out: Path | None, columns: Columns, form: str, progress: Progress
) -> Summary:
    """Writes the rows as they come, to a file that appears when it is whole, or to standard output."""
    summary = Summary()
    with _standard_output() if out is None else _replacing(out) as stream:
        sheet = Sheet(stream, form, classes, columns)
        for row in rows:
            sheet.write(row)
            summary.images += 1
            summary.failed += row.error is not None
            if summary.images % 100 == 0:
                progress(summary.images)
    return summary


def form_of(out: Path) -> str:
    """The form that a file's name asks for."""
    form = FORMS.get(out.suffix.lower())
    if form is None:
        raise RequestError(f"--out: {out} must end in {', '.join(FORMS)}.")
    return form


def refuse_overwriting(out: Path | None, targets: Iterable[str]) -> None:
    """RequestError where the output would replace an input."""
    for target in map(Path, targets):
        if out is not None and out.exists() and target.exists() and out.samefile(target):
            raise RequestError(f"--out: {out} is to be predicted itself; choose another name.")


@contextmanager
def _replacing(out: Path) -> Iterator[TextIO]:
    """A text file that takes its place once it is whole; names that are no UTF-8 keep their bytes."""
    temporary = out.with_name(f".{out.name}.writing")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stream = temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="")
    except OSError as error:
        raise RequestError(f"--out: cannot write {out}: {error.strerror}.") from error
    try:
        with stream:
            yield stream
        os.replace(temporary, out)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _standard_output() -> Iterator[TextIO]:
    """Standard output, in the letters of a file whatever the terminal's are: it is mostly piped into one."""
    with suppress(AttributeError):  # where something else stands in for it
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    yield sys.stdout
