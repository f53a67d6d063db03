"""Many runs, as many at a time as a device takes well."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from traceback import clear_frames

import torch

from fastswa.training.run import NewRun, OldRun, RunResult, Say, attempt_together

# On a GPU two runs gain a tenth and a third one two hundredths more (benchmarks/LOG.md); each has streams of its own.
TOGETHER = {"cuda": 3, "cpu": 1}
_Run = NewRun | OldRun


def train_groups(
    runs: Iterable[_Run],
    together: int,
    say: Say,
    *,
    began: float | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, RunResult | Exception]]:
    """Train runs `together` at a time; each one's number and how it ended, as soon as its group has.

    What found too little memory beside others is tried again alone. Nothing more is started once `stopping` says so, or
    when an error has left the GPU useless to this process.
    """
    waiting, crowded = iter(enumerate(runs)), list[tuple[int, _Run]]()
    while not stopping():
        group = list(islice(waiting, together)) or [crowded.pop(0) for _ in crowded[:1]]
        if not group:
            return
        outcomes = attempt_together([run for _, run in group], say, began=began)
        began = None
        lost = any(_is_lost(outcome) for outcome in outcomes)
        for number, run in group:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                _let_go(outcome)
            if _is_crowded(outcome) and len(group) > 1:
                say(f"{run.path} found too little memory beside the others; it is tried again alone.")
                crowded.append((number, _again(run)))
            else:
                yield number, outcome
        if lost:
            say("the GPU can no longer be used by this process; go on in a new one.")
            return
        release()


def _let_go(error: BaseException | None) -> None:
    """Let an error keep its lines, and nothing of what ran in them: a network, its graph, their memory."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _again(run: _Run) -> _Run:
    """A run that failed; it may have been begun meanwhile."""
    begun = isinstance(run, NewRun) and (run.path / "config.toml").exists()
    return OldRun(run.path, run.watcher) if begun else run


def _is_crowded(outcome: RunResult | Exception) -> bool:
    """Whether memory was short: torch's own, or what CUDA and its libraries ask for besides."""
    said = str(outcome) if isinstance(outcome, RuntimeError) else ""
    return isinstance(outcome, torch.OutOfMemoryError) or "out of memory" in said or "ALLOC_FAILED" in said


def _is_lost(outcome: RunResult | Exception) -> bool:
    return isinstance(outcome, RuntimeError) and "CUDA error" in str(outcome) and not _is_crowded(outcome)


def release() -> None:
    """Give back what finished runs held, torch.compile's memory of their steps included: it is bounded."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
