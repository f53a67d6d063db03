"""Capturing work as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fastswa import beside
from fastswa.training.state import preserved


def captured(
    work: Callable[[], None], changed: Iterable[Tensor], before: Callable[[], object] = lambda: None
) -> Callable[[], None]:
    """What replays `work` as one CUDA graph; the tensors that it changes are left as they were.

    It runs three times first, each time after `before`, so that whatever it makes once is made, and is captured on the
    same stream. That one belongs to the stream at hand, on which the graph is to be replayed: graphs of one run, which
    take turns, share it, those of others, which run at the same time, do not.
    """
    with preserved(changed), beside.tidied():
        current = torch.cuda.current_stream()
        stream = beside.own(current.device, "capture", current.cuda_stream)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(3):
                before()
                work()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may write checkpoints meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()

    def replay() -> None:
        graph.replay()

    # The graph launches kernels that compiled work owns: they must not go before it.
    replay.work = work  # type: ignore[attr-defined]
    return replay
