"""Averages, with torch.optim.swa_utils as the oracle."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import l1_unstructured
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import fastswa
from fastswa import batch_norm
from fastswa.averaging import AveragedWeights, unwrap
from fastswa.layers import build_config
from normed import Normed, Synchronised, images, network, no_host_reads


@torch.no_grad()
def wander(model: nn.Module, step: int) -> None:
    """Give the model other weights, as a training step would."""
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype))


def same_parameters(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-12) -> bool:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance) for a, b in pairs)


def due_epochs(average: AveragedWeights, epochs: list[float]) -> list[float]:
    return [epoch for epoch in epochs if average.update(epoch)]


def test_mean_equals_torchs_averaged_model() -> None:
    model = network()
    ours, theirs = AveragedWeights(model), AveragedModel(model)
    for epoch in range(25):
        wander(model, epoch)
        assert ours.update(epoch)
        theirs.update_parameters(model)
        assert same_parameters(ours.module, theirs.module)
    assert ours.count == 25
    assert not same_parameters(ours.module, model, 1e-2)


def test_exponential_average_equals_torchs_where_the_warm_up_is_over_at_once() -> None:
    # max(1 / (n + 1), 1 - 0.5) is 1, 1/2, 1/2, ...: a copy, then decay 0.5, as torch starts too.
    model = network()
    ours = AveragedWeights(model, every=0, decay=0.5)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(20):
        wander(model, step)
        ours.update(step)
        theirs.update_parameters(model)
        assert same_parameters(ours.module, theirs.module)


@pytest.mark.parametrize("decay", [0.0, 0.8, 0.97])
def test_exponential_average_warms_up_as_a_plain_mean(decay: float) -> None:
    def rule(average: Tensor, current: Tensor, count: int | Tensor) -> Tensor:
        return average + max(1 / (int(count) + 1), 1 - decay) * (current - average)

    model = network()
    ours = AveragedWeights(model, every=0, decay=decay)
    theirs = AveragedModel(model, avg_fn=rule)
    plain = AveragedModel(model)
    for step in range(45):
        wander(model, step)
        ours.update(step)
        theirs.update_parameters(model)
        plain.update_parameters(model)
        assert same_parameters(ours.module, theirs.module)
        if step + 1 <= 1 / (1 - decay):
            assert same_parameters(ours.module, plain.module)


def test_average_of_a_scalar_has_its_closed_form() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    mean, moving = AveragedWeights(model, every=0), AveragedWeights(model, every=0, decay=0.75)
    for value in (1.0, 2.0, 3.0, 4.0, 8.0, 16.0):
        nn.init.constant_(model.weight, value)
        mean.update()
        moving.update()
    assert mean.module.weight.item() == pytest.approx(34 / 6)
    assert moving.module.weight.item() == pytest.approx((2.5 * 0.75 + 8 * 0.25) * 0.75 + 16 * 0.25)


def test_gain_and_direction_of_a_weight_norm_are_averaged_each() -> None:
    model = weight_norm(nn.Linear(2, 1, bias=False))
    average = AveragedWeights(model)
    gain, direction = model.parametrizations.weight.original0, model.parametrizations.weight.original1
    for epoch, (g, v) in enumerate([(5.0, (3.0, 4.0)), (1.0, (0.0, 8.0))]):
        nn.init.constant_(gain, g)
        with torch.no_grad():
            direction.copy_(torch.tensor([v]))
        average.update(epoch)
    # Gain 3, direction (1.5, 6): the weight is 3 (1.5, 6) / |(1.5, 6)|, not the mean of the two weights.
    length = (1.5**2 + 6**2) ** 0.5
    assert average.module.weight.flatten().tolist() == pytest.approx([4.5 / length, 18 / length])


class Keeping(nn.Module):
    """Keeps what it computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.linear(x)
        return self.last


def hooked_weight_norm() -> nn.Module:
    """torch's earlier weight norm, whose hook leaves a weight that is no leaf."""
    with pytest.warns(FutureWarning):
        return torch.nn.utils.weight_norm(nn.Linear(3, 2))


def pruned() -> nn.Module:
    return l1_unstructured(nn.Linear(3, 2), "weight", amount=0.5)


