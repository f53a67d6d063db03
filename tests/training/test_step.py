"""One step: the same numbers as torch's own optimiser and plain formulas give, in every engine."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa import beside, methods
from fastswa.config import Config
from fastswa.data.images import Dataset
from fastswa.methods.mean_teacher import MeanTeacher
from fastswa.methods.method import Batch, Network, Terms
from fastswa.noise import Noise, step_words
from fastswa.training import run as run_module
from fastswa.training.loop import Trainer
from fastswa.training.setup import load_data
from fastswa.training.step import launcher
from tiny_runs import FLAGS, assert_identical, make_trainer, models, tiny, train

FP64 = {"device": {"precision": "fp64"}}


def stepped(config: Config, count: int, out: Path) -> Trainer:
    """A trainer after `count` steps, launched as its engine does."""
    trainer = make_trainer(config, out)
    launch = launcher(trainer.step, trainer.compute)
    for step in range(count):
        if step % trainer.steps_per_epoch == 0:
            trainer.feed.load(step // trainer.steps_per_epoch)
        launch()
    return trainer


def test_steps_are_those_of_plain_formulas(tmp_path: Path) -> None:
    """Nine steps of Mean Teacher from DETAILS.md's formulas with torch.optim.SGD, in 64 bits."""
    config = tiny(FP64, {"schedule": {"length": 180, "period": 210}})
    trainer = stepped(config, 9, tmp_path)
    fresh = make_trainer(config, tmp_path)
    student, teacher = fresh.state.student, fresh.state.teacher
    assert teacher is not None
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    losses = []
    for step in range(9):
        epoch, position = divmod(step, 3)
        index = torch.from_numpy(fresh.material.plan.epoch(config.seed, epoch)[position])
        loss = _plain_loss(fresh, student, teacher, index, step, 100 * math.exp(-5 * (1 - epoch / 5) ** 2))
        optimiser.param_groups[0]["lr"] = 0.5 * 0.1 * (1 + math.cos(math.pi * (step / 3) / 210))
        optimiser.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        optimiser.step()
        decay = min(1 - 1 / (step + 2), 0.97)
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.copy_(decay * slow + (1 - decay) * fast)
    for name, network in trainer.state.networks().items():
        for key, tensor in network.state_dict().items():
            assert torch.allclose(tensor, fresh.state.networks()[name].state_dict()[key], rtol=1e-10, atol=1e-12), key
    assert float(trainer.state.sums.sum()) == pytest.approx(sum(losses), rel=1e-5)


def _plain_loss(
    trainer: Trainer, student: nn.Module, teacher: nn.Module, index: Tensor, step: int, weight: float
) -> Tensor:
    noise = Noise(torch.from_numpy(step_words(trainer.config.seed, "step", step, 1)[0].copy()))
    views = [
        trainer.material.augment.view(trainer.material.pixels, index, noise.scope(f"view/{name}"))
        for name in ("student", "teacher")
    ]
    ours = student(views[0], noise.scope("student"))
    theirs = teacher(views[1], noise.scope("teacher"))
    labels = trainer.material.labels[index[:25]]
    likelihood = ours.logits[:25].log_softmax(dim=1)[torch.arange(25), labels]
    difference = ours.consistency.softmax(dim=1) - theirs.logits.softmax(dim=1).detach()
    heads = ours.logits - ours.consistency
    terms = (-likelihood.sum() / 100, weight * (difference**2).sum() / 1000, 0.01 * (heads**2).sum() / 1000)
    return torch.stack(terms).sum()


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "method", [{}, {"method": {"name": "fixmatch", "threshold": 0.2}}], ids=["mean-teacher", "fixmatch"]
)
def test_the_compiled_engine_gives_the_eager_numbers(method: dict[str, Any], tmp_path: Path) -> None:
    """And its parts are compiled whole."""
    torch._dynamo.utils.counters.clear()
    eager, compiled = (
        stepped(tiny(FP64, method, {"device": {"engine": engine}}), 10, tmp_path).state.tensors()
        for engine in ("eager", "compiled")
    )
    assert eager.keys() == compiled.keys()
    for name, tensor in eager.items():
        assert (tensor.double() - compiled[name].double()).norm() < 1e-8, name
    assert not torch._dynamo.utils.counters["graph_break"]


class Spy(MeanTeacher):
    """Keeps every batch it is shown."""

    seen: list[tuple[Tensor, Tensor]] = []  # noqa: RUF012

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        self.seen.append((batch.labels.clone(), batch.index.clone()))
        return super().losses(batch, student, target)


