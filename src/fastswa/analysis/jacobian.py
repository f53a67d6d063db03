"""What a simplified Pi model penalises (3.1, A.5, A.6): Jacobians of inputs and weights, and the Hessian's trace.

f is a network's class probabilities, at fixed batch-norm statistics, in 64 bits. Q estimates E||J_x||² from one small
perturbation of an input, and E||J_w||² from one of the weights. For the loss ||f - y||² the Hessian's trace is
2 (||J_w||² + rest), where the rest alone depends on the labels, and random rays rise by s² tr(H) / 2p: as far as the
loss is smooth, that is up to the nearest kink of a network of (leaky) ReLUs, and beyond it in the mean at best.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastswa.analysis.drawing import finish, headroom, new_grid
from fastswa.analysis.jacobians import (
    Estimate,
    Function,
    estimate,
    estimate_along,
    hutchinson,
    input_grams,
    q_draws,
    q_finite,
    sharpness,
    weight_grams,
)
from fastswa.analysis.rays import random_directions
from fastswa.analysis.study import Request, Study, colours
from fastswa.analysis.subject import Subject, opened
from fastswa.analysis.surface import Surface, refuse_dropout
from fastswa.errors import RequestError
from fastswa.noise import Noise, derive_seed, step_words
from fastswa.training.optimiser import learning

DASHED = (0, (4, 2))
# What is known of directions that are not normal.
_OF_VIEWS = ("standard_error", "variance")
EPSILONS = (1e-3, 1e-2, 1e-1, 1.0)
_DISTANCES = np.geomspace(0.01, 0.16, 5)


@dataclass(frozen=True)
class Jacobian:
    """One run at its epochs: each array begins with (E,).

    `inputs` and `weights` hold the fields of `Estimate` by name. `finite` (E, S) is Q for inputs at `epsilons` (S,).
    `along_views` is E||J_x d||² / E||d||² for the differences d that augmentation makes, `along_noise` E||J_x||² / D
    for noise of any direction, and `views_change` E||f(x + d) - f(x)||² with d as large as it is. Of tr(H) the part
    that labels enter is estimated by itself, from the same signs. `distances` (E, S) on random rays, with the loss's
    `rise` there, its standard error and what tr(H) predicts. `length` is the norm of the weights: where a network does
    not change with it, as normalised weights do not, the traces of two runs compare once multiplied by its square.
    `views` is the `Estimate` of which `along_views` is the mean; nothing in what was written before there was one.
    """

    run: str
    method: str
    images: int
    parameters: int
    epochs: np.ndarray
    inputs: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    epsilons: np.ndarray
    finite: np.ndarray
    along_views: np.ndarray
    along_noise: np.ndarray
    views_change: np.ndarray
    trace: np.ndarray
    trace_error: np.ndarray
    jacobian_part: np.ndarray
    label_part: np.ndarray
    label_error: np.ndarray
    length: np.ndarray
    distances: np.ndarray
    rise: np.ndarray
    rise_error: np.ndarray
    predicted: np.ndarray
    views: dict[str, np.ndarray] = field(default_factory=dict)


class Probabilities:
    """A network at a point as a function of inputs or of weights, in 64 bits and with its statistics fixed."""

    def __init__(self, network: nn.Module, vector: Tensor) -> None:
        refuse_dropout(network, "the network")
        self.network = copy.deepcopy(network).double()
        self.vector = vector.double()
        self._shapes = [(name, p.shape) for name, p in learning(network).items()]

    def of_inputs(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.network(images).logits.softmax(dim=1)
        return probabilities

    def of_weights(self, images: Tensor) -> Function:
        """The function of the weights for these images."""

        def function(weights: Tensor) -> Tensor:
            pieces = weights.split([shape.numel() for _, shape in self._shapes])
            named = {name: piece.view(shape) for (name, shape), piece in zip(self._shapes, pieces, strict=True)}
            output: Tensor = torch.func.functional_call(self.network, named, (images,)).logits.softmax(dim=1)
            return output

        return function


def study(subject: Subject, request: Request) -> Jacobian:
    """A run at the epochs asked for, or at its last."""
    if subject.material.bank is not None:
        raise RequestError(
            f"{subject.path} learnt from what held layers made of images (augment.kept), and this study disturbs "
            "images; train with --augment.kept 0 for it."
        )
    epochs = subject.chosen(request.epochs, least=1)
    epochs = epochs[-1:] if request.epochs is None else epochs
    surface = Surface(subject)
    rng = np.random.default_rng(derive_seed(request.seed, "analysis/jacobian"))
    count = min(request.images, len(surface.test.labels))
    chosen = torch.from_numpy(np.sort(rng.choice(len(surface.test.labels), count, replace=False)))
    found = [_at(surface, subject.iterate(epoch), chosen.to(subject.compute.device), request) for epoch in epochs]

    def gathered(name: str) -> np.ndarray:
        return np.array([one[name] for one in found])

    def estimates(name: str) -> dict[str, np.ndarray]:
        return {each: np.array([getattr(one[name], each) for one in found]) for each in Estimate._fields}

    plain = {name: gathered(name) for name in found[0] if name not in ("inputs", "weights", "views")}
    return Jacobian(
        run=subject.name,
        method=subject.config.method.name,
        images=count,
        parameters=subject.size,
        epochs=np.array(epochs),
        inputs=estimates("inputs"),
        weights=estimates("weights"),
        views=estimates("views"),
        epsilons=np.array(EPSILONS),
        **plain,
    )


def _at(surface: Surface, vector: Tensor, chosen: Tensor, request: Request) -> dict[str, Any]:
    """All figures at one point, on the test images of the numbers `chosen`."""
    function = Probabilities(surface.put(vector), vector)
    pixels, labels = surface.test.pixels[chosen], surface.test.labels[chosen]
    images = surface.test.augment.plain(pixels).double()
    return {
        **_inputs(function, surface, pixels, images, request),
        **_weights(function, images, labels, request),
    }


def _inputs(
    function: Probabilities, surface: Surface, pixels: Tensor, images: Tensor, request: Request
) -> dict[str, Any]:
    noises = [_normal(images, request.seed, "inputs", number) for number in range(request.draws)]
    grams = input_grams(function.of_inputs, images)
    found = estimate(grams, q_draws(function.of_inputs, images, noises))
    finite = [
        float(torch.stack([q_finite(function.of_inputs, images, z, epsilon) for z in noises]).mean())
        for epsilon in EPSILONS
    ]
    words = torch.from_numpy(step_words(request.seed, "analysis/jacobian", 0, request.draws)).to(images.device)
    rows = torch.arange(len(pixels), device=images.device)
    views = [surface.test.augment.view(pixels, rows, Noise(word)).double() - images for word in words]
    lengths = torch.stack([view.flatten(1).square().sum(dim=1) for view in views])
    along = estimate_along(q_draws(function.of_inputs, images, views), lengths)
    changes = [q_finite(function.of_inputs, images, view, 1.0) for view in views]
    return {
        "inputs": found,
        "finite": finite,
        "views": along,
        "along_views": along.estimate,
        "along_noise": found.exact / images[0].numel(),
        "views_change": float(torch.stack(changes).mean()),
    }


def _weights(function: Probabilities, images: Tensor, labels: Tensor, request: Request) -> dict[str, Any]:
    vector, size = function.vector, len(function.vector)
    whole = function.of_weights(images)
    target = F.one_hot(labels, whole(vector).shape[1]).double()

    def loss(weights: Tensor) -> Tensor:
        """||f - y||², the mean over images."""
        return (whole(weights) - target).square().sum(dim=1).mean()

    residual = (whole(vector) - target).detach()

    def of_labels(weights: Tensor) -> Tensor:
        """What has the same Hessian as the loss but for 2 J'J: f is weighed by what it is off by, which stays."""
        return 2 * (whole(weights) * residual).sum(dim=1).mean()

    noises = [_normal(vector, request.seed, "weights", number) for number in range(request.draws)]
    grams = weight_grams([function.of_weights(image[None]) for image in images], vector)
    found = estimate(grams, q_draws(whole, vector, noises))
    signs = [noise.sign() for noise in noises]
    trace, error = hutchinson(loss, vector, signs)
    rest, rest_error = hutchinson(of_labels, vector, signs)
    distances = _DISTANCES * float(vector.norm()) if request.distance is None else request.distance * _DISTANCES / 0.16
    directions = random_directions(size, request.draws, request.seed, vector)
    rises = [sharpness(loss, vector, directions, float(s)) for s in distances]
    return {
        "weights": found,
        "trace": trace,
        "trace_error": error,
        "jacobian_part": 2 * found.exact,
        "label_part": rest,
        "label_error": rest_error,
        "length": float(vector.norm()),
        "distances": distances,
        "rise": [rise for rise, _ in rises],
        "rise_error": [spread for _, spread in rises],
        "predicted": distances**2 / (2 * size) * trace,
    }


