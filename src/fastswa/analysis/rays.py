"""Train and test error along rays in weight space (figure 2b-d, A.1): how wide are the solutions, and which way?

From one SGD iterate through another; from an iterate in random directions and in that of steepest ascent of the
cross entropy; and from an iterate through the average. The axis is the distance from where a ray starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastswa.analysis.drawing import finish, new_grid
from fastswa.analysis.study import Request, Study, colours
from fastswa.analysis.subject import Subject, opened
from fastswa.analysis.surface import FIGURES, Measured, Surface
from fastswa.console import shown
from fastswa.errors import RequestError
from fastswa.noise import derive_seed

KINDS = {
    "sgd": "SGD-SGD",
    "average": "SGD-SWA",
    "random": "random",
    "adversarial-train": "adversarial (train)",
    "adversarial-test": "adversarial (test)",
}
BEFORE, BEYOND = 1.0, 3.0
POINTS = 41
# How much higher than the lowest test error still counts as flat, in percent.
WITHIN = 1.0
# Adversarial rays are looked at where this root of the distance is in equal steps: errors there rise at once.
ROOT = 3
# What is drawn of errors ends at so many times the lowest test error.
HIGHEST = 2.0


@dataclass(frozen=True)
class Ray:
    """Points at `distance` (T,) from the start; `marks` are the distances of the two weights that it runs through.

    Of several rays `measured` is the mean, and `spread` (T,) the standard deviation of the test error over them.
    """

    kind: str
    start: str
    end: str
    distance: np.ndarray
    measured: Measured
    marks: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True)
class Rays:
    """The rays of one run; `length` is the norm of the weights that random and adversarial ones start from.

    A network whose weights are normalised does not change with their length, and larger gradients make it larger, so
    that distances of different runs are to be seen beside it.
    """

    run: str
    method: str
    unlabelled: int
    rays: list[Ray]
    length: float


Point = Callable[[Tensor], Sequence[float]]


def along(point: Point, start: Tensor, direction: Tensor, distances: np.ndarray) -> Measured:
    """What `point` says along start + s · direction, for a unit vector and each distance s."""
    return Measured.gathered([point(start + float(s) * direction) for s in distances])


def between(point: Point, start: Tensor, end: Tensor, points: int, names: tuple[str, str], kind: str) -> Ray:
    """The ray through two points, from their distance before the first to twice that behind the second."""
    length = float((end - start).norm(dtype=torch.float64))
    if length == 0:
        raise RequestError(f"{names[0]} and {names[1]} are the same weights: a ray needs two different ones.")
    t = through(points)
    measured = along(point, start, (end - start) / length, t * length)
    return Ray(kind, *names, t * length, measured, np.array([0.0, length]), np.zeros(points))


def through(points: int) -> np.ndarray:
    """Where a ray through two points is looked at, the two (0 and 1) among them: (points,)."""
    steps = points - 1
    before = max(1, round(steps * BEFORE / (BEFORE + BEYOND)))
    inside = max(1, round(steps / (BEFORE + BEYOND)))
    beyond = max(1, steps - before - inside)
    return np.concatenate(
        [
            np.linspace(-BEFORE, 0, before, endpoint=False),
            np.linspace(0, 1, inside, endpoint=False),
            np.linspace(1, BEYOND, beyond + 1),
        ]
    )


def random_directions(size: int, count: int, seed: int, like: Tensor) -> list[Tensor]:
    """Unit vectors, uniform on the sphere; drawn on the host, so that every device sees the same."""
    found = []
    for number in range(count):
        generator = torch.Generator().manual_seed(derive_seed(seed, "analysis/rays", number))
        vector = torch.randn(size, generator=generator, dtype=torch.float64)
        found.append((vector / vector.norm()).to(like.device, like.dtype))
    return found


def random_ray(point: Point, start: Tensor, distances: np.ndarray, count: int, seed: int, name: str) -> Ray:
    """The mean over `count` random directions."""
    each = [along(point, start, d, distances) for d in random_directions(len(start), count, seed, start)]
    mean = Measured(*(np.mean([getattr(one, figure) for one in each], axis=0) for figure in FIGURES))
    spread = np.std([one.test_error for one in each], axis=0)
    return Ray("random", name, f"{count} directions", distances, mean, np.array([0.0]), spread)


def adversarial_ray(surface: Surface, start: Tensor, distances: np.ndarray, images: str, name: str) -> Ray:
    """The direction of steepest ascent of the cross entropy on `train` or `test` images."""
    direction = surface.gradient(start, images)
    length = float(direction.norm(dtype=torch.float64))
    if length == 0:
        raise RequestError(f"{name}: the gradient of the cross entropy is zero there, so no direction is the steepest.")
    measured = along(surface.at, start, direction / length, distances)
    return Ray(
        f"adversarial-{images}", name, "gradient", distances, measured, np.array([0.0]), np.zeros(len(distances))
    )


def study(subject: Subject, request: Request, reach: float) -> Rays:
    """All rays of a run: through the last two iterates or the two that are named, and from the last of them.

    Random and adversarial rays go as far as `reach`.
    """
    points = request.points or POINTS
    first, last = subject.chosen(request.epochs, least=2)[-2:]
    surface = Surface(subject)
    early, late = subject.iterate(first), subject.iterate(last)
    names = (f"epoch {first:g}", f"epoch {last:g}")
    rays = [between(surface.at, early, late, points, names, "sgd")]
    average = subject.average()
    if average is not None:
        rays.append(between(surface.at, late, average[1], points, (names[1], shown(average[0])), "average"))
    distances = np.linspace(0.0, reach, (points + 1) // 2)
    rays.append(random_ray(surface.at, late, distances, request.rays, request.seed, names[1]))
    closer = reach * np.linspace(0.0, 1.0, len(distances)) ** ROOT
    rays += [adversarial_ray(surface, late, closer, images, names[1]) for images in ("train", "test")]
    length = float(late.norm(dtype=torch.float64))
    return Rays(subject.name, subject.config.method.name, len(subject.material.split.unlabelled), rays, length)


def rays(request: Request) -> list[Rays]:
    """The rays of each run."""
    if (request.points or POINTS) < 5:
        raise RequestError("--points: a ray needs five points at least.")
    if len(request.epochs or ()) > 2:
        raise RequestError(f"--epochs: a ray goes through two iterates, not {len(request.epochs or ())}.")
    with opened(request.runs, request.device) as subjects:
        # All as far as the longest, so that they can be compared.
        reach = max(_reach(subject, request) for subject in subjects)
        return [study(subject, request, request.distance or reach) for subject in subjects]


def _reach(subject: Subject, request: Request) -> float:
    """How far the SGD-SGD ray of a run goes."""
    first, last = subject.chosen(request.epochs, least=2)[-2:]
    return BEYOND * float((subject.iterate(last) - subject.iterate(first)).norm(dtype=torch.float64))


def basin(ray: Ray) -> tuple[float, float]:
    """Between which distances the test error stays within WITHIN of the ray's lowest, around it."""
    errors, distance = ray.measured.test_error, ray.distance
    limit = float(errors.min()) + WITHIN
    low = high = int(errors.argmin())
    while low > 0 and errors[low - 1] <= limit:
        low -= 1
    while high < len(errors) - 1 and errors[high + 1] <= limit:
        high += 1

    def crossing(inside: int, outside: int) -> float:
        if not 0 <= outside < len(errors):
            return float(distance[inside])
        return float(np.interp(limit, errors[[inside, outside]], distance[[inside, outside]]))

    return crossing(low, low - 1), crossing(high, high + 1)


