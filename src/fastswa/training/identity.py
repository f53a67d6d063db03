"""Which run a checkpoint is of: a hash of its settings, in which data of one's own have no name, and its images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastswa.config import RESUMABLE, Config, to_dict
from fastswa.data.sources import SOURCES
from fastswa.errors import RequestError
from fastswa.layers import flatten

if TYPE_CHECKING:
    from fastswa.data.images import Dataset
    from fastswa.training.folder import RunFolder
    from fastswa.training.loop import Trainer

# Data of one's own that may lie elsewhere when a run is gone on with.
MOVABLE = ("source", "target")


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A hash of nested settings, all but those that a resume may change, or the run itself as it goes."""
    changing = {*RESUMABLE, "batch.pace"}
    flat = {name: value for name, value in flatten(settings).items() if name not in changing}
    return hashlib.blake2b(json.dumps(flat, sort_keys=True).encode(), digest_size=8).hexdigest()


def identity(settings: Mapping[str, Any]) -> str:
    """The fingerprint with data of one's own unnamed: they are known by their content, wherever they lie."""
    data = settings.get("data", {})
    own = {name: "" for name in MOVABLE if is_own(data.get(name))}
    return fingerprint({**settings, "data": {**data, **own}})


def content_in(mark: str) -> str:
    """The digest of images of one's own and their labels in a checkpoint's mark of its run; empty if there is none."""
    return mark.partition(".")[2]


def is_own(source: str | None) -> bool:
    """Whether it names data of one's own, wherever they lie or no longer lie."""
    return source is not None and source not in SOURCES


def identities(config: Config, written: Mapping[str, Any]) -> set[str]:
    """What checkpoints of a run with these settings may say of them; `written` is its config.toml as it stands.

    Settings that came into being since are not in that file, nor in what its run said of itself. Named data are in
    checkpoints of before they could be moved.
    """
    now = to_dict(config)
    return {hashed(settings) for settings in (now, _within(now, written)) for hashed in (identity, fingerprint)}


def _within(settings: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, of which only those that `names` holds too."""
    return {
        name: _within(value, names[name]) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name in names and isinstance(value, dict) == isinstance(names[name], dict)
    }


def sources(config: Config) -> list[str]:
    """What the images come from: one source, or a source and a target."""
    return [source for source in (config.data.source, config.data.target) if source is not None]


def images_of(trainer: Trainer, dataset: Dataset) -> dict[str, Any]:
    """How many images a run trains on, its own and extra ones, and is tested on, which tells a part of a published set
    from all of it; and which of them are labelled and unlabelled, as a hash."""
    plan = trainer.material.plan
    drawn = hashlib.blake2b(digest_size=8)
    for numbers in (plan.labelled_images, plan.unlabelled_images):
        drawn.update(np.asarray(numbers, np.int64).tobytes() + b"|")
    return {
        "images": {"train": len(dataset.train), "test": 0 if dataset.test is None else len(dataset.test)},
        "extra_images": plan.extras,
        "drawn": drawn.hexdigest(),
    }


def refuse_other_images(folder: RunFolder, trainer: Trainer, dataset: Dataset) -> None:
    """Refuse images that are not those of the run's beginning, as far as its folder says what these were."""
    known, now = folder.known_environment(), images_of(trainer, dataset)
    config = trainer.config
    names = {
        "images": f"the images or labels of {' or '.join(sources(config))}",
        "extra_images": f"the extra images of {config.data.extra}",
        "drawn": f"the images that {config.split.file or 'the split'} takes as labelled or for validation",
    }
    for fact, name in names.items():
        if known.get(fact, now[fact]) != now[fact]:
            raise changed(name, folder.path)


def changed(what: str, path: Path) -> RequestError:
    return RequestError(f"{what} are not those that {path} was trained on; put them back, or train anew.")
