"""Pairs of iterates (figure 3, A.1): what is gained by ensembling two, or by averaging their weights?

Diversity is the share of test images on which two networks disagree. C_ens = (Err(w1) + Err(w2)) / 2 - Err(ensemble)
and C_avg the same for the average (w1 + w2) / 2, all in percent. Beside it, the ensemble of the first n iterates and
the average of their weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastswa.analysis.drawing import finish, new_grid
from fastswa.analysis.study import Request, Study, colours
from fastswa.analysis.subject import Subject, opened
from fastswa.analysis.surface import Surface
from fastswa.noise import derive_seed

# What is drawn against what: the paper's four scatters.
SCATTERS = (("distance", "c_avg"), ("diversity", "c_ens"), ("diversity", "c_avg"), ("distance", "diversity"))
AXES = {
    "distance": "distance of the weights",
    "diversity": "diversity (%)",
    "c_avg": "gain of averaging weights, $C_{avg}$ (%)",
    "c_ens": "gain of ensembling, $C_{ens}$ (%)",
}
_GAINS = {"c_ens": "$C_{ens}$", "c_avg": "$C_{avg}$"}


@dataclass(frozen=True)
class Pairs:
    """One run's pairs, (N,) each, and the error of each iterate (E,); `count` (E,) iterates ensembled and averaged."""

    run: str
    method: str
    epochs: np.ndarray
    error: np.ndarray
    first: np.ndarray
    second: np.ndarray
    distance: np.ndarray
    diversity: np.ndarray
    c_ens: np.ndarray
    c_avg: np.ndarray
    correlation: dict[str, float]
    count: np.ndarray
    ensemble_error: np.ndarray
    average_error: np.ndarray


def error_of(probabilities: Tensor, labels: Tensor) -> float:
    """The share of wrong answers of (N, classes), in percent."""
    return 100.0 * float((probabilities.argmax(dim=1) != labels).double().mean())


def diversity(first: Tensor, second: Tensor) -> float:
    """The share of images on which two answers (N, classes) differ, in percent."""
    return error_of(first, second.argmax(dim=1))


def gain_of_ensembling(first: Tensor, second: Tensor, labels: Tensor) -> float:
    """C_ens of two answers; the ensemble is the mean of their probabilities."""
    alone = 0.5 * (error_of(first, labels) + error_of(second, labels))
    return alone - error_of(0.5 * (first + second), labels)


def choose_pairs(iterates: int, wanted: int, seed: int) -> list[tuple[int, int]]:
    """All pairs of iterates, or `wanted` of them drawn without repetition; in order."""
    every = [(a, b) for a in range(iterates) for b in range(a + 1, iterates)]
    if wanted >= len(every):
        return every
    rng = np.random.default_rng(derive_seed(seed, "analysis/pairs"))
    return [every[number] for number in sorted(rng.choice(len(every), wanted, replace=False))]


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's, or not a number where one of them does not vary."""
    if len(first) < 3 or not first.std() or not second.std():
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def study(subject: Subject, request: Request) -> Pairs:
    """The pairs of a run, holding two iterates at a time."""
    epochs = late(subject, request)
    surface = Surface(subject)
    labels = surface.test.labels
    answers = [surface.probabilities(subject.iterate(epoch)) for epoch in epochs]
    errors = np.array([error_of(answer, labels) for answer in answers])
    chosen = choose_pairs(len(epochs), request.pairs, request.seed)
    halfway = [found for a, of_a in groupby(chosen, itemgetter(0)) for found in _from(surface, epochs, a, of_a)]
    table = [
        (
            distance,
            diversity(answers[a], answers[b]),
            gain_of_ensembling(answers[a], answers[b], labels),
            0.5 * (errors[a] + errors[b]) - mean_error,
        )
        for (a, b), (distance, mean_error) in zip(chosen, halfway, strict=True)
    ]
    columns = dict(zip(("distance", "diversity", "c_ens", "c_avg"), np.array(table).T, strict=True))
    ensembles, averages = _together(subject, surface, epochs, answers)
    return Pairs(
        run=subject.name,
        method=subject.config.method.name,
        epochs=np.array(epochs),
        error=errors,
        first=np.array([epochs[a] for a, _ in chosen]),
        second=np.array([epochs[b] for _, b in chosen]),
        correlation={f"{x}/{y}": correlation(columns[x], columns[y]) for x, y in SCATTERS},
        count=np.arange(1, len(epochs) + 1),
        ensemble_error=ensembles,
        average_error=averages,
        **columns,
    )


