"""The figures that the paper's tables print, as typed records."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastswa.errors import RequestError
from fastswa.registry import nearest

THIS_PAPER = "this paper"


@dataclass(frozen=True)
class Published:
    """One cell of a table: a test error in percent. `labels` is None where a table has no such number.

    `error`, `epoch` and `std` are None where the paper gives none; `extra` names extra unlabelled images, or is "".
    """

    table: str
    dataset: str
    architecture: str
    labels: int | None
    extra: str
    method: str
    averaging: str
    epoch: int | None
    error: float | None
    std: float | None
    source: str

    @property
    def quoted(self) -> bool:
        """Whether the figure is another work's, which the paper only quotes."""
        return self.source != THIS_PAPER


@cache
def all_published() -> tuple[Published, ...]:
    """Every cell of every table, in the order of published.csv."""
    text = (resources.files("fastswa") / "tables" / "published.csv").read_text("utf-8")
    return tuple(_cell(line) for line in csv.DictReader(text.splitlines()))


def published(table: str) -> tuple[Published, ...]:
    """The cells of one table."""
    cells = tuple(cell for cell in all_published() if cell.table == table)
    if not cells:
        names = {cell.table for cell in all_published()}
        raise RequestError(f"unknown table '{table}'; {nearest(table, names)}")
    return cells


def _cell(line: dict[str, str]) -> Published:
    return Published(
        table=line["table"],
        dataset=line["dataset"],
        architecture=line["architecture"],
        labels=int(line["labels"]) if line["labels"].isdigit() else None,
        extra=line["extra_unlabeled"],
        method=line["method"].replace("+", "-"),
        averaging=line["averaging"],
        epoch=int(line["epoch"]) if line["epoch"] else None,
        error=float(line["error_percent"]),
        std=float(line["std"]) if line["std"] else None,
        source=line["source"],
    )
