"""What Python users call: fit, resume, load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastswa.config import Config, to_dict
from fastswa.layers import build_config, merge, target_layer

if TYPE_CHECKING:
    from fastswa.modelfile import TrainedModel
    from fastswa.training.run import RunResult


class Quiet:
    """A watcher that says nothing and never stops a run."""

    def begin(self, step: int, steps: int, steps_per_epoch: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def evaluated(self, line: Mapping[str, Any]) -> None: ...
    def should_stop(self) -> bool:
        return False


def fit(
    recipe: str | Config,
    *,
    out: str | Path,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
) -> RunResult:
    """Train a recipe (by name), one's own images (a folder, a manifest or an .npz file) or a Config into `out`.

    `settings` are nested like the configuration: {"schedule": {"epochs": 10}}. `minutes` instead of epochs measures
    this machine and trains for as long as they hold.

    >>> run = fit("digits-mean-teacher", seed=1, out="runs/a")
    >>> run.metrics[-1]["error"]["fast_swa"]
    """
    from fastswa.methods import refuse_unused
    from fastswa.training.budget import Budget
    from fastswa.training.run import flatten, train_new

    budget = None if minutes is None else Budget(minutes, flatten(settings or {}).keys())
    base = to_dict(recipe, only_given=True) if isinstance(recipe, Config) else target_layer(recipe)
    extra: dict[str, Any] = {} if seed is None else {"seed": seed}
    config = build_config(base, merge(settings or {}, extra))
    refuse_unused(config.method.name, (settings or {}).get("method", {}))
    return train_new(config, Path(out), Quiet(), _warn, budget=budget)


def resume(run: str | Path, *, settings: Mapping[str, Any] | None = None) -> RunResult:
    """Go on with a run from its last checkpoint, to more epochs if `settings` say so."""
    from fastswa.training.run import resume as resume_run

    return resume_run(Path(run), settings or {}, Quiet(), _warn)


def load(run: str | Path, network: str | None = None) -> TrainedModel:
    """The trained model of a run folder or a model file: an nn.Module with .classes and .predict(images).

    `network` takes another of a run's networks: "student", "teacher" or an average's name.
    """
    from fastswa.modelfile import load_model

    return load_model(Path(run), network)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, stacklevel=3)
