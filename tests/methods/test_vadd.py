"""Adversarial dropout: the mask within its bound and worse for the network than random ones; the loss by hand."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from toy import CLASSES, INPUTS, Output, Toy, cross_entropy, logits_of, make_batch, make_method

from fastswa.errors import RequestError
from fastswa.methods.losses import probabilities, squared
from fastswa.methods.vadd import VAdD, _Masked, adversarial_mask
from fastswa.noise import Noise


def method_of(**settings: object) -> VAdD:
    method = make_method("vadd", **settings)
    assert isinstance(method, VAdD)
    return method


def random_mask(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5).double()


@pytest.mark.parametrize("delta", [0.0, 0.05, 0.2, 0.99])
def test_the_mask_stays_within_its_distance(delta: float) -> None:
    mask = random_mask((7, 3, 4, 5))
    slope = torch.randn(7, 3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = adversarial_mask(mask, slope, delta)
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    distance = (found != mask).flatten(1).sum(dim=1)
    assert int(distance.max()) <= delta * 60
    promising = ((1 - 2 * mask) * slope > 0).flatten(1).sum(dim=1)
    assert torch.equal(distance, promising.clamp(max=int(delta * 60)))


def test_the_units_that_promise_most_are_flipped() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0, 1.0]])
    slope = torch.tensor([[-3.0, 5.0, 2.0, -4.0, -1.0]])
    # Clearing the first promises 3, setting the third 2, clearing the last 1; the others promise losses.
    assert adversarial_mask(mask, slope, 0.2).tolist() == [[0, 1, 0, 0, 1]]
    assert adversarial_mask(mask, slope, 0.4).tolist() == [[0, 1, 1, 0, 1]]
    assert adversarial_mask(mask, slope, 0.9).tolist() == [[0, 1, 1, 0, 0]]


class Wide(Toy):
    """A toy on images of many inputs: a mask of one unit in thirty."""

    def __init__(self, inputs: int = 120, dropout: float = 0.5) -> None:
        super().__init__(1, heads=1, dropout=dropout)
        generator = torch.Generator().manual_seed(5)
        draw = torch.randn(3, inputs, generator=generator, dtype=torch.float64) / math.sqrt(inputs)
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(draw)])


def test_no_random_mask_of_the_same_distance_is_a_worse_adversary() -> None:
    """For each image: the divergence under the adversarial mask is larger than under most of 200 random ones."""
    student, method = Wide(), method_of(delta=0.05)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(16, 1, 10, 12, generator=generator, dtype=torch.float64)
    noise = make_batch().noise.scope("teacher")
    clean = probabilities(student(x, make_batch().noise.scope("student")).logits).detach()

    def divergence(mask: Tensor) -> Tensor:
        return squared(student(x, _Masked(noise, "dropout", mask)).logits, clean).detach()

    mask = method.adversary(x, noise, student, clean, "dropout")
    start = (noise.uniform("dropout", (16, 120)) >= 0.5).double()
    distance = (mask != start).sum(dim=1)
    assert 0 < int(distance.max()) <= 6
    rivals = []
    for _ in range(200):
        order = torch.rand(16, 120, generator=generator).argsort(dim=1).argsort(dim=1)
        rivals.append(divergence((start - (order < distance[:, None]).double()).abs()))
    ours, others = divergence(mask), torch.stack(rivals)
    assert (ours > divergence(start)).all()
    assert (ours > others.mean(dim=0)).all()
    assert (ours[None] > others).double().mean().item() > 0.99


def test_it_is_its_formula() -> None:
    batch, student = make_batch(labelled=2, size=6, weight=2.0), Toy(1, dropout=0.5)
    terms = method_of(delta=0.2).losses(batch, student, None)
    keep = (batch.noise.scope("student").uniform("dropout", (6, INPUTS)) >= 0.5).double() * 2
    first, second = ((batch.view("student").flatten(1) * keep).numpy() @ w.detach().numpy().T for w in student.weights)
    assert terms["classification"].item() == pytest.approx(cross_entropy(first, batch.labels))
    clean = torch.tensor(second).softmax(dim=1)
    x = batch.view("teacher").flatten(1)
    start = (batch.noise.scope("teacher").uniform("dropout", (6, INPUTS)) >= 0.5).double()
    leaf = start.clone().requires_grad_()
    told = squared((x * leaf * 2) @ student.weights[1].T, clean).sum()
    (slope,) = torch.autograd.grad(told, [leaf])
    mask = adversarial_mask(start, slope, 0.2)
    expected = 2.0 * squared((x * mask * 2) @ student.weights[1].T, clean).mean()
    assert terms["consistency"].item() == pytest.approx(expected.item(), rel=1e-10)
    assert not torch.equal(mask, start)


def test_without_reach_it_compares_two_passes_as_the_pi_model_does() -> None:
    batch, student = make_batch(labelled=2, size=6), Toy(1, heads=1, dropout=0.5)
    ours = method_of(delta=0.0).losses(batch, student, None)
    pi = make_method("pi").losses(batch, student, None)
    assert ours["classification"].item() == pi["classification"].item()
    assert ours["consistency"].item() == pytest.approx(pi["consistency"].item(), rel=1e-12)


def test_no_gradient_runs_through_the_target_or_the_mask() -> None:
    batch, student = make_batch(labelled=2, size=6), Toy(1, heads=1, dropout=0.5)
    (found,) = torch.autograd.grad(method_of(delta=0.2).losses(batch, student, None)["consistency"], student.weights)
    x, noise = batch.view("teacher"), batch.noise.scope("teacher")
    clean = probabilities(student(batch.view("student"), batch.noise.scope("student")).logits).detach()
    mask = method_of(delta=0.2).adversary(x, noise, student, clean, "dropout")
    alone = squared((x.flatten(1) * mask * 2) @ student.weights[0].T, clean).mean()
    (expected,) = torch.autograd.grad(alone, list(student.weights))
    assert torch.allclose(found, expected, rtol=1e-10)


class _Times(torch.autograd.Function):
    """x @ weight.T, which notes what its backward pass is asked for: x's gradient, the weight's."""

    asked: ClassVar[list[tuple[bool, ...]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        _Times.asked.append(tuple(ctx.needs_input_grad))
        return gradients[0] @ weight, gradients[0].T @ x


class Deep(torch.nn.Module):
    """Two layers, each after a dropout; `kept` is whether what each gives has a way back."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        draws = [torch.randn(n, INPUTS, generator=generator, dtype=torch.float64) for n in (INPUTS, CLASSES)]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(draw) for draw in draws])
        self.kept: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor, noise: Noise) -> Output:
        hidden = _Times.apply(noise.dropout("first", x.flatten(1), 0.5), self.weights[0])
        logits = _Times.apply(noise.dropout("second", hidden, 0.5), self.weights[1])
        self.kept.append((hidden.requires_grad, logits.requires_grad))
        return Output(logits, logits, hidden)


