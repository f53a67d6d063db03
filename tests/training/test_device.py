"""What is computed with: engines that a device, its deterministic mode or a missing Triton does not allow."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import torch

from fastswa import kernels
from fastswa.config import DeviceConfig
from fastswa.errors import RequestError
from fastswa.training.device import Compute, choose_compute, settings_of
from tiny_runs import make_trainer, tiny


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, as far as can be asked for without using it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(kernels, "_TRITON", True)


@pytest.mark.usefixtures("_gpu")
def test_a_gpu_takes_the_fastest_that_repeats_itself_where_that_is_asked_for() -> None:
    assert choose_compute(DeviceConfig()).engine == "auto"
    assert choose_compute(DeviceConfig(deterministic=True)).engine == "graph"
    assert choose_compute(DeviceConfig(engine="compiled")).engine == "compiled"
    with pytest.raises(RequestError, match="use graph with --deterministic"):
        choose_compute(DeviceConfig(engine="compiled", deterministic=True))


@pytest.mark.usefixtures("_gpu")
def test_without_triton_nothing_is_compiled_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TRITON", False)
    with pytest.raises(RequestError, match="compiled needs Triton on a GPU, and it is not installed; use graph"):
        choose_compute(DeviceConfig(engine="compiled"))


def test_more_threads_than_a_machine_can_have_are_refused() -> None:
    cores = os.cpu_count() or 1
    assert choose_compute(DeviceConfig(name="cpu", threads=2 * cores)).device.type == "cpu"
    with pytest.raises(RequestError, match=f"^device.threads: 99999 are too many; this machine has {cores} cores.$"):
        choose_compute(DeviceConfig(name="cpu", threads=99999))


def test_one_thread_at_a_time_has_a_gpu() -> None:
    """The one that has it may ask again; CPUs are everybody's."""
    gpu, cpu = (Compute(torch.device(kind), "fp32", "eager", deterministic=False) for kind in ("cuda", "cpu"))
    refused: list[str] = []

    def second() -> None:
        with settings_of(cpu):
            try:
                with settings_of(gpu):
                    pass
            except RequestError as error:
                refused.append(str(error))

    for nested in (True, False):
        with settings_of(gpu), settings_of(gpu) if nested else nullcontext():
            thread = Thread(target=second)
            thread.start()
            thread.join()
    assert len(refused) == 2
    assert refused[0].startswith("another thread of this process is computing on a GPU")
    second()
    assert len(refused) == 2


@pytest.mark.parametrize(("triton", "engine"), [(True, "compiled"), (False, "graph")])
def test_what_has_no_kernels_is_compiled_only_where_it_can_be(
    triton: bool, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_trainer(tiny(), tmp_path / "run").step  # on a CPU, where no kernel is ours
    step.compute = replace(step.compute, engine="auto")
    monkeypatch.setattr(kernels, "_TRITON", triton)
    assert step.engine == engine
