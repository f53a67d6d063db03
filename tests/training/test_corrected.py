"""Runs whose epochs become shorter or longer on the way, and who decides it: to end in time, and to repeat exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastswa.analysis.gradients import method_batches
from fastswa.analysis.subject import Subject
from fastswa.api import fit
from fastswa.classifier import Classifier
from fastswa.config import Config, to_dict
from fastswa.data.pace import Pace
from fastswa.errors import RequestError
from fastswa.layers import build_config, file_layer, own_data_layer
from fastswa.training import run as runs
from fastswa.training.budget import AIMED_AT, Budget, Costs, Timekeeper, corrected_at, duration, fitted
from fastswa.training.feed import learning_rate
from fastswa.training.folder import RunFolder
from fastswa.training.identity import fingerprint
from fastswa.training.loop import Trainer
from tiny_runs import (
    METHODS,
    Killed,
    StoppingWatcher,
    assert_same_run,
    checkpoints,
    go_on,
    make_trainer,
    metrics,
    tiny,
    train,
)

# After the epoch that is the key.
Decisions = Mapping[int, int]


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Decisions], None]:
    """Says what the pacer of every run to come decides, as one with a clock would."""
    decided: dict[int, int] = {}
    init = Trainer.__init__

    def begun(trainer: Trainer, *words: Any) -> None:
        init(trainer, *words)
        trainer.pacer = lambda trainer, epoch: decided.get(epoch)

    def decide(decisions: Decisions) -> None:
        decided.clear()
        decided.update(decisions)

    monkeypatch.setattr(Trainer, "__init__", begun)
    return decide


def steps_of(run: Path) -> list[int]:
    return [line["step"] for line in metrics(run)]


def test_epochs_after_the_next_one_change_and_all_else_keeps_its_place(
    tmp_path: Path, paced: Callable[[Decisions], None]
) -> None:
    train(tiny(), tmp_path / "plain")
    paced({1: 2, 2: 3})
    train(tiny(), tmp_path / "run")
    assert steps_of(tmp_path / "plain") == [3, 6, 9, 12]
    assert steps_of(tmp_path / "run") == [3, 6, 8, 11]
    assert RunFolder(tmp_path / "run").config().batch.pace == ((2, 2), (3, 3))
    plain, run = metrics(tmp_path / "plain"), metrics(tmp_path / "run")
    # The first two epochs are those of the plain run; averages of the schedule's epochs come as often in the others.
    assert run[:2] == plain[:2]
    assert [line["epoch"] for line in run] == [1, 2, 3, 4]
    assert [line["averaged"]["swa"] for line in run] == [line["averaged"]["swa"] for line in plain]
    assert run[3]["averaged"]["fast_swa"] == plain[3]["averaged"]["fast_swa"]
    assert run[3]["averaged"]["ema"] == 11
    # Of the last of two steps in the third epoch, and of three in the fourth.
    assert [line["learning_rate"] for line in run[2:]] == [learning_rate(tiny(), at) for at in (2.5, 3 + 2 / 3)]


def test_an_average_of_every_step_begins_at_its_epoch(tmp_path: Path, paced: Callable[[Decisions], None]) -> None:
    paced({1: 2})
    train(tiny({"averaging": {"late": {"kind": "fast-swa", "start": 3, "every": 0}}}), tmp_path / "run")
    # The step that ends the third epoch, and the two of the fourth.
    assert [line["averaged"]["late"] for line in metrics(tmp_path / "run")] == [0, 0, 1, 3]


def test_studies_know_the_place_of_what_a_corrected_run_kept(
    tmp_path: Path, paced: Callable[[Decisions], None]
) -> None:
    method = {"method": {"name": "pi", "ramp": 8}, "averaging": {}}
    config = tiny(method, {"schedule": {"epochs": 6}, "checkpoint": {"keep_every": 1}})
    paced({1: 2})
    runs.train_new(config, tmp_path / "run", StoppingWatcher(), lambda line: None)
    subject = Subject(tmp_path / "run", "cpu")
    assert 4 in subject.iterates.keys() - subject.steps.keys()
    state = subject.state(4)
    assert state.step == 3 + 3 + 2 + 2
    (batch,) = method_batches(state, subject.config, subject.material, 1, "study")
    assert float(batch.weight) == pytest.approx(state.method.weight(4.0))


@pytest.mark.parametrize("method", ["mean-teacher", "swa-teacher", "fixmatch", "temporal-ensembling"])
def test_a_run_that_was_corrected_repeats_from_its_settings_and_resumes_exactly(
    tmp_path: Path, paced: Callable[[Decisions], None], method: str
) -> None:
    config = tiny({"method": METHODS[method], "schedule": {"epochs": 6}})
    paced({1: 2, 3: 3, 4: 1})
    train(config, tmp_path / "run")
    paced({})
    repeated = build_config(file_layer(tmp_path / "run" / "config.toml"))
    train(repeated, tmp_path / "repeated")
    assert_same_run(tmp_path / "repeated", tmp_path / "run")
    train(repeated, tmp_path / "stopped", StoppingWatcher(stop=7))
    assert checkpoints(tmp_path / "stopped")[-1] == 7
    go_on(tmp_path / "stopped", StoppingWatcher(stop=9))
    go_on(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "run")


def test_a_kill_after_a_correction_leaves_it_written(tmp_path: Path, paced: Callable[[Decisions], None]) -> None:
    """What was decided before the kill holds for the resume, also from a checkpoint before the decision."""
    config = tiny({"checkpoint": {"every": 100}})
    paced({1: 2})
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "run", StoppingWatcher(kill=5))
    paced({})
    result, _ = go_on(tmp_path / "run")
    assert result.finished
    assert steps_of(tmp_path / "run") == [3, 6, 8, 10]
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    result, said = go_on(tmp_path / "run", schedule={"epochs": 6})
    assert steps_of(tmp_path / "run") == [3, 6, 8, 10, 12, 14]
    result, said = go_on(tmp_path / "run")
    assert said == [f"{tmp_path / 'run'} already reached epoch 6; nothing to do."]


def test_longer_epochs_have_their_rows_too(tmp_path: Path) -> None:
    budget = Budget(5.0)
    budget._changes = lambda config: config
    budget.pacer = lambda trainer, epoch: {1: 5}.get(epoch)  # type: ignore[assignment]
    runs.train_new(tiny(), tmp_path / "run", StoppingWatcher(), lambda line: None, budget=budget)
    assert steps_of(tmp_path / "run") == [3, 6, 11, 16]
    train(build_config(file_layer(tmp_path / "run" / "config.toml")), tmp_path / "repeated")
    assert_same_run(tmp_path / "repeated", tmp_path / "run")


def test_forks_keep_the_pace_unless_told_how_long_epochs_are(
    tmp_path: Path, paced: Callable[[Decisions], None]
) -> None:
    config = tiny({"checkpoint": {"keep": [3]}, "schedule": {"epochs": 6}})
    paced({1: 2})
    train(config, tmp_path / "run")
    assert checkpoints(tmp_path / "run") == [8, 12, 14]  # the one to keep, and the last two
    paced({})
    parent = runs.parent_layer(f"{tmp_path / 'run'}@3")
    start = {"start": {"run": f"{tmp_path / 'run'}@3"}}
    train(build_config(parent, start), tmp_path / "same")
    assert steps_of(tmp_path / "same") == [10, 12, 14]
    assert metrics(tmp_path / "same")[-1]["error"] == metrics(tmp_path / "run")[-1]["error"]
    longer = build_config(parent, start, {"batch": {"steps": 5}})
    assert longer.batch.pace is None
    train(longer, tmp_path / "longer")
    assert steps_of(tmp_path / "longer") == [20, 25, 30]


def test_the_pace_is_no_part_of_what_a_run_is() -> None:
    changed, plain = (fingerprint(to_dict(config)) for config in (tiny({"batch": {"pace": [[1, 2]]}}), tiny()))
    assert changed == plain


@pytest.mark.parametrize("pace", [[[2, 3], [2, 4]], [[3, 3], [2, 4]]])
def test_changes_come_in_order(pace: list[list[int]]) -> None:
    with pytest.raises(RequestError, match=r"^batch\.pace: the epochs \d, \d do not follow one another\.$"):
        tiny({"batch": {"pace": pace}})


def rates(config: Config, out: Path, epoch: int) -> np.ndarray:
    """What a step of the epoch gets: learning rate, consistency weight, teacher's rate."""
    return make_trainer(config, out).feed._rows(epoch)[2]


