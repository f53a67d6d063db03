"""Errors of a network on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.batch_norm import modes_kept
from fastswa.data.augment import Augment

TOP5_FROM = 20


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without gradients; each module's own mode put back on leaving.

    Its GPU is the current one meanwhile: kernels of our own are launched there, wherever their tensors are.
    """
    place = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    current = torch.cuda.device(place) if place.type == "cuda" else nullcontext()
    with modes_kept(model), torch.no_grad(), current:
        model.eval()
        yield


@dataclass(frozen=True)
class Agreement:
    """Compares what networks say of the same images, whose labels nobody needs: `pixels` (N, H, W, C) on the device."""

    pixels: Tensor
    augment: Augment
    batch: int = 1000

    def __call__(
        self, models: Mapping[str, nn.Module], arithmetic: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> dict[str, float]:
        """On how many of the images, in percent, each network says the same as the first of them, by name."""
        answers = {name: self._answers(model, arithmetic()) for name, model in models.items()}
        first, *others = answers
        return {name: 100.0 * (answers[name] == answers[first]).double().mean().item() for name in others}

    def _answers(self, model: nn.Module, arithmetic: AbstractContextManager[object]) -> Tensor:
        with evaluating(model), arithmetic:
            return torch.cat(
                [model(self.augment.plain(images)).logits.argmax(dim=1) for images in self.pixels.split(self.batch)]
            )


@dataclass(frozen=True)
class Evaluator:
    """Measures networks on fixed images: `pixels` (N, H, W, C) uint8 and `labels` (N,) on the device."""

    pixels: Tensor
    labels: Tensor
    classes: int
    augment: Augment
    batch: int = 1000

    def __call__(self, model: nn.Module, arithmetic: AbstractContextManager[object] | None = None) -> dict[str, float]:
        """`error` in percent, `nll` (mean negative log likelihood) and, from 20 classes on, `top5_error`."""
        found, count = self.sums(model, arithmetic).tolist(), len(self.labels)
        figures = {"error": 100.0 * found[0] / count, "nll": found[1] / count}
        if self.classes >= TOP5_FROM:
            figures["top5_error"] = 100.0 * found[2] / count
        return figures

    def sums(self, model: nn.Module, arithmetic: AbstractContextManager[object] | None = None) -> Tensor:
        """Wrong answers, negative log likelihood and answers wrong five times over, summed: (3,) float64.

        On the device, and nothing is read by the host, so that it can be captured as a CUDA graph.
        """
        wrong = torch.zeros((), dtype=torch.int64, device=self.labels.device)
        wrong5 = torch.zeros_like(wrong)
        nll = torch.zeros((), dtype=torch.float64, device=self.labels.device)
        with evaluating(model), arithmetic or nullcontext():
            for images, labels in zip(self.pixels.split(self.batch), self.labels.split(self.batch), strict=True):
                logits = model(self.augment.plain(images)).logits.float()
                wrong += (logits.argmax(dim=1) != labels).sum()
                nll += F.cross_entropy(logits, labels, reduction="sum").double()
                if self.classes >= TOP5_FROM:
                    best = logits.topk(5, dim=1).indices
                    wrong5 += (best != labels[:, None]).all(dim=1).sum()
        return torch.stack([wrong.double(), nll, wrong5.double()])
