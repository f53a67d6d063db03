"""Every test here finds a GPU pretended; where there is no interpreter for it, there are no tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

READY = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore_glob = [] if READY else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not READY:
        terminalreporter.write_line("tests/interpreted is left out: it needs Triton, and TRITON_INTERPRET=1.")


@pytest.fixture(autouse=True)
def _pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels take the CPU's tensors, may reach no others, and find nothing but NaN in what is not written yet."""
    import torch

    from interpreted.guard import guard
    from interpreted.mended import mend
    from interpreted.stand_in import pretend

    mend(monkeypatch)
    guard(monkeypatch)
    pretend(monkeypatch)
    # As torch.use_deterministic_algorithms, which imports torch's compiler.
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    yield
    torch._C._set_deterministic_algorithms(False, warn_only=False)
