"""`--minutes`: a schedule that ends in time, measured without a trace, written down once."""

from __future__ import annotations

import re
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Command
from fastswa.api import fit
from fastswa.errors import RequestError
from fastswa.layers import build_config, own_data_layer, recipe_layer
from fastswa.training.budget import Budget, Costs, duration, fitted, measure
from fastswa.training.device import Compute
from fastswa.training.folder import RunFolder
from tiny_runs import StoppingWatcher, assert_same_run, go_on, make_trainer, tiny, train

OWN = build_config(
    own_data_layer("mine"), {"schedule": {"epochs": 60, "length": 50, "period": 60, "cycle": 10}, "method": {"ramp": 5}}
)
CHEAP = Costs(start=0.0, step=0.03, image=0.0001, checkpoint=0.05)


@pytest.mark.parametrize("seconds", [20, 60, 300, 3600])
@pytest.mark.parametrize(
    "costs",
    [
        CHEAP,
        Costs(start=3, step=0.002, image=1e-6, checkpoint=0.1),
        Costs(start=0, step=0.05, image=0.0, checkpoint=0.0),
    ],
)
@pytest.mark.parametrize("steps", [3, 250, 10_000])
def test_the_run_fills_the_time_and_stays_within(costs: Costs, seconds: float, steps: int) -> None:
    shape = fitted(OWN, costs, steps=steps, networks=2, images=5000, seconds=seconds)
    config = shape.applied(OWN)
    needed = duration(config, costs, steps=shape.steps, networks=2, images=5000)
    assert 0.9 * seconds < needed <= seconds
    assert config.schedule.epochs == shape.epochs >= 60
    assert config.batch.steps == shape.steps <= steps
    evaluations = -(-shape.epochs // shape.evaluate_every)
    assert 1 <= evaluations <= 12
    # What a kill can lose: a tenth of the run or, of a longer one, a minute.
    assert shape.checkpoint_every * shape.steps * costs.step < max(seconds / 9, 61)


def test_what_is_counted_in_epochs_keeps_its_part_of_the_whole() -> None:
    config = fitted(OWN, CHEAP, steps=100, networks=2, images=0, seconds=3600).applied(OWN)
    epochs = config.schedule.epochs
    assert epochs > 1000
    parts = (config.schedule.length, config.schedule.period, config.schedule.cycle, config.method.ramp)
    assert [part / epochs for part in parts] == pytest.approx([5 / 6, 1, 1 / 6, 1 / 12], abs=1e-4)
    fast, swa = config.averaging["fast_swa"], config.averaging["swa"]
    assert [fast.start / epochs, swa.start / epochs] == pytest.approx([2 / 3, 5 / 6], abs=1e-4)  # type: ignore[operator]
    assert [fast.every, swa.every] == pytest.approx([config.schedule.cycle / 10, config.schedule.cycle])


def test_a_recipe_keeps_its_proportions_and_its_epoch_where_the_time_allows() -> None:
    recipe = build_config(recipe_layer("cifar10-cnn-mean-teacher-4k"), {"averaging": {"fast_swa": {"start": 90}}})
    fast = Costs(start=20, step=0.0024, image=1e-5, checkpoint=0.2)
    shape = fitted(recipe, fast, steps=920, networks=2, images=10_000, seconds=600)
    assert shape.steps == 920
    assert 60 <= shape.epochs < recipe.schedule.epochs * 1.5
    config = shape.applied(recipe)
    assert config.schedule.length / config.schedule.epochs == pytest.approx(180 / recipe.schedule.epochs, abs=1e-4)
    assert config.averaging["fast_swa"].start == pytest.approx(90 * shape.epochs / recipe.schedule.epochs, abs=1e-4)
    short = fitted(recipe, fast, steps=920, networks=2, images=10_000, seconds=60)
    assert short.epochs == 60
    assert short.steps < 920
    coarse = fitted(recipe, Costs(0, 0.4, 0, 0), steps=920, networks=2, images=10_000, seconds=60)
    assert (coarse.epochs, coarse.steps, coarse.refresh) == (69, 2, 5)


def test_how_often_to_evaluate_can_be_given() -> None:
    config = OWN.model_copy(update={"evaluation": OWN.evaluation.model_copy(update={"every": 2})})
    shape = fitted(config, CHEAP, steps=100, networks=2, images=1000, seconds=600, given={"evaluation.every"})
    assert shape.evaluate_every == 2
    assert 0.9 * 600 < duration(shape.applied(config), CHEAP, steps=shape.steps, networks=2, images=1000) <= 600


def test_what_else_it_would_choose_can_be_given() -> None:
    evaluation = OWN.evaluation.model_copy(update={"refresh": 100})
    config = OWN.model_copy(
        update={"evaluation": evaluation, "checkpoint": OWN.checkpoint.model_copy(update={"every": 1})}
    )
    slow = Costs(0, 0.1, 0, 0.5)
    for given, expected in ((set(), None), ({"evaluation.refresh", "checkpoint.every"}, (100, 1))):
        applied = fitted(config, slow, steps=100, networks=2, images=0, seconds=60, given=given).applied(config)
        found = applied.evaluation.refresh, applied.checkpoint.every
        assert found == expected if expected else found[0] < 100 and found[1] > 1
    with pytest.raises(RequestError, match=r"--minutes and schedule\.preset both say how long"):
        Budget(1.0, {"schedule.preset"})


def test_no_time_at_all_makes_the_shortest_run_there_is() -> None:
    for seconds in (0.0, -5.0):
        shape = fitted(OWN, CHEAP, steps=100, networks=2, images=100, seconds=seconds)
        assert (shape.epochs, shape.steps) == (60, 1)
        assert shape.seconds > 60 * CHEAP.step


@pytest.mark.parametrize("method", ["mean-teacher", "temporal-ensembling"])
def test_measuring_leaves_no_trace(tmp_path: Path, method: str) -> None:
    trainer = make_trainer(tiny({"method": {"name": method}}), tmp_path / "run")
    before = {name: tensor.clone() for name, tensor in trainer.state.tensors().items()}
    costs = measure(trainer, 0.05)
    assert 0 < costs.step < 5
    assert 0 < costs.image < 1
    assert 0 < costs.checkpoint < 10
    after = trainer.state.tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (trainer.state.step, trainer.state.summed) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_measured_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tiny(), tmp_path / "run")
    monkeypatch.setattr("fastswa.training.budget.launcher", lambda step, compute: lambda: time.sleep(0.02))
    assert measure(trainer, 0.2).step == pytest.approx(0.02, rel=0.5)


