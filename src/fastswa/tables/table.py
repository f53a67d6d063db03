"""The paper's tables cell by cell, ours beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastswa.errors import RequestError
from fastswa.registry import nearest, resolve
from fastswa.tables.measured import Measured, Result, by_row, load_results, measured
from fastswa.tables.published import THIS_PAPER, Published, published
from fastswa.tables.rows import TABLES, Row, all_rows, figure, row_of

# The paper repeats each CNN experiment three times (section 5.1).
PAPER_SEEDS = 3
NOT_MEASURED = "not measured"
# Tables that are not cells by labels and method.
WHOLE = {
    "soa": "fastswa.tables.soa:soa",
    "averaging-often": "fastswa.tables.often:often",
    "domain-adaptation": "fastswa.tables.domains:domain_adaptation",
    "frontier": "fastswa.tables.frontier:frontier",
    "paired": "fastswa.tables.paired:paired",
}

TITLES = {
    "supervised": "Supervised",
    "pi": "Pi",
    "mean-teacher": "MT",
    "temporal-ensembling": "TE",
    "vat": "VAT",
    "vat-entmin": "VAT + EntMin",
    "vadd": "VAdD",
    "sntg": "SNTG",
}
NETWORKS = {
    "student": "student",
    "teacher": "EMA",
    "ema": "EMA",
    "swa": "SWA",
    "fast-swa": "fast-SWA",
    "last": "student refreshed",
}


@dataclass(frozen=True)
class Line:
    """A published cell and our measurement of it; the cell has no error where the paper's table has no such row.

    `network` is what we measure at `epoch`. `remark` says why there is nothing to measure, if so. Where the paper
    does not say whether a figure is the student's or the EMA's there is a line for each, and only the EMA's is
    `compared`.
    """

    cell: Published
    row: Row | None
    network: str
    epoch: int
    ours: Measured | None = None
    remark: str = NOT_MEASURED
    compared: bool = True

    @property
    def title(self) -> str:
        """The row of the table."""
        cell = self.cell
        if cell.quoted:
            return f"{TITLES[cell.method]}, {short_source(cell)}"
        averaging = {"none": "", "ema": " EMA"}.get(cell.averaging, f" + {NETWORKS.get(cell.averaging)}")
        network = f", {NETWORKS[self.network]}" if cell.method == "mean-teacher" and cell.averaging == "none" else ""
        epoch = "" if cell.epoch is None else f" ({cell.epoch})"
        return f"{TITLES[cell.method]}{averaging}{epoch}{network}"

    @property
    def labels(self) -> str:
        """The column of the table."""
        extra = self.cell.extra.replace("tiny-", " + ")
        return f"{(self.cell.labels or 0) // 1000}k{extra}"

    @property
    def difference(self) -> float | None:
        """Our mean less the paper's, in points."""
        if self.ours is None or self.cell.error is None or not self.compared:
            return None
        return self.ours.mean - self.cell.error

    @property
    def standard_errors(self) -> float | None:
        """The difference in standard errors; None where the paper gives no standard deviation.

        Over how many seeds another work took its own is not known here.
        """
        if self.ours is None or self.difference is None or self.cell.quoted:
            return None
        return standard_errors(self.difference, self.cell.std, self.ours.std, self.ours.count)


def standard_errors(difference: float, paper_std: float | None, our_std: float | None, seeds: int) -> float | None:
    """A difference over sqrt(s_paper² / 3 + s_ours² / n); with one seed s_ours is taken as s_paper."""
    if paper_std is None:
        return None
    ours = paper_std if our_std is None else our_std
    error = math.sqrt(paper_std**2 / PAPER_SEEDS + ours**2 / seeds)
    return difference / error if error > 0 else None


def short_source(cell: Published) -> str:
    """The work that a figure is quoted from: its first author and year."""
    words = cell.source.split()
    return f"{words[0]} {words[-1]}"


