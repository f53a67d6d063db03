"""Checkpoints are whole or not there; a damaged one is passed over for the one before it, and that is said."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fastswa.errors import RequestError, RunError
from fastswa.training import checkpoint as module
from fastswa.training.checkpoint import Checkpoint, Snapshot, checkpoint_epochs, load_checkpoint, save_checkpoint
from tiny_runs import Killed, StoppingWatcher, assert_same_run, checkpoint, checkpoints, go_on, tiny, train


def tensors_of(step: int) -> dict[str, Tensor]:
    return {"weight": torch.full((3, 2), float(step)), "count": torch.tensor(step), "done": torch.tensor(False)}


def save(run: Path, *steps: int, keep: tuple[int, ...] = ()) -> None:
    for step in steps:
        save_checkpoint(run / "checkpoint", step, Snapshot(tensors_of(step)), {"step": step, "epoch": step / 3}, keep)


def load(run: Path, step: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    said: list[str] = []
    return load_checkpoint(run / "checkpoint", said.append, step), said


def flip(position: float) -> Callable[[Path], None]:
    """Turn over every bit of one byte of the tensors, at a share of the file's length."""

    def damage(folder: Path) -> None:
        file = folder / "tensors.safetensors"
        content = bytearray(file.read_bytes())
        content[int(position * (len(content) - 1))] ^= 0xFF
        file.write_bytes(content)

    return damage


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return damage


def replace(name: str, content: str | bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def other_step(folder: Path) -> None:
    """One digit of facts.json changed: still JSON, and wrong."""
    file = folder / "facts.json"
    file.write_text(file.read_text().replace('"step": 6', '"step": 5'))


class Bomb:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("/tmp/fastswa-checkpoint-ran-code",)


DAMAGES = {
    "first byte": flip(0.0),
    "in the header": flip(0.2),
    "in a tensor": flip(0.9),
    "last byte": flip(1.0),
    "cut in half": cut("tensors.safetensors", 0.5),
    "empty tensors": cut("tensors.safetensors", 0.0),
    "facts cut": cut("facts.json", 0.5),
    "facts empty": cut("facts.json", 0.0),
    "facts of another kind": replace("facts.json", "[1, 2]"),
    "facts without a digest": replace("facts.json", '{"step": 6, "epoch": 2}'),
    "facts not text": replace("facts.json", b"\xff\xfe\x00"),
    "another step": other_step,
    "no facts": lambda folder: (folder / "facts.json").unlink(),
    "no tensors": lambda folder: (folder / "tensors.safetensors").unlink(),
    "nothing in it": lambda folder: [file.unlink() for file in folder.iterdir()],  # type: ignore[dict-item]
    "a pickle": replace("tensors.safetensors", pickle.dumps(Bomb())),
}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    facts = {"step": 6, "epoch": 2.0, "averages": {"swa": {"count": 3, "last_due": -1}}, "seconds": 0.1 + 0.2}
    tensors = tensors_of(6)
    tensors["shared"] = tensors["weight"]
    tensors["channels_last"] = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    save_checkpoint(tmp_path / "new" / "checkpoint", 6, Snapshot(tensors), facts)
    found, said = load(tmp_path / "new")
    assert found is not None
    assert (found.facts, said) == (facts, [])
    assert found.tensors.keys() == tensors.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())


def test_the_last_two_and_the_kept_ones_stay(tmp_path: Path) -> None:
    save(tmp_path, 3, 6, 9, 12, 15, keep=(6, 99))
    assert checkpoints(tmp_path) == [6, 12, 15]
    assert checkpoint_epochs(tmp_path / "checkpoint") == {2.0: 6, 4.0: 12, 5.0: 15}
    assert load(tmp_path)[0].facts["step"] == 15  # type: ignore[union-attr]
    assert load(tmp_path, 6)[0].facts["step"] == 6  # type: ignore[union-attr]
    assert load(tmp_path, 9) == (None, [])


def test_there_may_be_no_checkpoint_yet(tmp_path: Path) -> None:
    assert load(tmp_path) == (None, [])
    assert checkpoint_epochs(tmp_path / "checkpoint") == {}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_passed_over(damage: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path, 3, 6)
    broken = checkpoint(tmp_path, 6)
    damage(broken)
    found, said = load(tmp_path)
    assert found is not None
    assert found.facts["step"] == 3
    assert torch.equal(found.tensors["weight"], torch.full((3, 2), 3.0))
    assert len(said) == 1
    assert said[0].startswith(f"checkpoint {broken} is damaged: ")
    assert said[0].endswith("; falling back to the one before it.")
    assert "\n" not in said[0]
    with pytest.raises(RequestError, match=r"step-000000006 is damaged: .*\.$"):
        load(tmp_path, 6)
    assert not Path("/tmp/fastswa-checkpoint-ran-code").exists()


