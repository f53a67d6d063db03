"""Exports give the model's answers in their own runtimes, hold plain weights, and leave nothing behind if they fail."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import fastswa
from conftest import Command
from fastswa import export as export_module
from fastswa import models, portable
from fastswa.data.sources import load as load_source
from fastswa.export import compare, write_export
from fastswa.modelfile import ModelFacts, TrainedModel, folded, softmax
from fastswa.models.network import Output
from fastswa.models.shake_shake import ShakeShake
from tiny_runs import tiny, train

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def made(network: nn.Module, shape: tuple[int, int, int], **facts: Any) -> TrainedModel:
    """A model whose weight norms and batch-norm statistics are no longer those of the beginning."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.momentum = 1.0
        network.train()(torch.randn(16, *shape))
    mean, std = tuple(0.4 + 0.1 * c for c in range(shape[0])), tuple(0.2 + 0.05 * c for c in range(shape[0]))
    described = {"architecture": "cnn13", "classes": ("a", "b", "c"), "shape": shape, "mean": mean, "std": std}
    return TrainedModel(network, ModelFacts(**{**described, **facts}))


def pictures(shape: tuple[int, ...], count: int = 9) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, *shape), np.uint8)


def by_hand(model: TrainedModel, images: np.ndarray) -> np.ndarray:
    """Logits of (N, C, H, W) from the network alone, normalised in float64."""
    mean, std = (np.array(values)[:, None, None] for values in (model.facts.mean, model.facts.std))
    inputs = torch.from_numpy((images / 255 - mean) / std).float()
    with torch.no_grad():
        logits: Tensor = model.network(inputs).logits / model.facts.temperature
    return logits.numpy()


def in_onnxruntime(file: Path) -> Callable[[np.ndarray], list[np.ndarray]]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {session.get_inputs()[0].name: images})


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    test = load_source("digits", Path("data")).test
    assert test is not None
    return test.pixels[:20]


