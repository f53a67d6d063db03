"""Compile, for a GPU that is not there, the kernels that steps of three recipes launch; prints each one's name.

`python -m interpreted.compile_kernels`, from the tests' folder. As before a run on a GPU a rehearsal goes through the
steps, in 16 bits and at the networks' own widths, and notes what it would have launched.
"""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fastswa.kernels import draws, launch
from fastswa.layers import build_config, flag_layer, recipe_layer
from fastswa.models import shake_shake
from interpreted.stand_in import first_step, pretend

TARGET = GPUTarget("cuda", 90, 32)

# The one with strong views first: their kernel takes longest.
RECIPES = {
    "cifar10-fixmatch-4k-quick": [],
    "cifar10-cnn-mean-teacher-4k": ["--averaging.all.kind", "swa", "--averaging.all.every", "0"],
    "cifar10-shake-mean-teacher-4k-short": ["--augment.noise", "0.1"],
}


class Shallow(shake_shake.ShakeShake):
    """Shake-Shake 26 2x96d with two blocks a stage instead of four: each kind of block is there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(depth=14, width=96, **options)


def heard() -> list[partial[Any]]:
    """What compiles each kernel, once for the types it is given and the parts of it that are left out."""
    found: dict[Hashable, partial[Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        patch.setattr(launch, "_heard", found)
        patch.setattr(draws._uniform_kernel, "always", False)
        patch.setattr(shake_shake, "ShakeShake26", Shallow)
        # What networks ask for; the CPU's own arithmetic follows the step's precision.
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        for recipe, flags in RECIPES.items():
            small = ["--split.labels", "20", "--batch.size", "4", "--batch.labelled", "2", "--batch.steps", "1"]
            first_step(build_config(recipe_layer(recipe), flag_layer([*small, *flags])), 32, "bf16")()
    variants: dict[Hashable, partial[Any]] = {}
    for compiling in found.values():
        variants.setdefault(_variant(compiling), compiling)
    return list(variants.values())


def _variant(compiling: partial[Any]) -> Hashable:
    types = tuple(getattr(value, "dtype", None) for value in compiling.args)
    return compiling.func, types, tuple(v for v in compiling.keywords.values() if isinstance(v, bool))


def compiled(compiling: partial[Any]) -> str:
    """The name of what was compiled."""
    made = compiling()
    assert made.asm["cubin"]
    return str(made.name)


def main() -> None:
    torch.set_num_threads(1)
    kernels = heard()
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: TARGET,
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )
    with ThreadPoolExecutor(2) as threads:
        for name in threads.map(compiled, kernels):
            print(name, flush=True)


if __name__ == "__main__":
    main()
