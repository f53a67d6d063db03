"""The size and channels that image files are prepared to: as asked for, or chosen from what the files are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastswa.data.decode import read_header
from fastswa.data.images import ImageFiles
from fastswa.data.workers import COLOUR, GREY
from fastswa.errors import RequestError

SMALLEST, LARGEST = 8, 224
CHANNELS = {"auto": None, "grey": 1, "rgb": 3}

Shape = tuple[int, int, int]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """How image files become arrays: `size` (H, W) and `channels` (1 or 3), None to decide from the images."""

    size: tuple[int, int] | None = None
    channels: int | None = None
    skip_bad: bool = False
    workers: int | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Plan:
    """What the images are and what they become; sizes are (height, width)."""

    channels: int
    height: int
    width: int
    images: int
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    sizes: int
    grey: int
    enlarged: int
    cropped: int

    @property
    def shape(self) -> Shape:
        """(C, H, W) of a prepared image."""
        return self.channels, self.height, self.width

    @property
    def own(self) -> Shape:
        """(C, H, W) of the files themselves: their median size, and grey where all of them are."""
        return 1 if self.grey == self.images else 3, *self.median

    @property
    def notes(self) -> list[str]:
        """Sentences on what preparing changes."""
        side, notes = f"{self.height}x{self.width}", []
        if self.enlarged:
            are = "image is" if self.enlarged == 1 else "images are"
            notes.append(f"{self.enlarged} {are} smaller than {side} and enlarged.")
        if self.cropped:
            lose = "image loses" if self.cropped == 1 else "images lose"
            notes.append(f"{self.cropped} {lose} more than a third of the longer side to the crop to {side}.")
        if self.channels == 1 and self.grey < self.images:
            coloured = self.images - self.grey
            notes.append(f"{coloured} coloured {'image becomes' if coloured == 1 else 'images become'} grey.")
        return notes


def guess_shape(files: ImageFiles, options: Options) -> Shape | None:
    """The shape that the images will have if all are like some of them; None where those differ."""
    headers = []
    for row in np.linspace(0, len(files) - 1, min(16, len(files))).astype(int):
        with contextlib.suppress(RequestError):
            headers.append(read_header(files.path(row)))
    if not headers:
        return None
    facts = np.array([(h.height, h.width, GREY if h.grey else COLOUR) for h in headers])
    chosen = plan_for(facts, options)
    alike = chosen.sizes == 1 and chosen.smallest == (chosen.height, chosen.width)
    return chosen.shape if options.size is not None or alike else None


def plan_for(facts: np.ndarray, options: Options) -> Plan:
    """The shape for images of these heights, widths and kinds, (N, 3)."""
    facts = facts[facts[:, 2] > 0]
    heights, widths = facts[:, 0].astype(np.int64), facts[:, 1].astype(np.int64)
    sizes = np.unique(heights << 32 | widths)
    height, width = int(heights[0]), int(widths[0])
    if options.size is not None:
        height, width = options.size
    elif len(sizes) > 1 or not SMALLEST <= min(height, width) <= max(height, width) <= LARGEST:
        median = float(np.median(np.minimum(heights, widths)))
        height = width = int(np.clip(4 * round(median / 4), SMALLEST, LARGEST))
    grey = int((facts[:, 2] == GREY).sum())
    scale = np.minimum(heights / height, widths / width)
    kept = np.minimum(height * scale / heights, width * scale / widths)
    by_area = np.argsort(heights * widths, kind="stable")[[0, -1]]
    return Plan(
        channels=options.channels or (1 if grey == len(facts) else 3),
        height=height,
        width=width,
        images=len(facts),
        smallest=(int(heights[by_area[0]]), int(widths[by_area[0]])),
        median=(int(np.median(heights)), int(np.median(widths))),
        largest=(int(heights[by_area[1]]), int(widths[by_area[1]])),
        sizes=len(sizes),
        grey=grey,
        enlarged=int((scale < 1).sum()),
        cropped=int((kept < 2 / 3).sum()),
    )


def still_stands(guess: Shape, facts: np.ndarray, options: Options) -> bool:
    """Whether files of these facts leave the guess possible."""
    facts = facts[facts[:, 2] > 0]
    same = options.size is not None or bool((facts[:, :2] == guess[1:]).all())
    return same and (guess[0] == 3 or options.channels is not None or bool((facts[:, 2] == GREY).all()))
