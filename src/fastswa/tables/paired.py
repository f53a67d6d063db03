"""Whether averaging helps pseudo-label methods: fast-SWA, EMA and student of the same runs, paired.

Averages have batch-norm statistics taken anew at each evaluation, a student has those that its passes left; what is
averaging's own is seen beside the student with statistics as theirs (an average of the kind `last`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from fastswa.config import Config, to_dict
from fastswa.data.pace import Pace
from fastswa.tables.frontier import DATASETS, KIN, network_of
from fastswa.tables.measured import Result
from fastswa.tables.table import NETWORKS, NOT_MEASURED, Sheet, rounded
from fastswa.training.identity import fingerprint

COMPARED = (
    ("fast-swa", "student"),
    ("fast-swa", "last"),
    ("fast-swa", "ema"),
    ("ema", "student"),
    ("ema", "last"),
)
ALL = "all runs"


@dataclass(frozen=True)
class Run:
    """A finished run's last errors in percent, of the student and of its first average of each kind."""

    setting: str
    seed: int
    errors: dict[str, float]


@dataclass(frozen=True)
class Difference:
    """The errors of one network less those of another of the same runs, in points."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def better(self) -> int:
        """In how many runs the first network has the lower error."""
        return sum(value < 0 for value in self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean by Student's t; None for one run."""
        count = len(self.values)
        if count < 2:
            return None
        half = t_quantile(count - 1) * stdev(self.values) / math.sqrt(count)
        return self.mean - half, self.mean + half


def t_quantile(freedom: int) -> float:
    """How far from 0 Student's t with so many degrees of freedom reaches in 95% of all cases.

    With t = sqrt(freedom) tan(a) the density of a is proportional to cos(a) ** (freedom - 1).
    """
    angles = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95, below / below[-1], angles)))


def paired_runs(results: Sequence[Result]) -> list[Run]:
    """The finished runs of FixMatch and its kin that measured a student, an EMA and fast-SWA on test images.

    Trials that hold training images out for validation are none of them; runs that repeat another count as one with it.
    """
    found: dict[tuple[str, int, str], list[dict[str, float]]] = defaultdict(list)
    for result in results:
        config = result.config
        if config.method.name not in KIN or result.epochs < config.schedule.epochs:
            continue
        if result.partial or config.split.validation:
            continue
        names = {"student": "student"}
        for name, average in config.averaging.items():
            names.setdefault(average.kind, name)
        last = max(result.metrics, key=lambda line: int(line["epoch"]))
        errors = {kind: last["error"][name] for kind, name in names.items() if name in last.get("error", {})}
        if {"student", "ema", "fast-swa"} <= errors.keys():
            source = DATASETS.get(config.data.source, config.data.source)
            labels = "all" if config.split.labels is None else f"{config.split.labels:,}"
            setting = f"{source}, {labels} labels, {KIN[config.method.name]}, {network_of(config)}{_length(config)}"
            found[setting, result.seed, fingerprint(to_dict(config))].append(errors)
    return [Run(setting, seed, _means(errors)) for (setting, seed, _), errors in found.items()]


def _length(config: Config) -> str:
    batch = config.batch
    if batch.steps is None:
        return ""
    return f", {Pace(batch.steps, batch.pace or ()).before(config.schedule.epochs):,} steps"


def _means(repeats: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean error of each network that all of a seed's runs have."""
    shared = [name for name in repeats[0] if all(name in errors for errors in repeats)]
    return {name: mean(errors[name] for errors in repeats) for name in shared}


def difference(runs: Sequence[Run], first: str, second: str) -> Difference:
    """One network's errors less another's, run by run."""
    return Difference(tuple(run.errors[first] - run.errors[second] for run in runs))


def paired(results: Sequence[Result]) -> Sheet:
    """The differences by setting, and over all runs."""
    runs = paired_runs(results)
    settings = sorted({run.setting for run in runs})
    groups = [(setting, [run for run in runs if run.setting == setting]) for setting in settings]
    lines = [_line(name, chosen, *pair) for name, chosen in [*groups, (ALL, runs)] for pair in COMPARED]
    return Sheet(
        name="paired",
        title="Difference of test errors in points, within the same runs: averages with pseudo-label methods",
        columns=("setting", "row", "runs", "difference", "95% interval", "lower in"),
        rows=[line[0] for line in lines],
        records=[line[1] for line in lines],
        marks=["plain" if runs else "dim"] * len(lines),
        groups=[line[0][0] for line in lines],
        notes=[
            "Every finished run of FixMatch, FlexMatch or FreeMatch in the results that measured student, EMA and "
            "fast-SWA, at its last epoch; a difference below 0 says that the first network errs less. The interval is "
            "of the mean, by Student's t. 'Student refreshed' is the student with batch-norm statistics taken anew as "
            "the averages' are, where a run has it.",
        ],
    )


def _line(setting: str, runs: Sequence[Run], first: str, second: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    title = f"{NETWORKS[first]} less {NETWORKS[second]}"
    runs = [run for run in runs if {first, second} <= run.errors.keys()]
    record: dict[str, Any] = {"setting": setting, "first": first, "second": second, "runs": len(runs)}
    record["seeds"] = [run.seed for run in runs]
    if not runs:
        empty = {"difference": None, "low": None, "high": None, "lower_in": None, "status": NOT_MEASURED}
        return (setting, title, "0", NOT_MEASURED, "", ""), record | empty
    found = difference(runs, first, second)
    low, high = found.interval or (None, None)
    interval = "" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"
    record |= {"difference": rounded(found.mean), "low": rounded(low), "high": rounded(high)}
    record |= {"lower_in": found.better, "status": "measured"}
    return (setting, title, str(len(runs)), f"{found.mean:+.3f}", interval, f"{found.better} of {len(runs)}"), record
