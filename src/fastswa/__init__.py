"""fastswa: accurate image classifiers from few labels, by consistency training with SWA and fast-SWA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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
