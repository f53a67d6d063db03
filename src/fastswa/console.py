"""What a person at a terminal sees of a run: progress, evaluations, how it ended."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from fastswa.training.run import RunResult


def say(message: str) -> None:
    """One line to the person, beside the results."""
    print(f"fastswa: {message}", file=sys.stderr)


def shown(name: str) -> str:
    """A network's name as people write it."""
    return {"swa": "SWA", "fast_swa": "fast-SWA", "ema": "EMA"}.get(name, name)


class ConsoleWatcher:
    """Shows progress on stderr and stops the run at a time limit, at Ctrl-C or when asked to terminate."""

    def __init__(self, out: Path, minutes: float = float("inf")) -> None:
        self.out = out
        self.interrupted = False
        self._deadline = time.monotonic() + 60.0 * minutes
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("epoch {task.fields[epoch]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> ConsoleWatcher:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._interrupt)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        say("stopping after this step; once more to stop at once.")

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._task = self._progress.add_task(str(self.out), total=steps, completed=step, epoch="0")

    def stepped(self, step: int) -> None:
        assert self._task is not None
        self._progress.update(self._task, completed=step, epoch=f"{step / self._steps_per_epoch:.0f}")

    def evaluated(self, line: Mapping[str, Any]) -> None:
        errors = line.get("error") or line.get("validation_error") or {}
        figures = "  ".join(f"{shown(name)} {error:.2f}%" for name, error in errors.items())
        loss = sum(line["loss"].values())
        self._console.print(
            f"epoch {line['epoch']:>4}  loss {loss:.4f}  {figures}  ({line['seconds']:.0f} s)",
            highlight=False,
            soft_wrap=True,
        )

    def should_stop(self) -> bool:
        return self.interrupted or time.monotonic() > self._deadline

    def conclude(self, result: RunResult, as_json: bool) -> int:
        """Say how the run ended; the exit code."""
        if as_json:
            last = result.metrics[-1] if result.metrics else None
            print(json.dumps({"run": str(result.path), "finished": result.finished, "last": last}))
        elif result.finished:
            print(f"{result.path}: done; the model to use is {result.path / 'model.safetensors'}")
        if not result.finished:
            say(f"stopped and saved; go on with `fastswa resume {result.path}`.")
        return 1 if self.interrupted and not result.finished else 0


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr for `Options.progress`; it shows itself at the first news, and only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    task = bar.add_task("")

    def report(what: str, done: int, total: int) -> None:
        bar.start()
        bar.update(task, description=what, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()


def print_figures(figures: Mapping[str, Mapping[str, Mapping[str, float]]], title: str) -> None:
    """A table of each network's figures on each set of images."""
    table = Table(title=title)
    table.add_column("network")
    columns = [(images, figure) for images in figures for figure in next(iter(figures[images].values()))]
    for images, figure in columns:
        table.add_column(f"{images} {figure.replace('_', ' ')}", justify="right")
    networks = next(iter(figures.values())) if figures else {}
    for network in networks:
        values = [f"{figures[images][network][figure]:.4g}" for images, figure in columns]
        table.add_row(shown(network), *values)
    Console().print(table)
