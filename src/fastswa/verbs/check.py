"""`fastswa check`: what a data set holds and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError


def run(arguments: Arguments) -> int:
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


VERB = Verb(
    run,
    "check DATA [--skip-bad]",
    "what a data set holds, what is wrong with it, and the batches that would result",
    {"--skip-bad": False, "--size": True, "--channels": True, "--root": True, **COMMON},
    details="DATA: a folder with labeled/CLASS/… and unlabeled/…, a .csv/.tsv manifest, an .npz file, or digits.",
)