def test_where_all_are_damaged_there_is_none(tmp_path: Path) -> None:
    save(tmp_path, 3, 6)
    for step in (3, 6):
        flip(0.9)(checkpoint(tmp_path, step))
    found, said = load(tmp_path)
    assert found is None
    assert [line.split(" ")[1] for line in said] == [str(checkpoint(tmp_path, step)) for step in (6, 3)]


def test_damaged_checkpoints_do_not_crowd_out_new_ones(tmp_path: Path) -> None:
    """A run that fell back to step 0 saves at step 3 while garbled ones of steps 6 and 9 are still there."""
    save(tmp_path, 6, 9)
    for step in (6, 9):
        flip(0.9)(checkpoint(tmp_path, step))
    save(tmp_path, 3, keep=(9,))
    assert checkpoints(tmp_path) == [3]
    assert load(tmp_path)[0].facts["step"] == 3  # type: ignore[union-attr]


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 3, 6)
    leftover = tmp_path / "checkpoint" / ".writing-old-step-000000006"
    shutil.copytree(checkpoint(tmp_path, 3), leftover)
    save_checkpoint(tmp_path / "checkpoint", 6, Snapshot(tensors_of(7)), {"step": 6, "epoch": 2.0})
    found, said = load(tmp_path)
    assert found is not None
    assert (int(found.tensors["count"]), said) == (7, [])
    assert sorted(f.name for f in (tmp_path / "checkpoint").iterdir()) == ["step-000000003", "step-000000006"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), Killed()])
@pytest.mark.parametrize("where", ["save_file", "_digest", "_flush", "os.replace"])
def test_a_checkpoint_is_whole_or_not_there(
    where: str, failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3, 6)

    def fails(*arguments: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        target = (module.os, "replace") if where == "os.replace" else (module, where)
        patch.setattr(*target, fails)
        with pytest.raises((RunError, Killed)) as caught:
            save(tmp_path, 9)
    if isinstance(failure, OSError):
        assert str(caught.value) == (
            f"cannot write a checkpoint under {tmp_path / 'checkpoint'}: No space left on device."
        )
    assert checkpoints(tmp_path) == [3, 6]
    found, said = load(tmp_path)
    assert found is not None
    assert (found.facts["step"], said) == (6, [])
    save(tmp_path, 9)
    assert checkpoints(tmp_path) == [6, 9]


def test_a_checkpoint_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"^cannot write a checkpoint under .*/file/checkpoint: Not a directory\.$"):
        save(tmp_path / "file", 3)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(tiny(), reference)
    train(tiny(), run, StoppingWatcher(stop=8))
    flip(0.7)(checkpoint(run, 8))
    result, said = go_on(run)
    assert result.finished
    assert said == [
        f"checkpoint {checkpoint(run, 8)} is damaged: its contents do not match their digest; "
        "falling back to the one before it."
    ]
    assert_same_run(run, reference)


def test_a_run_whose_checkpoints_are_all_damaged_starts_from_step_0(tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(tiny(), reference)
    train(tiny(), run, StoppingWatcher(stop=8))
    flip(0.7)(checkpoint(run, 8))
    cut("facts.json", 0.5)(checkpoint(run, 6))
    with pytest.raises(Killed):
        go_on(run, StoppingWatcher(kill=5))
    assert checkpoints(run) == [3]
    result, said = go_on(run)
    assert (result.finished, said) == (True, [])
    assert_same_run(run, reference)


def test_a_fallback_to_step_0_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=2))
    cut("tensors.safetensors", 0.4)(checkpoint(run, 2))
    _, said = go_on(run)
    assert len(said) == 2
    assert said[0].endswith("; there is none before it.")
    assert said[1] == f"{run} has no whole checkpoint; starting from step 0."


def test_kept_epochs_stay(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"checkpoint": {"keep": [1], "every": 3}, "schedule": {"epochs": 7}}), run)
    assert checkpoints(run) == [3, 18, 21]
    facts = json.loads((checkpoint(run, 3) / "facts.json").read_text())
    assert facts["averages"]["ema"]["count"] == 3
