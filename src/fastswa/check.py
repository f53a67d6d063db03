"""`fastswa check`: what a data set holds, what is wrong with it, and what training on it would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastswa.data.cache import as_dataset, prepare, refusal
from fastswa.data.images import UNLABELLED, Dataset, ImageFiles, ImageSet
from fastswa.data.plan import Options, Plan, Shape
from fastswa.data.sources import SOURCES, list_files, load
from fastswa.defaults import LARGE, slow
from fastswa.errors import RequestError

FEW = 3
PARTS = ("labelled", "unlabelled", "test")
_EXAMPLES, _SHOWN, _TIMED = 10, 30, 1000


@dataclass(frozen=True)
class ClassCount:
    """Images of one class."""

    name: str
    labelled: int
    test: int


@dataclass(frozen=True)
class Duplicates:
    """Images that are the same, pixel by pixel, once prepared.

    `within` counts the copies beyond the first in each part; `across` the images of the second part that the first
    also holds; `contradictions` the images with a label of which a copy has another; `examples` names some.
    """

    within: dict[str, int]
    across: dict[str, int]
    contradictions: int
    examples: list[list[str]]


@dataclass(frozen=True)
class Verdict:
    """What a check says of data: `problems` are what training would refuse, `notes` what a person should know."""

    problems: list[str] = field(default_factory=list, kw_only=True)
    notes: list[str] = field(default_factory=list, kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether training would accept the data."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, for JSON."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class CheckReport(Verdict):
    """What `check_data` found."""

    source: str
    labelled: int
    unlabelled: int
    test: int
    classes: list[ClassCount]
    imbalance: float
    shape: tuple[int, int, int]
    sizes: dict[str, Any]
    duplicates: Duplicates
    batch: dict[str, int] | None
    time: dict[str, Any] | None
    unreadable: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    prepared: str | None = None


def check_data(
    source: str, root: Path = Path("data"), options: Options | None = None, *, timing: bool = True
) -> CheckReport:
    """A report on a folder, a manifest, an .npz file or a built-in data set; files are prepared on the way.

    With `timing` a few steps are trained on one's own data to say how long the default run takes.
    """
    options = options or Options()
    unreadable: dict[str, str] = {}
    ignored: dict[str, int] = {}
    notes: list[str] = []
    prepared_at = plan = None
    if source in SOURCES or source.lower().endswith(".npz"):
        dataset = load(source, root, options)
    else:
        lenient = replace(options, skip_bad=True)
        files = _listed(source, root, options)
        prepared = prepare(files, lenient)
        dataset, plan, prepared_at = as_dataset(files, prepared), prepared.plan, str(prepared.place)
        unreadable, ignored = {**files.missing, **prepared.unreadable}, files.ignored
        notes += [*files.notes, *plan.notes]
    problems = [str(refusal(list(unreadable.values())))] if unreadable and not options.skip_bad else []
    train, test = dataset.train, dataset.test
    counts = np.bincount(train.labels[train.labels != UNLABELLED], minlength=len(train.classes))
    tests = np.bincount(test.labels, minlength=len(train.classes)) if test is not None else np.zeros_like(counts)
    duplicates = find_duplicates(dataset)
    batch = _batch(source, dataset, problems)
    own = source not in SOURCES
    notes += _notes(dataset, counts, duplicates, own, held_out=batch is None or batch["validation"] > 0)
    spent = _time(source, dataset) if timing and own and batch is not None and not problems else None
    if spent is not None and spent["how"] == "measured on cpu" and (side := min(train.shape[1:])) >= LARGE:
        notes.append(f"{slow(side)}.")
    return CheckReport(
        source=source,
        labelled=int(counts.sum()),
        unlabelled=int((train.labels == UNLABELLED).sum()),
        test=int(tests.sum()),
        classes=[ClassCount(n, int(c), int(t)) for n, c, t in zip(train.classes, counts, tests, strict=True)],
        imbalance=round(float(counts.max() / max(counts.min(), 1)), 2),
        shape=train.shape,
        sizes=sizes_of(plan, train.shape),
        duplicates=duplicates,
        batch=batch,
        time=spent,
        unreadable=unreadable,
        ignored=ignored,
        prepared=prepared_at,
        problems=problems,
        notes=notes,
    )


def _listed(source: str, root: Path, options: Options) -> ImageFiles:
    """The image files, without those that are listed and not there unless what is left is refused for that."""
    try:
        return list_files(source, root, replace(options, skip_bad=True))
    except RequestError:
        if not options.skip_bad:
            list_files(source, root, options)
        raise


def find_duplicates(dataset: Dataset) -> Duplicates:
    """Copies within and across the labelled, the unlabelled and the test images."""
    sets = [dataset.train] if dataset.test is None else [dataset.train, dataset.test]
    digests = np.fromiter((digest for images in sets for digest in _digests(images)), np.uint64)
    labels = np.concatenate([images.labels for images in sets])
    parts = np.where(labels == UNLABELLED, 1, 0)
    parts[len(dataset.train) :] = 2
    _, group, sizes = np.unique(digests, return_inverse=True, return_counts=True)
    holds = np.stack([np.bincount(group[parts == part], minlength=len(sizes)) for part in range(3)], axis=1)
    known = labels != UNLABELLED
    lowest = np.full(len(sizes), np.iinfo(np.int64).max)
    highest = np.full(len(sizes), UNLABELLED)
    np.minimum.at(lowest, group[known], labels[known])
    np.maximum.at(highest, group[known], labels[known])
    torn = highest > lowest
    # The worst first: contradictions, then copies in test, then others.
    several = np.flatnonzero(sizes > 1)
    ranks = np.lexsort((several, -holds[several, 2], ~torn[several]))
    return Duplicates(
        within={name: int(np.maximum(holds[:, part] - 1, 0).sum()) for part, name in enumerate(PARTS)},
        across={
            f"{PARTS[a]} and {PARTS[b]}": int(holds[holds[:, a] > 0, b].sum()) for a, b in combinations(range(3), 2)
        },
        contradictions=int(holds[torn][:, [0, 2]].sum()),
        examples=[
            [_name(dataset, int(row)) for row in np.flatnonzero(group == number)[:4]]
            for number in several[ranks[:_EXAMPLES]]
        ],
    )


def _digests(images: ImageSet) -> Iterator[int]:
    for pixels in images.pixels:
        yield int.from_bytes(blake2b(np.ascontiguousarray(pixels).data, digest_size=8).digest(), "little")


def _name(dataset: Dataset, row: int) -> str:
    """A file's name, or the part and number of an image that came from an array."""
    images, part = dataset.train, "train"
    if row >= len(dataset.train) and dataset.test is not None:
        images, part, row = dataset.test, "test", row - len(dataset.train)
    return images.files[row] if images.files is not None else f"{part} image {row}"


