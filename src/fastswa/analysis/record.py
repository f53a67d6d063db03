"""Gradients recorded while a run trains: what `fastswa analyze gradients` then needs no checkpoint for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastswa.analysis.gradients import RECORD, measure
from fastswa.config import AnalysisConfig
from fastswa.errors import RunError
from fastswa.training.loop import Trainer
from fastswa.whole import replacing


class GradientRecorder:
    """Writes a line on every n-th epoch (and the first and last) to RUN/gradients.jsonl."""

    def __init__(self, config: AnalysisConfig) -> None:
        self.every, self.batches = config.gradients, config.batches

    def epoch_done(self, trainer: Trainer, epoch: int) -> None:
        if epoch % self.every and epoch not in (1, trainer.config.schedule.epochs):
            return
        figures = measure(trainer.state, trainer.config, trainer.material, trainer.compute, self.batches)
        line = {"epoch": epoch, "step": trainer.state.step, "batches": self.batches, "terms": figures}
        _append(trainer.folder.path / RECORD, line)

    def settle(self) -> None:
        """Nothing is left to write: each line is there when its epoch is over."""


def _append(file: Path, line: dict[str, Any]) -> None:
    """Add a line; those of its step and later are of a run that was stopped and has come here again."""
    try:
        kept = [text for text in _lines(file) if json.loads(text)["step"] < line["step"]]
        with replacing(file) as temporary:
            temporary.write_text("".join(f"{text}\n" for text in [*kept, json.dumps(line)]), "utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged; take it away"
        raise RunError(f"cannot write {file}: {reason}.") from error


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.exists() else []
