"""Runs on images made here, with the names that nobody should give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastswa.layers import own_data_layer
from tiny_runs import StoppingWatcher, tiny, train

NASTY_CLASS = "<img src=x onerror=alert(1)>"
NASTY_FILE = "\"'><script>alert(2)&amp;.png"

# Tiny settings for data of one's own: eight pixels wide, two classes.
OWN: dict[str, Any] = {"split": {"labels": None}, "batch": {"size": 8, "labelled": 4}, "augment": {"translate": 1}}


def put(path: Path, bright: bool, number: int) -> None:
    """An image of one of two kinds, each one different."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng([number, bright]).integers(0, 100, (8, 8), dtype=np.uint8)
    pixels[:4] += 120 if bright else 0
    Image.fromarray(pixels).save(path)


def folder(root: Path, *, unlabelled: int = 12, test: int = 8) -> Path:
    """Classes `ordinary` and NASTY_CLASS, ten labelled images each; one file of each part has a nasty name."""
    for number in range(20):
        name = ("ordinary", NASTY_CLASS)[number % 2]
        put(root / "labeled" / name / (NASTY_FILE if number == 1 else f"{number}.png"), number % 2 == 0, number)
    for number in range(unlabelled):
        put(
            root / "unlabeled" / "deep" / (NASTY_FILE if number == 0 else f"{number}.png"),
            number % 2 == 0,
            100 + number,
        )
    for number in range(test):
        name = ("ordinary", NASTY_CLASS)[number % 2]
        # Of the other kind: every one of them is a mistake, so that all names are shown.
        put(root / "test" / name / (NASTY_FILE if number < 2 else f"{number}.png"), number % 2 == 1, 200 + number)
    return root


def train_own(data: Path, out: Path, *changes: Mapping[str, Any], watcher: StoppingWatcher | None = None) -> Path:
    """A tiny run on one's own data."""
    train(tiny(own_data_layer(str(data)), OWN, *changes), out, watcher)
    return out
