"""Image files as uint8 arrays: every common mode comes out right, damaged and outsized files are refused.

Decisions: transparent pixels lie on white (icons, drawings and cut-outs are made for a page); 16-bit grey is
scaled by the range of its type, 0 to 65535 becoming 0 to 255; a rotation noted in EXIF is carried out; grey from
colour is ITU-R 601 luma; of an animation the first frame counts. A size is reached by scaling the shorter side and
cropping the centre, in one Lanczos step with antialiasing: shapes keep their proportions, which convolutions and
flips rely on, and a plain resize would not. Images smaller than the size are enlarged (`plan.Plan` counts them).
"""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from fastswa.errors import RequestError

SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib"})
RULES = 1  # the number of the decisions above; a model file records it, so that a later change cannot pass unseen
MAX_PIXELS = 64_000_000
MAX_BYTES = 1 << 30
_TOO_MANY = f"has more than {MAX_PIXELS // 10**6} million pixels"

_PNG = b"\x89PNG\r\n\x1a\n"
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "DIB")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
_EXIF = frozenset({"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"})
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# catch_warnings changes the whole process: two threads in it at once could leave the wrong filters behind.
_FILTERS = threading.Lock()
_alone = False  # in a worker, whose filters are its own


class Header(NamedTuple):
    """What a file says before its pixels are read; height and width as the picture is to be looked at."""

    height: int
    width: int
    grey: bool


def read_image(path: str, *, channels: int, size: tuple[int, int] | None = None) -> np.ndarray:
    """The image as (C, H, W) uint8: `channels` 1 (grey) or 3 (RGB), scaled and cropped to `size` (H, W) if given."""
    pixels = read_if_fitting(path, channels=channels, size=size)[1]
    assert pixels is not None
    return np.ascontiguousarray(pixels)


def read_picture(picture: Image.Image, *, channels: int, size: tuple[int, int] | None = None) -> np.ndarray:
    """A Pillow image, which is left as it is, as `read_image` gives its file (a large JPEG's rounding apart)."""
    _refuse_channels(channels)
    if picture.mode == "F":  # whose range nobody knows
        raise _refused_type("float32")
    try:
        return np.ascontiguousarray(_pixels(picture.copy(), channels, size))
    except Exception as error:
        raise _refusal(getattr(picture, "filename", "") or "an image", error) from error


def read_array(array: np.ndarray, *, channels: int, size: tuple[int, int]) -> np.ndarray:
    """A uint8 array as (C, H, W): (C, H, W) of that very shape, or else (H, W), (H, W, 1 to 4) or (1 to 4, H, W)."""
    if array.dtype != np.uint8:
        raise _refused_type(array.dtype)
    shape = array.shape
    if shape == (channels, *size):
        return array
    if array.ndim == 3 and shape[-1] not in _MODES:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[-1] not in _MODES or 0 in array.shape:
        raise RequestError(f"an image is (H, W), (H, W, C) or (C, H, W), not an array of shape {shape}.")
    if array.shape == (*size, channels):
        return np.ascontiguousarray(array.transpose(2, 0, 1))
    height, width, depth = array.shape
    picture = Image.frombytes(_MODES[depth], (width, height), np.ascontiguousarray(array).tobytes())
    return read_picture(picture, channels=channels, size=size)


def read_header(path: str) -> Header:
    """Size and colour of an image, from the head of its file."""
    try:
        with _opened(path) as image:
            return _header(image)
    except Exception as error:
        raise _refusal(path, error) from error


def read_if_fitting(
    path: str, *, channels: int, size: tuple[int, int] | None, exact: bool = False
) -> tuple[Header, np.ndarray | None]:
    """The header and the image, (C, H, W) uint8; with `exact` an image of another size is left unread."""
    _refuse_channels(channels)
    try:
        image = _opened(io.BytesIO(_content(path)))
        header = _header(image)
        if exact and header[:2] != size:
            return header, None
        return header, _pixels(image, channels, size)
    except Exception as error:  # a decoder raises almost anything at a damaged file
        raise _refusal(path, error) from error


def _refuse_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise RequestError(f"an image has 1 channel (grey) or 3 (red, green, blue), not {channels}.")


def _refused_type(kind: object) -> RequestError:
    return RequestError(f"images must be uint8 (0 to 255), not {kind}.")


class _TooLargeError(ValueError):
    """An image beyond a limit, and which."""


