"""Numbers, times and file names as the page writes them."""

from __future__ import annotations

import math
from typing import Any
from unicodedata import category

NONE = "–"
_LONGEST_NAME = 44


def percent(value: float | None, places: int = 2) -> str:
    """A figure that is in percent already."""
    return f"{value:.{places}f}%" if value is not None and math.isfinite(value) else NONE


def share(value: float, places: int = 1) -> str:
    """A probability as percent; not quite all is never rounded to 100."""
    shown = round(100 * value, places)
    if shown == 100 and value < 1:
        return f">{100 - 10**-places:.{places}f}%"
    return percent(shown, places)


def points(value: float | None, places: int = 2) -> str:
    """A difference of two errors, with its sign."""
    if value is None or not math.isfinite(value):
        return NONE
    return (f"{value:+.{places}f}" if round(value, places) else f"{0:.{places}f}").replace("-", "−")


def count(value: int | float) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,.0f}"


def number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}".replace("-", "−") if math.isfinite(value) else NONE


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def plural(value: int, one: str, several: str | None = None) -> str:
    """`1 image`, `2 images`."""
    return f"{count(value)} {one if value == 1 else several or one + 's'}"


def listed(names: list[str], most: int = 5) -> str:
    """Names in a sentence, the first few and how many more."""
    shown = ", ".join(f"‘{readable(name)}’" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def setting(value: Any) -> str:
    """A setting's value as a person would type it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ",".join(setting(item) for item in value) or NONE
    return readable(str(value))


def readable(name: str) -> str:
    """A name with what cannot be shown replaced: bytes that are not UTF-8, controls, line ends."""
    hidden = {"Cc", "Cs", "Zl", "Zp"}
    return "".join("\N{REPLACEMENT CHARACTER}" if category(letter) in hidden else letter for letter in name)


def shortened(name: str, most: int = _LONGEST_NAME) -> str:
    """A path without its middle where it is long: the file's own name stays, or as much of its end as fits."""
    if len(name) <= most:
        return name
    head, _, tail = name.rpartition("/")
    if len(tail) >= most - 2:
        return "…" + tail[-(most - 1) :]
    return f"{head[: most - len(tail) - 2]}…/{tail}"
