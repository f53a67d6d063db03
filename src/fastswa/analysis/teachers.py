"""EMA, SWA or nothing, as teacher and as what is evaluated (A.4), from what runs measured as they trained.

"W-T" is the error of the weights W (the student, its EMA, an average) of a run whose teacher is T. Runs of the Pi model
teach themselves (T none); Mean Teacher's are taught by the EMA, or by SWA with `--method.teacher swa`. Averages are
known by their kind, whatever a run calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastswa.analysis.drawing import finish, headroom, new_grid
from fastswa.analysis.measured import Course, course_of
from fastswa.analysis.study import Request, Study, colours
from fastswa.analysis.subject import run_names
from fastswa.config import Config
from fastswa.console import shown
from fastswa.errors import RequestError
from fastswa.methods import build
from fastswa.training.folder import RunFolder, preferred


@dataclass(frozen=True)
class Taught:
    """A run's errors by network at `epoch`, and their excess over `reference`; `course` holds all epochs.

    `fast_swa` is the name of its fast-SWA, None where it has none.
    """

    run: str
    method: str
    teacher: str
    epoch: float
    images: str
    error: dict[str, float]
    excess: dict[str, float]
    reference: str
    course: Course
    fast_swa: str | None


def teacher_of(config: Config) -> str:
    """Who teaches: EMA, SWA, or none besides the student itself."""
    method = build(config.method, images=1, classes=1)
    return config.method.teacher.upper() if method.has_teacher else "none"


def fast_swa_of(config: Config, networks: Iterable[str]) -> str | None:
    """The run's fast-SWA among some of its networks, the one to use first where there are several."""
    kinds = {name: average.kind for name, average in config.averaging.items()}
    own = [network for network in networks if kinds.get(network) == "fast-swa"]
    return preferred(own, config.averaging)[0] if own else None


def teachers(request: Request) -> list[Taught]:
    """The runs side by side at the last epoch that all were measured at, or at the one asked for."""
    found: list[tuple[Path, str, Config, Course]] = []
    for path, name in run_names(request.runs).items():
        folder = RunFolder.open(path)
        found.append((path, name, folder.config(), course_of(folder, name)))
    common = sorted(set.intersection(*(set(course.epochs.tolist()) for *_, course in found)))
    if request.epochs is not None:
        common = [epoch for epoch in common if epoch in request.epochs]
    if not common:
        raise RequestError("the runs were not all measured at such an epoch; --epochs names one that they share.")
    epoch = common[-1]
    errors = [course.at(epoch) for *_, course in found]
    reference, least = _reference([(name, config) for _, name, config, _ in found], errors)
    return [
        Taught(
            run=name,
            method=config.method.name,
            teacher=teacher_of(config),
            epoch=epoch,
            images=course.images,
            error=own,
            excess={network: error - least for network, error in own.items()},
            reference=reference,
            course=course,
            fast_swa=fast_swa_of(config, course.error),
        )
        for (_, name, config, course), own in zip(found, errors, strict=True)
    ]


def _reference(runs: Sequence[tuple[str, Config]], errors: Sequence[dict[str, float]]) -> tuple[str, float]:
    """What errors are compared with: fast-SWA of the Mean Teacher as in the paper, or the lowest of all."""
    for (name, config), own in zip(runs, errors, strict=True):
        network = fast_swa_of(config, own)
        if network is not None and config.method.name == "mean-teacher" and teacher_of(config) == "EMA":
            return f"{name}: {shown(network)}", own[network]
    least, name, network = min(
        (error, name, network) for (name, _), own in zip(runs, errors, strict=True) for network, error in own.items()
    )
    return f"{name}: {shown(network)}", least


def rows(result: Sequence[Taught]) -> list[dict[str, Any]]:
    """A line for each run and network."""
    return [
        {
            "run": one.run,
            "teacher": one.teacher,
            "weights": network,
            "epoch": one.epoch,
            "images": one.images,
            "error": error,
            "excess": one.excess[network],
        }
        for one in result
        for network, error in one.error.items()
    ]


def told(result: Sequence[Taught]) -> list[str]:
    """Every W-T at the epoch."""
    return [
        f"{one.run} (teacher: {one.teacher}), epoch {one.epoch:g}, {one.images} error: "
        + ", ".join(f"{shown(network)} {error:.2f}%" for network, error in one.error.items())
        for one in result
    ]


def draw(result: Sequence[Taught]) -> Any:
    """The excess over the reference as bars, and error against epoch."""
    drawn, grid = new_grid(1, 2, 12.6, 4.9)
    bars, courses = grid[0]
    shades = colours([one.run for one in result])
    place, ticks = 0.0, []
    for one in result:
        for network, excess in one.excess.items():
            bars.bar(place, excess, 0.8, color=shades[one.run])
            ticks.append((place, f"{shown(network)}-{one.teacher}"))
            place += 1
        place += 0.7
        bars.bar(0, 0, color=shades[one.run], label=one.run)
        styles: dict[str | None, Any] = {"student": (0, (1, 1.5)), "teacher": (0, (4, 2)), one.fast_swa: "solid"}
        for network, series in one.course.error.items():
            if style := styles.get(network):
                label = f"{one.run}: {shown(network)}"
                courses.plot(one.course.epochs, series, color=shades[one.run], linestyle=style, label=label)
    bars.axhline(0, color="#404040", linewidth=0.8)
    bars.set_xticks([x for x, _ in ticks], [name for _, name in ticks], rotation=35, ha="right", fontsize=8)
    bars.set_ylabel(f"excess {result[0].images} error (%)")
    bars.set_title(f"weights-teacher at epoch {result[0].epoch:g}, against {result[0].reference}")
    late = np.concatenate([series[len(series) // 4 :] for one in result for series in one.course.error.values()])
    late = late[np.isfinite(late)]
    courses.set(xlabel="epoch", ylabel=f"{result[0].images} error (%)")
    courses.set_ylim(0.95 * late.min(), 1.1 * np.quantile(late, 0.97))
    headroom(bars)
    finish(bars)
    finish(courses, below=True)
    drawn.tight_layout()
    return drawn


STUDY = Study(
    summary="EMA, SWA or nothing, as teacher and as what is evaluated",
    run=teachers,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"epochs"}),
)
