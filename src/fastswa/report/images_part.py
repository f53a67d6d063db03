"""The page's parts on images: confusions, calibration, mistakes, doubts, and what to label next."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np

from fastswa.report import words
from fastswa.report.charts import FEW, reliability_chart
from fastswa.report.confusion import class_figures, largest_mixups
from fastswa.report.findings import Doubts, Example, Findings, Measured
from fastswa.report.page import Figure, Table
from fastswa.report.record import RunRecord
from fastswa.report.suggest import SURE
from fastswa.report.thumbnails import matrix_picture

# A matrix with more classes than this is drawn as a picture: its numbers could not be read any more.
TABLE_CLASSES = 20
_MIXUPS = 15
_HALF_WIDTH = 10
_WORTH_SCALING = 0.02


def confusions_part(found: Findings, measured: Measured) -> dict[str, Any]:
    names, matrix = [words.readable(name) for name in found.classes], measured.matrix
    mixups = largest_mixups(matrix, _MIXUPS)
    wrong = int(matrix.sum() - matrix.trace())
    told = sum(m.count for m in mixups)
    of_all = "all" if told == wrong else f"{words.count(told)} of"
    largest = Table(
        f"The largest confusions on the {words.plural(measured.count, measured.images + ' image')}",
        ("true class", "taken for", "images", "of the class"),
        [(names[m.true], names[m.said], words.count(m.count), words.share(m.share)) for m in mixups],
        numbers=2,
        more=f"They are {of_all} {words.plural(wrong, 'mistake')}.",
    )
    by_class = Table(
        "Each class",
        ("class", "images", "wrong", "error", "mostly taken for", "others taken for it"),
        [
            (
                names[figures.label],
                words.count(figures.images),
                words.count(figures.wrong),
                words.percent(figures.error, 1),
                words.NONE if figures.mostly is None else names[figures.mostly],
                words.count(figures.taken),
            )
            for figures in class_figures(matrix)
        ],
    )
    few = len(names) <= TABLE_CLASSES
    return {
        "images": measured.images,
        "count": measured.count,
        "names": names,
        "upright": max(map(len, names)) > 3,
        "wide": few and len(names) > _HALF_WIDTH,
        "cells": _cells(measured.matrix) if few else None,
        "picture": None if few else matrix_picture(matrix),
        "largest": largest if mixups else None,
        "classes": by_class,
    }


def _cells(matrix: np.ndarray) -> list[list[tuple[int, str, float]]]:
    """(images, right or wrong, strength 0 to 1) of each cell; a row is shaded by its own sum."""
    sums = matrix.sum(axis=1)
    return [
        [
            (
                int(value),
                "right" if true == said else "wrong",
                round(0.55 * math.sqrt(value / sums[true]), 3) if value else 0.0,
            )
            for said, value in enumerate(row)
        ]
        for true, row in enumerate(matrix)
    ]


def calibration_part(run: RunRecord, findings: Findings, measured: Measured) -> dict[str, Any]:
    found = measured.reliability
    scalable = findings.counts["validation"] > 0 and findings.temperature == 1.0 and found.ece >= _WORTH_SCALING
    label = (
        f"Reliability diagram on the {measured.images} images: how often the model is right against its confidence; "
        f"expected calibration error {words.share(found.ece)}"
    )
    table = Table(
        "The reliability diagram in numbers",
        ("confidence", "images", "mean confidence", "right"),
        [
            (
                f"{100 * b.low:.0f} to {100 * b.high:.0f}%",
                words.count(b.count),
                words.share(b.confidence) if b.count else words.NONE,
                words.share(b.accuracy) if b.count else words.NONE,
            )
            for b in found.bins
        ],
    )
    caption = (
        "Bars: how often answers of such confidence are right. On the diagonal the model is exactly as sure as it is "
        f"right; the red gap is what it is off by. Faint bars rest on fewer than {FEW} images. Below: how many images."
    )
    off = found.confidence - found.accuracy
    lean = "too sure of itself" if off > 0 else "too cautious"
    return {
        "figure": Figure(reliability_chart(found, label), caption, table=table),
        "ece": words.share(found.ece),
        "images": words.plural(measured.count, measured.images + " image"),
        "confidence": words.share(found.confidence),
        "accuracy": words.share(found.accuracy),
        "hint": f"fastswa calibrate {shlex.quote(str(run.path))}" if scalable else None,
        "lean": lean if abs(off) >= 0.005 else "about as sure as it should be",
    }


def mistake(example: Example) -> dict[str, Any]:
    return _thumbnail(
        example,
        f"{example.true}, taken for {example.first} with {words.share(example.confidence)} confidence",
        [("is", str(example.true), ""), ("said", example.first, words.share(example.confidence))],
    )


def doubt(example: Example) -> dict[str, Any]:
    first, second = words.share(example.confidence, 0), words.share(example.runner_up, 0)
    return _thumbnail(
        example,
        f"{example.first} ({first}) or {example.second} ({second})",
        [("", example.first, first), ("or", example.second, second)],
    )


def _thumbnail(example: Example, alt: str, lines: list[tuple[str, str, str]]) -> dict[str, Any]:
    name = words.readable(example.file) if example.file is not None else f"image {example.number}"
    return {
        "picture": example.picture,
        "alt": words.readable(alt),
        "name": name,
        "lines": [(word, words.readable(label), figure) for word, label, figure in lines],
    }


def unsure_sentence(doubts: Doubts) -> str:
    """How much of the unlabelled images the model is unsure of."""
    some = doubts.looked_at < doubts.count
    looked = words.plural(doubts.looked_at, "unlabelled image")
    chosen = f" drawn at random from {words.count(doubts.count)}" if some else ""
    return (
        f"Of {looked}{chosen} the model is less than {SURE:.0%} sure of {words.count(doubts.unsure)} "
        f"({words.share(doubts.unsure / doubts.looked_at)})."
    )


def suggestions_part(doubts: Doubts) -> dict[str, Any]:
    pictured = [example for example in doubts.suggested if example.picture is not None]
    rows = [
        (
            str(rank),
            words.readable(example.file) if example.file is not None else f"image {example.number}",
            words.readable(example.first),
            words.share(example.confidence),
            words.readable(example.second),
            words.share(example.runner_up),
        )
        for rank, example in enumerate(doubts.suggested, 1)
    ]
    head = ("rank", "image", "predicted", "confidence", "or", "confidence")
    return {
        "thumbnails": [doubt(example) for example in pictured],
        "count": len(doubts.suggested),
        "table": Table("All suggestions, the most wanted first", head, rows, numbers=6),
    }
