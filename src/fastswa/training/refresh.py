"""Fresh batch-norm statistics of an average, from training batches; replayed as one CUDA graph where steps are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fastswa.batch_norm import FreshStatistics
from fastswa.config import Config
from fastswa.data.batches import BatchPlan
from fastswa.methods import method_class
from fastswa.noise import Noise, step_words
from fastswa.training.device import Compute
from fastswa.training.graph import captured
from fastswa.training.setup import Material


def refresh_batches(config: Config, plan: BatchPlan, purpose: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Image numbers and random words of the batches that an average's statistics come from.

    Where a method keeps labelled images apart from the others, they are batches of the others alone.
    """
    wanted, seed = config.evaluation.refresh, config.seed
    first = first_refreshed(config, plan)
    words = step_words(seed, f"refresh/{purpose}", 0, wanted)
    done = 0
    while done < wanted:
        for row in plan.epoch(seed, done, f"refresh/{purpose}"):
            if done == wanted:
                return
            yield row[first:], words[done]
            done += 1


def first_refreshed(config: Config, plan: BatchPlan) -> int:
    """The place in a row from which on its images refresh an average's statistics."""
    return plan.labelled if method_class(config.method.name).apart and plan.labelled < plan.size else 0


def refreshing_view(
    config: Config, material: Material, pixels: Tensor, index: Tensor, noise: Noise, labelled: int
) -> Tensor:
    """What passes an average for the sake of its statistics: views of pixels[index] as the method learns from them."""

    def view(name: str, rows: slice = slice(None)) -> Tensor:
        return material.augment.view(pixels, index[rows], noise.scope("view" if name == "weak" else f"view/{name}"))

    return method_class(config.method.name).learnt_from(config.method, view, labelled, len(index))


class Refresher:
    """Passes batches through one network for the sake of its statistics."""

    def __init__(self, network: nn.Module, config: Config, material: Material, compute: Compute) -> None:
        self.network, self.config, self.material, self.compute = network, config, material, compute
        self.statistics = FreshStatistics(network)
        size = material.plan.size - first_refreshed(config, material.plan)
        self._rows = torch.zeros(size, dtype=torch.int64, device=compute.device)
        self._words = torch.zeros(2, dtype=torch.int32, device=compute.device)
        self._launch: Callable[[], None] | None = None

    def __call__(self, purpose: str) -> None:
        """Replace the statistics by those of batches that `purpose` chooses, always the same ones for it."""
        if not self.statistics.norms:
            return
        with self.statistics, torch.no_grad():
            for numbers, words in refresh_batches(self.config, self.material.plan, purpose):
                self._words.copy_(torch.from_numpy(words))
                if self.material.window is not None:
                    self._pass(*self.material.batch(numbers))
                else:
                    self._rows.copy_(torch.from_numpy(numbers))
                    self._launched()

    def _pass(self, pixels: Tensor, rows: Tensor) -> None:
        noise, labelled = Noise(self._words), self.material.plan.labelled
        view = refreshing_view(self.config, self.material, pixels, rows, noise, labelled)
        with self.compute.arithmetic():
            self.network(view, noise.scope("network"))
        self.statistics.add()

    def _launched(self) -> None:
        def one() -> None:
            self._pass(self.material.pixels, self._rows)

        if self._launch is None:
            kept = [*self.network.buffers(), *self.statistics.tensors()]
            self._launch = captured(one, kept) if self.compute.captures else one
        self._launch()
