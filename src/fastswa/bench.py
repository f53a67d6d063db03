"""`fastswa bench`: the time of a training step in each engine, beside a naive loop and the convolutions alone.

All rows of a table come from one run on one device. The naive loops are benchmarks/naive.py and naive_fixmatch.py of
the repository: on all images of the data set and, as torch does unless told otherwise, with TF32 in their convolutions.
Where a method has strong views, what they cost alone stands beside its steps.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
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

from fastswa.config import Config, DeviceConfig
from fastswa.console import say
from fastswa.data.images import Dataset, ImageSet
from fastswa.errors import RequestError
from fastswa.floor import convolutions, floor_ms, passes, time_steps
from fastswa.layers import build_config, recipe_layer
from fastswa.methods import method_class
from fastswa.methods.pseudo_labels import PseudoLabels
from fastswa.operation import compiled
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.feed import Feed, StepValues
from fastswa.training.graph import captured
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
    "resnet9": {"recipe": "cifar10-fixmatch-4k"},
    "wrn-28-2": {"recipe": "cifar10-fixmatch-4k", "settings": {"model": {"name": "wrn-28-2"}}},
}
# A row that is no step: strong views of its unlabelled images, alone.
STRONG = "strong views"
LOADER = "naive, PIL loader"


@dataclass(frozen=True)
class Row:
    """One engine's figures; ratios are to the naive loops (how many times faster) and to the floor (times slower).

    `share_of_step` is said of strong views: their time as a part of the step of the engine that a run takes.
    """

    model: str
    method: str
    engine: str
    device: str
    batch: int
    ms_per_step: float
    steps_per_s: float
    images_per_s: float
    tflops: float | None
    memory_mib: float | None
    ratio_to_naive: float | None = None
    ratio_to_floor: float | None = None
    ratio_to_loader: float | None = None
    share_of_step: float | None = None


def run_bench(
    models: Sequence[str],
    device: str,
    threads: int | None,
    seconds: float,
    as_json: bool,
    batch: int | None = None,
    workers: int | None = None,
) -> int:
    """Measure and print every row for the given networks; `batch` images a step instead of a recipe's.

    `workers` is how many processes load PIL images; None leaves it to the naive loop.
    """
    for model in models:
        if model not in CASES:
            raise RequestError(f"--models: '{model}' is not one of {', '.join(CASES)}.")
    if batch is not None and batch < 2:
        raise RequestError("--batch: a step takes two images at least, one of them labelled.")
    settings = {"device": {"name": device, **({"threads": threads} if threads else {})}}
    configs = {}
    for model in models:
        config = build_config(recipe_layer(CASES[model]["recipe"]), CASES[model].get("settings", {}), settings)
        configs[model] = config if batch is None else _with_batch(config, batch)
    # All of them before the first of our engines, which changes how the process keeps memory that is freed.
    naive = {model: naive_times(model, config, seconds, workers=workers) for model, config in configs.items()}
    rows = [row for model, config in configs.items() for row in bench_model(model, config, seconds, naive[model])]
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        _print(rows)
    return 0


def _with_batch(config: Config, size: int) -> Config:
    """The same with another number of images a step, as many of them labelled in proportion."""
    batch = config.batch
    labelled = max(round(size * batch.labelled / batch.size), 1)
    return config.model_copy(update={"batch": batch.model_copy(update={"size": size, "labelled": labelled})})


# Milliseconds of a step, and the most device memory that it took in MiB.
Times = dict[str, tuple[float, float | None]]


def _images(config: Config) -> Dataset:
    """The images that steps are timed with."""
    dataset = load_data(config) if config.data.source == "digits" else random_images()
    if config.batch.size > len(dataset.train):
        raise RequestError(
            f"--batch: {config.batch.size} images a step are more than the {len(dataset.train)} there are."
        )
    return dataset


def naive_times(
    model: str, config: Config, seconds: float, dataset: Dataset | None = None, workers: int | None = None
) -> Times:
    """What the naive loops of one network take, by name."""
    compute, dataset = choose_compute(config.device), dataset or _images(config)
    measured: Times = {}
    with settings_of(compute, config.device.threads):
        for name, ms, mib in _naive(model, config, dataset, compute, seconds, workers):
            measured[name] = (_told(model, name, ms), mib)
    return measured


def bench_model(
    model: str, config: Config, seconds: float, naive_loops: Times, dataset: Dataset | None = None
) -> list[Row]:
    """The rows of one network: its naive loops, our engines, the convolutions alone, strong views where there are
    some."""
    compute, dataset = choose_compute(config.device), dataset or _images(config)
    engines = ("eager", "graph", "compiled") if compute.device.type == "cuda" else ("eager", *_compiled_on_cpu())
    measured = {**naive_loops}
    with settings_of(compute, config.device.threads):
        for engine in engines:
            with _memory(compute) as memory:
                ms = _told(model, engine, _engine(config, dataset, replace(compute, engine=engine), seconds))
            measured[engine] = (ms, memory.get("mib"))
        calls, flops = convolutions(config, dataset, compute)
        ms = _told(model, "convolutions", floor_ms(calls, compute, seconds, passes(config)[0]))
        measured["convolutions"] = (ms, None)
        strong = _strong(config, dataset, compute, seconds) if method_class(config.method.name).strong_views else None
    naive, floor = measured.get("naive", (None, None))[0], measured["convolutions"][0]
    loader = measured.get(LOADER, (None, None))[0]
    batch = config.batch.size

    def row(engine: str, ms: float, images: int, **others: Any) -> Row:
        return Row(
            model=model,
            method=config.method.name,
            engine=engine,
            device=str(compute.device),
            batch=images,
            ms_per_step=ms,
            steps_per_s=1e3 / ms,
            images_per_s=1e3 * images / ms,
            **others,
        )

    rows = [
        row(
            engine,
            ms,
            batch,
            tflops=flops / ms / 1e9,
            memory_mib=mib,
            ratio_to_naive=naive / ms if naive else None,
            ratio_to_floor=ms / floor,
            ratio_to_loader=loader / ms if loader else None,
        )
        for engine, (ms, mib) in measured.items()
    ]
    if strong is not None:
        engine, ms = strong
        views = batch - config.batch.labelled or batch
        rows.append(row(STRONG, ms, views, tflops=None, memory_mib=None, share_of_step=ms / measured[engine][0]))
    return rows


def _told(model: str, engine: str, ms: float) -> float:
    """The milliseconds, said at once: all rows together take minutes, and an engine may compile for one of them."""
    say(f"{model}, {engine}: {ms:.3g} ms a step")
    return ms


def _compiled_on_cpu() -> tuple[str, ...]:
    """The compiled engine where this machine can compile for its CPU."""
    try:
        choose_compute(DeviceConfig(name="cpu", engine="compiled"))
    except RequestError as error:
        say(f"the compiled engine is left out: {error}")
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


def _ready(config: Config, dataset: Dataset, compute: Compute) -> Step:
    """A step of a run that begins, with the first epoch's rows."""
    material = prepare(config, dataset, compute)
    state = build_state(config, compute, material.facts, images=len(dataset.train))
    feed = Feed(config, material.plan, state.method, compute.device, compute.dtype)
    feed.load(0)
    return Step(state, feed, material.augment, material.pixels, material.labels, compute)


