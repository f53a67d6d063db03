"""The verbs of the command line; thin: parse, call, print. Nothing heavy is imported before work starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastswa import __version__
from fastswa.arguments import Arguments, Verb
from fastswa.errors import FastswaError, RequestError
from fastswa.registry import nearest


def _train(arguments: Arguments) -> int:
    from fastswa.layers import build_config, file_layer, flag_layer, target_layer, to_toml
    from fastswa.methods import refuse_unused

    layers: list[dict[str, Any]] = []
    name = None
    if arguments.targets:
        name = arguments.target("recipe")
        layers.append(target_layer(name))
    if "--config" in arguments:
        layers.append(file_layer(Path(arguments.options["--config"])))
    flags = flag_layer(arguments.settings, arguments.verb.options)
    if not layers:
        parent = flags.get("start", {}).get("run")
        if parent is None:
            raise RequestError("name a recipe (`fastswa recipes` lists them), or give --config FILE or --from RUN.")
        from fastswa.training.run import parent_layer

        layers.append(parent_layer(parent))
    config = build_config(*layers, flags)
    refuse_unused(config.method.name, flags.get("method", {}))
    if "--print-config" in arguments:
        print(to_toml(config), end="")
        return 0
    from fastswa.console import ConsoleWatcher, say
    from fastswa.training.run import train_new
    from fastswa.training.seeds import train_seeds

    seeds = arguments.wholes("--seeds")
    if len(set(seeds)) != len(seeds):
        raise RequestError("--seeds: a seed is named twice.")
    stem = Path(name or "run").resolve().stem
    suffix = f"seeds-{'-'.join(map(str, seeds))}" if seeds else f"seed-{config.seed}"
    out = Path(arguments.options.get("--out") or _free_folder(f"runs/{stem}-{suffix}"))
    with ConsoleWatcher(arguments.number("--stop-after", float("inf"))) as watcher:
        if seeds:
            configs = [build_config(*layers, flags, {"seed": seed}) for seed in seeds]
            lanes = {seed: watcher.lane(f"{out} seed {seed}", f"seed {seed}  ") for seed in seeds}
            results = train_seeds(configs, out, lanes, say)
        else:
            results = [train_new(config, out, watcher.lane(str(out)), say)]
    return watcher.conclude(out, results, as_json="--json" in arguments)


def _free_folder(base: str) -> str:
    """`base`, or the first of its numbered siblings that is not there."""
    number, path = 1, base
    while Path(path).exists():
        number += 1
        path = f"{base}-{number}"
    return path


def _table(arguments: Arguments) -> int:
    from fastswa.tables.render import print_table, rendered
    from fastswa.tables.table import table, table_names

    if not arguments.targets:
        raise RequestError(f"name a table; there are: {', '.join(table_names())}.")
    sheet = table(
        arguments.target("table"),
        _results(arguments),
        labels=arguments.wholes("--labels"),
        methods=arguments.words("--methods"),
        measured_only="--measured" in arguments,
    )
    form = "json" if "--json" in arguments else arguments.options.get("--format", "terminal")
    if form == "terminal":
        print_table(sheet)
    else:
        print(rendered(sheet, form), end="")
    return 0


def _figure(arguments: Arguments) -> int:
    from fastswa.tables.figures import figure

    paths = figure(arguments.target("figure"), _results(arguments), Path(arguments.options.get("--out", "figures")))
    print(json.dumps([str(path) for path in paths]) if "--json" in arguments else "\n".join(map(str, paths)))
    return 0


def _results(arguments: Arguments) -> Path | None:
    """The folder of results: the one named, else ./results where there is one."""
    if "--results" in arguments:
        return Path(arguments.options["--results"])
    return Path("results") if Path("results").is_dir() else None


def _resume(arguments: Arguments) -> int:
    from fastswa.console import ConsoleWatcher, say
    from fastswa.layers import flag_layer
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
    return watcher.conclude(path, results, as_json="--json" in arguments)


def _evaluate(arguments: Arguments) -> int:
    from fastswa.console import print_figures
    from fastswa.training.run import evaluate_run

    path = Path(arguments.target("run folder"))
    figures = evaluate_run(path, arguments.options.get("--device", "auto"))
    if "--json" in arguments:
        print(json.dumps(figures))
    else:
        print_figures(figures, title=str(path))
    return 0


def _check(arguments: Arguments) -> int:
    from fastswa.check import check_data, print_report
    from fastswa.console import progress_bar
    from fastswa.data.plan import Options

    source = arguments.target("folder, manifest, .npz file or data set")
    side = arguments.whole("--size", 0) if "--size" in arguments else None
    channels = {"auto": None, "grey": 1, "rgb": 3}
    word = arguments.options.get("--channels", "auto")
    if word not in channels:
        raise RequestError(f"--channels: '{word}' is not auto, grey or rgb.")
    if side is not None and not 8 <= side <= 1024:
        raise RequestError(f"--size: {side} is not between 8 and 1024.")
    with progress_bar() as progress:
        options = Options(
            size=None if side is None else (side, side),
            channels=channels[word],
            skip_bad="--skip-bad" in arguments,
            progress=progress,
        )
        report = check_data(source, Path(arguments.options.get("--root", "data")), options)
    if "--json" in arguments:
        print(json.dumps(report.to_dict()))
    else:
        print_report(report)
    return 0 if report.ok else 1


def _demo(arguments: Arguments) -> int:
    if arguments.targets:
        raise RequestError(f"demo takes no '{arguments.targets[0]}'; it trains its own three recipes.")
    from fastswa.demo import run_demo

    out = Path(arguments.options.get("--out") or _free_folder("runs/demo"))
    return run_demo(
        out,
        seeds=arguments.whole("--seeds", 3),
        workers=arguments.whole("--workers", 2),
        record=arguments.options.get("--record"),
        as_json="--json" in arguments,
    )


def _recipes(arguments: Arguments) -> int:
    from fastswa.layers import recipe_names, recipe_text

    if arguments.targets:
        print(recipe_text(arguments.target("recipe")), end="")
        return 0
    summaries = {name: recipe_text(name).splitlines()[0].lstrip("# ") for name in recipe_names()}
    if "--json" in arguments:
        print(json.dumps(summaries))
    else:
        width = max(map(len, summaries))
        for name, summary in summaries.items():
            print(f"{name:<{width}}  {summary}")
    return 0


def _data(arguments: Arguments) -> int:
    if len(arguments.targets) != 2 or arguments.targets[0] != "download":
        raise RequestError("say `fastswa data download NAME`, with cifar10 or cifar100 for NAME.")
    from fastswa.data.download import download

    print(download(arguments.targets[1], Path(arguments.options.get("--root", "data"))).message)
    return 0


def _bench(arguments: Arguments) -> int:
    from fastswa.bench import CASES, run_bench

    device = arguments.options.get("--device", "auto")
    default = "small" if device == "cpu" else ",".join(CASES)
    return run_bench(
        arguments.options.get("--models", default).split(","),
        device,
        threads=arguments.whole("--threads", 0) if "--threads" in arguments else None,
        seconds=arguments.number("--seconds", 4.0),
        as_json="--json" in arguments,
    )


_COMMON = {"--json": False}
_RUN = {"--stop-after": True, **_COMMON}

VERBS = {
    "demo": Verb(
        _demo,
        "demo [--seeds N] [--out FOLDER]",
        "few labels, three methods, one table: see on your own machine what unlabelled images are worth",
        {"--seeds": True, "--workers": True, "--out": True, "--record": True, **_COMMON},
        details="--workers N trains N runs at a time; --record FILE writes the figures as JSON.",
    ),
    "check": Verb(
        _check,
        "check DATA [--skip-bad]",
        "what a data set holds, what is wrong with it, and the batches that would result",
        {"--skip-bad": False, "--size": True, "--channels": True, "--root": True, **_COMMON},
        details="DATA: a folder with labeled/CLASS/… and unlabeled/…, a .csv/.tsv manifest, an .npz file, or digits.",
    ),
    "train": Verb(
        _train,
        "train RECIPE|FOLDER|FILE [--config FILE] [--out RUN] [settings]",
        "train a recipe, or your own images",
        {"--config": True, "--out": True, "--seeds": True, "--print-config": False, **_RUN},
        settings="all",
        details=(
            "RECIPE < --config FILE < settings; --print-config shows what would run.\n"
            "--from RUN[@EPOCH] forks a run; --stop-after MINUTES saves and ends before a limit.\n"
            "--seeds 10,11,12 trains one run a seed and writes their mean and std to summary.json."
        ),
    ),
    "resume": Verb(
        _resume,
        "resume RUN [--schedule.epochs N]",
        "go on with a run, or extend it",
        {**_RUN},
        settings="resumable",
        details="Other settings cannot change: `fastswa train --from RUN` forks a run instead.",
    ),
    "evaluate": Verb(
        _evaluate,
        "evaluate RUN",
        "errors of every network a finished run holds",
        {"--device": True, **_COMMON},
    ),
    "recipes": Verb(_recipes, "recipes [NAME]", "list the recipes, or show one", {**_COMMON}),
    "table": Verb(
        _table,
        "table NAME [--labels 1000,4000] [--methods A,B]",
        "one of the paper's tables with our measured figures beside it",
        {"--labels": True, "--methods": True, "--measured": False, "--format": True, "--results": True, **_COMMON},
        details=(
            "NAME: cifar10-cnn, cifar10-shake-short, cifar10-shake-long, cifar100-cnn, cifar100-shake-short, or soa.\n"
            "--format terminal|markdown|csv|json; --measured leaves out the rest; --results FOLDER (results)."
        ),
    ),
    "figure": Verb(
        _figure,
        "figure NAME [--out FOLDER]",
        "a figure as SVG and PNG: schedule, a table as bars, or a recipe's error against epoch",
        {"--out": True, "--results": True, **_COMMON},
        details="NAME: schedule, a table of `fastswa table`, or a recipe with results; --results FOLDER (results).",
    ),
    "bench": Verb(
        _bench,
        "bench [--device cpu|cuda] [--models A,B]",
        "the time of a training step in each engine, beside a naive loop and the convolutions alone",
        {"--device": True, "--models": True, "--threads": True, "--seconds": True, **_COMMON},
        details="On the CPU only the digits network by default: --models small,cnn13,shake-shake-26-2x96d adds others.",
    ),
    "data": Verb(_data, "data download NAME [--root FOLDER]", "fetch a data set from its publisher", {"--root": True}),
}


def _help() -> str:
    width = max(len(verb.usage) for verb in VERBS.values())
    lines = [f"  {verb.usage:<{width}}  {verb.summary}" for verb in VERBS.values()]
    return "\n".join(
        [
            "fastswa: accurate image classifiers from few labels, by consistency training with fast-SWA.",
            "",
            *lines,
            "",
            "`fastswa VERB --help` says more. --debug shows a traceback; --version the version.",
        ]
    )


def _verb_help(verb: Verb) -> str:
    text = f"fastswa {verb.usage}\n\n{verb.summary[0].upper()}{verb.summary[1:]}."
    text += f"\n{verb.details}" if verb.details else ""
    text += "\n\nOptions: " + " ".join(verb.options)
    if verb.settings != "none":
        from fastswa.config import RESUMABLE
        from fastswa.layers import ALIASES, fields

        short = {path: name for name, path in ALIASES.items()}
        rows = []
        for path, field in fields():
            if verb.settings == "resumable" and path not in RESUMABLE:
                continue
            name = f"--{path}" + (f", --{short[path]}" if path in short else "")
            default = "" if field.default is None else f" [{field.default}]"
            rows.append(f"  {name:<40} {field.description}{default}")
        text += "\n\nSettings:\n" + "\n".join(rows)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 (done), 1 (failed while running) or 2 (the request was wrong)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except FastswaError as error:
        if debug:
            raise
        print(f"fastswa: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fastswa: interrupted.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Nobody reads any more; what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"fastswa: failed: {reason} (--debug shows where).", file=sys.stderr)
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"fastswa {__version__}")
        return 0
    name, *rest = words
    if name not in VERBS:
        raise RequestError(f"unknown command '{name}'; {nearest(name, VERBS)}")
    verb = VERBS[name]
    if "--help" in rest or "-h" in rest:
        print(_verb_help(verb))
        return 0
    return verb.run(Arguments(name, verb, rest))


if __name__ == "__main__":
    sys.exit(main())
