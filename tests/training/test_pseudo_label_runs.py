"""Whole runs of FixMatch and its kin: what their metrics say, what they warn of, what they must not look at."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Command
from fastswa.layers import build_config, recipe_layer
from fastswa.methods.flexmatch import NONE, FlexMatch
from fastswa.methods.guesses import Guesses
from fastswa.training.feed import learning_rate
from fastswa.training.refresh import refresh_batches
from fastswa.training.state import State
from tiny_runs import (
    FLAGS,
    METHODS,
    StoppingWatcher,
    assert_identical,
    assert_same_run,
    go_on,
    make_trainer,
    metrics,
    tiny,
    train,
)

KIN = ["fixmatch", "flexmatch", "freematch"]


@pytest.mark.parametrize("method", KIN)
def test_metrics_hold_shares_balance_and_error_of_the_pseudo_labels(method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"method": METHODS[method]}), run)
    for line in metrics(run):
        labels = line["pseudo_labels"]
        assert 0 < labels["passing"] <= 1
        assert 0 <= labels["error"] <= 100
        assert sum(line["pseudo_label_classes"]) == pytest.approx(1, abs=1e-3)
        assert labels["largest_class"] == pytest.approx(max(line["pseudo_label_classes"]), abs=1e-5)


def test_methods_without_pseudo_labels_say_nothing_of_them(finished: Path) -> None:
    assert not any("pseudo_labels" in line for line in metrics(finished))


@pytest.mark.parametrize("method", KIN)
def test_scrambled_labels_of_unlabelled_images_change_nothing_but_the_error(method: str, tmp_path: Path) -> None:
    """Only the figure that says how wrong the pseudo-labels are may depend on them."""

    def run(scramble: bool) -> tuple[State, float]:
        trainer = make_trainer(tiny({"method": METHODS[method]}), tmp_path)
        truth = trainer.material.truth
        if scramble:
            unlabelled = torch.from_numpy(trainer.material.split.unlabelled)
            # Beyond the ten classes, so that no guess can be right.
            truth[unlabelled] = 10 + truth[unlabelled[torch.randperm(len(unlabelled))]]
        trainer.feed.load(0)
        for _ in range(trainer.steps_per_epoch):
            trainer.step()
        return trainer.state, trainer.state.method.figures()["pseudo_labels"]["error"]

    (first, error), (second, other) = run(False), run(True)
    assert_identical(first.tensors(), second.tensors())
    assert error < other == 100


@pytest.mark.parametrize("method", KIN)
def test_with_labelled_images_reused_a_stopped_run_ends_as_an_undisturbed_one(method: str, tmp_path: Path) -> None:
    config = tiny({"method": METHODS[method], "batch": {"reuse_labelled": True}})
    reference, run = tmp_path / "reference", tmp_path / "run"
    train(config, reference)
    assert not train(config, run, StoppingWatcher(stop=5)).finished
    go_on(run)
    assert_same_run(run, reference)


def test_reused_labelled_images_are_guessed_at_and_no_guess_at_them_counts_as_known(tmp_path: Path) -> None:
    """FlexMatch counts all 1,297 images, and remembers labelled ones; errors are of the 1,247 others' guesses."""
    reusing = {"method": {**METHODS["flexmatch"], "threshold": 0.0}, "batch": {"reuse_labelled": True, "steps": 20}}
    trainer = make_trainer(tiny(reusing), tmp_path)
    material, method = trainer.material, trainer.state.method
    assert isinstance(method, FlexMatch)
    assert (material.plan.unlabelled, method.unlabelled) == (1297, 1297)
    labelled = torch.from_numpy(material.split.labelled)
    assert (material.truth == -1).nonzero().flatten().tolist() == labelled.tolist()
    trainer.feed.load(0)
    rows = torch.from_numpy(material.plan.epoch(trainer.config.seed, 0))
    for _ in range(20):
        trainer.step()
    again = torch.isin(rows[:, 25:], labelled)
    assert again.sum() > 40
    assert int(method.memory["seen"]) == 20 * 75
    assert int(method.memory["known"]) == 20 * 75 - int(again.sum())
    remembered = (method.learnt >= 0).nonzero().flatten()
    assert remembered.tolist() == rows[:, 25:].unique().tolist()


def test_labelled_images_of_another_domain_are_not_reused(tmp_path: Path, command: Command) -> None:
    flags = ["--data.target", "usps", "--batch.reuse_labelled"]
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS, *flags)
    sentence = "batch.reuse_labelled: of two domains the unlabelled images are the target's alone; leave it out."
    assert (answer.code, answer.err) == (2, f"fastswa: {sentence}\n")


