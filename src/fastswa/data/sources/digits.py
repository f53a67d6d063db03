"""The UCI optical digits: 1,797 images of 8x8 pixels that come with the package, for demos and tests."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np

from fastswa.data.images import Dataset, ImageSet

CLASSES = tuple(str(digit) for digit in range(10))
_LEVELS = 16  # published values count the black pixels of a 4x4 block: 0 to 16


def load_digits(root: Path | None = None) -> Dataset:
    """1,297 training and 500 test digits (50 a class, fixed), (N, 1, 8, 8); `root` is not used.

    Published values 0..16 become 0..255; their normalisation is left to be measured. Origin and licence
    are in data/files/README.md.
    """
    file = resources.files("fastswa.data").joinpath("files", "digits.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        images, labels, test = arrays["images"], arrays["labels"].astype(np.int64), arrays["test"]
    pixels = np.rint(images * (255 / _LEVELS)).astype(np.uint8)[:, None]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[test] = True
    return Dataset(
        train=ImageSet(pixels[~is_test], labels[~is_test], CLASSES, name="digits train"),
        test=ImageSet(pixels[is_test], labels[is_test], CLASSES, name="digits test"),
    )
