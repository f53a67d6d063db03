"""The run folder: what it holds, which model it offers, and what happens where it cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from conftest import Command
from fastswa.config import AverageConfig
from fastswa.errors import RequestError, RunError
from fastswa.modelfile import ModelFacts, read_facts
from fastswa.report.record import read_run
from fastswa.training.folder import RunFolder, preferred
from tiny_runs import FLAGS, StoppingWatcher, go_on, tiny, train

FACTS = ModelFacts("small", ("a", "b"), (1, 8, 8), (0.5,), (0.25,), epoch=7.0)


def test_a_finished_run_holds_what_it_promises(finished: Path) -> None:
    assert sorted(f.name for f in finished.iterdir()) == [
        "checkpoint",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "models",
    ]
    assert sorted(f.stem for f in (finished / "models").iterdir()) == ["ema", "fast_swa", "student", "swa", "teacher"]
    for file in (finished / "models").iterdir():
        assert read_facts(file).network == file.stem
        assert not any(name.startswith(("_orig_mod", "module.")) for name in load_file(file))


KINDS = {
    "mine": AverageConfig(kind="fast-swa", start=1, every=1),
    "rare": AverageConfig(kind="fast-swa", start=0, every=2),
    "late": AverageConfig(kind="fast-swa", start=2, every=1),
    "fast_swa": AverageConfig(kind="ema"),
    "ends": AverageConfig(kind="swa", every=0),
}


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ("student teacher fast_swa ends mine rare late", "mine late rare ends teacher fast_swa student"),
        ("student teacher fast_swa ends", "ends teacher fast_swa student"),
        ("student fast_swa", "fast_swa student"),
        ("unheard student", "student unheard"),
    ],
    ids=["kind, then often, then early", "SWA", "EMA", "no average"],
)
def test_the_model_to_use_goes_by_what_an_average_is(names: str, order: str) -> None:
    assert preferred(names.split(), KINDS) == order.split()


def test_the_model_to_use_is_among_all_of_them(tmp_path: Path) -> None:
    networks = {name: nn.Linear(1, 1) for name in ("student", "mine")}
    for number, network in enumerate(networks.values()):
        nn.init.constant_(network.weight, number)
    RunFolder(tmp_path).write_models(networks, FACTS, "mine")
    assert float(load_file(tmp_path / "model.safetensors")["weight"]) == 1
    assert float(load_file(tmp_path / "models" / "student.safetensors")["weight"]) == 0
    assert (read_facts(tmp_path / "model.safetensors").network, RunFolder(tmp_path).models_epoch()) == ("mine", 7.0)


def test_a_run_offers_its_average_whatever_it_is_called(tmp_path: Path) -> None:
    config = tiny({"averaging": {"smooth": {"kind": "ema"}, "mine": {"kind": "fast-swa", "every": 0.5}}})
    config = config.model_copy(update={"averaging": {name: config.averaging[name] for name in ("smooth", "mine")}})
    train(config, tmp_path / "run")
    assert read_facts(tmp_path / "run" / "model.safetensors").network == "mine"
    assert read_run(tmp_path / "run").chosen == "mine"


def test_a_configuration_comes_back_as_it_was(tmp_path: Path) -> None:
    config = tiny({"checkpoint": {"keep": [1, 3]}, "optimiser": {"weight_decay": 3e-5}})
    folder = RunFolder(tmp_path / "a" / "b")
    folder.create(config)
    assert RunFolder.open(tmp_path / "a" / "b").config() == config


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(tiny())
    with pytest.raises(RequestError) as caught:
        folder.create(tiny())
    assert str(caught.value) == (
        f"{tmp_path} already holds a run; continue it with `fastswa resume {tmp_path}` or choose another --out."
    )


def test_a_folder_of_several_seeds_is_no_run(tmp_path: Path, command: Command) -> None:
    RunFolder(tmp_path / "seed-2").create(tiny())
    said = f"fastswa: {tmp_path} holds the runs of several seeds; name one, such as {tmp_path}/seed-2.\n"
    for words in (["evaluate", tmp_path], ["calibrate", tmp_path], ["train", "--from", tmp_path]):
        assert (command(*words).code, command(*words).err) == (2, said)


def test_a_command_to_go_on_with_can_be_copied(tmp_path: Path, command: Command) -> None:
    run = tmp_path / "my run"
    train(tiny(), run, StoppingWatcher(stop=2))
    for words in (["train", "digits-pi", "--out", run], ["predict", run, run], ["evaluate", run]):
        answer = command(*words)
        assert (answer.code, f"`fastswa resume '{run}'`" in answer.err) == (2, True), answer.err


def test_metrics_end_where_a_kill_tore_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.metrics() == []
    for step in (3, 6, 9):
        folder.append_metrics({"step": step, "error": {"student": 1 / 3}})
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 12, "err')
    assert [line["step"] for line in folder.metrics()] == [3, 6, 9]
    folder.drop_metrics_after(6)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == [
        json.dumps({"step": step, "error": {"student": 1 / 3}}) for step in (3, 6)
    ]
    folder.append_metrics({"step": 9})
    assert [line["step"] for line in folder.metrics()] == [3, 6, 9]


def test_a_damaged_line_of_metrics_costs_that_line_alone(tmp_path: Path) -> None:
    folder, file = RunFolder(tmp_path), tmp_path / "metrics.jsonl"
    for step in (3, 6, 9):
        folder.append_metrics({"step": step})
    file.write_text(file.read_text().replace('{"step": 6}', '{"st\x00p": 6}'))
    assert [line["step"] for line in folder.metrics()] == [3, 9]
    folder.drop_metrics_after(9)
    assert [line["step"] for line in folder.metrics()] == [3, 9]


def test_a_run_that_cannot_write_its_settings_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RunError("cannot write config.toml: No space left on device.")

    monkeypatch.setattr(RunFolder, "write_config", full)
    with pytest.raises(RunError, match="No space left"):
        RunFolder(tmp_path / "run").create(tiny())
    assert not (tmp_path / "run").exists()


def test_a_path_that_is_or_lies_under_a_file_is_refused(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out, reason in ((file, "File exists"), (file / "run", "Not a directory")):
        answer = command("train", "digits-mean-teacher", "--out", out, *FLAGS)
        assert answer == (2, "", f"fastswa: cannot write {out}: {reason}.\n")
    assert file.read_text() == "mine"


def denied(*arguments: Any, **options: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_no_permission_to_make_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command) -> None:
    monkeypatch.setattr(Path, "mkdir", denied)
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS)
    assert answer == (2, "", f"fastswa: cannot write {tmp_path}/run: Permission denied.\n")


def refusing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Path's own method, but files called `name` may not be written."""

    def method(path: Path, *arguments: Any, **options: Any) -> Any:
        return denied() if path.name == name else original(path, *arguments, **options)

    return method


