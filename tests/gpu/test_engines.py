"""Engines on a GPU: the same numbers from all of them, and bit-exact repeats under --deterministic.

Run on a machine with a GPU: `pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Command
from fastswa import beside, kernels
from fastswa.api import fit, resume
from fastswa.config import Config
from fastswa.data.images import Dataset, ImageSet
from fastswa.layers import build_config, flag_layer, recipe_layer, recipe_names
from fastswa.methods.method import Batch
from fastswa.methods.vat import VAT
from fastswa.noise import Noise
from fastswa.training import run as run_module
from fastswa.training.device import choose_compute, settings_of
from fastswa.training.feed import Feed
from fastswa.training.keeping import keep_views, with_kept_views
from fastswa.training.lanes import Lanes
from fastswa.training.setup import Material, prepare
from fastswa.training.state import State, build_state
from fastswa.training.step import Step, launcher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]

METHODS = ["mean-teacher", "pi", "supervised", "temporal-ensembling", "vat-entmin"]
OTHERS = ["sntg", "vadd", "self-ensembling", "fixmatch", "flexmatch", "freematch"]
# Compiling takes most of a minute each: the others are captured only.
ENGINES = [
    *((engine, method) for engine in ("graph", "compiled") for method in METHODS),
    *(("graph", method) for method in OTHERS),
]
SMALL = ["--split.labels", "100", "--batch.steps", "10", "--evaluation.refresh", "4", "--checkpoint.every", "1"]
# Self-ensembling with the views of its recipes; their network has neither weight norm nor leaky units.
ADAPTING = [
    *("--method", "self-ensembling", "--augment.warp", "true", "--augment.affine", "0.1"),
    *("--augment.noise", "0.1", "--augment.standardise", "true"),
]
HELD = [
    *("--model", "efficientnet-lite0", "--pretrained", "--model.frozen"),
    *("--model.heads", "1", "--model.dropout", "0.5"),
]
PLAIN = ["--model.weight_norm", "false", "--model.activation", "relu", "--model.heads", "1"]


def synthetic(images: int = 2000) -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.arange(images) % 10
    pixels = rng.integers(0, 200, (images, 3, 32, 32), dtype=np.uint8) + (labels * 5)[:, None, None, None].astype(
        np.uint8
    )
    half = images // 2
    classes = tuple("abcdefghij")
    return Dataset(ImageSet(pixels[:half], labels[:half], classes), ImageSet(pixels[half:], labels[half:], classes))


def config_of(*flags: str) -> Config:
    method = "--method" in flags and flags[flags.index("--method") + 1]
    recipe = f"cifar10-cnn-{method or 'mean-teacher'}-4k"
    # The recipes of the last ones are of other networks and data; a low threshold lets some of the guesses pass.
    guesses = ["--method.threshold", "0.2"] if method in ("self-ensembling", "fixmatch", "flexmatch") else []
    return build_config(
        recipe_layer(recipe if recipe in recipe_names() else "cifar10-cnn-pi-4k"),
        flag_layer([*SMALL, *guesses, *flags]),
    )


def built(config: Config) -> tuple[Material, State, Feed, Step]:
    compute = choose_compute(config.device)
    data = synthetic()
    material = with_kept_views(prepare(config, data, compute), config, compute)
    state = build_state(config, compute, material.facts, images=len(data.train))
    keep_views(material, state.student, compute)
    feed = Feed(config, material.plan, state.method, compute.device, compute.dtype)
    feed.load(0)
    return material, state, feed, Step(state, feed, material.augment, material.pixels, material.labels, compute)


def trained(config: Config, steps: int) -> dict[str, Tensor]:
    """Every tensor of the state after some steps, ten an epoch."""
    _, state, feed, step = built(config)
    compute = choose_compute(config.device)
    with settings_of(compute):
        launch = launcher(step, compute)
        for done in range(steps):
            if done % 10 == 0:
                feed.load(done // 10)
            launch()
            if done % 10 == 9:
                state.method.end_epoch()
    return {name: tensor.clone() for name, tensor in state.tensors().items()}


@pytest.mark.parametrize(("engine", "method"), ENGINES)
def test_steps_in_float64_agree_with_eager(method: str, engine: str) -> None:
    """Fifty steps; three of VAT and VAdD: 1e-15 added to VAT's weights is 4e-8 after ten and 0.5 after twenty."""
    flags = ["--precision", "fp64", "--method", method, "--optimiser.lr", "0.01"]
    steps = 3 if method.startswith("va") else 50
    assert_agree(
        trained(config_of("--engine", engine, *flags), steps), trained(config_of("--engine", "eager", *flags), steps)
    )


