"""Teachers: averages are found by their kind, whatever a run calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastswa.analysis.study import Request
from fastswa.analysis.teachers import draw, fast_swa_of, teacher_of, teachers
from tiny_runs import METHODS, TINY, tiny, train

OWN_NAMES = {
    "late": {"kind": "fast-swa", "every": 1, "start": 2},
    "often": {"kind": "fast-swa", "every": 0.5, "start": 2},
    "fast_swa": {"kind": "swa"},
}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mean Teacher with averages of its own names: `fast_swa` is none, and there are two of that kind."""
    out = tmp_path_factory.mktemp("named") / "named"
    config = tiny({"schedule": {"epochs": 3}})
    other = tiny({"averaging": OWN_NAMES}).averaging
    train(config.model_copy(update={"averaging": {name: other[name] for name in OWN_NAMES}}), out)
    return out


def test_the_reference_is_the_average_of_that_kind(named: Path, finished: Path) -> None:
    found = teachers(Request((named, finished)))
    assert [one.fast_swa for one in found] == ["often", "fast_swa"]
    assert {one.reference for one in found} == {"named: often"}
    assert found[0].excess["often"] == 0
    least = found[0].error["often"]
    assert found[1].excess == pytest.approx({name: error - least for name, error in found[1].error.items()})
    assert {one.reference for one in teachers(Request((finished, named)))} == {"run: fast-SWA"}


def test_the_average_of_that_kind_is_drawn(named: Path) -> None:
    drawn = draw(teachers(Request((named,))))
    _, courses = drawn.axes
    # With its legend below the lines, on none of them.
    assert courses.get_legend().get_window_extent().y1 < courses.get_window_extent().y0
    assert [line.get_label() for line in courses.get_lines()] == ["named: student", "named: teacher", "named: often"]


def test_an_average_that_was_not_measured_is_passed_over() -> None:
    config = tiny({"averaging": OWN_NAMES})
    assert fast_swa_of(config, ["student", "late", "fast_swa"]) == "late"
    assert fast_swa_of(config, ["student", "fast_swa"]) is None
    assert fast_swa_of(tiny(), TINY["averaging"]) == "fast_swa"


@pytest.mark.parametrize(
    ("method", "teacher"),
    [
        *[("pi", "none"), ("mean-teacher", "EMA"), ("swa-teacher", "SWA")],
        *[("fixmatch", "none"), ("taught-fixmatch", "EMA"), ("self-ensembling", "EMA")],
    ],
)
def test_who_teaches(method: str, teacher: str) -> None:
    assert teacher_of(tiny({"method": METHODS[method]})) == teacher
