"""What Python users call: fit, resume, load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastswa.config import Config, to_dict
from fastswa.errors import RequestError
from fastswa.layers import build_config, flatten, merge, refuse_idle, target_layer
from fastswa.training.quiet import Quiet

if TYPE_CHECKING:
    from fastswa.modelfile import TrainedModel
    from fastswa.training.run import RunResult


def fit(
    recipe: str | Path | Config,
    *,
    out: str | Path,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
) -> RunResult:
    """Train a recipe (by its name), one's own images (by the path of a folder, a manifest or an .npz file) or a Config.

    The run is written to the new folder `out`, as `fastswa train` does it but for the report. `settings` win over the
    recipe and are nested like the configuration: `{"schedule": {"epochs": 10}}`. `minutes` instead of epochs measures
    this machine and trains for as long as they hold. Nothing is printed; what a person should know is a warning.

    >>> run = fastswa.fit("digits-mean-teacher", seed=1, out="runs/a")
    >>> run.metrics[-1]["error"]["fast_swa"]
    """
    began = time.monotonic()
    if not str(out):
        raise RequestError("out is empty; it names the new folder that the run is written to.")
    from fastswa.training.budget import Budget
    from fastswa.training.run import train_new

    budget = None if minutes is None else Budget(minutes, flatten(settings or {}).keys())
    base = to_dict(recipe, only_given=True) if isinstance(recipe, Config) else target_layer(str(recipe))
    extra: dict[str, Any] = {} if seed is None else {"seed": seed}
    config = build_config(base, merge(settings or {}, extra))
    refuse_idle(config, settings or {})
    return train_new(config, Path(out), Quiet(), _warn, budget=budget, began=began)


def resume(run: str | Path, *, settings: Mapping[str, Any] | None = None) -> RunResult:
    """Go on with a run from its last checkpoint; a finished one is left as it is.

    `settings` may change what leaves the run the same, above all how far it goes: `{"schedule": {"epochs": 80}}`.
    """
    began = time.monotonic()
    from fastswa.training.run import resume as resume_run

    return resume_run(Path(run), settings or {}, Quiet(), _warn, began=began)


def load(run: str | Path, network: str | None = None) -> TrainedModel:
    """The trained model of a run folder or a model file, on the CPU; no code from the file is run.

    `network` takes another of a run's networks: "student", "teacher" or an average's name.

    >>> model = fastswa.load("runs/a")
    >>> model.predict(["one.jpg", "two.png"]).names
    """
    from fastswa.modelfile import load_model

    return load_model(Path(run), network)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, stacklevel=3)
