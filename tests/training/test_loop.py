"""The loop: what it evaluates, averages and writes, and that a seed decides all of it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from conftest import Command
from fastswa.errors import RequestError
from fastswa.modelfile import read_facts
from fastswa.training.device import choose_compute, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.refresh import Refresher, refresh_batches
from fastswa.training.state import State
from tiny_runs import (
    EPOCHS,
    FLAGS,
    METHODS,
    STEPS,
    StoppingWatcher,
    assert_identical,
    assert_same_run,
    checkpoints,
    go_on,
    make_trainer,
    metrics,
    models,
    state_at,
    tiny,
    train,
)


def test_one_line_an_evaluation(finished: Path) -> None:
    lines = RunFolder(finished).metrics()
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 3), (2, 6), (3, 9), (4, 12)]
    networks = ["student", "teacher", "swa", "fast_swa", "ema"]
    for line in lines:
        present = [name for name in networks if line["averaged"].get(name, 1)]
        assert list(line["error"]) == list(line["nll"]) == present
        assert all(0 <= error <= 100 for error in line["error"].values())
        assert list(line["loss"]) == ["classification", "consistency", "tie"]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("epochs", "late"), [(1, "swa (2)"), (2, "")])
def test_averages_that_training_ends_before_are_mentioned(
    epochs: int, late: str, tmp_path: Path, command: Command
) -> None:
    answer = command("train", "digits-mean-teacher", *FLAGS, "--epochs", str(epochs), "--out", tmp_path / "run")
    assert answer.code == 0
    said = f"training ends at epoch {epochs} (schedule.epochs), before these averages begin: {late}."
    assert ("before these averages begin" in answer.err) is bool(late)
    assert not late or said in answer.err


def test_all_that_is_written_is_waited_for_where_one_of_it_fails(tmp_path: Path) -> None:
    trainer, waited = make_trainer(tiny(), tmp_path), list[str]()

    class Slow:
        def epoch_done(self, trainer: object, epoch: int) -> None: ...
        def settle(self) -> None:
            waited.append("observer")

    def full() -> None:
        raise OSError("no space left on device")

    trainer.observers += [Slow(), Slow()]
    trainer._writing(full)
    with pytest.raises(OSError, match="no space"):
        trainer.settle()
    assert waited == ["observer"] * 2


def test_each_line_says_how_long_edges_took_its_own_included(finished: Path) -> None:
    lines = RunFolder(finished).metrics()
    edges = [line["edge_seconds"] for line in lines]
    assert edges[0] > 0
    assert edges == sorted(edges)
    assert all(line["edge_seconds"] <= line["seconds"] for line in lines)


def test_the_learning_rate_of_each_line_is_the_schedules(finished: Path) -> None:
    """Of the last step done: the cosine to epoch 2, then its last epoch again and again (l=2, l0=4, c=1)."""
    positions = [2 / 3, 1 + 2 / 3, 1 + 2 / 3, 1 + 2 / 3]
    for line, position in zip(metrics(finished), positions, strict=True):
        assert line["learning_rate"] == pytest.approx(0.05 * (1 + math.cos(math.pi * position / 4)), rel=1e-9)


def test_averages_are_taken_when_due(finished: Path) -> None:
    """swa at epochs 2, 3, 4; fast_swa twice an epoch from 1 on; ema at every step."""
    counts = [line["averaged"] for line in metrics(finished)]
    assert [line["swa"] for line in counts] == [0, 1, 2, 3]
    assert [line["fast_swa"] for line in counts] == [1, 3, 5, 7]
    assert [line["ema"] for line in counts] == [3, 6, 9, 12]


def test_an_average_is_the_mean_of_the_students_it_took(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"checkpoint": {"keep": [2, 3]}}), run)
    students = [state_at(run, step) for step in (6, 9, 12)]
    averaged = load_file(run / "models" / "swa.safetensors")
    parameters = [name for name in averaged if "running" not in name and "tracked" not in name]
    assert len(parameters) == 16
    for name in parameters:
        mean = torch.stack([student[f"student.{name}"].double() for student in students]).mean(dim=0)
        assert torch.allclose(averaged[name].double(), mean, atol=1e-7), name


def test_refreshed_statistics_are_those_of_training_batches(tmp_path: Path) -> None:
    """The first batch norm's mean and variance over two batches, by hand."""
    trainer = make_trainer(tiny(), tmp_path)
    average = trainer.state.averages["swa"]
    average.update()
    seen: list[torch.Tensor] = []
    hook = average.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    Refresher(average.module, trainer.config, trainer.material, trainer.compute)("swa/1")
    hook.remove()
    state = average.module.state_dict()
    outputs = [F.conv2d(view, state["block1.0.conv.weight"], padding=1).transpose(0, 1).flatten(1) for view in seen]
    assert len(outputs) == 2
    for name, values in (
        ("mean", [output.mean(dim=1) for output in outputs]),
        ("var", [output.var(dim=1) for output in outputs]),
    ):
        assert torch.allclose(state[f"block1.0.norm.running_{name}"], sum(values) / 2, atol=1e-6)


