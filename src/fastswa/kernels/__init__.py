"""Triton kernels for what torch.compile does not fuse well; each has a plain torch counterpart that it must match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import RLock, Thread

import torch
from torch import Tensor

_TRITON = find_spec("triton") is not None
_NARROW = (torch.bfloat16, torch.float16, torch.float32)


def available() -> bool:
    """Whether there is Triton, which kernels are written for and torch.compile needs on a GPU."""
    return _TRITON


# What is read ahead of the first step, where something is.
_ahead: list[Thread] = []


def foresee(device: torch.device) -> None:
    """Begin to read what the first step on a GPU will need, while images are read: Triton's and cuDNN's libraries."""
    if _TRITON and device.type == "cuda":
        # Waited for where a command ends before its first step: torch does not take a thread's sudden death well.
        _ahead.append(Thread(target=_read_libraries, args=(device,), name="libraries"))
        _ahead[-1].start()


def _read_libraries(device: torch.device) -> None:
    # Whatever goes wrong here does so again, and is raised, in the first step.
    with suppress(Exception):
        from triton.runtime.cache import triton_key

        triton_key()  # a hash of all of Triton, kept: the name of every compiled kernel contains it
    with suppress(Exception):
        image = torch.zeros(1, 16, 8, 8, device=device, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        torch.nn.functional.conv2d(image, image, padding=1)


def prepare(work: Callable[[], object], device: torch.device) -> None:
    """Compile at once the kernels that `work` launches; it is done meanwhile, but for these (kernels.launch)."""
    while _ahead:  # before anything is captured: nothing else may be done to the device then
        _ahead.pop().join()
    if _TRITON and device.type == "cuda":
        from fastswa.kernels.launch import rehearse

        rehearse(work, device)


# Held by a rehearsal, during which no kernel is launched, and by whoever needs his to be.
rehearsal = RLock()


@contextmanager
def launching() -> Iterator[None]:
    """Kernels inside are launched, whatever other threads rehearse; the thread that does so itself is not held up."""
    with rehearsal:
        yield


def gatherable(tensors: Sequence[Tensor]) -> bool:
    """Whether kernels.weights takes these weights: on a GPU, in 32 bits, channels last."""
    return _TRITON and all(
        tensor.is_cuda and tensor.dtype == torch.float32 and tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in tensors
    )


def launchable(words: Tensor) -> bool:
    """Whether kernels.draws draws with these words: on a GPU, and not where compiled code draws as well."""
    return words.is_cuda and _TRITON and not torch.compiler.is_compiling()


def drawable(x: Tensor, words: Tensor) -> bool:
    """Whether kernels.draws drops out x: on a GPU, at most 32 bits, dense in memory."""
    return (
        x.is_cuda
        and _TRITON
        and x.dtype in _NARROW
        and x.numel() < 2**31
        and (x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)))
        and words.is_cuda
    )


def viewable(pixels: Tensor, scale: Tensor) -> bool:
    """Whether kernels.draws makes views of these images: on a GPU, for 32 bits."""
    return pixels.is_cuda and _TRITON and scale.dtype == torch.float32 and pixels.is_contiguous()


def recolourable(pixels: Tensor, scale: Tensor) -> bool:
    """Whether kernels.strong makes strong views of these images: as `viewable`, and an image fits into one program."""
    _, height, width, channels = pixels.shape
    return viewable(pixels, scale) and channels in (1, 3) and min(height, width) > 1 and height * width <= 128 * 128


def comparable(first: Tensor, second: Tensor, target: Tensor) -> bool:
    """Whether kernels.losses compares these logits with this target: on a GPU, at most 32 bits, rows of their own.

    The target must want no gradient, and the classes must fit into one program.
    """
    return (
        first.is_cuda
        and _TRITON
        and all(x.dtype in _NARROW and x.stride(1) == 1 for x in (first, second))
        and target.dtype == torch.float32
        and target.is_contiguous()
        and not target.requires_grad
        and first.shape[1] <= 1024
    )


def pickable(x: Tensor) -> bool:
    """Whether kernels.pick picks x's pixels: on a GPU, at most 32 bits, channels last, rows and columns in pairs."""
    return (
        x.is_cuda
        and _TRITON
        and x.dtype in _NARROW
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[2] % 2 == x.shape[3] % 2 == 0
        and x.numel() < 2**31
    )


def movable(parameters: Sequence[Tensor]) -> bool:
    """Whether kernels.update takes these parameters: on one GPU, in 32 bits."""
    return _TRITON and all(p.is_cuda and p.dtype == torch.float32 for p in parameters)


def averageable(parameters: Sequence[Tensor], means: Sequence[Tensor]) -> bool:
    """Whether kernels.average takes parameters into these means: on one GPU, in 32 bits, dense and laid out alike."""
    return (
        _TRITON
        and len(parameters) > 0
        and all(
            p.is_cuda
            and p.device == mean.device == parameters[0].device
            and p.dtype == mean.dtype == torch.float32
            and (p.is_contiguous() or (p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last)))
            and _steps(p) == _steps(mean)
            for p, mean in zip(parameters, means, strict=True)
        )
    )


def _steps(tensor: Tensor) -> list[int]:
    """The strides that mean something."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def fusable(x: Tensor, pool: bool = False) -> bool:
    """Whether kernels.norm takes x (N, C, H, W): on a GPU, at most 32 bits, channels last and in sixteens."""
    channels, height, width = x.shape[1:]
    return (
        x.is_cuda
        and x.dtype in _NARROW
        and channels % 16 == 0
        and x.numel() < 2**31
        and not (pool and (height % 2 or width % 2))
        and x.is_contiguous(memory_format=torch.channels_last)
        and _TRITON
    )
