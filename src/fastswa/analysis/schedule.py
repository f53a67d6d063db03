"""How long cycles should be, and whether there should be any (A.3): error of fast-SWA against the epoch.

Runs that differ in `schedule.cycle` or in a constant rate are drawn together. With `--cycles` or `--constant` they are
trained first, as forks of one run: `--constant` names epochs of the unmodified schedule whose rate is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastswa.analysis.drawing import finish, new_grid
from fastswa.analysis.measured import Course, course_of
from fastswa.analysis.study import Request, Study
from fastswa.analysis.subject import run_names
from fastswa.config import Config
from fastswa.console import say
from fastswa.errors import RequestError
from fastswa.layers import build_config
from fastswa.training.folder import RunFolder, preferred
from fastswa.training.fork import checkpoint_of, parent_layer
from fastswa.training.quiet import Quiet
from fastswa.training.run import resume, train_new


@dataclass(frozen=True)
class Scheduled:
    """A run's schedule after its first descent, and its course; `network` is the average that is compared."""

    run: str
    after: str
    cycle: float
    rate: float
    length: float
    network: str
    course: Course


def schedule(request: Request) -> list[Scheduled]:
    """The runs side by side; forks of the one run are trained first where cycles or constant rates are asked for."""
    runs = request.runs
    if request.until is not None and not (request.cycles or request.constant):
        raise RequestError("--until says how far forks are trained; --cycles and --constant say which.")
    if request.cycles or request.constant:
        if len(runs) != 1:
            raise RequestError(f"name one run, or RUN@EPOCH, whose forks are to be trained, not {len(runs)}.")
        runs = tuple(train_forks(str(runs[0]), request))
    return [_scheduled(path, name) for path, name in run_names(runs).items()]


def unmodified(config: Config, epoch: float) -> float:
    """The learning rate that the cosine without cycles has at an epoch."""
    part = min(epoch / config.schedule.period, 1.0)
    return config.optimiser.lr * 0.5 * (1.0 + math.cos(math.pi * part))


def forks(start: str, epoch: float, request: Request) -> dict[str, Config]:
    """The configurations of all forks, by name; each averages from the fork on, as often as its parent, and is measured
    as often as it averages."""
    if any(cycle <= 0 for cycle in request.cycles or ()):
        raise RequestError("--cycles: a cycle is longer than no epoch.")
    layer = parent_layer(start)
    parent = build_config(layer)
    if not all(0 <= at < parent.schedule.period for at in request.constant or ()):
        raise RequestError(
            f"--constant names epochs whose rate is kept, from 0 on and before {parent.schedule.period:g}, where the "
            "cosine comes to zero."
        )
    fast = next((average for average in parent.averaging.values() if average.kind == "fast-swa"), None)
    every = fast.every if fast is not None else None
    until = request.until or int(max(epoch, parent.schedule.length) + 3 * max(parent.schedule.cycle, 1.0))
    if until <= epoch:
        raise RequestError(f"--until {until:g}: {start} is at epoch {epoch:g} already.")
    common = {
        "start": {"run": start},
        "averaging": {"fast_swa": {"kind": "fast-swa", "start": epoch, "every": every or 1.0}},
        "evaluation": {"every": max(round(every or 1.0), 1)},
        "checkpoint": {"keep": [], "keep_every": 0},
        "analysis": {"gradients": 0},
    }
    found: dict[str, Config] = {}
    for cycle in request.cycles or ():
        changes = {"schedule": {"cycle": cycle, "after": "cycles", "epochs": until}}
        found[f"cycle-{cycle:g}"] = build_config(layer, common, changes)
    for at in request.constant or ():
        changes = {"schedule": {"after": "constant", "constant_lr": unmodified(parent, at), "epochs": until}}
        found[f"constant-{at:g}"] = build_config(layer, common, changes)
    return found


