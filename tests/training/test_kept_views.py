"""Held layers that see each view once (augment.kept): what is kept, what learns from it, and when it may not be."""

from __future__ import annotations

import json
import os
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastswa.analysis.gradients import measure
from fastswa.analysis.jacobian import study
from fastswa.analysis.study import Request
from fastswa.analysis.subject import Subject
from fastswa.analysis.surface import Surface
from fastswa.api import load
from fastswa.choose import choose
from fastswa.classifier import Classifier
from fastswa.config import Config, StartConfig
from fastswa.data.augment import Augment
from fastswa.data.kept import Bank, KeptViews, Progress
from fastswa.data.shelf import Shelf
from fastswa.data.sources.digits import load_digits
from fastswa.data.splits import split_by
from fastswa.errors import RequestError, RunError
from fastswa.evaluate import Evaluator
from fastswa.layers import build_config
from fastswa.modelfile import load_model, save_temperature
from fastswa.models import build
from fastswa.models.efficientnet_lite import EfficientNetLite0
from fastswa.noise import Noise, step_words
from fastswa.report.findings import look_at
from fastswa.report.predictions import Looking
from fastswa.report.record import read_run
from fastswa.report.run_page import run_page
from fastswa.training.device import Compute, choose_compute
from fastswa.training.finished import evaluate_run
from fastswa.training.keeping import keep_views, with_kept_views
from fastswa.training.run import resume
from fastswa.training.setup import Material, load_data, prepare
from fastswa.training.state import build_state
from tiny_runs import StoppingWatcher, assert_same_run, drawn_weights, tiny, train

NAME = "efficientnet-lite0"


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Weights drawn anew stand in for the published ones, and images may be as small as the digits'."""
    monkeypatch.setattr(EfficientNetLite0, "smallest", 8)
    return drawn_weights(monkeypatch)


def keeping(kept: int = 2, *, flip: bool = True, **method: Any) -> Config:
    """Two epochs on the digits' 8x8 pixels."""
    model = {"name": NAME, "pretrained": True, "frozen": True, "heads": 1, "dropout": 0.5}
    augment = {"kept": kept, "flip": flip, "translate": 1}
    config = tiny({"model": model, "method": method, "augment": augment, "schedule": {"epochs": 2}})
    return config.model_copy(update={"model": config.model.model_copy(update={"width": None})})


def plain_augment(**options: Any) -> Augment:
    return Augment.normalising((0.3,), (0.5,), torch.device("cpu"), **options)


def test_the_bank_holds_the_plain_view_the_mirrored_one_and_random_ones() -> None:
    network = build(NAME, channels=1, classes=4, frozen=True)
    images = torch.randint(0, 256, (5, 32, 40, 1), dtype=torch.uint8)
    bank = Bank(plain_augment(translate=3, flip=True), batch=2, seed=7)
    features = bank.room(images, 4, 1280, torch.float32)
    assert bank.views == 20
    seen: list[tuple[int, int]] = []
    bank.fill(network, nullcontext, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 20), *((5 * view + done, 20) for view in range(4) for done in (2, 4, 5))]
    network.eval()
    with torch.no_grad():
        for view, pixels in ((0, images), (1, images.flip(2))):
            # An image alone would differ in the last bits; the last batch has one.
            assert torch.equal(features[:, view], network.features(bank.augment.plain(pixels)))
    kinds = {tuple(row.tolist()) for row in features[0]}
    assert len(kinds) == 4
    # Others with another seed, the same with the same.
    for seed, same in ((7, True), (8, False)):
        again = Bank(bank.augment, batch=2, seed=seed)
        others = again.room(images, 4, 1280, torch.float32)
        again.fill(network, nullcontext, lambda done, total: None)
        assert torch.equal(others[:, :2], features[:, :2])
        assert torch.equal(others[:, 2:], features[:, 2:]) is same


