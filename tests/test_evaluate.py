"""Errors, likelihoods and modes, against classifiers whose answers are known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import Command
from fastswa.data.augment import Augment
from fastswa.errors import RequestError
from fastswa.evaluate import TOP5_FROM, Evaluator, evaluating
from fastswa.training.finished import evaluate_run
from tiny_runs import metrics, tiny, train


class Output(NamedTuple):
    logits: Tensor


class Lookup(nn.Module):
    """Reads an image's number from its first pixel and gives that row of a table as logits."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.table = torch.from_numpy(table).float()
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(2)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Output:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.sizes.append(len(x))
        return Output(self.table[x[:, 0, 0, 0].round().long()])


def evaluator(labels: list[int], classes: int, batch: int = 1000) -> Evaluator:
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 2, 2, 1).contiguous()
    plain = Augment(torch.ones(1), torch.zeros(1))
    return Evaluator(pixels, torch.tensor(labels), classes, plain, batch)


def test_error_is_the_share_of_wrong_answers_in_percent() -> None:
    answers = [0, 1, 2, 0, 1, 2, 0, 1]
    labels = [0, 1, 2, 0, 1, 1, 1, 1]
    model = Lookup(np.eye(3)[answers] * 4)
    assert evaluator(labels, 3)(model)["error"] == 25.0
    assert model.sizes == [8]


@pytest.mark.parametrize("batch", [1, 3, 7, 1000])
def test_figures_do_not_depend_on_the_batch(batch: int) -> None:
    rng = np.random.default_rng(0)
    table, labels = rng.normal(size=(10, 4)) * 3, rng.integers(0, 4, 10)
    figures = evaluator(labels.tolist(), 4, batch)(Lookup(table))
    likelihood = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    assert figures["nll"] == pytest.approx(-likelihood[np.arange(10), labels].mean(), rel=1e-6)
    assert figures["error"] == 100 * np.mean(table.argmax(axis=1) != labels)
    assert figures.keys() == {"error", "nll"}


def test_top5_counts_from_twenty_classes_on() -> None:
    """The label's logit is the k-th highest of image k: the first five are right in top 5, the first in top 1."""
    count = 10
    table = np.tile(-np.arange(TOP5_FROM, dtype=float), (count, 1))
    figures = evaluator(list(range(count)), TOP5_FROM)(Lookup(table))
    assert figures["error"] == 90.0
    assert figures["top5_error"] == 50.0
    assert "top5_error" not in evaluator(list(range(count)), TOP5_FROM - 1)(Lookup(table[:, :-1]))


def test_each_modules_own_mode_is_put_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1].eval()
    model[1][1].train()
    before = [module.training for module in model.modules()]
    assert before == [True, True, False, False, True]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == before
    with pytest.raises(ZeroDivisionError), evaluating(model):
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


def test_a_run_is_measured_as_it_was_while_it_trained(finished: Path) -> None:
    figures, last = evaluate_run(finished, "cpu")["test"], metrics(finished)[-1]
    assert figures.keys() == last["error"].keys()
    for name, values in figures.items():
        assert values["error"] == last["error"][name]
        assert values["nll"] == pytest.approx(last["nll"][name], rel=1e-5)


def test_validation_images_are_measured_apart(tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    train(tiny({"split": {"validation": 50}, "schedule": {"epochs": 1}}), run)
    figures = json.loads(command("evaluate", run, "--json").out)
    assert list(figures) == ["test", "validation"]
    last = metrics(run)[-1]
    for name, values in figures["validation"].items():
        assert values["error"] == last["validation_error"][name]


def test_images_of_a_run_that_lie_elsewhere_are_named(
    finished: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of one's own without a slash in its name is no misspelt data set."""
    shutil.copytree(finished, tmp_path / "run")
    settings = (tmp_path / "run" / "config.toml").read_text("utf-8")
    (tmp_path / "run" / "config.toml").write_text(settings.replace('"digits"', '"fotos"'), "utf-8")
    monkeypatch.chdir(tmp_path)
    answer = command("evaluate", "run")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        "fastswa: fotos: there is no such folder or file, neither here nor under data (data.root), nor a data source "
        "of that name (known: digits, cifar10, cifar100, stl10, mnist, usps, usps-margin); run the command where the "
        "path begins, or set data.root to that folder.\n"
    )


def test_a_garbled_model_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"schedule": {"epochs": 1}}), run)
    file = run / "models" / "student.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RequestError, match=r"student.safetensors is not a whole safetensors file\.$"):
        evaluate_run(run, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tf32 is there on a GPU")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_run_in_tf32_can_be_looked_at_without_a_gpu(finished: Path, tmp_path: Path, device: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(settings.replace('precision = "fp32"', 'precision = "tf32"'))
    assert evaluate_run(run, device) == evaluate_run(finished, "cpu")