@dataclass(frozen=True)
class Sheet:
    """A table ready to be shown: `rows` of text under `columns`, and `records` with the bare numbers.

    A row's `marks` entry is "good" (within two standard errors of the paper, or better), "bad" (worse), "check" (more
    than a point better, which a leak could explain), "plain" (not to be judged) or "dim" (not measured); `groups` says
    which rows belong together.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    records: list[dict[str, Any]]
    marks: list[str]
    groups: list[str]
    notes: list[str] = field(default_factory=list)


def table_names() -> list[str]:
    """The tables there are."""
    return [*TABLES, *WHOLE]


def table(
    name: str,
    results: Path | None,
    *,
    labels: Sequence[int] = (),
    methods: Sequence[str] = (),
    measured_only: bool = False,
) -> Sheet:
    """One of the paper's tables with ours from a folder of results; `labels` and `methods` narrow it."""
    # No folder of results is no error: the table then says what the paper found, and that nothing is measured.
    if name not in table_names():
        raise RequestError(f"unknown table '{name}'; {nearest(name, table_names())}")
    found = load_results(results)
    if name in WHOLE:
        make: Callable[[Sequence[Result]], Sheet] = resolve("table", name, WHOLE)
        whole = make(found)
    else:
        whole = sheet(name, lines(name, found))
    return narrowed(whole, labels, methods, measured_only)


def narrowed(whole: Sheet, labels: Sequence[int], methods: Sequence[str], measured_only: bool) -> Sheet:
    """A table's rows with these labels and methods, where some are given, and only the measured ones if so asked."""
    counts, known = (
        sorted({record[key] for record in whole.records if record.get(key) is not None}) for key in ("labels", "method")
    )
    for option, wanted, there in (("labels", labels, counts), ("methods", methods, known)):
        if wanted and not there:
            raise RequestError(f"{whole.name} does not tell rows apart by their {option}; leave --{option} out.")
    for method in methods:
        if method not in known:
            raise RequestError(f"{whole.name} has no method '{method}'; {nearest(method, known)}")
    for count in labels:
        if count not in counts:
            listed = ", ".join(map(str, counts))
            raise RequestError(f"{whole.name} has no row with {count} labels; there are: {listed}.")
    chosen = [
        place
        for place, record in enumerate(whole.records)
        if (not labels or record["labels"] in labels) and (not methods or record["method"] in methods)
    ]
    if not chosen:
        raise RequestError(f"{whole.name} has no row with these labels and methods together.")
    if measured_only:
        chosen = [place for place in chosen if whole.records[place]["status"] == "measured"]
    return replace(
        whole,
        rows=[whole.rows[place] for place in chosen],
        records=[whole.records[place] for place in chosen],
        marks=[whole.marks[place] for place in chosen],
        groups=[whole.groups[place] for place in chosen],
    )


def lines(name: str, results: Sequence[Result]) -> list[Line]:
    """The lines of a table, fewest labels first, within them in the paper's order."""
    runs = by_row(results)
    cells = published(name)
    found = [line for cell in cells for line in _lines_of(cell, cells, runs)]
    for row in all_rows().values():
        if row.table == name and not row.cells and not row.variant:
            ours = measured(runs.get(row.name, ()), row, "student", row.experiment.length)
            found.append(Line(_no_cell(row), row, "student", row.experiment.length, ours))
    extras = list(dict.fromkeys(cell.extra for cell in cells))
    return sorted(found, key=lambda line: (line.cell.labels or 0, extras.index(line.cell.extra)))


def _lines_of(cell: Published, cells: Sequence[Published], runs: Mapping[str, Sequence[Result]]) -> list[Line]:
    row = row_of(cell)
    epoch = cell.epoch or TABLES[cell.table].length
    if row is None:
        return [Line(cell, None, "student", epoch, remark="not in fastswa")]
    network = _network(cell)
    if cell.quoted and any(not other.quoted and row_of(other) == row for other in cells):
        return [Line(cell, row, network, epoch, remark="quoted")]
    results = runs.get(row.name, ())
    found = [Line(cell, row, network, epoch, measured(results, row, network, epoch))]
    if network == "teacher":
        found.append(Line(cell, row, "student", epoch, measured(results, row, "student", epoch), compared=False))
    return found


def _no_cell(row: Row) -> Published:
    """What stands in the place of a cell that the paper's table has not."""
    return Published(
        table=row.table,
        dataset=row.experiment.dataset,
        architecture=row.experiment.model,
        labels=row.labels,
        extra=row.extra,
        method=row.method,
        averaging="none",
        epoch=None,
        error=None,
        std=None,
        source=THIS_PAPER,
    )


