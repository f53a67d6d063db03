"""Studies in the same command as the training, right after it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from conftest import Command
from fastswa.analysis.asked import asked_in
from fastswa.errors import RequestError
from fastswa.training.iterates import iterate_epochs
from tiny_runs import FLAGS, checkpoints

STUDIES = "pairs,averaging; rays --epochs 1,4 --points 5 --rays 1"
WORDS = (*FLAGS, "--keep-every", 1, "--no-report")


def test_what_is_asked_for_is_read_with_its_options() -> None:
    first, second, third = asked_in("rays,landscape --epochs 170,180 --points 7; pairs")
    assert (first.name, second.name, third.name) == ("rays", "landscape", "pairs")
    assert first.options == second.options == {"epochs": (170.0, 180.0), "points": 7}
    assert third.options == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "--analyze names no study; there are: gradients"),
        ("pair", "unknown study 'pair'; did you mean pairs?"),
        ("pairs,pairs", "a study is named twice"),
        ("pairs rays", "'rays' stands where an option is due; studies are separated by commas"),
        ("pairs --points 3", "--points means nothing to the study pairs"),
        ("pairs --point 3", "unknown option --point for --analyze; did you mean --points?"),
        ("pairs '", "cannot be read"),
    ],
)
def test_what_cannot_be_asked_for(text: str, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        asked_in(text)
    assert sentence in str(refused.value)


def test_studies_follow_the_training_and_leave_arrays_and_figures(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "run"
    words = ("train", "digits-mean-teacher", "--out", out, *WORDS, "--analyze", STUDIES, "--discard-iterates")
    answer = command(*words)
    assert answer.code == 0, answer.err
    written = {f"{study}.{kind}" for study in ("pairs", "averaging", "rays") for kind in ("json", "csv", "svg", "png")}
    assert {file.name for file in (out / "analysis").iterdir()} == written
    [found] = json.loads((out / "analysis" / "rays.json").read_text())
    assert [ray["start"] for ray in found["rays"]] == ["epoch 1", *["epoch 4"] * 4]
    [pairs] = json.loads((out / "analysis" / "pairs.json").read_text())
    assert pairs["epochs"] == [2, 3, 4]
    assert "3 pairs of 3 iterates" in answer.err
    assert f"{out}: pairs, averaging, rays: data and figures are in {out / 'analysis'}." in answer.err
    assert not (out / "iterates").exists()
    # What a resume needs is still there.
    assert checkpoints(out) == [9, 12]
    assert command("resume", out, "--epochs", 5, "--no-report").code == 0
    assert list(iterate_epochs(out)) == [5]


def test_a_resume_studies_what_was_kept_before_it_too(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "run"
    words = ("train", "digits-mean-teacher", "--out", out, *WORDS, "--analyze", "pairs")
    stopped = command(*words, "--stop-after", 1e-9)
    assert stopped.code == 0, stopped.err
    assert not (out / "analysis").exists()
    assert "go on with" in stopped.err
    answer = command("resume", out, "--no-report", "--analyze", "pairs --epochs 1,2,3,4")
    assert answer.code == 0, answer.err
    [pairs] = json.loads((out / "analysis" / "pairs.json").read_text())
    assert len(pairs["first"]) == 6
    assert list(iterate_epochs(out)) == [1, 2, 3, 4]
    # Of a run that is done the studies alone are made.
    again = command("resume", out, "--no-report", "--analyze", "averaging", "--discard-iterates")
    assert (again.code, "nothing to do" in again.err) == (0, True)
    assert (out / "analysis" / "averaging.svg").exists()
    assert not (out / "iterates").exists()


def test_every_seed_gets_its_studies(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "runs"
    words = ("train", "digits-pi", "--out", out, *WORDS[2:], "--averaging.swa.kind", "swa", "--seeds", "3,4")
    answer = command(*words, "--analyze", "pairs")
    assert answer.code == 0, answer.err
    found = [json.loads((out / f"seed-{seed}" / "analysis" / "pairs.json").read_text())[0] for seed in (3, 4)]
    assert [one["run"] for one in found] == ["seed-3", "seed-4"]
    assert not np.allclose(found[0]["distance"], found[1]["distance"])
    again = command("resume", out, "--no-report", "--analyze", "averaging", "--discard-iterates")
    assert again.code == 0, again.err
    assert all((out / f"seed-{seed}" / "analysis" / "averaging.json").exists() for seed in (3, 4))
    assert not any((out / f"seed-{seed}" / "iterates").exists() for seed in (3, 4))


def test_what_the_run_will_not_keep_is_said_before_it_is_trained(tmp_path: Path, command: Command) -> None:
    def refused(*more: object) -> str:
        answer = command("train", "digits-pi", "--out", tmp_path / "run", *FLAGS, *more)
        assert (answer.code, answer.err.count("\n"), (tmp_path / "run").exists()) == (2, 1, False)
        return answer.err

    assert "--analyze rays --epochs 1: the run will keep nothing of that epoch" in refused(
        "--analyze", "rays --epochs 1,4"
    )
    assert "--analyze pairs needs 2 iterates, and the run will keep fewer" in refused(
        "--epochs", 1, "--analyze", "pairs"
    )
    assert "--analyze says by which studies" in refused("--discard-iterates")


def test_a_study_that_fails_keeps_the_iterates_and_the_other_studies(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "run"
    # Without a descent's rate the weights stand still, so that no ray runs through two of them.
    words = ("train", "digits-supervised", "--out", out, "--optimiser.lr", 0, "--optimiser.weight_decay", 0)
    flags = [word for word in WORDS if word not in ("--method.weight", "100")]
    answer = command(*words, *flags, "--analyze", "rays,averaging,teachers", "--discard-iterates")
    assert answer.code == 1
    assert "the study averaging was not made" in answer.err
    assert "the learning rate is zero where SWA averages" in answer.err
    assert "the study rays was not made: epoch 3 and epoch 4 are the same weights" in answer.err
    assert "its iterates are kept" in answer.err
    assert (out / "analysis" / "teachers.json").exists()
    assert list(iterate_epochs(out)) == [1, 2, 3, 4]
