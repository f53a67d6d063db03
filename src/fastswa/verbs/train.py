"""`fastswa train`: a recipe or one's own images."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastswa.arguments import RUN, Arguments, Verb, claimed_folder, free_folder
from fastswa.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastswa.config import Config
    from fastswa.training.budget import Budget


def run(arguments: Arguments) -> int:
    from fastswa.data.sources import SOURCES
    from fastswa.layers import build_config, file_layer, flag_layer, flatten, refuse_idle, target_layer

    layers: list[dict[str, Any]] = []
    name = None
    if arguments.targets:
        name = arguments.target("folder of images or recipe")
        layers.append(target_layer(name))
    if "--config" in arguments:
        layers.append(file_layer(Path(arguments.options["--config"])))
    flags = flag_layer(arguments.settings, arguments.verb.options)
    if not layers:
        parent = flags.get("start", {}).get("run")
        if parent is None:
            raise RequestError(
                "name a folder of images or a recipe (`fastswa recipes` lists them), --config FILE or --from RUN."
            )
        from fastswa.training.run import parent_layer

        layers.append(parent_layer(parent))
    config = build_config(*layers, flags)
    refuse_idle(config, flags)
    if config.schedule.epochs == 0:
        raise RequestError("schedule.epochs 0 would train nothing; name an epoch to train to.")
    from fastswa.analysis.asked import asked_after, refuse_missing, study_after_training
    from fastswa.console import ConsoleWatcher, say
    from fastswa.report.after import report_after_training
    from fastswa.training.budget import CHOSEN, Budget
    from fastswa.training.run import train_new
    from fastswa.training.seeds import train_seeds

    budget = None
    if "--minutes" in arguments:
        written = flatten(file_layer(Path(arguments.options["--config"]))) if "--config" in arguments else {}
        given = {*flatten(flags), *(written.keys() & {*CHOSEN})}
        budget = Budget(
            arguments.number("--minutes", 0.0),
            given,
            report="--no-report" not in arguments,
            began=arguments.began,
            alone="--seeds" not in arguments,
        )
    asked = asked_after(arguments)
    # How long one's own images are trained on, or for some minutes, is known only once it begins.
    if config.data.source in SOURCES and budget is None:
        refuse_missing(asked, config)
    seeds = arguments.wholes("--seeds")
    if len(set(seeds)) != len(seeds):
        raise RequestError("--seeds: a seed is named twice.")
    if seeds and "seed" in flags:
        raise RequestError("--seeds names the seeds that are trained; leave out --seed.")
    stem = Path(name or "run").resolve().stem
    suffix = f"seeds-{'-'.join(map(str, seeds))}" if seeds else f"seed-{config.seed}"
    minutes = arguments.number("--stop-after", float("inf"))
    named = arguments.options.get("--out")
    configs = [build_config(*layers, flags, {"seed": seed}) for seed in seeds]
    if "--print-config" in arguments:
        _show(configs or [config], Path(named or free_folder(f"runs/{stem}-{suffix}")), budget, bool(seeds))
        return 0
    place = claimed_folder(f"runs/{stem}-{suffix}") if named is None else nullcontext(Path(named))
    with place as out, ConsoleWatcher(minutes) as watcher:
        if seeds:
            lanes = {seed: watcher.lane(f"{out} seed {seed}", f"seed {seed}  ") for seed in seeds}
            results = train_seeds(configs, out, lanes, say, budget=budget, tell=say, began=arguments.began)
        else:
            lane = watcher.lane(str(out))
            results = [train_new(config, out, lane, say, budget=budget, tell=say, began=arguments.began)]
    if budget is not None and all(result.finished for result in results):
        remark = budget.remark(time.monotonic() - budget.began)
        if remark is not None:
            say(f"{out}: {remark}")
    report = None if "--no-report" in arguments else report_after_training(out, results, say)
    code = watcher.conclude(out, results, "--json" in arguments, report)
    studied = study_after_training(asked, results, say, discard="--discard-iterates" in arguments)
    return code if studied else 1


def _show(configs: Sequence[Config], out: Path, budget: Budget | None, several: bool) -> None:
    """Print what would run, refused where the run would be; of several seeds the first."""
    from fastswa.console import say
    from fastswa.layers import to_toml
    from fastswa.training.quiet import Quiet
    from fastswa.training.run import NewRun
    from fastswa.training.seeds import new_runs
    from fastswa.training.shown import shown

    watchers = {config.seed: Quiet() for config in configs}
    runs = new_runs(configs, out, watchers, budget) if several else [NewRun(configs[0], out, Quiet(), budget)]
    for run in runs:
        run.settings()
    print(to_toml(shown(runs[0], say)), end="")
    if budget is not None:
        say("--minutes: how long to train is measured when training starts; the epochs and steps shown are without it.")
    if len(runs) > 1:
        say(f"--seeds: this is seed {configs[0].seed}; the others differ from it in their seeds alone.")


VERB = Verb(
    run,
    "train RECIPE|FOLDER|FILE [--minutes M] [--config FILE] [--out RUN] [settings]",
    "train a recipe, or your own images",
    {"--config": True, "--out": True, "--minutes": True, "--seeds": True, "--print-config": False, **RUN},
    settings="all",
    details=(
        "RECIPE < --config FILE < settings; --print-config shows what would run.\n"
        "--minutes M measures this machine and trains for as many epochs as M minutes hold (for each seed).\n"
        "--from RUN[@EPOCH] forks a run; --stop-after MINUTES saves and ends before a limit.\n"
        "--seeds 10,11,12 trains one run a seed and writes their mean and std to summary.json. On a CPU they share\n"
        "the cores, a process each; with --device.threads or --deterministic they are trained one after the other.\n"
        "A finished run gets a report.html (--no-report leaves it out).\n"
        "--keep-every 3 [--keep-from 180] keeps iterates for `fastswa analyze`; --analyze pairs,rays studies the run\n"
        'right after training ("rays --epochs 170,180; pairs" gives options), --discard-iterates then drops them.'
    ),
)
