"""Which runs of one command are trained side by side on a CPU, and with how many threads each.

A small network uses one core far better than several, so that runs side by side gain what threads lose by waiting for
one another (benchmarks/LOG.md). The threads are written to config.toml: a resume goes on with the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    New ones get equal shares of the cores; begun ones keep the share that they began with. Others are alone.
    """
    usable, groups, new, begun = usable_cores(), list[Group](), list[int](), dict[int, list[int]]()
    for number, (run, config) in enumerate(zip(runs, configs, strict=True)):
        if not _shares(run, config):
            groups.append(Group((run,), (number,)))
        elif isinstance(run, NewRun):
            new.append(number)
        else:
            begun.setdefault(config.device.threads or 1, []).append(number)
    for threads, numbers in begun.items():
        for chosen in _together(numbers, usable // threads, configs):
            groups.append(Group(tuple(runs[number] for number in chosen), chosen, threads))
    for chosen in _together(new, usable, configs):
        threads = usable // len(chosen)
        # One that is left over has all cores, as any run alone.
        sharing = (_with(runs[k], configs[k], threads) if len(chosen) > 1 else runs[k] for k in chosen)
        groups.append(Group(tuple(sharing), chosen, threads))
    return groups


def _together(numbers: Sequence[int], most: int, configs: Sequence[Config]) -> Iterator[tuple[int, ...]]:
    """Runs of one recipe, as many at a time as cores and memory allow."""
    at_once = min(len(numbers), most)
    if at_once > 1:
        at_once = min(at_once, _room(configs[numbers[0]]))
    for start in range(0, len(numbers), max(at_once, 1)):
        yield tuple(numbers[start : start + max(at_once, 1)])


def _shares(run: _Run, config: Config) -> bool:
    """Whether a run may be one of several on a CPU; a begun one, if it was.

    With --deterministic every bit is to be as of a run alone. With --minutes one measured length is for all. Threads
    that a person gave are what the command may use. A GPU has its own way, and compiled steps were not measured.
    """
    compute = choose_compute(config.device)
    if (compute.device.type, compute.engine, compute.deterministic) != ("cpu", "eager", False):
        return False
    if isinstance(run, NewRun):
        return run.budget is None and config.device.threads is None
    return RunFolder(run.path).shared_cores() and "device.threads" not in flatten(run.changes)


def _with(run: _Run, config: Config, threads: int) -> _Run:
    """A new run, with these settings, that computes with so many threads."""
    assert isinstance(run, NewRun)
    device = config.device.model_copy(update={"threads": threads})
    return replace(run, config=config.model_copy(update={"device": device}))


def _room(config: Config) -> int:
    """How many runs such as this one half of the free memory holds; one where its data cannot be had, to be told so.

    One's own images are prepared here, once for all. Of views that held layers see (augment.kept) the first run leaves
    on the disk what the others would have to make anew.
    """
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
