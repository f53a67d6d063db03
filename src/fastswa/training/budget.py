"""`--minutes`: what the parts of a run cost on this machine, measured, and the schedule that ends in time.

The measurement trains a few steps and undoes them. What comes out is written to config.toml as epochs and steps, so
that a resume repeats it and never measures again. A machine is not as fast for minutes as it was for a moment, so a run
alone is corrected on the way: its schedule stays, and the epochs to come get fewer or more steps. These are written
to config.toml as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from fastswa.config import AverageConfig, Config, resolved
from fastswa.data.batches import BatchPlan
from fastswa.errors import RequestError
from fastswa.evaluate import Evaluator
from fastswa.report import LOOKED_AT
from fastswa.training.device import Compute, choose_compute
from fastswa.training.loop import Trainer
from fastswa.training.state import preserved
from fastswa.training.step import Step, launcher

# What is promised is the end, so a little is kept back: steps are not all alike, and the machine may have other work.
USED = 0.97
FEWEST_EPOCHS = 60
MOST_EVALUATIONS, EVALUATING = 12, 0.08
MOST_CHECKPOINTS, CHECKPOINTING = 10, 0.02
# What is written at the end, in checkpoints: one itself, and the models, each alone and the one to use once more.
CLOSING = 3
COMPILED_FROM = 5.0  # minutes
# One batch of a refresh is a forward pass; a step is that twice, and a backward pass.
REFRESH = 0.4
STEPS_A_REFRESHED_BATCH, FEWEST_REFRESHED = 40, 5
# Of the minutes given, what a run must have taken; less means that other work slowed the measurement down.
ENOUGH = 0.7
# A run that is corrected on the way may end nearer to its time: only what follows the last correction is a guess.
AIMED_AT = 0.985
# Of the steps planned for an epoch, what it keeps however slow the machine has become, while there is time left, and
# what it may get where other work slowed the measurement down.
FEWEST_KEPT, MOST_GIVEN = 0.25, 8
REPORT = 2.0  # a report's own seconds, beside those of the images that it looks at

DECIDED = (
    *("schedule.epochs", "schedule.steps", "schedule.length", "schedule.period", "schedule.cycle", "schedule.preset"),
    "batch.steps",
)
# What it chooses where nobody else did.
CHOSEN = ("evaluation.every", "evaluation.refresh", "checkpoint.every")


@dataclass(frozen=True)
class Costs:
    """Seconds on this machine: until the first step runs, a step, evaluating one network on one image, a checkpoint."""

    start: float
    step: float
    image: float
    checkpoint: float


@dataclass
class Budget:
    """The minutes that a run may take, counted from `began`; several runs of one command get one schedule.

    `given` names the settings that a person gave beside it; `report` where one is made after training. `alone` where
    there is one run only: `pacer`, once it has a schedule, keeps it to its time.
    """

    minutes: float
    given: Collection[str] = ()
    report: bool = False
    began: float = field(default_factory=time.monotonic)
    alone: bool = True
    pacer: Timekeeper | None = field(default=None, init=False, repr=False)
    _changes: Callable[[Config], Config] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise RequestError(f"--minutes: '{self.minutes}' is not a number of minutes above zero.")
        for name in DECIDED:
            if name in self.given:
                raise RequestError(f"--minutes and {name} both say how long to train; give one of them.")

    def started_soon(self, config: Config) -> Config:
        """The configuration with an engine that does not spend a short time on compiling (a minute, when it is new)."""
        if self.minutes >= COMPILED_FROM or choose_compute(config.device).engine != "auto":
            return config
        return config.model_copy(update={"device": config.device.model_copy(update={"engine": "graph"})})

    def refuse_fork(self, config: Config) -> None:
        """RequestError where the run goes on from another one's state."""
        if config.start.run is not None:
            raise RequestError("--minutes is for new runs; say with schedule.epochs how far a fork goes.")

    def left(self) -> float:
        """The seconds that are left of the time."""
        return 60.0 * self.minutes - (time.monotonic() - self.began)

    def schedule(self, config: Config, ready: Trainer, tell: Callable[[str], None]) -> Config:
        """The configuration with a schedule that ends in time, found by measuring `ready`, the first time."""
        self.refuse_fork(config)
        if self._changes is None:
            seconds = 60.0 * self.minutes
            costs = measure(ready, seconds / 100)
            material = ready.material
            images = sum(len(evaluator.labels) for evaluator in material.evaluators.values())
            images += 0 if material.agreement is None else len(material.agreement.pixels)
            networks, report = len(ready.state.networks()), 0.0
            if self.report:
                unlabelled = len(material.split.unlabelled) if config.data.target is None else material.plan.extras
                # The report looks at the images themselves, whose features are kept for training alone.
                image = costs.image if material.bank is None else material.bank.each
                report = REPORT + (images + min(unlabelled, LOOKED_AT)) * image
            left = self.left()
            shape = fitted(
                config,
                replace(costs, start=costs.start + report),
                steps=ready.steps_per_epoch,
                networks=networks,
                images=images,
                seconds=left,
                given=self.given,
            )
            if shape.seconds > max(left, 0.0) + seconds:
                least = seconds - left + shape.seconds
                raise RequestError(
                    f"--minutes {self.minutes:g} is too short: a step takes {seconds_text(costs.step)} here and "
                    f"measuring a network {seconds_text(images * costs.image)}, so that even {FEWEST_EPOCHS} steps "
                    f"need {least / 60:.{1 if least >= 6 else 2}f} minutes; give more, or a smaller --data.size, or "
                    "train where nothing else runs."
                )
            end = f"to end within {self.minutes:g} min"
            if shape.seconds > left:
                end = f"the shortest run there is, some {(seconds - left + shape.seconds) / 60:.2g} min"
            length = f"{shape.epochs} epochs of {shape.steps} steps"
            tell(f"length: {length}, {seconds_text(costs.step)} each as measured, {end}")
            self._changes = shape.applied
            if self.alone:
                self.pacer = Timekeeper(self.began + AIMED_AT * seconds - report, costs, networks, images)
        return self._changes(config)

    def remark(self, seconds: float) -> str | None:
        """What to say of a run that took so long but for its report, if it did not get the time it was given."""
        seconds += REPORT * self.report
        if seconds >= 60 * ENOUGH * self.minutes:
            return None
        taken = f"{seconds / 60:.{1 if self.minutes >= 1 else 2}f}"
        return (
            f"it took {taken} of its {self.minutes:g} minutes: other work slowed the measured steps down; "
            "train again where nothing else runs."
        )


