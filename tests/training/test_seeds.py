"""Several seeds of one recipe: each as if alone, and their mean and std."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, stdev

from conftest import Command
from fastswa.training.lanes import Lanes
from fastswa.training.run import RunResult
from fastswa.training.seeds import summarise
from tiny_runs import FLAGS, StoppingWatcher, assert_same_run, make_trainer, metrics, tiny, train

SHORT = FLAGS[2:]


def test_each_seed_ends_as_its_solo_run_and_the_summary_sums_them_up(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    answer = command("train", "digits-mean-teacher", "--seeds", "3,4", "--out", out, "--no-report", *SHORT)
    assert (answer.code, answer.out) == (0, f"{out}: done; mean and std over 2 seeds are in {out}/summary.json\n")
    for seed in (3, 4):
        train(tiny({"seed": seed}), tmp_path / f"solo-{seed}")
        assert_same_run(out / f"seed-{seed}", tmp_path / f"solo-{seed}")
    errors = [metrics(out / f"seed-{seed}")[-1]["error"]["fast_swa"] for seed in (3, 4)]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["error"]["4"]["fast_swa"] == {"mean": mean(errors), "std": stdev(errors), "n": 2}
    assert summary["finished"]


def test_a_folder_of_seeds_is_extended_as_a_whole(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert command("train", "digits-mean-teacher", "--seeds", "3,4", "--out", out, *SHORT, "--epochs", "2").code == 0
    assert command("resume", out, "--epochs", "4").code == 0
    for seed in (3, 4):
        train(tiny({"seed": seed}), tmp_path / f"solo-{seed}")
        assert_same_run(out / f"seed-{seed}", tmp_path / f"solo-{seed}")
    assert list(json.loads((out / "summary.json").read_text())["error"]) == ["1", "2", "3", "4"]


def test_a_seed_named_twice_is_refused(command: Command, tmp_path: Path) -> None:
    answer = command("train", "digits-mean-teacher", "--seeds", "3,3", "--out", tmp_path / "runs")
    assert answer == (2, "", "fastswa: --seeds: a seed is named twice.\n")


def test_runs_that_take_turns_do_not_disturb_each_other(tmp_path: Path) -> None:
    """As on a GPU, but on the CPU: one step of each in turn."""
    trainers = [make_trainer(tiny({"seed": seed}), tmp_path / f"turns-{seed}") for seed in (3, 4)]
    for trainer in trainers:
        trainer.check()
        trainer.folder.create(trainer.config)
    lanes = Lanes(trainers[0].compute)
    lanes._cuda = True
    lanes._lane = lambda number: nullcontext()  # type: ignore[method-assign]
    watchers = [StoppingWatcher() for _ in trainers]
    lanes.run([trainer.steps(watcher) for trainer, watcher in zip(trainers, watchers, strict=True)])
    for seed in (3, 4):
        train(tiny({"seed": seed}), tmp_path / f"solo-{seed}")
        assert_same_run(tmp_path / f"turns-{seed}", tmp_path / f"solo-{seed}")


def test_summary_of_one_run_has_no_std() -> None:
    result = RunResult(Path("seed-1"), [{"epoch": 1, "error": {"student": 5.0}}], True)
    assert summarise([result])["error"] == {"1": {"student": {"mean": 5.0, "std": None, "n": 1}}}