def _normal(like: Tensor, seed: int, purpose: str, number: int) -> Tensor:
    """Standard normal numbers, drawn on the host, so that every device sees the same."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"analysis/jacobian/{purpose}", number))
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)


def jacobian(request: Request) -> list[Jacobian]:
    """The figures of each run."""
    if request.draws < 2:
        raise RequestError("--draws: a standard error needs two of them at least.")
    with opened(request.runs, request.device) as subjects:
        for subject in subjects:
            subject.chosen(request.epochs, least=1)
        return [study(subject, request) for subject in subjects]


def rows(result: Sequence[Jacobian]) -> list[dict[str, Any]]:
    """A line for each run and epoch."""
    traces = ("trace", "trace_error", "jacobian_part", "label_part", "label_error", "length")
    plain = ("along_views", "along_noise", "views_change", *traces)
    return [
        {
            "run": one.run,
            "epoch": float(epoch),
            **{f"inputs_{name}": float(values[number]) for name, values in one.inputs.items()},
            **{f"weights_{name}": float(values[number]) for name, values in one.weights.items()},
            **{f"views_{name}": float(values[number]) for name, values in one.views.items() if name in _OF_VIEWS},
            **{name: float(getattr(one, name)[number]) for name in plain},
        }
        for one in result
        for number, epoch in enumerate(one.epochs)
    ]


def told(result: Sequence[Jacobian]) -> list[str]:
    """Estimates beside exact values, the decomposition, and the rise along rays, at the last epoch."""
    lines = []
    for one in result:
        for name, values in (("||J_x||²", one.inputs), ("||J_w||²", one.weights)):
            exact, q, error = (values[field][-1] for field in ("exact", "estimate", "standard_error"))
            spread = values["variance"][-1] / values["variance_formula"][-1]
            variance = f"its variance is {spread:.2f} of the formula's"
            lines.append(f"{one.run}: E{name} {exact:.4g}, Q {q:.4g} ± {error:.2g}; {variance}")
        lines.append(f"{one.run}: {_views(one)}")
        lines.append(
            f"{one.run}: tr(H) {one.trace[-1]:.4g} ± {one.trace_error[-1]:.2g}; its parts are 2 E||J_w||² "
            f"{one.jacobian_part[-1]:.4g} and what the labels add {one.label_part[-1]:.4g} ± {one.label_error[-1]:.2g}"
        )
        scale = one.length[-1] ** 2
        lines.append(
            f"{one.run}: the weights are {one.length[-1]:.3g} long; tr(H) times the square of that is "
            f"{scale * one.trace[-1]:.3g} ± {scale * one.trace_error[-1]:.2g}"
        )
        rises = zip(one.distances[-1], _scaled(one, one.rise), _scaled(one, one.rise_error), strict=True)
        (s, near, near_error), *_, (t, far, far_error) = rises
        lines.append(
            f"{one.run}: random rays rise as for a trace of {near:.4g} ± {near_error:.2g} at distance {s:.2g} "
            f"and of {far:.4g} ± {far_error:.2g} at {t:.2g}; times the square of the length these are "
            f"{scale * near:.3g} ± {scale * near_error:.2g} and {scale * far:.3g} ± {scale * far_error:.2g}"
        )
    return lines


def _views(one: Jacobian) -> str:
    """How much outputs change towards augmented views, beside any direction."""
    error = f" ± {one.views['standard_error'][-1]:.2g}" if one.views else ""
    along, any_way = one.along_views[-1], one.along_noise[-1]
    return (
        f"E||J_x d||² / E||d||² towards augmented views {along:.3g}{error}, {along / any_way:.2g} times "
        f"that in any direction, {any_way:.3g}"
    )


def draw(result: Sequence[Jacobian]) -> Any:
    """Q's mean and variance against exact ones, the step's size; directions, the trace's parts, rise along rays."""
    drawn, grid = new_grid(2, 3, 12.6, 3.8)
    shades = colours([one.run for one in result])
    means, variances, steps = grid[0]
    for one in result:
        for values, marker, name in ((one.inputs, "o", "inputs"), (one.weights, "s", "weights")):
            look = {"fmt": marker, "capsize": 3, "color": shades[one.run], "label": f"{one.run}: {name}"}
            means.errorbar(values["exact"], values["estimate"], yerr=2 * values["standard_error"], **look)
            variances.errorbar(values["variance_formula"], values["variance"], **look)
        steps.plot(one.epsilons, one.finite[-1], ".-", label=one.run, color=shades[one.run])
        steps.axhline(one.inputs["exact"][-1], linestyle=DASHED, linewidth=1, color=shades[one.run])
    for panel in (means, variances):
        _diagonal(panel)
    means.set(xlabel="exact E||J||²", ylabel="mean of Q, ± 2 standard errors", title="the estimator Q")
    variances.set(xlabel="formula", ylabel="variance of Q", title="its variance")
    steps.set(xlabel="ε", ylabel="Q for inputs", title="with a finite step", xscale="log")
    steps.plot([], [], color="#404040", linestyle=DASHED, label="exact E||J_x||²")
    _directions(grid[1][0], result, shades)
    _parts(grid[1][1], result, shades)
    _sharpness(grid[1][2], result, shades)
    for panel in grid.flat:
        finish(panel)
    drawn.tight_layout()
    return drawn


