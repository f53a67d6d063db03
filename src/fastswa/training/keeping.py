"""Views that held layers see once, before training (augment.kept): room for them, the passes, and what may not be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastswa.config import Config
from fastswa.console import progress_bar
from fastswa.data.augment import Augment
from fastswa.data.kept import Bank, KeptViews
from fastswa.data.shelf import Shelf
from fastswa.errors import RequestError, RunError
from fastswa.evaluate import Evaluator
from fastswa.methods import method_class
from fastswa.modelfile import ModelFacts
from fastswa.models.network import Backboned
from fastswa.training.device import Compute, free_memory
from fastswa.training.setup import Material
from fastswa.training.state import State
from fastswa.training.window import shown_bytes

# A part of the passes that tells how long all of them take.
_TOLD_AFTER = 0.02
_EVALUATED = 1000  # features at a time
# Features that take more bytes are not put on the disk, which would take several times the memory meanwhile.
_SHELVED = 1 << 30


class Words(NamedTuple):
    """What is said of views that are known, and of those that pass; what the bar says."""

    known: str
    passing: str
    bar: str


TRAINING = Words(
    "views passed the held layers in an earlier run",
    "views pass the held layers first (augment.kept)",
    "views through held layers",
)


def with_kept_views(material: Material, config: Config, compute: Compute) -> Material:
    """The same with room for features in the place of all images, where views of them are to be kept."""
    kept, method = config.augment.kept, method_class(config.method.name)
    if not kept:
        return material
    if "epsilon" in method.settings:
        raise RequestError(f"method {config.method.name} disturbs the images themselves; set augment.kept to 0.")
    with torch.device("meta"):
        network = material.facts.build()
    assert isinstance(network, Backboned)
    width, plan = network.heads.first.in_features, material.plan
    size = len(material.pixels) * kept * width * compute.dtype.itemsize
    if size > free_memory(compute.device) // 2:
        raise RequestError(
            f"augment.kept: {kept} views of each of {len(material.pixels):,} images take {shown_bytes(size)}, more "
            f"than half of what {compute.device} has free; keep fewer, or set it to 0."
        )
    bank = bank_of(config.data.source, replace(material.augment, noise=0.0), material.facts, compute, config.seed)
    if size > _SHELVED:
        bank.source = None
    augment = KeptViews.like(material.augment)

    def measured(one: Evaluator) -> Evaluator:
        features = bank.room(one.pixels, 1, width, compute.dtype)
        return replace(one, pixels=features, augment=augment, batch=_EVALUATED)

    learnt = plan.labelled_images if method.labelled_only else np.union1d(plan.labelled_images, plan.unlabelled_images)
    return replace(
        material,
        pixels=bank.room(material.pixels, kept, width, compute.dtype, torch.from_numpy(learnt)),
        augment=augment,
        evaluators={name: measured(one) for name, one in material.evaluators.items()},
        bank=bank,
    )


def bank_of(source: str, augment: Augment, facts: ModelFacts, compute: Compute, seed: int = 0) -> Bank:
    """A bank of views of a source's images for a network."""
    _, height, side = facts.shape
    # Few enough for a processor's caches, many enough for a GPU.
    batch = max(1, min(1000, (1 << (20 if compute.device.type == "cpu" else 24)) // (height * side)))
    # Which images pass together may be seen in the last bit, and a GPU is done before a disk is.
    shelved = compute.device.type == "cpu" and not compute.deterministic
    return Bank(augment, batch, seed, source if shelved else None, facts.architecture)


def keep_views(
    material: Material,
    network: nn.Module,
    compute: Compute,
    tell: Callable[[str], None] | None = None,
    seconds: float = math.inf,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Have the images pass the network's held layers, where views of them are kept; the second time does nothing.

    `tell` hears soon how long that takes, and a bar shows how far it is; RequestError where it takes over `seconds`,
    RunError once `stopping` says so. What they made of an image in an earlier run is taken from the disk.
    """
    if material.bank is not None:
        pass_views(material.bank, network, compute, tell, seconds, stopping=stopping)


def pass_views(
    bank: Bank,
    network: nn.Module,
    compute: Compute,
    tell: Callable[[str], None] | None = None,
    seconds: float = math.inf,
    words: Words = TRAINING,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Fill a bank; as `keep_views`."""
    if not bank.sources:
        return
    began, told, wanted = time.monotonic(), False, bank.views
    shelf = shelf_of(bank, network, compute)

    def heard(done: int, total: int) -> None:
        nonlocal began, told
        if done == 0:
            began = time.monotonic()
            if total < wanted and tell is not None:
                tell(f"{wanted - total:,} of {wanted:,} {words.known}")
            return
        progress(words.bar, done, total)
        if stopping():
            kept = "; the next run finds what has passed" if shelf is not None else ""
            raise RunError(f"stopped before training, while views passed the held layers{kept}.")
        if told or done < _TOLD_AFTER * total:
            return
        told, takes = True, (time.monotonic() - began) * total / done
        length = f"{takes:.0f} s" if takes < 90 else f"{takes / 60:.1f} min"
        what = f"{total:,} {words.passing}, in {f'some {length}' if takes >= 1 else 'less than a second'}"
        if takes > seconds:
            raise RequestError(f"{what}: too long for --minutes; give more, or a smaller --data.size.")
        if tell is not None:
            tell(what)

    with progress_bar(shown=tell is not None) as progress:
        bank.fill(network, compute.arithmetic, heard, shelf)


def shelf_of(bank: Bank, network: nn.Module, compute: Compute) -> Shelf | None:
    """Where features of the bank's images are kept on the disk, if they are."""
    assert isinstance(network, Backboned)
    if bank.source is None:
        return None
    return Shelf(network.backbone, bank.augment, compute.precision, bank.source, bank.network)


def refuse_other_layers(material: Material, state: State) -> None:
    """RequestError where a network would be measured on what other layers than its own made of views.

    So it is in a fork of a run whose layers all learnt: its teacher and averages have layers of their own.
    """
    if material.bank is None:
        return
    averages = {name: average.module for name, average in state.averages.items() if average.count}
    held = _held(state.student)
    for name, network in {**state.networks(), **averages}.items():
        if any(not torch.equal(tensor, held[key]) for key, tensor in _held(network).items()):
            raise RequestError(
                f"the {name}'s held layers are others than the student's, so that views cannot be kept for both; "
                "set augment.kept to 0."
            )


def _held(network: nn.Module) -> dict[str, Tensor]:
    assert isinstance(network, Backboned)
    found: dict[str, Tensor] = network.backbone.state_dict()
    return found
