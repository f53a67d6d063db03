"""The demo: its figures from made-up runs, its table and picture, and one tiny run from end to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import Command
from fastswa import demo
from fastswa.errors import RequestError
from tiny_runs import TINY, metrics

SETTINGS = {name: table for name, table in TINY.items() if name != "method"}


def line(epoch: int, **errors: float) -> dict[str, Any]:
    return {"epoch": epoch, "error": errors}


def made_up() -> dict[str, list[list[dict[str, Any]]]]:
    """Two seeds of each method; the last line counts."""
    supervised = [[line(1, student=50.0), line(2, student=e + 1, swa=e, fast_swa=e)] for e in (8.0, 12.0)]
    pi = [[line(1, student=40.0), line(2, student=e, swa=e, fast_swa=e + 2)] for e in (5.0, 7.0)]
    teacher = [
        [line(1, student=30.0, teacher=35.0), line(2, student=e + 3, teacher=e + 1, swa=e, fast_swa=e)]
        for e in (4.0, 6.0)
    ]
    return {"supervised": supervised, "Pi model": pi, "Mean Teacher": teacher}


def test_the_summary_holds_the_last_errors_by_seed() -> None:
    summary = demo.summarise(made_up())
    assert summary["seeds"] == 2
    assert summary["error"] == {
        "supervised": {"student": [9.0, 13.0], "swa": [8.0, 12.0], "fast_swa": [8.0, 12.0]},
        "Pi model": {"student": [5.0, 7.0], "swa": [5.0, 7.0], "fast_swa": [7.0, 9.0]},
        "Mean Teacher": {"student": [7.0, 9.0], "teacher": [5.0, 7.0], "swa": [4.0, 6.0], "fast_swa": [4.0, 6.0]},
    }


def test_both_claims_come_with_paired_intervals() -> None:
    """4 and 6 against 8 and 12 is half the errors in every resample; gains that never vary have no width."""
    summary = demo.summarise(made_up())
    assert summary["fewer_errors_percent"] == {"mean": 50.0, "low": 50.0, "high": 50.0}
    gains = {name: gain["mean"] for name, gain in summary["fast_swa_gain_points"].items()}
    assert gains == {"supervised": 1.0, "Pi model": -2.0, "Mean Teacher": 3.0}
    assert all(gain["low"] == gain["mean"] == gain["high"] for gain in summary["fast_swa_gain_points"].values())


def test_the_interval_is_that_of_a_mean() -> None:
    """Against the normal approximation, for ten differences."""
    differences = np.random.default_rng(1).normal(2.0, 1.0, 40)
    interval = demo._paired_interval(differences)
    half = 1.96 * differences.std() / np.sqrt(40)
    assert interval["mean"] == pytest.approx(differences.mean())
    assert interval["low"] == pytest.approx(differences.mean() - half, abs=0.1 * half)
    assert interval["high"] == pytest.approx(differences.mean() + half, abs=0.1 * half)
    ratio = demo._reduction(np.array([3.0, 5.0]), np.array([10.0, 10.0]))
    assert ratio == {"mean": 60.0, "low": 50.0, "high": 70.0}


def in_this_process(jobs: Sequence[demo.Job], workers: int, title: str) -> list[list[dict[str, Any]]]:
    return [demo.train_job(demo.Job(job.recipe, job.seed, job.out, SETTINGS)) for job in jobs]


def test_a_tiny_demo_from_end_to_end(monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "train_side_by_side", in_this_process)
    out, record = tmp_path / "demo", tmp_path / "record.json"
    answer = command("demo", "--seeds", "2", "--out", out, "--record", record)
    assert answer.code == 0
    assert answer.err == "fastswa: training 6 runs on the embedded digits, 2 at a time; a minute or two.\n"
    recorded = json.loads(record.read_text())
    assert recorded["command"] == "fastswa demo --seeds 2"
    assert recorded["configs"].keys() == set(demo.RECIPES.values())
    assert recorded["seeds"] == 2
    rows = [[cell.strip() for cell in row.split("│")][1:-1] for row in answer.out.splitlines() if "│" in row]
    assert [row[0] for row in rows] == ["supervised", "Pi model", "Mean Teacher"]
    assert [row[2] != "–" for row in rows] == [False, False, True]
    for row, (method, recipe) in zip(rows, demo.RECIPES.items(), strict=True):
        lasts = [metrics(out / recipe / f"seed-{seed}")[-1]["error"] for seed in (1, 2)]
        assert recorded["error"][method]["fast_swa"] == [last["fast_swa"] for last in lasts]
        mean = np.mean([last["fast_swa"] for last in lasts])
        deviation = np.std([last["fast_swa"] for last in lasts], ddof=1)
        assert row[-1] == f"{mean:.2f} ± {deviation:.2f}"
    with Image.open(out / "demo.png") as picture:
        assert picture.size == (1560, 468)
    reduction = recorded["fewer_errors_percent"]["mean"]
    assert f"Mean Teacher + fast-SWA makes {reduction:.0f}% fewer errors than supervised training" in answer.out


def test_the_demo_answers_in_json(monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path) -> None:
    results = [run for several in made_up().values() for run in several]
    monkeypatch.setattr(demo, "train_side_by_side", lambda jobs, workers, title: results)
    found = json.loads(command("demo", "--seeds", "2", "--out", tmp_path / "demo", "--json").out)
    assert found["error"] == demo.summarise(made_up())["error"]


def test_runs_side_by_side_keep_their_order_and_their_numbers(tmp_path: Path) -> None:
    """Two processes give what one run at a time gives."""
    short = {**TINY, "schedule": {**TINY["schedule"], "epochs": 1}}
    jobs = [demo.Job("digits-pi", seed, tmp_path / f"seed-{seed}", short) for seed in (2, 1)]
    results = demo.train_side_by_side(jobs, 2, "training")
    for job, lines in zip(jobs, results, strict=True):
        alone = demo.train_job(demo.Job(job.recipe, job.seed, tmp_path / f"alone-{job.seed}", short))
        untimed = {"seconds": 0, "edge_seconds": 0}
        assert [entry | untimed for entry in lines] == [entry | untimed for entry in alone]


def test_a_folder_that_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"is already there; choose another --out\.$"):
        demo.run_demo(tmp_path, seeds=1, workers=1, record=None, as_json=False)
