"""Training with extra unlabelled images: held on the device or brought over epoch by epoch, the run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Command
from fastswa.config import Config
from fastswa.errors import RequestError
from fastswa.training import window
from fastswa.training.budget import Budget
from fastswa.training.finished import evaluate_run
from fastswa.training.run import RunResult, train_new
from tiny_runs import METHODS, StoppingWatcher, assert_same_run, go_on, make_trainer, metrics, tiny

EXTRAS, PER_EPOCH = 400, 150


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Digits-like images in a memory map; every one of them different."""
    pixels = np.random.default_rng(0).integers(0, 256, (EXTRAS, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "more.npy", pixels)
    return tmp_path / "more.npy"


def with_extra(source: Path, *changes: dict[str, Any]) -> Config:
    return tiny({"data": {"extra": str(source), "extra_per_epoch": PER_EPOCH}}, *changes)


def train(config: Config, out: Path, watcher: StoppingWatcher | None = None) -> tuple[RunResult, list[str]]:
    said: list[str] = []
    return train_new(config, out, watcher or StoppingWatcher(), said.append), said


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with room for the training images (64 bytes each) and an epoch's extra ones, not for all."""
    monkeypatch.setattr(window, "free_memory", lambda device: 2 * 64 * (1297 + PER_EPOCH + 50))


def test_a_window_trains_as_if_all_were_held(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = train(with_extra(source), tmp_path / "held")
    assert said == [f"400 extra images of {source}, 150 of them an epoch; all are held on cpu (0.0 MiB)."]
    monkeypatch.setattr(window, "free_memory", lambda device: 2 * 64 * (1297 + PER_EPOCH + 50))
    _, said = train(with_extra(source), tmp_path / "window")
    assert said == [f"400 extra images of {source}, 150 of them an epoch; each epoch's are brought to cpu (0.0 MiB)."]
    assert_same_run(tmp_path / "window", tmp_path / "held")


@pytest.mark.usefixtures("scarce")
@pytest.mark.parametrize("stop", [4, 6])
def test_a_run_through_a_window_resumes_exactly(source: Path, tmp_path: Path, stop: int) -> None:
    """Stopped within an epoch and at its edge."""
    train(with_extra(source), tmp_path / "whole")
    train(with_extra(source), tmp_path / "run", StoppingWatcher(stop=stop))
    result, _ = go_on(tmp_path / "run")
    assert result.finished
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_fewer_extra_images_than_it_began_with_are_refused(source: Path, tmp_path: Path) -> None:
    train(with_extra(source), tmp_path / "run", StoppingWatcher(stop=4))
    np.save(source, np.load(source)[:300])
    with pytest.raises(RequestError, match=r"the extra images of .*more\.npy are not those that"):
        go_on(tmp_path / "run")


@pytest.mark.usefixtures("scarce")
def test_every_epoch_but_the_first_is_read_ahead(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run whose length is known only after its images are there, too; nothing is read that nobody trains on."""
    events: list[str] = []
    ask, load = window.Window._ask, window.Window.load

    def asking(held: window.Window, epoch: int) -> None:
        events.append(f"ask {epoch}")
        ask(held, epoch)

    def loading(held: window.Window, epoch: int, *, last: bool) -> None:
        if epoch != held._held:
            events.append(f"load {epoch}")
        load(held, epoch, last=last)

    monkeypatch.setattr(window.Window, "_ask", asking)
    monkeypatch.setattr(window.Window, "load", loading)
    ahead = ["load 0", "ask 0", "ask 1", "load 1", "ask 2", "load 2", "ask 3", "load 3"]
    train(with_extra(source), tmp_path / "run")
    assert events == ahead
    events.clear()
    config = with_extra(source, {"schedule": {"epochs": 2}})
    budget = Budget(1.0)
    budget._changes = lambda config: with_extra(source)  # found to be twice as long
    train_new(config, tmp_path / "timed", StoppingWatcher(), lambda line: None, budget=budget)
    assert events == ahead


@pytest.mark.usefixtures("scarce")
def test_the_rows_hold_the_images_that_the_plan_names(source: Path, tmp_path: Path) -> None:
    trainer = make_trainer(with_extra(source), tmp_path / "run")
    material, pixels = trainer.material, np.load(source)
    address = material.pixels.data_ptr()
    assert len(material.pixels) == 1297 + PER_EPOCH
    for epoch in (0, 1, 3):
        material.load_epoch(epoch)
        numbers, rows = material.plan.epoch(3, epoch), material.plan.rows(3, epoch)
        extra = numbers >= 1297
        assert extra.any()
        held = material.pixels[torch.from_numpy(rows[extra])].numpy()[..., 0]
        assert np.array_equal(held, pixels[numbers[extra] - 1297])
    assert material.pixels.data_ptr() == address
    images, places = material.batch(np.array([0, 1297 + 399, 5, 1297]))
    assert np.array_equal(images[places].numpy()[[1, 3], ..., 0], pixels[[399, 0]])
    assert torch.equal(images[places][[0, 2]], material.pixels[[0, 5]])


def test_extra_images_change_what_is_learnt_and_their_labels_do_not(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (EXTRAS, 8, 8), dtype=np.uint8)
    for name, labels in (("a", np.zeros(EXTRAS, int)), ("b", np.arange(EXTRAS) % 7)):
        np.savez(tmp_path / f"{name}.npz", x_train=pixels, y_train=labels)
        train(tiny({"data": {"extra": str(tmp_path / f"{name}.npz")}}), tmp_path / name)
    train(tiny(), tmp_path / "without")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "without")


def test_all_images_labelled_and_the_extra_ones_unlabelled(source: Path, tmp_path: Path) -> None:
    """As in the paper's 50k + extra rows: every unlabelled image of a batch is an extra one."""
    config = with_extra(source, {"split": {"labels": 1200, "unlabelled": 0}})
    plan = make_trainer(config, tmp_path / "run").material.plan
    matrix = plan.epoch(0, 0)
    assert 0 < plan.labelled < plan.size
    assert (matrix[:, plan.labelled :] >= 1297).all()
    assert (matrix[:, : plan.labelled] < 1297).all()


@pytest.mark.parametrize("method", ["temporal-ensembling", "pi", "vat", "supervised"])
def test_every_method_takes_them(source: Path, tmp_path: Path, method: str) -> None:
    result, said = train(with_extra(source, {"method": METHODS[method]}), tmp_path / "run")
    assert result.finished
    assert bool(said) == (method != "supervised")  # which needs none on the device


def test_a_source_that_no_run_gets_through_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Sixteen epochs' draws are the limit, whatever the memory: 200,000 records stay in a file of holes."""
    with (tmp_path / "tiny_images.bin").open("wb") as file:
        file.truncate(200_000 * 3072)
    data = {"extra": str(tmp_path / "tiny_images.bin"), "extra_per_epoch": 12_499}
    material = make_trainer(tiny({"data": data}), tmp_path / "run").material
    assert material.window is not None
    assert len(material.pixels) == 1297 + 12_499


@pytest.mark.usefixtures("scarce")
def test_a_method_that_remembers_images_needs_all_of_them(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="temporal-ensembling remembers every image, so that all have to be held"):
        train(with_extra(source, {"method": METHODS["temporal-ensembling"]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_epoch_that_does_not_fit_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "free_memory", lambda device: 2 * 64 * (1297 + 100))
    with pytest.raises(RequestError) as caught:
        train(with_extra(source), tmp_path / "run")
    assert str(caught.value) == (
        "data.extra: an epoch's 150 extra images take 0.0 MiB, and cpu has room for 100; "
        "set data.extra_per_epoch or data.extra_images to less."
    )
    monkeypatch.setattr(window, "free_memory", lambda device: 2 * 64 * 1297)
    with pytest.raises(RequestError, match=r"and cpu has room for 0; set data\.size to less"):
        train(with_extra(source), tmp_path / "run")


def test_a_run_is_evaluated_where_its_extra_images_are_gone(source: Path, tmp_path: Path) -> None:
    train(with_extra(source), tmp_path / "run")
    source.unlink()
    assert evaluate_run(tmp_path / "run", "cpu")["test"]["student"]["error"] >= 0


def test_mistakes_at_the_command_line(command: Command, source: Path) -> None:
    digits = ("train", "digits-mean-teacher")
    answer = command(*digits, "--data.extra", "digits")
    assert answer == (
        2,
        "",
        "fastswa: data.extra: digits is what is trained on already; name another source.\n",
    )
    answer = command(*digits, "--data.extra_per_epoch", "5")
    assert "data.extra names no source" in answer.err
    answer = command(*digits, "--data.extra", source, "--data.extra_per_epoch", "0")
    assert answer.code == 2
    answer = command(*digits, "--data.extra", "nowhere.npy")
    assert answer.err == "fastswa: data.extra: there is no nowhere.npy, neither here nor under data.\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_window_on_a_gpu_trains_as_if_all_were_held(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through pinned memory, into the rows that a captured step reads."""
    config = with_extra(source, {"device": {"name": "cuda", "deterministic": True}})
    _, said = train(config, tmp_path / "held")
    assert "all are held on cuda" in said[0]
    monkeypatch.setattr(window, "free_memory", lambda device: 2 * 64 * (1297 + PER_EPOCH + 50))
    _, said = train(config, tmp_path / "window")
    assert "each epoch's are brought to cuda" in said[0]
    assert_same_run(tmp_path / "window", tmp_path / "held")
