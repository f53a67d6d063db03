"""Weights from any checkpoint: our model files and runs, plain safetensors, and files of torch and Lightning.

Nothing read here can run code: torch's files are read with weights_only.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastswa.averaging import canonical
from fastswa.errors import RequestError
from fastswa.modelfile import ModelFacts, find_model, read_facts
from fastswa.torchfile import DamagedError, read_torch
from fastswa.training.fork import checkpoint_of

# Where the weights lie in checkpoints that hold more: Lightning's, and what tutorials write.
_ROOMS = ("state_dict", "model_state_dict", "model")
# What the parts of one checkpoint, and lists of them, are called by Hugging Face and by torch.distributed.
_SHARD = re.compile(r"\.index\.json$|-\d+-of-\d+\.\w+$|\.distcp$")


@dataclass(frozen=True)
class Weights:
    """A checkpoint's tensors by name, what it says of its network, and the run folder it belongs to, if any."""

    name: str
    tensors: dict[str, Tensor]
    facts: ModelFacts | None = None
    run: Path | None = None


def read_weights(name: str, network: str | None, say: Callable[[str], None]) -> Weights:
    """The weights behind a file, a run folder or RUN@EPOCH; `network` chooses one of a run's (else the one to use,
    or the student of a checkpoint)."""
    path, place = Path(name), place_of(name, network)
    if path.is_dir():
        return _of_safetensors(name, place, run=path)
    if path.is_file():
        return _of_safetensors(name, path, _run_around(path)) if _is_safetensors(path) else _of_torch(name, path)
    if "@" in name:
        return _of_run(name, network or "student", say)
    raise RequestError(f"there is no checkpoint {name}.")


def place_of(name: str, network: str | None) -> Path:
    """Where the weights behind a name lie: of a run folder in its model file, else where the name says."""
    path = Path(name)
    if _is_in_shards(path):
        raise RequestError(
            f"{name} is one checkpoint in several files, which are not read; join them into one file first."
        )
    return find_model(path, network) if path.is_dir() else path


def _is_in_shards(path: Path) -> bool:
    """Whether it is an index of several files that together are one checkpoint, or a folder of such files alone."""
    if not path.is_dir():
        return path.name.endswith(".index.json")
    names = [] if (path / "model.safetensors").exists() else os.listdir(path)
    return any(_SHARD.search(name) for name in names)


def _of_run(name: str, network: str, say: Callable[[str], None]) -> Weights:
    folder, checkpoint = checkpoint_of(name, say)
    rooms = {key.split(".")[0] for key in checkpoint.tensors if key.split(".")[0] in ("student", "teacher")}
    rooms |= {f"average.{average}" for average in checkpoint.facts.get("averages", {})}
    room = network if network in rooms else f"average.{network}"
    if room not in rooms:
        there = ", ".join(sorted(found.removeprefix("average.") for found in rooms))
        raise RequestError(f"{name} has no network '{network}'; there are: {there}.")
    tensors = {key[len(room) + 1 :]: t for key, t in checkpoint.tensors.items() if key.startswith(f"{room}.")}
    model = folder.path / "model.safetensors"
    return Weights(name, tensors, read_facts(model) if model.is_file() else None, folder.path)


def _run_around(file: Path) -> Path | None:
    """The run folder that a model file lies in."""
    return next((folder for folder in list(file.absolute().parents)[:2] if (folder / "config.toml").is_file()), None)


def _is_safetensors(path: Path) -> bool:
    """Whether a file begins like one: a length, and a JSON table of that length."""
    with path.open("rb") as stream:
        return path.suffix == ".safetensors" or stream.read(9)[8:] == b"{"


def _of_safetensors(name: str, path: Path, run: Path | None = None) -> Weights:
    try:
        with safe_open(path, "pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RequestError(f"{path} is not a whole safetensors file.") from error
    return Weights(name, tensors, read_facts(path) if "fastswa" in metadata else None, run)


def _of_torch(name: str, path: Path) -> Weights:
    try:
        content = read_torch(path)
    except pickle.UnpicklingError as error:
        raise RequestError(
            f"{name} cannot be read without running code from it (or is no checkpoint at all); "
            "write its weights alone, with `torch.save(model.state_dict(), …)` or as safetensors."
        ) from error
    except DamagedError as error:
        raise RequestError(f"{name} is damaged or is no checkpoint of torch.") from error
    found = _state_dict(content)
    if not found:
        raise RequestError(f"{name} holds no weights: neither a state_dict nor one under {', '.join(_ROOMS)}.")
    return Weights(name, found)


def _state_dict(content: Any) -> dict[str, Tensor]:
    """The tensors by name that a checkpoint holds, at its top or in the room where programs put them."""
    if not isinstance(content, Mapping):
        return {}
    for room in _ROOMS:
        if isinstance(content.get(room), Mapping):
            return _state_dict(content[room])
    tensors = {canonical(str(key)): value for key, value in content.items() if isinstance(value, Tensor)}
    wrapped = all(key.startswith("module.") for key in tensors)
    return {key.removeprefix("module.") if wrapped else key: tensor for key, tensor in tensors.items()}
