"""What a run folder says of itself: settings, evaluations, how far it came and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastswa.config import Config
from fastswa.training.again import content_of
from fastswa.training.feed import learning_rate
from fastswa.training.folder import RunFolder, preferred

# The sets of images that errors are measured on, and their key in metrics.jsonl.
SETS = {"test": "error", "validation": "validation_error", "source": "source_error"}


@dataclass(frozen=True)
class Cost:
    """`images` counts every view of an image that a step took; evaluations are within `seconds`."""

    seconds: float
    steps: int
    images: int

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else float("nan")


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells it; `models_epoch` is that of the models in it, None where there are none.

    `content` is what it knows images of one's own by, wherever they lie; None where it notes none.
    """

    path: Path
    config: Config
    metrics: list[dict[str, Any]]
    environment: dict[str, Any]
    models_epoch: float | None
    content: str | None = None

    @property
    def name(self) -> str:
        here = self.path.resolve()
        return f"{here.parent.name}/{here.name}" if here.name.startswith("seed-") else here.name

    @property
    def finished(self) -> bool:
        return self.models_epoch is not None and self.models_epoch >= self.config.schedule.epochs

    @property
    def trained(self) -> bool:
        """Whether its last evaluation is that of its last epoch, whatever became of its model."""
        return bool(self.metrics) and self.epoch >= self.config.schedule.epochs

    @property
    def epoch(self) -> float:
        """How far its evaluations reach."""
        return float(self.metrics[-1]["epoch"]) if self.metrics else 0.0

    @property
    def sets(self) -> list[str]:
        """The sets of images it was measured on, the test images first."""
        return [name for name in SETS if any(self.errors(line, name) for line in self.metrics)]

    @property
    def networks(self) -> list[str]:
        """Every network that was measured: student, teacher, then the averages as the settings list them."""
        found = {name for line in self.metrics for images in SETS for name in self.errors(line, images)}
        order = ["student", "teacher", *self.config.averaging]
        return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))

    @property
    def chosen(self) -> str:
        """The network that the run offers for use."""
        return next(iter(preferred(self.networks, self.config.averaging)), "student")

    def errors(self, line: dict[str, Any], images: str) -> dict[str, float]:
        """One evaluation's errors on a set of images, by network."""
        figures = line.get(SETS[images])
        if not isinstance(figures, dict):
            return {}
        return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}

    def final(self, images: str) -> dict[str, float]:
        """The last evaluation's errors on a set of images."""
        return self.errors(self.metrics[-1], images) if self.metrics else {}

    def curve(self, images: str, network: str) -> tuple[tuple[float, float], ...]:
        """(epoch, error) of each evaluation that has one."""
        lines = ((line, self.errors(line, images)) for line in self.metrics)
        return tuple((float(line["epoch"]), errors[network]) for line, errors in lines if network in errors)

    def gain(self, images: str, network: str) -> tuple[tuple[float, float], ...]:
        """(epoch, points of error that the network has less than the student)."""
        student = dict(self.curve(images, "student"))
        return tuple(
            (epoch, student[epoch] - error) for epoch, error in self.curve(images, network) if epoch in student
        )

    def learning_rate(self, epoch: float) -> float:
        return learning_rate(self.config, epoch)

    def cycle_ends(self) -> tuple[float, ...]:
        """The epochs at which the learning rate jumps back up."""
        schedule = self.config.schedule
        if schedule.after != "cycles" or schedule.cycle <= 0:
            return ()
        count = max(math.ceil((schedule.epochs - schedule.length) / schedule.cycle), 0)
        return tuple(schedule.length + number * schedule.cycle for number in range(count))

    @property
    def cost(self) -> Cost | None:
        """What it took to come so far; a fork's own part only."""
        if not self.metrics:
            return None
        last = self.metrics[-1]
        steps, epoch = int(last["step"]), float(last["epoch"])
        parent = self.environment.get("parent")
        if isinstance(parent, dict) and epoch > 0:
            # Those of before it was written there had epochs of one length.
            steps -= int(parent.get("step", round(float(parent.get("epoch", 0)) * steps / epoch)))
        return Cost(float(last.get("seconds", 0.0)), steps, steps * self.config.batch.size)

    @property
    def device(self) -> str:
        """Where it ran, in words."""
        facts = self.environment
        if str(facts.get("device", "")).startswith("cuda"):
            return str(facts.get("gpu") or facts["device"])
        threads = self.config.device.threads or facts.get("threads")
        machine = facts.get("machine")
        words = f"CPU ({machine})" if machine else "CPU"
        return f"{words}, {threads} thread{'s' if threads != 1 else ''}" if threads else words


def read_run(path: Path) -> RunRecord:
    """The record of a run folder; refuses one that holds no run."""
    folder = RunFolder.open(path)
    content = content_of(path)
    return RunRecord(
        path, folder.config(), folder.metrics(), folder.known_environment(), folder.models_epoch(), content
    )


def short_names(runs: Sequence[RunRecord]) -> list[str]:
    """The runs' names, or as much of the end of each path as tells them apart."""
    parts = [run.path.resolve().parts for run in runs]
    longest = max(map(len, parts), default=0)
    tries = ([run.name for run in runs], *(["/".join(part[-k:]) for part in parts] for k in range(2, longest)))
    return next((names for names in tries if len(set(names)) == len(names)), [str(run.path) for run in runs])
