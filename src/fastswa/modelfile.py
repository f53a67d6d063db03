"""Model files: safetensors whose metadata says how to build the network and what its inputs and outputs mean."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fastswa import models
from fastswa.averaging import canonical, unwrap
from fastswa.data.augment import Augment
from fastswa.data.features import standardised
from fastswa.errors import RequestError
from fastswa.evaluate import evaluating


@dataclass(frozen=True)
class ModelFacts:
    """What a model file says of its network; `features` where its inputs are feature vectors of any range."""

    architecture: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    heads: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    network: str = "student"
    epoch: float = 0.0
    features: bool = False

    def of(self, network: str) -> ModelFacts:
        return replace(self, network=network)

    def build(self) -> nn.Module:
        return models.build(
            self.architecture,
            channels=self.shape[0],
            classes=len(self.classes),
            heads=self.heads,
            **self.options,
        )


def save_model(path: Path, network: nn.Module, facts: ModelFacts) -> None:
    """Write a network's weights under their plain names, as a whole."""
    tensors = {
        canonical(name): tensor.detach().cpu().contiguous().clone()
        for name, tensor in unwrap(network).state_dict().items()
    }
    temporary = path.with_name(f".{path.name}.writing")
    save_file(tensors, temporary, metadata={"fastswa": json.dumps(asdict(facts))})
    os.replace(temporary, path)


def read_facts(path: Path) -> ModelFacts:
    """What a model file says of itself."""
    return _read(path)[0]


def load_weights(path: Path, network: nn.Module) -> None:
    """Put a model file's weights into a network of the same architecture."""
    _, tensors = _read(path)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise RequestError(f"{path} holds the weights of another network.") from error


def _read(path: Path) -> tuple[ModelFacts, dict[str, Tensor]]:
    if not path.is_file():
        raise RequestError(f"there is no model file {path}.")
    try:
        with safe_open(path, "pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RequestError(f"{path} is not a whole safetensors file.") from error
    try:
        plain = json.loads(metadata["fastswa"])
        lists = {name: tuple(plain[name]) for name in ("classes", "shape", "mean", "std")}
        return ModelFacts(**{**plain, **lists}), tensors
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path} was not written by this fastswa: its metadata say nothing of a network.") from error


@dataclass(frozen=True)
class Prediction:
    """`labels` (N,) class numbers, `names` their names, `probabilities` (N, classes) float32."""

    labels: np.ndarray
    names: list[str]
    probabilities: np.ndarray


class TrainedModel(nn.Module):
    """A trained network with its classes and its normalisation; called, it takes uint8 images to logits."""

    def __init__(self, network: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.network = network
        self.facts = facts
        self.classes = facts.classes
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) uint8, or (N, F) features where the network takes those, to logits (N, classes)."""
        if self.facts.features:
            of_features: Tensor = self.network(standardised(pixels, self.facts.mean, self.facts.std)).logits
            return of_features
        augment = Augment.normalising(self.facts.mean, self.facts.std, pixels.device)
        logits: Tensor = self.network(augment.plain(pixels.permute(0, 2, 3, 1))).logits
        return logits

    def predict(self, images: np.ndarray | Tensor | Sequence[np.ndarray], batch: int = 1000) -> Prediction:
        """The classes of uint8 images: (N, H, W), (N, H, W, C) or (N, C, H, W), or a list of single ones."""
        pixels = self._pixels(images)
        device = next(self.network.parameters()).device
        with evaluating(self):
            parts = [self(part.to(device)).float().softmax(dim=1).cpu() for part in pixels.split(batch)]
        probabilities = torch.cat(parts).numpy() if parts else np.zeros((0, len(self.classes)), np.float32)
        labels = probabilities.argmax(axis=1)
        return Prediction(labels, [self.classes[label] for label in labels], probabilities)

    def _pixels(self, images: np.ndarray | Tensor | Sequence[np.ndarray]) -> Tensor:
        """Any accepted form as (N, C, H, W) uint8; features as (N, F) float64."""
        try:
            array = images.cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
        except ValueError as error:
            raise RequestError("the images differ in size; bring them to one.") from error
        shape, (channels, height, width) = array.shape, self.facts.shape
        if self.facts.features:
            if array.ndim != 2 or array.shape[1] != channels or array.dtype.kind not in "biuf":
                raise RequestError(f"the model takes numbers of shape (N, {channels}), not {array.dtype} of {shape}.")
            return torch.from_numpy(array.astype(np.float64))
        if array.dtype != np.uint8:
            raise RequestError(f"images must be uint8 (0 to 255), not {array.dtype}.")
        if array.ndim == 3:
            array = array[:, None]
        elif array.ndim == 4 and array.shape[1:] != self.facts.shape:
            array = array.transpose(0, 3, 1, 2)
        if array.ndim != 4 or array.shape[1:] != self.facts.shape:
            raise RequestError(f"the model takes images of {height}x{width}x{channels}, not an array of shape {shape}.")
        return torch.from_numpy(np.ascontiguousarray(array))


def load_model(path: Path) -> TrainedModel:
    """The trained model in a run folder or a model file."""
    if path.is_dir():
        if (path / "config.toml").is_file() and not (path / "model.safetensors").is_file():
            raise RequestError(f"{path} has no model yet; finish it with `fastswa resume {path}`.")
        path = path / "model.safetensors"
    facts, tensors = _read(path)
    network = facts.build()
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise RequestError(f"{path} does not fit its own architecture {facts.architecture}.") from error
    return TrainedModel(network, facts)
