"""python examples/own_method.py train digits-pi --method minimum-entropy: a method of one's own, on the command line.

The class says what the loss of one batch is; data, views, steps, averages, checkpoints and reports are fastswa's. The
program takes every command that `fastswa` does, so that runs can be resumed and evaluated with it as well.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fastswa.cli import main
from fastswa.methods import METHODS
from fastswa.methods.losses import classification
from fastswa.methods.method import Batch, Method, Network, Terms


class MinimumEntropy(Method):
    """Cross entropy of the labelled images, and the weighted entropy of what is said of the others."""

    settings = frozenset({"weight", "ramp"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "entropy": "student"}

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        logits = student(batch.view("student"), batch.noise.scope("student")).logits
        rest = logits[len(batch.labels) :]
        entropy = -(F.softmax(rest, dim=1) * F.log_softmax(rest, dim=1)).sum(dim=1).mean()
        return {"classification": classification(logits, batch.labels), "entropy": batch.weight * entropy}


METHODS["minimum-entropy"] = f"{__name__}:MinimumEntropy"

if __name__ == "__main__":
    sys.exit(main())
