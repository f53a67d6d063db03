"""IDX files, as MNIST is published: a magic number, the length of each axis, then the bytes; gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fastswa.errors import RequestError

_BYTES = 8  # the code of unsigned bytes, the only kind that images and labels come in


def idx_shape(path: Path) -> tuple[int, ...]:
    """The lengths of an IDX file's axes, from its head alone."""
    with _opened(path) as stream:
        return _head(path, stream)


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array that an IDX file holds; RequestError where it is damaged."""
    try:
        with _opened(path) as stream:
            shape = _head(path, stream)
            content = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError(f"{path} is damaged or cannot be read ({error}).") from error
    size = int(np.prod(shape, dtype=np.int64))
    if len(content) != size:
        raise RequestError(f"{path} is truncated or damaged: it holds {len(content):,} bytes instead of {size:,}.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _head(path: Path, stream: BinaryIO) -> tuple[int, ...]:
    try:
        zero, kind, axes = stream.read(2), stream.read(1), stream.read(1)
        if zero != b"\0\0" or kind != bytes([_BYTES]) or axes not in (b"\1", b"\3"):
            raise RequestError(f"{path} is not an IDX file of bytes with one axis (labels) or three (images).")
        lengths = stream.read(4 * axes[0])
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError(f"{path} is damaged or cannot be read ({error}).") from error
    if len(lengths) != 4 * axes[0]:
        raise RequestError(f"{path} is truncated: it ends within its head.")
    return tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