def _content(path: str) -> bytes:
    """The bytes of the file; for a small image this is twice as fast as leaving the file to Pillow."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _to_the_end(descriptor)
        size = status.st_size
        _refuse_length(size)
        content = os.read(descriptor, size + 1)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


def _to_the_end(descriptor: int) -> bytes:
    """What comes out of a pipe, whose size nobody knows before."""
    content = bytearray()
    while more := os.read(descriptor, 1 << 20):
        content += more
        _refuse_length(len(content))
    return bytes(content)


def _refuse_length(size: int) -> None:
    if size > MAX_BYTES:
        raise _TooLargeError(f"takes more than {MAX_BYTES >> 30} GB")


def _opened(source: str | io.BytesIO) -> Image.Image:
    """The file with its head read and its pixels not."""
    if _alone:
        image = _identified(source)
    else:
        with _filtered():
            image = _identified(source)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise _TooLargeError(_TOO_MANY)
    return image


def _identified(source: str | io.BytesIO) -> Image.Image:
    if not isinstance(source, str):
        start = source.read(8)
        source.seek(0)
        if start == _PNG:
            return PngImagePlugin.PngImageFile(source)  # which Image.open would find in the end
    return Image.open(source, formats=_FORMATS)


@contextmanager
def _filtered() -> Iterator[None]:
    """Pillow's warning about image bombs as an error, its other warnings unsaid."""
    with _FILTERS, warnings.catch_warnings():
        _filter_warnings()
        yield


def _filter_warnings() -> None:
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def own_process() -> None:
    """Settles the warnings once for all, in a process that does nothing but read images."""
    global _alone
    _filter_warnings()
    _alone = True


def _header(image: Image.Image) -> Header:
    width, height = image.size
    if _orientation(image) >= 5:
        width, height = height, width
    return Header(height, width, _is_grey(image))


def _is_grey(image: Image.Image) -> bool:
    """Whether the file's mode is grey; a grey picture stored as RGB counts as coloured."""
    if image.mode in _GREY:
        return True
    if image.mode not in ("P", "PA"):
        return False
    palette = image.getpalette("RGB") or []
    return palette[0::3] == palette[1::3] == palette[2::3]


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 where there is none or it makes no sense."""
    if _EXIF.isdisjoint(image.info):
        return 1
    try:
        with _filtered():
            value = image.getexif().get(_ORIENTATION, 1)
        return value if value in _TURNS else 1
    except Exception:  # damaged EXIF does not spoil the picture
        return 1


def _pixels(image: Image.Image, channels: int, size: tuple[int, int] | None) -> np.ndarray:
    """(C, H, W) uint8 of an opened file."""
    if size is not None and image.format in ("JPEG", "MPO"):
        # The decoder may skip detail beyond twice the size that is wanted; Lanczos does the rest.
        image.draft(None, (2 * max(size), 2 * max(size)))
    image.load()
    turn = _TURNS.get(_orientation(image))  # PNG may note it after the pixels
    picture = _plain(image, channels)
    if turn is not None:
        picture = picture.transpose(turn)
    if size is not None and (picture.height, picture.width) != size:
        picture = _fit(picture, *size)
    width, height = picture.size
    array = np.frombuffer(picture.tobytes(), np.uint8).reshape(height, width, channels)
    return array.transpose(2, 0, 1)


def _plain(image: Image.Image, channels: int) -> Image.Image:
    """The picture in mode L or RGB, opaque, 8 bits."""
    mode = "L" if channels == 1 else "RGB"
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        wide = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        if "transparency" in image.info:  # a level of 16 bits, told from its neighbours before they are scaled down
            wide[wide == image.info["transparency"]] = 65535
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8)).convert(mode)
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        page = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(page, layer).convert("RGB")
    if image.mode not in ("L", "RGB") and mode == "L":
        image = image.convert("RGB")  # the palette's or the inks' colours first
    return image.convert(mode)


def _fit(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Scaled until the shorter side fits, the overhang of the other cut off evenly."""
    scale = min(picture.width / width, picture.height / height)
    across, down = min(width * scale, picture.width), min(height * scale, picture.height)
    left, top = (picture.width - across) / 2, (picture.height - down) / 2
    box = (left, top, picture.width - left, picture.height - top)
    return picture.resize((width, height), Image.Resampling.LANCZOS, box=box)


def _refusal(path: str, error: Exception) -> RequestError:
    """One sentence on why the file cannot be used."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, _TooLargeError):
        return RequestError(f"{path} {error} and is refused; make it smaller.")
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return RequestError(f"{path} {_TOO_MANY} and is refused; make it smaller.")
    if isinstance(error, FileNotFoundError):
        return RequestError(f"{path}: there is no such file.")
    if isinstance(error, IsADirectoryError):
        return RequestError(f"{path} is a folder, not an image.")
    if isinstance(error, UnidentifiedImageError):
        if os.path.isfile(path) and not os.path.getsize(path):
            return RequestError(f"{path} is an empty file.")
        return RequestError(f"{path} is not a JPEG, PNG, WebP or BMP image, or its beginning is damaged.")
    if isinstance(error, OSError) and error.errno is not None:
        return RequestError(f"{path} cannot be read: {error.strerror}.")
    why = "truncated" if "truncated" in str(error).lower() else "truncated or damaged"
    return RequestError(f"{path} cannot be read: the image is {why}.")