def test_a_method_sees_labels_of_the_labelled_images_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(methods.METHODS, "mean-teacher", f"{__name__}:Spy")
    monkeypatch.setattr(Spy, "seen", [])
    trainer = stepped(tiny({"split": {"validation": 100}}), 6, tmp_path)
    split, truth = trainer.material.split, load_data(trainer.config).train.labels
    assert len(Spy.seen) == 6
    for labels, index in Spy.seen:
        assert (len(labels), len(index)) == (25, 100)
        assert np.isin(index[:25], split.labelled).all()
        assert np.isin(index[25:], split.unlabelled).all()
        assert not np.isin(index, split.validation).any()
        assert labels.tolist() == truth[index[:25]].tolist()
    hidden = np.setdiff1d(np.arange(len(truth)), split.labelled)
    assert (trainer.material.labels.numpy()[hidden] == -1).all()
    assert (trainer.material.labels.numpy()[split.labelled] == truth[split.labelled]).all()


def test_labels_of_unlabelled_and_of_test_images_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    labelled = make_trainer(tiny(), tmp_path).material.split.labelled
    listed = tmp_path / "labelled.txt"
    listed.write_text("\n".join(map(str, labelled)))
    config = tiny({"split": {"file": str(listed), "labels": None}, "schedule": {"epochs": 3}})
    train(config, tmp_path / "true")

    def scrambled(config: Config) -> Dataset:
        dataset = load_data(config)
        labels = np.roll(dataset.train.labels, 1)
        labels[labelled] = dataset.train.labels[labelled]
        assert dataset.test is not None
        object.__setattr__(dataset.train, "labels", labels)
        object.__setattr__(dataset.test, "labels", np.roll(dataset.test.labels, 1))
        return dataset

    monkeypatch.setattr(run_module, "load_data", scrambled)
    train(config, tmp_path / "scrambled")
    assert_identical(models(tmp_path / "true"), models(tmp_path / "scrambled"))


def test_supervised_batches_are_labelled_throughout(tmp_path: Path) -> None:
    trainer = make_trainer(tiny(recipe="digits-supervised"), tmp_path)
    assert (trainer.material.plan.labelled, trainer.material.plan.size, trainer.steps_per_epoch) == (100, 100, 3)
    trainer.feed.load(0)
    loss = trainer.step.losses(trainer.feed.take(), None)["classification"]
    values = trainer.material.plan.epoch(3, 0)[0]
    noise = Noise(torch.from_numpy(step_words(3, "step", 0, 1)[0].copy()))
    view = trainer.material.augment.view(trainer.material.pixels, torch.from_numpy(values), noise.scope("view/student"))
    logits = trainer.state.student(view, noise.scope("student")).logits
    expected = F.cross_entropy(logits, trainer.material.labels[values])
    assert float(loss.detach()) == pytest.approx(float(expected.detach()))


def test_two_passes_never_share_a_view(tmp_path: Path) -> None:
    trainer = make_trainer(tiny(), tmp_path)
    views: dict[str, Tensor] = {}
    original = type(trainer.material.augment).view

    def kept(self: Any, pixels: Tensor, index: Tensor, noise: Noise) -> Tensor:
        views[str(len(views))] = original(self, pixels, index, noise)
        return views[str(len(views) - 1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trainer.material.augment), "view", kept)
        trainer.feed.load(0)
        trainer.step()
    assert list(views) == ["0", "1"]
    same = (views["0"] == views["1"]).flatten(1).all(dim=1).double().mean()
    # Nine translations of one pixel each way: one pair in nine agrees by chance.
    assert 0.02 < float(same) < 0.3


def test_a_run_imports_neither_torchs_compiler_nor_a_library_of_symbols(tmp_path: Path) -> None:
    words = ["train", "digits-mean-teacher", "--out", str(tmp_path / "run"), "--engine", "eager", "--no-report", *FLAGS]
    program = (
        "import sys\n"
        "from fastswa.cli import main\n"
        f"assert main({words!r}) == 0\n"
        "print(*sorted({'torch._dynamo', 'torch._inductor', 'sympy'} & sys.modules.keys()), 'last')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "last"


def test_gradients_are_the_same_where_torch_names_its_engine_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = stepped(tiny(), 3, tmp_path / "ours")
    monkeypatch.delattr(torch.autograd.graph, "_engine_run_backward")
    theirs = stepped(tiny(), 3, tmp_path / "theirs")
    assert_identical(ours.state.tensors(), theirs.state.tensors())


class Direct(MeanTeacher):
    """Takes the target as it is given, as one who knows of no second stream would."""

    joins = False


@pytest.mark.parametrize(("method", "order"), [(MeanTeacher, ["student", "joined"]), (Direct, ["joined", "student"])])
def test_a_target_made_beside_is_waited_for_by_those_who_do_not_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: type[MeanTeacher], order: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(beside, "join", lambda made, after: (seen.append("joined"), made.clone())[1])
    trainer = make_trainer(tiny(), tmp_path)
    trainer.feed.load(0)
    step = trainer.step
    step.state.method.__class__ = method
    step.state.student.register_forward_hook(lambda *_: seen.append("student"))
    step.beside = True
    values = step.feed.take()
    step.losses(values, step.target(values))
    assert seen == order
