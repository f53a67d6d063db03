"""Kept iterates: what is written and when, and studies that stream them."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import Command
from fastswa.analysis.landscape import landscape
from fastswa.analysis.pairs import pairs
from fastswa.analysis.rays import rays
from fastswa.analysis.study import Request
from fastswa.analysis.subject import Subject
from fastswa.config import CheckpointConfig, to_dict
from fastswa.errors import RequestError
from fastswa.training.identity import fingerprint
from fastswa.training.iterates import iterate_epochs, kept_epochs
from fastswa.training.run import train_new
from tiny_runs import FLAGS, StoppingWatcher, assert_same_run, go_on, state_at, tiny

KEEPING = {"checkpoint": {"keep": [1, 2], "keep_every": 1}}


@pytest.fixture(scope="session")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of the Pi model with an iterate of each epoch; of the first two no checkpoint stays."""
    out = tmp_path_factory.mktemp("keeping") / "run"
    config = tiny({"checkpoint": {"keep_every": 1}, "method": {"name": "pi"}})
    train_new(config, out, StoppingWatcher(), lambda line: None)
    return out


def steps(run: Path) -> list[int]:
    return sorted(int(file.stem.removeprefix("step-")) for file in (run / "iterates").iterdir())


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({"keep_every": 3}, [3, 6, 9]),
        ({"keep_every": 3, "keep_from": 4}, [4, 7, 10]),
        ({"keep_every": 4, "keep_from": 0}, [4, 8]),
        ({"keep_every": 20}, []),
        ({}, []),
    ],
)
def test_epochs_that_are_kept(settings: dict[str, int], epochs: list[int]) -> None:
    config = CheckpointConfig(**settings)
    assert kept_epochs(config, 1, 10) == epochs
    assert [epoch for epoch in range(1, 11) if kept_epochs(config, epoch, epoch)] == epochs


def test_an_iterate_is_the_student_of_its_epoch_and_keeping_changes_nothing(finished: Path, tmp_path: Path) -> None:
    said: list[str] = []
    assert fingerprint(to_dict(tiny(KEEPING))) == fingerprint(to_dict(tiny({"checkpoint": {"keep": [1, 2]}})))
    train_new(tiny(KEEPING), tmp_path / "run", StoppingWatcher(), said.append)
    assert_same_run(tmp_path / "run", finished)
    assert steps(tmp_path / "run") == [3, 6, 9, 12]
    [line] = said
    assert line.startswith(f"{tmp_path / 'run' / 'iterates'} will keep 4 iterates of ")
    found = iterate_epochs(tmp_path / "run")
    assert list(found) == [1, 2, 3, 4]
    whole = {name: tensor for name, tensor in state_at(tmp_path / "run", 6).items() if name.startswith("student.")}
    kept = load_file(found[2.0])
    assert {f"student.{name}" for name in kept} == whole.keys()
    assert all(torch.equal(tensor, whole[f"student.{name}"]) for name, tensor in kept.items())
    # The size that was said is that of the tensors; the file has their names besides.
    size = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    assert f"of {size / 1e6:.3g} MB in fp32: {4 * size / 1e6:.3g} MB." in line
    assert size < found[2.0].stat().st_size < size + 10_000


def test_a_resume_goes_on_keeping_and_comes_to_the_same(keeping: Path, tmp_path: Path) -> None:
    config = tiny({"checkpoint": {"keep_every": 1}, "method": {"name": "pi"}})
    out = tmp_path / "run"
    train_new(config, out, StoppingWatcher(stop=8), lambda line: None)
    assert steps(out) == [3, 6]
    # Left by a run that was killed after its last checkpoint.
    save_file({"a": torch.zeros(1)}, out / "iterates" / "step-000000009.safetensors", {"epoch": "3"})
    (out / "iterates" / ".writing-step-000000012.safetensors").write_bytes(b"half")
    _, said = go_on(out)
    assert said[0].startswith(f"{out / 'iterates'} will keep 2 iterates of ")
    assert steps(out) == steps(keeping) == [3, 6, 9, 12]
    for file in (keeping / "iterates").iterdir():
        other = load_file(out / "iterates" / file.name)
        assert all(torch.equal(tensor, other[name]) for name, tensor in load_file(file).items())


