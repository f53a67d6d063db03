"""A trained model as one file for other programs: ONNX, torch.export's .pt2, or plain safetensors.

Before a file takes its place its answers are compared with the model's.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastswa.errors import FastswaError, RequestError, RunError
from fastswa.modelfile import ModelFacts, TrainedModel, load_model, softmax
from fastswa.portable import WRITERS, Runner, described, refuse_missing
from fastswa.training.folder import RunFolder
from fastswa.training.setup import load_data, split_of

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
LAYOUTS = ("nchw", "nhwc")
CHECKED = 64
# Float32 sums in another order: far less than a wrong weight or a forgotten normalisation would make.
LOGIT_TOLERANCE, PROBABILITY_TOLERANCE = 1e-3, 1e-4


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its answers are from the model's at most."""

    out: str
    format: str
    network: str
    megabytes: float
    input: dict[str, Any]
    checked_on: str
    logit_difference: float
    probability_difference: float

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, for JSON."""
        return asdict(self)


def export(
    path: Path, form: str, out: Path | None = None, network: str | None = None, layout: str = "nchw"
) -> Exported:
    """Export the model of a run folder (or one of its networks) or a model file.

    Checked on the run's test images, else those held out, else random ones. Without `out` the file lies in the run
    folder, or for a model file in the current one.
    """
    _refuse(form, layout)
    model = load_model(path, network)
    out = out or default_place(path, form, network)
    if out.suffix.lower() != SUFFIXES[form]:
        raise RequestError(f"--out: {out} must end in {SUFFIXES[form]} for {form}.")
    sources = [path, path / "model.safetensors", *(path / "models").glob("*")]
    if out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        raise RequestError(f"--out: {out} is a model of the run itself; choose another name.")
    images, checked_on = images_for(path, model.facts)
    differences = write_export(model, out, form, images, layout)
    return Exported(
        str(out),
        form,
        model.facts.network,
        out.stat().st_size / 1e6,
        described(model.facts, layout)["input"],
        checked_on,
        *differences,
    )


def default_place(path: Path, form: str, network: str | None = None) -> Path:
    """Where an export lies unless said otherwise."""
    name = (network or "model") if path.is_dir() else path.stem
    plain = ".plain" if form == "safetensors" else ""
    return (path if path.is_dir() else Path()) / f"{name}{plain}{SUFFIXES[form]}"


def write_export(
    model: TrainedModel, out: Path, form: str, images: np.ndarray, layout: str = "nchw"
) -> tuple[float, float]:
    """Write a model, compare it with itself on `images`, and put the file in its place.

    Gives the largest difference of the logits and of the probabilities; RunError where one is too large, and then
    nothing is left behind.
    """
    _refuse(form, layout)
    temporary = out.with_name(f".{out.stem}.writing{out.suffix}")
    beside = {temporary.with_suffix(".json"): out.with_suffix(".json")} if form == "safetensors" else {}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with torch.no_grad(), _quiet():
            runner = WRITERS[form](model, temporary, layout)
            differences = compare(model, runner, images, layout)
        for place in beside:
            place.write_text(json.dumps(described(model.facts, layout, inside=()), indent=2) + "\n", "utf-8")
        for place, final in {**beside, temporary: out}.items():
            os.replace(place, final)
    except OSError as error:
        raise RequestError(f"--out: cannot write {out}: {error.strerror or error}.") from error
    finally:
        for place in (temporary, *beside):
            with suppress(OSError):
                place.unlink()
    return differences


def compare(model: TrainedModel, runner: Runner, images: np.ndarray, layout: str = "nchw") -> tuple[float, float]:
    """The largest difference of logits and of probabilities; RunError where they are not the same but for rounding."""
    expected = model.logits(torch.from_numpy(images))
    given = images.transpose(0, 2, 3, 1) if layout == "nhwc" and not model.facts.features else images
    # One alone and the others together: a batch of any length must do.
    starts = [0, *range(1, len(given), model.batch), len(given)]
    parts = [runner(np.ascontiguousarray(given[start:stop])) for start, stop in pairwise(starts)]
    logits, probabilities = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
    if logits.shape != expected.shape:
        raise RunError(f"the exported file gives logits of shape {logits.shape}, the model {expected.shape}.")
    logits_off = float(np.abs(logits - expected).max())
    probabilities_off = float(np.abs(probabilities - softmax(expected)).max())
    allowed = LOGIT_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not (logits_off <= allowed and probabilities_off <= PROBABILITY_TOLERANCE):
        raise RunError(
            f"the exported file differs from the model by up to {logits_off:.2g} (logits) and {probabilities_off:.2g} "
            "(probabilities), more than rounding explains; nothing was written."
        )
    return logits_off, probabilities_off


def images_for(path: Path, facts: ModelFacts) -> tuple[np.ndarray, str]:
    """Inputs to compare on, and what they are."""
    reason = ""
    if path.is_dir() and not facts.features:
        try:
            config = RunFolder.open(path).config()
            dataset = load_data(config)
            held_out = split_of(config, dataset).validation
            images, rows, part = dataset.train, held_out if len(held_out) else np.arange(len(dataset.train)), "training"
            if dataset.test is not None:
                images, rows, part = dataset.test, np.arange(len(dataset.test)), "test"
            elif len(held_out):
                part = "validation"
            if images.shape == facts.shape:
                some = rows[np.unique(np.linspace(0, len(rows) - 1, CHECKED).astype(int))]
                return np.array(images.pixels[some]), f"{len(some)} {part} images"
            reason = " (the run's images have another size now)"
        except FastswaError as error:
            reason = f" ({str(error).rstrip('.')})"
    random = np.random.default_rng(0)
    if facts.features:
        drawn = random.normal(facts.mean, facts.std, (CHECKED, facts.shape[0]))
        return drawn.astype(np.float32), f"{CHECKED} random feature vectors"
    return random.integers(0, 256, (CHECKED, *facts.shape), np.uint8), f"{CHECKED} random images{reason}"


def _refuse(form: str, layout: str) -> None:
    if form not in SUFFIXES:
        raise RequestError(f"--format: '{form}' is not {', '.join(SUFFIXES)}.")
    if layout not in LAYOUTS:
        raise RequestError(f"--layout: '{layout}' is not {' or '.join(LAYOUTS)}.")
    if form == "safetensors" and layout != "nchw":
        raise RequestError("--layout: safetensors hold the weights alone; choose the layout for onnx or torch-export.")
    refuse_missing(form)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters' talk about their own insides unsaid."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
