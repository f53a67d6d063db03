"""What pages are made of: tables, figures, and the templates that write them, everything escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fastswa import __version__
from fastswa.layers import flatten
from fastswa.report import words

# How a page says that it was written here: only such a file is ever replaced.
GENERATOR = "fastswa report"

_TEMPLATES = Path(__file__).parent / "templates"
_STYLED = ("student", "teacher", "swa", "fast_swa", "ema")
_OTHERS = 4


@dataclass(frozen=True)
class Table:
    """Cells as text, the first of a row its heading; columns from `numbers` on are set as numbers.

    `strong` are (row, column) that stand out; `more` says what was left out.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1
    strong: frozenset[tuple[int, int]] = frozenset()
    more: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption, its lines' (name, style), and a table that says the same."""

    chart: Markup
    caption: str
    legend: Sequence[tuple[str, str]] = ()
    table: Table | None = None


def styles(networks: Sequence[str]) -> dict[str, str]:
    """Each network's class in the style sheet; averages of other names share the spare ones."""
    found, others = {}, 0
    for name in networks:
        if name in _STYLED:
            found[name] = f"s-{name.replace('_', '-')}"
        else:
            found[name] = f"s-other-{others % _OTHERS + 1}"
            others += 1
    return found


def settings_table(settings: Mapping[str, Any]) -> Table:
    """All settings by their dotted names."""
    rows = [(name, words.setting(value)) for name, value in flatten(settings).items()]
    return Table("All settings of the run", ("setting", "value"), rows, numbers=2)


def render(template: str, **context: Any) -> str:
    """The page; every value that is not a chart of ours is escaped."""
    style = Markup((_TEMPLATES / "style.css").read_text("utf-8"))
    return _environment().get_template(template).render(style=style, **context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(version=__version__, generator=GENERATOR)
    environment.filters.update(readable=words.readable, shortened=words.shortened, share=words.share, count=words.count)
    return environment
