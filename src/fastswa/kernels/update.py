"""SGD and the teacher's moving average of all parameters in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton.language as tl
from torch import Tensor

from fastswa.kernels.launch import kernel
from fastswa.kernels.table import chunks_of, distances, table

_CHUNK = 2048


@kernel
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
    laid = [_laid_like(p, g) for p, g in zip(parameters, gradients, strict=True)]
    for members, flat, places in _in_few_tensors(laid):

        def make(members: list[int] = members, places: list[int] = places) -> list[list[int]]:
            own = [distances([each[k] for k in members]) for each in (parameters, momenta, after)]
            return chunks_of((parameters[k].numel() for k in members), zip(*own, places, strict=True), _CHUNK)

        moved = [each[k] for each in (parameters, momenta, after) for k in members]
        chunks = table(f"update/{places}", moved, make)
        first = members[0]
        _update_kernel[(len(chunks),)](
            parameters[first], momenta[first], after[first], flat, chunks, rate, teacher_rate, momentum, weight_decay,
            NESTEROV=nesterov, TEACHER=teacher is not None, CHUNK=_CHUNK, num_warps=8,
        )  # fmt: skip


def _in_few_tensors(gradients: Sequence[Tensor]) -> list[tuple[list[int], Tensor, list[int]]]:
    """Gradients as parts of flat tensors: which of them, the tensor, and where each begins in it.

    Those that lie in one tensor already, as a whole network's weights do, stay there; the others are copied into one.
    """
    stores: dict[int, list[int]] = {}
    for k, gradient in enumerate(gradients):
        stores.setdefault(gradient.untyped_storage().data_ptr(), []).append(k)
    largest = max(stores.values(), key=lambda members: sum(gradients[k].numel() for k in members))
    rest = (
        [k for k in range(len(gradients)) if k not in set(largest)] if len(largest) > 1 else list(range(len(gradients)))
    )
    found = []
    if len(largest) > 1:
        one = gradients[largest[0]]
        whole = one.as_strided((one.untyped_storage().nbytes() // one.element_size(),), (1,), 0)
        found.append((largest, whole, [gradients[k].storage_offset() for k in largest]))
    if rest:
        sizes = [gradients[k].numel() for k in rest]
        flat = torch.empty(sum(sizes), dtype=torch.float32, device=gradients[0].device)
        # One launch too; torch.cat takes three times as long for tensors of so many sizes.
        torch._foreach_copy_(list(flat.split(sizes)), [gradients[k] for k in rest])
        found.append((rest, flat, list(accumulate(sizes, initial=0))[:-1]))
    return found


def _laid_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient's numbers in the order in which the parameter's lie in memory."""
    own, wanted = ([s for s, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in (gradient, parameter))
    if own != wanted:
        gradient = torch.empty_like(parameter).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,), gradient.storage_offset())
