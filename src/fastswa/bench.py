"""`fastswa bench`: the time of a training step in each engine, beside a naive loop and the convolutions alone.

All rows of a table come from one run on one device. The naive loop is benchmarks/naive.py of the repository.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fastswa.config import Config, DeviceConfig
from fastswa.data.images import Dataset, ImageSet
from fastswa.errors import RequestError
from fastswa.layers import build_config, recipe_layer
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.feed import Feed
from fastswa.training.setup import load_data, prepare
from fastswa.training.state import build_state
from fastswa.training.step import Step, launcher

CASES: dict[str, dict[str, Any]] = {
    "small": {"recipe": "digits-mean-teacher"},
    "cnn13": {"recipe": "cifar10-cnn-mean-teacher-4k"},
    "shake-shake-26-2x96d": {
        "recipe": "cifar10-cnn-mean-teacher-4k",
        "settings": {
            "model": {"name": "shake-shake-26-2x96d"},
            "batch": {"size": 128, "labelled": 31},
            "optimiser": {"lr": 0.05, "weight_decay": 2e-4},
        },
    },
}


@dataclass(frozen=True)
class Row:
    """One engine's figures; ratios are to the naive loop (how many times faster) and to the floor (times slower)."""

    model: str
    method: str
    engine: str
    device: str
    batch: int
    ms_per_step: float
    steps_per_s: float
    images_per_s: float
    tflops: float
    memory_mib: float | None
    ratio_to_naive: float | None = None
    ratio_to_floor: float | None = None


def run_bench(models: Sequence[str], device: str, threads: int | None, seconds: float, as_json: bool) -> int:
    """Measure and print every row for the given networks."""
    for model in models:
        if model not in CASES:
            raise RequestError(f"--models: '{model}' is not one of {', '.join(CASES)}.")
    rows: list[Row] = []
    for model in models:
        case = CASES[model]
        settings = {"device": {"name": device, **({"threads": threads} if threads else {})}}
        config = build_config(recipe_layer(case["recipe"]), case.get("settings", {}), settings)
        rows += bench_model(model, config, seconds)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        _print(rows)
    return 0


def bench_model(model: str, config: Config, seconds: float) -> list[Row]:
    """The rows of one network: naive loops, our engines, the convolutions alone."""
    compute = choose_compute(config.device)
    dataset = load_data(config) if config.data.source == "digits" else random_images()
    engines = ("eager", "graph", "compiled") if compute.device.type == "cuda" else ("eager", *_compiled_on_cpu())
    measured: dict[str, tuple[float, float | None]] = {}
    with settings_of(compute, config.device.threads):
        measured |= _naive(model, config, dataset, compute, seconds)
        for engine in engines:
            with _memory(compute) as memory:
                measured[engine] = (_engine(config, dataset, replace(compute, engine=engine), seconds), None)
            measured[engine] = (measured[engine][0], memory.get("mib"))
        calls, flops = convolutions(config, dataset, compute)
        measured["convolutions"] = (_floor(calls, compute, seconds), None)
    rows = []
    naive, floor = measured.get("naive", (None, None))[0], measured["convolutions"][0]
    batch = config.batch.size
    for engine, (ms, mib) in measured.items():
        rows.append(
            Row(
                model,
                config.method.name,
                engine,
                str(compute.device),
                batch,
                ms_per_step=ms,
                steps_per_s=1e3 / ms,
                images_per_s=1e3 * batch / ms,
                tflops=flops / ms / 1e9,
                memory_mib=mib,
                ratio_to_naive=naive / ms if naive else None,
                ratio_to_floor=ms / floor,
            )
        )
    return rows


def _compiled_on_cpu() -> tuple[str, ...]:
    """The compiled engine where this machine can compile for its CPU."""
    try:
        choose_compute(DeviceConfig(name="cpu", engine="compiled"))
    except RequestError as error:
        print(f"fastswa: the compiled engine is left out: {error}", file=sys.stderr)
        return ()
    return ("compiled",)


