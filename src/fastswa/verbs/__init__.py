"""The verbs, one thin file each: parse, call, print. Nothing heavy is imported before work starts."""

from __future__ import annotations

from importlib import import_module

from fastswa.arguments import Verb

# In the order that `fastswa --help` lists them.
_NAMES = (
    "demo",
    "check",
    "suggest",
    "train",
    "resume",
    "evaluate",
    "calibrate",
    "predict",
    "export",
    "average",
    "report",
    "recipes",
    "table",
    "figure",
    "analyze",
    "sweep",
    "bench",
    "data",
)

VERBS: dict[str, Verb] = {name: import_module(f"fastswa.verbs.{name}").VERB for name in _NAMES}