FLAGS = ("--device.threads", "1", "--model.width", "4", "--no-report", "--device", "cpu")


def test_minutes_become_a_schedule_in_config_toml_and_resume_exactly(tmp_path: Path, command: Command) -> None:
    began = time.monotonic()
    answer = command("train", "digits-mean-teacher", "--minutes", "0.04", "--out", tmp_path / "run", *FLAGS)
    taken = time.monotonic() - began
    assert answer.code == 0, answer.err
    assert "fastswa: length: " in answer.err
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "minutes" not in text
    config = RunFolder(tmp_path / "run").config()
    epochs, steps = config.schedule.epochs, config.batch.steps
    assert epochs >= 60
    assert f"length: {epochs} epochs of {steps} steps" in answer.err
    assert config.schedule.cycle == pytest.approx(epochs / 6, abs=1e-3)
    # Two seconds and a half; a machine with other work may need longer than it measured, but not many times as long.
    assert taken < 30
    assert RunFolder(tmp_path / "run").metrics()[-1]["epoch"] == epochs
    stop = epochs * (steps or 0) // 2
    train(config, tmp_path / "stopped", StoppingWatcher(stop=stop))
    go_on(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "run")


def test_python_takes_minutes_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": {"width": 4}, "device": {"name": "cpu", "threads": 1}}
    run = fit("digits-supervised", out=tmp_path / "run", minutes=0.05, settings=settings)
    assert run.finished
    assert run.metrics[-1]["epoch"] == RunFolder(tmp_path / "run").config().schedule.epochs >= 60
    with pytest.raises(RequestError, match=r"^--minutes and schedule\.epochs both say how long to train"):
        fit("digits-supervised", out=tmp_path / "other", minutes=1, settings={"schedule": {"epochs": 3}})


