"""`train --from RUN[@EPOCH]` takes over a run's full state; `start.weights` only a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from conftest import Command
from fastswa.config import Config, to_dict
from fastswa.errors import RequestError
from fastswa.layers import build_config
from fastswa.training.folder import RunFolder
from fastswa.training.identity import fingerprint
from fastswa.training.run import parent_layer, train_new
from tiny_runs import (
    METHODS,
    Killed,
    StoppingWatcher,
    assert_identical,
    assert_same_run,
    checkpoint,
    checkpoints,
    go_on,
    make_trainer,
    metrics,
    models,
    state_at,
    tiny,
    train,
)


def forked(start: str, *changes: dict[str, object]) -> Config:
    return build_config(parent_layer(start), {"start": {"run": start}}, *changes)


def without_sums(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name != "sums"}


def refusal(config: Config, out: Path) -> str:
    with pytest.raises(RequestError) as caught:
        train(config, out)
    assert not out.exists()
    return str(caught.value)


def test_a_fork_starts_with_its_parents_state_and_records_it(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    train(forked(f"{finished}@2", {"optimiser": {"lr": 0.05}}), out, StoppingWatcher(stop=7))
    assert checkpoints(out) == [6, 7]
    assert_identical(without_sums(state_at(out, 6)), without_sums(state_at(finished, 6)))
    facts, theirs = (json.loads((checkpoint(run, 6) / "facts.json").read_text()) for run in (out, finished))
    assert facts["averages"] == theirs["averages"]
    assert facts["averages"]["ema"]["count"] == 6
    assert facts["fingerprint"] != theirs["fingerprint"]
    config = RunFolder(out).config()
    assert (config.optimiser.lr, config.start.run, config.seed) == (0.05, f"{finished}@2", 3)
    parent = json.loads((out / "environment.json").read_text())["parent"]
    assert parent == {
        "run": str(finished),
        "epoch": 2.0,
        "step": 6,
        "fingerprint": fingerprint(to_dict(RunFolder(finished).config())),
    }


def test_averages_that_followed_the_parents_schedule_are_mentioned(finished: Path, tmp_path: Path) -> None:
    """They go on as they were; what was given for the fork, or for the parent, is nobody's surprise."""
    start = f"{finished}@2"

    def said(*changes: dict[str, object]) -> list[str]:
        told: list[str] = []
        train_new(
            forked(start, *changes), tmp_path / f"{len(list(tmp_path.iterdir()))}", StoppingWatcher(), told.append
        )
        return told

    longer: dict[str, object] = {"schedule": {"cycle": 2}}
    assert said() == []
    assert said(longer) == [
        f"swa is averaged as in {finished}, from epoch 2 on every 1 epochs, although the schedule is another; "
        "averaging.swa.start and averaging.swa.every change it."
    ]
    assert said(longer, {"averaging": {"swa": {"every": 2}}}) == []


