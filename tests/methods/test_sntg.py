"""SNTG: the pairs' loss on four points made by hand, and the term of a batch against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from toy import CLASSES, INPUTS, Toy, make_batch, make_method

from fastswa.methods.sntg import SNTG, contrast


def method_of(images: int = 5, **settings: object) -> SNTG:
    method = make_method("sntg", images=images, **settings)
    assert isinstance(method, SNTG)
    return method


def test_four_points() -> None:
    """(0, 0) and (6, 8) are of one class, (0, 2) and (1, 0) of another; distances are over root 2."""
    points = torch.tensor([[0.0, 0.0], [6.0, 8.0], [0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    classes = torch.tensor([0, 0, 1, 1])
    first, second = torch.tensor([0, 0, 0, 2]), torch.tensor([1, 2, 3, 3])
    alike = classes[first] == classes[second]
    found = contrast(points[first], points[second], alike, margin=2.0)
    # Alike: 100 / 2. Apart by root 2 and by root 1/2, less than the margin of 2. Alike: (1 + 4) / 2.
    assert found.tolist() == pytest.approx([50.0, (2 - math.sqrt(2)) ** 2, (2 - math.sqrt(0.5)) ** 2, 2.5])
    # Beyond the margin nothing pushes.
    assert contrast(points[1:2], points[2:3], torch.tensor([False]), margin=2.0).tolist() == [0.0]


def test_images_that_are_the_same_to_the_network_have_a_finite_gradient() -> None:
    point = torch.ones(2, 3, requires_grad=True)
    loss = contrast(point, torch.ones(2, 3), torch.tensor([True, False]), 1.0)
    assert loss.tolist() == [0.0, 1.0]
    (gradient,) = torch.autograd.grad(loss.sum(), [point])
    assert torch.isfinite(gradient).all()


def term_by_hand(method: SNTG, features: torch.Tensor, classes: list[int | None], order: list[int]) -> float:
    half = len(order) // 2
    total = 0.0
    for one, other in zip(order[:half], order[half : 2 * half], strict=True):
        if classes[one] is None or classes[other] is None:
            continue
        squared = sum((float(a) - float(b)) ** 2 for a, b in zip(features[one], features[other], strict=True)) / INPUTS
        alike = classes[one] == classes[other]
        total += squared if alike else max(0.0, method.config.margin - math.sqrt(squared)) ** 2
    return total / half


@pytest.mark.parametrize("size", [8, 9])
def test_the_term_is_a_loop_over_pairs(size: int) -> None:
    batch, student = make_batch(labelled=3, size=size, weight=4.0), Toy(1)
    method = method_of(images=size, neighbours=0.5, margin=3.0)
    guessed: list[int | None] = [None, 1, 2, 0, None, 1, 1, 0, 2][:size]
    for image, label in enumerate(guessed):
        if label is not None:
            method.memory["updates"][image] = 1.0
            method.memory["ensemble"][image, label] = 0.4
    terms = method.losses(batch, student, None)
    order = batch.noise.uniform("neighbours", (size,)).argsort().tolist()
    assert sorted(order) == list(range(size))
    # Labelled images have their label, whatever is remembered of them.
    classes = [*batch.labels.tolist(), *guessed[3:]]
    expected = term_by_hand(method, batch.view("student").flatten(1), classes, order)
    assert terms["neighbours"].item() == pytest.approx(4.0 * 0.5 * expected, rel=1e-6)
    assert expected > 0


def test_the_rest_is_temporal_ensembling() -> None:
    batch = make_batch(labelled=2, size=5)
    ours, theirs = method_of(), make_method("temporal-ensembling")
    for method in (ours, theirs):
        method.memory["updates"].fill_(1.0)
        method.memory["ensemble"].copy_(torch.rand(5, CLASSES, generator=torch.Generator().manual_seed(0)))
    found, plain = ours.losses(batch, Toy(1), None), theirs.losses(batch, Toy(1), None)
    assert found.keys() - plain.keys() == {"neighbours"}
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    assert all(torch.equal(ours.memory[name], theirs.memory[name]) for name in theirs.memory)


def test_without_targets_only_labelled_pairs_count() -> None:
    batch = make_batch(labelled=1, size=6)
    assert method_of(images=6).losses(batch, Toy(1), None)["neighbours"].item() == 0.0
