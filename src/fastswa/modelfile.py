"""Model files: safetensors whose metadata says how to build the network and what its inputs and outputs mean."""

from __future__ import annotations

import copy
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fastswa import kernels, models
from fastswa.averaging import canonical, unwrap
from fastswa.data.augment import Augment
from fastswa.data.decode import RULES, read_array, read_image, read_picture
from fastswa.data.features import standardised
from fastswa.errors import RequestError, RunError
from fastswa.evaluate import evaluating
from fastswa.registry import nearest
from fastswa.whole import reason, replacing

# Held while a network draws its weights.
_DRAWING = Lock()
# One image in any form that `TrainedModel.predict` takes.
Picture = np.ndarray | Tensor | Image.Image | str | os.PathLike[str]


@dataclass(frozen=True)
class ModelFacts:
    """What a model file says of its network; `features` where its inputs are feature vectors of any range.

    With `standardise` each image is normalised by its own mean and deviation, and `mean` and `std` are not used. Logits
    are divided by `temperature`. `folded` where weight norm is folded into the weights. `decoding` is the
    number of the rules by which image files become (C, H, W) uint8 of `shape` (data/decode.py).
    """

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
    standardise: bool = False
    temperature: float = 1.0
    folded: bool = False
    decoding: int = RULES

    def of(self, network: str) -> ModelFacts:
        return replace(self, network=network)

    def build(self, pretrained: bool = False, seed: int | None = None) -> nn.Module:
        """The network, freshly initialised, by `seed` if there is one; `pretrained` where it has weights to start from.

        Modules draw their weights from torch's one generator, which is left to its other users as it was.
        """
        with _DRAWING, torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            if seed is not None:
                torch.manual_seed(seed)
            network = models.build(
                self.architecture,
                channels=self.shape[0],
                classes=len(self.classes),
                heads=self.heads,
                size=min(self.shape[1:]),
                **self.options,
                **({"pretrained": True} if pretrained else {}),
            )
        return folded(network) if self.folded else network


def folded(network: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose parametrised weights (weight norm) are plain tensors of the same value."""
    plain = copy.deepcopy(unwrap(network)).eval()
    for module in list(plain.modules()):
        if parametrize.is_parametrized(module):
            # Not by remove_parametrizations: it works on the class, which a copy shares with its original.
            weights = {name: getattr(module, name).detach() for name in module.parametrizations}  # type: ignore[union-attr]
            del module.parametrizations
            module.__class__ = parametrize.type_before_parametrizations(module)
            for name, weight in weights.items():
                module.register_parameter(name, nn.Parameter(weight))
    return plain


def save_model(path: Path, network: nn.Module, facts: ModelFacts) -> None:
    """Write a network's weights under their plain names, as a whole."""
    _write(path, plain_tensors(network), facts)


def plain_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Copies of a network's weights on the CPU, under their plain names."""
    return {
        canonical(name): tensor.detach().cpu().contiguous().clone()
        for name, tensor in unwrap(network).state_dict().items()
    }


def save_temperature(path: Path, temperature: float) -> None:
    """Have a model file's logits divided by `temperature`."""
    facts, tensors = _read(path)
    try:
        _write(path, tensors, replace(facts, temperature=temperature))
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}.") from error


def _write(path: Path, tensors: dict[str, Tensor], facts: ModelFacts) -> None:
    write_tensors(path, tensors, metadata_of(facts))


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file as a whole."""
    with replacing(path) as temporary:
        # Not by save_file, whose files nobody else may read.
        temporary.write_bytes(save(tensors, metadata=metadata))


def metadata_of(facts: ModelFacts) -> dict[str, str]:
    """What a model file says beside its tensors."""
    return {"fastswa": json.dumps(asdict(facts))}


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
        facts = _facts(metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path} was not written by this fastswa: its metadata say nothing of a network.") from error
    if facts.decoding != RULES:
        raise RequestError(
            f"{path} was trained on images decoded by rules {facts.decoding}, and this fastswa has rules {RULES}; "
            "use the fastswa that trained it."
        )
    return facts, tensors


def _facts(metadata: Mapping[str, str]) -> ModelFacts:
    plain = json.loads(metadata["fastswa"])
    lists = {name: tuple(plain[name]) for name in ("classes", "shape", "mean", "std")}
    options = plain.get("options", {})
    # The file has the weights: others must not be fetched because it says so.
    if not isinstance(options, dict) or "pretrained" in options:
        raise ValueError(options)
    return ModelFacts(**{"decoding": 1, **plain, **lists})


@dataclass(frozen=True)
class Prediction:
    """`labels` (N,) class numbers, `names` their names, `probabilities` (N, classes) float32."""

    labels: np.ndarray
    names: list[str]
    probabilities: np.ndarray
    classes: tuple[str, ...] = ()

    @property
    def confidences(self) -> np.ndarray:
        """(N,) the probability of each image's label."""
        return self.probabilities.max(axis=1, initial=0.0)

    def top(self, k: int) -> list[list[tuple[str, float]]]:
        """Each image's `k` likeliest classes with their probabilities, likeliest first."""
        return [[(self.classes[c], float(row[c])) for c in likeliest(row, k)] for row in self.probabilities]


