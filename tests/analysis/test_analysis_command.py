"""`fastswa analyze`: what is wrong with a request, in one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Command
from tiny_runs import tiny, train


def refused(command: Command, *words: object) -> str:
    answer = command("analyze", *words)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    return answer.err


def test_wrong_requests(command: Command, finished: Path, tmp_path: Path) -> None:
    assert "name a study and a run" in refused(command)
    assert "did you mean gradients?" in refused(command, "gradient", finished)
    assert "name the run folder" in refused(command, "gradients")
    assert "holds no run" in refused(command, "gradients", tmp_path / "nowhere")
    assert "named twice" in refused(command, "gradients", finished, finished)
    assert "keeps no checkpoint of epoch 7" in refused(command, "gradients", finished, "--epochs", "7")
    assert "list of numbers" in refused(command, "gradients", finished, "--epochs", "two")
    assert "two batches" in refused(command, "gradients", finished, "--batches", "1")


@pytest.fixture(scope="session")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another architecture."""
    out = tmp_path_factory.mktemp("wider") / "run"
    train(tiny({"model": {"width": 5}, "schedule": {"epochs": 1}}), out)
    return out


def test_runs_of_different_architectures_are_refused(command: Command, finished: Path, wider: Path) -> None:
    assert "different architectures" in refused(command, "gradients", finished, wider, "--device", "cpu")