def test_a_shorter_epoch_goes_through_the_whole_of_its_part_of_the_schedule(tmp_path: Path) -> None:
    teacher = {"name": "mean-teacher", "teacher": "swa", "teacher_start": 1.3, "teacher_every": 1.0}
    settings = {"batch": {"steps": 10}, "method": {**teacher, "ramp": 4}}
    plain = rates(tiny(settings), tmp_path / "plain", 2)
    for steps in (7, 3, 12):
        changed = rates(tiny(settings, {"batch": {"pace": [[2, steps]]}}), tmp_path / "run", 2)
        assert len(changed) == steps
        for column in (0, 1):
            assert np.interp(np.arange(steps) / steps, np.arange(10) / 10, plain[:, column]) == pytest.approx(
                changed[:, column], rel=0.02
            )
        # An SWA teacher takes one iterate an epoch, at a step of its own: none of a shorter epoch may miss it.
        if steps < 10:
            assert sorted(changed[:, 2])[-2:] == sorted(plain[:, 2])[-2:]


# How many times as long as measured a step takes when this part of the run's time is over.
SPEEDS: dict[str, Callable[[float], float]] = {
    "as measured": lambda part: 1.0,
    "slower": lambda part: 1.13,
    "faster": lambda part: 0.88,
    "now and then slower": lambda part: 1.13 if int(10 * part) % 2 else 1.0,
    "slower near the end": lambda part: 1.13 if part > 0.8 else 1.0,
    "faster near the end": lambda part: 0.88 if part > 0.8 else 1.0,
    "half as fast for a while": lambda part: 2.0 if 0.3 < part < 0.5 else 1.0,
    "half as fast from its beginning": lambda part: 2.0,
    "measured beside other work": lambda part: 0.15,
}
COSTS = Costs(start=0.5, step=0.057, image=0.000125, checkpoint=0.01)
OWN = build_config(
    own_data_layer("mine"), {"schedule": {"epochs": 60, "length": 50, "period": 60, "cycle": 10}, "method": {"ramp": 5}}
)