@pytest.mark.parametrize("make", [hooked_weight_norm, pruned, Keeping])
def test_models_that_hold_results_of_a_pass_are_averaged(make: Callable[[], nn.Module]) -> None:
    model = make()
    batch = torch.randn(4, 3)
    model(batch)
    average = AveragedWeights(model)
    iterates = []
    for epoch in range(3):
        wander(model, epoch)
        average.update(epoch)
        iterates.append([p.detach().double() for p in model.parameters()])
        model(batch).sum().backward()
    with torch.no_grad():
        for parameter, *values in zip(model.parameters(), *iterates, strict=True):
            parameter.copy_(sum(values) / 3)
    assert same_parameters(average.module, model, 1e-6)
    assert torch.allclose(average.module(batch), model(batch), atol=1e-6)


def test_average_has_no_gradients_and_leaves_the_model_alone() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    average = AveragedWeights(model)
    average.update(0)
    average.refresh(images(2))
    assert all(not p.requires_grad for p in average.module.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_buffers_follow_the_model_at_each_update() -> None:
    model = network()
    average = AveragedWeights(model, start=1)
    model(images(1)[0])
    average.update(0)
    assert average.module.norm.num_batches_tracked == 0
    average.update(1)
    assert average.module.norm.num_batches_tracked == 1
    assert torch.equal(average.module.norm.running_mean, model.norm.running_mean)
    assert average.module.norm.running_mean is not model.norm.running_mean


def test_due_at_whole_epochs() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=150, every=3)
    assert due_epochs(average, list(range(163))) == [150, 153, 156, 159, 162]
    assert average.count == 5


def test_due_asks_without_changing_anything() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=4, every=2)
    assert [average.due(epoch) for epoch in (3, 3.999, 4, 5, 6)] == [False, False, True, True, True]
    assert average.count == 0
    assert average.update(4)
    assert [average.due(epoch) for epoch in (4, 5.99, 6)] == [False, False, True]


def test_due_after_each_step_of_a_fractional_epoch() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=150, every=3)
    steps = 920
    assert due_epochs(average, [step / steps for step in range(149 * steps, 157 * steps)]) == [150, 153, 156]


@pytest.mark.parametrize("steps", [4, 8, 12, 100, 920])
def test_a_quarter_epoch_is_due_four_times_an_epoch(steps: int) -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=2, every=1 / 4)
    found = due_epochs(average, [step / steps for step in range(4 * steps + 1)])
    assert found == [2 + quarter / 4 for quarter in range(9)]


def test_a_quarter_epoch_between_steps_is_due_at_the_next_step() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=1, every=1 / 4)
    assert due_epochs(average, [step / 10 for step in range(21)]) == [1.0, 1.3, 1.5, 1.8, 2.0]


@pytest.mark.parametrize("steps", [3, 7, 49, 391, 500, 920])
def test_one_step_as_the_interval_is_due_at_every_step(steps: int) -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=10, every=1 / steps)
    assert len(due_epochs(average, [step / steps for step in range(12 * steps + 1)])) == 2 * steps + 1


def test_rounding_of_a_fractional_start_does_not_delay_it() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=0.1 * 3, every=1)
    assert due_epochs(average, [step / 10 for step in range(15)]) == [0.3, 1.3]


def test_interval_of_zero_averages_at_each_call_from_the_start() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=2, every=0)
    assert due_epochs(average, [0, 1, 1.9, 2, 2, 2.1, 7]) == [2, 2, 2.1, 7]


def test_skipped_epochs_count_once_and_keep_the_grid() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=10, every=5)
    assert due_epochs(average, [0, 12, 13, 14, 15, 31, 34, 35, 36]) == [12, 15, 31, 35]


def test_update_without_an_epoch_always_averages() -> None:
    average = AveragedWeights(nn.Linear(1, 1), start=100)
    assert average.update()
    assert average.update()
    assert average.count == 2
    assert not average.update(99)


