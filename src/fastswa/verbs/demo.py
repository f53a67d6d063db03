"""`fastswa demo`: few labels, three methods, one table."""

from __future__ import annotations

from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb, free_folder
from fastswa.errors import RequestError


def run(arguments: Arguments) -> int:
    if arguments.targets:
        raise RequestError(f"demo takes no '{arguments.targets[0]}'; it trains its own three recipes.")
    from fastswa.demo import run_demo

    out = Path(arguments.options.get("--out") or free_folder("runs/demo"))
    return run_demo(
        out,
        seeds=arguments.whole("--seeds", 3),
        workers=arguments.whole("--workers", 2),
        record=arguments.options.get("--record"),
        as_json="--json" in arguments,
    )


VERB = Verb(
    run,
    "demo [--seeds N] [--out FOLDER]",
    "few labels, three methods, one table: see on your own machine what unlabelled images are worth",
    {"--seeds": True, "--workers": True, "--out": True, "--record": True, **COMMON},
    details="--workers N trains N runs at a time; --record FILE writes the figures as JSON.",
)
