"""The Pi model: two passes of the student, each with its own view and dropout, must agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.methods.losses import probabilities
from fastswa.methods.method import Batch, Method, Network, Terms


class Pi(Method):
    """The teacher is the student itself, in training mode; `both_sides` lets the gradient through both."""

    settings = frozenset({"weight", "ramp", "divergence", "tie", "both_sides"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        output = student(batch.view("student"), batch.noise.scope("student"))
        with torch.set_grad_enabled(self.config.both_sides):
            other = probabilities(student(batch.view("teacher"), batch.noise.scope("teacher")).logits)
        return self.agreement(batch, output, other)
