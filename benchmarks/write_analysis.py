"""python benchmarks/write_analysis.py [FILE.zip…]: bring docs/analysis.md up to date with results/analysis/.

Archives that came back from parts of benchmarks/analyses.py are taken into results/analysis/ first, a file a figure,
each run in the place of an older one of its name. The figures are drawn as docs/figures/analysis/cifar10-NAME.svg, and
what they say stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; the rest of the page is not touched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyses import found_in, shown
from fastswa.analysis.study import find_study, plain, read
from fastswa.errors import FastswaError
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


def kept(name: str, folder: Path) -> list[Any]:
    """What a folder of results has of a figure, in the order of its runs."""
    kind, runs = shown()[name]
    path = folder / f"{name}.json"
    there = {one.run: one for one in read(find_study(kind), [path])} if path.exists() else {}
    return [there[run] for run in runs if run in there]


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
    return {name: section(name, kept(name, folder)) for name in shown()}


def section(name: str, result: Sequence[Any]) -> str:
    """A figure of the page and what its study says of it."""
    kind, runs = shown()[name]
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
        drawn = [name for name in shown() if kept(name, RESULTS)]
        for name in drawn:
            _, png = save(find_study(shown()[name][0]).draw(kept(name, RESULTS)), FIGURES, f"cifar10-{name}")
            png.unlink()
        PAGE.write_text(filled(PAGE.read_text("utf-8"), sections(RESULTS)), "utf-8")
    except FastswaError as error:
        print(f"# {error}", file=sys.stderr)
        return error.exit_code
    print(f"{PAGE.relative_to(HOME)} and {len(drawn)} figures written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