def test_an_unchanged_fork_repeats_the_rest_of_its_parent(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    assert train(forked(f"{finished}@2"), out).finished
    assert_identical(models(out), models(finished))
    assert metrics(out) == metrics(finished)[2:]


def test_a_changed_setting_changes_what_follows(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    train(forked(f"{finished}@2", {"optimiser": {"lr": 0.01}}), out)
    ours, theirs = metrics(out), metrics(finished)
    assert [line["epoch"] for line in ours] == [3, 4]
    assert ours[0]["learning_rate"] == pytest.approx(theirs[2]["learning_rate"] / 10)
    assert not models(out)["student.safetensors/heads.first.weight"].equal(
        models(finished)["student.safetensors/heads.first.weight"]
    )


def test_a_fork_without_an_epoch_takes_the_newest_checkpoint(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    train(forked(str(finished), {"schedule": {"epochs": 5}}), out)
    assert checkpoints(out) == [12, 15]
    assert [line["epoch"] for line in metrics(out)] == [5]


def test_averages_go_on_where_unchanged_and_begin_anew_otherwise(finished: Path, tmp_path: Path) -> None:
    changes = {"averaging": {"ema": {"decay": 0.5}, "late": {"kind": "swa", "start": 4}, "swa": {"start": 1}}}
    out = tmp_path / "fork"
    train(forked(f"{finished}@2", changes), out)
    facts = json.loads((checkpoint(finished, 6) / "facts.json").read_text())["averages"]
    assert (facts["fast_swa"]["count"], facts["ema"]["count"], facts["swa"]["count"]) == (3, 6, 1)
    # Two more epochs: fast_swa twice an epoch on top of its three; the others begin with the fork's own step.
    assert metrics(out)[-1]["averaged"] == {"swa": 3, "fast_swa": 7, "ema": 7, "late": 1}
    assert metrics(finished)[-1]["averaged"] == {"swa": 3, "fast_swa": 7, "ema": 12}
    ours, theirs = state_at(out, 12), state_at(finished, 12)
    key = "heads.first.weight"
    assert ours[f"average.fast_swa.{key}"].equal(theirs[f"average.fast_swa.{key}"])
    assert ours[f"average.late.{key}"].equal(ours[f"student.{key}"])
    assert not ours[f"average.ema.{key}"].equal(theirs[f"average.ema.{key}"])


def test_a_restarted_average_is_the_mean_of_what_followed(finished: Path, tmp_path: Path) -> None:
    kept = {"checkpoint": {"keep": [2, 3, 4]}, "averaging": {"swa": {"start": 1}}}
    out = tmp_path / "fork"
    train(forked(f"{finished}@2", kept), out)
    key = "heads.first.weight"
    students = [state_at(out, step)[f"student.{key}"].double() for step in (6, 9, 12)]
    assert state_at(out, 12)[f"average.swa.{key}"].double().allclose(sum(students[1:], students[0]) / 3, atol=1e-7)


def test_a_teacher_that_the_parent_lacks_begins_as_a_copy_of_the_student(tmp_path: Path) -> None:
    parent, out = tmp_path / "parent", tmp_path / "fork"
    train(tiny({"method": METHODS["pi"]}), parent, StoppingWatcher(stop=3))
    train(forked(str(parent), {"method": {"name": "mean-teacher"}}), out, StoppingWatcher(stop=4))
    state, theirs = state_at(out, 3), state_at(parent, 3)
    names = [name.removeprefix("teacher.") for name in state if name.startswith("teacher.")]
    assert "heads.second.bias" in names
    for name in names:
        assert state[f"teacher.{name}"].equal(theirs[f"student.{name}"])
        assert state[f"student.{name}"].equal(theirs[f"student.{name}"])


def test_a_teacher_that_the_fork_lacks_is_left_out(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    train(forked(f"{finished}@1", {"method": {"name": "pi"}}), out)
    assert list(metrics(out)[-1]["error"]) == ["student", "swa", "fast_swa", "ema"]


@pytest.mark.parametrize(
    ("model", "difference"),
    [({"width": 5}, "block1.0.conv.weight"), ({"heads": 1}, "heads.second")],
)
def test_another_network_is_refused(model: dict[str, object], difference: str, finished: Path, tmp_path: Path) -> None:
    message = refusal(forked(str(finished), {"model": model, "schedule": {"epochs": 5}}), tmp_path / "fork")
    assert message.startswith(f"{finished} cannot be forked: its network ")
    if model.get("width"):
        assert message.endswith(f" {difference}.")


def test_an_epoch_that_was_not_kept_is_refused(finished: Path, tmp_path: Path) -> None:
    for epoch in ("9", "1.5", "last"):
        assert refusal(forked(f"{finished}@{epoch}"), tmp_path / "fork") == (
            f"{finished} keeps no checkpoint of epoch {epoch} (there are: 1, 2, 3, 4); "
            "checkpoint.keep names the epochs to keep."
        )


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    with pytest.raises(Killed):
        train(tiny(), parent, StoppingWatcher(kill=2))
    assert refusal(forked(str(parent)), tmp_path / "fork") == f"{parent} has no whole checkpoint."


def test_a_fork_with_nothing_left_to_train_is_refused(finished: Path, tmp_path: Path) -> None:
    assert refusal(forked(str(finished)), tmp_path / "fork") == (
        f"{finished} is at epoch 4 already, and schedule.epochs is 4; give the fork more epochs."
    )


def test_epochs_of_another_length_are_counted_from_whole_ones(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    train(forked(f"{finished}@2", {"batch": {"steps": 5}}), out, StoppingWatcher(stop=11))
    assert checkpoints(out) == [10, 11]
    parent = tmp_path / "parent"
    train(tiny(), parent, StoppingWatcher(stop=4))
    assert refusal(forked(str(parent), {"batch": {"steps": 5}}), tmp_path / "refused") == (
        f"{parent} stopped within an epoch, and the fork's epochs have another length."
    )


def test_a_folder_may_hold_an_at_sign(tmp_path: Path) -> None:
    parent = tmp_path / "me@home"
    train(tiny(), parent, StoppingWatcher(stop=6))
    for number, start in enumerate((str(parent), f"{parent}@1")):
        train(forked(start), tmp_path / f"fork-{number}", StoppingWatcher(stop=7))
    assert checkpoints(tmp_path / "fork-0") == [6, 7]
    assert checkpoints(tmp_path / "fork-1") == [6, 7]


def test_a_stopped_fork_resumes_exactly(finished: Path, tmp_path: Path) -> None:
    config = forked(f"{finished}@1", {"optimiser": {"lr": 0.05}})
    reference, run, early = (tmp_path / name for name in ("reference", "run", "early"))
    train(config, reference)
    train(config, run, StoppingWatcher(stop=5))
    _, said = go_on(run)
    assert said == []
    assert_same_run(run, reference)
    with pytest.raises(Killed):
        train(config, early, StoppingWatcher(kill=5))
    for file in checkpoint(early, 3).iterdir():
        file.write_bytes(b"")
    _, said = go_on(early)
    assert said[-1] == f"{early} has no whole checkpoint; starting from its parent {finished}@1."
    assert_same_run(early, reference)


def test_the_command_forks(command: Command, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "fork"
    assert command("train", "--from", f"{finished}@2", "--optimiser.lr", "0.05", "--out", out, "--json").code == 0
    assert RunFolder(out).config() == forked(f"{finished}@2", {"optimiser": {"lr": 0.05}})
    refused = command("train", "--from", tmp_path / "nothing", "--out", tmp_path / "other")
    assert refused == (2, "", f"fastswa: {tmp_path}/nothing holds no run: there is no config.toml in it.\n")
    refused = command("train", "--from", f"{finished}@7", "--out", tmp_path / "other")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    weights = finished / "model.safetensors"
    refused = command("train", "--start.weights", weights, "--out", tmp_path / "other")
    assert refused == (
        2,
        "",
        "fastswa: name a folder of images or a recipe (`fastswa recipes` lists them), --config FILE or --from RUN.\n",
    )


def test_networks_start_from_given_weights(finished: Path, tmp_path: Path) -> None:
    weights = finished / "models" / "swa.safetensors"
    trainer = make_trainer(tiny({"start": {"weights": str(weights)}}), tmp_path)
    given = load_file(weights)
    for network in (*trainer.state.networks().values(), trainer.state.averages["swa"].module):
        assert_identical(dict(network.state_dict()), given)
    fresh = make_trainer(tiny(), tmp_path).state.student.state_dict()
    assert not fresh["heads.first.weight"].equal(given["heads.first.weight"])
    out = tmp_path / "run"
    assert train(tiny({"start": {"weights": str(weights)}}), out).finished
    assert metrics(out)[0]["nll"]["student"] < metrics(finished)[0]["nll"]["student"]


def test_weights_that_do_not_fit_are_refused(finished: Path, tmp_path: Path) -> None:
    weights, garbled = finished / "model.safetensors", tmp_path / "garbled.safetensors"
    garbled.write_bytes(weights.read_bytes()[:-10])
    out = tmp_path / "run"

    def refused(file: Path, **model: object) -> str:
        return refusal(tiny({"start": {"weights": str(file)}, "model": model}), out)

    assert refused(weights, width=5) == f"{weights} holds the weights of another network."
    assert refused(weights, heads=1) == f"{weights} holds the weights of another network."
    assert refused(garbled) == f"{garbled} is not a whole safetensors file."
    assert refused(tmp_path / "none") == f"there is no model file {tmp_path}/none."
