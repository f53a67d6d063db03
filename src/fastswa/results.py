"""A finished run as one JSON file for results/: settings, environment, cost, and every evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastswa.config import to_dict
from fastswa.errors import RequestError, RunError
from fastswa.layers import build_config
from fastswa.training.folder import RunFolder
from fastswa.training.identity import fingerprint
from fastswa.whole import replacing


def record(run: Path) -> dict[str, Any]:
    """What a run folder says of itself, without paths of the machine it ran on.

    `minutes` are those of steps and evaluations; `wall_seconds` go from the command to the written model, over all
    parts of the run, and are None where it is not finished or some part did not keep them.
    """
    folder = RunFolder.open(run)
    config, metrics = folder.config(), folder.metrics()
    if not metrics:
        raise RequestError(f"{run} has no evaluation yet.")
    settings = to_dict(config)
    settings["data"].pop("root", None)
    for section, name in (
        *(("data", "source"), ("data", "target"), ("data", "extra"), ("data", "extra_file")),
        *(("split", "file"), ("start", "run"), ("start", "weights")),
    ):
        if name in settings[section]:
            settings[section][name] = Path(settings[section][name]).name
    try:
        environment = json.loads((run / "environment.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{run / 'environment.json'} cannot be read: {error}.") from error
    wall = environment.pop("wall_seconds", None)
    if environment.get("parent"):
        environment["parent"]["run"] = Path(environment["parent"]["run"]).name
    return {
        "fingerprint": fingerprint(settings),
        "seed": config.seed,
        "epochs": metrics[-1]["epoch"],
        "minutes": round(metrics[-1]["seconds"] / 60, 2),
        "wall_seconds": wall,
        "environment": environment,
        "config": settings,
        "metrics": metrics,
    }


def write_record(run: Path, target: Path) -> dict[str, Any]:
    """Write a run's record as a whole, an evaluation a line; what was written. Only its own is written over."""
    facts = record(run)
    if target.exists() and not _extends(facts, target):
        raise RequestError(f"{target} is no record of this run; choose another name.")
    lines = ",\n  ".join(json.dumps(line) for line in facts["metrics"])
    head = json.dumps({name: value for name, value in facts.items() if name != "metrics"}, indent=1)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as writing:
            writing.write_text(f'{head[:-2]},\n "metrics": [\n  {lines}\n ]\n}}\n', "utf-8")
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}.") from error
    return facts


def keep_record(run: Path, folder: Path, name: str) -> Path:
    """Write a run's record to FOLDER/NAME.json, or to a numbered name beside it where another run's lies there."""
    facts = record(run)
    number, target = 1, folder / f"{name}.json"
    while target.exists() and not _extends(facts, target):
        number += 1
        target = folder / f"{name}-{number}.json"
    write_record(run, target)
    return target


def _extends(facts: dict[str, Any], file: Path) -> bool:
    """Whether a record is of the run that a file keeps, at least as far."""
    try:
        kept = json.loads(file.read_text("utf-8"))
        theirs = [(line["step"], line["error"], line["seconds"]) for line in kept["metrics"]]
        settings = [fingerprint(to_dict(build_config(one["config"]))) for one in (facts, kept)]
    except (OSError, ValueError, KeyError, TypeError, RequestError):
        return False
    ours = [(line["step"], line.get("error"), line["seconds"]) for line in facts["metrics"]]
    # By what the settings mean today: a setting that came into being since is in one of the two files alone.
    return settings[0] == settings[1] and ours[: len(theirs)] == theirs
