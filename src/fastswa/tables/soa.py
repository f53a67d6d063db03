"""The paper's summary table: the best before it, the paper, ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastswa.tables.measured import Measured, Result
from fastswa.tables.published import Published, all_published
from fastswa.tables.rows import row_of
from fastswa.tables.runs import TableRun, run_of
from fastswa.tables.table import Line, Sheet, lines, mark, our_record, our_text, rounded, short_source, signed


@dataclass(frozen=True)
class Entry:
    """One column of the summary: a setting, and the paper's cell in it (always fast-SWA).

    `previous` names the best before it on the same architecture: its table, method and source.
    """

    table: str
    labels: int
    extra: str
    method: str
    epoch: int
    previous: tuple[str, str, str] | None = None

    @property
    def paper(self) -> Published:
        return _cell(self.table, self.labels, self.extra, self.method, "fast-swa", epoch=self.epoch)

    @property
    def before(self) -> Published | None:
        if self.previous is None:
            return None
        table, method, source = self.previous
        return _cell(table, self.labels, self.extra, method, "none", source=source)


_SNTG = ("cifar10-cnn", "sntg", "Luo et al. 2017")
_VADD = ("cifar10-cnn", "vadd", "Park et al. 2017")
_TE = ("cifar100-cnn", "temporal-ensembling", "Laine & Aila 2017")
_MT = ("cifar10-shake-short", "mean-teacher", "Tarvainen & Valpola 2017")
ENTRIES = (
    Entry("cifar10-cnn", 1000, "", "mean-teacher", 1200, _SNTG),
    Entry("cifar10-cnn", 2000, "", "mean-teacher", 1200, _SNTG),
    Entry("cifar10-cnn", 4000, "", "mean-teacher", 1200, _VADD),
    Entry("cifar100-cnn", 10000, "", "mean-teacher", 1200, _TE),
    Entry("cifar100-cnn", 50000, "tiny-500k", "mean-teacher", 1200, _TE),
    Entry("cifar100-cnn", 50000, "tiny-237k", "mean-teacher", 1200, _TE),
    Entry("cifar10-shake-long", 1000, "", "mean-teacher", 3500),
    Entry("cifar10-shake-long", 2000, "", "mean-teacher", 3500),
    Entry("cifar10-shake-long", 4000, "", "pi", 3500, _MT),
    Entry("cifar100-shake-short", 10000, "", "mean-teacher", 300),
    Entry("cifar100-shake-short", 50000, "tiny-500k", "mean-teacher", 300),
    Entry("cifar100-shake-short", 50000, "tiny-237k", "mean-teacher", 300),
)
_GROUPS = {
    "cifar10-cnn": "CIFAR-10 CNN",
    "cifar100-cnn": "CIFAR-100 CNN",
    "cifar10-shake-long": "CIFAR-10 shake",
    "cifar100-shake-short": "CIFAR-100 shake",
}


def soa_runs() -> list[TableRun]:
    """The runs of the paper's cells in the summary."""
    return [run_of(row) for entry in ENTRIES if (row := row_of(entry.paper)) is not None]


def _cell(
    table: str,
    labels: int,
    extra: str,
    method: str,
    averaging: str,
    source: str | None = None,
    epoch: int | None = None,
) -> Published:
    wanted = (table, labels, extra, method, averaging, epoch)
    (found,) = [
        cell
        for cell in all_published()
        if (cell.table, cell.labels, cell.extra, cell.method, cell.averaging, cell.epoch) == wanted
        and source in (None, cell.source)
    ]
    return found


def soa(results: Sequence[Result]) -> Sheet:
    """The summary table. Where the paper's epoch is not measured, ours is fast-SWA at the last one that is."""
    rows, records, marks, groups = [], [], [], []
    tables = {name: lines(name, results) for name in _GROUPS}
    for entry in ENTRIES:
        row, record, look = _row(entry, tables[entry.table])
        rows.append(row)
        records.append(record)
        marks.append(look)
        groups.append(_GROUPS[entry.table])
    return Sheet(
        name="soa",
        title="Test error in %: previous best, the paper, ours",
        columns=("table", "labels", "previous best", "paper", "by", "ours (seeds)", "at", "s.e."),
        rows=rows,
        records=records,
        marks=marks,
        groups=groups,
        notes=[
            "All entries of the paper and ours are fast-SWA, at the epoch beside them; where ours stops before the "
            "paper's, they are not compared."
        ],
    )


def _row(entry: Entry, cells: Sequence[Line]) -> tuple[tuple[str, ...], dict[str, Any], str]:
    paper, before = entry.paper, entry.before
    line, ours, epoch = _ours(entry, cells)
    same = epoch == paper.epoch
    difference, in_errors = (line.difference, line.standard_errors) if same else (None, None)
    look = mark(line) if same else "plain"
    texts = (
        entry.table,
        line.labels,
        "" if before is None else f"{before.error:.2f}, {short_source(before)}",
        f"{paper.error:.{2 if 'cnn' in entry.table else 1}f}",
        f"{'Pi' if entry.method == 'pi' else 'MT'} {paper.epoch}",
        our_text(ours, line.remark),
        "" if ours is None else str(epoch),
        signed(in_errors, 1),
    )
    record = {
        "table": entry.table,
        "labels": entry.labels,
        "extra": entry.extra,
        "previous_error": None if before is None else before.error,
        "previous_source": None if before is None else before.source,
        "method": entry.method,
        "paper_error": paper.error,
        "paper_std": paper.std,
        "paper_epoch": paper.epoch,
        "our_epoch": epoch,
        "difference": rounded(difference),
        "standard_errors": rounded(in_errors),
    } | our_record(ours, line.remark)
    return texts, record, "dim" if ours is None else look


def _ours(entry: Entry, cells: Sequence[Line]) -> tuple[Line, Measured | None, int | None]:
    """The line of the paper's cell; our fast-SWA at its epoch or the last one before it that is measured; which."""
    wanted = (entry.labels, entry.extra, entry.method, "fast-swa")
    found = [
        line for line in cells if (line.cell.labels, line.cell.extra, line.cell.method, line.cell.averaging) == wanted
    ]
    (target,) = [line for line in found if line.epoch == entry.epoch]
    done = [line for line in found if line.ours is not None and line.epoch <= entry.epoch]
    if not done:
        return target, None, None
    last = max(done, key=lambda line: line.epoch)
    return target, last.ours, last.epoch
