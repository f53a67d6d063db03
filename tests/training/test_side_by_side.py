"""Several seeds on a CPU at the same time: a process each, with its share of the cores."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch

from fastswa.config import Config
from fastswa.errors import RunError
from fastswa.training import processes, shares
from fastswa.training.budget import Budget
from fastswa.training.device import looking_on
from fastswa.training.folder import RunFolder
from fastswa.training.run import NewRun, OldRun, RunResult, parent_layer
from fastswa.training.seeds import resume_seeds, seeds_to_come, train_seeds
from tiny_runs import FLAGS, StoppingWatcher, assert_same_run, checkpoints, quiet, tiny, train

ANY_THREADS: dict[str, Any] = {"device": {"name": "cpu", "threads": None}}
ENDLESS = {"schedule": {"epochs": 1_000_000}, "checkpoint": {"every": 1_000_000}}


def of_seed(seed: int, *changes: Mapping[str, Any]) -> Config:
    return tiny(ANY_THREADS, {"seed": seed}, *changes)


class Heard(StoppingWatcher):
    """Keeps what it hears, and stops its run from the first question on if it is told to."""

    def __init__(self, stops: bool = False, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.stops, self.then, self.began = stops, then, False

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
        self.began = True

    def evaluated(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)
        self.then()

    def should_stop(self) -> bool:
        return self.stops


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started, on a machine of two cores."""
    found: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*words: Any, **named: Any) -> subprocess.Popen[bytes]:
        process = real(*words, **named)
        if words[0][0] == sys.executable:  # and not git's, which says what revision this is
            found.append(process)
        return process

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    monkeypatch.setattr(shares, "usable_cores", lambda: 2)
    return found


