"""When iterates of a high learning rate help an average (A.7), simulated, with a run's own rates marked.

SGD is taken to draw iterates from N(w0, η Σ). The mean of n iterates of rate η1 and m of rate η2 is off by
E||ŵ - w0||² = (n η1 + m η2) / (n + m)² tr Σ, less than without the m if m > n (η2 / η1 - 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastswa.analysis.drawing import finish, new_grid
from fastswa.analysis.study import Request, Study, colours
from fastswa.analysis.subject import run_names
from fastswa.config import AverageConfig, Config
from fastswa.errors import RequestError
from fastswa.noise import derive_seed
from fastswa.tables.figures import averaged_epochs
from fastswa.training.feed import learning_rate
from fastswa.training.folder import RunFolder

_DIMENSIONS = 50


@dataclass(frozen=True)
class Averaging:
    """With n iterates of the low rate, the mean squared distance from w0 for `m` (M,) of the high rate, over tr Σ.

    `low` and `high` are the run's rates where SWA averages and where fast-SWA averages besides, the mean of them;
    `per_cycle` is how many of those it takes for each of SWA's, and `enough` how many would do. `iterates` (N,) counts
    those that the run's fast-SWA has taken by `epochs` (N,); `fast_swa` and `swa` (N,) are what is expected there.
    """

    run: str
    n: int
    low: float
    high: float
    per_cycle: float
    enough: float
    m: np.ndarray
    simulated: np.ndarray
    formula: np.ndarray
    epochs: np.ndarray
    iterates: np.ndarray
    fast_swa: np.ndarray
    swa: np.ndarray


def expected(n: float, low: float, m: np.ndarray, high: float) -> np.ndarray:
    """E||ŵ - w0||² / tr Σ of n iterates of the low rate and m of the high one."""
    error: np.ndarray = (n * low + m * high) / (n + m) ** 2
    return error


def threshold(n: float, low: float, high: float) -> float:
    """How many iterates of the high rate must be added before they help; 0 where each does."""
    return max(n * (high / low - 2), 0.0)


def simulated(n: int, low: float, m: int, high: float, repeats: int, seed: int) -> float:
    """The same by drawing iterates, with a covariance whose eigenvalues fall off."""
    rng = np.random.default_rng(derive_seed(seed, "analysis/averaging", m))
    spectrum = 1.0 / np.arange(1, _DIMENSIONS + 1)
    rates = np.concatenate([np.full(n, low), np.full(m, high)])
    iterates = rng.standard_normal((repeats, n + m, _DIMENSIONS)) * np.sqrt(rates[:, None] * spectrum)
    return float(np.square(iterates.mean(axis=1)).sum(axis=1).mean() / spectrum.sum())


def study(path: Path, name: str, request: Request) -> Averaging:
    """What the rule says of a run's schedule and averages."""
    config = RunFolder.open(path).config()
    low, high, per_cycle = rates_of(config, path)
    n = 3
    enough = threshold(n, low, high)
    m = np.unique(np.round(np.linspace(0, max(3 * enough, 3 * n, n * per_cycle * 1.3), 25)).astype(int))
    drawn = [simulated(n, low, int(count), high, 40 * request.draws, request.seed) for count in m]
    epochs, fast, swa = along(config)
    return Averaging(
        run=name,
        n=n,
        low=low,
        high=high,
        per_cycle=per_cycle,
        enough=enough / n,
        m=m,
        simulated=np.array(drawn),
        formula=expected(n, low, m, high),
        epochs=epochs,
        iterates=np.arange(1, len(epochs) + 1),
        fast_swa=fast,
        swa=swa,
    )


def rates_of(config: Config, path: Path) -> tuple[float, float, float]:
    """The rate at a cycle's end, the mean of the others that fast-SWA averages within one, and how many these are."""
    schedule = config.schedule
    fast = next((average for average in config.averaging.values() if average.kind == "fast-swa"), None)
    if fast is None or not fast.every:
        raise RequestError(f"{path} has no fast-SWA average that is taken every so many epochs.")
    constant = schedule.after == "constant" or not schedule.cycle
    low = learning_rate(config, schedule.length) if constant else _rate(config, schedule.length)
    if low == 0:
        raise RequestError(
            f"{path}: the learning rate is zero where SWA averages, so that no rate can be compared to it."
        )
    if constant:
        return low, low, 1.0
    inside = np.arange(schedule.length + fast.every, schedule.length + schedule.cycle - 1e-9, fast.every)
    if not len(inside):
        raise RequestError(f"{path}: fast-SWA takes no iterate between the ends of a cycle, so there is no high rate.")
    return low, float(np.mean([_rate(config, epoch) for epoch in inside])), float(len(inside))


