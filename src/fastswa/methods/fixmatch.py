"""FixMatch (Sohn et al. 2020): a pseudo-label counts where the weak view's prediction is certain."""

from __future__ import annotations

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.guesses import Guess
from fastswa.methods.pseudo_labels import PseudoLabels


class FixMatch(PseudoLabels):
    """q_b passes where max q_b >= tau, one threshold for all classes and all of training."""

    settings = PseudoLabels.settings | {"threshold"}

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        # 1 but while the probe asks what would happen if all passed.
        self.memory["strict"] = torch.ones(())

    def passing(self, guess: Guess, index: Tensor) -> Tensor:
        return guess.certainty >= self.config.threshold * self.memory["strict"]

    def prime(self) -> None:
        self.memory["strict"].zero_()
