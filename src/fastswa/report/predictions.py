"""What a run's model says of images, a block at a time: only the two best classes are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastswa.data.images import ImageSet
from fastswa.evaluate import evaluating
from fastswa.modelfile import TrainedModel
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


def predict(model: TrainedModel, images: ImageSet, rows: np.ndarray, compute: Compute) -> Predictions:
    """What the model says of images[rows]."""
    parts = []
    with evaluating(model), compute.arithmetic():
        for pixels in _blocks(model, images, rows, compute):
            best = model(pixels).float().softmax(dim=1).topk(2, dim=1)
            parts.append(torch.cat([best.indices.double(), best.values.double()], dim=1).cpu())
    table = (torch.cat(parts) if parts else torch.zeros(0, 4)).numpy()
    return Predictions(table[:, 0].astype(np.int64), table[:, 2], table[:, 1].astype(np.int64), table[:, 3])


def features(model: TrainedModel, images: ImageSet, rows: np.ndarray, compute: Compute) -> np.ndarray:
    """(n, F) float32 of length 1: what the network's last layer sees of images[rows]."""
    seen: list[Tensor] = []
    watch = model.network.register_forward_hook(lambda _module, _inputs, output: seen.append(output.features))
    parts = [np.zeros((0, 1), np.float32)]
    try:
        with evaluating(model), compute.arithmetic():
            for pixels in _blocks(model, images, rows, compute):
                model(pixels)
                found = torch.nn.functional.normalize(seen.pop().float().flatten(1), dim=1)
                parts.append(found.cpu().numpy())
    finally:
        watch.remove()
    return np.concatenate(parts[1:]) if len(parts) > 1 else parts[0]


def _blocks(model: TrainedModel, images: ImageSet, rows: np.ndarray, compute: Compute) -> Iterator[Tensor]:
    """images[rows] as (n, C, H, W) on the device; a memory map is read a block at a time."""
    for start in range(0, len(rows), model.batch):
        block = np.array(images.pixels[rows[start : start + model.batch]], order="C")
        yield torch.from_numpy(block).to(compute.device)
