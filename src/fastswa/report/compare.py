"""The page that compares several runs: curves over one another, final errors, what differs in their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fastswa.config import to_dict
from fastswa.console import shown
from fastswa.layers import flatten
from fastswa.report import words
from fastswa.report.charts import Curve, Rate, error_chart
from fastswa.report.page import Figure, Table, render
from fastswa.report.record import SETS, RunRecord, short_names
from fastswa.report.remarks import Remark

_COLOURS = 8
# What may differ between repeats of one experiment: its random numbers, its machine and its bookkeeping.
_SEEDS = ("seed", "split.seed")
_REPEATS = (*_SEEDS, "data.root", "start.run", "evaluation.", "checkpoint.", "device.", "log.")


def comparison_page(runs: Sequence[RunRecord]) -> str:
    """The whole page."""
    names = short_names(runs)
    settings = [flatten(to_dict(run.config)) for run in runs]
    sets = [images for images in SETS if any(images in run.sets for run in runs)]
    return render(
        "comparison.html",
        title=f"{len(runs)} runs compared",
        names=names,
        remarks=_remarks(runs, names, settings),
        figures=[_figure(runs, names, images) for images in sets],
        errors=[(images, _errors(runs, names, images, same=_same_images(runs, settings))) for images in sets],
        repeats=[table for images in sets for table in [_repeats(runs, names, settings, images)] if table],
        differing=_differing(names, settings),
        costs=_costs(runs, names),
    )


def _remarks(runs: Sequence[RunRecord], names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[Remark]:
    made = [
        Remark(f"{name} is unfinished (epoch {run.epoch:g} of {run.config.schedule.epochs}).", grave=True)
        for run, name in zip(runs, names, strict=True)
        if not run.finished and not run.trained
    ]
    if not _same_data(runs, settings):
        made.append(Remark("The runs were measured on different data: their errors cannot be compared.", grave=True))
    elif len({one.get("split.seed") for one in settings}) > 1 and any("validation" in run.sets for run in runs):
        made.append(Remark("The runs hold out different validation images (split.seed differs)."))
    if len({one.get("split.labels") for one in settings}) > 1:
        made.append(Remark("The runs had different numbers of labels."))
    return made


def _same_data(runs: Sequence[RunRecord], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the data have one name or one content: labels are added to a folder, and a folder is moved."""
    contents = {run.content for run in runs}
    named = {(one.get("data.source"), one.get("data.target")) for one in settings}
    return len(named) == 1 or (len(contents) == 1 and None not in contents)


