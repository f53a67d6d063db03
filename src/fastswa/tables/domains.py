"""Domain adaptation: the runs behind the paper's last table and two classical pairs of digits, and that table.

A run is a pair of domains with a method; its recipe follows from what stands here. One run of self-ensembling yields
the student, the teacher and fast-SWA averaged once per epoch and once per iteration.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tomli_w

from fastswa.config import AverageConfig
from fastswa.layers import build_config
from fastswa.tables.measured import Measured, Result, of_layer, pooled
from fastswa.tables.published import Published, published
from fastswa.tables.rows import GENERATED
from fastswa.tables.runs import TableRun
from fastswa.tables.table import NOT_MEASURED, Sheet, our_record, our_text, rounded, short_source, signed

TABLE = "domain-adaptation"
METHODS = {"self-ensembling": "Self-ensembling", "source-only": "Supervised training on the source alone"}
AVERAGES = {"fast_swa": {"kind": "fast-swa", "every": 1}, "every_step": {"kind": "fast-swa", "every": 0}}


@dataclass(frozen=True)
class Pair:
    """A source and a target: what all runs on them share; `quoted` is an error of other work, and whose it is.

    `size` is the side that both are brought to, None for the source's; `beyond` what warped views see beyond an edge.
    """

    source: str
    target: str
    title: str
    schedule: dict[str, int]
    lr: float
    flip: bool
    evaluate_every: int
    note: str
    quoted: tuple[float, str] | None = None
    size: int | None = None
    beyond: str = "zero"

    @property
    def epochs(self) -> int:
        return self.schedule["epochs"]


_DIGITS = {"epochs": 60, "length": 50, "period": 60, "cycle": 10}
_UNSEARCHED = "Network and schedule are ours; lr and epochs are first choices, not searched for."
_FRENCH = "French et al. 2018"
_MARGIN = f"USPS is laid out as MNIST is, in a margin: ours, as {_FRENCH} only enlarge it."


def _digits(source: str, target: str, title: str, error: float, *, size: int | None = None, note: str = "") -> Pair:
    """A pair of digits; its warped views see the edge's pixel again, as there is nothing but background beyond most."""
    note = f"{_UNSEARCHED} {note}".rstrip()
    return Pair(source, target, title, _DIGITS, 0.05, False, 5, note, (error, _FRENCH), size, "edge")


PAIRS = (
    Pair(
        "cifar10",
        "stl10",
        "CIFAR-10 → STL-10",
        {"epochs": 600, "length": 550, "period": 600, "cycle": 50},
        0.1,
        True,
        10,
        "Nine classes are in both. 256 images of a domain in a batch; no weight norm, ReLU, one head.",
    ),
    _digits("mnist", "usps", "MNIST → USPS", 1.74),
    _digits("usps", "mnist", "USPS → MNIST", 0.46, size=28),
    _digits("mnist", "usps-margin", "MNIST → USPS, margin", 1.74, note=_MARGIN),
    _digits("usps-margin", "mnist", "USPS → MNIST, margin", 0.46, note=_MARGIN),
)


@dataclass(frozen=True)
class DomainRun:
    """One run: a pair of domains and a method of METHODS."""

    pair: Pair
    method: str

    @property
    def name(self) -> str:
        """The recipe's name."""
        return f"{self.pair.source}-{self.pair.target}-{self.method}"

    def layer(self) -> dict[str, Any]:
        """The recipe's settings."""
        pair, alone = self.pair, self.method == "source-only"
        return {
            "data": {"source": pair.source, "target": pair.target} | ({"size": pair.size} if pair.size else {}),
            # Alone the source has batches of the same 256: a whole batch of 512 would cost almost as much as both.
            "batch": {"size": 256 if alone else 512, "labelled": 256},
            "augment": {
                "translate": 2,
                "flip": pair.flip,
                "warp": True,
                "affine": 0.1,
                "noise": 0.1,
                "standardise": True,
            }
            | ({} if pair.beyond == "zero" else {"beyond": pair.beyond}),
            "model": {"name": "cnn13", "heads": 1, "weight_norm": False, "activation": "relu"},
            "method": {"name": "supervised" if alone else self.method},
            "optimiser": {"lr": pair.lr, "weight_decay": 2e-4},
            "schedule": pair.schedule,
            "averaging": AVERAGES,
            "evaluation": {"every": pair.evaluate_every},
            "checkpoint": {"every": pair.evaluate_every},
        }

    def toml(self) -> str:
        """The recipe's file."""
        text = f"{GENERATED} {TABLE}. {self._figures()} {self.pair.note}"
        lines = [f"{self.pair.title}: {METHODS[self.method]}, 13-layer CNN."]
        lines += textwrap.wrap(" ".join(text.split()), 116, break_on_hyphens=False)
        lines.append(f"`fastswa table {TABLE}` shows ours beside the paper's.")
        return "".join(f"# {line}\n" for line in lines) + tomli_w.dumps(self.layer())

    def _figures(self) -> str:
        if self.method == "source-only":
            return "Paper: no such row; it is what the target's images are to improve on."
        if self.pair.quoted is not None:
            error, source = self.pair.quoted
            return f"Paper: no such row; {error:.2f} ({source})."
        own = [cell for cell in published(TABLE) if not cell.quoted]
        said = ", ".join(f"{cell.error} ({_average(cell)}{_at(cell)})" for cell in own)
        return f"Paper: {said}."


@cache
def domain_runs() -> dict[str, DomainRun]:
    """Every run by its recipe's name."""
    runs = [DomainRun(pair, method) for pair in PAIRS for method in METHODS]
    return {run.name: run for run in runs}


def domain_files() -> dict[str, str]:
    """The text of every recipe by its file's name."""
    return {f"{run.name}.toml": run.toml() for run in domain_runs().values()}


