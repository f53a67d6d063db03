"""`fastswa figure`: schedule, bars, trends."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb, results


def run(arguments: Arguments) -> int:
    from fastswa.tables.figures import figure

    paths = figure(arguments.target("figure"), results(arguments), Path(arguments.options.get("--out", "figures")))
    print(json.dumps([str(path) for path in paths]) if "--json" in arguments else "\n".join(map(str, paths)))
    return 0


VERB = Verb(
    run,
    "figure NAME [--out FOLDER]",
    "a figure as SVG and PNG: schedule, a table as bars, or a recipe's error against epoch",
    {"--out": True, "--results": True, **COMMON},
    details="NAME: schedule, a table of `fastswa table`, or a recipe with results; --results FOLDER (results).",
)
