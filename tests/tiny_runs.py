"""Runs small enough to train in a quarter of a second, and how to compare two of them bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fastswa.config import Config
from fastswa.layers import build_config, merge, recipe_layer
from fastswa.models.efficientnet_lite import EfficientNetLite0
from fastswa.training.device import choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.loop import Trainer
from fastswa.training.run import RunResult, resume, train_new, trainer_of
from fastswa.training.setup import load_data, with_data_defaults

EPOCHS, STEPS = 4, 3  # twelve steps in all

TINY: dict[str, Any] = {
    "seed": 3,
    "batch": {"steps": STEPS, "labelled": 25},
    "method": {"weight": 100},
    "model": {"width": 4},
    "schedule": {"epochs": EPOCHS, "length": 2, "period": 4, "cycle": 1},
    "averaging": {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa", "every": 0.5}, "ema": {"kind": "ema"}},
    "evaluation": {"every": 1, "refresh": 2},
    "checkpoint": {"every": 1},
    "device": {"name": "cpu", "threads": 1},
}

# The same as flags, for commands.
FLAGS = [
    *("--seed", "3", "--batch.steps", "3", "--batch.labelled", "25", "--method.weight", "100"),
    *("--model.width", "4", "--device", "cpu", "--device.threads", "1"),
    *("--epochs", "4", "--schedule.length", "2", "--schedule.period", "4", "--schedule.cycle", "1"),
    *("--averaging.fast_swa.every", "0.5", "--averaging.ema.kind", "ema"),
    *("--evaluation.every", "1", "--evaluation.refresh", "2", "--checkpoint.every", "1"),
]

METHODS: dict[str, dict[str, Any]] = {
    "mean-teacher": {},
    "swa-teacher": {"name": "mean-teacher", "teacher": "swa", "teacher_start": 1, "teacher_every": 0.5},
    "temporal-ensembling": {"name": "temporal-ensembling"},
    "vat": {"name": "vat", "weight": 1},
    "pi": {"name": "pi"},
    "supervised": {"name": "supervised"},
    "fixmatch": {"name": "fixmatch", "weight": 1, "threshold": 0.11},
    "taught-fixmatch": {"name": "fixmatch", "weight": 1, "threshold": 0.11, "guesser": "teacher", "teacher_decay": 0.9},
    "flexmatch": {"name": "flexmatch", "weight": 1, "threshold": 0.11},
    "freematch": {"name": "freematch", "weight": 1},
    "self-ensembling": {"name": "self-ensembling", "threshold": 0.11},
    "vadd": {"name": "vadd"},
    "sntg": {"name": "sntg", "weight": 1, "neighbours": 1},
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package may catch it."""


class StoppingWatcher:
    """Asks to stop once step `stop` is done; dies at step `kill`, or once `kill_evaluated` epochs are measured."""

    def __init__(self, stop: int = -1, kill: int = -1, kill_evaluated: int = -1) -> None:
        self.stop, self.kill, self.kill_evaluated = stop, kill, kill_evaluated
        self.step = 0
        self.lines: list[Mapping[str, Any]] = []

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None:
        self.step = step

    def stepped(self, step: int) -> None: ...

    def evaluated(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)
        if line["epoch"] == self.kill_evaluated:
            raise Killed

    def should_stop(self) -> bool:
        self.step += 1
        if self.step == self.kill:
            raise Killed
        return self.step == self.stop


def tiny(*changes: Mapping[str, Any], recipe: str = "digits-mean-teacher") -> Config:
    return build_config(recipe_layer(recipe), TINY, merge(*changes))


def train(config: Config, out: Path, watcher: StoppingWatcher | None = None) -> RunResult:
    """A new run; nothing may be said of it."""
    said: list[str] = []
    result = train_new(config, out, watcher or StoppingWatcher(), said.append)
    assert said == []
    return result


def go_on(
    out: Path, watcher: StoppingWatcher | None = None, **changes: Mapping[str, Any]
) -> tuple[RunResult, list[str]]:
    """Resume a run; its result and what was said."""
    said: list[str] = []
    return resume(out, changes, watcher or StoppingWatcher(), said.append), said


def make_trainer(config: Config, out: Path) -> Trainer:
    """A trainer at step 0 that has written nothing yet."""
    dataset = load_data(config)
    config = with_data_defaults(config, dataset)
    return trainer_of(config, dataset, choose_compute(config.device), RunFolder(out))


def checkpoints(run: Path) -> list[int]:
    """The steps of the finished checkpoints."""
    return sorted(int(f.name.removeprefix("step-")) for f in (run / "checkpoint").glob("step-*"))


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoint" / f"step-{step:09d}"


def state_at(run: Path, step: int) -> dict[str, Tensor]:
    return load_file(checkpoint(run, step) / "tensors.safetensors")


def models(run: Path) -> dict[str, Tensor]:
    """Every tensor of every model file of a run."""
    files = [run / "model.safetensors", *sorted((run / "models").glob("*.safetensors"))]
    return {f"{file.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


def metrics(run: Path) -> list[dict[str, Any]]:
    """A run's evaluations without what depends on the clock and on the runs beside it."""
    apart = ("seconds", "edge_seconds", "together")
    return [{k: v for k, v in line.items() if k not in apart} for line in RunFolder(run).metrics()]


def assert_identical(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    """The same names and, bit for bit, the same values."""
    assert first.keys() == second.keys()
    assert first
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


def assert_same_run(run: Path, reference: Path) -> None:
    """Two finished runs that agree in models, evaluations and last checkpoint."""
    assert metrics(run) == metrics(reference)
    assert_identical(models(run), models(reference))
    last = checkpoints(reference)[-1]
    assert checkpoints(run)[-1] == last
    assert_identical(state_at(run, last), state_at(reference, last))


def drawn_weights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Weights drawn anew stand in for EfficientNet-Lite 0's published ones; how many images each pass took."""
    passes: list[int] = []

    def put_in(backbone: nn.Module, channels: int) -> None:
        torch.manual_seed(5)
        for module in backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    features = EfficientNetLite0.features

    def counted(self: EfficientNetLite0, images: Tensor) -> Tensor:
        passes.append(len(images))
        return features(self, images)

    monkeypatch.setattr("fastswa.models.efficientnet_lite._load_pretrained", put_in)
    monkeypatch.setattr(EfficientNetLite0, "features", counted)
    return passes


def quiet(message: str) -> None:
    """For runs that have nothing to say."""
    raise AssertionError(message)
