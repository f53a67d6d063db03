"""The seam between methods and training: what a method gets, gives and promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fastswa import kernels
from fastswa.config import MethodConfig
from fastswa.methods.losses import DIVERGENCES, classification, squared, tie
from fastswa.noise import Noise
from fastswa.schedule import sigmoid_ramp


class Output(Protocol):
    """What a network gives; see fastswa.models.network."""

    @property
    def logits(self) -> Tensor: ...
    @property
    def consistency(self) -> Tensor: ...
    @property
    def features(self) -> Tensor: ...


class View(Protocol):
    """Draws an augmented view of a batch's images, or of those in `rows` alone."""

    def __call__(self, name: str, rows: slice = slice(None)) -> Tensor: ...


Network = nn.Module


@dataclass(frozen=True)
class Batch:
    """One step's images as a method sees them; the first len(labels) of them are labelled.

    `view(name)` draws an augmented view (B, C, H, W), another one for each name: "weak" and "strong" are what they say,
    "student" is as augment.student wants it, others are weak (what comes before a slash says whose it is, and nothing
    of how strong). `noise` is the step's randomness, to be scoped by pass;
    `weight` is the consistency weight at this step, a 0-dim tensor; `index` (B,) numbers the images within the training
    set. `join(target, after)` gives a method that `joins` the target, which may be still in the making beside the
    student's pass: `after` is what that pass gave.
    """

    labels: Tensor
    index: Tensor
    weight: Tensor
    noise: Noise
    view: View
    join: Callable[[Tensor, Tensor], Tensor] = lambda target, after: target

    def streams(self) -> tuple[Batch, Batch]:
        """The labelled images and the others as two batches, for methods that pass them apart.

        Each has views and noise of its own; only the images that are asked for are augmented.
        """
        labelled = len(self.labels)
        return self._stream("labelled", slice(labelled)), self._stream("unlabelled", slice(labelled, None))

    def _stream(self, stream: str, part: slice) -> Batch:
        def view(name: str, rows: slice = slice(None)) -> Tensor:
            return self.view(f"{stream}/{name}", part)[rows]

        labels, noise = self.labels[part], self.noise.scope(stream)
        return replace(self, labels=labels, index=self.index[part], noise=noise, view=view)


Terms = dict[str, Tensor]


class Method:
    """What the loss of one batch is. A method says only what differs; training owns everything else.

    `settings` names the settings of [method] it reads. What it declares is probed before training: `terms` maps
    each loss term to the network that its gradient must run through, from the heads to the first layer (no term
    may send one into the teacher); `moves` names the networks that a step must move. `memory` holds tensors of
    its own that change along training (saved with the run, kept on its device, updated in place). `strong_views`
    says that it asks for them, `remembers_images` that its memory has a place for each image. `teacher_copies` has the
    teacher start as the student does, rather than from weights of its own. `joins` says that its losses take the target
    by the batch's `join` and not as it is: on a GPU the teacher's pass may then run beside the student's. `apart` says
    that labelled and unlabelled images pass the networks as batches of their own: the batch-norm statistics of an
    average are then of the latter. `teacher_statistics` has the teacher's running batch-norm statistics follow the
    student's as its weights do. `names` are those of the classes, for its sentences.
    """

    settings: ClassVar[frozenset[str]] = frozenset()
    terms: ClassVar[Mapping[str, str]] = {"classification": "student"}
    moves: tuple[str, ...] = ("student",)
    labelled_only: ClassVar[bool] = False
    has_teacher: bool = False
    strong_views: ClassVar[bool] = False
    remembers_images: ClassVar[bool] = False
    teacher_copies: ClassVar[bool] = False
    teacher_statistics: ClassVar[bool] = False
    joins: bool = False
    apart: ClassVar[bool] = False

    def __init__(self, config: MethodConfig, *, images: int, classes: int) -> None:
        self.config = config
        self.names: Sequence[str] = [str(number) for number in range(classes)]
        self.divergence = DIVERGENCES[config.divergence]
        self.memory: dict[str, Tensor] = {}

    def target(self, batch: Batch, teacher: Network) -> Tensor:
        """What the teacher alone says of a batch, without gradient; asked of methods that have one."""
        raise NotImplementedError

    def losses(self, batch: Batch, student: Network, target: Tensor | None) -> Terms:
        """The weighted terms of one batch by name; their sum is minimised."""
        raise NotImplementedError

    @classmethod
    def learnt_from(cls, config: MethodConfig, view: View, labelled: int, size: int) -> Tensor:
        """The images of a batch of `size`, the first `labelled` of them labelled, that pass with gradient.

        Those that an average is normalised by: its batch-norm statistics come from such batches.
        """
        return view("weak")

    def weight(self, epoch: float) -> float:
        """The consistency weight at a fractional epoch."""
        return self.config.weight * sigmoid_ramp(epoch, self.config.ramp)

    def teacher_rate(self, step: int, steps_per_epoch: int) -> float:
        """How far the teacher moves towards the student after a step counted from 1 (0: stays, 1: copies)."""
        return 0.0

    def introduce(self, unlabelled: int, truth: Tensor) -> None:
        """Told before training how many images are unlabelled, and the labels (N,) of all where known, else -1.

        `truth` is for figures alone; no loss may read it.
        """

    def figures(self) -> dict[str, Any]:
        """What a line of metrics says of the method's own steps since the last one; counting begins anew.

        A "warning" among them is one sentence, and is shown.
        """
        return {}

    def end_epoch(self) -> None:
        """Called after the last step of each epoch."""

    def prime(self) -> None:
        """Fill the memory as if training had gone on for a while; the probe calls it, then undoes it."""

    def recalled(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the memory as a checkpoint holds it, in today's shape where earlier versions had another."""
        return tensor

    def to(self, device: torch.device) -> None:
        """Move the memory to the device that trains."""
        self.memory = {name: tensor.to(device) for name, tensor in self.memory.items()}

    def agreement(self, batch: Batch, output: Output, target: Tensor, share: Tensor | None = None) -> Terms:
        """The terms of a student that learns its labels and agrees with a target (N, K) of probabilities.

        They are the cross entropy of the labelled images, the weighted divergence of all (`share` (N,) of each) and
        what ties two heads; a launch each way where a GPU allows it.
        """
        first, second = output.logits, output.consistency
        if self.divergence is squared and kernels.comparable(first, second, target):
            from fastswa.kernels.losses import Agreement

            two = second is not first
            wanted = first.new_empty(0) if share is None else share
            terms = Agreement.apply(first, second, target, wanted, batch.labels, batch.weight, self.config.tie, two)
            names = (
                ("classification", "consistency", "tie") if self._ties(output) else ("classification", "consistency")
            )
            return dict(zip(names, terms, strict=False))
        divergence = self.divergence(second, target)
        return {
            "classification": classification(first, batch.labels),
            "consistency": batch.weight * (divergence if share is None else divergence * share).mean(),
            **self.tied(output),
        }

    def _ties(self, output: Output) -> bool:
        return output.consistency is not output.logits and self.config.tie != 0

    def tied(self, output: Output) -> Terms:
        """The term that ties two heads; nothing for networks with one."""
        if not self._ties(output):
            return {}
        return {"tie": self.config.tie * tie(output.logits, output.consistency)}
