"""Views that passed a network's held layers once, before training: what its heads learn from at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fastswa.data.augment import Augment
from fastswa.data.shelf import MIRRORED, PLAIN, Shelf, digests
from fastswa.evaluate import evaluating
from fastswa.models.network import Backboned
from fastswa.noise import Noise, step_words

# Told how many views are done, of how many.
Progress = Callable[[int, int], None]
# What a shelf calls the first views.
_SHELVED = (PLAIN, MIRRORED)


@dataclass(frozen=True)
class KeptViews(Augment):
    """Random views out of the `Bank`'s, in the place of images: `pixels` is (N, views, F).

    The first view is the plain one. None is strong: what makes them harder for the student is its dropout.
    """

    @classmethod
    def like(cls, augment: Augment) -> KeptViews:
        """With the settings of an augmentation of images."""
        return cls(**{one.name: getattr(augment, one.name) for one in fields(Augment)})

    def plain(self, pixels: Tensor) -> Tensor:
        return pixels[:, 0]

    def view(self, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        _, count, width = pixels.shape
        which = noise.integers("kept", (len(index),), 0, count - 1)
        found = pixels.view(-1, width).index_select(0, index * count + which)
        return found + self.noise * noise.normal("gaussian", found.shape, found.dtype) if self.noise else found

    def draws(self, pixels: Tensor) -> bool:
        return False

    def draws_strong(self, pixels: Tensor) -> bool:
        return False


class _Source(NamedTuple):
    """Images (N, H, W, C), the numbers of those that are wanted, and their features (N, views, F) to be filled."""

    images: Tensor
    rows: Tensor
    features: Tensor


class _Pass(NamedTuple):
    """A view of a source's images by their `positions` among those that are wanted; `names` where it may be shelved."""

    source: _Source
    view: int
    positions: Tensor
    names: list[bytes]


@dataclass
class Bank:
    """What held layers make of images: each tensor of features is filled from its images, once.

    Of each image the plain view is kept first, then, where images are flipped, its mirror image, then random weak
    views, up to as many as its tensor (N, views, F) has room for. `batch` images pass at a time; random views depend
    on it. A shelf's name holds the `source` of the images (None: there is to be no shelf) and what `network` they pass.
    """

    augment: Augment
    batch: int
    seed: int
    source: str | None = None
    network: str = ""
    sources: list[_Source] = field(default_factory=list)
    # Seconds that an image takes to be looked at once more.
    each: float = 0.0

    def room(self, images: Tensor, views: int, width: int, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
        """A tensor of features for these images (N, H, W, C), to be filled for those in `rows` or for all."""
        features = torch.zeros(len(images), views, width, dtype=dtype, device=images.device)
        rows = torch.arange(len(images), device=images.device) if rows is None else rows.to(images.device)
        self.sources.append(_Source(images, rows, features))
        return features

    @property
    def views(self) -> int:
        """How many views are still to pass."""
        return sum(len(source.rows) * source.features.shape[1] for source in self.sources)

    def fill(
        self,
        network: nn.Module,
        arithmetic: Callable[[], AbstractContextManager[object]],
        progress: Progress,
        shelf: Shelf | None = None,
    ) -> None:
        """Pass all images through the network's held layers, and let go of them; the second time does nothing.

        What the `shelf` holds needs no pass, and what passes is put there, also where passing ends early. `progress`
        hears how many views are done, of how many, before the first batch and after each.
        """
        assert isinstance(network, Backboned)
        began = time.monotonic()
        passes = [one for source in self.sources for one in self._passes(source, shelf)]
        found, total, done = time.monotonic() - began, sum(len(one.positions) for one in passes), 0
        images = sum(len(source.rows) for source in self.sources)
        progress(0, total)
        try:
            with evaluating(network):
                for one in passes:
                    (pixels, wanted, features), view = one.source, one.view
                    for positions in one.positions.split(self.batch):
                        rows = wanted[positions]
                        # Never alone: an image's last bits would be others than beside any other image.
                        passing = rows if len(rows) > 1 else rows.repeat(2)
                        with arithmetic():
                            passed = network.features(self._view(pixels[passing], view, int(positions[0])))[: len(rows)]
                        features[rows, view] = passed = passed.to(features.dtype)
                        if shelf is not None and one.names:
                            shelf.add(_SHELVED[view], [one.names[k] for k in positions.tolist()], passed)
                        done += len(rows)
                        progress(done, total)
                    if features.is_cuda:
                        torch.cuda.synchronize(features.device)
        finally:
            shelved = shelf is not None and shelf.write()
        if shelved and images and all(len(source.rows) == len(source.images) for source in self.sources):
            self.each = found / images
        elif images:
            self.each = self._seconds(network, arithmetic) if done == 0 else (time.monotonic() - began) / done
        self.sources = []

    def _seconds(self, network: Backboned, arithmetic: Callable[[], AbstractContextManager[object]]) -> float:
        """Seconds that one more image takes, measured on some."""
        images = next(source.images for source in self.sources if len(source.images))[: self.batch]
        began = time.monotonic()
        with evaluating(network), arithmetic():
            network.features(self.augment.plain(images))
        return (time.monotonic() - began) / len(images)

    def _passes(self, source: _Source, shelf: Shelf | None) -> list[_Pass]:
        """What is to pass of a source, by view, after what the shelf holds has been taken over."""
        images, wanted, features = source
        names = [] if shelf is None else digests(images, wanted)
        found = []
        for view in range(features.shape[1]):
            positions, own = torch.arange(len(wanted), device=wanted.device), view < self.unchanging
            if shelf is not None and own:
                known, kept = shelf.find(_SHELVED[view], names)
                if kept is not None:
                    features[wanted[torch.from_numpy(known)], view] = kept
                positions = positions[torch.from_numpy(~known)]
            if len(positions):
                found.append(_Pass(source, view, positions, names if own else []))
        return found

    @property
    def unchanging(self) -> int:
        """How many of the first views are the same for every seed."""
        return 2 if self.augment.flip else 1

    def _view(self, images: Tensor, number: int, place: int) -> Tensor:
        """A view of some images by its number; `place` is that of the first of them."""
        if number < self.unchanging:
            return self.augment.plain(images.flip(2) if number else images)
        words = torch.from_numpy(step_words(self.seed, f"kept/{number}", place, 1)[0])
        noise = Noise(words.to(images.device)).scope("view")
        return self.augment.view(images, torch.arange(len(images), device=images.device), noise)
