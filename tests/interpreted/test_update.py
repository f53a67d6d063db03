"""SGD and the teacher's average in one launch: the interpreted kernel against torch.optim.SGD in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastswa.config import OptimiserConfig
from fastswa.kernels.update import sgd_and_teacher
from fastswa.training.optimiser import SGD

# The second lies with its channels last, the others fill, exceed or do not fill a chunk of 2,048.
SHAPES = [(5000,), (7, 3, 3, 3), (2048,), (1,), (10, 13)]


def drawn() -> list[Tensor]:
    tensors = [torch.randn(shape) for shape in SHAPES]
    return [t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("with_teacher", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_update_is_torchs_sgd_and_a_moving_average(nesterov: bool, with_teacher: bool, together: bool) -> None:
    """Gradients lie `together` in one tensor, but for the last, or each on its own."""
    torch.manual_seed(3)
    parameters, momenta, teacher = drawn(), drawn(), drawn()
    plain = [p.double().requires_grad_() for p in parameters]
    after, before = [t.double() for t in teacher], [t.clone() for t in teacher]
    optimiser = torch.optim.SGD(plain, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=nesterov, foreach=False)
    for p, m in zip(plain, momenta, strict=True):
        optimiser.state[p]["momentum_buffer"] = m.double()
    for _ in range(2):
        gradients = [torch.randn(shape) for shape in SHAPES]
        if together:
            sizes = [p.numel() for p in parameters[:-1]]
            parts = torch.randn(sum(sizes)).split(sizes)
            gradients[:-1] = [part.view(shape) for part, shape in zip(parts, SHAPES, strict=False)]
        for p, gradient in zip(plain, gradients, strict=True):
            p.grad = gradient.double()
        optimiser.step()
        after = [t + 0.3 * (p.detach() - t) for t, p in zip(after, plain, strict=True)]
        rates = torch.tensor(0.1), torch.tensor(0.3)
        sgd_and_teacher(parameters, momenta, teacher if with_teacher else None, gradients, *rates, 0.9, 1e-2, nesterov)
    reached = parameters, momenta, teacher
    momenta_of = [optimiser.state[p]["momentum_buffer"] for p in plain]
    for found, expected in zip(reached, (plain, momenta_of, after if with_teacher else before), strict=True):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs.detach().float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decay_all", [None, False])
def test_decay_on_kernels_alone_is_that_of_the_plain_steps(decay_all: bool | None) -> None:
    torch.manual_seed(4)
    config = OptimiserConfig(weight_decay=0.1, decay_all=decay_all)
    parameters, teacher, rates = drawn(), drawn(), (torch.tensor(0.1), torch.tensor(0.3))
    launched, plain = (SGD([p.clone() for p in parameters], config) for _ in range(2))
    followed = [t.clone() for t in teacher]
    for _ in range(2):
        gradients = drawn()
        launched.move(gradients, rates[0], teacher, rates[1])
        plain.step(gradients, rates[0])
        torch._foreach_lerp_(followed, plain.parameters, 0.3)
    for found, expected in zip(
        (launched.parameters, launched.momentum, teacher), (plain.parameters, plain.momentum, followed), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
