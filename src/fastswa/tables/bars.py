"""Bar plots of a table: the paper's figures as bars, ours as points on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastswa.tables.figures import COLOURS, NAMES, new_figure
from fastswa.tables.measured import Result
from fastswa.tables.rows import TABLES
from fastswa.tables.table import Line, lines

METHODS = {"mean-teacher": "Mean Teacher", "pi": "Pi model"}
BASE = "base"


def bars_of(name: str, results: Sequence[Result]) -> dict[str, dict[str, dict[str, Line]]]:
    """The lines drawn: by method, by bar (base, SWA, fast-SWA), by labels.

    A bar's averages are of the first epoch for which the table has both SWA and fast-SWA.
    """
    found = [
        line
        for line in lines(name, results)
        if line.compared and line.cell.method in METHODS and line.cell.epoch is not None
    ]
    epochs = {
        averaging: {line.epoch for line in found if line.cell.averaging == averaging}
        for averaging in ("swa", "fast-swa")
    }
    epoch = min(epochs["swa"] & epochs["fast-swa"])
    chosen: dict[str, dict[str, dict[str, Line]]] = {}
    for line in found:
        averaging, method = line.cell.averaging, line.cell.method
        if averaging == "none" or (averaging in epochs and line.epoch == epoch):
            bar = BASE if averaging == "none" else averaging
            chosen.setdefault(method, {}).setdefault(bar, {})[line.labels] = line
    return chosen


def draw_bars(name: str, results: Sequence[Result]) -> Any:
    """One panel a method, one group of bars a number of labels; ours are diamonds with their spread."""
    chosen = bars_of(name, results)
    drawn, panels = new_figure(len(chosen), 5.6 * len(chosen) if len(chosen) > 1 else 7, 4, sharey=True)
    for panel, method in zip(panels, [method for method in METHODS if method in chosen], strict=True):
        _panel(panel, method, chosen[method])
    panels[0].set_ylabel("test error (%)")
    experiment = TABLES[name]
    drawn.suptitle(f"{experiment.title}, {experiment.preset} schedule: bars the paper's, diamonds ours")
    drawn.tight_layout()
    return drawn


def _panel(panel: Any, method: str, bars: dict[str, dict[str, Line]]) -> None:
    columns = list(bars[BASE])
    width = 0.8 / len(bars)
    ours = []
    for number, averaging in enumerate(bar for bar in (BASE, "swa", "fast-swa") if bar in bars):
        network = averaging if averaging != BASE else "teacher" if method == "mean-teacher" else "student"
        offset = (number - (len(bars) - 1) / 2) * width
        shown = [(place + offset, bars[averaging][labels]) for place, labels in enumerate(columns)]
        epoch = shown[0][1].epoch
        panel.bar(
            [place for place, _ in shown],
            [line.cell.error for _, line in shown],
            width * 0.92,
            yerr=[line.cell.std or 0.0 for _, line in shown] if shown[0][1].cell.std is not None else None,
            color=COLOURS[network],
            error_kw={"elinewidth": 1, "capsize": 2},
            label=f"{NAMES[network]} ({epoch})",
        )
        ours += [(place, line.ours) for place, line in shown if line.ours is not None]
    for number, (place, measured) in enumerate(ours):
        panel.errorbar(
            place,
            measured.mean,
            yerr=measured.std,
            fmt="D",
            color="black",
            markerfacecolor="white",
            markersize=5,
            capsize=3,
            zorder=5,
            label=None if number else "ours",
        )
    panel.set_xticks(range(len(columns)), columns)
    panel.set_xlabel("labels")
    panel.set_title(METHODS[method])
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)
    panel.legend(frameon=False)
