"""Error and loss as functions of the weights: batch-norm statistics are recomputed at every point.

A point costs a copy of its weights into the network, a pass of the batches that statistics come from, and a pass of the
images; on a GPU both passes are captured as CUDA graphs once and replayed at every point (benchmarks/rays.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.analysis.subject import Subject, flat, put
from fastswa.batch_norm import FreshStatistics, frozen_statistics
from fastswa.errors import RequestError
from fastswa.evaluate import Evaluator, evaluating
from fastswa.methods import method_class
from fastswa.models.network import Dropout
from fastswa.noise import Noise
from fastswa.training.graph import captured
from fastswa.training.optimiser import learning
from fastswa.training.refresh import refresh_batches, refreshing_view

FIGURES = ("train_error", "train_loss", "test_error", "test_loss")
_LARGE = 1000
_HELD = 1 << 30
_DROPOUT = (Dropout, nn.modules.dropout._DropoutNd)


@dataclass(frozen=True)
class Measured:
    """Errors in percent and mean cross entropies: (T,) each, or any other shape of points."""

    train_error: np.ndarray
    train_loss: np.ndarray
    test_error: np.ndarray
    test_loss: np.ndarray

    @classmethod
    def gathered(cls, points: Sequence[Sequence[float]], shape: Sequence[int] | None = None) -> Measured:
        """From what `Surface.at` gave, point after point."""
        table = np.array(points, dtype=float).reshape(*(shape or (len(points),)), len(FIGURES))
        return cls(*np.moveaxis(table, -1, 0))


class Surface:
    """A run's network as a function of its weights.

    `train` are the labelled training images as they are, `test` the test images (the validation images where there are
    none). Statistics come from the same augmented batches at every point, drawn as training draws them.
    """

    def __init__(self, subject: Subject) -> None:
        material = subject.material
        self.subject, self.compute = subject, subject.compute
        self.network = subject.network()
        evaluators = material.evaluators
        held_out = evaluators.get("test", evaluators.get("validation"))
        if held_out is None:
            raise RequestError(f"{subject.path} has neither test nor validation images to be measured on.")
        labelled = torch.from_numpy(material.split.labelled).to(material.pixels.device)
        self.test: Evaluator = held_out
        self.train = Evaluator(
            pixels=material.pixels[labelled],
            labels=material.labels[labelled],
            classes=held_out.classes,
            augment=material.augment,
            batch=held_out.batch,
        )
        self._statistics = FreshStatistics(self.network)
        self._held: list[tuple[Tensor, Noise]] | None = None
        # What passes write to, at addresses that stay.
        self._sums = torch.zeros(2, 3, dtype=torch.float64, device=self.compute.device)
        self._answers = torch.zeros(len(held_out.labels), held_out.classes, device=self.compute.device)
        self._launches: dict[str, Callable[[], None]] = {}
        refuse_noise(self.network, held_out.augment.plain(held_out.pixels[:8]), f"the network of {subject.path}")

    def put(self, vector: Tensor) -> nn.Module:
        """The network at a point, with fresh statistics."""
        put(self.network, vector)
        if self._statistics.norms:
            with self._statistics, torch.no_grad():
                self._launch("refresh", self._refresh, [*self.network.buffers(), *self._statistics.tensors()])
        return self.network

    def at(self, vector: Tensor) -> tuple[float, float, float, float]:
        """train_error, train_loss, test_error and test_loss at a point."""
        self.put(vector)
        self._launch("measure", self._measure, [self._sums])
        (wrong, nll, _), (test_wrong, test_nll, _) = self._sums.tolist()
        train, test = len(self.train.labels), len(self.test.labels)
        return 100.0 * wrong / train, nll / train, 100.0 * test_wrong / test, test_nll / test

    def probabilities(self, vector: Tensor) -> Tensor:
        """What the network at a point says of the test images: (N, classes) on the device."""
        self.put(vector)
        self._launch("answer", self._answer, [self._answers])
        return self._answers.clone()

    def _launch(self, name: str, work: Callable[[], None], changed: Sequence[Tensor]) -> None:
        """Do `work`: from the second time on by replaying it, where it can be captured."""
        if name not in self._launches:
            work()
            capturable = self.compute.captures and (name != "refresh" or self._held is not None)
            self._launches[name] = captured(work, changed) if capturable else work
        else:
            self._launches[name]()

    def _refresh(self) -> None:
        with self.compute.arithmetic():
            for view, noise in self._views():
                self.network(view, noise)
                self._statistics.add()

    def _measure(self) -> None:
        for place, images in zip(self._sums, (self.train, self.test), strict=True):
            place.copy_(images.sums(self.network, self.compute.arithmetic()))

    def _answer(self) -> None:
        places = self._answers.split(self.test.batch)
        with evaluating(self.network), self.compute.arithmetic():
            for pixels, place in zip(self.test.pixels.split(self.test.batch), places, strict=True):
                place.copy_(self.network(self.test.augment.plain(pixels)).logits.float().softmax(dim=1))

    def gradient(self, vector: Tensor, images: str = "train") -> Tensor:
        """The gradient of the mean cross entropy on `train` or `test` images at a point: (P,).

        Batches are normalised by their own statistics, which move with the weights as those of `put` do; no dropout.
        """
        put(self.network, vector)
        chosen: Evaluator = getattr(self, images)
        parameters = list(learning(self.network).values())
        total = torch.zeros_like(vector)
        with _batch_normalised(self.network):
            for pixels, labels in zip(
                chosen.pixels.split(chosen.batch), chosen.labels.split(chosen.batch), strict=True
            ):
                with self.compute.arithmetic():
                    logits = self.network(chosen.augment.plain(pixels)).logits
                loss = F.cross_entropy(logits.to(vector.dtype), labels, reduction="sum")
                total += flat(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
        return total / len(chosen.labels)

    def _views(self) -> Iterator[tuple[Tensor, Noise]]:
        """The batches that statistics come from; kept where there is room."""
        if self._held is not None:
            yield from self._held
            return
        held: list[tuple[Tensor, Noise]] | None = []
        size = 0
        for view, noise in self._made():
            size += view.numel() * view.element_size()
            held = None if held is None or size > _HELD else [*held, (view, noise)]
            yield view, noise
        self._held = held

    def _made(self) -> Iterator[tuple[Tensor, Noise]]:
        """Several of training's batches at a time: the mean of their statistics is the same, and GPUs are not idle."""
        material, config = self.subject.material, self.subject.config
        together, labelled = max(1, _LARGE // material.plan.size), material.plan.labelled
        rows = list(refresh_batches(config, material.plan, "analysis"))
        strong = method_class(config.method.name).strong_views
        for start in range(0, len(rows), together):
            chosen = [row for row, _ in rows[start : start + together]]
            if strong:  # labelled images first, as in a batch
                chosen = [*(row[:labelled] for row in chosen), *(row[labelled:] for row in chosen)]
            noise = Noise(torch.from_numpy(rows[start][1]).to(material.pixels.device))
            pixels, index = material.batch(np.concatenate(chosen))
            first = labelled * len(rows[start : start + together])
            yield refreshing_view(config, material, pixels, index, noise, first), noise.scope("network")


def refuse_dropout(network: nn.Module, what: str) -> None:
    """Refuse a network whose dropout is left on: it is no function of its inputs and weights."""
    for name, module in network.named_modules():
        if module.training and isinstance(module, _DROPOUT) and module.p > 0:
            raise RequestError(f"{what} has its dropout left on ({name}); call .eval() on it first.")


def refuse_noise(network: nn.Module, images: Tensor, what: str) -> None:
    """Refuse a network that says two things of the same images, whatever it does so by."""
    refuse_dropout(network, what)
    with torch.no_grad():
        first, second = (network(images).logits for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-2, atol=1e-3):
        raise RequestError(
            f"{what} says two things of the same images in evaluation mode: dropout or other noise is left on."
        )


class _batch_normalised:
    """The network in training mode, but without dropout and without touching its running statistics."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._frozen = frozen_statistics(network)

    def __enter__(self) -> None:
        self.network.train()
        for module in self.network.modules():
            if isinstance(module, _DROPOUT):
                module.eval()
        self._frozen.__enter__()

    def __exit__(self, *error: object) -> None:
        self._frozen.__exit__(None, None, None)
        self.network.eval()