def _from(
    surface: Surface, epochs: Sequence[float], a: int, of_a: Iterable[tuple[int, int]]
) -> list[tuple[float, float]]:
    """Of each pair that begins with iterate `a`: the distance of the two, and the error of their average."""
    first, found = surface.subject.iterate(epochs[a]), []
    for _, b in of_a:
        other = surface.subject.iterate(epochs[b])
        distance = float((first - other).norm(dtype=torch.float64))
        found.append((distance, error_of(surface.probabilities(0.5 * (first + other)), surface.test.labels)))
        del other  # before the next is read
    return found


def _together(
    subject: Subject, surface: Surface, epochs: Sequence[float], answers: Sequence[Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the ensemble and of the weight average of the first 1, 2, … iterates."""
    labels = surface.test.labels
    ensembles, averages = [], []
    summed, mean = torch.zeros_like(answers[0]), subject.iterate(epochs[0])
    for number, epoch in enumerate(epochs):
        summed = summed + answers[number]
        ensembles.append(error_of(summed, labels))
        if number:
            mean = mean + (subject.iterate(epoch) - mean) / (number + 1)
        averages.append(error_of(surface.probabilities(mean) if number else answers[0], labels))
    return np.array(ensembles), np.array(averages)


def late(subject: Subject, request: Request) -> list[float]:
    """The epochs asked for; else those from the end of the first descent on, or all where these are fewer than two."""
    if request.epochs is None:
        found = [epoch for epoch in subject.epochs if epoch >= subject.config.schedule.length]
        if len(found) >= 2:
            return found
    return subject.chosen(request.epochs, least=2)


def pairs(request: Request) -> list[Pairs]:
    """The pairs of each run."""
    with opened(request.runs, request.device) as subjects:
        for subject in subjects:
            late(subject, request)
        return [study(subject, request) for subject in subjects]


def rows(result: Sequence[Pairs]) -> list[dict[str, Any]]:
    """A line for each run and pair."""
    names = ("first", "second", "distance", "diversity", "c_ens", "c_avg")
    return [
        {"run": one.run, **{name: float(getattr(one, name)[number]) for name in names}}
        for one in result
        for number in range(len(one.first))
    ]


def told(result: Sequence[Pairs]) -> list[str]:
    """Means and standard deviations over pairs."""
    lines = []
    for one in result:
        values = (getattr(one, name) for name in ("distance", "diversity", "c_ens", "c_avg"))
        distance, apart, ens, avg = (
            f"{value.mean():.3g} ± {value.std():.2g}" if len(value) > 1 else f"{value[0]:.3g}" for value in values
        )
        if len(one.first) > 1:
            which = f"{len(one.first)} pairs of {len(one.epochs)} iterates"
        else:
            which = f"epochs {one.first[0]:g} and {one.second[0]:g}"
        lines.append(
            f"{one.run}: {which}: distance {distance}, diversity "
            f"{apart}%, C_ens {ens}%, C_avg {avg}%; all together: ensemble {one.ensemble_error[-1]:.2f}%, average "
            f"{one.average_error[-1]:.2f}%"
        )
    return lines


def draw(result: Sequence[Pairs]) -> Any:
    """The four scatters, the errors of ensembles and averages, and the gains as distributions; of one pair bars."""
    if all(len(one.first) == 1 for one in result):
        return _draw_single(result)
    drawn, grid = new_grid(2, 3, 12.6, 3.9)
    shades = colours([one.run for one in result])
    panels = [*grid[0][:3], grid[1][0]]
    for panel, (x, y) in zip(panels, SCATTERS, strict=True):
        for one in result:
            r = one.correlation[f"{x}/{y}"]
            label = one.run if np.isnan(r) else f"{one.run} (r = {r:.2f})"
            panel.plot(getattr(one, x), getattr(one, y), ".", color=shades[one.run], alpha=0.6, label=label)
        panel.set_xlabel(AXES[x])
        panel.set_ylabel(AXES[y])
        if y.startswith("c_"):
            panel.axhline(0, color="#404040", linewidth=0.8)
    _many(grid[1][1], result, shades)
    _gains(grid[1][2], result, shades)
    for panel in grid.flat:
        finish(panel)
    drawn.tight_layout()
    return drawn


def _draw_single(result: Sequence[Pairs]) -> Any:
    """One pair a run: its figures as bars with numbers on them, runs told apart by name."""
    drawn, grid = new_grid(1, 3, 12.6, 3.6)
    shades = colours([one.run for one in result])
    bars = (("distance", ("distance",)), ("diversity", ("diversity",)), ("gain (%)", ("c_ens", "c_avg")))
    for panel, (label, names) in zip(grid[0], bars, strict=True):
        width = 0.7 / len(names)
        for number, one in enumerate(result):
            for aside, name in enumerate(names):
                place, value = number + width * (aside - (len(names) - 1) / 2), float(getattr(one, name)[0])
                panel.bar(place, value, 0.92 * width, color=shades[one.run], alpha=0.5 if name == "c_ens" else 1.0)
                text = "\n".join([*([_GAINS[name]] if name in _GAINS else []), f"{value:.3g}"])
                up = value >= 0
                look = {"ha": "center", "va": "bottom" if up else "top", "fontsize": 8, "textcoords": "offset points"}
                panel.annotate(text, (place, value), xytext=(0, 2 if up else -2), **look)
        panel.axhline(0, color="#404040", linewidth=0.8)
        panel.margins(y=0.2)
        panel.set_xticks(range(len(result)), [one.run for one in result])
        panel.set_ylabel(AXES.get(label, label))
        panel.set_axisbelow(True)
        panel.grid(alpha=0.25, axis="y")
    which = {f"epochs {one.first[0]:g} and {one.second[0]:g}" for one in result}
    grid[0][1].set_title(which.pop() if len(which) == 1 else "one pair a run")
    drawn.tight_layout()
    return drawn


def _many(panel: Any, result: Sequence[Pairs], shades: dict[str, str]) -> None:
    for one in result:
        panel.plot(one.count, one.average_error, color=shades[one.run], label=f"{one.run}: average")
        dashed = {"linestyle": (0, (4, 2)), "label": f"{one.run}: ensemble"}
        panel.plot(one.count, one.ensemble_error, color=shades[one.run], **dashed)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("iterates taken together")
    panel.set_ylabel("test error (%)")


def _gains(panel: Any, result: Sequence[Pairs], shades: dict[str, str]) -> None:
    for number, one in enumerate(result):
        for place, gains in ((number - 0.18, one.c_ens), (number + 0.18, one.c_avg)):
            box = panel.boxplot([gains], positions=[place], widths=0.3, showfliers=False, patch_artist=True)
            box["boxes"][0].set(facecolor=shades[one.run], alpha=0.35 if place < number else 0.8)
            box["medians"][0].set(color="black")
    panel.axhline(0, color="#404040", linewidth=0.8)
    ticks = [(number + aside, name) for number in range(len(result)) for aside, name in ((-0.18, "ens"), (0.18, "avg"))]
    panel.set_xticks([place for place, _ in ticks], [name for _, name in ticks])
    for number, one in enumerate(result):
        panel.text(number, -0.16, one.run, ha="center", transform=panel.get_xaxis_transform())
    panel.set_ylabel("gain over the two alone (%)")


STUDY = Study(
    summary="distance, diversity and the gains of ensembling and averaging over pairs of iterates",
    run=pairs,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"epochs", "pairs", "seed"}),
    iterates=2,
)
