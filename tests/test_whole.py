"""Files that are there as a whole or not at all: what a full disk leaves behind, and what is said of it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from fastswa.errors import RequestError
from fastswa.whole import reason, refuse_unwritable, replacing

LIMIT = 20_000


def test_a_file_takes_its_place_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with replacing(file) as temporary:
        temporary.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_leaves_the_file_before_and_nothing_beside_it(tmp_path: Path, failure: BaseException) -> None:
    file = tmp_path / "file"
    file.write_text("before")

    def half() -> None:
        with replacing(file) as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(type(failure)):
        half()
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        SafetensorError("No space left on device"),
    ],
)
def test_the_reason_is_in_the_systems_words(error: Exception) -> None:
    assert reason(error) == "No space left on device"


def small_files() -> None:
    """No file of this process grows beyond LIMIT, as on a disk with so much room."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figure", "schedule", "--out", "out"], "cannot write into out: File too large."),
        (["average", "0.pt", "1.pt", "--out", "out/a.safetensors"], "cannot write out/a.safetensors: File too large."),
        (["train", "digits-pi", "--epochs", "1", "--out", "out"], "cannot write a checkpoint under out/checkpoint"),
    ],
    ids=["figure", "average", "checkpoint"],
)
def test_half_a_file_does_not_stay(words: list[str], message: str, tmp_path: Path) -> None:
    for number in range(2):
        torch.save({"weight": torch.full((LIMIT,), float(number))}, tmp_path / f"{number}.pt")
    done = subprocess.run(
        [sys.executable, "-m", "fastswa", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=small_files,
        check=False,
    )
    assert message in done.stderr
    assert "os error" not in done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} <= {"config.toml", "environment.json", "metrics.jsonl"}


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_unwritable(tmp_path / "new" / "deeper")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"^cannot write into .*/file/new: .*/file is no folder\.$"):
        refuse_unwritable(tmp_path / "file" / "new")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(RequestError, match=r"^cannot write into .*/new: .* may not be written to\.$"):
        refuse_unwritable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
