"""A run that leaves no file: trained on arrays in memory, its models and evaluations kept there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from torch import nn

from fastswa.config import Config, to_dict
from fastswa.data.images import Dataset
from fastswa.errors import RunError
from fastswa.modelfile import ModelFacts, TrainedModel, model_bytes, model_of_bytes
from fastswa.training.budget import Budget, retimed_plan
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.identity import fingerprint
from fastswa.training.keeping import keep_views, with_kept_views
from fastswa.training.loop import Trainer, Watcher
from fastswa.training.setup import Material, prepare
from fastswa.training.state import build_state


class _Memory(RunFolder):
    """What a run would write, kept."""

    def __init__(self) -> None:
        super().__init__(Path(gettempdir()))
        self.lines: list[dict[str, Any]] = []
        self.model: TrainedModel | None = None

    def metrics(self) -> list[dict[str, Any]]:
        return self.lines

    def write_config(self, config: Config) -> None: ...

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dict(line))

    def write_models(self, networks: Mapping[str, nn.Module], facts: ModelFacts, chosen: str) -> None:
        trained = TrainedModel(networks[chosen], facts.of(chosen))
        # As a file would give it back: laid out in memory otherwise, it could round otherwise.
        self.model = model_of_bytes(model_bytes(trained)).to(trained.device)


class _Unsaved(Trainer):
    """A Trainer without checkpoints."""

    def save(self) -> None: ...

    def _check_finite(self, thoroughly: bool = True) -> None:
        try:
            super()._check_finite(thoroughly)
        except RunError as error:
            raise RunError(
                f"the loss or a weight is no longer finite at step {self.state.step}; a smaller optimiser.lr may help."
            ) from error


def train_in_memory(
    config: Config, dataset: Dataset, watcher: Watcher, budget: Budget | None = None
) -> tuple[TrainedModel, list[dict[str, Any]]]:
    """The model to use and the evaluations on the way; `budget` decides how long to train."""
    compute = choose_compute(config.device)
    memory = _Memory()
    with settings_of(compute, config.device.threads):
        material = with_kept_views(prepare(config, dataset, compute), config, compute)
        if material.bank is not None:
            material.bank.source = None  # nothing is written to the disk
        trainer = _trainer(config, material, compute, memory)
        keep_views(material, trainer.state.student, compute)
        if budget is not None:
            config = budget.schedule(config, trainer, lambda line: None)
            retimed = replace(material, plan=retimed_plan(material.plan, config))
            trainer = _trainer(config, retimed, compute, memory)
            trainer.pacer = budget.pacer
        trainer.check()
        trainer.train(watcher)
    if memory.model is None:
        raise RunError("training was stopped before its last epoch, and nothing is kept of it.")
    return memory.model, memory.lines


def _trainer(config: Config, material: Material, compute: Compute, memory: _Memory) -> Trainer:
    state = build_state(config, compute, material.facts, images=len(material.pixels))
    state.method.introduce(material.plan.unlabelled, material.truth)
    return _Unsaved(config, material, state, compute, memory, fingerprint(to_dict(config)))
