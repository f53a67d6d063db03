"""What methods share that learn from some of their own guesses: which passed, how evenly, how many were wrong."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fastswa.config import MethodConfig
from fastswa.methods.method import Method

# From this share on one class is said to take all that passes.
ALL = 0.99


class Guess(NamedTuple):
    """What is said of unlabelled images: probabilities (U, K), the largest of each (U,), whose it is (U,)."""

    probabilities: Tensor
    certainty: Tensor
    label: Tensor


class Guesses(Method):
    """A method that tells which of its guesses may teach; how many do, and of which classes, is counted.

    The count is for the metrics alone. Where no more than `few` of all pass, or one class takes what passes, a line of
    metrics warns; `what` is what the sentences call a guess that passed, `whose` the images that are guessed.
    """

    few: ClassVar[float] = 0.0
    what: ClassVar[str] = "pseudo-label"
    whose: ClassVar[str] = "unlabelled"

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

    def introduce(self, unlabelled: int, truth: Tensor) -> None:
        self.unlabelled, self.truth = unlabelled, truth

    def count(self, label: Tensor, passing: Tensor, index: Tensor) -> None:
        """Take in a step's guesses: `label` (U,), which of them pass (U,), and the numbers (U,) of their images."""
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
        warning = self._warning(passed / seen, shares)
        return line if warning is None else {**line, "warning": warning}

    def _warning(self, passing: float, shares: list[float]) -> str | None:
        name = self.config.name
        remedy = ", else lower method.threshold" if "threshold" in self.settings else ""
        if not passing:
            return (
                f"method {name}: no prediction was certain enough to be a {self.what} since the last evaluation, "
                f"so that nothing was learnt from {self.whose} images; it may be early{remedy}."
            )
        if passing <= self.few:
            return (
                f"method {name}: {100 * passing:.2g}% of the predictions were certain enough to be a {self.what} since "
                f"the last evaluation, so that next to nothing was learnt from {self.whose} images; it may be "
                f"early{remedy}."
            )
        if max(shares) >= ALL:
            swallows = self.names[shares.index(max(shares))]
            return (
                f"method {name}: class '{swallows}' takes {100 * max(shares):.1f}% of the {self.what}s since the last "
                "evaluation; the network calls everything the same."
            )
        return None