def table_runs() -> list[TableRun]:
    """What a sweep trains: a pair's source is labelled whole, so that no number of labels tells runs apart."""
    return [TableRun(run.name, run.method, None, run.layer(), _figures(run)) for run in domain_runs().values()]


def _figures(run: DomainRun) -> tuple[tuple[str, int], ...]:
    """The networks of a run that the table shows, at its last epoch."""
    shown = [entry.network for entry in entries() if (entry.pair, entry.method) == (run.pair, run.method)]
    return tuple((network, run.pair.epochs) for network in dict.fromkeys(shown))


def _average(cell: Published) -> str:
    return "no average" if cell.averaging == "none" else cell.averaging.replace("swa", "SWA")


def _at(cell: Published) -> str:
    return "" if cell.epoch is None else f", epoch {cell.epoch}"


@dataclass(frozen=True)
class Entry:
    """A line of the table: a published figure, if there is one, and the network of a run that is set beside it.

    `network` is student, teacher or one of AVERAGES; `compared` where the figure is the paper's own for it.
    """

    pair: Pair
    title: str
    method: str | None
    network: str = "student"
    error: float | None = None
    source: str = ""
    compared: bool = False


def entries() -> list[Entry]:
    """The table's lines, pair by pair."""
    found = []
    for pair in PAIRS:
        found.append(Entry(pair, "source only", "source-only"))
        found += _published_entries(pair) if pair.quoted is None else _quoted_entries(pair)
    return found


def _published_entries(pair: Pair) -> list[Entry]:
    found = []
    for cell in published(TABLE):
        title = {"vada": "VADA", "self-ensembling": "SE"}[cell.method]
        if cell.quoted:
            found.append(Entry(pair, f"{title}, {short_source(cell)}", None, "student", cell.error, cell.source))
            continue
        epoch = "" if cell.epoch is None else f" ({cell.epoch})"
        if cell.averaging == "none":
            # The paper does not say whose figure it is; French et al. use the teacher.
            found.append(Entry(pair, f"{title}, teacher", "self-ensembling", "teacher", cell.error, cell.source, True))
            found.append(Entry(pair, f"{title}, student", "self-ensembling", "student", cell.error, cell.source))
            continue
        name = "every_step" if "iteration" in cell.averaging else "fast_swa"
        said = cell.averaging.replace("swa", "SWA")
        found.append(Entry(pair, f"{title} + {said}{epoch}", "self-ensembling", name, cell.error, cell.source, True))
    return found


def _quoted_entries(pair: Pair) -> list[Entry]:
    assert pair.quoted is not None
    error, source = pair.quoted
    averages = {"fast_swa": "fast-SWA per epoch", "every_step": "fast-SWA per iteration"}
    return [
        Entry(pair, "SE, teacher", "self-ensembling", "teacher", error, source, True),
        Entry(pair, "SE, student", "self-ensembling", "student", error, source),
        *(Entry(pair, f"SE + {title}", "self-ensembling", name) for name, title in averages.items()),
    ]


def ours(entry: Entry, results: Sequence[Result]) -> Measured | None:
    """What the runs of an entry measured on the target at their last epoch."""
    if entry.method is None:
        return None
    run = domain_runs()[f"{entry.pair.source}-{entry.pair.target}-{entry.method}"]
    runs = of_layer(results, run.layer())
    return pooled([(result, _name(result, run, entry.network)) for result in runs], entry.pair.epochs)


def _name(result: Result, run: DomainRun, network: str) -> str | None:
    """The name under which a run keeps a network."""
    if network not in AVERAGES:
        return network
    wanted: AverageConfig = build_config(run.layer()).averaging[network]
    return next((name for name, average in result.config.averaging.items() if average == wanted), None)


def domain_adaptation(results: Sequence[Result]) -> Sheet:
    """The paper's last table, and the two pairs of digits, with ours beside them."""
    rows: list[tuple[str, ...]] = []
    records, marks = [], []
    shown = entries()
    for entry in shown:
        remark = NOT_MEASURED if entry.method is not None else "quoted"
        found = ours(entry, results)
        difference = found.mean - entry.error if found is not None and entry.compared and entry.error else None
        minutes = "" if found is None else f"{found.minutes:.1f}"
        paper = "" if entry.error is None else f"{entry.error:.{1 if entry.pair.quoted is None else 2}f}"
        rows.append((entry.pair.title, entry.title, paper, our_text(found, remark), signed(difference, 2), minutes))
        records.append(_record(entry, difference) | our_record(found, remark))
        marks.append("dim" if found is None else "plain")
    return Sheet(
        name=TABLE,
        title="Error in % on the target's test images: domain adaptation",
        columns=("domains", "row", "published", "ours (seeds)", "diff.", "min."),
        rows=rows,
        records=records,
        marks=marks,
        groups=[entry.pair.title for entry in shown],
        notes=[
            "Ours are at the last epoch of the recipe (600, 60 for digits), the paper's at the epoch beside them, if "
            "any; it gives no deviations. Figures for digits are French et al.'s, who only enlarge USPS; 'margin' lays "
            "it out as MNIST is, in the middle of 28x28 pixels. ± is the standard deviation "
            "over seeds; min. is one run up to that epoch, or its share where several ran at once.",
        ],
    )


def _record(entry: Entry, difference: float | None) -> dict[str, Any]:
    return {
        "table": TABLE,
        "source": entry.pair.source,
        "target": entry.pair.target,
        "method": entry.method,
        "network": entry.network,
        "published_error": entry.error,
        "published_by": entry.source,
        "measured_epoch": entry.pair.epochs,
        "difference": rounded(difference),
    }