def test_a_bank_is_filled_once_and_lets_its_images_go() -> None:
    network = build(NAME, channels=1, classes=4, frozen=True).train()
    bank = Bank(plain_augment(), batch=10, seed=0)
    features = bank.room(torch.zeros(3, 32, 32, 1, dtype=torch.uint8), 1, 1280, torch.float32)
    bank.fill(network, nullcontext, lambda done, total: None)
    assert network.training
    assert features.count_nonzero() > 0
    assert bank.each > 0
    assert not bank.sources
    features.zero_()
    bank.fill(network, nullcontext, lambda done, total: None)
    assert features.count_nonzero() == 0


def test_images_that_nobody_learns_from_pass_no_layer() -> None:
    network = build(NAME, channels=1, classes=4, frozen=True)
    images = torch.randint(0, 256, (6, 32, 32, 1), dtype=torch.uint8)
    bank = Bank(plain_augment(), batch=2, seed=0)
    features = bank.room(images, 1, 1280, torch.float32, torch.tensor([0, 2, 5]))
    assert bank.views == 3
    bank.fill(network, nullcontext, lambda done, total: None)
    assert features.flatten(1).any(dim=1).tolist() == [True, False, True, False, False, True]
    with torch.no_grad():
        assert torch.allclose(features[[2, 5], 0], network.features(bank.augment.plain(images[[2, 5]])), atol=1e-4)


def test_a_bank_whose_passes_failed_is_not_taken_for_full() -> None:
    network = build(NAME, channels=1, classes=4, frozen=True)
    bank = Bank(plain_augment(), batch=2, seed=0)
    bank.room(torch.zeros(3, 32, 32, 1, dtype=torch.uint8), 1, 1280, torch.float32)

    def stopped(done: int, total: int) -> None:
        raise RequestError("stopped")

    with pytest.raises(RequestError):
        bank.fill(network, nullcontext, stopped)
    assert bank.views == 3


