"""FixMatch and its kin: losses against loops in float64, thresholds on sequences made by hand, and what is counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import CLASSES, Toy, logits_of, make_batch, make_method, softmax, terms_of, tie_term

from fastswa.methods.flexmatch import FlexMatch
from fastswa.methods.freematch import FreeMatch
from fastswa.methods.guesses import Guess
from fastswa.methods.method import Batch
from fastswa.methods.pseudo_labels import PseudoLabels

KIN = ["fixmatch", "flexmatch", "freematch"]


def method_of(name: str, images: int = 5, **settings: object) -> PseudoLabels:
    method = make_method(name, images=images, **settings)
    assert isinstance(method, PseudoLabels)
    return method


def guess_of(rows: list[list[float]]) -> Guess:
    weak = torch.tensor(rows, dtype=torch.float64)
    return Guess(weak, *weak.max(dim=1))


def entropy_with(logits: np.ndarray, label: int) -> float:
    return -math.log(softmax(logits)[label])


def by_hand(batch: Batch, student: Toy, threshold: float) -> tuple[float, float]:
    """The two sums of FixMatch, image by image."""
    labelled = len(batch.labels)
    weak = logits_of(batch.view("weak"), student.weights[0])
    strong = logits_of(batch.view("strong"), student.weights[1])
    supervised = sum(entropy_with(weak[b], int(batch.labels[b])) for b in range(labelled)) / labelled
    total = 0.0
    for row, learnt in zip(weak[labelled:], strong[labelled:], strict=True):
        target = softmax(row)
        if max(target) >= threshold:
            total += entropy_with(learnt, target.index(max(target)))
    return supervised, total / (len(weak) - labelled)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.8, 0.95])
def test_fixmatch_is_its_formula(threshold: float, together: bool) -> None:
    batch, student = make_batch(labelled=3, size=40, weight=2.5), Toy(1)
    method = method_of("fixmatch", images=40, threshold=threshold, together=together)
    terms = method.losses(batch, student, None)
    supervised, unlabelled = by_hand(batch, student, threshold)
    assert terms["classification"].item() == pytest.approx(supervised, rel=1e-12)
    assert terms["consistency"].item() == pytest.approx(2.5 * unlabelled, rel=1e-12)
    assert unlabelled > 0
    passed = int(method.memory["passed"].sum())
    assert passed == 37 if threshold == 0 else 0 < passed < 37


@pytest.mark.parametrize("name", KIN)
def test_a_teacher_guesses_in_the_students_place(name: str) -> None:
    """Normalised by its own running statistics; the student passes what it learns from, and no weak guess."""
    batch, student, teacher = make_batch(labelled=3, size=40), Toy(1), Toy(2, norm=True)
    norm = teacher.norm
    assert isinstance(norm, torch.nn.BatchNorm1d)
    assert norm.running_mean is not None
    norm.running_mean.copy_(torch.linspace(-1, 1, 6))
    mean = norm.running_mean.clone()
    method = method_of(name, images=40, guesser="teacher")
    heard: list[Guess] = []
    passing = method.passing
    method.passing = lambda guess, index: heard.append(guess) or passing(guess, index)  # type: ignore[func-returns-value, method-assign]
    terms = terms_of(method, batch, student, teacher)
    weak, strong = batch.view("weak"), batch.view("strong")
    guessed = ((weak[3:].flatten(1) - mean) / math.sqrt(1 + norm.eps) @ teacher.weights[0].T).softmax(dim=1)
    assert torch.allclose(heard[0].probabilities, guessed, rtol=1e-9)
    assert torch.equal(norm.running_mean, mean)
    assert norm.training
    (seen,) = student.calls
    assert torch.equal(seen[1], torch.cat([weak[:3], strong[3:]]))
    plain = method_of(name, images=40)
    terms_apart = plain.losses(batch, Toy(1), None)
    assert terms["classification"] == terms_apart["classification"]
    assert terms["consistency"] != terms_apart["consistency"]
    assert torch.autograd.grad(sum(terms.values()), list(teacher.parameters()), allow_unused=True) == (None,) * 4


def test_the_guessing_teacher_is_an_ema() -> None:
    method = method_of("fixmatch", guesser="teacher")
    assert [method.teacher_rate(step, 10) for step in (1, 4, 10_000)] == pytest.approx([1 / 2, 1 / 5, 0.001])
    assert method.moves == ("student", "teacher")
    assert not method_of("fixmatch").has_teacher
    assert not PseudoLabels.has_teacher


def test_a_teacher_has_no_part_in_one_pass_of_all() -> None:
    with pytest.raises(ValueError, match=r"method\.together has the student guess in the pass it learns from"):
        method_of("fixmatch", guesser="teacher", together=True)


def test_two_heads_are_tied_over_what_is_learnt_from() -> None:
    batch, student = make_batch(labelled=2, size=6), Toy(1)
    terms = method_of("fixmatch", tie=0.3).losses(batch, student, None)
    seen = torch.cat([batch.view("weak")[:2], batch.view("strong")[2:]])
    expected = 0.3 * tie_term(*(logits_of(seen, weight) for weight in student.weights))
    assert terms["tie"].item() == pytest.approx(expected)
    assert "tie" not in method_of("fixmatch").losses(batch, Toy(1, heads=1), None)


@pytest.mark.parametrize("name", KIN)
@pytest.mark.parametrize("together", [False, True])
def test_no_gradient_runs_through_the_target(name: str, together: bool) -> None:
    """The gradient is that of the same loss with the pseudo-labels as constants: weak views have no part in it."""
    batch, student = make_batch(labelled=2, size=30), Toy(1, heads=1)
    method = method_of(name, images=30, together=together, **({} if name == "freematch" else {"threshold": 0.5}))
    loss = method.losses(batch, student, None)["consistency"]
    (found,) = torch.autograd.grad(loss, [student.weights[0]])
    weak = torch.tensor(logits_of(batch.view("weak"), student.weights[0])).softmax(dim=1)[2:]
    repeated = method_of(name, images=30, **({} if name == "freematch" else {"threshold": 0.5}))
    passing = repeated.passing(Guess(weak, *weak.max(dim=1)), batch.index[2:])
    strong = batch.view("strong").flatten(1)[2:]
    logits = strong @ student.weights[0].T
    picked = torch.nn.functional.cross_entropy(logits, weak.argmax(dim=1), reduction="none") * passing
    (expected,) = torch.autograd.grad(picked.sum() / 28, [student.weights[0]])
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-14)
    assert int(passing.sum()) > 0


def test_the_passes_are_the_ones_that_batch_norm_sees() -> None:
    batch = make_batch(labelled=2, size=6)
    apart, together = Toy(1), Toy(1)
    method_of("fixmatch").losses(batch, apart, None)
    method_of("fixmatch", together=True).losses(batch, together, None)
    weak, strong = batch.view("weak"), batch.view("strong")
    assert [len(x) for _, x in apart.calls] == [4, 6]
    assert torch.equal(apart.calls[0][1], weak[2:])
    assert torch.equal(apart.calls[1][1], torch.cat([weak[:2], strong[2:]]))
    assert apart.calls[0][0] != apart.calls[1][0]
    assert [len(x) for _, x in together.calls] == [10]
    assert torch.equal(together.calls[0][1], torch.cat([weak, strong[2:]]))


@pytest.mark.parametrize("name", KIN)
def test_weak_views_are_normalised_as_labelled_images_are(name: str) -> None:
    """By the statistics of the pass with gradient: by their own they would pass a network that no label reaches."""
    batch, student = make_batch(labelled=3, size=40), Toy(1, heads=1, norm=True)
    norm = student.norm
    assert norm is not None
    with torch.no_grad():
        norm.running_mean.copy_(torch.linspace(-1, 1, 6))  # type: ignore[union-attr]
        norm.running_var.copy_(torch.linspace(0.5, 2, 6))  # type: ignore[union-attr]
    mean, var = norm.running_mean.clone(), norm.running_var.clone()  # type: ignore[union-attr]
    weak, strong = batch.view("weak").flatten(1), batch.view("strong").flatten(1)
    guessed = ((weak[3:] - mean) / (var + norm.eps).sqrt() @ student.weights[0].T).detach().softmax(dim=1)
    method = method_of(name, images=40)
    heard: list[Guess] = []
    passing = method.passing
    method.passing = lambda guess, index: heard.append(guess) or passing(guess, index)  # type: ignore[func-returns-value, method-assign]
    method.losses(batch, student, None)
    assert torch.allclose(heard[0].probabilities, guessed, rtol=1e-9)
    seen = torch.cat([weak[:3], strong[3:]])
    assert torch.allclose(norm.running_mean, 0.9 * mean + 0.1 * seen.mean(dim=0))  # type: ignore[arg-type]
    assert student.training
    assert norm.training


def test_what_is_learnt_from_is_what_averages_are_normalised_by() -> None:
    batch = make_batch(labelled=2, size=6)
    weak, strong = batch.view("weak"), batch.view("strong")
    for together, labelled, expected in (
        (False, 2, torch.cat([weak[:2], strong[2:]])),
        (True, 2, torch.cat([weak, strong[2:]])),
        (False, 6, torch.cat([weak, strong])),
    ):
        method, student = method_of("fixmatch", together=together), Toy(1)
        found = method.learnt_from(method.config, batch.view, labelled, 6)
        assert torch.equal(found, expected)
        method.losses(replace(batch, labels=torch.arange(labelled) % CLASSES), student, None)
        assert torch.equal(student.calls[-1][1], expected)
    plain = make_method("pi")
    assert torch.equal(plain.learnt_from(plain.config, batch.view, 2, 6), weak)


def test_where_all_are_labelled_they_serve_as_unlabelled_too() -> None:
    batch, student = make_batch(labelled=4, size=4), Toy(1, heads=1)
    method = method_of("fixmatch", threshold=0.0)
    terms = method.losses(batch, student, None)
    weak, strong = (logits_of(batch.view(name), student.weights[0]) for name in ("weak", "strong"))
    expected = sum(entropy_with(s, int(np.argmax(w))) for w, s in zip(weak, strong, strict=True)) / 4
    assert terms["consistency"].item() == pytest.approx(expected)
    assert int(method.memory["seen"]) == 4


def test_flexmatch_thresholds_follow_what_was_learnt() -> None:
    """Ten unlabelled images, tau 0.9; counts of certain guesses by class, and the thresholds after each batch."""
    method = method_of("flexmatch", images=20, threshold=0.9)
    assert isinstance(method, FlexMatch)
    method.introduce(10, torch.full((20,), -1))
    sure = {0: [0.95, 0.03, 0.02], 1: [0.03, 0.95, 0.02], 2: [0.02, 0.03, 0.95]}
    unsure = [0.5, 0.3, 0.2]

    def after(rows: list[list[float]], images: list[int]) -> tuple[list[bool], list[float]]:
        passing = method.passing(guess_of(rows), torch.tensor(images))
        return passing.tolist(), method.thresholds().tolist()

    def threshold(status: float) -> float:
        return 0.9 * status / (2 - status)

    assert method.thresholds().tolist() == [0, 0, 0]
    # Nothing is learnt yet, so that all pass; two images of class 0 are remembered, eight are left over.
    passing, found = after([sure[0], sure[0], unsure], [10, 11, 12])
    assert passing == [True, True, True]
    assert found == pytest.approx([threshold(2 / 8), 0, 0])
    # Three more of class 0 and two of class 1: five, two, three left over. They are divided by the largest count.
    passing, found = after([sure[0]] * 3 + [sure[1]] * 2 + [unsure], [12, 13, 14, 15, 16, 17])
    assert passing == [True] * 6
    assert found == pytest.approx([threshold(1.0), threshold(2 / 5), 0])
    # Class 0 now asks for all of tau; an image that was guessed to be of class 0 changes to class 2.
    passing, found = after([unsure, [0.89, 0.1, 0.01], sure[2]], [18, 19, 10])
    assert passing == [False, False, True]
    assert found == pytest.approx([threshold(1.0), threshold(2 / 4), threshold(1 / 4)])
    # What an image was last certain of stays when it is not.
    assert after([unsure], [10])[1] == pytest.approx(found)


@pytest.mark.parametrize("first_is_certain", [True, False])
def test_flexmatch_remembers_the_certain_one_of_two_guesses_at_an_image(first_is_certain: bool) -> None:
    """Few unlabelled images fill a batch more than once."""
    method = method_of("flexmatch", images=20, threshold=0.9)
    assert isinstance(method, FlexMatch)
    method.introduce(10, torch.full((20,), -1))
    rows = [[0.03, 0.95, 0.02], [0.5, 0.3, 0.2]]
    method.passing(guess_of(rows if first_is_certain else rows[::-1]), torch.tensor([10, 10]))
    assert {image: label for image, label in enumerate(method.learnt.tolist()) if label != -1} == {10: 1}
    # Of guesses that are not certain none counts.
    assert method.thresholds().tolist() == pytest.approx([0, 0.9 * (1 / 9) / (2 - 1 / 9), 0])


def test_freematch_thresholds_are_running_means() -> None:
    method = method_of("freematch", threshold_decay=0.9)
    assert isinstance(method, FreeMatch)
    assert method.thresholds().tolist() == pytest.approx([1 / 3] * 3)
    certainty, prediction, guessed = 1 / 3, np.full(3, 1 / 3), np.full(3, 1 / 3)
    for rows in ([[0.6, 0.3, 0.1], [0.8, 0.1, 0.1]], [[0.1, 0.8, 0.1], [0.34, 0.33, 0.33]], [[0.0, 0.0, 1.0]] * 4):
        passing = method.passing(guess_of(rows), torch.zeros(len(rows), dtype=torch.int64))
        table = np.array(rows)
        certainty = 0.9 * certainty + 0.1 * table.max(axis=1).mean()
        prediction = 0.9 * prediction + 0.1 * table.mean(axis=0)
        guessed = 0.9 * guessed + 0.1 * np.bincount(table.argmax(axis=1), minlength=3) / len(rows)
        thresholds = certainty * prediction / prediction.max()
        assert method.thresholds().tolist() == pytest.approx(thresholds.tolist(), rel=1e-6)
        assert method.memory["guessed"].tolist() == pytest.approx(guessed.tolist(), rel=1e-6)
        assert passing.tolist() == [bool(max(row) >= thresholds[int(np.argmax(row))]) for row in rows]


def fairness_by_hand(method: FreeMatch, strong: np.ndarray, passing: list[bool]) -> float:
    kept = [softmax(row) for row, passes in zip(strong, passing, strict=True) if passes]
    if not kept:
        return 0.0
    mean = [sum(row[c] for row in kept) / len(kept) for c in range(CLASSES)]
    shares = [sum(row.index(max(row)) == c for row in kept) / len(kept) for c in range(CLASSES)]
    there = [c for c in range(CLASSES) if shares[c] > 0]
    ours = {c: mean[c] / shares[c] for c in there}
    memory = {name: method.memory[name].double().tolist() for name in ("prediction", "guessed")}
    whole = {c: memory["prediction"][c] / memory["guessed"][c] for c in there}
    return sum(whole[c] / sum(whole.values()) * math.log(ours[c] / sum(ours.values())) for c in there)


@pytest.mark.parametrize("seed", range(4))
def test_freematch_fairness_is_its_formula(seed: int) -> None:
    batch, student = make_batch(labelled=2, size=12, seed=seed), Toy(seed, heads=1)
    method = method_of("freematch", images=12, fairness=0.5)
    assert isinstance(method, FreeMatch)
    terms = method.losses(batch, student, None)
    weak, strong = (logits_of(batch.view(name), student.weights[0])[2:] for name in ("weak", "strong"))
    guesses = [softmax(row) for row in weak]
    thresholds = method.thresholds().tolist()
    passing = [max(row) >= thresholds[row.index(max(row))] for row in guesses]
    assert terms["fairness"].item() == pytest.approx(0.5 * fairness_by_hand(method, strong, passing), rel=1e-6)


def test_fairness_of_nothing_is_nothing_and_has_no_broken_gradient() -> None:
    method = method_of("freematch")
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    guess = guess_of([[0.5, 0.3, 0.2]] * 4)
    for passing in (torch.zeros(4, dtype=torch.bool), torch.tensor([True, False, False, False])):
        term = method.extra(guess, passing, logits)["fairness"]
        (gradient,) = torch.autograd.grad(term, [logits])
        assert torch.isfinite(gradient).all()
        # A single prediction is all there is of its class: nothing to be unfair to.
        assert term.item() == pytest.approx(0.0)


def counted(label: list[int], passing: list[bool], truth: list[int] | None = None) -> PseudoLabels:
    method = method_of("fixmatch", images=len(label))
    if truth is not None:
        method.introduce(len(label), torch.tensor(truth))
    method.count(torch.tensor(label), torch.tensor(passing), torch.arange(len(label)))
    return method


def test_figures_are_shares_of_what_was_seen_and_start_anew() -> None:
    method = counted([0, 0, 1, 2], [True, True, True, False], truth=[0, 1, -1, 0])
    line = method.figures()
    assert line == {
        "pseudo_labels": {"passing": 0.75, "largest_class": pytest.approx(2 / 3), "error": 50.0},
        "pseudo_label_classes": [0.66667, 0.33333, 0.0],
    }
    assert method.figures() == {}


def test_error_is_left_out_where_no_truth_is_known() -> None:
    assert counted([0, 1], [True, True], truth=[-1, -1]).figures()["pseudo_labels"].keys() == {
        "passing",
        "largest_class",
    }
    assert "error" not in counted([0, 1], [True, True]).figures()["pseudo_labels"]


def test_a_run_in_which_nothing_passes_or_one_class_takes_all_says_so() -> None:
    nothing = counted([0, 1], [False, False]).figures()
    assert nothing["pseudo_labels"]["passing"] == 0
    assert nothing["warning"].startswith("method fixmatch: no prediction was certain enough to be a pseudo-label")
    one = counted([2] * 50, [True] * 50).figures()
    assert "class '2' takes 100.0% of the pseudo-labels" in one["warning"]
    assert "warning" not in counted([2] * 50 + [1] * 3, [True] * 53).figures()


@pytest.mark.parametrize("name", KIN)
def test_what_is_known_of_the_truth_changes_no_number_of_a_step(name: str) -> None:
    def step(truth: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
        method, student = method_of(name, images=20), Toy(1)
        method.introduce(18, truth)
        terms = method.losses(make_batch(labelled=2, size=20), student, None)
        gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum(), list(student.parameters()))
        return [*terms.values(), *gradients], method.memory

    (first, memory), (second, other) = step(torch.arange(20) % 3), step((torch.arange(20) + 1) % 3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert {key for key in memory if not torch.equal(memory[key], other[key])} <= {"wrong"}


@pytest.mark.parametrize("name", KIN)
def test_primed_all_pass(name: str) -> None:
    method = method_of(name, images=20)
    method.prime()
    method.losses(make_batch(labelled=2, size=20), Toy(1), None)
    assert int(method.memory["passed"].sum()) == 18


@pytest.mark.parametrize("decay", [0.1, 0.999])
def test_primed_the_fairness_of_one_class_alone_has_a_gradient(decay: float) -> None:
    """One strong view is one class: norm(p / h) is 1 whatever the weights are, and a probe would see nothing move."""

    def slope(primed: bool) -> float:
        method, student = method_of("freematch", images=3, threshold_decay=decay), Toy(1)
        method.memory["certainty"].zero_()
        if primed:
            method.prime()
        terms = method.losses(make_batch(labelled=2, size=3), student, None)
        found = torch.autograd.grad(terms["fairness"], list(student.parameters()), allow_unused=True)
        return max(float(gradient.abs().max()) for gradient in found if gradient is not None)

    assert slope(primed=False) < 1e-12
    assert slope(primed=True) > 1e-6


def test_the_weight_is_the_papers_unless_given_after_an_epoch_where_thresholds_begin_low() -> None:
    assert [method_of(name).weight(1.0) for name in KIN] == [1.0] * 3
    assert [method_of(name).weight(0.0) for name in KIN] == [1.0, *[pytest.approx(math.exp(-5))] * 2]
    assert method_of("fixmatch", weight=4.0, ramp=2.0).weight(2.0) == 4.0
    assert make_method("mean-teacher").config.weight == 100.0


def test_a_handful_that_passes_is_said_to_be_few_and_not_to_be_one_class() -> None:
    method = method_of("fixmatch", images=5000, threshold=0.9)
    passing = torch.zeros(5000, dtype=torch.bool)
    passing[:3] = True
    method.count(torch.zeros(5000, dtype=torch.int64), passing, torch.arange(5000))
    assert "0.06% of the predictions were certain enough" in method.figures()["warning"]
    method.count(torch.zeros(5000, dtype=torch.int64), torch.ones(5000, dtype=torch.bool), torch.arange(5000))
    assert "class '0' takes 100.0% of the pseudo-labels" in method.figures()["warning"]
