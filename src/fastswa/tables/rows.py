"""The runs behind the paper's CIFAR tables, from one description, and the recipe of each.

A run is one method with one number of labels; it yields every epoch and average that a table prints for them.
Which runs there are follows from published.csv; what they are trained with stands in TABLES and METHODS.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tomli_w

from fastswa.shorthands import PRESETS
from fastswa.tables.published import Published, published


@dataclass(frozen=True)
class Experiment:
    """What all runs of one table share: the paper's appendix on hyper-parameters."""

    title: str
    dataset: str
    model: str
    short_name: str
    preset: str
    batch: int
    labelled: int
    lr: float
    weight_decay: float
    evaluate_every: int = 3
    suffix: str = ""
    labelled_with_extra: int | None = None

    @property
    def length(self) -> int:
        """The epoch at which the first descent of the learning rate ends (l)."""
        return int(PRESETS[self.preset]["length"])


@dataclass(frozen=True)
class Procedure:
    """What a method's runs share in every table."""

    title: str
    heads: int = 2
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""


_SHAKE = "shake-shake-26-2x96d"
TABLES = {
    "cifar10-cnn": Experiment("CIFAR-10, 13-layer CNN", "cifar10", "cnn13", "cnn", "short", 100, 50, 0.1, 1e-4),
    "cifar10-shake-short": Experiment(
        "CIFAR-10, Shake-Shake", "cifar10", _SHAKE, "shake", "short", 128, 31, 0.05, 2e-4, suffix="-short"
    ),
    "cifar10-shake-long": Experiment(
        "CIFAR-10, Shake-Shake", "cifar10", _SHAKE, "shake", "long", 128, 31, 0.05, 2e-4, 20, suffix="-long"
    ),
    "cifar100-cnn": Experiment(
        "CIFAR-100, 13-layer CNN", "cifar100", "cnn13", "cnn", "short", 128, 31, 0.1, 2e-4, labelled_with_extra=64
    ),
    "cifar100-shake-short": Experiment(
        "CIFAR-100, Shake-Shake", "cifar100", _SHAKE, "shake", "short", 128, 31, 0.1, 2e-4, suffix="-short"
    ),
}

_SEARCHED = (
    "The paper gives none of these. On validation images of CIFAR-10 with 4,000 labels, disturbances that correlate "
    "as neighbours do, measured as on whitened images, left VAT's student four points less error than the best of "
    "single pixels (17.7 to 13.5%), epsilon 4 less than 2 and 8, weight 1 no more than 3 "
    "(results/cifar10-cnn-tuning.txt); the one head is our choice. The paper's text calls the average fast-SWA."
)
_VAT = {"weight": 1, "ramp": 0, "epsilon": 4, "xi": 10, "own_dropout": True, "correlation": 0.92}

# By benchmarks/vat_direction.py.
_LONG_STEP = (
    "Steps of 10 (xi) find directions that do more harm than small ones do (0.43 to 0.38), in 16 bits as in 64, "
    "and need no other arithmetic than the rest."
)

GENERATED = "Source: the paper's table"

METHODS = {
    "supervised": Procedure("Supervised training on the labelled images alone"),
    "pi": Procedure("Pi model"),
    "mean-teacher": Procedure("Mean Teacher"),
    "temporal-ensembling": Procedure(
        "Temporal Ensembling",
        1,
        {"weight": 30, "ramp": 80},
        "The weight is the best of 10, 30 and 100 on validation images of CIFAR-10 with 4,000 labels "
        "(results/cifar10-cnn-tuning.txt); the one head is our choice.",
    ),
    "sntg": Procedure(
        "SNTG on Temporal Ensembling",
        1,
        {"weight": 30, "ramp": 80, "neighbours": 0.1, "margin": 1},
        "Weights, margin and the one head are our choice, not yet searched for on validation.",
    ),
    "vadd": Procedure(
        "VAdD",
        1,
        {"weight": 100, "ramp": 5, "delta": 0.05},
        "The weight, the layer (the last dropout) and the one head are our choice, not yet searched for on validation.",
    ),
    "vat": Procedure(
        "VAT",
        1,
        _VAT,
        f"{_SEARCHED} {_LONG_STEP}",
    ),
    "vat-entmin": Procedure(
        "VAT + EntMin",
        1,
        {**_VAT, "entropy": 0.3},
        f"{_SEARCHED} {_LONG_STEP} Entropy weights of 0.3 and 0.1 hardly differ there (student 13.6 and 13.9%, "
        "fast-SWA 14.0 and 13.4%).",
    ),
}


