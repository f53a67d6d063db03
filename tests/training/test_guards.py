"""Training stops with a sentence where a method does not do what it declares, or a number is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import Command
from fastswa import methods
from fastswa.errors import RunError
from fastswa.methods.losses import classification, probabilities
from fastswa.methods.mean_teacher import MeanTeacher
from fastswa.methods.method import Batch, Network, Terms
from fastswa.training import loop
from fastswa.training.checkpoint import load_checkpoint
from fastswa.training.optimiser import SGD
from fastswa.training.state import State
from tiny_runs import (
    FLAGS,
    METHODS,
    StoppingWatcher,
    assert_identical,
    assert_same_run,
    checkpoints,
    go_on,
    make_trainer,
    metrics,
    state_at,
    tiny,
    train,
)


class LeakingTeacher(MeanTeacher):
    """The target is not detached, so the loss also pulls the teacher to the student."""

    def target(self, batch: Batch, teacher: Network) -> Tensor:
        return probabilities(teacher(batch.view("teacher"), batch.noise.scope("teacher")).logits)

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        assert target is not None
        output = student(batch.view("student"), batch.noise.scope("student"))
        return {
            "classification": classification(output.logits, batch.labels),
            "consistency": batch.weight * self.divergence(self.compared(output.consistency), target).mean(),
            **self.tied(output),
        }

    def compared(self, logits: Tensor) -> Tensor:
        return logits


class DetachedStudent(LeakingTeacher):
    """The fault that a peer shipped for years: the student never sees the consistency loss."""

    def compared(self, logits: Tensor) -> Tensor:
        return logits.detach()


class LazyTeacher(MeanTeacher):
    """Says at every step that the teacher stays where it is."""

    def teacher_rate(self, step: int, steps_per_epoch: int) -> float:
        return 0.0


class OnlyTheHead(MeanTeacher):
    """The consistency loss trains the second head and nothing below it."""

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        terms = super().losses(batch, student, target)
        output = student(batch.view("student"), batch.noise.scope("student"))
        second = student.heads.second(output.features.detach())
        even = torch.full_like(second, 1.0 / second.shape[1])
        return {**terms, "consistency": batch.weight * self.divergence(second, even).mean()}


class ForgottenTerm(MeanTeacher):
    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        terms = super().losses(batch, student, target)
        return {name: term for name, term in terms.items() if name != "consistency"}


class SecretTerm(MeanTeacher):
    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        terms = super().losses(batch, student, target)
        return {**terms, "secret": terms["classification"]}


class TermOfEachImage(MeanTeacher):
    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        terms = super().losses(batch, student, target)
        return {**terms, "consistency": terms["consistency"].expand(len(batch.index))}


class TermOutsideTorch(MeanTeacher):
    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        terms: Any = super().losses(batch, student, target)
        return {**terms, "consistency": 0.5}


class Breaking(MeanTeacher):
    """Gives NaN from epoch 2 on, which it knows by the consistency weight."""

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        terms = super().losses(batch, student, target)
        wrong = (batch.weight > 0.999 * self.weight(2.0)) & (batch.weight < self.config.weight)
        return {**terms, "consistency": torch.where(wrong, torch.nan, terms["consistency"])}


def use(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let `mean-teacher` be one of the classes above."""
    monkeypatch.setitem(methods.METHODS, "mean-teacher", f"{__name__}:{name}")


def trips(out: Path, **changes: Any) -> str:
    """The sentence with which a run refuses to start; it leaves nothing behind."""
    with pytest.raises(RunError) as caught:
        train(tiny(changes), out)
    assert not out.exists()
    return str(caught.value)


def test_a_detached_student_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command) -> None:
    use(monkeypatch, "DetachedStudent")
    sentence = "method mean-teacher: the term 'consistency' sends no gradient to the student; it would teach nothing."
    assert trips(tmp_path / "run") == sentence
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS)
    assert answer == (1, "", f"fastswa: {sentence}\n")


def test_a_frozen_teacher_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sentence = "method mean-teacher: a training step leaves the teacher where it was; it would teach nothing."
    with monkeypatch.context() as patch:
        patch.setattr(State, "follow", lambda state, rate: None)
        assert trips(tmp_path / "run") == sentence
    use(monkeypatch, "LazyTeacher")
    assert trips(tmp_path / "run") == sentence


def test_a_frozen_student_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SGD, "step", lambda optimiser, gradients, rate: None)
    assert trips(tmp_path / "run", method=METHODS["pi"]) == (
        "method pi: a training step leaves the student where it was; it would train nothing."
    )


def test_a_gradient_into_the_teacher_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "LeakingTeacher")
    assert trips(tmp_path / "run") == "method mean-teacher: the loss sends a gradient into the teacher."


def test_a_term_that_is_declared_but_missing_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "ForgottenTerm")
    assert trips(tmp_path / "run") == "method mean-teacher declares the term 'consistency' but does not compute it."
    use(monkeypatch, "SecretTerm")
    assert trips(tmp_path / "run") == "method mean-teacher computes the term 'secret' but does not declare it."


