"""The report's charts: error against epoch above the learning rate, the gain of averages, reliability."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fastswa.report.calibration import Reliability
from fastswa.report.svg import (
    Point,
    Scale,
    dot,
    element,
    line,
    picture,
    rectangle,
    text,
    tick_text,
    ticks,
    window,
    x_axis,
    y_axis,
)

WIDTH, LEFT, RIGHT, TOP = 560.0, 62.0, 16.0, 14.0
_MOST_DOTS, _MOST_MARKS = 60, 60
# A bin of fewer images says little, and is drawn faintly.
FEW = 10


@dataclass(frozen=True)
class Curve:
    """A named line: (epoch, value) in order; `style` is its class in the style sheet."""

    name: str
    style: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Rate:
    """The learning rate as a function of the epoch, and the epochs at which a cycle ends."""

    at: Callable[[float], float]
    cycle_ends: tuple[float, ...]


def _values(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """All values that are numbers, and those of the second half of each curve's epochs."""
    every = [value for curve in curves for _, value in curve.points if math.isfinite(value)]
    late = [
        value
        for curve in curves
        for epoch, value in curve.points
        if epoch >= curve.points[-1][0] / 2 and math.isfinite(value)
    ]
    return every, late or every


def error_frame(curves: Sequence[Curve]) -> tuple[float, float]:
    """The errors to draw between: all of the second half, and no more than twice as far as that reaches.

    Training begins near chance, and a frame that held all of it would squeeze the differences that matter.
    """
    values, late = _values(curves)
    if not values:
        return 0.0, 100.0
    low, high = min(values), max(late)
    high = min(max(values), max(2 * high - low, high + 1.0))
    margin = max(0.06 * (high - low), 0.25)
    return max(low - margin, 0.0), min(high + margin, 100.0)


def error_chart(curves: Sequence[Curve], epochs: float, rate: Rate | None, label: str) -> Markup:
    """Error against epoch and, on the same axis below, the learning rate with the ends of its cycles."""
    height = 406.0 if rate is not None else 336.0
    bottom = 286.0
    right = WIDTH - RIGHT
    low, high = error_frame(curves)
    x, y = Scale(0.0, max(epochs, 1.0), LEFT, right), Scale(low, high, bottom, TOP)
    base = height - 50.0
    parts = [y_axis(y, LEFT, right, ticks(low, high), lambda value: f"{tick_text(value)}%")]
    if rate is not None:
        parts.append(_cycle_ends(rate, x, base))
        parts.append(_rate_strip(rate, x, bottom + 20.0, base))
    parts.append(_lines(curves, x, y, (low, high)))
    parts.append(x_axis(x, base, ticks(0.0, x.high, 6)))
    parts.append(text((LEFT + right) / 2, height - 4, "epoch", "name"))
    return picture(WIDTH, height, label, *parts)


def _cycle_ends(rate: Rate, x: Scale, base: float) -> Markup:
    ends = [end for end in rate.cycle_ends if 0 < end < x.high]
    every = math.ceil(len(ends) / _MOST_MARKS) or 1
    return Markup("").join(element("line", x1=x(e), x2=x(e), y1=TOP, y2=base, class_="cycle") for e in ends[::every])


def _rate_strip(rate: Rate, x: Scale, top: float, base: float) -> Markup:
    """The learning rate as a filled strip; sampled on both sides of a cycle's end, where it jumps."""
    count = 400
    epochs = {x.high * number / count for number in range(count)} | {x.high * (1 - 1e-9)}
    for end in rate.cycle_ends:
        if end < x.high and len(rate.cycle_ends) <= count:
            epochs |= {end, end * (1 - 1e-9)}
    values = [(epoch, rate.at(epoch)) for epoch in sorted(epochs)]
    highest = max(value for _, value in values) or 1.0
    y = Scale(0.0, highest, base, top)
    curve = [(x(epoch), y(value)) for epoch, value in values]
    return Markup("").join(
        [
            line([(x.start, base), *curve, (x.end, base)], "rate-area"),
            line(curve, "rate"),
            text(x.start - 8, top, tick_text(float(f"{highest:.3g}")), "tick", "end", dominant_baseline="central"),
            text(x.start + 6, base - 7, "learning rate", "note", "start"),
        ]
    )


