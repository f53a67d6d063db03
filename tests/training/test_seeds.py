"""Several seeds of one recipe: each as if alone, and their mean and std."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, stdev

import pytest

from conftest import Command
from fastswa.config import Config
from fastswa.errors import RequestError, RunError
from fastswa.training import groups
from fastswa.training.folder import RunFolder
from fastswa.training.lanes import Lanes
from fastswa.training.run import NewRun, RunResult, Say
from fastswa.training.seeds import resume_seeds, summarise, train_seeds
from tiny_runs import FLAGS, Killed, StoppingWatcher, assert_same_run, make_trainer, metrics, quiet, tiny, train

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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--seeds", "1,,2"), "--seeds: '1,,2' is not a list of whole numbers, such as 10,11,12."),
        (("--seeds", ","), "--seeds: ',' is not a list of whole numbers, such as 10,11,12."),
        (("--seeds", "1,2", "--seed", "3"), "--seeds names the seeds that are trained; leave out --seed."),
        (("--seeds", "1,1"), "--seeds: a seed is named twice."),
    ],
)
def test_seeds_that_cannot_be_meant_are_refused(
    command: Command, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "runs", *words)
    assert answer == (2, "", f"fastswa: {sentence}\n")
    assert not (tmp_path / "runs").exists()


def test_a_folder_of_seeds_is_extended_as_a_whole(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert command("train", "digits-mean-teacher", "--seeds", "3,4", "--out", out, *SHORT, "--epochs", "2").code == 0
    assert command("resume", out, "--epochs", "4").code == 0
    for seed in (3, 4):
        train(tiny({"seed": seed}), tmp_path / f"solo-{seed}")
        assert_same_run(out / f"seed-{seed}", tmp_path / f"solo-{seed}")
    assert list(json.loads((out / "summary.json").read_text())["error"]) == ["1", "2", "3", "4"]


def test_seeds_trained_later_into_the_same_folder_join_the_summary(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    settings = ["digits-mean-teacher", "--out", out, "--no-report", *SHORT, "--epochs", "1"]
    assert command("train", "--seeds", "3,4", *settings).code == 0
    answer = command("train", "--seeds", "5,6", *settings)
    assert answer.out == f"{out}: done; mean and std over 4 seeds are in {out}/summary.json\n"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["runs"] == ["seed-3", "seed-4", "seed-5", "seed-6"]
    assert summary["error"]["1"]["student"]["n"] == 4
    answer = command("train", "--seeds", "7,8", *settings, "--optimiser.lr", "0.02")
    assert f"fastswa: {out}/seed-3 has another optimiser.lr; {out}/summary.json leaves it out.\n" in answer.err
    assert json.loads((out / "summary.json").read_text())["runs"] == ["seed-7", "seed-8"]


def test_a_seed_that_fails_is_named_and_the_others_are_summed_up(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NewRun.settings

    def doomed(run: NewRun) -> Config:
        config = real(run)
        rate = 1e38 if config.seed == 4 else config.optimiser.lr
        return config.model_copy(update={"optimiser": config.optimiser.model_copy(update={"lr": rate})})

    monkeypatch.setattr(NewRun, "settings", doomed)
    out = tmp_path / "runs"
    answer = command("train", "digits-mean-teacher", "--seeds", "3,4,5", "--out", out, "--no-report", *SHORT)
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("fastswa: seed-4: ")
    assert "no longer finite" in answer.err
    assert json.loads((out / "summary.json").read_text())["runs"] == ["seed-3", "seed-5"]


def test_what_every_seed_lacks_is_said_once_and_leaves_nothing_behind(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    answer = command("train", "digits-mean-teacher", "--seeds", "3,4", "--out", out, *SHORT, "--split.labels", "99999")
    assert answer.code == 2
    assert answer.err.startswith("fastswa: split.labels")
    assert answer.err.count("\n") == 1
    assert not out.exists()


def test_many_seeds_are_trained_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = groups.attempt_together

    def counted(attempts: Sequence[NewRun], say: Say, began: float | None) -> list[RunResult | Exception]:
        sizes.append(len(attempts))
        return real(attempts, say, began=began)

    monkeypatch.setattr(groups, "attempt_together", counted)
    monkeypatch.setitem(groups.TOGETHER, "cpu", 3)
    configs = [tiny({"seed": seed, "schedule": {"epochs": 1, "length": 1}}) for seed in range(7)]
    results = train_seeds(configs, tmp_path, {seed: StoppingWatcher() for seed in range(7)}, quiet)
    assert sizes == [3, 3, 1]
    assert [result.path.name for result in results] == [f"seed-{seed}" for seed in range(7)]


def test_a_stopped_command_leaves_every_seed_begun(tmp_path: Path) -> None:
    """So that going on with the folder is going on with all of them."""
    watchers = {seed: StoppingWatcher(stop=2) for seed in (3, 4)}
    train_seeds([tiny({"seed": seed}) for seed in (3, 4)], tmp_path / "runs", watchers, quiet)
    resume_seeds(tmp_path / "runs", {}, {seed: StoppingWatcher() for seed in (3, 4)}, quiet)
    for seed in (3, 4):
        train(tiny({"seed": seed}), tmp_path / f"solo-{seed}")
        assert_same_run(tmp_path / "runs" / f"seed-{seed}", tmp_path / f"solo-{seed}")


def test_seeds_that_a_kill_came_before_are_gone_on_with_too(command: Command, tmp_path: Path) -> None:
    """One split for both, which is the first one's seed: the second keeps to it."""
    out, same = tmp_path / "runs", {"split": {"seed": 3}}
    watchers = {seed: StoppingWatcher(kill=5) for seed in (3, 4)}
    with pytest.raises(Killed):
        train_seeds([tiny({"seed": seed}, same) for seed in (3, 4)], out, watchers, quiet)
    assert not (out / "seed-4").exists()
    answer = command("resume", out, "--no-report")
    assert (answer.code, answer.out) == (0, f"{out}: done; mean and std over 2 seeds are in {out}/summary.json\n")
    assert f"fastswa: {out}/seed-4 was not begun; starting from step 0.\n" in answer.err
    for seed in (3, 4):
        train(tiny({"seed": seed}, same), tmp_path / f"solo-{seed}")
        assert_same_run(out / f"seed-{seed}", tmp_path / f"solo-{seed}")
    assert (out / "seed-4/config.toml").read_bytes() == (tmp_path / "solo-4/config.toml").read_bytes()


