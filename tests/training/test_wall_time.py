"""The time from the command to the written model: what is in it, over all parts of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import fastswa
from conftest import Command
from fastswa.results import keep_record, record
from fastswa.training import run as runs
from fastswa.training.checkpoint import _digest
from fastswa.training.folder import RunFolder
from fastswa.training.run import NewRun, train_new, train_together
from tiny_runs import FLAGS, TINY, Killed, StoppingWatcher, checkpoint, go_on, quiet, tiny, train

HOUR = 3600.0


class Sleepy(StoppingWatcher):
    """A run whose evaluations take a tenth of a second longer."""

    def evaluated(self, line: Any) -> None:
        time.sleep(0.1)
        super().evaluated(line)


def wall(run: Path) -> float | None:
    seconds: float | None = RunFolder(run).known_environment().get("wall_seconds")
    return seconds


def last(run: Path) -> float:
    return float(RunFolder(run).metrics()[-1]["seconds"])


def test_it_goes_from_the_beginning_of_the_command_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour before the call and a tenth of a second each of reading images and of writing models are in it."""
    load, write = runs.load_data, RunFolder.write_models

    def slow_load(config: Any) -> Any:
        time.sleep(0.1)
        return load(config)

    def slow_write(*arguments: Any) -> None:
        time.sleep(0.1)
        write(*arguments)

    monkeypatch.setattr(runs, "load_data", slow_load)
    monkeypatch.setattr(RunFolder, "write_models", slow_write)
    began = time.monotonic() - HOUR
    train_new(tiny(), tmp_path / "run", StoppingWatcher(), quiet, began=began)
    ended = time.monotonic() - began
    found = wall(tmp_path / "run")
    assert found is not None
    assert HOUR + last(tmp_path / "run") + 0.2 <= found <= ended


def test_a_command_and_a_call_keep_it(tmp_path: Path, command: Command) -> None:
    began = time.monotonic()
    assert command("train", "digits-mean-teacher", *FLAGS, "--no-report", "--out", tmp_path / "a").code == 0
    fastswa.fit("digits-mean-teacher", settings=TINY, out=tmp_path / "b")
    ended = time.monotonic()
    found = [wall(tmp_path / name) for name in ("a", "b")]
    assert all(one is not None and last(tmp_path / name) < one for one, name in zip(found, "ab", strict=True))
    assert sum(filter(None, found)) <= ended - began


def test_parts_are_added_up_and_what_lies_between_them_is_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_new(tiny(), run, StoppingWatcher(stop=6), quiet, began=time.monotonic() - HOUR)
    assert wall(run) is None  # it has no model yet
    facts = json.loads((checkpoint(run, 6) / "facts.json").read_text())
    before = facts["seconds"] + facts["overhead_seconds"]
    time.sleep(0.2)
    began = time.monotonic()
    go_on(run)
    taken = time.monotonic() - began
    found = wall(run)
    assert found is not None
    assert HOUR < before < found <= before + taken
    go_on(run, schedule={"epochs": 5})
    extended = wall(run)
    assert extended is not None
    assert found < extended


def test_a_killed_part_counts_as_far_as_its_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Killed):
        train_new(tiny(), run, StoppingWatcher(kill=8), quiet, began=time.monotonic() - HOUR)
    go_on(run)
    found = wall(run)
    assert found is not None
    assert HOUR < found < HOUR + 60


def test_runs_one_after_the_other_have_a_time_each(tmp_path: Path) -> None:
    watchers = (Sleepy(), StoppingWatcher())
    began = time.monotonic()
    configs = [tiny({"seed": seed}) for seed in (3, 4)]
    pairs = zip(configs, watchers, strict=True)
    train_together([NewRun(config, tmp_path / str(config.seed), watcher) for config, watcher in pairs], quiet)
    ended = time.monotonic()
    slow, quick = wall(tmp_path / "3"), wall(tmp_path / "4")
    assert slow is not None
    assert quick is not None
    assert slow >= 0.4
    assert slow + quick <= ended - began + 0.2  # both count the little before the first


def test_a_record_holds_it_and_a_run_from_before_it_was_kept_has_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=6))
    facts = checkpoint(run, 6) / "facts.json"
    assert record(run)["wall_seconds"] is None
    known = {k: v for k, v in json.loads(facts.read_text()).items() if k not in ("overhead_seconds", "digest")}
    digest = _digest(facts.with_name("tensors.safetensors"), known)
    facts.write_text(json.dumps({**known, "digest": digest}))
    go_on(run)
    assert record(run)["wall_seconds"] is None
    train(tiny(), tmp_path / "new")
    kept = json.loads(keep_record(tmp_path / "new", tmp_path / "results", "new").read_text())
    assert kept["wall_seconds"] == wall(tmp_path / "new")
    assert "wall_seconds" not in kept["environment"]
