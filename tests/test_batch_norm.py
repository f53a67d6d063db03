"""Fresh batch-norm statistics, with torch.optim.swa_utils as the oracle."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from fastswa.batch_norm import frozen_statistics, refresh_batch_norm
from normed import Normed, images, network, no_host_reads


def test_refresh_reads_nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = network(), images(3)
    with no_host_reads(monkeypatch):
        refresh_batch_norm(model, batches)


def test_refresh_equals_torchs_update_bn() -> None:
    ours, theirs = network(), network()
    ours(images(1, seed=9)[0])
    batches = images(7)
    refresh_batch_norm(ours, batches)
    update_bn(batches, theirs)
    assert torch.allclose(ours.norm.running_mean, theirs.norm.running_mean, rtol=1e-12)
    assert torch.allclose(ours.norm.running_var, theirs.norm.running_var, rtol=1e-12)
    assert ours.norm.num_batches_tracked == theirs.norm.num_batches_tracked == 7


def test_refresh_is_the_mean_of_the_batches_statistics() -> None:
    model, batches = network(), images(4)
    refresh_batch_norm(model, batches)
    outputs = [model.conv(batch).detach() for batch in batches]
    mean = sum(output.mean(dim=(0, 2, 3)) for output in outputs) / 4
    variance = sum(output.var(dim=(0, 2, 3), unbiased=True) for output in outputs) / 4
    assert torch.allclose(model.norm.running_mean, mean, rtol=1e-12)
    assert torch.allclose(model.norm.running_var, variance, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_refresh_of_16_bit_statistics_goes_on_past_a_few_hundred_batches(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(16, 3, generator=generator).to(dtype) * 2 + 3 for _ in range(1500)]
    refresh_batch_norm(model, batches)
    wide = torch.stack(batches).double()
    assert torch.allclose(model[0].running_mean.double(), wide.mean(dim=(0, 1)), rtol=0.01)
    assert torch.allclose(model[0].running_var.double(), wide.var(dim=1).mean(dim=0), rtol=0.01)


def test_refresh_that_fails_leaves_the_statistics() -> None:
    model = network()
    refresh_batch_norm(model, images(3, seed=2))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(RuntimeError):
        refresh_batch_norm(model, [*images(2), torch.zeros(1)])
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


class Frozen(nn.Module):
    """Its first norm is kept as it was trained elsewhere, as fine-tuning often does."""

    def __init__(self) -> None:
        super().__init__()
        self.given = nn.BatchNorm1d(2)
        self.norm = nn.BatchNorm1d(2)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.given.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.given(x))


def test_refresh_leaves_a_norm_that_never_trains() -> None:
    model = Frozen()
    model.given.running_mean.fill_(5.0)
    model.given.running_var.fill_(4.0)
    batch = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    refresh_batch_norm(model, [batch])
    assert model.given.running_mean.tolist() == [5.0, 5.0]
    assert model.given.running_var.tolist() == [4.0, 4.0]
    assert model.norm.running_mean.tolist() == pytest.approx([(2 - 5) / 2, (4 - 5) / 2], abs=1e-5)
    assert model.norm.running_var.tolist() == pytest.approx([2 / 4, 8 / 4], abs=1e-5)


class Twice(nn.Module):
    """One norm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(3 * self.norm(x) + 4)


def test_refresh_of_a_norm_used_twice_is_the_mean_of_both_and_torchs() -> None:
    ours, theirs = Twice(), Twice()
    batches = [torch.randn(5 + i, 2, dtype=torch.float64) * (i + 1) + i for i in range(3)]
    refresh_batch_norm(ours, batches)
    update_bn(batches, theirs)
    assert torch.allclose(ours.norm.running_mean, theirs.norm.running_mean, rtol=1e-12)
    assert torch.allclose(ours.norm.running_var, theirs.norm.running_var, rtol=1e-12)
    # The second use always has mean 4.
    assert torch.allclose(ours.norm.running_mean, (sum(b.mean(dim=0) for b in batches) / 3 + 4) / 2)
    assert ours.norm.momentum == 0.1
    assert not ours.norm._forward_pre_hooks


