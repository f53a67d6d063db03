"""What Triton 3.6's interpreter needs: numpy 2.4 to be minded, a library of the GPU's stood in for, and less time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

from fastswa.kernels import draws


def mend(patch: pytest.MonkeyPatch) -> None:
    """Mend the interpreter until `patch` is undone."""
    whole = interpreter._patch_lang_tensor

    def patch_tensor(tensor: type, scope: Any) -> None:
        whole(tensor, scope)
        # A number is an array of one there, which numpy no longer takes for an index.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    seen: set[int] = set()

    def call(function: interpreter.InterpretedFunction, *given: Any, **named: Any) -> Any:
        """A function that a kernel calls; its module's view of the language is patched once, not at every call."""
        if id(function.fn.__globals__) not in seen:
            interpreter._patch_lang(function.fn)
            seen.add(id(function.fn.__globals__))
        return function.rewrite()(*given, **named)

    patch.setattr(interpreter, "_patch_lang_tensor", patch_tensor)
    patch.setattr(interpreter.InterpretedFunction, "__call__", call)
    patch.setattr(draws, "libdevice", SimpleNamespace(log=lambda x: tl.log(x), cos=lambda x: tl.cos(x)))
