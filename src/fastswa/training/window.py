"""Images that a device cannot hold all: read by its steps where they lie or, of extra ones, each epoch's draw.

The draw of an epoch is read while the epoch before it trains.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fastswa.data.batches import BatchPlan
from fastswa.data.extra import ExtraImages
from fastswa.errors import RequestError
from fastswa.training.device import free_memory

_BLOCK = 1 << 26  # bytes that pass through host memory at a time
# A source that so many epochs would not get through is not worth reading to its end before the first of them.
_EPOCHS_HELD = 16


class Window:
    """The rows of the device's images that an epoch's extra images lie in; their address never changes.

    `draw` gives the numbers of an epoch's images, one a row. A thread reads the next epoch's from their source into
    host memory (pinned, for a GPU), so that an epoch's start costs one copy: 100,000 CIFAR images are 0.3 GB.
    """

    def __init__(self, extra: ExtraImages, rows: Tensor, draw: Callable[[int], np.ndarray]) -> None:
        self._extra, self._rows, self._draw = extra, rows, draw
        cuda = rows.device.type == "cuda"
        self._staging = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=cuda)
        self._copied = torch.cuda.Event() if cuda else None
        self._reader = ThreadPoolExecutor(1, "extra-images")
        self._coming: tuple[int, Future[None]] | None = None
        self._held = -1

    def load(self, epoch: int, *, last: bool = False) -> None:
        """Bring an epoch's images to the device and, unless it is the last one, begin to read those of the next."""
        if epoch == self._held:
            return
        if self._coming is None or self._coming[0] != epoch:
            self._ask(epoch)
        assert self._coming is not None
        self._coming[1].result()
        self._rows.copy_(self._staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._held = epoch
        if not last:
            self._ask(epoch + 1)

    def _ask(self, epoch: int) -> None:
        self._coming = epoch, self._reader.submit(self._read, epoch)

    def _read(self, epoch: int) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # the last copy may still be reading from where this one writes
        self._extra.read(self._draw(epoch), self._staging.numpy())

    def images(self, numbers: np.ndarray) -> Tensor:
        """Any extra images, (n, H, W, C) on the device, straight from their source."""
        images = np.empty((len(numbers), *self._rows.shape[1:]), np.uint8)
        self._extra.read(numbers, images)
        return torch.from_numpy(images).to(self._rows.device)


def bring_over(
    train: np.ndarray,
    extra: ExtraImages | None,
    plan: BatchPlan,
    seed: int,
    device: torch.device,
    say: Callable[[str], None] | None = None,
) -> tuple[Tensor, BatchPlan, Window | None]:
    """The training images (N, C, H, W) and the extra ones as (N, H, W, C) on the device, and the plan that says where.

    All of them are held there where they take no more than half of the memory that is free and are no more than some
    epochs' draws; otherwise the training images and an epoch's extra ones. A GPU without room for these reads all of
    them in the machine's memory.
    """
    if extra is None or plan.extra_per_epoch == 0:
        return on_device(train, device, say, "training images", "each step reads its own"), plan, None
    size, room = train[:1].nbytes, free_memory(device) // 2
    windowed = (len(train) + len(extra)) * size > room or len(extra) > _EPOCHS_HELD * plan.extra_per_epoch
    beside = windowed and (len(train) + plan.extra_per_epoch) * size > room
    if beside and _pinned_size((len(train) + len(extra)) * size) > _pinnable(device):
        fitting = max(room // size - len(train), 0)
        fewer = {"extra": "data.extra_images", "target": "split.unlabelled"}[extra.kind]
        # A CPU whose memory the training images fill has room for no draw, however small.
        less = f"data.extra_per_epoch or {fewer}" if fitting or _pinnable(device) else "data.size"
        raise RequestError(
            f"data.{extra.kind}: an epoch's {plan.extra_per_epoch:,} {extra.kind} images take "
            f"{shown_bytes(plan.extra_per_epoch * size)}, and {device} has room for {fitting:,}; set {less} to less."
        )
    windowed = windowed and not beside
    added = plan.extra_per_epoch if windowed else len(extra)
    if beside:
        held, pixels = pinned_images(len(train) + added, train, device)
    else:
        held = pixels = empty_images(len(train) + added, train, device)
    fill(held, train)
    if say is not None and (windowed or beside or extra.kind == "extra"):
        drawn = f", {plan.extra_per_epoch:,} of them an epoch" if plan.extra_per_epoch < len(extra) else ""
        where = f"each epoch's are brought to {device}" if windowed else f"all are held on {device}"
        where = f"{device} reads them, as the training images, in the machine's memory" if beside else where
        say(f"{len(extra):,} {extra.kind} images of {extra.name}{drawn}; {where} ({shown_bytes(added * size)}).")
    rows = held[len(train) :]
    if windowed:
        plan = replace(plan, windowed=True)
        return pixels, plan, Window(extra, rows, partial(plan.drawn, seed))
    for start in range(0, len(extra), max(1, _BLOCK // size)):
        numbers = np.arange(start, min(start + max(1, _BLOCK // size), len(extra)))
        block = np.empty((len(numbers), *rows.shape[1:]), np.uint8)
        extra.read(numbers, block)
        rows[start : start + len(block)].copy_(torch.from_numpy(block))
    return pixels, plan, None


def on_device(
    pixels: np.ndarray,
    device: torch.device,
    say: Callable[[str], None] | None = None,
    what: str = "images",
    read: str = "they are read",
) -> Tensor:
    """(N, C, H, W) on the host as (N, H, W, C) on the device.

    What takes more than half of its free memory stays on the host: for a GPU in pinned memory, on a CPU where it is,
    such as the memory map of prepared files. `say` is told so, of `what`, and how they are read there.
    """
    if not _fits(pixels.nbytes, device):
        beside = _pinnable(device) > 0
        if say is not None and (beside or _in_a_file(pixels)):
            where = "the machine's memory" if beside else "their file"
            say(
                f"the {len(pixels):,} {what} ({shown_bytes(pixels.nbytes)}) take more than half of what {device} has "
                f"free; they stay in {where}, where {read}."
            )
        if beside:
            held, seen = pinned_images(len(pixels), pixels, device)
            fill(held, pixels)
            return seen
        if pixels.flags.writeable:
            return torch.from_numpy(pixels).permute(0, 2, 3, 1)
    return fill(empty_images(len(pixels), pixels, device), pixels)


def _fits(size: int, device: torch.device) -> bool:
    return size <= free_memory(device) // 2


def _in_a_file(pixels: np.ndarray) -> bool:
    """Whether on_device leaves them in a file, where it leaves them on the host."""
    return isinstance(pixels, np.memmap) and pixels.flags.writeable


def _pinnable(device: torch.device) -> int:
    """Bytes of the machine's memory that a GPU's images may take; a CPU has no memory beside its own, so none."""
    return free_memory(torch.device("cpu")) * 4 // 5 if device.type != "cpu" else 0


def _pinned_size(size: int) -> int:
    """What so many bytes take when they are pinned: torch does it by powers of two."""
    return 1 << max(size - 1, 0).bit_length()


class _Pinned:
    """Pinned memory in the form in which libraries hand over a GPU's arrays: kernels can read it by its address."""

    def __init__(self, images: Tensor) -> None:
        self._images = images  # lives as long as what is made of this
        self.__cuda_array_interface__ = {
            "shape": tuple(images.shape),
            "typestr": images.numpy().dtype.str,
            "data": (images.data_ptr(), False),
            "version": 3,
        }


def pinned_images(count: int, like: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images in the machine's memory, (count, H, W, C), and the very same as a tensor of the device.

    They keep one address and their numbers, so that steps, captured or not, gather from them as from the device's own;
    what a step reads crosses the bus, while the host does nothing.
    """
    size = count * like[:1].nbytes
    if _pinned_size(size) > _pinnable(device):
        raise _no_room(count, size, device)
    if device.type == "cpu":
        held = empty_images(count, like, device)
        return held, held
    try:
        with torch.cuda.device(device):
            held = empty_images(count, like, torch.device("cpu"), pinned=True)
            seen = torch.as_tensor(_Pinned(held), device=device)
    except RuntimeError as error:  # the system may let nobody pin so much
        raise _no_room(count, size, device) from error
    if seen.data_ptr() != held.data_ptr():  # a copy, of what nobody has written yet
        raise _no_room(count, size, device)
    return held, seen


def _no_room(count: int, size: int, device: torch.device) -> RequestError:
    return RequestError(
        f"{count:,} images take {shown_bytes(size)}: {device} has no room for them, and the machine's memory none to "
        "pin them in; choose a smaller data.size, or train on fewer images."
    )


def empty_images(count: int, like: np.ndarray, device: torch.device, pinned: bool = False) -> Tensor:
    """(count, H, W, C) on the device, for images as those of `like`, (N, C, H, W)."""
    _, channels, height, width = like.shape
    kind = torch.from_numpy(np.empty(0, like.dtype)).dtype
    return torch.empty((count, height, width, channels), dtype=kind, device=device, pin_memory=pinned)


def fill(images: Tensor, pixels: np.ndarray) -> Tensor:
    """The first rows of `images` (N, H, W, C) from `pixels` (n, C, H, W), which may be a memory map, block by block."""
    step = max(1, _BLOCK // max(pixels[:1].nbytes, 1))
    for start in range(0, len(pixels), step):
        block = np.ascontiguousarray(pixels[start : start + step].transpose(0, 2, 3, 1))
        # A memory map may come through uncopied, and torch takes no read-only array.
        block = block if block.flags.writeable else block.copy()
        images[start : start + len(block)].copy_(torch.from_numpy(block))
    return images


def shown_bytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
