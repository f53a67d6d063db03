"""A run on one's own images knows them by their content: resumed on others, it is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Command
from fastswa.data.images import Dataset, ImageSet
from fastswa.data.sources import load
from fastswa.training.folder import RunFolder
from fastswa.training.identity import fingerprint

QUICK = (
    *("--epochs", "2", "--batch.steps", "2", "--batch.size", "8", "--model.width", "4"),
    *("--evaluation.refresh", "1", "--no-report"),
)


def put(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "mine"
    for number in range(12):
        put(root / "labeled" / "ab"[number % 2] / f"{number}.png", number)
        put(root / "unlabeled" / f"{number}.png", 100 + number)
    for number in range(4):
        put(root / "test" / "ab"[number % 2] / f"{number}.png", 200 + number)
    return root


def refused(command: Command, run: Path, source: Path) -> None:
    answer = command("resume", run, "--epochs", "3", "--no-report")
    sentence = (
        f"fastswa: the images or labels of {source} are not those that {run} was trained on; "
        "put them back, or train anew.\n"
    )
    assert (answer.code, answer.err) == (2, sentence)


def test_changed_images_and_labels_are_noticed(folder: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    assert command("train", folder, "--out", run, *QUICK).code == 0
    before = sorted(path.name for path in (run / "checkpoint").iterdir())
    backup = tmp_path / "backup"
    shutil.copytree(folder, backup)

    def back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)

    put(folder / "unlabeled" / "3.png", 77)  # another picture in as many bytes
    refused(command, run, folder)
    back()
    (folder / "labeled" / "a" / "0.png").rename(folder / "labeled" / "b" / "0.png")
    refused(command, run, folder)
    back()
    put(folder / "unlabeled" / "new.png", 3)
    refused(command, run, folder)
    back()
    put(folder / "test" / "a" / "0.png", 9)
    refused(command, run, folder)
    assert sorted(path.name for path in (run / "checkpoint").iterdir()) == before
    back()  # copied files have other times, and the same content
    assert command("resume", run, "--epochs", "3", "--no-report").code == 0


def test_a_moved_folder_is_the_same(
    folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("train", "mine", "--out", "run", *QUICK).code == 0
    folder.rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder)
    assert command("resume", "run", "--epochs", "3", "--no-report").code == 0


def test_moved_data_are_named_anew_and_known_again(folder: Path, tmp_path: Path, command: Command) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    assert command("train", folder, "--out", run, *QUICK).code == 0
    folder.rename(moved)
    assert command("resume", run, "--epochs", "3", "--no-report").code == 2
    assert command("resume", run, "--epochs", "3", "--no-report", "--data.source", moved).code == 0
    assert RunFolder(run).config().data.source == str(moved)
    # By hand too, and where a kill came between the settings and the next checkpoint.
    moved.rename(folder)
    settings = run / "config.toml"
    settings.write_text(settings.read_text().replace(str(moved), str(folder)))
    assert command("resume", run, "--epochs", "4", "--no-report").code == 0
    put(folder / "unlabeled" / "3.png", 77)
    shutil.copytree(folder, moved)
    answer = command("resume", run, "--epochs", "5", "--no-report", "--data.source", moved)
    assert (answer.code, f"the images or labels of {moved} are not those" in answer.err) == (2, True)


def test_data_of_ones_own_do_not_become_published_ones(folder: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    assert command("train", folder, "--out", run, *QUICK).code == 0
    answer = command("resume", run, "--epochs", "3", "--data.source", "digits")
    assert (answer.code, "data.source cannot change on resume" in answer.err) == (2, True)


def test_a_checkpoint_that_names_its_data_is_gone_on_with(
    folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as before:
        before.setattr("fastswa.training.run.identity", fingerprint)
        assert command("train", folder, "--out", run, *QUICK).code == 0
    assert command("resume", run, "--epochs", "3", "--no-report").code == 0


def test_arrays_are_known_by_every_pixel(tmp_path: Path, command: Command) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    labels = np.array([0, 1] * 5 + [-1] * 20)
    source = tmp_path / "mine.npz"
    np.savez(source, x_train=pixels, y_train=labels)
    assert command("train", source, "--out", tmp_path / "run", *QUICK).code == 0
    pixels[17, 3, 3] ^= 1
    np.savez(source, x_train=pixels, y_train=labels)
    refused(command, tmp_path / "run", source)


def dataset(pixels: np.ndarray, labels: np.ndarray, origin: str | None = None) -> Dataset:
    return Dataset(ImageSet(pixels, labels, ("a", "b")), None, origin=origin)


def test_a_digest_is_of_content_and_order() -> None:
    pixels = np.arange(4 * 64, dtype=np.uint8).reshape(4, 1, 8, 8)
    labels = np.array([0, 1, -1, -1])
    digest = dataset(pixels, labels).digest()
    assert dataset(pixels.copy(), labels).digest() == digest
    assert dataset(pixels[::-1], labels).digest() != digest
    assert dataset(pixels, labels[::-1]).digest() != digest
    assert dataset(pixels.reshape(4, 1, 4, 16), labels).digest() != digest
    assert dataset(pixels, labels, "sizes").digest() != digest


def test_of_many_files_a_part_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastswa.data.images._HASHED", 64 * 10)
    pixels, labels = np.zeros((100, 1, 8, 8), np.uint8), np.zeros(100, np.int64)
    first, whole = dataset(pixels, labels, "a").digest(), dataset(pixels, labels).digest()
    changed = pixels.copy()
    changed[5] = 1  # not among the ten that are looked at: 0, 11, 22, …
    assert dataset(changed, labels, "a").digest() == first
    assert dataset(changed, labels, "b").digest() != first  # but its file has another size
    assert dataset(changed, labels).digest() != whole
    changed[99] = 1
    assert dataset(changed, labels, "a").digest() != first


def test_sizes_of_files_are_the_origin(folder: Path) -> None:
    origin = load(str(folder), Path()).origin
    assert origin is not None
    os.utime(folder / "unlabeled" / "0.png")
    assert load(str(folder), Path()).origin == origin
    with (folder / "unlabeled" / "0.png").open("ab") as file:
        file.write(b" ")
    assert load(str(folder), Path()).origin != origin
