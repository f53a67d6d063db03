"""What a study is, what it may be asked, and how its results are written."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastswa.analysis import STUDIES
from fastswa.errors import RequestError
from fastswa.registry import resolve
from fastswa.tables.figures import save

# For runs drawn together: apart in hue and in lightness.
COLOURS = ("#c0392b", "#1f77b4", "#555555", "#e6892b", "#2e8b57", "#7d3c98")


@dataclass(frozen=True)
class Request:
    """The runs to study and how; what is None follows the run."""

    runs: tuple[Path, ...]
    device: str = "auto"
    epochs: tuple[float, ...] | None = None
    batches: int = 32
    points: int | None = None
    rays: int = 5
    pairs: int = 100
    images: int = 32
    draws: int = 50
    distance: float | None = None
    seed: int = 0
    cycles: tuple[float, ...] | None = None
    constant: tuple[float, ...] | None = None
    until: int | None = None


@dataclass(frozen=True)
class Study:
    """`run` gives a dataclass of arrays, `rows` its numbers as a table, `draw` its figure, `told` a few lines on it.

    `options` names the fields of Request that it reads besides runs and device.
    """

    summary: str
    run: Callable[[Request], Any]
    rows: Callable[[Any], list[dict[str, Any]]]
    draw: Callable[[Any], Any]
    told: Callable[[Any], list[str]]
    options: frozenset[str]


def find_study(name: str) -> Study:
    """The study of a name."""
    study: Study = resolve("study", name, STUDIES)
    return study


def write(study: Study, result: Any, out: Path, name: str) -> list[Path]:
    """NAME.json (all arrays), NAME.csv (a table), NAME.svg and NAME.png under `out`."""
    paths = [out / f"{name}.json", out / f"{name}.csv"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(json.dumps(plain(result), indent=1) + "\n", "utf-8")
        paths[1].write_text(_csv(study.rows(result)), "utf-8")
    except OSError as error:
        raise RequestError(f"cannot write into {out}: {error.strerror}.") from error
    return paths + save(study.draw(result), out, name)


def plain(value: Any) -> Any:
    """Dataclasses and arrays as JSON knows them; what is not a number becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    return text.getvalue()


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each run."""
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
