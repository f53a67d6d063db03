"""`fastswa analyze`: what is wrong with a request, in one sentence each."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import Command
from fastswa.analysis.subject import Subject
from fastswa.analysis.surface import Surface, refuse_noise
from fastswa.data.sources.digits import load_digits
from fastswa.errors import RequestError
from fastswa.models.network import Output
from fastswa.noise import Noise
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
    assert "keeps nothing of epoch 7" in refused(command, "gradients", finished, "--epochs", "7")
    assert "list of numbers" in refused(command, "gradients", finished, "--epochs", "two")
    assert "two batches" in refused(command, "gradients", finished, "--batches", "1")


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_computed(
    command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object) -> None:
        raise AssertionError("a study was begun")

    monkeypatch.setattr(Subject, "__init__", never)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert refused(command, "pairs", finished, "--out", out) == (
            f"fastswa: cannot write into {out}: {tmp_path / 'file'} is no folder.\n"
        )
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "may not be written to" in refused(command, "pairs", finished, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="session")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another architecture."""
    out = tmp_path_factory.mktemp("wider") / "run"
    train(tiny({"model": {"width": 5}, "schedule": {"epochs": 1}}), out)
    return out


def test_runs_of_different_architectures_are_refused(command: Command, finished: Path, wider: Path) -> None:
    assert "different architectures" in refused(command, "gradients", finished, wider, "--device", "cpu")


def test_runs_of_different_classes_are_refused(command: Command, finished: Path, tmp_path: Path) -> None:
    """Nine digits instead of ten, of the same architecture."""
    digits = load_digits()
    kept = digits.train.labels < 9
    np.savez(tmp_path / "nine.npz", x_train=digits.train.pixels[kept, 0], y_train=digits.train.labels[kept])
    config = tiny({"data": {"source": str(tmp_path / "nine.npz")}, "schedule": {"epochs": 1}})
    train(config, tmp_path / "nine")
    assert "tell different classes apart" in refused(command, "gradients", finished, tmp_path / "nine")
    named = {
        "x_train": digits.train.pixels[:, 0],
        "y_train": digits.train.labels,
        "classes": np.array(list("abcdefghij")),
    }
    np.savez(tmp_path / "ten.npz", **named)
    train(tiny({"data": {"source": str(tmp_path / "ten.npz")}, "schedule": {"epochs": 1}}), tmp_path / "ten")
    assert "tell different classes apart" in refused(command, "gradients", finished, tmp_path / "ten")


def test_a_run_with_one_iterate_is_refused(command: Command, wider: Path, tmp_path: Path) -> None:
    shutil.copytree(wider, tmp_path / "none", ignore=shutil.ignore_patterns("step-*"))
    assert "an iterate is needed, and none are there" in refused(command, "jacobian", tmp_path / "none")
    for study in ("rays", "pairs", "landscape"):
        assert "2 iterates are needed, and one is there" in refused(command, study, wider, "--device", "cpu")


class Forgetful(nn.Module):
    """Drops features whatever mode it is in."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        output: Output = self.network(F.dropout(x, 0.5, training=True), noise)
        return output


def test_a_network_with_dropout_left_on_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(finished, "cpu")
    network = subject.network()
    refuse_noise(network, torch.randn(4, 1, 8, 8), "it")
    dropping = nn.Sequential(network, nn.Dropout2d(0.3))
    with pytest.raises(RequestError, match=r"it has its dropout left on \(1\)"):
        refuse_noise(dropping, torch.randn(4, 1, 8, 8), "it")
    monkeypatch.setattr(Subject, "network", lambda subject: Forgetful(network))
    with pytest.raises(RequestError, match="says two things of the same images in evaluation mode: dropout"):
        Surface(subject)


def test_what_was_written_before_is_drawn_together(
    command: Command, finished: Path, wider: Path, tmp_path: Path
) -> None:
    words = ("--device", "cpu", "--batches", 2, "--epochs", 1, "--out")
    renamed = shutil.copytree(wider, tmp_path / "wider")
    assert command("analyze", "gradients", finished, *words, tmp_path / "a").code == 0
    assert command("analyze", "gradients", renamed, *words, tmp_path / "b").code == 0
    files = [tmp_path / name / "gradients.json" for name in "ab"]
    answer = command("analyze", "gradients", *files, "--out", tmp_path / "both")
    assert answer.code == 0, answer.err
    parts = [(file.parent / "gradients.csv").read_text().splitlines() for file in files]
    assert (tmp_path / "both" / "gradients.csv").read_text().splitlines() == [*parts[0], *parts[1][1:]]
    assert "two runs that are called run" in refused(command, "gradients", files[0], files[0])
    assert "holds no results of this study" in refused(command, "pairs", files[0])
    assert "drawn as they are" in refused(command, "gradients", files[0], finished)
    assert "drawn as they are" in refused(command, "gradients", files[0], "--batches", 3)
    assert "cannot read" in refused(command, "gradients", tmp_path / "none.json")
