"""`fastswa report`: one HTML page on a run, or on several."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError
from fastswa.report import LOOKED_AT, SUGGESTIONS


def run(arguments: Arguments) -> int:
    from fastswa.report.write import write_comparison, write_report
    from fastswa.training.seeds import seeds_under

    if not arguments.targets:
        raise RequestError("name a run folder, or several to compare.")
    named = [Path(target) for target in arguments.targets]
    seeds = {path: list(seeds_under(path).values()) for path in named if not (path / "config.toml").is_file()}
    runs = [run for path in named for run in seeds.get(path) or [path]]
    places = [os.path.realpath(path) for path in runs]
    for number, path in enumerate(runs):
        if places[number] in places[:number]:
            raise RequestError(f"{path} is named twice.")
    out = Path(arguments.options["--out"]) if "--out" in arguments else None
    if len(runs) > 1:
        for option in ("--device", "--next", "--unlabelled"):
            if option in arguments:
                raise RequestError(f"{option} is for the report of one run; a comparison looks at no image.")
        alone = len(named) == 1
        written = write_comparison(runs, out or (named[0] / "report.html" if alone else Path("comparison.html")))
    else:
        written = write_report(
            runs[0],
            out,
            device=arguments.options.get("--device", "auto"),
            suggestions=arguments.whole("--next", SUGGESTIONS),
            unlabelled=arguments.whole("--unlabelled", LOOKED_AT),
        )
    paths = {"report": written.report, "label_next": written.suggestions}
    found = {name: str(path) for name, path in paths.items() if path is not None}
    print(json.dumps(found) if "--json" in arguments else "\n".join(found.values()))
    return 0


VERB = Verb(
    run,
    "report RUN… [--out FILE]",
    "one HTML page on a run: errors, confusions, calibration, mistakes, what to label next; or several compared",
    {"--out": True, "--device": True, "--next": True, "--unlabelled": True, **COMMON},
    details=(
        "Written to RUN/report.html, with label-next.csv beside it; several runs to comparison.html.\n"
        f"--next N images to label ({SUGGESTIONS}); --unlabelled N images looked at ({LOOKED_AT}); "
        "--device auto|cpu|cuda."
    ),
)
