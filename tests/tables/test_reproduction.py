"""docs/reproduction.md says what results/ hold, and judges them as it says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from made_up import write_result

HOME = Path(__file__).parents[2]
MT, PI = "cifar10-cnn-mean-teacher-4k", "cifar10-cnn-pi-4k"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reproduction", HOME / "benchmarks" / "write_reproduction.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_as_old_as_the_results(writer: ModuleType) -> None:
    page = writer.PAGE.read_text("utf-8")
    assert writer.filled(page, writer.sections(writer.RESULTS)) == page, "run `python benchmarks/write_reproduction.py`"
    drawn = {f"{name}.svg" for name in writer.drawn(writer.RESULTS)}
    assert {path.name for path in writer.FIGURES.glob("*.svg")} == drawn


def test_figures_show_a_change_of_results(writer: ModuleType, tmp_path: Path) -> None:
    write_result(tmp_path, MT, 10, {180: {"teacher": 11.4}})
    before = writer.figures_part(tmp_path)
    assert f"figures/{MT}.svg" in before
    (tmp_path / "demo.json").write_text("{}")
    assert writer.figures_part(tmp_path) == before
    write_result(tmp_path, MT, 11, {30: {"teacher": 15.0}})
    assert writer.figures_part(tmp_path) != before
    assert writer.drawn(tmp_path) == ["schedule", MT, "cifar10-cnn"]


def test_cells_are_counted_by_how_they_compare(writer: ModuleType, tmp_path: Path) -> None:
    """EMA 11.41 ± 0.27 agrees; fast-SWA(180) 10.67 ± 0.18 is two points off; SWA(240) 10.95 is beaten by two."""
    write_result(tmp_path, MT, 10, {180: {"teacher": 11.4, "fast_swa": 12.7}, 240: {"swa": 8.9}})
    results = writer.load_results(tmp_path)
    rows = writer.verdict_part(results).splitlines()
    assert rows[2] == "| cifar10-cnn | 3 | 1 | 1 | 1 | 0 | 86 |"
    assert rows[3].startswith("| cifar10-shake-short | 0 | 0 |")
    part = writer.measured_part("cifar10-cnn", writer.lines("cifar10-cnn", results))
    assert "| **4k** | **MT + fast-SWA (180)** | **10.67 ± 0.18** | **12.70 (1)** |" in part
    assert part.endswith("97 more cells of this table are not measured.")


@pytest.mark.parametrize(
    ("student", "swa", "fast", "verdict"),
    [
        (12.0, 11.0, 10.5, "in the paper's order"),
        (12.0, 10.5, 10.5, "both averages better than the student, and equal"),
        (12.0, 10.0, 10.5, "**not** in the paper's order"),
        (10.0, 11.0, 10.5, "**not** in the paper's order"),
    ],
)
def test_the_order_is_judged(
    writer: ModuleType, tmp_path: Path, student: float, swa: float, fast: float, verdict: str
) -> None:
    for seed, shift in ((10, -0.25), (11, 0.25)):
        errors = {180: {"student": student + shift}, 240: {"swa": swa + shift, "fast_swa": fast + shift}}
        write_result(tmp_path, PI, seed, errors)
    text = writer.order_part(writer.load_results(tmp_path))
    assert text == (
        f"- Pi model, 4,000 labels: student (180) {student:.2f}, SWA (240) {swa:.2f}, "
        f"fast-SWA (240) {fast:.2f}: {verdict}."
    )


def test_a_missing_part_of_the_page_is_named(writer: ModuleType) -> None:
    with pytest.raises(SystemExit, match="0 parts named soa"):
        writer.filled("no marks", {"soa": "table"})
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb"
    assert writer.filled(page, {"x": r"new \1"}) == "a\n<!-- begin x -->\nnew \\1\n<!-- end x -->\nb"


@pytest.mark.parametrize("script", ["make_recipes", "write_reproduction", "write_frontier"])
def test_a_writer_that_is_asked_for_help_writes_nothing(script: str) -> None:
    file = HOME / "benchmarks" / f"{script}.py"
    told = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith(f"usage: {script}.py")
    assert "written\n" not in told.stdout.partition("options:")[2]