def assert_agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """That two states of float64 runs are one but for rounding."""
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            scale = max(float(tensor.double().norm()), 1.0)
            difference = float((tensor.double() - found[name].double()).norm()) / scale
            # The method's memory and the sums of losses are kept in 32 bits.
            assert difference < (1e-8 if tensor.dtype == torch.float64 else 1e-5), name


@pytest.mark.parametrize(("engine", "beyond"), [("graph", "zero"), ("graph", "edge"), ("compiled", "zero")])
def test_steps_with_the_views_of_self_ensembling_agree_with_eager(engine: str, beyond: str) -> None:
    """Warped, noisy and standardised image by image, which no kernel of ours makes."""
    flags = ["--precision", "fp64", "--optimiser.lr", "0.01", *ADAPTING, "--augment.beyond", beyond]
    assert_agree(
        trained(config_of("--engine", engine, *flags), 20), trained(config_of("--engine", "eager", *flags), 20)
    )


@pytest.mark.parametrize("engine", ["graph", "compiled"])
def test_steps_with_a_guessing_teacher_agree_with_eager(engine: str) -> None:
    """It passes beside the student, and its running statistics follow the student's."""
    flags = ["--precision", "fp64", "--optimiser.lr", "0.01", "--method", "fixmatch", "--method.guesser", "teacher"]
    assert_agree(
        trained(config_of("--engine", engine, *flags), 50), trained(config_of("--engine", "eager", *flags), 50)
    )