def test_refresh_brings_batches_to_the_models_device() -> None:
    class Where(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            found.append(x.device.type)
            return self.norm(x)

    found: list[str] = []
    refresh_batch_norm(Where().to("meta"), [torch.randn(4, 2), (torch.randn(4, 2), torch.zeros(4))])
    assert found == ["meta", "meta"]


@pytest.mark.parametrize("part", ["whole", "inner"])
def test_refresh_of_a_compiled_model_is_the_plain_ones(part: str) -> None:
    plain = nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), nn.ReLU())
    other = copy.deepcopy(plain)
    compiled: Any = torch.compile(other, backend="eager")
    if part == "inner":
        compiled = nn.Sequential(torch.compile(other[0], backend="eager"), nn.ReLU())
    batches = [torch.randn(4, 3) for _ in range(3)]
    compiled(batches[0])
    refresh_batch_norm(plain, batches)
    refresh_batch_norm(compiled, batches)
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(other[0][1], name), getattr(plain[0][1], name), rtol=1e-6)


@pytest.mark.parametrize("kind", [tuple, list])
def test_refresh_takes_the_images_of_pairs(kind: type) -> None:
    plain, paired = network(), network()
    refresh_batch_norm(plain, images(3))
    refresh_batch_norm(paired, (kind((batch, torch.zeros(len(batch)))) for batch in images(3)))
    assert torch.equal(plain.norm.running_var, paired.norm.running_var)


def test_refresh_by_a_forward_of_ones_own() -> None:
    plain, keyed = network(), network()
    refresh_batch_norm(plain, images(3))
    refresh_batch_norm(keyed, [{"x": batch} for batch in images(3)], lambda model, batch: model(batch["x"]))
    assert torch.equal(plain.norm.running_mean, keyed.norm.running_mean)


def test_refresh_without_a_batch_is_refused_and_leaves_the_statistics() -> None:
    model, batches = network(), iter(images(2))
    refresh_batch_norm(model, batches)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(ValueError, match="there is no batch to take batch-norm statistics from; is it an iterator"):
        refresh_batch_norm(model, batches)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_refresh_restores_modes_and_momenta_even_if_a_batch_fails() -> None:
    model = nn.Sequential(Normed().double(), nn.BatchNorm1d(3, momentum=None).double())
    model.eval()
    model[0].drop.train()
    modes = [module.training for module in model.modules()]
    refresh_batch_norm(model, images(2))
    assert [module.training for module in model.modules()] == modes
    assert (model[0].norm.momentum, model[1].momentum) == (0.1, None)
    with pytest.raises(RuntimeError):
        refresh_batch_norm(model, [images(1)[0], torch.zeros(1)])
    assert [module.training for module in model.modules()] == modes
    assert (model[0].norm.momentum, model[1].momentum) == (0.1, None)


def test_refresh_runs_dropout_in_training_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1, dtype=torch.float64)).eval()
    refresh_batch_norm(model, [torch.full((4000, 1), 3.0, dtype=torch.float64)])
    # Threes become 0 or 6: mean 3, variance 9. Without dropout the variance would be 0.
    assert model[1].running_mean.item() == pytest.approx(3.0, abs=0.2)
    assert model[1].running_var.item() == pytest.approx(9.0, abs=0.5)


def test_refresh_without_batch_norm_draws_no_batch() -> None:
    drawn = []
    refresh_batch_norm(nn.Linear(1, 1), (drawn.append(1) for _ in range(3)))
    assert drawn == []


@pytest.mark.parametrize("training", [True, False])
def test_frozen_statistics_leaves_running_statistics_and_the_result(training: bool) -> None:
    model, batch = network(), images(2)[1]
    model(images(1, seed=5)[0])
    model.train(training)
    before = copy.deepcopy(model.state_dict())
    with frozen_statistics(model):
        frozen = model(batch)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(frozen, model(batch))
    moved = not torch.equal(before["norm.running_mean"], model.norm.running_mean)
    assert moved == training


def test_frozen_statistics_ends_with_its_block_even_if_that_fails() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(ZeroDivisionError), frozen_statistics(model):
        _ = 1 / 0
    assert [norm.track_running_stats for norm in model] == [True, False]
