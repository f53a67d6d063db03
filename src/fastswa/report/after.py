"""The report at the end of training: cheap beside it, and never what a run fails by."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastswa.training.run import RunResult


def report_after_training(out: Path, results: Sequence[RunResult], say: Callable[[str], None]) -> Path | None:
    """The report of runs if all have finished: each its own and, of several, one that compares them under `out`.

    The model looks once at each image, which is less than the last evaluation did. What cannot be made is one
    sentence.
    """
    if not all(result.finished for result in results):
        return None
    runs = [result.path for result in results]
    try:
        from fastswa.report.write import write_comparison, write_report

        made = [write_report(path).report for path in runs]
        return made[0] if len(made) == 1 else write_comparison(runs, out / "report.html").report
    except KeyboardInterrupt:
        say(f"stopped before the report was made; `fastswa report {shlex.quote(str(out))}` makes it.")
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        say(f"no report was made: {reason}.")
    return None
