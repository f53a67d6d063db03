"""One recipe with several seeds: a run folder each, and their mean ± std as the paper reports it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fastswa.config import Config
from fastswa.errors import RequestError
from fastswa.training.budget import Budget
from fastswa.training.loop import Watcher
from fastswa.training.run import NewRun, OldRun, RunResult, Say, train_together


def seed_folder(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def train_seeds(
    configs: Sequence[Config],
    out: Path,
    watchers: Mapping[int, Watcher],
    say: Say,
    *,
    budget: Budget | None = None,
    tell: Say | None = None,
    began: float | None = None,
) -> list[RunResult]:
    """Train one run a configuration, which differ in their seed, into OUT/seed-N; summary.json sums them up.

    `budget` gives all of them one length, as if each ran alone; `tell` hears what was chosen for the first.
    """
    runs = [
        NewRun(config, seed_folder(out, config.seed), watchers[config.seed], budget, None if number else tell)
        for number, config in enumerate(configs)
    ]
    results = train_together(runs, say, began=began)
    write_summary(out, results)
    return results


def resume_seeds(
    out: Path, changes: Mapping[str, Any], watchers: Mapping[int, Watcher], say: Say, *, began: float | None = None
) -> list[RunResult]:
    """Go on with every run under OUT, together as they began."""
    runs = [OldRun(path, watchers[seed], changes) for seed, path in seeds_under(out).items()]
    results = train_together(runs, say, began=began)
    write_summary(out, results)
    return results


def seeds_under(out: Path) -> dict[int, Path]:
    """The run folders of several seeds in one folder, by seed."""
    found = {
        int(path.name.removeprefix("seed-")): path
        for path in out.glob("seed-*")
        if path.name.removeprefix("seed-").isdigit() and (path / "config.toml").is_file()
    }
    return dict(sorted(found.items()))


def summarise(results: Sequence[RunResult]) -> dict[str, Any]:
    """Mean, std (over n - 1) and number of seeds of each network's error, by epoch."""
    errors: dict[int | float, dict[str, list[float]]] = {}
    for result in results:
        for line in result.metrics:
            measured = (line.get(key) for key in ("error", "validation_error", "source_error"))
            for name, error in next(filter(None, measured), {}).items():
                errors.setdefault(line["epoch"], {}).setdefault(name, []).append(error)
    return {
        "runs": [str(result.path.name) for result in results],
        "finished": all(result.finished for result in results),
        "error": {
            str(epoch): {
                name: {"mean": mean(values), "std": stdev(values) if len(values) > 1 else None, "n": len(values)}
                for name, values in networks.items()
            }
            for epoch, networks in sorted(errors.items())
        },
    }


def write_summary(out: Path, results: Sequence[RunResult]) -> None:
    try:
        (out / "summary.json").write_text(json.dumps(summarise(results), indent=1) + "\n", "utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {out / 'summary.json'}: {error.strerror}.") from error
