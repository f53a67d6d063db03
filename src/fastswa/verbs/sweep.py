"""`fastswa sweep`: the missing runs of a table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.verbs.results import say_unmeasured

if TYPE_CHECKING:
    from fastswa.sweep import Cell


def run(arguments: Arguments) -> int:
    from fastswa.console import ConsoleWatcher, say
    from fastswa.errors import RequestError
    from fastswa.layers import flag_layer
    from fastswa.sweep import SEEDS, Sweep, at_once, plan_sweep
    from fastswa.tables.runs import swept_tables
    from fastswa.whole import refuse_unwritable

    if not arguments.targets:
        raise RequestError(f"name a table; there are: {', '.join(swept_tables())}.")
    changes = flag_layer(arguments.settings, arguments.verb.options)
    results = Path(arguments.options.get("--results", "results"))
    cells = plan_sweep(
        arguments.target("table"),
        labels=arguments.wholes("--labels"),
        methods=arguments.words("--methods"),
        recipes=arguments.words("--recipes"),
        seeds=arguments.wholes("--seeds") or SEEDS,
        out=Path(arguments.options.get("--out", "runs/sweep")),
        results=results,
        changes=changes,
    )
    asked = arguments.whole("--together", 1) if "--together" in arguments else None
    stop_after = arguments.number("--stop-after", float("inf"))
    say_unmeasured(results)
    if "--dry-run" in arguments:
        _print(cells, as_json="--json" in arguments)
        return 0
    together = at_once(cells, asked)
    if asked is not None and asked > together:
        say("on a CPU runs are trained one after the other; --together is for GPUs.")
    refuse_unwritable(results)
    with ConsoleWatcher(stop_after) as watcher:
        sweep = Sweep(
            cells,
            results,
            together,
            changes,
            watch=lambda cell: watcher.lane(f"{cell.run.name} seed {cell.seed}", f"{cell.name}  "),
            stopping=watcher.should_stop,
            say=say,
            began=arguments.began,
        )
        ended = sweep.run()
    _print(ended, as_json="--json" in arguments)
    left = any(cell.status in ("missing", "begun", "stopped") for cell in ended)
    if left:
        say("stopped and saved; the same command goes on.")
    return 1 if any(cell.status == "failed" for cell in ended) or (watcher.interrupted and left) else 0


def _print(cells: list[Cell], as_json: bool) -> None:
    if as_json:
        print(json.dumps([cell.facts() for cell in cells]))
        return
    width = max(len(cell.run.name) for cell in cells)
    for cell in cells:
        what = f"{cell.run.name:<{width}}  seed {cell.seed:<4} to epoch {cell.epochs:<4}"
        print(f"{what} {cell.status:<11} {cell.note}".rstrip())
    counts = Counter(cell.status for cell in cells)
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{len(cells)} {'run' if len(cells) == 1 else 'runs'}: {said}")


VERB = Verb(
    run,
    "sweep TABLE [--labels 4000] [--methods A,B] [--seeds 10,11]",
    "train the missing runs of a table, and keep their records",
    {
        "--labels": True,
        "--methods": True,
        "--recipes": True,
        "--seeds": True,
        "--together": True,
        "--out": True,
        "--results": True,
        "--dry-run": False,
        "--stop-after": True,
        **COMMON,
    },
    settings="resumable",
    details=(
        "TABLE: any that `fastswa table` shows but paired, which is made of frontier's runs. --labels, --methods and\n"
        "--recipes choose among its runs (frontier: flexmatch and freematch only where --methods names them).\n"
        "--seeds: 10,11,12 if not given.\n"
        "A run goes to the last epoch that its table prints, to 240 (short schedule) or 1700 (long) where that would\n"
        "be 1200 or 3500, which cost hours, or to --epochs N.\n"
        "Done is one of which --results FOLDER (results) has every figure so far. Run folders lie in --out FOLDER\n"
        "(runs/sweep); what is begun there is gone on with, and a run that fails stops no other.\n"
        "--together N trains N at once on a GPU (3 unless given, of frontier 1); --dry-run only says how each run\n"
        "stands; --stop-after MINUTES saves and ends before a limit, and the same command goes on."
    ),
)