def rows(result: Sequence[Rays]) -> list[dict[str, Any]]:
    """A line for each run, ray and point."""
    return [
        {
            "run": one.run,
            "ray": ray.kind,
            "start": ray.start,
            "end": ray.end,
            "distance": float(ray.distance[number]),
            **{figure: float(getattr(ray.measured, figure)[number]) for figure in FIGURES},
            "test_error_spread": float(ray.spread[number]),
        }
        for one in result
        for ray in one.rays
        for number in range(len(ray.distance))
    ]


def told(result: Sequence[Rays]) -> list[str]:
    """How far apart the iterates are and what lies between them; how far one can go in other directions."""
    lines = []
    for one in result:
        for ray in one.rays:
            if len(ray.marks) < 2:
                lines.append(f"{one.run}: {KINDS[ray.kind]} rays from {ray.start}: {_rise(ray, one.length)}")
                continue
            ends = np.interp(ray.marks, ray.distance, ray.measured.test_error)
            best = int(ray.measured.test_error.argmin())
            lines.append(
                f"{one.run}: {KINDS[ray.kind]}: {ray.start} and {ray.end} are {ray.marks[1]:.3g} apart"
                f"{_beside(ray.marks[1], one.length)}; test error "
                f"{ends[0]:.2f}% and {ends[1]:.2f}%, lowest {ray.measured.test_error[best]:.2f}% "
                f"at {ray.distance[best]:.3g}; {_flat(ray, one.length)}"
            )
    return lines


