"""Stateless random numbers: a function of (seed, step, purpose, position), the same in every engine.

A step's two 32-bit words come from the host (`step_words`); the purpose is a name such as
"student/dropout1", hashed into constants; the position is the element's index. They meet in an integer
hash made of tensor operations, so that eager, compiled and captured steps draw the same numbers, runs
side by side cannot disturb each other, and a resume needs only the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastswa import kernels

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def _signed32(value: int) -> int:
    value &= _MASK32
    return value - (1 << 32) if value >= (1 << 31) else value


def _mix64(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers whose output bits all depend on all inputs."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _name_hash(name: str) -> int:
    """FNV-1a of the name, finalised. Plain integer arithmetic, so that a compiler can trace it."""
    value = 0xCBF29CE484222325
    for character in name:
        value = ((value ^ ord(character)) * 0x100000001B3) & _MASK64
    return _mix64(value)


def derive_seed(seed: int, purpose: str, *counters: int) -> int:
    """A 63-bit seed for one purpose of a run, for generators that live on the host."""
    value = _mix64(seed ^ _name_hash(purpose))
    for counter in counters:
        value = _mix64(value + 0x9E3779B97F4A7C15 * (counter + 1))
    return value >> 1


def step_words(seed: int, purpose: str, first: int, count: int) -> np.ndarray:
    """The two words of steps first .. first + count - 1, as (count, 2) int32."""
    base = np.uint64(derive_seed(seed, purpose))
    with np.errstate(over="ignore"):
        value = base + np.arange(first + 1, first + 1 + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value = value ^ (value >> np.uint64(31))
    return value.view(np.int32).reshape(count, 2)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int32."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


class Noise:
    """The random numbers of one step; `words` is (2,) int32 on the device that draws."""

    def __init__(self, words: Tensor, scope: str = "") -> None:
        self.words = words
        self._scope = scope

    def scope(self, name: str) -> Noise:
        """The same step's numbers for purposes under `name`: independent of every other scope."""
        return Noise(self.words, f"{self._scope}{name}/")

    @property
    def name(self) -> str:
        """The innermost scope's own name, nothing outside of any."""
        return self._scope.split("/")[-2] if self._scope else ""

    def constants(self, name: str) -> tuple[int, int, int]:
        """What sets a purpose apart: what its two words are changed by, an odd multiplier between them."""
        purpose = _name_hash(self._scope + name)
        return _signed32(purpose), _signed32((purpose >> 32) | 1), _signed32(_mix64(purpose + 1))

    def bits(self, name: str, shape: Sequence[int]) -> Tensor:
        """Uniform int32 over all 2^32 values, of the given shape."""
        first, multiplier, second = self.constants(name)
        offset, key = self.words[0] ^ first, self.words[1] ^ second
        position = torch.arange(math.prod(shape), dtype=torch.int32, device=self.words.device)
        # Two keyed rounds: the first spreads the positions (an odd multiplier per purpose), the second
        # separates steps whose first-round sequences overlap. The offset comes first: torch.compile would
        # fold position * constant into an index expression, which does not wrap at 32 bits.
        x = position.add_(offset).mul_(multiplier)
        x.bitwise_xor_(_shift(x, 16)).mul_(0x7FEB352D)
        x.bitwise_xor_(key)
        x.bitwise_xor_(_shift(x, 16)).mul_(0x21F0AAAD)
        x.bitwise_xor_(_shift(x, 15)).mul_(_signed32(0xD35A2D97))
        x.bitwise_xor_(_shift(x, 15))
        return x.reshape(tuple(shape))

    def uniform(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform in [0, 1): multiples of 2^-24, as float32 or float64."""
        if kernels.launchable(self.words) and dtype == torch.float32:
            from fastswa.kernels.draws import uniform

            return uniform(self.words, list(self.constants(name)), math.prod(shape)).reshape(tuple(shape))
        return _shift(self.bits(name, shape), 8).to(dtype).mul_(2.0**-24)

    def normal(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal, by Box and Muller from two uniform draws."""
        radius = self.uniform(name + "/radius", shape, dtype) + 2.0**-25
        angle = self.uniform(name + "/angle", shape, dtype) * (2.0 * math.pi)
        return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(angle)

    def integers(self, name: str, shape: Sequence[int], low: int, high: int) -> Tensor:
        """Uniform int64 in low .. high, both included (for ranges far below 2^24)."""
        return (self.uniform(name, shape) * (high - low + 1)).to(torch.int64) + low

    def dropout(self, name: str, x: Tensor, p: float) -> Tensor:
        """x with each element zeroed with probability p and the rest divided by 1 - p."""
        if p == 0:
            return x
        if kernels.drawable(x, self.words):
            from fastswa.kernels.draws import dropout

            return dropout(x, self.words, list(self.constants(name)), p)
        keep = self.uniform(name, x.shape) >= p
        return x * keep.to(x.dtype) * (1.0 / (1.0 - p))
