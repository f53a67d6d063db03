"""Which runs of one command are trained side by side on a CPU, and with how many threads each.

A small network uses one core far better than several, so that runs side by side gain what threads lose by waiting for
one another (benchmarks/LOG.md). The threads are written to config.toml: a resume goes on with the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fastswa import models
from fastswa.config import Config
from fastswa.data.images import Dataset
from fastswa.data.workers import cores
from fastswa.errors import FastswaError
from fastswa.layers import flatten
from fastswa.modelfile import ModelFacts
from fastswa.training.device import choose_compute, free_memory
from fastswa.training.folder import RunFolder
from fastswa.training.run import NewRun, OldRun
from fastswa.training.setup import load_data, load_extra_data, network_options, with_data_defaults

# What a process holds besides: Python and torch, and freed memory that is kept (device.keep_freed_memory).
_PROCESS = 600 << 20
_Run = NewRun | OldRun


@dataclass(frozen=True)
class Group:
    """Runs that are trained at the same time, and their places among all; several in a process with `threads` each."""

    runs: tuple[_Run, ...]
    numbers: tuple[int, ...]
    threads: int = 0


def usable_cores() -> int:
    """Those that this process may use, but no more than torch's threads: OMP_NUM_THREADS may ask for less."""
    return min(cores(), torch.get_num_threads())


def groups_of(runs: Sequence[_Run], configs: Sequence[Config]) -> list[Group]:
    """The runs, with their settings, in groups to be trained one after the other.

    New ones get equal shares of the cores; begun ones keep the share that they began with. Whatever cannot be one of
    several is a group by itself, in its place in the order of the first of each group.
    """
    usable, wanted = usable_cores(), dict[int, list[int]]()
    for number, (run, config) in enumerate(zip(runs, configs, strict=True)):
        threads = _share(run, config)
        # One key for all that may be side by side; one of its own for each of the others.
        wanted.setdefault(-1 - number if threads is None else threads, []).append(number)
    groups = []
    for threads, numbers in wanted.items():
        at_once = min(len(numbers), usable // max(threads, 1))
        if at_once > 1:
            at_once = min(at_once, _room(configs[numbers[0]]))
        for start in range(0, len(numbers), max(at_once, 1)):
            chosen = numbers[start : start + max(at_once, 1)]
            share = threads or usable // len(chosen)
            sharing = [runs[number] for number in chosen]
            if threads == 0 and len(chosen) > 1:
                sharing = [_with(runs[number], configs[number], share) for number in chosen]
            groups.append(Group(tuple(sharing), tuple(chosen), share))
    return groups


def _share(run: _Run, config: Config) -> int | None:
    """The threads that a run began with beside others, 0 for one that has not begun; None if it trains by itself.

    With --deterministic every bit is to be as of a run alone. With --minutes one measured length is for all. Threads
    that a person gave are as many as the command may use. Held layers put what they made of the images on the disk,
    where the next run finds it. A GPU has its own way, and compiled steps were not measured.
    """
    compute = choose_compute(config.device)
    if (compute.device.type, compute.engine, compute.deterministic) != ("cpu", "eager", False):
        return None
    if isinstance(run, NewRun):
        return 0 if run.budget is None and config.device.threads is None else None
    given = "device.threads" in flatten(run.changes)
    return config.device.threads if RunFolder(run.path).shared_cores() and not given else None


def _with(run: _Run, config: Config, threads: int) -> _Run:
    """A new run, with these settings, that computes with so many threads."""
    assert isinstance(run, NewRun)
    device = config.device.model_copy(update={"threads": threads})
    return replace(run, config=config.model_copy(update={"device": device}))


def _room(config: Config) -> int:
    """How many runs such as this one half of the free memory holds; one where its data cannot be had, to be told so."""
    try:
        dataset = load_data(config)
        config = with_data_defaults(config, dataset)
        if config.augment.kept:
            return 1
        extra = load_extra_data(config, dataset)
        models.refuse_size(config.model.name, dataset.train.shape)
        needed = _PROCESS + _images(dataset) + (0 if extra is None else len(extra) * dataset.train.pixels[:1].nbytes)
        needed += _pass(config, dataset)
    except FastswaError:
        return 1
    return max(free_memory(torch.device("cpu")) // 2 // needed, 1)


def _images(dataset: Dataset) -> int:
    """Bytes of a data set's images, as they are read and as they are trained on."""
    sets = [dataset.train, *(images for images in (dataset.test,) if images is not None)]
    return 2 * sum(images.pixels.nbytes for images in sets)


def _pass(config: Config, dataset: Dataset) -> int:
    """Bytes that a step holds, about: twice what the student's pass of a batch keeps for its gradients."""
    shape, few = dataset.train.shape, (2, 4)
    options = network_options(config)
    network = ModelFacts(config.model.name, dataset.classes, shape, (0.0,), (1.0,), config.model.heads, options).build()
    kept = [_kept(network, torch.zeros(count, *shape)) for count in few]
    weights = sum(parameter.nbytes for parameter in network.parameters())
    return 2 * config.batch.size * (kept[1] - kept[0]) // (few[1] - few[0]) + 8 * weights


def _kept(network: torch.nn.Module, images: torch.Tensor) -> int:
    """Bytes that a pass of these images keeps for its gradients."""
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = network.train()(images)  # all of them live as long as this does, each at an address of its own
    del output
    return sum(found.values())
