"""Result files with figures that are easy to check by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastswa.config import to_dict
from fastswa.layers import build_config, merge
from fastswa.tables.rows import all_rows

Errors = Mapping[int, Mapping[str, float]]


def write_result(
    folder: Path,
    recipe: str,
    seed: int,
    errors: Errors,
    changes: Mapping[str, Any] | None = None,
    averaged: Mapping[int, Mapping[str, int]] | None = None,
    together: int = 1,
) -> Path:
    """A file as benchmarks/record.py writes it: errors by epoch and network, one minute an epoch."""
    settings = to_dict(build_config(merge(all_rows()[recipe].layer(), {"seed": seed}, changes or {})))
    settings["data"].pop("root")
    settings["split"].setdefault("validation", 0)
    metrics = [
        {"epoch": epoch, "error": dict(error), "averaged": (averaged or {}).get(epoch, {}), "seconds": 60.0 * epoch}
        for epoch, error in errors.items()
    ]
    folder.mkdir(exist_ok=True)
    path = folder / f"{recipe}-seed-{seed}-{len(list(folder.iterdir()))}.json"
    record = {"seed": seed, "environment": {"together": together}, "config": settings, "metrics": metrics}
    path.write_text(json.dumps(record), "utf-8")
    return path
