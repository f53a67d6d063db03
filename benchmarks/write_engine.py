"""python benchmarks/write_engine.py: bring docs/engine.md, and what other pages tell of it, up to date with results/.

What stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is written here; the rest of a page is not touched.
Figures are those of results/engine-h200.json, which confirm.py measures, and of records of whole runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from confirm import MEASURED, RECORD, short
from engine_parts import NEW_KERNELS, seeds_ms
from write_reproduction import filled

HOME = Path(__file__).resolve().parents[1]
RESULTS = HOME / "results"
# Which parts stand on which page.
PAGES = {
    HOME / "docs" / "engine.md": ("engine", "gpu-tests"),
    HOME / "docs" / "analysis.md": ("study-time",),
    HOME / "README.md": ("engine-short",),
}
# Runs that had the GPU to themselves, evaluated and saved every 3 epochs.
RUNS = {
    "whole run": "cifar10-cnn-mean-teacher-4k-seed-13.json",
    "run of Pi": "cifar10-cnn-pi-1k-seed-10.json",
}
NOT_YET = "not measured"
CNN13, SHAKE = "cnn13", "shake-shake-26-2x96d"


@dataclass(frozen=True)
class Found:
    """What was measured, part by part, and each part's revision, device and torch."""

    parts: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, part: str) -> Any:
        return self.parts[part]

    def step(self, model: str, engine: str) -> dict[str, float]:
        """A row of `fastswa bench`."""
        [row] = [row for row in self["steps"] if (row["model"], row["engine"]) == (model, engine)]
        return row

    def devices(self) -> list[str]:
        """What the short table's figures were measured on, each once."""
        needed = {part for row in ROWS if row.short for part in row.needs}
        return list(dict.fromkeys(one["device"] for part, one in self.facts.items() if part in needed))

    def revisions(self, parts: Iterable[str]) -> str:
        """Those of some parts, each once; parts that are not there have none."""
        told = [self.facts[part]["revision"] for part in parts if part in self.parts]
        return ", ".join(dict.fromkeys(", ".join(told).split(", ")))


@dataclass(frozen=True)
class Row:
    """A line of the table: what it says of the parts it needs, and of others where they are there.

    The `short` table has it too.
    """

    title: str
    goal: str
    needs: Sequence[str]
    said: Callable[[Found], str]
    others: Sequence[str] = ()
    short: bool = False


