"""Images small enough to stand in the page itself, as data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

SIDE, _LOSSLESS = 96, 64
_RIGHT, _WRONG = (9, 105, 218), (207, 34, 46)


def thumbnail(pixels: np.ndarray) -> str:
    """(C, H, W) uint8 as a data URI: PNG where small, otherwise reduced to 96 pixels and JPEG."""
    shown = pixels[:3] if len(pixels) >= 3 else pixels[:1]
    picture = Image.fromarray(np.ascontiguousarray(shown[0] if len(shown) == 1 else shown.transpose(1, 2, 0)))
    if max(picture.size) <= _LOSSLESS:
        return _uri(picture, "PNG", optimize=True)
    picture.thumbnail((SIDE, SIDE))
    return _uri(picture, "JPEG", quality=85)


def matrix_picture(matrix: np.ndarray) -> str:
    """A confusion matrix of many classes, one pixel a cell and each row by its own sum; clear where nothing is.

    What is right is blue, what is wrong red; the square root makes few mistakes visible.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    strength = np.rint(255 * np.sqrt(shares)).astype(np.uint8)
    cells = np.empty((*matrix.shape, 4), np.uint8)
    cells[..., :3] = _WRONG
    cells[np.diag_indices(len(matrix))] = (*_RIGHT, 0)
    cells[..., 3] = strength
    # Pixels that are clear all alike: the file is half the size.
    cells[strength == 0] = 0
    return _uri(Image.fromarray(cells), "PNG", optimize=True)


def _uri(picture: Image.Image, form: str, **options: object) -> str:
    stream = io.BytesIO()
    picture.save(stream, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