@pytest.fixture
def own_copy(finished: Path, tmp_path: Path) -> Path:
    """The finished run again, for what is written into it."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_as_onnx(command: Command, finished: Path, digits: np.ndarray, tmp_path: Path) -> None:
    out = tmp_path / "new" / "digits.onnx"
    answer = command("export", finished, "--out", out)
    assert (answer.code, answer.err) == (0, "")
    first, second = answer.out.splitlines()
    assert first.startswith(f"{out}: fast-SWA, ")
    assert first.endswith("uint8 images (batch, 1, 8, 8) in, logits and probabilities out.")
    assert second.startswith("On 64 test images it differs from the model by at most ")
    assert sorted(out.parent.iterdir()) == [out]
    wanted = fastswa.load(finished).predict(digits).probabilities
    for images in (digits, digits[:1]):
        logits, probabilities = in_onnxruntime(out)(np.ascontiguousarray(images))
        np.testing.assert_allclose(probabilities, wanted[: len(images)], atol=1e-5)
        np.testing.assert_allclose(softmax(logits), probabilities, atol=1e-6)
    facts = json.loads(next(p.value for p in onnx.load(out).metadata_props if p.key == "fastswa"))
    assert facts["classes"] == list("0123456789")
    assert facts["input"] == {"name": "images", "type": "uint8", "layout": "NCHW", "shape": ["batch", 1, 8, 8]}
    assert facts["inside"] == ["normalisation", "temperature", "softmax"]
    assert facts["network"] == "fast_swa"


def test_a_run_as_torch_export(command: Command, own_copy: Path, digits: np.ndarray) -> None:
    answer = command("export", own_copy, "--format", "torch-export", "--network", "student", "--json")
    assert (answer.code, answer.err) == (0, "")
    facts = json.loads(answer.out)
    assert (facts["out"], facts["network"]) == (f"{own_copy}/student.pt2", "student")
    assert facts["checked_on"] == "64 test images"
    assert 0 <= facts["logit_difference"] < 1e-4
    extra = {"fastswa.json": ""}
    program = torch.export.load(own_copy / "student.pt2", extra_files=extra)
    assert json.loads(extra["fastswa.json"])["classes"] == list("0123456789")
    wanted = fastswa.load(own_copy, "student").predict(digits).probabilities
    for count in (1, 20):
        _, probabilities = program.module()(torch.from_numpy(digits[:count].copy()))
        np.testing.assert_allclose(probabilities.detach().numpy(), wanted[:count], atol=1e-6)


def test_a_run_as_safetensors(command: Command, own_copy: Path, digits: np.ndarray) -> None:
    answer = command("export", own_copy, "--format", "safetensors")
    assert answer.code == 0
    assert "weights, and beside them model.plain.json on how to use them." in answer.out
    out = own_copy / "model.plain.safetensors"
    wanted = fastswa.load(own_copy).predict(digits).probabilities
    np.testing.assert_allclose(fastswa.load(out).predict(digits).probabilities, wanted, atol=1e-6)
    facts = json.loads(out.with_suffix(".json").read_text())
    assert (facts["inside"], facts["temperature"], facts["architecture"]) == ([], 1.0, "small")
    assert facts["normalisation"]["mean"] == pytest.approx(fastswa.load(own_copy).facts.mean)
    # What is written beside a run's models is not taken for one of them.
    assert {file.stem for file in (own_copy / "models").iterdir()} == {"student", "teacher", "swa", "fast_swa", "ema"}


def test_weight_norm_is_folded_in(tmp_path: Path) -> None:
    """The 13-layer CNN: nine plain convolutions, the answers those of the weight-normalised network."""
    model = made(models.build("cnn13", channels=3, classes=3, heads=2), (3, 12, 14), temperature=1.7, heads=2)
    images, out = pictures((3, 12, 14)), tmp_path / "a.onnx"
    assert max(write_export(model, out, "onnx", images)) < 1e-5
    logits, probabilities = in_onnxruntime(out)(images)
    np.testing.assert_allclose(logits, by_hand(model, images), atol=1e-5)
    np.testing.assert_allclose(probabilities, softmax(by_hand(model, images)), atol=1e-6)
    counts = Counter(node.op_type for node in onnx.load(out).graph.node)
    assert (counts["Conv"], counts["Gemm"] + counts["MatMul"]) == (9, 1)
    assert not {"ReduceL2", "ReduceSumSquare", "Sqrt", "Expand"} & counts.keys()


def test_channels_may_come_last(tmp_path: Path) -> None:
    model = made(models.build("small", channels=3, classes=3, width=4), (3, 8, 10), architecture="small")
    images, out = pictures((3, 8, 10)), tmp_path / "a.onnx"
    write_export(model, out, "onnx", images, "nhwc")
    logits, _ = in_onnxruntime(out)(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(logits, by_hand(model, images), atol=1e-5)
    facts = json.loads(next(p.value for p in onnx.load(out).metadata_props if p.key == "fastswa"))
    assert facts["input"] == {"name": "images", "type": "uint8", "layout": "NHWC", "shape": ["batch", 8, 10, 3]}


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_images_may_be_standardised_each_by_itself(form: str, tmp_path: Path) -> None:
    network = models.build("small", channels=3, classes=3, width=4)
    model = made(network, (3, 8, 10), architecture="small", standardise=True)
    images = pictures((3, 8, 10))
    images[0] = 7
    centred = images - images.mean(axis=(1, 2, 3), keepdims=True)
    inputs = centred / np.sqrt(np.square(centred).mean(axis=(1, 2, 3), keepdims=True) + 0.01)
    with torch.no_grad():
        expected = model.network(torch.from_numpy(inputs).float()).logits.numpy()
    np.testing.assert_allclose(model.logits(torch.from_numpy(images)), expected, atol=1e-5)
    # Compared with the model's own logits before it takes its place.
    write_export(model, tmp_path / "a", form, images)
    described = portable.described(model.facts)["normalisation"]
    assert described.keys() == {"formula"}
    assert "variance of all x of the image" in described["formula"]


def test_plain_weights_have_plain_names(tmp_path: Path) -> None:
    model = made(models.build("cnn13", channels=3, classes=3), (3, 12, 12))
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    out = tmp_path / "a.safetensors"
    write_export(model, out, "safetensors", pictures((3, 12, 12)))
    with safe_open(out, "pt") as stream:
        names, weight = set(stream.keys()), stream.get_tensor("block1.0.conv.weight")
    assert not [name for name in names if "parametrizations" in name]
    assert torch.equal(weight, model.network.block1[0].conv.weight)  # type: ignore[index, union-attr]
    images = pictures((3, 12, 12))
    logits = fastswa.load(out).logits(torch.from_numpy(images))
    np.testing.assert_allclose(logits, by_hand(model, images), atol=1e-5)
    # The model itself is as it was: still weight-normalised, nothing changed.
    assert before.keys() == model.network.state_dict().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_shake_shake(form: str, tmp_path: Path) -> None:
    model = made(ShakeShake(depth=8, width=4, channels=1, classes=3, heads=2), (1, 8, 8), heads=2)
    images = pictures((1, 8, 8))
    out = tmp_path / ("a" + export_module.SUFFIXES[form])
    write_export(model, out, form, images)
    if form == "onnx":
        logits = in_onnxruntime(out)(images)[0]
    else:
        logits = torch.export.load(out).module()(torch.from_numpy(images))[0].detach().numpy()
    np.testing.assert_allclose(logits, by_hand(model, images), atol=1e-5)


def test_feature_vectors(tmp_path: Path) -> None:
    network = models.build("perceptron", channels=4, classes=3)
    model = made(network, (4, 1, 1), architecture="perceptron", features=True, mean=(0.0, 1e3, -5.0, 2.0))
    features = np.random.default_rng(0).normal(model.facts.mean, model.facts.std, (9, 4)).astype(np.float32)
    write_export(model, tmp_path / "a.onnx", "onnx", features)
    probabilities = in_onnxruntime(tmp_path / "a.onnx")(features)[1]
    np.testing.assert_allclose(probabilities, model.predict(features).probabilities, atol=1e-5)
    with pytest.raises(fastswa.RequestError, match=r"^called, the model takes a tensor of numbers of shape \(N, 4\), "):
        model(torch.from_numpy(features)[:, :3])


def test_folding_needs_no_weight_norm() -> None:
    network = models.build("small", channels=1, classes=2)
    network.train()
    plain = folded(network)
    assert network.training
    assert not plain.training
    assert plain.state_dict().keys() == network.state_dict().keys()


def shifted(file: Path) -> portable.Runner:
    """Answers that are off by 0.01."""

    def run(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = np.full((len(images), 10), 0.01, np.float32)
        return logits, softmax(logits)

    return run


@pytest.mark.parametrize("form", list(export_module.SUFFIXES))
def test_a_file_that_differs_is_not_left_behind(
    form: str, command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / ("a" + export_module.SUFFIXES[form])
    out.write_text("earlier")

    def write(model: TrainedModel, file: Path, layout: str) -> portable.Runner:
        file.write_text("wrong")
        return shifted(file)

    monkeypatch.setitem(portable.WRITERS, form, write)
    answer = command("export", finished, "--format", form, "--out", out)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("fastswa: the exported file differs from the model by up to ")
    assert answer.err.endswith("more than rounding explains; nothing was written.\n")
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_text() == "earlier"


@pytest.mark.parametrize(
    ("offset", "scale", "fine"),
    [(1e-5, 1.0, True), (1e-2, 1.0, False), (0.0, 1.01, False), (float("nan"), 1.0, False)],
)
def test_rounding_is_told_from_a_difference(offset: float, scale: float, fine: bool, finished: Path) -> None:
    model = fastswa.load(finished)
    images = pictures((1, 8, 8))

    def run(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = model.logits(torch.from_numpy(images))
        logits[:, 0] += offset
        return logits, scale * softmax(logits)

    if fine:
        assert compare(model, run, images)[0] == pytest.approx(offset, rel=0.1)
    else:
        with pytest.raises(fastswa.RunError, match="more than rounding explains"):
            compare(model, run, images)


class Stubborn(nn.Module):
    """A network whose way depends on its input, which no exporter can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Output:
        features = x.flatten(1) * (2.0 if float(x.sum()) > 0 else 1.0)
        return Output(self.linear(features), self.linear(features), features)


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_what_cannot_be_exported_is_one_sentence(form: str, tmp_path: Path) -> None:
    model = made(Stubborn(), (1, 2, 2), architecture="stubborn")
    with pytest.raises(fastswa.RunError, match=rf"^stubborn cannot be exported to {form}: .+\.$") as caught:
        write_export(model, tmp_path / "a", form, pictures((1, 2, 2)))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_one_sentence_names_it(
    command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable, "find_spec", lambda name: None if name.startswith("onnx") else object())
    answer = command("export", finished, "--out", tmp_path / "a.onnx")
    assert answer.code == 2
    assert answer.err == (
        "fastswa: onnx needs onnx and onnxscript and onnxruntime: "
        "`pip install '.[onnx]'` in fastswa's folder brings what is missing.\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert command("export", finished, "--out", tmp_path / "a.safetensors", "--format", "safetensors").code == 0


def test_random_images_where_the_runs_own_are_gone(command: Command, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=images, y_train=np.arange(60) % 2)
    batch = {"size": 12, "labelled": 6, "steps": 2}
    settings = {
        "data": {"source": str(tmp_path / "a.npz")},
        "batch": batch,
        "split": {"labels": None, "validation": 12},
    }
    train(tiny(settings, {"schedule": {"epochs": 1}}), tmp_path / "run")

    def checked_on(place: Path) -> str:
        answer = command("export", place, "--format", "safetensors", "--out", tmp_path / "b.safetensors", "--json")
        facts: dict[str, str] = json.loads(answer.out)
        return facts["checked_on"]

    assert checked_on(tmp_path / "run") == "12 validation images"
    assert checked_on(tmp_path / "run" / "model.safetensors") == "64 random images"
    (tmp_path / "a.npz").unlink()
    assert checked_on(tmp_path / "run").startswith(f"64 random images ({tmp_path / 'a.npz'}: there is no such file")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "name a run folder or model file."),
        ("gone", "there is no model file gone."),
        ("RUN --format tensorflow", "--format: 'tensorflow' is not onnx, torch-export, safetensors."),
        ("RUN --out a.pt", "--out: a.pt must end in .onnx for onnx."),
        ("RUN --layout hwcn", "--layout: 'hwcn' is not nchw or nhwc."),
        ("RUN --layout nhwc --format safetensors", "--layout: safetensors hold the weights alone;"),
        ("RUN --network best", "RUN has no network 'best'; there are: "),
        ("RUN --format safetensors --out RUN/model.safetensors", "--out: RUN/model.safetensors is a model of the run"),
        ("RUN --format safetensors --out RUN/models/swa.safetensors", "--out: RUN/models/swa.safetensors is a model"),
        ("RUN/model.safetensors --format safetensors --out RUN/model.safetensors", "--out: RUN/model.safetensors is a"),
        ("RUN --format safetensors --out file/a.safetensors", "--out: cannot write file/a.safetensors: File exists."),
    ],
)
def test_wrong_requests(
    words: str, sentence: str, command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("RUN").symlink_to(finished)
    Path("file").write_text("")
    answer = command("export", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"fastswa: {sentence}")
    assert answer.err.count("\n") == 1
    assert fastswa.load(finished).facts == fastswa.load(finished, "fast_swa").facts
