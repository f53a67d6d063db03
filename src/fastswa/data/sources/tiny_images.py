"""The Tiny Images binary: records of 3,072 bytes, three planes of 32x32, each plane column by column.

The whole set is one file of 79,302,017 records, 227 GiB. Its authors withdrew it in 2020; this reads the file where
somebody still holds it, and any part of it that ends with a whole record. Nothing is read before it is asked for.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from fastswa.errors import RequestError

SUFFIX = ".bin"
_IMAGE = (3, 32, 32)
_RECORD = 3 * 32 * 32


def map_tiny_images(path: Path) -> np.ndarray:
    """The images as a memory map, (N, 3, 32, 32) uint8."""
    try:
        size = path.stat().st_size
        if size == 0 or size % _RECORD:
            raise RequestError(
                f"{path} is not the Tiny Images binary or is truncated: {size:,} bytes are not a whole number of "
                f"{_RECORD:,}-byte images."
            )
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be mapped into memory: {error}.") from error
    if hasattr(mmap, "MADV_RANDOM"):
        # Images are picked from all over the file, and reading ahead would fetch forty for each of them.
        mapped.madvise(mmap.MADV_RANDOM)
    records = np.frombuffer(mapped, np.uint8).reshape(-1, *_IMAGE)
    return records.transpose(0, 1, 3, 2)
