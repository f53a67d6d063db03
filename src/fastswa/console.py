"""What a person at a terminal sees of a run: progress, evaluations, how it ended."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

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
    """One line to the person, beside the results; it is lost where it cannot be written."""
    with suppress(OSError):
        print(f"fastswa: {message}", file=sys.stderr)


def shown(name: str) -> str:
    """A network's name as people write it; what follows a plus stays."""
    network, plus, how = name.partition("+")
    return {"swa": "SWA", "fast_swa": "fast-SWA", "ema": "EMA"}.get(network, network) + plus + how


class _Log:
    """A stream for messages that nothing depends on: what it cannot take, as on a full disk, is lost.

    `unread` is called once nobody is there to read it.
    """

    def __init__(self, stream: IO[str], unread: Callable[[], None]) -> None:
        self._stream, self._unread = stream, unread

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:
            self._unread()
        except OSError:
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ConsoleWatcher:
    """Shows progress on stderr and stops runs at a time limit, at Ctrl-C or when asked to terminate.

    Each run is watched through a lane of its own. They also stop once nobody reads what is shown, as after `| head`;
    a disk that is too full for it stops none.
    """

    def __init__(self, minutes: float = float("inf")) -> None:
        self.interrupted = False
        self._deadline = time.monotonic() + 60.0 * minutes
        log = None if sys.stderr is None else cast("IO[str]", _Log(sys.stderr, self._stop))
        self.console = Console(file=log, stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("epoch {task.fields[epoch]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> ConsoleWatcher:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._interrupt)
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _stop(self) -> None:
        self.interrupted = True

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self._stop()
        say("stopping after this step; once more to stop at once.")

    def lane(self, label: str, prefix: str = "") -> Lane:
        """The watcher of one run; `prefix` begins its lines."""
        return Lane(self, label, prefix)

    def should_stop(self) -> bool:
        return self.interrupted or time.monotonic() > self._deadline

    def conclude(self, path: Path, results: Sequence[RunResult], as_json: bool, report: Path | None = None) -> int:
        """Say how one run, or several seeds under one folder, ended and where their report is; the exit code."""
        finished = all(result.finished for result in results)
        if as_json:
            for result in results:
                last = result.metrics[-1] if result.metrics else None
                print(json.dumps({"run": str(result.path), "finished": result.finished, "last": last}))
        elif finished and len(results) == 1:
            print(f"{path}: done; the model to use is {results[0].path / 'model.safetensors'}")
        elif finished:
            found = json.loads((path / "summary.json").read_text("utf-8"))
            kind = "done" if found["finished"] else "trained, to different epochs"
            print(f"{path}: {kind}; mean and std over {len(found['runs'])} seeds are in {path / 'summary.json'}")
        if report is not None and not as_json:
            print(f"{path}: the report is {report}")
        if not finished:
            say(f"stopped and saved; go on with `fastswa resume {shlex.quote(str(path))}`.")
        return 1 if self.interrupted and not finished else 0


class Lane:
    """One run's progress and evaluations on a ConsoleWatcher."""

    def __init__(self, watcher: ConsoleWatcher, label: str, prefix: str) -> None:
        self._watcher, self._label, self._prefix = watcher, label, prefix
        self._task: TaskID | None = None
        self._steps_per_epoch = 1

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._task = self._watcher.progress.add_task(self._label, total=steps, completed=step, epoch="0")

    def stepped(self, step: int) -> None:
        assert self._task is not None
        self._watcher.progress.update(self._task, completed=step, epoch=f"{step / self._steps_per_epoch:.0f}")

    def evaluated(self, line: Mapping[str, Any]) -> None:
        errors = line.get("error") or line.get("validation_error") or line.get("source_error") or {}
        figures = "  ".join(f"{shown(name)} {error:.2f}%" for name, error in errors.items())
        loss = sum(line["loss"].values())
        self._watcher.console.print(
            f"{self._prefix}epoch {line['epoch']:>4}  loss {loss:.4f}  {figures}  ({line['seconds']:.0f} s)",
            highlight=False,
            soft_wrap=True,
        )
        if "warning" in line:
            say(f"{self._prefix}{line['warning']}")

    def should_stop(self) -> bool:
        return self._watcher.should_stop()


@contextmanager
def progress_bar(shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr for `Options.progress`; it shows itself at the first news, and only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (shown and console.is_terminal), transient=True)
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
        unit = ", %" if figure.endswith("error") else ""
        table.add_column(f"{images} {figure.replace('_', ' ')}{unit}", justify="right")
    networks = next(iter(figures.values())) if figures else {}
    for network in networks:
        values = [(figure, figures[images][network][figure]) for images, figure in columns]
        table.add_row(shown(network), *(f"{v:.2f}" if figure.endswith("error") else f"{v:.4f}" for figure, v in values))
    Console().print(table)
