"""Q, tr(H) and sharpness against closed forms and exact derivatives; then on a tiny run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from torch import Tensor

from conftest import Command
from fastswa import models
from fastswa.analysis.jacobian import Jacobian, Probabilities, draw, jacobian, rows, told
from fastswa.analysis.jacobians import (
    Estimate,
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
from fastswa.analysis.study import Request, find_study, plain, read
from fastswa.analysis.subject import flat, opened
from fastswa.errors import RequestError

SEED = 2019  # fixed before the first try
DRAWS = 10_000


def generator(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = SEED) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def test_a_linear_models_jacobian_is_its_matrix() -> None:
    """J_x = W: Q has mean ||W||² and variance 2 ||W'W||², here over 10,000 draws."""
    matrix = normal(10, 30)
    inputs = normal(4, 30, seed=1)

    def linear(x: Tensor) -> Tensor:
        return x @ matrix.T

    grams = input_grams(linear, inputs)
    assert torch.allclose(grams, (matrix @ matrix.T).expand(4, 10, 10))
    draws = q_draws(linear, inputs, [normal(4, 30, seed=2 + n) for n in range(DRAWS // 4)])
    found = estimate(grams, draws)
    assert found.exact == pytest.approx(float(matrix.square().sum()))
    assert found.variance_formula == pytest.approx(2 * float((matrix.T @ matrix).square().sum()))
    assert abs(found.estimate - found.exact) < 4 * (found.variance_formula / DRAWS) ** 0.5
    assert found.standard_error == pytest.approx((found.variance_formula / DRAWS) ** 0.5, rel=0.1)
    assert found.variance == pytest.approx(found.variance_formula, rel=0.1)


def test_along_directions_of_any_covariance_a_linear_models_change_is_its_trace() -> None:
    """E||W d||² / E||d||² = tr(W'WΣ) / tr(Σ): exactly over all of a finite set of d, and over draws of d = A z.

    Of those ||W d||² - r ||d||² = z'Mz with M = A'(W'W - r)A, whose variance is 2 ||M||².
    """
    matrix, mixing = normal(10, 30), normal(30, 30, seed=1) * torch.linspace(0.1, 2.0, 30, dtype=torch.float64)
    inputs = normal(4, 30, seed=2)

    def linear(x: Tensor) -> Tensor:
        return x @ matrix.T

    def along(directions: list[Tensor]) -> Estimate:
        lengths = torch.stack([d.square().sum(dim=1) for d in directions])
        return estimate_along(q_draws(linear, inputs, directions), lengths)

    few = [normal(4, 30, seed=3 + n) @ mixing.T for n in range(5)]
    stacked = torch.cat(few)
    sigma = stacked.T @ stacked / len(stacked)
    assert along(few).estimate == pytest.approx(float((matrix.T @ matrix @ sigma).trace() / sigma.trace()))

    sigma = mixing @ mixing.T
    found = along([normal(4, 30, seed=3 + n) @ mixing.T for n in range(DRAWS // 4)])
    exact = float((matrix.T @ matrix @ sigma).trace() / sigma.trace())
    assert abs(found.estimate - exact) < 4 * found.standard_error
    centred = mixing.T @ (matrix.T @ matrix - exact * torch.eye(30, dtype=torch.float64)) @ mixing
    wanted = (2 * float(centred.square().sum()) / DRAWS) ** 0.5 / float(sigma.trace())
    assert found.standard_error == pytest.approx(wanted, rel=0.1)
    spread = 2 * float((matrix @ sigma @ matrix.T).square().sum()) / float(sigma.trace()) ** 2
    assert found.variance == pytest.approx(spread, rel=0.1)
    assert math.isnan(found.exact)
    assert math.isnan(found.variance_formula)


def test_the_variance_of_q_has_a_part_from_the_inputs() -> None:
    """f(x) = x² / 2 has J = diag(x): mean E||x||², variance Var||x||² + 2 E sum x⁴."""
    inputs = normal(50, 3) * torch.linspace(0.2, 2.0, 50, dtype=torch.float64)[:, None]

    def half_square(x: Tensor) -> Tensor:
        return 0.5 * x.square()

    draws = q_draws(half_square, inputs, [normal(50, 3, seed=2 + n) for n in range(DRAWS // 10)])
    found = estimate(input_grams(half_square, inputs), draws)
    squares = inputs.square().sum(dim=1)
    assert found.exact == pytest.approx(float(squares.mean()))
    wanted = float(squares.var(unbiased=False) + 2 * inputs.pow(4).sum(dim=1).mean())
    assert found.variance_formula == pytest.approx(wanted)
    assert abs(found.estimate - found.exact) < 4 * found.standard_error
    assert found.variance == pytest.approx(wanted, rel=0.1)


def test_a_finite_step_comes_to_the_limit() -> None:
    inputs, direction = normal(5, 3), normal(5, 3, seed=1)
    limit = q_draws(torch.sin, inputs, [direction])[0]
    errors = [float((q_finite(torch.sin, inputs, direction, e) - limit).abs().max()) for e in (1e-1, 1e-2, 1e-3)]
    assert errors[0] > 5 * errors[1] > 25 * errors[2]
    # Two perturbed sides differ by sqrt(2) ε z, not 2 ε z: twice Q, not four times.
    one, two = normal(DRAWS, 3, seed=2), normal(DRAWS, 3, seed=3)
    assert float((one - two).square().sum(dim=1).mean() / one.square().sum(dim=1).mean()) == pytest.approx(2, rel=0.05)


class Toy(torch.nn.Module):
    """Two small layers, smooth, with the outputs that networks here have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Answer:
        logits = self.second(torch.tanh(self.first(x)))
        return Answer(logits)


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.fixture
def toy() -> Probabilities:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = Toy().double()
    return Probabilities(network, flat(list(network.parameters())))


def test_weight_jacobians_and_the_hessians_decomposition_are_exact(toy: Probabilities) -> None:
    """tr(H) of ||f - y||² is 2 (||J_w||² + sum_i tr(H_i) (f_i - y_i)), by whole Hessians of each output."""
    images = normal(6, 4)
    target = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 1, 2, 0, 1, 2])]
    whole = toy.of_weights(images)
    assert torch.allclose(whole(toy.vector), toy.of_inputs(images))
    jacobians = torch.func.jacrev(whole)(toy.vector)
    grams = weight_grams([toy.of_weights(image[None]) for image in images], toy.vector)
    assert torch.allclose(grams, jacobians @ jacobians.transpose(1, 2))

    def loss(weights: Tensor) -> Tensor:
        return (whole(weights) - target).square().sum(dim=1).mean()

    hessian = torch.func.jacrev(torch.func.jacrev(loss))(toy.vector)
    traces = torch.func.jacrev(torch.func.jacrev(whole))(toy.vector).diagonal(dim1=2, dim2=3).sum(dim=2)
    rest = (traces * (whole(toy.vector) - target)).sum(dim=1).mean()
    squares = jacobians.square().sum(dim=(1, 2)).mean()
    assert float(hessian.trace()) == pytest.approx(float(2 * (squares + rest)))
    signs = [normal(len(toy.vector), seed=n).sign() for n in range(400)]
    trace, error = hutchinson(loss, toy.vector, signs)
    assert abs(trace - float(hessian.trace())) < 4 * error
    # v'Hv of signs is exact where H is diagonal, whatever the signs.
    exact, none = hutchinson(lambda w: (torch.arange(1.0, 6.0) * w.square()).sum(), torch.ones(5), [torch.ones(5)] * 2)
    assert (exact, none) == (30.0, 0.0)


def test_sharpness_of_a_smooth_network_is_the_formula(toy: Probabilities) -> None:
    """s² tr(H) / 2p near by, with H whole; the odd terms have gone, what is left falls with s⁴."""
    images = normal(6, 4)
    target = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 1, 2, 0, 1, 2])]
    whole = toy.of_weights(images)

    def loss(weights: Tensor) -> Tensor:
        return (whole(weights) - target).square().sum(dim=1).mean()

    hessian = torch.func.jacrev(torch.func.jacrev(loss))(toy.vector)
    size = len(toy.vector)
    directions = random_directions(size, 2000, SEED, toy.vector)
    stacked = torch.stack(directions)
    along = float(((stacked @ hessian) * stacked).sum(dim=1).mean())
    rise, error = sharpness(loss, toy.vector, directions, 1e-3)
    assert abs(rise - 1e-6 / (2 * size) * float(hessian.trace())) < 4 * error
    rests = [abs(sharpness(loss, toy.vector, directions, s)[0] - s**2 / 2 * along) for s in (0.05, 0.1)]
    assert rests[1] == pytest.approx(16 * rests[0], rel=0.05)


def test_sharpness_of_a_quadratic_is_the_formula() -> None:
    """Along a random ray w'Aw / 2 + b'w rises by s² d'Ad / 2; in the mean that is s² tr(A) / 2p, whatever b is."""
    curvatures, slope = torch.linspace(0.5, 4.0, 40, dtype=torch.float64), normal(40)

    def loss(w: Tensor) -> Tensor:
        return 0.5 * (curvatures * w.square()).sum() + slope @ w

    directions = random_directions(40, 300, SEED, curvatures)
    for s in (0.1, 2.0):
        rise, error = sharpness(loss, normal(40, seed=1), directions, s)
        assert abs(rise - s**2 / 80 * float(curvatures.sum())) < 4 * error
        assert error < 0.02 * rise


def test_the_13_layer_network_can_be_differentiated_both_ways() -> None:
    """Weight norm, batch norm and pooling under forward mode and twice under reverse mode."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = models.build("cnn13", channels=3, classes=10, heads=2).double().eval()
    vector = flat(list(network.parameters()))
    function = Probabilities(network, vector)
    images = normal(1, 3, 12, 12)
    direction = normal(len(vector), seed=1)
    whole = function.of_weights(images)
    assert torch.allclose(q_draws(whole, vector, [direction])[0], q_finite(whole, vector, direction, 1e-6), rtol=1e-3)
    trace, _ = hutchinson(lambda w: whole(w).square().sum(), vector, [direction.sign()] * 2)
    assert trace != 0


def test_a_network_with_dropout_left_on_is_refused() -> None:
    network = models.build("cnn13", channels=3, classes=10).eval()
    network.drop2.train()
    with pytest.raises(
        RequestError, match=r"the network has its dropout left on \(drop2\); call .eval\(\) on it first"
    ):
        Probabilities(network, flat(list(network.parameters())))


def test_a_run(finished: Path, tmp_path: Path, command: Command) -> None:
    [found] = jacobian(Request((finished,), "cpu", images=3, draws=8, epochs=(2.0, 4.0)))
    for values in (found.inputs, found.weights):
        assert (abs(values["estimate"] - values["exact"]) < 4 * values["standard_error"]).all()
    # From the same signs, so that only v'J'Jv is left to differ from its mean.
    left = abs(found.trace - found.jacobian_part - found.label_part)
    assert (left < 4 * 2 * found.weights["standard_error"]).all()
    assert (left > 0).all()
    # The smaller the step, the nearer to the limit; on the shortest rays the rise is the predicted one.
    assert abs(found.finite[:, 0] - found.inputs["estimate"]) == pytest.approx([0, 0], abs=0.01)
    assert (found.along_views >= 0).all()
    assert found.views["estimate"].tolist() == found.along_views.tolist()
    assert (found.views["standard_error"] > 0).all()
    assert rows([found])[1]["views_standard_error"] == found.views["standard_error"][1]
    # An epoch's figures are the same whatever was looked at before it.
    [alone] = jacobian(Request((finished,), "cpu", images=3, draws=8, epochs=(4.0,)))
    assert alone.trace[0] == found.trace[1]
    assert alone.inputs["exact"][0] == found.inputs["exact"][1]
    assert found.predicted.shape == found.rise.shape == (2, 5)
    with opened((finished,), "cpu") as (subject,):
        assert found.length[1] == pytest.approx(float(subject.iterate(4.0).double().norm()))
        assert found.distances[1, -1] == pytest.approx(0.16 * found.length[1])
    words = ("analyze", "jacobian", finished, "--images", 3, "--draws", 2, "--device", "cpu")
    answer = command(*words, "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "tr(H)" in answer.out
    assert "random rays rise as for a trace of" in answer.out
    [data] = json.loads((tmp_path / "jacobian.json").read_text())
    assert data["epochs"] == [4]
    assert f"towards augmented views {data['along_views'][0]:.3g} ± " in answer.out
    assert "two of them" in command(*words, "--draws", 1).err


def test_what_was_written_without_an_error_along_views_can_still_be_read(finished: Path, tmp_path: Path) -> None:
    [found] = jacobian(Request((finished,), "cpu", images=2, draws=2))
    file = tmp_path / "jacobian.json"

    def again(written: dict[str, object]) -> Jacobian:
        file.write_text(json.dumps([written]))
        [one] = read(find_study("jacobian"), [file])
        pyplot.close(draw([one]))
        assert len(rows([one])) == 1
        return one

    written = plain(found)
    assert again(written).views["standard_error"].tolist() == found.views["standard_error"].tolist()
    assert math.isnan(again(written).views["exact"][0])
    del written["views"]
    old = again(written)
    assert old.views == {}
    assert old.along_views.tolist() == found.along_views.tolist()
    [line] = (line for line in told([old]) if "augmented views" in line)
    assert "±" not in line
    del written["trace"]
    file.write_text(json.dumps([written]))
    with pytest.raises(RequestError, match="holds no results of this study"):
        read(find_study("jacobian"), [file])
