"""What a reader should know before believing a run's figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastswa.console import shown
from fastswa.report.findings import Findings, Measured
from fastswa.report.record import SETS, RunRecord
from fastswa.report.words import listed, percent, plural

FEW_IMAGES = 200
# By what the model may differ from the run's own last figure, as other arithmetic moves a few images: points, images.
_SAME, _MOVED = 0.5, 3


@dataclass(frozen=True)
class Remark:
    """One sentence; `grave` where a figure on the page should not be believed as it stands."""

    text: str
    grave: bool = False


def remarks(run: RunRecord, found: Findings | None) -> list[Remark]:
    """All that is worth saying, the grave first; `found` is None where the images could not be looked at."""
    every = [*_of_the_record(run), *([] if found is None else _of_the_images(run, found))]
    return sorted(every, key=lambda remark: not remark.grave)


def _of_the_record(run: RunRecord) -> list[Remark]:
    made: list[Remark] = []
    epochs = run.config.schedule.epochs
    if not run.finished and not run.trained:
        far = f"epoch {run.epoch:g} of {epochs}"
        made.append(Remark(f"This run is unfinished ({far}): its figures are not final.", grave=True))
    if run.metrics and not run.sets:
        made.append(
            Remark("There are neither test nor validation images: nothing says how good the model is.", grave=True)
        )
    if run.sets and "test" not in run.sets and run.config.data.target is not None:
        made.append(
            Remark(
                "The target has no test images: the errors are those on the source's, and how good the model is on the "
                "target is not known.",
                grave=True,
            )
        )
    if run.metrics:
        averaged = run.metrics[-1].get("averaged")
        for name, average in run.config.averaging.items():
            if isinstance(averaged, dict) and averaged.get(name) == 0:
                made.append(
                    Remark(
                        f"{shown(name)} has averaged nothing: it starts at epoch {average.start or 0:g} of {epochs}."
                    )
                )
    if run.metrics and isinstance(run.metrics[-1].get("warning"), str):
        made.append(Remark(f"At the last evaluation: {run.metrics[-1]['warning']}", grave=True))
    for images in run.sets:
        broken = [shown(name) for name, error in run.final(images).items() if not math.isfinite(error)]
        if broken:
            made.append(Remark(f"The {images} error of {', '.join(broken)} is not a number.", grave=True))
    return made


def _of_the_images(run: RunRecord, found: Findings) -> list[Remark]:
    made: list[Remark] = []
    if found.epoch != run.epoch and run.metrics:
        made.append(Remark(f"The run's model is that of epoch {found.epoch:g}: it is what looked at the images below."))
    if found.leaks:
        are = "test image is" if found.leaks == 1 else "test images are"
        made.append(
            Remark(f"{found.leaks:,} {are} among the labelled training images: the test error flatters.", grave=True)
        )
    for images in SETS:
        if images in run.sets and 0 < found.counts[images] < FEW_IMAGES:
            one = 100.0 / found.counts[images]
            made.append(
                Remark(
                    f"The {images} error rests on {plural(found.counts[images], 'image')}: "
                    f"each of them is {one:.1f} points."
                )
            )
    made += _of_changes(run, found)
    if found.measured is not None:
        made += _of_the_measurement(run, found, found.measured)
    return made


def _of_changes(run: RunRecord, found: Findings) -> list[Remark]:
    """That the images are others now: by their content, or where nothing tells, by an error that is another."""
    measured = found.measured
    moved = "" if measured is None else _another_error(run, found, measured)
    if not (moved if found.changed is None else found.changed):
        return []
    held_out = measured is not None and measured.images == "validation"
    learnt = "; images held out now may be among those that it learnt from" if held_out else ""
    return [Remark(f"The images or labels have changed since the run was trained{moved}{learnt}.", grave=True)]


def _another_error(run: RunRecord, found: Findings, measured: Measured) -> str:
    """What the run's error was and is, if rounding does not explain the difference."""
    then = run.final(measured.images).get(found.network)
    if then is None or found.epoch != run.epoch:
        return ""
    if abs(then - measured.error) <= max(_SAME, 100.0 * (_MOVED + 0.5) / measured.count):
        return ""
    return f": its {measured.images} error was {percent(then)} and is {percent(measured.error)} now"


def _of_the_measurement(run: RunRecord, found: Findings, measured: Measured) -> list[Remark]:
    made: list[Remark] = []
    chance = 100.0 * (1.0 - 1.0 / len(found.classes))
    if measured.error > 0.9 * chance:
        made.append(
            Remark(
                f"The model is hardly better than guessing ({percent(chance, 0)} errors would be chance).", grave=True
            )
        )
    shows = measured.matrix.sum(axis=1)
    never = [name for k, name in enumerate(found.classes) if shows[k] and measured.matrix[:, k].sum() == 0]
    if never:
        made.append(Remark(f"The model never answers {listed(never)} on the {measured.images} images.", grave=True))
    unseen = [name for k, name in enumerate(found.classes) if not shows[k]]
    if unseen:
        made.append(Remark(f"There is no {measured.images} image of {listed(unseen)}."))
    made += _worse_averages(run, measured)
    return made


def _worse_averages(run: RunRecord, measured: Measured) -> list[Remark]:
    """Averages that are worse than their student by more than two standard errors."""
    final = run.final(measured.images)
    student = final.get("student")
    if student is None:
        return []
    limit = 2 * standard_error(student, measured.count)
    return [
        Remark(f"{shown(name)} is worse than the student by {error - student:.2f} points.")
        for name, error in final.items()
        if name != "student" and error - student > max(limit, 1e-9)
    ]


def standard_error(error: float, images: int) -> float:
    """Of an error in percent measured on so many images, in points."""
    part = min(max(error / 100.0, 0.0), 1.0)
    return 100.0 * math.sqrt(part * (1.0 - part) / max(images, 1))
