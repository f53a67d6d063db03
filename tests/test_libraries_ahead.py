"""What the first step on a GPU needs is read while the images are; here without a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fastswa import kernels
from fastswa.modelfile import ModelFacts, TrainedModel


def test_a_step_waits_for_what_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    may, read = threading.Event(), list[str]()

    def slow(device: torch.device) -> None:
        may.wait(5)
        read.append(str(device))

    monkeypatch.setattr(kernels, "_TRITON", True)
    monkeypatch.setattr(kernels, "_read_libraries", slow)
    kernels.foresee(torch.device("cuda"))
    assert not read
    threading.Timer(0.05, may.set).start()
    kernels.prepare(lambda: None, torch.device("cpu"))
    assert read == ["cuda"]


def test_what_another_thread_rehearses_holds_no_kernel_of_this_one_back() -> None:
    """While one goes through its work without launching, the others wait; it does not wait for itself."""
    launch = pytest.importorskip("fastswa.kernels.launch")
    rehearsing, done, order = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        with kernels.launching():
            rehearsing.set()
            done.wait(0.2)
        order.append("rehearsed")

    thread = threading.Thread(target=launch.rehearse, args=(work, torch.device("cpu")))
    thread.start()
    assert rehearsing.wait(5)
    with kernels.launching():
        order.append("launched")
        assert launch._heard is None
    thread.join()
    assert order == ["rehearsed", "launched"]


def test_a_prediction_is_made_of_kernels_that_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = list[str]()

    @contextmanager
    def launching() -> Iterator[None]:
        inside.append("in")
        yield
        inside.append("out")

    monkeypatch.setattr(kernels, "launching", launching)
    facts = ModelFacts("small", classes=("a", "b"), shape=(1, 8, 8), mean=(0.0,), std=(1.0,))
    network = nn.Module()
    network.weight = nn.Parameter(torch.zeros(1))
    monkeypatch.setattr(TrainedModel, "forward", lambda self, x: (inside.append("pass"), torch.zeros(len(x), 2))[1])
    TrainedModel(network, facts).logits(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert inside == ["in", "pass", "out"]


def test_what_cannot_be_read_ahead_is_left_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *given, **named: 1 / 0)
    kernels._read_libraries(torch.device("cpu"))


def test_a_command_that_ends_before_its_first_step_ends_as_it_should() -> None:
    code = (
        "import sys, torch; from fastswa import kernels\n"
        "def slow(device):\n"
        "    x = torch.ones(8, 64, 64, 64)\n"
        "    for _ in range(20): torch.nn.functional.conv2d(x, x, padding=1)\n"
        "kernels._TRITON, kernels._read_libraries = True, slow\n"
        "kernels.foresee(torch.device('cuda')); sys.exit(7)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (7, "")


def test_a_cpu_reads_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_read_libraries", pytest.fail)
    kernels.foresee(torch.device("cpu"))
    assert not kernels._ahead
