"""Arrays that people hold, as the training rooms take them: labels with gaps, and images of numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

# As a share of white. Resized images overshoot it by so much, and floats that reach no further than this are all but
# black: hardly a grey level is left of them.
_LITTLE = 0.01


def as_labels(y: Any) -> Any:
    """y as an array; a plain list as one of objects.

    In an array of anything else numpy would write None, NaN and numbers among texts as text, and None among numbers
    as NaN.
    """
    if isinstance(y, np.ma.MaskedArray):
        return y.data
    if hasattr(y, "__array__"):
        return np.asarray(y)
    if hasattr(y, "to_numpy"):
        return y.to_numpy()
    return y if hasattr(y, "dtype") else np.array(y, dtype=object)


def is_unlabelled(labels: np.ndarray, value: Any) -> np.ndarray:
    """Where (N,) labels are missing (None, NaN, NA, NaT, empty text) or equal to `value` (None: only where missing).

    Text is compared with the text of `value`: a number among texts may have become text itself, as in a file that was
    read, or in numpy's array of ["cat", -1].
    """
    text = str(value)
    if labels.dtype.kind == "O":
        given = value is not None
        return np.array(
            [_missing(one) or (given and _equal(one, text if isinstance(one, str) else value)) for one in labels],
            dtype=bool,
        )
    if labels.dtype.kind in "US":
        return labels == "" if value is None else (labels == "") | (labels == text)
    found = np.zeros(len(labels), dtype=bool) if value is None else np.asarray(labels == value)
    return found | np.isnan(labels) if labels.dtype.kind in "fmM" else found


def _missing(label: Any) -> bool:
    """Whether a label is None, empty text, or not equal to itself, as NaN is not."""
    return label is None or (isinstance(label, str) and not label) or not _equal(label, label)


def _equal(one: Any, other: Any) -> bool:
    """Whether two labels are equal; False for pandas' NA, which never says whether it is."""
    try:
        return bool(one == other)
    except TypeError:
        return False
    except ValueError:  # Arrays are no labels, and are refused elsewhere.
        return one is other


def of_one_type(labels: np.ndarray, *, text: bool) -> np.ndarray:
    """(N,) objects as truth values or numbers, if they are that; else as what numpy makes of them, if `text`."""
    if labels.dtype.kind != "O":
        return labels
    try:
        converted = np.array(labels.tolist())
    except ValueError:
        return labels
    return converted if converted.shape == labels.shape and (text or converted.dtype.kind in "biuf") else labels


def white_of(images: np.ndarray) -> float:
    """The value that stands for white in images: 1 for truth values and floats that go little further, else 255."""
    if images.dtype.kind == "f":
        return 1.0 if float(images.max(initial=0)) <= 1 + _LITTLE else 255.0
    return 1.0 if images.dtype.kind == "b" else 255.0


def to_pixels(images: np.ndarray, white: float) -> np.ndarray:
    """Images (N, H, W) or (N, H, W, C) with values from 0 to `white` as (N, C, H, W) uint8.

    Floats that are all but black are a warning: a single dark image is possible, a wrong scale is more likely.
    """
    if images.dtype.kind not in "biuf":
        raise ValueError(f"images must be numbers, not {images.dtype}.")
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if low < -_LITTLE * white or high > (1 + _LITTLE) * white:
        raise ValueError(
            f"images must lie between 0 and {white:g}, and these go from {low:g} to {high:g}; scale them "
            "(feature vectors, of shape (N, features), may have any range)."
        )
    if images.dtype.kind == "f" and 0 < high <= _LITTLE * white:
        # The caller of fit or predict.
        warnings.warn(
            f"the images reach no further than {high:g} where {white:g} is white, so that they are all but black; "
            "scale them if they should not be.",
            stacklevel=4,
        )
    if images.dtype != np.uint8:
        images = np.rint(np.clip(images.astype(np.float32) * (255.0 / white), 0, 255)).astype(np.uint8)
    if images.ndim == 3:
        images = images[..., None]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
