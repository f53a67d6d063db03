"""Training on two domains: what is learnt from, what is measured, what is said, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastswa
from conftest import Command
from fastswa.config import Config
from fastswa.data.sources.digits import load_digits
from fastswa.errors import RequestError
from fastswa.layers import build_config
from fastswa.training import window
from fastswa.training.finished import evaluate_run
from fastswa.training.run import train_new
from fastswa.training.setup import load_data, with_data_defaults
from tiny_runs import FLAGS, METHODS, StoppingWatcher, assert_same_run, go_on, make_trainer, metrics, tiny

IMAGES = 300


def arrays() -> dict[str, np.ndarray]:
    """Digits as a negative, without the noughts."""
    digits = load_digits()
    assert digits.test is not None
    rows = np.flatnonzero(digits.train.labels > 0)[:IMAGES]
    return {
        "x_train": 255 - digits.train.pixels[rows, 0],
        "y_train": digits.train.labels[rows],
        "x_test": 255 - digits.test.pixels[:100, 0],
        "y_test": digits.test.labels[:100],
    }


@pytest.fixture
def target(tmp_path: Path) -> Path:
    np.savez(tmp_path / "target.npz", **arrays())  # type: ignore[arg-type]
    return tmp_path / "target.npz"


def adapting(target: Path, *changes: dict[str, Any], method: str = "self-ensembling") -> Config:
    given = (
        {"name": "self-ensembling", "weight": 3, "threshold": 0.11} if method == "self-ensembling" else METHODS[method]
    )
    return tiny({"data": {"target": str(target)}, "split": {"labels": None}, "method": given}, *changes)


def train(config: Config, out: Path, watcher: StoppingWatcher | None = None) -> list[str]:
    said: list[str] = []
    train_new(config, out, watcher or StoppingWatcher(), said.append)
    return said


@pytest.mark.parametrize("method", ["self-ensembling", "mean-teacher", "fixmatch"])
def test_permuting_the_targets_training_labels_changes_nothing(method: str, target: Path, tmp_path: Path) -> None:
    """Neither a weight nor a figure, with methods that count how often their guesses are right among them."""
    train(adapting(target, method=method), tmp_path / "as-they-are")
    permuted = arrays()
    permuted["y_train"] = np.random.default_rng(0).permutation(permuted["y_train"])
    np.savez(target, **permuted)  # type: ignore[arg-type]
    train(adapting(target, method=method), tmp_path / "permuted")
    assert_same_run(tmp_path / "permuted", tmp_path / "as-they-are")


def test_unlabelled_images_of_a_step_are_the_targets_and_only_they(target: Path, tmp_path: Path) -> None:
    """Labels left over by split.labels do not bring their images back in."""
    trainer = make_trainer(adapting(target, {"split": {"labels": 50}, "batch": {"size": 60}}), tmp_path / "run")
    material = trainer.material
    rows = material.plan.epoch(3, 0)
    assert set(rows[:, :25].reshape(-1).tolist()) <= set(material.split.labelled.tolist())
    assert len(material.split.labelled) == 50
    first = len(material.labels)
    assert (rows[:, 25:] >= first).all()
    pixels, places = material.batch(rows[0, 25:])
    assert np.array_equal(pixels[places][..., 0].numpy(), arrays()["x_train"][rows[0, 25:] - first])
    assert (material.truth[first:] == -1).all()


def test_what_is_measured_by_epoch(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(adapting(target), out)
    for line in metrics(out):
        networks = {name for name in line["error"] if name != "student"}
        assert line["source_error"].keys() == line["error"].keys()
        assert line["agreement"].keys() == networks >= {"teacher"}
    figures, last = evaluate_run(out, "cpu"), metrics(out)[-1]
    assert figures["test"]["teacher"]["error"] == pytest.approx(last["error"]["teacher"])
    assert figures["source"]["teacher"]["error"] == pytest.approx(last["source_error"]["teacher"])
    student, teacher = (fastswa.load(out, name) for name in ("student", "teacher"))
    shown = arrays()
    said = [[int(k) for k in model.predict(list(shown["x_train"])).labels] for model in (student, teacher)]
    assert last["agreement"]["teacher"] == pytest.approx(100 * np.mean(np.equal(*said)))
    # The test images of the noughts, which the target lacks in training alone, are among the tested ones.
    answers = np.array([int(k) for k in student.predict(list(shown["x_test"])).labels])
    wrong = [student.classes[k] != str(label) for k, label in zip(answers, shown["y_test"], strict=True)]
    assert last["error"]["student"] == pytest.approx(100 * np.mean(wrong))


def test_classes_of_one_side_are_left_out_and_both_are_said(target: Path, tmp_path: Path, command: Command) -> None:
    some = arrays()
    names = np.array(["zero", *"12345678", "nine"])
    np.savez(target, **some, classes=names)  # type: ignore[arg-type]
    (tmp_path / "run.toml").write_text('[data]\nsource = "digits"\n', "utf-8")
    out = tmp_path / "run"
    words = ["--config", tmp_path / "run.toml", "--data.target", target, "--method", "self-ensembling"]
    flags = [flag for flag in FLAGS if flag not in ("--method.weight", "100")]
    answer = command("train", *words, "--data.aliases", "9=nine", *flags, "--out", out, "--no-report")
    assert answer.code == 0, answer.err
    assert f"domains: 9 classes of digits and {target} are matched (9 = nine)" in answer.err
    assert "left out, as only digits has them: 0\n" in answer.err
    assert f"left out, as only {target} has them: zero\n" in answer.err
    facts = json.loads((out / "domains.json").read_text("utf-8"))
    assert facts["left_out"] == {"source": ["0"], "target": ["zero"]}
    assert facts["images"]["target"] == IMAGES
    assert fastswa.load(out).classes == tuple("123456789")


def test_without_labelled_test_images_of_the_target_errors_are_the_sources(target: Path, tmp_path: Path) -> None:
    np.savez(target, x_unlabelled=arrays()["x_train"])
    told: list[str] = []
    train_new(adapting(target), tmp_path / "run", StoppingWatcher(), told.append, tell=told.append)
    assert any("it has no labelled test images, so that errors are those on images of digits" in line for line in told)
    for line in metrics(tmp_path / "run"):
        assert "error" not in line
        assert line["source_error"].keys() >= {"student", "teacher"}
        assert "teacher" in line["agreement"]


def test_source_only_training_is_measured_on_the_target(target: Path, tmp_path: Path) -> None:
    train(adapting(target, method="supervised"), tmp_path / "run")
    last = metrics(tmp_path / "run")[-1]
    assert last["error"].keys() == last["source_error"].keys() == {"student", "swa", "fast_swa", "ema"}


def test_a_run_on_two_domains_resumes_exactly(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the device has no room for all of the target."""
    some = adapting(target, {"data": {"extra_per_epoch": 200}})
    train(some, tmp_path / "whole")
    train(some, tmp_path / "run", StoppingWatcher(stop=4))
    assert go_on(tmp_path / "run")[0].finished
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    monkeypatch.setattr(window, "free_memory", lambda device: 2 * 64 * (1297 + IMAGES - 50))
    said = train(some, tmp_path / "window", StoppingWatcher(stop=4))
    assert said == [f"300 target images of {target}, 200 of them an epoch; each epoch's are brought to cpu (0.0 MiB)."]
    assert go_on(tmp_path / "window")[0].finished
    assert_same_run(tmp_path / "window", tmp_path / "whole")