def _again_and_again(launch: Callable[[], object], feed: Feed) -> Callable[[], None]:
    """A launch that starts from the epoch's first row once its last one is taken."""
    position = 0

    def one() -> None:
        nonlocal position
        if position == feed.plan.steps:
            feed.cursor.zero_()
            position = 0
        launch()
        position += 1

    return one


def _engine(config: Config, dataset: Dataset, compute: Compute, seconds: float) -> float:
    step = _ready(config, dataset, compute)
    return time_steps(_again_and_again(launcher(step, compute), step.feed), compute, seconds)


def _strong(config: Config, dataset: Dataset, compute: Compute, seconds: float) -> tuple[str, float]:
    """The engine that a run takes, and milliseconds of a step's strong views alone, launched as it launches them."""
    step = _ready(config, dataset, compute)
    compute = replace(compute, engine=step.engine)
    labelled, size = step.feed.plan.labelled, step.feed.plan.size
    rows = slice(labelled if labelled < size else 0, None)

    def views(values: StepValues) -> Tensor:
        return step.batch(values).view("strong", rows)

    made = compiled(views) if compute.engine == "compiled" else views

    def launch() -> None:
        made(step.feed.take())

    cursor = step.feed.cursor
    launched = captured(launch, [cursor], before=cursor.zero_) if compute.captures else launch
    return step.engine, time_steps(_again_and_again(launched, step.feed), compute, seconds)


