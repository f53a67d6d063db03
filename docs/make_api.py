"""python docs/make_api.py: write docs/api.md from the docstrings, signatures and settings of the package."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import fastswa
from fastswa.layers import ALIASES, fields
from fastswa.modelfile import ModelFacts, Prediction, TrainedModel
from fastswa.training.run import RunResult

PAGE = Path(__file__).with_name("api.md")
PARTS: dict[str, list[Any]] = {
    "Train": [fastswa.fit, fastswa.resume, RunResult],
    "Use a model": [fastswa.load, TrainedModel, Prediction, ModelFacts],
    "Train from arrays": [fastswa.Classifier],
    "Average weights": [fastswa.AveragedWeights, fastswa.CyclicCosine, fastswa.refresh_batch_norm],
    "Configure": [fastswa.Config],
    "Errors": [fastswa.FastswaError, fastswa.RequestError, fastswa.RunError],
}
# Classes that nobody makes by calling them, or not by their signature.
UNSIGNED = (fastswa.Config, TrainedModel, *PARTS["Errors"])
WORDS = {bool: "true, false", int: "whole number", float: "number", str: "text"}

HEAD = """# Reference

What Python programs call, and every setting. Written by `python docs/make_api.py` from the docstrings; a test fails
when the two differ. What a command takes, it says itself: `fastswa VERB --help`."""

ON_SETTINGS = """As flags (`--schedule.epochs 60`), in a TOML file for `--config` (`[schedule]`, then `epochs = 60`), or
nested in Python (`{"schedule": {"epochs": 60}}`). Short forms are %s.
Where no default stands, the setting follows others or the data. On your own images many more do:
[what is chosen for you](howto-own-data.md#what-is-chosen-for-you)."""


def page() -> str:
    """The whole of docs/api.md."""
    blocks = [HEAD, _contents()]
    for part, things in PARTS.items():
        blocks.append(f"## {part}")
        for thing in things:
            blocks += _entry(thing)
    return "\n\n".join([*blocks, *_settings()]) + "\n"


def _contents() -> str:
    lines = [f"- {part}: " + ", ".join(f"[`{_name(t)}`](#{_anchor(_name(t))})" for t in PARTS[part]) for part in PARTS]
    return "\n".join([*lines, "- [Settings](#settings)"])


def _name(thing: Any) -> str:
    return f"fastswa.{thing.__name__}" if thing.__name__ in dir(fastswa) else str(thing.__name__)


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _entry(thing: Any) -> Iterator[str]:
    """A function, or a class with its methods, as blocks of Markdown."""
    yield f"### {_name(thing)}"
    if isinstance(thing, type) and is_dataclass(thing):
        yield _code("\n".join(f"{name}: {kind}" for name, kind in inspect.get_annotations(thing).items()))
    elif thing not in UNSIGNED:
        yield _code(_name(thing) + _signature(thing))
    yield from _text(thing)
    for name, member in _members(thing):
        called = "" if isinstance(member, property) else _signature(member)
        first, *rest = _text(member)
        yield f"**`.{name}{called}`** {first}"
        yield from rest


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself and describes."""
    if not isinstance(thing, type) or thing is fastswa.Config:
        return
    for name, member in vars(thing).items():
        if (inspect.isfunction(member) or isinstance(member, property)) and member.__doc__ and name[0] != "_":
            yield name, member


def _signature(thing: Any) -> str:
    """As it would be written, without `self`; that of a function or class, if long, with a parameter a line."""
    signature = inspect.signature(thing)
    parameters = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if name != "self":
            default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
            parameters.append(f"{name}: {parameter.annotation}{default}")
    result = "" if isinstance(thing, type) else f" -> {signature.return_annotation}"
    flat = f"({', '.join(parameters)}){result}"
    if len(flat) < 90 or "self" in signature.parameters:
        return flat
    return "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){result}"


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def _text(thing: Any) -> Iterator[str]:
    """A docstring by paragraphs: examples as code, numpydoc's sections as lists."""
    for paragraph in re.split(r"\n\n+", inspect.getdoc(thing) or ""):
        lines = paragraph.splitlines()
        if paragraph.startswith(">>> "):
            yield _code("\n".join(line[4:] for line in lines), "python fragment")
        elif len(lines) > 1 and set(lines[1]) == {"-"}:
            yield f"*{lines[0]}*"
            yield "\n".join(re.sub(r"^(\w+) : ", r"- `\1`: ", line) for line in lines[2:])
        else:
            yield paragraph


def _settings() -> Iterator[str]:
    """Every setting of a run, a table a section."""
    yield "## Settings"
    yield ON_SETTINGS % ", ".join(f"`--{short}`" for short in ALIASES)
    tables: dict[str, list[str]] = {}
    for path, field in fields():
        row = f"| `{path}` | {_default(field.default)} | {_values(field.annotation)} | {field.description} |"
        tables.setdefault(path.rpartition(".")[0] or "seed", []).append(row)
    for section, rows in tables.items():
        yield f"### {section}"
        yield "\n".join(["| setting | default | values | |", "|---|---|---|---|", *rows])


def _default(value: Any) -> str:
    if value is None or value in ((), {}):
        return ""
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`".replace(".0`", "`")


def _values(kind: Any) -> str:
    """What a setting takes, in words."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is dict:
        return "NAME=NAME,…" if get_args(kind)[1] is str else "NAME=NUMBER,…"
    word = next((WORDS[leaf] for leaf in _leaves(kind) if leaf in WORDS), "")
    if any(get_origin(inner) is tuple for inner in get_args(kind)):
        return f"pairs of {word}s, in a file"
    return f"{word}s, with commas" if get_origin(kind) is tuple else word


def _leaves(kind: Any) -> Iterator[Any]:
    """The plain types inside a type."""
    if isinstance(kind, type) and not get_args(kind):
        yield kind
    for inner in get_args(kind):
        yield from _leaves(inner)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(PAGE)
