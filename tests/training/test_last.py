"""The student with refreshed statistics, beside averages: its weights are the student's at every evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastswa.noise import Noise
from fastswa.training.folder import RunFolder
from fastswa.training.refresh import Refresher, refresh_batches
from tiny_runs import METHODS, StoppingWatcher, assert_same_run, go_on, make_trainer, metrics, models, tiny, train

LAST = {"method": METHODS["fixmatch"], "averaging": {"last": {"kind": "last"}}}


def test_weights_are_the_students_and_statistics_are_of_fresh_batches(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(LAST), run)
    tensors = models(run)
    names = [name.partition("/")[2] for name in tensors if name.startswith("student.safetensors/")]
    statistics = [name for name in names if name.rpartition(".")[2] in ("running_mean", "running_var")]
    assert statistics
    for name in names:
        same = torch.equal(tensors[f"student.safetensors/{name}"], tensors[f"last.safetensors/{name}"])
        assert same != (name in statistics), name
    for line in metrics(run):
        # Taken after the first step too: epoch 0 is where it starts.
        assert line["averaged"]["last"] == line["epoch"] + 1
        assert line["error"]["last"] != line["error"]["student"]


def test_it_is_refreshed_as_averages_are(tmp_path: Path) -> None:
    trainer = make_trainer(tiny(LAST), tmp_path)
    trainer.feed.load(0)
    for _ in range(trainer.steps_per_epoch):
        trainer.step()
    trainer.state.step = trainer.steps_per_epoch
    last = trainer.state.averages["last"]
    last.update(1.0)
    line = trainer.evaluate()
    student = trainer.state.student
    Refresher(student, trainer.config, trainer.material, trainer.compute)(f"last/{last.count}")
    assert trainer.evaluate()["error"]["student"] == line["error"]["last"] != line["error"]["student"]


def test_it_is_refreshed_on_what_the_method_learns_from(tmp_path: Path) -> None:
    """Labelled images weakly changed, the others strongly: 25 and 75 of a batch, and no other way."""
    trainer = make_trainer(tiny(LAST), tmp_path)
    material, student, seen = trainer.material, trainer.state.student, []
    hook = student.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    Refresher(student, trainer.config, material, trainer.compute)("last/1")
    hook.remove()
    wanted = refresh_batches(trainer.config, material.plan, "last/1")
    for view, (numbers, words) in zip(seen, wanted, strict=True):
        rows, noise = torch.from_numpy(numbers), Noise(torch.from_numpy(words))
        weak = material.augment.view(material.pixels, rows, noise.scope("view"))
        strong = material.augment.view(material.pixels, rows[25:], noise.scope("view/strong"))
        assert torch.equal(view, torch.cat([weak[:25], strong]))
        assert not torch.equal(weak[25:], strong)


def test_a_stopped_run_that_keeps_it_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(tiny(LAST), reference)
    train(tiny(LAST), run, StoppingWatcher(stop=5))
    go_on(run)
    assert_same_run(run, reference)


@pytest.mark.parametrize(("others", "chosen"), [({}, "student"), ({"ema": {"kind": "ema"}}, "ema")])
def test_it_is_never_what_a_run_offers_for_use(others: dict[str, dict[str, str]], chosen: str, tmp_path: Path) -> None:
    config = tiny({"method": METHODS["fixmatch"], "schedule": {"epochs": 1}})
    averaging = {"last": {"kind": "last"}, **others}
    train(type(config)(**{**config.model_dump(), "averaging": averaging}), tmp_path / "run")
    tensors = models(tmp_path / "run")
    offered = {name.partition("/")[2]: value for name, value in tensors.items() if name.startswith("model.")}
    assert all(torch.equal(value, tensors[f"{chosen}.safetensors/{name}"]) for name, value in offered.items())
    assert RunFolder(tmp_path / "run").config().averaging["last"].kind == "last"
