"""Pairs: two hand-made classifiers, and a tiny run against a plain loop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from conftest import Command
from fastswa.analysis.pairs import choose_pairs, correlation, diversity, draw, error_of, gain_of_ensembling, pairs
from fastswa.analysis.study import Request
from fastswa.analysis.subject import Subject
from fastswa.analysis.surface import Surface

# Five images of two classes. The first is wrong on images 1 and 2, the second on 2, 3 and 4; they disagree on 1, 3, 4.
LABELS = torch.tensor([0, 0, 0, 1, 1])
FIRST = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.2, 0.8], [0.45, 0.55]])
SECOND = torch.tensor([[0.8, 0.2], [0.7, 0.3], [0.3, 0.7], [0.6, 0.4], [0.9, 0.1]])


def test_two_hand_made_classifiers() -> None:
    assert error_of(FIRST, LABELS) == pytest.approx(40)
    assert error_of(SECOND, LABELS) == pytest.approx(60)
    assert diversity(FIRST, SECOND) == pytest.approx(60)
    # Means: .85 .55 .20 .40 .675 for class 0, so that images 2 and 4 are wrong.
    assert gain_of_ensembling(FIRST, SECOND, LABELS) == pytest.approx(50 - 40)
    assert gain_of_ensembling(FIRST, FIRST, LABELS) == 0
    assert diversity(FIRST, FIRST) == 0


def test_pairs_are_all_of_them_or_some_without_repetition() -> None:
    assert choose_pairs(3, 100, 0) == [(0, 1), (0, 2), (1, 2)]
    some = choose_pairs(51, 100, 0)
    assert len(set(some)) == 100
    assert some == sorted(some)
    assert all(a < b < 51 for a, b in some)
    assert some == choose_pairs(51, 100, 0) != choose_pairs(51, 100, 1)


def test_correlation_is_none_where_nothing_varies() -> None:
    assert correlation(np.arange(5.0), -2 * np.arange(5.0)) == pytest.approx(-1)
    assert np.isnan(correlation(np.arange(5.0), np.ones(5)))
    assert np.isnan(correlation(np.arange(2.0), np.arange(2.0)))


def test_a_runs_pairs_are_those_of_a_plain_loop(finished: Path) -> None:
    [found] = pairs(Request((finished,), "cpu"))
    # From the end of the first descent (epoch 2) on.
    assert found.epochs.tolist() == [2, 3, 4]
    assert list(zip(found.first, found.second, strict=True)) == [(2, 3), (2, 4), (3, 4)]
    subject = Subject(finished, "cpu")
    surface = Surface(subject)
    w = {epoch: subject.iterate(epoch) for epoch in (2, 3, 4)}
    errors = {epoch: surface.at(w[epoch])[2] for epoch in w}
    np.testing.assert_allclose(found.error, list(errors.values()))
    for number, (a, b) in enumerate(((2, 3), (2, 4), (3, 4))):
        assert found.distance[number] == pytest.approx(float((w[a] - w[b]).norm()), rel=1e-6)
        average = surface.at((w[a] + w[b]) / 2)[2]
        assert found.c_avg[number] == pytest.approx((errors[a] + errors[b]) / 2 - average)
        answers = [surface.probabilities(w[epoch]).argmax(dim=1) for epoch in (a, b)]
        assert found.diversity[number] == pytest.approx(100 * float((answers[0] != answers[1]).double().mean()))
    assert found.average_error[0] == found.ensemble_error[0] == found.error[0]
    assert found.average_error[1] == pytest.approx((errors[2] + errors[3]) / 2 - found.c_avg[0])
    assert found.ensemble_error[1] == pytest.approx((errors[2] + errors[3]) / 2 - found.c_ens[0])
    assert found.average_error[2] == pytest.approx(surface.at((w[2] + w[3] + w[4]) / 3)[2], abs=0.3)


def test_one_pair_a_run_is_drawn_as_bars_with_their_numbers(finished: Path) -> None:
    [found] = pairs(Request((finished,), "cpu", epochs=(2.0, 4.0)))
    drawn = draw([found])
    assert [panel.get_ylabel() for panel in drawn.axes] == ["distance of the weights", "diversity (%)", "gain (%)"]
    assert not any(panel.get_legend() for panel in drawn.axes)
    heights = [[bar.get_height() for bar in panel.patches] for panel in drawn.axes]
    assert heights == [list(found.distance), list(found.diversity), [found.c_ens[0], found.c_avg[0]]]
    assert [text.get_text() for text in drawn.axes[2].texts] == [
        f"$C_{{ens}}$\n{found.c_ens[0]:.3g}",
        f"$C_{{avg}}$\n{found.c_avg[0]:.3g}",
    ]
    assert drawn.axes[1].get_title() == "epochs 2 and 4"
    pyplot.close(drawn)


def test_the_command(finished: Path, tmp_path: Path, command: Command) -> None:
    answer = command("analyze", "pairs", finished, "--device", "cpu", "--pairs", 2, "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "2 pairs of 3 iterates" in answer.out
    [data] = json.loads((tmp_path / "pairs.json").read_text())
    assert data["correlation"]["distance/c_avg"] is None
    assert len(data["c_ens"]) == 2
    assert (tmp_path / "pairs.png").stat().st_size > 10_000
    alone = command("analyze", "pairs", finished, "--device", "cpu", "--epochs", "4")
    assert (alone.code, alone.err.count("\n")) == (2, 1)
    assert "2 iterates are needed" in alone.err
