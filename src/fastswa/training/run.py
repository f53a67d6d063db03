"""Runs from beginning to end: new, resumed, forked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastswa.config import RESUMABLE, Config, DeviceConfig, to_dict
from fastswa.data.images import Dataset
from fastswa.errors import RequestError
from fastswa.layers import build_config, file_layer
from fastswa.modelfile import load_model
from fastswa.training.checkpoint import Checkpoint, checkpoint_epochs, load_checkpoint
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.lanes import Lanes
from fastswa.training.loop import Trainer, Watcher
from fastswa.training.setup import load_data, prepare, with_data_defaults
from fastswa.training.state import State, build_state
from fastswa.training.tensorboard import TensorBoardWatcher

Say = Callable[[str], None]


@dataclass(frozen=True)
class RunResult:
    """A run's folder, its evaluations, and whether it reached its last epoch."""

    path: Path
    metrics: list[dict[str, Any]]
    finished: bool


def fingerprint(config: Config) -> str:
    """A hash of all settings but those that a resume may change."""
    flat = {name: value for name, value in flatten(to_dict(config)).items() if name not in RESUMABLE}
    return hashlib.blake2b(json.dumps(flat, sort_keys=True).encode(), digest_size=8).hexdigest()


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def train_new(config: Config, out: Path, watcher: Watcher, say: Say) -> RunResult:
    """A new run in a new folder; forked from another run's state if `start.run` says so."""
    return train_together([(config, out, watcher)], say)[0]


def train_together(runs: Sequence[tuple[Config, Path, Watcher]], say: Say) -> list[RunResult]:
    """Several new runs on one device: taking turns at every step on a GPU, one after the other on the CPU."""
    for _, out, _ in runs:
        RunFolder(out).refuse_taken()
    device = runs[0][0].device
    compute = choose_compute(device)
    with settings_of(compute, device.threads):
        lanes = Lanes(compute)
        begun = [lanes.on(number, partial(_begin, *run, compute, say)) for number, run in enumerate(runs)]
        lanes.run([trainer.steps(watcher) for trainer, watcher in begun])
    return [RunResult(trainer.folder.path, trainer.folder.metrics(), trainer.finished) for trainer, _ in begun]


def _begin(config: Config, out: Path, watcher: Watcher, compute: Compute, say: Say) -> tuple[Trainer, Watcher]:
    """A new run made ready: checked, its folder written."""
    dataset = load_data(config)
    config = with_data_defaults(config, dataset)
    trainer = _trainer(config, dataset, compute, RunFolder(out))
    parent = _fork(config, trainer.state, trainer.steps_per_epoch, say) if config.start.run else None
    if parent is not None and trainer.epoch >= config.schedule.epochs:
        raise RequestError(
            f"{parent['run']} is at epoch {trainer.epoch:g} already, and schedule.epochs is "
            f"{config.schedule.epochs}; give the fork more epochs."
        )
    trainer.check()
    watcher = _watchers(config, watcher, out)
    trainer.folder.create(config)
    trainer.folder.write_environment({**compute.facts(), "parent": parent})
    if parent is not None:
        trainer.save()
    return trainer, watcher


def _trainer(config: Config, dataset: Dataset, compute: Compute, folder: RunFolder, *, fresh: bool = True) -> Trainer:
    """Everything a run trains with; `fresh` is False where a checkpoint is about to replace the state."""
    material = prepare(config, dataset, compute)
    weights = Path(config.start.weights) if fresh and config.start.weights is not None else None
    state = build_state(config, compute, material.facts, images=len(dataset.train), weights=weights)
    return Trainer(config, material, state, compute, folder, fingerprint(config))


def _watchers(config: Config, watcher: Watcher, out: Path) -> Watcher:
    return TensorBoardWatcher(watcher, out) if config.log.tensorboard else watcher


def resume(path: Path, changes: Mapping[str, Any], watcher: Watcher, say: Say) -> RunResult:
    """Go on with a run from its last whole checkpoint; `changes` may touch what RESUMABLE lists."""
    folder = RunFolder.open(path)
    for name in flatten(changes):
        if name not in RESUMABLE:
            raise RequestError(
                f"{name} cannot change on resume (only {', '.join(RESUMABLE)}); "
                f"`fastswa train --from {path} --{name} …` forks the run instead."
            )
    config = build_config(file_layer(path / "config.toml"), changes)
    checkpoint = load_checkpoint(folder.checkpoints, say)
    if checkpoint is not None and checkpoint.facts["fingerprint"] != fingerprint(config):
        raise RequestError(
            f"the checkpoint in {path} belongs to another configuration than its config.toml; "
            "put the settings back, or fork the run with `fastswa train --from`."
        )
    compute = choose_compute(config.device)
    with settings_of(compute, config.device.threads):
        trainer = _trainer(config, load_data(config), compute, folder, fresh=checkpoint is None)
        state = trainer.state
        if checkpoint is None:
            begin = f"its parent {config.start.run}" if config.start.run else "step 0"
            say(f"{path} has no whole checkpoint; starting from {begin}.")
            parent = _fork(config, state, trainer.steps_per_epoch, say) if config.start.run else None
            folder.keep_environment({**compute.facts(), "parent": parent})
        else:
            _restore(state, checkpoint, path)
            trainer.seconds = checkpoint.facts["seconds"]
        folder.drop_metrics_after(state.step if checkpoint is not None else -1)
        if state.step >= trainer.total_steps and folder.models_epoch() == trainer.epoch:
            say(f"{path} already reached epoch {state.step // trainer.steps_per_epoch}; nothing to do.")
            return RunResult(path, folder.metrics(), True)
        trainer.check()
        folder.write_config(config)
        trainer.train(_watchers(config, watcher, path))
    return RunResult(path, folder.metrics(), trainer.finished)


