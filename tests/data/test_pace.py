"""Epochs of different length: every step has its place, and steps and epochs are each other's inverse."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fastswa.data.batches import BatchPlan
from fastswa.data.pace import Pace

CHANGES: list[tuple[tuple[int, int], ...]] = [(), ((2, 3),), ((0, 4),), ((1, 9), (2, 1), (6, 7))]


@pytest.mark.parametrize("changes", CHANGES)
def test_steps_follow_one_another_through_epochs_of_any_length(changes: tuple[tuple[int, int], ...]) -> None:
    pace, lengths = Pace(5, changes), []
    for epoch in range(9):
        lengths.append(dict(changes).get(epoch, lengths[-1] if lengths else 5))
    places = [(epoch, position) for epoch, length in enumerate(lengths) for position in range(length)]
    assert [pace.of(epoch) for epoch in range(9)] == lengths
    assert [pace.before(epoch) for epoch in range(9)] == [sum(lengths[:epoch]) for epoch in range(9)]
    for step, (epoch, position) in enumerate(places):
        assert pace.place(step) == (epoch, position)
        assert pace.epoch(step) == float(epoch + Fraction(position, lengths[epoch]))
        assert pace.step(pace.epoch(step)) == step


def test_without_changes_an_epoch_is_the_plain_quotient_to_the_last_bit() -> None:
    pace = Pace(73)
    assert all(pace.epoch(step) == step / 73 for step in range(10_000))


def test_there_is_room_for_longer_epochs_than_planned() -> None:
    assert Pace(8).most == 8
    assert Pace(8, longest=20).most == 20
    assert Pace(8, ((1, 5), (2, 30), (3, 4)), longest=20).most == 30


def test_an_epoch_of_training_has_a_row_a_step_and_other_matrices_stay() -> None:
    plan = BatchPlan(np.arange(10), np.arange(10, 50), size=4, labelled=2, steps=5, changes=((1, 3),))
    assert [len(plan.rows(0, epoch)) for epoch in range(3)] == [5, 3, 3]
    assert len(plan.epoch(0, 1, "refresh/swa")) == 5