def test_the_adversary_asks_for_the_one_gradient_that_it_needs() -> None:
    """None of a weight, and nothing below the last dropout; both passes that are learnt from have all of theirs."""
    _Times.asked.clear()
    student = Deep()
    terms = method_of(delta=0.2).losses(make_batch(labelled=2, size=6), student, None)
    assert _Times.asked == [(True, False)]
    assert student.kept == [(True, True), (False, True), (True, True)]
    assert all(weight.requires_grad for weight in student.weights)
    gradients = torch.autograd.grad(terms["consistency"], list(student.weights))
    assert all(bool(gradient.any()) for gradient in gradients)


def test_only_the_first_pass_moves_running_statistics() -> None:
    batch, student = make_batch(labelled=2, size=6), Toy(1, norm=True, dropout=0.5)
    method_of().losses(batch, student, None)
    assert student.norm is not None
    assert int(student.norm.num_batches_tracked) == 1


def test_a_network_without_dropout_is_refused() -> None:
    with pytest.raises(RequestError, match="the network has no dropout"):
        method_of().losses(make_batch(), Toy(1), None)


def test_logits_are_the_toys() -> None:
    """What the tests above take for granted."""
    batch, student = make_batch(), Toy(1, heads=1)
    found = student(batch.view("student"), batch.noise).logits.detach()
    assert torch.allclose(found, torch.tensor(logits_of(batch.view("student"), student.weights[0])))
