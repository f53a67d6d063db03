"""Runs from beginning to end: new, resumed, forked; one, or several on one device."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastswa import kernels
from fastswa.config import RESUMABLE, Config, to_dict
from fastswa.data.domains import domain_facts, domain_lines, domain_warnings
from fastswa.data.images import Dataset
from fastswa.defaults import described
from fastswa.errors import RequestError
from fastswa.layers import build_config, file_layer, flatten
from fastswa.training.again import content_of
from fastswa.training.budget import Budget, retimed_plan
from fastswa.training.checkpoint import Checkpoint, load_checkpoint
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.fork import fork
from fastswa.training.fork import parent_layer as parent_layer
from fastswa.training.identity import (
    MOVABLE,
    changed,
    content_in,
    identities,
    identity,
    images_of,
    is_own,
    refuse_other_images,
    sources,
)
from fastswa.training.iterates import IterateKeeper, announce, drop_iterates
from fastswa.training.keeping import keep_views, with_kept_views
from fastswa.training.lanes import Beside, Lanes
from fastswa.training.loop import Trainer, Watcher
from fastswa.training.setup import Material, load_data, load_extra_data, prepare, with_data_defaults
from fastswa.training.state import build_state
from fastswa.training.tensorboard import TensorBoardWatcher

Say = Callable[[str], None]
Made = TypeVar("Made")
Begun = tuple[Trainer, Watcher]


@dataclass(frozen=True)
class RunResult:
    """A run's folder, its evaluations (the lines of metrics.jsonl), and whether it reached its last epoch."""

    path: Path
    metrics: list[dict[str, Any]]
    finished: bool


@dataclass(frozen=True)
class NewRun:
    """A run to train from its beginning into a new folder; forked from another run's state if `start.run` says so.

    `budget` decides its length; `tell` hears what was chosen for data of one's own; its environment.json holds `facts`.
    """

    config: Config
    path: Path
    watcher: Watcher
    budget: Budget | None = None
    tell: Say | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Config:
        RunFolder(self.path).refuse_taken()
        return self.config if self.budget is None else self.budget.started_soon(self.config)

    def forked(self, config: Config, trainer: Trainer, say: Say) -> dict[str, Any] | None:
        """What the run is forked from, where it is, once the trainer has its state; refused where that is past it."""
        if config.start.run is None:
            return None
        parent = fork(config, trainer.state, trainer.pace, say)
        known, now = content_in(parent["fingerprint"]), content_in(trainer.fingerprint)
        if len(trainer.material.split.validation) and known and now and known != now:
            say(
                f"the images or labels are not those that {parent['run']} was trained on: images held out now may be "
                "among those that it learnt from, and validation errors flatter."
            )
        if trainer.epoch >= config.schedule.epochs:
            raise RequestError(
                f"{parent['run']} is at epoch {trainer.epoch:g} already, and schedule.epochs is "
                f"{config.schedule.epochs}; give the fork more epochs."
            )
        return parent

    def begin(self, config: Config, compute: Compute, together: int, say: Say) -> Begun:
        """The run made ready: checked, its folder written."""
        dataset = load_data(config)
        config = with_data_defaults(config, dataset)
        compute = choose_compute(config.device)
        # Settled, as a resume may be on another device: the arithmetic is part of what a run is.
        settled = config.device.model_copy(update={"precision": compute.precision})
        config = config.model_copy(update={"device": settled})
        trainer = trainer_of(config, dataset, compute, RunFolder(self.path), say)
        tell = self.tell or (lambda line: None)
        domains = dataset.domains
        if domains is not None:
            for line in domain_lines(dataset, domains):
                tell(line)
            for line in domain_warnings(dataset, domains):
                say(line)
        if is_own(config.data.source):
            for line in described(config, dataset, gpu=compute.device.type == "cuda", timed=self.budget is not None):
                tell(line)
        if self.budget is not None:
            if config.start.run is None:
                left = self.budget.left()
                keep_views(trainer.material, trainer.state.student, compute, tell, left, self.watcher.should_stop)
            config = self.budget.schedule(config, trainer, tell)
            trainer = _retimed(trainer, config)
            trainer.pacer = self.budget.pacer
        parent = self.forked(config, trainer, say)
        keep_views(trainer.material, trainer.state.student, compute, tell, stopping=self.watcher.should_stop)
        trainer.check()
        announce(trainer, say)
        _mention_late_averages(config, tell)
        watcher = _watched(config, self.watcher, self.path)
        matched = None if domains is None else domain_facts(dataset, domains)
        trainer.folder.create(config, {**_facts(trainer, dataset, together, parent), **self.facts}, matched)
        if parent is not None:
            trainer.save()
        return trainer, watcher