def _diagonal(panel: Any) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
    panel.plot([low, high], [low, high], color="#404040", linewidth=0.8, zorder=0)


def _bars(panel: Any, result: Sequence[Jacobian], shades: dict[str, str], parts: dict[str, str]) -> None:
    """A group of bars a run, one bar for each of its fields in `parts`, at the last epoch."""
    strengths = np.linspace(1.0, 0.3, len(parts))
    width = 0.8 / len(parts)
    for number, one in enumerate(result):
        for aside, (name, strength) in enumerate(zip(parts, strengths, strict=True)):
            place = number + width * (aside - (len(parts) - 1) / 2)
            panel.bar(place, getattr(one, name)[-1], 0.9 * width, color=shades[one.run], alpha=strength)
    for label, strength in zip(parts.values(), strengths, strict=True):
        panel.fill_between([], [], [], color="#404040", alpha=strength, lw=0, label=label)
    panel.set_xticks(range(len(result)), [one.run for one in result])
    panel.axhline(0, color="#404040", linewidth=0.8)


def _scaled(one: Jacobian, rise: np.ndarray) -> np.ndarray:
    """The rise along rays at the last epoch as the trace that would predict it."""
    scaled: np.ndarray = 2 * one.parameters / one.distances[-1] ** 2 * rise[-1]
    return scaled


