"""The page's part on errors: curves over the learning rate, the gain of each average, and both in numbers."""

from __future__ import annotations

import math
from typing import Any

from fastswa.console import shown
from fastswa.report import words
from fastswa.report.charts import Curve, Rate, error_chart, gain_chart
from fastswa.report.findings import Findings
from fastswa.report.page import Figure, Table, styles
from fastswa.report.record import RunRecord
from fastswa.report.remarks import standard_error

_ROWS = 200


def errors_part(run: RunRecord, found: Findings | None) -> dict[str, Any] | None:
    if not run.sets:
        return None
    style = styles(run.networks)
    epochs = max(float(run.config.schedule.epochs), run.epoch)
    rate = Rate(run.learning_rate, run.cycle_ends())
    figures = []
    for images in run.sets:
        curves = [Curve(shown(name), style[name], run.curve(images, name)) for name in run.networks]
        curves = [curve for curve in curves if curve.points]
        legend = [(curve.name, curve.style) for curve in curves]
        label = f"Line chart: {images} error in percent against epoch, for {', '.join(name for name, _ in legend)}"
        figures.append(Figure(error_chart(curves, epochs, rate, label), _error_caption(run, images), legend))
    figures += filter(None, (_gain_figure(run, epochs), _agreement_figure(run, epochs)))
    return {
        "figures": figures,
        "final": [_final_table(run, images) for images in run.sets],
        "standard": _standard_errors(run, found),
        "evaluations": _evaluations(run),
    }


def _error_caption(run: RunRecord, images: str) -> str:
    target = run.config.data.target is not None
    whose = {"test": "the target's test", "source": "the source's test", "validation": "the source's validation"}
    sentences = [f"Error on {whose[images] if target else f'the {images}'} images; below, the learning rate."]
    if any(0 < end < run.config.schedule.epochs for end in run.cycle_ends()):
        sentences.append("Dotted lines: a cycle ends and the rate jumps back up.")
    for name, average in run.config.averaging.items():
        if name in run.networks:
            every = average.every or 0.0
            often = {0.0: "every step", 1.0: "every epoch"}.get(every, f"every {every:g} epochs")
            sentences.append(f"{shown(name)} averages from epoch {average.start or 0:g} on, {often}.")
    return " ".join(sentences)


def _gain_figure(run: RunRecord, epochs: float) -> Figure | None:
    images, style = run.sets[0], styles(run.networks)
    curves = [
        Curve(shown(name), style[name], run.gain(images, name))
        for name in run.networks
        if name != "student" and run.gain(images, name)
    ]
    if not curves:
        return None
    label = f"Line chart: points of {images} error that each average has less than the student, against epoch"
    caption = (
        f"The gain of each average: points of {images} error that it has less than the student of the same epoch. "
        "Above the line it is better."
    )
    return Figure(gain_chart(curves, epochs, label), caption, [(curve.name, curve.style) for curve in curves])


def _agreement_figure(run: RunRecord, epochs: float) -> Figure | None:
    """How often the other networks say of the target's images what the student says."""
    style = styles(run.networks)
    lines = [
        (float(line["epoch"]), line["agreement"]) for line in run.metrics if isinstance(line.get("agreement"), dict)
    ]
    curves = [
        Curve(shown(name), style[name], tuple((epoch, said[name]) for epoch, said in lines if name in said))
        for name in run.networks
        if any(name in said for _, said in lines)
    ]
    if not curves:
        return None
    names = ", ".join(curve.name for curve in curves)
    label = f"Line chart: percent of target images of which each network says what the student says, for {names}"
    caption = (
        "Agreement on the target: of how many of its training images, in percent, each network says what the student "
        "of the same epoch says. No label is needed for it, nor used."
    )
    legend = [(curve.name, curve.style) for curve in curves]
    return Figure(error_chart(curves, epochs, None, label), caption, legend)


def _final_table(run: RunRecord, images: str) -> Table:
    """Each network's last error on a set of images, and its gain over the student."""
    last = run.metrics[-1].get("averaged")
    averaged = last if isinstance(last, dict) else {}
    final = run.final(images)
    student = final.get("student")
    rows = []
    for name in run.networks:
        error = final.get(name)
        gains = [words.NONE, words.NONE]
        if name != "student" and error is not None and student is not None:
            gain = student - error
            gains = [words.points(gain), f"{words.points(gain / student * 100, 1)}%" if student else words.NONE]
        iterates = words.count(averaged[name]) if isinstance(averaged.get(name), int) else words.NONE
        rows.append([f"{shown(name)}{'*' if name == run.chosen else ''}", words.percent(error), *gains, iterates])
    chosen = run.networks.index(run.chosen)
    return Table(
        f"{images.capitalize()} error at epoch {run.epoch:g}, each average's gain over its student and its iterates",
        ("network", "error", "gain, points", "fewer errors", "iterates"),
        rows,
        strong=frozenset((chosen, column) for column in range(1, 5)),
    )


def _standard_errors(run: RunRecord, found: Findings | None) -> list[str]:
    """How exact an error on so many images is."""
    if found is None:
        return []
    made = []
    for images in run.sets:
        error = run.final(images).get(run.chosen)
        if error is not None and math.isfinite(error) and found.counts[images]:
            off = standard_error(error, found.counts[images])
            made.append(
                f"On {words.plural(found.counts[images], images + ' image')} an error of {words.percent(error)} "
                f"has a standard error of {off:.2f} points."
            )
    return made


def _evaluations(run: RunRecord) -> Table:
    """Every evaluation in numbers: what the curves draw."""
    columns = [(images, name) for images in run.sets for name in run.networks]
    several = len(run.sets) > 1
    head = ["epoch", *(f"{images} {shown(name)}" if several else shown(name) for images, name in columns)]
    every = math.ceil(len(run.metrics) / _ROWS)
    kept = run.metrics[::-1][:: every or 1][::-1]
    rows = []
    for line in kept:
        figures = [words.percent(run.errors(line, images).get(name)) for images, name in columns]
        rate = line.get("learning_rate")
        rows.append([f"{line['epoch']:g}", *figures, f"{rate:.3g}" if isinstance(rate, int | float) else words.NONE])
    more = f"Every {every}th evaluation; metrics.jsonl has all {len(run.metrics)}." if every > 1 else ""
    what = "error" if several else f"{run.sets[0]} error"
    return Table(f"Every evaluation: {what} of each network", [*head, "learning rate"], rows, more=more)