def random_images(train: int = 50_000, test: int = 100) -> Dataset:
    """Images of CIFAR-10's size: a step's time does not depend on what they show."""
    rng = np.random.default_rng(0)
    classes = tuple(str(k) for k in range(10))

    def images(count: int) -> ImageSet:
        return ImageSet(
            rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10, classes, "random"
        )

    return Dataset(images(train), images(test), ((0.5,) * 3, (0.29,) * 3))


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


def _engine(config: Config, dataset: Dataset, compute: Compute, seconds: float) -> float:
    material = prepare(config, dataset, compute)
    state = build_state(config, compute, material.facts, images=len(dataset.train))
    feed = Feed(config, material.plan, state.method, compute.device, compute.dtype)
    feed.load(0)
    step = Step(state, feed, material.augment, material.pixels, material.labels, compute)
    launch = launcher(step, compute)
    position = 0

    def one() -> None:
        nonlocal position
        if position == material.plan.steps:
            feed.cursor.zero_()
            position = 0
        launch()
        position += 1

    return time_steps(one, compute, seconds)


def _naive(
    model: str, config: Config, dataset: Dataset, compute: Compute, seconds: float
) -> dict[str, tuple[float, float | None]]:
    naive = _naive_module()
    if naive is None:
        print("fastswa: benchmarks/naive.py is not here; the naive rows are left out.", file=sys.stderr)
        return {}
    plain = replace(compute, precision="fp32")
    measured: dict[str, tuple[float, float | None]] = {}
    for name, source in (("naive", naive.tensors_in_memory), ("naive, PIL loader", naive.pil_loader)):
        with settings_of(plain, config.device.threads), _memory(compute) as memory:
            trainer = naive.MeanTeacher(model, compute.device)
            batches = source(
                dataset.train.pixels[:5000], dataset.train.labels[:5000], config.batch.size, config.batch.labelled,
                compute.device, config.augment.translate, config.augment.flip,
            )  # fmt: skip

            def one(trainer: Any = trainer, batches: Iterator[Any] = batches) -> None:
                trainer.step(*next(batches))

            ms = time_steps(one, compute, seconds)
        measured[name] = (ms, memory.get("mib"))
    return measured


def _naive_module() -> ModuleType | None:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "naive.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("fastswa_naive", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastswa_naive"] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _memory(compute: Compute) -> Iterator[dict[str, float]]:
    """The most device memory taken inside, in MiB; nothing on the CPU."""
    found: dict[str, float] = {}
    if compute.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(compute.device)
    yield found
    if compute.device.type == "cuda":
        found["mib"] = torch.cuda.max_memory_allocated(compute.device) / 2**20


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
    """One forward pass's convolutions, and the FLOP of a step (teacher forward, student forward and backward)."""
    facts = prepare(config, dataset, compute).facts
    network = facts.build().train().to(compute.device)
    x = torch.randn(config.batch.size, *facts.shape, device=compute.device)
    with torch.no_grad(), _Convolutions() as recorded:
        network(x)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(x)
    return recorded.calls, 4.0 * counter.get_total_flops()


def _floor(
    calls: Sequence[tuple[torch.Size, torch.Size, list[int], list[int], int]], compute: Compute, seconds: float
) -> float:
    """Milliseconds of a step's convolutions alone: forward twice, backward once; as one graph on a GPU."""
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
            with torch.no_grad():
                torch.conv2d(x, weight, None, stride, padding, 1, groups)
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


def _print(rows: Sequence[Row]) -> None:
    table = Table(title=f"One Mean Teacher step on {rows[0].device}")
    for name in ("model", "engine", "batch"):
        table.add_column(name)
    for name in ("ms/step", "steps/s", "images/s", "TFLOP/s", "x naive", "x floor", "MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.model, row.engine, str(row.batch), f"{row.ms_per_step:.3g}", f"{row.steps_per_s:.4g}",
            f"{row.images_per_s:.4g}", f"{row.tflops:.3g}",
            "–" if row.ratio_to_naive is None else f"{row.ratio_to_naive:.2f}",
            "–" if row.ratio_to_floor is None else f"{row.ratio_to_floor:.2f}",
            "–" if row.memory_mib is None else f"{row.memory_mib:.0f}",
        )  # fmt: skip
    # A pipe has no width of its own, and ten columns want more than the usual 80.
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)
