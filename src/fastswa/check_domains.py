"""`fastswa check SOURCE --data.target TARGET`: how two domains compare, and what training would take of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastswa.check import Verdict, sizes_of
from fastswa.data.cache import as_dataset, prepare, refusal
from fastswa.data.domains import Matching, Target, load_target, match_domains, pair_domains, same_place, shared_images
from fastswa.data.fit import shape_text
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.plan import Options, Plan, Shape
from fastswa.data.sources import SOURCES, list_files, load

ROW = 8  # thumbnails of each side
_SHOWN = 30


@dataclass(frozen=True)
class ClassPair:
    """Images of one class; the name is None on the side that lacks it, which leaves it out of both.

    `target_known` are training images whose label the target gives and nobody uses.
    """

    source: str | None
    target: str | None
    source_labelled: int
    source_test: int
    target_known: int
    target_test: int

    @property
    def matched(self) -> bool:
        return self.source is not None and self.target is not None


@dataclass(frozen=True)
class Side:
    """One domain: its images of shared classes, in their own shape and sizes, with mean and deviation by channel.

    Pixels are taken as 0 to 1, and as training takes them: in the source's size and colour.
    """

    name: str
    training: int
    test: int
    shape: Shape
    sizes: dict[str, Any]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class DomainReport(Verdict):
    """What `check_domains` found.

    `unknown` counts the target's training images of unknown class, all of which stay.
    """

    source: Side
    target: Side
    shape: Shape
    classes: list[ClassPair]
    unknown: int
    duplicates: dict[str, int]
    unreadable: dict[str, str] = field(default_factory=dict)


def check_domains(
    source: str, target: str, root: Path, options: Options, aliases: Mapping[str, str]
) -> tuple[DomainReport, Dataset]:
    """A report on two domains, and what training on them would take."""
    first, plan, own = _loaded(source, root, options)
    second = load_target(target, root, first.train.shape, replace(options, skip_bad=True))
    matching = match_domains(source, target, first.classes, second.dataset.classes, aliases)
    dataset = pair_domains(source, target, first, second, aliases)
    domains = dataset.domains
    assert domains is not None
    duplicates = {
        "target and source": shared_images(dataset.train, domains.images),
        "target test and source": 0 if dataset.test is None else shared_images(dataset.train, dataset.test),
        "target test and target": 0 if dataset.test is None else shared_images(domains.images, dataset.test),
    }
    bad = second.unreadable
    report = DomainReport(
        source=_side(source, dataset.train, domains.source_test, own, plan),
        target=_side(target, domains.images, dataset.test, second.shape, second.plan),
        shape=dataset.train.shape,
        classes=list(_class_pairs(first, second.dataset, matching)),
        unknown=int((second.dataset.train.labels == UNLABELLED).sum()),
        duplicates=duplicates,
        unreadable=bad,
        problems=[str(refusal(list(bad.values())))] if bad and not options.skip_bad else [],
        notes=list(_notes(dataset, second, duplicates)),
    )
    return report, dataset


def _loaded(source: str, root: Path, options: Options) -> tuple[Dataset, Plan | None, Shape]:
    """The source, what its files are where it has files, and the shape that its images have themselves."""
    if source in SOURCES or source.lower().endswith(".npz"):
        fitted = load(source, root, options)
        as_it_is = fitted if options.size is None and options.channels is None else load(source, root)
        return fitted, None, as_it_is.train.shape
    files = list_files(source, root, options)
    prepared = prepare(files, options)
    return as_dataset(files, prepared), prepared.plan, prepared.plan.own


def _side(name: str, images: ImageSet, test: ImageSet | None, shape: Shape, plan: Plan | None) -> Side:
    mean, std = (tuple(round(value, 4) for value in values) for values in images.channel_statistics())
    return Side(name, len(images), 0 if test is None else len(test), shape, sizes_of(plan, shape), mean, std)


def _class_pairs(first: Dataset, second: Dataset, matching: Matching) -> Iterator[ClassPair]:
    """The shared classes, then those of the source alone, then those of the target alone."""
    classes = len(first.classes) + len(second.classes)
    counts = [_counts(images, classes) for images in (first.train, first.test, second.train, second.test)]
    pairs: list[tuple[int | None, int | None]] = list(matching.pairs)
    left, right = ({pair[side] for pair in matching.pairs} for side in (0, 1))
    pairs += [(number, None) for number in range(len(first.classes)) if number not in left]
    pairs += [(None, number) for number in range(len(second.classes)) if number not in right]
    for ours, theirs in pairs:
        yield ClassPair(
            None if ours is None else first.classes[ours],
            None if theirs is None else (second.classes or first.classes)[theirs],
            *(0 if ours is None else int(count[ours]) for count in counts[:2]),
            *(0 if theirs is None else int(count[theirs]) for count in counts[2:]),
        )


def _counts(images: ImageSet | None, classes: int) -> np.ndarray:
    labels = np.zeros(0, dtype=np.int64) if images is None else images.labels
    return np.bincount(labels[labels != UNLABELLED], minlength=classes)


def _notes(dataset: Dataset, second: Target, duplicates: Mapping[str, int]) -> Iterator[str]:
    domains = dataset.domains
    assert domains is not None
    yield from second.notes
    if not domains.matched:
        yield f"{domains.target} names no class: all of the source's are taken to be in it."
    if dataset.test is None:
        yield "the target has no labelled test images: errors are measured on the source's alone."
    if same_place(domains.source, domains.target):
        yield "the target is the source; name the images of another domain."
    elif copies := duplicates["target and source"]:
        same = ": the two are one domain" if copies == len(domains.images) else ""
        yield f"{copies:,} of the target's {len(domains.images):,} images are, pixel by pixel, the source's too{same}."
    if leaked := duplicates["target test and source"]:
        yield f"{leaked:,} test images are among the labelled training images: the test error will flatter."
    if seen := duplicates["target test and target"]:
        yield f"{seen:,} test images are among the target's training images."


def print_domains(report: DomainReport, console: Console | None = None) -> None:
    """The report as tables and sentences."""
    console = console or Console()
    source, target = report.source, report.target
    table = Table(title=escape(f"{source.name} and {target.name}"))
    for name in ("source's class", "target's"):
        table.add_column(name)
    for name in ("source", "its test", "target", "its test"):
        table.add_column(name, justify="right")
    shared = [pair for pair in report.classes if pair.matched]
    others = [pair for pair in report.classes if not pair.matched]
    for group, rest in ((shared, "more"), (others, "more left out")):
        for pair in group[:_SHOWN]:
            table.add_row(escape(pair.source or "–"), escape(pair.target or "–"), *_cells(pair))
        if len(group) > _SHOWN:
            table.add_row(f"… {len(group) - _SHOWN} {rest}", "", "", "", "", "")
        table.add_section()
    if report.unknown:
        table.add_row("of unknown class", "", "", "", f"{report.unknown:,}", "")
    table.add_row(
        "trained and tested on", "", *(f"{n:,}" for n in (source.training, source.test, target.training, target.test))
    )
    console.print(table)
    for sentence in domain_sentences(report):
        console.print(escape(sentence), highlight=False, soft_wrap=True)


def _cells(pair: ClassPair) -> list[str]:
    ours = [f"{pair.source_labelled:,}", f"{pair.source_test:,}"] if pair.source is not None else ["", ""]
    theirs = [f"{pair.target_known:,}", f"{pair.target_test:,}"] if pair.target is not None else ["", ""]
    return [*ours, *theirs]


def domain_sentences(report: DomainReport) -> Iterator[str]:
    """What the table does not say."""
    matched = sum(pair.matched for pair in report.classes)
    lacking = [f"{pair.source or pair.target}" for pair in report.classes if not pair.matched]
    yield f"classes: {matched} shared" + (f"; left out of both: {', '.join(lacking[:_SHOWN])}" if lacking else "")
    for word, side in (("source", report.source), ("target", report.target)):
        sizes = {name: f"{size[0]}x{size[1]}" for name, size in side.sizes.items() if isinstance(size, tuple)}
        size = ", ".join(f"{name} {text}" for name, text in sizes.items()) if len(set(sizes.values())) > 1 else ""
        colours = f"mean {_figures(side.mean)}, deviation {_figures(side.std)}"
        yield f"{word} images: {size or shape_text(side.shape)}; {colours}"
    yield f"trained on as: {shape_text(report.shape)}"
    found = ", ".join(f"{count:,} in {name}" for name, count in report.duplicates.items() if count)
    yield f"duplicates: {found or 'none'}"
    yield from (f"unreadable: {reason}" for reason in list(report.unreadable.values())[:_SHOWN])
    if len(report.unreadable) > _SHOWN:
        yield f"unreadable: … {len(report.unreadable) - _SHOWN} more (--json lists all)"
    yield from (f"note: {note.rstrip('.')}." for note in report.notes)
    yield from (f"problem: {problem}" for problem in report.problems)


def _figures(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
