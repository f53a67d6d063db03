"""SVG by hand: escaping, scales, ticks, and charts whose points lie where their values say."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from fastswa.report.calibration import Bin, Reliability
from fastswa.report.charts import (
    Curve,
    Rate,
    error_chart,
    error_frame,
    gain_chart,
    gain_frame,
    reliability_chart,
    signed,
)
from fastswa.report.svg import Scale, element, path, picture, text, tick_text, ticks, window

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "<script>\"'&</script>"


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def titles(chart: str) -> list[str]:
    return [title.text or "" for title in parsed(chart).iter(f"{SVG}title")]


def test_elements_are_escaped_and_nest() -> None:
    made = element("text", NASTY, element("tspan", "b"), class_=NASTY, x=1.0, stroke_width=2, dy=None)
    root = ElementTree.fromstring(made)
    assert (root.text, root.attrib) == (NASTY, {"class": NASTY, "x": "1", "stroke-width": "2"})
    assert [child.text for child in root] == ["b"]
    assert isinstance(made, Markup)
    assert parsed(picture(10, 20, NASTY, text(1, 2, NASTY))).attrib["aria-label"] == NASTY


def test_a_scale_maps_its_ends_and_stands_a_single_value() -> None:
    scale = Scale(2.0, 4.0, 100.0, 0.0)
    assert [scale(value) for value in (2, 3, 4, 5)] == [100, 50, 0, -50]
    assert Scale(3.0, 3.0, 0.0, 10.0)(3.0) == 5.0


@pytest.mark.parametrize(
    ("low", "high", "wanted", "expected"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0, 60, 6, [0, 10, 20, 30, 40, 50, 60]),
        (3.9, 6.1, 5, [4, 4.5, 5, 5.5, 6]),
        (-0.3, 0.3, 3, [-0.2, 0, 0.2]),
        (0, 1500, 6, [0, 500, 1000, 1500]),
        (5, 5, 5, [5]),
        (0, math.nan, 5, [0]),
        (math.inf, 1, 5, []),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, wanted: int, expected: list[float]) -> None:
    assert ticks(low, high, wanted) == pytest.approx(expected)


@pytest.mark.parametrize("high", [1e-6, 0.037, 1.0, 7.3, 99.0, 12345.0, 1e9])
@pytest.mark.parametrize("wanted", [3, 5, 8])
def test_ticks_are_about_as_many_as_wanted(high: float, wanted: int) -> None:
    found = ticks(0.0, high, wanted)
    assert wanted / 2.6 <= len(found) <= wanted + 1
    gaps = [b - a for a, b in pairwise(found)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps))
    assert all(0 <= tick <= high * (1 + 1e-9) for tick in found)


def test_numbers_are_written_as_people_do() -> None:
    assert [tick_text(value) for value in (0.1 + 0.2, -2.0, 1e-7, 1500.0)] == ["0.3", "−2", "1e−07", "1500"]
    assert [signed(value) for value in (0.2, 0.0, -0.30000000000000004)] == ["+0.2", "0", "−0.3"]


def test_a_path_is_interrupted_where_a_value_is_no_number() -> None:
    assert path([(0, 1), (1.239, 2), (2, math.nan), (3, -0.001), (4, 5)]) == "M0 1L1.24 2M3 0L4 5"


def test_a_window_keeps_the_coordinates() -> None:
    inner = ElementTree.fromstring(window(10, 20, 30.5, 40))
    assert inner.attrib == {"x": "10", "y": "20", "width": "30.5", "height": "40", "viewBox": "10 20 30.5 40"}


def curve(name: str, *points: tuple[float, float]) -> Curve:
    return Curve(name, f"s-{name}", points)


def dots(chart: str, style: str) -> list[tuple[float, float]]:
    found = [one for one in parsed(chart).iter(f"{SVG}circle") if one.attrib["class"] == f"dot {style}"]
    return sorted((float(one.attrib["cx"]), float(one.attrib["cy"])) for one in found)


def test_the_frame_holds_the_second_half_and_not_the_beginning() -> None:
    falling = curve("student", (1, 90.0), (2, 30.0), (5, 12.0), (8, 10.0), (10, 11.0))
    low, high = error_frame([falling])
    assert 9.0 < low < 10.0
    assert 12.0 < high < 16.0
    assert error_frame([]) == (0.0, 100.0)
    assert error_frame([curve("student", (1, math.nan))]) == (0.0, 100.0)
    low, high = error_frame([curve("student", (1, 0.0))])  # not one mistake
    assert low == 0.0 < high
    # An unfinished run's own half counts, however long the others are.
    assert error_frame([falling, curve("other", (1, 40.0))])[1] > 40.0


def test_the_frame_of_gains_holds_zero() -> None:
    low, high = gain_frame([curve("swa", (6, 1.0), (10, 2.0))])
    assert low < 0.0
    assert high > 2.0
    low, high = gain_frame([curve("swa", (1, -40.0), (6, 1.0), (10, 2.0))])
    assert -3.0 < low < 0.0


def test_points_lie_where_their_values_say() -> None:
    chart = error_chart([curve("student", (5, 20.0), (10, 10.0))], 10, None, "errors")
    (x5, y20), (x10, y10) = dots(chart, "s-student")
    assert x5 == pytest.approx((62 + x10) / 2)  # epoch 0 is at the left edge, 62
    assert y20 < y10
    assert titles(chart) == ["student, epoch 10: 10.00%", "student, epoch 5: 20.00%"]
    assert parsed(chart).attrib["aria-label"] == "errors"


def test_the_learning_rate_jumps_at_a_cycles_end() -> None:
    rate = Rate(lambda epoch: 0.1 if epoch >= 6 else 0.1 * (1 - epoch / 8), (6.0,))
    chart = error_chart([curve("student", (8, 10.0))], 8, rate, "errors")
    root = parsed(chart)
    (end,) = [one for one in root.iter(f"{SVG}line") if one.attrib["class"] == "cycle"]
    (drawn,) = [one for one in root.iter(f"{SVG}path") if one.attrib["class"] == "line rate"]
    points = [tuple(map(float, word.split())) for word in drawn.attrib["d"].lstrip("M").split("L")]
    (before, after) = [y for x, y in points if x == pytest.approx(float(end.attrib["x1"]))]
    top, base = min(y for _, y in points), 356.0
    assert after == pytest.approx(top)
    assert before == pytest.approx(base - 0.25 * (base - top), abs=0.02)


def test_a_chart_of_very_many_evaluations_stays_small() -> None:
    points = tuple((float(epoch), 50.0 / (1 + epoch)) for epoch in range(5000))
    rate = Rate(lambda epoch: 1.0, tuple(float(end) for end in range(5000)))
    chart = error_chart([Curve("student", "s-student", points)], 5000, rate, "errors")
    assert len(chart) < 150_000
    assert len(dots(chart, "s-student")) <= 60
    assert titles(chart)[0] == f"student, epoch 4999: {50 / 5000:.2f}%"


def test_gains_are_drawn_about_the_zero_line() -> None:
    chart = gain_chart([curve("swa", (5, -1.0), (10, 1.0))], 10, "gains")
    (zero,) = [one for one in parsed(chart).iter(f"{SVG}line") if one.attrib["class"] == "zero"]
    (_, worse), (_, better) = dots(chart, "s-swa")
    assert better < float(zero.attrib["y1"]) < worse
    assert titles(chart)[0] == "swa, epoch 10: 1.00 points fewer"


def test_charts_without_a_point_are_still_charts() -> None:
    for chart in (error_chart([], 0, None, "a"), gain_chart([curve("swa")], 0, "b")):
        assert parsed(chart).attrib["viewBox"].startswith("0 0 560 ")


def test_reliability_bars_are_as_high_as_the_accuracy() -> None:
    bins = (Bin(0.0, 0.5, 5, 0.4, 0.6), Bin(0.5, 1.0, 100, 0.9, 0.8))
    chart = reliability_chart(Reliability(bins, 0.1, 0.8, 0.7), "reliability")
    rectangles = list(parsed(chart).iter(f"{SVG}rect"))
    heights = {one.attrib["class"]: float(one.attrib["height"]) for one in rectangles}
    assert heights["bar"] / heights["bar few"] == pytest.approx(0.8 / 0.6)
    assert heights["gap"] == pytest.approx(heights["bar"] / 8)
    counts = [float(one.attrib["height"]) for one in rectangles if one.attrib["class"] == "count"]
    assert counts[0] == pytest.approx(counts[1] / 20, abs=0.01)
    assert titles(chart)[0] == "confidence 0% to 50%: 5 images, said 40.0%, right 60.0%"
