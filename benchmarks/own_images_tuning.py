"""Chooses the defaults for one's own images on validation images, never on test ones.

    python benchmarks/own_images_tuning.py FILE.npz|digits VALIDATION KEY=VALUE … [@classes=3+8] [@imbalance=10]

Trains once with these settings on the training images of the file but VALIDATION of them, which it is measured on,
and prints their errors in %. `@classes` keeps some classes only. `@imbalance` draws about 100 labels, the rarest class
with that many times fewer than the most frequent one, and prints the mean of the classes' errors too. Without settings:
Mean Teacher with weight 30 on 100 labels, batches of 100 with 50 labelled, shifts of an eighth of the side, no flips,
60 epochs, one thread. results/own-images-tuning.txt holds what it printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastswa.api import Quiet
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.sources import load
from fastswa.evaluate import evaluating
from fastswa.layers import build_config, flag_layer
from fastswa.training.device import choose_compute, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.loop import Trainer
from fastswa.training.setup import prepare
from fastswa.training.state import build_state

LABELS = 100


def settings(side: int, labels: int | None) -> dict[str, Any]:
    return {
        "split": {} if labels is None else {"labels": labels},
        "augment": {"flip": False, "translate": round(side / 8)},
        "method": {"weight": 30},
        "schedule": {"epochs": 60, "length": 50, "period": 60, "cycle": 10},
        "averaging": {"swa": {"kind": "swa"}, "fast_swa": {"kind": "fast-swa"}},
        "evaluation": {"every": 1000, "refresh": 30},
        "checkpoint": {"every": 1000},
        "device": {"threads": 1},
    }


def held_out(source: str, validation: int, classes: list[int]) -> Dataset:
    """Training images and, in the place of test images, some of them held out; those of `classes` if there are any."""
    images = load(source, Path("data")).train
    order = np.random.default_rng(7).permutation(len(images))
    parts = []
    for rows in (order[:-validation], order[-validation:]):
        labels = images.labels[rows]
        if classes:
            rows = rows[np.isin(labels, classes)]
            labels = np.searchsorted(classes, images.labels[rows])
        names = tuple(map(str, classes)) if classes else images.classes
        parts.append(ImageSet(images.pixels[rows], labels, names))
    return Dataset(parts[0], parts[1])


def imbalanced(dataset: Dataset, ratio: float, seed: int) -> Dataset:
    """About LABELS labels in geometric proportion, which class has most drawn by `seed`; the others are forgotten."""
    train, classes = dataset.train, len(dataset.classes)
    weights = ratio ** (-np.arange(classes) / (classes - 1))
    counts = np.maximum(np.round(LABELS * weights / weights.sum()), 1).astype(int)
    order = np.random.default_rng(seed).permutation(len(train))
    rank = np.random.default_rng(100 + seed).permutation(classes)
    labels = np.full(len(train), UNLABELLED)
    for label in range(classes):
        labels[order[train.labels[order] == label][: counts[rank[label]]]] = label
    return Dataset(ImageSet(train.pixels, labels, train.classes), dataset.test)


def balanced_error(network: torch.nn.Module, trainer: Trainer) -> float:
    """The mean of the classes' errors."""
    evaluator = trainer.material.evaluators["test"]
    with evaluating(network):
        parts = [network(evaluator.augment.plain(part)).logits.argmax(1) for part in evaluator.pixels.split(1000)]
    wrong = torch.cat(parts) != evaluator.labels
    return 100 * float(np.mean([wrong[evaluator.labels == k].float().mean() for k in evaluator.labels.unique()]))


def main(words: list[str]) -> None:
    source, validation, *rest = words
    options = dict(word[1:].split("=", 1) for word in rest if word.startswith("@"))
    flags = flag_layer([f"--{word}" for word in rest if not word.startswith("@")])
    dataset = held_out(source, int(validation), [int(k) for k in options.get("classes", "").split("+") if k])
    if "imbalance" in options:
        dataset = imbalanced(dataset, float(options["imbalance"]), int(flags.get("seed", 0)))
    config = build_config(settings(dataset.train.shape[1], None if "imbalance" in options else LABELS), flags)
    compute = choose_compute(config.device)
    with tempfile.TemporaryDirectory() as folder, settings_of(compute, config.device.threads):
        material = prepare(config, dataset, compute)
        state = build_state(config, compute, material.facts, images=len(dataset.train))
        trainer = Trainer(config, material, state, compute, RunFolder(Path(folder)), "")
        trainer.check()
        trainer.train(Quiet())
        line = trainer.folder.metrics()[-1]
        networks = trainer.evaluated_networks()
        cells = [f"{name} {error:.2f}" for name, error in line["error"].items()]
        if "imbalance" in options:
            cells += [f"{name}, by class {balanced_error(network, trainer):.2f}" for name, network in networks.items()]
    print(f"{Path(source).stem} {' '.join(rest)}: {'  '.join(cells)}  ({state.step} steps)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
