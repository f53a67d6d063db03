"""Gradients along training: moments against numpy, a run's against a plain backward pass, and the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Command
from fastswa.analysis.gradients import LOSS, Moments, gradients, measure, method_batches, recorded
from fastswa.analysis.study import Request
from fastswa.analysis.subject import Subject
from fastswa.config import to_dict
from fastswa.training.identity import fingerprint
from tiny_runs import StoppingWatcher, assert_same_run, go_on, tiny, train


def test_moments_are_those_of_numpy() -> None:
    vectors = np.random.default_rng(0).normal(3.0, 2.0, (50, 7))
    moments = Moments()
    for vector in vectors:
        moments.add(torch.from_numpy(vector))
    figures = moments.figures()
    assert figures["trace"] == pytest.approx(np.trace(np.cov(vectors.T)), rel=1e-12)
    assert figures["mean_norm"] == pytest.approx(np.linalg.norm(vectors.mean(axis=0)), rel=1e-12)
    assert figures["step_norm"] == pytest.approx(np.sqrt((vectors**2).sum(axis=1).mean()), rel=1e-12)


def test_a_small_spread_around_a_large_mean_keeps_its_digits() -> None:
    """E||g||² - ||E g||² in 32 bits would leave nothing of it."""
    vectors = 1e3 + np.random.default_rng(1).normal(0.0, 1e-2, (20, 100))
    moments = Moments()
    for vector in vectors:
        moments.add(torch.from_numpy(vector).float())
    assert moments.figures()["trace"] == pytest.approx(100 * 1e-4, rel=0.05)


def test_the_terms_of_a_run_are_those_of_a_plain_backward_pass(finished: Path) -> None:
    subject = Subject(finished, "cpu")
    state = subject.state(2)
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    found = measure(state, subject.config, subject.material, subject.compute, batches=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
    assert found.keys() == {"classification", "consistency", "tie", LOSS}

    sums, squares = {}, {}
    for batch in method_batches(state, subject.config, subject.material, 3, "analysis"):
        for term in ("classification", "consistency", LOSS):
            losses = state.method.losses(batch, state.student, state.method.target(batch, state.teacher))
            state.student.zero_grad()
            (losses[term] if term != LOSS else sum(losses.values())).backward()
            flat = torch.cat(
                [
                    torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                    for p in state.student.parameters()
                ]
            ).double()
            sums[term] = sums.get(term, 0) + flat
            squares[term] = squares.get(term, 0) + flat.square().sum()
    for term, total in sums.items():
        spread = (squares[term] - total.square().sum() / 3) / 2
        assert found[term]["mean_norm"] == pytest.approx(float(total.norm() / 3), rel=1e-4)
        assert found[term]["trace"] == pytest.approx(float(spread), rel=1e-3)
        assert found[term]["step_norm"] == pytest.approx(float((squares[term] / 3).sqrt()), rel=1e-4)


def test_batches_are_labelled_images_first_with_the_runs_weight(finished: Path) -> None:
    subject = Subject(finished, "cpu")
    state = subject.state(2)
    batches = list(method_batches(state, subject.config, subject.material, 5, "analysis"))
    assert len(batches) == 5
    assert all(len(batch.labels) == 25 and bool((batch.labels >= 0).all()) for batch in batches)
    assert float(batches[0].weight) == pytest.approx(state.method.weight(2.0))
    assert not torch.equal(batches[0].view("student"), batches[0].view("teacher"))


def test_recording_changes_nothing_of_a_run_and_survives_a_resume(finished: Path, tmp_path: Path) -> None:
    watched = tiny({"checkpoint": {"keep": [1, 2]}, "analysis": {"gradients": 1, "batches": 2}})
    assert fingerprint(to_dict(watched)) == fingerprint(to_dict(tiny({"checkpoint": {"keep": [1, 2]}})))
    train(watched, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", finished)
    train(watched, tmp_path / "halves", StoppingWatcher(stop=8))
    go_on(tmp_path / "halves")
    lines = (tmp_path / "whole" / "gradients.jsonl").read_text()
    assert [json.loads(line)["epoch"] for line in lines.splitlines()] == [1, 2, 3, 4]
    assert (tmp_path / "halves" / "gradients.jsonl").read_text() == lines
    # What was recorded is what the checkpoint gives afterwards.
    whole = recorded(tmp_path / "whole")
    afterwards = gradients(Request((tmp_path / "whole",), "cpu", epochs=(2.0,), batches=2))[0]
    assert whole is not None
    assert afterwards.trace[LOSS][0] == pytest.approx(whole.trace[LOSS][1], rel=1e-5)
    # Another number of batches than the record's is computed, at the epochs whose whole state is kept.
    [other] = gradients(Request((tmp_path / "whole",), "cpu", batches=3))
    assert other.trace[LOSS][1] != pytest.approx(whole.trace[LOSS][1], rel=1e-5)


def test_the_command_writes_data_and_figure(finished: Path, tmp_path: Path, command: Command) -> None:
    answer = command("analyze", "gradients", finished, "--batches", 2, "--device", "cpu", "--out", tmp_path / "a")
    assert answer.code == 0, answer.err
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == [
        f"gradients.{kind}" for kind in ("csv", "json", "png", "svg")
    ]
    [data] = json.loads((tmp_path / "a" / "gradients.json").read_text())
    assert data["epochs"] == [1, 2, 3, 4]
    header, *lines = (tmp_path / "a" / "gradients.csv").read_text().splitlines()
    assert header == "run,epoch,term,step_norm,mean_norm,trace"
    assert len(lines) == 4 * 4
