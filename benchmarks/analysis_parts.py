"""What analyses.py trains and studies: its parts, their runs and studies, and how long these should take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastswa.analysis.study import Request
from fastswa.config import Config
from fastswa.layers import build_config, merge, recipe_layer

# Of one H200, measured (benchmarks/LOG.md): milliseconds a step of one run alone, and of each of several side by side.
ALONE, BESIDE = 1.75, 1.55
# Seconds before a command's first step, and before that of runs that follow in it; the time between epochs as a part of
# the steps'.
START, AGAIN, EDGES = 50, 5, 0.05


@dataclass(frozen=True)
class Run:
    """A run of a part: a recipe with changes, to an epoch; `steps` in an epoch are only for what it should take.

    `start` names another run of the part and an epoch up to which the two are one: it is a fork of that one there.
    """

    recipe: str
    epochs: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 920
    start: tuple[str, int] | None = None

    def config(
        self, common: Mapping[str, Any], changes: Mapping[str, Any] | None = None, folder: Path = Path()
    ) -> Config:
        own: dict[str, Any] = {"schedule": {"epochs": self.epochs}}
        if self.start is not None:
            parent, epoch = self.start
            own["start"] = {"run": f"{folder / parent}@{epoch}"}
        return build_config(recipe_layer(self.recipe), common, self.settings, own, changes or {})

    @property
    def length(self) -> int:
        """Steps that are its own."""
        return (self.epochs - (0 if self.start is None else self.start[1])) * self.steps


@dataclass(frozen=True)
class Made:
    """A study of some runs of the part under a name of its own, asked for as `--analyze` is; `seconds` are expected."""

    name: str
    asked: str
    runs: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Part:
    """Runs that are trained side by side, those that begin within others once these are so far, and the studies of all.

    `forks` are the runs of a study of schedules, which all begin at the end of the one that it names.
    """

    why: str
    runs: Mapping[str, Run]
    studies: tuple[Made, ...]
    forks: tuple[str, Request] | None = None


# The last epoch before SWA becomes the teacher: the step that ends epoch 150 puts the student itself in its place.
BEFORE_SWA = 149
KEPT = {"checkpoint": {"keep_every": 3, "keep_from": 180, "keep": [170]}, "analysis": {"gradients": 10}}
# Of these runs no course is drawn: they are measured seldom.
LATE = {"checkpoint": {"keep": [170, 180]}, "evaluation": {"every": 10}}
# The same reach in every part: figures join runs of several. At 30, the paper's, Pi's random rays are still flat.
RAYS = "rays --epochs 170,180 --distance 60"


def studied(*runs: str) -> tuple[Made, ...]:
    """The studies of runs to epoch 330."""
    each = len(runs)
    return (
        Made("gradients", "gradients", runs, 2),
        Made("averaging", "averaging", runs, 5),
        Made("teachers", "teachers", runs, 3),
        Made("diversity", "pairs --epochs 170,180", runs, 5 * each),
        Made("pairs", "pairs", runs, 25 * each),
        Made("rays", RAYS, runs, 30 * each),
        Made("landscape", "landscape --points 17 --margin 1", runs, 38 * each),
        Made("jacobian", "jacobian --epochs 180 --images 16 --draws 30", runs, 60 * each),
    )


def fewer(*counts: int) -> Part:
    """Pi with so many unlabelled images."""
    runs = {
        f"pi-{count}": Run(
            "cifar10-cnn-pi-4k", 180, merge(LATE, {"split": {"unlabelled": count}, "batch": {"steps": 920}})
        )
        for count in counts
    }
    said = " and ".join(map(str, counts))
    why = f"Pi to epoch 180 with {said} unlabelled images, 920 steps an epoch: A.1's random rays"
    return Part(why, runs, (Made("rays", RAYS, tuple(runs), 30 * len(runs)),))


PARTS = {
    "supervised": Part(
        "supervised training to epoch 330: figures 2 and 3, A.1, A.5, A.6, A.7",
        {"supervised": Run("cifar10-cnn-supervised-4k", 330, KEPT)},
        studied("supervised"),
    ),
    "pi": Part("Pi to epoch 330: the same", {"pi": Run("cifar10-cnn-pi-4k", 330, KEPT)}, studied("pi")),
    "mean-teacher": Part(
        "the Mean Teacher to epoch 330, and to 240 with SWA as teacher from 150: the same, and A.4",
        {
            "mean-teacher": Run(
                "cifar10-cnn-mean-teacher-4k", 330, merge(KEPT, {"checkpoint": {"keep": [BEFORE_SWA, 170]}})
            ),
            "swa-teacher": Run("cifar10-cnn-mean-teacher-swa-teacher-4k", 240, start=("mean-teacher", BEFORE_SWA)),
        },
        (
            Made("teachers-240", "teachers --epochs 240", ("mean-teacher", "swa-teacher"), 3),
            *studied("mean-teacher"),
        ),
    ),
    "unlabelled": fewer(0, 4000),
    "unlabelled-more": fewer(10000, 20000),
    "schedule": Part(
        "forks of one Mean Teacher run at epoch 180, 5k validation images: A.3",
        {
            "base": Run(
                "cifar10-cnn-mean-teacher-4k",
                180,
                {"split": {"validation": 5000}, "checkpoint": {"keep": [180]}, "evaluation": {"every": 10}},
                steps=820,
            ),
        },
        (Made("schedule", "schedule", ("cycle-10", "cycle-30", "cycle-60", "constant-150", "constant-180"), 5),),
        ("base", Request((), cycles=(10.0, 30.0, 60.0), constant=(150.0, 180.0), until=240)),
    ),
}


def fork_names(part: Part) -> list[str]:
    if part.forks is None:
        return []
    request = part.forks[1]
    return [f"cycle-{c:g}" for c in request.cycles or ()] + [f"constant-{at:g}" for at in request.constant or ()]


def expected(part: Part) -> dict[str, float]:
    """Seconds that training, the forks and the studies of a part should take on one H200."""

    def steps(counts: Sequence[int]) -> float:
        # Side by side until the shortest is over, and so on; a step's time is that of each run beside others.
        total, done, left = 0.0, 0, sorted(counts)
        while left:
            total += (left[0] - done) * len(left) * (BESIDE if len(left) > 1 else ALONE)
            done = left.pop(0)
        return total / 1e3

    first, later = ([run.length for run in part.runs.values() if (run.start is None) is new] for new in (True, False))
    found = {"training": (1 + EDGES) * steps(first) + START}
    if part.forks is not None:
        parent, request = part.forks
        base = part.runs[parent]
        later += [((request.until or 0) - base.epochs) * base.steps] * len(fork_names(part))
    if later:
        found["forks"] = (1 + EDGES) * steps(later) + AGAIN
    found["studies"] = sum(made.seconds for made in part.studies)
    return found


def plan() -> str:
    """Every part in words: its commands, each below ten minutes, and what they should take."""
    lines = []
    for name, part in PARTS.items():
        seconds = expected(part)
        commands = max(1, -(-round(sum(seconds.values())) // 520))
        parts = ", ".join(f"{what} {value:.0f} s" for what, value in seconds.items())
        lines += [
            f"{name}: {part.why}",
            f"  runs: {', '.join([*part.runs, *fork_names(part)])}",
            f"  expected on one H200: {sum(seconds.values()):.0f} s ({parts})",
            f"  {commands} x  python benchmarks/analyses.py {name} --minutes 9 --data DATA --out .",
        ]
        lines += [f"    {made.name}: {made.asked}  ({made.seconds:.0f} s)" for made in part.studies]
    return "\n".join(lines)
