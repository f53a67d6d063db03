"""`fastswa analyze`: the paper's studies of a run, or of several side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastswa.analysis import STUDIES
from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError
from fastswa.registry import nearest

# Each option, and how its text becomes a value.
_OPTIONS = {
    "--epochs": "numbers",
    "--batches": "whole",
    "--points": "whole",
    "--rays": "whole",
    "--pairs": "whole",
    "--images": "whole",
    "--draws": "whole",
    "--distance": "number",
    "--seed": "whole",
    "--cycles": "numbers",
    "--constant": "numbers",
    "--until": "whole",
}


def run(arguments: Arguments) -> int:
    if not arguments.targets:
        raise RequestError(f"name a study and a run; the studies are: {', '.join(STUDIES)}.")
    name, *runs = arguments.targets
    if name not in STUDIES:
        raise RequestError(f"unknown study '{name}'; {nearest(name, STUDIES)}")
    if not runs:
        raise RequestError(f"name the run folder to study: `fastswa analyze {name} RUN`.")
    from fastswa.analysis.study import Request, find_study, plain, write

    study = find_study(name)
    given: dict[str, Any] = {}
    for option, kind in _OPTIONS.items():
        if option not in arguments:
            continue
        field = option.removeprefix("--").replace("-", "_")
        if field not in study.options:
            takes = ", ".join(f"--{one.replace('_', '-')}" for one in sorted(study.options)) or "none"
            raise RequestError(f"{option} means nothing to the study {name}; its options are: {takes}.")
        given[field] = _value(arguments, option, kind)
    paths = tuple(Path(path) for path in runs)
    out = Path(arguments.options["--out"]) if "--out" in arguments else _place(paths)
    result = study.run(Request(paths, device=arguments.options.get("--device", "auto"), **given))
    written = write(study, result, out, name)
    if "--json" in arguments:
        print(json.dumps({"study": name, "result": plain(result), "files": [str(path) for path in written]}))
    else:
        print("\n".join([*study.told(result), *map(str, written)]))
    return 0


def _place(runs: tuple[Path, ...]) -> Path:
    """Within the one run (of RUN@EPOCH too), or beside several."""
    if len(runs) > 1:
        return Path("analysis")
    [path] = runs
    run, at, _ = str(path).rpartition("@")
    return (Path(run) if at and not path.is_dir() else path) / "analysis"


def _value(arguments: Arguments, option: str, kind: str) -> Any:
    if kind == "whole":
        return arguments.whole(option, 1)
    if kind == "number":
        return arguments.number(option, 1.0)
    if kind == "word":
        return arguments.options[option]
    try:
        return tuple(float(word) for word in arguments.words(option))
    except ValueError as error:
        text = arguments.options[option]
        raise RequestError(f"{option}: '{text}' is not a list of numbers such as 170,180.") from error


VERB = Verb(
    run,
    "analyze STUDY RUN… [--out FOLDER]",
    "why averaging works: the paper's studies of a run, or of several, as data and figure",
    {"--out": True, "--device": True, **dict.fromkeys(_OPTIONS, True), **COMMON},
    details=(
        "STUDY:\n"
        "  gradients  norms of the terms' gradients and the trace of their covariance (--batches 32)\n"
        "  rays       error along SGD-SGD, SGD-SWA, random, adversarial rays (--points 41, --rays 5, --distance S)\n"
        "  pairs      distance, diversity and the gains of ensembling and averaging pairs of iterates (--pairs 100)\n"
        "  jacobian   Q against exact Jacobians, tr(H) and its parts, random-ray sharpness (--images 32, --draws 50)\n"
        "  schedule   fast-SWA for several cycles and constant rates; --cycles 10,30 --constant 150,180 --until 240\n"
        "             trains them as forks of RUN@EPOCH first\n"
        "  averaging  when high-rate iterates help: the rule, simulated, with the run's own rates\n"
        "  teachers   EMA, SWA or nothing as teacher and as what is evaluated\n"
        "  landscape  error and loss on the plane through three iterates, or two and the average (--points 21)\n"
        "Written to RUN/analysis, for several runs to ./analysis: STUDY.json, .csv, .svg and .png.\n"
        "Iterates are kept by `fastswa train … --checkpoint.keep 170,180`; --epochs 170,180 chooses among them.\n"
        "--seed N draws other directions, pairs and images; --device auto|cpu|cuda."
    ),
)