def test_seeds_get_one_schedule(tmp_path: Path, command: Command) -> None:
    answer = command(
        "train", "digits-supervised", "--minutes", "0.04", "--seeds", "1,2", "--out", tmp_path / "run", *FLAGS
    )
    assert answer.code == 0, answer.err
    configs = [tomllib.loads((tmp_path / "run" / f"seed-{s}" / "config.toml").read_text()) for s in (1, 2)]
    assert configs[0]["schedule"] == configs[1]["schedule"]
    assert configs[0]["batch"] == configs[1]["batch"]
    assert answer.err.count("fastswa: length: ") == 1


WRONG = {
    "--minutes 5 --epochs 3": "--minutes and schedule.epochs both say how long to train; give one of them.",
    "--minutes 5 --batch.steps 3": "--minutes and batch.steps both say how long to train; give one of them.",
    "--minutes none": "--minutes: 'none' is not a number above zero.",
    "--minutes -1": "--minutes: '-1' is not a number above zero.",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_requests(words: str, tmp_path: Path, command: Command) -> None:
    answer = command("train", "digits-pi", *words.split(), "--out", tmp_path / "run")
    assert answer == (2, "", f"fastswa: {WRONG[words]}\n")
    assert not (tmp_path / "run").exists()


def test_a_fork_takes_no_minutes(finished: Path, tmp_path: Path, command: Command) -> None:
    answer = command("train", "--from", finished, "--minutes", "5", "--out", tmp_path / "run")
    sentence = "fastswa: --minutes is for new runs; say with schedule.epochs how far a fork goes.\n"
    assert (answer.code, answer.err) == (2, sentence)
    assert not (tmp_path / "run").exists()


def test_a_short_time_is_not_spent_on_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny()
    assert Budget(1.0).started_soon(config) is config
    gpu = Compute(torch.device("cuda"), "bf16", "auto", False)
    monkeypatch.setattr("fastswa.training.budget.choose_compute", lambda device: replace(gpu, engine=device.engine))
    assert Budget(1.0).started_soon(config).device.engine == "graph"
    assert Budget(10.0).started_soon(config) is config
    asked_for = tiny({"device": {"engine": "compiled"}})
    assert Budget(1.0).started_soon(asked_for) is asked_for


@pytest.mark.parametrize("minutes", [float("inf"), float("nan"), 0.0, -1.0])
def test_no_number_of_minutes_is_refused(minutes: float) -> None:
    with pytest.raises(RequestError, match=rf"^--minutes: '{minutes}' is not a number of minutes above zero\.$"):
        Budget(minutes)


def test_a_minimum_of_seconds_is_not_called_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Costs(start=0, step=0.03, image=0, checkpoint=0)
    monkeypatch.setattr("fastswa.training.budget.measure", lambda trainer, seconds: quick)
    trainer = make_trainer(tiny(), tmp_path / "run")
    with pytest.raises(RequestError, match=r"so that even 60 steps need 0\.0[1-9] minutes; give more"):
        Budget(0.001).schedule(trainer.config, trainer, print)


def test_far_too_little_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Costs(start=0, step=10.0, image=0.5, checkpoint=0.1)
    monkeypatch.setattr("fastswa.training.budget.measure", lambda trainer, seconds: slow)
    trainer = make_trainer(tiny(), tmp_path / "run")
    with pytest.raises(RequestError) as caught:
        Budget(1.0).schedule(trainer.config, trainer, print)
    assert str(caught.value).startswith(
        "--minutes 1 is too short: a step takes 10 s here and measuring a network 250 s, so that even 60 steps need "
    )
    assert not (tmp_path / "run").exists()


def test_a_run_that_did_not_get_its_time_is_told(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a step was measured while other work slowed the machine down."""
    assert Budget(5.0).remark(0.75 * 300) is None
    # Of 12 seconds two are the report's, which is made after this is asked.
    assert Budget(0.2, report=True).remark(7.0) is None
    assert (Budget(0.2).remark(7.0) or "").startswith("it took 0.12 of its 0.2 minutes: ")
    slow = Costs(start=0, step=5.0, image=1e-6, checkpoint=0)
    monkeypatch.setattr("fastswa.training.budget.measure", lambda trainer, seconds: slow)
    words = ["train", "digits-pi", "--minutes", "6", "--model.width", "4", "--no-report", "--out", tmp_path / "run"]
    answer = command(*words)
    assert answer.code == 0, answer.err
    remark = r": it took 0\.\d of its 6 minutes: other work slowed the measured steps down; train again"
    assert re.search(re.escape(f"fastswa: {tmp_path / 'run'}") + remark, answer.err)
