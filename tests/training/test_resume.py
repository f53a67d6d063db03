"""Stopped, killed, extended or edited: a resumed run ends bit for bit as an undisturbed one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Command
from fastswa.cli import main
from fastswa.config import RESUMABLE
from fastswa.errors import RequestError
from fastswa.layers import fields
from fastswa.training.folder import RunFolder
from fastswa.training.run import train_new
from tiny_runs import (
    EPOCHS,
    FLAGS,
    METHODS,
    STEPS,
    Killed,
    StoppingWatcher,
    assert_identical,
    assert_same_run,
    checkpoint,
    checkpoints,
    go_on,
    metrics,
    models,
    tiny,
    train,
)

LONG = [*FLAGS, "--epochs", "40", "--checkpoint.every", "10"]


def kill_train(config_out: Callable[[StoppingWatcher], object], **when: int) -> None:
    with pytest.raises(Killed):
        config_out(StoppingWatcher(**when))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stopped_within_epochs_and_resumed_ends_as_an_undisturbed_one(method: str, tmp_path: Path) -> None:
    config = tiny({"method": METHODS[method]})
    reference, run = tmp_path / "reference", tmp_path / "run"
    assert train(config, reference).finished
    assert not train(config, run, StoppingWatcher(stop=1)).finished
    for stop in (3, 5, 10):  # 3 ends an epoch, 5 is within the second, 10 the first step of the last
        result, said = go_on(run, StoppingWatcher(stop=stop))
        assert (result.finished, said) == (False, [])
        assert checkpoints(run)[-1] == stop
        assert not (run / "model.safetensors").exists()
    result, said = go_on(run)
    assert (result.finished, said) == (True, [])
    assert_same_run(run, reference)


@pytest.mark.parametrize("method", ["mean-teacher", "temporal-ensembling"])
def test_a_run_killed_between_its_checkpoints_ends_as_an_undisturbed_one(method: str, tmp_path: Path) -> None:
    config = tiny({"method": METHODS[method]})
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(config, reference)
    kill_train(lambda watcher: train(config, run, watcher), kill=2)
    assert checkpoints(run) == []
    for when in ({"kill": 5}, {"kill_evaluated": 2}, {"kill": 6}, {"kill_evaluated": EPOCHS}):
        kill_train(lambda watcher: go_on(run, watcher), **when)
    assert [line["epoch"] for line in metrics(run)] == [1, 2, 3, 4]
    assert checkpoints(run) == [6, 9]
    go_on(run)
    assert_same_run(run, reference)


def test_a_run_killed_before_its_first_checkpoint_starts_at_step_0_and_says_so(tmp_path: Path) -> None:
    config = tiny({"checkpoint": {"every": 2}})
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(config, reference)
    kill_train(lambda watcher: train(config, run, watcher), kill=5)
    assert [line["epoch"] for line in metrics(run)] == [1]
    _, said = go_on(run)
    assert said == [f"{run} has no whole checkpoint; starting from step 0."]
    assert_same_run(run, reference)


def test_what_a_kill_leaves_behind_is_swept_away(tmp_path: Path) -> None:
    config = tiny()
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(config, reference)
    train(config, run, StoppingWatcher(stop=8))
    half_written = run / "checkpoint" / ".writing-step-000000011"
    half_written.mkdir()
    (half_written / "tensors.safetensors").write_bytes(b"\x01\x02\x03")
    stale = run / "checkpoint" / ".writing-old-step-000000009"
    stale.mkdir()
    (stale / "facts.json").write_text("{}")
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"epoch": 3, "step": 9, "error": {"student": 0.0}}) + "\n" + '{"epoch": 4, "st')
    _, said = go_on(run)
    assert said == []
    assert_same_run(run, reference)
    assert sorted(f.name for f in (run / "checkpoint").iterdir()) == ["step-000000009", "step-000000012"]


def test_a_run_killed_while_its_models_are_written_writes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny()
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(config, reference)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_models", _dies)
        kill_train(lambda watcher: train(config, run, watcher))
    go_on(run)
    assert_same_run(run, reference)


def _dies(*arguments: object) -> None:
    raise Killed


def _command(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fastswa", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.002)


def _lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("long") / "reference"
    assert main(["train", "digits-mean-teacher", "--out", str(out), *LONG]) == 0
    return out


def test_sigkill_at_any_moment_loses_nothing(long_reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    moments: list[tuple[list[str], Callable[[], bool]]] = [
        (["train", "digits-mean-teacher", "--out", str(run), *LONG], (run / "config.toml").exists),
        (["resume", str(run)], lambda: _lines(run) >= 4),
        (["resume", str(run)], lambda: len(checkpoints(run)) >= 1 and _lines(run) >= 13),
        (["resume", str(run)], lambda: any((run / "checkpoint").glob(".writing-*")) or _lines(run) >= 22),
    ]
    for words, moment in moments:
        process = _command(*words)
        _wait_for(process, moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (run / "model.safetensors").exists()
    assert main(["resume", str(run)]) == 0
    assert_same_run(run, long_reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(number: signal.Signals, long_reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = _command("train", "digits-mean-teacher", "--out", str(run), *LONG)
    _wait_for(process, lambda: _lines(run) >= 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    said = [line for line in err.splitlines() if line.startswith("fastswa: ")]
    assert said == [
        "fastswa: stopping after this step; once more to stop at once.",
        f"fastswa: stopped and saved; go on with `fastswa resume {run}`.",
    ]
    assert out == ""
    assert "Traceback" not in err
    assert main(["resume", str(run)]) == 0
    assert_same_run(run, long_reference)


@pytest.mark.parametrize("method", ["mean-teacher", "temporal-ensembling"])
def test_an_extended_run_equals_a_longer_one(method: str, tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(tiny({"method": METHODS[method]}), reference)
    train(tiny({"method": METHODS[method], "schedule": {"epochs": 2}}), run)
    result, said = go_on(run, schedule={"epochs": EPOCHS})
    assert (result.finished, said) == (True, [])
    assert_same_run(run, reference)
    assert RunFolder(run).config() == RunFolder(reference).config()


def test_an_extension_killed_before_its_models_are_written_does_not_keep_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(tiny(), reference)
    train(tiny({"schedule": {"epochs": 2}}), run)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_models", _dies)
        kill_train(lambda watcher: go_on(run, watcher, schedule={"epochs": EPOCHS}))
    _, said = go_on(run)
    assert said == []
    assert_same_run(run, reference)


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run)
    before = models(run), (run / "metrics.jsonl").read_text(), (run / "config.toml").read_text()
    for changes in ({}, {"schedule": {"epochs": EPOCHS}}):
        result, said = go_on(run, **changes)
        assert result.finished
        assert said == [f"{run} already reached epoch 4; nothing to do."]
        assert len(result.metrics) == EPOCHS
    assert_identical(models(run), before[0])
    assert ((run / "metrics.jsonl").read_text(), (run / "config.toml").read_text()) == before[1:]


def kept(run: Path) -> dict[str, bytes]:
    """Every file of a run."""
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*")) if file.is_file()}


def test_a_finished_run_without_checkpoints_is_a_finished_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run)
    shutil.rmtree(run / "checkpoint")
    before = kept(run)
    result, said = go_on(run)
    assert (result.finished, said) == (True, [f"{run} already reached epoch 4; nothing to do."])
    assert kept(run) == before


def test_a_run_that_is_past_the_epochs_asked_for_stays_as_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=7))
    before = kept(run)
    with pytest.raises(RequestError, match=r"is at epoch 2.33333 already, past the 1 asked for; give --epochs 3 or"):
        go_on(run, schedule={"epochs": 1})
    assert kept(run) == before


@pytest.mark.parametrize("without", [False, True], ids=["as it is", "without checkpoints"])
def test_a_finished_run_is_past_fewer_epochs_too(without: bool, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    train(tiny(), run)
    if without:
        shutil.rmtree(run / "checkpoint")
    before = kept(run)
    sentence = f"{run} is at epoch 4 already, past the 3 asked for; give --epochs 4 or more."
    assert command("resume", run, "--epochs", "3") == (2, "", f"fastswa: {sentence}\n")
    assert kept(run) == before
    assert command("resume", run, "--no-report").code == 0


def test_a_resume_that_is_refused_has_changed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last checkpoint is gone, so that what came after the one before it would be done again."""
    run = tmp_path / "run"
    train_new(tiny({"checkpoint": {"keep_every": 1}}), run, StoppingWatcher(stop=9), lambda line: None)
    shutil.rmtree(run / "checkpoint" / max(path.name for path in (run / "checkpoint").iterdir()))
    before = kept(run)

    def full(*_: object) -> None:
        raise RequestError("the disk is full.")

    monkeypatch.setattr("fastswa.training.run.announce", full)
    with pytest.raises(RequestError, match="the disk is full"):
        go_on(run, schedule={"epochs": 6})
    assert kept(run) == before