def sizes_of(plan: Plan | None, shape: Shape) -> dict[str, Any]:
    """Sizes of the files, (height, width) each; `shape` is that of images from arrays."""
    if plan is None:
        size = shape[1:]
        return {"smallest": size, "median": size, "largest": size, "different": 1, "enlarged": 0, "cropped": 0}
    return {
        "smallest": plan.smallest,
        "median": plan.median,
        "largest": plan.largest,
        "different": plan.sizes,
        "enlarged": plan.enlarged,
        "cropped": plan.cropped,
    }


def _batch(source: str, dataset: Dataset, problems: list[str]) -> dict[str, int] | None:
    """The batches that training with the default settings would take; None and a problem where it would refuse."""
    from fastswa.data.batches import plan_batches
    from fastswa.data.splits import split_by
    from fastswa.layers import build_config, own_data_layer
    from fastswa.models import refuse_size
    from fastswa.training.setup import with_data_defaults

    try:
        config = with_data_defaults(build_config(own_data_layer(source)), dataset)
        split = split_by(config.split, dataset)
        batches = plan_batches(split, size=config.batch.size, labelled=config.batch.labelled, steps=config.batch.steps)
        refuse_size(config.model.name, dataset.train.shape)
    except RequestError as error:
        problems.append(str(error))
        return None
    return {
        "size": batches.size,
        "labelled": batches.labelled,
        "steps": batches.steps,
        "training_labels": len(split.labelled),
        "validation": len(split.validation),
    }


def _time(source: str, dataset: Dataset) -> dict[str, Any]:
    """How long a step, an epoch and the whole of the default run take on this machine: a few steps are timed."""
    from tempfile import TemporaryDirectory

    from fastswa.layers import build_config, own_data_layer
    from fastswa.training.budget import duration, measure
    from fastswa.training.device import choose_compute, settings_of
    from fastswa.training.folder import RunFolder
    from fastswa.training.loop import Trainer
    from fastswa.training.setup import prepare as prepare_run
    from fastswa.training.setup import with_data_defaults
    from fastswa.training.state import build_state

    config = with_data_defaults(build_config(own_data_layer(source)), dataset)
    compute = choose_compute(config.device)
    if compute.engine == "auto":
        compute = replace(compute, engine="graph")  # compiling takes longer than the answer is worth
    tested = len(dataset.test) if dataset.test is not None else 0
    with settings_of(compute, config.device.threads), TemporaryDirectory() as folder:
        trial = config.model_copy(update={"split": config.split.model_copy(update={"validation": 0, "seed": 0})})
        material = prepare_run(trial, _some(dataset), compute)
        state = build_state(trial, compute, material.facts, images=len(material.pixels), fresh=False)
        costs = measure(Trainer(trial, material, state, compute, RunFolder(Path(folder)), ""), 1.0)
    images = tested + (config.split.validation or 0)
    steps = material.plan.steps
    whole = duration(config, costs, steps=steps, networks=len(state.networks()), images=images)
    return {
        "how": f"measured on {compute.device}",
        "step_seconds": float(f"{costs.step:.3g}"),
        "epoch_seconds": float(f"{steps * costs.step:.3g}"),
        "epochs": config.schedule.epochs,
        "run_minutes": round(whole / 60, 1),
    }


