"""Which run a checkpoint is of: a hash of its settings, in which data of one's own have no name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fastswa.config import RESUMABLE, Config, to_dict
from fastswa.data.sources import SOURCES
from fastswa.layers import flatten

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