@dataclass(frozen=True)
class Shape:
    """A run's length: how many epochs of how many steps, how often to evaluate and save, and the seconds it takes.

    `refresh` batches go into an average's statistics: fewer in a run of few steps.
    """

    epochs: int
    steps: int
    evaluate_every: int
    checkpoint_every: int
    refresh: int
    seconds: float

    def applied(self, config: Config) -> Config:
        """The configuration with this length; whatever is counted in epochs keeps its part of the whole."""
        factor = self.epochs / max(config.schedule.epochs, 1)

        def scaled(value: float | None) -> float | None:
            return None if value is None else round(value * factor, 4)

        schedule, method = config.schedule, config.method
        averages = {
            name: average.model_copy(update={k: scaled(getattr(average, k)) for k in _given(average)})
            for name, average in config.averaging.items()
        }
        sections: dict[str, Any] = {
            "schedule": schedule.model_copy(
                update={
                    "epochs": self.epochs,
                    **{k: scaled(getattr(schedule, k)) for k in ("length", "period", "cycle")},
                }
            ),
            "method": method.model_copy(
                update={k: scaled(getattr(method, k)) for k in ("ramp", "teacher_start", "teacher_every")}
            ),
            "averaging": averages,
            "batch": config.batch.model_copy(update={"steps": self.steps, "pace": None}),
            "evaluation": config.evaluation.model_copy(update={"every": self.evaluate_every, "refresh": self.refresh}),
            "checkpoint": config.checkpoint.model_copy(update={"every": self.checkpoint_every}),
        }
        return resolved(config.model_copy(update=sections))


def _given(average: AverageConfig) -> set[str]:
    return {"start", "every"} & average.model_fields_set


def duration(config: Config, costs: Costs, *, steps: int, networks: int, images: int) -> float:
    """The seconds of a whole run with epochs of `steps` steps; `networks` besides the averages see `images`."""
    edges = _edges(config, costs, networks, images, 0, config.schedule.epochs)
    return costs.start + config.schedule.epochs * steps * costs.step + edges + CLOSING * costs.checkpoint


