"""Temperatures against closed forms and torch, and what calibrating does to a run."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fastswa
from conftest import Command
from fastswa.calibrate import (
    HOTTEST,
    calibrate_run,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)
from fastswa.modelfile import read_facts
from fastswa.training.setup import load_data, split_of
from tiny_runs import assert_identical, go_on, models, tiny, train


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run with 150 validation images."""
    out = tmp_path_factory.mktemp("calibrated") / "run"
    train(tiny({"split": {"validation": 150}, "schedule": {"epochs": 3}}), out)
    return out


def noisy(seed: int = 0, images: int = 400, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, images)
    return random.normal(size=(images, classes)) + 2.0 * np.eye(classes)[labels], labels


def test_likelihood_is_that_of_torch() -> None:
    logits, labels = noisy()
    wanted = F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels))
    assert negative_log_likelihood(logits, labels) == pytest.approx(float(wanted), rel=1e-12)
    assert negative_log_likelihood(np.array([[1e4, 0.0]], np.float32), np.array([1])) == pytest.approx(1e4)


@pytest.mark.parametrize(("margin", "share"), [(3.0, 0.7), (0.2, 0.9), (20.0, 0.6)])
def test_two_classes_have_a_closed_form(margin: float, share: float) -> None:
    """Every margin the same, a share of them right: the best confidence is the share itself."""
    labels = (np.arange(1000) >= 1000 * share).astype(int)
    logits = np.tile([margin, 0.0], (1000, 1))
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(margin / math.log(share / (1 - share)), rel=1e-6)


def test_no_other_temperature_is_better() -> None:
    logits, labels = noisy()
    for scale in (0.1, 1.0, 7.0):
        temperature = fit_temperature(scale * logits, labels)
        assert temperature is not None
        assert temperature == pytest.approx(scale * (fit_temperature(logits, labels) or 0.0), rel=1e-6)
        best = negative_log_likelihood(scale * logits / temperature, labels)
        for other in np.geomspace(0.05, 50, 200):
            assert best <= negative_log_likelihood(scale * logits / other, labels) + 1e-12


def test_there_may_be_no_temperature() -> None:
    logits, labels = noisy()
    assert fit_temperature(10 * np.eye(5)[labels], labels) is None
    assert fit_temperature(-logits, labels) is None
    assert fit_temperature(np.zeros((3, 2)), np.array([0, 1, 1])) is None
    assert fit_temperature(logits * 10 * HOTTEST, labels) is None


def test_calibration_error_of_known_bins() -> None:
    """Ten of confidence 0.95, eight of them right; ten of confidence 0.65, all right: (10 x 0.15 + 10 x 0.35) / 20."""
    confidence = np.repeat([0.95, 0.65], 10)
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    labels = np.array([1, 1, *[0] * 18])
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0.25)
    # In one bin the two gaps, of opposite signs, make up for one another in part.
    assert expected_calibration_error(probabilities, labels, bins=1) == pytest.approx(0.1)
    assert expected_calibration_error(np.eye(2)[[0, 1]], np.array([0, 1])) == 0.0
    assert expected_calibration_error(np.zeros((0, 2)), np.zeros(0, int)) == 0.0


def test_an_edge_belongs_to_the_bin_below() -> None:
    probabilities = np.array([[0.8, 0.2], [0.7, 0.3]])
    assert expected_calibration_error(probabilities, np.array([1, 0]), bins=5) == pytest.approx(abs(0.8 + 0.7 - 1) / 2)


