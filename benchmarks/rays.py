"""python benchmarks/rays.py [--device cuda] [--json]: what a study along rays costs, and what it could cost.

Three rays of 41 points through the weight space of the 13-layer CNN, batch-norm statistics recomputed at each from 100
training batches, errors on 4,000 training and 10,000 test images (random ones of CIFAR-10's size: time does not depend
on what they show). Beside it, measured in the same run: the network's forward pass alone in large batches, captured and
replayed, which is the most that a study could reach; and the same points by a plain eager loop over the stock network
of benchmarks/naive.py, in 32 bits and under bf16 autocast, images on the device there too and not even augmented.
Everything counts in a study's seconds, the capture included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fastswa.analysis.rays import along, between, random_directions
from fastswa.analysis.subject import Subject, flat, put
from fastswa.analysis.surface import Surface
from fastswa.bench import random_images, time_steps
from fastswa.config import Config
from fastswa.layers import build_config, recipe_layer
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.graph import captured
from fastswa.training.setup import Material, prepare
from fastswa.training.state import build_network
from naive import cnn13

LARGE = 1000


@dataclass(frozen=True)
class Row:
    """One way of measuring: `seconds` in all for `points` (of a forward pass for one batch), and what that comes to."""

    what: str
    points: int
    images: int
    seconds: float
    tflops: float
    ratio_to_forward: float
    times_slower: float | None = None


class Untrained(Subject):
    """A subject without a run: freshly initialised weights."""

    def __init__(self, config: Config, material: Material, compute: Compute) -> None:
        self.path, self.name = Path("untrained"), "untrained"
        self.config, self.material, self.compute = config, material, compute

    def start(self) -> Tensor:
        """The initial weights."""
        network = build_network(self.material.facts, self.config.seed, "student")
        return flat(list(network.parameters())).to(self.compute.device, self.compute.dtype)


def flop_of_an_image(material: Material) -> float:
    """FLOP of a forward pass, 2 for a multiply-add."""
    network = material.facts.build().eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *material.facts.shape))
    return float(counter.get_total_flops())


def synchronised(compute: Compute) -> float:
    """The time when the device has done everything so far."""
    if compute.device.type == "cuda":
        torch.cuda.synchronize(compute.device)
    return time.perf_counter()


def study(subject: Untrained, rays: int, points: int) -> float:
    """Seconds of a study of `rays` rays: through two points, and for every third in a random direction."""
    start = subject.start()
    directions = random_directions(len(start), rays, 0, start)
    length = 0.1 * float(start.norm())
    began = synchronised(subject.compute)
    surface = Surface(subject)
    for number, direction in enumerate(directions):
        if number % 3 == 2:
            along(surface.at, start, direction, np.linspace(0, length, points))
        else:
            between(surface.at, start, start + length * direction, points, ("a", "b"), "sgd")
    return synchronised(subject.compute) - began


def forward(subject: Untrained, batch: int, seconds: float) -> float:
    """Seconds of a pass of one large batch in evaluation mode: nothing but the network, captured where that is done."""
    network, compute = subject.network(), subject.compute
    put(network, subject.start())
    pixels = subject.material.pixels
    images = subject.material.augment.plain(pixels[torch.arange(batch, device=pixels.device) % len(pixels)])
    found = torch.zeros(batch, len(subject.material.facts.classes), device=compute.device)

    def one() -> None:
        with torch.no_grad(), compute.arithmetic():
            found.copy_(network(images).logits)

    launch = captured(one, [found]) if compute.captures else one
    return 1e-3 * time_steps(launch, compute, seconds)


def plain_loop(surface: Surface, network: nn.Module, compute: Compute, points: int) -> float:
    """Seconds a point of a loop as people write it first; the first point, which warms up, is not counted."""
    network.to(compute.device)
    config, material = surface.subject.config, surface.subject.material
    vector = flat(list(network.parameters()))
    batches = [material.pixels[number * 100 :][:100] for number in range(config.evaluation.refresh)]
    batches = [batch if len(batch) else material.pixels[:100] for batch in batches]

    def point() -> list[float]:
        torch.nn.utils.vector_to_parameters(vector, network.parameters())
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        with torch.no_grad(), compute.arithmetic():
            network.train()
            for batch in batches:
                network(material.augment.plain(batch))
            network.eval()
            return [_error(network, images.pixels, images.labels) for images in (surface.train, surface.test)]

    def _error(network: nn.Module, pixels: Tensor, labels: Tensor) -> float:
        wrong = 0
        for images, truth in zip(pixels.split(LARGE), labels.split(LARGE), strict=True):
            logits = network(material.augment.plain(images))
            logits = logits[0] if isinstance(logits, tuple) else logits
            wrong += int((logits.argmax(dim=1) != truth).sum().item())
        return 100.0 * wrong / len(labels)

    point()
    began = synchronised(compute)
    for _ in range(points):
        point()
    return (synchronised(compute) - began) / points


def measure(
    config: Config, *, rays: int, points: int, train: int, test: int, plain_points: int, seconds: float, batch: int
) -> list[Row]:
    """All rows, from one device in one run."""
    chosen = choose_compute(config.device)
    compute = replace(chosen, engine="graph") if chosen.device.type == "cuda" else chosen
    with settings_of(compute, config.device.threads):
        material = prepare(config, random_images(train, test), compute)
        subject = Untrained(config, material, compute)
        flop = flop_of_an_image(material)
        surface = Surface(subject)
        images = config.evaluation.refresh * config.batch.size + len(surface.train.labels) + len(surface.test.labels)
        pass_seconds = forward(subject, batch, seconds)
        best = flop * batch / pass_seconds / 1e12
        took = study(subject, rays, points)
        rows = [_row("forward pass, large batch", 1, batch, pass_seconds, flop, best)]
        rows.append(_row(f"study: {rays} rays of {points} points", rays * points, images, took, flop, best))
    each = took / (rays * points)
    network: Callable[[], nn.Module] = cnn13 if config.model.name == "cnn13" else material.facts.build
    kinds = ("fp32", "bf16") if compute.precision == "bf16" else ("fp32",)
    for precision in kinds if plain_points else ():
        plain = replace(compute, precision=precision, engine="eager")
        with settings_of(plain, config.device.threads):
            loop = plain_loop(surface, network(), plain, plain_points)
        row = _row(f"plain eager loop, {precision}", plain_points, images, loop * plain_points, flop, best)
        rows.append(replace(row, times_slower=loop / each))
    return rows


def _row(what: str, points: int, images: int, seconds: float, flop: float, best: float) -> Row:
    tflops = points * images * flop / seconds / 1e12
    return Row(what, points, images, seconds, tflops, tflops / best)


def show(rows: Sequence[Row], device: str) -> None:
    table = Table(title=f"A study along rays on {device}")
    table.add_column("what")
    for name in ("points", "images a point", "s", "ms a point", "TFLOP/s", "of forward", "times slower"):
        table.add_column(name, justify="right")
    for row in rows:
        slower = "–" if row.times_slower is None else f"{row.times_slower:.2f}"
        milliseconds = f"{1e3 * row.seconds / row.points:.3g}"
        table.add_row(
            row.what, str(row.points), str(row.images), f"{row.seconds:.3g}", milliseconds,
            f"{row.tflops:.3g}", f"{row.ratio_to_forward:.2f}", slower,
        )  # fmt: skip
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="cnn13", choices=("cnn13", "small"))
    parser.add_argument("--rays", type=int, default=3)
    parser.add_argument("--points", type=int, default=41)
    parser.add_argument("--train", type=int, default=50_000, help="training images, of which --labels are measured")
    parser.add_argument("--labels", type=int, default=4_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--refresh", type=int, default=100, help="batches that statistics come from")
    parser.add_argument("--batch", type=int, default=LARGE, help="images in the forward pass alone")
    parser.add_argument("--plain-points", type=int, default=3, help="points of the plain loops; 0 leaves them out")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    settings = {
        "model": {"name": given.model},
        "split": {"labels": given.labels},
        "evaluation": {"refresh": given.refresh},
        "device": {"name": given.device},
    }
    config = build_config(recipe_layer("cifar10-cnn-pi-4k"), settings)
    rows = measure(
        config,
        rays=given.rays,
        points=given.points,
        train=given.train,
        test=given.test,
        plain_points=given.plain_points,
        seconds=given.seconds,
        batch=given.batch,
    )
    if given.json:
        print(json.dumps([vars(row) for row in rows]))
    else:
        show(rows, str(choose_compute(config.device).device))
    return rows


if __name__ == "__main__":
    main()
