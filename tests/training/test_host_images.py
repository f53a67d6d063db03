"""Training images that a device has no room for: read where they lie, the run is the same.

A CPU has no memory beside its own. That it has is pretended here, so that it goes the way of a GPU's images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastswa.errors import RequestError
from fastswa.training import window
from fastswa.training.device import free_memory
from fastswa.training.run import RunResult, train_new
from tiny_runs import METHODS, StoppingWatcher, assert_same_run, go_on, make_trainer, tiny

IMAGES = 1297  # of 64 bytes
SENTENCE = (
    "the 1,297 training images (0.1 MiB) take more than half of what {} has free; "
    "they stay in the machine's memory, where each step reads its own."
)
TEST_SENTENCE = (
    "the 500 test images (0.0 MiB) take more than half of what {} has free; "
    "they stay in the machine's memory, where they are read."
)


def train(out: Path, *changes: dict[str, Any], stop: int = -1) -> tuple[RunResult, list[str]]:
    said: list[str] = []
    return train_new(tiny(*changes), out, StoppingWatcher(stop=stop), said.append), said


def make_scarce(monkeypatch: pytest.MonkeyPatch, device: int = 64 * IMAGES, beside: int = 1 << 20) -> None:
    """A device with `device` bytes free, of which half may be taken, and `beside` bytes to pin."""
    monkeypatch.setattr(window, "free_memory", lambda _: device)
    monkeypatch.setattr(window, "_pinnable", lambda _: beside)


@pytest.fixture
def extra(tmp_path: Path) -> dict[str, Any]:
    np.save(tmp_path / "more.npy", np.random.default_rng(0).integers(0, 256, (400, 8, 8), dtype=np.uint8))
    return {"data": {"extra": str(tmp_path / "more.npy"), "extra_per_epoch": 150}}


@pytest.mark.parametrize("method", ["mean-teacher", "temporal-ensembling", "flexmatch"])
def test_images_beside_a_device_train_and_resume_as_if_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Methods that remember images by their numbers included."""
    chosen = {"method": METHODS[method]}
    assert train(tmp_path / "held", chosen)[1] == []
    make_scarce(monkeypatch)
    made: list[torch.Tensor] = []
    beside = window.pinned_images
    monkeypatch.setattr(window, "pinned_images", lambda *given: (found := beside(*given), made.append(found[1]))[0])
    assert train(tmp_path / "beside", chosen)[1] == [SENTENCE.format("cpu")]
    assert [len(images) for images in made] == [IMAGES]  # the 500 test images fit
    assert_same_run(tmp_path / "beside", tmp_path / "held")
    train(tmp_path / "stopped", chosen, stop=4)
    result, said = go_on(tmp_path / "stopped")
    assert result.finished
    assert SENTENCE.format("cpu") in said
    assert_same_run(tmp_path / "stopped", tmp_path / "held")


def test_test_images_beside_a_device_are_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_scarce(monkeypatch, device=2 * 64 * 500 - 1)
    assert train(tmp_path / "beside")[1] == [TEST_SENTENCE.format("cpu"), SENTENCE.format("cpu")]


def test_arrays_in_a_cpus_memory_are_not_copied_where_it_is_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(tmp_path / "copied")[1] == []
    assert make_trainer(tiny(), tmp_path / "none").material.pixels.is_contiguous()
    monkeypatch.setattr(window, "free_memory", lambda _: 0)
    array = np.zeros((5, 3, 8, 8), np.uint8)
    assert window.on_device(array, torch.device("cpu")).data_ptr() == array.ctypes.data
    assert train(tmp_path / "used")[1] == []
    assert_same_run(tmp_path / "used", tmp_path / "copied")
    array.flags.writeable = False
    assert window.on_device(array, torch.device("cpu")).data_ptr() != array.ctypes.data


def test_extra_images_lie_beside_the_device_too(
    tmp_path: Path, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, so that a method may remember them."""
    chosen = {"method": METHODS["temporal-ensembling"]}
    train(tmp_path / "held", extra, chosen)
    make_scarce(monkeypatch)
    _, said = train(tmp_path / "beside", extra, chosen)
    assert said == [
        f"400 extra images of {extra['data']['extra']}, 150 of them an epoch; "
        "cpu reads them, as the training images, in the machine's memory (0.0 MiB)."
    ]
    assert_same_run(tmp_path / "beside", tmp_path / "held")


def test_what_fits_neither_here_nor_there_is_refused(
    tmp_path: Path, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """83,008 bytes would be pinned as 131,072."""
    make_scarce(monkeypatch, beside=131_071)
    with pytest.raises(RequestError) as caught:
        train(tmp_path / "run")
    assert str(caught.value) == (
        "1,297 images take 0.1 MiB: cpu has no room for them, and the machine's memory none to pin them in; "
        "choose a smaller data.size, or train on fewer images."
    )
    with pytest.raises(RequestError, match="an epoch's 150 extra images take"):
        train(tmp_path / "run", extra)
    assert not (tmp_path / "run").exists()
    make_scarce(monkeypatch, beside=131_072)
    assert train(tmp_path / "run")[0].finished


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine on which nothing can be pinned")
def test_memory_that_cannot_be_pinned_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "free_memory", lambda device: 64 if device.type == "cuda" else 1 << 30)
    with pytest.raises(RequestError, match="cuda:0 has no room for them, and the machine's memory none to pin them in"):
        window.on_device(np.zeros((2, 3, 8, 8), np.uint8), torch.device("cuda:0"))


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_a_gpu_is_told_where_the_images_are(kind: type[np.generic]) -> None:
    """The same words describe an array to numpy."""
    images = torch.from_numpy(np.arange(24).astype(kind).reshape(2, 3, 2, 2))
    said = window._Pinned(images).__cuda_array_interface__
    seen = np.asarray(type("Described", (), {"__array_interface__": said})())
    assert seen.ctypes.data == images.data_ptr()
    assert seen.dtype == kind
    assert np.array_equal(seen, images.numpy())


def test_a_cpu_pins_nothing() -> None:
    assert window._pinnable(torch.device("cpu")) == 0
    assert 0 < window._pinnable(torch.device("cuda")) < free_memory(torch.device("cpu"))
    assert [window._pinned_size(size) for size in (0, 1, 3, 4, 5)] == [1, 1, 4, 4, 8]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["mean-teacher", "temporal-ensembling"])
def test_a_gpu_reads_the_machines_memory(
    tmp_path: Path, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """In captured steps, evaluations and refreshed statistics."""
    chosen = {"method": METHODS[method], "device": {"name": "cuda", "engine": "graph", "deterministic": True}}
    train(tmp_path / "held", chosen)
    train(tmp_path / "held-extra", chosen, extra)
    monkeypatch.setattr(window, "free_memory", lambda device: 64 if device.type == "cuda" else 1 << 30)
    held = torch.cuda.memory_allocated()
    images = window.on_device(np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4), torch.device("cuda"))
    assert images.is_cuda
    assert torch.cuda.memory_allocated() == held
    assert torch.equal(images.cpu().flatten().sort().values, torch.arange(48, dtype=torch.uint8))
    said = train(tmp_path / "beside", chosen)[1]
    assert said == [TEST_SENTENCE.format("cuda"), SENTENCE.format("cuda")]
    assert_same_run(tmp_path / "beside", tmp_path / "held")
    train(tmp_path / "beside-extra", chosen, extra)
    assert_same_run(tmp_path / "beside-extra", tmp_path / "held-extra")
