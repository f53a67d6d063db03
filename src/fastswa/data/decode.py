"""Image files as uint8 arrays: every common mode comes out right, damaged and outsized files are refused.

Decisions: transparent pixels lie on white (icons, drawings and cut-outs are made for a page); 16-bit grey is
scaled by the range of its type, 0 to 65535 becoming 0 to 255; a rotation noted in EXIF is carried out; grey from
colour is ITU-R 601 luma; of an animation the first frame counts. A size is reached by scaling the shorter side and
cropping the centre, in one Lanczos step with antialiasing: shapes keep their proportions, which convolutions and
flips rely on, and a plain resize would not. Images smaller than the size are enlarged (`cache.Plan` counts them).
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from fastswa.errors import RequestError, RunError

SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib"})
MAX_PIXELS = 64_000_000
MAX_BYTES = 1 << 30
_TOO_MANY = f"has more than {MAX_PIXELS // 10**6} million pixels"

# What a file turned out to be, in Outcome.facts and Outcome.written; 0 in both: not known yet.
GREY, COLOUR, UNREADABLE = 1, 3, -1
WRITTEN, BAD = 1, 2

_PNG = b"\x89PNG\r\n\x1a\n"
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "DIB")
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
    if channels not in (1, 3):
        raise RequestError(f"an image has 1 channel (grey) or 3 (red, green, blue), not {channels}.")
    try:
        image = _opened(io.BytesIO(_content(path)))
        header = _header(image)
        if exact and header[:2] != size:
            return header, None
        return header, _pixels(image, channels, size)
    except Exception as error:  # a decoder raises almost anything at a damaged file
        raise _refusal(path, error) from error


class _TooLargeError(ValueError):
    """An image beyond a limit, and which."""


def _content(path: str) -> bytes:
    """The bytes of the file; for a small image this is twice as fast as leaving the file to Pillow."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_BYTES:
            raise _TooLargeError(f"takes more than {MAX_BYTES >> 30} GB")
        content = os.read(descriptor, size + 1)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


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
        return RequestError(f"{path} is not a JPEG, PNG, WebP or BMP image, or its beginning is damaged.")
    if isinstance(error, OSError) and error.errno is not None:
        return RequestError(f"{path} cannot be read: {error.strerror}.")
    why = "truncated" if "truncated" in str(error).lower() else "truncated or damaged"
    return RequestError(f"{path} cannot be read: the image is {why}.")


class Task(NamedTuple):
    """Files to look at and, where `shape` (C, H, W) is given, to decode into rows of a `target` of `total` rows."""

    rows: list[int]
    paths: list[str]
    target: str | None = None
    total: int = 0
    shape: tuple[int, int, int] | None = None
    exact: bool = False


class Outcome(NamedTuple):
    """What became of a task: (n, 3) int32 of height, width and kind, (n,) whether written, reasons by row."""

    rows: list[int]
    facts: np.ndarray
    written: np.ndarray
    refused: dict[int, str]


class Workers:
    """Processes that do tasks, started when first needed or by `start`, ended with the `with` block.

    Processes, because most of the time of a small file goes into Python, which threads would take turns at.
    Plain subprocesses, because multiprocessing would run the caller's script anew in each.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        """Has `count` processes running."""
        program = "import sys; sys.path[:] = sys.argv[1:]; from fastswa.data.decode import _serve; _serve()"
        command = [sys.executable, "-c", program, *sys.path]
        while len(self._processes) < count:
            self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what a dead process never took cannot be flushed
                    assert pipe is not None
                    pipe.close()
        for process in self._processes:
            process.wait()

    def run(self, tasks: Iterable[Task], count: int) -> Generator[Outcome, None, None]:
        """The outcomes of the tasks, as they are done, by `count` processes (0: by this one)."""
        if count < 1:
            yield from map(decode_task, tasks)
            return
        self.start(count)
        queue, taking, stopping = iter(tasks), threading.Lock(), threading.Event()
        results: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()

        def take() -> Task | None:
            with taking:
                return None if stopping.is_set() else next(queue, None)

        def serve(process: subprocess.Popen[bytes]) -> None:
            try:
                while (task := take()) is not None:
                    results.put(_ask(process, task))
            except BaseException as error:
                results.put(error)
            finally:
                results.put(None)

        threads = [threading.Thread(target=serve, args=(p,), daemon=True) for p in self._processes[:count]]
        for thread in threads:
            thread.start()
        try:
            running = count
            while running:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    running -= 1
                else:
                    yield result
        finally:
            stopping.set()
            for thread in threads:
                thread.join()


def decode_task(task: Task) -> Outcome:
    """Does one task in this process."""
    facts, written, refused = [], [], {}
    block = None if task.shape is None else np.empty((len(task.rows), *task.shape), np.uint8)
    for place, path in enumerate(task.paths):
        header, pixels, reason = _attempt(path, task)
        facts.append((0, 0, UNREADABLE) if header is None else (header[0], header[1], GREY if header[2] else COLOUR))
        if reason is not None:
            refused[task.rows[place]] = reason
            written.append(BAD)
        elif pixels is None or block is None:
            written.append(0)
        else:
            block[place] = pixels
            written.append(WRITTEN)
    outcome = Outcome(task.rows, np.array(facts, np.int32), np.array(written, np.uint8), refused)
    if block is not None and task.target is not None:
        _write(block, outcome, task.target, task.total)
    return outcome


def _write(block: np.ndarray, outcome: Outcome, target: str, total: int) -> None:
    """Puts decoded images, (n, C, H, W), into their rows of an .npy file, neighbours together."""
    rows, good = np.array(outcome.rows), np.flatnonzero(outcome.written == WRITTEN)
    breaks = np.flatnonzero((np.diff(good) != 1) | (np.diff(rows[good]) != 1)) + 1
    with open(target, "r+b", buffering=0) as file:
        for run in np.split(good, breaks):
            if len(run):
                pixels = block[run[0] : run[-1] + 1]
                # The rows end where the file ends, whatever the length of its head.
                file.seek((int(rows[run[0]]) - total) * block[0].nbytes, os.SEEK_END)
                if file.write(pixels.data) != pixels.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)


def _attempt(path: str, task: Task) -> tuple[Header | None, np.ndarray | None, str | None]:
    """Header, pixels and the reason for which one of them is missing."""
    try:
        if task.shape is None:
            return read_header(path), None, None
        channels, height, width = task.shape
        return *read_if_fitting(path, channels=channels, size=(height, width), exact=task.exact), None
    except RequestError as error:
        try:
            return read_header(path), None, str(error)
        except RequestError:
            return None, None, str(error)


def _ask(process: subprocess.Popen[bytes], task: Task) -> Outcome:
    """Has a process do a task."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(task, process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise RunError(
            f"a process that reads images died somewhere between {task.paths[0]} and {task.paths[-1]}; "
            "run the command again to go on."
        ) from error
    if isinstance(answer, BaseException):
        raise answer
    assert isinstance(answer, Outcome)
    return answer


def _serve() -> None:
    """The life of a worker: tasks from stdin, outcomes to stdout, until stdin ends."""
    global _alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    _filter_warnings()
    _alone = True
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Outcome | Exception = decode_task(task)
        except Exception as error:
            answer = error
        try:
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:  # the parent is gone
            os._exit(1)
