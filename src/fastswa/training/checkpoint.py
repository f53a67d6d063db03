"""Checkpoints: whole or not there, the last two kept, a garbled one passed over.

A checkpoint is a folder `step-NNNNNNNNN` with `tensors.safetensors` and `facts.json`; it is written under
another name, flushed to the disk and renamed. Loading one never runs code from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fastswa import beside
from fastswa.errors import RequestError, RunError
from fastswa.whole import reason

_PREFIX, _WRITING = "step-", ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (on the CPU) and plain facts."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Snapshot:
    """Copies of tensors on their device, which may change from now on; brought to the host by whoever asks.

    On a GPU that happens on a stream of its own, so that it neither waits for the steps queued meanwhile nor holds
    them up.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Contiguous copies: two names may share memory, and channels-last tensors are not plain rows.
        self._copies = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
        }
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        self._copied = None if device is None else torch.cuda.current_stream(device).record_event()

    def on_host(self) -> dict[str, Tensor]:
        """The copies, as CPU tensors."""
        if self._copied is None:
            return self._copies
        device = next(tensor.device for tensor in self._copies.values() if tensor.is_cuda)
        stream = beside.own(device, "checkpoints")
        stream.wait_event(self._copied)
        with torch.cuda.stream(stream):
            return {name: copy.cpu() for name, copy in self._copies.items()}


def save_checkpoint(
    folder: Path,
    step: int,
    snapshot: Snapshot,
    facts: Mapping[str, Any],
    keep: Collection[int] = (),
) -> None:
    """Write a checkpoint atomically, then drop all but the last two and those whose step is in `keep`.

    What a kill left half-written goes too, and so do later checkpoints: a run that is back at this step has
    passed them over as damaged.
    """
    name = f"{_PREFIX}{step:09d}"
    writing = folder / f"{_WRITING}{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_WRITING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        writing.mkdir()
        save_file(snapshot.on_host(), writing / "tensors.safetensors")
        digest = _digest(writing / "tensors.safetensors", facts)
        (writing / "facts.json").write_text(json.dumps({**facts, "digest": digest}), "utf-8")
        for file in writing.iterdir():
            _flush(file)
        # An older checkpoint of the same step steps aside first: a folder cannot replace a folder.
        final, aside = folder / name, folder / f"{_WRITING}old-{name}"
        if final.exists():
            os.replace(final, aside)
        os.replace(writing, final)
        _flush(folder)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(writing, ignore_errors=True)
        raise RunError(f"cannot write a checkpoint under {folder}: {reason(error)}.") from error
    kept = {f"{_PREFIX}{s:09d}" for s in keep}
    there = _folders(folder)
    passed_over = [f for f in there if f.name > name]
    old = [f for f in there if f.name <= name][2:]
    for useless in passed_over + [f for f in old if f.name not in kept]:
        shutil.rmtree(useless, ignore_errors=True)


def load_checkpoint(folder: Path, say: Callable[[str], None], step: int | None = None) -> Checkpoint | None:
    """The newest whole checkpoint (or the one of `step`); None where there is none.

    A garbled or incomplete one is passed over for the one before it, and `say` tells.
    """
    found = _folders(folder)
    if step is not None:
        found = [f for f in found if f.name == f"{_PREFIX}{step:09d}"]
    for number, candidate in enumerate(found, 1):
        try:
            return _read(candidate)
        except (OSError, ValueError, SafetensorError) as error:
            if step is not None:
                raise RequestError(f"checkpoint {candidate} is damaged: {reason(error)}.") from error
            before = "falling back to the one before it" if number < len(found) else "there is none before it"
            say(f"checkpoint {candidate} is damaged: {reason(error)}; {before}.")
    return None


def checkpoint_epochs(folder: Path) -> dict[float, int]:
    """The epochs of the checkpoints that are there, oldest first, with their steps."""
    found = {}
    for candidate in reversed(_folders(folder)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads((candidate / "facts.json").read_text("utf-8"))
            found[float(facts["epoch"])] = int(facts["step"])
    return found


def _folders(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted(folder.glob(f"{_PREFIX}*"), key=lambda f: f.name, reverse=True)


def _read(folder: Path) -> Checkpoint:
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    if not isinstance(facts, dict) or "digest" not in facts:
        raise ValueError("its facts.json holds no digest")
    digest = facts.pop("digest")
    if _digest(folder / "tensors.safetensors", facts) != digest:
        raise ValueError("its contents do not match their digest")
    return Checkpoint(load_file(folder / "tensors.safetensors"), facts)


def _digest(tensors: Path, facts: Mapping[str, Any]) -> str:
    """A hash over both: a wrong step would be as bad as a wrong weight."""
    with tensors.open("rb") as stream:
        digest = hashlib.file_digest(stream, "blake2b")
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
