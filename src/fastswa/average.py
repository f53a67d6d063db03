"""The mean of several checkpoints of one architecture, with batch-norm statistics of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from fastswa.errors import RequestError, RunError
from fastswa.modelfile import ModelFacts, metadata_of, write_tensors
from fastswa.stage import Stage, facts_of_run, images_for, stage_for
from fastswa.training.device import settings_of
from fastswa.weights import Weights, place_of, read_weights
from fastswa.whole import reason, refuse_unwritable

Say = Callable[[str], None]
Figures = dict[str, dict[str, dict[str, float]]]
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Mean:
    """The running mean of checkpoints of one architecture, summed in 64 bits.

    Batch-norm statistics and whole numbers are not averaged: they are those of the checkpoint that came last.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._last: dict[str, Tensor] = {}

    def add(self, weights: Weights) -> None:
        """Take a checkpoint in; one of another architecture is refused, and so are weights that are not finite."""
        if self.names:
            refuse_difference(self._last, weights.tensors, self.names[0], weights.name)
        for name, tensor in weights.tensors.items():
            if not (tensor.is_floating_point() or tensor.is_complex()) or is_statistic(name):
                continue
            wide = _finite(weights.name, name, tensor)
            self._sums[name] = self._sums[name] + wide if name in self._sums else wide
            self._dtypes[name] = _wider(self._dtypes.get(name, tensor.dtype), tensor.dtype)
        self.names.append(weights.name)
        self._last = weights.tensors

    def refuse_statistics(self) -> None:
        """Refuse the last checkpoint's statistics, where they are to stay, if they are not finite."""
        for name in filter(is_statistic, self._last):
            _finite(self.names[-1], name, self._last[name])

    def tensors(self) -> dict[str, Tensor]:
        """The mean so far, each tensor in the widest precision that it came in."""
        count = len(self.names)
        return {
            name: (self._sums[name] / count).to(self._dtypes[name]) if name in self._sums else tensor
            for name, tensor in self._last.items()
        }


def _finite(checkpoint: str, name: str, tensor: Tensor) -> Tensor:
    """The tensor in 64 bits, in which every type can be looked at; refused if it is not finite."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    if not bool(wide.isfinite().all()):
        raise RequestError(f"{checkpoint}: {name} is not finite; leave this checkpoint out.")
    return wide


def _wider(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """The type that holds the values of both."""
    try:
        return torch.promote_types(one, other)
    except RuntimeError:  # torch says so of floats of 8 bits beside any other
        wide = max(one, other, key=lambda kind: kind.itemsize)
        return wide if wide.itemsize > 1 else torch.float32


def is_statistic(name: str) -> bool:
    """Whether a tensor of this name belongs to a batch norm's statistics."""
    return name.rpartition(".")[2] in _STATISTICS


def refuse_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor], one: str, other: str) -> None:
    """Refuse two sets of weights of different architectures, naming the first tensor in which they differ."""
    for name in [*ours, *theirs]:
        found = [tensors[name].shape if name in tensors else None for tensors in (ours, theirs)]
        if found[0] != found[1]:
            what = [
                f"not in {at}" if shape is None else f"{tuple(shape)} in {at}"
                for shape, at in zip(found, (one, other), strict=True)
            ]
            raise RequestError(f"{one} and {other} are not of one architecture: {name} is {what[0]} and {what[1]}.")


