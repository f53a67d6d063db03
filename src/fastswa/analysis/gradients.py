"""Gradients along training: how large each term's is, and how much a batch's differs from the mean (figure 2a, A.1).

Of every loss term, weighted as it is trained, and of their sum: the root mean square norm of a batch's gradient (what
a step feels), the norm of the mean over batches, and the trace of the covariance E||g - E g||² over batches, views and
dropout. Read from what training recorded (`--analysis.gradients`), or computed from what was kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastswa.analysis.drawing import finish
from fastswa.analysis.study import Request, Study, colours
from fastswa.analysis.subject import Subject, flat, opened, run_names
from fastswa.config import Config
from fastswa.errors import RequestError
from fastswa.methods.method import Batch
from fastswa.noise import Noise, step_words
from fastswa.tables.figures import new_figure
from fastswa.training.device import Compute
from fastswa.training.folder import RunFolder
from fastswa.training.optimiser import learning
from fastswa.training.setup import Material
from fastswa.training.state import State, preserved

RECORD = "gradients.jsonl"
LOSS = "loss"
BATCHES = 32
FIGURES = ("step_norm", "mean_norm", "trace")


@dataclass(frozen=True)
class Gradients:
    """One run's figures: each array is (E,), by term (`loss` is the sum of all)."""

    run: str
    method: str
    epochs: np.ndarray
    step_norm: dict[str, np.ndarray]
    mean_norm: dict[str, np.ndarray]
    trace: dict[str, np.ndarray]


class Moments:
    """Mean and spread of vectors that are shown one at a time; only the mean is held."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._spread = torch.zeros((), dtype=torch.float64)
        self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, vector: Tensor) -> None:
        """Welford's update, which subtracts no large numbers from one another."""
        self.count += 1
        if self._mean is None:
            self._mean = torch.zeros_like(vector, dtype=torch.float32 if vector.dtype != torch.float64 else None)
            self._spread = self._spread.to(vector.device)
            self._squares = self._squares.to(vector.device)
        before = vector - self._mean
        self._mean += before / self.count
        self._spread += (before * (vector - self._mean)).sum(dtype=torch.float64)
        self._squares += vector.square().sum(dtype=torch.float64)

    def figures(self) -> dict[str, float]:
        """`step_norm`, `mean_norm` and `trace` (unbiased) of at least two vectors."""
        assert self._mean is not None
        return {
            "step_norm": float((self._squares / self.count).sqrt()),
            "mean_norm": float(self._mean.norm(dtype=torch.float64)),
            "trace": float(self._spread / (self.count - 1)),
        }


def measure(
    state: State, config: Config, material: Material, compute: Compute, batches: int, purpose: str = "analysis"
) -> dict[str, dict[str, float]]:
    """The figures of each term at a state, over batches as training draws them; the state is left as it was."""
    moments: dict[str, Moments] = {}
    parameters = list(learning(state.student).values())
    with preserved(state.tensors().values()):
        for batch in method_batches(state, config, material, batches, purpose):
            terms = _terms(state, batch, compute)
            whole = torch.zeros(())
            for number, (name, term) in enumerate(terms.items()):
                gradient = flat(
                    torch.autograd.grad(
                        term,
                        parameters,
                        retain_graph=number < len(terms) - 1,
                        allow_unused=True,
                        materialize_grads=True,
                    )
                )
                moments.setdefault(name, Moments()).add(gradient)
                whole = gradient if number == 0 else whole + gradient
            moments.setdefault(LOSS, Moments()).add(whole)
    return {name: one.figures() for name, one in moments.items()}


def method_batches(state: State, config: Config, material: Material, count: int, purpose: str) -> Iterator[Batch]:
    """Batches as a step of the state's epoch sees them, chosen by `purpose`."""
    plan = material.plan
    epoch = plan.pace.epoch(state.step)
    weight = torch.tensor(state.method.weight(epoch), dtype=material.augment.scale.dtype, device=material.pixels.device)
    words = torch.from_numpy(step_words(config.seed, purpose, state.step, count)).to(material.pixels.device)
    for number, row in enumerate(_rows(config, material, count, purpose)):
        pixels, index = material.batch(row)
        noise = Noise(words[number])

        def view(
            name: str,
            rows: slice = slice(None),
            pixels: Tensor = pixels,
            index: Tensor = index,
            noise: Noise = noise,
        ) -> Tensor:
            return material.augment.view(pixels, index[rows], noise.scope(f"view/{name}"))

        labels = material.labels[torch.from_numpy(row[: plan.labelled]).to(material.labels.device)]
        yield Batch(labels=labels, index=index, weight=weight, noise=noise, view=view)