def _some(dataset: Dataset) -> Dataset:
    """A part of the training images, labelled and not: a step's time does not depend on what they show."""
    labels = dataset.train.labels
    rows = np.sort(
        np.concatenate([np.flatnonzero(labels != UNLABELLED)[:_TIMED], np.flatnonzero(labels == UNLABELLED)[:_TIMED]])
    )
    train = ImageSet(
        np.ascontiguousarray(dataset.train.pixels[rows]), labels[rows], dataset.classes, dataset.train.name
    )
    return Dataset(train, None, dataset.normalisation)


def _notes(dataset: Dataset, counts: np.ndarray, duplicates: Duplicates, own: bool, held_out: bool) -> list[str]:
    notes = []
    if own and UNLABELLED not in dataset.train.labels:
        notes.append("there is no unlabelled image: training is supervised only, as far as every label is used.")
    if dataset.test is None and held_out:
        notes.append("there are no test images: errors are measured on validation images only.")
    elif dataset.test is None:
        notes.append("there are no test images, and too few labels to hold some out: no error can be measured.")
    for least, most, number in ((0, 0, "no labelled image"), (1, FEW - 1, f"fewer than {FEW} labelled images")):
        few = [name for name, count in zip(dataset.classes, counts, strict=True) if least <= count <= most]
        if few:
            names = ", ".join(f"'{name}'" for name in few[:5]) + (", …" if len(few) > 5 else "")
            notes.append(f"{number}: {names}.")
    if counts.max() > 10 * max(counts.min(), 1):
        notes.append("the largest class has more than ten times the labelled images of the smallest.")
    if duplicates.contradictions:
        notes.append(f"{duplicates.contradictions} images that are the same stand in different classes.")
    if leaked := duplicates.across["labelled and test"]:
        notes.append(f"{leaked} test images are among the labelled training images: the test error will flatter.")
    if seen := duplicates.across["unlabelled and test"]:
        notes.append(f"{seen} test images are among the unlabelled training images.")
    return notes


def print_report(report: CheckReport, console: Console | None = None) -> None:
    """The report as tables and sentences."""
    console = console or Console()
    table = Table(title=escape(report.source))
    table.add_column("class")
    table.add_column("labelled", justify="right")
    table.add_column("test", justify="right")
    for row in report.classes[:_SHOWN]:
        table.add_row(escape(row.name), f"{row.labelled:,}", f"{row.test:,}")
    if len(report.classes) > _SHOWN:
        table.add_row(f"… {len(report.classes) - _SHOWN} more", "", "")
    table.add_section()
    table.add_row(f"{len(report.classes)} classes", f"{report.labelled:,}", f"{report.test:,}")
    table.add_row("unlabelled", f"{report.unlabelled:,}", "")
    console.print(table)
    for sentence in _sentences(report):
        console.print(escape(sentence), highlight=False, soft_wrap=True)


def _sentences(report: CheckReport) -> Iterator[str]:
    channels, height, width = report.shape
    sizes = {name: f"{size[0]}x{size[1]}" for name, size in report.sizes.items() if isinstance(size, tuple)}
    yield f"images: {', '.join(f'{name} {size}' for name, size in sizes.items())} (height x width)"
    yield f"trained on as: {height}x{width}, {'grey' if channels == 1 else 'RGB'}; imbalance {report.imbalance:g}"
    if report.batch is not None:
        batch = report.batch
        yield (
            f"a batch: {batch['size']} images, {batch['labelled']} of them labelled; an epoch: {batch['steps']} "
            f"steps; {batch['training_labels']} labels to train on, {batch['validation']} held out"
        )
    if report.time is not None:
        from fastswa.training.budget import seconds_text

        spent = report.time
        yield (
            f"time: a step takes {seconds_text(spent['step_seconds'])} ({spent['how']}), an epoch "
            f"{seconds_text(spent['epoch_seconds'])}, the default {spent['epochs']} epochs about "
            f"{spent['run_minutes']:g} min; `--minutes M` trains for as long as you say"
        )
    copies = {**report.duplicates.within, **report.duplicates.across}
    found = ", ".join(f"{count} in {name}" for name, count in copies.items() if count)
    yield f"duplicates: {found or 'none'}"
    yield from (f"  the same: {'  '.join(names)}" for names in report.duplicates.examples)
    if report.ignored:
        yield "left aside: " + ", ".join(f"{count} {suffix}" for suffix, count in report.ignored.items())
    for reason in list(report.unreadable.values())[:_SHOWN]:
        yield f"unreadable: {reason}"
    if len(report.unreadable) > _SHOWN:
        yield f"unreadable: … {len(report.unreadable) - _SHOWN} more (--json lists all)"
    if report.prepared is not None:
        yield f"prepared in {report.prepared}"
    yield from (f"note: {note}" for note in report.notes)
    yield from (f"problem: {problem}" for problem in report.problems)
