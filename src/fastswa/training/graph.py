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
    same stream, which is its own: what libraries keep for a stream, such as room to add up parts of a product, is then
    not shared with other graphs that run at the same time.
    """
    with preserved(changed), beside.tidied():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                before()
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may write checkpoints meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()

    def replay() -> None:
        graph.replay()

    # The graph launches kernels that compiled work owns: they must not go before it.
    replay.work = work  # type: ignore[attr-defined]
    return replay