def test_loss_terms_are_means_since_the_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded: list[dict[str, float]] = []
    original = State.record

    def record(state: State, terms: dict[str, torch.Tensor]) -> None:
        recorded.append({name: float(term.detach()) for name, term in terms.items()})
        original(state, terms)

    monkeypatch.setattr(State, "record", record)
    run = tmp_path / "run"
    train(tiny({"evaluation": {"every": 2}}), run)
    steps = recorded[-EPOCHS * STEPS :]  # the probe's own step comes first
    lines = metrics(run)
    assert [line["epoch"] for line in lines] == [2, 4]
    for line, part in zip(lines, (steps[:6], steps[6:]), strict=True):
        for name, value in line["loss"].items():
            assert value == pytest.approx(sum(terms[name] for terms in part) / 6, rel=1e-5)


@pytest.mark.parametrize(("every", "epochs"), [(1, [1, 2, 3, 4]), (3, [3, 4]), (9, [4])])
def test_the_last_epoch_is_always_evaluated(every: int, epochs: list[int], tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(tiny({"evaluation": {"every": every}, "checkpoint": {"every": 9}}), run)
    assert [line["epoch"] for line in metrics(run)] == epochs
    assert [line["epoch"] for line in result.metrics] == epochs
    assert checkpoints(run) == [12]


def test_evaluation_never_shifts_training(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"evaluation": {"every": 9}}), run)
    assert_identical(models(run), models(finished))


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        train(tiny({"seed": seed}), tmp_path / name)
    assert_same_run(tmp_path / "again", tmp_path / "first")
    first, other = models(tmp_path / "first"), models(tmp_path / "other")
    assert all(not first[key].equal(other[key]) for key in first if key.endswith(".weight"))
    assert RunFolder(tmp_path / "other").config().split.seed == 4


def test_the_split_follows_the_seed_unless_set(tmp_path: Path) -> None:
    def labelled(**changes: Any) -> list[int]:
        found: list[int] = make_trainer(tiny(changes), tmp_path).material.split.labelled.tolist()
        return found

    assert labelled(seed=5) == labelled(seed=6, split={"seed": 5})
    assert labelled(seed=5) != labelled(seed=6)


def test_student_and_teacher_start_from_their_own_initialisation(tmp_path: Path) -> None:
    state = make_trainer(tiny(), tmp_path).state
    assert state.teacher is not None
    ours, theirs = state.student.state_dict(), state.teacher.state_dict()
    assert all(not ours[key].equal(theirs[key]) for key in ours if key.endswith("conv.weight"))


def test_a_run_leaves_torchs_own_randomness_and_switches_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    config = tiny({"device": {"deterministic": True}, "schedule": {"epochs": 1}})
    train(config, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]  # type: ignore[index]
    assert not torch.are_deterministic_algorithms_enabled()
    threads = torch.get_num_threads()
    with settings_of(choose_compute(config.device), threads=threads + 1):
        assert torch.get_num_threads() == threads + 1
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_is_evaluated(method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"method": METHODS[method], "schedule": {"epochs": 2}}), run)
    last = metrics(run)[-1]
    teacher = ["teacher"] if "teacher" in method or method in ("self-ensembling", "taught-fixmatch") else []
    assert list(last["error"]) == ["student", *teacher, "swa", "fast_swa", "ema"]
    assert all(value > 0 for name, value in last["loss"].items() if name not in ("consistency", "fairness"))
    assert ("consistency" in last["loss"]) == (method != "supervised")


