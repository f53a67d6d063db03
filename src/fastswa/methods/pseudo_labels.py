"""What FixMatch and its kin share: a weak view's prediction, where it is certain enough, is a strong view's label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fastswa.batch_norm import modes_kept
from fastswa.config import MethodConfig
from fastswa.methods.guesses import Guess, Guesses
from fastswa.methods.losses import classification, hard, probabilities
from fastswa.methods.method import Batch, Network, Output, Terms, View
from fastswa.schedule import ema_decay


class PseudoLabels(Guesses):
    """l_s + weight * l_u: cross entropy of labelled weak views, and of strong views with labels that weak ones give.

    l_s = 1/B sum H(y_b, p(weak x_b)); l_u = 1/U sum [q_b passes] H(argmax q_b, p(strong u_b)) with
    q_b = p(weak u_b), taken without gradient. Which pass is what the methods differ in. Labelled and strong views
    are one pass of the network, weak views of unlabelled images another without gradient; `together` makes one pass
    of all, as in the papers: batch norm then sees all of them at once, and the backward pass is nearly twice as long.

    Apart, weak views are normalised by the running statistics, which are those of the pass with gradient: as its
    labelled images are. By statistics of their own they would pass a network that no label ever reaches, and which was
    seen to call all of them the same, with certainty, and to teach that to every strong view (docs/frontier.md).
    """

    few = 0.001
    settings = frozenset({"weight", "ramp", "tie", "together", "guesser", "teacher_decay"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}
    strong_views = True
    teacher_copies = True
    teacher_statistics = True

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        if config.guesser == "teacher":
            self.has_teacher = self.joins = True
            self.moves = ("student", "teacher")

    def passing(self, guess: Guess, index: Tensor) -> Tensor:
        """Which guesses are certain enough to learn from, (U,) bool; `index` (U,) numbers their images."""
        raise NotImplementedError

    def extra(self, guess: Guess, passing: Tensor, strong: Tensor) -> Terms:
        """Further terms, from the strong views' logits (U, K)."""
        return {}

    def target(self, batch: Batch, teacher: Network) -> Tensor:
        return self._guessed(batch, teacher, batch.view("weak", slice(self._first(batch), None)))

    def teacher_rate(self, step: int, steps_per_epoch: int) -> float:
        return 1.0 - ema_decay(step, self.config.teacher_decay)

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        labelled, first = len(batch.labels), self._first(batch)
        output, weak = self._passes(batch, student, target, labelled, first)
        with torch.no_grad():
            guess = Guess(weak, *weak.max(dim=1))
            passing = self.passing(guess, batch.index[first:])
            self.count(guess.label, passing, batch.index[first:])
        strong = output.consistency[-len(weak) :]
        return {
            "classification": classification(output.logits[:labelled], batch.labels),
            "consistency": batch.weight * (passing * hard(strong, guess.label)).mean(),
            **self.extra(guess, passing, strong),
            **self.tied(output),
        }

    @staticmethod
    def _first(batch: Batch) -> int:
        """The first unlabelled image; where every image has a label, all of them serve as unlabelled ones too."""
        labelled = len(batch.labels)
        return labelled if labelled < len(batch.index) else 0

    def _passes(
        self, batch: Batch, student: Network, target: Tensor | None, labelled: int, first: int
    ) -> tuple[Output, Tensor]:
        """What the network gives for labelled and then (last) strong views, and the weak views' probabilities."""
        if target is not None:
            views = torch.cat([batch.view("weak", slice(labelled)), batch.view("strong", slice(first, None))])
            output: Output = student(views, batch.noise.scope("student"))
            return output, batch.join(target, output.logits)
        weak, strong = batch.view("weak"), batch.view("strong", slice(first, None))
        if self.config.together:
            output = student(torch.cat([weak, strong]), batch.noise.scope("student"))
            return output, probabilities(output.logits[first : len(weak)].detach())
        guessed = self._guessed(batch, student, weak[first:])
        return student(torch.cat([weak[:labelled], strong]), batch.noise.scope("student")), guessed

    @staticmethod
    def _guessed(batch: Batch, network: Network, weak: Tensor) -> Tensor:
        with torch.no_grad(), modes_kept(network):
            network.eval()
            return probabilities(network(weak, batch.noise.scope("teacher")).logits)

    @classmethod
    def learnt_from(cls, config: MethodConfig, view: View, labelled: int, size: int) -> Tensor:
        weak, strong = view("weak"), view("strong", slice(labelled if labelled < size else 0, None))
        return torch.cat([weak if config.together else weak[:labelled], strong])