@dataclass(frozen=True)
class Variant:
    """A run that a figure or a sentence of the paper calls for, and no cell: what it changes of a method's."""

    title: str
    source: str
    settings: dict[str, Any] = field(default_factory=dict)
    averages: dict[str, dict[str, Any]] = field(default_factory=dict)
    epochs: int | None = None
    evaluate_every: int | None = None


VARIANTS = {
    "swa-teacher": Variant(
        "Mean Teacher whose teacher is an SWA average from epoch 150 on",
        "Paper: a figure of the appendix (EMA versus SWA as a teacher), no cell.",
        {"teacher": "swa", "teacher_start": 150},
    ),
    "often": Variant(
        "Mean Teacher averaged more and more often in one run",
        "Paper: a sentence (averaging more often than once per epoch did not improve), no cell. "
        "`fastswa table averaging-often` compares the averages.",
        averages={
            "every_epoch": {"kind": "fast-swa", "every": 1},
            "every_quarter": {"kind": "fast-swa", "every": 0.25},
            "every_step": {"kind": "fast-swa", "every": 0},
        },
        epochs=240,
        evaluate_every=10,
    ),
}

# Extra unlabelled images: settings of [data]. The paper uses at most 100k of them an epoch.
EXTRA = {
    "tiny-500k": {"extra": "tiny_images.bin", "extra_images": 500_000, "extra_per_epoch": 100_000},
    "tiny-237k": {"extra": "tiny_images.bin", "extra_file": "tiny-237k.txt", "extra_per_epoch": 100_000},
}
_EXTRA_NOTES = {
    "tiny-500k": "The extra images are 500,000 of Tiny Images, drawn at random.",
    "tiny-237k": "The extra images are those of Tiny Images under CIFAR-100's class names, listed in tiny-237k.txt.",
}
_WITHDRAWN = "Tiny Images was withdrawn by its authors in 2020: docs/extra-images.md says what to use instead."

# Epochs that cost hours: a recipe stops before them, and a resumed run goes there.
DISTANT = (1200, 3500)
# A row with distant epochs trains as far as its averages need to differ.
NEAR = {"short": 240, "long": 1700}


