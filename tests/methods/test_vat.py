"""VAT: the adversarial direction against eigenvectors, its losses, and what its passes leave behind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import (
    CLASSES,
    INPUTS,
    Toy,
    cross_entropy,
    kl_divergence,
    logits_of,
    make_batch,
    make_method,
    softmax,
    tie_term,
)

from fastswa.methods.method import Batch
from fastswa.methods.vat import adversarial_direction, coloured, fixed, unit


def leading(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.eigh(matrix)[1][:, -1]


def test_unit_scales_each_image_to_length_one() -> None:
    x = torch.tensor([[[3.0, 4.0]], [[0.0, 0.5]], [[0.0, 0.0]]], dtype=torch.float64)
    assert unit(x).tolist() == [[[0.6, 0.8]], [[0.0, 1.0]], [[0.0, 0.0]]]
    long = unit(torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(long.flatten(1).norm(dim=1), torch.ones(4))


def test_direction_is_the_leading_eigenvector_of_a_quadratic_form() -> None:
    rng = np.random.default_rng(0)
    forms = []
    for _ in range(4):
        basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
        forms.append(basis @ np.diag([5.0, 2.0, 1.5, 1.0, 0.5, 0.1]) @ basis.T)
    matrices = torch.tensor(np.stack(forms))

    def divergence(r: Tensor) -> Tensor:
        flat = r.flatten(1)
        return 0.5 * torch.einsum("bi,bij,bj->b", flat, matrices, flat)

    start = torch.tensor(rng.normal(size=(4, 1, 2, 3)))
    found = adversarial_direction(divergence, start, xi=0.1, iterations=20)
    assert found.shape == start.shape
    assert not found.requires_grad
    for row, form, begun in zip(found.flatten(1).numpy(), forms, start.flatten(1).numpy(), strict=True):
        expected = leading(form)
        expected = expected * np.sign(expected @ begun)
        # The second eigenvalue is 0.4 of the first: what is left of it after 20 iterations is 0.4^20 ~ 1e-8.
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_one_iteration_is_one_multiplication_by_the_form() -> None:
    form = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    start = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    found = adversarial_direction(lambda r: 0.5 * (r @ form * r).sum(dim=1), start, xi=1e-3, iterations=1)
    assert found.flatten().tolist() == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5)])


def hessian(p: list[float], weight: Tensor) -> np.ndarray:
    """Second derivative of KL[p || softmax(W (x + r))] in r at 0: W^T (diag(p) - p p^T) W."""
    w = weight.detach().numpy()
    return w.T @ (np.diag(p) - np.outer(p, p)) @ w


def expected_losses(batch: Batch, student: Toy, epsilon: float) -> tuple[float, float, np.ndarray]:
    """Cross entropy and KL[f(x) || f(x + epsilon r)] with r the leading eigenvector on the start's side."""
    x = batch.view("student")
    first, last = (logits_of(x, student.weights[i]) for i in (0, -1))
    targets = [softmax(row) for row in last]
    start = batch.noise.normal("vat/start", x.shape, x.dtype).flatten(1).numpy()
    disturbed = []
    for row, p, begun in zip(x.flatten(1).numpy(), targets, start, strict=True):
        direction = leading(hessian(p, student.weights[-1]))
        disturbed.append(row + epsilon * direction * np.sign(direction @ begun))
    moved = np.stack(disturbed)
    logits = moved @ student.weights[-1].detach().numpy().T
    return cross_entropy(first, batch.labels), kl_divergence(logits, targets), moved


@pytest.mark.parametrize("heads", [1, 2])
def test_losses_after_twenty_iterations_are_those_of_the_leading_eigenvector(heads: int) -> None:
    student, batch = Toy(4, heads=heads), make_batch(weight=3.0, seed=2)
    method = make_method("vat", epsilon=0.7, xi=1e-5, power_iterations=20)
    terms = method.losses(batch, student, None)
    classification, divergence, moved = expected_losses(batch, student, 0.7)
    assert terms["classification"].item() == pytest.approx(classification, rel=1e-12)
    np.testing.assert_allclose(student.calls[-1][1].flatten(1).numpy(), moved, atol=1e-4)
    assert terms["consistency"].item() == pytest.approx(3 * divergence, rel=1e-3)
    assert terms.keys() == {"classification", "consistency"} | ({"tie"} if heads == 2 else set())
    if heads == 2:
        first, second = (logits_of(batch.view("student"), weight) for weight in student.weights)
        assert terms["tie"].item() == pytest.approx(0.01 * tie_term(first, second), rel=1e-12)


