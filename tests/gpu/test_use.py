"""Trained models in use on a GPU: predictions, errors, averages and the classifier say what they say on the CPU.

Run on a machine with a GPU: `pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import copy
import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fastswa
from conftest import Command
from fastswa.average import is_statistic
from fastswa.averaging import AveragedWeights
from fastswa.config import DeviceConfig
from fastswa.data.sources.digits import load_digits
from fastswa.modelfile import load_model
from fastswa.models import build
from fastswa.training.device import choose_compute, settings_of
from tiny_runs import tiny, train

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module", params=["cpu", DEVICE])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a hundred steps in 32 bits, on either device, that keeps epochs 3 and 4."""
    out = tmp_path_factory.mktemp("trained") / "run"
    engine = "graph" if request.param.startswith("cuda") else "eager"
    device = {"name": request.param, "engine": engine, "precision": "fp32"}
    train(tiny({"batch": {"steps": 25}, "model": {"width": 8}, "checkpoint": {"keep": [3, 4]}, "device": device}), out)
    return out


def rows(file: Path) -> tuple[list[str], np.ndarray]:
    """The labels of a file of predictions, and the probabilities (N, 10)."""
    with file.open(encoding="utf-8", newline="") as stream:
        found = list(csv.DictReader(stream))
    return [row["label"] for row in found], np.array(
        [[float(row[f"p_{digit}"]) for digit in range(10)] for row in found]
    )


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest of the differences between tensors of a name, each in norms of the second, or in ones."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name].cpu().double() - tensor.cpu().double()).norm()) / max(float(tensor.double().norm()), 1.0)
        for name, tensor in expected.items()
    )


@pytest.mark.parametrize("network", ["student", "teacher", "fast_swa"])
def test_predictions_are_those_of_the_cpu(trained: Path, network: str, tmp_path: Path, command: Command) -> None:
    said = {}
    for device in ("cpu", DEVICE):
        out = tmp_path / f"{device}.csv"
        words = ("--network", network, "--part", "test", "--device", device, "--out", out)
        answer = command("predict", trained, *words)
        assert answer.code == 0, answer.err
        said[device] = rows(out)
    assert said[DEVICE][0] == said["cpu"][0]
    assert len(set(said["cpu"][0])) > 5
    assert np.abs(said[DEVICE][1] - said["cpu"][1]).max() < 1e-4


def test_a_loaded_model_may_lie_on_the_gpu(trained: Path) -> None:
    test = load_digits(Path("data")).test
    assert test is not None
    expected = load_model(trained).predict(test.pixels)
    model = fastswa.load(trained).to(DEVICE)
    assert model.device.type == DEVICE
    for batch in (None, 7):
        with settings_of(choose_compute(DeviceConfig(name=DEVICE, precision="fp32"))):
            found = model.predict(test.pixels, batch)
        assert np.abs(found.probabilities - expected.probabilities).max() < 1e-4
        assert found.labels.tolist() == expected.labels.tolist()


def test_errors_are_those_of_the_cpu(trained: Path, command: Command) -> None:
    found = {}
    for device in ("cpu", DEVICE):
        answer = command("evaluate", trained, "--flips", "--device", device, "--json")
        assert answer.code == 0, answer.err
        found[device] = json.loads(answer.out)["test"]
    assert found[DEVICE].keys() == found["cpu"].keys() >= {"student", "teacher", "fast_swa", "fast_swa+flips"}
    for network, figures in found["cpu"].items():
        assert found[DEVICE][network]["error"] == pytest.approx(figures["error"], abs=0.3), network
        assert found[DEVICE][network]["nll"] == pytest.approx(figures["nll"], rel=1e-3), network
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])["error"]
    assert {name: found[DEVICE][name]["error"] for name in last} == pytest.approx(last, abs=0.3)


def averaged(names: list[Any], out: Path, device: str, command: Command, *words: object) -> dict[str, Tensor]:
    answer = command("average", *names, "--out", out, "--device", device, *words)
    assert answer.code == 0, answer.err
    assert "Its batch-norm statistics were refreshed" in answer.out
    return load_file(out)


def test_an_average_is_refreshed_as_on_the_cpu(trained: Path, tmp_path: Path, command: Command) -> None:
    names = [f"{trained}@3", f"{trained}@4"]
    expected = averaged(names, tmp_path / "cpu.safetensors", "cpu", command)
    found = averaged(names, tmp_path / "gpu.safetensors", DEVICE, command)
    assert any(is_statistic(name) and "var" in name for name in found)
    assert difference(found, expected) < 1e-5