def along(config: Config) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs at which fast-SWA averages, and the errors expected of it and of SWA by then (nan before its first)."""
    fast = next(average for average in config.averaging.values() if average.kind == "fast-swa")
    own = next((average for average in config.averaging.values() if average.kind == "swa" and average.every), None)
    cycle = config.schedule.cycle if config.schedule.after == "cycles" else 0.0
    swa = own or AverageConfig(kind="swa", start=config.schedule.length, every=cycle or 1.0)
    epochs, ends = (averaged_epochs(average, config.schedule.epochs) for average in (fast, swa))
    # With nan in front for the epochs before SWA's first.
    errors = np.concatenate([[np.nan], _course(config, ends)])
    return epochs, _course(config, epochs), errors[np.searchsorted(ends, epochs + 1e-9)]


def _course(config: Config, epochs: np.ndarray) -> np.ndarray:
    """The error expected of the mean of the iterates of these epochs, after each of them."""
    rates = np.array([_rate(config, epoch) for epoch in epochs])
    error: np.ndarray = np.cumsum(rates) / np.arange(1, len(epochs) + 1) ** 2
    return error


def _rate(config: Config, epoch: float) -> float:
    """The rate that led to the weights at the start of an epoch."""
    return learning_rate(config, max(epoch - 1e-9, 0.0))


def averaging(request: Request) -> list[Averaging]:
    """The rule for each run."""
    return [study(path, name, request) for path, name in run_names(request.runs).items()]


def rows(result: Sequence[Averaging]) -> list[dict[str, Any]]:
    """A line for each run and number of high-rate iterates."""
    return [
        {
            "run": one.run,
            "n": one.n,
            "m": int(one.m[number]),
            "low": one.low,
            "high": one.high,
            "simulated": float(one.simulated[number]),
            "formula": float(one.formula[number]),
        }
        for one in result
        for number in range(len(one.m))
    ]


def told(result: Sequence[Averaging]) -> list[str]:
    """The rule in words."""
    return [
        f"{one.run}: rates {one.low:.4g} where SWA averages and {one.high:.4g} where fast-SWA does besides: these help "
        f"from {one.enough:.3g} for each of SWA's on, and it takes {one.per_cycle:g}"
        for one in result
    ]


def draw(result: Sequence[Averaging]) -> Any:
    """The error against the number of high-rate iterates, and along each run's own averages."""
    drawn, grid = new_grid(1, 2, 11, 4.2)
    shades = colours([one.run for one in result])
    rule, course = grid[0]
    for one in result:
        colour = shades[one.run]
        scale = one.low / one.n
        rule.plot(
            one.m / one.n, one.formula / scale, color=colour, label=f"{one.run}: η2/η1 = {one.high / one.low:.2f}"
        )
        rule.plot(one.m / one.n, one.simulated / scale, ".", color=colour)
        if one.enough:
            rule.axvline(one.enough, color=colour, linewidth=0.8, linestyle=(0, (1, 2)))
        here = expected(one.n, one.low, np.array(one.n * one.per_cycle), one.high) / scale
        rule.plot(one.per_cycle, here, "D", color=colour, markeredgecolor="white", markersize=8, zorder=4)
        course.plot(one.epochs, one.fast_swa, color=colour, label=f"{one.run}: fast-SWA")
        course.plot(one.epochs, one.swa, color=colour, linestyle=(0, (4, 2)), label=f"{one.run}: SWA")
    rule.axhline(1, color="#404040", linewidth=0.8)
    rule.plot([], [], ".", color="#404040", label="simulated")
    rule.plot([], [], "D", color="#404040", label="the run's fast-SWA")
    rule.plot([], [], color="#404040", linestyle=(0, (1, 2)), label="m / n = η2/η1 - 2")
    rule.set(xlabel="high-rate iterates for each low-rate one, m / n", ylabel="E||ŵ - w0||² over that of SWA")
    rule.set_title("when high-rate iterates help")
    course.set(xlabel="epoch", ylabel="E||ŵ - w0||² / tr Σ", title="along the run, if iterates were independent")
    course.set_yscale("log")
    for panel in grid[0]:
        finish(panel)
    drawn.tight_layout()
    return drawn


STUDY = Study(
    summary="when iterates of a high learning rate help an average: the rule, simulated, and the run's own rates",
    run=averaging,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"draws", "seed"}),
)
