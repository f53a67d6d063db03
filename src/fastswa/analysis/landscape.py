"""The plane through three points of weight space: error and loss as contours, with the trajectory drawn on it.

Through three iterates, or through two and the run's average. Distances in the plane are those of weight space;
batch-norm statistics are recomputed at each of its points, and other iterates are drawn where they project to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastswa.analysis.drawing import new_grid
from fastswa.analysis.rays import WITHIN
from fastswa.analysis.study import Request, Study
from fastswa.analysis.subject import Subject, opened
from fastswa.analysis.surface import FIGURES, Measured, Surface
from fastswa.console import shown
from fastswa.errors import RequestError

# How far the plane reaches beyond its three points on each side, as a part of how far apart these are.
MARGIN = 0.35
POINTS = 21
# What is left of points on one line by numbers of 32 bits, as a part of their distance.
_ROUNDING = 1e-5
# How far off the plane 32 bits put the points that span it, as a part of its width.
_IN_PLANE = 1e-3
# In %: how far above the lowest test error its next level is drawn.
NEXT = 0.2
# In %: how far above the lowest test error the flat part may reach; what is said of its middle is said for each.
WITHINS = (0.5, WITHIN, 2.0)


@dataclass(frozen=True)
class Plane:
    """Where the grid lies, x (X,) and y (Y,), what is measured there (Y, X), and where points of interest are.

    `corners` (3, 2) are the points that span it, called `names`; `trajectory` (E, 2) the projections of the kept
    iterates of `epochs`, `off` (E,) how far from the plane each is.
    """

    run: str
    x: np.ndarray
    y: np.ndarray
    measured: Measured
    names: tuple[str, ...]
    corners: np.ndarray
    epochs: np.ndarray
    trajectory: np.ndarray
    off: np.ndarray


@dataclass(frozen=True)
class Axes:
    """An origin and two orthonormal directions of weight space."""

    origin: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def through(cls, points: Iterable[Tensor], names: Sequence[str]) -> Axes:
        """The plane of three points: the first is the origin, the second lies on the x axis.

        The points are taken one at a time, and only the origin is held.
        """
        left = iter(points)
        origin = next(left)
        first = _unit(next(left) - origin, f"{names[0]} and {names[1]} are the same weights")
        away = next(left) - origin
        second = away - (away @ first) * first
        # Once more: in 32 bits one subtraction leaves a little of the first direction.
        second = second - (second @ first) * first
        second = _unit(second, f"{', '.join(names)} lie on one line", _ROUNDING * float(away.norm()))
        return cls(origin, first, second)

    def point(self, x: float, y: float) -> Tensor:
        return self.origin + x * self.first + y * self.second

    def project(self, vector: Tensor) -> tuple[float, float, float]:
        """x, y and the distance from the plane."""
        away = (vector - self.origin).double()
        x, y = (float(away @ axis.double()) for axis in (self.first, self.second))
        rest = float(away.square().sum()) - x**2 - y**2
        return x, y, max(rest, 0.0) ** 0.5


def _unit(vector: Tensor, otherwise: str, least: float = 0.0) -> Tensor:
    length = vector.norm(dtype=torch.float64)
    if float(length) <= least:
        raise RequestError(f"{otherwise}: a plane needs three points that span it.")
    return vector / length.to(vector.dtype)


def study(subject: Subject, request: Request) -> Plane:
    """The plane of three epochs, or of two (the first and last late ones where none are named) and the average."""
    points, names = _corners(subject, request)
    axes = Axes.through((load() for load in points), names)
    corners = np.array([axes.project(load())[:2] for load in points])
    low, high = corners.min(axis=0), corners.max(axis=0)
    half = (0.5 + (MARGIN if request.margin is None else request.margin)) * (high - low).max()
    x, y = (np.linspace(middle - half, middle + half, request.points or POINTS) for middle in (low + high) / 2)
    surface = Surface(subject)
    measured = Measured.gathered([surface.at(axes.point(float(a), float(b))) for b in y for a in x], (len(y), len(x)))
    epochs = subject.epochs
    path = np.array([axes.project(subject.iterate(epoch)) for epoch in epochs])
    return Plane(subject.name, x, y, measured, names, corners, np.array(epochs), path[:, :2], path[:, 2])


def _corners(subject: Subject, request: Request) -> tuple[list[Callable[[], Tensor]], tuple[str, ...]]:
    """What gives each of the three points, and their names."""
    if request.epochs is not None and len(request.epochs) > 3:
        raise RequestError(f"--epochs: a plane has three corners, not {len(request.epochs)}.")
    average = subject.average()
    epochs = subject.chosen(request.epochs, least=2 if average is not None else 3)
    if request.epochs is None:
        late = [epoch for epoch in epochs if epoch >= subject.config.schedule.length]
        late = late if len(late) >= (2 if average is not None else 3) else epochs
        epochs = [late[0], late[-1]] if average is not None else [late[0], late[len(late) // 2], late[-1]]
    points: list[Callable[[], Tensor]] = [partial(subject.iterate, epoch) for epoch in epochs]
    names = [f"epoch {epoch:g}" for epoch in epochs]
    if len(points) == 2:
        if average is None:
            raise RequestError(f"{subject.path} holds no average: name three epochs with --epochs.")
        name, mean = average
        points.append(lambda: mean)
        names.append(shown(name))
    return points, tuple(names)


def landscape(request: Request) -> list[Plane]:
    """The plane of each run."""
    if (request.points or POINTS) < 3:
        raise RequestError("--points: a plane needs three points a side at least.")
    with opened(request.runs, request.device) as subjects:
        return [study(subject, request) for subject in subjects]


def rows(result: Sequence[Plane]) -> list[dict[str, Any]]:
    """A line for each run and point of its grid."""
    return [
        {
            "run": one.run,
            "x": float(x),
            "y": float(y),
            **{figure: float(getattr(one.measured, figure)[j, i]) for figure in FIGURES},
        }
        for one in result
        for j, y in enumerate(one.y)
        for i, x in enumerate(one.x)
    ]


def told(result: Sequence[Plane]) -> list[str]:
    """Where the best test loss of each plane is, and the way to the middle of its flat part."""
    lines = []
    for one in result:
        j, i = np.unravel_index(one.measured.test_loss.argmin(), one.measured.test_loss.shape)
        best = np.array([one.x[i], one.y[j]])
        away = ", ".join(
            f"{np.linalg.norm(best - corner):.3g} from {name}"
            for corner, name in zip(one.corners, one.names, strict=True)
        )
        lines.append(f"{one.run}: the lowest test loss of the plane, {one.measured.test_loss[j, i]:.4g}, is {away}")
        lines.append(f"{one.run}: {_middles(one)}")
    return lines


def middle(one: Plane, within: float = WITHIN) -> tuple[np.ndarray, bool]:
    """The centre (2,) of the points within so much of the lowest test error, and whether the grid cuts them off."""
    inside = one.measured.test_error <= one.measured.test_error.min() + within
    j, i = np.nonzero(inside)
    edge = inside[0].any() or inside[-1].any() or inside[:, 0].any() or inside[:, -1].any()
    return np.array([one.x[i].mean(), one.y[j].mean()]), bool(edge)


def nearest(one: Plane, point: np.ndarray) -> tuple[float, float]:
    """The epoch of the kept iterate that projects nearest to a point (2,) of the plane, and how near."""
    within = np.linalg.norm(one.trajectory - point, axis=1)
    number = int(within.argmin())
    return float(one.epochs[number]), float(within[number])


def off_plane(one: Plane) -> np.ndarray:
    """How far from the plane those kept iterates are that do not lie in it but for rounding: (E',)."""
    return np.sort(one.off[one.off > _IN_PLANE * np.ptp(one.x)])


def _middles(one: Plane) -> str:
    """Distances in the plane alone, for flat parts of several heights, and what the grid and the plane leave open.

    What spans the plane lies in it by its choice, and no other iterate does: whole distances would compare nothing.
    """
    parts = []
    for within in WITHINS:
        centre, edge = middle(one, within)
        epoch, apart = nearest(one, centre)
        away = ", ".join(
            f"{name} {np.linalg.norm(centre - corner):.3g}" for corner, name in zip(one.corners, one.names, strict=True)
        )
        cut = " (which reach the edge)" if edge else ""
        parts.append(f"{within:g}%{cut}: {away}, the nearest iterate (epoch {epoch:g}) {apart:.3g}")
    off = off_plane(one)
    beside = f"; iterates that do not span the plane are {off[0]:.3g} to {off[-1]:.3g} off it" if len(off) else ""
    beside += f", half of them more than {np.median(off):.3g}" if len(off) > 1 else ""
    return (
        "distance within the plane from the middle of the points this near to the lowest test error: "
        f"{'; '.join(parts)}; points are {one.x[1] - one.x[0]:.3g} apart{beside}"
    )


def draw(result: Sequence[Plane]) -> Any:
    """Train loss, test loss and test error of each run as filled contours."""
    drawn, grid = new_grid(len(result), 3, 14.4, 4.3)
    for panels, one in zip(grid, result, strict=True):
        for panel, figure in zip(panels, ("train_loss", "test_loss", "test_error"), strict=True):
            _contours(drawn, panel, one, figure)
    drawn.tight_layout()
    return drawn


def _contours(drawn: Any, panel: Any, one: Plane, figure: str) -> None:
    from matplotlib.colors import BoundaryNorm
    from matplotlib.patheffects import withStroke

    values = getattr(one.measured, figure)
    logarithmic = figure.endswith("loss")
    # Finer near the minimum, where the corners are; what lies far above them is of no interest.
    low, high = float(values.min()), float(np.quantile(values, 0.95))
    if logarithmic:
        levels = np.geomspace(max(low, 1e-6), max(high, low * 1.01, 2e-6), 16)
    else:
        span = max(high - low, 0.5)
        levels = low + span * np.linspace(0, 1, 12) ** max(np.log(span / NEXT) / np.log(11), 1.0)
    # A colour a level, however close they lie.
    shades = {"cmap": "viridis_r", "norm": BoundaryNorm(levels, 256, extend="both")}
    filled = panel.contourf(one.x, one.y, values, levels=levels, extend="both", **shades)
    bar = drawn.colorbar(filled, ax=panel, fraction=0.046, pad=0.03)
    bar.ax.set_yticks(levels[::3], [f"{level:.3g}" for level in levels[::3]])
    bar.ax.minorticks_off()
    inside = (one.trajectory >= [one.x[0], one.y[0]]).all(axis=1) & (one.trajectory <= [one.x[-1], one.y[-1]]).all(
        axis=1
    )
    path = one.trajectory[inside]
    edged = [withStroke(linewidth=2.2, foreground="#404040")]
    panel.plot(path[:, 0], path[:, 1], "-", color="white", linewidth=0.9, path_effects=edged)
    panel.plot(path[:, 0], path[:, 1], "o", color="white", markersize=3, markeredgecolor="#404040", markeredgewidth=0.5)
    for (x, y), name in zip(one.corners, one.names, strict=True):
        marker = "o" if name.startswith("epoch") else "s"
        panel.plot(x, y, marker, color="#c0392b", markeredgecolor="white", markersize=8, zorder=4)
        outlined = {"path_effects": [withStroke(linewidth=2.5, foreground="white")], "color": "#222222", "fontsize": 9}
        # Away from the other corners, unless it would run over the edge; an average's above all.
        left = x < one.corners[:, 0].mean()
        if (x - one.x[0] if left else one.x[-1] - x) < 0.25 * (one.x[-1] - one.x[0]):
            left = not left
        place = {"xytext": (-7 if left else 7, 6 if marker == "s" else -14), "ha": "right" if left else "left"}
        panel.annotate(name, (x, y), textcoords="offset points", zorder=5, **place, **outlined)
    panel.set(xlabel="distance", ylabel="distance", xlim=(one.x[0], one.x[-1]), ylim=(one.y[0], one.y[-1]))
    name, _, kind = figure.partition("_")
    outline = ""
    if not logarithmic:
        panel.contour(
            one.x, one.y, values, levels=[low + WITHIN], colors="#c0392b", linewidths=1.4, linestyles="dashed"
        )
        outline = f" (%), dashed: lowest + {WITHIN:g}"
    panel.set_title(f"{one.run}: {name} {kind}{outline}", fontsize=11)
    panel.set_aspect("equal")


STUDY = Study(
    summary="error and loss on the plane through three iterates, or two and the average, with the trajectory",
    run=landscape,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"epochs", "points", "margin"}),
    iterates=2,
)