def test_an_old_run_can_begin_to_keep(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    go_on(out, schedule={"epochs": 6}, checkpoint={"keep_every": 2})
    assert list(iterate_epochs(out)) == [6]
    assert Subject(out, "cpu").epochs == [1, 2, 5, 6]


def test_bf16_halves_the_weights_and_little_else(keeping: Path, tmp_path: Path) -> None:
    config = tiny({"checkpoint": {"keep_every": 4, "keep_dtype": "bf16"}, "method": {"name": "pi"}})
    train_new(config, tmp_path / "run", StoppingWatcher(), lambda line: None)
    [file] = iterate_epochs(tmp_path / "run").values()
    kept, exact = load_file(file), load_file(iterate_epochs(keeping)[4.0])
    statistics = [name for name in kept if "running" in name]
    assert statistics
    assert all(torch.equal(kept[name], exact[name]) for name in statistics)
    vector, whole = Subject(tmp_path / "run", "cpu").iterate(4), Subject(keeping, "cpu").iterate(4)
    assert vector.dtype == torch.float32
    assert 0 < float((vector - whole).norm() / whole.norm()) < 2**-9


def test_a_disk_without_room_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastswa.training.iterates._free", lambda folder: 1000)
    with pytest.raises(RequestError, match=r"4 iterates of .* would take .*, and 0.001 MB are free; keep fewer"):
        train_new(tiny(KEEPING), tmp_path / "run", StoppingWatcher(), lambda line: None)
    assert not (tmp_path / "run").exists()


def test_where_keeping_begins_means_nothing_without_how_often(command: Command) -> None:
    answer = command("train", "digits-pi", "--keep-from", 20)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "checkpoint.keep_from says where keeping begins" in answer.err


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many iterates were held each time that one had just been read."""
    held: weakref.WeakSet[Tensor] = weakref.WeakSet()
    counts: list[int] = []
    read = Subject.iterate

    def counted(subject: Subject, epoch: float) -> Tensor:
        vector = read(subject, epoch)
        held.add(vector)
        counts.append(len(held))
        return vector

    monkeypatch.setattr(Subject, "iterate", counted)
    yield counts
    assert max(counts) <= 2


def test_studies_hold_two_iterates_at_a_time(keeping: Path, alive: list[int]) -> None:
    request = Request((keeping,), "cpu", points=5, rays=1)
    [found] = pairs(Request((keeping,), "cpu", epochs=(1.0, 2.0, 3.0, 4.0)))
    assert len(found.first) == 6
    assert max(alive) == 2
    rays(request)
    [plane] = landscape(Request((keeping,), "cpu", epochs=(1.0, 2.0, 4.0), points=3))
    assert plane.epochs.tolist() == [1, 2, 3, 4]
    assert len(alive) > 20


def test_gradients_come_from_iterates_where_the_student_is_all_there_is(
    keeping: Path, tmp_path: Path, command: Command
) -> None:
    subject = Subject(keeping, "cpu")
    assert subject.states() == [1, 2, 3, 4]
    student, checkpoint = subject.state(3).student, subject.checkpoint(3)
    rebuilt = subject._rebuilt(subject.state(4), 3)
    assert rebuilt.step == 9
    for (name, own), theirs in zip(rebuilt.student.named_parameters(), student.parameters(), strict=True):
        assert torch.equal(own, theirs)
        assert torch.equal(own, checkpoint.tensors[f"student.{name}"])
    train_new(tiny({"checkpoint": {"keep_every": 1}}), tmp_path / "run", StoppingWatcher(), lambda line: None)
    words = ("analyze", "gradients", tmp_path / "run", "--device", "cpu", "--batches", 2)
    assert command(*words).code == 0
    assert (tmp_path / "run" / "analysis" / "gradients.csv").read_text().count("\n") == 1 + 2 * 4
    refused = command(*words, "--epochs", 1)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "keeps of epoch 1 the student alone, and mean-teacher needs more than that" in refused.err


def test_a_damaged_iterate_is_one_sentence(keeping: Path, tmp_path: Path, command: Command) -> None:
    run = shutil.copytree(keeping, tmp_path / "run")
    file = iterate_epochs(run)[1.0]
    tensors = load_file(file)
    tensors.pop("heads.first.bias")
    save_file(tensors, file, {"epoch": "1", "step": "3"})
    answer = command("analyze", "jacobian", run, "--device", "cpu", "--epochs", 1, "--images", 2, "--draws", 2)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "is damaged or of another network" in answer.err
    file.write_bytes(file.read_bytes()[:100])
    assert list(iterate_epochs(run)) == [2, 3, 4]


def test_the_command_says_what_will_be_kept(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "run"
    words = ("train", "digits-supervised", "--out", out, *FLAGS[:-6], "--keep-every", 2, "--keep-from", 1)
    words = (*words, "--epochs", 3, "--evaluation.every", 3, "--no-report")
    answer = command(*(word for word in words if word not in ("--method.weight", "100")))
    assert answer.code == 0, answer.err
    assert "will keep 2 iterates of" in answer.err
    assert list(iterate_epochs(out)) == [1, 3]