@dataclass(frozen=True)
class Averaged:
    """What was averaged and written; `figures` by set of images, network and figure, before and after."""

    out: str
    averaged: list[str]
    refreshed: bool
    note: str
    figures: Figures

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, for JSON."""
        return asdict(self)


def average(
    names: Sequence[str],
    out: Path,
    say: Say,
    *,
    data: str | None = None,
    root: str = "data",
    model: str | None = None,
    network: str | None = None,
    refresh: bool = True,
    device: str = "auto",
) -> Averaged:
    """Write the mean of checkpoints to `out`: model files, run folders, RUN@EPOCH, safetensors, torch's files.

    Batch-norm statistics come from training batches of `data` (a run, a recipe or one's own images; not given, the run
    that a checkpoint belongs to). `model` names the architecture of checkpoints that do not say it themselves;
    `network` one of a run's networks; `root` the folder of downloaded data sets.
    """
    _refuse_request(names, network, out)
    mean, facts, run = Mean(), None, None
    for name in names:
        weights = read_weights(name, network, say)
        mean.add(weights)
        facts, run = _shared(facts, weights.facts), run or weights.run
    if not refresh:
        mean.refuse_statistics()
    tensors = mean.tensors()
    source = data or (None if run is None else str(run))
    statistics = _statistics(tensors, facts)
    refreshed = refresh and statistics == "moving"
    if refreshed and facts is not None and facts.features:
        raise RequestError(f"{names[0]} takes feature vectors, which cannot be had from --data; give --no-refresh.")
    if source is None or (facts is None and model is None and run is None):
        if refreshed:
            raise RequestError(_needs(names[-1], told=facts is not None or model is not None))
        _write(out, tensors, facts)
        return Averaged(str(out), mean.names, False, _note(names[-1], statistics, refreshed=False), {})
    if facts is None and model is None and run is not None:
        facts = facts_of_run(run)
    images = images_for(source, root, facts, model, device, say)
    with settings_of(images.compute):
        stage = stage_for(images, tensors, facts, model)
        figures: Figures = {}
        if images.measured:
            for name in names:
                stage.load(read_weights(name, network, say).tensors)
                _enter(figures, name, stage)
        stage.load(tensors)
        _enter(figures, "average, statistics of the last" if refreshed else "average", stage)
        if refreshed:
            stage.refresh()
            _enter(figures, "average", stage)
    _write(out, stage.tensors(tensors), stage.facts)
    note = _note(names[-1], statistics, refreshed)
    if not images.measured:
        other = facts is not None and facts.classes != images.material.facts.classes
        why = (
            f"the labels of {source} are not the model's classes" if other else f"{source} has no images to measure on"
        )
        note += f" Nothing was measured: {why}."
    return Averaged(str(out), mean.names, refreshed, note, figures)


def _shared(facts: ModelFacts | None, more: ModelFacts | None) -> ModelFacts | None:
    """The first facts there are; nothing is held in an average if it was not held in every checkpoint."""
    if facts is None or more is None:
        return facts or more
    held = facts.options.get("frozen") and more.options.get("frozen")
    return facts if held else replace(facts, options={k: v for k, v in facts.options.items() if k != "frozen"})


def _statistics(tensors: dict[str, Tensor], facts: ModelFacts | None) -> str:
    """Whether batch-norm statistics follow the weights (moving), are held with them (held) or are not there (none)."""
    if not any(map(is_statistic, tensors)):
        return "none"
    return "held" if facts is not None and facts.options.get("frozen") else "moving"


def _enter(figures: Figures, name: str, stage: Stage) -> None:
    for images, values in stage.measure().items():
        figures.setdefault(images, {})[name] = values


def _refuse_request(names: Sequence[str], network: str | None, out: Path) -> None:
    if len(names) < 2:
        raise RequestError("name at least two checkpoints to average.")
    if out.suffix.lower() != ".safetensors":
        raise RequestError(f"--out: {out} must end in .safetensors.")
    places = [place_of(name, network).resolve() for name in names]
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        if place in places[:number]:
            first = names[places.index(place)]
            other = f", first as {first}" if first != name else ""
            raise RequestError(f"{name} is named twice{other}.")
    if out.exists():
        raise RequestError(f"{out} is there already; choose another --out.")
    refuse_unwritable(out.parent)


def _needs(last: str, *, told: bool) -> str:
    """What to say where statistics cannot be refreshed."""
    way = (
        "name images with --data"
        if told
        else "name the network with --model (such as timm:resnet18) and images with --data"
    )
    return f"the average needs batch-norm statistics of its own: {way}, or keep those of {last} with --no-refresh."


def _note(last: str, statistics: str, refreshed: bool) -> str:
    if statistics == "none":
        return "There is no batch norm in it, so nothing was to be refreshed."
    if statistics == "held":
        return "Its batch-norm statistics are held as they are (model.frozen), so nothing was to be refreshed."
    if refreshed:
        return "Its batch-norm statistics were refreshed on training batches."
    return f"Its batch-norm statistics are those of {last}, which belong to other weights; refresh them before use."


def _write(out: Path, tensors: dict[str, Tensor], facts: ModelFacts | None) -> None:
    """A model file of ours where the network is known, else plain safetensors under the names that came."""
    metadata = {"format": "pt"} if facts is None else metadata_of(replace(facts.of("average"), temperature=1.0))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(out, {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, metadata)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {out}: {reason(error)}.") from error