def _network(cell: Published) -> str:
    """Which of our networks a published cell is compared with."""
    if cell.averaging == "none":
        return "teacher" if cell.method == "mean-teacher" else "student"
    # The table writes VAT + SWA, the text fast-SWA; SWA at epoch 180 would be the student itself.
    return "fast-swa" if cell.epoch is None else cell.averaging


def sheet(name: str, found: Sequence[Line]) -> Sheet:
    """Lines as text and numbers."""
    experiment = TABLES[name]
    rows: list[tuple[str, ...]] = [
        (line.labels, line.title, figure(line.cell), our_text(line.ours, line.remark), *_comparison(line))
        for line in found
    ]
    return Sheet(
        name=name,
        title=f"Test error in %: {experiment.title}, {experiment.preset} schedule",
        columns=("labels", "row", "paper", "ours (seeds)", "diff.", "s.e.", "min."),
        rows=rows,
        records=[record(line) for line in found],
        marks=[mark(line) for line in found],
        groups=[line.labels.replace("k", "k labels", 1) for line in found],
        notes=[
            "± is the standard deviation over seeds; diff. is ours less the paper's, in points and in standard errors "
            "sqrt(s_paper² / 3 + s_ours² / n), with s_ours = s_paper where n = 1; min. is one run up to that epoch, or "
            "its share where several ran at once.",
            f"Rows without an epoch are measured at {experiment.length}, VAT's average as fast-SWA. The paper's MT may "
            "be the student or the EMA: the EMA is compared. What it quotes and also ran is compared with its own "
            "row; of what it only quotes the number of seeds is not known, so that there are no standard errors.",
        ],
    )


def our_text(ours: Measured | None, remark: str) -> str:
    """A measurement as people read it."""
    if ours is None:
        return remark
    spread = "" if ours.std is None else f" ± {ours.std:.2f}"
    return f"{ours.mean:.2f}{spread} ({ours.count})"


def _comparison(line: Line) -> tuple[str, str, str]:
    minutes = "" if line.ours is None else f"{line.ours.minutes:.1f}"
    return signed(line.difference, 2), signed(line.standard_errors, 1), minutes


def signed(value: float | None, digits: int) -> str:
    """A number with its sign, or nothing."""
    return "" if value is None else f"{value:+.{digits}f}"


def mark(line: Line) -> str:
    """How a row is to look: see Sheet. What the paper quotes from other work is not judged."""
    if line.ours is None:
        return "dim"
    if line.difference is None or line.cell.quoted:
        return "plain"
    if line.difference < -1:
        return "check"
    if line.standard_errors is None:
        return "plain"
    return "good" if line.standard_errors <= 2 else "bad"


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A number without the noise of floating point."""
    return None if value is None else round(value, digits)


_RECORD: dict[str, Callable[[Line], Any]] = {
    "table": lambda line: line.cell.table,
    "labels": lambda line: line.cell.labels,
    "extra": lambda line: line.cell.extra,
    "method": lambda line: line.cell.method,
    "averaging": lambda line: line.cell.averaging,
    "epoch": lambda line: line.cell.epoch,
    "source": lambda line: line.cell.source,
    "paper_error": lambda line: line.cell.error,
    "paper_std": lambda line: line.cell.std,
    "recipe": lambda line: line.row.name if line.row is not None else None,
    "network": lambda line: line.network,
    "measured_epoch": lambda line: line.epoch,
    "difference": lambda line: rounded(line.difference),
    "standard_errors": lambda line: rounded(line.standard_errors),
}


def record(line: Line) -> dict[str, Any]:
    """A line's numbers under plain names."""
    return {name: give(line) for name, give in _RECORD.items()} | our_record(line.ours, line.remark)


def our_record(ours: Measured | None, remark: str) -> dict[str, Any]:
    """A measurement's numbers under plain names."""
    return {
        "our_error": rounded(ours.mean) if ours is not None else None,
        "our_std": rounded(ours.std) if ours is not None else None,
        "seeds": list(ours.errors) if ours is not None else [],
        "records": list(ours.records) if ours is not None else [],
        "minutes": rounded(ours.minutes, 2) if ours is not None else None,
        "status": "measured" if ours is not None else remark,
    }
