"""A network small enough to follow by hand, and batches for it; shared by the tests of the methods."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastswa.config import MethodConfig
from fastswa.methods import build
from fastswa.methods.method import Batch, Method, Terms
from fastswa.noise import Noise, step_words

CLASSES, INPUTS = 3, 6


class Output(NamedTuple):
    logits: Tensor
    consistency: Tensor
    features: Tensor


class Toy(nn.Module):
    """Linear heads on the flattened image, in float64; batch norm and dropout only where asked for.

    `calls` holds, for each pass, the first number that its noise gives and the input.
    """

    def __init__(self, seed: int = 0, *, heads: int = 2, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(heads, CLASSES, INPUTS, generator=generator, dtype=torch.float64)
        self.weights = nn.ParameterList([nn.Parameter(draw) for draw in draws])
        self.norm = nn.BatchNorm1d(INPUTS, dtype=torch.float64) if norm else None
        self.dropout = dropout
        self.calls: list[tuple[int, Tensor]] = []

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        assert noise is not None
        self.calls.append((int(noise.bits("probe", (1,))), x.detach().clone()))
        features = x.flatten(1)
        if self.norm is not None:
            features = self.norm(features)
        features = noise.dropout("dropout", features, self.dropout)
        logits = features @ self.weights[0].T
        return Output(logits, logits if len(self.weights) == 1 else features @ self.weights[1].T, features)


def make_batch(
    *, labelled: int = 2, size: int = 5, weight: float = 1.0, seed: int = 0, index: list[int] | None = None
) -> Batch:
    """A batch whose views are fixed images of shape (1, 2, 3), other ones for each name."""
    generator = torch.Generator().manual_seed(100 + seed)
    views = {
        name: torch.randn(size, 1, 2, 3, generator=generator, dtype=torch.float64)
        for name in ("student", "teacher", "weak", "strong")
    }

    def view(name: str, rows: slice = slice(None)) -> Tensor:
        return views[name.split("/")[-1]][rows]

    return Batch(
        labels=torch.arange(labelled) % CLASSES,
        index=torch.arange(size) if index is None else torch.tensor(index),
        weight=torch.tensor(weight, dtype=torch.float64),
        noise=Noise(torch.from_numpy(step_words(seed, "step", 0, 1)[0].copy())),
        view=view,
    )


def make_method(name: str, *, images: int = 5, **settings: object) -> Method:
    return build(MethodConfig(name=name, **settings), images=images, classes=CLASSES)  # type: ignore[arg-type]


def terms_of(method: Method, batch: Batch, student: Toy, teacher: Toy | None) -> Terms:
    """A method's terms, its teacher asked first where it has one."""
    return method.losses(batch, student, None if teacher is None else method.target(batch, teacher))


def logits_of(x: Tensor, weight: Tensor) -> np.ndarray:
    return x.flatten(1).numpy() @ weight.detach().numpy().T


def softmax(row: np.ndarray) -> list[float]:
    total = sum(math.exp(v) for v in row)
    return [math.exp(v) / total for v in row]


def cross_entropy(logits: np.ndarray, labels: Tensor) -> float:
    """Summed over the labelled examples, divided by the whole batch size."""
    labelled = zip(logits, labels.tolist(), strict=False)
    return sum(-math.log(softmax(row)[label]) for row, label in labelled) / len(logits)


def squared_error(logits: np.ndarray, targets: list[list[float]]) -> float:
    """Mean over classes, sum over all examples, divided by the batch size."""
    total = 0.0
    for row, target in zip(logits, targets, strict=True):
        total += sum((p - q) ** 2 for p, q in zip(softmax(row), target, strict=True)) / len(target)
    return total / len(logits)


def kl_divergence(logits: np.ndarray, targets: list[list[float]]) -> float:
    """KL(target || prediction), sum over classes and examples, divided by the batch size."""
    total = 0.0
    for row, target in zip(logits, targets, strict=True):
        total += sum(q * math.log(q / p) for p, q in zip(softmax(row), target, strict=True) if q > 0)
    return total / len(logits)


def tie_term(first: np.ndarray, second: np.ndarray) -> float:
    """Squared difference of the logits, mean over classes, sum over examples / batch."""
    total = 0.0
    for a, b in zip(first, second, strict=True):
        total += sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a)
    return total / len(first)


DIVERGENCES = {"squared": squared_error, "kl": kl_divergence}
