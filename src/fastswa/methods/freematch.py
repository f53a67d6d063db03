"""FreeMatch (Wang et al. 2023): thresholds that follow the network's own certainty, and a term for fairness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.guesses import Guess
from fastswa.methods.losses import probabilities
from fastswa.methods.method import Terms
from fastswa.methods.pseudo_labels import PseudoLabels


class FreeMatch(PseudoLabels):
    """q_b passes where max q_b >= tau(argmax q_b), with tau(c) = tau p(c) / max_c p(c).

    tau, p(c) and h(c) are running means with the decay `threshold_decay`, from 1/K on, of the batch's mean certainty
    1/U sum max q_b, its mean prediction 1/U sum q_b and the shares of its guesses argmax q_b; a batch's own numbers are
    in its thresholds. The fairness term is L_f = -H(norm(p / h), norm(p' / h')), H(a, b) = -sum_c a(c) log b(c), with
    p' the mean prediction for the strong views that pass, h' the shares of their own argmax, and norm dividing by the
    sum; classes that h' lacks are left out of both.
    """

    settings = PseudoLabels.settings | {"threshold_decay", "fairness"}
    terms: ClassVar[Mapping[str, str]] = {**PseudoLabels.terms, "fairness": "student"}

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        self.memory["certainty"] = torch.tensor(1.0 / classes)
        self.memory["prediction"] = torch.full((classes,), 1.0 / classes)
        self.memory["guessed"] = torch.full((classes,), 1.0 / classes)

    def thresholds(self) -> Tensor:
        """tau(c) of each class, (K,) float32."""
        prediction = self.memory["prediction"]
        return self.memory["certainty"] * prediction / prediction.max()

    def passing(self, guess: Guess, index: Tensor) -> Tensor:
        part = 1.0 - self.config.threshold_decay
        for name, now in {
            "certainty": guess.certainty.mean(),
            "prediction": guess.probabilities.mean(dim=0),
            "guessed": _shares(guess.label, guess.probabilities, torch.ones_like(guess.certainty)),
        }.items():
            memory = self.memory[name]
            memory.add_(part * (now.to(memory.dtype) - memory))
        return guess.certainty >= self.thresholds()[guess.label]

    def extra(self, guess: Guess, passing: Tensor, strong: Tensor) -> Terms:
        predicted = probabilities(strong)
        weights = passing.to(predicted.dtype)
        count = weights.sum().clamp(min=1.0)
        mean = (weights[:, None] * predicted).sum(dim=0) / count
        shares = _shares(predicted.detach().argmax(dim=1), predicted, weights)
        # To the probe every class is there: with a single one the term is constant, and would seem to teach nothing.
        present = (shares > 0) | (self.memory["certainty"] < 0)
        ours = _normalised(torch.where(present, mean / shares.where(shares > 0, 1.0), 0.0))
        whole = _normalised(torch.where(present, self.memory["prediction"] / self.memory["guessed"], 0.0))
        logarithm = ours.where(present, 1.0).log()
        return {"fairness": self.config.fairness * (whole.to(ours.dtype) * logarithm).sum()}

    def prime(self) -> None:
        # A mean of certainties is positive; below 0 every guess passes, with any decay.
        self.memory["certainty"].fill_(-1e6)


def _shares(label: Tensor, like: Tensor, weights: Tensor) -> Tensor:
    """The shares of the classes among `label` (U,), each counted by its weight: (K,); nothing where all weigh 0."""
    classes = torch.arange(like.shape[1], device=label.device)
    counts = ((label[:, None] == classes) * weights[:, None]).sum(dim=0)
    return counts / counts.sum().clamp(min=torch.finfo(counts.dtype).tiny)


def _normalised(shares: Tensor) -> Tensor:
    return shares / shares.sum().clamp(min=torch.finfo(shares.dtype).tiny)