def train_forks(start: str, request: Request) -> list[Path]:
    """Train the forks that are not there yet, under analysis/schedule of the run; the same command goes on."""
    folder, checkpoint = checkpoint_of(start, say)
    paths = []
    for name, config in forks(start, float(checkpoint.facts["epoch"]), request).items():
        path = folder.path / "analysis" / "schedule" / name
        if (path / "config.toml").exists():
            resume(path, {"schedule": {"epochs": config.schedule.epochs}}, Quiet(), lambda line: None)
        else:
            say(f"training {path}")
            train_new(config, path, Quiet(), say)
        paths.append(path)
    return paths


def _scheduled(path: Path, name: str) -> Scheduled:
    folder = RunFolder.open(path)
    config, course = folder.config(), course_of(folder, name)
    measured = [name for name in config.averaging if name in course.error]
    network = next(iter(preferred(measured, config.averaging)), None)
    if network is None:
        raise RequestError(f"{path} measured no average; train it with --averaging.fast_swa.kind fast-swa.")
    after = config.schedule
    rate = unmodified(config, after.length) if after.constant_lr is None else after.constant_lr
    return Scheduled(name, after.after, after.cycle, rate, after.length, network, course)


def rows(result: Sequence[Scheduled]) -> list[dict[str, Any]]:
    """A line for each run and epoch."""
    return [
        {
            "run": one.run,
            "after": one.after,
            "cycle": one.cycle if one.after == "cycles" else "",
            "rate": one.rate if one.after == "constant" else "",
            "epoch": float(epoch),
            "images": one.course.images,
            "error": float(one.course.error[one.network][number]),
            "student_error": float(one.course.error["student"][number]),
        }
        for one in result
        for number, epoch in enumerate(one.course.epochs)
        if np.isfinite(one.course.error[one.network][number])
    ]


def told(result: Sequence[Scheduled]) -> list[str]:
    """Where each run came to."""
    names = _names(result)
    return [
        f"{names[one.run]}: {one.course.images} error {one.course.error[one.network][-1]:.2f}% "
        f"(student {one.course.error['student'][-1]:.2f}%) at epoch {one.course.epochs[-1]:g}"
        for one in result
    ]


def _names(result: Sequence[Scheduled]) -> dict[str, str]:
    """What each run did after its first descent; where two did the same, whose run it is too."""
    plain = {one.run: _name(one) for one in result}
    same = [*plain.values()]
    return {run: name if same.count(name) == 1 else f"{run}: {name}" for run, name in plain.items()}


def _name(one: Scheduled) -> str:
    if one.after == "constant":
        return f"constant rate {one.rate:.4g}"
    return f"cycle of {one.cycle:g} epoch{'s' if one.cycle != 1 else ''}" if one.cycle else "no cycles"


def draw(result: Sequence[Scheduled]) -> Any:
    """The average's error against the epoch: cycles on the left, constant rates on the right."""
    drawn, grid = new_grid(1, 2, 11, 4.2)
    from matplotlib import colormaps

    names = _names(result)
    errors = np.concatenate([one.course.error[one.network] for one in result])
    lowest, highest = float(np.nanmin(errors)), max(float(np.nanmax(errors)), float(np.nanmin(errors)) + 0.5)
    for panel, after, title in zip(grid[0], ("cycles", "constant"), ("cycles", "constant rates"), strict=True):
        chosen = sorted((one for one in result if one.after == after), key=lambda one: (one.cycle, one.rate))
        for number, one in enumerate(chosen):
            colour = colormaps["viridis"](0.9 * number / max(len(chosen) - 1, 1))
            series = one.course.error[one.network]
            panel.plot(one.course.epochs, series, ".-", color=colour, markersize=4, label=names[one.run])
        panel.set(title=title, xlabel="epoch", ylabel=f"{result[0].course.images} error of the average (%)")
        panel.set_ylim(lowest - 0.1 * (highest - lowest), highest + 0.1 * (highest - lowest))
        finish(panel)
        if not chosen:
            panel.text(0.5, 0.5, "no such run was named", ha="center", va="center", transform=panel.transAxes)
    drawn.tight_layout()
    return drawn


STUDY = Study(
    summary="the error of fast-SWA for several cycle lengths and constant rates; trains them as forks if asked",
    run=schedule,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"cycles", "constant", "until"}),
)
