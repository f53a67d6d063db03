"""fastswa: accurate image classifiers from few labels, by consistency training with SWA and fast-SWA."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


def _spin_less_where_busy() -> None:
    """Let torch's threads on the CPU wait for one another asleep, where other work has the cores already.

    They spin for milliseconds otherwise, and a step whose threads hold each other's cores takes up to a hundred times
    as long (benchmarks/LOG.md). It is read when torch is loaded; what a person has set stays.
    """
    with suppress(AttributeError, OSError):  # not every system knows its load
        if os.getloadavg()[0] >= 0.5 * (os.cpu_count() or 1) and "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "2000")


_spin_less_where_busy()

_EXPORTS = {
    "AveragedWeights": "fastswa.averaging",
    "refresh_batch_norm": "fastswa.batch_norm",
    "CyclicCosine": "fastswa.schedule",
    "Classifier": "fastswa.classifier",
    "Config": "fastswa.config",
    "FastswaError": "fastswa.errors",
    "RequestError": "fastswa.errors",
    "RunError": "fastswa.errors",
    "fit": "fastswa.api",
    "resume": "fastswa.api",
    "load": "fastswa.api",
}

# Without Classifier, which needs scikit-learn: `from fastswa import *` does not.
__all__ = [
    "AveragedWeights",
    "Config",
    "CyclicCosine",
    "FastswaError",
    "RequestError",
    "RunError",
    "fit",
    "load",
    "refresh_batch_norm",
    "resume",
]

if TYPE_CHECKING:
    from fastswa.api import fit, load, resume
    from fastswa.averaging import AveragedWeights
    from fastswa.batch_norm import refresh_batch_norm
    from fastswa.classifier import Classifier as Classifier
    from fastswa.config import Config
    from fastswa.errors import FastswaError, RequestError, RunError
    from fastswa.schedule import CyclicCosine


def __getattr__(name: str) -> Any:
    """Names are imported when asked for: `import fastswa` stays instant."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fastswa' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return [*_EXPORTS, "__version__"]
