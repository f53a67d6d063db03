"""A finished run as one JSON file for results/: settings, environment, cost, and every evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastswa.config import to_dict
from fastswa.errors import RequestError
from fastswa.training.folder import RunFolder
from fastswa.training.run import fingerprint


def record(run: Path) -> dict[str, Any]:
    """What a run folder says of itself, without paths of the machine it ran on."""
    folder = RunFolder.open(run)
    config, metrics = folder.config(), folder.metrics()
    if not metrics:
        raise RequestError(f"{run} has no evaluation yet.")
    settings = to_dict(config)
    settings["data"].pop("root", None)
    environment = json.loads((run / "environment.json").read_text("utf-8"))
    return {
        "fingerprint": fingerprint(config),
        "seed": config.seed,
        "epochs": metrics[-1]["epoch"],
        "minutes": round(metrics[-1]["seconds"] / 60, 2),
        "environment": environment,
        "config": settings,
        "metrics": metrics,
    }
