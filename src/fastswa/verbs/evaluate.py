"""`fastswa evaluate`: errors of a finished run's networks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError


def run(arguments: Arguments) -> int:
    from fastswa.console import print_figures, say
    from fastswa.training.finished import evaluate_run

    path = Path(arguments.target("run folder"))
    if path.is_file():
        file = shlex.quote(str(path))
        raise RequestError(
            f"{path} is a file, and evaluate takes run folders; a model file is for `fastswa predict {file} IMAGES` "
            f"or `fastswa export {file}`."
        )
    figures = evaluate_run(path, arguments.options.get("--device", "auto"), flips="--flips" in arguments, say=say)
    if "--json" in arguments:
        print(json.dumps(figures))
    else:
        print_figures(figures, title=str(path))
    return 0


VERB = Verb(
    run,
    "evaluate RUN [--flips]",
    "errors of every network a finished run holds",
    {"--device": True, "--flips": False, **COMMON},
    details=(
        "--flips adds each network's errors averaged over an image and its mirror image; runs, reports and tables\n"
        "never use them."
    ),
)