@pytest.mark.parametrize(
    ("method", "file", "target"),
    [
        ("write_text", ".config.toml.writing", "config.toml"),
        ("write_text", ".environment.json.writing", "environment.json"),
        ("open", "metrics.jsonl", "metrics.jsonl"),
        ("mkdir", "models", "models"),
    ],
)
def test_no_permission_to_write_a_file(
    method: str, file: str, target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, method, refusing(file, getattr(Path, method)))
    with pytest.raises(RunError) as caught:
        train(tiny({"schedule": {"epochs": 1}}), tmp_path / "run")
    assert str(caught.value) == f"cannot write {tmp_path}/run/{target}: Permission denied."


def test_a_full_disk_loses_nothing_that_was_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fastswa.training import checkpoint

    run, saved = tmp_path / "run", checkpoint.save_file
    calls = iter(range(100))

    def full(*arguments: Any) -> None:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        saved(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(RunError, match=r"^cannot write a checkpoint under .*: No space left on device\.$"):
            train(tiny(), run)
    assert sorted(f.name for f in (run / "checkpoint").glob("step-*")) == ["step-000000003", "step-000000006"]
    train(tiny(), tmp_path / "reference")
    go_on(run)
    ours, theirs = (load_file(path / "model.safetensors") for path in (run, tmp_path / "reference"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_files_are_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kill before the last rename leaves the old file; nothing half-written has the real name."""
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=4))
    before = (run / "config.toml").read_text(), (run / "metrics.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", denied)
        with pytest.raises(RunError):
            go_on(run, evaluation={"every": 2})
    assert ((run / "config.toml").read_text(), (run / "metrics.jsonl").read_text()) == before
