"""Planes of weight space: their geometry, and a tiny run's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from conftest import Command
from fastswa.analysis.landscape import Axes, Plane, draw, landscape, middle, nearest, off_plane, told
from fastswa.analysis.study import Request
from fastswa.analysis.subject import Subject
from fastswa.analysis.surface import Measured, Surface
from fastswa.errors import RequestError


def test_the_axes_are_orthonormal_and_keep_distances() -> None:
    points = list(torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)))
    axes = Axes.through(points, "abc")
    assert float(axes.first @ axes.second) == pytest.approx(0, abs=1e-6)
    assert float(axes.first.norm()) == pytest.approx(1)
    found = [axes.project(point) for point in points]
    assert [off for *_, off in found] == pytest.approx([0, 0, 0], abs=0.05)
    assert found[1][1] == pytest.approx(0, abs=1e-4)
    for a in range(3):
        assert torch.allclose(axes.point(*found[a][:2]), points[a], atol=1e-5)
        for b in range(3):
            apart = np.hypot(found[a][0] - found[b][0], found[a][1] - found[b][1])
            assert apart == pytest.approx(float((points[a] - points[b]).norm()), rel=1e-5)
    above = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    x, y, off = axes.project(points[0] + above)
    assert x**2 + y**2 + off**2 == pytest.approx(float(above.square().sum()), rel=1e-5)


def test_points_that_span_no_plane_are_refused() -> None:
    line = torch.randn(100, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RequestError, match="a and b are the same weights"):
        Axes.through([line, line, 2 * line], "abc")
    with pytest.raises(RequestError, match="lie on one line"):
        Axes.through([torch.zeros(100), torch.eye(100)[0], 2 * torch.eye(100)[0]], "abc")
    # The average of two iterates: on their line, but for rounding.
    first, second = torch.randn(2, 10_000, generator=torch.Generator().manual_seed(1))
    with pytest.raises(RequestError, match="lie on one line"):
        Axes.through([first, second, first + (second - first) / 3], "abc")


def test_the_middle_of_the_flat_part_of_a_plane() -> None:
    x, y = np.linspace(-2.0, 4.0, 13), np.linspace(-3.0, 3.0, 13)
    errors = 2.0 + (x[None, :] - 1.0) ** 2 + (y[:, None] - 0.5) ** 2
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]])
    # Of the iterates the second projects to the middle itself, far off the plane.
    trajectory = (np.array([1.0, 3.0, 5.0]), np.array([[0.0, 0.0], [1.0, 0.5], [0.7, 0.1]]), np.array([0.0, 2.0, 1.2]))
    names = ("epoch 1", "epoch 2", "SWA")
    plane = Plane("run", x, y, Measured(errors, errors, errors, errors), names, corners, *trajectory)
    centre, edge = middle(plane)
    assert (centre.tolist(), edge) == ([pytest.approx(1.0), pytest.approx(0.5)], False)
    part = "epoch 1 1.12, epoch 2 1.12, SWA 0, the nearest iterate (epoch 3) 0"
    assert told([plane])[1] == (
        "run: distance within the plane from the middle of the points this near to the lowest test error: "
        f"0.5%: {part}; 1%: {part}; 2%: {part}; points are 0.5 apart; iterates that do not span the plane are 1.2 to "
        "2 off it, half of them more than 1.6"
    )
    assert nearest(plane, np.array([0.7, 0.2])) == (5.0, pytest.approx(0.1))
    # What spans the plane is off it by what rounding leaves.
    assert off_plane(dataclasses.replace(plane, off=np.array([0.0, 1e-3, 1.2]))).tolist() == [1.2]
    cut = dataclasses.replace(plane, measured=Measured(errors, errors, np.ones_like(errors), errors))
    assert middle(cut)[1]
    assert "1% (which reach the edge): " in told([cut])[1]


@pytest.mark.parametrize(
    ("edge", "sides"), [(0.1, ("left", "right")), (2.0, ("right", "left"))], ids=["at the edge", "with room"]
)
def test_the_names_of_corners_point_away_from_one_another_and_stay_inside(edge: float, sides: tuple[str, str]) -> None:
    places = np.linspace(-edge, 1 + edge, 3)
    values = np.arange(9.0).reshape(3, 3) + 1
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.6, 0.4]])
    measured = Measured(values, values, values, values)
    names = ("epoch 180", "epoch 330", "SWA")
    drawn = draw([Plane("run", places, places, measured, names, corners, np.array([1.0]), corners[:1], np.zeros(1))])
    found = {text.get_text(): text.get_horizontalalignment() for text in drawn.axes[0].texts}
    assert found == {"epoch 180": sides[0], "epoch 330": sides[1], "SWA": "left"}
    pyplot.close(drawn)


def test_what_counts_as_flat_is_outlined_where_errors_are_drawn() -> None:
    x = np.linspace(-2.0, 2.0, 41)
    errors = 2.0 + x[None, :] ** 2 + x[:, None] ** 2
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    plane = Plane("run", x, x, Measured(*[errors] * 4), ("a", "b", "c"), corners, np.ones(3), corners, np.zeros(3))
    drawn = draw([plane])
    *_, panel = (one for one in drawn.axes if one.get_title())
    assert panel.get_title() == "run: test error (%), dashed: lowest + 1"
    [outline] = (one for one in panel.collections if list(one.levels) == [3.0])
    [path] = outline.get_paths()
    np.testing.assert_allclose(np.linalg.norm(path.vertices, axis=1), 1.0, atol=0.01)
    pyplot.close(drawn)


def test_a_runs_plane_is_measured_where_it_says(finished: Path, tmp_path: Path, command: Command) -> None:
    [plane] = landscape(Request((finished,), "cpu", epochs=(2.0, 3.0, 4.0), points=3))
    assert plane.names == ("epoch 2", "epoch 3", "epoch 4")
    assert plane.epochs.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(plane.trajectory[1:], plane.corners, atol=1e-4)
    assert plane.off[1:] == pytest.approx([0, 0, 0], abs=0.01)
    subject = Subject(finished, "cpu")
    axes = Axes.through([subject.iterate(epoch) for epoch in (2, 3, 4)], plane.names)
    there = Surface(subject).at(axes.point(float(plane.x[2]), float(plane.y[0])))
    assert plane.measured.test_loss[0, 2] == pytest.approx(there[3])
    assert plane.measured.train_loss[0, 2] == pytest.approx(there[1])

    words = ("analyze", "landscape", finished, "--device", "cpu", "--points", 3, "--out", tmp_path)
    answer = command(*words)
    assert answer.code == 0, answer.err
    [data] = json.loads((tmp_path / "landscape.json").read_text())
    assert data["names"] == ["epoch 2", "epoch 4", "fast-SWA"]
    assert (tmp_path / "landscape.csv").read_text().count("\n") == 10
    assert "three corners, not 4" in command(*words, "--epochs", "1,2,3,4").err