def _rows(config: Config, material: Material, count: int, purpose: str) -> Iterator[np.ndarray]:
    """Image numbers of `count` batches, from as many epochs of the plan as that takes."""
    done = 0
    while done < count:
        for row in material.plan.epoch(config.seed, done, purpose)[: count - done]:
            done += 1
            yield row


def _terms(state: State, batch: Batch, compute: Compute) -> dict[str, Tensor]:
    with compute.arithmetic():
        target = None if state.teacher is None else state.method.target(batch, state.teacher)
        return state.method.losses(batch, state.student, target)


def from_checkpoints(subject: Subject, epochs: Sequence[float], batches: int) -> Gradients:
    """The figures at kept epochs."""
    found = [
        measure(subject.state(epoch), subject.config, subject.material, subject.compute, batches) for epoch in epochs
    ]
    return _collected(subject.name, subject.config.method.name, epochs, found)


def recorded(path: Path, name: str | None = None) -> Gradients | None:
    """What the run wrote while it trained; None where it wrote nothing."""
    file = path / RECORD
    if not file.is_file():
        return None
    try:
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        method = RunFolder.open(path).config().method.name
        epochs, found = [line["epoch"] for line in lines], [line["terms"] for line in lines]
        return _collected(name or path.name, method, epochs, found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{file} is damaged; take it away, and the kept checkpoints are used.") from error


def _collected(
    run: str, method: str, epochs: Sequence[float], found: Sequence[dict[str, dict[str, float]]]
) -> Gradients:
    terms = list(dict.fromkeys(name for one in found for name in one))
    series = {
        figure: {name: np.array([one.get(name, {}).get(figure, np.nan) for one in found]) for name in terms}
        for figure in FIGURES
    }
    return Gradients(run, method, np.array(epochs, dtype=float), **series)


def gradients(request: Request) -> list[Gradients]:
    """Each run's figures: those that it recorded, unless epochs or a number of batches are asked for."""
    names = run_names(request.runs)
    as_recorded = request.epochs is None and request.batches is None
    kept = {path: recorded(path, name) if as_recorded else None for path, name in names.items()}
    missing = [path for path, found in kept.items() if found is None]
    computed = {}
    if missing:
        batches = request.batches or BATCHES
        if batches < 2:
            raise RequestError("--batches: a covariance needs two batches at least.")
        with opened(missing, request.device) as subjects:
            for subject in subjects:
                asked = subject.states() if request.epochs is None else request.epochs
                epochs = subject.chosen(asked, least=1)
                computed[subject.path] = from_checkpoints(subject, epochs, batches)
    return [kept[path] or computed[path] for path in request.runs]


def rows(result: Sequence[Gradients]) -> list[dict[str, Any]]:
    """A line for each run, epoch and term."""
    return [
        {
            "run": one.run,
            "epoch": float(epoch),
            "term": term,
            **{figure: float(getattr(one, figure)[term][number]) for figure in FIGURES},
        }
        for one in result
        for number, epoch in enumerate(one.epochs)
        for term in one.trace
    ]


def told(result: Sequence[Gradients]) -> list[str]:
    """The last epoch in words."""
    lines = []
    for one in result:
        parts = [f"{_short(term)} {series[-1]:.3g}" for term, series in one.step_norm.items() if term != "tie"]
        lines.append(
            f"{one.run}: gradient norms at epoch {one.epochs[-1]:g}: {', '.join(parts)}; "
            f"covariance trace {one.trace[LOSS][-1]:.3g}"
        )
    return lines


def _short(term: str) -> str:
    return {"classification": "cross entropy", LOSS: "loss"}.get(term, term)


def draw(result: Sequence[Gradients]) -> Any:
    """Gradient norms of cross entropy and consistency, and the covariance trace, against the epoch."""
    drawn, (norms, traces) = new_figure(2, 11, 4.8)
    shades = colours([one.run for one in result])
    styles = {"classification": (0, (4, 2)), "consistency": "solid"}
    for one in result:
        look = {"color": shades[one.run], "marker": ".", "markersize": 5}
        for term, style in styles.items():
            if term in one.step_norm:
                norms.plot(one.epochs, one.step_norm[term], linestyle=style, label=f"{one.run}: {_short(term)}", **look)
        traces.plot(one.epochs, one.trace[LOSS], label=one.run, **look)
    norms.set_ylabel("gradient norm of a batch, root mean square")
    traces.set_ylabel("trace of the gradient covariance")
    for panel in (norms, traces):
        panel.set_xlabel("epoch")
        panel.set_yscale("log")
        finish(panel, below=True)
    norms.set_title("the terms' gradients")
    traces.set_title("how batches differ")
    drawn.tight_layout()
    return drawn


STUDY = Study(
    summary="norms of the terms' gradients and the trace of their covariance along training",
    run=gradients,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"epochs", "batches"}),
    iterates=1,
)
