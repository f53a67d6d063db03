"""Temperature scaling (Guo et al. 2017): confidences that mean what they say, by one number fitted on held-out images.

Dividing the logits by a temperature changes no label. The mean negative log likelihood is convex in its inverse,
so that the minimum is where the slope, which only rises, passes zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastswa.config import DeviceConfig
from fastswa.errors import RequestError
from fastswa.modelfile import find_model, load_model, read_facts, save_temperature, softmax
from fastswa.training.again import images_of_run, refuse_other_classes, refuse_other_held_out
from fastswa.training.device import choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.setup import split_of

HOTTEST = 100.0  # beyond it, or below its inverse, no temperature is believed
BINS = 15


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """(N, classes) logits as float64 log-probabilities."""
    logits = np.asarray(logits, dtype=np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    normalised: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return normalised


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean of -log p(label) over (N, classes) logits and (N,) labels."""
    return float(-log_probabilities(logits)[np.arange(len(labels)), labels].mean())


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """The mean distance of confidence and accuracy over bins of equal width, weighted by their images; 0 to 1."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    # A confidence at an edge belongs to the bin below it.
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=confidence.astype(np.float64) - right, minlength=bins)
    return float(np.abs(gaps).sum() / max(len(labels), 1))


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """The temperature of least negative log likelihood; None where there is none between 1/HOTTEST and HOTTEST.

    That is so where every image is classified right (the colder the better), or where the logits say nothing.
    """
    logits = np.asarray(logits, dtype=np.float64)
    own = logits[np.arange(len(labels)), labels]
    if (own == logits.max(axis=1)).all():
        return None

    def slope(log_inverse: float) -> float:
        """Of the mean negative log likelihood by the inverse temperature."""
        probabilities = np.exp(log_probabilities(np.exp(log_inverse) * logits))
        return float(((probabilities * logits).sum(axis=1) - own).mean())

    low, high = -np.log(HOTTEST), np.log(HOTTEST)
    if not slope(low) < 0 < slope(high):
        return None
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


@dataclass(frozen=True)
class Quality:
    """Mean negative log likelihood and expected calibration error of some images."""

    nll: float
    ece: float

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray) -> Quality:
        return cls(negative_log_likelihood(logits, labels), expected_calibration_error(softmax(logits), labels))


@dataclass(frozen=True)
class Calibration:
    """One network's temperature (None: left at 1), and by set of images how good it is without and with it."""

    network: str
    temperature: float | None
    images: dict[str, int]
    before: dict[str, Quality]
    after: dict[str, Quality]

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, for JSON."""
        return asdict(self)


def calibrate_run(path: Path, device: str = "auto") -> list[Calibration]:
    """Fit a temperature for each network of a run on its validation images, and note it in the model files.

    The test images, where there are any, are measured on and never fitted to.
    """
    config = RunFolder.open(path).config()
    chosen = find_model(path)
    if read_facts(chosen).features:
        raise RequestError(f"{path} was trained on feature vectors; only image classifiers can be calibrated.")
    images = images_of_run(path, config)
    dataset = images.dataset
    held_out = split_of(config, dataset).validation
    if not len(held_out):
        raise RequestError(
            f"{path} held out no validation images to fit a temperature on; train it with --split.validation N."
        )
    for file in (path / "models").glob("*.safetensors"):
        refuse_other_classes(path, read_facts(file), dataset)
    refuse_other_held_out(path, images, "put them back, or train anew")
    parts = {"validation": (dataset.train, held_out)}
    if dataset.test is not None:
        parts["test"] = (dataset.test, np.arange(len(dataset.test)))
    where = choose_compute(DeviceConfig(name=device)).device
    results = {}
    for file in sorted((path / "models").glob("*.safetensors")):
        model = load_model(file).to(where)
        model.facts = replace(model.facts, temperature=1.0)
        # In arrays of its own: a memory map cannot become a tensor.
        logits = {name: model.logits(torch.from_numpy(np.array(s.pixels[rows]))) for name, (s, rows) in parts.items()}
        labels = {name: s.labels[rows] for name, (s, rows) in parts.items()}
        results[file] = _calibration(file.stem, logits, labels)
    for file, result in results.items():
        save_temperature(file, result.temperature or 1.0)
        if read_facts(chosen).network == result.network:
            save_temperature(chosen, result.temperature or 1.0)
    return list(results.values())


def forget_calibration(path: Path) -> None:
    """Put the temperature of each network of a run back to 1."""
    RunFolder.open(path)
    for file in (*sorted((path / "models").glob("*.safetensors")), find_model(path)):
        save_temperature(file, 1.0)


def _calibration(network: str, logits: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> Calibration:
    temperature = fit_temperature(logits["validation"], labels["validation"])
    return Calibration(
        network,
        temperature,
        images={name: len(values) for name, values in labels.items()},
        before={name: Quality.of(values, labels[name]) for name, values in logits.items()},
        after={
            name: Quality.of(values / np.float32(temperature or 1.0), labels[name]) for name, values in logits.items()
        },
    )
