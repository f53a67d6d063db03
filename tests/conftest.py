"""Fixtures for all rooms; that this file is here also makes `tiny_runs` importable from them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from fastswa.cli import main

_NUMBERS = count()


class Answer(NamedTuple):
    """What a command gave: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run side by side; two threads each on two cores would wait for one another."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test leaves in the user's cache folder, no other finds; nothing is made before it is needed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBERS)}"))


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """`fastswa WORDS…` in this process."""

    def run(*words: object) -> Answer:
        capfd.readouterr()
        code = main([str(word) for word in words])
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny Mean Teacher run that keeps epochs 1 and 2; tests only read it."""
    from tiny_runs import tiny, train

    out = tmp_path_factory.mktemp("finished") / "run"
    train(tiny({"checkpoint": {"keep": [1, 2]}}), out)
    return out
