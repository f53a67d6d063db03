"""One recipe with several seeds: a run folder each, and their mean ± std as the paper reports it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fastswa.config import RESUMABLE, Config, to_dict
from fastswa.errors import FastswaError, RequestError, RunError
from fastswa.layers import build_config, file_layer, flatten
from fastswa.training.budget import Budget
from fastswa.training.device import choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.groups import TOGETHER, train_groups
from fastswa.training.loop import Watcher
from fastswa.training.processes import attempt_beside
from fastswa.training.run import NewRun, OldRun, RunResult, Say
from fastswa.training.shares import groups_of
from fastswa.whole import reason, replacing


def seed_folder(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def new_runs(
    configs: Sequence[Config],
    out: Path,
    watchers: Mapping[int, Watcher],
    budget: Budget | None = None,
    tell: Say | None = None,
) -> list[NewRun]:
    """One run a configuration, which differ in their seed, in OUT/seed-N."""
    if (out / "config.toml").exists():
        raise RequestError(f"{out} holds a run of one seed; choose another --out.")
    # Of each, so that those which a kill leaves not even begun are known as well.
    facts = {"seeds": {str(config.seed): config.split.seed for config in configs}}
    return [
        NewRun(config, seed_folder(out, config.seed), watchers[config.seed], budget, None if number else tell, facts)
        for number, config in enumerate(configs)
    ]


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
    """Train `new_runs`; summary.json sums up all that lie in OUT.

    `budget` gives all of them one length, as if each ran alone; `tell` hears what was chosen for the first.
    """
    return _train(new_runs(configs, out, watchers, budget, tell), out, say, began)


def resume_seeds(
    out: Path, changes: Mapping[str, Any], watchers: Mapping[int, Watcher], say: Say, *, began: float | None = None
) -> list[RunResult]:
    """Go on with every run under OUT, together as they began, and begin those that a kill came before."""
    runs: list[NewRun | OldRun] = [OldRun(path, watchers[seed], changes) for seed, path in seeds_under(out).items()]
    for config in seeds_to_come(out, changes):
        path = seed_folder(out, config.seed)
        say(f"{path} was not begun; starting from step 0.")
        runs.append(NewRun(config, path, watchers[config.seed]))
    return _train(runs, out, say, began)


def _train(runs: Sequence[NewRun | OldRun], out: Path, say: Say, began: float | None) -> list[RunResult]:
    """Every run to its end, and their summary; what one lacks is said before any starts, what fails after the rest."""
    configs = [run.settings() for run in runs]
    for run, config in zip(runs, configs, strict=True):
        if isinstance(run, OldRun):
            run.refuse(config)
    results, failures = dict[int, RunResult](), dict[int, Exception]()
    for number, outcome in _outcomes(runs, configs, say, began):
        if isinstance(outcome, RunResult):
            results[number] = outcome
        else:
            failures[number] = outcome
    done = [results[number] for number in sorted(results)]
    if done:
        everyone = [*_others(out, done, say), *done]
        write_summary(out, everyone)
        _mention_lengths(out, everyone, say)
    if failures:
        number, error = min(failures.items(), key=lambda failure: failure[0])
        alike = len(failures) == len(runs) and len({str(each) for each in failures.values()}) == 1
        if alike or not isinstance(error, FastswaError):
            raise error
        for other in sorted(failures.keys() - {number}):
            say(f"{runs[other].path.name}: {failures[other]}")
        raise type(error)(f"{runs[number].path.name}: {error}") from error
    return done


def _outcomes(
    runs: Sequence[NewRun | OldRun], configs: Sequence[Config], say: Say, began: float | None
) -> Iterator[tuple[int, RunResult | Exception]]:
    """As of `train_groups`; on a CPU side by side where that is faster."""
    groups = groups_of(runs, configs)
    if all(len(group.runs) == 1 for group in groups):
        together = {TOGETHER[choose_compute(config.device).device.type] for config in configs}
        yield from train_groups(runs, min(together), say, began=began)
        return
    for group in groups:
        if len(group.runs) == 1:
            for _, outcome in train_groups(group.runs, 1, say, began=began):
                yield group.numbers[0], outcome
        else:
            names = ", ".join(run.path.name for run in group.runs)
            say(f"{names}: side by side, each with {group.threads} thread{'s' * (group.threads > 1)}.")
            yield from zip(group.numbers, attempt_beside(group.runs, say, began=began), strict=True)
        began = None


def _others(out: Path, done: Sequence[RunResult], say: Say) -> list[RunResult]:
    """Runs of other seeds that lie there already; those with other settings are left out, and said."""
    found, ours = [], _compared(done[0].path)
    for path in seeds_under(out).values():
        if path in {result.path for result in done}:
            continue
        theirs = _compared(path)
        unlike = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if unlike:
            say(f"{path} has another {unlike[0]}; {out / 'summary.json'} leaves it out.")
        else:
            folder = RunFolder(path)
            # Models of before an extension that was stopped are there as well.
            finished = folder.models_epoch() == folder.config().schedule.epochs
            found.append(RunResult(path, folder.metrics(), finished))
    return found


def _mention_lengths(out: Path, results: Sequence[RunResult], say: Say) -> None:
    """Say where finished runs do not end at one epoch, and how they come to."""
    ends = {result.path.name: _last_epoch(result) for result in results}
    if all(result.finished for result in results) and len(set(ends.values())) > 1:
        said = ", ".join(f"{name} at {epoch:g}" for name, epoch in sorted(ends.items()))
        say(
            f"{out}: the seeds end at different epochs ({said}), and {out / 'summary.json'} is not finished; "
            f"`fastswa resume {shlex.quote(str(out))} --epochs {max(ends.values()):g}` takes all of them as far."
        )


def _last_epoch(result: RunResult) -> float:
    return float(result.metrics[-1]["epoch"]) if result.metrics else 0.0


def _compared(run: Path) -> dict[str, Any]:
    """The settings in which runs of one recipe do not differ."""
    settings = flatten(to_dict(RunFolder(run).config()))
    return {name: value for name, value in settings.items() if name not in {*RESUMABLE, "seed", "split.seed"}}


def seeds_under(out: Path) -> dict[int, Path]:
    """The run folders of several seeds in one folder, by seed."""
    found = {
        int(path.name.removeprefix("seed-")): path
        for path in out.glob("seed-*")
        if path.name.removeprefix("seed-").isdigit() and (path / "config.toml").is_file()
    }
    return dict(sorted(found.items()))


def seeds_to_come(out: Path, changes: Mapping[str, Any]) -> list[Config]:
    """Of the seeds that the runs under OUT were trained with, those without a folder, in the settings of these runs."""
    found, there = dict[int, Config](), seeds_under(out)
    for path in there.values():
        folder = RunFolder(path)
        # One's share of the cores is none of what the others were begun with.
        shared = {"device": {"threads": None}} if folder.shared_cores() else {}
        for seed, split in (folder.known_environment().get("seeds") or {}).items():
            if int(seed) not in {*there, *found}:
                layer = {"seed": int(seed), "split": {"seed": split}}
                found[int(seed)] = build_config(file_layer(path / "config.toml"), shared, changes, layer)
    return list(found.values())


def summarise(results: Sequence[RunResult]) -> dict[str, Any]:
    """Mean, std (over n - 1) and number of seeds of each network's error, by epoch.

    It is finished where every run is, and all of them at the same epoch.
    """
    errors: dict[int | float, dict[str, list[float]]] = {}
    for result in results:
        for line in result.metrics:
            measured = (line.get(key) for key in ("error", "validation_error", "source_error"))
            for name, error in next(filter(None, measured), {}).items():
                errors.setdefault(line["epoch"], {}).setdefault(name, []).append(error)
    return {
        "runs": [str(result.path.name) for result in results],
        "finished": all(result.finished for result in results) and len(set(map(_last_epoch, results))) == 1,
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
        with replacing(out / "summary.json") as temporary:
            temporary.write_text(json.dumps(summarise(results), indent=1) + "\n", "utf-8")
    except OSError as error:
        raise RunError(f"cannot write {out / 'summary.json'}: {reason(error)}.") from error
