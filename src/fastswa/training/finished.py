"""The networks of a finished run, measured again."""

from __future__ import annotations

import shlex
from pathlib import Path

from fastswa.errors import RequestError
from fastswa.flips import FlipAveraged
from fastswa.modelfile import load_model
from fastswa.training.device import choose_compute, looking_on, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.setup import load_data, prepare


def evaluate_run(path: Path, device: str = "auto", *, flips: bool = False) -> dict[str, dict[str, dict[str, float]]]:
    """Figures of every network that a finished run holds: by set of images, network and figure.

    With `flips` also, as NAME+flips, those of its mean over an image and its mirror image.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    config = config.model_copy(update={"device": looking_on(device, config.device)})
    files = sorted((path / "models").glob("*.safetensors"))
    if not files:
        raise RequestError(f"{path} holds no models yet; finish it with `fastswa resume {shlex.quote(str(path))}`.")
    compute = choose_compute(config.device)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with settings_of(compute, config.device.threads):
        material = prepare(config, load_data(config), compute)
        if not material.evaluators:
            raise RequestError(f"{path} has neither test nor validation images to be measured on.")
        for file in files:
            network = load_model(file).network.to(compute.device, compute.dtype)
            for images, evaluator in material.evaluators.items():
                found = figures.setdefault(images, {})
                found[file.stem] = evaluator(network, compute.arithmetic())
                if flips:
                    found[f"{file.stem}+flips"] = evaluator(FlipAveraged(network), compute.arithmetic())
    return figures