@dataclass(frozen=True)
class Row:
    """One run: everything that the tables print for a method with so many labels."""

    table: str
    method: str
    labels: int
    extra: str = ""
    variant: str = ""

    @property
    def experiment(self) -> Experiment:
        return TABLES[self.table]

    @property
    def name(self) -> str:
        """The recipe's name."""
        parts = (self.experiment.dataset, self.experiment.short_name, self.method, self.variant)
        labels = f"{self.labels // 1000}k" + (f"-{self.extra}" if self.extra else "")
        return "-".join(part for part in (*parts, labels) if part) + self.experiment.suffix

    @property
    def title(self) -> str:
        """What is trained."""
        return VARIANTS[self.variant].title if self.variant else METHODS[self.method].title

    @property
    def cells(self) -> tuple[Published, ...]:
        """The figures that the table prints for this run, quoted ones included."""
        if self.variant:
            return ()
        return tuple(cell for cell in published(self.table) if row_of(cell) == self)

    @property
    def epochs(self) -> int:
        """How far the recipe trains: those with 4k labels keep the 180 epochs they came with."""
        kept = self.table == "cifar10-cnn" and self.labels == 4000 and not self.variant
        return self.experiment.length if kept else self.swept

    @property
    def swept(self) -> int:
        """How far a sweep trains: to the last epoch that the table prints, or where that is distant to the near one."""
        if self.variant:
            return VARIANTS[self.variant].epochs or self.experiment.length
        known = {cell.epoch for cell in self.cells if cell.epoch is not None} or {self.experiment.length}
        return NEAR[self.experiment.preset] if max(known) in DISTANT else max(known)

    def layer(self) -> dict[str, Any]:
        """The recipe's settings."""
        experiment, procedure = self.experiment, METHODS[self.method]
        labelled = experiment.labelled
        if self.extra:
            labelled = experiment.labelled_with_extra or labelled
        elif self.labels == 50_000:
            labelled = experiment.batch
        variant = VARIANTS.get(self.variant, Variant("", ""))
        averages = {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa"}, **variant.averages}
        if any(cell.averaging == "ema" for cell in self.cells):
            averages["ema"] = {"kind": "ema"}
        evaluate_every = variant.evaluate_every or experiment.evaluate_every
        return {
            "data": {"source": experiment.dataset, **EXTRA.get(self.extra, {})},
            "split": {"labels": self.labels},
            "batch": {"size": experiment.batch, "labelled": labelled},
            "model": {"name": experiment.model, "heads": procedure.heads},
            "method": {"name": self.method, **procedure.settings, **variant.settings},
            "optimiser": {"lr": experiment.lr, "weight_decay": experiment.weight_decay},
            "schedule": {"preset": experiment.preset, "epochs": self.epochs},
            "averaging": averages,
            "evaluation": {"every": evaluate_every},
            "checkpoint": {"every": evaluate_every},
        }

    def toml(self) -> str:
        """The recipe's file."""
        return self._header() + tomli_w.dumps(self.layer())

    def _header(self) -> str:
        title = self.title
        if any(cell.averaging == "ema" for cell in self.cells):
            title += ", with its EMA evaluated (Pi EMA)"
        experiment = self.experiment
        labels = f"{self.labels:,} labels" if self.labels < 50_000 else "all 50,000 labels"
        labels += f" and {self.extra.removeprefix('tiny-')} extra images" if self.extra else ""
        first = f"{experiment.title}, {labels}: {title}, {experiment.preset} schedule."
        source = f"{GENERATED} {self.table}. {self._figures()}"
        extra = f"{_EXTRA_NOTES[self.extra]} {_WITHDRAWN}" if self.extra else ""
        notes = " ".join(f"{source} {METHODS[self.method].note} {extra}".split())
        wrapped = textwrap.wrap(notes, 116, break_on_hyphens=False)
        text = [first, *wrapped, *self._extension()]
        return "".join(f"# {line}\n" for line in text)

    def _figures(self) -> str:
        if self.variant:
            return VARIANTS[self.variant].source
        own = sorted((cell for cell in self.cells if not cell.quoted), key=lambda cell: cell.epoch or 0)
        quoted = [f"{figure(cell)} ({cell.source})" for cell in self.cells if cell.quoted]
        sentences = [] if self.cells else ["Paper: no cell with so many labels."]
        if own:
            sentences.append(f"Paper: {', '.join(_with_epoch(cell) for cell in own)}.")
        if quoted:
            sentences.append(f"Quoted there: {', '.join(quoted)}.")
        return " ".join(sentences)

    def _extension(self) -> list[str]:
        if self.variant:
            return []
        further = sorted({cell.epoch for cell in self.cells if cell.epoch and cell.epoch > self.epochs})
        beside = f"`fastswa table {self.table}` shows ours beside the paper's."
        if not further:
            return [beside]
        epochs = ", ".join(map(str, further))
        return [
            f"One run yields every epoch and average; to reach {epochs}: `fastswa resume RUN --epochs {further[-1]}`.",
            beside,
        ]


def figure(cell: Published) -> str:
    """A published error as the paper prints it; "" for none."""
    if cell.error is None:
        return ""
    digits = 1 if cell.std is None and "cnn" not in cell.table and round(cell.error, 1) == cell.error else 2
    return f"{cell.error:.{digits}f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")


def _with_epoch(cell: Published) -> str:
    averaging = {"none": "", "ema": "EMA ", "swa": "SWA ", "fast-swa": "fast-SWA "}[cell.averaging]
    return f"{averaging}{figure(cell)}" + (f" ({cell.epoch})" if cell.epoch else "")


def row_of(cell: Published) -> Row | None:
    """The run that yields a published cell; None for methods and tables that fastswa has not."""
    if cell.table not in TABLES or cell.method not in METHODS or cell.labels is None:
        return None
    return Row(cell.table, cell.method, cell.labels, cell.extra)


@cache
def all_rows() -> dict[str, Row]:
    """Every run behind the CIFAR tables by its name, in the tables' order."""
    rows = [row for table in TABLES for cell in published(table) if (row := row_of(cell)) is not None]
    rows += [Row("cifar10-cnn", "mean-teacher", 4000, variant=variant) for variant in VARIANTS]
    rows += [Row("cifar10-cnn", "sntg", 4000)]
    return {row.name: row for row in rows}


def generated(text: str) -> bool:
    """Whether a recipe is one of these rows, rather than one that was written by hand."""
    return f"# {GENERATED} " in text


def recipe_files() -> dict[str, str]:
    """The text of every generated recipe by its file's name."""
    return {f"{row.name}.toml": row.toml() for row in all_rows().values()}