def _lines(curves: Sequence[Curve], x: Scale, y: Scale, frame: tuple[float, float], unit: str = "%") -> Markup:
    """The curves cut off at the frame, with points that say their value where there are not too many."""
    bottom, top = sorted((y.start, y.end))
    inner = [line([(x(epoch), y(value)) for epoch, value in curve.points], curve.style) for curve in curves]
    parts = [window(x.start, bottom, x.end - x.start, top - bottom, *inner)]
    for curve in curves:
        every = math.ceil(len(curve.points) / _MOST_DOTS)
        # From the last one backwards: it is the figure that the page speaks of.
        for epoch, value in curve.points[::-1][:: every or 1]:
            if math.isfinite(value) and frame[0] <= value <= frame[1]:
                said = f"{curve.name}, epoch {tick_text(epoch)}: {value:.2f}{unit}"
                parts.append(dot(x(epoch), y(value), curve.style, said))
    return Markup("").join(parts)


def gain_frame(curves: Sequence[Curve]) -> tuple[float, float]:
    """The gains to draw between: zero and all of the second half, with as much again for what came before."""
    values, late = _values(curves)
    low, high = min([0.0, *late]), max([0.0, *late])
    reach = max(high - low, 0.2)
    low, high = max(min([0.0, *values]), low - reach / 2), min(max([0.0, *values]), high + reach / 2)
    margin = max(0.06 * (high - low), 0.1)
    return low - margin, high + margin


def gain_chart(curves: Sequence[Curve], epochs: float, label: str) -> Markup:
    """How many points of error each average has less than its student, against epoch."""
    height, right = 336.0, WIDTH - RIGHT
    base = height - 50.0
    low, high = gain_frame(curves)
    x, y = Scale(0.0, max(epochs, 1.0), LEFT, right), Scale(low, high, base, TOP)
    return picture(
        WIDTH,
        height,
        label,
        y_axis(y, LEFT, right, ticks(low, high), signed),
        element("line", x1=LEFT, x2=right, y1=y(0.0), y2=y(0.0), class_="zero"),
        _lines(curves, x, y, (low, high), " points fewer"),
        x_axis(x, base, ticks(0.0, x.high, 6)),
        text((LEFT + right) / 2, height - 4, "epoch", "name"),
    )


def signed(value: float) -> str:
    """A difference with its sign."""
    shown = tick_text(round(value, 6))
    return f"+{shown}" if value > 0 else shown


def reliability_chart(reliability: Reliability, label: str) -> Markup:
    """Accuracy within each bin of confidence against the diagonal, and how many images each bin holds."""
    height, right = 476.0, WIDTH - RIGHT
    bottom, top_strip, base = 330.0, 352.0, 426.0
    x, y = Scale(0.0, 1.0, LEFT, right), Scale(0.0, 1.0, bottom, TOP)
    share = Scale(0.0, max(max((b.count for b in reliability.bins), default=0), 1), base, top_strip)
    tenths = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    parts = [y_axis(y, LEFT, right, tenths, _percent)]
    for b in reliability.bins:
        if not b.count:
            continue
        left, wide = x(b.low) + 1, x(b.high) - x(b.low) - 2
        said = (
            f"confidence {_percent(b.low)} to {_percent(b.high)}: {b.count} images, "
            f"said {b.confidence:.1%}, right {b.accuracy:.1%}"
        )
        low, high = sorted((b.accuracy, b.confidence))
        few = " few" if b.count < FEW else ""
        parts.append(rectangle(left, y(b.accuracy), wide, y(0.0) - y(b.accuracy), f"bar{few}", said))
        parts.append(rectangle(left, y(high), wide, y(low) - y(high), f"gap{few}", said))
        parts.append(rectangle(left, share(b.count), wide, base - share(b.count), "count", said))
    parts.append(line([(x(0.0), y(0.0)), (x(1.0), y(1.0))], "diagonal"))
    parts.append(text(LEFT + 8, TOP + 14, "right this often", "note", "start"))
    parts.append(text(LEFT + 8, top_strip + 12, "images", "note", "start"))
    parts.append(x_axis(x, base, tenths, _percent))
    parts.append(text((LEFT + right) / 2, height - 4, "confidence", "name"))
    return picture(WIDTH, height, label, *parts)


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
