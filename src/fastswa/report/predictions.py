"""What a run's model says of images, a block at a time: only the two best classes are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastswa.data.images import ImageSet
from fastswa.data.shelf import PLAIN, Shelf, digests
from fastswa.evaluate import evaluating
from fastswa.modelfile import TrainedModel
from fastswa.models.network import Backboned
from fastswa.training.device import Compute


@dataclass(frozen=True)
class Predictions:
    """Of N images: `first` and `second` (N,) class numbers, `confidence` and `runner_up` their probabilities."""

    first: np.ndarray
    confidence: np.ndarray
    second: np.ndarray
    runner_up: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def margin(self) -> np.ndarray:
        """How far the best class is ahead of the second, 0 to 1."""
        ahead: np.ndarray = self.confidence - self.runner_up
        return ahead


@dataclass(frozen=True)
class Looking:
    """A model that looks at images, a block at a time; what it has on a `shelf` of their features it does not make."""

    model: TrainedModel
    compute: Compute
    shelf: Shelf | None = None

    @classmethod
    def at(cls, source: str, model: TrainedModel, compute: Compute) -> Looking:
        """With the shelf of a source's images, where training may have left one."""
        network = model.network
        if not isinstance(network, Backboned) or compute.device.type != "cpu":
            return cls(model, compute)
        shelf = Shelf(
            network.backbone, model.augment(compute.device), compute.precision, source, model.facts.architecture
        )
        return cls(model, compute, shelf if shelf.holds(PLAIN) else None)

    @property
    def holds(self) -> bool:
        """Whether what the model sees of an image is what it began with: pretrained layers, held as they were."""
        return isinstance(self.model.network, Backboned) and self.model.network.frozen

    def predict(self, images: ImageSet, rows: np.ndarray) -> Predictions:
        """What the model says of images[rows]."""
        best: list[Tensor] = []
        with self._watched() as seen:
            for logits in self._logits(images, rows):
                seen.clear()
                best.append(_best(logits))
        return _predictions(best)

    def features(self, images: ImageSet, rows: np.ndarray) -> np.ndarray:
        """(n, F) float32 of length 1: what the network's last layer sees of images[rows]."""
        return self.both(images, rows)[1]

    def both(self, images: ImageSet, rows: np.ndarray) -> tuple[Predictions, np.ndarray]:
        """What `predict` and `features` give, by one look at each image."""
        best: list[Tensor] = []
        parts: list[np.ndarray] = []
        with self._watched() as seen:
            for logits in self._logits(images, rows):
                best.append(_best(logits))
                found = torch.nn.functional.normalize(seen.pop().float().flatten(1), dim=1)
                parts.append(found.cpu().numpy())
        return _predictions(best), np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)

    @contextmanager
    def _watched(self) -> Iterator[list[Tensor]]:
        """The model evaluating; the features of each pass are put into the list."""
        seen: list[Tensor] = []
        watch = self.model.network.register_forward_hook(lambda _module, _inputs, output: seen.append(output.features))
        try:
            with evaluating(self.model), self.compute.arithmetic():
                yield seen
        finally:
            watch.remove()

    def _logits(self, images: ImageSet, rows: np.ndarray) -> Iterator[Tensor]:
        """The model's logits; a memory map is read a block at a time."""
        for start in range(0, len(rows), self.model.batch):
            block = np.array(images.pixels[rows[start : start + self.model.batch]], order="C")
            pixels = torch.from_numpy(block).to(self.compute.device)
            found = None if self.shelf is None else self._shelved(pixels.permute(0, 2, 3, 1))
            yield self.model(pixels) if found is None else self.model.of_inputs(found)

    def _shelved(self, images: Tensor) -> Tensor | None:
        """The features of images (n, H, W, C), if all of them are on the shelf."""
        assert self.shelf is not None
        known, found = self.shelf.find(PLAIN, digests(images, torch.arange(len(images))))
        return found if known.all() else None


def _best(logits: Tensor) -> Tensor:
    """The two best classes of each row and their probabilities, (n, 4) in 64 bits."""
    best = logits.float().softmax(dim=1).topk(2, dim=1)
    return torch.cat([best.indices.double(), best.values.double()], dim=1).cpu()


def _predictions(best: list[Tensor]) -> Predictions:
    table = (torch.cat(best) if best else torch.zeros(0, 4)).numpy()
    return Predictions(table[:, 0].astype(np.int64), table[:, 2], table[:, 1].astype(np.int64), table[:, 3])
