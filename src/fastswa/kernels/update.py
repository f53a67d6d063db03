"""SGD and the teacher's moving average of all parameters in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastswa.kernels.table import distances, table

_CHUNK = 2048


@triton.jit
def _update_kernel(
    p_ptr, m_ptr, t_ptr, g_ptr, table_ptr, rate_ptr, teacher_rate_ptr, momentum, decay,
    NESTEROV: tl.constexpr, TEACHER: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One chunk of one parameter: its momentum, itself, and the teacher after it."""
    entry = table_ptr + tl.program_id(0) * 5
    p_at, m_at, t_at = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    g_at, count = tl.load(entry + 3), tl.load(entry + 4)
    place = tl.arange(0, CHUNK)
    inside = place < count
    rate = tl.load(rate_ptr)
    p = tl.load(p_ptr + p_at + place, mask=inside, other=0.0)
    update = tl.load(g_ptr + g_at + place, mask=inside, other=0.0) + decay * p
    m = momentum * tl.load(m_ptr + m_at + place, mask=inside, other=0.0) + update
    tl.store(m_ptr + m_at + place, m, mask=inside)
    p -= rate * (update + momentum * m if NESTEROV else m)
    tl.store(p_ptr + p_at + place, p, mask=inside)
    if TEACHER:
        t = tl.load(t_ptr + t_at + place, mask=inside, other=0.0)
        tl.store(t_ptr + t_at + place, t + tl.load(teacher_rate_ptr) * (p - t), mask=inside)


def sgd_and_teacher(
    parameters: Sequence[Tensor],
    momenta: Sequence[Tensor],
    teacher: Sequence[Tensor] | None,
    gradients: Sequence[Tensor],
    rate: Tensor,
    teacher_rate: Tensor,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> None:
    """Move the parameters as torch.optim.SGD would, then the teacher's towards them; rates are 0-dim, on the device.

    Parameters, momenta and the teacher's parameters are dense and laid out alike; gradients may be laid out otherwise.
    """
    after = parameters if teacher is None else teacher

    def make() -> list[list[int]]:
        found, g_at = [], 0
        places = zip(parameters, distances(parameters), distances(momenta), distances(after), strict=True)
        for parameter, *at in places:
            for start in range(0, parameter.numel(), _CHUNK):
                count = min(_CHUNK, parameter.numel() - start)
                found.append([*(each + start for each in at), g_at + start, count])
            g_at += parameter.numel()
        return found

    chunks = table("update", [*parameters, *momenta, *after], make)
    flat = torch.empty(sum(p.numel() for p in parameters), dtype=torch.float32, device=parameters[0].device)
    # One launch too; torch.cat takes three times as long for tensors of so many sizes.
    torch._foreach_copy_(
        list(flat.split([p.numel() for p in parameters])),
        [_laid_like(p, g) for p, g in zip(parameters, gradients, strict=True)],
    )
    _update_kernel[(len(chunks),)](
        parameters[0], momenta[0], after[0], flat, chunks, rate, teacher_rate, momentum, weight_decay,
        NESTEROV=nesterov, TEACHER=teacher is not None, CHUNK=_CHUNK, num_warps=8,
    )  # fmt: skip


def _laid_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient's numbers in the order in which the parameter's lie in memory."""
    own, wanted = ([s for s, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in (gradient, parameter))
    if own != wanted:
        gradient = torch.empty_like(parameter).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))
