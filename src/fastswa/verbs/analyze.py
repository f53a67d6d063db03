"""`fastswa analyze`: the paper's studies of a run, or of several side by side."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.analysis import OPTIONS, STUDIES
from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError
from fastswa.registry import nearest


def run(arguments: Arguments) -> int:
    if not arguments.targets:
        raise RequestError(f"name a study and a run; the studies are: {', '.join(STUDIES)}.")
    name, *runs = arguments.targets
    if name not in STUDIES:
        raise RequestError(f"unknown study '{name}'; {nearest(name, STUDIES)}")
    if not runs:
        raise RequestError(f"name the run folder to study: `fastswa analyze {name} RUN`.")
    from fastswa.analysis.asked import Asked
    from fastswa.analysis.study import plain, read, write

    asked = Asked.of(name, arguments)
    paths = tuple(Path(path) for path in runs)
    out = Path(arguments.options["--out"]) if "--out" in arguments else _place(paths)
    written_before = [path.suffix == ".json" for path in paths]
    if any(written_before):
        if not all(written_before) or asked.options:
            raise RequestError(
                "results that were written before are drawn as they are: name .json files, and nothing else."
            )
        result = read(asked.study, paths)
        written = write(asked.study, result, out, name)
    else:
        result, written = asked.done(paths, arguments.options.get("--device", "auto"), out)
    if "--json" in arguments:
        print(json.dumps({"study": name, "result": plain(result), "files": [str(path) for path in written]}))
    else:
        print("\n".join([*asked.study.told(result), *map(str, written)]))
    return 0


def _place(runs: tuple[Path, ...]) -> Path:
    """Within the one run (of RUN@EPOCH too), or beside several."""
    if len(runs) > 1 or runs[0].suffix == ".json":
        return Path("analysis")
    [path] = runs
    run, at, _ = str(path).rpartition("@")
    return (Path(run) if at and not path.is_dir() else path) / "analysis"


VERB = Verb(
    run,
    "analyze STUDY RUN… [--out FOLDER]",
    "why averaging works: the paper's studies of a run, or of several, as data and figure",
    {"--out": True, "--device": True, **dict.fromkeys(OPTIONS, True), **COMMON},
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
        "  landscape  error and loss on the plane through three iterates, or two and the average (--points 21,\n"
        "             --margin 0.35: how far it reaches beyond them, as a part of how far apart they are)\n"
        "Written to RUN/analysis, for several runs to ./analysis: STUDY.json, .csv, .svg and .png.\n"
        "`fastswa analyze STUDY A.json B.json` draws what was written before together.\n"
        "Iterates are kept by `fastswa train … --keep-every 3`; --epochs 170,180 chooses among them.\n"
        "`fastswa train … --analyze pairs,rays` makes studies right after training.\n"
        "--seed N draws other directions, pairs and images; --device auto|cpu|cuda."
    ),
)
