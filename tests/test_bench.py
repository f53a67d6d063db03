"""`fastswa bench`: what FixMatch really passes, the naive loop's network and views, and the rows, on tiny steps."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Command
from fastswa import bench
from fastswa.config import Config
from fastswa.data.images import Dataset, ImageSet
from fastswa.floor import convolutions, passes
from fastswa.layers import build_config, recipe_layer
from fastswa.models import build
from fastswa.models.convolution import Weights
from fastswa.training.device import choose_compute
from fastswa.training.setup import prepare

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def naive() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("naive_fixmatch")


def images(count: int = 64, side: int = 8) -> Dataset:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    part = ImageSet(pixels, np.arange(count) % 10, tuple(map(str, range(10))))
    return Dataset(part, part, ((0.5,) * 3, (0.29,) * 3))


def config_of(model: str = "resnet9", method: dict[str, object] | None = None, **model_settings: object) -> Config:
    case = bench.CASES[model]
    tiny = {
        "split": {"labels": 20},
        "batch": {"size": 16, "labelled": 2},
        "model": model_settings,
        "method": method or {},
        "augment": {"translate": 1},
        "device": {"name": "cpu", "threads": 1},
    }
    return build_config(recipe_layer(case["recipe"]), case.get("settings", {}), tiny)


@pytest.mark.parametrize(
    ("model", "method", "images_passed"),
    [
        ("resnet9", {}, (14, 16)),
        ("resnet9", {"together": True}, (0, 30)),
        ("wrn-28-2", {"name": "freematch"}, (14, 16)),
        ("cnn13", {}, (16, 16)),
    ],
)
def test_passes_are_those_of_a_step(model: str, method: dict[str, object], images_passed: tuple[int, int]) -> None:
    assert passes(config_of(model, method)) == images_passed


def test_full_size_is_64_and_448() -> None:
    for model in ("resnet9", "wrn-28-2"):
        case = bench.CASES[model]
        config = build_config(recipe_layer(case["recipe"]), case.get("settings", {}))
        assert (config.model.name, config.batch.labelled, passes(config)) == (model, 64, (448, 512))


# Of `config_of(width=4)` at 8x8: inputs, outputs and places of each 3x3 convolution, and the linear head.
LAYERS = [(3, 4, 64), (4, 8, 64), (8, 8, 16), (8, 8, 16), (8, 16, 16), (16, 32, 4), (32, 32, 1), (32, 32, 1)]
FLOP_OF_AN_IMAGE = sum(2 * 9 * inputs * outputs * places for inputs, outputs, places in LAYERS) + 2 * 32 * 10


def test_flop_count_a_pass_without_gradient_once_and_one_with_it_three_times() -> None:
    """Of the convolutions at 8x8 with width 4, counted by hand, and the linear head."""
    config = config_of(width=4)
    calls, flops = convolutions(config, images(), choose_compute(config.device))
    assert flops == pytest.approx(FLOP_OF_AN_IMAGE * (14 + 3 * 16))
    assert [call[0][0] for call in calls] == [16] * 8


def test_flop_leave_out_the_channels_that_a_gpu_fills_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's device for shapes alone stands for a GPU: the first layer's channels are filled up there."""
    config = config_of(width=4)
    cpu = choose_compute(config.device)
    convolve = Weights.convolve

    def as_on_a_gpu(self: Weights, layer: torch.nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta and x.shape[1] < 8:
            missing = (0, 0, 0, 0, 0, 8 - x.shape[1])
            x, weight = torch.nn.functional.pad(x, missing), torch.nn.functional.pad(self.of[layer], missing)
            return torch.conv2d(x, weight, None, layer.stride, layer.padding)  # type: ignore[arg-type]
        return convolve(self, layer, x)

    monkeypatch.setattr(Weights, "convolve", as_on_a_gpu)
    monkeypatch.setattr("fastswa.floor.prepare", lambda config, dataset, _: prepare(config, dataset, cpu))
    calls, flops = convolutions(config, images(), dataclasses.replace(cpu, device=torch.device("meta")))
    assert [call[1][1] for call in calls[:2]] == [8, 8]
    assert flops == pytest.approx(FLOP_OF_AN_IMAGE * (14 + 3 * 16))


@pytest.mark.parametrize("model", ["resnet9", "wrn-28-2", "small", "cnn13"])
def test_the_naive_network_is_ours(naive: ModuleType, model: str) -> None:
    """As many numbers of each shape, and the same convolutions on the same sizes."""
    pseudo = model in naive.NETWORKS
    channels, side = (1, 8) if model == "small" else (3, 8 if pseudo else 32)
    theirs = (naive if pseudo else importlib.import_module("naive")).NETWORKS[model]()
    ours = build(model, channels=channels, classes=10, heads=1 if pseudo else 2)
    assert sorted(map(tuple, (p.shape for p in theirs.parameters()))) == sorted(
        map(tuple, (p.shape for p in ours.parameters()))
    )
    seen: dict[str, list[tuple[int, ...]]] = {}
    for name, network in (("theirs", theirs), ("ours", ours)):
        with torch.no_grad(), bench_calls() as recorded:
            network.eval()(torch.zeros(1, channels, side, side))
        seen[name] = sorted((*x, *weight, *stride) for x, weight, stride, _, _ in recorded.calls)
    assert seen["theirs"] == seen["ours"]


def bench_calls() -> torch.utils._python_dispatch.TorchDispatchMode:
    from fastswa.floor import _Convolutions

    return _Convolutions()


def test_the_naive_step_learns_from_certain_guesses_alone(naive: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss against a loop, with nothing and with everything above the threshold."""
    for threshold in (0.0, 1.1):
        torch.manual_seed(0)
        monkeypatch.setattr(naive, "THRESHOLD", threshold)
        trainer = naive.FixMatch("resnet9", torch.device("cpu"), width=2)
        labelled, weak, strong = (torch.randn(count, 3, 8, 8) for count in (2, 5, 5))
        labels = torch.tensor([3, 7])
        same = copy.deepcopy(trainer.student)  # whose passes leave the running statistics of the other alone
        with torch.no_grad():
            guess = same.eval()(weak).argmax(dim=1)
            logits = torch.log_softmax(same.train()(torch.cat([labelled, strong])), dim=1).double()
        supervised = -sum(logits[row, int(label)] for row, label in enumerate(labels)) / 2
        learnt = -sum(logits[2 + row, int(label)] for row, label in enumerate(guess)) / 5
        before = next(trainer.average.parameters()).clone()
        loss = trainer.step(labelled, weak, strong, labels)
        assert loss == pytest.approx(float(supervised + (learnt if threshold == 0 else 0)), rel=1e-5)
        assert not torch.equal(before, next(trainer.average.parameters()))


def test_naive_operations_in_batches_are_pillows(naive: ModuleType) -> None:
    """Each operation on all images at one strength, against Pillow's own within two grey levels nearly everywhere."""
    pixels = np.random.default_rng(1).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    x, strength = torch.from_numpy(pixels).float(), 0.8
    pictures = [Image.fromarray(p.transpose(1, 2, 0)) for p in pixels]
    for number, operation in enumerate(naive.BATCHED):
        found = operation(x, torch.full((3, 1, 1, 1), strength)).numpy()
        pictured = naive.PICTURED[number + 1]
        wanted = np.stack([np.asarray(pictured(p, 2 * strength - 1, strength)).transpose(2, 0, 1) for p in pictures])
        if number < 5:
            # Moves: to either side, with the border and a shear's fixed point elsewhere; most of the pixels are kept.
            assert 0.5 < (found > 0).mean() < 1
            continue
        assert (np.abs(found - wanted) <= 2).mean() > 0.99, number


@pytest.mark.parametrize("source", ["tensors_in_memory", "pil_loader"])
def test_naive_batches(naive: ModuleType, source: str) -> None:
    data = images().train
    batches = getattr(naive, source)(data.pixels, data.labels, 16, 2, torch.device("cpu"), 1, True, workers=0)
    labelled, weak, strong, labels = next(batches)
    assert [tuple(part.shape) for part in (labelled, weak, strong, labels)] == [
        (2, 3, 8, 8),
        (14, 3, 8, 8),
        (14, 3, 8, 8),
        (2,),
    ]
    # Normalised, and a quarter of each strong view is cut out but where it reaches beyond the edge.
    assert abs(float(weak.mean())) < 0.3
    assert 0.8 < float(weak.std()) < 1.2
    assert 0.05 < float((strong == 0).all(dim=1).float().mean()) < 0.6


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_naive_loaders_keep_their_workers_and_pin_for_a_gpu(
    naive: ModuleType, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A worker for each core, sixteen at most; FixMatch's labelled images have two besides."""
    asked: list[tuple[int, dict[str, object]]] = []

    def loader(pictures: object, batch: int, **options: object) -> list[list[torch.Tensor]]:
        asked.append((batch, options))
        return [[torch.zeros(batch)] * (3 if batch == 16 else 2)]

    plain = importlib.import_module("naive")
    monkeypatch.setattr(plain, "DataLoader", loader)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    data = images().train
    for cores, workers in ((64, 16), (3, 3)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        for loop in (plain, naive):
            next(loop.pil_loader(data.pixels, data.labels, 16, 2, torch.device(device), 1, True))
        assert [(batch, options["num_workers"]) for batch, options in asked] == [(16, workers), (2, 2), (14, workers)]
        assert {options["persistent_workers"] for _, options in asked} == {True}
        assert {options["pin_memory"] for _, options in asked} == {device == "cuda"}
        asked.clear()


def test_naive_loops_get_all_images_and_torchs_own_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, bool, bool]] = []

    class Trainer:
        def __init__(self, *_: object) -> None: ...

        def step(self, images: int, labels: int) -> None:
            cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
            seen.append((images, labels, cudnn.allow_tf32, matmul.allow_tf32))

    def source(pixels: np.ndarray, labels: np.ndarray, *_: object) -> Iterator[tuple[int, int]]:
        yield from repeat((len(pixels), len(labels)))

    loops = SimpleNamespace(FixMatch=Trainer, tensors_in_memory=source, pil_loader=source)
    monkeypatch.setattr(bench, "_naive_module", lambda name: loops)
    monkeypatch.setattr(bench, "time_steps", lambda one, *_: one() or 1.0)
    config = config_of()
    compute = choose_compute(config.device)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = list(bench._naive("resnet9", config, images(6000, side=4), compute, 0.01, None))
    assert [name for name, *_ in found] == ["naive", "naive, PIL loader"]
    assert seen == [(6000, 6000, True, False)] * 2
    assert not torch.backends.cudnn.allow_tf32


def test_rows_hold_method_floor_and_the_share_of_strong_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_compiled_on_cpu", lambda: ())
    config, dataset = config_of(width=4), images()
    naive = bench.naive_times("resnet9", config, 0.01, dataset, workers=0)
    rows = {row.engine: row for row in bench.bench_model("resnet9", config, 0.01, naive, dataset)}
    assert list(rows) == ["naive", "naive, PIL loader", "eager", "convolutions", "strong views"]
    assert {row.method for row in rows.values()} == {"fixmatch"}
    eager, views = rows["eager"], rows["strong views"]
    assert eager.ratio_to_naive == pytest.approx(rows["naive"].ms_per_step / eager.ms_per_step)
    assert eager.ratio_to_loader == pytest.approx(rows["naive, PIL loader"].ms_per_step / eager.ms_per_step)
    assert eager.ratio_to_floor == pytest.approx(eager.ms_per_step / rows["convolutions"].ms_per_step)
    assert views.share_of_step == pytest.approx(views.ms_per_step / eager.ms_per_step)
    assert 0 < views.share_of_step < 1
    assert (views.batch, views.tflops) == (14, None)
    assert [row.share_of_step for row in rows.values() if row is not views] == [None] * 4


def test_the_command_on_the_digits(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean Teacher's rows have nothing of strong views; a batch of another size keeps its proportion."""
    monkeypatch.setattr(bench, "_compiled_on_cpu", lambda: ())
    monkeypatch.setattr(bench, "_naive", lambda *_: iter(()))
    words = ("bench", "--device", "cpu", "--threads", "1", "--seconds", "0.01", "--batch", "8")
    answer = command(*words, "--json")
    assert answer.code == 0
    told = [line.rsplit(": ", 1)[0] for line in answer.err.splitlines()]
    assert told == ["fastswa: small, eager", "fastswa: small, convolutions"]
    rows = json.loads(answer.out)
    assert [(row["engine"], row["method"], row["batch"]) for row in rows] == [
        ("eager", "mean-teacher", 8),
        ("convolutions", "mean-teacher", 8),
    ]
    assert {row["share_of_step"] for row in rows} == {None}
    assert "One training step on cpu" in command(*words).out


def test_naive_loops_come_before_our_engines_change_the_process(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_compiled_on_cpu", lambda: ())
    monkeypatch.setattr(bench, "random_images", lambda: images(6000, side=32))
    monkeypatch.setattr(bench, "time_steps", lambda *_: 1.0)
    monkeypatch.setattr(bench, "floor_ms", lambda *_: 1.0)
    answer = command("bench", "--device", "cpu", "--models", "small,cnn13", "--batch", "8", "--workers", "0", "--json")
    assert answer.code == 0, answer.err
    told = [line.removeprefix("fastswa: ").rsplit(": ", 1)[0] for line in answer.err.splitlines()]
    naive = [f"{model}, {loop}" for model in ("small", "cnn13") for loop in ("naive", "naive, PIL loader")]
    ours = [f"{model}, {row}" for model in ("small", "cnn13") for row in ("eager", "convolutions")]
    assert told == [*naive, *ours]
    assert [(row["model"], row["engine"]) for row in json.loads(answer.out)][:3] == [
        ("small", "naive"),
        ("small", "naive, PIL loader"),
        ("small", "eager"),
    ]


def test_only_the_digits_network_where_there_is_no_gpu(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(bench, "run_bench", lambda models, *_, **__: asked.append(models) or 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command("bench").code == 0
    assert command("bench", "--models", "small,cnn13").code == 0
    assert asked == [["small"], ["small", "cnn13"]]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--models", "resnet10"), "--models: 'resnet10' is not one of small, cnn13, shake-shake-26-2x96d, resnet9,"),
        (("--batch", "1"), "--batch: a step takes two images at least, one of them labelled."),
        (("--batch", "1400"), "--batch: 1400 images a step are more than the 1297 there are."),
        (("--seconds", "inf"), "--seconds: 'inf' is not a number above zero."),
        (("--batch", "1.5"), "--batch: '1.5' is not a whole number."),
        (("--batch", "0"), "--batch: '0' is not a number above zero."),
        (("--workers", "-1"), "--workers: '-1' is not a number that is zero or more."),
        (("--workers", "few"), "--workers: 'few' is not a number that is zero or more."),
        (("--workers", "nan"), "--workers: 'nan' is not a number that is zero or more."),
        (("--workers", "0.5"), "--workers: '0.5' is not a whole number."),
    ],
)
def test_misuse_is_one_sentence(command: Command, words: tuple[str, ...], sentence: str) -> None:
    answer = command("bench", "--device", "cpu", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"fastswa: {sentence}")
    assert len(answer.err.splitlines()) == 1


def test_a_network_named_without_its_option_is_refused(command: Command) -> None:
    assert command("bench", "cnn13") == (2, "", "fastswa: bench takes no 'cnn13'; --models A,B names networks.\n")
