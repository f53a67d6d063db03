"""The page of `fastswa check` on two domains: their classes, their figures and some images of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fastswa.check_domains import ROW, DomainReport, Side
from fastswa.data.fit import shape_text
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.report import words
from fastswa.report.page import Table, render
from fastswa.report.remarks import Remark
from fastswa.report.thumbnails import thumbnail
from fastswa.report.write import refuse_strange, write_page


def write_domains_page(report: DomainReport, dataset: Dataset, out: Path) -> Path:
    """The page, written over nothing but an older one."""
    refuse_strange(out)
    write_page(out, domains_page(report, dataset).encode("utf-8"))
    return out


def domains_page(report: DomainReport, dataset: Dataset) -> str:
    """One page that holds all it shows."""
    domains = dataset.domains
    assert domains is not None
    remarks = [Remark(problem, grave=True) for problem in report.problems]
    remarks += [Remark(f"{note[:1].upper()}{note[1:].rstrip('.')}.") for note in report.notes]
    return render(
        "domains.html",
        title=f"{report.source.name} and {report.target.name}",
        matched=sum(pair.matched for pair in report.classes),
        remarks=remarks,
        classes=_classes(report),
        sides=_sides(report),
        rows=[
            ("Source", report.source.name, _thumbnails(dataset.train, _of_each_class(dataset.train))),
            ("Target", report.target.name, _thumbnails(domains.images, _spread(domains.images))),
        ],
    )


def _classes(report: DomainReport) -> Table:
    rows = [
        (
            words.readable(pair.source) if pair.source is not None else words.NONE,
            words.readable(pair.target) if pair.target is not None else words.NONE,
            "yes" if pair.matched else "left out",
            *(words.count(n) if pair.source is not None else "" for n in (pair.source_labelled, pair.source_test)),
            *(words.count(n) if pair.target is not None else "" for n in (pair.target_known, pair.target_test)),
        )
        for pair in report.classes
    ]
    head = ("source's class", "target's class", "shared", "source", "source test", "target", "target test")
    more = f"{words.count(report.unknown)} target images are of unknown class; all of them stay."
    return Table("The classes", head, rows, numbers=3, more=more if report.unknown else "")


def _sides(report: DomainReport) -> Table:
    def row(name: str, side: Side) -> tuple[str, ...]:
        figures = (" ".join(f"{value:.3f}" for value in values) for values in (side.mean, side.std))
        return (name, words.readable(side.name), words.count(side.training), words.count(side.test),
                shape_text(side.shape), *figures)  # fmt: skip

    head = ("domain", "data", "training images", "test images", "size", "mean", "deviation")
    more = (
        "Images of shared or unknown classes. Mean and deviation are those of each channel, 0 to 1, once the images "
        f"are {shape_text(report.shape)}, as training takes them. Large differences are what adaptation has to bridge."
    )
    return Table("The two domains", head, [row("source", report.source), row("target", report.target)], 2, more=more)


def _thumbnails(images: ImageSet, rows: np.ndarray) -> list[dict[str, Any]]:
    made = []
    for row in rows:
        label = int(images.labels[row])
        name = images.files[int(row)] if images.files is not None else f"image {row}"
        shown = "" if label == UNLABELLED else words.readable(images.classes[label])
        made.append(
            {
                "picture": thumbnail(np.asarray(images.pixels[row])),
                "alt": shown or "an image of the target",
                "name": words.readable(name),
                "lines": [("", shown, "")] if shown else [],
            }
        )
    return made


def _spread(images: ImageSet) -> np.ndarray:
    return np.unique(np.linspace(0, len(images) - 1, min(ROW, len(images))).astype(np.int64))


def _of_each_class(images: ImageSet) -> np.ndarray:
    """Some images with every class before any comes again."""
    order = np.argsort(images.labels, kind="stable")
    labels = images.labels[order]
    turn = np.arange(len(order)) - np.searchsorted(labels, labels)
    return order[np.lexsort((labels, turn))][:ROW]
