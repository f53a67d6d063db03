"""Everything that changes while a run trains, in one place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastswa.averaging import AveragedWeights
from fastswa.batch_norm import running_statistics
from fastswa.config import Config
from fastswa.methods import build as build_method
from fastswa.methods.method import Method, Terms
from fastswa.modelfile import ModelFacts, load_weights
from fastswa.noise import derive_seed
from fastswa.training.device import Compute
from fastswa.training.optimiser import Optimiser, build_optimiser, learning


@dataclass
class State:
    """Networks, optimiser, method's memory, averages, and the sums of loss terms since the last evaluation.

    `step` counts the steps done; `summed` those that `sums` (by term, in the order of `term_names`) covers.
    `following` are the teacher's counterparts of the parameters that learn, in the optimiser's order; `statistics` the
    student's running batch-norm statistics and the teacher's that follow them, if they do.
    """

    student: nn.Module
    teacher: nn.Module | None
    method: Method
    optimiser: Optimiser
    averages: dict[str, AveragedWeights]
    sums: Tensor
    broken: Tensor
    term_names: list[str] = field(default_factory=list)
    step: int = 0
    summed: int = 0
    # No cached_property, whose lock torch.compile does not follow (Python 3.11).
    following: list[Tensor] = field(init=False)
    statistics: tuple[list[Tensor], list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        teacher = {} if self.teacher is None else dict(self.teacher.named_parameters())
        self.following = [teacher[name] for name in learning(self.student)] if teacher else []
        self.statistics = ([], [])
        if self.teacher is not None and self.method.teacher_statistics:
            self.statistics = (running_statistics(self.student), running_statistics(self.teacher))

    @torch.no_grad()
    def follow(self, rate: Tensor) -> None:
        """Move the teacher's parameters towards the student's by `rate`, a 0-dim tensor."""
        _move(self.following, self.optimiser.parameters, rate)

    @torch.no_grad()
    def follow_statistics(self, rate: Tensor) -> None:
        """The same of its running batch-norm statistics, where the method wants it."""
        theirs, own = self.statistics
        if own:
            _move(own, theirs, rate)

    @torch.no_grad()
    def record(self, terms: Terms) -> None:
        """Add a step's terms to the sums, and remember whether any was not finite."""
        self.term_names = list(terms)
        values = torch.stack([term.detach().to(self.sums.dtype) for term in terms.values()])
        self.sums[: len(values)].add_(values)
        self.broken.logical_or_(~torch.isfinite(values).all())

    def finite(self) -> bool:
        """Whether every number of the state is finite: a step may break the weights after a finite loss."""
        floats = [tensor for tensor in self.tensors().values() if tensor.is_floating_point() and tensor.numel()]
        kinds = {tensor.dtype for tensor in floats}
        # Of one type each: then the greatest value of every tensor is a matter of few launches.
        greatest = [torch._foreach_norm([t for t in floats if t.dtype == kind], math.inf) for kind in kinds]
        return bool(torch.stack([value.double() for values in greatest for value in values]).isfinite().all())

    @property
    def has_two_heads(self) -> bool:
        heads = getattr(self.student, "heads", None)
        return getattr(heads, "second", None) is not None

    def networks(self) -> dict[str, nn.Module]:
        """The trained networks by name."""
        return {"student": self.student} | ({"teacher": self.teacher} if self.teacher is not None else {})

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor an exact resume needs, by name; they are the live ones."""
        found = {"sums": self.sums, "broken": self.broken}
        for name, network in self.networks().items():
            found |= {f"{name}.{key}": tensor for key, tensor in network.state_dict(keep_vars=True).items()}
        for slot, buffers in self.optimiser.slots.items():
            for key, buffer in zip(learning(self.student), buffers, strict=True):
                found[f"{slot}.{key}"] = buffer
        found |= self.optimiser.counters
        for name, average in self.averages.items():
            content = average.tensors()
            for part in ("parameters", "buffers"):
                found |= {f"average.{name}.{key}": tensor for key, tensor in content[part].items()}
            found |= {f"averaging.{name}.{key}": tensor for key, tensor in content["inside"].items()}
        found |= {f"memory.{key}": tensor for key, tensor in self.method.memory.items()}
        return {name: tensor.detach() for name, tensor in found.items()}

    def counters(self) -> dict[str, Any]:
        """What is not a tensor, for the checkpoint."""
        averages = {
            name: {"count": average.count, "last_due": average.last_due} for name, average in self.averages.items()
        }
        return {"step": self.step, "summed": self.summed, "averages": averages}

    def recalled(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A checkpoint's tensors, what the method remembers as it does today."""
        room = "memory."
        return {
            name: self.method.recalled(name.removeprefix(room), tensor) if name.startswith(room) else tensor
            for name, tensor in tensors.items()
        }

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Take over the state that `tensors` and `counters` gave."""
        own, tensors = self.tensors(), self.recalled(tensors)
        # What averages keep for their own accuracy is not in the checkpoints of early versions.
        odd = [name for name in sorted(own.keys() ^ tensors.keys()) if not name.startswith("averaging.")]
        if odd:
            raise ValueError(f"the state is of another run: {odd[0]} does not match")
        for name, tensor in own.items():
            tensor.copy_(tensors.get(name, tensor))
        self.step, self.summed = counters["step"], counters["summed"]
        for name, average in self.averages.items():
            average.count, average.last_due = (counters["averages"][name][k] for k in ("count", "last_due"))


def build_state(
    config: Config,
    compute: Compute,
    facts: ModelFacts,
    images: int,
    weights: Path | None = None,
    *,
    fresh: bool = True,
) -> State:
    """A run's state at step 0: student and teacher each from their own initialisation (but see Method), or `weights`.

    `fresh` is False where a checkpoint is about to replace the state, so that no pretrained weights are fetched; nor
    are they for a fork, which begins with its parent's.
    """
    pretrained = config.model.pretrained and fresh and weights is None and config.start.run is None
    method = build_method(config.method, images=images, classes=len(facts.classes))
    method.names = facts.classes
    method.to(compute.device)
    student = build_network(facts, config.seed, "student", pretrained).to(compute.device, compute.dtype)
    teacher = None
    if method.has_teacher:
        purpose = "student" if method.teacher_copies else "teacher"
        teacher = build_network(facts, config.seed, purpose, pretrained).to(compute.device, compute.dtype)
        teacher.requires_grad_(False)
    for network in filter(None, (student, teacher)):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if weights is not None:
        for network in filter(None, (student, teacher)):
            load_weights(weights, network)
    averages = {
        name: AveragedWeights(
            student,
            start=average.start or 0.0,
            every=average.every or 0.0,
            decay={"ema": average.decay, "last": 0.0}.get(average.kind),
            inside=not average.every,
        )
        for name, average in config.averaging.items()
    }
    return State(
        student=student,
        teacher=teacher,
        method=method,
        optimiser=build_optimiser(student, config.optimiser),
        averages=averages,
        sums=torch.zeros(8, dtype=torch.float32, device=compute.device),
        broken=torch.zeros((), dtype=torch.bool, device=compute.device),
    )


def _move(tensors: list[Tensor], towards: list[Tensor], rate: Tensor) -> None:
    """tensors += rate (towards - tensors)"""
    difference = torch._foreach_sub(towards, tensors)
    torch._foreach_mul_(difference, rate)
    torch._foreach_add_(tensors, difference)


def build_network(facts: ModelFacts, seed: int, purpose: str, pretrained: bool = False) -> nn.Module:
    """A freshly initialised network in training mode; the same for a seed on every device."""
    return facts.build(pretrained, derive_seed(seed, f"init/{purpose}")).train()


@contextmanager
def preserved(tensors: Iterable[Tensor]) -> Iterator[None]:
    """The tensors' contents put back on leaving, whatever was done to them inside."""
    tensors = list(tensors)
    copies = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, saved in zip(tensors, copies, strict=True):
                tensor.copy_(saved)
