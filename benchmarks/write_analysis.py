"""python benchmarks/write_analysis.py [FILE.zip…]: bring docs/analysis.md up to date with results/analysis/.

Archives that came back from parts of benchmarks/analyses.py are taken into results/analysis/ first, a file a figure,
each run in the place of an older one of its name. The figures are drawn as docs/figures/analysis/cifar10-NAME.svg, and
what they say stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; the rest of the page is not touched.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis_parts import PARTS, fork_names
from fastswa.analysis.study import Request, find_study, plain, read
from fastswa.console import say
from fastswa.errors import FastswaError, RequestError
from fastswa.tables.figures import save
from fastswa.whole import replacing
from write_reproduction import filled

HOME = Path(__file__).resolve().parents[1]
PAGE, FIGURES, RESULTS = (
    HOME / "docs" / "analysis.md",
    HOME / "docs" / "figures" / "analysis",
    HOME / "results" / "analysis",
)
NOT_YET = "Not made yet."

# A figure of several parts: the study's name within them, the study, and the runs in the order they are drawn.
MAIN = ("supervised", "pi", "mean-teacher")
TOGETHER: dict[str, tuple[str, str, Sequence[str]]] = {
    "gradients": ("gradients", "gradients", MAIN),
    "rays": ("rays", "rays", MAIN),
    "unlabelled": ("rays", "rays", ("supervised", *PARTS["unlabelled"].runs, *PARTS["unlabelled-more"].runs, "pi")),
    "diversity": ("diversity", "pairs", MAIN),
    "pairs": ("pairs", "pairs", MAIN),
    "jacobian": ("jacobian", "jacobian", MAIN),
    "schedule": ("schedule", "schedule", fork_names(PARTS["schedule"])),
    "averaging": ("averaging", "averaging", ("mean-teacher",)),
    "landscape": ("landscape", "landscape", MAIN),
}
TAUGHT = ("pi", "mean-teacher", "swa-teacher")
TAUGHT_AT = (180, 240)
# Every figure of the page: the study that draws it, and the runs in the order they are drawn.
SHOWN: dict[str, tuple[str, Sequence[str]]] = {
    **{name: (kind, runs) for name, (_, kind, runs) in TOGETHER.items()},
    **{f"teachers-{epoch}": ("teachers", TAUGHT) for epoch in TAUGHT_AT},
}


def found_in(files: Sequence[Path]) -> dict[str, list[Any]]:
    """What archives hold for each figure, run by run."""
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        parts = [_unpacked(file, Path(folder) / str(number)) for number, file in enumerate(files)]
        for name, (made, kind, runs) in TOGETHER.items():
            there = [file for part in parts if (file := part / "analysis" / made / f"{kind}.json").exists()]
            by_run = {one.run: one for one in read(find_study(kind), there)}
            chosen = [by_run[run] for run in runs if run in by_run]
            found[name] = chosen
        taught = [part / run for run in TAUGHT for part in parts if (part / run / "config.toml").exists()]
        for epoch in TAUGHT_AT:
            try:
                request = Request(tuple(taught), epochs=(float(epoch),))
                found[f"teachers-{epoch}"] = find_study("teachers").run(request) if taught else []
            except RequestError as error:
                say(f"teachers-{epoch}: {error}")
    return found


def _comparable(one: Any) -> Any:
    """Random rays alone, as in A.1's left panel: these runs end at different epochs, and so do their averages."""
    return replace(one, rays=[ray for ray in one.rays if ray.kind == "random"])


def _unpacked(file: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise RequestError(f"{file} is no archive of a part: {error}.") from error
    return folder


def kept(name: str, folder: Path) -> list[Any]:
    """What a folder of results has of a figure, in the order of its runs."""
    kind, runs = SHOWN[name]
    path = folder / f"{name}.json"
    there = {one.run: one for one in read(find_study(kind), [path])} if path.exists() else {}
    found = [there[run] for run in runs if run in there]
    return [_comparable(one) for one in found] if name == "unlabelled" else found


def take(files: Sequence[Path], folder: Path) -> None:
    """Put what archives hold into a folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in found_in(files).items():
        by_run = {one.run: one for one in (*kept(name, folder), *found)}
        if by_run:
            with replacing(folder / f"{name}.json") as writing:
                writing.write_text(json.dumps(plain(list(by_run.values()))) + "\n", "utf-8")


def sections(folder: Path) -> dict[str, str]:
    """Every generated part of the page by its name."""
    return {name: section(name, kept(name, folder)) for name in SHOWN}


def section(name: str, result: Sequence[Any]) -> str:
    """A figure of the page and what its study says of it."""
    kind, runs = SHOWN[name]
    if not result:
        return NOT_YET
    lines = [f"![{name} on CIFAR-10](figures/analysis/cifar10-{name}.svg)", ""]
    lines += [f"- {line}" for line in find_study(kind).told(result)]
    missing = [run for run in runs if run not in {one.run for one in result}]
    return "\n".join([*lines, *([f"- Not made yet: {', '.join(missing)}."] if missing else [])])


def main(words: Sequence[str]) -> int:
    try:
        if words:
            take([Path(word) for word in words], RESULTS)
        drawn = [name for name in SHOWN if kept(name, RESULTS)]
        for name in drawn:
            _, png = save(find_study(SHOWN[name][0]).draw(kept(name, RESULTS)), FIGURES, f"cifar10-{name}")
            png.unlink()
        PAGE.write_text(filled(PAGE.read_text("utf-8"), sections(RESULTS)), "utf-8")
    except FastswaError as error:
        print(f"# {error}", file=sys.stderr)
        return error.exit_code
    print(f"{PAGE.relative_to(HOME)} and {len(drawn)} figures written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
