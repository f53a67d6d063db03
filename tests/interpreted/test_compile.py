"""All kernels compiled for an H200's kind of GPU, which finds wrong types that the interpreter lets pass."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from fastswa import kernels
from fastswa.kernels.launch import Kernel


def test_every_kernel_compiles(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "interpreted.compile_kernels"],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    modules = [import_module(f"{kernels.__name__}.{found.name}") for found in pkgutil.iter_modules(kernels.__path__)]
    ours = {each.jitted.fn.__name__ for module in modules for each in vars(module).values() if isinstance(each, Kernel)}
    assert len(ours) > 20
    assert ours <= set(done.stdout.split())
