"""The terms that methods are made of. All in at least 32 bits; scalings as in the paper's experiments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def probabilities(logits: Tensor) -> Tensor:
    """softmax over classes, (N, K)."""
    return F.softmax(_wide(logits), dim=1)


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the first len(labels) rows, summed, divided by the *whole* batch size."""
    return F.cross_entropy(_wide(logits[: len(labels)]), labels, reduction="sum") / len(logits)


def squared(logits: Tensor, target: Tensor) -> Tensor:
    """Squared difference of softmax(logits) and target probabilities, mean over classes: (N,)."""
    return (probabilities(logits) - target).square().mean(dim=1)


def kl(logits: Tensor, target: Tensor) -> Tensor:
    """KL(target || softmax(logits)), summed over classes: (N,)."""
    return (torch.special.xlogy(target, target) - target * F.log_softmax(_wide(logits), dim=1)).sum(dim=1)


def hard(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with one label each: (N,)."""
    return F.cross_entropy(_wide(logits), labels, reduction="none")


def entropy(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits): (N,)."""
    logarithm = F.log_softmax(_wide(logits), dim=1)
    return -(logarithm.exp() * logarithm).sum(dim=1)


def tie(first: Tensor, second: Tensor) -> Tensor:
    """Squared difference of two heads' logits, mean over classes and examples."""
    return (_wide(first) - _wide(second)).square().mean()


DIVERGENCES = {"squared": squared, "kl": kl}