@pytest.mark.parametrize("name", ["TermOfEachImage", "TermOutsideTorch"])
def test_a_term_that_is_not_one_number_trips(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, name)
    assert trips(tmp_path / "run") == (
        "method mean-teacher: the term 'consistency' is not a tensor of one number; take the mean over images."
    )


def test_a_term_that_stops_at_a_head_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "OnlyTheHead")
    assert "the term 'consistency' sends no gradient to the student" in trips(tmp_path / "run")


def test_a_resumed_run_is_probed_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=4))
    use(monkeypatch, "DetachedStudent")
    with pytest.raises(RunError, match="sends no gradient to the student"):
        go_on(run)
    assert checkpoints(run) == [3, 4]


@pytest.mark.parametrize("method", METHODS)
def test_the_probe_leaves_no_trace(method: str, tmp_path: Path) -> None:
    trainer = make_trainer(tiny({"method": METHODS[method]}), tmp_path)
    before = {name: tensor.clone() for name, tensor in trainer.state.tensors().items()}
    random = torch.get_rng_state()
    trainer.check()
    assert_identical(before, trainer.state.tensors())
    assert torch.equal(torch.get_rng_state(), random)
    assert trainer.state.step == trainer.state.summed == 0
    assert all(not p.requires_grad for n in [trainer.state.teacher] if n is not None for p in n.parameters())
    assert all(p.requires_grad for p in trainer.state.student.parameters())
    assert all(average.count == 0 for average in trainer.state.averages.values())
    assert int(trainer.feed.cursor) == 0


@pytest.mark.parametrize("changes", [{"method": {"weight": 0}}, {"optimiser": {"lr": 0}}, {"schedule": {"epochs": 0}}])
def test_weights_and_rates_of_zero_are_a_choice(changes: dict[str, Any], tmp_path: Path) -> None:
    """The probe looks at the method at full weight, not at how a run turns it down."""
    assert train(tiny({"schedule": {"epochs": 1}}, changes), tmp_path / "run").finished


def test_a_batch_without_a_labelled_image_trips(tmp_path: Path) -> None:
    trainer = make_trainer(tiny(), tmp_path)
    trainer.step.labels = torch.full_like(trainer.step.labels, -1)
    with pytest.raises(RunError) as caught:
        trainer.check()
    assert str(caught.value) == "a batch holds no labelled image where it should; check the split."


def test_a_first_batch_that_is_not_finite_trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = MeanTeacher.losses

    def nan(*arguments: Any) -> Terms:
        return {name: term * float("nan") for name, term in original(*arguments).items()}

    monkeypatch.setattr(MeanTeacher, "losses", nan)
    assert trips(tmp_path / "run") == (
        "the loss of the very first batch is not finite; check the images and the weights."
    )


def finite(tensors: dict[str, Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())


@pytest.mark.parametrize("every", [{}, {"evaluation": {"every": 4}}, {"checkpoint": {"every": 2}}])
def test_a_loss_that_is_not_finite_stops_the_run(
    every: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    config = tiny(every)
    train(config, reference)
    with monkeypatch.context() as patch:
        use(patch, "Breaking")
        with pytest.raises(RunError) as caught:
            train(config, run)
        # Asked to stop in between, it may not save the broken state either.
        with pytest.raises(RunError):
            go_on(run, StoppingWatcher(stop=8))
    assert str(caught.value).startswith("the loss or a weight is no longer finite at step ")
    assert str(caught.value).endswith("; the last good checkpoint is kept, and a smaller optimiser.lr may help.")
    assert checkpoints(run)[-1] == 6
    assert not (run / "model.safetensors").exists()
    said: list[str] = []
    assert load_checkpoint(run / "checkpoint", said.append) is not None
    assert (said, finite(state_at(run, 6))) == ([], True)
    assert all(line["epoch"] <= 2 for line in metrics(run))
    go_on(run)
    assert_same_run(run, reference)


def test_a_broken_loss_is_noticed_within_an_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "Breaking")
    monkeypatch.setattr(loop, "FINITE_CHECK_EVERY", 4)
    with pytest.raises(RunError, match=r"no longer finite at step 8; "):
        train(tiny(), tmp_path / "run")


@pytest.mark.parametrize("rate", ["1e5", "1e15", "1e38"])
@pytest.mark.parametrize("steps", ["1", "3"])
def test_a_learning_rate_that_is_far_too_high_never_saves_a_broken_state(
    rate: str, steps: str, command: Command, tmp_path: Path
) -> None:
    """A step can break the weights after a loss that was still finite."""
    run = tmp_path / "run"
    settings = [*FLAGS, "--optimiser.lr", rate, "--batch.steps", steps]
    answer = command("train", "digits-mean-teacher", "--out", run, *settings)
    assert answer.code == 1
    said = [line for line in answer.err.splitlines() if not line.startswith("epoch ")]
    assert len(said) == 1
    assert said[0].startswith("fastswa: the loss or a weight is no longer finite at step ")
    assert all(finite(state_at(run, step)) for step in checkpoints(run))