def likeliest(probabilities: np.ndarray, k: int) -> np.ndarray:
    """The numbers of the `k` largest of (classes,), the first of equals first."""
    return np.argsort(-probabilities, kind="stable")[:k]


class TrainedModel(nn.Module):
    """A trained network with its classes and its normalisation; called, it takes uint8 images to logits.

    An `nn.Module` in evaluation mode: `classes` are the names of its outputs, `facts` all that its file says of it,
    `network` is the bare network.
    """

    def __init__(self, network: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.network = network
        self.facts = facts
        self.classes = facts.classes
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.network.parameters()).device

    @property
    def batch(self) -> int:
        """Images at a time, fewer where they are larger: at 224x224 a wide layer takes 25 MB for each."""
        _, height, width = self.facts.shape
        return max(1, min(1000, (1 << 20) // (height * width)))

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) uint8, or (N, F) features where the network takes those, to logits (N, classes).

        Images of another type are refused, floats from 0 to 1 above all: normalisation is the model's own part.
        """
        self._refuse_other(pixels)
        if self.facts.features:
            return self.of_inputs(standardised(pixels, self.facts.mean, self.facts.std))
        return self.of_inputs(self.augment(pixels.device).plain(pixels.permute(0, 2, 3, 1)))

    def augment(self, device: torch.device) -> Augment:
        """How images are normalised."""
        return Augment.normalising(self.facts.mean, self.facts.std, device, standardise=self.facts.standardise)

    def of_inputs(self, inputs: Tensor) -> Tensor:
        """Logits of what the bare network takes: normalised images (N, C, H, W) or features (N, F)."""
        logits: Tensor = self.network(inputs).logits
        return logits if self.facts.temperature == 1.0 else logits / self.facts.temperature

    def _refuse_other(self, pixels: Tensor) -> None:
        """RequestError for what cannot be meant, told by type and shape alone, so that tracing never reads a value."""
        channels, features = self.facts.shape[0], self.facts.features
        if isinstance(pixels, Tensor):
            fits = pixels.ndim == (2 if features else 4) and pixels.shape[1] == channels
            if fits and (not pixels.is_complex() if features else pixels.dtype == torch.uint8):
                return
            given = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
        else:
            given = type(pixels).__name__
        takes = f"numbers of shape (N, {channels})"
        if not features:
            takes = f"uint8 images (0 to 255, not normalised) of shape (N, {channels}, H, W)"
        raise RequestError(f"called, the model takes a tensor of {takes}, not {given}; `predict` takes arrays too.")

    def logits(self, pixels: Tensor, batch: int | None = None) -> np.ndarray:
        """(N, classes) float32 for what `forward` takes, some at a time."""
        with evaluating(self), kernels.launching():
            parts = [self(part.to(self.device)).float().cpu().numpy() for part in pixels.split(batch or self.batch)]
        return np.concatenate(parts) if len(pixels) else np.zeros((0, len(self.classes)), np.float32)

    def predict(self, images: Picture | Sequence[Picture], batch: int | None = None) -> Prediction:
        """The classes of images.

        An array or tensor is a batch of uint8 images of the model's size: (N, H, W), (N, H, W, C) or (N, C, H, W).
        A list may mix paths, Pillow images and single arrays of any size: each is brought to the model's size
        and channels as the training images were. `batch` images are in memory at a time.
        """
        size = batch or self.batch
        parts = [np.zeros((0, len(self.classes)), np.float32)]
        for pixels in self._batches(images, size):
            parts.append(softmax(self.logits(pixels, size)))
        probabilities = np.concatenate(parts)
        labels = probabilities.argmax(axis=1)
        return Prediction(labels, [self.classes[label] for label in labels], probabilities, self.classes)

    def pixels(self, image: Picture) -> np.ndarray:
        """One image as (C, H, W) uint8 of the model's size."""
        channels, *size = self.facts.shape
        wanted = (size[0], size[1])
        if isinstance(image, str | os.PathLike):
            return read_image(os.fspath(image), channels=channels, size=wanted)
        if isinstance(image, Image.Image):
            return read_picture(image, channels=channels, size=wanted)
        return read_array(_array(image), channels=channels, size=wanted)

    def _batches(self, images: Picture | Sequence[Picture], size: int) -> Iterator[Tensor]:
        """Any accepted form as (n, C, H, W) uint8; features as (N, F) float64."""
        if self.facts.features or isinstance(images, np.ndarray | Tensor):
            array = self._whole(images)
            for start in range(0, len(array), size):
                # Copied: the strides of an axis of length 1 can choose another convolution, which rounds otherwise.
                yield torch.from_numpy(np.array(array[start : start + size], order="C"))
            return
        pictures = [images] if isinstance(images, str | os.PathLike | Image.Image) else images
        for start in range(0, len(pictures), size):
            yield torch.from_numpy(np.stack([self.pixels(picture) for picture in pictures[start : start + size]]))

    def _whole(self, images: Any) -> np.ndarray:
        """An array as (N, C, H, W) uint8, features as (N, F) float64."""
        array = _array(images)
        shape, (channels, height, width) = array.shape, self.facts.shape
        if self.facts.features:
            if array.ndim != 2 or array.shape[1] != channels or array.dtype.kind not in "biuf":
                raise RequestError(f"the model takes numbers of shape (N, {channels}), not {array.dtype} of {shape}.")
            return array.astype(np.float64)
        if array.dtype != np.uint8:
            raise RequestError(f"images must be uint8 (0 to 255), not {array.dtype}.")
        if array.ndim == 3:
            array = array[:, None]
        elif array.ndim == 4 and array.shape[1:] != self.facts.shape:
            array = array.transpose(0, 3, 1, 2)
        if array.ndim != 4 or array.shape[1:] != self.facts.shape:
            raise RequestError(
                f"the model takes images of {height}x{width}x{channels}, not an array of shape {shape} "
                "(a list of images may have any size)."
            )
        return array


def _array(images: Any) -> np.ndarray:
    try:
        return images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    except ValueError as error:
        raise RequestError("the rows differ in length; bring them to one.") from error


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits (N, classes)."""
    probabilities: np.ndarray = torch.from_numpy(logits).softmax(dim=1).numpy()
    return probabilities


def refuse_several(path: Path) -> None:
    """RequestError where a folder of several seeds is named in place of a run's."""
    several = sorted(path.glob("seed-*/config.toml"))
    if several:
        raise RequestError(f"{path} holds the runs of several seeds; name one, such as {several[0].parent}.")


def find_model(path: Path, network: str | None = None) -> Path:
    """The model file of a run folder, that of one of its networks, or the file itself."""
    if not path.is_dir():
        if network is not None:
            raise RequestError(f"{path} is one model; --network chooses among those of a run folder.")
        return path
    file = path / "model.safetensors"
    if not file.is_file():
        if (path / "config.toml").is_file():
            raise RequestError(f"{path} has no model yet; finish it with `fastswa resume {shlex.quote(str(path))}`.")
        refuse_several(path)
        raise RequestError(f"{path} is no run folder: there is neither a config.toml nor a model.safetensors in it.")
    if network is None:
        return file
    names = [place.stem for place in sorted((path / "models").glob("*.safetensors"))]
    if network not in names:
        raise RequestError(f"{path} has no network '{network}'; {nearest(network, names)}")
    return path / "models" / f"{network}.safetensors"


def load_model(path: Path, network: str | None = None) -> TrainedModel:
    """The trained model in a run folder (of one of its networks, if named) or a model file."""
    file = find_model(path, network)
    facts, tensors = _read(file)
    built = facts.build()
    try:
        built.load_state_dict(tensors)
    except RuntimeError as error:
        raise RequestError(f"{file} does not fit its own architecture {facts.architecture}.") from error
    return TrainedModel(built, facts)


def model_bytes(model: TrainedModel) -> bytes:
    """What `save_model` would write."""
    content: bytes = save(plain_tensors(model.network), metadata=metadata_of(model.facts))
    return content


def model_of_bytes(content: bytes) -> TrainedModel:
    """The model that `model_bytes` gave, on the CPU."""
    # A safetensors file begins with the length of its header, which is JSON.
    length = int.from_bytes(content[:8], "little")
    facts = _facts(json.loads(content[8 : 8 + length])["__metadata__"])
    network = facts.build()
    network.load_state_dict(load(content))
    return TrainedModel(network, facts)
