"""Where weights are tried: a network of their architecture, and images to refresh and measure it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastswa.config import Config, DeviceConfig, ModelConfig
from fastswa.data.images import Dataset
from fastswa.data.sources import SOURCES, is_own_data
from fastswa.errors import RequestError
from fastswa.evaluate import Evaluator
from fastswa.layers import build_config, recipe_names, target_layer
from fastswa.modelfile import ModelFacts
from fastswa.models.network import Output
from fastswa.noise import Noise
from fastswa.training.again import images_of_run, still_measured
from fastswa.training.device import Compute, choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.refresh import Refresher
from fastswa.training.setup import Material, load_data, prepare, suited

_TIMM = "timm:"


@dataclass(frozen=True)
class Images:
    """Images made ready on a device: batches as in training, and sets of labelled ones to measure on, by name."""

    config: Config
    material: Material
    compute: Compute
    measured: dict[str, Evaluator]


@dataclass(frozen=True)
class Stage:
    """A network and the images to try it on.

    `holder` holds the weights under the names that they have in checkpoints after `prefix`; `facts` are for a model
    file of ours, None where the network is not one of ours.
    """

    network: nn.Module
    holder: nn.Module
    prefix: str
    facts: ModelFacts | None
    images: Images

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put a checkpoint's weights into the network."""
        own = self.holder.state_dict()
        self.holder.load_state_dict({name: tensors[self.prefix + name] for name in own})

    def measure(self) -> dict[str, dict[str, float]]:
        """Figures by set of images."""
        arithmetic = self.images.compute.arithmetic
        return {name: evaluator(self.network, arithmetic()) for name, evaluator in self.images.measured.items()}

    def refresh(self) -> None:
        """Batch-norm statistics from batches as in training."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.images.config.seed)
            Refresher(self.network, self.images.config, self.images.material, self.images.compute)("average")

    def tensors(self, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """The checkpoint `like` with this network's weights, in its own types."""
        own = {self.prefix + name: tensor for name, tensor in self.holder.state_dict().items()}
        return {name: own[name].detach().cpu().to(t.dtype) if name in own else t for name, t in like.items()}


def facts_of_run(run: Path) -> ModelFacts:
    """What a run's networks are, from its settings and images; for one that has no model file yet."""
    config = RunFolder.open(run).config().model_copy(update={"device": DeviceConfig(name="cpu")})
    return prepare(config, load_data(config), choose_compute(config.device)).facts


def images_for(
    source: str, root: str, facts: ModelFacts | None, model: str | None, device: str, say: Callable[[str], None]
) -> Images:
    """The images of a run, a recipe, a data set or one's own, normalised as the model wants them.

    A run's are batched, augmented and split as it says, but those that it may have learnt from since labels changed are
    not measured on, which `say` hears; of others every label is for measuring where no test set is.
    """
    of_run = (Path(source) / "config.toml").is_file()
    # In 32 bits everywhere: statistics that go into a file are the same wherever they are made.
    computed = DeviceConfig(name=device, precision="fp32")
    config = _config(source, root, facts, of_run).model_copy(update={"device": computed})
    now = images_of_run(Path(source), config) if of_run else None
    dataset = load_data(config) if now is None else now.dataset
    compute = choose_compute(config.device)
    if facts is not None:
        if facts.shape != dataset.train.shape:
            (c, h, w), (channels, height, width) = facts.shape, dataset.train.shape
            raise RequestError(
                f"the model takes images of {h}x{w}x{c}, and those of {source} are {height}x{width}x{channels}."
            )
        dataset = replace(dataset, normalisation=(facts.mean, facts.std))
        augment = config.augment.model_copy(update={"standardise": facts.standardise})
        config = config.model_copy(update={"augment": augment})
    architecture = facts.architecture if facts is not None else model
    if architecture is not None:
        # Refuses sizes that the network cannot take, and nothing else.
        config = config.model_copy(update={"model": ModelConfig(name=architecture, heads=1)})
    if not of_run and (config.data.source in SOURCES or is_own_data(source)):
        config = suited(config, dataset)
    material = prepare(config, dataset, compute)
    measured = material.evaluators
    if facts is not None and facts.classes != dataset.classes:
        measured = {}
    elif not measured and not of_run:
        measured = {"labelled": _labelled(dataset, material)}
    if now is not None:
        measured = still_measured(Path(source), now, measured, say)
    return Images(config, material, compute, measured)


