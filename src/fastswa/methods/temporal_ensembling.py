"""Temporal Ensembling (Laine & Aila 2017): the target is a memory of each image's past predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.losses import probabilities
from fastswa.methods.method import Batch, Method, Network, Output, Terms


class TemporalEnsembling(Method):
    """Z <- a Z + (1 - a) z once per epoch and image, bias-corrected by 1 - a^t, is the target.

    z is the mean of the epoch's predictions for the image (labelled images are seen several times an epoch);
    t counts the image's own updates. An image without an update yet has no consistency term.
    """

    settings = frozenset({"weight", "ramp", "divergence", "tie", "memory_decay"})
    remembers_images = True
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        self.memory = {
            "ensemble": torch.zeros(images, classes),
            "updates": torch.zeros(images),
            "epoch_sum": torch.zeros(images, classes),
            "epoch_count": torch.zeros(images),
        }

    def remembered(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The corrected targets (B, K) of the images in `index`, and 1 where there is one, else 0: (B,)."""
        updates = self.memory["updates"][index]
        present = (updates > 0).to(updates.dtype)
        correction = 1.0 - self.config.memory_decay ** updates.clamp(min=1.0)
        return self.memory["ensemble"][index] / correction[:, None], present

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        output = student(batch.view("student"), batch.noise.scope("student"))
        past, present = self.remembered(batch.index)
        with torch.no_grad():
            predicted = probabilities(output.logits).to(past.dtype)
            self.memory["epoch_sum"].index_add_(0, batch.index, predicted)
            self.memory["epoch_count"].index_add_(0, batch.index, torch.ones_like(present))
        terms = self.agreement(batch, output, past, present)
        tied = {name: terms.pop(name) for name in ("tie",) if name in terms}
        return {**terms, **self.extra(batch, output, past, present), **tied}

    def extra(self, batch: Batch, output: Output, past: Tensor, present: Tensor) -> Terms:
        """Further terms, from the student's pass and what `remembered` gave."""
        return {}

    @torch.no_grad()
    def end_epoch(self) -> None:
        memory, decay = self.memory, self.config.memory_decay
        seen = memory["epoch_count"] > 0
        mean = memory["epoch_sum"] / memory["epoch_count"].clamp(min=1.0)[:, None]
        updated = decay * memory["ensemble"] + (1.0 - decay) * mean
        memory["ensemble"].copy_(torch.where(seen[:, None], updated, memory["ensemble"]))
        memory["updates"].add_(seen.to(memory["updates"].dtype))
        memory["epoch_sum"].zero_()
        memory["epoch_count"].zero_()

    def prime(self) -> None:
        classes = self.memory["ensemble"].shape[1]
        self.memory["updates"].fill_(1.0)
        self.memory["ensemble"].fill_((1.0 - self.config.memory_decay) / classes)
