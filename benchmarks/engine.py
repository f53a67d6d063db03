"""python benchmarks/engine.py [--device cuda] [--engine graph] [--json]: where a run's time goes beside its steps.

The start with its parts, the edges of an epoch and their share of the time, an average of every step, several runs at
once, and an epoch's cost against the number of unlabelled images; CIFAR-10 shapes, Mean Teacher with the 13-layer CNN,
random images. `fastswa bench` times the steps themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from fastswa import kernels
from fastswa.bench import random_images, time_steps
from fastswa.config import Config
from fastswa.errors import FastswaError
from fastswa.layers import build_config, recipe_layer
from fastswa.training.checkpoint import Snapshot, save_checkpoint
from fastswa.training.device import Compute, choose_compute, settings_of
from fastswa.training.feed import Feed
from fastswa.training.lanes import Lanes
from fastswa.training.probe import probe
from fastswa.training.refresh import Refresher
from fastswa.training.setup import Material, prepare
from fastswa.training.state import State, build_state
from fastswa.training.step import Step, launcher
from fastswa.training.window import fill, pinned_images

EVERY = 3  # epochs between evaluations and checkpoints
LABELLED = 4000


@dataclass
class Run:
    """A run made ready to step."""

    material: Material
    state: State
    feed: Feed
    step: Step
    launch: Callable[[], None]

    def one(self) -> None:
        """A step, from the epoch's first row again where it is over."""
        if self.state.step % self.material.plan.steps == 0:
            self.feed.cursor.zero_()
        self.state.step += 1
        self.launch()


def make_run(config: Config, material: Material, compute: Compute) -> Run:
    state = build_state(config, compute, material.facts, images=len(material.labels))
    feed = Feed(config, material.plan, state.method, compute.device, compute.dtype)
    feed.load(0)
    step = Step(state, feed, material.augment, material.pixels, material.labels, compute)
    step.rehearse()
    probe(step)
    return Run(material, state, feed, step, launcher(step, compute))


def age() -> float:
    """Seconds since this process was born: Linux counts ticks since the machine was started (proc(5), field 22)."""
    born = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - born


def seconds(work: Callable[[], object], compute: Compute) -> float:
    """How long `work` takes, the device's part included."""
    if compute.device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if compute.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def edges(config: Config, run: Run, compute: Compute) -> dict[str, float]:
    """Seconds of each thing done between epochs: the mean of five times, after a first one."""
    average = run.state.averages["fast_swa"]
    average.update()
    refresh = Refresher(average.module, config, run.material, compute)
    evaluator = run.material.evaluators["test"]
    times: dict[str, list[float]] = {}
    for number in range(6):
        pieces: dict[str, Callable[[], object]] = {
            "evaluation of one network": lambda: evaluator(run.state.student, compute.arithmetic()),
            "refresh of one average": partial(refresh, f"trial/{number}"),
            "finite check": run.state.finite,
            "snapshot": lambda: Snapshot(run.state.tensors()),
            "an epoch's rows to the device": partial(run.feed.load, number),
        }
        for name, piece in pieces.items():
            times.setdefault(name, []).append(seconds(piece, compute))
    found = {name: mean(values[1:]) for name, values in times.items()}
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Snapshot(run.state.tensors())
        found["checkpoint written (by a thread)"] = seconds(
            lambda: save_checkpoint(Path(folder), 1, snapshot, {"step": 1}), compute
        )
    return found


def share(found: dict[str, float], epoch: float) -> float:
    """The edges' part of the time where averages are there: every third epoch all four networks are evaluated."""
    edge = (
        4 * found["evaluation of one network"]
        + found["refresh of one average"]
        + 2 * found["finite check"]
        + found["snapshot"]
        + EVERY * found["an epoch's rows to the device"]
    )
    return edge / (EVERY * epoch + edge)


def every_step(config: Config, plain: Run, compute: Compute) -> dict[str, float]:
    """What fast-SWA of every step adds to a step that has averages of epochs alone, the two timed in turn."""
    often = config.averaging["fast_swa"].model_copy(update={"every": 0.0, "start": 0.0})
    averaging = {**config.averaging, "every_step": often}
    averaged = make_run(config.model_copy(update={"averaging": averaging}), plain.material, compute)
    averaged.state.averages["every_step"].expect(0.0)
    found: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(4):
        for name, run in (("without", plain), ("with", averaged)):
            found[name].append(time_steps(run.one, compute, 0.5))
    ms = {name: statistics.median(each) for name, each in found.items()}
    return {"ms without": ms["without"], "ms with": ms["with"], "share": ms["with"] / ms["without"] - 1}


def epoch(run: Run) -> None:
    """The second epoch as a whole: its rows made and brought over, then all its steps."""
    run.feed.load(1)
    for _ in range(run.material.plan.steps):
        run.launch()


