"""`fastswa figure`: schedule, bars, trends."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb, results
from fastswa.errors import RequestError
from fastswa.verbs.results import say_unmeasured


def run(arguments: Arguments) -> int:
    from fastswa.tables.figures import OFFERED, figure

    if not arguments.targets:
        raise RequestError(f"name a figure; {OFFERED}")
    name = arguments.target("figure")
    folder = results(arguments)
    paths = figure(name, folder, Path(arguments.options.get("--out", "figures")))
    if name != "schedule":
        say_unmeasured(folder)
    print(json.dumps([str(path) for path in paths]) if "--json" in arguments else "\n".join(map(str, paths)))
    return 0


VERB = Verb(
    run,
    "figure NAME [--out FOLDER]",
    "a figure as SVG and PNG: schedule, a table as bars, or a recipe's error against epoch",
    {"--out": True, "--results": True, **COMMON},
    details=(
        "NAME: schedule (the learning rate, and what is averaged); cifar10-cnn, cifar10-shake-short,\n"
        "cifar10-shake-long, cifar100-cnn or cifar100-shake-short (a table as bars); or a recipe of these tables\n"
        "that has results (error against epoch; `fastswa recipes` lists them).\n"
        "Written to --out FOLDER (figures) from --results FOLDER (results)."
    ),
)
