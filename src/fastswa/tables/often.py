"""Averaging more often: one training, averaged every three epochs, every epoch, four times an epoch, at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np

from fastswa.config import AverageConfig
from fastswa.tables.figures import (
    curve,
    described,
    draw_curve,
    epoch_axis,
    explain_seeds,
    new_figure,
    refuse_none,
    seeds_of,
    whole_runs,
)
from fastswa.tables.measured import Measured, Result, by_row, pooled, recipe_config
from fastswa.tables.rows import Row, all_rows
from fastswa.tables.runs import TableRun, run_of
from fastswa.tables.table import NOT_MEASURED, Sheet, our_record, our_text, rounded, signed

ROW = "cifar10-cnn-mean-teacher-often-4k"
# The ends of the first descent and of the cycles after it; the paper's tables print the first and the last.
EPOCHS = (180, 210, 240)
_COLOURS = ("#c0392b", "#e6892b", "#1f77b4", "#404040")


def frequencies() -> dict[str, AverageConfig]:
    """What is compared, by a name for people; the first is the paper's fast-SWA."""
    averages = [average for average in recipe_config(ROW).averaging.values() if average.kind == "fast-swa"]
    return {_often(average.every or 0): average for average in averages}


def _often(every: float) -> str:
    if every == 0:
        return "every step"
    if every < 1:
        return f"{round(1 / every)} times an epoch"
    return "every epoch" if every == 1 else f"every {every:g} epochs"


def _named(results: Sequence[Result], average: AverageConfig) -> list[tuple[Result, str | None]]:
    """Each run with the name under which it keeps an average."""
    return [
        (result, next((name for name, one in result.config.averaging.items() if one == average), None))
        for result in results
    ]


def often_runs() -> list[TableRun]:
    """The one run that all its averages are of."""
    names = [name for name, average in recipe_config(ROW).averaging.items() if average.kind == "fast-swa"]
    figures = tuple((name, epoch) for epoch in EPOCHS for name in names)
    return [replace(run_of(all_rows()[ROW]), figures=figures)]


def often(results: Sequence[Result]) -> Sheet:
    """The averages of the same runs side by side, and each less the first."""
    runs = by_row(results).get(ROW, [])
    rows: list[tuple[str, ...]] = []
    records, marks, groups = [], [], []
    for epoch in EPOCHS:
        first: Measured | None = None
        for title, average in frequencies().items():
            named = _named(runs, average)
            ours, models = pooled(named, epoch), _models(named, epoch)
            difference = _difference(ours, first)
            first = first or ours
            rows.append((str(epoch), title, str(models or ""), our_text(ours, NOT_MEASURED), signed(difference, 2)))
            facts = {"epoch": epoch, "every": average.every, "models": models, "difference": rounded(difference)}
            records.append(facts | our_record(ours, NOT_MEASURED))
            marks.append("dim" if ours is None else "plain")
            groups.append(f"epoch {epoch}")
    return Sheet(
        name="averaging-often",
        title="Test error in %: Mean Teacher, averaged more often",
        columns=("epoch", "averaged", "models", "ours (seeds)", "diff."),
        rows=rows,
        records=records,
        marks=marks,
        groups=groups,
        notes=[
            f"All averages are of the same runs, of {ROW}, and start at epoch 150; ± is the standard deviation over "
            "seeds, diff. the mean over seeds of the error less that of averaging every 3 epochs. The paper has no "
            "figures here: it says that averaging more often than once per epoch did not improve.",
        ],
    )


def _difference(ours: Measured | None, first: Measured | None) -> float | None:
    """The mean difference over the seeds, which both have."""
    if ours is None or first is None:
        return None
    return mean(ours.errors[seed] - first.errors[seed] for seed in first.errors.keys() & ours.errors.keys())


def _models(named: Sequence[tuple[Result, str | None]], epoch: int) -> int | None:
    """How many models an average holds at an epoch."""
    counts = [
        line["averaged"][name]
        for result, name in named
        for line in result.metrics
        if line["epoch"] == epoch and name in line.get("averaged", {})
    ]
    return counts[0] if counts else None


def draw_often(row: Row, results: Sequence[Result]) -> Any:
    """Error against epoch of each average, mean and range over seeds."""
    refuse_none(row, results)
    runs = whole_runs(row, results)
    drawn, (panel,) = new_figure(1, 7.5, 4.2)
    lines = {title: curve(_named(runs, average)) for title, average in frequencies().items()}
    found = {title: line for title, line in lines.items() if line is not None}
    for (title, line), colour in zip(found.items(), _COLOURS, strict=False):
        draw_curve(panel, line, colour, title)
    first, last = (int(pick(line.epochs[at] for line in found.values())) for pick, at in ((min, 0), (max, -1)))
    epoch_axis(panel, row, first, last)
    # The first points, of one model or a few, would flatten all that follows.
    highest = max(np.quantile(line.high, 0.9) for line in found.values())
    panel.set_ylim(min(line.low.min() for line in found.values()) - 0.1, highest + 0.2)
    panel.set_title(f"{described(row)}: how often weights are averaged, {seeds_of(runs)}", fontsize=11)
    explain_seeds(panel, found.values())
    panel.legend(frameon=False)
    drawn.tight_layout()
    return drawn
