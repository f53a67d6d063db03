"""The networks of a finished run, measured again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from fastswa.errors import RequestError
from fastswa.flips import FlipAveraged
from fastswa.modelfile import load_model, read_facts
from fastswa.training.again import images_of_run, refuse_other_classes, refuse_other_held_out, still_measured
from fastswa.training.device import choose_compute, looking_on, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.setup import prepare


def evaluate_run(
    path: Path, device: str = "auto", *, flips: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Figures of every network that a finished run holds: by set of images, network and figure.

    With `flips` also, as NAME+flips, those of its mean over an image and its mirror image. Where images or labels are
    others than in training, those held out may have been learnt from: they are left out, and `say` hears of it.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    config = config.model_copy(update={"device": looking_on(device, config.device, shared=folder.shared_cores())})
    files = sorted((path / "models").glob("*.safetensors"))
    if not files:
        raise RequestError(f"{path} holds no models yet; finish it with `fastswa resume {shlex.quote(str(path))}`.")
    compute = choose_compute(config.device)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with settings_of(compute, config.device.threads):
        images = images_of_run(path, config)
        for file in files:
            refuse_other_classes(path, read_facts(file), images.dataset)
        evaluators = prepare(config, images.dataset, compute).evaluators
        if not evaluators:
            raise RequestError(f"{path} has neither test nor validation images to be measured on.")
        if set(evaluators) == {"validation"}:
            refuse_other_held_out(path, images, "put them back, or train anew")
        evaluators = still_measured(path, images, evaluators, say)
        for file in files:
            network = load_model(file).network.to(compute.device, compute.dtype)
            for name, evaluator in evaluators.items():
                found = figures.setdefault(name, {})
                found[file.stem] = evaluator(network, compute.arithmetic())
                if flips:
                    found[f"{file.stem}+flips"] = evaluator(FlipAveraged(network), compute.arithmetic())
    return figures
