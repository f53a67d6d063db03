"""The paper's figures: the schedule with what is averaged, error against epoch, and the bar plots, as SVG and PNG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fastswa.config import AverageConfig, Config, ScheduleConfig
from fastswa.errors import RequestError
from fastswa.layers import build_config
from fastswa.registry import nearest
from fastswa.shorthands import PRESETS
from fastswa.tables.measured import Result, by_row, load_results, network_name
from fastswa.tables.rows import TABLES, Row, all_rows
from fastswa.whole import replacing

# The colours of `fastswa demo`: apart in hue and in lightness. The EMA of Pi takes the teacher's.
COLOURS = {"student": "#8a8a8a", "teacher": "#1f77b4", "ema": "#1f77b4", "swa": "#e6892b", "fast-swa": "#c0392b"}
NAMES = {"student": "student", "teacher": "teacher (EMA)", "ema": "EMA", "swa": "SWA", "fast-swa": "fast-SWA"}

# Letters of a title in a line.
_TITLE = 76
# The paper's points of one epoch stand beside each other where they would hide one another.
_ASIDE = {"student": -1, "teacher": 0, "ema": 1, "swa": -0.5, "fast-swa": 0.5}


# All of them in one sentence: the recipes are too many to be named.
OFFERED = f"there are: schedule, {', '.join(TABLES)}, and any recipe of these tables (`fastswa recipes`)."


def figure_names() -> list[str]:
    """What can be drawn: the schedule, a bar plot a table, error against epoch a recipe."""
    return ["schedule", *TABLES, *all_rows()]


def figure(name: str, results: Path | None, out: Path) -> list[Path]:
    """Draw a figure into the folder `out` as NAME.svg and NAME.png, and give the two paths."""
    if name not in figure_names():
        raise RequestError(f"unknown figure '{name}'; {nearest(name, figure_names(), OFFERED)}")
    if name == "schedule":
        drawn = draw_schedule()
    elif name in TABLES:
        from fastswa.tables.bars import draw_bars

        drawn = draw_bars(name, load_results(results))
    else:
        row, found = all_rows()[name], by_row(load_results(results)).get(name, [])
        if row.variant == "often":
            from fastswa.tables.often import draw_often

            drawn = draw_often(row, found)
        else:
            drawn = draw_trend(row, found)
    return save(drawn, out, name)


def new_figure(columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A matplotlib figure that needs no screen, with its panels in a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, panels = pyplot.subplots(1, columns, figsize=(width, height), squeeze=False, **options)
    return drawn, panels[0]


def save(drawn: Any, out: Path, name: str) -> list[Path]:
    """Write a figure as SVG (the same bytes each time) and PNG."""
    import matplotlib
    from matplotlib import pyplot

    try:
        out.mkdir(parents=True, exist_ok=True)
        paths = [out / f"{name}.svg", out / f"{name}.png"]
        with replacing(paths[0]) as svg, matplotlib.rc_context({"svg.hashsalt": "fastswa"}):
            drawn.savefig(svg, format="svg", metadata={"Date": None})
        with replacing(paths[1]) as png:
            drawn.savefig(png, format="png", dpi=130)
    except OSError as error:
        raise RequestError(f"cannot write into {out}: {error.strerror}.") from error
    finally:
        pyplot.close(drawn)
    return paths


def averaged_epochs(average: AverageConfig, until: float) -> np.ndarray:
    """The epochs whose weights an average takes, up to `until` included: (N,)."""
    assert average.start is not None
    assert average.every
    count = math.floor((until - average.start) / average.every + 1e-9) + 1
    return average.start + average.every * np.arange(max(count, 0))


def draw_schedule() -> Any:
    """The learning rate of the short and the long schedule, with the points that SWA and fast-SWA average."""
    drawn, panels = new_figure(2, 11, 3.8, sharey=True)
    for panel, (preset, ends) in zip(panels, {"short": 300, "long": 2300}.items(), strict=True):
        config = build_config(
            {
                "schedule": {"preset": preset},
                "optimiser": {"lr": 1.0},
                "averaging": {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa"}},
            }
        )
        _schedule_panel(panel, config, ends)
        numbers = ", ".join(f"{key} {value}" for key, value in PRESETS[preset].items())
        panel.set_title(f"{preset}: {numbers}")
    panels[0].set_ylabel("learning rate / highest")
    drawn.tight_layout()
    return drawn


def _schedule_panel(panel: Any, config: Config, ends: float) -> None:
    epochs = np.linspace(0, ends, 4000, endpoint=False)
    panel.plot(epochs, [rate(config.schedule, epoch) for epoch in epochs], color="#404040", linewidth=1.2)
    looks = {"fast_swa": ("fast-swa", "o", 4.5, 3), "swa": ("swa", "D", 7.5, 4)}
    for name, (network, marker, size, order) in looks.items():
        average = config.averaging[name]
        points = averaged_epochs(average, ends)
        rates = [rate(config.schedule, epoch, reached=True) for epoch in points]
        label = f"{NAMES[network]} averages from epoch {average.start:g}, every {average.every:g}"
        panel.plot(
            points,
            rates,
            linestyle="",
            marker=marker,
            markersize=size,
            color=COLOURS[network],
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=label,
            zorder=order,
        )
    panel.set_xlabel("epoch")
    panel.set_ylim(0, 1.05)
    panel.set_xlim(0, ends * 1.02)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, loc="upper right")


def rate(schedule: ScheduleConfig, epoch: float, *, reached: bool = False) -> float:
    """The factor on the learning rate; with `reached`, at a cycle's end, the rate that the cycle has come down to."""
    from fastswa.schedule import cyclic_cosine

    epoch = epoch - 1e-9 if reached else epoch
    return cyclic_cosine(epoch, length=schedule.length, period=schedule.period, cycle=schedule.cycle)


