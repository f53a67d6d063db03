"""How far the teacher moves after each step, and the weights that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from toy import make_method

STEPS = 10


def rates(count: int, steps: int = STEPS, **settings: object) -> list[float]:
    method = make_method("mean-teacher", **settings)
    return [method.teacher_rate(step, steps) for step in range(1, count + 1)]


def follow(rates: list[float], students: np.ndarray, teacher: float) -> list[float]:
    """teacher += rate (student - teacher) after every step."""
    trace = []
    for rate, student in zip(rates, students, strict=True):
        teacher += rate * (student - teacher)
        trace.append(teacher)
    return trace


def test_ema_warms_up_from_a_decay_of_one_half() -> None:
    found = rates(100)
    assert found[:3] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert found[31] == pytest.approx(1 / 33)
    assert found[32:] == pytest.approx([0.03] * 68)


def test_ema_of_the_warm_up_is_a_mean_with_the_teachers_own_start() -> None:
    students = np.random.default_rng(0).normal(size=20)
    trace = follow(rates(20, teacher_decay=0.99), students, teacher=5.0)
    for step in range(1, 21):
        assert trace[step - 1] == pytest.approx((5.0 + students[:step].sum()) / (step + 1))


def test_ema_has_its_closed_form_after_the_warm_up() -> None:
    students = np.ones(500)
    trace = follow(rates(500), students, teacher=0.0)
    # 1 - teacher shrinks by 1 - 1/(step + 1) up to step 32, that is by 1/33 in all, then by 0.97 a step.
    assert trace[31] == pytest.approx(1 - 1 / 33)
    assert trace[-1] == pytest.approx(1 - 0.97**468 / 33)


def test_methods_without_a_teacher_move_none() -> None:
    assert make_method("pi").teacher_rate(1, STEPS) == 0.0


def test_swa_teacher_is_the_ema_before_its_start() -> None:
    assert rates(39, teacher="swa", teacher_start=4) == rates(39)


@pytest.mark.parametrize(("start", "every"), [(4, 1), (4, 2), (3, 0.5), (2.5, 0.3), (1, 0.1), (2, 0.25)])
def test_swa_teachers_rates_are_those_of_a_running_mean(start: float, every: float) -> None:
    found = rates(120, teacher="swa", teacher_start=start, teacher_every=every)
    first = round(start * STEPS)
    moves = {step: rate for step, rate in enumerate(found, 1) if step >= first and rate > 0}
    due = sorted({first + int(np.ceil(i * every * STEPS - 1e-9)) for i in range(200)})
    assert list(moves) == [step for step in due if step <= 120]
    assert list(moves.values()) == pytest.approx([1 / (i + 1) for i in range(len(moves))])


@pytest.mark.parametrize("every", [0, 0.01, 0.1])
def test_swa_teacher_can_average_every_step(every: float) -> None:
    found = rates(60, teacher="swa", teacher_start=4, teacher_every=every)
    assert found[39:] == pytest.approx([1 / (i + 1) for i in range(21)])


@pytest.mark.parametrize(("start", "every"), [(4, 1), (1, 3), (2.5, 0.5), (3, 0)])
def test_swa_teachers_weights_are_a_plain_mean_of_the_students(start: float, every: float) -> None:
    students = np.random.default_rng(1).normal(size=125)
    trace = follow(rates(125, teacher="swa", teacher_start=start, teacher_every=every), students, teacher=100.0)
    first, interval = round(start * STEPS), max(round(every * STEPS), 1)
    for step in range(first, 126):
        taken = students[first - 1 : step : interval]
        assert trace[step - 1] == pytest.approx(taken.mean(), abs=1e-12)


def test_papers_epochs_do_not_slip_by_a_step() -> None:
    steps = 920
    method = make_method("mean-teacher", teacher="swa", teacher_start=150, teacher_every=1)
    due = [step for step in range(149 * steps, 156 * steps) if step >= 150 * steps and method.teacher_rate(step, steps)]
    assert due == [epoch * steps for epoch in range(150, 156)]