def test_seeds_one_of_which_is_past_the_epochs_asked_for_stay_as_they_are(command: Command, tmp_path: Path) -> None:
    """The other could be trained on, but then they would end at different epochs."""
    out = tmp_path / "runs"
    watchers = {3: StoppingWatcher(stop=2), 4: StoppingWatcher(stop=8)}
    train_seeds([tiny({"seed": seed}) for seed in (3, 4)], out, watchers, quiet)
    before = files_of(out)
    answer = command("resume", out, "--epochs", "2", "--no-report")
    sentence = f"{out}/seed-4 is at epoch 2.66667 already, past the 2 asked for; give --epochs 3 or more."
    assert answer == (2, "", f"fastswa: {sentence}\n")
    assert files_of(out) == before
    assert command("resume", out, "--no-report").code == 0
    assert json.loads((out / "summary.json").read_text())["finished"]


@pytest.mark.parametrize("damage", ["damaged", "other", "held"])
def test_what_the_second_seed_is_refused_for_is_said_before_the_first_goes_on(damage: str, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    watchers = {seed: StoppingWatcher(stop=4) for seed in (3, 4)}
    train_seeds([tiny({"seed": seed}) for seed in (3, 4)], out, watchers, quiet)
    before, second = files_of(out), RunFolder(out / "seed-4")
    settings = before["seed-4/config.toml"].decode()
    texts = {"damaged": "nonsense", "other": settings.replace("[optimiser]", "[optimiser]\nbeta2 = 0.5")}
    texts["other"] = texts["other"].replace("beta2 = 0.999\n", "")
    (second.path / "config.toml").write_text(texts.get(damage, settings))
    with second.held() if damage == "held" else nullcontext(), pytest.raises(RequestError, match="seed-4"):
        resume_seeds(out, {}, {seed: StoppingWatcher() for seed in (3, 4)}, quiet)
    changed = {name for name, content in files_of(out).items() if before[name] != content}
    assert changed <= {"seed-4/config.toml"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_seeds_that_end_at_different_epochs_are_no_finished_summary(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    settings = ["digits-mean-teacher", "--out", out, "--no-report", *SHORT]
    assert command("train", "--seeds", "3", *settings, "--epochs", "2").code == 0
    answer = command("train", "--seeds", "4", *settings)
    assert answer.code == 0
    sentence = (
        f"fastswa: {out}: the seeds end at different epochs (seed-3 at 2, seed-4 at 4), and {out}/summary.json is not "
        f"finished; `fastswa resume {out} --epochs 4` takes all of them as far.\n"
    )
    assert sentence in answer.err
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["finished"], summary["runs"]) == (False, ["seed-3", "seed-4"])
    assert [summary["error"][epoch]["student"]["n"] for epoch in ("2", "4")] == [2, 1]
    answer = command("resume", out, "--epochs", "4", "--no-report")
    assert (answer.code, "different epochs" in answer.err) == (0, False)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["finished"], summary["error"]["4"]["student"]["n"]) == (True, 2)


def test_models_of_before_an_extension_do_not_make_a_seed_finished(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    settings = ["digits-mean-teacher", "--out", out, "--no-report", *SHORT]
    assert command("train", "--seeds", "3", *settings, "--epochs", "2").code == 0
    resume_seeds(out, {"schedule": {"epochs": 4}}, {3: StoppingWatcher(stop=8)}, quiet)
    assert command("train", "--seeds", "4", *settings).code == 0
    assert not json.loads((out / "summary.json").read_text())["finished"]


def test_a_run_that_can_be_gone_on_with_knows_the_seeds_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings, by which a folder is known as a run's, are written after everything else of its beginning."""
    written: list[str] = []
    real = RunFolder._write
    monkeypatch.setattr(RunFolder, "_write", lambda self, name, text: (written.append(name), real(self, name, text))[1])
    train_seeds([tiny({"seed": 3})], tmp_path / "runs", {3: StoppingWatcher(stop=1)}, quiet)
    assert written[:2] == ["environment.json", "config.toml"]


def test_every_seed_that_fails_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    rates = {3: 1e38, 4: 0.05, 5: 1e37}
    configs = [tiny({"seed": seed, "optimiser": {"lr": rate}}) for seed, rate in rates.items()]
    watchers = {3: StoppingWatcher(), 4: StoppingWatcher(), 5: StoppingWatcher(stop=2)}
    with pytest.raises(RunError, match=r"^seed-3: the loss or a weight is no longer finite"):
        train_seeds(configs, tmp_path / "runs", watchers, said.append)
    assert [line for line in said if line.startswith("seed-5: the loss or a weight is no longer finite")]


def test_a_summary_that_cannot_be_written_is_a_failure_after_training(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    (out / "summary.json").mkdir(parents=True)
    answer = command("train", "digits-mean-teacher", "--seeds", "3", "--out", out, "--no-report", *SHORT)
    assert (answer.code, answer.err.splitlines()[-1]) == (
        1,
        f"fastswa: cannot write {out}/summary.json: Is a directory.",
    )
    assert [file.name for file in sorted(out.iterdir())] == ["seed-3", "summary.json"]


def test_one_run_and_several_seeds_do_not_share_a_folder(tmp_path: Path) -> None:
    one = tiny({"schedule": {"epochs": 1, "length": 1}})
    train_seeds([one], tmp_path / "several", {3: StoppingWatcher()}, quiet)
    with pytest.raises(RequestError, match="several holds the runs of several seeds; choose another --out"):
        train(one, tmp_path / "several")
    train(one, tmp_path / "one")
    with pytest.raises(RequestError, match="one holds a run of one seed; choose another --out"):
        train_seeds([one], tmp_path / "one", {3: StoppingWatcher()}, quiet)


@pytest.mark.parametrize("seeds", [",", "-1", "1,x", "²"])
def test_what_is_no_list_of_seeds_is_refused(seeds: str, command: Command, tmp_path: Path) -> None:
    answer = command("train", "digits-mean-teacher", "--seeds", seeds, "--out", tmp_path / "runs")
    assert answer == (2, "", f"fastswa: --seeds: '{seeds}' is not a list of whole numbers, such as 10,11,12.\n")


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
