"""Backbones of the package timm, on a stand-in with its interface, and on the package itself where it is there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import Command
from fastswa.api import load
from fastswa.errors import RequestError
from fastswa.models import build, refuse_size
from tiny_runs import StoppingWatcher, assert_same_run, go_on, tiny, train


class Backbone(nn.Module):
    """What timm.create_model gives with num_classes=0: images to features after pooling."""

    def __init__(self, in_chans: int, hidden: int | None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 6, 3, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.num_features = 6
        if hidden is not None:
            self.head_hidden_size = hidden
        self.last = nn.Identity() if hidden is None else nn.Linear(6, hidden)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.last(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))
        return features


HIDDEN = {"resnet18": None, "mobilenetv3": 9, "vit_tiny": None}


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the package, which cannot be imported on every machine (it needs torchvision)."""
    stand_in: Any = ModuleType("timm")
    stand_in.__version__ = "1.0.30"
    stand_in.calls = []

    def create_model(name: str, *, pretrained: bool, in_chans: int, num_classes: int) -> nn.Module:
        stand_in.calls.append((name, pretrained, in_chans, num_classes))
        if pretrained:
            raise OSError("We cannot reach the hub. Check your connection.")
        return Backbone(in_chans, HIDDEN[name])

    def get_pretrained_cfg(name: str) -> Any:
        return SimpleNamespace(fixed_input_size=name == "vit_tiny", input_size=(3, 224, 224))

    stand_in.create_model = create_model
    stand_in.is_model = HIDDEN.__contains__
    stand_in.list_models = lambda: list(HIDDEN)
    stand_in.models = SimpleNamespace(get_pretrained_cfg=get_pretrained_cfg)
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    module: ModuleType = stand_in
    return module


@pytest.mark.parametrize(("name", "features"), [("resnet18", 6), ("mobilenetv3", 9)])
def test_a_backbone_under_our_heads(timm: Any, name: str, features: int) -> None:
    network = build(f"timm:{name}", channels=1, classes=4, heads=2, size=32)
    output = network(torch.randn(2, 1, 32, 32))
    assert timm.calls == [(name, False, 1, 0)]
    assert output.logits.shape == output.consistency.shape == (2, 4)
    assert output.features.shape == (2, features)


def test_dropout_is_ours_on_the_features(timm: Any) -> None:
    network = build("timm:resnet18", channels=3, classes=4, dropout=0.5)
    features = network(torch.randn(8, 3, 32, 32)).features
    assert 0 < (features == 0).float().mean() < 1


def test_a_held_backbone_trains_its_heads_alone(timm: Any) -> None:
    network = build("timm:resnet18", channels=3, classes=4, frozen=True).train()
    before = network.backbone.norm.running_mean.clone()
    network(torch.randn(8, 3, 32, 32)).logits.sum().backward()
    assert torch.equal(network.backbone.norm.running_mean, before)
    assert {name for name, p in network.named_parameters() if p.grad is not None} == {
        "heads.first.weight",
        "heads.first.bias",
    }


REFUSALS = {
    "timm:resent18": "model.name: timm has no architecture 'resent18'; did you mean resnet18?",
    "timm:hf-hub:a/b": "model.name: timm has no architecture 'hf-hub:a/b'; there are: mobilenetv3, resnet18, vit_tiny.",
    "timm:vit_tiny": "model.name: timm:vit_tiny takes images of 224x224 alone, not 64x64; set --data.size 224 or "
    "choose another.",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_timm_does_not_have_is_refused(timm: Any, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        refuse_size(name, (3, 64, 64))
    assert str(caught.value) == REFUSALS[name]


def test_pretrained_weights_without_a_network_connection(timm: Any) -> None:
    with pytest.raises(RequestError) as caught:
        build("timm:resnet18", channels=3, classes=4, pretrained=True)
    assert str(caught.value) == (
        "model.pretrained: the weights of resnet18 cannot be had here (We cannot reach the hub); "
        "connect to the network once, or train without them."
    )


def test_a_timm_that_may_unpickle_weights_is_refused(timm: Any) -> None:
    timm.__version__ = "1.0.15"
    with pytest.raises(RequestError, match=r"timm 1\.0\.15 may run code from a file of weights; install timm 1\.0\.30"):
        build("timm:resnet18", channels=3, classes=4, pretrained=True)
    assert build("timm:resnet18", channels=3, classes=4) is not None


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr("fastswa.models.timm.TimmNetwork.smallest", 8)
    answer = command("train", "digits-pi", "--model", "timm:resnet18", "--out", tmp_path / "run")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "model.name: timm:resnet18 needs the package timm" in answer.err
    assert answer.err.endswith("; `pip install '.[timm]'` in fastswa's folder brings it.\n")


def test_other_networks_have_no_pretrained_weights(command: Command, tmp_path: Path) -> None:
    answer = command("train", "digits-pi", "--model.pretrained", "--out", tmp_path / "run")
    assert (answer.code, answer.err) == (
        2,
        "fastswa: model.pretrained has no effect on the model small; leave it out.\n",
    )


def test_a_run_resumes_and_its_model_loads_without_fetching_weights(
    timm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastswa.models.timm.TimmNetwork.smallest", 8)

    def offered(name: str, *, pretrained: bool, in_chans: int, num_classes: int) -> nn.Module:
        timm.calls.append(pretrained)
        return Backbone(in_chans, HIDDEN[name])

    timm.create_model = offered
    config = tiny({"model": {"name": "timm:resnet18", "pretrained": True}, "schedule": {"epochs": 2}})
    config = config.model_copy(update={"model": config.model.model_copy(update={"width": None})})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped", StoppingWatcher(stop=3))
    assert timm.calls == [True] * 4
    timm.calls.clear()
    go_on(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    model = load(tmp_path / "whole")
    assert model.facts.architecture == "timm:resnet18"
    assert timm.calls == [False] * 3


def test_the_package_itself() -> None:
    try:
        import timm as package
    except ImportError:
        pytest.skip("timm or torchvision is not here")
    for name in ("resnet18", "mobilenetv3_small_100"):
        assert package.is_model(name)
        refuse_size(f"timm:{name}", (1, 64, 64))
        output = build(f"timm:{name}", channels=1, classes=4, heads=2)(torch.randn(2, 1, 64, 64))
        assert output.logits.shape == (2, 4)
        assert output.features.shape[1] == build(f"timm:{name}", channels=1, classes=4).heads.first.in_features