def _naive(
    model: str, config: Config, dataset: Dataset, compute: Compute, seconds: float, workers: int | None
) -> Iterator[tuple[str, float, float | None]]:
    """Name, milliseconds and memory of both naive loops, one after the other, with torch's own choice of TF32."""
    pseudo = issubclass(method_class(config.method.name), PseudoLabels)
    naive = _naive_module("naive_fixmatch" if pseudo else "naive")
    if naive is None:
        say("benchmarks/naive.py is not here; the naive rows are left out.")
        return
    plain = replace(compute, precision="fp32")
    for name, source in (("naive", naive.tensors_in_memory), (LOADER, naive.pil_loader)):
        with settings_of(plain, config.device.threads), _memory(compute) as memory:
            torch.backends.cudnn.allow_tf32 = True
            trainer = (
                naive.FixMatch(model, compute.device, config.model.width)
                if pseudo
                else naive.MeanTeacher(model, compute.device)
            )
            batches = source(
                dataset.train.pixels, dataset.train.labels, config.batch.size, config.batch.labelled, compute.device,
                config.augment.translate, config.augment.flip, workers,
            )  # fmt: skip

            def one(trainer: Any = trainer, batches: Iterator[Any] = batches) -> None:
                trainer.step(*next(batches))

            ms = time_steps(one, compute, seconds)
        yield name, ms, memory.get("mib")


def _naive_module(name: str) -> ModuleType | None:
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    if not (folder / f"{name}.py").is_file():
        return None
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _memory(compute: Compute) -> Iterator[dict[str, float]]:
    """The most device memory taken inside, in MiB; nothing on the CPU."""
    found: dict[str, float] = {}
    if compute.device.type == "cuda":
        gc.collect()  # a compiled step holds itself
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(compute.device)
    yield found
    if compute.device.type == "cuda":
        found["mib"] = torch.cuda.max_memory_allocated(compute.device) / 2**20


def _print(rows: Sequence[Row]) -> None:
    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    table = Table(title=f"One training step on {rows[0].device}")
    for name in ("model", "method", "engine", "batch"):
        table.add_column(name)
    for name in ("ms/step", "steps/s", "images/s", "TFLOP/s", "x naive", "x loader", "x floor", "MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.model, row.method, row.engine, str(row.batch), f"{row.ms_per_step:.3g}", f"{row.steps_per_s:.4g}",
            f"{row.images_per_s:.4g}", shown(row.tflops, ".3g"), shown(row.ratio_to_naive, ".2f"),
            shown(row.ratio_to_loader, ".2f"), shown(row.ratio_to_floor, ".2f"), shown(row.memory_mib, ".0f"),
        )  # fmt: skip
    # A pipe has no width of its own, and twelve columns want more than the usual 80.
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    console.print(table)
    for row in rows:
        if row.share_of_step is not None:
            console.print(
                f"{row.model}: strong views alone take {100 * row.share_of_step:.0f}% of the time of a step.",
                highlight=False,
            )