@dataclass(frozen=True)
class Curve:
    """Error against epoch over seeds: everything is (E,); `seeds` counts those that a point is the mean of.

    `each` has every run's own epochs and errors, which may be more of them than all seeds share.
    """

    epochs: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray
    each: tuple[tuple[np.ndarray, np.ndarray], ...]

    @property
    def sparse(self) -> bool:
        """Whether a run was measured between the points that all share, so that lines from one to the next mislead."""
        return any(len(epochs) > len(self.epochs) for epochs, _ in self.each)


def curves(row: Row, results: Sequence[Result]) -> dict[str, Curve]:
    """The curve of each network of a row."""
    whole = whole_runs(row, results)
    named = {network: [(one, network_name(one, row, network)) for one in whole] for network in COLOURS}
    drawn = {network: curve(pairs) for network, pairs in named.items()}
    return {network: line for network, line in drawn.items() if line is not None}


def whole_runs(row: Row, results: Sequence[Result]) -> list[Result]:
    """The runs that came to the end of the first descent; if none did, all."""
    return [one for one in results if one.epochs >= row.experiment.length] or list(results)


def curve(named: Sequence[tuple[Result, str | None]]) -> Curve | None:
    """The curve of the network that each run keeps under a name; None where none has it.

    An epoch is drawn if every seed that came so far was measured at it; runs that repeat a seed count as one.
    """
    seeds: dict[int, dict[int, list[float]]] = {}
    each = []
    for result, name in named:
        own = [(line["epoch"], line["error"][name]) for line in result.metrics if name in line.get("error", {})]
        each += [tuple(np.array(own).T)] if own else []
        for epoch, error in own:
            seeds.setdefault(result.seed, {}).setdefault(epoch, []).append(error)
    points = []
    for epoch in sorted({epoch for series in seeds.values() for epoch in series}):
        reached = [series for series in seeds.values() if max(series) >= epoch]
        if all(epoch in series for series in reached):
            errors = [mean(series[epoch]) for series in reached]
            points.append((epoch, mean(errors), min(errors), max(errors), len(errors)))
    if not points:
        return None
    epochs, means, low, high, counts = np.array(points).T
    return Curve(epochs, means, low, high, counts, tuple(each))


def draw_curve(panel: Any, line: Curve, colour: str, label: str) -> None:
    """Mean and range over seeds; dashed where not all seeds go on. If they share few epochs, a thin line a run."""
    if line.sparse:
        for epochs, errors in line.each:
            panel.plot(epochs, errors, color=colour, linewidth=0.8, alpha=0.5)
        panel.plot(line.epochs, line.mean, color=colour, label=label, linestyle="", marker="o", markersize=5, zorder=3)
        return
    marker = {"marker": ".", "markersize": 4} if len(line.epochs) < 60 else {}
    full = int((line.seeds == line.seeds[0]).sum())
    panel.plot(line.epochs[:full], line.mean[:full], color=colour, label=label, zorder=3, **marker)
    panel.plot(line.epochs[full - 1 :], line.mean[full - 1 :], color=colour, linestyle="--", zorder=3, **marker)
    panel.fill_between(line.epochs, line.low, line.high, color=colour, alpha=0.15, lw=0)


