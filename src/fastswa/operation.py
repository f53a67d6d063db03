"""Functions that torch.compile takes for one operation each, whatever they do inside, and compiling what calls them.

They are as torch.library.custom_op's, but its wrapper imports torch's compiler at the first call, which takes seconds
even where nothing is compiled: a captured step calls these, and wants to start at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Found = TypeVar("Found")

_LIBRARY = torch.library.Library("fastswa", "FRAGMENT")


class Operation(Generic[Given, Found]):
    """A function as the operation fastswa::NAME; `register_fake` says what it gives without computing it.

    Unless `differentiable`, for which `register_autograd` gives the gradient, it refuses to be differentiated.
    """

    def __init__(
        self, function: Callable[Given, Found], name: str, mutates: Sequence[str], differentiable: bool
    ) -> None:
        schema = torch.library.infer_schema(function, mutates_args=mutates)
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        self._name = f"fastswa::{name}"
        self._call: Callable[..., Found] = getattr(torch.ops.fastswa, name).default
        self.__doc__ = function.__doc__
        if not (differentiable or mutates):
            self.register_autograd(self._refuse, setup_context=lambda ctx, inputs, output: None)

    def _refuse(self, ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(f"{self._name} has no derivative; models in evaluation mode can be differentiated twice.")

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        return self._call(*args, **kwargs)

    def register_fake(self, function: Callable[..., Found]) -> Callable[..., Found]:
        """Take `function` for shapes, types and strides of what the operation gives."""
        torch.library.register_fake(self._name, function, lib=_LIBRARY)
        return function

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """Take `backward` for its gradient, given what `setup_context` saved."""
        torch.library.register_autograd(self._name, backward, setup_context=setup_context, lib=_LIBRARY)


def operation(
    name: str, *, mutates: Sequence[str] = (), differentiable: bool = False
) -> Callable[[Callable[Given, Found]], Operation[Given, Found]]:
    """Make a function an operation; `mutates` names those of its tensors that it changes."""
    return lambda function: Operation(function, name, mutates, differentiable)


def compiled(function: Callable[Given, Found], **options: Any) -> Callable[Given, Found]:
    """torch.compile for the sizes at hand, always.

    By default a second run in the same process, with other batches, would be compiled for any size, and be slower.
    """
    _name_briefly()
    return torch.compile(function, dynamic=False, **options)


def _name_briefly() -> None:
    """Have the compiler name an operation that it meets for the first time, and not all that led to its inputs.

    torch 2.11 spells that out for a line of its log, whether or not anybody reads it, and each thing as often as it is
    used: for the sums of a residual network twice as much with every block, which took minutes for Shake-Shake.
    """
    from torch._inductor.exc import OperatorIssue

    OperatorIssue.operator_str = staticmethod(_brief)  # type: ignore[method-assign]


def _brief(target: Any, args: Any, kwargs: Any) -> str:
    return f"  target: {target}"
