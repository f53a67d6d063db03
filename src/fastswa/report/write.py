"""Reports on disk: written as a whole, and never over a file that is something else."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastswa.errors import FastswaError, RequestError, RunError
from fastswa.report import LOOKED_AT, SUGGESTIONS
from fastswa.report.compare import comparison_page
from fastswa.report.findings import Example, Findings, look_at
from fastswa.report.page import GENERATOR
from fastswa.report.record import RunRecord, read_run
from fastswa.report.run_page import run_page
from fastswa.whole import replacing


@dataclass(frozen=True)
class Written:
    """Where a report was written, and its suggestions of what to label next where there are any."""

    report: Path
    suggestions: Path | None = None


def write_report(
    path: Path,
    out: Path | None = None,
    *,
    device: str | None = None,
    suggestions: int = SUGGESTIONS,
    unlabelled: int = LOOKED_AT,
) -> Written:
    """The report of one run, in its folder unless `out` says where, with label-next.csv beside it.

    At most `unlabelled` of its unlabelled images are looked at, on the run's own device unless one is named. Where
    the model or the images are missing the page is made from the run's own figures alone, and says so.
    """
    run = read_run(path)
    target = out or path / "report.html"
    refuse_strange(target)
    list_file = target.with_name("label-next.csv" if target.stem == "report" else f"{target.stem}-label-next.csv")
    found, missing = _findings(run, device or run.config.device.name, suggestions, unlabelled)
    page = run_page(run, found, missing, list_file.name)
    suggested = found.doubts.suggested if found is not None and found.doubts is not None else []
    write_page(target, page.encode("utf-8"))
    # The smaller one last: where the disk is too full for the page, there is no list without it.
    if suggested:
        write_page(list_file, suggestions_csv(suggested))
    return Written(target, list_file if suggested else None)


def write_comparison(paths: Sequence[Path], out: Path) -> Written:
    """One page on several runs."""
    refuse_strange(out)
    write_page(out, comparison_page([read_run(path) for path in paths]).encode("utf-8"))
    return Written(out)


def _findings(run: RunRecord, device: str, suggestions: int, unlabelled: int) -> tuple[Findings | None, str | None]:
    """What the model makes of the images, or in one sentence why nothing can be said of that."""
    if run.models_epoch is None and not run.trained:
        return None, "Confusions, calibration and images come with the model, which the run writes when it is finished."
    try:
        return look_at(run, device, suggestions=suggestions, unlabelled=unlabelled), None
    except FastswaError as error:
        return None, f"The model could not look at the images: {str(error).rstrip('.')}."


def suggestions_csv(suggested: Sequence[Example]) -> bytes:
    """One row an image, the most wanted first; a name's bytes are those of the file's."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["rank", "image", "path", "predicted", "confidence", "second", "second_confidence"])
    for rank, example in enumerate(suggested, 1):
        confidences = f"{example.confidence:.4f}", f"{example.runner_up:.4f}"
        writer.writerow(
            [rank, example.number, example.file or "", example.first, confidences[0], example.second, confidences[1]]
        )
    return stream.getvalue().encode("utf-8", "surrogateescape")


def refuse_strange(target: Path) -> None:
    """Refuse a target that is a folder or a file that was not written here."""
    if target.is_dir():
        raise RequestError(f"{target} is a folder; name the file that the report is to be written to.")
    try:
        with target.open("rb") as stream:
            known = f'content="{GENERATOR}"'.encode() in stream.read(2000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"cannot write {target}: {error.strerror}.") from error
    if not known:
        raise RequestError(f"{target} is there already and is no report of fastswa; move it or choose another --out.")


def write_page(target: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}.") from error
