"""The rule of section A.7: formula, simulation, and a run's own rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from conftest import Command
from fastswa.analysis.averaging import along, expected, rates_of, simulated, threshold
from fastswa.layers import build_config, recipe_layer
from fastswa.schedule import cyclic_cosine


def test_the_threshold_is_where_the_errors_are_equal() -> None:
    n, low, high = 5, 0.01, 0.04
    enough = threshold(n, low, high)
    assert enough == pytest.approx(5 * (4 - 2))
    alone = expected(n, low, np.array(0.0), high)
    assert alone == pytest.approx(low / n)
    assert expected(n, low, np.array(enough), high) == pytest.approx(alone)
    assert expected(n, low, np.array(enough - 1), high) > alone > expected(n, low, np.array(enough + 1), high)
    # At most twice the rate: any number of them helps.
    assert threshold(n, low, 2 * low) == 0
    assert expected(n, low, np.array(1.0), 2 * low) < alone


@pytest.mark.parametrize("m", [0, 4, 30])
def test_drawn_iterates_agree_with_the_formula(m: int) -> None:
    """4,000 repeats in 50 dimensions: a standard error below 1%."""
    drawn = simulated(3, 0.01, m, 0.05, repeats=4000, seed=7)
    assert drawn == pytest.approx(float(expected(3, 0.01, np.array(float(m)), 0.05)), rel=0.04)


def test_the_papers_schedule() -> None:
    """Short: SWA averages at the rate of epoch 180, fast-SWA nine times more in each cycle of 30 epochs."""
    config = build_config(recipe_layer("cifar10-cnn-mean-teacher-4k"))
    low, high, per_cycle = rates_of(config, Path("run"))
    assert per_cycle == 9
    assert low == pytest.approx(0.1 * 0.5 * (1 + np.cos(np.pi * 180 / 210)))
    inside = [cyclic_cosine(180 + 3 * k - 1e-9, length=180, period=210, cycle=30) for k in range(1, 10)]
    assert high == pytest.approx(0.1 * float(np.mean(inside)))
    epochs, fast, swa = along(config)
    assert epochs[:3].tolist() == [150, 153, 156]
    assert np.isnan(swa[0])
    assert swa[10] == pytest.approx(low)
    assert fast[0] == pytest.approx(0.1 * 0.5 * (1 + np.cos(np.pi * 150 / 210)))
    assert (np.diff(fast) < 0).all()


def test_a_constant_rate_is_the_one_kept_and_swa_the_runs_own() -> None:
    """fast-SWA every 3 epochs from 180 on, SWA every 6: both at the constant rate but for their first iterate."""
    constant = {"schedule": {"after": "constant", "constant_lr": 0.05, "epochs": 192}}
    averages = {
        "averaging": {
            "swa": {"kind": "swa", "start": 180, "every": 6},
            "fast_swa": {"kind": "fast-swa", "start": 180, "every": 3},
        }
    }
    config = build_config(recipe_layer("cifar10-cnn-mean-teacher-4k"), constant, averages)
    assert rates_of(config, Path("run")) == (0.05, 0.05, 1.0)
    epochs, fast, swa = along(config)
    assert epochs.tolist() == [180, 183, 186, 189, 192]
    first = 0.1 * 0.5 * (1 + np.cos(np.pi * 180 / 210))
    assert swa == pytest.approx([first, first, (first + 0.05) / 4, (first + 0.05) / 4, (first + 0.1) / 9])
    assert fast[1:3] == pytest.approx([(first + 0.05) / 4, (first + 0.1) / 9])


def test_the_command(finished: Path, tmp_path: Path, command: Command) -> None:
    answer = command("analyze", "averaging", finished, "--draws", 5, "--out", tmp_path)
    assert answer.code == 0, answer.err
    [data] = json.loads((tmp_path / "averaging.json").read_text())
    np.testing.assert_allclose(data["simulated"], data["formula"], rtol=0.15)
    assert data["per_cycle"] == 1