def draw_trend(row: Row, results: Sequence[Result]) -> Any:
    """Error against epoch for each network, mean and range over seeds, with the paper's figures at their epochs."""
    refuse_none(row, results)
    measured = curves(row, results)
    if {"swa", "student"} <= measured.keys() and len(measured["swa"].epochs) == 1:
        del measured["swa"]  # of one model still: the student, whose point would hide it
    last = max(int(line.epochs[-1]) for line in measured.values())
    drawn, (panel,) = new_figure(1, 7.5, 4.6)
    for network, line in measured.items():
        draw_curve(panel, line, COLOURS[network], NAMES[network])
    _paper_points(panel, row, last, measured)
    _percent_axis(panel, measured)
    epoch_axis(panel, row, 0, last)
    panel.set_title(textwrap.fill(f"{described(row)}: {row.title}, {seeds_of(whole_runs(row, results))}", _TITLE))
    explain_seeds(panel, measured.values())
    panel.legend(frameon=False)
    drawn.tight_layout()
    return drawn


def refuse_none(row: Row, results: Sequence[Result]) -> None:
    """RequestError where there is nothing to draw."""
    if not results:
        raise RequestError(
            f"no result of {row.name} is there; train it with `fastswa sweep` or keep a run's figures with "
            "benchmarks/record.py first."
        )


def epoch_axis(panel: Any, row: Row, first: int, last: int) -> None:
    """An axis of epochs with its marks where cycles end."""
    cycle = PRESETS[row.experiment.preset]["cycle"]
    step = cycle * max(1, math.ceil((last - first) / cycle / 9))
    panel.set_xticks(range(first - first % step, last + 1, step))
    panel.set_xlim(first, last + 0.03 * (last - first))
    panel.set_xlabel("epoch")
    panel.set_ylabel("test error (%)")
    panel.grid(alpha=0.25, which="both")


def described(row: Row) -> str:
    """The data and the network of a run."""
    return f"{row.experiment.title}, {row.labels:,} labels" + (f" + {row.extra}" if row.extra else "")


def seeds_of(results: Sequence[Result]) -> str:
    """The seeds that a figure is drawn from."""
    seeds = sorted({result.seed for result in results})
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def explain_seeds(panel: Any, lines: Iterable[Curve]) -> None:
    """Entries of the legend for what is drawn of several seeds."""
    lines = list(lines)
    if any(line.sparse for line in lines):
        panel.plot([], [], color="#404040", linewidth=0.8, alpha=0.5, label="one run (points: mean over seeds)")
    if any(line.seeds.max() > 1 and not line.sparse for line in lines):
        panel.fill_between([], [], [], color="#404040", alpha=0.15, lw=0, label="range over seeds")
    lines = [line for line in lines if not line.sparse]
    if any(line.seeds.min() < line.seeds.max() for line in lines):
        panel.plot([], [], color="#404040", linestyle="--", label="not all seeds")


def _paper_points(panel: Any, row: Row, last: int, measured: Mapping[str, object]) -> None:
    shown = []
    for cell in row.cells:
        network = cell.averaging
        if network == "none":
            network = "teacher" if row.method == "mean-teacher" else "student"
        if cell.quoted or cell.epoch is None or cell.epoch > last or network not in measured:
            continue
        panel.errorbar(
            cell.epoch + 0.008 * last * _ASIDE[network],
            cell.error,
            yerr=cell.std,
            fmt="D",
            color=COLOURS[network],
            markerfacecolor="white",
            markersize=6,
            capsize=3,
            zorder=4,
        )
        shown.append(cell)
    if shown:
        label = "the paper, ± std" if any(cell.std is not None for cell in shown) else "the paper"
        panel.plot([], [], "D", color="black", markerfacecolor="white", markersize=6, label=label)


def _percent_axis(panel: Any, measured: Mapping[str, Curve]) -> None:
    """A logarithmic axis with plain numbers, from below the best; the first steep descent is cut off."""
    low = min(line.low.min() for line in measured.values())
    high = max(np.quantile(line.high, 0.97) for line in measured.values())
    panel.set_yscale("log")
    panel.set_ylim(low * 0.94, max(high, low * 1.3) * 1.05)
    ticks = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 80)
    panel.set_yticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(low * 0.94, max(high, low * 1.3) * 1.05)