@pytest.mark.parametrize("method", ["mean-teacher", "flexmatch"])
def test_steps_on_kept_views_agree_with_eager(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features in the images' place, which held layers gave once; their weights are those that are drawn."""
    monkeypatch.setattr("fastswa.models.efficientnet_lite._load_pretrained", lambda backbone, channels: None)
    flags = ["--precision", "fp64", "--optimiser.lr", "0.01", "--method", method, "--augment.kept", "3", *HELD]
    assert_agree(
        trained(config_of("--engine", "graph", *flags), 20), trained(config_of("--engine", "eager", *flags), 20)
    )


@pytest.mark.parametrize(("engine", "method"), ENGINES)
def test_one_step_in_float32_has_eager_losses(method: str, engine: str) -> None:
    sums = []
    for name in ("eager", engine):
        config = config_of("--precision", "fp32", "--method", method, "--engine", name)
        _, state, _, step = built(config)
        compute = choose_compute(config.device)
        with settings_of(compute):
            launch = launcher(step, compute)
            launch()
        sums.append(state.sums.clone())
    # The direction of VAT's term comes out of a power iteration, which makes more of the rounding.
    loose = {"rtol": 1e-3, "atol": 1e-5} if method.startswith("vat") else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(sums[0][0], sums[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums[0], sums[1], **loose)


@pytest.mark.parametrize("model", ["cnn13", "shake-shake-26-2x96d"])
@pytest.mark.parametrize("engine", ["graph", "compiled"])
def test_a_step_in_float32_is_as_near_to_float64_as_an_eager_one(model: str, engine: str) -> None:
    assert_as_near_to_float64(engine, "--model", model)


@pytest.mark.parametrize("engine", ["graph", "compiled"])
def test_a_step_of_self_ensembling_in_float32_is_as_near_to_float64_as_an_eager_one(engine: str) -> None:
    assert_as_near_to_float64(engine, *ADAPTING, *PLAIN)


@pytest.mark.parametrize("model", ["cnn13", "shake-shake-26-2x96d"])
def test_a_step_by_kernels_is_as_near_to_float64_as_plain_operations(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_as_near_to_float64("eager", "--model", model, without_kernels=monkeypatch)


def assert_as_near_to_float64(engine: str, *flags: str, without_kernels: pytest.MonkeyPatch | None = None) -> None:
    """With all kernels and both streams; momenta are the gradients themselves.

    An eager step in 32 bits launches the kernels too, unless it is to be `without_kernels`. It is up to 5e-3 away
    itself: rounding turns a leaky unit or the place of a pool's maximum. Which tensor that meets is chance, so that one
    alone may be further away than all are together.
    """

    def state(engine: str, precision: str) -> dict[str, Tensor]:
        return trained(config_of("--engine", engine, "--precision", precision, *flags), 1)

    if without_kernels is not None:
        without_kernels.setattr(kernels, "_TRITON", False)
    expected, eager = state("eager", "fp64"), state("eager", "fp32")
    if without_kernels is not None:
        without_kernels.undo()
    others = eager, state(engine, "fp32")
    # What 32 bits lose is nothing in 64.
    names = [name for name in expected if expected[name].is_floating_point() and ".lost." not in name]
    names = [name for name in names if expected[name].any()]
    plain, found = (
        torch.stack([(other[name].double() - expected[name].double()).norm() / expected[name].norm() for name in names])
        for other in others
    )
    assert found.mean() < max(4 * float(plain.mean()), 2e-3)
    assert (found < (4 * plain).clamp(min=1e-2)).all(), [names[int(found.argmax())], float(found.max())]


@pytest.mark.parametrize("engine", ["graph", "compiled"])
@pytest.mark.parametrize("flags", [[], [*ADAPTING, *PLAIN]], ids=["mean-teacher", "self-ensembling"])
def test_gradients_in_bf16_point_where_those_of_eager_do(engine: str, flags: list[str]) -> None:
    """After one step momenta are the gradients themselves."""

    def gradient(engine: str, precision: str) -> Tensor:
        tensors = trained(config_of("--engine", engine, "--precision", precision, *flags), 1)
        return torch.cat([tensor.double().flatten() for name, tensor in tensors.items() if "momentum" in name])

    exact, plain, found = gradient("eager", "fp32"), gradient("eager", "bf16"), gradient(engine, "bf16")
    plain_turn, turn = (1 - torch.cosine_similarity(exact, other, dim=0) for other in (plain, found))
    assert turn < max(2 * plain_turn, 1e-3)
    assert abs(found.norm() / exact.norm() - 1) < 0.1


def test_a_rehearsed_step_changes_nothing_and_leaves_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state, _, step = built(config_of("--engine", "graph"))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    with settings_of(step.compute):
        step.rehearse()
        assert all(torch.equal(before[name], tensor) for name, tensor in state.tensors().items())
        compiled = []
        monkeypatch.setattr("triton.compiler.compile", lambda *args, **named: compiled.append(args))
        monkeypatch.setattr("triton.runtime.jit.JITFunction._do_compile", lambda *args, **named: compiled.append(args))
        step()
    assert not compiled
    assert not all(torch.equal(before[name], tensor) for name, tensor in state.tensors().items())


def test_auto_compiles_what_has_no_kernels_of_ours() -> None:
    for flags, engine in (
        ([], "graph"),
        (["--method", "fixmatch"], "graph"),
        (["--augment.student", "strong"], "graph"),
        (["--augment.student", "strong", "--augment.standardise", "true"], "compiled"),
        (["--deterministic"], "graph"),
    ):
        assert built(config_of(*flags))[3].engine == engine, flags


@pytest.mark.parametrize("engine", ["eager", "graph", "auto"])
def test_a_stopped_run_resumes_bit_exactly(engine: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_module, "load_data", lambda config: synthetic())
    settings = {
        "device": {"engine": engine, "deterministic": True},
        "schedule": {"epochs": 4, "length": 3, "period": 4, "cycle": 1},
    }
    straight = fit(config_of(), out=tmp_path / "a", settings=settings)
    short = {**settings, "schedule": {**settings["schedule"], "epochs": 2}}
    fit(config_of(), out=tmp_path / "b", settings=short)
    extended = resume(tmp_path / "b", settings={"schedule": {"epochs": 4}})
    assert [line["error"] for line in straight.metrics[-1:]] == [line["error"] for line in extended.metrics[-1:]]
    for file in sorted((tmp_path / "a" / "models").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / "models" / file.name).read_bytes(), file.name


def errors(out: Path) -> dict[int, dict[str, float]]:
    """By seed, the last errors of every network of the runs in a folder."""
    return {
        int(folder.name.removeprefix("seed-")): json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])[
            "error"
        ]
        for folder in sorted(out.glob("seed-*"))
    }


def test_runs_side_by_side_are_bit_equal_to_solo_runs(command: Command, tmp_path: Path) -> None:
    flags = ["digits-mean-teacher", "--epochs", "6", "--device.name", "cuda", "--deterministic", "--no-report"]
    assert command("train", *flags, "--seeds", "3,4,5", "--out", tmp_path / "together").code == 0
    for seed in (3, 4, 5):
        solo = tmp_path / f"solo-{seed}"
        assert command("train", *flags, "--seed", seed, "--out", solo).code == 0
        assert (
            errors(tmp_path / "together")[seed]
            == json.loads((solo / "metrics.jsonl").read_text().splitlines()[-1])["error"]
        )
        for file in sorted((solo / "models").iterdir()):
            assert file.read_bytes() == (tmp_path / "together" / f"seed-{seed}" / "models" / file.name).read_bytes(), (
                file.name
            )


def test_graphs_that_run_at_the_same_time_share_nothing() -> None:
    """Two of Shake-Shake in 16 bits, whose products are added up in parts: each ends as it does alone."""
    flags = ["--model", "shake-shake-26-2x96d", "--engine", "graph", "--deterministic"]
    configs = [config_of(*flags, "--seed", str(seed)) for seed in (3, 4)]
    alone = [trained(config, 10) for config in configs]
    pairs = [built(config) for config in configs]
    compute = choose_compute(configs[0].device)
    lanes = Lanes(compute)
    with settings_of(compute):
        launches = []
        for number, (*_, step) in enumerate(pairs):
            launches.append(lanes.on(number, partial(launcher, step, compute)))
            for _ in range(beside.POOL - 2):  # so that the next ones in turn are those of this lane again
                torch.cuda.Stream()
        torch.cuda.synchronize()
        for _ in range(10):
            for number, launch in enumerate(launches):
                lanes.on(number, launch)
        torch.cuda.synchronize()
    for expected, (_, state, _, _) in zip(alone, pairs, strict=True):
        assert all(torch.equal(expected[name], tensor) for name, tensor in state.tensors().items())


@pytest.mark.parametrize("engine", ["eager", "graph", "compiled"])
def test_errors_in_bf16_after_thirty_epochs_differ_less_than_seeds_do(
    engine: str, command: Command, tmp_path: Path
) -> None:
    """The mean over four seeds moves by less than the seeds lie apart, beside an eager run in 32 bits."""
    found = {}
    for name, precision in (("eager", "fp32"), (engine, "bf16")):
        out = tmp_path / precision
        flags = ["--epochs", "30", "--device.name", "cuda", "--engine", name, "--precision", precision, "--no-report"]
        assert command("train", "digits-mean-teacher", "--seeds", "10,11,12,13", *flags, "--out", out).code == 0
        found[precision] = errors(out)
    for network in ("student", "teacher"):
        plain, half = ([line[network] for line in found[precision].values()] for precision in ("fp32", "bf16"))
        assert abs(mean(half) - mean(plain)) <= max(plain) - min(plain), (network, plain, half)


def test_vat_direction_keeps_full_precision_in_a_bf16_run() -> None:
    """The power iteration's small steps drown in 16 bits or TF32; the direction must be float64's."""
    directions = []
    for precision in ("bf16", "fp64"):
        flags = ["--engine", "eager", "--precision", precision, "--method", "vat", "--method.xi", "0.01"]
        config = config_of(*flags)
        _, state, feed, step = built(config)
        compute = choose_compute(config.device)
        values = feed.take()
        noise = Noise(values.words)
        with settings_of(compute), compute.arithmetic():
            x = step.augment.view(step.pixels, values.images, noise.scope("view/student"))
            batch = Batch(
                step.labels[values.images[:50]], values.images, values.consistency_weight, noise, lambda name, x=x: x
            )
            assert isinstance(state.method, VAT)
            clean = torch.zeros(len(x), 10, device="cuda")  # for coarse steps alone
            directions.append(state.method._direction(batch, state.student, x, clean).double().flatten(1))
    cosine = torch.nn.functional.cosine_similarity(*directions)
    assert float(cosine.mean()) > 0.99
