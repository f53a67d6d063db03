"""The estimators of sections 3.1, A.5 and A.6, for any function; `jacobian.py` applies them to runs.

A function of inputs takes (N, …) to (N, K), each row of its own input alone. A function of weights takes (P,) to (N, K)
for inputs fixed within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


class Estimate(NamedTuple):
    """E||J||² and Var Q for one draw (m = 1): from the exact Jacobians by the formula, and from draws of Q.

    Of directions that are not normal the exact value and the formula's variance are not known: not a number.
    """

    exact: float
    estimate: float
    standard_error: float
    variance_formula: float
    variance: float


def input_grams(function: Function, inputs: Tensor) -> Tensor:
    """J J' of each input, (N, K, K), from exact Jacobians: one backward pass an output."""
    inputs = inputs.detach().requires_grad_(True)
    outputs = function(inputs)
    rows = []
    for k in range(outputs.shape[1]):
        [gradient] = torch.autograd.grad(outputs[:, k].sum(), inputs, retain_graph=True)
        rows.append(gradient.flatten(1))
    jacobians = torch.stack(rows, dim=1)
    return jacobians @ jacobians.transpose(1, 2)


def weight_grams(functions: Sequence[Function], weights: Tensor) -> Tensor:
    """J J' of each function of the weights that gives one row: (N, K, K); one backward pass a row and output."""
    grams = []
    for function in functions:
        point = weights.detach().requires_grad_(True)
        outputs = function(point)[0]
        rows = [torch.autograd.grad(output, point, retain_graph=True)[0] for output in outputs]
        jacobian = torch.stack(rows)
        grams.append(jacobian @ jacobian.T)
    return torch.stack(grams)


def q_draws(function: Function, point: Tensor, directions: Iterable[Tensor]) -> Tensor:
    """||f(point + ε z) - f(point)||² / ε² of each row as ε goes to 0, that is ||J z||², for each z: (D, N).

    J z is the derivative of J'u by u in the direction z: the forward pass is made once, and each z costs one backward.
    """
    point = point.detach().requires_grad_(True)
    outputs = function(point)
    u = torch.zeros_like(outputs, requires_grad=True)
    [product] = torch.autograd.grad(outputs, point, u, create_graph=True)
    draws = []
    for direction in directions:
        [tangent] = torch.autograd.grad(product, u, direction, retain_graph=True)
        draws.append(tangent.square().sum(dim=1))
    return torch.stack(draws)


def q_finite(function: Function, point: Tensor, direction: Tensor, epsilon: float) -> Tensor:
    """The same with a finite step: (N,)."""
    with torch.no_grad():
        return (function(point + epsilon * direction) - function(point)).square().sum(dim=1) / epsilon**2


def estimate(grams: Tensor, draws: Tensor) -> Estimate:
    """Exact values of `grams` (N, K, K) beside `draws` (D, N) of Q.

    Var Q = Var ||J||² + 2 E||J'J||², as for one input drawn at random and one perturbation of it; by rows J'J and JJ'
    have the same Frobenius norm.
    """
    squares = grams.diagonal(dim1=1, dim2=2).sum(dim=1)
    formula = squares.var(unbiased=False) + 2 * grams.square().sum(dim=(1, 2)).mean()
    # The spread of the draws' means over inputs: the inputs themselves are the same in each.
    error = draws.mean(dim=1).std() / len(draws) ** 0.5
    values = (squares.mean(), draws.mean(), error, formula, draws.var(unbiased=False))
    return Estimate(*(float(value) for value in values))


def estimate_along(draws: Tensor, lengths: Tensor) -> Estimate:
    """E||J d||² / E||d||², from `draws` (D, N) of ||J d||² and `lengths` (D, N) of ||d||² for the same d.

    Of one J this is tr(J'JΣ) / tr(Σ) with Σ = E dd'. Numerator and denominator are of the same draws, so that the
    standard error is that of ||J d||² - ratio ||d||²; the variance is that of one draw at the mean length.
    """
    length = lengths.mean()
    ratio = draws.mean() / length
    error = (draws - ratio * lengths).mean(dim=1).std() / length / len(draws) ** 0.5
    unknown = torch.full_like(ratio, float("nan"))
    values = (unknown, ratio, error, unknown, draws.var(unbiased=False) / length.square())
    return Estimate(*(float(value) for value in values))


def hutchinson(loss: Callable[[Tensor], Tensor], weights: Tensor, signs: Sequence[Tensor]) -> tuple[float, float]:
    """tr(H) of a loss as the mean of v'Hv over vectors of random signs, and its standard error."""
    found = []
    for vector in signs:
        point = weights.detach().requires_grad_(True)
        [gradient] = torch.autograd.grad(loss(point), point, create_graph=True)
        [product] = torch.autograd.grad(gradient @ vector, point)
        found.append(vector @ product)
    values = torch.stack(found)
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def sharpness(
    loss: Callable[[Tensor], Tensor], weights: Tensor, directions: Sequence[Tensor], s: float
) -> tuple[float, float]:
    """The mean rise of a loss at distance s along rays and their reflections, and its standard error.

    With each direction its opposite is taken, so that the gradient cancels exactly and not only in the mean.
    """
    with torch.no_grad():
        here = loss(weights)
        rises = [0.5 * (loss(weights + s * d) + loss(weights - s * d)) - here for d in directions]
    values = torch.stack(rises)
    return float(values.mean()), float(values.std() / len(values) ** 0.5)
