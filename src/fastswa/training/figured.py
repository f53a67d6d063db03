"""A Trainer whose lines of metrics end in what its method has to say of itself."""

from __future__ import annotations

from typing import Any

from fastswa.training.loop import Trainer


class FiguredTrainer(Trainer):
    """Training as ever; each evaluation takes the method's figures along."""

    def evaluate(self) -> dict[str, Any]:
        return {**super().evaluate(), **self.state.method.figures()}
