"""python benchmarks/write_frontier.py: bring docs/frontier.md up to date with results/.

What stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is written here; the rest of the page is not touched.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fastswa.bench import STRONG
from fastswa.layers import recipe_layer
from fastswa.tables.frontier import Run, frontier, frontier_runs
from fastswa.tables.measured import Result, load_results, of_layer
from fastswa.tables.paired import difference, paired_runs
from fastswa.tables.table import table
from write_reproduction import bare, filled

HOME = Path(__file__).resolve().parents[1]
PAGE, RESULTS = HOME / "docs" / "frontier.md", HOME / "results"
BENCH = "bench-fixmatch-h200.json"
NOT_YET = "not measured"
# The seeds and the machine that the goals were set for.
SEEDS, MACHINE = (10, 11, 12), "H200"
# The network whose error a goal is about: named before anything was measured, so that test images choose nothing.
HEADLINE = "fast-swa"


@dataclass(frozen=True)
class Goal:
    """What a recipe is to reach, in percent and minutes; None where its error is only reported.

    Minutes go from the command to the written model, of a run that has the device to itself; the error is the mean
    over `seeds` runs. `method` and `model` name a variant of the recipe; None is its own.
    """

    title: str
    recipe: str
    error: float | None
    minutes: float
    seeds: int = 3
    method: str | None = None
    model: str | None = None

    @property
    def run(self) -> Run:
        """The run that has to reach it."""
        layer = recipe_layer(self.recipe)
        wanted = (self.recipe, self.method or layer["method"]["name"], self.model or layer["model"]["name"])
        runs = {(run.recipe, run.config.method.name, run.config.model.name): run for run in frontier_runs()}
        return runs[wanted]

    @property
    def name(self) -> str:
        return ", ".join(f"`{word}`" for word in (self.recipe, self.method, self.model) if word)


GOALS = (
    Goal("CIFAR-10, 4,000 labels", "cifar10-fixmatch-4k", 4.6, 10),
    Goal("CIFAR-10, 4,000 labels, quick", "cifar10-fixmatch-4k-quick", 5.4, 4),
    Goal("CIFAR-10, 250 labels", "cifar10-fixmatch-250", 6.0, 10),
    Goal("CIFAR-10, 40 labels", "cifar10-fixmatch-40", None, 10, seeds=1),
    Goal("CIFAR-100, 10,000 labels", "cifar100-fixmatch-10k", 26.0, 15, seeds=1),
)


def sections(folder: Path) -> dict[str, str]:
    """Every generated part of the page by its name."""
    steps = bench_rows(folder)
    return {
        "frontier": bare(table("frontier", folder)),
        "goals": goals_part(folder, steps),
        "verdict": verdict_part(folder),
        "paired": bare(table("paired", folder)),
        "steps": steps_part(steps),
        "own-images": own_images_part(folder),
    }


def bench_rows(folder: Path) -> list[dict[str, Any]]:
    """What `fastswa bench --json` printed, if it was kept."""
    path = folder / BENCH
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.is_file() else []
    return rows


def goals_part(folder: Path, steps: Sequence[dict[str, Any]], goals: Sequence[Goal] = GOALS) -> str:
    """Each goal and what was measured of it."""
    rows = ["| what | goal | measured | reached |", "|---|---|---|---|"]
    results = [one for one in load_results(folder) if one.seed in SEEDS and MACHINE in (one.gpu or "")]
    records = frontier(results).records
    for goal in goals:
        run = goal.run
        named = (goal.recipe, run.config.method.name, run.config.model.name, HEADLINE)
        found = [
            record
            for record in records
            if (record["recipe"], record["method"], record["architecture"], record["network"]) == named
            and record["our_error"] is not None
        ]
        wanted = "reported" if goal.error is None else f"at most {goal.error:.1f}%"
        said, reached = NOT_YET, ""
        if found:
            error, seeds = found[0]["our_error"], len(found[0]["seeds"])
            minutes, taken = _time(of_layer(results, run.layer), run.config.schedule.epochs)
            said = f"{error:.2f}%, {_seeds(seeds)}; {taken}"
            missed = (goal.error is not None and error > goal.error) or (minutes or 0.0) > goal.minutes
            reached = "**no**" if missed else "not timed" if minutes is None else "yes"
            reached += f" so far, {seeds} of {goal.seeds} seeds" if seeds < goal.seeds else ""
        rows.append(f"| {goal.name}: {goal.title} | {wanted}, at most {goal.minutes:g} min. | {said} | {reached} |")
    for title, wanted, value, form, held in _step_goals(steps):
        said = NOT_YET if value is None else form.format(value)
        reached = "" if value is None else ("yes" if held else "**no**")
        rows.append(f"| {title} | {wanted} | {said} | {reached} |")
    return "\n".join(rows)


def _time(results: Sequence[Result], epochs: int) -> tuple[float | None, str]:
    """The minutes of the longest run to `epochs` that had the device to itself, and how that is said."""
    alone = [result for result in results if result.epochs == epochs and result.together == 1]
    if not alone:
        return None, "ran beside others: no time"
    taken = [result.wall_seconds / 60 for result in alone if result.wall_seconds is not None]
    if not taken:
        return None, "no time kept"
    return max(taken), f"{max(taken):.1f} min." + (f" (the longest of {len(taken)})" if len(taken) > 1 else "")


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _step_goals(steps: Sequence[dict[str, Any]]) -> list[tuple[str, str, float | None, str, bool]]:
    by_row = {(row["model"], row["engine"]): row for row in steps}

    def value(model: str, engine: str, name: str) -> float | None:
        return by_row.get((model, engine), {}).get(name)

    # As runs are launched.
    step = value("resnet9", "graph", "ms_per_step")
    times = value("wrn-28-2", "graph", "ratio_to_loader")
    share = value("resnet9", STRONG, "share_of_step")
    return [
        ("step, `resnet9`, 64 + 448", "at most 5.5 ms", step, "{:.2f} ms", (step or 0) <= 5.5),
        (
            *("step, `wrn-28-2`, 64 + 448", "at least 5 times an eager loop with DataLoaders of Pillow images", times),
            *("{:.2f} times", (times or 0) >= 5),
        ),
        ("strong views, `resnet9`", "at most 15% of a step", share, "{:.0%}", (share or 0) <= 0.15),
    ]


def verdict_part(folder: Path) -> str:
    """Whether fast-SWA errs less than the EMA and than the student, as it is and refreshed, over all runs."""
    runs = paired_runs(load_results(folder))
    if len(runs) < 2:
        return "Not measured yet: it takes two finished runs of these methods in `results/`."
    sentences = []
    others = {"ema": "the EMA", "last": "the student with refreshed statistics", "student": "the student"}
    for other, name in others.items():
        having = [run for run in runs if other in run.errors]
        if len(having) < 2:
            continue
        found = difference(having, "fast-swa", other)
        assert found.interval is not None
        low, high = found.interval
        held = "holds" if high < 0 else "is contradicted" if low > 0 else "is neither shown nor refuted"
        sentences.append(
            f"Fast-SWA's error less that of {name}: {found.mean:+.3f} points (95% {low:+.3f} to {high:+.3f}; "
            f"below 0 in {found.better} of {len(having)} runs): that averaging gains {held}."
        )
    return " ".join(sentences)


def steps_part(steps: Sequence[dict[str, Any]]) -> str:
    """The rows of the benchmark."""
    if not steps:
        return "Not measured yet."
    rows = [
        "| network | engine | ms a step | x naive | x loader | x floor | share of a step |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in steps:
        ratios = [row["ratio_to_naive"], row["ratio_to_loader"], row["ratio_to_floor"]]
        cells = " | ".join("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        share = "" if row["share_of_step"] is None else f"{row['share_of_step']:.0%}"
        rows.append(f"| `{row['model']}` | {row['engine']} | {row['ms_per_step']:.2f} | {cells} | {share} |")
    return "\n".join(rows)


def own_images_part(folder: Path) -> str:
    """What benchmarks/own_images.py compared, one line a file."""
    rows = [
        "| images | labels | splits | length of a run | measured on | mean error in % |",
        "|---|---:|---|---:|---|---|",
    ]
    for path in sorted(folder.glob("own-images-*.json")):
        record = json.loads(path.read_text("utf-8"))
        source, *words = record["command"].split()[2:]
        options = dict(zip(words[::2], words[1::2], strict=True))
        shown = " | ".join(options[name].replace(",", ", ") for name in ("--labels", "--splits"))
        shown += f" | {options['--minutes']} min" if "--minutes" in options else f" | {int(options['--steps']):,} steps"
        measured = "held-out training images" if "--validation" in options else "test images"
        errors = ", ".join(f"{method} {mean(found):.2f}" for method, found in record["error"].items())
        if "--images" in options:
            train, test = (f"{int(word):,}" for word in options["--images"].split(","))
            source += f", {train} images"
            measured = measured if "--validation" in options else f"the last {test} {measured}"
        rows.append(f"| {source} | {shown} | {measured} | {errors} |")
    return "\n".join(rows) if len(rows) > 2 else "Not measured yet."


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text("utf-8"), sections(RESULTS)), "utf-8")
    print(f"{PAGE.relative_to(HOME)} written")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
