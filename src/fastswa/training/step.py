"""One training step as a whole: eager, compiled, or replayed as one CUDA graph.

The step reads and writes device tensors only and never waits for them, so that the same function can be
captured; the learning rate, weights and random words come from the feed's row under its cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fastswa import beside, kernels
from fastswa.data.augment import Augment
from fastswa.data.kept import KeptViews
from fastswa.methods.method import Batch, Terms
from fastswa.models.convolution import Convolutional
from fastswa.noise import Noise
from fastswa.operation import compiled
from fastswa.training.device import Compute, keep_freed_memory
from fastswa.training.feed import Feed, StepValues
from fastswa.training.graph import captured
from fastswa.training.state import State, preserved

# The second stream may still read what the first is done with.
_NOT_REUSED: dict[str, str | int | bool | Callable[..., Any]] = {"allow_buffer_reuse": False, "inplace_buffers": False}


class Step:
    """Gather, augment, both passes, backward, SGD, teacher, metrics.

    `beside` lets the teacher's pass and the student's overlap on a GPU, and what is recorded the backward pass.
    `pixels` is (N, H, W, C) uint8; `labels` is (N,) int64 and knows nothing of the unlabelled images' labels.
    """

    def __init__(
        self, state: State, feed: Feed, augment: Augment, pixels: Tensor, labels: Tensor, compute: Compute
    ) -> None:
        self.state, self.feed, self.augment = state, feed, augment
        self.pixels, self.labels, self.compute = pixels, labels, compute
        self.beside = False
        self._rehearsed = False
        self._zeros: dict[int, Tensor] = {}
        self._ones: dict[torch.dtype, Tensor] = {}

    def __call__(self) -> None:
        self.run(self.feed.take())

    @property
    def engine(self) -> str:
        """How it is launched: `auto` compiles only what has no kernels of our own, as that takes a minute when new."""
        if self.compute.engine != "auto":
            return self.compute.engine
        if isinstance(self.augment, KeptViews):
            return "graph"  # what learns are small linear layers
        strong = self.augment.student == "strong" or self.state.method.strong_views
        drawn = self.augment.draws(self.pixels) and (not strong or self.augment.draws_strong(self.pixels))
        ours = drawn and isinstance(self.state.student, Convolutional)
        return "graph" if ours or not kernels.available() else "compiled"

    def rehearse(self) -> None:
        """Compile its kernels, all at once; nothing of the state is changed."""
        if self.pixels.is_cuda and not self._rehearsed:
            with preserved([*self.state.tensors().values(), self.feed.cursor]):
                kernels.prepare(self, self.pixels.device)
            self._rehearsed = True

    def batch(self, values: StepValues) -> Batch:
        """One row of the feed as the method sees it."""
        noise = Noise(values.words)

        def view(name: str, rows: slice = slice(None)) -> Tensor:
            return self.augment.view(self.pixels, values.images[rows], noise.scope(f"view/{name}"))

        return Batch(
            labels=self.labels[values.images[: self.feed.plan.labelled]],
            index=values.images,
            weight=values.consistency_weight,
            noise=noise,
            view=view,
        )

    def target(self, values: StepValues) -> Tensor | None:
        """What the teacher says of one row of the feed, where there is one."""
        if self.state.teacher is None:
            return None
        with self.compute.arithmetic():
            return self.state.method.target(self.batch(values), self.state.teacher)

    def losses(self, values: StepValues, target: Tensor | None) -> Terms:
        """The method's terms for one row of the feed."""
        batch, method = self.batch(values), self.state.method
        if self.beside and method.joins:
            batch = replace(batch, join=lambda target, after: beside.join(target, after.detach()))
        elif self.beside and target is not None:
            target = beside.join(target, values.consistency_weight)
        with self.compute.arithmetic():
            return method.losses(batch, self.state.student, target)

    def run(self, values: StepValues) -> None:
        """One step with the given values."""
        state, device = self.state, values.images.device
        with self._aside(device):
            target = self.target(values)
        terms = self.losses(values, target)
        with self._aside(device):
            state.record(terms)
        # Of their sum, which itself nobody needs.
        sources = [term for term in terms.values() if term.requires_grad]
        ones = [self._one(term) for term in sources]
        found = _gradients(sources, ones, state.optimiser.parameters)
        gradients = [self._zero(k) if gradient is None else gradient for k, gradient in enumerate(found)]
        self.update(gradients, values.learning_rate, values.teacher_rate)
        self.average()
        if self.beside:
            beside.wait(device)

    def _aside(self, device: torch.device) -> AbstractContextManager[None]:
        """On the second stream, where there is one."""
        return beside.stream(device) if self.beside else nullcontext()

    def _one(self, term: Tensor) -> Tensor:
        """The gradient of a term of the sum; made once."""
        if term.dtype not in self._ones:
            self._ones[term.dtype] = torch.ones((), dtype=term.dtype, device=term.device)
        return self._ones[term.dtype]

    def _zero(self, k: int) -> Tensor:
        """The gradient of a parameter that the loss does not reach, such as a bias before a batch norm; made once."""
        if k not in self._zeros:
            self._zeros[k] = torch.zeros_like(self.state.optimiser.parameters[k])
        return self._zeros[k]

    def update(self, gradients: Sequence[Tensor], learning_rate: Tensor, teacher_rate: Tensor) -> None:
        """Move the student, then the teacher after it."""
        state = self.state
        if state.optimiser.moves_teacher:
            teacher = None if state.teacher is None else state.following
            state.optimiser.move(gradients, learning_rate, teacher, teacher_rate)
        else:
            state.optimiser.step(gradients, learning_rate)
            if state.teacher is not None:
                state.follow(teacher_rate)
        state.follow_statistics(teacher_rate)

    def average(self) -> None:
        """Take the student into the averages of every step; each knows on the device whether it has begun."""
        for average in self.state.averages.values():
            if average.inside:
                average.take()


def _gradients(
    terms: Sequence[Tensor], ones: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """As torch.autograd.grad's; that one imports a library of symbolic mathematics just to compare the ones' shapes."""
    backward = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if backward is None:  # a torch in which that has another name
        return torch.autograd.grad(terms, parameters, ones, allow_unused=True)
    found: Sequence[Tensor | None] = backward(
        tuple(terms), tuple(ones), False, False, tuple(parameters), True, accumulate_grad=False
    )
    return found


def launcher(step: Step, compute: Compute) -> Callable[[], None]:
    """What launches one step: the step itself, or the replay of its capture; `compiled` fuses its parts first."""
    if compute.device.type == "cpu":
        keep_freed_memory()
    if step.engine == "compiled":
        import torch._functorch.config

        # What is compiled is found again by the next start, functions with gradients of their own included.
        torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
        step.target = compiled(step.target)  # type: ignore[method-assign]
        step.losses = compiled(step.losses, options=_NOT_REUSED)  # type: ignore[method-assign]
        if not step.state.optimiser.moves_teacher:
            step.update = compiled(step.update)  # type: ignore[method-assign]
        if any(average.inside and not average.at_once for average in step.state.averages.values()):
            step.average = compiled(step.average)  # type: ignore[method-assign]
    if not compute.captures:
        return step
    step.rehearse()
    step.beside = True
    if isinstance(step.state.student, Convolutional):
        step.state.student.beside = True
    cursor = step.feed.cursor
    return captured(step, [*step.state.tensors().values(), cursor], before=cursor.zero_)