def test_a_resume_refuses_another_target(target: Path, tmp_path: Path) -> None:
    train(adapting(target), tmp_path / "run", StoppingWatcher(stop=4))
    changed = arrays()
    changed["x_train"] = changed["x_train"][::-1]
    np.savez(target, **changed)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=f"the images or labels of digits or {target} are not those"):
        go_on(tmp_path / "run")


def test_a_target_that_is_the_source_is_warned_of_and_trained(tmp_path: Path) -> None:
    said = train(adapting(Path("digits"), {"schedule": {"epochs": 1, "length": 1, "period": 1}}), tmp_path / "run")
    assert said == ["data.target: the target is the source (digits); name the images of another domain."]


def test_the_sources_size_is_the_one_asked_for(target: Path, tmp_path: Path) -> None:
    trainer = make_trainer(adapting(target, {"data": {"size": 12}}), tmp_path / "run")
    assert trainer.material.facts.shape == (1, 12, 12)
    assert trainer.material.pixels.shape[1:] == (12, 12, 1)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"target": "t.npz", "extra": "e.npz"}, "data.target and data.extra both name the images without labels"),
    ({"aliases": {"a": "b"}}, "data.aliases match the classes of two domains, but data.target names no second one"),
    ({"target": "t.npz", "aliases": {"a": 3}}, r"data.aliases.a: '3' is not text"),
]


