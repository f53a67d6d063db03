"""python benchmarks/cpu_precision.py [--threads N] [--rounds 40] [--json]: a step of own images in 32 and in 16 bits.

What a run on images of one's own does by default on a CPU, but for the arithmetic: FixMatch and Mean Teacher with the
small network on random images of several sizes. The two take turns, a few steps each, so that whatever else the machine
does meets both; times are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from fastswa.bench import _again_and_again, _ready
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.defaults import own_data_defaults
from fastswa.layers import build_config, own_data_layer
from fastswa.training.device import choose_compute, native_bf16, settings_of
from fastswa.training.step import launcher

CASES = (
    ((1, 8, 8), "fixmatch"),
    ((1, 16, 16), "fixmatch"),
    ((1, 28, 28), "fixmatch"),
    ((3, 32, 32), "fixmatch"),
    ((3, 32, 32), "mean-teacher"),
    ((3, 64, 64), "fixmatch"),
    ((3, 96, 96), "fixmatch"),
)
PRECISIONS = ("fp32", "bf16")
STEPS, WARM_UP = 3, 4
LABELS, IMAGES = 100, 1000


@dataclass(frozen=True)
class Row:
    """Milliseconds a step in both arithmetics, and how many times faster the second is."""

    images: str
    method: str
    fp32: float
    bf16: float
    ratio: float


def random_images(shape: tuple[int, int, int]) -> Dataset:
    """LABELS labelled images of ten classes among IMAGES."""
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, *shape), dtype=np.uint8)
    labels = np.where(np.arange(IMAGES) < LABELS, np.arange(IMAGES) % 10, UNLABELLED)
    return Dataset(ImageSet(pixels, labels, tuple(map(str, range(10))), "random"), None)


def step_of(shape: tuple[int, int, int], method: str, precision: str) -> Callable[[], None]:
    """A step of a run that begins, warmed up."""
    dataset = random_images(shape)
    given = {"device": {"name": "cpu", "precision": precision}, "method": {"name": method}, "split": {"validation": 0}}
    config = own_data_defaults(build_config(own_data_layer("random"), given), dataset, gpu=False)
    compute = choose_compute(config.device)
    step = _ready(config, dataset, compute)
    launch = _again_and_again(launcher(step, compute), step.feed)
    for _ in range(WARM_UP):
        launch()
    return launch


def measure(shape: tuple[int, int, int], method: str, rounds: int) -> Row:
    """Both arithmetics in turn."""
    steps = {precision: step_of(shape, method, precision) for precision in PRECISIONS}
    taken: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for _ in range(rounds):
        for precision, step in steps.items():
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            taken[precision].append((time.perf_counter() - began) / STEPS)
    plain, half = (1e3 * median(taken[precision]) for precision in PRECISIONS)
    channels, height, width = shape
    return Row(f"{height}x{width}{'x3' if channels == 3 else ''}", method, plain, half, plain / half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with settings_of(choose_compute(build_config({"device": {"name": "cpu"}}).device), options.threads):
        rows = [measure(shape, method, options.rounds) for shape, method in CASES]
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    table = Table(title=f"A step on this CPU, which {'has' if native_bf16() else 'has no'} instructions for 16 bits")
    for name in ("images", "method", "32 bits, ms", "16 bits, ms", "times as fast"):
        table.add_column(name, justify="left" if name in ("images", "method") else "right")
    for row in rows:
        table.add_row(row.images, row.method, f"{row.fp32:.1f}", f"{row.bf16:.1f}", f"{row.ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
