"""Self-ensembling (French et al. 2018): labels of one domain, the source, and images of another, the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.batch_norm import frozen_statistics
from fastswa.config import MethodConfig
from fastswa.errors import RequestError
from fastswa.methods.guesses import Guess, Guesses
from fastswa.methods.losses import classification, probabilities
from fastswa.methods.method import Batch, Network, Terms


class SelfEnsembling(Guesses):
    """l_s + weight * l_t: the source's cross entropy, and agreement with the teacher where it is certain of the target.

    l_s = 1/S sum H(y_b, p(x_b)) over the labelled images, l_t = 1/T sum [max q_b > threshold] d(p(x_b), q_b) over the
    others, with q_b what the teacher says of another view and d the squared difference, mean over classes. The two
    domains pass the student as batches of their own, so that each is normalised by its own statistics; the running
    ones, which evaluation uses, are the target's. The teacher sees the target alone, starts as a copy of the student
    and follows it at one rate.
    """

    settings = frozenset({"weight", "ramp", "divergence", "tie", "threshold", "teacher_decay"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}
    moves = ("student", "teacher")
    has_teacher = True
    joins = True
    teacher_copies = True
    apart = True
    few = 0.01
    what = "target"
    whose = "target"

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        # Said here too: where the data chose the method, the settings were read before anybody knew whose they are.
        if not config.threshold:
            raise RequestError("method.threshold (0) must lie between 0 and 1, both excluded.")
        # 1 but while the probe asks what would happen if all passed.
        self.memory["strict"] = torch.ones(())

    def introduce(self, unlabelled: int, truth: Tensor) -> None:
        if not unlabelled:
            raise RequestError(
                "method self-ensembling learns from images without labels, and there are none; "
                "name another domain's with data.target."
            )
        super().introduce(unlabelled, truth)

    def target(self, batch: Batch, teacher: Network) -> Tensor:
        _, target = batch.streams()
        with torch.no_grad():
            return probabilities(teacher(target.view("teacher"), target.noise.scope("teacher")).logits)

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        assert target is not None
        labelled, unlabelled = batch.streams()
        with frozen_statistics(student):
            source = student(labelled.view("student"), labelled.noise.scope("student"))
        output = student(unlabelled.view("student"), unlabelled.noise.scope("student"))
        joined = batch.join(target, output.logits)
        with torch.no_grad():
            guess = Guess(joined, *joined.max(dim=1))
            passing = guess.certainty > self.config.threshold * self.memory["strict"]
            self.count(guess.label, passing, unlabelled.index)
        return {
            "classification": classification(source.logits, batch.labels),
            "consistency": batch.weight * (passing * self.divergence(output.consistency, joined)).mean(),
            **self.tied(source),
        }

    def teacher_rate(self, step: int, steps_per_epoch: int) -> float:
        return 1.0 - self.config.teacher_decay

    def prime(self) -> None:
        self.memory["strict"].zero_()
