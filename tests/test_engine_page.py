"""docs/engine.md and README.md say of the engine what results/ hold, each figure with its revision."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOME = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOME / "benchmarks"))
        return importlib.import_module("write_engine")


@pytest.fixture
def folder(writer: ModuleType, tmp_path: Path) -> Path:
    """The results that the table is made of."""
    for file in (writer.RECORD.name, *writer.RUNS.values()):
        shutil.copy(writer.RESULTS / file, tmp_path)
    return tmp_path


def change(writer: ModuleType, folder: Path, part: str, value: Any, **facts: str) -> None:
    """Put another value in a part's place, measured as `facts` say."""
    path = folder / writer.RECORD.name
    content = json.loads(path.read_text("utf-8"))
    content[part] = value(content[part]) if callable(value) else value
    content["measured"][part] = {**content["measured"][part], "note": "", **facts}
    path.write_text(json.dumps(content))


def rows(text: str) -> dict[str, list[str]]:
    """What the table says, by the line's title."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:] if "|" in line]
    return {title: rest for title, *rest in cells}


def test_the_page_is_as_old_as_the_results(writer: ModuleType) -> None:
    parts = writer.sections(writer.RESULTS)
    for page in writer.PAGES:
        assert writer.brought_up(page, parts) == page.read_text("utf-8"), "run `python benchmarks/write_engine.py`"
    assert {name for names in writer.PAGES.values() for name in names} == parts.keys()


def test_the_short_table_says_what_the_long_one_says(writer: ModuleType) -> None:
    parts = writer.sections(writer.RESULTS)
    short, long = rows(parts["engine-short"]), rows(parts["engine"])
    assert parts["engine-short"].startswith("| 13-layer CNN, batch 100, NVIDIA H200 | measured |")
    assert len(short) == 7
    assert all(long[title][0] == said for title, [said] in short.items())


def test_nothing_is_claimed_without_results(writer: ModuleType, tmp_path: Path) -> None:
    parts = writer.sections(tmp_path)
    found = rows(parts["engine"])
    assert len(found) == len(writer.ROWS)
    assert all((measured, revision) == ("not measured", "") for measured, _, revision in found.values())
    assert parts["engine"].endswith("Not measured yet.")
    assert parts["gpu-tests"] == "Not run yet."
    assert parts["study-time"] == "Not measured yet."


@pytest.mark.parametrize("part", ["steps", "engine", "starts", "three seeds"])
def test_a_part_that_is_not_there_takes_its_lines_alone(writer: ModuleType, folder: Path, part: str) -> None:
    before = rows(writer.sections(folder)["engine"])
    path = folder / writer.RECORD.name
    content = json.loads(path.read_text("utf-8"))
    del content[part]
    path.write_text(json.dumps(content))
    after = rows(writer.sections(folder)["engine"])
    gone = {row.title for row in writer.ROWS if part in row.needs}
    assert gone
    for title, (measured, goal, revision) in after.items():
        expected = ["not measured", before[title][1], ""] if title in gone else before[title]
        assert [measured, goal, revision] == expected


def test_steps_are_the_benchs_rows(writer: ModuleType, folder: Path) -> None:
    figures = {"graph": (3.486, 2.684, 12.78, 14.21), "compiled": (3.467, 2.661, 12.9, 14.3)}

    def others(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        names = ("ms_per_step", "ratio_to_floor", "ratio_to_naive", "ratio_to_loader")
        return [{**row, **dict(zip(names, figures.get(row["engine"], ()), strict=False))} for row in found]

    change(writer, folder, "steps", others, revision="abcdef0")
    found = rows(writer.sections(folder)["engine"])
    assert found["a step, `graph`"] == [
        "3.49 ms: 2.68 times its convolutions alone, 12.8 times as fast as a plain loop (32 bits, TF32), "
        "14.2 with a PIL loader",
        *("1.8 ms, 1.4 times", "abcdef0"),
    ]
    assert found["a step, `compiled`"] == ["3.47 ms, 2.66 times its convolutions", "", "abcdef0"]


def test_starts_are_counted_from_birth(writer: ModuleType, folder: Path) -> None:
    def starts(*seconds: float) -> list[dict[str, float]]:
        return [{"imports and data, s": 2.0, "start, s": each - 2.0} for each in seconds]

    anew = {"warm": starts(4.04, 4.31, 4.2), "kernels compiled anew, byte code kept": starts(12.26)}
    change(writer, folder, "starts", anew, revision="abcdef0")
    found = rows(writer.sections(folder)["engine"])
    # What was measured at other times stays beside it, with its own revisions.
    assert found["start to the first step, kernels and Python's byte code kept"] == [
        *("4.0 to 4.3 s (4.8 to 5.8 s at other times)", "5 s", "abcdef0, 12e9d6d, 342f798"),
    ]
    assert found["the same with kernels to compile; on a machine just started"][0] == "12.3 s; 25.4 s"


def test_a_study_is_told_beside_the_forward_pass_and_plain_loops(writer: ModuleType, folder: Path) -> None:
    def row(what: str, images: int, tflops: float, slower: float | None = None) -> dict[str, Any]:
        return {"what": what, "images": images, "seconds": 12.34, "tflops": tflops, "times_slower": slower}

    found = [
        row("forward pass, large batch", 1000, 500.4),
        row("study: 3 rays of 41 points", 24000, 250.6),
        row("plain eager loop, fp32", 24000, 20.0, 12.52),
        row("plain eager loop, bf16", 24000, 60.0, 4.18),
    ]
    change(writer, folder, "rays", found, revision="abcdef0", device="a GPU")
    assert writer.sections(folder)["study-time"] == (
        "A study of 3 rays of 41 points through the 13-layer CNN's weights, with 24,000 images a point, takes 12.3 s: "
        "251 TFLOP/s. The forward pass alone, in batches of 1,000, has 500. Plain eager loops take 12.5 (fp32) and 4.2 "
        "(bf16) times as long. Measured on one a GPU at revision abcdef0."
    )


def test_seeds_take_the_time_of_the_first_to_be_evaluated(writer: ModuleType, folder: Path) -> None:
    def lines(end: float) -> list[dict[str, float]]:
        return [
            {"epoch": 3, "step": 1000, "seconds": 5.0, "edge_seconds": 0.4},
            {"epoch": 12, "step": 4000, "seconds": end, "edge_seconds": 0.7},
        ]

    runs = {"13": lines(20.3), "14": lines(20.6), "15": lines(20.9)}
    # 15.3 s of 9,000 steps; three times 0.3 s lie between epochs.
    assert writer.seeds_ms(runs) == pytest.approx((1.7, 1.6))
    change(writer, folder, "three seeds", runs)
    title = "`train --seeds 13,14,15`, epochs 3 to 12, a step of each with evaluations and checkpoints"
    assert rows(writer.sections(folder)["engine"])[title][0] == "1.70 ms"


def test_memory_is_read_as_engine_py_tells_it_now_and_did_before(writer: ModuleType, folder: Path) -> None:
    title = "memory that a run's tensors take, evaluation included"
    assert rows(writer.sections(folder)["engine"])[title][0] == "1.4 GiB"
    told = {"its tensors at most": 1536, "held by torch": 4000, "taken of the GPU, with its context": 5000}
    change(writer, folder, "engine", lambda engine: {**engine, "memory of one run, MiB": told})
    assert rows(writer.sections(folder)["engine"])[title][0] == "1.5 GiB"


def test_every_device_and_torch_is_named(writer: ModuleType, folder: Path) -> None:
    assert writer.sections(folder)["engine"].endswith("\nMeasured on one NVIDIA H200, torch 2.11.")
    change(writer, folder, "engine", lambda engine: engine, torch="2.12.1+cu130")
    assert writer.sections(folder)["engine"].endswith(
        "\nMeasured on one NVIDIA H200, torch 2.11 and one NVIDIA H200, torch 2.12."
    )


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"passed": 258}, "At abcdef0 258 of 258 passed."),
        ({"passed": 250, "skipped": 2}, "At abcdef0 250 of 252 passed; skipped: 2."),
        (
            {"passed": 250, "failed": 1, "failures": ["tests/a.py::test_a[x]"], "left": ["tests/a.py::test_b"]},
            "At abcdef0 250 of 252 passed; not run: 1; failed: `test_a[x]`.\nAt 12e9d6d 233 of 233 passed.",
        ),
    ],
)
def test_tests_are_told_with_those_before_where_not_all_passed(
    writer: ModuleType, folder: Path, counts: dict[str, Any], said: str
) -> None:
    nothing = {"passed": 0, "failed": 0, "skipped": 0, "failures": [], "left": []}
    change(writer, folder, "tests", {**nothing, **counts}, revision="abcdef0")
    change(writer, folder, "tests before", {**nothing, "passed": 233}, revision="12e9d6d")
    assert writer.sections(folder)["gpu-tests"] == said


@pytest.mark.parametrize(("value", "digits", "shown"), [(1.555, 2, "1.56"), (1.625, 2, "1.63"), (1.6206, 2, "1.62")])
def test_halves_go_up(writer: ModuleType, value: float, digits: int, shown: str) -> None:
    assert writer.rounded(value, digits) == shown


@pytest.mark.parametrize("script", ["confirm", "write_engine"])
def test_help_does_nothing(script: str) -> None:
    file = HOME / "benchmarks" / f"{script}.py"
    told = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith(f"usage: {script}.py")
    assert "written\n" not in told.stdout.partition("options:")[2]