def test_views_are_drawn_among_those_that_are_kept() -> None:
    pixels = torch.arange(6.0).reshape(3, 2, 1).expand(3, 2, 4).contiguous()  # 2 * image + view
    augment = KeptViews.like(plain_augment(flip=True, translate=2))
    index = torch.tensor([2, 0, 1] * 200)
    noise = Noise(torch.from_numpy(step_words(0, "steps", 0, 1)[0]))
    drawn = augment.view(pixels, index, noise.scope("view/weak"))
    assert drawn.shape == (600, 4)
    assert torch.equal(drawn[:, 0] // 2, index.float())
    assert 0.4 < (drawn[:, 0] % 2).mean() < 0.6
    assert not torch.equal(drawn, augment.view(pixels, index, noise.scope("view/strong")))
    assert torch.equal(augment.plain(pixels), pixels[:, 0])
    noisy = KeptViews.like(plain_augment(noise=0.1)).view(pixels, index, noise.scope("view/weak"))
    assert (noisy - drawn).std() == pytest.approx(0.1, rel=0.1)


def test_features_are_measured_as_their_images_are(weights: list[int]) -> None:
    config = keeping()
    compute = choose_compute(config.device)
    material = prepare(config, load_digits(), compute)
    kept = with_kept_views(material, config, compute)
    network = material.facts.build(pretrained=True, seed=1)
    keep_views(kept, network, compute)
    assert kept.pixels.shape == (*material.pixels.shape[:1], 2, 1280)
    assert kept.evaluators.keys() == material.evaluators.keys()
    for name, evaluator in material.evaluators.items():
        assert isinstance(evaluator, Evaluator)
        assert kept.evaluators[name](network) == evaluator(network)
    assert with_kept_views(material, keeping(0), compute) is material


@pytest.mark.parametrize("method", ["supervised", "pi", "mean-teacher", "temporal-ensembling", "fixmatch", "flexmatch"])
def test_training_passes_no_image_through_the_held_layers(weights: list[int], tmp_path: Path, method: str) -> None:
    config = keeping(name=method, **({} if method == "supervised" else {"weight": 1.0}))
    result = train(config, tmp_path / "run")
    digits = load_digits()
    assert digits.test is not None
    learnt = len(split_by(config.split, digits).labelled) if method == "supervised" else len(digits.train)
    assert sum(weights) == 2 * learnt + len(digits.test)
    # What came out takes images, and is as good on them as it was said to be.
    measured = evaluate_run(tmp_path / "run")["test"]
    last = result.metrics[-1]["error"]
    assert {name: figures["error"] for name, figures in measured.items()} == last
    assert load(tmp_path / "run").predict(np.zeros((2, 8, 8), np.uint8)).probabilities.shape == (2, 10)


def test_a_run_with_kept_views_resumes_bit_for_bit(weights: list[int], tmp_path: Path) -> None:
    config = keeping(3, name="flexmatch", weight=1.0, threshold=0.11)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped", StoppingWatcher(stop=3))
    # Evaluations of another size are allowed to change no view.
    heard: list[str] = []
    resume(tmp_path / "stopped", {"evaluation": {"batch": 77}}, StoppingWatcher(), heard.append)
    # Two views of each were kept, the third is drawn anew.
    assert "views passed the held layers in an earlier run" in "".join(heard)
    assert "views pass the held layers first (augment.kept)" in "".join(heard)
    written = tmp_path / "stopped" / "config.toml"
    written.write_text(written.read_text("utf-8").replace("batch = 77", "batch = 1000"), "utf-8")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def made_of(config: Config) -> tuple[Material, nn.Module, Compute]:
    """A run's material with room for its views, and the network that they are to pass."""
    compute = choose_compute(config.device)
    data = load_data(config)
    material = with_kept_views(prepare(config, data, compute), config, compute)
    return material, build_state(config, compute, material.facts, images=len(data.train)).student, compute


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A cache folder in which nothing is kept yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def test_the_next_run_passes_no_image_again_and_is_the_same(
    weights: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = keeping(name="flexmatch", weight=1.0, threshold=0.11)
    train(config.model_copy(update={"seed": 4}), tmp_path / "first")
    passes = len(weights)
    assert passes > 0
    train(config, tmp_path / "next")
    assert len(weights) == passes
    elsewhere(monkeypatch, tmp_path / "cache")
    train(config, tmp_path / "alone")
    assert len(weights) == 2 * passes
    assert_same_run(tmp_path / "next", tmp_path / "alone")


def test_passes_of_few_labelled_images_leave_the_others_to_the_next_run(weights: list[int], tmp_path: Path) -> None:
    material, network, compute = made_of(keeping(name="supervised"))
    keep_views(material, network, compute)
    known = int(material.pixels.flatten(1).any(dim=1).sum())
    assert known < len(material.pixels) / 2
    material, network, compute = made_of(keeping(name="flexmatch", weight=1.0))
    heard: list[str] = []
    keep_views(material, network, compute, heard.append)
    measured = sum(len(one.labels) for one in material.evaluators.values())
    everything = 2 * len(material.pixels) + measured
    assert heard[0] == f"{2 * known + measured:,} of {everything:,} views passed the held layers in an earlier run"
    assert heard[1].startswith(f"{everything - 2 * known - measured:,} views pass the held layers first")


def test_exact_repeats_look_nothing_up(weights: list[int], tmp_path: Path) -> None:
    config = keeping(name="pi", weight=1.0)
    config = config.model_copy(update={"device": config.device.model_copy(update={"deterministic": True})})
    train(config, tmp_path / "first")
    passes = len(weights)
    train(config, tmp_path / "next")
    assert len(weights) == 2 * passes


def test_passes_that_are_stopped_leave_what_is_done() -> None:
    network = build(NAME, channels=1, classes=4, frozen=True)
    images = torch.randint(0, 256, (5, 32, 32, 1), dtype=torch.uint8)

    def fill(progress: Progress) -> Bank:
        bank = Bank(plain_augment(), batch=2, seed=0, source="images")
        bank.room(images, 1, 1280, torch.float32)
        bank.fill(network, nullcontext, progress, Shelf(network.backbone, bank.augment, "fp32", "images", "some"))
        return bank

    def stopped(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(stopped)
    seen: list[tuple[int, int]] = []
    fill(lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (2, 3), (3, 3)]


def test_a_run_is_stopped_while_views_pass_and_the_next_one_goes_on(
    weights: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = keeping(name="pi", weight=1.0)
    with pytest.raises(RunError) as caught:
        train(config, tmp_path / "run", StoppingWatcher(stop=1))
    assert str(caught.value) == (
        "stopped before training, while views passed the held layers; the next run finds what has passed."
    )
    assert not (tmp_path / "run").exists()
    passed = sum(weights)
    weights.clear()
    train(config, tmp_path / "run")
    left = sum(weights)
    weights.clear()
    elsewhere(monkeypatch, tmp_path / "cache")
    train(config, tmp_path / "alone")
    assert passed > 0
    assert passed + left == sum(weights)


def test_what_is_known_and_what_passes_go_to_their_own_rows(weights: list[int]) -> None:
    network = build(NAME, channels=1, classes=4, frozen=True)
    images = torch.randint(0, 256, (9, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def filled(rows: torch.Tensor, *, shelved: bool) -> torch.Tensor:
        bank = Bank(plain_augment(flip=True), batch=3, seed=0, source="images")
        features = bank.room(images, 3, 1280, torch.float32, rows)
        shelf = Shelf(network.backbone, bank.augment, "fp32", "images", "some") if shelved else None
        bank.fill(network, nullcontext, lambda done, total: None, shelf)
        return features

    everything = torch.arange(9)
    alone = filled(everything, shelved=False)
    some = torch.tensor([7, 1, 3, 4])
    assert torch.equal(filled(some, shelved=True)[some, :2], alone[some, :2])
    assert torch.equal(filled(everything, shelved=True), alone)
    before = sum(weights)
    assert torch.equal(filled(everything, shelved=True), alone)
    assert sum(weights) == before + 9  # the third view is drawn anew


def test_the_classifier_writes_nothing(weights: list[int]) -> None:
    digits = load_digits()
    images, labels = digits.train.pixels[:60, 0], digits.train.labels[:60].copy()
    labels[30:] = -1
    Classifier(epochs=1, settings={"model": {"pretrained": True}, "batch": {"steps": 1}}).fit(images, labels)
    assert not Path(os.environ["XDG_CACHE_HOME"]).exists()


def test_the_report_looks_at_what_training_left(
    weights: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(keeping(name="flexmatch", weight=1.0, threshold=0.11), run)
    weights.clear()
    record = read_run(run)
    found = look_at(record, "cpu", suggestions=5, unlabelled=20_000)
    assert not weights
    elsewhere(monkeypatch, tmp_path / "cache")
    alone = look_at(record, "cpu", suggestions=5, unlabelled=20_000)
    assert weights
    assert found.measured is not None
    assert alone.measured is not None
    assert found.doubts is not None
    assert alone.doubts is not None
    assert np.array_equal(found.measured.matrix, alone.measured.matrix)
    numbers = [one.number for one in found.doubts.suggested]
    assert numbers == [one.number for one in alone.doubts.suggested]
    # What to label next is chosen by what the held layers see, whatever the model says of it.
    assert found.doubts.by_looks
    looking = Looking(load_model(run), choose_compute(record.config.device))
    split, digits = split_by(record.config.split, load_digits()), load_digits()
    rows = np.concatenate([split.labelled, split.unlabelled])
    seen = torch.from_numpy(looking.features(digits.train, rows))
    picked, _ = choose(seen, np.arange(len(rows)) < len(split.labelled), 5)
    assert numbers == rows[picked].tolist()
    assert "fall into as many groups that look alike" in run_page(record, found, None, "label-next.csv")


@pytest.fixture
def looked(weights: list[int], tmp_path: Path) -> Path:
    """A run whose images are all on the shelf."""
    train(keeping(name="flexmatch", weight=1.0, threshold=0.11), tmp_path / "run")
    weights.clear()
    return tmp_path / "run"


def test_shelved_features_give_what_images_would(looked: Path, weights: list[int]) -> None:
    save_temperature(looked / "model.safetensors", 2.5)
    model, digits = load_model(looked), load_digits().train
    looking = Looking.at("digits", model, choose_compute(read_run(looked).config.device))
    rows = np.arange(40)
    found = looking.predict(digits, rows)
    assert not weights
    wanted = Looking(model, looking.compute).predict(digits, rows)
    assert np.array_equal(found.first, wanted.first)
    assert np.allclose(found.confidence, wanted.confidence, atol=1e-5)
    model.facts = replace(model.facts, temperature=1.0)
    assert not np.allclose(
        found.confidence, Looking(model, looking.compute).predict(digits, rows).confidence, atol=1e-3
    )


def test_one_image_that_is_not_on_the_shelf_is_looked_at_with_those_beside_it(looked: Path, weights: list[int]) -> None:
    model, digits = load_model(looked), load_digits().train
    looking = Looking.at("digits", model, choose_compute(read_run(looked).config.device))
    pixels = np.array(digits.pixels)
    pixels[3] = 255 - pixels[3]
    other = replace(digits, pixels=pixels)
    rows = np.arange(8)
    found = looking.predict(other, rows)
    assert sum(weights) == 8
    wanted = Looking(model, looking.compute).predict(other, rows)
    assert np.array_equal(found.first, wanted.first)
    assert np.array_equal(found.confidence, wanted.confidence)


def test_other_arithmetic_finds_nothing_on_the_shelf(looked: Path, weights: list[int]) -> None:
    model, config = load_model(looked), keeping(name="flexmatch", weight=1.0, threshold=0.11)
    assert Looking.at("digits", model, choose_compute(config.device)).shelf is not None
    coarse = config.model_copy(update={"device": config.device.model_copy(update={"precision": "bf16"})})
    assert Looking.at("digits", model, choose_compute(coarse.device)).shelf is None
    for one, passes in ((config, False), (coarse, True)):
        material, network, compute = made_of(one)
        keep_views(material, network, compute)
        assert bool(weights) is passes


def test_a_fork_of_a_run_that_kept_views_keeps_them(weights: list[int], tmp_path: Path) -> None:
    config = keeping(name="mean-teacher", weight=1.0)
    train(config, tmp_path / "run")
    schedule = config.schedule.model_copy(update={"epochs": 3})
    longer = config.model_copy(update={"schedule": schedule, "start": StartConfig(run=str(tmp_path / "run"))})
    weights.clear()
    train(longer, tmp_path / "fork")
    assert not weights  # what passed for its parent lies on the shelf
    measured = evaluate_run(tmp_path / "fork")["test"]
    last = json.loads((tmp_path / "fork" / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    assert {name: figures["error"] for name, figures in measured.items()} == last["error"]


def test_layers_that_learnt_apart_cannot_keep_views_for_one_another(weights: list[int], tmp_path: Path) -> None:
    """In a fork of a run whose layers all learnt the teacher and the averages have layers of their own."""
    config = keeping(name="mean-teacher", weight=1.0)
    free = config.model_copy(
        update={
            "model": config.model.model_copy(update={"frozen": False}),
            "augment": config.augment.model_copy(update={"kept": 0}),
        }
    )
    train(free, tmp_path / "run")
    schedule = config.schedule.model_copy(update={"epochs": 3})
    held = config.model_copy(update={"schedule": schedule, "start": StartConfig(run=str(tmp_path / "run"))})
    with pytest.raises(RequestError) as caught:
        train(held, tmp_path / "fork")
    assert str(caught.value) == (
        "the teacher's held layers are others than the student's, so that views cannot be kept for both; "
        "set augment.kept to 0."
    )
    assert not (tmp_path / "fork").exists()


def test_passes_that_leave_no_time_to_train_are_refused_soon(weights: list[int]) -> None:
    config = keeping()
    compute = choose_compute(config.device)
    material = with_kept_views(prepare(config, load_digits(), compute), config, compute)
    network = material.facts.build(pretrained=True, seed=1)
    heard: list[str] = []
    with pytest.raises(RequestError) as caught:
        keep_views(material, network, compute, heard.append, seconds=0.0)
    assert re.fullmatch(
        r"3,094 views pass the held layers first \(augment.kept\), in some \d+ s: too long for --minutes; "
        r"give more, or a smaller --data.size\.",
        str(caught.value),
    )
    assert not heard


def test_views_that_memory_cannot_hold_are_refused(weights: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    config = keeping()
    compute = choose_compute(config.device)
    material = prepare(config, load_digits(), compute)
    monkeypatch.setattr("fastswa.training.keeping.free_memory", lambda device: 20 << 20)
    with pytest.raises(RequestError) as caught:
        with_kept_views(material, config, compute)
    assert str(caught.value) == (
        "augment.kept: 2 views of each of 1,297 images take 12.7 MiB, more than half of what cpu has free; keep fewer, "
        "or set it to 0."
    )


def test_a_method_that_disturbs_images_keeps_none(weights: list[int], tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        train(keeping(name="vat", weight=1.0), tmp_path / "run")
    assert str(caught.value) == "method vat disturbs the images themselves; set augment.kept to 0."


def test_the_study_that_disturbs_images_needs_them(weights: list[int], tmp_path: Path) -> None:
    train(keeping(name="pi", weight=1.0), tmp_path / "run")
    with pytest.raises(RequestError, match=r"train with --augment\.kept 0 for it"):
        study(Subject(tmp_path / "run"), Request((tmp_path / "run",)))


def test_the_classifier_keeps_views_too(weights: list[int]) -> None:
    digits = load_digits()
    images, labels = digits.train.pixels[:200, 0], digits.train.labels[:200].copy()
    labels[50:] = -1
    settings = {"model": {"pretrained": True}, "augment": {"flip": True}, "batch": {"steps": 2}}
    classifier = Classifier(epochs=2, settings=settings, random_state=0).fit(images, labels)
    assert weights == [200, 200]
    assert classifier.model_.facts.shape == (1, 8, 8)  # rows are not brought to another size
    assert classifier.predict(images[:3]).shape == (3,)


def test_minutes_are_measured_on_what_was_kept(weights: list[int]) -> None:
    digits = load_digits()
    images, labels = digits.train.pixels[:200, 0], digits.train.labels[:200].copy()
    labels[50:] = -1
    settings = {"model": {"pretrained": True}}
    classifier = Classifier(minutes=0.05, settings=settings, random_state=0).fit(images, labels)
    assert classifier.history_[-1]["step"] > 0
    assert weights == [200]  # grey images are not mirrored


def test_studies_look_at_what_was_kept(weights: list[int], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(keeping(name="pi", weight=1.0), run)
    passes = len(weights)
    subject = Subject(run)
    assert len(weights) == passes
    weights.clear()
    surface = Surface(subject)
    found = surface.at(subject.iterate(2))
    assert not weights
    last = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    assert found[2] == pytest.approx(last["error"]["student"])
    gradients = measure(subject.state(2), subject.config, subject.material, subject.compute, 2)
    assert all(np.isfinite(value) for moments in gradients.values() for value in moments.values())
    assert not weights


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "augment.kept keeps what held layers make of views, and model.frozen is off; set it to 0."),
        (
            {"model": {"pretrained": True}, "data": {"extra": "more"}},
            "augment.kept is for the training images; set it to 0, or leave data.extra out.",
        ),
        (
            {"model": {"pretrained": True}, "data": {"target": "phones"}},
            "augment.kept is for the training images; set it to 0, or leave data.target out.",
        ),
        (
            {"model": {"pretrained": True}, "augment": {"student": "strong"}},
            "augment.student: with augment.kept no view is strong; set that to 0, or leave this out.",
        ),
    ],
)
def test_views_are_kept_for_held_layers_alone(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        build_config({"augment": {"kept": 2}}, settings)
    assert str(caught.value) == sentence
