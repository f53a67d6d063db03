"""From recipe, file and flags to one Config: merged as plain dicts, validated once, errors in one sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, Field, ValidationError

from fastswa.config import Config, ModelConfig, OptimiserConfig, Section, resolved, to_dict
from fastswa.data.sources import SOURCES
from fastswa.errors import RequestError
from fastswa.methods import refuse_unused
from fastswa.registry import nearest
from fastswa.shorthands import written_out

ALIASES = {
    "model": "model.name",
    "method": "method.name",
    "optimiser": "optimiser.name",
    "device": "device.name",
    "engine": "device.engine",
    "precision": "device.precision",
    "deterministic": "device.deterministic",
    "labels": "split.labels",
    "epochs": "schedule.epochs",
    "pretrained": "model.pretrained",
    "keep-every": "checkpoint.keep_every",
    "keep-from": "checkpoint.keep_from",
    "from": "start.run",
}

# Settings that a layer may hold and Config does not: they are written out as others.
SHORTHANDS = {
    "schedule.preset": Field(None, description="short or long: the paper's length, period and cycle"),
    "schedule.steps": Field(None, description="steps in all, in whole epochs, with a cosine that ends at zero"),
}

Layer = dict[str, Any]

# What is averaged where no recipe says it.
AVERAGES: Layer = {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa"}}


def recipe_names() -> list[str]:
    """The names of the built-in recipes."""
    folder = resources.files("fastswa") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def recipe_text(name: str, unlike: str = "`fastswa recipes` lists them.") -> str:
    """A recipe's file as it is, with its header comment; `unlike` is said of a name that is near none."""
    if name not in recipe_names():
        raise RequestError(f"unknown recipe '{name}'; {nearest(name, recipe_names(), unlike)}")
    return (resources.files("fastswa") / "recipes" / f"{name}.toml").read_text("utf-8")


def recipe_layer(name: str) -> Layer:
    return _parse_toml(recipe_text(name), f"recipe {name}")


def target_layer(name: str) -> Layer:
    """The settings behind a recipe's name, or behind a folder or file of one's own data."""
    from fastswa.data.sources import is_own_data, refuse_other_file

    if name not in recipe_names():
        if is_own_data(name):
            return own_data_layer(name)
        refuse_other_file(name, Path(name))
    neither = "nor is there a folder or file of that name (`fastswa recipes` lists the recipes)."
    return _parse_toml(recipe_text(name, neither), f"recipe {name}")


def own_data_layer(source: str) -> Layer:
    """What to do with a person's own data when no recipe is named."""
    return {"data": {"source": source}, "averaging": AVERAGES}


def refuse_idle(config: Config, given: Mapping[str, Any]) -> None:
    """Refuse `given` settings of [method] that its method does not read.

    Where one's own data are to choose the method, they see to it as well (fastswa.defaults).
    """
    if config.data.source in SOURCES or "name" in config.method.model_fields_set:
        refuse_unused(config.method.name, given.get("method", {}))


def file_layer(path: Path) -> Layer:
    """The settings of a TOML file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RequestError(f"cannot read {path}: {reason}.") from error
    return _parse_toml(text, str(path))


def _parse_toml(text: str, where: str) -> Layer:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{where} is not valid TOML: {error}.") from error


def flag_layer(arguments: Sequence[str], options: Iterable[str] = ()) -> Layer:
    """`--schedule.cycle 30 --averaging.fast_swa.every=1 --deterministic` as nested dicts of strings.

    `options` are the command's own, for the hint that an unknown name gets.
    """
    layer: Layer = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            raise RequestError(f"unexpected argument '{token}'; settings are given as --section.name VALUE.")
        name, equals, value = token[2:].partition("=")
        path = ALIASES.get(name.replace("_", "-"), name.replace("-", "_"))
        kind = _field_type(path, options)
        if not equals:
            if kind is bool and (not rest or rest[0].startswith("--")):
                value = "true"
            elif not rest or rest[0].startswith("--"):
                raise RequestError(f"{token} needs a value.")
            else:
                value = rest.pop(0)
        parts = [part for part in value.split(",") if part]
        _insert(layer, path, parts if kind is tuple else _pairs(token, path, parts) if kind is dict else value)
    return layer


def _pairs(token: str, path: str, parts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE,… as a table."""
    value = "NAME" if path == "data.aliases" else "NUMBER"
    for part in parts:
        if "=" not in part:
            raise RequestError(f"{token.partition('=')[0]}: '{part}' is not NAME={value}.")
    return dict(part.rsplit("=", 1) for part in parts)


def _insert(layer: Layer, path: str, value: Any) -> None:
    *tables, last = path.split(".")
    for table in tables:
        layer = layer.setdefault(table, {})
        if not isinstance(layer, dict):
            raise RequestError(f"{path}: {table} is given both as a value and as a table.")
    layer[last] = value


def fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, field) of every setting; an average's are listed under averaging.NAME."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if name == "averaging":
            from fastswa.config import AverageConfig

            yield from fields(AverageConfig, "averaging.NAME.")
        elif isinstance(inner, type) and issubclass(inner, Section):
            yield from fields(inner, f"{prefix}{name}.")
            yield from ((path, field) for path, field in SHORTHANDS.items() if path.startswith(f"{prefix}{name}."))
        else:
            yield prefix + name, field


def _generic(path: str) -> str:
    parts = path.split(".")
    if parts[0] == "averaging" and len(parts) > 1:
        parts[1] = "NAME"
    return ".".join(parts)


def _field_type(path: str, options: Iterable[str]) -> type | None:
    """bool, tuple or dict where the setting is one; refuses names that are not settings."""
    known = dict(fields())
    if _generic(path) not in known:
        names = [*known, *ALIASES, *(option.removeprefix("--") for option in options)]
        within = [name for name in known if name.rpartition(".")[2] == path]
        hint = f"did you mean {within[0]}?" if len(within) == 1 else nearest(_generic(path), names)
        raise RequestError(f"unknown setting --{path}; {hint}")
    annotation = known[_generic(path)].annotation
    if annotation is bool:
        return bool
    origin = getattr(annotation, "__origin__", None)
    return origin if origin in (tuple, dict) else None


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def merge(*layers: Mapping[str, Any]) -> Layer:
    """Nested dicts laid over one another, the last winning."""
    result: Layer = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            result[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


# Settings that mean another thing, or nothing, once a layer above names another optimiser or network.
_BELONGING = {
    "optimiser": ("sgd", frozenset(OptimiserConfig.model_fields)),
    "model": ("small", frozenset(ModelConfig.model_fields) - {"heads"}),
}


def without_others(below: Layer, layer: Mapping[str, Any]) -> Layer:
    """`below` without its settings of an optimiser or network that `layer` replaces.

    A rate of SGD's is none for AdamW, and a width of one network none for another.
    """
    kept = dict(below)
    for section, (usual, belonging) in _BELONGING.items():
        old, new = below.get(section), layer.get(section)
        if not isinstance(old, dict) or not isinstance(new, dict) or "name" not in new:
            continue
        if new["name"] != old.get("name", usual):
            kept[section] = {name: value for name, value in old.items() if name not in belonging}
    return kept


def _without_pace(below: Layer, layer: Mapping[str, Any]) -> Layer:
    """`below` without its changes of the steps in an epoch where `layer` says how many there are."""
    old, new = below.get("batch"), layer.get("batch")
    if not isinstance(old, dict) or not isinstance(new, dict) or "steps" not in new:
        return below
    return {**below, "batch": {name: value for name, value in old.items() if name != "pace"}}


def build_config(*layers: Mapping[str, Any]) -> Config:
    """One resolved Config from layers of settings, the last winning."""
    merged: Layer = {}
    for layer in layers:
        try:
            expanded = written_out(layer, merged)
        except ValueError as error:
            raise RequestError(str(error)) from error
        merged = merge(_without_pace(without_others(merged, expanded), expanded), expanded)
    _refuse_unknown(merged)
    try:
        return resolved(Config.model_validate(merged))
    except ValidationError as error:
        raise RequestError(_one_sentence(error)) from error


def _refuse_unknown(merged: Layer) -> None:
    def walk(model: type[BaseModel], table: Any, prefix: str) -> None:
        if not isinstance(table, dict):
            return
        for key, value in table.items():
            if key not in model.model_fields:
                section, _, name = str(key if prefix else ALIASES.get(key, key)).rpartition(".")
                within = section in model.model_fields and f"{section}.{name}" in dict(fields())
                hint = f"it is {name} within {section}." if within else nearest(str(key), model.model_fields)
                raise RequestError(f"unknown setting {prefix}{key}; {hint}")
            inner = model.model_fields[key].annotation
            if key == "averaging" and isinstance(value, dict):
                from fastswa.config import AverageConfig

                for name, average in value.items():
                    walk(AverageConfig, average, f"averaging.{name}.")
            elif isinstance(inner, type) and issubclass(inner, BaseModel):
                walk(inner, value, f"{prefix}{key}.")

    walk(Config, merged, "")


_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a table of settings",
    "dict_type": "a table of settings",
}


def _one_sentence(error: ValidationError) -> str:
    """The first of pydantic's complaints as one sentence that names the setting."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"] if part != "[key]")
    kind, value = first["type"], first.get("input")
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    if kind == "value_error":
        return f"{first['ctx']['error']}."
    if kind in _EXPECTED:
        return f"{path}: '{shown}' is not {_EXPECTED[kind]}."
    if kind == "literal_error":
        return f"{path}: '{shown}' is not one of {first['ctx']['expected']}."
    if kind == "string_pattern_mismatch":
        return f"{path}: an average's name is lower-case letters, digits and underscores, not '{shown}'."
    return f"{path}: '{shown}' is refused: it {first['msg'].removeprefix('Input ')}."


def to_toml(config: Config) -> str:
    """The configuration as a TOML file that `--config` takes back."""
    return tomli_w.dumps(to_dict(config))
