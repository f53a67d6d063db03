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
from fastswa.evaluate import evaluating
from fastswa.models.network import Backboned
from fastswa.noise import Noise, step_words

# Told how many views are done, of how many.
Progress = Callable[[int, int], None]


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


@dataclass
class Bank:
    """What held layers make of images: each tensor of features is filled from its images, once.

    Of each image the plain view is kept first, then, where images are flipped, its mirror image, then random weak
    views, up to as many as its tensor (N, views, F) has room for. `batch` images pass at a time; random views depend
    on it.
    """

    augment: Augment
    batch: int
    seed: int
    sources: list[_Source] = field(default_factory=list)
    # Seconds that a view took.
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
        self, network: nn.Module, arithmetic: Callable[[], AbstractContextManager[object]], progress: Progress
    ) -> None:
        """Pass all images through the network's held layers, and let go of them; the second time does nothing.

        `progress` hears after each batch how many views are done, of how many.
        """
        assert isinstance(network, Backboned)
        total, done, began = self.views, 0, time.monotonic()
        with evaluating(network):
            for images, wanted, features in self.sources:
                for place in range(0, len(wanted), self.batch):
                    rows = wanted[place : place + self.batch]
                    for view in range(features.shape[1]):
                        with arithmetic():
                            found = network.features(self._view(images[rows], view, place))
                        features[rows, view] = found.to(features.dtype)
                    done += len(rows) * features.shape[1]
                    progress(done, total)
                if features.is_cuda:
                    torch.cuda.synchronize(features.device)
        if done:
            self.each = (time.monotonic() - began) / done
        self.sources = []

    def _view(self, images: Tensor, number: int, place: int) -> Tensor:
        """A view of some images by its number; `place` is that of the first of them."""
        if number == 0:
            return self.augment.plain(images)
        if number == 1 and self.augment.flip:
            return self.augment.plain(images.flip(2))
        words = torch.from_numpy(step_words(self.seed, f"kept/{number}", place, 1)[0])
        noise = Noise(words.to(images.device)).scope("view")
        return self.augment.view(images, torch.arange(len(images), device=images.device), noise)
