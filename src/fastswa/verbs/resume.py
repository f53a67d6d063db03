"""`fastswa resume`: go on with a run."""

from __future__ import annotations

from pathlib import Path

from fastswa.arguments import RUN, Arguments, Verb


def run(arguments: Arguments) -> int:
    from fastswa.console import ConsoleWatcher, say
    from fastswa.layers import flag_layer
    from fastswa.report.after import report_after_training
    from fastswa.training.run import resume
    from fastswa.training.seeds import resume_seeds, seeds_under

    path = Path(arguments.target("run folder"))
    changes = flag_layer(arguments.settings, arguments.verb.options)
    with ConsoleWatcher(arguments.number("--stop-after", float("inf"))) as watcher:
        if seeds_under(path) and not (path / "config.toml").exists():
            lanes = {seed: watcher.lane(str(run), f"seed {seed}  ") for seed, run in seeds_under(path).items()}
            results = resume_seeds(path, changes, lanes, say)
        else:
            results = [resume(path, changes, watcher.lane(str(path)), say)]
    report = None if "--no-report" in arguments else report_after_training(path, results, say)
    return watcher.conclude(path, results, "--json" in arguments, report)


VERB = Verb(
    run,
    "resume RUN [--schedule.epochs N]",
    "go on with a run, or extend it",
    {**RUN},
    settings="resumable",
    details="Other settings cannot change: `fastswa train --from RUN` forks a run instead.",
)
