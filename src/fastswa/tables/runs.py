"""The runs behind each table, as `fastswa sweep` trains them: every table that is made of recipes offers its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fastswa.layers import Layer, merge
from fastswa.registry import resolve
from fastswa.tables.rows import TABLES, Row, all_rows
from fastswa.tables.table import NOT_MEASURED, lines

OTHERS = {
    "soa": "fastswa.tables.soa:soa_runs",
    "averaging-often": "fastswa.tables.often:often_runs",
    "domain-adaptation": "fastswa.tables.domains:table_runs",
    "frontier": "fastswa.tables.frontier:table_runs",
}


@dataclass(frozen=True)
class TableRun:
    """A recipe behind a table and its settings; `labels` is None where the table does not tell rows apart by them.

    `figures` are what the table shows of it: a network (student, teacher or the name of an average of `layer`) and an
    epoch each. `varied` marks the recipe with another method than its own, which is trained only where that method is
    asked for; `whole` a run that the table needs with every average that it names; `alone` one whose time the table
    shows, so that none should run beside it.
    """

    recipe: str
    method: str
    labels: int | None
    layer: Layer
    figures: tuple[tuple[str, int], ...]
    varied: bool = False
    whole: bool = False
    alone: bool = False

    @property
    def name(self) -> str:
        """As its folder and its file in results/ are called."""
        return f"{self.recipe}-{self.method}" if self.varied else self.recipe


def run_of(row: Row) -> TableRun:
    """The run of a row of the CIFAR tables, as far as the table's cells are near."""
    layer = merge(row.layer(), {"schedule": {"epochs": row.swept}})
    names = {average["kind"]: name for name, average in reversed(layer["averaging"].items())}
    figures = tuple((names.get(network, network), epoch) for network, epoch in _shown(row.table).get(row, ()))
    return TableRun(row.name, row.method, row.labels, layer, figures, whole=bool(row.variant))


@cache
def _shown(table: str) -> dict[Row, list[tuple[str, int]]]:
    """The networks and epochs that a table shows of each of its rows."""
    found: dict[Row, list[tuple[str, int]]] = {}
    for line in lines(table, []):
        if line.row is not None and line.remark == NOT_MEASURED:
            found.setdefault(line.row, []).append((line.network, line.epoch))
    return {row: sorted(dict.fromkeys(figures), key=lambda figure: figure[1]) for row, figures in found.items()}


def swept_tables() -> list[str]:
    """The tables that have runs."""
    return [*TABLES, *OTHERS]


def runs_of(table: str) -> list[TableRun]:
    """The runs behind one of these tables, in its order."""
    if table in TABLES:
        return [run_of(row) for row in all_rows().values() if row.table == table and not row.variant]
    offer: Callable[[], list[TableRun]] = resolve("table", table, OTHERS)
    return offer()