def _beside(distance: float, length: float) -> str:
    """A distance as a part of the weights' length."""
    return f" ({distance / length:.2g} of the weights' length)"


def _rise(ray: Ray, length: float) -> str:
    """Where the error along a ray has risen by WITHIN, and what it is at the end.

    Between the start and the first point nothing is known of where: there the error of that point is said instead.
    """
    errors = ray.measured.test_error
    above = np.flatnonzero(errors > errors[0] + WITHIN)
    if not len(above):
        reach = f"{ray.distance[-1]:.3g}{_beside(ray.distance[-1], length)}"
        return f"the test error stays within {WITHIN:g}% of {errors[0]:.2f}% up to {reach}"
    end = f"{errors[-1]:.2f}% at {ray.distance[-1]:.3g}"
    number = int(above[0])
    if number == 1:
        first = f"{ray.distance[1]:.3g}{_beside(ray.distance[1], length)}"
        return f"the test error, {errors[0]:.2f}%, is {errors[1]:.2f}% at the first point, {first}, and {end}"
    near, far = errors[number - 1], errors[number]
    part = (errors[0] + WITHIN - near) / (far - near)
    at = ray.distance[number - 1] + part * (ray.distance[number] - ray.distance[number - 1])
    return f"the test error, {errors[0]:.2f}%, has risen by {WITHIN:g}% at {at:.3g}{_beside(at, length)}, and is {end}"


def _flat(ray: Ray, length: float) -> str:
    """The flat part of a ray, and how far from its middle the two weights are; no middle where it has no end."""
    left, right = basin(ray)
    begins, ends = bool(left <= ray.distance[0]), bool(right >= ray.distance[-1])
    part = (
        f"within {WITHIN:g}% of that from {left:.3g}{' (where the ray begins)' * begins} to "
        f"{right:.3g}{' (where the ray ends)' * ends}: {'at least ' * (begins or ends)}{right - left:.3g} wide"
        f"{_beside(right - left, length)}"
    )
    if begins or ends:
        return part
    first, second = (round(abs(mark - (left + right) / 2), 6) for mark in ray.marks)
    return f"{part}, from whose middle {ray.start} is {first:.3g} and {ray.end} {second:.3g}"


