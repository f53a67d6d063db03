"""Runs side by side on a CPU: a process each, with its share of the cores.

Plain subprocesses, because multiprocessing would run the caller's script anew in each. A process gets its `Order`
through its input, then a STOP or the number of runs that are left; through its output it says by name and arguments
what its run's watcher would hear, and at last how the run ended. Where its input ends, however that came about, the
parent is gone: the run stops after its step and is saved.
"""

from __future__ import annotations

import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from traceback import format_exception
from typing import IO, Any

from fastswa.errors import RunError
from fastswa.training.lanes import Beside
from fastswa.training.quiet import Quiet
from fastswa.training.run import NewRun, OldRun, RunResult, Say, attempt_together

STOP = "stop"
# Seconds between the questions to a watcher whether to stop.
_ASKED_EVERY = 0.1
_Run = NewRun | OldRun
_Word = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Order:
    """What a process is to do: a run, of `most` at once; `began` as of `attempt_together`, by a clock that all share.

    `tells` where somebody hears what is chosen for it.
    """

    run: _Run
    tells: bool
    most: int
    began: float


def attempt_beside(runs: Sequence[_Run], say: Say, *, began: float | None = None) -> list[RunResult | Exception]:
    """As `attempt_together`, all at the same time, each in a process; their settings say with how many threads.

    What is said of a run begins with its folder's name. A process that dies leaves the others going.
    """
    began = time.monotonic() if began is None else began
    outcomes: dict[int, RunResult | Exception] = {}
    heard_by = [_hearers(run, say) for run in runs]
    asked = set[int]()
    with _started([_order(run, len(runs), began) for run in runs]) as processes:
        news = SimpleQueue[tuple[int, _Word | None]]()
        for number, process in enumerate(processes):
            threading.Thread(target=_listen, args=(number, process, news), daemon=True).start()
        while len(outcomes) < len(runs):
            for number, run in enumerate(runs):
                if number not in {*outcomes, *asked} and run.watcher.should_stop():
                    asked.add(number)
                    _tell(processes[number], STOP)
            try:
                number, word = news.get(timeout=_ASKED_EVERY)
            except Empty:
                continue
            if word is not None and word[0] != "ended":
                heard_by[number][word[0]](*word[1])
            elif number not in outcomes:
                outcomes[number] = _died(runs[number], processes[number]) if word is None else word[1][0]
                for process in processes:
                    _tell(process, len(runs) - len(outcomes))
    return [outcomes[number] for number in range(len(runs))]


def _order(run: _Run, most: int, began: float) -> Order:
    bare: _Run = replace(run, watcher=Quiet())
    if isinstance(bare, NewRun):
        bare = replace(bare, tell=None)
    return Order(bare, isinstance(run, NewRun) and run.tell is not None, most, began)


def _hearers(run: _Run, say: Say) -> dict[str, Any]:
    """Who hears what a run's process says."""
    watcher = run.watcher
    tell = run.tell if isinstance(run, NewRun) else None
    return {
        "begin": watcher.begin,
        "stepped": watcher.stepped,
        "evaluated": watcher.evaluated,
        "say": lambda line: say(f"{run.path.name}: {line}"),
        "tell": tell,
    }


@contextmanager
def _started(orders: Sequence[Order]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process for each order; none is left when the block ends, whatever ends it."""
    program = "import sys; sys.path[:] = sys.argv[1:]; from fastswa.training.processes import _serve; _serve()"
    command = [sys.executable, "-c", program, *sys.path]
    # A console of Windows interrupts all of its processes but those of another group.
    group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    processes: list[subprocess.Popen[bytes]] = []
    done = False
    try:
        for order in orders:
            with _signals_held():
                processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, creationflags=group)
                )
            _tell(processes[-1], order)
        yield processes
        done = True
    finally:
        for process in processes:
            if not done:
                process.kill()
            with suppress(OSError):  # what a dead process never took cannot be flushed
                assert process.stdin is not None
                process.stdin.close()
        for process in processes:
            process.wait()


@contextmanager
def _signals_held() -> Iterator[None]:
    """A process started inside gets an interrupt of the whole terminal once it is ready to leave that to its parent."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_HELD = {signal.SIGINT, signal.SIGTERM}


def _tell(process: subprocess.Popen[bytes], what: Order | str | int) -> None:
    assert process.stdin is not None
    with suppress(OSError, ValueError):  # one that is gone is noticed when it says nothing more
        pickle.dump(what, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()


def _listen(number: int, process: subprocess.Popen[bytes], news: SimpleQueue[tuple[int, _Word | None]]) -> None:
    """Put what a process says into `news`, and a None once it says nothing more."""
    assert process.stdout is not None
    with process.stdout, suppress(EOFError, pickle.UnpicklingError, OSError):
        while True:
            news.put((number, pickle.load(process.stdout)))
    news.put((number, None))


def _died(run: _Run, process: subprocess.Popen[bytes]) -> RunError:
    """What to say of a run whose process ended without a word."""
    code = process.wait()
    begun = (run.path / "config.toml").exists()
    then = f"`fastswa resume {shlex.quote(str(run.path))}` goes on" if begun else "nothing of it was saved"
    if code >= 0:
        return RunError(f"the process that trained it ended with code {code}; {then}.")
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return RunError(f"the process that trained it was killed ({name}), as happens where memory is short; {then}.")


class _Parent:
    """The process that waits for this one, as the watcher of its run."""

    def __init__(self, stream: IO[bytes], beside: Beside) -> None:
        self._stream, self._beside = stream, beside
        self._speaking = threading.Lock()
        self._stopping = False

    def listen(self, stream: IO[bytes]) -> None:
        """Heed what it says, to its end."""
        with suppress(EOFError, pickle.UnpicklingError, OSError):
            while True:
                word = pickle.load(stream)
                if word == STOP:
                    self.stop()
                else:
                    self._beside.now = word
        self.stop()

    def hear(self, name: str, *words: object) -> None:
        """Say something to it; a run that nobody hears stops."""
        try:
            with self._speaking:
                pickle.dump((name, words), self._stream, pickle.HIGHEST_PROTOCOL)
                self._stream.flush()
        except OSError:
            self.stop()

    def stop(self, *signalled: object) -> None:
        self._stopping = True

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
        self.hear("begin", step, steps, steps_per_epoch)

    def stepped(self, step: int) -> None:
        self.hear("stepped", step)

    def evaluated(self, line: Mapping[str, Any]) -> None:
        self.hear("evaluated", dict(line))

    def should_stop(self) -> bool:
        return self._stopping


def _serve() -> None:
    """The life of a process: one run, from its order to its end."""
    heard, said = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what else is printed does not get between
    order: Order = pickle.load(heard)
    beside = Beside(order.most, order.most)
    parent = _Parent(said, beside)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, parent.stop)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    threading.Thread(target=parent.listen, args=(heard,), daemon=True).start()
    run: _Run = replace(order.run, watcher=parent)
    if isinstance(run, NewRun) and order.tells:
        run = replace(run, tell=partial(parent.hear, "tell"))
    [outcome] = attempt_together([run], partial(parent.hear, "say"), began=order.began, beside=beside)
    parent.hear("ended", _sendable(outcome) if isinstance(outcome, Exception) else outcome)
    os._exit(0)  # at once: nothing is left to be tidied up


def _sendable(error: Exception) -> Exception:
    """An error with its lines as a note, as they stay in this process; one that cannot be sent in a RuntimeError."""
    lines = "".join(format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(lines)
    return error