def rounded(value: float, digits: int) -> str:
    """A figure with so many decimals, as by hand: halves of what the file says go up."""
    return str(Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def percent(value: float) -> str:
    return f"{rounded(100 * value, 1)}%"


def span(values: Sequence[float], digits: int = 1) -> str:
    """The least and the most of some figures."""
    return " to ".join(dict.fromkeys(rounded(value, digits) for value in (min(values), max(values))))


def total(start: Mapping[str, float]) -> float:
    """Seconds from a process's birth to its first step."""
    return start["imports and data, s"] + start["start, s"]


def graph_step(found: Found) -> str:
    row = found.step(CNN13, "graph")
    return (
        f"{rounded(row['ms_per_step'], 2)} ms: {rounded(row['ratio_to_floor'], 2)} times its convolutions alone, "
        f"{rounded(row['ratio_to_naive'], 1)} times as fast as a plain loop (32 bits, TF32), "
        f"{rounded(row['ratio_to_loader'], 1)} with a PIL loader"
    )


def compiled_step(found: Found) -> str:
    row = found.step(CNN13, "compiled")
    return f"{rounded(row['ms_per_step'], 2)} ms, {rounded(row['ratio_to_floor'], 2)} times its convolutions"


def shake_step(found: Found) -> str:
    row = found.step(SHAKE, "graph")
    return (
        f"{rounded(row['ms_per_step'], 1)} ms: {rounded(row['ratio_to_floor'], 2)} times its convolutions, "
        f"{rounded(row['ratio_to_naive'], 1)} times as fast as a plain loop"
    )


def whole_run(found: Found) -> str:
    return f"{rounded(found['whole run']['metrics'][-1]['seconds'] / 60, 1)} min."


def together(found: Found) -> str:
    times = found["engine"]["ms per step and run, by runs at once"]
    return ", ".join(rounded(times[count], 2) for count in ("2", "3")) + " ms"


def edges(found: Found) -> str:
    last = [found[name]["metrics"][-1] for name in RUNS]
    return "; ".join(percent(line["edge_seconds"] / line["seconds"]) for line in last) + " of the time"


def all_edges(found: Found) -> str:
    said = percent(found["engine"]["edges' share of the time"])
    others = found.parts.get("edges' share on another day")
    return said if others is None else f"{said} ({span([100 * share for share in others])}% on another day)"


def epochs(found: Found) -> str:
    seconds = [one["s per epoch"] for one in found["engine"]["unlabelled images"].values()]
    return ", ".join(rounded(value, 2 if value < 2 else 1) for value in seconds) + " s"


def pinned(found: Found) -> str:
    times = found["engine"]["images in pinned memory, s per epoch"]
    return ", ".join(rounded(times[name], 2) for name in ("in pinned memory", "on the device")) + " s"


def warm_start(found: Found) -> str:
    said = f"{span([total(start) for start in found['starts']['warm']])} s"
    others = found.parts.get("starts at other times")
    return said if others is None else f"{said} ({span(others)} s at other times)"


def cold_start(found: Found) -> str:
    said = f"{span([total(start) for start in found['starts'][NEW_KERNELS]])} s"
    first = found.parts.get("start on a machine just started")
    return f"{said}; {NOT_YET if first is None else rounded(total(first), 1) + ' s'}"


def memory(found: Found) -> str:
    mib = found["engine"]["memory of one run, MiB"]
    # Before it was told in parts it was this one.
    mib = mib["its tensors at most"] if isinstance(mib, dict) else mib
    return f"{rounded(mib / 1024, 1)} GiB"


ROWS = (
    Row("a step, `graph`", "1.8 ms, 1.4 times", ["steps"], graph_step, short=True),
    Row("a step, `compiled`", "", ["steps"], compiled_step),
    Row(
        "a whole run: 180 epochs of Mean Teacher with 4,000 labels, evaluated and saved every 3",
        "6 min.",
        ["whole run"],
        whole_run,
        short=True,
    ),
    Row("two, three runs side by side, a step of each", "1.6 ms", ["engine"], together, short=True),
    Row(
        "`train --seeds 13,14,15`, epochs 3 to 12, a step of each with evaluations and checkpoints",
        "",
        ["three seeds"],
        lambda found: f"{rounded(seeds_ms(found['three seeds'])[0], 2)} ms",
    ),
    Row(
        "averaging at every step",
        "2%",
        ["engine"],
        lambda found: f"{percent(found['engine']['every-step average, share of a step']['share'])} of a step",
    ),
    Row(
        "evaluation, averages and checkpoints every 3 epochs, in that run; in one of Pi to epoch 240",
        "5%",
        list(RUNS),
        edges,
        short=True,
    ),
    Row(
        "the same, were four networks evaluated and one average refreshed each time",
        "",
        ["engine"],
        all_edges,
        ["edges' share on another day"],
    ),
    Row("an epoch with 50,000, 100,000, 500,000 unlabelled images", "linear", ["engine"], epochs),
    Row(
        "an epoch whose steps read images in the machine's memory, and one with them on the device",
        "",
        ["engine"],
        pinned,
    ),
    Row(
        "start to the first step, kernels and Python's byte code kept",
        "5 s",
        ["starts"],
        warm_start,
        ["starts at other times"],
        short=True,
    ),
    Row(
        "the same with kernels to compile; on a machine just started",
        "20 s",
        ["starts"],
        cold_start,
        ["start on a machine just started"],
        short=True,
    ),
    Row("memory that a run's tensors take, evaluation included", "4 GiB", ["engine"], memory),
    Row("Shake-Shake 26 2x96d, batch 128: a step, `graph`", "12.5 ms, 1.4 times", ["steps"], shake_step, short=True),
)


def found_in(folder: Path) -> Found:
    """What a folder of results holds of the engine."""
    found = Found()
    if (folder / RECORD.name).is_file():
        content = json.loads((folder / RECORD.name).read_text("utf-8"))
        found.facts.update(content.pop(MEASURED))
        found.parts.update(content)
    for name, file in RUNS.items():
        if (folder / file).is_file():
            found.parts[name] = json.loads((folder / file).read_text("utf-8"))
            there = found.parts[name]["environment"]
            facts = {"revision": short(there["revision"]), "device": there["gpu"], "torch": there["torch"]}
            found.facts[name] = facts
    return found


def sections(folder: Path) -> dict[str, str]:
    """Every generated part of the pages by its name."""
    found = found_in(folder)
    return {
        "engine": table(found),
        "engine-short": short_table(found),
        "gpu-tests": tests_part(found),
        "study-time": study_time(found),
    }


def table(found: Found) -> str:
    """The table, and what all its figures were measured on."""
    rows = ["| 13-layer CNN, batch 100 | measured | goal | revision |", "|---|---|---|---|"]
    shown: list[str] = []
    for row in ROWS:
        there = all(part in found.parts for part in row.needs)
        parts = [*row.needs, *row.others] if there else []
        shown += parts
        rows.append(
            f"| {row.title} | {row.said(found) if there else NOT_YET} | {row.goal} | {found.revisions(parts)} |"
        )
    facts = [found.facts[part] for part in shown if part in found.parts]
    places = dict.fromkeys(f"one {one['device']}, torch {'.'.join(one['torch'].split('.')[:2])}" for one in facts)
    return "\n".join([*rows, "", f"Measured on {' and '.join(places)}." if places else "Not measured yet."])


def short_table(found: Found) -> str:
    """The figures that users look for first."""
    lines = [f"| 13-layer CNN, batch 100, {' and '.join(found.devices()) or 'no device'} | measured |", "|---|---|"]
    for row in ROWS:
        if row.short:
            there = all(part in found.parts for part in row.needs)
            lines.append(f"| {row.title} | {row.said(found) if there else NOT_YET} |")
    return "\n".join(lines)


def tests_part(found: Found) -> str:
    """How the tests for a GPU ended, and before that where not all of them passed."""
    if "tests" not in found.parts:
        return "Not run yet."
    told = outcome(found, "tests")
    clean = not found["tests"]["failures"] and not found["tests"]["left"]
    return told if clean or "tests before" not in found.parts else f"{told}\n{outcome(found, 'tests before')}"


def study_time(found: Found) -> str:
    """What a study along rays took, beside the forward pass alone and plain loops."""
    if "rays" not in found.parts:
        return "Not measured yet."
    forward, study, *plain = found["rays"]
    facts = found.facts["rays"]
    loops = " and ".join(f"{rounded(row['times_slower'], 1)} ({row['what'].rpartition(', ')[2]})" for row in plain)
    return (
        f"A study of {study['what'].removeprefix('study: ')} through the 13-layer CNN's weights, with "
        f"{study['images']:,} images a point, takes {rounded(study['seconds'], 1)} s: {rounded(study['tflops'], 0)} "
        f"TFLOP/s. The forward pass alone, in batches of {forward['images']:,}, has {rounded(forward['tflops'], 0)}. "
        f"Plain eager loops take {loops} times as long. Measured on one {facts['device']} at revision "
        f"{facts['revision']}."
    )


def outcome(found: Found, part: str) -> str:
    """How many passed, and which did not; what is to be said of those."""
    counts, facts = found[part], found.facts[part]
    left, failures = len(counts["left"]), [name.rpartition("::")[2] for name in counts["failures"]]
    count = sum(counts[kind] for kind in ("passed", "failed", "skipped")) + left
    said = f"At {facts['revision']} {counts['passed']} of {count} passed"
    said += f"; skipped: {counts['skipped']}" if counts["skipped"] else ""
    said += f"; not run: {left}" if left else ""
    said += f"; failed: {', '.join(f'`{name}`' for name in failures)}" if failures else ""
    return f"{said}. {facts['note']}." if facts.get("note") else f"{said}."


def brought_up(page: Path, parts: Mapping[str, str]) -> str:
    """A page with the parts that stand on it written anew."""
    return filled(page.read_text("utf-8"), {name: parts[name] for name in PAGES[page]})


def main() -> None:
    for page in PAGES:
        page.write_text(brought_up(page, sections(RESULTS)), "utf-8")
        print(f"{page.relative_to(HOME)} written")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
