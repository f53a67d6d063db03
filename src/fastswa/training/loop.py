"""The loop: epochs of steps, averages when due, evaluations, checkpoints, and a clean end when asked to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from fastswa.averaging import AveragedWeights
from fastswa.config import Config
from fastswa.data.pace import Pace
from fastswa.errors import RunError
from fastswa.training.ahead import Behind
from fastswa.training.checkpoint import Snapshot, save_checkpoint
from fastswa.training.device import Compute
from fastswa.training.feed import Feed, learning_rate
from fastswa.training.folder import RunFolder, preferred
from fastswa.training.keeping import keep_views, refuse_other_layers
from fastswa.training.probe import probe
from fastswa.training.refresh import Refresher
from fastswa.training.setup import Material
from fastswa.training.state import State
from fastswa.training.step import Step, launcher

FINITE_CHECK_EVERY = 100


class Watcher(Protocol):
    """Who is told how the run goes, and may ask it to stop after any step."""

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def evaluated(self, line: Mapping[str, Any]) -> None: ...
    def should_stop(self) -> bool: ...


class Observer(Protocol):
    """Who looks at a run's state after an epoch, and leaves it as it was; `settle` waits for what it writes."""

    def epoch_done(self, trainer: Trainer, epoch: int) -> None: ...
    def settle(self) -> None: ...


class Pacer(Protocol):
    """Who keeps a run to its time: how many steps the epochs after the next one should have; None: as many as now."""

    def __call__(self, trainer: Trainer, epoch: int) -> int | None: ...


