"""Supervised, Pi and Mean Teacher on a network that can be followed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toy import (
    DIVERGENCES,
    Toy,
    cross_entropy,
    logits_of,
    make_batch,
    make_method,
    softmax,
    squared_error,
    terms_of,
    tie_term,
)

from fastswa.methods import METHODS, method_class
from fastswa.methods.method import Batch, Terms


def values(terms: Terms) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


def gradients(terms: Terms, network: Toy) -> list[Tensor]:
    total = torch.stack(list(terms.values())).sum()
    found = torch.autograd.grad(total, list(network.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(network.parameters(), found, strict=True)]


def numerical_gradient(loss: object, network: Toy, step: float = 1e-5) -> list[Tensor]:
    """Central differences of loss() in every weight."""
    assert callable(loss)
    result = []
    with torch.no_grad():
        for parameter in network.parameters():
            gradient = torch.zeros_like(parameter)
            flat, out = parameter.view(-1), gradient.view(-1)
            for i in range(len(flat)):
                kept = flat[i].item()
                flat[i] = kept + step
                above = loss()
                flat[i] = kept - step
                out[i] = (above - loss()) / (2 * step)
                flat[i] = kept
            result.append(gradient)
    return result


def close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-7) -> bool:
    return all(torch.allclose(x, y, rtol=0, atol=tolerance) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("labelled", [5, 2])
def test_supervised_is_cross_entropy_of_the_first_head(labelled: int) -> None:
    student, batch = Toy(), make_batch(labelled=labelled)
    terms = make_method("supervised").losses(batch, student, None)
    expected = cross_entropy(logits_of(batch.view("student"), student.weights[0]), batch.labels)
    assert values(terms) == {"classification": pytest.approx(expected, rel=1e-12)}


def expected_terms(batch: Batch, student: Toy, teacher: Toy, divergence: str, tie: float) -> dict[str, float]:
    """The paper's terms: head 1 classifies, head 2 agrees with the teacher's head 1, a tie holds them together."""
    first, last = (logits_of(batch.view("student"), student.weights[i]) for i in (0, -1))
    targets = [softmax(row) for row in logits_of(batch.view("teacher"), teacher.weights[0])]
    terms = {
        "classification": cross_entropy(first, batch.labels),
        "consistency": batch.weight.item() * DIVERGENCES[divergence](last, targets),
    }
    if len(student.weights) == 2 and tie:
        terms["tie"] = tie * tie_term(first, last)
    return terms


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("divergence", ["squared", "kl"])
@pytest.mark.parametrize("tie", [0.01, 0.5, 0.0])
def test_pi_compares_two_passes_of_the_student(heads: int, divergence: str, tie: float) -> None:
    student, batch = Toy(heads=heads), make_batch(weight=37.5)
    terms = make_method("pi", divergence=divergence, tie=tie).losses(batch, student, None)
    expected = expected_terms(batch, student, student, divergence, tie)
    assert values(terms) == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("divergence", ["squared", "kl"])
@pytest.mark.parametrize("tie", [0.01, 0.0])
def test_mean_teacher_compares_the_students_last_head_with_the_teachers_first(
    heads: int, divergence: str, tie: float
) -> None:
    student, teacher, batch = Toy(1, heads=heads), Toy(2, heads=heads), make_batch(weight=37.5)
    terms = terms_of(make_method("mean-teacher", divergence=divergence, tie=tie), batch, student, teacher)
    expected = expected_terms(batch, student, teacher, divergence, tie)
    assert values(terms) == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def test_consistency_counts_labelled_images_too() -> None:
    student, teacher = Toy(1), Toy(2)
    few, many = make_batch(labelled=1), make_batch(labelled=5)
    method = make_method("mean-teacher")
    a, b = terms_of(method, few, student, teacher), terms_of(method, many, student, teacher)
    assert a["consistency"].item() == b["consistency"].item() > 0
    assert a["classification"].item() != b["classification"].item()


def test_mean_teacher_sends_no_gradient_into_the_teacher() -> None:
    student, teacher, batch = Toy(1), Toy(2), make_batch(weight=100.0)
    terms = terms_of(make_method("mean-teacher"), batch, student, teacher)
    assert all(torch.count_nonzero(g) == 0 for g in gradients(terms, teacher))
    assert all(torch.count_nonzero(g) == g.numel() for g in gradients(terms, student))


def test_mean_teachers_gradient_is_the_numerical_one() -> None:
    student, teacher, batch = Toy(1), Toy(2), make_batch(weight=10.0)
    terms = terms_of(make_method("mean-teacher"), batch, student, teacher)
    numerical = numerical_gradient(
        lambda: sum(expected_terms(batch, student, teacher, "squared", 0.01).values()), student
    )
    assert close(gradients(terms, student), numerical)


@pytest.mark.parametrize("both_sides", [False, True])
def test_pis_gradient_flows_through_one_side_or_both(both_sides: bool) -> None:
    student, fixed, batch = Toy(1), Toy(1), make_batch(weight=10.0)
    terms = make_method("pi", both_sides=both_sides).losses(batch, student, None)
    one_side = numerical_gradient(lambda: sum(expected_terms(batch, student, fixed, "squared", 0.01).values()), student)
    through_both = numerical_gradient(
        lambda: sum(expected_terms(batch, student, student, "squared", 0.01).values()), student
    )
    assert not close(one_side, through_both, 1e-3)
    assert close(gradients(terms, student), through_both if both_sides else one_side)


@pytest.mark.parametrize("name", ["pi", "mean-teacher"])
def test_the_two_passes_have_views_and_noise_of_their_own(name: str) -> None:
    student, batch = Toy(1, dropout=0.5), make_batch()
    teacher = Toy(2, dropout=0.5) if name == "mean-teacher" else None
    terms_of(make_method(name), batch, student, teacher)
    calls = student.calls + ([] if teacher is None else teacher.calls)
    assert len(calls) == 2
    assert calls[0][0] != calls[1][0]
    assert calls[0][0] == int(batch.noise.scope("student").bits("probe", (1,)))
    assert torch.equal(calls[0][1], batch.view("student"))
    assert torch.equal(calls[1][1], batch.view("teacher"))


def test_pis_dropout_masks_differ_between_its_passes() -> None:
    student, batch = Toy(1, dropout=0.5), make_batch(labelled=5)
    same = Batch(batch.labels, batch.index, batch.weight, batch.noise, lambda name: batch.view("student"))
    assert make_method("pi").losses(same, student, None)["consistency"].item() > 1e-3
    student.dropout = 0.0
    one_head = Toy(1, heads=1)
    assert make_method("pi").losses(same, one_head, None)["consistency"].item() == 0.0


def test_both_passes_of_pi_run_in_training_mode_over_the_whole_batch() -> None:
    student, batch = Toy(norm=True), make_batch()
    make_method("pi").losses(batch, student, None)
    assert student.norm is not None
    assert student.norm.num_batches_tracked == 2
    first, second = (batch.view(name).flatten(1).mean(dim=0) for name in ("student", "teacher"))
    assert torch.allclose(student.norm.running_mean, 0.9 * 0.1 * first + 0.1 * second, rtol=1e-12)


def test_teacher_keeps_batch_statistics_of_its_own() -> None:
    student, teacher, batch = Toy(1, norm=True), Toy(2, norm=True), make_batch()
    terms_of(make_method("mean-teacher"), batch, student, teacher)
    for network, name in ((student, "student"), (teacher, "teacher")):
        assert network.norm is not None
        assert torch.allclose(network.norm.running_mean, 0.1 * batch.view(name).flatten(1).mean(dim=0), rtol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_computes_the_terms_it_declares(name: str) -> None:
    teacher = Toy(2) if method_class(name).has_teacher else None
    method = make_method(name)
    method.prime()
    terms = terms_of(method, make_batch(), Toy(1, dropout=0.5), teacher)
    optional = set() if name == "supervised" else {"tie"}
    assert terms.keys() - optional == method.terms.keys() - optional
    assert all(term.shape == () for term in terms.values())


def test_only_the_supervised_baseline_does_without_unlabelled_images() -> None:
    assert {name for name in METHODS if method_class(name).labelled_only} == {"supervised"}
    assert {name for name in METHODS if method_class(name).has_teacher} == {"mean-teacher", "self-ensembling"}


def test_weight_ramps_up_over_whole_epochs() -> None:
    method = make_method("mean-teacher")
    expected = [0.6737946999085467, 4.076220397836621, 16.529888822158654, 44.932896411722155, 81.87307530779819, 100]
    assert [method.weight(epoch) for epoch in (0, 1, 2.5, 3, 4.99, 5)] == pytest.approx(expected)
    assert make_method("pi", weight=2.0, ramp=80).weight(40) == pytest.approx(2 * 0.2865047968601901)
    assert make_method("pi", weight=2.0, ramp=0).weight(0) == 2.0


def test_squared_error_of_the_paper_is_the_scale_of_the_weight() -> None:
    # Prediction (1/3, 1/3, 1/3) against a certain teacher: (4/9 + 1/9 + 1/9) / 3 per example, times 100.
    student, teacher, batch = Toy(1), Toy(2), make_batch(weight=100.0)
    with torch.no_grad():
        student.weights[1].zero_()
        teacher.weights[0].copy_(1e4 * teacher.weights[0])
    found = terms_of(make_method("mean-teacher"), batch, student, teacher)["consistency"].item()
    assert found == pytest.approx(100 * 2 / 9)
    targets = [softmax(row - row.max()) for row in logits_of(batch.view("teacher"), teacher.weights[0])]
    assert squared_error(logits_of(batch.view("student"), student.weights[1]), targets) == pytest.approx(2 / 9)
