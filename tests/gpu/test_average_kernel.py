"""The average of every step in one launch, against the plain operations and the same numbers in float64, on a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fastswa import kernels
from fastswa.averaging import AveragedWeights
from fastswa.models.cnn13 import CNN13
from fastswa.training.graph import captured

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EPS = torch.finfo(torch.float32).eps


class Numbers(nn.Module):
    """Parameters of many shapes, one laid out with channels last; `numbers` is theirs, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(5000,), (), (7, 3, 3, 3), (2048,), (16, 8, 1, 1), (3, 4097)]
        self.parts = nn.ParameterList([torch.zeros(shape, device="cuda") for shape in shapes])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def fill(self, numbers: Tensor) -> None:
        for part, own in zip(self.parts, numbers.split([part.numel() for part in self.parts]), strict=True):
            part.copy_(own.view(part.shape))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def inside(model: nn.Module, decay: float | None = None, start: float = 0.0) -> AveragedWeights:
    return AveragedWeights(model, start=start, every=0, decay=decay, inside=True)


def iterate(step: int, size: int, steps: int) -> Tensor:
    """Numbers from 1e-6 to 1e3 about means of their own, with a slow drift."""
    generator = torch.Generator("cuda").manual_seed(1)
    scale = 10.0 ** (9 * torch.rand(size, device="cuda", generator=generator) - 6)
    centre = torch.randn(size, device="cuda", generator=generator).sign() * 0.8
    generator.manual_seed(100 + step)
    return scale * (centre + 0.02 * torch.randn(size, device="cuda", generator=generator) + 0.1 * step / steps)


@pytest.mark.parametrize("decay", [None, 0.99])
def test_the_mean_is_that_of_float64_and_of_the_plain_operations(
    decay: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, model = 3000, Numbers()
    size = flat(model).numel()
    model.fill(torch.full((size,), 1e9, device="cuda"))
    at_once, plain = inside(model, decay, start=1.0), inside(model, decay, start=1.0)
    assert at_once.at_once

    def take(epoch: float) -> None:
        for average, kernel in ((at_once, True), (plain, False)):
            with monkeypatch.context() as patch:
                if not kernel:
                    patch.setattr(kernels, "averageable", lambda parameters, means: False)
                average.expect(epoch)
                average.take()

    before = flat(at_once.module)
    take(0.5)
    assert torch.equal(flat(at_once.module), before)
    assert float(at_once.state_dict()["inside"]["taken"]) == 0
    true = torch.zeros(size, dtype=torch.float64, device="cuda")
    for step in range(1, steps + 1):
        numbers = iterate(step, size, steps)
        model.fill(numbers)
        take(2.0)
        if step == 1:
            assert torch.equal(flat(at_once.module), flat(model))
        true += (numbers.double() - true) * max(1 / step, 0.0 if decay is None else 1.0 - decay)
    # An exponential mean keeps nothing of what rounding loses: a last digit's half at each step, forgotten in time.
    allowed = EPS * true.abs() if decay is None else 60 * EPS * true.abs()
    for average in (at_once, plain):
        assert ((flat(average.module).double() - true).abs() <= allowed).all()
    saved, expected = at_once.state_dict()["inside"], plain.state_dict()["inside"]
    assert {name: tensor.shape for name, tensor in saved.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    assert float(saved["taken"]) == float(expected["taken"]) == at_once.count == steps


def test_a_captured_step_takes_what_is_expected_and_nothing_else() -> None:
    """One capture serves the run: before the average begins its replays leave every bit."""
    torch.manual_seed(0)
    model = CNN13().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average, late = inside(model), inside(model, decay=0.9, start=2.0)
    assert average.at_once
    assert late.at_once
    moves = [torch.randn_like(p) for p in model.parameters()]

    @torch.no_grad()
    def work() -> None:
        torch._foreach_add_(list(model.parameters()), moves, alpha=0.01)
        average.take()
        late.take()

    changed = [*model.parameters(), *average.state_dict()["parameters"].values(), *late._means]
    changed += [*average.state_dict()["inside"].values(), *late.state_dict()["inside"].values()]
    first, before = flat(model), flat(late.module)
    replay = captured(work, changed)
    assert torch.equal(flat(model), first)
    assert torch.equal(flat(average.module), first)
    iterates: list[Tensor] = []
    for step in range(1, 31):
        for each in (average, late):
            each.expect(step / 10)
        replay()
        iterates.append(flat(model).double())
        if step == 1:
            assert torch.equal(flat(average.module), flat(model))
        if step == 19:
            assert torch.equal(flat(late.module), before)
    mean = torch.stack(iterates).mean(dim=0)
    spread = float(torch.stack(iterates).abs().max())
    assert float((flat(average.module).double() - mean).abs().max()) < 2 * EPS * spread
    expected = iterates[19]
    for number, each in enumerate(iterates[19:], start=1):
        expected = expected + (each - expected) * max(1 / number, 0.1)
    assert float((flat(late.module).double() - expected).abs().max()) < 10 * EPS * spread
    assert (average.count, late.count) == (30, 11)
    assert [float(each.state_dict()["inside"]["taken"]) for each in (average, late)] == [30, 11]


def test_averages_on_two_streams_count_for_themselves() -> None:
    torch.manual_seed(0)
    models = [CNN13().cuda().to(memory_format=torch.channels_last) for _ in range(2)]  # type: ignore[call-overload]
    averages, streams = [inside(model) for model in models], [torch.cuda.Stream() for _ in models]
    for average in averages:
        average.update()
        average.expect(0.0)
    torch.cuda.synchronize()
    for _ in range(200):
        for average, stream in zip(averages, streams, strict=True):
            with torch.cuda.stream(stream):
                average.take()
    torch.cuda.synchronize()
    for average, model in zip(averages, models, strict=True):
        assert float(average.state_dict()["inside"]["taken"]) == 201
        assert torch.equal(flat(average.module), flat(model))


@pytest.mark.parametrize("change", ["double", "bfloat16", "layout"])
def test_what_the_kernel_does_not_take_is_taken_by_the_plain_operations(change: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(4, 6, 3).cuda()
    if change != "layout":
        model = getattr(model, change)()
    average = inside(model)
    if change == "layout":
        assert average.at_once
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert not average.at_once
    first = copy.deepcopy(model)
    average.update()
    with torch.no_grad():
        model.weight.mul_(3)
    average.update()
    torch.testing.assert_close(average.module.weight, 2 * first.weight)


def test_compiled_code_takes_it_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(40, 30).cuda()
    average = inside(model)
    average.expect(0.0)
    torch.compile(average.take, fullgraph=True)()
    assert average.at_once
    assert torch.equal(flat(average.module), flat(model))