def test_a_step_stays_in_its_epoch(tmp_path: Path) -> None:
    """The pace is what a run writes while it trains, and no part of what it is known by."""
    run = tmp_path / "run"
    train(tiny({"batch": {"pace": [[1, 2]]}}), run, StoppingWatcher(stop=6))
    before = kept(run)
    text, config = (run / "config.toml").read_text(), RunFolder(run).config()
    RunFolder(run).write_config(config.model_copy(update={"batch": config.batch.model_copy(update={"pace": None})}))
    with pytest.raises(RequestError, match=r"step 6 was in epoch 2.5 when .* was saved, and would be in 2 now"):
        go_on(run)
    (run / "config.toml").write_text(text)
    assert kept(run) == before
    assert go_on(run)[0].finished


def test_other_labelled_images_are_refused(tmp_path: Path) -> None:
    run, split = tmp_path / "run", tmp_path / "labelled.txt"
    split.write_text("\n".join(map(str, range(100))))
    train(tiny({"split": {"file": str(split)}}), run, StoppingWatcher(stop=4))
    before = kept(run)
    split.write_text("\n".join(map(str, range(1, 101))))
    with pytest.raises(RequestError, match=r"labelled.txt takes as labelled or for validation are not those that"):
        go_on(run)
    assert kept(run) == before
    split.write_text("\n".join(map(str, range(100))))
    assert go_on(run)[0].finished


