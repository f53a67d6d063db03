"""The average of every step in one launch: the interpreted kernel against the mean in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fastswa.averaging import AveragedWeights

EPS = torch.finfo(torch.float32).eps


class Numbers(nn.Module):
    """Parameters of many shapes, one laid out with channels last."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(5000,), (), (7, 3, 3, 3), (2048,), (16, 8, 1, 1)]
        self.parts = nn.ParameterList([torch.zeros(shape) for shape in shapes])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def fill(self, numbers: Tensor) -> None:
        for part, own in zip(self.parts, numbers.split([part.numel() for part in self.parts]), strict=True):
            part.copy_(own.view(part.shape))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("decay", [None, 0.95])
def test_the_mean_is_that_of_float64(decay: float | None) -> None:
    """Of numbers from 1e-6 to 1e3 about means of their own, with a drift."""
    steps, model = 60, Numbers()
    size = flat(model).numel()
    model.fill(torch.full((size,), 1e9))
    average = AveragedWeights(model, start=1.0, every=0, decay=decay, inside=True)
    assert average.at_once
    before = flat(average.module)
    average.expect(0.5)
    average.take()
    assert torch.equal(flat(average.module), before)
    assert float(average.state_dict()["inside"]["taken"]) == 0
    generator = torch.Generator().manual_seed(1)
    scale = 10.0 ** (9 * torch.rand(size, generator=generator) - 6)
    centre = 0.8 * torch.randn(size, generator=generator).sign()
    true = torch.zeros(size, dtype=torch.float64)
    for step in range(1, steps + 1):
        numbers = scale * (centre + 0.02 * torch.randn(size, generator=generator) + 0.1 * step / steps)
        model.fill(numbers)
        average.expect(2.0)
        average.take()
        if step == 1:
            assert torch.equal(flat(average.module), numbers)
        true += (numbers.double() - true) * max(1 / step, 0.0 if decay is None else 1.0 - decay)
    # An exponential mean keeps nothing of what rounding loses: a last digit's half at each step, forgotten in time.
    allowed = EPS * true.abs() * (1 if decay is None else 12)
    assert ((flat(average.module).double() - true).abs() <= allowed).all()
    assert float(average.state_dict()["inside"]["taken"]) == average.count == steps
