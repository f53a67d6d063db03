"""Evaluations as TensorBoard events, where the extra `tensorboard` is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastswa.errors import RequestError, installing

if TYPE_CHECKING:
    from fastswa.training.loop import Watcher


class TensorBoardWatcher:
    """Passes everything on to another watcher, and writes each evaluation to RUN/tensorboard."""

    def __init__(self, inner: Watcher, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RequestError(f"log.tensorboard needs TensorBoard; {installing('tensorboard')} brings it.") from error
        self._inner = inner
        self._folder = str(run / "tensorboard")
        self._writer_class = SummaryWriter
        self._writer: Any = None

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
        # Events past the step that a resume starts from are about to be written again.
        self._writer = self._writer_class(self._folder, purge_step=step + 1)
        self._inner.begin(step, steps, steps_per_epoch)

    def stepped(self, step: int) -> None:
        self._inner.stepped(step)

    def evaluated(self, line: Mapping[str, Any]) -> None:
        for group, values in line.items():
            if isinstance(values, Mapping):
                for name, value in values.items():
                    self._writer.add_scalar(f"{group}/{name}", value, line["step"])
        self._writer.add_scalar("learning_rate", line["learning_rate"], line["step"])
        self._writer.flush()
        self._inner.evaluated(line)

    def should_stop(self) -> bool:
        return self._inner.should_stop()
