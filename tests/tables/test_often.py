"""Averaging more often: one run's averages side by side, and the same run in the paper's own cells."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import write_result

from fastswa.tables.figures import figure
from fastswa.tables.measured import by_row, load_results
from fastswa.tables.often import ROW, frequencies
from fastswa.tables.render import FORMATS, rendered
from fastswa.tables.table import lines, table

MT = "cifar10-cnn-mean-teacher-4k"
NETWORKS = ("fast_swa", "every_epoch", "every_quarter", "every_step")


def write_runs(folder: Path) -> None:
    """Two seeds, every average a tenth of a point better than the one before it, and in the second seed two tenths."""
    averaged = {180: dict(zip(NETWORKS, (11, 31, 121, 27601), strict=True))}
    for seed, gain in ((10, 0.1), (11, 0.2)):
        errors = {name: 10.0 + seed - gain * place for place, name in enumerate(NETWORKS)}
        write_result(folder, ROW, seed, {180: errors | {"teacher": 11.5}, 240: errors}, averaged=averaged)


def test_what_is_compared() -> None:
    assert {title: average.every for title, average in frequencies().items()} == {
        "every 3 epochs": 3,
        "every epoch": 1,
        "4 times an epoch": 0.25,
        "every step": 0,
    }


def test_the_averages_of_the_same_runs_side_by_side(tmp_path: Path) -> None:
    write_runs(tmp_path)
    write_result(tmp_path, MT, 12, {180: {"fast_swa": 5.0}})  # an ordinary run has nothing to compare
    sheet = table("averaging-often", tmp_path)
    assert sheet.rows[:4] == [
        ("180", "every 3 epochs", "11", "20.50 ± 0.71 (2)", ""),
        ("180", "every epoch", "31", "20.35 ± 0.64 (2)", "-0.15"),
        ("180", "4 times an epoch", "121", "20.20 ± 0.57 (2)", "-0.30"),
        ("180", "every step", "27601", "20.05 ± 0.49 (2)", "-0.45"),
    ]
    assert [row[3] for row in sheet.rows[4:8]] == ["not measured"] * 4  # epoch 210
    assert sheet.records[9]["difference"] == pytest.approx(-0.15)
    assert sheet.marks[:5] == ["plain"] * 4 + ["dim"]
    for form in FORMATS:
        assert "every" in rendered(sheet, form)


def test_such_a_run_counts_in_the_papers_cells_too(tmp_path: Path) -> None:
    write_runs(tmp_path)
    assert list(by_row(load_results(tmp_path))) == [MT, ROW]
    ours = {line.title: line.ours.errors for line in lines("cifar10-cnn", load_results(tmp_path)) if line.ours}
    assert ours["MT + fast-SWA (240)"] == {10: 20.0, 11: 21.0}
    assert ours["MT (180), EMA"] == {10: 11.5, 11: 11.5}


def test_its_figure_draws_the_averages(tmp_path: Path) -> None:
    write_runs(tmp_path)
    svg, _ = figure(ROW, tmp_path, tmp_path / "out")
    text = svg.read_text("utf-8")
    for title in frequencies():
        assert f"<!-- {title} -->" in text
