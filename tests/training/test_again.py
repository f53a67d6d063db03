"""Looking at a run's images again: what is said and refused where they are no longer those of training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Command
from fastswa.report.findings import look_at
from fastswa.report.record import read_run
from fastswa.report.remarks import remarks
from fastswa.training.again import content_of, images_of_run
from fastswa.training.folder import RunFolder

QUICK = (
    *("--epochs", "2", "--batch.steps", "2", "--batch.size", "8", "--model.width", "4", "--split.validation", "4"),
    *("--evaluation.refresh", "1", "--no-report"),
)
LEFT_OUT = "validation errors are left out, as images held out now may be among those that it learnt from.\n"
LEARNT = "are not those that it was trained on, so that images held out now may be among those that it learnt from; "


def put(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)).save(path)


def images(root: Path, *, test: bool = True) -> Path:
    for number in range(16):
        put(root / "labeled" / "ab"[number % 2] / f"{number}.png", number)
        put(root / "unlabeled" / f"{number}.png", 100 + number)
        if test:
            put(root / "test" / "ab"[number % 2] / f"{number}.png", 200 + number)
    return root


def train(command: Command, data: Path, run: Path, *flags: str) -> Path:
    answer = command("train", data, "--out", run, *QUICK, *flags)
    assert answer.code == 0, answer.err
    return run


def label_one(data: Path) -> None:
    """As a person does with what the report proposes."""
    (data / "unlabeled" / "3.png").rename(data / "labeled" / "a" / "new.png")


def test_a_run_on_the_same_images_is_measured_as_ever(tmp_path: Path, command: Command) -> None:
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run")
    answer = command("evaluate", run, "--json")
    assert answer.err == ""
    assert list(json.loads(answer.out)) == ["test", "validation"]
    moved = tmp_path / "elsewhere"
    shutil.move(data, moved)
    assert command("resume", run, "--data.source", moved, "--epochs", "3", "--no-report").code == 0
    assert command("evaluate", run).err == ""


def test_without_its_checkpoints_a_run_still_knows_its_images(tmp_path: Path, command: Command) -> None:
    """They are noted beside what it ran on; an older run notes them in its checkpoints alone."""
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run")
    known = content_of(run)
    config = RunFolder(run).config()
    assert known == images_of_run(run, config).dataset.digest()
    older = json.loads((run / "environment.json").read_text())
    assert older.pop("content") == known
    (run / "environment.json").write_text(json.dumps(older))
    assert content_of(run) == known
    RunFolder(run).amend_environment(content=known)
    shutil.rmtree(run / "checkpoint")
    assert images_of_run(run, config).changed is False
    label_one(data)
    assert images_of_run(run, config).changed is True
    RunFolder(run).amend_environment(content=None)
    assert images_of_run(run, config).changed is None


def test_a_run_that_kept_nothing_is_not_begun_again_on_other_labels(tmp_path: Path, command: Command) -> None:
    """Its folder would go on knowing it by images that it was not trained on."""
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run")
    for kept in (run / "checkpoint", run / "models"):
        shutil.rmtree(kept)
    (run / "model.safetensors").unlink()
    label_one(data)
    (data / "labeled" / "b" / "1.png").rename(data / "unlabeled" / "3.png")
    answer = command("resume", run, "--no-report")
    assert answer.code == 2
    assert answer.err == (
        f"fastswa: the images or labels of {data} are not those that {run} was trained on; "
        "put them back, or train anew.\n"
    )


def test_labels_added_since_leave_test_errors_alone(tmp_path: Path, command: Command) -> None:
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run")
    before = json.loads(command("evaluate", run, "--json").out)
    label_one(data)
    answer = command("evaluate", run, "--json")
    assert answer.code == 0
    assert json.loads(answer.out) == {"test": before["test"]}
    assert answer.err == f"fastswa: the images or labels of {run} are not those that it was trained on: {LEFT_OUT}"


@pytest.mark.parametrize("test", [True, False])
def test_an_average_is_not_measured_on_what_may_have_been_learnt(test: bool, tmp_path: Path, command: Command) -> None:
    data = images(tmp_path / "mine", test=test)
    run = train(command, data, tmp_path / "run")
    files = [run / "models" / f"{name}.safetensors" for name in ("student", "swa")]
    before = json.loads(command("average", *files, "--out", tmp_path / "before.safetensors", "--json").out)
    assert list(before["figures"]) == ["test", "validation"][not test :]
    label_one(data)
    answer = command("average", *files, "--out", tmp_path / "after.safetensors", "--json")
    after = json.loads(answer.out)
    assert list(after["figures"]) == ["test"][not test :]
    assert answer.err == f"fastswa: the images or labels of {run} are not those that it was trained on: {LEFT_OUT}"
    unmeasured = f" Nothing was measured: {run} has no images to measure on."
    assert after["note"].endswith(unmeasured) is not test


def test_labels_added_since_leave_nothing_to_measure_or_to_calibrate_on(tmp_path: Path, command: Command) -> None:
    data = images(tmp_path / "mine", test=False)
    run = train(command, data, tmp_path / "run")
    files = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
    label_one(data)
    for words, ending in (
        (("evaluate", run), "put them back, or train anew"),
        (("calibrate", run), "put them back, or train anew"),
        (("predict", run, "--part", "validation"), "--part validation would not be what it was"),
        (("predict", run, "--part", "labelled"), "--part labelled would not be what it was"),
    ):
        answer = command(*words)
        assert (answer.code, answer.err) == (2, f"fastswa: the images or labels of {run} {LEARNT}{ending}.\n"), words
    assert {path: path.read_bytes() for path in run.rglob("*.safetensors")} == files
    # Those without labels are wanted as they are now.
    rows = command("predict", run, "--part", "unlabelled").out.splitlines()
    assert len(rows) == 1 + 15
    found = look_at(read_run(run), "cpu", suggestions=1, unlabelled=10)
    (said,) = [remark for remark in remarks(read_run(run), found) if "changed since" in remark.text]
    assert said.grave
    assert said.text.endswith("; images held out now may be among those that it learnt from.")


@pytest.mark.parametrize("study", ["landscape", "rays"])
def test_other_labels_are_not_studied(study: str, tmp_path: Path, command: Command) -> None:
    """Training errors would be those of images that the run did not train on."""
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run", "--keep-every", "1")
    label_one(data)
    answer = command("analyze", study, run)
    assert (answer.code, answer.err) == (
        2,
        f"fastswa: the images or labels of {data} are not those that {run} was trained on; "
        "put them back, or train anew.\n",
    )


def test_other_classes_are_refused(tmp_path: Path, command: Command) -> None:
    """Class numbers follow the names: with one renamed, every error would be counted against another class."""
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run")
    for part in ("labeled", "test"):
        (data / part / "a").rename(data / part / "zebra")
    sentence = f"fastswa: {run}: the data set has changed since; its classes or image size are others now.\n"
    for verb in ("evaluate", "calibrate"):
        answer = command(verb, run)
        assert (answer.code, answer.err) == (2, sentence), verb


@pytest.mark.parametrize("held_out", [0, 4])
def test_a_fork_on_other_labels_says_what_its_validation_errors_are_worth(
    held_out: int, tmp_path: Path, command: Command
) -> None:
    data = images(tmp_path / "mine")
    run = train(command, data, tmp_path / "run")
    flags = ("--epochs", "3", "--no-report", "--split.validation", str(held_out))
    sentence = f"the images or labels are not those that {run} was trained on: images held out now may be among those"
    assert sentence not in command("train", "--from", run, "--out", tmp_path / "same", *flags).err
    label_one(data)
    answer = command("train", "--from", run, "--out", tmp_path / "other", *flags)
    assert answer.code == 0, answer.err
    assert (sentence in answer.err) is (held_out > 0)


def test_a_report_measures_in_the_arithmetic_of_the_run(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(command, images(tmp_path / "mine"), tmp_path / "run", "--device.precision", "bf16")
    record = read_run(run)
    seen = set[torch.dtype]()
    convolve = torch.nn.functional.conv2d

    def watched(*given: Any, **named: Any) -> torch.Tensor:
        out = convolve(*given, **named)
        seen.add(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    found = look_at(record, "cpu", suggestions=1, unlabelled=10)
    assert seen == {torch.bfloat16}
    assert found.measured is not None
    assert found.measured.error == pytest.approx(record.final("test")[found.network], abs=1e-9)
