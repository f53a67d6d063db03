"""Mean Teacher: the student agrees with an average of its own weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.methods.losses import probabilities
from fastswa.methods.method import Batch, Method, Network, Terms
from fastswa.schedule import ema_decay


class MeanTeacher(Method):
    """The teacher is the student's EMA or, with `teacher = "swa"`, its plain mean from `teacher_start` on."""

    settings = frozenset(
        {"weight", "ramp", "divergence", "tie", "teacher", "teacher_decay", "teacher_start", "teacher_every"}
    )
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}
    moves = ("student", "teacher")
    has_teacher = True
    joins = True

    def target(self, batch: Batch, teacher: Network) -> Tensor:
        with torch.no_grad():
            return probabilities(teacher(batch.view("teacher"), batch.noise.scope("teacher")).logits)

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        assert target is not None
        output = student(batch.view("student"), batch.noise.scope("student"))
        return self.agreement(batch, output, batch.join(target, output.logits))

    def teacher_rate(self, step: int, steps_per_epoch: int) -> float:
        """EMA and mean are one update, teacher += rate (student - teacher), with another rate."""
        config = self.config
        if config.teacher == "ema" or step < config.teacher_start * steps_per_epoch:
            return 1.0 - ema_decay(step, config.teacher_decay)
        interval = config.teacher_every * steps_per_epoch
        first = max(math.ceil(config.teacher_start * steps_per_epoch), 1)
        if interval < 1:
            return 1.0 / (step - first + 1)
        done, before = (math.floor((s - first) / interval + 1e-6) for s in (step, step - 1))
        return 1.0 / (done + 1) if done > before else 0.0
