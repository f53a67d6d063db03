"""log and cos to the last bit or two, as torch computes them; Triton's own are approximate on a GPU."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def log(x, ACCURATE: tl.constexpr):
    """`ACCURATE` is off where Triton interprets on a CPU: NumPy's is accurate, and the device library is not there."""
    if ACCURATE:
        return libdevice.log(x)
    else:
        return tl.log(x)


@triton.jit
def cos(x, ACCURATE: tl.constexpr):
    """As `log`."""
    if ACCURATE:
        return libdevice.cos(x)
    else:
        return tl.cos(x)