def _config(source: str, root: str, facts: ModelFacts | None, of_run: bool) -> Config:
    if of_run:
        config = RunFolder(Path(source)).config()
        extra = dict.fromkeys(("extra", "extra_images", "extra_file", "extra_per_epoch"))
        return config.model_copy(update={"data": config.data.model_copy(update=extra)})
    own = source not in SOURCES and is_own_data(source)
    if not own and source not in (*SOURCES, *recipe_names()):
        raise RequestError(f"--data: there is no run, data set, recipe, folder or file {source}.")
    layer = {"data": {"source": source}} if source in SOURCES else target_layer(source)
    data: dict[str, Any] = {"root": root}
    if own and facts is not None and facts.shape[1] == facts.shape[2]:
        data |= {"size": facts.shape[1], "channels": "grey" if facts.shape[0] == 1 else "rgb"}
    return build_config(layer, {"data": data, "split": {"validation": 0}})


def _labelled(dataset: Dataset, material: Material) -> Evaluator:
    chosen = torch.from_numpy(np.ascontiguousarray(material.split.labelled)).to(material.labels.device)
    pixels, rows = material.batch(material.split.labelled)
    return Evaluator(pixels[rows], material.labels[chosen], len(dataset.classes), material.augment)


def stage_for(images: Images, tensors: dict[str, Tensor], facts: ModelFacts | None, model: str | None) -> Stage:
    """A network for the checkpoints' tensors: the one that `facts` or else the name `model` describes."""
    ours: ModelFacts | None = facts
    if facts is None:
        assert model is not None
        heads = 2 if any(name.endswith("heads.second.bias") for name in tensors) else 1
        ours = facts = replace(images.material.facts, architecture=model, heads=heads, options={})
    network = holder = facts.build()
    if ours is not None and facts.architecture.startswith(_TIMM) and not any("backbone." in name for name in tensors):
        # timm's own network with its own classifier, where ours has two layers in its place.
        architecture = facts.architecture.removeprefix(_TIMM)
        holder = import_module("timm").create_model(
            architecture, pretrained=False, in_chans=facts.shape[0], num_classes=len(facts.classes)
        )
        network, ours = _Plain(holder), None
    prefix = _prefix(holder.state_dict(), tensors, facts.architecture)
    network.to(images.compute.device, images.compute.dtype)
    return Stage(network, holder, prefix, ours if not prefix else None, images)


class _Plain(nn.Module):
    """A network that gives logits alone, called as ours are."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, noise: Noise | None = None) -> Output:
        logits: Tensor = self.inner(x)
        return Output(logits, logits, logits)


def _prefix(network: dict[str, Tensor], tensors: dict[str, Tensor], architecture: str) -> str:
    """What a checkpoint puts before the network's names ("model.", as a LightningModule does), mostly nothing."""
    prefixes = {""} | {name[: dot + 1] for name in tensors for dot, letter in enumerate(name) if letter == "."}

    def missing(prefix: str) -> int:
        return sum(prefix + name not in tensors for name in network)

    best = min(sorted(prefixes), key=missing)
    for name, tensor in network.items():
        found = tensors.get(best + name)
        if found is None or found.shape != tensor.shape:
            there = "not there" if found is None else f"of shape {tuple(found.shape)}"
            raise RequestError(
                f"the checkpoints are not of {architecture}, or of other classes than the images: "
                f"{best + name} is {there} and should be of shape {tuple(tensor.shape)}."
            )
    if not best:
        for name in tensors.keys() - network.keys():
            raise RequestError(f"the checkpoints are not of {architecture}: it has no {name}.")
    return best
