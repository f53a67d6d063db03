"""Self-ensembling: its loss against a loop in float64, what passes which network, and what it warns of."""

from __future__ import annotations

import math

import pytest
import torch
from toy import CLASSES, Toy, logits_of, make_batch, make_method, softmax, terms_of, tie_term

from fastswa.config import MethodConfig
from fastswa.errors import RequestError
from fastswa.methods.guesses import Guesses


def method_of(images: int = 5, **settings: object) -> Guesses:
    method = make_method("self-ensembling", images=images, **settings)
    assert isinstance(method, Guesses)
    return method


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("heads", [1, 2])
def test_it_is_its_formula(threshold: float, heads: int) -> None:
    batch = make_batch(labelled=15, size=40, weight=3.0)
    student, teacher = Toy(1, heads=heads), Toy(2, heads=heads)
    method = method_of(images=40, threshold=threshold)
    terms = terms_of(method, batch, student, teacher)
    first, last = student.weights[0], student.weights[-1]
    source = logits_of(batch.view("student")[:15], first)
    supervised = sum(-math.log(softmax(row)[int(y)]) for row, y in zip(source, batch.labels, strict=True)) / 15
    total, passed = 0.0, 0
    target = logits_of(batch.view("student")[15:], last)
    for row, said in zip(target, logits_of(batch.view("teacher")[15:], teacher.weights[0]), strict=True):
        guess = softmax(said)
        if max(guess) > threshold:
            passed += 1
            total += sum((p - q) ** 2 for p, q in zip(softmax(row), guess, strict=True)) / CLASSES
    assert terms["classification"].item() == pytest.approx(supervised, rel=1e-12)
    assert terms["consistency"].item() == pytest.approx(3.0 * total / 25, rel=1e-12)
    assert (int(method.memory["seen"]), int(method.memory["passed"].sum())) == (25, passed)
    assert 0 < passed < 25
    if heads == 2:
        assert terms["tie"].item() == pytest.approx(
            0.01 * tie_term(source, logits_of(batch.view("student")[:15], last))
        )


def test_the_domains_pass_the_student_apart_and_the_teacher_sees_the_target_alone() -> None:
    batch, student, teacher = make_batch(labelled=2, size=5), Toy(1), Toy(2)
    terms_of(method_of(), batch, student, teacher)
    assert [len(x) for _, x in student.calls] == [2, 3]
    assert torch.equal(student.calls[0][1], batch.view("student")[:2])
    assert torch.equal(student.calls[1][1], batch.view("student")[2:])
    assert [len(x) for _, x in teacher.calls] == [3]
    assert torch.equal(teacher.calls[0][1], batch.view("teacher")[2:])
    assert len({number for number, _ in [*student.calls, *teacher.calls]}) == 3


def test_running_statistics_are_the_targets() -> None:
    batch, student, alone = make_batch(labelled=2, size=8), Toy(1, norm=True), Toy(1, norm=True)
    terms_of(method_of(images=8), batch, student, Toy(2, norm=True))
    alone(batch.view("student")[2:], batch.noise)
    assert student.norm is not None
    assert alone.norm is not None
    assert student.norm.running_mean is not None
    assert alone.norm.running_mean is not None
    assert torch.allclose(student.norm.running_mean, alone.norm.running_mean, rtol=1e-12)
    assert int(student.norm.num_batches_tracked) == 1


def test_each_domain_is_normalised_by_its_own_batch() -> None:
    batch, student = make_batch(labelled=4, size=12, weight=0.0), Toy(1, norm=True, heads=1)
    terms = terms_of(method_of(images=12), batch, student, Toy(2, norm=True))
    source = batch.view("student")[:4].flatten(1)
    assert student.norm is not None
    normal = (source - source.mean(dim=0)) / (source.var(dim=0, unbiased=False) + student.norm.eps).sqrt()
    expected = torch.nn.functional.cross_entropy(normal @ student.weights[0].T, batch.labels)
    assert terms["classification"].item() == pytest.approx(expected.item(), rel=1e-12)


def test_no_gradient_runs_into_the_teacher() -> None:
    batch, student, teacher = make_batch(labelled=2, size=20), Toy(1), Toy(2)
    loss = torch.stack(list(terms_of(method_of(images=20, threshold=0.4), batch, student, teacher).values())).sum()
    assert all(g is None for g in torch.autograd.grad(loss, list(teacher.parameters()), allow_unused=True))


def test_the_teacher_follows_at_one_rate() -> None:
    assert [method_of().teacher_rate(step, 10) for step in range(1, 50)] == pytest.approx([0.01] * 49)
    assert method_of(teacher_decay=0.9).teacher_rate(3, 10) == pytest.approx(0.1)


def test_settings_are_the_papers_unless_given() -> None:
    config = MethodConfig(name="self-ensembling")
    assert (config.weight, config.ramp, config.threshold, config.teacher_decay) == (3, 0, 0.968, 0.99)
    assert method_of().weight(0.0) == 3.0
    assert MethodConfig(name="self-ensembling", threshold=0.5, weight=1).threshold == 0.5
    assert MethodConfig().threshold == 0.95


@pytest.mark.parametrize("threshold", [0, 1, -0.1, 1.5])
def test_a_threshold_beyond_0_and_1_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        MethodConfig(name="self-ensembling", threshold=threshold)


def test_without_a_target_there_is_nothing_to_adapt_to() -> None:
    with pytest.raises(RequestError, match=r"name another domain's with data\.target"):
        method_of().introduce(0, torch.zeros(5, dtype=torch.int64))


def counted(label: list[int], passing: list[bool]) -> Guesses:
    method = method_of(images=len(label))
    method.count(torch.tensor(label), torch.tensor(passing), torch.arange(len(label)))
    return method


def test_a_run_in_which_next_to_nothing_passes_says_so() -> None:
    line = counted([0, 1] * 150, [True, True] + [False] * 298).figures()
    assert line["pseudo_labels"]["passing"] == pytest.approx(2 / 300)
    assert line["warning"] == (
        "method self-ensembling: 0.67% of the predictions were certain enough to be a target since the last "
        "evaluation, so that next to nothing was learnt from target images; it may be early, else lower "
        "method.threshold."
    )
    nothing = counted([0, 1], [False, False]).figures()
    assert nothing["warning"].startswith("method self-ensembling: no prediction was certain enough to be a target")
    assert "warning" not in counted([0, 1] * 50, [True] * 4 + [False] * 96).figures()


def test_a_run_in_which_one_class_swallows_the_target_says_so() -> None:
    assert counted([2] * 100, [True] * 100).figures()["warning"] == (
        "method self-ensembling: class '2' takes 100.0% of the targets since the last evaluation; "
        "the network calls everything the same."
    )