def _directions(panel: Any, result: Sequence[Jacobian], shades: dict[str, str]) -> None:
    _bars(panel, result, shades, {"along_views": "towards augmented views", "along_noise": "any direction"})
    for number, one in enumerate(result):
        if one.views:
            error = 2 * one.views["standard_error"][-1]
            panel.errorbar(number - 0.2, one.along_views[-1], yerr=error, color="black", capsize=3)
    headroom(panel)
    panel.set(ylabel="E||J_x d||² / E||d||²", title="which way the inputs may move")


def _parts(panel: Any, result: Sequence[Jacobian], shades: dict[str, str]) -> None:
    """The two parts of tr(H): along the epochs where there are several, else as bars."""
    panel.set_title("tr(H) and its parts")
    if max(len(one.epochs) for one in result) == 1:
        names = {"trace": "tr(H)", "jacobian_part": "2 E||J_w||²", "label_part": "what the labels add"}
        _bars(panel, result, shades, names)
        for number, one in enumerate(result):
            panel.errorbar(number - 0.8 / 3, one.trace[-1], yerr=2 * one.trace_error[-1], color="black", capsize=3)
            panel.errorbar(number + 0.8 / 3, one.label_part[-1], yerr=2 * one.label_error[-1], color="black", capsize=3)
        headroom(panel)
        return
    for one in result:
        panel.plot(one.epochs, one.trace, ".-", color=shades[one.run], label=f"{one.run}: tr(H)")
        dashed = {"linestyle": DASHED, "label": f"{one.run}: 2 E||J_w||²"}
        panel.plot(one.epochs, one.jacobian_part, color=shades[one.run], **dashed)
    panel.set_xlabel("epoch")


def _sharpness(panel: Any, result: Sequence[Jacobian], shades: dict[str, str]) -> None:
    """The rise along rays scaled so that it is tr(H) wherever the formula holds."""
    for one in result:
        look = {"fmt": "o-", "capsize": 3, "markersize": 4, "color": shades[one.run], "label": one.run}
        panel.errorbar(one.distances[-1], _scaled(one, one.rise), yerr=2 * _scaled(one, one.rise_error), **look)
        panel.axhline(one.trace[-1], linestyle=DASHED, linewidth=1, color=shades[one.run])
    panel.plot([], [], color="#404040", linestyle=DASHED, label="tr(H)")
    panel.set(xlabel="distance s", ylabel="rise of ||f - y||² · 2p / s²", title="sharpness along random rays")


STUDY = Study(
    summary="Q against exact Jacobians of inputs and weights, tr(H) and its parts, sharpness along random rays",
    run=jacobian,
    rows=rows,
    draw=draw,
    told=told,
    options=frozenset({"epochs", "images", "draws", "distance", "seed"}),
    iterates=1,
)
