"""Schedules and teachers: what runs measured, and forks that differ in their schedule alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from conftest import Command
from fastswa.analysis.measured import course_of
from fastswa.analysis.schedule import forks, schedule, told, unmodified
from fastswa.analysis.study import Request
from fastswa.analysis.teachers import teachers
from fastswa.layers import build_config, recipe_layer
from fastswa.training.feed import learning_rate
from fastswa.training.folder import RunFolder
from tiny_runs import METHODS, checkpoints, tiny, train


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the Pi model and of an SWA teacher."""
    folder = tmp_path_factory.mktemp("taught")
    for name in ("pi", "swa-teacher"):
        train(tiny({"method": METHODS[name], "schedule": {"epochs": 3}}), folder / name)
    return folder


def test_a_course_is_what_the_run_wrote(finished: Path) -> None:
    course = course_of(RunFolder(finished), "run")
    lines = RunFolder(finished).metrics()
    assert course.images == "test"
    assert course.epochs.tolist() == [1, 2, 3, 4]
    assert course.error["student"].tolist() == [line["error"]["student"] for line in lines]
    # SWA begins with epoch 2.
    assert np.isnan(course.error["swa"][0])
    assert course.at(4) == lines[-1]["error"]
    assert "swa" not in course.at(1)


def test_teachers_are_compared_with_fast_swa_of_the_mean_teacher(finished: Path, taught: Path) -> None:
    found = teachers(Request((taught / "pi", finished, taught / "swa-teacher")))
    assert [one.teacher for one in found] == ["none", "EMA", "SWA"]
    assert [one.epoch for one in found] == [3, 3, 3]
    assert {one.reference for one in found} == {"run: fast-SWA"}
    assert found[1].excess["fast_swa"] == 0
    least = found[1].error["fast_swa"]
    assert found[0].excess["student"] == pytest.approx(found[0].error["student"] - least)
    assert [one.epoch for one in teachers(Request((finished, taught / "pi"), epochs=(2.0,)))] == [2, 2]


def test_the_command_of_teachers(finished: Path, taught: Path, tmp_path: Path, command: Command) -> None:
    answer = command("analyze", "teachers", finished, taught / "pi", "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "pi (teacher: none), epoch 3, test error: student" in answer.out
    assert len(json.loads((tmp_path / "teachers.json").read_text())) == 2
    answer = command("analyze", "teachers", finished, taught / "pi", "--epochs", "4")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "not all measured" in answer.err


def test_the_unmodified_rate_is_that_of_the_first_descent() -> None:
    config = build_config(recipe_layer("cifar10-cnn-mean-teacher-4k"))
    for epoch in (0.0, 100.0, 179.0):
        assert unmodified(config, epoch) == pytest.approx(learning_rate(config, epoch))
    assert unmodified(config, 195) == pytest.approx(0.05 * (1 + np.cos(np.pi * 195 / 210)))
    assert unmodified(config, 300) == pytest.approx(0)


def test_forks_differ_in_their_schedule_alone(finished: Path) -> None:
    found = forks(f"{finished}@2", 2.0, Request((finished,), cycles=(0.5, 2.0), constant=(1.0,), until=5))
    assert list(found) == ["cycle-0.5", "cycle-2", "constant-1"]
    parent = RunFolder(finished).config()
    for config in found.values():
        fast = config.averaging["fast_swa"]
        assert (fast.start, fast.every) == (2.0, parent.averaging["fast_swa"].every)
        assert config.schedule.epochs == 5
        assert (config.method, config.optimiser, config.split) == (parent.method, parent.optimiser, parent.split)
    assert [config.schedule.cycle for config in found.values()] == [0.5, 2.0, parent.schedule.cycle]
    assert learning_rate(found["constant-1"], 4.0) == pytest.approx(unmodified(parent, 1.0))
    assert learning_rate(found["cycle-2"], 2.0) == pytest.approx(unmodified(parent, 0.0))


def test_the_command_trains_forks_once_and_draws_them(finished: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "parent"
    shutil.copytree(finished, run)
    forked = ("analyze", "schedule", f"{run}@2", "--cycles", "1", "--constant", "1")
    words = (*forked, "--until", 3)
    answer = command(*words)
    assert answer.code == 0, answer.err
    assert (run / "analysis" / "schedule.svg").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["parent"]
    trained = [run / "analysis" / "schedule" / name for name in ("cycle-1", "constant-1")]
    assert [checkpoints(path)[-1] for path in trained] == [9, 9]
    before = [(path / "metrics.jsonl").read_bytes() for path in trained]
    assert command(*words).code == 0
    assert [(path / "metrics.jsonl").read_bytes() for path in trained] == before
    [cycle, constant] = schedule(Request(tuple(trained)))
    assert (cycle.after, constant.after) == ("cycles", "constant")
    assert command("analyze", "schedule", run, run / "x", "--cycles", "1").err.startswith("fastswa: name one run")
    assert "is at epoch 2 already" in command(*forked, "--until", 2).err


def test_what_no_schedule_can_be_is_refused(finished: Path, command: Command) -> None:
    for words, reason in (
        (("--cycles", "0,1"), "a cycle is longer than no epoch"),
        (("--constant", "-1"), "from 0 on"),
        (("--constant", "1,4"), "before 4, where the cosine comes to zero"),
        (("--constant", "inf"), "from 0 on"),
        (("--constant", "nan"), "from 0 on"),
        (("--until", "9"), "--until says how far forks are trained"),
    ):
        answer = command("analyze", "schedule", f"{finished}@2" if words[0] != "--until" else finished, *words)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert reason in answer.err


def test_runs_of_the_same_schedule_are_told_apart(finished: Path, taught: Path) -> None:
    lines = told(schedule(Request((taught / "pi", taught / "swa-teacher"))))
    assert [line.partition(" epoch: ")[0] for line in lines] == ["pi: cycle of 1", "swa-teacher: cycle of 1"]
    assert told(schedule(Request((finished,))))[0].startswith("cycle of 1 epoch: ")
