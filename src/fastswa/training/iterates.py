"""Kept iterates: the student alone at chosen epochs, a small file each, for `fastswa analyze`.

A whole checkpoint holds the optimiser, the teacher and every average as well, several times as much. An iterate is one
safetensors file under RUN/iterates with the student's parameters, in 32 bits or in bf16, and its buffers as they are.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fastswa.config import CheckpointConfig
from fastswa.errors import RequestError, RunError
from fastswa.training.ahead import Behind
from fastswa.training.checkpoint import Snapshot
from fastswa.whole import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastswa.training.loop import Trainer

FOLDER = "iterates"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_PREFIX, _SUFFIX, _WRITING = "step-", ".safetensors", ".writing-"


def kept_epochs(config: CheckpointConfig, first: int, last: int) -> list[int]:
    """The epochs whose iterates a run keeps, from `first` to `last`."""
    if not config.keep_every:
        return []
    began = config.keep_from if config.keep_from is not None else config.keep_every
    return [epoch for epoch in range(began, last + 1, config.keep_every) if epoch >= max(first, 1)]


def size_of(network: nn.Module, dtype: str) -> int:
    """Bytes that one iterate takes, but for the names in its file."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in network.buffers())
    return parameters * DTYPES[dtype].itemsize + buffers


def announce(trainer: Trainer, say: Callable[[str], None]) -> None:
    """Say what the iterates of the epochs to come will take; refuse where the disk has no room for them."""
    config, total = trainer.config.checkpoint, trainer.config.schedule.epochs
    count = len(kept_epochs(config, math.floor(trainer.epoch) + 1, total))
    if not count:
        return
    each = size_of(trainer.state.student, config.keep_dtype)
    folder = trainer.folder.path / FOLDER
    free = _free(folder)
    if free is not None and count * each > free:
        raise RequestError(
            f"{count} iterates of {megabytes(each)} would take {megabytes(count * each)} under {folder}, and "
            f"{megabytes(free)} are free; keep fewer (--keep-every, --keep-from), or half of each "
            "(--checkpoint.keep_dtype bf16)."
        )
    say(
        f"{folder} will keep {count} iterate{'s' * (count > 1)} of {megabytes(each)} in {config.keep_dtype}: "
        f"{megabytes(count * each)}."
    )


def megabytes(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def _free(folder: Path) -> int | None:
    """Bytes free where a folder is or will be; None where that cannot be told."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


class IterateKeeper:
    """Keeps the student at the epochs that the settings name, while training goes on."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self._writing = Behind()

    def epoch_done(self, trainer: Trainer, epoch: int) -> None:
        if not kept_epochs(self.config, epoch, epoch):
            return
        student = trainer.state.student
        parameters = {name for name, _ in student.named_parameters()}
        snapshot = Snapshot(student.state_dict())
        facts = {"epoch": str(epoch), "step": str(trainer.state.step)}
        dtype = DTYPES[self.config.keep_dtype]
        self._writing(partial(_write, trainer.folder.path / FOLDER, snapshot, parameters, dtype, facts))

    def settle(self) -> None:
        """Return when every iterate is on the disk."""
        self._writing.wait()


def _write(folder: Path, snapshot: Snapshot, parameters: set[str], dtype: torch.dtype, facts: dict[str, str]) -> None:
    """Write one whole; weights that are not finite are no iterate, and the run itself stops over them."""
    tensors = snapshot.on_host()
    if not all(bool(tensors[name].isfinite().all()) for name in parameters):
        return
    tensors = {name: tensor.to(dtype) if name in parameters else tensor for name, tensor in tensors.items()}
    final = folder / f"{_PREFIX}{int(facts['step']):09d}{_SUFFIX}"
    writing = folder / f"{_WRITING}{final.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, writing, metadata=facts)
        os.replace(writing, final)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            writing.unlink(missing_ok=True)
        raise RunError(f"cannot write an iterate into {folder}: {reason(error)}.") from error


def iterate_epochs(run: Path) -> dict[float, Path]:
    """The kept iterates of a run by epoch, oldest first; what cannot be read is left out."""
    found = {}
    for file in sorted((run / FOLDER).glob(f"{_PREFIX}*{_SUFFIX}")):
        with contextlib.suppress(OSError, SafetensorError, TypeError, KeyError, ValueError), _opened(file) as content:
            found[float(content.metadata()["epoch"])] = file
    return found


def load_iterate(file: Path, names: list[str]) -> list[Tensor]:
    """The tensors of these names, on the CPU."""
    try:
        with _opened(file) as content:
            return [content.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as error:
        raise RequestError(f"the iterate {file} is damaged or of another network: {reason(error)}.") from error


def _opened(file: Path) -> contextlib.AbstractContextManager[safe_open]:
    return safe_open(file, framework="pt")


def drop_iterates(run: Path, after: int = -1) -> None:
    """Forget the iterates past a step, which a resume will come to again; all of them by default."""
    folder = run / FOLDER
    for file in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        number = file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if number.isdigit() and int(number) > after:
            file.unlink(missing_ok=True)
    for leftover in folder.glob(f"{_WRITING}*"):
        leftover.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