def _edges(config: Config, costs: Costs, networks: int, images: int, done: int, until: int) -> float:
    """The seconds of the evaluations and checkpoints after epoch `done` and up to `until`."""
    epochs, every, saving = config.schedule.epochs, config.evaluation.every, config.checkpoint.every
    evaluations = [epoch for epoch in [*range(every, epochs, every), epochs] if done < epoch <= until]
    looking = sum(_evaluation(config, costs, networks, images, epoch / max(epochs, 1)) for epoch in evaluations)
    return looking + (until // saving - done // saving) * costs.checkpoint


def _evaluation(config: Config, costs: Costs, networks: int, images: int, part: float) -> float:
    """The seconds of an evaluation when this part of the run is done."""
    begun = sum((average.start or 0.0) <= part * config.schedule.epochs for average in config.averaging.values())
    refresh = REFRESH * config.evaluation.refresh * costs.step
    return (networks + begun) * images * costs.image + begun * refresh


def fitted(
    config: Config,
    costs: Costs,
    *,
    steps: int,
    networks: int,
    images: int,
    seconds: float,
    given: Collection[str] = (),
) -> Shape:
    """The longest run that `seconds` hold, of epochs of `steps` steps or, where these were too few, of shorter ones.

    Besides the averages, `networks` are measured on `images`: now and then for a small part of the time, and at the
    end. What is `given` of CHOSEN stands.
    """
    seconds = max(seconds, 0.0)
    refresh = config.evaluation.refresh
    if "evaluation.refresh" not in given:
        refresh = min(refresh, max(int(seconds / costs.step / STEPS_A_REFRESHED_BATCH), FEWEST_REFRESHED))
    config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"refresh": refresh})})

    def evaluation(part: float) -> float:
        return _evaluation(config, costs, networks, images, part)

    last = evaluation(1.0) + CLOSING * costs.checkpoint
    usable = USED * seconds - costs.start - last
    pinned = "evaluation.every" in given
    earlier = 0 if pinned else min(int(EVALUATING * seconds / max(last, 1e-9)), MOST_EVALUATIONS - 1)
    usable -= sum(evaluation(k / (earlier + 1)) for k in range(1, earlier + 1))
    usable -= min(CHECKPOINTING * max(usable, 0.0), (MOST_CHECKPOINTS + seconds / 60) * costs.checkpoint)
    # The seconds that an epoch spends on evaluation, where the person says how often.
    beside = sum(evaluation((k + 0.5) / 12) for k in range(12)) / 12 / config.evaluation.every if pinned else 0.0
    # Epochs as long as they are, or shorter ones where those were too few; then as many as there is time for.
    steps = max(min(steps, int((usable / FEWEST_EPOCHS - beside) / costs.step)), 1)
    epochs = max(int(usable / (steps * costs.step + beside)), FEWEST_EPOCHS)
    every = config.evaluation.every if pinned else -(-epochs // (earlier + 1))
    of_epoch = steps * costs.step
    # No more than a tenth of the run, or a minute of a long one, can be lost, if that does not cost too much.
    saves = max(
        min(epochs // MOST_CHECKPOINTS, int(60 / of_epoch)), int(costs.checkpoint / CHECKPOINTING / of_epoch), 1
    )
    saves = config.checkpoint.every if "checkpoint.every" in given else min(saves, epochs)
    taken = costs.start + epochs * (of_epoch + beside) + last
    return Shape(epochs, steps, every, saves, refresh, taken)


def retimed_plan(plan: BatchPlan, config: Config) -> BatchPlan:
    """The plan with the number of steps that was found, and room for as many more as corrections may add."""
    steps = config.batch.steps or plan.steps
    return replace(plan, steps=steps, changes=(), longest=MOST_GIVEN * steps)


class Timekeeper:
    """The pacer of a run whose last step, evaluation and model are to be done at the moment `end` (time.monotonic).

    It corrects at a few epochs, the nearer to the end the more often. The steps that remain are expected to go as did
    those since the last time, which are about as many; or as all before did, if that was slower: what slowed the
    machine down may come again.
    """

    def __init__(self, end: float, costs: Costs, networks: int, images: int) -> None:
        self.end, self.costs, self.networks, self.images = end, costs, networks, images
        # Seconds spent on steps, and their number, when it was asked before.
        self._marks: list[tuple[float, int]] = []

    def __call__(self, trainer: Trainer, epoch: int) -> int | None:
        epochs = trainer.config.schedule.epochs
        # What a first epoch waits for does not come again.
        if epoch != 1 and epoch not in corrected_at(epochs):
            return None
        now, step = _now(trainer.compute), trainer.state.step
        spent, before = now - trainer.edge_seconds, self._marks
        self._marks = [*before[:1], (spent, step)]
        if not before or epochs - epoch < 2:
            return None
        each = max((spent - then) / (step - done) for then, done in before)
        pace = trainer.pace
        left = self.end - now - self._to_come(trainer, epoch) - pace.of(epoch) * each
        # Where the time is over already, what is left is as short as can be.
        fewest = max(round(FEWEST_KEPT * pace.steps), 1) if left > 0 else 1
        fitting = int(left / max(each, 1e-9) / (epochs - epoch - 1))
        steps = min(max(fitting, fewest), pace.most)
        return None if steps == pace.of(epoch) else steps

    def _to_come(self, trainer: Trainer, epoch: int) -> float:
        """The seconds of what is evaluated and written after an epoch; the more of it is done, the better known."""
        words = trainer.config, self.costs, self.networks, self.images
        expected, rest = _edges(*words, 0, epoch), _edges(*words, epoch, trainer.config.schedule.epochs)
        closing = CLOSING * self.costs.checkpoint
        return rest * (trainer.edge_seconds + rest) / max(expected + rest, 1e-9) + closing


def corrected_at(epochs: int) -> set[int]:
    """After which of its epochs a run is corrected: an eighth, a quarter and a half of them, then at each half left."""
    left = [epochs >> halves for halves in range(1, epochs.bit_length())]
    return {epochs // 8, epochs // 4, *(epochs - some for some in left)} - {0, 1}


def measure(trainer: Trainer, seconds: float) -> Costs:
    """The costs of a run on this machine; the steps are timed for about `seconds`, and undone."""
    trainer.feed.load(0)
    trainer.material.load_epoch(0)
    with preserved([*trainer.state.tensors().values(), trainer.feed.cursor]):
        start, step = _step(trainer, seconds)
        image = _image(trainer)
    return Costs(start, step, image, _checkpoint(trainer))


def _step(trainer: Trainer, seconds: float) -> tuple[float, float]:
    """Seconds until the first step runs, and those of a step."""
    feed, material, compute = trainer.feed, trainer.material, trainer.compute

    def launched() -> tuple[Callable[[], None], float]:
        began = _now(compute)
        step = Step(trainer.state, feed, material.augment, material.pixels, material.labels, compute)
        launch = launcher(step, compute)
        feed.cursor.zero_()
        launch()
        return launch, _now(compute) - began

    launch, start = launched()
    if compute.engine != "eager":
        # Compiled code is kept: what the run itself will wait for is the second time.
        launch, start = launched()
    done, began, position = 0, _now(compute), 1
    while done < 2 or (done < 2000 and _now(compute) - began < seconds):
        for _ in range(1 if compute.device.type == "cpu" else 50):
            if position >= feed.plan.steps:
                feed.cursor.zero_()
                position = 0
            launch()
            position += 1
            done += 1
    each = (_now(compute) - began) / done
    return max(start - each, 0.0), each


def _image(trainer: Trainer) -> float:
    """Seconds for one network on one image, from a batch of training images."""
    material, compute = trainer.material, trainer.compute
    batch = trainer.config.evaluation.batch
    pixels = material.pixels[:batch]
    labels = torch.zeros(len(pixels), dtype=torch.int64, device=compute.device)
    evaluator = Evaluator(pixels, labels, len(material.facts.classes), material.augment, batch)
    evaluator(trainer.state.student, compute.arithmetic())
    began = _now(compute)
    evaluator(trainer.state.student, compute.arithmetic())
    return (_now(compute) - began) / max(len(pixels), 1)


def _checkpoint(trainer: Trainer) -> float:
    """Seconds to write the state to the disk of the run's folder."""
    place = trainer.folder.path.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    began = time.monotonic()
    try:
        with TemporaryDirectory(dir=place) as folder:
            tensors = {name: t.detach().cpu().contiguous().clone() for name, t in trainer.state.tensors().items()}
            save_file(tensors, Path(folder) / "trial.safetensors")
    except OSError:  # the run itself will say what is wrong with its folder
        return 0.0
    return time.monotonic() - began


def _now(compute: Compute) -> float:
    if compute.device.type == "cuda":
        torch.cuda.synchronize(compute.device)
    return time.monotonic()


def seconds_text(seconds: float) -> str:
    """A short time as people read it."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
