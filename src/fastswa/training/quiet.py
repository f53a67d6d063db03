"""The watcher of a run that nobody watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Quiet:
    """A watcher that says nothing and never stops a run."""

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def evaluated(self, line: Mapping[str, Any]) -> None: ...
    def should_stop(self) -> bool:
        return False
