"""Averaging over mirror images: its values, and that only those who ask for it get it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import Command
from fastswa.flips import FlipAveraged
from fastswa.modelfile import load_model
from fastswa.models import build
from fastswa.training.finished import evaluate_run


def test_the_mean_is_of_probabilities() -> None:
    network = build("small", channels=1, classes=5, width=4).eval()
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = FlipAveraged(network)(x)
        probabilities = (network(x).logits.softmax(dim=1) + network(x.flip(3)).logits.softmax(dim=1)) / 2
    assert torch.allclose(output.logits.exp(), probabilities, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(FlipAveraged(network)(x.flip(3)).logits, output.logits, atol=1e-6)


def test_evaluate_gives_them_beside_the_others_when_asked(finished: Path, command: Command) -> None:
    plain, both = evaluate_run(finished, "cpu")["test"], evaluate_run(finished, "cpu", flips=True)["test"]
    assert {name: both[name] for name in plain} == plain
    assert both.keys() - plain.keys() == {f"{name}+flips" for name in plain}
    assert both["student+flips"] != both["student"]
    answer = command("evaluate", finished, "--device", "cpu", "--flips")
    assert answer.code == 0
    assert "student+flips" in answer.out
    assert "fast-SWA+flips" in answer.out
    assert "flips" not in command("evaluate", finished, "--device", "cpu").out


def test_the_figures_are_those_of_averaged_predictions(finished: Path) -> None:
    from tiny_runs import make_trainer, tiny

    evaluator = make_trainer(tiny(), finished / "nowhere").material.evaluators["test"]
    network = load_model(finished / "models" / "student.safetensors").network.eval()
    with torch.no_grad():
        images = evaluator.augment.plain(evaluator.pixels)
        mean = network(images).logits.softmax(dim=1) + network(images.flip(3)).logits.softmax(dim=1)
    expected = 100 * (mean.argmax(dim=1) != evaluator.labels).double().mean().item()
    found = evaluate_run(finished, "cpu", flips=True)["test"]["student+flips"]["error"]
    assert found == pytest.approx(expected, abs=0.2)
