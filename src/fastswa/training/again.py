"""The images of a run, looked at again: whether they are still those that it was trained on.

A split is drawn from the labels there are. Where some were added or changed since, images held out now may be among
those that the run learnt from, and figures on them would flatter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastswa.config import Config
from fastswa.data.images import Dataset
from fastswa.errors import RequestError
from fastswa.evaluate import Evaluator
from fastswa.modelfile import ModelFacts
from fastswa.training.folder import RunFolder
from fastswa.training.identity import content_in, is_own, sources
from fastswa.training.setup import load_data


@dataclass(frozen=True)
class Images:
    """A run's images as they are now; `changed` says whether they or their labels were others when it was trained,
    None where nothing tells (published sets, and folders of runs that kept no mark of their images)."""

    dataset: Dataset
    changed: bool | None


def images_of_run(path: Path, config: Config) -> Images:
    """The images that a run's settings name, held against what its folder knows them by."""
    dataset = load_data(config)
    known = content_of(path) if any(map(is_own, sources(config))) else None
    return Images(dataset, None if known is None else known != dataset.digest())


def content_of(path: Path) -> str | None:
    """The digest that a run's folder notes of images of one's own and their labels; None where it notes none."""
    folder = RunFolder(path)
    noted = folder.known_environment().get("content")
    if isinstance(noted, str) and noted:
        return noted
    for facts in sorted(folder.checkpoints.glob("step-*/facts.json"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            return content_in(json.loads(facts.read_text("utf-8"))["fingerprint"]) or None
    return None


def refuse_other_classes(path: Path, model: ModelFacts, dataset: Dataset) -> None:
    """RequestError where the images are of other classes or another size than the run's model."""
    if (model.classes, model.shape) != (dataset.classes, dataset.train.shape):
        raise RequestError(f"{path}: the data set has changed since; its classes or image size are others now.")


def still_measured(
    path: Path, images: Images, evaluators: Mapping[str, Evaluator], say: Callable[[str], None]
) -> dict[str, Evaluator]:
    """The evaluators but for that of validation images which may have been learnt from; `say` hears of it."""
    if not images.changed or "validation" not in evaluators:
        return dict(evaluators)
    say(
        f"the images or labels of {path} are not those that it was trained on: validation errors are left out, "
        "as images held out now may be among those that it learnt from."
    )
    return {name: evaluator for name, evaluator in evaluators.items() if name != "validation"}


def refuse_other_held_out(path: Path, images: Images, what: str) -> None:
    """RequestError where images held out now may be among those that the run learnt from; `what` they are for."""
    if images.changed:
        raise RequestError(
            f"the images or labels of {path} are not those that it was trained on, so that images held out now may be "
            f"among those that it learnt from; {what}."
        )