def test_an_unreachable_threshold_is_said_at_every_evaluation(tmp_path: Path, command: Command) -> None:
    sentence = "fastswa: method fixmatch: no prediction was certain enough to be a pseudo-label"
    answer = command(
        *("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS),
        *("--method", "fixmatch", "--method.threshold", "0.9999999"),
    )
    assert answer.code == 0
    assert answer.err.count(sentence) == 4
    assert [line["pseudo_labels"]["passing"] for line in metrics(tmp_path / "run")] == [0.0] * 4
    assert all("warning" in line for line in metrics(tmp_path / "run"))


def test_flexmatch_goes_on_from_what_earlier_versions_remembered(tmp_path: Path) -> None:
    """Without a place for guesses that are not certain."""
    config = tiny({"method": METHODS["flexmatch"]})
    trainer, other = make_trainer(config, tmp_path), make_trainer(config, tmp_path)
    trainer.feed.load(0)
    trainer.step()
    tensors = {name: tensor.clone() for name, tensor in trainer.state.tensors().items()}
    learnt = tensors["memory.learnt"][:-1]
    assert bool((learnt != NONE).any())
    other.state.restore({**tensors, "memory.learnt": learnt}, trainer.state.counters())
    assert torch.equal(other.state.tensors()["memory.learnt"][:-1], learnt)


def test_flexmatch_says_that_all_passes_while_nothing_was_certain(tmp_path: Path, command: Command) -> None:
    answer = command(
        *("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS),
        *("--method", "flexmatch", "--method.threshold", "0.9999999", "--optimiser.lr", "0.001"),
    )
    assert answer.code == 0
    sentence = "no prediction on any unlabelled image has reached method.threshold (0.9999999) so far"
    assert answer.err.count(sentence) == 4
    assert [line["pseudo_labels"]["passing"] for line in metrics(tmp_path / "run")] == [1.0] * 4


def test_any_method_can_show_its_student_strong_views(tmp_path: Path) -> None:
    weak, strong = tmp_path / "weak", tmp_path / "strong"
    train(tiny({"schedule": {"epochs": 1}}), weak)
    train(tiny({"schedule": {"epochs": 1}, "augment": {"student": "strong"}}), strong)
    assert metrics(weak)[0]["loss"] != metrics(strong)[0]["loss"]


def test_fixmatch_learns_from_unlabelled_digits(tmp_path: Path) -> None:
    """The digits recipe cut short: below the same network, labels and steps without unlabelled images, on average."""
    errors = {}
    for method in ("fixmatch", "supervised"):
        found = []
        for seed in range(3):
            short = {"schedule": {"steps": 200}, "model": {"width": 16}, "method": {"name": method, "threshold": 0.9}}
            cpu = {"seed": seed, "device": {"name": "cpu", "threads": 1}, "evaluation": {"every": 4, "refresh": 4}}
            run = tmp_path / f"{method}-{seed}"
            train(build_config(recipe_layer("digits-fixmatch"), short, cpu), run)
            found.append(metrics(run)[-1]["error"]["fast_swa"])
        errors[method] = sum(found) / 3
    assert errors["fixmatch"] < errors["supervised"] - 1


@pytest.mark.parametrize(
    ("name", "labels", "steps"),
    [
        ("cifar10-fixmatch-4k", 4000, 125_000),
        ("cifar10-fixmatch-4k-quick", 4000, 44_000),
        ("cifar10-fixmatch-250", 250, 125_000),
        ("cifar10-fixmatch-40", 40, 125_000),
        ("cifar100-fixmatch-10k", 10_000, 55_000),
    ],
)
def test_recipes_of_the_frontier(name: str, labels: int, steps: int) -> None:
    config = build_config(recipe_layer(name))
    schedule = config.schedule
    assert (config.split.labels, schedule.epochs * (config.batch.steps or 0)) == (labels, steps)
    assert (config.batch.labelled, config.batch.size - config.batch.labelled) == (64, 448)
    assert (config.method.name, config.method.weight, config.method.threshold) == ("fixmatch", 1.0, 0.95)
    assert learning_rate(config, schedule.epochs) == pytest.approx(0, abs=1e-12)
    assert config.averaging["fast_swa"].start == math.ceil(0.75 * schedule.epochs)
    assert config.averaging["ema"].every == 0
    assert config.batch.reuse_labelled
    assert config.optimiser.decay_all is False
    last = config.averaging["last"]
    assert (last.kind, last.start, last.every) == ("last", 0, 1)  # a copy of the weights in a thousand steps


def test_the_teacher_of_self_ensembling_starts_as_a_copy(tmp_path: Path) -> None:
    state = make_trainer(tiny({"method": METHODS["self-ensembling"]}), tmp_path).state
    assert state.teacher is not None
    assert_identical(dict(state.student.state_dict()), dict(state.teacher.state_dict()))
    other = make_trainer(tiny(), tmp_path).state
    assert other.teacher is not None
    pairs = zip(other.student.parameters(), other.teacher.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_statistics_of_a_guessing_teacher_follow_as_its_weights_do(tmp_path: Path) -> None:
    trainer = make_trainer(tiny({"method": METHODS["taught-fixmatch"]}), tmp_path)
    student, teacher = trainer.state.student, trainer.state.teacher
    assert teacher is not None
    names = [name for name in student.state_dict() if "running" in name or name.endswith("weight")]
    assert any("running_var" in name for name in names)
    expected = {name: student.state_dict()[name].clone() for name in names}
    assert_identical(expected, {name: teacher.state_dict()[name] for name in names})
    trainer.feed.load(0)
    for step in range(1, 4):
        trainer.step()
        for name, tensor in expected.items():
            tensor.lerp_(student.state_dict()[name], 1 / (step + 1))
    for name, tensor in expected.items():
        assert torch.allclose(teacher.state_dict()[name], tensor, rtol=1e-5, atol=1e-6), name
        assert not torch.equal(tensor, student.state_dict()[name])


def test_averages_of_self_ensembling_are_refreshed_on_images_without_labels(tmp_path: Path) -> None:
    trainer = make_trainer(tiny({"method": METHODS["self-ensembling"]}), tmp_path)
    plan, unlabelled = trainer.material.plan, set(trainer.material.split.unlabelled.tolist())
    batches = [row for row, _ in refresh_batches(trainer.config, plan, "swa/1")]
    assert [len(row) for row in batches] == [plan.size - plan.labelled] * 2
    assert all(set(row.tolist()) <= unlabelled for row in batches)
    mixed = tiny()
    assert {len(row) for row, _ in refresh_batches(mixed, plan, "swa/1")} == {plan.size}


def test_self_ensembling_says_in_how_far_the_target_teaches(tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    answer = command(
        *("train", "digits-mean-teacher", "--out", run, *FLAGS, "--method", "self-ensembling"),
        *("--method.threshold", "0.999999"),
    )
    assert answer.code == 0
    assert answer.err.count("fastswa: method self-ensembling: no prediction was certain enough to be a target") == 4
    assert [line["pseudo_labels"]["passing"] for line in metrics(run)] == [0.0] * 4
    page = (run / "report.html").read_text("utf-8")
    assert "Guesses that teach" in page
    assert "At the last evaluation: method self-ensembling: no prediction" in page


@pytest.mark.parametrize(
    ("threshold", "sentence"),
    [
        ("0", "method.threshold (0) must lie between 0 and 1, both excluded."),
        ("1", "method.threshold (1) must lie between 0 and 1, both excluded."),
        ("-0.5", "method.threshold (-0.5) must lie between 0 and 1, both excluded."),
        ("nan", "method.threshold (nan) must lie between 0 and 1, both excluded."),
    ],
)
def test_a_threshold_outside_0_and_1_is_one_sentence(
    threshold: str, sentence: str, tmp_path: Path, command: Command
) -> None:
    flags = ["--method", "self-ensembling", "--method.threshold", threshold]
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS, *flags)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"fastswa: {sentence}\n"


def test_self_ensembling_without_images_to_adapt_to_is_refused(tmp_path: Path, command: Command) -> None:
    flags = ["--method", "self-ensembling", "--split.labels", "1000", "--split.unlabelled", "0"]
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS, *flags)
    assert answer.code == 2
    assert "method self-ensembling learns from images without labels, and there are none" in answer.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["neighbours", "margin", "delta"])
def test_settings_of_other_methods_are_refused(setting: str, tmp_path: Path, command: Command) -> None:
    flags = ["--method", "pi", f"--method.{setting}", "0.5"]
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS, *flags)
    assert answer.err == f"fastswa: method.{setting} has no effect on the method pi; leave it out.\n"


def test_vadd_needs_a_network_with_dropout(tmp_path: Path, command: Command) -> None:
    flags = ["--method", "vadd", "--model.dropout", "0"]
    answer = command("train", "digits-mean-teacher", "--out", tmp_path / "run", *FLAGS, *flags)
    sentence = "method vadd: the network has no dropout; give model.dropout or another model."
    assert (answer.code, answer.err) == (2, f"fastswa: {sentence}\n")
    assert not (tmp_path / "run").exists()


def test_a_warning_names_the_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "animals.npz"
    np.savez(
        file, x_train=rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), y_train=[0, 1] * 30, classes=["cat", "dog"]
    )
    layer = {"data": {"source": str(file)}, "split": {"labels": 20}, "method": METHODS["fixmatch"]}
    method = make_trainer(tiny(layer), tmp_path / "run").state.method
    assert isinstance(method, Guesses)
    method.count(torch.ones(50, dtype=torch.int64), torch.ones(50, dtype=torch.bool), torch.arange(50))
    assert "class 'dog' takes 100.0% of the pseudo-labels" in method.figures()["warning"]