def test_checkpoints_saved_from_a_gpu_are_averaged(tmp_path: Path, command: Command) -> None:
    """Files of torch whose tensors say that they lie on the GPU."""
    torch.manual_seed(0)
    files = []
    for number in range(2):
        network = build("small", channels=1, classes=10, heads=2, size=8).to(DEVICE)
        files.append(tmp_path / f"{number}.pt")
        torch.save(network.state_dict(), files[-1])
        assert all(tensor.device.type == DEVICE for tensor in network.state_dict().values())
    train(tiny({"schedule": {"epochs": 1}}), tmp_path / "run")
    words = ("--model", "small", "--data", tmp_path / "run")
    expected = averaged(files, tmp_path / "cpu.safetensors", "cpu", command, *words)
    found = averaged(files, tmp_path / "gpu.safetensors", DEVICE, command, *words)
    assert difference(found, expected) < 1e-5
    read = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
    weights = [name for name in expected if expected[name].is_floating_point() and not is_statistic(name)]
    means = {name: (read[0][name].double() + read[1][name].double()) / 2 for name in weights}
    assert difference({name: found[name] for name in weights}, means) < 1e-6


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("decay", [None, 0.9])
def test_averaged_weights_of_a_module_on_the_gpu(inside: bool, decay: float | None) -> None:
    """Someone's own loop: four iterates of a convolution with a batch norm, then fresh statistics."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)
    )
    iterates = [[torch.randn_like(p) for p in net.parameters()] for _ in range(4)]
    batches = [torch.randn(16, 3, 9, 9) + 1 for _ in range(3)]
    found = {}
    for device in ("cpu", DEVICE):
        model = copy.deepcopy(net).to(device)
        average = AveragedWeights(model, every=0, decay=decay, inside=inside)
        with settings_of(choose_compute(DeviceConfig(name=device, precision="fp32"))):
            for iterate in iterates:
                with torch.no_grad():
                    for parameter, values in zip(model.parameters(), iterate, strict=True):
                        parameter.copy_(values)
                assert average.update()
            average.refresh([(batch.to(device), None) for batch in batches])
            found[device] = dict(average.module.state_dict()) | {"said": average.module(batches[0].to(device))}
    assert found[DEVICE]["1.running_var"].device.type == DEVICE
    assert difference(found[DEVICE], found["cpu"]) < 1e-5
    if decay is None:
        means = [torch.stack(values).double().mean(dim=0) for values in zip(*iterates, strict=True)]
        own = {name: found[DEVICE][name] for name, _ in net.named_parameters()}
        assert difference(own, dict(zip(own, means, strict=True))) < 1e-6


def test_a_classifier_fitted_on_the_gpu_predicts() -> None:
    pytest.importorskip("sklearn", minversion="1.6")
    digits = load_digits(Path("data"))
    assert digits.test is not None
    images, truth = digits.train.pixels[:, 0], digits.train.labels
    labels = np.where(np.arange(len(truth)) < 300, truth, -1)
    classifier = fastswa.Classifier(model="small", device=DEVICE, epochs=5, random_state=0).fit(images, labels)
    assert classifier.model_.device.type == DEVICE
    others = digits.test.pixels[:, 0]
    probabilities = classifier.predict_proba(others)
    assert probabilities.shape == (len(others), 10)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(len(others)), abs=1e-5)
    assert (classifier.predict(others) == digits.test.labels).mean() > 0.8
    again = pickle.loads(pickle.dumps(classifier))
    assert again.model_.device.type == "cpu"
    # Outside a run convolutions round as torch is set to: to TF32, unless told otherwise.
    assert np.abs(again.predict_proba(others) - probabilities).max() < 0.02


def test_a_classifier_of_features_fitted_on_the_gpu_says_the_same_on_the_cpu() -> None:
    pytest.importorskip("sklearn", minversion="1.6")
    rng = np.random.default_rng(0)
    truth = np.arange(400) % 3
    rows = rng.normal(size=(400, 6)) + 2 * np.eye(6)[truth]
    labels = np.where(np.arange(400) < 60, truth, -1)
    classifier = fastswa.Classifier(device=DEVICE, epochs=10, random_state=0).fit(rows, labels)
    assert (classifier.predict(rows) == truth).mean() > 0.8
    again = pickle.loads(pickle.dumps(classifier))
    assert np.abs(again.predict_proba(rows) - classifier.predict_proba(rows)).max() < 1e-4
