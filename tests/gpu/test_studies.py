"""Every study on a GPU: what is replayed at a point says what the CPU says, and all that is asked for is made.

Run on a machine with a GPU: `pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Command
from fastswa.analysis.asked import asked_in
from fastswa.analysis.gradients import recorded
from fastswa.analysis.subject import Subject
from fastswa.analysis.surface import Surface
from fastswa.layers import build_config, merge, recipe_layer
from fastswa.training.run import train_new
from tiny_runs import StoppingWatcher

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]

SETTINGS: dict[str, Any] = {
    "seed": 3,
    "split": {"labels": 40},
    "batch": {"size": 20, "labelled": 10, "steps": 3},
    "schedule": {"epochs": 6, "length": 2, "period": 4, "cycle": 2},
    "averaging": {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa", "every": 1}},
    "evaluation": {"every": 1, "refresh": 12},
    "checkpoint": {"every": 1, "keep": [2], "keep_every": 1, "keep_from": 2},
    "analysis": {"gradients": 3, "batches": 4},
    "device": {"name": DEVICE, "precision": "fp32"},
}
# As benchmarks/analyses.py asks for them, but small.
STUDIES = (
    "gradients",
    "gradients --batches 3 --epochs 6",
    "rays --epochs 4,6 --distance 3 --points 5 --rays 1",
    "pairs --epochs 2,6",
    "pairs --pairs 4",
    "landscape --points 3",
    "jacobian --epochs 6 --images 2 --draws 2",
    "averaging",
    "teachers",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The 13-layer network taught in three ways on a few small images, gradients recorded on the way."""
    folder = tmp_path_factory.mktemp("studied")
    rng = np.random.default_rng(0)
    labels = np.arange(180) % 10
    pixels = (rng.integers(0, 128, (180, 12, 12, 3)) + 12 * labels[:, None, None, None]).astype(np.uint8)
    parts = {"x_train": pixels[:120], "y_train": labels[:120], "x_test": pixels[120:], "y_test": labels[120:]}
    np.savez(folder / "images.npz", **parts)
    data = {"data": {"source": str(folder / "images.npz")}}
    found = {}
    for name in ("supervised", "pi", "mean-teacher"):
        config = build_config(recipe_layer(f"cifar10-cnn-{name}-4k"), merge(SETTINGS, data))
        found[name] = folder / name
        train_new(config, found[name], StoppingWatcher(), lambda line: None)
    return found


@pytest.mark.parametrize("words", STUDIES)
def test_a_study_is_made_of_all_runs_together(runs: dict[str, Path], words: str, tmp_path: Path) -> None:
    [asked] = asked_in(words)
    result, files = asked.done([*runs.values()], DEVICE, tmp_path)
    assert [one.run for one in result] == [*runs]
    assert asked.study.told(result)
    assert {file.suffix for file in files} == {".json", ".csv", ".svg", ".png"}


@pytest.mark.parametrize("name", ["supervised", "pi"])
def test_a_point_is_what_it_is_on_the_cpu(runs: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics from several passes; the first look is not captured, later ones are replayed, others lie between."""
    monkeypatch.setattr("fastswa.analysis.surface._LARGE", 60)
    surface, plain = (Surface(Subject(runs[name], device)) for device in (DEVICE, "cpu"))
    here, there = surface.subject.iterate(6.0), surface.subject.iterate(2.0)
    expected = [plain.at(vector.cpu()) for vector in (here, there)]
    assert expected[0][3] != pytest.approx(expected[1][3], rel=0.02)
    for vector, figures in zip((here, there, here, there), (*expected, *expected), strict=True):
        train_error, train_loss, test_error, test_loss = surface.at(vector)
        assert (train_loss, test_loss) == pytest.approx((figures[1], figures[3]), rel=0.01)
        # One image that lies on the border may fall to either side.
        assert (train_error, test_error) == pytest.approx((figures[0], figures[2]), abs=2.6)
        assert torch.allclose(surface.probabilities(vector).cpu(), plain.probabilities(vector.cpu()), atol=5e-3)
    for images in ("train", "test"):
        slope, by_hand = surface.gradient(here, images).cpu(), plain.gradient(here.cpu(), images)
        assert float((slope - by_hand).norm() / by_hand.norm()) < 0.02


def test_gradients_recorded_beside_a_captured_step_are_those_of_the_kept_state(runs: dict[str, Path]) -> None:
    """Recorded by the network whose gradients are made on a second stream; computed anew by one without."""
    for name in ("pi", "mean-teacher"):
        kept = recorded(runs[name])
        assert kept is not None
        [asked] = asked_in("gradients --epochs 6 --batches 4")
        [anew] = asked.study.run(asked.request([runs[name]], DEVICE))
        for term, series in anew.step_norm.items():
            assert kept.step_norm[term][-1] == pytest.approx(series[-1], rel=0.02), (name, term)
            assert kept.trace[term][-1] == pytest.approx(anew.trace[term][-1], rel=0.05), (name, term)


def test_forks_of_a_study_of_schedules_are_trained_on_the_gpu(
    runs: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    words = ("--cycles", "1,2", "--constant", "1", "--until", "8", "--out", tmp_path, "--json")
    answer = command("analyze", "schedule", f"{runs['mean-teacher']}@6", *words)
    assert answer.code == 0, answer.err
    assert len(json.loads(answer.out)["result"]) == 3
