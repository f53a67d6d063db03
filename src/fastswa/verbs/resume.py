"""`fastswa resume`: go on with a run."""

from __future__ import annotations

from pathlib import Path

from fastswa.arguments import RUN, Arguments, Verb


def run(arguments: Arguments) -> int:
    from fastswa.analysis.asked import asked_after, refuse_missing, study_after_training
    from fastswa.console import ConsoleWatcher, say
    from fastswa.layers import build_config, file_layer, flag_layer
    from fastswa.report.after import report_after_training
    from fastswa.training.run import resume
    from fastswa.training.seeds import resume_seeds, seed_folder, seeds_to_come, seeds_under

    path = Path(arguments.target("run folder"))
    changes = flag_layer(arguments.settings, arguments.verb.options)
    asked = asked_after(arguments)
    for one in seeds_under(path).values() or [path]:
        if asked and (one / "config.toml").exists():
            refuse_missing(asked, build_config(file_layer(one / "config.toml"), changes), one)
    with ConsoleWatcher(arguments.number("--stop-after", float("inf"))) as watcher:
        if seeds_under(path) and not (path / "config.toml").exists():
            seeds = [*seeds_under(path), *(config.seed for config in seeds_to_come(path, changes))]
            lanes = {seed: watcher.lane(str(seed_folder(path, seed)), f"seed {seed}  ") for seed in seeds}
            results = resume_seeds(path, changes, lanes, say, began=arguments.began)
        else:
            results = [resume(path, changes, watcher.lane(str(path)), say, began=arguments.began)]
    report = None if "--no-report" in arguments else report_after_training(path, results, say)
    code = watcher.conclude(path, results, "--json" in arguments, report)
    studied = study_after_training(asked, results, say, discard="--discard-iterates" in arguments)
    return code if studied else 1


VERB = Verb(
    run,
    "resume RUN [--schedule.epochs N]",
    "go on with a run, or extend it",
    {**RUN},
    settings="resumable",
    details=(
        "Other settings cannot change: `fastswa train --from RUN` forks a run instead.\n"
        "--analyze STUDY,… [--discard-iterates] as with `fastswa train`."
    ),
)
