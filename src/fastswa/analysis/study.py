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
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from fastswa.analysis import STUDIES
from fastswa.errors import RequestError
from fastswa.registry import resolve
from fastswa.tables.figures import save
from fastswa.whole import replacing

# For runs drawn together: apart in hue and in lightness.
COLOURS = ("#c0392b", "#1f77b4", "#2e8b57", "#e6892b", "#7d3c98", "#d16ba5")


@dataclass(frozen=True)
class Request:
    """The runs to study and how; what is None follows the run."""

    runs: tuple[Path, ...]
    device: str = "auto"
    epochs: tuple[float, ...] | None = None
    batches: int | None = None
    points: int | None = None
    rays: int = 5
    pairs: int = 100
    images: int = 32
    draws: int = 50
    distance: float | None = None
    margin: float | None = None
    seed: int = 0
    cycles: tuple[float, ...] | None = None
    constant: tuple[float, ...] | None = None
    until: int | None = None


@dataclass(frozen=True)
class Study:
    """`run` gives a dataclass of arrays, `rows` its numbers as a table, `draw` its figure, `told` a few lines on it.

    `options` names the fields of Request that it reads besides runs and device, `iterates` says how many kept ones it
    needs at least.
    """

    summary: str
    run: Callable[[Request], Any]
    rows: Callable[[Any], list[dict[str, Any]]]
    draw: Callable[[Any], Any]
    told: Callable[[Any], list[str]]
    options: frozenset[str]
    iterates: int = 0


def find_study(name: str) -> Study:
    """The study of a name."""
    study: Study = resolve("study", name, STUDIES)
    return study


def write(study: Study, result: Any, out: Path, name: str) -> list[Path]:
    """NAME.json (all arrays), NAME.csv (a table), NAME.svg and NAME.png under `out`."""
    texts = {
        out / f"{name}.json": json.dumps(plain(result), indent=1) + "\n",
        out / f"{name}.csv": _csv(study.rows(result)),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with replacing(path) as temporary:
                temporary.write_text(text, "utf-8")
    except OSError as error:
        raise RequestError(f"cannot write into {out}: {error.strerror}.") from error
    return [*texts, *save(study.draw(result), out, name)]


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


def read(study: Study, files: Sequence[Path]) -> list[Any]:
    """What a study wrote as JSON, of one or several runs each, put together as if it had studied them at once."""
    [kind] = get_args(get_type_hints(study.run)["return"])
    found: list[Any] = []
    for file in files:
        try:
            found += [restored(kind, one) for one in json.loads(file.read_text("utf-8"))]
        except OSError as error:
            raise RequestError(f"cannot read {file}: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(f"{file} holds no results of this study.") from error
    names = [one.run for one in found]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"the files hold two runs that are called {name}; a figure could not tell them apart.")
    return found


def restored(kind: Any, value: Any) -> Any:
    """What `plain` made of a value of the type `kind`, as such a value again; numbers in arrays are 64-bit floats.

    A field that has a default may be missing: what was written before there was one can still be read.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is np.ndarray:
        return np.array(value, dtype=float)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        needed = [field.name for field in dataclasses.fields(kind) if field.name in value or not _has_default(field)]
        return kind(**{name: restored(hints[name], value[name]) for name in needed})
    if origin is dict:
        return {key: restored(inner[1], one) for key, one in value.items()}
    if origin in (list, tuple):
        return origin(restored(inner[0], one) for one in value)
    return math.nan if kind is float and value is None else value


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


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
