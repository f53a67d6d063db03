"""The convolutions of a training step alone: the time that no engine gets below, and how steps are timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fastswa.config import Config
from fastswa.data.images import Dataset
from fastswa.methods import method_class
from fastswa.methods.pseudo_labels import PseudoLabels
from fastswa.training.device import Compute
from fastswa.training.setup import prepare


def time_steps(step: Callable[[], object], compute: Compute, seconds: float) -> float:
    """Milliseconds a step: the median of blocks that together last about `seconds`, after a warm-up."""

    def block(count: int) -> float:
        _synchronise(compute)
        began = time.perf_counter()
        for _ in range(count):
            step()
        _synchronise(compute)
        return 1e3 * (time.perf_counter() - began) / count

    block(3)
    count = max(int(1e3 * seconds / 10 / block(3)), 1)
    return statistics.median(block(count) for _ in range(10))


def _synchronise(compute: Compute) -> None:
    if compute.device.type == "cuda":
        torch.cuda.synchronize(compute.device)


def passes(config: Config) -> tuple[int, int]:
    """How many images a step passes through the network without gradient, and with it."""
    size, labelled = config.batch.size, config.batch.labelled
    if not issubclass(method_class(config.method.name), PseudoLabels):
        return size, size
    unlabelled = size - labelled or size
    return (0, size + unlabelled) if config.method.together else (unlabelled, labelled + unlabelled)


class _Convolutions(TorchDispatchMode):
    """Remembers the shapes of every convolution that runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch.Size, torch.Size, list[int], list[int], int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.convolution.default:
            x, weight, _, stride, padding, _, _, _, groups = args
            self.calls.append((x.shape, weight.shape, stride, padding, groups))
        return function(*args, **(kwargs or {}))


def convolutions(
    config: Config, dataset: Dataset, compute: Compute
) -> tuple[list[tuple[torch.Size, torch.Size, list[int], list[int], int]], float]:
    """The convolutions of a pass with gradient, and the FLOP of a step: passes without it, forward and backward.

    A backward pass counts twice its forward one. They are counted on a CPU: on a GPU the first layer's channels are
    padded, which takes time and does no work.
    """
    facts = prepare(config, dataset, compute).facts
    network = facts.build().train().to(compute.device)
    without, trained = passes(config)
    x = torch.randn(trained, *facts.shape, device=compute.device)
    with torch.no_grad(), _Convolutions() as recorded:
        network(x)
    counted = 2
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        facts.build().train()(torch.randn(counted, *facts.shape))
    return recorded.calls, (3.0 * trained + without) * counter.get_total_flops() / counted


def floor_ms(
    calls: Sequence[tuple[torch.Size, torch.Size, list[int], list[int], int]],
    compute: Compute,
    seconds: float,
    without: int | None = None,
) -> float:
    """Milliseconds of a step's convolutions alone, as one graph on a GPU.

    Forward and backward for the images that `calls` were recorded with, and forward for `without` images, as many if
    not given.
    """
    dtype = torch.bfloat16 if compute.precision == "bf16" else torch.float32
    last = {"device": compute.device, "dtype": dtype}

    def make(shape: torch.Size) -> Tensor:
        return torch.randn(shape, **last).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    prepared = []
    for number, (x_shape, weight_shape, stride, padding, groups) in enumerate(calls):
        x, weight = make(x_shape).requires_grad_(number > 0), make(weight_shape).requires_grad_()
        with torch.no_grad():
            y = torch.conv2d(x, weight, None, stride, padding, 1, groups)
        prepared.append((x, weight, torch.randn_like(y), stride, padding, groups))

    def run() -> None:
        for x, weight, gradient, stride, padding, groups in prepared:
            if without != 0:
                with torch.no_grad():
                    torch.conv2d(x[:without], weight, None, stride, padding, 1, groups)
            y = torch.conv2d(x, weight, None, stride, padding, 1, groups)
            torch.autograd.grad(y, [weight, x] if x.requires_grad else [weight], gradient)

    if compute.device.type != "cuda":
        return time_steps(run, compute, seconds)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return time_steps(graph.replay, compute, seconds)
