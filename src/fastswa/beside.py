"""Work beside other work on one GPU: streams of one's own, a second one, and the place where the first waits for it.

The wait is an operation of its own, so that it keeps its place when torch.compile turns the code around it into one
graph of kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from fastswa.errors import RequestError
from fastswa.operation import operation

POOL = 32  # streams that torch gives out in turn; then it gives the first one again

_streams: dict[int, dict[tuple[Hashable, ...], torch.cuda.Stream]] = {}  # by device's number and purpose
_drawing = Lock()
_done: dict[torch.device, torch.cuda.Event] = {}
_used: dict[torch.device, list[Tensor]] = {}


def own(device: torch.device, *purpose: Hashable) -> torch.cuda.Stream:
    """The stream of a purpose: the same one whenever it is asked for, and never another purpose's.

    Two that share one would wait for each other, and share what libraries keep for a stream, such as room in which
    parts of a product are added up.
    """
    number = torch.cuda.current_device() if device.index is None else device.index
    with _drawing:
        streams = _streams.setdefault(number, {})
        if purpose not in streams:
            taken = {stream.cuda_stream for stream in streams.values()}
            drawn = (torch.cuda.Stream(number) for _ in range(POOL))
            free = next((stream for stream in drawn if stream.cuda_stream not in taken), None)
            if free is None:
                raise RequestError(f"so many runs at once take more than a GPU's {POOL} streams; train fewer together.")
            streams[purpose] = free
        return streams[purpose]


@contextmanager
def stream(device: torch.device) -> Iterator[None]:
    """What runs inside goes to the second stream; what it makes may be used after `join`."""
    first = torch.cuda.current_stream(device)
    side = own(device, "beside", first.cuda_stream)
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
