"""An epoch as an index matrix: the paper's step counts, passes and chains of shuffles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fastswa.data.batches import BatchPlan, plan_batches
from fastswa.data.splits import Split
from fastswa.errors import RequestError


def split_of(labelled: int, unlabelled: int) -> Split:
    """Images 0 .. labelled - 1 are labelled, the following ones are not."""
    numbers = np.arange(labelled + unlabelled)
    return Split(numbers[:labelled], numbers[labelled:], numbers[:0])


def plan_of(labelled: int, unlabelled: int, size: int, share: int, **options: object) -> BatchPlan:
    options = {"steps": None, **options}
    return plan_batches(split_of(labelled, unlabelled), size=size, labelled=share, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "size", "share", "steps"),
    [
        (4000, 46000, 100, 50, 920),
        (50000, 0, 100, 50, 500),
        (4000, 46000, 128, 31, 474),
        (10000, 40000, 128, 31, 412),
        (50000, 0, 128, 31, 390),
        (1000, 49000, 100, 50, 980),
    ],
)
def test_steps_of_an_epoch(labelled: int, unlabelled: int, size: int, share: int, steps: int) -> None:
    plan = plan_of(labelled, unlabelled, size, share)
    assert plan.steps == steps
    matrix = plan.epoch(0, 0)
    assert matrix.shape == (steps, size)
    assert matrix.dtype == np.int64


def test_each_unlabelled_image_comes_once_and_only_the_remainder_is_left_out() -> None:
    plan = plan_of(40, 463, 20, 8)
    matrix = plan.epoch(0, 3)
    unlabelled = matrix[:, 8:].flatten()
    assert plan.steps == 38
    assert len(np.unique(unlabelled)) == len(unlabelled) == 38 * 12
    assert 463 - len(unlabelled) == 463 % 12
    assert unlabelled.min() >= 40
    assert unlabelled.max() < 503


def test_labelled_images_come_first_and_form_a_chain_of_shuffles() -> None:
    matrix = plan_of(37, 500, 20, 10).epoch(0, 0)
    drawn = matrix[:, :10].flatten()
    blocks = [drawn[i : i + 37] for i in range(0, len(drawn) - 36, 37)]
    assert len(blocks) == 13
    assert all(np.array_equal(np.sort(block), np.arange(37)) for block in blocks)
    assert len({tuple(block) for block in blocks}) == 13
    rest = drawn[13 * 37 :]
    assert len(np.unique(rest)) == len(rest)


def test_a_batch_larger_than_the_labelled_images_repeats_them() -> None:
    matrix = plan_of(3, 100, 20, 8).epoch(0, 0)
    counts = np.stack([np.bincount(row[:8], minlength=3) for row in matrix])
    assert counts.min() >= 2
    assert counts.max() <= 4


def test_wholly_labelled_data_are_one_pass() -> None:
    plan = plan_of(205, 0, 20, 5)
    matrix = plan.epoch(0, 0)
    assert (plan.labelled, plan.steps) == (20, 10)
    assert len(np.unique(matrix)) == 200


def test_order_is_random() -> None:
    matrix = plan_of(100, 1000, 20, 10).epoch(0, 0)
    unlabelled = matrix[:, 10:].flatten()
    assert abs(np.corrcoef(unlabelled, np.arange(1000))[0, 1]) < 5 / 1000**0.5
    assert (unlabelled == np.arange(100, 1100)).sum() < 10


def test_same_seed_and_epoch_give_the_same_matrix_and_others_another() -> None:
    plan = plan_of(40, 400, 20, 10)
    base = plan.epoch(1, 5)
    assert np.array_equal(base, plan.epoch(1, 5))
    assert np.array_equal(base, plan_of(40, 400, 20, 10).epoch(1, 5))
    for other in (plan.epoch(1, 6), plan.epoch(2, 5), plan.epoch(1, 5, "refresh/swa/1"), plan.epoch(5, 1)):
        # Equal entries by chance: 40 of 400 positions hold one of 40, the others one of 400.
        assert (base == other).mean() < 0.1


def test_labelled_chain_restarts_every_epoch() -> None:
    plan = plan_of(40, 400, 20, 10)
    for epoch in range(4):
        assert np.array_equal(np.sort(plan.epoch(0, epoch)[:4, :10].flatten()), np.arange(40))


def test_supervised_fills_whole_batches_for_as_many_steps_as_the_others() -> None:
    plan = plan_of(37, 500, 20, 10, labelled_only=True)
    matrix = plan.epoch(0, 0)
    assert plan.steps == plan_of(37, 500, 20, 10).steps == 50
    assert plan.labelled == 20
    assert matrix.shape == (50, 20)
    assert matrix.max() < 37
    assert np.array_equal(np.sort(matrix.flatten()[:37]), np.arange(37))
    assert np.bincount(matrix.flatten(), minlength=37).min() >= 1000 // 37


def test_supervised_may_ask_for_whole_labelled_batches() -> None:
    plan = plan_of(60, 500, 20, 20, labelled_only=True)
    assert (plan.steps, plan.labelled) == (3, 20)


@pytest.mark.parametrize("labelled_only", [False, True])
def test_steps_can_be_given(labelled_only: bool) -> None:
    plan = plan_of(37, 100, 20, 10, steps=25, labelled_only=labelled_only)
    matrix = plan.epoch(0, 0)
    assert matrix.shape == (25, 20)
    if not labelled_only:
        drawn = matrix[:, 10:].flatten()
        assert np.array_equal(np.sort(drawn[:100]), np.arange(37, 137))
        assert np.array_equal(np.sort(drawn[100:200]), np.arange(37, 137))
    assert plan_of(37, 100, 20, 10, steps=2).epoch(0, 0).shape == (2, 20)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((40, 9, 20, 10), r"^batch\.size: a batch takes 10 unlabelled images, but only 9 are there; make the batch"),
        ((19, 0, 20, 10), r"^batch\.size: a batch takes 20 labelled images, but only 19 are there; make the batch"),
        ((40, 100, 20, 20), r"^batch\.labelled \(20\) leaves no room for unlabelled images in a batch of 20\.$"),
        ((0, 100, 20, 10), r"a batch holds no labelled image"),
        ((40, 100, 20, 0), r"a batch holds no labelled image"),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(arguments: tuple[int, int, int, int], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        plan_of(*arguments)


def extra_plan(extras: int, per_epoch: int | None, windowed: bool = False, unlabelled: int = 30) -> BatchPlan:
    """Images 0 .. 39 are labelled, the next `unlabelled` are not, and the extra ones follow."""
    plan = plan_of(40, unlabelled, 20, 8, first_extra=40 + unlabelled, extras=extras, extra_per_epoch=per_epoch)
    return replace(plan, windowed=windowed)


@pytest.mark.parametrize(
    ("unlabelled", "extras", "per_epoch", "size", "share", "steps"),
    [
        (0, 500_000, 100_000, 128, 64, 1562),  # the paper's CIFAR-100 CNN with 50k labels and extra images
        (0, 237_203, 100_000, 128, 31, 1030),  # Shake-Shake
        (0, 60_000, 100_000, 128, 64, 937),  # fewer than an epoch may draw
        (40_000, 1_000, None, 100, 50, 820),  # unlabelled images of both sources
    ],
)
def test_steps_with_extra_images(
    unlabelled: int, extras: int, per_epoch: int | None, size: int, share: int, steps: int
) -> None:
    options = {"first_extra": 50_000 + unlabelled, "extras": extras, "extra_per_epoch": per_epoch}
    assert plan_of(50_000, unlabelled, size, share, **options).steps == steps


def test_extra_images_are_drawn_anew_each_epoch_and_come_once_in_it() -> None:
    plan = extra_plan(1000, 90)
    epochs = [plan.epoch(5, number)[:, 8:].flatten() for number in range(30)]
    for unlabelled in epochs:
        assert len(np.unique(unlabelled)) == len(unlabelled) == 120
        assert (unlabelled >= 70).sum() == 90
    assert not np.array_equal(np.sort(epochs[0]), np.sort(epochs[1]))
    seen = np.unique(np.concatenate(epochs))
    assert seen.min() == 40
    assert seen.max() <= 1069
    # Of 1,000 images each is missed by 30 draws of 90 with probability 0.91^30 = 0.059.
    assert 900 < (seen >= 70).sum() < 980
    assert np.array_equal(plan.epoch(5, 7), extra_plan(1000, 90).epoch(5, 7))
    assert not np.array_equal(plan.drawn(5, 0), plan.drawn(5, 0, "refresh"))


def test_labelled_images_can_serve_as_unlabelled_ones_too() -> None:
    """One shuffle of all 503 images and not of 463; as labelled ones they come as before."""
    plan = plan_of(40, 463, 20, 8, reuse_labelled=True)
    assert (plan.unlabelled, plan.steps) == (503, 503 // 12)
    matrix = plan.epoch(0, 3)
    places = matrix[:, 8:].flatten()
    assert len(np.unique(places)) == len(places) == 41 * 12
    assert 40 - (503 - len(places)) <= (places < 40).sum() <= 40
    assert matrix[:, :8].max() < 40
    assert np.array_equal(matrix, plan_of(40, 463, 20, 8, reuse_labelled=True).epoch(0, 3))
    assert not np.array_equal(matrix, plan.epoch(0, 4))


def test_where_all_are_labelled_and_serve_twice_rows_have_places_of_both_kinds() -> None:
    plan = plan_of(60, 0, 20, 8, reuse_labelled=True)
    assert (plan.labelled, plan.unlabelled, plan.steps) == (8, 60, 5)
    assert np.array_equal(np.sort(plan.epoch(0, 0)[:, 8:].flatten()), np.arange(60))
    with pytest.raises(RequestError, match="leaves no room for unlabelled images in a batch of 20"):
        plan_of(60, 0, 20, 20, reuse_labelled=True)


def test_extra_images_and_labelled_ones_that_serve_twice_share_the_places() -> None:
    plan = plan_of(10, 20, 12, 4, first_extra=30, extras=200, extra_per_epoch=50, reuse_labelled=True)
    assert (plan.unlabelled, plan.steps) == (230, 80 // 8)
    places = plan.epoch(1, 2)[:, 4:].flatten()
    assert np.array_equal(np.sort(places), np.concatenate([np.arange(30), 30 + plan.drawn(1, 2)]))


def test_labelled_images_are_never_extra_ones() -> None:
    matrix = extra_plan(1000, 90).epoch(0, 0)
    assert matrix[:, :8].max() < 40


def test_rows_of_a_window_are_places_in_the_epochs_draw() -> None:
    resident, windowed = extra_plan(1000, 90), extra_plan(1000, 90, windowed=True)
    for epoch in (0, 4):
        numbers, rows, drawn = windowed.epoch(3, epoch), windowed.rows(3, epoch), windowed.drawn(3, epoch)
        assert rows.max() < 70 + 90
        held = np.concatenate([np.arange(70), 70 + drawn])
        assert np.array_equal(held[rows], numbers)
        assert np.array_equal(resident.rows(3, epoch), numbers)


def test_all_extra_images_are_used_where_an_epoch_may_draw_them() -> None:
    for per_epoch in (None, 90, 200):
        unlabelled = extra_plan(90, per_epoch).epoch(0, 0)[:, 8:]
        assert np.array_equal(np.unique(unlabelled), np.arange(40, 160))


def test_a_plan_without_extra_images_is_what_it_was() -> None:
    """The numbers of an epoch as they were before there were extra images: resumed runs must not notice."""
    matrix = plan_of(6, 9, 5, 2).epoch(1, 2)
    assert matrix.tolist() == [[0, 1, 6, 12, 13], [5, 4, 8, 11, 7], [2, 3, 10, 9, 14]]
    assert np.array_equal(plan_of(6, 9, 5, 2).rows(1, 2), matrix)


def test_supervised_training_takes_as_many_steps_with_extra_images() -> None:
    options = {"first_extra": 70, "extras": 1000, "extra_per_epoch": 90}
    plan = plan_of(40, 30, 20, 8, labelled_only=True, **options)
    assert (plan.steps, plan.extra_per_epoch) == (10, 0)
    assert plan.epoch(0, 0).max() < 40


def test_classes_take_turns_in_balanced_batches() -> None:
    classes = np.array([0] * 30 + [1] * 5 + [3] * 2)
    plan = plan_of(37, 500, 20, 9, classes=classes)
    matrix = plan.epoch(0, 0)
    drawn = matrix[:, :9]
    assert (matrix[:, 9:] >= 37).all()
    for row in drawn:
        assert [int((classes[row] == label).sum()) for label in (0, 1, 3)] == [3, 3, 3]
    # Each class is a chain of shuffles of its own: all of its images before any comes again.
    of_one = drawn.flatten()[classes[drawn.flatten()] == 1]
    assert all(sorted(of_one[i : i + 5]) == [30, 31, 32, 33, 34] for i in range(0, len(of_one) - 4, 5))
    orders = {tuple(classes[three]) for three in drawn.reshape(-1, 3)}
    assert len(orders) == 6
    assert np.array_equal(matrix, plan.epoch(0, 0))
    assert not np.array_equal(matrix, plan.epoch(0, 1))


def test_turns_go_on_from_batch_to_batch_where_there_are_more_classes_than_places() -> None:
    plan = plan_of(60, 500, 20, 7, classes=np.arange(60) % 10)
    drawn = (plan.epoch(0, 0)[:, :7] % 10).flatten()
    assert all(len(set(drawn[i : i + 10])) == 10 for i in range(0, len(drawn) - 9, 10))


def test_few_images_fill_a_batch_where_the_steps_are_given() -> None:
    matrix = plan_of(6, 5, 20, 8, steps=3).epoch(0, 0)
    assert matrix.shape == (3, 20)
    assert set(matrix[:, :8].flatten()) == set(range(6))
    assert set(matrix[:, 8:].flatten()) == set(range(6, 11))
    assert plan_of(6, 0, 20, 8, steps=3, labelled_only=True).epoch(0, 0).shape == (3, 20)
