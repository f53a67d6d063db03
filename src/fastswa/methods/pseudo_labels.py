"""What FixMatch and its kin share: a weak view's prediction, where it is certain enough, is a strong view's label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.losses import classification, hard, probabilities
from fastswa.methods.method import Batch, Method, Network, Output, Terms

# From this share on one class is said to take all pseudo-labels.
ALL = 0.99


class Guess(NamedTuple):
    """What the weak views of the unlabelled images say: probabilities (U, K), the largest (U,), whose it is (U,)."""

    probabilities: Tensor
    certainty: Tensor
    label: Tensor


class PseudoLabels(Method):
    """l_s + weight * l_u: cross entropy of labelled weak views, and of strong views with labels that weak ones give.

    l_s = 1/B sum H(y_b, p(weak x_b)); l_u = 1/U sum [q_b passes] H(argmax q_b, p(strong u_b)) with
    q_b = p(weak u_b), taken without gradient. Which pass is what the methods differ in. Labelled and strong views
    are one pass of the network, weak views of unlabelled images another without gradient; `together` makes one pass
    of all, as in the papers: batch norm then sees all of them at once, and the backward pass is nearly twice as long.

    How many pass, of which classes, and how many of those are wrong is counted for the metrics alone.
    """

    settings = frozenset({"weight", "ramp", "tie", "together"})
    terms: ClassVar[Mapping[str, str]] = {"classification": "student", "consistency": "student", "tie": "student"}
    strong_views = True

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        super().__init__(config, images=images, classes=classes)
        self.unlabelled = images
        self.truth: Tensor | None = None
        self.memory = {
            "seen": torch.zeros((), dtype=torch.int64),
            "passed": torch.zeros(classes, dtype=torch.int64),
            "known": torch.zeros((), dtype=torch.int64),
            "wrong": torch.zeros((), dtype=torch.int64),
        }

    def passing(self, guess: Guess, index: Tensor) -> Tensor:
        """Which guesses are certain enough to learn from, (U,) bool; `index` (U,) numbers their images."""
        raise NotImplementedError

    def extra(self, guess: Guess, passing: Tensor, strong: Tensor) -> Terms:
        """Further terms, from the strong views' logits (U, K)."""
        return {}

    def introduce(self, unlabelled: int, truth: Tensor) -> None:
        self.unlabelled, self.truth = unlabelled, truth

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        labelled = len(batch.labels)
        # Where every image has a label, all of them serve as unlabelled ones too.
        first = labelled if labelled < len(batch.index) else 0
        output, weak = self._passes(batch, student, labelled, first)
        with torch.no_grad():
            guess = Guess(weak, *weak.max(dim=1))
            passing = self.passing(guess, batch.index[first:])
            self._count(guess.label, passing, batch.index[first:])
        strong = output.consistency[-len(weak) :]
        return {
            "classification": classification(output.logits[:labelled], batch.labels),
            "consistency": batch.weight * (passing * hard(strong, guess.label)).mean(),
            **self.extra(guess, passing, strong),
            **self.tied(output),
        }

    def _passes(self, batch: Batch, student: Network, labelled: int, first: int) -> tuple[Output, Tensor]:
        """What the network gives for labelled and then (last) strong views, and the weak views' probabilities."""
        weak, strong = batch.view("weak"), batch.view("strong")[first:]
        if self.config.together:
            output: Output = student(torch.cat([weak, strong]), batch.noise.scope("student"))
            return output, probabilities(output.logits[first : len(weak)].detach())
        with torch.no_grad():
            guessed = probabilities(student(weak[first:], batch.noise.scope("teacher")).logits)
        return student(torch.cat([weak[:labelled], strong]), batch.noise.scope("student")), guessed

    def _count(self, label: Tensor, passing: Tensor, index: Tensor) -> None:
        memory = self.memory
        classes = torch.arange(len(memory["passed"]), device=label.device)
        memory["seen"].add_(len(label))
        memory["passed"].add_(((label[:, None] == classes) & passing[:, None]).sum(dim=0))
        if self.truth is not None:
            truth = self.truth[index]
            known = passing & (truth >= 0)
            memory["known"].add_(known.sum())
            memory["wrong"].add_((known & (truth != label)).sum())

    def figures(self) -> dict[str, Any]:
        by_class = self.memory["passed"].tolist()
        seen, known, wrong = (int(self.memory[name]) for name in ("seen", "known", "wrong"))
        for name in ("seen", "passed", "known", "wrong"):
            self.memory[name].zero_()
        if not seen:
            return {}
        passed = sum(by_class)
        shares = [count / max(passed, 1) for count in by_class]
        labels = {"passing": passed / seen, "largest_class": max(shares)}
        if known:
            labels["error"] = 100.0 * wrong / known
        line: dict[str, Any] = {"pseudo_labels": labels, "pseudo_label_classes": [round(share, 5) for share in shares]}
        warning = self._warning(passed, shares)
        return line if warning is None else {**line, "warning": warning}

    def _warning(self, passed: int, shares: list[float]) -> str | None:
        name = self.config.name
        if not passed:
            remedy = ", else lower method.threshold" if "threshold" in self.settings else ""
            return (
                f"method {name}: no prediction was certain enough to be a pseudo-label since the last evaluation, "
                f"so that nothing was learnt from unlabelled images; it may be early{remedy}."
            )
        if max(shares) >= ALL:
            return (
                f"method {name}: class {shares.index(max(shares))} takes {100 * max(shares):.1f}% of the pseudo-labels "
                "since the last evaluation; the network calls everything the same."
            )
        return None