def pinned(config: Config, material: Material, images: np.ndarray, compute: Compute) -> dict[str, float]:
    """An epoch whose steps read images in the machine's memory, beside one that has them on the device."""
    held, seen = pinned_images(len(images), images, compute.device)
    fill(held, images)
    beside = make_run(config, replace(material, pixels=seen), compute)
    there = make_run(config, material, compute)
    found: dict[str, list[float]] = {"on the device": [], "in pinned memory": []}
    for _ in range(3):
        for times, run in zip(found.values(), (there, beside), strict=True):
            times.append(seconds(partial(epoch, run), compute))
    return {name: round(statistics.median(times), 3) for name, times in found.items()}


def together(runs: list[Run], lanes: Lanes, compute: Compute) -> dict[int, float]:
    """Milliseconds per step and run with one, two, … runs, each on the lane that it was made on."""
    found = {}
    for count in range(1, len(runs) + 1):

        def turn(count: int = count) -> None:
            for number, run in enumerate(runs[:count]):
                lanes.on(number, run.one)

        found[count] = time_steps(turn, compute, 2.0) / count
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--model", default="cnn13")
    parser.add_argument("--start", action="store_true", help="nothing but the start")
    parser.add_argument("--runs", type=int, default=3, help="at most so many runs at once")
    parser.add_argument("--images", type=int, nargs="*", default=[50_000, 100_000, 500_000])
    parser.add_argument("--compile-times", action="store_true", help="what torch.compile spent its time on")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        measure(options)
    except FastswaError as error:
        print(f"# {error}", file=sys.stderr)
        return error.exit_code
    return 0


def measure(options: argparse.Namespace) -> None:
    """The start, the edges of an epoch, runs side by side, and epochs of more images, printed."""
    config = build_config(
        recipe_layer("cifar10-cnn-mean-teacher-4k"),
        {"device": {"name": options.device, "engine": options.engine}, "model": {"name": options.model}},
    )
    compute = choose_compute(config.device)
    kernels.foresee(compute.device)
    report: dict[str, object] = {"device": str(compute.device)}
    with settings_of(compute):
        dataset = random_images(test=10_000)
        material = prepare(config, dataset, compute)
        runs: list[Run] = []
        report["imports and data, s"] = round(age(), 2)
        report["start, s"] = round(seconds(lambda: runs.append(make_run(config, material, compute)), compute), 2)
        if options.compile_times:
            print(torch._dynamo.utils.compile_times())
        report["engine"] = runs[0].step.engine
        if options.start:
            print(json.dumps(report) if options.json else report)
            return
        ms = time_steps(runs[0].one, compute, 2.0)
        report["ms per step"] = round(ms, 3)
        found = edges(config, runs[0], compute)
        report["edges, s"] = {name: round(value, 4) for name, value in found.items()}
        report["edges' share of the time"] = round(share(found, ms * material.plan.steps / 1e3), 4)
        if compute.device.type == "cuda":
            free, whole = torch.cuda.mem_get_info()
            report["memory of one run, MiB"] = {
                "its tensors at most": round(torch.cuda.max_memory_allocated() / 2**20),
                "held by torch": round(torch.cuda.max_memory_reserved() / 2**20),
                "taken of the GPU, with its context": round((whole - free) / 2**20),
            }
            report["every-step average, share of a step"] = {
                name: round(value, 4) for name, value in every_step(config, runs[0], compute).items()
            }
            lanes = Lanes(compute)
            while len(runs) < options.runs:
                seeded = config.model_copy(update={"seed": len(runs)})
                name = f"start of run {len(runs) + 1}, s"
                began = time.perf_counter()
                runs.append(lanes.on(len(runs), partial(make_run, seeded, material, compute)))
                torch.cuda.synchronize()
                report[name] = round(time.perf_counter() - began, 2)
            report["ms per step and run, by runs at once"] = {
                count: round(value, 3) for count, value in together(runs, lanes, compute).items()
            }
        costs = {}
        for images in options.images:
            wide = prepare(config, random_images(train=images + LABELLED), compute)
            run = make_run(config, replace(wide, evaluators={}), compute)
            whole = seconds(partial(epoch, run), compute)
            costs[images] = {"s per epoch": round(whole, 3), "steps": wide.plan.steps}
            del wide, run
        report["unlabelled images"] = costs
        if compute.device.type == "cuda":
            report["images in pinned memory, s per epoch"] = pinned(config, material, dataset.train.pixels, compute)
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, inner in value.items():
                print(f"    {key}: {inner}")
        else:
            print(f"{name}: {value}")


if __name__ == "__main__":
    raise SystemExit(main())
