"""Temporal Ensembling: the memory of predictions against its closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toy import CLASSES, DIVERGENCES, Toy, cross_entropy, logits_of, make_batch, make_method, softmax, tie_term

from fastswa.methods.method import Batch
from fastswa.methods.temporal_ensembling import TemporalEnsembling


def method_of(**settings: object) -> TemporalEnsembling:
    method = make_method("temporal-ensembling", **settings)
    assert isinstance(method, TemporalEnsembling)
    return method


def predictions(batch: Batch, student: Toy) -> Tensor:
    rows = logits_of(batch.view("student"), student.weights[0])
    return torch.tensor([softmax(row) for row in rows], dtype=torch.float64)


def near(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found.double(), expected.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("decay", [0.6, 0.0, 0.9])
def test_memory_has_its_closed_form_after_several_epochs(decay: float) -> None:
    method, batch = method_of(memory_decay=decay), make_batch()
    seen = []
    for epoch in range(5):
        student = Toy(epoch)
        seen.append(predictions(batch, student))
        method.losses(batch, student, None)
        method.end_epoch()
        # Z = (1 - a) sum a^(t - i) z_i; divided by 1 - a^t it is a weighted mean, and sums to one.
        total = sum((1 - decay) * decay ** (epoch - i) * z for i, z in enumerate(seen))
        assert isinstance(total, Tensor)
        target, present = method.remembered(batch.index)
        assert near(target, total / (1 - decay ** (epoch + 1)))
        assert near(target.sum(dim=1), torch.ones(5))
        assert present.tolist() == [1.0] * 5
    assert method.memory["updates"].tolist() == [5.0] * 5


def test_target_of_the_first_update_is_the_first_prediction() -> None:
    method, student, batch = method_of(), Toy(), make_batch()
    method.losses(batch, student, None)
    method.end_epoch()
    assert near(method.remembered(batch.index)[0], predictions(batch, student))


def test_target_stays_within_an_epoch() -> None:
    method, batch = method_of(), make_batch()
    for seed in range(3):
        method.losses(batch, Toy(seed), None)
        assert method.remembered(batch.index)[1].tolist() == [0.0] * 5
    method.end_epoch()
    target = method.remembered(batch.index)[0].clone()
    method.losses(batch, Toy(9), None)
    assert torch.equal(method.remembered(batch.index)[0], target)


def test_an_image_seen_several_times_an_epoch_counts_by_its_mean() -> None:
    method = method_of(images=3)
    batch, student = make_batch(index=[0, 1, 0, 2, 0]), Toy()
    method.losses(batch, student, None)
    again, later = make_batch(index=[0, 1, 1, 1, 2], seed=1), Toy(1)
    method.losses(again, later, None)
    method.end_epoch()
    first, second = predictions(batch, student), predictions(again, later)
    expected = torch.stack(
        [
            (first[0] + first[2] + first[4] + second[0]) / 4,
            (first[1] + second[1] + second[2] + second[3]) / 4,
            (first[3] + second[4]) / 2,
        ]
    )
    assert near(method.remembered(torch.arange(3))[0], expected)
    assert method.memory["updates"].tolist() == [1.0] * 3


def test_an_image_not_seen_keeps_its_memory_and_its_correction() -> None:
    method = method_of(images=6)
    everyone, student = make_batch(size=6), Toy()
    method.losses(everyone, student, None)
    method.end_epoch()
    kept = method.remembered(torch.tensor([5]))[0].clone()
    for seed in (1, 2):
        method.losses(make_batch(seed=seed), Toy(seed), None)
        method.end_epoch()
    assert torch.equal(method.remembered(torch.tensor([5]))[0], kept)
    assert near(kept, predictions(everyone, student)[5:])
    assert method.memory["updates"].tolist() == [3.0] * 5 + [1.0]
    method.end_epoch()
    assert method.memory["updates"].tolist() == [3.0] * 5 + [1.0]


@pytest.mark.parametrize("divergence", ["squared", "kl"])
def test_losses_before_and_after_the_first_update(divergence: str) -> None:
    method, batch = method_of(divergence=divergence), make_batch(weight=20.0)
    before = method.losses(batch, Toy(0), None)
    assert before["consistency"].item() == 0.0
    method.end_epoch()
    student = Toy(1)
    first, second = (logits_of(batch.view("student"), weight) for weight in student.weights)
    terms = method.losses(batch, student, None)
    targets = predictions(batch, Toy(0)).tolist()
    assert terms["classification"].item() == pytest.approx(cross_entropy(first, batch.labels), rel=1e-12)
    assert terms["consistency"].item() == pytest.approx(20 * DIVERGENCES[divergence](second, targets), rel=1e-5)
    assert terms["tie"].item() == pytest.approx(0.01 * tie_term(first, second), rel=1e-12)


def test_images_without_a_target_add_nothing_but_count_in_the_batch() -> None:
    method, student = method_of(images=10), Toy(1)
    method.losses(make_batch(size=2), Toy(0), None)
    method.end_epoch()
    batch = make_batch()
    found = method.losses(batch, student, None)["consistency"].item()
    logits = logits_of(batch.view("student"), student.weights[1])
    targets = [softmax(row) for row in logits_of(make_batch(size=2).view("student"), Toy(0).weights[0])]
    expected = DIVERGENCES["squared"](logits[:2], targets) * 2 / 5
    assert found == pytest.approx(expected, rel=1e-5)


def test_memory_gets_no_gradient_and_the_student_does() -> None:
    method, batch, student = method_of(), make_batch(), Toy(1)
    method.losses(batch, Toy(0), None)
    method.end_epoch()
    terms = method.losses(batch, student, None)
    assert all(not tensor.requires_grad for tensor in method.memory.values())
    (gradient,) = torch.autograd.grad(terms["consistency"], [student.weights[1]])
    assert torch.count_nonzero(gradient) == gradient.numel()


def test_memory_stays_in_the_same_tensors() -> None:
    method, batch = method_of(), make_batch()
    before = {name: tensor.data_ptr() for name, tensor in method.memory.items()}
    for seed in range(2):
        method.losses(batch, Toy(seed), None)
        method.end_epoch()
    assert {name: tensor.data_ptr() for name, tensor in method.memory.items()} == before


def test_primed_memory_is_the_uniform_prediction() -> None:
    method = method_of()
    method.prime()
    target, present = method.remembered(torch.arange(5))
    assert near(target, torch.full((5, CLASSES), 1 / 3))
    assert present.tolist() == [1.0] * 5


def test_weight_ramps_over_80_epochs_where_asked() -> None:
    method = method_of(ramp=80, weight=30)
    assert [method.weight(e) for e in (0, 40, 79, 80)] == pytest.approx(
        [30 * math.exp(-5), 30 * math.exp(-1.25), 30 * math.exp(-5 / 6400), 30]
    )
