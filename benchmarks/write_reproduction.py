"""python benchmarks/write_reproduction.py: bring docs/reproduction.md and docs/figures/ up to date with results/.

What stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is written here; the rest of the page is not touched.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from fastswa.tables.figures import figure
from fastswa.tables.measured import Result, by_row, device_minutes, load_results
from fastswa.tables.render import markdown
from fastswa.tables.rows import METHODS as PROCEDURES
from fastswa.tables.rows import TABLES, all_rows
from fastswa.tables.table import NOT_MEASURED, Line, Sheet, lines, mark, sheet, table

HOME = Path(__file__).resolve().parents[1]
PAGE, FIGURES, RESULTS = HOME / "docs" / "reproduction.md", HOME / "docs" / "figures", HOME / "results"
METHODS = {"mean-teacher": "Mean Teacher", "pi": "Pi model"}


def sections(folder: Path) -> dict[str, str]:
    """Every generated part of the page by its name."""
    results = load_results(folder)
    parts = {name: measured_part(name, lines(name, results)) for name in TABLES}
    parts["soa"] = bare(table("soa", folder))
    parts["averaging-often"] = often_part(table("averaging-often", folder))
    parts["domain-adaptation"] = bare(table("domain-adaptation", folder))
    parts["runs"] = runs_part(folder)
    parts["verdict"] = verdict_part(results)
    parts["order"] = order_part(results)
    parts["choices"] = choices_part()
    parts["figures"] = figures_part(folder)
    return parts


def bare(shown: Sheet) -> str:
    """A table as Markdown without its notes, which the page has once."""
    return markdown(replace(shown, notes=[])).strip()


def measured_part(name: str, cells: Sequence[Line]) -> str:
    """What is measured of a table, and how much is not."""
    compared = [line for line in cells if line.compared]
    there = [line for line in cells if line.ours is not None]
    missing = sum(line.ours is None and line.remark == NOT_MEASURED for line in compared)
    if not there:
        return f"**{sheet(name, []).title}**\n\nNone of its {missing} cells that can be run is measured yet."
    return f"{bare(sheet(name, there))}\n\n{missing} more cells of this table are not measured."


def often_part(shown: Sheet) -> str:
    if all(record["our_error"] is None for record in shown.records):
        return f"**{shown.title}**\n\nNot measured yet."
    return bare(shown)


def files_used(folder: Path) -> dict[str, str]:
    """The files of runs that belong to a recipe, in order, each with its name (a variant's rather than its base's)."""
    found = sorted(by_row(load_results(folder)).items(), key=lambda item: bool(all_rows()[item[0]].variant))
    return dict(sorted({result.file: name for name, results in found for result in results}.items()))


def runs_part(folder: Path) -> str:
    """One line a recipe and machine: what was run."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for file, recipe in files_used(folder).items():
        record = json.loads((folder / file).read_text("utf-8"))
        place = record["environment"]
        where = f"{place.get('gpu') or 'CPU'}, torch {place['torch']}, {place['precision']}, {place['engine']}"
        revision = (place.get("revision") or "not recorded")[:12]
        key = (recipe, str(record["epochs"]), where, revision, str(place.get("together", 1)))
        groups.setdefault(key, []).append(record)
    rows = [
        "| recipe | seeds | epochs | machine | revision | at once | minutes a run |",
        "|---|---|---:|---|---|---:|---:|",
    ]
    for (recipe, epochs, where, revision, together), records in sorted(groups.items()):
        seeds = ", ".join(str(record["seed"]) for record in records)
        minutes = mean(device_minutes(record["metrics"], int(together))[-1] for record in records)
        rows.append(f"| `{recipe}` | {seeds} | {epochs} | {where} | {revision} | {together} | {minutes:.1f} |")
    return "\n".join(rows)


def verdict_part(results: Sequence[Result]) -> str:
    """How many cells of each table agree with the paper."""
    rows = [
        "| table | compared | within 2 s.e. or better | worse | over a point better | paper: no std | not measured |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in TABLES:
        found = [line for line in lines(name, results) if line.compared]
        cells = [line for line in found if line.cell.error is not None and not line.cell.quoted]
        marks = [mark(line) for line in cells if line.ours is not None]
        missing = sum(line.ours is None for line in cells)
        counts = " | ".join(str(marks.count(look)) for look in ("good", "bad", "check", "plain"))
        rows.append(f"| {name} | {len(marks)} | {counts} | {missing} |")
    return "\n".join(rows)


def order_part(results: Sequence[Result]) -> str:
    """Whether fast-SWA(240) is better than SWA(240) and that better than the student(180), as the paper found."""
    rows = []
    for labels in (1000, 4000):
        for method, title in METHODS.items():
            found = {
                (line.cell.averaging, line.network, line.epoch): line.ours.mean
                for line in lines("cifar10-cnn", results)
                if line.ours is not None and (line.cell.labels, line.cell.method) == (labels, method)
            }
            wanted = (("none", "student", 180), ("swa", "swa", 240), ("fast-swa", "fast-swa", 240))
            if not all(key in found for key in wanted):
                continue
            student, swa, fast = (found[key] for key in wanted)
            held = "in the paper's order" if fast < swa < student else "**not** in the paper's order"
            if fast == swa < student:
                held = "both averages better than the student, and equal"
            rows.append(
                f"- {title}, {labels:,} labels: student (180) {student:.2f}, SWA (240) {swa:.2f}, "
                f"fast-SWA (240) {fast:.2f}: {held}."
            )
    return "\n".join(rows) or "Not measured yet."


def choices_part() -> str:
    """The settings of methods for which the paper gives none, as the recipes have them."""
    rows = ["| method | heads | settings | |", "|---|---:|---|---|"]
    for procedure in PROCEDURES.values():
        if procedure.note:
            settings = ", ".join(f"{name} {value:g}" for name, value in procedure.settings.items())
            rows.append(f"| {procedure.title} | {procedure.heads} | {settings} | {procedure.note} |")
    return "\n".join(rows)


def drawn(folder: Path) -> list[str]:
    """The figures that there are results for: a trend a recipe, bars a table."""
    results = load_results(folder)
    trends = [
        name
        for name, found in by_row(results).items()
        if any(result.epochs >= all_rows()[name].experiment.length for result in found)
    ]
    bars = [
        name
        for name in TABLES
        if any(line.ours is not None and line.compared and line.cell.method in METHODS for line in lines(name, results))
    ]
    return ["schedule", *sorted(trends), *bars]


def figures_part(folder: Path) -> str:
    """The figures, and what they were drawn from: a change of results is a change of this text."""
    content = b"".join((folder / file).read_bytes() for file in files_used(folder))
    seen = hashlib.blake2b(content, digest_size=8).hexdigest()
    images = "\n\n".join(f"![{name}](figures/{name}.svg)" for name in drawn(folder))
    return f"<!-- drawn from results {seen} -->\n\n{images}"


def filled(page: str, parts: dict[str, str]) -> str:
    """The page with its generated parts replaced; each must stand in it once."""
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        page, count = pattern.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
        if count != 1:
            raise SystemExit(f"{PAGE.name} has {count} parts named {name} instead of one")
    return page


def main() -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    names = drawn(RESULTS)
    for name in names:
        _, png = figure(name, RESULTS, FIGURES)
        png.unlink()
    for path in FIGURES.glob("*.svg"):
        if path.stem not in names:
            path.unlink()
    PAGE.write_text(filled(PAGE.read_text("utf-8"), sections(RESULTS)), "utf-8")
    print(f"{PAGE.relative_to(HOME)} and {len(names)} figures written")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