class Trainer:
    """Trains a run from its present state to its last epoch."""

    def __init__(
        self,
        config: Config,
        material: Material,
        state: State,
        compute: Compute,
        folder: RunFolder,
        fingerprint: str,
    ) -> None:
        self.config, self.material, self.state = config, material, state
        self.compute, self.folder, self.fingerprint = compute, folder, fingerprint
        self.feed = Feed(config, material.plan, state.method, compute.device, compute.dtype)
        self.step = Step(state, self.feed, material.augment, material.pixels, material.labels, compute)
        self.observers: list[Observer] = []
        # Asked after each epoch how many steps those after the next one should have.
        self.pacer: Pacer | None = None
        # Of the command's time what `seconds` leaves out; None where an earlier part of the run did not keep it.
        self.overhead: float | None = 0.0
        self.together: Callable[[], int] = lambda: 1
        self.seconds = 0.0
        self.edge_seconds = 0.0
        self._edge_began: float | None = None
        self.finished = False
        self._clock = time.monotonic()
        self._measured: dict[str, tuple[int, dict[str, dict[str, float]]]] = {}
        self._refreshers: dict[str, Refresher] = {}
        self._writing = Behind()

    @property
    def steps_per_epoch(self) -> int:
        return self.material.plan.steps

    @property
    def pace(self) -> Pace:
        return self.material.plan.pace

    @property
    def total_steps(self) -> int:
        return self.pace.before(self.config.schedule.epochs)

    @property
    def epoch(self) -> float:
        """How far the state is."""
        return self.pace.epoch(self.state.step)

    def wall_seconds(self) -> float | None:
        """The run's time so far, all of its parts and what each took to get ready; None if some of it is not known."""
        return None if self.overhead is None else round(time.monotonic() - self._clock + self.overhead, 3)

    def check(self) -> None:
        """Probe that the method does what it declares; trips before anything is written."""
        keep_views(self.material, self.state.student, self.compute)
        refuse_other_layers(self.material, self.state)
        self._load(self.pace.place(self.state.step)[0])
        self.step.rehearse()
        probe(self.step)

    def _load(self, epoch: int, position: int = 0) -> None:
        """Bring over an epoch's rows from a step of it on, and the images that they refer to."""
        self.feed.load(epoch, position)
        self.material.load_epoch(epoch, last=epoch + 1 >= self.config.schedule.epochs)

    def train(self, watcher: Watcher) -> None:
        """Train to the last epoch, or until the watcher stops it (the state is saved then)."""
        for _ in self.steps(watcher):
            pass

    def steps(self, watcher: Watcher) -> Iterator[None]:
        """The run as a chain of steps, so that several runs can take turns; `finished` tells how it ended."""
        try:
            yield from self._steps(watcher)
        finally:
            self.settle()

    def _steps(self, watcher: Watcher) -> Iterator[None]:
        state = self.state
        self._clock = time.monotonic() - self.seconds
        launch = launcher(self.step, self.compute)
        watcher.begin(self._shown(), self.config.schedule.epochs * self.steps_per_epoch, self.steps_per_epoch)
        while state.step < self.total_steps:
            epoch, position = self.pace.place(state.step)
            self._load(epoch, position)
            stopped = yield from self._run_epoch(launch, self.pace.of(epoch) - position, watcher)
            if state.step == self.pace.before(epoch + 1):
                self._epoch_edge(epoch + 1, watcher)
                self._keep_pace(epoch + 1)
            if stopped and state.step < self.total_steps:
                self.save()
                return
        self.settle()
        networks = self.evaluated_networks()
        chosen = preferred(networks, self.config.averaging)[0]
        self.folder.write_models(networks, replace(self.material.facts, epoch=self.epoch), chosen)
        self.finished = True

    def _run_epoch(self, launch: Callable[[], None], count: int, watcher: Watcher) -> Generator[None, None, bool]:
        """Up to `count` steps; whether the watcher asked to stop."""
        state = self.state
        inside = [average for average in state.averages.values() if average.inside]
        outside = [average for average in state.averages.values() if not average.inside]
        for _ in range(count):
            for average in inside:
                average.expect(self.pace.epoch(state.step + 1))
            launch()
            state.step += 1
            state.summed += 1
            if outside:
                epoch = self.epoch
                for average in outside:
                    average.update(epoch)
            if state.step % FINITE_CHECK_EVERY == 0:
                self._check_finite(thoroughly=False)
                watcher.stepped(self._shown())
            if watcher.should_stop():
                return True
            yield
        return False

    def _epoch_edge(self, epoch: int, watcher: Watcher) -> None:
        config, last = self.config, epoch == self.config.schedule.epochs
        self.state.method.end_epoch()
        watcher.stepped(self._shown())
        for observer in self.observers:
            observer.epoch_done(self, epoch)
        evaluating = last or epoch % config.evaluation.every == 0
        saving = last or epoch % config.checkpoint.every == 0 or epoch in config.checkpoint.keep
        if not (evaluating or saving):
            return
        with self._timed_edge():
            if evaluating:
                self._check_finite()
                line = self.evaluate()
                self.folder.append_metrics(line)
                watcher.evaluated(line)
                self.state.sums.zero_()
                self.state.summed = 0
            if saving:
                self.save()

    def _shown(self) -> int:
        """How far the state is in steps of epochs that are all as long as the first one, which nothing changes."""
        return round(self.epoch * self.steps_per_epoch)

    def _keep_pace(self, epoch: int) -> None:
        """Change the number of steps of the epochs after the next one, whose rows are made already, if need be.

        The settings are written before any such epoch, so that a resume goes through the same steps.
        """
        steps = None if self.pacer is None else self.pacer(self, epoch)
        if steps is None:
            return
        changes = (*self.material.plan.changes, (epoch + 1, steps))
        batch = self.config.batch.model_copy(update={"pace": changes})
        self.config = self.config.model_copy(update={"batch": batch})
        self.folder.write_config(self.config)
        self.feed.plan = replace(self.material.plan, changes=changes)
        self.material = replace(self.material, plan=self.feed.plan)

    @contextmanager
    def _timed_edge(self) -> Iterator[None]:
        """What is done inside counts as an edge's, once the steps that a GPU was given are done."""
        if self.compute.device.type == "cuda":
            torch.cuda.current_stream(self.compute.device).synchronize()
        self._edge_began = time.monotonic()
        try:
            yield
        finally:
            self.edge_seconds, self._edge_began = self._edges(), None

    def _edges(self) -> float:
        """Seconds spent on evaluations, refreshed statistics and checkpoints, those of an edge in progress included."""
        return self.edge_seconds + (0.0 if self._edge_began is None else time.monotonic() - self._edge_began)

    def _check_finite(self, thoroughly: bool = True) -> None:
        """Stop before a broken state can be saved or reported; `thoroughly` looks at the weights as well."""
        if bool(self.state.broken) or (thoroughly and not self.state.finite()):
            raise RunError(
                f"the loss or a weight is no longer finite at step {self.state.step}; "
                "the last good checkpoint is kept, and a smaller optimiser.lr may help."
            )

    def save(self) -> None:
        """Write a checkpoint of the present state, while training goes on; `settle` waits for it."""
        # After an evaluation too: the statistics that it refreshed may have broken.
        self._check_finite()
        self.seconds = time.monotonic() - self._clock
        facts = {
            **self.state.counters(),
            "epoch": self.epoch,
            "steps_per_epoch": self.steps_per_epoch,
            "seconds": self.seconds,
            "overhead_seconds": self.overhead,
            "edge_seconds": self._edges(),
            "fingerprint": self.fingerprint,
        }
        keep = {self.pace.before(epoch) for epoch in self.config.checkpoint.keep}
        snapshot = Snapshot(self.state.tensors())
        self._writing(partial(save_checkpoint, self.folder.checkpoints, self.state.step, snapshot, facts, keep))

    def settle(self) -> None:
        """Return when everything is on the disk."""
        with ExitStack() as all_of_it:
            # Each is waited for, whatever went wrong with another.
            for observer in self.observers:
                all_of_it.callback(observer.settle)
            all_of_it.callback(self._writing.wait)

    def evaluate(self) -> dict[str, Any]:
        """One line of metrics: the mean loss terms since the last one, every network's figures and the method's own."""
        state, epoch = self.state, self.epoch
        means = (state.sums / max(state.summed, 1)).tolist()
        line: dict[str, Any] = {
            "epoch": int(epoch) if epoch.is_integer() else epoch,
            "step": state.step,
            "learning_rate": learning_rate(self.config, self.pace.epoch(max(state.step - 1, 0))),
            "loss": dict(zip(state.term_names, means, strict=False)),
        }
        figures = {name: self._measure(network) for name, network in state.networks().items()}
        for name, average in state.averages.items():
            if average.count:
                figures[name] = self._measure_average(name, average)
        for evaluator in self.material.evaluators:
            for figure in figures["student"][evaluator]:
                key = figure if evaluator == "test" else f"{evaluator}_{figure}"
                line[key] = {name: values[evaluator][figure] for name, values in figures.items()}
        if self.material.agreement is not None:
            networks = {name: state.averages[name].module for name in figures if name in state.averages}
            agreeing = self.material.agreement({**state.networks(), **networks}, self.compute.arithmetic)
            line |= {"agreement": agreeing} if agreeing else {}
        line["averaged"] = {name: average.count for name, average in state.averages.items()}
        line["seconds"] = round(time.monotonic() - self._clock, 3)
        line["together"] = self.together()
        line["edge_seconds"] = round(self._edges(), 3)
        return {**line, **state.method.figures()}

    def _measure(self, network: nn.Module) -> dict[str, dict[str, float]]:
        return {
            key: evaluator(network, self.compute.arithmetic()) for key, evaluator in self.material.evaluators.items()
        }

    def _measure_average(self, name: str, average: AveragedWeights) -> dict[str, dict[str, float]]:
        """An average's figures; its refresh depends on its count alone, so an old result stays true."""
        if self._measured.get(name, (0, {}))[0] != average.count:
            network = average.module
            if name not in self._refreshers:
                self._refreshers[name] = Refresher(network, self.config, self.material, self.compute)
            self._refreshers[name](f"{name}/{average.count}")
            self._measured[name] = (average.count, self._measure(network))
        return self._measured[name][1]

    def evaluated_networks(self) -> dict[str, nn.Module]:
        """Every network that can be used, averages with fresh statistics."""
        networks = self.state.networks()
        for name, average in self.state.averages.items():
            if average.count:
                self._measure_average(name, average)
                networks[name] = average.module
        return networks
