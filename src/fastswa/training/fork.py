"""Forks: another run's whole state put into a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastswa import models
from fastswa.config import AverageConfig, Config, resolved, to_dict
from fastswa.data.pace import Pace
from fastswa.errors import RequestError
from fastswa.training.checkpoint import Checkpoint, checkpoint_epochs, load_checkpoint
from fastswa.training.folder import RunFolder
from fastswa.training.state import State


def fork(config: Config, state: State, pace: Pace, say: Callable[[str], None]) -> dict[str, Any]:
    """Put another run's state into a new one; what it had and this one lacks is left out.

    Averages go on where their settings are unchanged; others begin with the fork.
    """
    assert config.start.run is not None
    folder, checkpoint = checkpoint_of(config.start.run, say)
    source, facts, theirs = str(folder.path), checkpoint.facts, state.recalled(checkpoint.tensors)
    for name in theirs.keys() - state.tensors().keys():
        if name.startswith("student."):
            raise RequestError(f"{source} cannot be forked: its network has {name} besides.")
    epoch = float(facts["epoch"])
    theirs_then = Pace(facts["steps_per_epoch"], folder.config().batch.pace or ()).of(int(epoch))
    if not epoch.is_integer() and pace.of(int(epoch)) != theirs_then:
        raise RequestError(f"{source} stopped within an epoch, and the fork's epochs have another length.")
    parent = folder.config()
    _refuse_other_scale(config, parent, source)
    parent_averages = to_dict(parent).get("averaging", {})
    own_averages = to_dict(config).get("averaging", {})
    for name in _inherited(config, parent):
        kept = config.averaging[name]
        say(
            f"{name} is averaged as in {source}, from epoch {kept.start:g} on every {kept.every:g} epochs, "
            f"although the schedule is another; averaging.{name}.start and averaging.{name}.every change it."
        )
    continued = {name for name in own_averages if own_averages[name] == parent_averages.get(name)}
    with torch.no_grad():
        for name, tensor in state.tensors().items():
            room, _, rest = name.partition(".")
            if room in ("sums", "broken") or (room in ("average", "averaging") and rest.split(".")[0] not in continued):
                continue
            found = theirs.get(name, theirs.get(f"student.{rest}") if room == "teacher" else None)
            if found is not None and found.shape == tensor.shape:
                tensor.copy_(found)
            elif room in ("student", "teacher"):
                raise RequestError(f"{source} cannot be forked: its network differs in {rest}.")
    state.step = pace.step(epoch)
    for name, average in state.averages.items():
        if name in continued:
            average.count = facts["averages"][name]["count"]
            average.last_due = facts["averages"][name]["last_due"]
        else:
            average.update(epoch)
    return {"run": source, "epoch": epoch, "step": state.step, "fingerprint": facts["fingerprint"]}


def _refuse_other_scale(config: Config, parent: Config, source: str) -> None:
    """RequestError where the parent's network knows images by another mean and deviation: pretrained weights' own."""
    theirs, own = (models.normalisation(one.model.name, pretrained=one.model.pretrained) for one in (parent, config))
    if theirs != own:
        raise RequestError(
            f"{source} cannot be forked so: model.pretrained also says how images are normalised; "
            "leave it as it is there."
        )


def _inherited(config: Config, parent: Config) -> list[str]:
    """The averages whose start or cadence followed the parent's schedule, and would follow the fork's otherwise."""

    def by_schedule(one: Config, average: AverageConfig) -> AverageConfig:
        bare = AverageConfig.model_validate(average.model_dump(exclude={"start", "every"}, exclude_unset=True))
        return resolved(one.model_copy(update={"averaging": {"it": bare}})).averaging["it"]

    return [
        name
        for name, average in config.averaging.items()
        if average == parent.averaging.get(name) == by_schedule(parent, average) != by_schedule(config, average)
    ]


def checkpoint_of(run: str, say: Callable[[str], None]) -> tuple[RunFolder, Checkpoint]:
    """The checkpoint that RUN (its last) or RUN@EPOCH names, and the run's folder."""
    source, epoch_text = _parent(run)
    folder = RunFolder.open(Path(source))
    step = _step_of(folder, epoch_text, source) if epoch_text else None
    checkpoint = load_checkpoint(folder.checkpoints, say, step)
    if checkpoint is None:
        raise RequestError(f"{source} has no whole checkpoint.")
    return folder, checkpoint


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
    """The settings of the run that RUN or RUN@EPOCH names, for a fork that changes some of them.

    The threads of a run that shared the cores with others are none of them.
    """
    folder = RunFolder.open(Path(_parent(run)[0]))
    settings = to_dict(folder.config())
    settings.pop("start", None)
    if folder.shared_cores():
        settings["device"].pop("threads", None)
    return settings