def test_validation_images_are_measured_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"split": {"validation": 97}, "schedule": {"epochs": 1}}), run)
    line = metrics(run)[-1]
    assert {"error", "nll", "validation_error", "validation_nll"} <= line.keys()
    wrong = line["validation_error"]["student"] * 97 / 100
    assert wrong == pytest.approx(round(wrong), abs=1e-9)
    trainer = make_trainer(tiny({"split": {"validation": 97}}), tmp_path)
    split, plan = trainer.material.split, trainer.material.plan
    assert len(split.validation) == 97
    rows = np.concatenate([plan.epoch(3, epoch).ravel() for epoch in range(100)])
    assert not np.isin(rows, split.validation).any()
    assert np.isin(np.concatenate([split.labelled, split.unlabelled]), rows).all()
    refreshing = np.concatenate([row for row, _ in refresh_batches(trainer.config, plan, "swa/1")])
    assert not np.isin(refreshing, split.validation).any()


def own_data(path: Path, images: int = 60, test: int = 0, classes: int = 3) -> Path:
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.integers(0, 256, (images, 8, 8), np.uint8), "y_train": np.arange(images) % classes}
    if test:
        arrays |= {"x_test": rng.integers(0, 256, (test, 8, 8), np.uint8), "y_test": np.arange(test) % classes}
    np.savez(path, **arrays)
    return path


def test_ones_own_data_get_a_validation_split(tmp_path: Path, command: Command) -> None:
    run, file = tmp_path / "run", own_data(tmp_path / "own.npz")
    small = ["--model.width", "4", "--batch.size", "20", "--batch.labelled", "10", "--augment.translate", "1"]
    answer = command("train", file, "--out", run, *small, "--labels", "15", "--epochs", "1", "--device.threads", "1")
    assert answer.code == 0
    config = RunFolder(run).config()
    assert (config.split.validation, config.split.labels) == (3, 15)
    line = metrics(run)[-1]
    assert "validation_error" in line
    assert "error" not in line
    assert read_facts(run / "model.safetensors").classes == ("0", "1", "2")


def test_top5_is_measured_from_twenty_classes_on(tmp_path: Path) -> None:
    file = own_data(tmp_path / "own.npz", images=200, test=40, classes=20)
    config = tiny({"data": {"source": str(file)}, "split": {"labels": 40, "validation": 0}, "schedule": {"epochs": 1}})
    train(config, tmp_path / "run")
    line = metrics(tmp_path / "run")[-1]
    assert line["top5_error"].keys() == line["error"].keys()
    assert all(line["top5_error"][name] <= line["error"][name] for name in line["error"])


def test_a_run_folders_configuration_fed_back_repeats_the_run(finished: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "again"
    assert command("train", "--config", finished / "config.toml", "--out", out).code == 0
    assert_same_run(out, finished)
    assert (out / "config.toml").read_text() == (finished / "config.toml").read_text()


def test_the_watcher_is_told_where_the_run_stands(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []

    class Listener(StoppingWatcher):
        def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
            super().begin(step, steps, steps_per_epoch)
            told.append((step, steps, steps_per_epoch))

        def stepped(self, step: int) -> None:
            told.append((step,))

    train(tiny(), tmp_path / "run", Listener(stop=7))
    go_on(tmp_path / "run", Listener())
    assert told == [(0, 12, 3), (3,), (6,), (7, 12, 3), (9,), (12,)]


def test_tensorboard_gets_every_evaluation_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    train(tiny({"log": {"tensorboard": True}}), run, StoppingWatcher(stop=7))
    go_on(run)
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    for name, path in (("error/student", ("error", "student")), ("loss/tie", ("loss", "tie"))):
        values = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(line["step"], line[path[0]][path[1]]) for line in metrics(run)]
        assert values == [(step, pytest.approx(value)) for step, value in expected]


def test_what_ran_is_recorded(finished: Path) -> None:
    facts = json.loads((finished / "environment.json").read_text())
    assert facts["torch"] == torch.__version__
    assert (facts["device"], facts["precision"], facts["engine"], facts["parent"]) == ("cpu", "fp32", "eager", None)
    assert RunFolder(finished).config().device.precision == "fp32"
    model = read_facts(finished / "model.safetensors")
    assert (model.network, model.epoch, model.architecture, model.options) == ("fast_swa", 4.0, "small", {"width": 4})


def test_translation_by_more_than_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        train(tiny({"augment": {"translate": 8}}), tmp_path / "run")
    assert str(caught.value) == "augment.translate: 8 pixels are too many for 8x8 images."