@dataclass(frozen=True)
class OldRun:
    """A run to go on with from its last whole checkpoint.

    `changes` may touch what RESUMABLE lists, and say where data of one's own lie now.
    """

    path: Path
    watcher: Watcher
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Config:
        before = RunFolder.open(self.path).config().data
        changes = flatten(self.changes)
        moved = {
            f"data.{name}" for name in MOVABLE if is_own(getattr(before, name)) and is_own(changes.get(f"data.{name}"))
        }
        for name in changes:
            if name not in {*RESUMABLE, *moved}:
                raise RequestError(
                    f"{name} cannot change on resume (only {', '.join(RESUMABLE)}); "
                    f"`fastswa train --from {shlex.quote(str(self.path))} --{name} …` forks the run instead."
                )
        return build_config(file_layer(self.path / "config.toml"), self.changes)

    def refuse(self, config: Config) -> None:
        """RequestError where the run cannot be gone on with so, as far as that is known without its images."""
        with RunFolder(self.path).held():
            self._checkpoint(config, lambda line: None)

    def _checkpoint(self, config: Config, say: Say) -> Checkpoint | None:
        """The last whole checkpoint; refused where it is of other settings, or past the epochs asked for."""
        folder = RunFolder.open(self.path)
        checkpoint = load_checkpoint(folder.checkpoints, say)
        known = "" if checkpoint is None else checkpoint.facts["fingerprint"].partition(".")[0]
        if checkpoint is not None and known not in identities(config, file_layer(self.path / "config.toml")):
            raise RequestError(
                f"the checkpoint in {self.path} belongs to another configuration than its config.toml; "
                "put the settings back, or fork the run with `fastswa train --from`."
            )
        # A finished run stays one when its checkpoints were removed.
        reached = folder.models_epoch() if checkpoint is None else checkpoint.facts["epoch"]
        if reached is not None and reached > config.schedule.epochs:
            raise RequestError(
                f"{self.path} is at epoch {reached:g} already, past the {config.schedule.epochs} asked for; "
                f"give --epochs {math.ceil(reached)} or more."
            )
        return checkpoint

    def begin(self, config: Config, compute: Compute, together: int, say: Say) -> Begun:
        """The run made ready where it stopped; `finished` if there is nothing left to do."""
        folder = RunFolder.open(self.path)
        checkpoint = self._checkpoint(config, say)
        content = content_of(self.path) if checkpoint is None else content_in(checkpoint.facts["fingerprint"])
        dataset = load_data(config)
        if content and content != dataset.digest():
            raise changed(f"the images or labels of {' or '.join(sources(config))}", self.path)
        trainer = trainer_of(config, dataset, compute, folder, say, fresh=checkpoint is None)
        refuse_other_images(folder, trainer, dataset)
        state, parent = trainer.state, None
        if checkpoint is not None:
            _restore(trainer, checkpoint, folder)
        over = checkpoint is None or state.step >= trainer.total_steps
        if over and folder.models_epoch() == config.schedule.epochs:
            say(f"{self.path} already reached epoch {config.schedule.epochs}; nothing to do.")
            trainer.finished = True
            return trainer, self.watcher
        if checkpoint is None:
            beginning = f"its parent {config.start.run}" if config.start.run else "step 0"
            say(f"{self.path} has no whole checkpoint; starting from {beginning}.")
            parent = fork(config, state, trainer.pace, say) if config.start.run else None
        keep_views(trainer.material, state.student, trainer.compute, say, stopping=self.watcher.should_stop)
        trainer.check()
        announce(trainer, say)
        watcher = _watched(config, self.watcher, self.path)
        # Nothing is changed before this line, which goes back to the checkpoint.
        done = -1 if checkpoint is None else state.step
        folder.drop_metrics_after(done)
        drop_iterates(self.path, after=done)
        folder.keep_environment(_facts(trainer, dataset, together, parent))
        folder.write_config(config)
        most = max(together, folder.known_environment().get("together", 1))
        folder.amend_environment(together=most, wall_seconds=None)
        return trainer, watcher


