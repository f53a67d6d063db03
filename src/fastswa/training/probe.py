"""Guards: a method must do what it declares, on one batch, before training starts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastswa.errors import RunError
from fastswa.methods.method import Terms
from fastswa.training.feed import StepValues
from fastswa.training.optimiser import is_kernel
from fastswa.training.state import State, preserved
from fastswa.training.step import Step


def probe(step: Step) -> None:
    """Trip if a declared term sends the student no gradient or the teacher one, or if either does not move.

    One batch at full consistency weight; the state is put back after it.
    """
    state, feed = step.state, step.feed
    with preserved([*state.tensors().values(), feed.cursor]):
        state.method.prime()
        feed.cursor.zero_()
        values = feed.take()
        values = values._replace(
            learning_rate=torch.full_like(values.learning_rate, state.optimiser.config.lr or 0.1),
            consistency_weight=torch.full_like(values.consistency_weight, state.method.config.weight or 1.0),
            teacher_rate=torch.full_like(values.teacher_rate, _teacher_rate(step)),
        )
        labels = step.labels[values.images[: feed.plan.labelled]]
        if len(labels) == 0 or bool((labels < 0).any()):
            raise RunError("a batch holds no labelled image where it should; check the split.")
        _check_gradients(step, values)
        before = {name: _parameters(network) for name, network in state.networks().items()}
        step.run(values)
        for name in state.method.moves:
            if torch.equal(before[name], _parameters(state.networks()[name])):
                raise RunError(
                    f"method {state.method.config.name}: a training step leaves the {name} where it was; "
                    f"it would {'teach' if name == 'teacher' else 'train'} nothing."
                )
        if bool(state.broken):
            raise RunError("the loss of the very first batch is not finite; check the images and the weights.")


def _teacher_rate(step: Step) -> float:
    """The first rate of the run at which the method lets its teacher move; 0 if it never does."""
    steps = step.feed.plan.steps
    total = steps * max(step.feed.config.schedule.epochs, 1)
    rates = (step.state.method.teacher_rate(number, steps) for number in range(1, total + 1))
    return next((rate for rate in rates if rate > 0), 0.0)


def _check_gradients(step: Step, values: StepValues) -> None:
    state = step.state
    teacher = state.teacher if state.teacher is not None else nn.Module()
    teacher.requires_grad_(True)
    try:
        _check_terms(state, step.losses(values, step.target(values)), list(teacher.parameters()))
    finally:
        teacher.requires_grad_(False)


def _check_terms(state: State, terms: Terms, teacher: list[nn.Parameter]) -> None:
    name = state.method.config.name
    declared = dict(state.method.terms)
    if not state.has_two_heads or state.method.config.tie == 0:
        declared.pop("tie", None)
    for term in sorted(declared.keys() - terms.keys()):
        raise RunError(f"method {name} declares the term '{term}' but does not compute it.")
    for term in sorted(terms.keys() - declared.keys()):
        raise RunError(f"method {name} computes the term '{term}' but does not declare it.")
    for term, value in terms.items():
        if not isinstance(value, Tensor) or value.dim() > 0:
            raise RunError(
                f"method {name}: the term '{term}' is not a tensor of one number; take the mean over images."
            )
    for term, network in declared.items():
        if not _reaches(terms[term], [_first_layer(state.networks()[network])]):
            raise RunError(
                f"method {name}: the term '{term}' sends no gradient to the {network}; it would teach nothing."
            )
    if teacher and _reaches(torch.stack(list(terms.values())).sum(), teacher):
        raise RunError(f"method {name}: the loss sends a gradient into the teacher.")


def _first_layer(network: nn.Module) -> nn.Parameter:
    """The learning weights nearest to the images: a gradient that reaches them has run through all that learns."""
    return next(p for p in network.parameters() if p.requires_grad and is_kernel(p))


def _reaches(term: Tensor, parameters: list[nn.Parameter]) -> bool:
    """Whether any of the parameters gets a gradient other than zero from the term."""
    if not term.requires_grad:
        return False
    gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
    return any(g is not None and bool(g.count_nonzero()) for g in gradients)


def _parameters(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])
