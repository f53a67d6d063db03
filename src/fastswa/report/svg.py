"""SVG by hand: escaped elements, scales and axes. Colours are classes, so that the page's style sheet has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """One element: attributes and plain strings are escaped, `Markup` is taken as it is.

    Underscores in names stand for hyphens; `class_` is class; an attribute that is None is left out.
    """
    words = [
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{tag}{''.join(words)}>{Markup('').join(children)}</{tag}>")


def _plain(value: object) -> str:
    return _short(value) if isinstance(value, float) else str(value)


def _short(value: float) -> str:
    """A coordinate to a hundredth, without idle zeros."""
    words = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if words == "-0" else words


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto positions from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round numbers between `low` and `high`, 1, 2 or 5 times a power of ten apart."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    rough = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A tick's number as people write it."""
    return f"{value:.6g}".replace("-", "−")


def path(points: Iterable[Point]) -> str:
    """The `d` of straight lines through the points; where one is not finite the line is interrupted."""
    words: list[str] = []
    lifted = True
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            lifted = True
            continue
        words.append(f"{'M' if lifted else 'L'}{_short(x)} {_short(y)}")
        lifted = False
    return "".join(words)


def line(points: Iterable[Point], class_: str, **attributes: object) -> Markup:
    return element("path", d=path(points), class_=f"line {class_}", **attributes)


def dot(x: float, y: float, class_: str, said: str, radius: float = 3.0) -> Markup:
    """A point that says its value when pointed at."""
    return element("circle", element("title", escape(said)), cx=x, cy=y, r=radius, class_=f"dot {class_}")


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "middle", **attributes: object) -> Markup:
    return element("text", escape(words), x=x, y=y, text_anchor=anchor, class_=class_ or None, **attributes)


def rectangle(x: float, y: float, width: float, height: float, class_: str, said: str | None = None) -> Markup:
    title = () if said is None else (element("title", escape(said)),)
    return element("rect", *title, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=class_)


def y_axis(scale: Scale, left: float, right: float, at: Sequence[float], shown: Callable[[float], str]) -> Markup:
    """Grid lines from `left` to `right` with their numbers."""
    parts = []
    for value in at:
        y = scale(value)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(text(left - 8, y, shown(value), "tick", "end", dominant_baseline="central"))
    return Markup("").join(parts)


def x_axis(scale: Scale, y: float, at: Sequence[float], shown: Callable[[float], str] = tick_text) -> Markup:
    """A base line with its numbers below it."""
    parts = [element("line", x1=scale.start, x2=scale.end, y1=y, y2=y, class_="axis")]
    for value in at:
        x = scale(value)
        parts.append(element("line", x1=x, x2=x, y1=y, y2=y + 5, class_="axis"))
        parts.append(text(x, y + 20, shown(value), "tick"))
    return Markup("").join(parts)


def window(left: float, top: float, width: float, height: float, *children: str) -> Markup:
    """Children in the same coordinates, cut off at the edges of the window."""
    box = " ".join(_short(value) for value in (left, top, width, height))
    return element("svg", *children, x=left, y=top, width=width, height=height, viewBox=box)


def picture(width: float, height: float, label: str, *children: str) -> Markup:
    """A whole SVG that scales with its column; `label` is what a screen reader says of it."""
    return element(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        role="img",
        aria_label=label,
        class_="chart",
    )