def test_a_run_is_calibrated_on_its_validation_images(held_out: Path, command: Command) -> None:
    before = models(held_out)
    answer = command("calibrate", held_out, "--json")
    assert (answer.code, answer.err) == (0, "")
    results = {result["network"]: result for result in json.loads(answer.out)}
    assert set(results) == {"student", "teacher", "swa", "fast_swa", "ema"}
    assert_identical(models(held_out), before)
    config = tiny({"split": {"validation": 150}, "schedule": {"epochs": 3}})
    dataset = load_data(config)
    rows = split_of(config, dataset).validation
    assert dataset.test is not None
    parts = {
        "validation": (dataset.train.pixels[rows], dataset.train.labels[rows]),
        "test": (dataset.test.pixels, dataset.test.labels),
    }
    for network, result in results.items():
        assert result["images"] == {"validation": 150, "test": 500}
        model = fastswa.load(held_out, network)
        assert model.facts.temperature == result["temperature"] != 1.0
        for part, (pixels, labels) in parts.items():
            probabilities = model.predict(pixels).probabilities.astype(np.float64)
            nll = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
            assert nll == pytest.approx(result["after"][part]["nll"], rel=1e-5)
            ece = expected_calibration_error(probabilities, labels)
            assert ece == pytest.approx(result["after"][part]["ece"], abs=2e-3)
        assert result["after"]["validation"]["nll"] < result["before"]["validation"]["nll"]
    assert fastswa.load(held_out).facts.temperature == results["fast_swa"]["temperature"]
    # Again from the beginning, not on top of it.
    again = calibrate_run(held_out)
    assert [result.to_dict() for result in again] == list(results.values())


def test_calibrating_changes_no_label_and_can_be_undone(held_out: Path, command: Command) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 8, 8), np.uint8)
    assert command("calibrate", held_out, "--reset") == (0, f"{held_out}: every temperature is 1 again.\n", "")
    plain = fastswa.load(held_out).predict(pixels)
    table = command("calibrate", held_out)
    assert (table.code, table.err) == (0, "")
    for words in ("fast-SWA", "150 validation", "500 test", " → ", "%"):
        assert words in table.out
    calibrated = fastswa.load(held_out).predict(pixels)
    assert (calibrated.labels == plain.labels).all()
    assert not np.allclose(calibrated.confidences, plain.confidences)
    assert command("calibrate", held_out, "--reset").code == 0
    assert np.array_equal(fastswa.load(held_out).predict(pixels).probabilities, plain.probabilities)
    assert all(read_facts(file).temperature == 1.0 for file in held_out.glob("models/*"))


def test_a_resumed_run_has_new_weights_and_no_temperature(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"split": {"validation": 150}, "schedule": {"epochs": 1}}), run)
    calibrate_run(run)
    assert fastswa.load(run).facts.temperature != 1.0
    go_on(run, schedule={"epochs": 2})
    assert fastswa.load(run).facts.temperature == 1.0


def test_few_images_and_no_temperature_are_said(
    held_out: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny({"split": {"validation": 30}, "schedule": {"epochs": 1}}), run)
    few = "fastswa: 30 validation images are few: the temperatures are rough.\n"
    assert command("calibrate", run).err.endswith(few)
    monkeypatch.setattr("fastswa.calibrate.fit_temperature", lambda logits, labels: None)
    answer = command("calibrate", held_out)
    assert answer.code == 0
    assert answer.err == (
        "fastswa: EMA, fast-SWA, student, SWA, teacher: all right on the validation images, or no better than "
        "guessing; the temperature stays at 1.\n"
    )
    assert fastswa.load(held_out).facts.temperature == 1.0


def test_a_run_that_cannot_be_written_is_one_sentence(
    held_out: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(source: object, target: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(target))

    before = models(held_out)
    monkeypatch.setattr(os, "replace", read_only)
    for words in ((), ("--reset",)):
        answer = command("calibrate", held_out, *words)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == f"fastswa: cannot write {held_out}/models/ema.safetensors: Read-only file system.\n"
    assert_identical(models(held_out), before)


def test_runs_that_cannot_be_calibrated(finished: Path, command: Command, tmp_path: Path) -> None:
    answer = command("calibrate", finished)
    assert (answer.code, answer.err) == (
        2,
        f"fastswa: {finished} held out no validation images to fit a temperature on; "
        "train it with --split.validation N.\n",
    )
    answer = command("calibrate", tmp_path)
    assert (answer.code, answer.err) == (2, f"fastswa: {tmp_path} holds no run: there is no config.toml in it.\n")
    answer = command("calibrate", finished / "model.safetensors")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
