"""Where and in which arithmetic a run computes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import RLock

import torch

from fastswa import kernels
from fastswa.config import DeviceConfig
from fastswa.errors import RequestError

# Of mallopt, in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_GPU = RLock()
# A core's: with many more a step waits for its own threads, a thousand times as long, or the process dies.
_MOST_THREADS = 16


@dataclass(frozen=True)
class Compute:
    """A device, its arithmetic and the way steps are launched, all decided; `auto` leaves that last to each step."""

    device: torch.device
    precision: str
    engine: str
    deterministic: bool

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and inputs: bf16 keeps 32-bit weights and casts as it computes."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    @property
    def captures(self) -> bool:
        """Whether what is launched again and again is captured as a CUDA graph."""
        return self.engine != "eager" and self.device.type == "cuda"

    def arithmetic(self) -> AbstractContextManager[object]:
        """The context that forward passes run in."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def facts(self) -> dict[str, str]:
        """For the record of a run."""
        return {"device": str(self.device), "precision": self.precision, "engine": self.engine}


def choose_compute(config: DeviceConfig) -> Compute:
    """The device, precision and engine that the settings ask for; refuses what is not there."""
    cores = os.cpu_count() or 1
    if config.threads is not None and config.threads > _MOST_THREADS * cores:
        raise RequestError(f"device.threads: {config.threads} are too many; this machine has {cores} cores.")
    device = _device(config.name)
    cuda = device.type == "cuda"
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if cuda and torch.cuda.is_bf16_supported() else "fp32"
    if precision == "tf32" and not cuda:
        raise RequestError("device.precision: tf32 exists on CUDA devices only; use fp32.")
    engine: str = config.engine
    if engine == "auto":
        # What is fastest on a GPU depends on the step, which decides.
        engine = "eager" if not cuda else "graph" if config.deterministic else "auto"
    if engine == "graph" and not cuda:
        raise RequestError("device.engine: graph needs a CUDA device; use eager.")
    if engine == "compiled" and cuda:
        if not kernels.available():
            raise RequestError("device.engine: compiled needs Triton on a GPU, and it is not installed; use graph.")
        if config.deterministic:
            raise RequestError(
                "device.engine: compiled chooses kernels by timing them, and their rounding with them; "
                "use graph with --deterministic."
            )
    if engine == "compiled" and not cuda:
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        if not pick_vec_isa():
            # The random numbers rely on 32-bit wrap-around, which scalar C++ does not promise.
            raise RequestError("device.engine: compiled needs a CPU with vector instructions; use eager.")
    return Compute(device, precision, engine, config.deterministic)


@cache
def native_bf16() -> bool:
    """Whether this machine's CPU has instructions for 16-bit matrices (AVX512-BF16 or AMX); others imitate them."""
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in asked)


def looking_on(name: str, config: DeviceConfig, *, shared: bool = False) -> DeviceConfig:
    """The settings for looking at a run on the device `name`: as it computed, but tf32 exists on GPUs only.

    Where its threads were its share of the cores (`shared`), all of them are free now.
    """
    exact = config.precision == "tf32" and _device(name).type != "cuda"
    precision = "fp32" if exact else config.precision
    return DeviceConfig(name=name, precision=precision, engine="eager", threads=None if shared else config.threads)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "mps":
        raise RequestError("device.name: Apple's mps is not supported (its results were never checked); use cpu.")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RequestError(f"device.name: '{name}' is not a device; use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise RequestError(f"device.name: '{name}' is not supported; use auto, cpu, cuda or cuda:N.")
    if not torch.cuda.is_available():
        raise RequestError(f"device.name: '{name}' was asked for, but torch sees no CUDA device here; use cpu.")
    if (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(f"device.name: '{name}' is not there; torch sees {torch.cuda.device_count()} CUDA devices.")
    return device


@contextmanager
def _alone(compute: Compute) -> Iterator[None]:
    """Refuses a second thread on a GPU: kernels that one rehearses would not be launched for the other either."""
    if compute.device.type != "cuda":
        yield
        return
    if not _GPU.acquire(blocking=False):
        raise RequestError(
            "another thread of this process is computing on a GPU; train several runs with --seeds, in turn or in "
            "processes of their own."
        )
    try:
        yield
    finally:
        _GPU.release()


@contextmanager
def settings_of(compute: Compute, threads: int | None = None) -> Iterator[None]:
    """torch's global switches set for a run, and put back after it; one thread at a time may have a GPU."""
    with _alone(compute), _switched(compute, threads):
        yield


@contextmanager
def _switched(compute: Compute, threads: int | None) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    were_deterministic = torch.are_deterministic_algorithms_enabled()
    threads_before = torch.get_num_threads()
    numbered = compute.device.type == "cuda" and compute.device.index is not None
    device_before = torch.cuda.current_device() if numbered else None
    try:
        if numbered:
            # Kernels of our own are launched on the current device, wherever their tensors are.
            torch.cuda.set_device(compute.device)
        # Not with bf16: what is kept out of autocast there (VAT's power iteration) wants all of its 24 bits.
        matmul.allow_tf32 = cudnn.allow_tf32 = compute.precision == "tf32"
        cudnn.benchmark, cudnn.deterministic = not compute.deterministic, compute.deterministic
        if compute.deterministic:
            # cuBLAS reads this when its first handle is made.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
        if torch.are_deterministic_algorithms_enabled() != were_deterministic:
            # Only then: the call imports torch's compiler, which takes seconds.
            torch.use_deterministic_algorithms(were_deterministic)
        torch.set_num_threads(threads_before)
        if device_before is not None:
            torch.cuda.set_device(device_before)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what is freed instead of giving it back to the system, where it can be told to.

    A step frees and takes the same tensors again and again; by default each of them costs page faults, a fifth of a
    small network's step. The price is memory (at most 256 MiB) that a process holds on to after training.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((_MMAP_THRESHOLD, 64 << 20), (_TRIM_THRESHOLD, 256 << 20)):
            mallopt(parameter, value)


def free_memory(device: torch.device) -> int:
    """Bytes that could be taken: of the GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 20
        return pages * 4096 // 2