def _same_images(runs: Sequence[RunRecord], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all hold out the same validation images, so that their errors can be chosen by."""
    return _same_data(runs, settings) and len({one.get("split.seed") for one in settings}) == 1


def _figure(runs: Sequence[RunRecord], names: Sequence[str], images: str) -> Figure:
    """The model to use of each run, and its student as a thin line."""
    curves, legend = [], []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        style = f"s-run-{number % _COLOURS + 1}{' turn' if number >= _COLOURS else ''}"
        chosen = run.curve(images, run.chosen)
        if not chosen:
            continue
        if run.chosen != "student":
            curves.append(Curve(f"{name}, student", f"{style} faint", run.curve(images, "student")))
        curves.append(Curve(f"{name}, {shown(run.chosen)}", style, chosen))
        legend.append((f"{name} ({shown(run.chosen)})", style))
    epochs = max(max(float(run.config.schedule.epochs), run.epoch) for run in runs)
    schedules = {tuple(run.config.schedule.model_dump().items()) for run in runs}
    same = len(schedules) == 1 and len({run.config.optimiser.lr for run in runs}) == 1
    rate = Rate(runs[0].learning_rate, runs[0].cycle_ends()) if same else None
    caption = f"Error on the {images} images of each run's model to use; thin: its student."
    if rate is not None:
        caption += " Below, the learning rate, which all share; dotted lines: a cycle ends."
    label = f"Line chart: {images} error in percent against epoch, for {', '.join(names)}"
    return Figure(error_chart(curves, epochs, rate, label), caption, legend)


def _networks(runs: Sequence[RunRecord]) -> list[str]:
    """All their networks: student and teacher, then the averages as the runs list them."""
    found = dict.fromkeys(name for run in runs for name in run.networks)
    return sorted(found, key=lambda name: ("student", "teacher", name).index(name))


def _errors(runs: Sequence[RunRecord], names: Sequence[str], images: str, *, same: bool) -> Table:
    """Final errors; the lowest on the same images stands out, on validation only: choosing on test ones spoils them."""
    networks = _networks(runs)
    rows, finals = [], []
    for run, name in zip(runs, names, strict=True):
        final = run.final(images)
        finals.append([final.get(network) for network in networks])
        rows.append([words.readable(name), f"{run.epoch:g}", *(words.percent(error) for error in finals[-1])])
    strong: frozenset[tuple[int, int]] = frozenset()
    if images == "validation" and same:
        known = [error for row in finals for error in row if error is not None]
        least = min(known, default=None)
        strong = frozenset(
            (row, column + 2) for row, errors in enumerate(finals) for column, e in enumerate(errors) if e == least
        )
    head = ("run", "epoch", *(shown(network) for network in networks))
    more = "The lowest stands out: choose by these, and read the test error of what was chosen." if strong else ""
    return Table(f"Final {images} error", head, rows, strong=strong, more=more)


def _repeats(
    runs: Sequence[RunRecord], names: Sequence[str], settings: Sequence[Mapping[str, Any]], images: str
) -> Table | None:
    """Mean and standard deviation over runs that differ in nothing but their seed.

    Runs of one seed count once, with their mean: what was trained again tells nothing of another seed. Those that are
    not at their last epoch do not count.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, (run, one) in enumerate(zip(runs, settings, strict=True)):
        if run.trained:
            groups.setdefault(_experiment(run, one), []).append(number)
    networks, rows = _networks(runs), []
    for members in groups.values():
        seeds: dict[tuple[Any, ...], list[dict[str, float]]] = {}
        for number in members:
            drawn = tuple(settings[number].get(name) for name in _SEEDS)
            seeds.setdefault(drawn, []).append(runs[number].final(images))
        if len(seeds) < 2:
            continue
        cells = []
        for network in networks:
            known = [[final[network] for final in finals if network in final] for finals in seeds.values()]
            errors = [fmean(one) for one in known if one]
            cells.append(f"{fmean(errors):.2f} ± {stdev(errors):.2f}" if len(errors) > 1 else words.NONE)
        rows.append([f"{words.readable(names[members[0]])} and {len(members) - 1} more", str(len(seeds)), *cells])
    head = ("runs", "seeds", *(shown(network) for network in networks))
    caption = f"{images.capitalize()} error in percent, mean ± standard deviation over seeds"
    return Table(caption, head, rows) if rows else None


def _experiment(run: RunRecord, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is the same in runs that repeat one experiment; of forks, the epoch that they were begun at too."""
    parent = run.environment.get("parent")
    begun = parent.get("epoch") if isinstance(parent, dict) else None
    same = {**settings, "data.source": run.content or settings["data.source"]}
    return begun, *sorted((name, str(value)) for name, value in same.items() if not name.startswith(_REPEATS))


def _differing(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> Table | None:
    """The settings that are not the same in all runs."""
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = [
        [key, *(words.setting(one[key]) if key in one else words.NONE for one in settings)]
        for key in keys
        if any(one.get(key) != settings[0].get(key) for one in settings)
    ]
    head = ["setting", *(words.readable(name) for name in names)]
    return Table("Settings that differ", head, rows, numbers=len(head)) if rows else None


def _costs(runs: Sequence[RunRecord], names: Sequence[str]) -> Table:
    rows = []
    for run, name in zip(runs, names, strict=True):
        cost = run.cost
        figures = [words.NONE] * 3
        if cost is not None:
            figures = [
                words.duration(cost.seconds),
                words.count(cost.steps),
                words.number(cost.steps_per_second, 3),
            ]
        rows.append([words.readable(name), *figures, words.readable(run.device)])
    return Table("What the runs took, evaluations included", ("run", "time", "steps", "a second", "device"), rows)
