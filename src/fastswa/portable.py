"""A trained model in a form that other programs run, and the files that hold it.

Normalisation, temperature and softmax are inside, weight norm is folded into the weights, and the batch may have any
length. Each writer loads its file anew and gives a function that runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastswa.data.augment import LEAST_VARIANCE, Augment, each_standardised
from fastswa.data.features import FARTHEST
from fastswa.errors import RequestError, RunError, installing
from fastswa.modelfile import ModelFacts, TrainedModel, folded, load_model, save_model, softmax

Runner = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
INSIDE = ("normalisation", "temperature", "softmax")


class Portable(nn.Module):
    """uint8 images (N, C, H, W) or (N, H, W, C), or float32 features (N, F), to logits and probabilities."""

    def __init__(self, model: TrainedModel, layout: str = "nchw") -> None:
        super().__init__()
        facts = model.facts
        self.network = folded(model.network).cpu().requires_grad_(False)
        self.layout, self.features, self.temperature = layout, facts.features, facts.temperature
        self.standardise = facts.standardise
        if self.features:
            scale, shift = (torch.tensor(values, dtype=torch.float64) for values in (facts.std, facts.mean))
        else:
            augment = Augment.normalising(facts.mean, facts.std, torch.device("cpu"))
            scale, shift = augment.scale[:, None, None], augment.shift[:, None, None]
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        if self.features:
            inputs = ((images.double() - shift) / scale).clamp(-FARTHEST, FARTHEST).float()[:, :, None, None]
        else:
            pixels = images.permute(0, 3, 1, 2) if self.layout == "nhwc" else images
            inputs = each_standardised(pixels.float()) if self.standardise else pixels.float() * scale + shift
        logits = self.network(inputs).logits
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return logits, logits.softmax(dim=1)


def described(facts: ModelFacts, layout: str = "nchw", inside: Sequence[str] = INSIDE) -> dict[str, Any]:
    """What a program needs to know to use an export: what goes in, how images become that, what comes out."""
    channels, height, width = facts.shape
    shape: list[Any] = ["batch", *((height, width, channels) if layout == "nhwc" else facts.shape)]
    given: dict[str, Any] = {"name": "images", "type": "uint8", "layout": layout.upper(), "shape": shape}
    formula = "(x / 255 - mean) / std"
    preparation: dict[str, Any] = {
        "colour": "grey (ITU-R 601 luma)" if channels == 1 else "RGB",
        "sixteen_bit_grey": "0 to 65535 scaled to 0 to 255",
        "transparency": "on white",
        "exif_rotation": "carried out",
        "resize": f"the shorter side to fit {height}x{width}, Lanczos with antialiasing, the centre cropped",
    }
    if facts.features:
        given = {"name": "features", "type": "float32", "shape": ["batch", channels]}
        preparation, formula = {}, "(x - mean) / std"
    normalisation: dict[str, Any] = {"formula": formula, "mean": list(facts.mean), "std": list(facts.std)}
    if facts.standardise:
        formula = f"(x - m) / sqrt(v + {LEAST_VARIANCE:g}), m and v the mean and the variance of all x of the image"
        normalisation = {"formula": formula}
    return {
        "network": facts.network,
        "architecture": facts.architecture,
        "options": {"channels": channels, "classes": len(facts.classes), "heads": facts.heads, **facts.options},
        "epoch": facts.epoch,
        "input": given,
        "preparation": preparation,
        "inside": list(inside),
        "normalisation": normalisation,
        "temperature": facts.temperature,
        "outputs": {
            "logits": "divided by the temperature, (batch, classes)",
            "probabilities": "their softmax, (batch, classes)",
        },
        "classes": list(facts.classes),
    }


def refuse_missing(form: str) -> None:
    """RequestError where a format needs a package that is not installed."""
    missing = [name for name in NEEDED.get(form, ()) if find_spec(name) is None]
    if missing:
        raise RequestError(f"{form} needs {' and '.join(missing)}: {installing('onnx')} brings what is missing.")


def _write_onnx(model: TrainedModel, file: Path, layout: str) -> Runner:
    import onnxruntime

    name = described(model.facts)["input"]["name"]
    with _refusing(model, "onnx"):
        program = torch.onnx.export(
            Portable(model, layout),
            (_example(model.facts, layout),),
            dynamo=True,
            verbose=False,
            input_names=[name],
            output_names=["logits", "probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        )
        assert program is not None
        program.model.metadata_props["fastswa"] = json.dumps(described(model.facts, layout))
        program.save(file, external_data=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, probabilities = session.run(["logits", "probabilities"], {name: images})
        return logits, probabilities

    return run


def _write_torch_export(model: TrainedModel, file: Path, layout: str) -> Runner:
    batch = {"images": {0: torch.export.Dim("batch")}}
    with _refusing(model, "torch-export"):
        program = torch.export.export(Portable(model, layout), (_example(model.facts, layout),), dynamic_shapes=batch)
    torch.export.save(program, file, extra_files={"fastswa.json": json.dumps(described(model.facts, layout))})
    module = torch.export.load(file).module()

    def run(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, probabilities = module(torch.from_numpy(images))
        return logits.numpy(), probabilities.numpy()

    return run


def _write_safetensors(model: TrainedModel, file: Path, layout: str) -> Runner:
    save_model(file, folded(model.network), replace(model.facts, folded=True))
    loaded = load_model(file)

    def run(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = loaded.logits(torch.from_numpy(images))
        return logits, softmax(logits)

    return run


def _example(facts: ModelFacts, layout: str) -> Tensor:
    """Two inputs to trace with: a batch of one would be taken for a constant."""
    if facts.features:
        return torch.zeros(2, facts.shape[0])
    channels, height, width = facts.shape
    shape = (2, height, width, channels) if layout == "nhwc" else (2, channels, height, width)
    return torch.zeros(shape, dtype=torch.uint8)


@contextmanager
def _refusing(model: TrainedModel, form: str) -> Iterator[None]:
    """What an exporter cannot do, in one sentence."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise RunError(f"{model.facts.architecture} cannot be exported to {form}: {reason}.") from error


WRITERS: dict[str, Callable[[TrainedModel, Path, str], Runner]] = {
    "onnx": _write_onnx,
    "torch-export": _write_torch_export,
    "safetensors": _write_safetensors,
}
