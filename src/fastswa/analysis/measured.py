"""What runs measured as they trained, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastswa.errors import RequestError
from fastswa.training.folder import RunFolder


@dataclass(frozen=True)
class Course:
    """Errors of each network against the epoch, (E,) each, in percent; nan where it was not there yet.

    On the validation images where there are some: choices are made on them.
    """

    run: str
    images: str
    epochs: np.ndarray
    error: dict[str, np.ndarray]

    def at(self, epoch: float) -> dict[str, float]:
        """The networks that were there at an epoch."""
        [number] = np.flatnonzero(self.epochs == epoch)
        return {name: float(series[number]) for name, series in self.error.items() if np.isfinite(series[number])}


def course_of(folder: RunFolder, name: str) -> Course:
    """A run's course so far."""
    lines = folder.metrics()
    images = "validation" if any("validation_error" in line for line in lines) else "test"
    key = "validation_error" if images == "validation" else "error"
    lines = [line for line in lines if key in line]
    if not lines:
        raise RequestError(f"{folder.path} has measured nothing yet.")
    networks = list(dict.fromkeys(network for line in lines for network in line[key]))
    return Course(
        run=name,
        images=images,
        epochs=np.array([line["epoch"] for line in lines], dtype=float),
        error={network: np.array([line[key].get(network, np.nan) for line in lines]) for network in networks},
    )
