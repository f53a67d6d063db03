"""Several runs on one device: new and resumed ones take turns, and one that fails leaves the others going."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from traceback import extract_tb
from weakref import ReferenceType, ref

import pytest

from fastswa.errors import RequestError, RunError
from fastswa.training import run as runs
from fastswa.training.device import Compute
from fastswa.training.folder import RunFolder
from fastswa.training.groups import train_groups
from fastswa.training.lanes import Beside, Lanes
from fastswa.training.loop import Trainer
from fastswa.training.run import NewRun, OldRun, RunResult, attempt_together, train_together
from tiny_runs import StoppingWatcher, assert_same_run, go_on, quiet, tiny, train


class Turns(Lanes):
    """Lanes that take turns as on a GPU, but on the CPU; `order` keeps who stepped when."""

    order: list[int]

    def __init__(self, compute: Compute, beside: Beside | None = None) -> None:
        super().__init__(compute, beside)
        self._cuda = True
        Turns.order = []

    def _lane(self, number: int) -> AbstractContextManager[object]:
        Turns.order.append(number)
        return nullcontext()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "Lanes", Turns)


@pytest.mark.usefixtures("turns")
def test_resumed_runs_take_turns_and_end_as_their_solo_runs(tmp_path: Path) -> None:
    """One was stopped within an epoch, one at an epoch's edge, one is new: they go on together."""
    train(tiny({"seed": 3}), tmp_path / "a", StoppingWatcher(stop=4))
    train(tiny({"seed": 4}), tmp_path / "b", StoppingWatcher(stop=6))
    results = train_together(
        [
            OldRun(tmp_path / "a", StoppingWatcher()),
            OldRun(tmp_path / "b", StoppingWatcher()),
            NewRun(tiny({"seed": 5}), tmp_path / "c", StoppingWatcher()),
        ],
        quiet,
    )
    assert all(result.finished for result in results)
    assert Turns.order[3:9] == [0, 1, 2, 0, 1, 2]
    for name, seed in (("a", 3), ("b", 4), ("c", 5)):
        train(tiny({"seed": seed}), tmp_path / f"solo-{seed}")
        assert_same_run(tmp_path / name, tmp_path / f"solo-{seed}")


def counts(run: Path) -> list[int]:
    """How many runs shared the device at each evaluation."""
    return [line["together"] for line in RunFolder(run).metrics()]


def at_once(run: Path) -> int:
    number: int = RunFolder(run).known_environment()["together"]
    return number


@pytest.mark.usefixtures("turns")
def test_each_evaluation_says_how_many_shared_the_device(tmp_path: Path) -> None:
    """Two begin, one ends after an epoch; the other is stopped, and goes on alone."""
    attempts = [
        NewRun(tiny({"schedule": {"epochs": 1, "length": 1}}), tmp_path / "short", StoppingWatcher()),
        NewRun(tiny({"seed": 4}), tmp_path / "long", StoppingWatcher(stop=6)),
    ]
    train_together(attempts, quiet)
    assert (counts(tmp_path / "short"), counts(tmp_path / "long")) == ([2], [2, 1])
    go_on(tmp_path / "long")
    assert (counts(tmp_path / "long"), at_once(tmp_path / "long")) == ([2, 1, 1, 1], 2)


@pytest.mark.usefixtures("turns")
def test_a_run_that_goes_on_beside_others_did_not_run_alone(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "a", StoppingWatcher(stop=6))
    assert (counts(tmp_path / "a"), at_once(tmp_path / "a")) == ([1, 1], 1)
    train_together(
        [OldRun(tmp_path / "a", StoppingWatcher()), NewRun(tiny(), tmp_path / "b", StoppingWatcher())], quiet
    )
    assert (counts(tmp_path / "a"), at_once(tmp_path / "a")) == ([1, 1, 2, 2], 2)


def test_runs_one_after_the_other_each_had_the_device(tmp_path: Path) -> None:
    train_together([NewRun(tiny({"seed": n}), tmp_path / str(n), StoppingWatcher()) for n in (3, 4)], quiet)
    for name in ("3", "4"):
        assert (counts(tmp_path / name), at_once(tmp_path / name)) == ([1] * 4, 1)


@pytest.mark.usefixtures("turns")
def test_a_run_that_fails_leaves_the_others_going(tmp_path: Path) -> None:
    """One cannot be made ready, one breaks at its first large step; the last one ends as if alone."""
    broken = tiny({"seed": 4, "optimiser": {"lr": 1e38}})
    attempts = [
        OldRun(tmp_path / "nowhere", StoppingWatcher()),
        NewRun(broken, tmp_path / "broken", StoppingWatcher()),
        NewRun(tiny({"seed": 3}), tmp_path / "good", StoppingWatcher()),
    ]
    absent, failed, good = attempt_together(attempts, quiet)
    assert isinstance(absent, RequestError)
    assert "holds no run" in str(absent)
    assert isinstance(failed, RunError)
    assert "no longer finite" in str(failed)
    assert isinstance(good, RunResult)
    train(tiny({"seed": 3}), tmp_path / "solo")
    assert_same_run(tmp_path / "good", tmp_path / "solo")


def test_an_error_that_is_kept_keeps_nothing_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines stay, so that it can be told where it came from; a network and its graph would fill a GPU."""
    held: list[ReferenceType[Trainer]] = []
    real = Trainer.check
    monkeypatch.setattr(Trainer, "check", lambda self: (held.append(ref(self)), real(self))[1])
    broken = NewRun(tiny({"optimiser": {"lr": 1e38}}), tmp_path / "broken", StoppingWatcher())
    [(_, error)] = train_groups([broken], 1, quiet)
    assert isinstance(error, RunError)
    gc.collect()
    assert [trainer() for trainer in held] == [None]
    assert len(extract_tb(error.__traceback__)) > 1


def test_a_failure_is_raised_once_the_others_are_done(tmp_path: Path) -> None:
    broken = NewRun(tiny({"optimiser": {"lr": 1e38}}), tmp_path / "broken", StoppingWatcher())
    good = NewRun(tiny({"seed": 4}), tmp_path / "good", StoppingWatcher())
    with pytest.raises(RunError, match="no longer finite"):
        train_together([broken, good], quiet)
    assert (tmp_path / "good" / "model.safetensors").exists()


def test_nothing_starts_unless_all_can(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    train(tiny({"schedule": {"epochs": 1}}), taken)
    attempts = [NewRun(tiny(), tmp_path / "new", StoppingWatcher()), NewRun(tiny(), taken, StoppingWatcher())]
    with pytest.raises(RequestError, match="already holds a run"):
        train_together(attempts, quiet)
    assert not (tmp_path / "new").exists()


def test_runs_of_different_arithmetic_are_not_mixed(tmp_path: Path) -> None:
    one, two = tiny({"schedule": {"epochs": 1}}), tiny({"device": {"precision": "fp64"}})
    attempts = [NewRun(one, tmp_path / "one", StoppingWatcher()), NewRun(two, tmp_path / "two", StoppingWatcher())]
    first, second = attempt_together(attempts, quiet)
    assert isinstance(first, RunResult)
    assert "different settings of [device]" in str(second)