class Simulated:
    """A run of which nothing but its clock is real to a pacer, and its end, for steps of any speed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, costs: Costs = COSTS) -> None:
        self.seconds, self.costs, self.clock = seconds, costs, 5.0
        monkeypatch.setattr("fastswa.training.budget._now", lambda compute: self.clock)
        shape = fitted(OWN, costs, steps=90, networks=1, images=8000, seconds=seconds - self.clock)
        self.config, self.pace = shape.applied(OWN), Pace(shape.steps, longest=8 * shape.steps)

    def run(self, speed: Callable[[float], float], corrected: bool = True) -> float:
        """The part of the time that the run took."""
        keeper = Timekeeper(AIMED_AT * self.seconds, self.costs, networks=1, images=8000)
        trainer = SimpleNamespace(config=self.config, compute=None, edge_seconds=0.0, state=SimpleNamespace(step=0))
        self.clock += self.costs.start
        epochs, every = self.config.schedule.epochs, self.config.evaluation.every
        for epoch in range(1, epochs + 1):
            for _ in range(self.pace.of(epoch - 1)):
                self.clock += self.costs.step * speed(self.clock / self.seconds)
                trainer.state.step += 1
            if epoch % every == 0 or epoch == epochs:
                taken = 1.0 * speed(self.clock / self.seconds) + 1.5 * (epoch > 0.7 * epochs)
                trainer.edge_seconds += taken
                self.clock += taken
            trainer.pace = self.pace
            steps = keeper(trainer, epoch) if corrected else None  # type: ignore[arg-type]
            if steps is not None:
                self.pace = replace(self.pace, changes=(*self.pace.changes, (epoch + 1, steps)))
        return self.clock / self.seconds


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("minutes", [2, 5, 60])
def test_a_corrected_run_ends_shortly_before_its_time(
    speed: str, minutes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, 60 * minutes)
    assert 0.94 < simulated.run(SPEEDS[speed]) <= 1
    assert len(simulated.pace.changes) <= 15
    assert all(0.25 <= steps / simulated.pace.steps <= 8 for _, steps in simulated.pace.changes)


def test_the_next_epoch_is_as_it_was_and_the_others_share_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastswa.training.budget._now", lambda clock: clock)
    keeper = Timekeeper(601.0, Costs(start=0, step=0.1, image=0, checkpoint=0), networks=1, images=0)
    config = OWN.model_copy(update={"averaging": {}})
    trainer: Any = SimpleNamespace(config=config, pace=Pace(100, longest=800))
    said = []
    # Steps of 0.1 s for 15 epochs, then of 0.11 beside 3 s of evaluations.
    for epoch, clock, edges in ((1, 10.0, 0.0), (7, 70.0, 0.0), (8, 80.0, 0.0), (15, 150.0, 0.0), (30, 318.0, 3.0)):
        trainer.compute, trainer.edge_seconds, trainer.state = clock, edges, SimpleNamespace(step=100 * epoch)
        said.append(keeper(trainer, epoch))
    # At 15 there are 451 s for 45 epochs of 10 s; at 30 there are 283 - 11 s, of 0.11 a step, for 29 epochs.
    assert said == [None, None, None, None, int(272 / 0.11 / 29)]


def test_a_moment_of_speed_near_the_end_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.85 < Simulated(monkeypatch, 3600).run(lambda part: 1.0 if 0.8 < part < 0.95 else 3.0) <= 1


def test_what_the_corrections_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Simulated(monkeypatch, 300).run(SPEEDS["slower"], corrected=False) > 1.05
    assert Simulated(monkeypatch, 300).run(SPEEDS["faster"], corrected=False) < 0.9


def test_a_machine_that_became_far_too_slow_gets_a_quarter_of_the_steps_until_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = Simulated(monkeypatch, 300)
    assert 1 < simulated.run(lambda part: 5.0) < 1.2
    assert [steps for _, steps in simulated.pace.changes] == [round(0.25 * simulated.pace.steps), 1]


def test_epochs_of_single_steps_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(monkeypatch, 20, Costs(start=0, step=1.0, image=0.0, checkpoint=0.0))
    assert simulated.pace.steps == 1
    simulated.run(lambda part: 2.0)
    assert simulated.pace.changes == ()


def test_corrections_come_more_often_near_the_end() -> None:
    assert sorted(corrected_at(60)) == [7, 15, 30, 45, 53, 57, 59]
    assert sorted(corrected_at(1000))[-3:] == [993, 997, 999]
    assert len(corrected_at(5000)) < 15
    assert corrected_at(1) == corrected_at(2) == set()


def test_a_run_alone_is_corrected_and_several_get_one_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastswa.training.budget.measure", lambda trainer, seconds: COSTS)
    trainer = make_trainer(tiny(), tmp_path / "run")
    alone, several = Budget(5.0, began=100.0), Budget(5.0, began=100.0, alone=False)
    assert alone.pacer is None
    monkeypatch.setattr("fastswa.training.budget.time.monotonic", lambda: 110.0)
    for budget in (alone, several):
        budget.schedule(trainer.config, trainer, lambda line: None)
    assert several.pacer is None
    assert alone.pacer is not None
    assert alone.pacer.end == pytest.approx(100 + 300 * AIMED_AT)
    reported = Budget(5.0, began=100.0, report=True)
    reported.schedule(trainer.config, trainer, lambda line: None)
    assert reported.pacer is not None
    assert reported.pacer.end < alone.pacer.end - 2


def test_a_schedule_found_anew_forgets_the_pace_of_an_older_run() -> None:
    old = build_config(own_data_layer("mine"), {"batch": {"steps": 50, "pace": [[3, 40]]}})
    shape = fitted(old, COSTS, steps=50, networks=1, images=100, seconds=60)
    assert shape.applied(old).batch.pace is None


def test_what_a_run_takes_is_what_its_parts_take() -> None:
    config = fitted(OWN, COSTS, steps=90, networks=1, images=8000, seconds=300).applied(OWN)
    whole = duration(config, COSTS, steps=70, networks=1, images=8000)
    halves = [duration(config, Costs(0, step, 0, 0), steps=70, networks=1, images=8000) for step in (0.057, 0.0)]
    assert halves[1] == 0
    assert whole > halves[0] > 0.9 * whole


SETTINGS: dict[str, Any] = {"model": {"width": 4}, "device": {"name": "cpu", "threads": 1}}


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps planned for an epoch, after each of a run that is told after its first one to go on with one each."""
    found: list[int] = []

    def shorter(keeper: Timekeeper, trainer: Trainer, epoch: int) -> int | None:
        found.append(trainer.pace.steps)
        return 1 if epoch == 1 else None

    quick = Costs(start=0, step=0.01, image=0, checkpoint=0)
    monkeypatch.setattr("fastswa.training.budget.measure", lambda trainer, seconds: quick)
    monkeypatch.setattr(Timekeeper, "__call__", shorter)
    return found


def test_minutes_correct_a_run(tmp_path: Path, planned: list[int]) -> None:
    run = fit("digits-supervised", out=tmp_path / "run", minutes=0.05, settings=SETTINGS)
    epochs = len(planned)
    assert (run.metrics[-1]["epoch"], run.metrics[-1]["step"]) == (epochs, 2 * planned[0] + epochs - 2)
    batch = RunFolder(tmp_path / "run").config().batch
    assert (batch.steps, batch.pace) == (planned[0], ((2, 1),))


def test_a_run_without_a_folder_is_corrected_and_writes_nothing(
    tmp_path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rng = np.random.default_rng(0)
    model = Classifier(minutes=0.05, settings=SETTINGS)
    model.fit(rng.integers(0, 256, (60, 8, 8), np.uint8), np.where(np.arange(60) < 20, np.arange(60) % 2, -1))
    epochs = len(planned)
    assert planned[0] > 1
    assert (model.history_[-1]["epoch"], model.history_[-1]["step"]) == (epochs, 2 * planned[0] + epochs - 2)
    assert list(tmp_path.iterdir()) == []
