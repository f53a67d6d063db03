"""Today's frontier: FixMatch and its kin as their authors print them, with steps and cost, and ours in minutes.

frontier.csv holds the published figures, how each was chosen among checkpoints, and where it was read; a figure that
could not be read anywhere is left open. Ours are the runs of RECIPES, found in results/ by their settings.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import mean
from typing import Any

from fastswa.config import Config
from fastswa.layers import Layer, build_config, merge, recipe_layer, without_others
from fastswa.tables.measured import Measured, Result, of_layer, pooled
from fastswa.tables.published import Published, all_published
from fastswa.tables.rows import TABLES, figure
from fastswa.tables.runs import TableRun
from fastswa.tables.table import NETWORKS, NOT_MEASURED, Sheet, our_record, our_text

RECIPES = (
    "cifar10-fixmatch-4k",
    "cifar10-fixmatch-4k-quick",
    "cifar10-fixmatch-250",
    "cifar10-fixmatch-40",
    "cifar100-fixmatch-10k",
)
KIN = {"fixmatch": "FixMatch", "flexmatch": "FlexMatch", "freematch": "FreeMatch"}
MODELS = ("resnet9", "wrn-28-2", "wrn-28-8")
SETTINGS = (("cifar10", 4000), ("cifar10", 250), ("cifar10", 40), ("cifar100", 10_000))
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
CHOSEN = {"median": "median of the last 20", "best": "best on test"}
NOT_CHECKED = "not checked"
# What a run of ours keeps, by the kind of its averages.
OURS = ("student", "ema", "fast-swa")


@dataclass(frozen=True)
class Frontier:
    """A published error in percent; None where it could not be checked. `chosen` says among which checkpoints.

    `steps`, `std`, `architecture`, `chosen` and `cost` are None or "" where nobody said; `checked` says where it was
    read.
    """

    dataset: str
    labels: int
    method: str
    architecture: str
    steps: int | None
    error: float | None
    std: float | None
    chosen: str
    cost: str
    source: str
    checked: str


@cache
def frontier_cells() -> tuple[Frontier, ...]:
    """Every line of frontier.csv, in its order."""
    text = (resources.files("fastswa") / "tables" / "frontier.csv").read_text("utf-8")
    return tuple(_cell(line) for line in csv.DictReader(text.splitlines()))


def _cell(line: dict[str, str]) -> Frontier:
    return Frontier(
        dataset=line["dataset"],
        labels=int(line["labels"]),
        method=line["method"],
        architecture=line["architecture"],
        steps=int(line["steps"]) if line["steps"] else None,
        error=float(line["error_percent"]) if line["error_percent"] else None,
        std=float(line["std"]) if line["std"] else None,
        chosen=line["chosen"],
        cost=line["cost"],
        source=line["source"],
        checked=line["checked"],
    )


def paper_best(dataset: str, labels: int) -> Published | None:
    """The lowest error that the paper on fast-SWA prints for itself, without extra images; None if it has none."""
    own = [
        cell
        for cell in all_published()
        if (cell.dataset, cell.labels, cell.extra) == (dataset, labels, "") and cell.table in TABLES and not cell.quoted
    ]
    return min(own, key=lambda cell: cell.error or math.inf, default=None)


def network_of(config: Config) -> str:
    """A network as people are told: with its width, where that is not the usual one."""
    model = config.model
    return model.name if model.width is None else f"{model.name}, width {model.width}"


@dataclass(frozen=True)
class Run:
    """A recipe, or the same with another of the methods or networks; its settings."""

    recipe: str
    layer: Layer
    config: Config

    @property
    def varied(self) -> bool:
        """Whether it is another run than the recipe itself."""
        return self.layer != recipe_layer(self.recipe)

    @property
    def steps(self) -> int:
        return self.config.schedule.epochs * (self.config.batch.steps or 0)

    @property
    def network(self) -> str:
        return network_of(self.config)

    @property
    def setting(self) -> tuple[str, int]:
        return self.config.data.source, self.config.split.labels or 0


@cache
def frontier_runs() -> tuple[Run, ...]:
    """The recipes, each followed by its variants."""
    return tuple(run for recipe in RECIPES for run in _variants(recipe))


def _variants(recipe: str) -> Iterator[Run]:
    layer = recipe_layer(recipe)
    own = (layer["method"]["name"], layer["model"]["name"])
    every = [(method, model) for method in KIN for model in MODELS]
    for method, model in sorted(every, key=lambda pair: pair != own):
        change = {"method": {"name": method}, "model": {"name": model}}
        changed = merge(without_others(layer, change), change)
        yield Run(recipe, changed, build_config(changed))


def table_runs() -> list[TableRun]:
    """What a sweep trains: the recipes, and each with the other methods on its own network."""
    own = {recipe: recipe_layer(recipe)["model"]["name"] for recipe in RECIPES}
    return [
        TableRun(
            run.recipe, run.config.method.name, run.setting[1], run.layer, _figures(run.config), run.varied, alone=True
        )
        for run in frontier_runs()
        if run.config.model.name == own[run.recipe]
    ]


def _figures(config: Config) -> tuple[tuple[str, int], ...]:
    """The networks of a run that the table shows, at its last epoch."""
    names: dict[str, str] = {average.kind: name for name, average in reversed(config.averaging.items())}
    return tuple((names.get(network, network), config.schedule.epochs) for network in OURS)


def frontier(results: Sequence[Result]) -> Sheet:
    """Published figures and ours by data set and labels; other methods and networks of ours only where measured."""
    lines = [line for setting in SETTINGS for line in (*_published(*setting), *_ours(setting, results))]
    return Sheet(
        name="frontier",
        title="Test error in %: pseudo-label methods, published and ours",
        columns=("setting", "row", "network", "steps", "error (seeds)", "cost"),
        rows=[line[0] for line in lines],
        records=[line[1] for line in lines],
        marks=["dim" if line[1]["status"] in (NOT_MEASURED, NOT_CHECKED) else "plain" for line in lines],
        groups=[line[0][0] for line in lines],
        notes=[
            "± is the standard deviation over folds or seeds. Published figures are the median of the last 20 "
            "checkpoints or the best checkpoint on test images, as the row says; ours and the paper's are at the end "
            "of training. Published costs are what people who ran the code say (frontier.csv has each source); ours "
            "are minutes from the command to the written model, or a run's share of the device where several ran at "
            "once.",
        ],
    )


Line = tuple[tuple[str, ...], dict[str, Any]]


def _setting(dataset: str, labels: int) -> str:
    return f"{DATASETS[dataset]}, {labels:,} labels"


def _published(dataset: str, labels: int) -> Iterator[Line]:
    for cell in frontier_cells():
        if (cell.dataset, cell.labels) != (dataset, labels):
            continue
        spread = "" if cell.std is None else f" ± {cell.std:.2f}"
        chosen = f", {CHOSEN[cell.chosen]}" if cell.chosen else ""
        words = cell.source.split(",")[0].split()
        steps = "" if cell.steps is None else f"{cell.steps:,}"
        yield (
            (
                _setting(dataset, labels),
                f"{KIN[cell.method]}, {words[0]} {words[-1]}{chosen}",
                cell.architecture,
                steps,
                NOT_CHECKED if cell.error is None else f"{cell.error:.2f}{spread}",
                cell.cost,
            ),
            _record(dataset, labels, cell.method, cell.architecture, cell.steps, published=cell)
            | our_record(None, NOT_CHECKED if cell.error is None else "published"),
        )
    best = paper_best(dataset, labels)
    if best is not None:
        # The paper prints epochs, not steps, and no time.
        row = f"{'Pi' if best.method == 'pi' else 'MT'} + {NETWORKS.get(best.averaging, best.averaging)}, the paper"
        cost = "" if best.epoch is None else f"{best.epoch:,} epochs"
        yield (
            (_setting(dataset, labels), row, best.architecture, "", figure(best), cost),
            _record(dataset, labels, best.method, best.architecture, None, paper=best) | our_record(None, "published"),
        )


def _ours(setting: tuple[str, int], results: Sequence[Result]) -> Iterator[Line]:
    for run in frontier_runs():
        found = of_layer(results, run.layer) if run.setting == setting else []
        if run.setting != setting or (run.varied and not found):
            continue
        method = KIN[run.config.method.name]
        for network in OURS:
            ours = _measured(run, network, found)
            title = f"ours, {run.recipe}" + (f", {method}" if run.config.method.name != "fixmatch" else "")
            minutes = "" if ours is None else f"{_minutes(ours, found, run):.1f} min., {_machines(found)}"
            yield (
                (
                    _setting(*setting),
                    f"{title}, {NETWORKS[network]}",
                    run.network,
                    f"{run.steps:,}",
                    our_text(ours, NOT_MEASURED),
                    minutes,
                ),
                _record(*setting, run.config.method.name, run.config.model.name, run.steps, ours=(run.recipe, network))
                | our_record(ours, NOT_MEASURED),
            )


def _minutes(ours: Measured, results: Sequence[Result], run: Run) -> float:
    """From the command to the written model on average over the runs that had the device to themselves, if any did."""
    whole = [one for one in results if one.epochs == run.config.schedule.epochs and one.together == 1]
    taken = [one.wall_seconds / 60 for one in whole if one.wall_seconds is not None]
    return mean(taken) if taken else ours.minutes


def _machines(results: Sequence[Result]) -> str:
    return " and ".join(dict.fromkeys(result.gpu or "CPU" for result in results))


def _measured(run: Run, network: str, results: Sequence[Result]) -> Measured | None:
    """What the runs measured at the recipe's end, of the average as the recipe has it."""
    named = [(result, average_name(result, run.config, network)) for result in results]
    return pooled(named, run.config.schedule.epochs)


def average_name(result: Result, config: Config, network: str) -> str | None:
    """The name under which a run keeps the student, or the average of a kind that `config` has first."""
    if network == "student":
        return network
    wanted = [average for average in config.averaging.values() if average.kind == network]
    return next((name for name, average in result.config.averaging.items() if average in wanted[:1]), None)


def _record(
    dataset: str,
    labels: int,
    method: str,
    architecture: str,
    steps: int | None,
    *,
    published: Frontier | None = None,
    paper: Published | None = None,
    ours: tuple[str, str] | None = None,
) -> dict[str, Any]:
    said = published or paper
    return {
        "table": "frontier",
        "dataset": dataset,
        "labels": labels,
        "method": method,
        "architecture": architecture,
        "steps": steps,
        "published_error": said.error if said is not None else None,
        "published_std": said.std if said is not None else None,
        "chosen": published.chosen if published is not None else "",
        "cost": published.cost if published is not None else "",
        "source": said.source if said is not None else "",
        "checked": published.checked if published is not None else "",
        "recipe": ours[0] if ours is not None else None,
        "network": ours[1] if ours is not None else None,
    }