def test_disturbance_has_the_length_asked_for() -> None:
    student, batch = Toy(heads=1), make_batch()
    make_method("vat", epsilon=2.5).losses(batch, student, None)
    moved = student.calls[-1][1] - batch.view("student")
    assert moved.flatten(1).norm(dim=1).tolist() == pytest.approx([2.5] * 5)


def markov(*sizes: int, correlation: float) -> np.ndarray:
    """Covariance of images (their values in a row) whose neighbours correlate so along every axis."""
    whole = np.ones((1, 1))
    for size in sizes:
        whole = np.kron(whole, correlation ** np.abs(np.subtract.outer(np.arange(size), np.arange(size))))
    return whole


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.92])
def test_coloured_directions_have_the_covariance_of_images_whose_neighbours_correlate(correlation: float) -> None:
    basis = torch.eye(2 * 3 * 4, dtype=torch.float64).view(24, 2, 3, 4)
    root = coloured(basis, correlation).flatten(1).numpy()
    np.testing.assert_allclose(root.T @ root, markov(2, 3, 4, correlation=correlation), atol=1e-12)


def test_coloured_directions_are_exact_in_16_bit_passes_too() -> None:
    white = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = coloured(white, 0.92)
    assert found.dtype == torch.float32
    assert torch.equal(found, coloured(white, 0.92))


def test_a_correlated_disturbance_is_the_worst_of_whitened_images() -> None:
    """In whitened units the Hessian is R^T H R; its leading eigenvector, coloured again, is what is added."""
    student, batch = Toy(heads=1), make_batch(seed=2)
    x = batch.view("student")
    make_method("vat", epsilon=0.7, xi=1e-5, power_iterations=40, correlation=0.8).losses(batch, student, None)
    moved = (student.calls[-1][1] - x).flatten(1).numpy()
    covariance = markov(*x.shape[1:], correlation=0.8)
    for row, image in zip(moved, x.flatten(1), strict=True):
        # Of all r with r^T C^-1 r = 0.7^2, the one for which r^T H r is greatest.
        assert row @ np.linalg.inv(covariance) @ row == pytest.approx(0.7**2, rel=1e-6)
        values, vectors = np.linalg.eigh(covariance)
        root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
        curved = hessian(softmax(student.weights[0].detach() @ image), student.weights[0])
        worst = root @ leading(root @ curved @ root)
        assert abs(row @ worst) / np.linalg.norm(row) / np.linalg.norm(worst) == pytest.approx(1, abs=1e-4)


def test_direction_found_hurts_more_than_the_start() -> None:
    student, batch = Toy(heads=1), make_batch(size=64)
    terms = make_method("vat", epsilon=0.5, images=64).losses(batch, student, None)
    x = batch.view("student")
    start = unit(batch.noise.normal("vat/start", x.shape, x.dtype))
    targets = [softmax(row) for row in logits_of(x, student.weights[0])]
    random = kl_divergence(logits_of(x + 0.5 * start, student.weights[0]), targets)
    assert terms["consistency"].item() > 1.5 * random


@pytest.mark.parametrize(("xi", "wide"), [(1e-2, True), (10.0, False)])
def test_small_steps_leave_the_runs_arithmetic_and_coarse_ones_do_not(xi: float, wide: bool) -> None:
    student, batch = Toy(heads=1), make_batch()
    seen = []
    student.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        make_method("vat", xi=xi).losses(batch, student, None)
    # The clean pass, those of the direction (a clean one more in full precision), and the disturbed one.
    assert seen == ([True, False, False, True] if wide else [True, True, True])