def test_a_run_of_before_its_images_were_written_down_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=4))
    facts = json.loads((run / "environment.json").read_text())
    for name in ("drawn", "images", "extra_images"):
        del facts[name]
    (run / "environment.json").write_text(json.dumps(facts))
    assert go_on(run)[0].finished


def test_cadence_and_threads_may_change_on_resume(tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(tiny(), reference)
    train(tiny(), run, StoppingWatcher(stop=4))
    changes = {"evaluation": {"every": 4}, "checkpoint": {"every": 3, "keep": [1]}, "device": {"engine": "eager"}}
    go_on(run, **changes)
    assert [line["epoch"] for line in metrics(run)] == [1, 4]
    assert checkpoints(run) == [3, 9, 12]
    assert_identical(models(run), models(reference))
    config = RunFolder(run).config()
    assert (config.evaluation.every, config.checkpoint.keep, config.device.engine) == (4, (1,), "eager")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": 4}, "seed"),
        ({"optimiser": {"lr": 0.2}}, "optimiser.lr"),
        ({"averaging": {"swa": {"every": 2}}}, "averaging.swa.every"),
        ({"device": {"precision": "fp64"}}, "device.precision"),
        ({"schedule": {"preset": "long"}}, "schedule.preset"),
    ],
)
def test_what_would_make_another_run_is_refused(changes: dict[str, object], name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=1))
    before = (run / "config.toml").read_text()
    with pytest.raises(RequestError) as refusal:
        go_on(run, **changes)  # type: ignore[arg-type]
    assert str(refusal.value) == (
        f"{name} cannot change on resume (only {', '.join(RESUMABLE)}); "
        f"`fastswa train --from {run} --{name} …` forks the run instead."
    )
    assert (run / "config.toml").read_text() == before


def test_what_may_change_on_resume_are_settings() -> None:
    assert set(RESUMABLE) <= {name for name, _ in fields()}


def test_an_edited_configuration_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=4))
    file = run / "config.toml"
    original = file.read_text()
    file.write_text(original.replace("weight_decay = 0.0001", "weight_decay = 0.0002"))
    assert main(["resume", str(run)]) == 2
    assert capfd.readouterr().err == (
        f"fastswa: the checkpoint in {run} belongs to another configuration than its config.toml; "
        "put the settings back, or fork the run with `fastswa train --from`.\n"
    )
    file.write_text(original)
    assert main(["resume", str(run)]) == 0


def test_a_checkpoint_with_other_tensors_is_refused(tmp_path: Path) -> None:
    """The same configuration, but a network built otherwise: by another version, say."""
    from fastswa.training.checkpoint import Snapshot, load_checkpoint, save_checkpoint

    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=4))
    found = load_checkpoint(run / "checkpoint", print)
    assert found is not None
    tensors = {name: tensor for name, tensor in found.tensors.items() if name != "student.heads.first.bias"}
    save_checkpoint(run / "checkpoint", 4, Snapshot(tensors), found.facts)
    with pytest.raises(RequestError) as refusal:
        go_on(run)
    assert str(refusal.value) == (
        f"the checkpoint in {run} does not fit this run: the state is of another run: "
        "student.heads.first.bias does not match."
    )


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"holds no run: there is no config.toml in it\.$"):
        go_on(tmp_path)


def test_a_run_that_another_process_trains_is_refused(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "run", StoppingWatcher(stop=5))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with (
        RunFolder(tmp_path / "run").held(),
        pytest.raises(RequestError, match=r"run is being trained by another process; wait for its end, or stop it"),
    ):
        go_on(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert go_on(tmp_path / "run")[0].finished  # a refused command holds nothing back
    assert [line["epoch"] for line in metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_run_is_held_while_it_is_trained(tmp_path: Path) -> None:
    class Meddler(StoppingWatcher):
        def stepped(self, step: int) -> None:
            super().stepped(step)
            with pytest.raises(RequestError, match="being trained by another process"):
                go_on(tmp_path / "run")

    assert not train(tiny(), tmp_path / "run", Meddler(stop=2)).finished
    assert not go_on(tmp_path / "run", Meddler(stop=4))[0].finished
    assert go_on(tmp_path / "run")[0].finished


def test_a_checkpoint_says_where_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=7))
    facts = json.loads((checkpoint(run, 7) / "facts.json").read_text())
    assert (facts["step"], facts["summed"], facts["steps_per_epoch"], facts["epoch"]) == (7, 1, STEPS, 7 / 3)
    # swa at epoch 2, fast_swa at 1, 1.5, 2, ema at every step.
    assert {name: average["count"] for name, average in facts["averages"].items()} == {
        "swa": 1,
        "fast_swa": 3,
        "ema": 7,
    }
