"""`fastswa demo`: three methods on the embedded digits with 50 labels, one table, one picture.

Each method trains with the same network, augmentation and number of steps over the same label splits, and
each has its own SWA and fast-SWA.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fastswa.console import say, shown
from fastswa.errors import RequestError

RECIPES = {"supervised": "digits-supervised", "Pi model": "digits-pi", "Mean Teacher": "digits-mean-teacher"}
NETWORKS = ("student", "teacher", "swa", "fast_swa")
_TICKS = (2, 3, 4, 5, 6, 8, 10, 15, 20, 40)


@dataclass(frozen=True)
class Job:
    """One run to train: a recipe, a seed, changed settings and a folder."""

    recipe: str
    seed: int
    out: Path
    settings: Mapping[str, Any]


def train_job(job: Job) -> list[dict[str, Any]]:
    """Train one run on one thread and give its evaluations; runs in a process of its own."""
    from fastswa.api import fit

    settings = {**job.settings, "device": {"name": "cpu", "threads": 1}}
    return fit(job.recipe, seed=job.seed, out=job.out, settings=settings).metrics


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def train_side_by_side(jobs: Sequence[Job], workers: int, title: str) -> list[list[dict[str, Any]]]:
    """Every job's evaluations, in the order of the jobs, `workers` at a time."""
    results: dict[int, list[dict[str, Any]]] = {}
    # Small networks use one core each far better than two together, so runs go side by side.
    context = multiprocessing.get_context("spawn")
    console = Console(stderr=True)
    with (
        Progress(console=console, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_parent) as pool,
    ):
        task = progress.add_task(title, total=len(jobs))
        futures = {pool.submit(train_job, job): number for number, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                progress.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    return [results[number] for number in range(len(jobs))]


def run_demo(out: Path, *, seeds: int, workers: int, record: str | None, as_json: bool) -> int:
    """Train, print the table, draw the picture; `record` names a JSON file for the figures."""
    if out.exists():
        raise RequestError(f"{out} is already there; choose another --out.")
    if record is not None:
        try:
            Path(record).touch()
        except OSError as error:
            raise RequestError(f"--record: cannot write {record}: {error.strerror}.") from error
    began = time.monotonic()
    jobs = [
        Job(recipe, seed, out / recipe / f"seed-{seed}", {})
        for recipe in RECIPES.values()
        for seed in range(1, seeds + 1)
    ]
    say(f"training {len(jobs)} runs on the embedded digits, {workers} at a time; a minute or two.")
    metrics = train_side_by_side(jobs, workers, "training")
    runs = {name: metrics[k * seeds : (k + 1) * seeds] for k, name in enumerate(RECIPES)}
    summary = summarise(runs)
    summary["seconds"] = round(time.monotonic() - began, 1)
    picture = out / "demo.png"
    draw(runs, picture)
    if record is not None:
        Path(record).write_text(json.dumps(recorded(summary), indent=1) + "\n", "utf-8")
    if as_json:
        print(json.dumps(summary))
    else:
        _print(summary, picture)
    return 0


def recorded(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with what it was measured on."""
    from fastswa.config import to_dict
    from fastswa.layers import build_config, recipe_layer
    from fastswa.training.folder import environment

    configs = {recipe: to_dict(build_config(recipe_layer(recipe))) for recipe in RECIPES.values()}
    return {
        "command": f"fastswa demo --seeds {summary['seeds']}",
        **summary,
        "environment": environment(),
        "configs": configs,
    }


def summarise(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """Final errors by method and network over the seeds, and the two claims with their 95% intervals."""
    errors = {
        name: {
            network: [run[-1]["error"][network] for run in several]
            for network in NETWORKS
            if network in several[0][-1]["error"]
        }
        for name, several in runs.items()
    }
    ours, baseline = errors["Mean Teacher"]["fast_swa"], errors["supervised"]["fast_swa"]
    gain = {
        name: _paired_interval(np.subtract(figures["student"], figures["fast_swa"])) for name, figures in errors.items()
    }
    return {
        "seeds": len(ours),
        "error": errors,
        "fewer_errors_percent": _reduction(np.array(ours), np.array(baseline)),
        "fast_swa_gain_points": gain,
    }


def _reduction(ours: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """By how many percent `ours` makes fewer errors than `baseline`: paired bootstrap over the seeds."""
    picks = np.random.default_rng(0).integers(0, len(ours), (10_000, len(ours)))
    drawn = 100.0 * (1.0 - ours[picks].mean(axis=1) / baseline[picks].mean(axis=1))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"mean": float(100.0 * (1.0 - ours.mean() / baseline.mean())), "low": float(low), "high": float(high)}


def _paired_interval(differences: np.ndarray) -> dict[str, float]:
    """Mean and 95% interval of paired differences, by the same bootstrap."""
    picks = np.random.default_rng(0).integers(0, len(differences), (10_000, len(differences)))
    low, high = np.percentile(differences[picks].mean(axis=1), [2.5, 97.5])
    return {"mean": float(differences.mean()), "low": float(low), "high": float(high)}


def _print(summary: Mapping[str, Any], picture: Path) -> None:
    seeds = summary["seeds"]
    table = Table(title=f"Test error in %, digits, 50 labels, {seeds} seeds")
    table.add_column("method")
    for network in NETWORKS:
        table.add_column(shown(network), justify="right")
    for name, figures in summary["error"].items():
        cells = [_cell(figures[network]) if network in figures else "–" for network in NETWORKS]
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    reduction = summary["fewer_errors_percent"]
    interval = f" (95% interval {reduction['low']:.0f} to {reduction['high']:.0f})" if seeds > 2 else ""
    print(
        f"Mean Teacher + fast-SWA makes {reduction['mean']:.0f}% fewer errors than supervised training "
        f"+ fast-SWA on the same labels{interval}."
    )
    print(f"{summary['seconds']:.0f} s; error against epoch: {picture}")


def _cell(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def draw(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], path: Path) -> None:
    """Error against epoch, one panel a method: means over the seeds, and fast-SWA's range shaded."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(zip(NETWORKS, ("#8a8a8a", "#1f77b4", "#e6892b", "#c0392b"), strict=True))
    figure, panels = pyplot.subplots(1, len(runs), figsize=(4 * len(runs), 3.6), sharey=True, squeeze=False)
    for panel, (name, several) in zip(panels[0], runs.items(), strict=True):
        for network in NETWORKS:
            lines = [
                [(line["epoch"], line["error"][network]) for line in run if network in line["error"]] for run in several
            ]
            if not lines[0]:
                continue
            epochs = [epoch for epoch, _ in lines[0]]
            values = np.array([[error for _, error in line] for line in lines])
            panel.plot(epochs, values.mean(axis=0), color=colours[network], label=shown(network), marker=".")
            if network == "fast_swa":
                panel.fill_between(epochs, values.min(axis=0), values.max(axis=0), color=colours[network], alpha=0.12)
        panel.set_title(name)
        panel.set_xlabel("epoch")
        panel.grid(alpha=0.25)
        panel.legend(frameon=False)
    shared = panels[0][0]
    shared.set_yscale("log")
    low, high = shared.get_ylim()
    shared.set_yticks(_TICKS, [str(tick) for tick in _TICKS])
    shared.set_ylim(low, high)
    shared.minorticks_off()
    shared.set_ylabel("test error (%)")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
