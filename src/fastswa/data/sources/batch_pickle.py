"""CIFAR's Python batches read without running anything that they ask for.

A pickle is a program. This reader knows only the four names that an array's pickle uses, and stands in
for each with code of its own: neither NumPy's reconstruction nor any other import is reachable from the
file, so that a hostile one can at worst be refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

_DTYPES = {"u1": np.uint8, "i4": np.int32, "i8": np.int64}


class RefusedPickle(Exception):
    """The file is not a plain batch of arrays; the message says why, as the rest of a sentence."""


def _text(value: object) -> str:
    """A str from what Python 2 wrote as bytes and Python 3 as str."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _Dtype:
    """Stands in for numpy.dtype while the file is read: one of three integer types, little-endian."""

    __slots__ = ("type",)

    def __init__(self, code: str) -> None:
        if code not in _DTYPES:
            raise RefusedPickle(f"holds an array of type {code!r}, not of bytes or integers")
        self.type = _DTYPES[code]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if _text(state[1]) not in ("|", "<", "="):
            raise RefusedPickle("holds an array in another byte order")


class _Array:
    """Stands in for numpy.ndarray while the file is read; `value` is the real array once it is filled."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise RefusedPickle("holds an array whose parts do not fit together")
        sizes = tuple(int(n) for n in shape)
        self.value = np.frombuffer(data, dtype.type).reshape(sizes, order="F" if fortran else "C")


class _StandIn:
    """A callable without attributes: a pickle can call it, but cannot change it."""

    __slots__ = ()


class _Reconstruct(_StandIn):
    __slots__ = ()

    def __call__(self, *ignored: object) -> _Array:
        return _Array()


class _MakeDtype(_StandIn):
    __slots__ = ()

    def __call__(self, code: object, *ignored: object) -> _Dtype:
        return _Dtype(_text(code))


class _Encode(_StandIn):
    __slots__ = ()

    def __call__(self, text: str, encoding: object = "latin1") -> bytes:
        if _text(encoding) != "latin1":
            raise RefusedPickle(f"asks for the text encoding {_text(encoding)!r}")
        return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _StandIn(),
    ("numpy", "dtype"): _MakeDtype(),
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise RefusedPickle(f"asks Python to use {f'{module}.{name}'!r}, which no CIFAR file does")
        return _ALLOWED[module, name]


def read_batch(path: Path) -> dict[str, object]:
    """The dictionary that the file holds, keys as text, arrays as NumPy arrays; RefusedPickle otherwise.

    Strings written by Python 2 come back as bytes.
    """
    with path.open("rb") as stream:
        try:
            batch = _Unpickler(stream, encoding="bytes").load()
        except RefusedPickle:
            raise
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise RefusedPickle("is truncated or is not a Python batch of CIFAR") from error
    if not isinstance(batch, dict):
        raise RefusedPickle("is not a Python batch of CIFAR")
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in batch.items()}