def draw(result: Sequence[Rays]) -> Any:
    """SGD-SGD, SGD-SWA and random rays of all runs beside one another; below, each run's rays if of several kinds."""
    several = len({ray.kind for one in result for ray in one.rays}) > 1 or len(result) == 1
    below = -(-len(result) // 3) if len(result) > 1 and several else 0
    drawn, grid = new_grid(1 + below, 3, 12.3, 4.6) if several else new_grid(1, 1, 6.5, 4.6)
    shades = colours([one.run for one in result])
    if len(result) > 1:
        kinds = [
            kind for kind in ("sgd", "average", "random") if any(ray.kind == kind for one in result for ray in one.rays)
        ]
        for panel in grid[0][len(kinds) :]:
            panel.set_visible(False)
        for panel, kind in zip(grid[0], kinds, strict=False):
            for one in result:
                for ray in (ray for ray in one.rays if ray.kind == kind):
                    _line(panel, ray, shades[one.run], one.run)
            _finish(panel, f"{KINDS[kind]} rays", [ray for one in result for ray in one.rays if ray.kind == kind])
        for panel, one in zip(grid[1:].flat, result, strict=False):
            _of_one(panel, one.rays, f"{one.run}: all rays")
        for panel in grid[1:].flat[len(result) :]:
            panel.set_visible(False)
    else:
        [one] = result
        _of_one(grid[0][0], [ray for ray in one.rays if ray.kind == "sgd"], "SGD-SGD ray")
        _of_one(grid[0][1], [ray for ray in one.rays if ray.kind == "average"], "SGD-SWA ray")
        _of_one(grid[0][2], one.rays, "all rays")
    drawn.tight_layout()
    return drawn


def _of_one(panel: Any, chosen: Sequence[Ray], title: str) -> None:
    shades = dict(zip(KINDS, ("#c0392b", "#e6892b", "#2e8b57", "#1f77b4", "#7d3c98"), strict=True))
    for ray in chosen:
        _line(panel, ray, shades[ray.kind], KINDS[ray.kind])
    _finish(panel, title, chosen)


def _line(panel: Any, ray: Ray, colour: str, label: str) -> None:
    """Test error solid, train error dashed; a circle for an iterate, a square for an average."""
    panel.plot(ray.distance, ray.measured.test_error, color=colour, label=label, linewidth=1.5)
    panel.plot(ray.distance, ray.measured.train_error, color=colour, linestyle=(0, (4, 2)), linewidth=1.2)
    if ray.spread.any():
        low, high = ray.measured.test_error - ray.spread, ray.measured.test_error + ray.spread
        panel.fill_between(ray.distance, low, high, color=colour, alpha=0.15, lw=0)
    for number, mark in enumerate(ray.marks):
        marker = "s" if ray.kind == "average" and number == 1 else "o"
        error = np.interp(mark, ray.distance, ray.measured.test_error)
        panel.plot(mark, error, marker, color=colour, markersize=6, markeredgecolor="white", zorder=4)


def _finish(panel: Any, title: str, drawn: Sequence[Ray]) -> None:
    """Labels, a legend below the panel, and errors no higher than what is near the lowest can be seen beside."""
    panel.plot([], [], color="#404040", label="test")
    panel.plot([], [], color="#404040", linestyle=(0, (4, 2)), label="train")
    if any(ray.kind == "average" for ray in drawn):
        panel.plot([], [], "s", color="#404040", label="average")
    label = "error (%)"
    if drawn:
        highest = 1.05 * max(float(ray.measured.test_error.max()) for ray in drawn) or WITHIN
        limit = _limit(drawn)
        if limit < highest:
            label = f"error (%), cut at {limit:.3g}"
        panel.set_ylim(-0.02 * min(limit, highest), min(limit, highest))
    panel.set_xlabel("distance in weight space")
    panel.set_ylabel(label)
    panel.set_title(title)
    finish(panel, below=True)


def _limit(drawn: Sequence[Ray]) -> float:
    """Up to where errors are drawn: HIGHEST times the lowest of all, and a quarter more than any ray's lowest."""
    lowest = [float(ray.measured.test_error.min()) for ray in drawn]
    return max(HIGHEST * min(lowest), 1.25 * max(lowest), WITHIN)


STUDY = Study(
    summary="error along SGD-SGD, SGD-SWA, random and adversarial rays",
    run=rays,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"epochs", "points", "rays", "distance", "seed"}),
    iterates=2,
)