def _restore(state: State, checkpoint: Checkpoint, path: Path) -> None:
    try:
        state.restore(checkpoint.tensors, checkpoint.facts)
    except (ValueError, KeyError, RuntimeError) as error:
        raise RequestError(f"the checkpoint in {path} does not fit this run: {error}.") from error


def _fork(config: Config, state: State, steps_per_epoch: int, say: Say) -> dict[str, Any]:
    """Put another run's state into a new one; what it had and this one lacks is left out.

    Averages go on where their settings are unchanged; others begin with the fork.
    """
    assert config.start.run is not None
    source, epoch_text = _parent(config.start.run)
    folder = RunFolder.open(Path(source))
    step = None
    if epoch_text:
        step = _step_of(folder, epoch_text, source)
    checkpoint = load_checkpoint(folder.checkpoints, say, step)
    if checkpoint is None:
        raise RequestError(f"{source} has no whole checkpoint to fork from.")
    facts, theirs = checkpoint.facts, checkpoint.tensors
    for name in theirs.keys() - state.tensors().keys():
        if name.startswith("student."):
            raise RequestError(f"{source} cannot be forked: its network has {name} besides.")
    epoch = facts["step"] / facts["steps_per_epoch"]
    if steps_per_epoch != facts["steps_per_epoch"] and not epoch.is_integer():
        raise RequestError(f"{source} stopped within an epoch, and the fork's epochs have another length.")
    parent_averages = to_dict(folder.config()).get("averaging", {})
    own_averages = to_dict(config).get("averaging", {})
    continued = {name for name in own_averages if own_averages[name] == parent_averages.get(name)}
    with torch.no_grad():
        for name, tensor in state.tensors().items():
            room, _, rest = name.partition(".")
            if room in ("sums", "broken") or (room == "average" and rest.split(".")[0] not in continued):
                continue
            found = theirs.get(name, theirs.get(f"student.{rest}") if room == "teacher" else None)
            if found is not None and found.shape == tensor.shape:
                tensor.copy_(found)
            elif room in ("student", "teacher"):
                raise RequestError(f"{source} cannot be forked: its network differs in {rest}.")
    state.step = round(epoch * steps_per_epoch)
    for name, average in state.averages.items():
        if name in continued:
            average.count = facts["averages"][name]["count"]
            average.last_due = facts["averages"][name]["last_due"]
        else:
            average.update(epoch)
    return {"run": source, "epoch": epoch, "fingerprint": facts["fingerprint"]}


def _step_of(folder: RunFolder, epoch_text: str, source: str) -> int:
    """The step of the checkpoint at an epoch."""
    epochs = checkpoint_epochs(folder.checkpoints)
    try:
        return epochs[float(epoch_text)]
    except (KeyError, ValueError) as error:
        there = ", ".join(f"{epoch:g}" for epoch in epochs) or "none"
        raise RequestError(
            f"{source} keeps no checkpoint of epoch {epoch_text} (there are: {there}); "
            "checkpoint.keep names the epochs to keep."
        ) from error


def _parent(text: str) -> tuple[str, str]:
    """RUN and EPOCH (or nothing) of RUN[@EPOCH]; a folder's own name may hold an @ too."""
    source, at, epoch = text.rpartition("@")
    return (source, epoch) if at and not Path(text).is_dir() else (text, "")


def parent_layer(run: str) -> dict[str, Any]:
    """The settings of the run that RUN or RUN@EPOCH names, for a fork that changes some of them."""
    settings = to_dict(RunFolder.open(Path(_parent(run)[0])).config())
    settings.pop("start", None)
    return settings


def evaluate_run(path: Path, device: str = "auto") -> dict[str, dict[str, dict[str, float]]]:
    """Figures of every network that a finished run holds: by set of images, network and figure."""
    folder = RunFolder.open(path)
    config = folder.config()
    # As the run computed, where this device can: tf32 exists on GPUs only.
    precision = "auto" if config.device.precision == "tf32" and device == "cpu" else config.device.precision
    there = DeviceConfig(name=device, precision=precision, threads=config.device.threads)
    config = config.model_copy(update={"device": there})
    files = sorted((path / "models").glob("*.safetensors"))
    if not files:
        raise RequestError(f"{path} holds no models yet; finish it with `fastswa resume {path}`.")
    compute = choose_compute(config.device)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with settings_of(compute, config.device.threads):
        material = prepare(config, load_data(config), compute)
        if not material.evaluators:
            raise RequestError(f"{path} has neither test nor validation images to be measured on.")
        for file in files:
            network = load_model(file).network.to(compute.device, compute.dtype)
            for images, evaluator in material.evaluators.items():
                figures.setdefault(images, {})[file.stem] = evaluator(network, compute.arithmetic())
    return figures
