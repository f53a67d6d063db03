"""Averages of every step, which are part of the step: what they hold, when they begin, that a run goes on exactly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fastswa.training.loop import Trainer
from fastswa.training.step import launcher
from tiny_runs import (
    EPOCHS,
    STEPS,
    StoppingWatcher,
    assert_same_run,
    go_on,
    make_trainer,
    metrics,
    state_at,
    tiny,
    train,
)

OFTEN: dict[str, Any] = {
    "averaging": {
        "late": {"kind": "fast-swa", "start": 2, "every": 0},
        "within": {"kind": "fast-swa", "start": 1.5, "every": 0},
        "always": {"kind": "fast-swa", "start": 0, "every": 0},
        "ema": {"kind": "ema", "decay": 0.7},
    }
}


class Recording(StoppingWatcher):
    """Remembers the student's weights after each step."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer, self.students = trainer, []  # type: ignore[var-annotated]

    def should_stop(self) -> bool:
        self.students.append(weights(self.trainer.state.student))
        return False


def weights(network: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in network.parameters()])


def test_each_holds_the_iterates_from_its_start_on(tmp_path: Path) -> None:
    trainer = make_trainer(tiny(OFTEN), tmp_path / "run")
    watcher = Recording(trainer)
    trainer.folder.create(trainer.config)
    trainer.train(watcher)
    steps = EPOCHS * STEPS
    assert len(watcher.students) == steps
    averages = trainer.state.averages
    # Epoch 2 is reached by step 6, and 1.5 by the first step after 4.5.
    for name, first in {"late": 6, "within": 5, "always": 1}.items():
        expected = torch.stack(watcher.students[first - 1 :]).mean(dim=0)
        assert averages[name].count == steps - first + 1
        assert torch.allclose(weights(averages[name].module), expected, rtol=0, atol=1e-7)
    ema = watcher.students[0]
    for number, student in enumerate(watcher.students[1:], 2):
        ema = ema + max(1 / number, 1 - 0.7) * (student - ema)
    assert torch.allclose(weights(averages["ema"].module), ema, rtol=0, atol=1e-6)
    counts = [{name: line["averaged"][name] for name in OFTEN["averaging"]} for line in metrics(tmp_path / "run")]
    assert counts == [
        {"late": 0, "within": 0, "always": 3, "ema": 3},
        {"late": 1, "within": 2, "always": 6, "ema": 6},
        {"late": 4, "within": 5, "always": 9, "ema": 9},
        {"late": 7, "within": 8, "always": 12, "ema": 12},
    ]


@pytest.mark.parametrize("stop", [1, 4, 5, 7])
def test_a_stopped_run_goes_on_exactly(stop: int, tmp_path: Path) -> None:
    config = tiny(OFTEN)
    train(config, tmp_path / "straight")
    train(config, tmp_path / "run", StoppingWatcher(stop=stop))
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    last = state_at(tmp_path / "run", EPOCHS * STEPS)
    assert float(last["averaging.late.taken"]) == 7
    assert any(float(tensor.abs().max()) > 0 for name, tensor in last.items() if ".lost." in name)


def test_launching_leaves_them_alone_until_they_are_expected(tmp_path: Path) -> None:
    """As in a probe, a capture or a measurement of a step's time: the step runs, and the averages stay."""
    trainer = make_trainer(tiny(OFTEN), tmp_path)
    trainer.feed.load(0)
    before = {name: weights(average.module) for name, average in trainer.state.averages.items()}
    launch = launcher(trainer.step, trainer.compute)
    for _ in range(STEPS):
        launch()
    for name, average in trainer.state.averages.items():
        assert average.count == 0
        assert torch.equal(weights(average.module), before[name])


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_they_are_the_same_compiled(tmp_path: Path) -> None:
    """Three steps of a compiled step, with averages that begin before them and between them."""
    found = {}
    for engine in ("eager", "compiled"):
        settings = {"device": {"engine": engine, "precision": "fp64"}, "method": {"name": "supervised"}}
        trainer = make_trainer(tiny(OFTEN, settings, {"averaging": {"late": {"start": 0.6}}}), tmp_path / engine)
        trainer.feed.load(0)
        launch = launcher(trainer.step, trainer.compute)
        for step in range(1, STEPS + 1):
            for average in trainer.state.averages.values():
                if average.inside:
                    average.expect(step / STEPS)
            launch()
        found[engine] = trainer.state
    for name, count in {"late": 2, "within": 0, "always": 3, "ema": 3}.items():
        eager, compiled = (found[engine].averages[name] for engine in ("eager", "compiled"))
        assert (eager.count, compiled.count) == (count, count)
        assert torch.allclose(weights(eager.module), weights(compiled.module), rtol=0, atol=1e-10)


def test_a_checkpoint_without_what_rounding_lost_goes_on(tmp_path: Path) -> None:
    """Earlier versions kept no such thing: the averages continue from their means and counts."""
    trainer = make_trainer(tiny(OFTEN), tmp_path)
    trainer.feed.load(0)
    for step in range(1, 3):
        for average in trainer.state.averages.values():
            if average.inside:
                average.expect(step / STEPS)
        trainer.step()
    tensors = {name: tensor.clone() for name, tensor in trainer.state.tensors().items()}
    counters = trainer.state.counters()
    other = make_trainer(tiny(OFTEN), tmp_path)
    other.state.restore({k: v for k, v in tensors.items() if not k.startswith("averaging.")}, counters)
    assert float(other.state.tensors()["averaging.always.taken"]) == 2
    assert torch.equal(weights(other.state.averages["always"].module), weights(trainer.state.averages["always"].module))
