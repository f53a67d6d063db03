"""Supervised training on the labelled images alone: the baseline."""

from __future__ import annotations

from torch import Tensor

from fastswa.methods.losses import classification
from fastswa.methods.method import Batch, Method, Network, Terms


class Supervised(Method):
    """Mean cross entropy over batches of labelled images."""

    labelled_only = True

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        output = student(batch.view("student"), batch.noise.scope("student"))
        return {"classification": classification(output.logits, batch.labels)}