def test_weights_get_no_gradient_while_the_direction_is_looked_for() -> None:
    student, batch = Toy(heads=1), make_batch()
    learning: list[bool] = []
    student.register_forward_pre_hook(lambda *_: learning.append(student.weights[0].requires_grad))
    make_method("vat").losses(batch, student, None)
    assert learning == [True, False, False, True]


def test_a_failing_pass_leaves_weights_that_learn() -> None:
    student = Toy(heads=1)

    def fail() -> None:
        with fixed(student):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_gradient_treats_clean_prediction_and_direction_as_fixed() -> None:
    student, batch = Toy(heads=1), make_batch(weight=2.0)
    terms = make_method("vat", epsilon=0.5).losses(batch, student, None)
    (gradient,) = torch.autograd.grad(terms["consistency"], [student.weights[0]])
    x, moved = (image.flatten(1).numpy() for image in (batch.view("student"), student.calls[-1][1]))
    weight = student.weights[0].detach().numpy()
    expected = np.zeros((CLASSES, INPUTS))
    for clean, disturbed in zip(x, moved, strict=True):
        p, q = (np.array(softmax(weight @ image)) for image in (clean, disturbed))
        expected += 2.0 / 5 * np.outer(q - p, disturbed)
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("iterations", [1, 3])
def test_all_passes_share_one_view_and_one_noise(iterations: int) -> None:
    student, batch = Toy(dropout=0.2), make_batch()
    make_method("vat", power_iterations=iterations).losses(batch, student, None)
    assert len({noise for noise, _ in student.calls}) == 1
    x = batch.view("student")
    moved = [(seen - x).flatten(1).norm(dim=1).tolist() for _, seen in student.calls]
    lengths = [0.0, 0.0, *[1e-2] * iterations, 8.0]
    assert moved == [pytest.approx([length] * 5, abs=1e-9) for length in lengths]


def test_the_disturbed_pass_alone_can_have_a_mask_of_its_own() -> None:
    student, batch = Toy(dropout=0.5, heads=1), make_batch(size=64)
    terms = make_method("vat", epsilon=0, own_dropout=True, images=64).losses(batch, student, None)
    *others, disturbed = [noise for noise, _ in student.calls]
    assert len(set(others)) == 1
    assert disturbed not in others
    # Nothing but the masks tells the two passes apart, and with the same mask nothing does.
    assert terms["consistency"].item() > 0.01
    alike = make_method("vat", epsilon=0, images=64).losses(batch, student, None)
    assert alike["consistency"].item() == pytest.approx(0, abs=1e-12)


def test_running_statistics_are_those_of_the_clean_pass_alone() -> None:
    student, batch = Toy(norm=True), make_batch()
    make_method("vat", power_iterations=3).losses(batch, student, None)
    x = batch.view("student").flatten(1)
    assert student.norm is not None
    assert student.norm.num_batches_tracked == 1
    assert torch.allclose(student.norm.running_mean, 0.1 * x.mean(dim=0), rtol=1e-12)
    assert torch.allclose(student.norm.running_var, 0.9 + 0.1 * x.var(dim=0), rtol=1e-12)
    assert student.norm.track_running_stats


def test_power_iteration_leaves_no_gradient_on_the_weights() -> None:
    student = Toy(norm=True)
    make_method("vat").losses(make_batch(), student, None)
    assert all(parameter.grad is None for parameter in student.parameters())


@pytest.mark.parametrize(("labelled", "counted"), [(2, slice(2, None)), (5, slice(None))])
def test_entropy_is_that_of_the_unlabelled_images(labelled: int, counted: slice) -> None:
    student, batch = Toy(), make_batch(labelled=labelled)
    terms = make_method("vat-entmin", entropy=0.25).losses(batch, student, None)
    rows = [softmax(row) for row in logits_of(batch.view("student"), student.weights[0])][counted]
    expected = sum(-sum(p * math.log(p) for p in row) for row in rows) / len(rows)
    assert terms["entropy"].item() == pytest.approx(0.25 * expected, rel=1e-12)
    plain = make_method("vat").losses(batch, student, None)
    for name in ("classification", "consistency", "tie"):
        assert terms[name].item() == plain[name].item()