def test_each_ends_as_its_solo_run_with_as_many_threads(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """The third has both cores to itself."""
    watchers, said, told = {seed: Heard() for seed in (3, 4, 5)}, list[str](), list[str]()
    late = {"averaging": {"late": {"kind": "swa", "start": 9}}}
    out = tmp_path / "runs"
    configs = [of_seed(seed, late, {"schedule": {"epochs": 2}}) for seed in (3, 4, 5)]
    results = train_seeds(configs, out, watchers, said.append, tell=told.append)
    assert [result.finished for result in results] == [True] * 3
    assert len(started) == 2
    assert said == ["seed-3, seed-4: side by side, each with 1 thread."]
    assert [line.partition(" (")[0] for line in told] == ["training ends at epoch 2"]
    for seed in (3, 4):
        train_solo = tiny({"seed": seed}, late, {"schedule": {"epochs": 2}})
        processes.attempt_together([NewRun(train_solo, tmp_path / f"solo-{seed}", Heard())], quiet)
        assert_same_run(out / f"seed-{seed}", tmp_path / f"solo-{seed}")
        files = [(folder / "config.toml").read_bytes() for folder in (out / f"seed-{seed}", tmp_path / f"solo-{seed}")]
        assert files[0] == files[1]
        facts = RunFolder(out / f"seed-{seed}").known_environment()
        assert (facts["threads"], facts["together"]) == (1, 2)
        assert watchers[seed].began
        assert watchers[seed].lines == RunFolder(out / f"seed-{seed}").metrics()
    assert RunFolder(out / "seed-5").config().device.threads is None
    assert RunFolder(out / "seed-5").known_environment()["together"] == 1
    # A share is of no use to what begins later: a fork, a seed that a kill came before.
    assert "threads" not in parent_layer(str(out / "seed-3"))["device"]
    rmtree(out / "seed-4")
    for changes, threads in (({}, None), ({"device": {"threads": 2}}, 2)):
        assert [config.device.threads for config in seeds_to_come(out, changes)] == [threads]


def test_looking_at_a_run_that_shared_the_cores_may_use_all() -> None:
    assert [looking_on("cpu", tiny().device, shared=shared).threads for shared in (False, True)] == [1, None]


def test_what_fails_or_is_killed_is_one_sentence_and_the_others_go_on(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "usable_cores", lambda: 3)
    out, said = tmp_path / "runs", list[str]()
    configs = [of_seed(3, {"optimiser": {"lr": 1e38}}), of_seed(4, ENDLESS), of_seed(5)]
    watchers = {3: Heard(), 4: Heard(then=lambda: os.kill(started[1].pid, signal.SIGKILL)), 5: Heard()}
    with pytest.raises(RunError, match=r"^seed-3: the loss or a weight is no longer finite") as failure:
        train_seeds(configs, out, watchers, said.append)
    cause = failure.value.__cause__
    assert isinstance(cause, RunError)
    assert "_check_finite" in "".join(cause.__notes__)
    assert said[-1] == (
        "seed-4: the process that trained it was killed (SIGKILL), as happens where memory is short; "
        f"`fastswa resume {out}/seed-4` goes on."
    )
    train(tiny({"seed": 5}), tmp_path / "solo")
    assert_same_run(out / "seed-5", tmp_path / "solo")


def test_stopped_runs_are_saved_and_go_on_side_by_side(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    out, longer = tmp_path / "runs", {"schedule": {"epochs": 20}, "evaluation": {"every": 20}}
    watchers = {seed: Heard(stops=True) for seed in (3, 4)}
    results = train_seeds([of_seed(seed, longer) for seed in (3, 4)], out, watchers, [].append)
    assert [result.finished for result in results] == [False, False]
    assert all(checkpoints(result.path) for result in results)
    results = resume_seeds(out, {}, {seed: Heard() for seed in (3, 4)}, [].append)
    assert [result.finished for result in results] == [True, True]
    assert len(started) == 4
    for seed in (3, 4):
        train(tiny({"seed": seed}, longer), tmp_path / f"solo-{seed}")
        assert_same_run(out / f"seed-{seed}", tmp_path / f"solo-{seed}")
        assert RunFolder(out / f"seed-{seed}").known_environment()["together"] == 2


def test_an_interrupt_leaves_no_process(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    watchers = {seed: Heard(then=interrupt) for seed in (3, 4)}
    with pytest.raises(KeyboardInterrupt):
        train_seeds([of_seed(seed, ENDLESS) for seed in (3, 4)], tmp_path / "runs", watchers, [].append)
    assert [process.poll() for process in started] == [-signal.SIGKILL] * 2


def test_a_run_whose_parent_is_gone_stops_and_is_saved(tmp_path: Path) -> None:
    run = NewRun(tiny(ENDLESS), tmp_path / "run", Heard())
    with processes._started([processes._order(run, 2, 0.0)]) as [process]:
        assert process.stdin is not None
        assert process.stdout is not None
        assert pickle.load(process.stdout)[0] == "begin"
        process.stdin.close()
        process.stdout.close()
        assert process.wait() == 0
    assert checkpoints(tmp_path / "run")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal")
def test_an_interrupt_of_the_terminal_stops_and_saves_all(tmp_path: Path) -> None:
    """It reaches every process of the group; a machine of one core trains the seeds in turn, which ends the same."""
    words = ["train", "digits-mean-teacher", "--seeds", "3,4", "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "fastswa", *words, *FLAGS[2:12], "--epochs", "1000000", "--evaluation.every", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        first = next(line for line in process.stderr if "epoch" in line)
        assert first.startswith(("seed 3  epoch", "seed 4  epoch"))
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 1
    assert "fastswa: stopping after this step; once more to stop at once.\n" in rest
    assert rest.endswith(f"fastswa: stopped and saved; go on with `fastswa resume {tmp_path}/runs`.\n")
    assert all(checkpoints(tmp_path / "runs" / f"seed-{seed}") for seed in (3, 4))
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def sizes(configs: list[Config], *, budget: Budget | None = None) -> list[tuple[int, ...]]:
    runs = [NewRun(config, Path(f"seed-{number}"), Heard(), budget) for number, config in enumerate(configs)]
    groups = shares.groups_of(runs, configs)
    for group in groups:
        for run in group.runs:
            assert isinstance(run, NewRun)
            assert run.config.device.threads == (group.threads if len(group.runs) > 1 else configs[0].device.threads)
    return [group.numbers for group in groups]


@pytest.mark.parametrize(
    ("count", "cores", "expected", "threads"),
    [
        (1, 8, [1], [8]),
        (2, 1, [1, 1], [1, 1]),
        (2, 2, [2], [1]),
        (3, 2, [2, 1], [1, 2]),
        (3, 8, [3], [2]),
        (10, 8, [8, 2], [1, 4]),
    ],
)
def test_equal_shares_of_the_cores(
    count: int, cores: int, expected: list[int], threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "usable_cores", lambda: cores)
    configs = [of_seed(seed) for seed in range(count)]
    runs = [NewRun(config, Path(f"seed-{config.seed}"), Heard()) for config in configs]
    groups = shares.groups_of(runs, configs)
    assert [len(group.numbers) for group in groups] == expected
    assert [group.threads for group in groups] == threads
    assert [number for group in groups for number in group.numbers] == list(range(count))


@pytest.mark.parametrize(
    "changes",
    [{"device": {"threads": 1}}, {"device": {"deterministic": True}}, {"device": {"engine": "compiled"}}],
    ids=["threads", "deterministic", "compiled"],
)
def test_runs_with_these_settings_are_trained_in_turn(
    changes: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "usable_cores", lambda: 2)
    assert sizes([of_seed(seed) for seed in (3, 4)]) == [(0, 1)]
    assert sizes([of_seed(seed, changes) for seed in (3, 4)]) == [(0,), (1,)]


def test_one_measured_length_is_for_runs_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "usable_cores", lambda: 2)
    assert sizes([of_seed(seed) for seed in (3, 4)], budget=Budget(1.0)) == [(0,), (1,)]


def test_no_more_at_once_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "usable_cores", lambda: 4)
    configs = [of_seed(seed) for seed in range(4)]
    each = shares._PROCESS + (64 << 20)
    for free, expected in ((9 * each, 4), (6 * each, 3), (3 * each, 1), (each, 1)):
        monkeypatch.setattr(shares, "free_memory", lambda device, free=free: free)
        assert len(sizes(configs)[0]) == expected


def test_memory_of_a_step_grows_with_batch_and_images() -> None:
    """A batch of 100 of `small` with four maps: its first layer alone keeps several times 100 x 4 x 8 x 8 floats."""
    dataset = shares.load_data(of_seed(3))
    one, two = (shares._pass(of_seed(3, {"batch": {"size": size}}), dataset) for size in (100, 200))
    assert one > 4 * 100 * 4 * 64 * 4
    assert 1.9 < two / one < 2.0


def test_usable_are_no_more_than_torchs_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "cores", lambda: 8)
    assert shares.usable_cores() == torch.get_num_threads() == 1


def test_begun_runs_keep_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that began beside others go on so, on whatever cores there are; other threads are a person's choice."""
    short = {"schedule": {"epochs": 1, "length": 1}}
    for name, together in (("a", 2), ("b", 2), ("c", 1)):
        train(tiny(short), tmp_path / name)
        RunFolder(tmp_path / name).amend_environment(together=together)

    def planned(changes: Mapping[str, Any], cores: int) -> list[tuple[int, ...]]:
        monkeypatch.setattr(shares, "usable_cores", lambda: cores)
        runs = [OldRun(tmp_path / name, Heard(), changes) for name in "acb"]
        return [group.numbers for group in shares.groups_of(runs, [run.settings() for run in runs])]

    assert planned({}, 2) == planned({}, 8) == [(1,), (0, 2)]
    assert planned({}, 1) == [(1,), (0,), (2,)]
    assert planned({"device": {"threads": 2}}, 2) == [(0,), (1,), (2,)]


def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    class Local(Exception):
        pass

    try:
        raise Local("what went wrong")
    except Local as error:
        sent = pickle.loads(pickle.dumps(processes._sendable(error)))
    assert isinstance(sent, RuntimeError)
    assert str(sent) == "Local: what went wrong"
    assert "test_an_error_that_cannot_be_sent" in "".join(sent.__notes__)


def test_what_is_said_of_a_run_begins_with_its_name() -> None:
    said: list[str] = []
    processes._hearers(NewRun(tiny(), Path("runs/seed-3"), Heard()), said.append)["say"]("it was said.")
    assert said == ["seed-3: it was said."]


def test_results_arrive_as_they_are() -> None:
    result = RunResult(Path("runs/seed-3"), [{"epoch": 1}], True)
    assert pickle.loads(pickle.dumps(result)) == result