def train_new(
    config: Config,
    out: Path,
    watcher: Watcher,
    say: Say,
    *,
    budget: Budget | None = None,
    tell: Say | None = None,
    began: float | None = None,
) -> RunResult:
    """A new run in a new folder."""
    return train_together([NewRun(config, out, watcher, budget, tell)], say, began=began)[0]


def resume(
    path: Path, changes: Mapping[str, Any], watcher: Watcher, say: Say, *, began: float | None = None
) -> RunResult:
    """Go on with a run; `changes` may touch what RESUMABLE lists."""
    return train_together([OldRun(path, watcher, changes)], say, began=began)[0]


def train_together(runs: Sequence[NewRun | OldRun], say: Say, *, began: float | None = None) -> list[RunResult]:
    """Several runs on one device: taking turns at every step on a GPU, one after the other on the CPU.

    What one of them lacks is said before any starts; if one fails later, the others end before that is raised.
    """
    outcomes = attempt_together(runs, say, strict=True, began=began)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, RunResult)]


def attempt_together(
    runs: Sequence[NewRun | OldRun],
    say: Say,
    *,
    strict: bool = False,
    began: float | None = None,
    beside: Beside | None = None,
) -> list[RunResult | Exception]:
    """As `train_together`, but a run that fails only leaves its exception in its place.

    With `strict` nothing is trained unless all of them could be made ready. `began` is the moment (time.monotonic) at
    which the command or the call began that they are trained for; now, if it is not given. `beside` says how many
    processes share a CPU, if several do.
    """
    began = time.monotonic() if began is None else began
    failures: dict[int, Exception] = {}

    def tried(number: int, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except Exception as error:
            if strict:
                raise
            failures[number] = error
            return None

    begun: list[Begun | None] = [None] * len(runs)
    configs = [tried(number, run.settings) for number, run in enumerate(runs)]
    device = next((config.device for config in configs if config is not None), None)
    if device is not None:
        compute = choose_compute(device)
        kernels.foresee(compute.device)
        with settings_of(compute, device.threads), ExitStack() as folders:
            lanes = Lanes(compute, beside)
            before = time.monotonic() - began
            for number, (run, config) in enumerate(zip(runs, configs, strict=True)):
                if config is not None:
                    make = partial(_begin, run, config, compute, lanes.at_once(len(runs)), say, folders)
                    begun[number] = tried(number, partial(lanes.on, number, make))
            for ready in begun:
                if ready is not None:
                    ready[0].together = lambda: lanes.running
                    _add_overhead(ready[0], before)
            # One chain of steps a lane, an empty one where there is nothing to do.
            lanes.run([_steps(ready, number, failures) for number, ready in enumerate(begun)])
    return [
        failures[number] if number in failures or ready is None else _result(ready[0])
        for number, ready in enumerate(begun)
    ]


def _begin(
    run: NewRun | OldRun, config: Config, compute: Compute, together: int, say: Say, folders: ExitStack
) -> Begun:
    """The run made ready, its folder held until `folders` closes."""
    if choose_compute(config.device) != compute:
        raise RequestError(f"{run.path} and the run beside it have different settings of [device]; run them apart.")
    began = time.monotonic()
    if isinstance(run, OldRun):
        folders.enter_context(RunFolder(run.path).held())
    trainer, watcher = run.begin(config, compute, together, say)
    if isinstance(run, NewRun):
        folders.enter_context(trainer.folder.held())
    _add_overhead(trainer, time.monotonic() - began)
    return trainer, watcher


def _add_overhead(trainer: Trainer, seconds: float) -> None:
    if trainer.overhead is not None:
        trainer.overhead += seconds


def _overhead(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> float | None:
    """The seconds that a checkpoint's own leave out, those of models written after it included; None if not kept."""
    kept: float | None = facts.get("overhead_seconds")
    if kept is None:
        return None
    return max(kept, (environment.get("wall_seconds") or 0.0) - facts["seconds"])


def _steps(begun: Begun | None, number: int, failures: dict[int, Exception]) -> Iterator[None]:
    """A run's steps to its end; what stops it goes to `failures`, and the others go on."""
    if begun is None or begun[0].finished:
        return
    trainer, watcher = begun
    try:
        yield from trainer.steps(watcher)
        if trainer.finished:
            trainer.folder.amend_environment(wall_seconds=trainer.wall_seconds())
    except Exception as error:
        failures[number] = error


def _facts(trainer: Trainer, dataset: Dataset, together: int, parent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where and how a run computes, on which images and beside how many others, for its record."""
    how = {**trainer.compute.facts(), "engine": trainer.step.engine}
    content = content_in(trainer.fingerprint)
    own = {"content": content} if content else {}
    return {**how, **images_of(trainer, dataset), **own, "together": together, "parent": parent}


def _watched(config: Config, watcher: Watcher, path: Path) -> Watcher:
    return TensorBoardWatcher(watcher, path) if config.log.tensorboard else watcher


def _result(trainer: Trainer) -> RunResult:
    return RunResult(trainer.folder.path, trainer.folder.metrics(), trainer.finished)


def _mention_late_averages(config: Config, say: Say) -> None:
    """Say which averages training ends before, as where a long schedule is cut short rather than made shorter."""
    last = config.schedule.epochs
    late = [f"{name} ({one.start:g})" for name, one in config.averaging.items() if (one.start or 0) > last]
    if late:
        say(f"training ends at epoch {last} (schedule.epochs), before these averages begin: {', '.join(late)}.")


def trainer_of(
    config: Config, dataset: Dataset, compute: Compute, folder: RunFolder, say: Say | None = None, *, fresh: bool = True
) -> Trainer:
    """Everything a run trains with; `fresh` is False where a checkpoint is about to replace the state."""
    material = prepare(config, dataset, compute, load_extra_data(config, dataset), say)
    material = with_kept_views(material, config, compute)
    # One's own data are known by their content as well: a resume must not go on with others.
    content = f".{dataset.digest()}" if any(map(is_own, sources(config))) else ""
    return _assembled(config, material, compute, folder, content, fresh=fresh)


def _assembled(
    config: Config, material: Material, compute: Compute, folder: RunFolder, content: str, *, fresh: bool = True
) -> Trainer:
    weights = Path(config.start.weights) if fresh and config.start.weights is not None else None
    state = build_state(config, compute, material.facts, images=len(material.pixels), weights=weights, fresh=fresh)
    state.method.introduce(material.plan.unlabelled, material.truth)
    if material.window is not None and state.method.remembers_images:
        raise RequestError(
            f"method {config.method.name} remembers every image, so that all have to be held on the device; "
            f"set {'data.extra_images' if config.data.target is None else 'split.unlabelled'} to less."
        )
    trainer = Trainer(config, material, state, compute, folder, identity(to_dict(config)) + content)
    if config.analysis.gradients:
        from fastswa.analysis.record import GradientRecorder

        trainer.observers.append(GradientRecorder(config.analysis))
    if config.checkpoint.keep_every:
        trainer.observers.append(IterateKeeper(config.checkpoint))
    return trainer


def _retimed(trainer: Trainer, config: Config) -> Trainer:
    """The trainer of a run that has not begun, on the same images, for a configuration of another length."""
    material = replace(trainer.material, plan=retimed_plan(trainer.material.plan, config))
    content = "".join(trainer.fingerprint.partition(".")[1:])
    return _assembled(config, material, trainer.compute, trainer.folder, content)


def _restore(trainer: Trainer, checkpoint: Checkpoint, folder: RunFolder) -> None:
    """Go back to a checkpoint's state, in the epoch that it was saved in."""
    path, facts = folder.path, checkpoint.facts
    try:
        trainer.state.restore(checkpoint.tensors, facts)
    except (ValueError, KeyError, RuntimeError) as error:
        raise RequestError(f"the checkpoint in {path} does not fit this run: {error}.") from error
    if not math.isclose(trainer.epoch, facts["epoch"], rel_tol=1e-9):
        raise RequestError(
            f"step {trainer.state.step} was in epoch {facts['epoch']:g} when {path} was saved, and would be in "
            f"{trainer.epoch:g} now: its epochs have another number of steps; put its config.toml and its images back."
        )
    trainer.seconds = facts["seconds"]
    trainer.edge_seconds = facts.get("edge_seconds", 0.0)
    trainer.overhead = _overhead(facts, folder.known_environment())
