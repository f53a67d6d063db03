"""FlexMatch (Zhang et al. 2021): the less of a class was learnt, the lower its threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.guesses import Guess
from fastswa.methods.pseudo_labels import PseudoLabels

NONE = -1


class FlexMatch(PseudoLabels):
    """q_b passes where max q_b >= T(argmax q_b), with T(c) = tau M(beta(c)) and M(x) = x / (2 - x).

    sigma(c) counts the unlabelled images whose last certain guess (max q >= tau) was c, and N all of them.
    beta(c) = sigma(c) / max(max_c sigma(c), N - sum_c sigma(c)): the second number, of images without any, keeps the
    thresholds low while they are many. A batch's thresholds follow from what was remembered before it.
    """

    settings = PseudoLabels.settings | {"threshold"}
    remembers_images = True

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        # The last place takes the guesses that are not certain: an image may come twice in a batch, certain once.
        self.memory["learnt"] = torch.full((images + 1,), NONE, dtype=torch.int64)

    @property
    def learnt(self) -> Tensor:
        """The class of each image's last certain guess, or NONE, (images,) int64."""
        return self.memory["learnt"][:-1]

    def thresholds(self) -> Tensor:
        """T(c) of each class, (K,) float32."""
        classes = torch.arange(len(self.memory["passed"]), device=self.learnt.device)
        counts = (self.learnt[:, None] == classes).sum(dim=0)
        status = counts / torch.maximum(counts.max(), self.unlabelled - counts.sum()).clamp(min=1)
        return self.config.threshold * status / (2.0 - status)

    def passing(self, guess: Guess, index: Tensor) -> Tensor:
        passing = guess.certainty >= self.thresholds()[guess.label]
        certain = guess.certainty >= self.config.threshold
        learnt = self.memory["learnt"]
        learnt.index_copy_(0, index.where(certain, len(learnt) - 1), guess.label)
        return passing

    def _warning(self, passing: float, shares: list[float]) -> str | None:
        if bool((self.learnt == NONE).all()):
            return (
                f"method {self.config.name}: no prediction on any unlabelled image has reached method.threshold "
                f"({self.config.threshold}) so far, so that every guess passes; it may be early, else lower it."
            )
        return super()._warning(passing, shares)

    def recalled(self, name: str, tensor: Tensor) -> Tensor:
        """Earlier versions had no place for guesses that are not certain."""
        lacks = name == "learnt" and len(tensor) == len(self.learnt)
        return torch.cat([tensor, tensor.new_full((1,), NONE)]) if lacks else tensor

    def prime(self) -> None:
        self.memory["learnt"].fill_(NONE)
