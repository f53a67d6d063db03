"""Work beside other work on one GPU: a second stream, and the place where the first waits for it.

The wait is an operation of its own, so that it keeps its place when torch.compile turns the code around it into one
graph of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fastswa.operation import operation

# By device and first stream: each first stream has a second one of its own.
_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}
_done: dict[torch.device, torch.cuda.Event] = {}
_used: dict[torch.device, list[Tensor]] = {}


@contextmanager
def stream(device: torch.device) -> Iterator[None]:
    """What runs inside goes to the second stream; what it makes may be used after `join`."""
    first = torch.cuda.current_stream(device)
    side = _streams.get((device, first.cuda_stream))
    if side is None:
        side = _streams[device, first.cuda_stream] = torch.cuda.Stream(device)
    side.wait_stream(first)
    with torch.cuda.stream(side):
        yield
    _done[device] = torch.cuda.Event()
    _done[device].record(side)


def keep(*tensors: Tensor) -> None:
    """The second stream reads these: their memory must not be taken by others before `meet`."""
    _used.setdefault(tensors[0].device, []).extend(tensors)


def meet(device: torch.device) -> None:
    """Wait for the second stream, where it was given anything to keep."""
    if _used.get(device):
        torch.cuda.current_stream(device).wait_event(_done[device])
        _used[device].clear()


@contextmanager
def tidied() -> Iterator[None]:
    """Keep nothing of work that failed inside, before it met the second stream."""
    try:
        yield
    except BaseException:
        _used.clear()
        raise


def wait(device: torch.device) -> None:
    """Let this stream go on only after all that the second was given."""
    torch.cuda.current_stream(device).wait_event(_done[device])


@operation("join")
def join(made: Tensor, after: Tensor) -> Tensor:
    """`made` on the second stream, for use on this one: waits for it, at the point where `after` is computed."""
    wait(made.device)
    return made.clone()


@join.register_fake
def _(made: Tensor, after: Tensor) -> Tensor:
    return torch.empty_like(made)
