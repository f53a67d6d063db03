"""Capturing work as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fastswa.training.state import preserved


def captured(
    work: Callable[[], None], changed: Iterable[Tensor], before: Callable[[], object] = lambda: None
) -> Callable[[], None]:
    """What replays `work` as one CUDA graph; the tensors that it changes are left as they were.

    It runs three times first, on a stream of its own and each time after `before`, so that whatever it makes once is
    made.
    """
    with preserved(changed):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                before()
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may write checkpoints meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()

    def replay() -> None:
        graph.replay()

    # The graph launches kernels that compiled work owns: they must not go before it.
    replay.work = work  # type: ignore[attr-defined]
    return replay
