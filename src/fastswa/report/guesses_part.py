"""The page's part on guesses that teach: how many of the unlabelled images' pass, how evenly, how many are wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastswa.report import words
from fastswa.report.charts import Curve, error_chart
from fastswa.report.page import Figure, Table
from fastswa.report.record import RunRecord

# A figure of a line's `pseudo_labels`: its name on the page, its line's style, and what makes percent of it.
_FIGURES = {
    "passing": ("passing", "s-teacher", 100.0),
    "largest_class": ("largest class", "s-swa", 100.0),
    "error": ("wrong", "s-fast-swa", 1.0),
}
_ROWS = 200


def guesses_part(run: RunRecord) -> dict[str, Any] | None:
    """The chart and its numbers; None for methods that learn from no guesses."""
    lines = [(float(line["epoch"]), _percents(line)) for line in run.metrics]
    there = [name for name in _FIGURES if any(name in figures for _, figures in lines)]
    if not there:
        return None
    curves = [
        Curve(
            _FIGURES[name][0], _FIGURES[name][1], tuple((e, figures[name]) for e, figures in lines if name in figures)
        )
        for name in there
    ]
    epochs = max(float(run.config.schedule.epochs), run.epoch)
    label = f"Line chart: in percent against epoch, {', '.join(curve.name for curve in curves)}"
    every = math.ceil(len(lines) / _ROWS) or 1
    rows = [
        [f"{epoch:g}", *(words.percent(figures.get(name)) for name in there)]
        for epoch, figures in lines[::-1][::every][::-1]
    ]
    table = Table("Guesses that teach, by evaluation", ["epoch", *(curve.name for curve in curves)], rows)
    legend = [(curve.name, curve.style) for curve in curves]
    return {"figure": Figure(error_chart(curves, epochs, None, label), _caption(run, there), legend), "table": table}


def _percents(line: Mapping[str, Any]) -> dict[str, float]:
    """One evaluation's figures in percent."""
    figures = line.get("pseudo_labels")
    if not isinstance(figures, dict):
        return {}
    return {
        name: scale * float(figures[name])
        for name, (_, _, scale) in _FIGURES.items()
        if isinstance(figures.get(name), int | float)
    }


def _caption(run: RunRecord, there: list[str]) -> str:
    images = "unlabelled" if run.config.data.target is None else "target"
    sentences = [
        f"Passing: the share of the {images} images of which a prediction was certain enough to learn from, since the "
        "evaluation before. Largest class: the share of these that one class takes; near 100% the network calls "
        "everything the same."
    ]
    if "error" in there:
        sentences.append(
            "Wrong: how many of those whose label is known were of another class; nothing is learnt from it."
        )
    return " ".join(sentences)
