"""The stateless random numbers: a reference in Python integers, their distribution, their independence."""

from __future__ import annotations

import itertools
import math
import os
import shutil

import numpy as np
import pytest
import torch
from torch import Tensor

from fastswa.noise import Noise, _mix64, _name_hash, derive_seed, step_words

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
COUNT = 1 << 16


def noise_of(seed: int = 0, step: int = 0, purpose: str = "step") -> Noise:
    return Noise(torch.from_numpy(step_words(seed, purpose, step, 1)[0].copy()))


def unsigned(bits: Tensor) -> np.ndarray:
    return bits.numpy().view(np.uint32)


def splitmix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014), in unbounded integers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def fnv1a(name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def reference_bits(words: tuple[int, int], name: str, position: int) -> int:
    """One element of `Noise.bits` as an unsigned 32-bit integer."""
    purpose = splitmix64(fnv1a(name))
    key = (words[1] ^ splitmix64((purpose + 1) & MASK64)) & MASK32
    x = (position + (words[0] ^ purpose & MASK32)) * (purpose >> 32 | 1) & MASK32
    x = (x ^ x >> 16) * 0x7FEB352D & MASK32
    x ^= key
    x = (x ^ x >> 16) * 0x21F0AAAD & MASK32
    x = (x ^ x >> 15) * 0xD35A2D97 & MASK32
    return x ^ x >> 15


def chi_square(bins: np.ndarray, count: int) -> float:
    """Pearson's statistic of integers in 0 .. count - 1 against the uniform distribution."""
    observed = np.bincount(bins, minlength=count)
    assert len(observed) == count
    expected = len(bins) / count
    return float(((observed - expected) ** 2 / expected).sum())


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


def test_hashes_have_their_published_values() -> None:
    assert fnv1a("foobar") == 0x85944171F73967E8
    assert fnv1a("a") == 0xAF63DC4C8601EC8C
    assert [_mix64(1234567 + GOLDEN * k) for k in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    assert _name_hash("foobar") == splitmix64(0x85944171F73967E8)


def test_step_words_are_the_splitmix64_stream_of_the_derived_seed() -> None:
    first, count = 7, 5
    base = derive_seed(3, "step")
    outputs = [splitmix64((base + GOLDEN * (step + 1)) & MASK64) for step in range(first, first + count)]
    words = step_words(3, "step", first, count).view(np.uint32).tolist()
    assert words == [[output & MASK32, output >> 32] for output in outputs]
    assert step_words(3, "step", 0, first + count)[first:].tolist() == step_words(3, "step", first, count).tolist()


def test_derived_seed_follows_its_definition_and_fits_63_bits() -> None:
    value = splitmix64(11 ^ splitmix64(fnv1a("batches")))
    for counter in (0, 5):
        value = splitmix64((value + GOLDEN * (counter + 1)) & MASK64)
    assert derive_seed(11, "batches", 0, 5) == value >> 1
    assert derive_seed(2**64 + 11, "batches", 0, 5) == value >> 1


def test_derived_seeds_of_nearby_runs_purposes_and_counters_never_meet() -> None:
    seeds = {
        derive_seed(seed, purpose, *counters)
        for seed in range(20)
        for purpose in ("batches", "step", "init/student", "init/teacher")
        for counters in [(), *((epoch,) for epoch in range(50)), *itertools.product(range(4), range(4))]
    }
    assert len(seeds) == 20 * 4 * (1 + 50 + 16)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(("seed", "step", "scope", "name"), [(0, 0, "", "a"), (5, 123456, "student", "dropout1")])
def test_bits_equal_the_reference_in_python_integers(seed: int, step: int, scope: str, name: str) -> None:
    noise = noise_of(seed, step)
    words = tuple(int(w) for w in unsigned(noise.words))
    drawn = unsigned((noise.scope(scope) if scope else noise).bits(name, (500,)))
    full = f"{scope}/{name}" if scope else name
    assert drawn.tolist() == [reference_bits(words, full, position) for position in range(500)]


@pytest.mark.parametrize("words", [(0, 0), (-1, -1), (2**31 - 1, -(2**31))])
def test_bits_equal_the_reference_at_extreme_words(words: tuple[int, int]) -> None:
    drawn = unsigned(Noise(torch.tensor(words, dtype=torch.int32)).bits("edge", (64,)))
    plain = (words[0] & MASK32, words[1] & MASK32)
    assert drawn.tolist() == [reference_bits(plain, "edge", position) for position in range(64)]


def test_position_alone_tells_elements_of_one_draw_apart() -> None:
    noise = noise_of(1, 2)
    flat = noise.bits("x", (60,))
    assert torch.equal(noise.bits("x", (3, 4, 5)), flat.reshape(3, 4, 5))
    assert torch.equal(noise.bits("x", (7,)), flat[:7])
    assert noise.bits("x", ()).shape == ()
    assert len(np.unique(unsigned(noise.bits("x", (COUNT,))))) == COUNT


def test_drawing_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    noise = noise_of()
    noise.normal("n", (10,))
    noise.integers("i", (10,), 0, 3)
    noise.dropout("d", torch.ones(10), 0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("shift", [0, 12, 24])
def test_bytes_of_the_bits_are_uniform(step: int, shift: int) -> None:
    # 255 degrees of freedom: mean 255, deviation 22.6; the bounds are five deviations away.
    drawn = unsigned(noise_of(2, step).bits("student/dropout1", (4 * COUNT,)))
    assert 150 < chi_square(drawn >> shift & 0xFF, 256) < 370


def test_pairs_of_neighbours_are_uniform() -> None:
    for lag in (1, 2, 32, 1024):
        top = unsigned(noise_of(4, 9).bits("view/flip", (4 * COUNT,))) >> 28
        assert 150 < chi_square(top[:-lag] * 16 + top[lag:], 256) < 370


def test_first_element_is_uniform_over_steps() -> None:
    words = torch.from_numpy(step_words(0, "step", 0, 10000))
    first = np.array([unsigned(Noise(row).bits("student/block1/forward", (1,)))[0] for row in words])
    # 63 degrees of freedom: deviation 11.2.
    assert 20 < chi_square(first >> 26, 64) < 119
    assert abs(correlation(first[:-1], first[1:])) < 5 / math.sqrt(10000)


def test_uniform_has_the_moments_and_the_grid_of_its_definition() -> None:
    drawn = noise_of().uniform("u", (4 * COUNT,), torch.float64).numpy()
    deviation = math.sqrt(1 / 12 / len(drawn))
    assert abs(drawn.mean() - 0.5) < 5 * deviation
    assert abs(drawn.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / len(drawn))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.array_equal(drawn * 2**24, np.round(drawn * 2**24))
    assert torch.equal(noise_of().uniform("u", (4 * COUNT,)).double(), torch.from_numpy(drawn))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_has_the_normal_distribution(dtype: torch.dtype) -> None:
    count = 4 * COUNT
    drawn = noise_of(3, 1).normal("n", (count,), dtype)
    assert drawn.dtype == dtype
    drawn = drawn.double()
    assert abs(float(drawn.mean())) < 5 / math.sqrt(count)
    assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / count)
    assert abs(float((drawn**3).mean())) < 5 * math.sqrt(15 / count)
    assert abs(float((drawn**4).mean()) - 3) < 5 * math.sqrt(96 / count)
    # Kolmogorov and Smirnov: the distance of the two distribution functions stays below 2 / sqrt(n) with p > 0.999.
    expected = 0.5 * (1 + torch.erf(drawn.sort().values / math.sqrt(2)))
    observed = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    assert float((expected - observed).abs().max()) < 2 / math.sqrt(count)


def streams() -> dict[str, np.ndarray]:
    """Draws that must have nothing to do with one another."""
    base = noise_of(0, 0)
    noises = {
        "base": base,
        "next step": noise_of(0, 1),
        "step after": noise_of(0, 2),
        "next seed": noise_of(1, 0),
        "other stream": noise_of(0, 0, "refresh"),
        "student": base.scope("student"),
        "teacher": base.scope("teacher"),
        "nested": base.scope("student").scope("teacher"),
    }
    drawn = {name: unsigned(noise.bits("dropout1", (COUNT,))) for name, noise in noises.items()}
    drawn["other purpose"] = unsigned(base.bits("dropout2", (COUNT,)))
    drawn["scope's own"] = unsigned(base.scope("dropout1").bits("", (COUNT,)))
    return drawn


def test_purposes_steps_scopes_and_seeds_are_independent() -> None:
    drawn = streams()
    for (first, a), (second, b) in itertools.combinations(drawn.items(), 2):
        where = f"{first} and {second}"
        assert abs(correlation(a, b)) < 5 / math.sqrt(COUNT), where
        assert abs(correlation(a[1:], b[:-1])) < 5 / math.sqrt(COUNT), where
        # Two sets of 2^16 values out of 2^32 share one on average (Poisson); a shifted copy would share all.
        assert len(np.intersect1d(a, b)) <= 8, where
        assert (a == b).sum() <= 2, where
        flipped = np.unpackbits((a ^ b).view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 5 * 0.5 / math.sqrt(32 * COUNT), where


def test_sixteen_cells_of_two_streams_are_jointly_uniform() -> None:
    for a, b in itertools.combinations(streams().values(), 2):
        # 15 degrees of freedom: mean 15, deviation 5.5.
        assert 1 < chi_square((a >> 30) * 4 + (b >> 30), 16) < 50


def test_radius_and_angle_of_a_normal_are_different_numbers() -> None:
    noise = noise_of()
    radius, angle = noise.bits("n/radius", (COUNT,)), noise.bits("n/angle", (COUNT,))
    assert abs(correlation(radius.numpy(), angle.numpy())) < 5 / math.sqrt(COUNT)
    u, v = noise.uniform("n/radius", (COUNT,), torch.float64), noise.uniform("n/angle", (COUNT,), torch.float64)
    expected = torch.sqrt(-2 * torch.log(u + 2**-25)) * torch.cos(2 * math.pi * v)
    assert torch.allclose(noise.normal("n", (COUNT,), torch.float64), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("low", "high"), [(-4, 4), (0, 0), (0, 1), (3, 9), (-2, 13)])
def test_integers_cover_both_ends_uniformly(low: int, high: int) -> None:
    drawn = noise_of(6, 3).integers("translate", (2, COUNT // 2, 1), low, high)
    assert drawn.dtype == torch.int64
    assert drawn.shape == (2, COUNT // 2, 1)
    values = high - low + 1
    statistic = chi_square(drawn.flatten().numpy() - low, values)
    assert statistic <= values - 1 + 5 * math.sqrt(2 * max(values - 1, 1))


@pytest.mark.parametrize("bits", [0, -1, 2**31 - 1, -(2**31)])
def test_extreme_bits_stay_in_range(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "bits", lambda self, name, shape: torch.full(tuple(shape), bits, dtype=torch.int32))
    noise = noise_of()
    uniform = (bits & MASK32) // 256 / 2**24
    assert noise.uniform("u", (1,)).tolist() == [uniform]
    for values in [*range(1, 70), 1000, 4096, 10007]:
        assert noise.integers("i", (1,), -3, values - 4).tolist() == [math.floor(uniform * values) - 3]
    assert bool(torch.isfinite(noise.normal("n", (1,))).all())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropout_zeroes_with_probability_p_and_keeps_the_expectation(p: float) -> None:
    x = torch.full((256, 256), 3.0, dtype=torch.float64, requires_grad=True)
    dropped = noise_of(8, 8).dropout("drop", x, p)
    kept = dropped != 0
    deviation = math.sqrt(p * (1 - p) / x.numel())
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * deviation
    assert abs(float(dropped.detach().mean()) - 3.0) < 5 * deviation * 3 / (1 - p)
    assert torch.allclose(dropped[kept], torch.tensor(3 / (1 - p), dtype=torch.float64), rtol=1e-15)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.allclose(gradient, kept.double() / (1 - p), rtol=1e-15)


def test_dropout_of_zero_is_the_identity_and_keeps_the_type() -> None:
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise_of().dropout("drop", x, 0.0), x)
    half = noise_of().dropout("drop", torch.ones(1000, dtype=torch.bfloat16), 0.5)
    assert half.dtype == torch.bfloat16
    assert set(half.tolist()) == {0.0, 2.0}


@pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name),
    reason="torch.compile needs a C++ compiler on the CPU",
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_compiled_draws_equal_eager_ones() -> None:
    def draws(words: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        noise = Noise(words).scope("student")
        return (
            noise.bits("bits", (3, 1001)),
            noise.bits("image", (4, 32, 16, 16)),
            noise.uniform("uniform", (1000,)),
            noise.integers("integers", (2, 500, 1), -4, 4),
            noise.dropout("dropout", x, 0.3),
            noise.normal("normal", (1003,)),
        )

    compiled = torch.compile(draws, fullgraph=True)
    x = torch.linspace(-2, 2, 1000).reshape(20, 50)
    for step in range(3):
        words = noise_of(5, step).words
        *exact, normal = zip(draws(words, x), compiled(words, x), strict=True)
        for eager, fused in exact:
            assert torch.equal(eager, fused)
        # log and cos come from another library there: the last bits may differ.
        assert torch.allclose(*normal, rtol=0, atol=1e-6)