@pytest.mark.parametrize(("data", "why"), REFUSED, ids=range(len(REFUSED)))
def test_settings_that_contradict_one_another_are_refused(data: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        build_config({"data": data})


def test_commands_say_what_is_wrong_in_one_sentence(tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "one.npz", x_train=np.zeros((1, 8, 8), np.uint8))
    np.savez(tmp_path / "ships.npz", x_train=np.zeros((2, 8, 8), np.uint8), y_train=[0, 1], classes=["ship", "sail"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.toml").write_text('[data]\nsource = "digits"\n', "utf-8")

    def refusal(*words: object) -> str:
        answer = command("train", "--config", tmp_path / "run.toml", "--out", tmp_path / "run", *words)
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert not (tmp_path / "run").exists()
        return answer.err

    assert "has a single training image of a class" in refusal("--data.target", tmp_path / "one.npz")
    assert "have no class in common" in refusal("--data.target", tmp_path / "ships.npz")
    assert "holds no training image" in refusal("--data.target", tmp_path / "empty")
    assert "--data.aliases: 'car' is not NAME=NAME." in refusal("--data.target", "digits", "--data.aliases", "car")


def test_a_threshold_of_zero_is_refused_also_where_the_data_choose_the_method(tmp_path: Path, command: Command) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x_train=rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), y_train=np.arange(60) % 2)
    np.savez(tmp_path / "b.npz", x_unlabelled=rng.integers(0, 256, (60, 8, 8), dtype=np.uint8))
    words = ("--method.threshold", "0", "--out", tmp_path / "run", "--device", "cpu")
    answer = command("train", tmp_path / "a.npz", "--data.target", tmp_path / "b.npz", *words)
    assert (answer.code, answer.out) == (2, "")
    assert "method.threshold (0) must lie between 0 and 1, both excluded." in answer.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_two_folders_of_ones_own_get_self_ensembling_unless_another_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.integers(0, 256, (count, 8, 8), dtype=np.uint8) for count in (2600, 5200))
    np.savez(tmp_path / "a.npz", x_train=first, y_train=np.arange(2600) % 2)
    np.savez(tmp_path / "b.npz", x_unlabelled=second)
    layer = {"data": {"source": str(tmp_path / "a.npz"), "target": str(tmp_path / "b.npz")}}

    def chosen(*changes: dict[str, Any]) -> Config:
        config = build_config(layer, *changes)
        return with_data_defaults(config, load_data(config))

    config = chosen()
    assert config.method.name == "self-ensembling"
    assert (config.method.weight, config.method.threshold, config.method.teacher_decay) == (3.0, 0.968, 0.99)
    assert (config.model.heads, config.augment.standardise, config.augment.affine) == (1, True, 0.1)
    # Fifty of each; a pass over the larger of 2,080 source images (a fifth is held out) and 5,200 target images.
    assert (config.batch.size, config.batch.labelled, config.batch.steps) == (100, 50, 104)
    alone = chosen({"method": {"name": "supervised"}})
    assert (alone.augment, alone.optimiser) == (config.augment, config.optimiser)
    assert (alone.batch.size, alone.batch.steps) == (100, 104)
    assert chosen({"method": {"name": "mean-teacher"}}).augment.standardise is False
    assert chosen({"method": {"threshold": 0.9}}).method.threshold == 0.9
