"""What the first step on a GPU needs is read while the images are; here without a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from fastswa import kernels


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
