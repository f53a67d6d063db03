"""Names to objects, without importing anything before it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from fastswa.errors import RequestError


def nearest(name: str, valid: Iterable[str], many: str = "--help lists them all.") -> str:
    """A hint for an unknown name: the nearest valid one, the list of all, or `many` where that is too long."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are: {', '.join(names)}." if len(names) <= 20 else many


def resolve(kind: str, name: str, registry: Mapping[str, str]) -> Any:
    """The object that `registry` ("module:attribute" strings) holds under `name`."""
    if name not in registry:
        raise RequestError(f"unknown {kind} '{name}'; {nearest(name, registry)}")
    module, attribute = registry[name].split(":")
    return getattr(import_module(module), attribute)