@pytest.mark.parametrize(
    ("preset", "name", "epoch", "count"),
    [
        ("short", "fast_swa", 180, 11),
        ("short", "fast_swa", 240, 31),
        ("short", "swa", 180, 1),
        ("short", "swa", 240, 3),
        ("long", "fast_swa", 1500, 11),
        ("long", "fast_swa", 1700, 21),
        ("long", "swa", 1700, 2),
    ],
)
def test_papers_counts_of_averaged_models(preset: str, name: str, epoch: int, count: int) -> None:
    settings = {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa"}}
    config = build_config({"schedule": {"preset": preset}, "averaging": settings}).averaging[name]
    assert config.start is not None
    assert config.every is not None
    average = AveragedWeights(nn.Linear(1, 1), start=config.start, every=config.every)
    for step in range(1, 4 * epoch + 1):
        average.update(step / 4)
    assert average.count == count


@pytest.mark.parametrize("arguments", [{"every": -1}, {"decay": 1.0}, {"decay": -0.1}])
def test_bad_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="every must be at least 0 and decay in"):
        AveragedWeights(nn.Linear(1, 1), **arguments)


@pytest.mark.parametrize("start", [float("nan"), -1])
def test_a_start_that_is_no_epoch_is_refused(start: float) -> None:
    with pytest.raises(ValueError, match=rf"^start must be an epoch, 0 or later, not {start}\.$"):
        AveragedWeights(nn.Linear(2, 1), start=start)


@pytest.mark.parametrize("name", ["start", "every", "decay"])
def test_what_is_no_number_is_refused(name: str) -> None:
    arguments: dict[str, Any] = {name: "3"}
    with pytest.raises(TypeError, match=rf"^{name} must be a number, not '3'\.$"):
        AveragedWeights(nn.Linear(2, 1), **arguments)


def test_parameters_in_place_of_the_model_are_refused() -> None:
    parameters: Any = nn.Linear(2, 1).parameters()
    with pytest.raises(TypeError, match=r"^AveragedWeights takes the model itself, an nn\.Module, not a generator\.$"):
        AveragedWeights(parameters)


def test_a_model_that_has_grown_since_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    average = AveragedWeights(model)
    model.append(nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"^the model has other parameters than when its average was made"):
        average.update()


@pytest.mark.parametrize("every", [0.0, 1.0])
@pytest.mark.parametrize("epoch", [float("nan"), float("inf")])
def test_an_epoch_that_is_no_number_is_refused(epoch: float, every: float) -> None:
    average = AveragedWeights(nn.Linear(2, 1), every=every)
    with pytest.raises(ValueError, match=rf"^an epoch must be a finite number, not {epoch}\.$"):
        average.update(epoch)
    assert average.count == 0


def test_a_model_that_has_another_layer_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    average = AveragedWeights(model)
    model.append(nn.BatchNorm1d(2, affine=False))
    with pytest.raises(ValueError, match=r"^the model has other layers than when its average was made"):
        average.update()


def test_an_update_that_is_refused_is_due_again() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    average = AveragedWeights(model)
    model.append(nn.Linear(2, 1))
    with pytest.raises(ValueError, match="make the average again"):
        average.update(0)
    del model[1]
    assert average.update(0)


def test_parameters_of_whole_numbers_follow_the_model() -> None:
    model = nn.Linear(2, 1)
    model.quantised = nn.Parameter(torch.tensor([1, 2], dtype=torch.int8), requires_grad=False)
    average = AveragedWeights(model)
    first = model.weight.detach().clone()
    average.update(0)
    nn.init.normal_(model.weight)
    model.quantised.copy_(torch.tensor([4, 4]))
    average.update(1)
    assert average.module.quantised.tolist() == [4, 4]
    assert torch.allclose(average.module.weight, (first + model.weight) / 2, atol=1e-6)


