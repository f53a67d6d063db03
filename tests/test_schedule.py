"""The learning rate and the ramps against the paper's formulas, and the schedule on real optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fastswa.config import Config, OptimiserConfig, ScheduleConfig
from fastswa.schedule import CyclicCosine, cyclic_cosine, ema_decay, sigmoid_ramp
from fastswa.training.feed import learning_rate

SHORT = {"length": 180.0, "period": 210.0, "cycle": 30.0}
LONG = {"length": 1500.0, "period": 1800.0, "cycle": 200.0}


def cosine(epoch: float, period: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * epoch / period))


@pytest.mark.parametrize(
    ("settings", "epoch", "equivalent"),
    [
        (SHORT, 0, 0),
        (SHORT, 105, 105),
        (SHORT, 150, 150),
        (SHORT, 179, 179),
        (SHORT, 179.999, 179.999),
        (SHORT, 180, 150),
        (SHORT, 180.25, 150.25),
        (SHORT, 209, 179),
        (SHORT, 209.75, 179.75),
        (SHORT, 210, 150),
        (SHORT, 240, 150),
        (SHORT, 3000, 150),
        (SHORT, 3017.5, 167.5),
        (LONG, 1300, 1300),
        (LONG, 1499.5, 1499.5),
        (LONG, 1500, 1300),
        (LONG, 1699, 1499),
        (LONG, 1700, 1300),
    ],
)
def test_last_cycle_repeats_for_ever(settings: dict[str, float], epoch: float, equivalent: float) -> None:
    expected = cosine(equivalent, settings["period"])
    assert cyclic_cosine(epoch, **settings) == pytest.approx(expected, rel=1e-12)


def test_factor_has_the_values_worked_out_by_hand() -> None:
    assert cyclic_cosine(0, **SHORT) == 1.0
    assert cyclic_cosine(70, **SHORT) == pytest.approx(0.75)
    assert cyclic_cosine(105, **SHORT) == pytest.approx(0.5)
    assert cyclic_cosine(140, **SHORT) == pytest.approx(0.25)
    assert cyclic_cosine(179.99999999, **SHORT) == pytest.approx(0.0495155660, abs=1e-9)
    assert cyclic_cosine(180, **SHORT) == pytest.approx(0.1882550990706332, abs=1e-12)


@pytest.mark.parametrize("epoch", [180, 180.5, 200, 1e6])
def test_without_a_cycle_the_rate_stays_at_what_it_reached(epoch: float) -> None:
    assert cyclic_cosine(epoch, length=180, period=210, cycle=0) == pytest.approx(cosine(180, 210), rel=1e-12)


def test_a_whole_cycle_restarts_from_the_top() -> None:
    assert cyclic_cosine(10, length=10, period=10, cycle=10) == 1.0
    assert cyclic_cosine(25, length=10, period=10, cycle=10) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, math.exp(-5)),
        (0.99, math.exp(-5)),
        (1, math.exp(-5 * 0.64)),
        (2.5, math.exp(-5 * 0.36)),
        (4.999, math.exp(-5 * 0.04)),
        (5, 1.0),
        (100, 1.0),
    ],
)
def test_ramp_uses_the_whole_number_epoch(epoch: float, expected: float) -> None:
    assert sigmoid_ramp(epoch, 5) == pytest.approx(expected, rel=1e-12)


def test_no_ramp_is_full_weight_at_once() -> None:
    assert sigmoid_ramp(0, 0) == 1.0


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.5), (2, 2 / 3), (9, 0.9), (32, 32 / 33), (33, 0.97), (34, 0.97), (10**6, 0.97)]
)
def test_teacher_decay_warms_up(step: int, expected: float) -> None:
    assert ema_decay(step, 0.97) == pytest.approx(expected, rel=1e-12)


def config(**schedule: object) -> Config:
    return Config(
        optimiser=OptimiserConfig(lr=0.2), schedule=ScheduleConfig(**{"length": 180, "period": 210, **schedule})
    )


@pytest.mark.parametrize(("epoch", "equivalent"), [(0, 0), (90.5, 90.5), (180, 150), (209, 179), (210, 150)])
def test_runs_rate_is_the_cyclic_one(epoch: float, equivalent: float) -> None:
    assert learning_rate(config(cycle=30), epoch) == pytest.approx(0.2 * cosine(equivalent, 210), rel=1e-12)


@pytest.mark.parametrize(
    ("constant", "epoch", "expected"),
    [
        (None, 179, 0.2 * cosine(179, 210)),
        (None, 180, 0.2 * cosine(180, 210)),
        (None, 240, 0.2 * cosine(180, 210)),
        (0.05, 179.99, 0.2 * cosine(179.99, 210)),
        (0.05, 180, 0.05),
        (0.05, 1000, 0.05),
        (0.0, 180, 0.0),
    ],
)
def test_runs_rate_can_stay_constant_after_the_length(constant: float | None, epoch: float, expected: float) -> None:
    assert learning_rate(config(after="constant", constant_lr=constant), epoch) == pytest.approx(expected, rel=1e-12)


def test_constant_rate_has_no_effect_on_cycles() -> None:
    assert learning_rate(config(after="cycles", constant_lr=0.05), 180) == pytest.approx(0.2 * cosine(150, 210))


def two_groups(make: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    return make([{"params": first.parameters(), "lr": 0.1}, {"params": second.parameters(), "lr": 0.02}], lr=1.0)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_each_group_keeps_its_own_base_rate(make: Callable[..., torch.optim.Optimizer]) -> None:
    optimizer = two_groups(make)
    schedule = CyclicCosine(optimizer, **SHORT)
    for epoch, equivalent in [(0.0, 0.0), (100.5, 100.5), (200.0, 170.0), (180.0, 150.0), (3.0, 3.0)]:
        schedule.step(epoch)
        expected = [0.1 * cosine(equivalent, 210), 0.02 * cosine(equivalent, 210)]
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected, rel=1e-12)
        assert schedule.get_last_lr() == pytest.approx(expected, rel=1e-12)


def test_rate_is_the_one_an_sgd_step_takes() -> None:
    weight = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    schedule = CyclicCosine(optimizer, **SHORT)
    expected = 1.0
    for epoch in (0.0, 60.25, 185.0):
        schedule.step(epoch)
        weight.grad = torch.tensor(1.0, dtype=torch.float64)
        optimizer.step()
        expected -= 0.5 * cosine(epoch if epoch < 180 else epoch - 30, 210)
    assert weight.item() == pytest.approx(expected, rel=1e-12)


def test_tensor_rate_is_filled_in_place() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5))
    rate = optimizer.param_groups[0]["lr"]
    schedule = CyclicCosine(optimizer, **SHORT)
    schedule.step(105)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.25)
    schedule.step(0)
    assert float(rate) == pytest.approx(0.5)
    weight.grad = torch.ones(2)
    optimizer.step()
    assert weight.tolist() == pytest.approx([-0.5, -0.5])


def test_step_without_an_epoch_goes_to_the_next_whole_one() -> None:
    schedule = CyclicCosine(two_groups(torch.optim.SGD), **SHORT)
    rates = []
    for _ in range(181):
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates[0] == pytest.approx(0.1 * cosine(1, 210))
    assert rates[178:] == pytest.approx([0.1 * cosine(e, 210) for e in (179, 150, 151)])


def test_agrees_with_torchs_cosine_before_the_length() -> None:
    ours, theirs = two_groups(torch.optim.SGD), two_groups(torch.optim.SGD)
    schedule = CyclicCosine(ours, **SHORT)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=210)
    for epoch in range(180):
        schedule.step(epoch)
        assert schedule.get_last_lr() == pytest.approx(oracle.get_last_lr(), rel=1e-9)
        theirs.step()
        oracle.step()


def test_state_goes_round_into_a_schedule_on_another_optimiser() -> None:
    saved = CyclicCosine(two_groups(torch.optim.SGD), **SHORT)
    saved.step(170.5)
    other = torch.optim.SGD([{"params": nn.Linear(1, 1).parameters()}, {"params": nn.Linear(1, 1).parameters()}], lr=9)
    loaded = CyclicCosine(other, **SHORT)
    loaded.load_state_dict(saved.state_dict())
    expected = [0.1 * cosine(170.5, 210), 0.02 * cosine(170.5, 210)]
    assert [group["lr"] for group in other.param_groups] == pytest.approx(expected)
    loaded.step()
    assert loaded.get_last_lr() == pytest.approx([0.1 * cosine(171.5, 210), 0.02 * cosine(171.5, 210)])


def test_a_schedule_made_on_a_restored_optimiser_starts_from_the_base_rate() -> None:
    optimizer = two_groups(torch.optim.SGD)
    CyclicCosine(optimizer, **SHORT).step(170)
    restored = two_groups(torch.optim.SGD)
    restored.load_state_dict(optimizer.state_dict())
    schedule = CyclicCosine(restored, **SHORT)
    schedule.step(105)
    assert schedule.get_last_lr() == pytest.approx([0.05, 0.01])


def test_state_of_other_groups_is_refused() -> None:
    schedule = CyclicCosine(two_groups(torch.optim.SGD), **SHORT)
    with pytest.raises(ValueError, match=r"^the state has 1 parameter groups, and the optimiser 2\.$"):
        schedule.load_state_dict({"epoch": 1.0, "initial_lr": [0.1]})
    with pytest.raises(ValueError, match="this is not the state of a CyclicCosine"):
        schedule.load_state_dict({"last_epoch": 1})


def test_an_epoch_that_is_no_number_is_refused_and_changes_no_rate() -> None:
    schedule = CyclicCosine(two_groups(torch.optim.SGD), **SHORT)
    with pytest.raises(ValueError, match=r"^an epoch must be a finite number, not nan\.$"):
        schedule.step(math.nan)
    assert [group["lr"] for group in schedule.optimizer.param_groups] == pytest.approx([0.1, 0.02])


def test_a_group_that_is_added_later_joins_with_its_own_rate() -> None:
    optimizer = two_groups(torch.optim.SGD)
    schedule = CyclicCosine(optimizer, **SHORT)
    schedule.step(105)
    optimizer.add_param_group({"params": nn.Linear(1, 1).parameters(), "lr": 0.4})
    assert schedule.state_dict()["initial_lr"] == [0.1, 0.02, 0.4]
    schedule.step(70)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.075, 0.015, 0.3])


def test_period_defaults_to_the_length() -> None:
    schedule = CyclicCosine(two_groups(torch.optim.SGD), length=10)
    schedule.step(10)
    assert schedule.get_last_lr() == pytest.approx([0.0, 0.0], abs=1e-15)


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 0},
        {"length": -1},
        {"length": math.nan},
        {"length": 180, "period": 179},
        {"length": 180, "period": 210, "cycle": -1},
        {"length": 180, "period": 210, "cycle": 181},
        {"length": 180, "period": 210, "cycle": math.nan},
    ],
)
def test_bad_arguments_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="CyclicCosine needs 0 < length <= period and 0 <= cycle <= length"):
        CyclicCosine(two_groups(torch.optim.SGD), **settings)