def test_a_module_without_parameters_has_an_average_too() -> None:
    average = AveragedWeights(nn.Sequential(nn.ReLU()))
    assert average.update(0)
    assert average.module(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_buffers_that_are_made_or_grow_later_are_followed() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    model[0].register_buffer("cache", torch.zeros(2))
    model[0].register_buffer("mask", None)
    average = AveragedWeights(model)
    model[0].cache = torch.arange(3.0)
    model[0].mask = torch.ones(1)
    average.update(0)
    assert average.module[0].cache.tolist() == [0.0, 1.0, 2.0]
    assert average.module[0].mask.tolist() == [1.0]
    model[0].cache += 1
    assert average.module[0].cache.tolist() == [0.0, 1.0, 2.0]
    average.update(1)
    assert average.module[0].cache.tolist() == [1.0, 2.0, 3.0]


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^this is not the state of an average: it has no last_due, buffers\.$"):
        AveragedWeights(nn.Linear(2, 1)).load_state_dict({"count": 1, "parameters": {}})


def test_refreshing_an_average_that_has_not_begun_warns() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = AveragedWeights(model, start=150)
    average.update(149)
    with pytest.warns(UserWarning, match=r"nothing has been averaged yet \(start is 150\)"):
        average.refresh([torch.randn(4, 2)])


def test_reachable_from_the_package() -> None:
    assert fastswa.AveragedWeights is AveragedWeights
    assert fastswa.refresh_batch_norm is batch_norm.refresh_batch_norm


@pytest.mark.parametrize("wrap", ["compile", "parallel", "both"])
def test_wrapped_models_are_averaged_under_their_plain_names(wrap: str) -> None:
    plain = network(dtype=torch.float32)
    model: Any = plain
    if wrap != "compile":
        model = nn.DataParallel(model)
    if wrap != "parallel":
        model = torch.compile(model, backend="eager")
    assert unwrap(model) is plain
    ours, theirs = AveragedWeights(model), AveragedModel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch, batch in enumerate(images(6, dtype=torch.float32)):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
        assert ours.update(epoch)
        theirs.update_parameters(plain)
        ours.module(batch)
    assert same_parameters(ours.module, theirs.module, 1e-5)
    assert not same_parameters(ours.module, plain, 1e-3)
    assert ours.state_dict()["parameters"].keys() == dict(Normed().named_parameters()).keys()
    assert ours.module.state_dict().keys() == Normed().state_dict().keys()


def test_bf16_mean_keeps_moving_past_256_updates() -> None:
    model = nn.Linear(4, 4, bias=False).bfloat16()
    average = AveragedWeights(model, every=0)
    for value, times in ((1.0, 400), (2.0, 400)):
        nn.init.constant_(model.weight, value)
        for _ in range(times):
            average.update()
    assert average.state_dict()["parameters"]["weight"].dtype == torch.float32
    assert average.state_dict()["parameters"]["weight"].flatten().tolist() == pytest.approx([1.5] * 16, abs=1e-5)
    assert average.module.weight.dtype == torch.bfloat16
    assert average.module.weight.flatten().tolist() == [1.5] * 16


def test_bf16_module_is_current_after_every_update() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = AveragedWeights(model, every=0)
    for value, mean in ((1.0, 1.0), (3.0, 2.0), (8.0, 4.0)):
        nn.init.constant_(model.weight, value)
        average.update()
        assert average.module.weight.item() == mean


@pytest.mark.parametrize("move", [{"memory_format": torch.channels_last}, {"dtype": torch.float64}])
def test_a_module_that_was_moved_still_shows_the_average(move: dict[str, Any]) -> None:
    model = nn.Conv2d(3, 2, 3)
    average = AveragedWeights(model, every=0)
    average.update()
    average.module.to(**move)
    first = model.weight.detach().clone()
    nn.init.normal_(model.weight)
    average.update()
    assert torch.allclose(average.module.weight.float(), (first + model.weight) / 2, atol=1e-6)
    average.load_state_dict(AveragedWeights(model).state_dict())
    assert torch.equal(average.module.weight.float(), model.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_state_goes_round_and_training_goes_on_the_same(dtype: torch.dtype) -> None:
    model = network(dtype=dtype)
    average = AveragedWeights(model, start=2, every=2)
    for epoch in range(7):
        wander(model, epoch)
        average.update(epoch)
    average.refresh(images(3, dtype=dtype))
    file = io.BytesIO()
    torch.save({"average": average.state_dict(), "model": model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)

    other = network(seed=1, dtype=dtype)
    resumed = AveragedWeights(other, start=2, every=2)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["average"])
    assert resumed.count == average.count == 3
    for name, tensor in average.module.state_dict().items():
        assert torch.equal(resumed.module.state_dict()[name], tensor)
    assert not resumed.update(7)
    for epoch in (7, 8, 9, 10):
        for each in (model, other):
            wander(each, epoch)
        assert average.update(epoch) == resumed.update(epoch) == (epoch % 2 == 0)
    assert same_parameters(resumed.module, average.module, 0.0)


@pytest.mark.parametrize(
    ("start", "every", "expected"),
    [(2, 0.5, [11, 12, 13, 14]), (2, 3, [11, 14]), (12.5, 1, [13, 14]), (2, 0, [11, 12, 13, 14])],
)
def test_a_resumed_average_with_other_times_goes_on_at_them(start: float, every: float, expected: list[float]) -> None:
    model = nn.Linear(1, 1)
    before = AveragedWeights(model, start=2, every=0.2)
    due_epochs(before, [step / 10 for step in range(101)])
    after = AveragedWeights(model, start=start, every=every)
    after.load_state_dict(before.state_dict())
    assert due_epochs(after, [10]) == ([10] if every == 0 else [])
    assert due_epochs(after, [11, 12, 13, 14]) == expected
    assert after.count == 41 + len(expected) + (every == 0)


@pytest.mark.parametrize("inside", [False, True])
def test_a_state_stays_as_it_was_when_it_was_taken(inside: bool) -> None:
    model = nn.BatchNorm1d(1)
    options = {"every": 0.0, "inside": inside}
    average, other = AveragedWeights(model, **options), AveragedWeights(model, **options)
    for step, value in enumerate((1.0, 2.0, 6.0, 9.0)):
        model.weight.data.fill_(value)
        model.running_mean.fill_(value)
        average.update(step)
        if step == 1:
            average.module  # noqa: B018  (brings buffers up to date)
            kept = average.state_dict()
    assert kept["buffers"]["running_mean"].tolist() == [2.0]
    other.load_state_dict(kept)
    assert (other.count, float(other.module.weight), float(average.module.weight)) == (2, 1.5, 4.5)
    other.update(2)
    assert float(other.module.weight) == pytest.approx((1 + 2 + 9) / 3)


def test_state_of_another_model_is_refused() -> None:
    average = AveragedWeights(network())
    with pytest.raises(ValueError, match=r"the state is of another model: parameters .*conv"):
        average.load_state_dict(AveragedWeights(nn.Linear(4, 3)).state_dict())


def test_guard_against_host_reads_trips_on_torchs_average(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    average = AveragedModel(model)
    with pytest.raises(Synchronised), no_host_reads(monkeypatch):
        average.update_parameters(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [None, 0.9])
def test_update_reads_nothing_on_the_host(
    dtype: torch.dtype, decay: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(dtype=dtype)
    average = AveragedWeights(model, start=1, every=0.5, decay=decay)
    with no_host_reads(monkeypatch):
        assert [average.update(step / 4) for step in range(9)] == [False] * 4 + [True, False, True, False, True]


def test_refresh_of_an_average_equals_torchs_on_its_own() -> None:
    model = network()
    ours, theirs = AveragedWeights(model), AveragedModel(model)
    for epoch in range(3):
        wander(model, epoch)
        ours.update(epoch)
        theirs.update_parameters(model)
    ours.refresh(images(5))
    update_bn(images(5), theirs)
    theirs.eval()
    ours.module.eval()
    batch = images(1, seed=3)[0]
    assert torch.allclose(ours.module(batch), theirs(batch), rtol=1e-12)


def test_the_average_predicts_in_evaluation_mode_whatever_the_model_is_in() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    averaged = AveragedWeights(model)
    averaged.update()
    batches = [torch.randn(16, 3) for _ in range(4)]
    averaged.refresh(batches)
    assert torch.equal(averaged.module(batches[0]), averaged.module(batches[0]))
    statistics = averaged.module[1].running_mean.clone()
    averaged.module(batches[1] + 5)
    assert torch.equal(averaged.module[1].running_mean, statistics)
    assert model.training


def inside(model: nn.Module, **options: Any) -> AveragedWeights:
    return AveragedWeights(model, every=0, inside=True, **options)


@pytest.mark.parametrize("decay", [None, 0.8])
@pytest.mark.parametrize("start", [0.0, 1.0, 1.4])
def test_an_average_inside_a_step_is_the_one_outside(decay: float | None, start: float) -> None:
    """From its start on and not before: until then `take` runs, and takes nothing."""
    model = network()
    within, beside = inside(model, start=start, decay=decay), AveragedWeights(model, start=start, every=0, decay=decay)
    for step in range(1, 31):
        wander(model, step)
        due = within.expect(step / 10)
        within.take()
        assert due == beside.update(step / 10) == (step / 10 >= start - 1e-9)
        assert within.count == beside.count
    assert same_parameters(within.module, beside.module)
    assert all(torch.equal(a, b) for a, b in zip(within.module.buffers(), beside.module.buffers(), strict=True))


def test_update_serves_an_average_inside_a_step_too() -> None:
    model = network()
    within, beside = inside(model, start=1.0), AveragedWeights(model, start=1.0, every=0)
    for step in range(1, 21):
        wander(model, step)
        assert within.update(step / 10) == beside.update(step / 10)
        # What a step does on its own account now is nothing.
        within.take()
    assert (within.count, beside.count) == (11, 11)
    assert same_parameters(within.module, beside.module)


class Weights(nn.Module):
    """Numbers alone."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(count))


def test_the_mean_of_a_hundred_thousand_iterates_is_theirs_to_the_last_bit() -> None:
    """Weights that wander about a slow drift, as on a schedule that goes on; a plain running mean loses 10 bits."""
    count, size = 100_000, 32
    generator = torch.Generator().manual_seed(0)
    scale = 10.0 ** torch.linspace(-6, 2, size)
    iterates = torch.randn(count, size, generator=generator) * 0.02 + 0.5 + torch.rand(size, generator=generator)
    iterates += torch.linspace(0, 0.3, count)[:, None]
    iterates *= scale
    model = Weights(size)
    averaged = inside(model)
    averaged.expect(0.0)
    rows = iterates.unbind()
    with torch.no_grad():
        for row in rows:
            model.numbers.copy_(row)
            averaged.take()
    (mean,) = averaged.module.parameters()
    true = iterates.double().mean(dim=0)
    last_bit = torch.finfo(torch.float32).eps * true.abs()
    assert ((mean.double() - true).abs() <= last_bit).all()


def test_taking_reads_nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(dtype=torch.float32)
    averaged = inside(model, start=0.5)
    with no_host_reads(monkeypatch):
        for step in range(1, 4):
            averaged.expect(step / 3)
            averaged.take()
    assert averaged.count == 2


def test_a_weight_of_nothing_leaves_every_bit() -> None:
    model = network(dtype=torch.float32)
    averaged = inside(model, start=0.0)
    for step in range(7):
        wander(model, step)
        averaged.update(float(step))
    before = [p.clone() for p in averaged.module.parameters()]
    wander(model, 99)
    averaged.take()
    assert all(torch.equal(a, b) for a, b in zip(before, averaged.module.parameters(), strict=True))


@pytest.mark.parametrize("decay", [None, 0.9])
def test_the_first_iterate_is_taken_as_it_is(decay: float | None) -> None:
    """Whatever the average held before: numbers too large for the iterate's own to be seen beside them."""
    model = network(dtype=torch.float32)
    with torch.no_grad():
        model.head.weight.fill_(1e9)
    averaged = inside(model, decay=decay)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    averaged.update()
    assert all(torch.equal(a, b) for a, b in zip(averaged.module.parameters(), model.parameters(), strict=True))


def test_one_launch_is_for_gpus() -> None:
    assert not inside(network(dtype=torch.float32)).at_once


def test_the_state_of_an_average_inside_a_step_goes_round() -> None:
    model = network(dtype=torch.float32)
    first = inside(model, start=0.0)
    for step in range(9):
        wander(model, step)
        first.update(float(step))
    saved = copy.deepcopy(first.state_dict())
    second = inside(copy.deepcopy(model), start=0.0)
    second.load_state_dict(saved)
    second._source = model
    for step in range(9, 20):
        wander(model, step)
        assert first.update(float(step)) == second.update(float(step))
    assert all(torch.equal(a, b) for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True))
    # A state without what only accuracy needs is taken too.
    plain = {key: value for key, value in saved.items() if key != "inside"}
    third = inside(copy.deepcopy(model))
    third.load_state_dict(plain)
    assert third.count == 9
    assert float(third.state_dict()["inside"]["taken"]) == 9


def test_taking_is_for_an_average_inside_a_step() -> None:
    with pytest.raises(ValueError, match=r"take is for AveragedWeights\(…, every=0, inside=True\); call update"):
        AveragedWeights(nn.Linear(2, 1)).take()


def test_an_average_inside_a_step_takes_every_step() -> None:
    with pytest.raises(ValueError, match="every must be 0, not 1"):
        AveragedWeights(network(), every=1, inside=True)
