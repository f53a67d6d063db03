"""From a Config to everything a run trains with: images on the device, split, plan, state, step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastswa import models
from fastswa.config import Config, filled
from fastswa.console import progress_bar
from fastswa.data.augment import Augment
from fastswa.data.batches import BatchPlan, plan_batches
from fastswa.data.domains import load_target, pair_domains
from fastswa.data.extra import ExtraImages, load_extra
from fastswa.data.features import FeatureSet
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.kept import Bank
from fastswa.data.plan import CHANNELS, Options
from fastswa.data.sources import SOURCES, load, place
from fastswa.data.splits import Split, split_by
from fastswa.defaults import own_data_defaults
from fastswa.errors import RequestError
from fastswa.evaluate import Agreement, Evaluator
from fastswa.methods import method_class
from fastswa.modelfile import ModelFacts
from fastswa.training.device import Compute, choose_compute, native_bf16
from fastswa.training.window import Window, bring_over, on_device

NETWORK_OPTIONS = ("dropout", "width", "weight_norm", "activation", "padded")


# Target images that networks are compared on, evenly spread.
AGREEING = 2000


@dataclass(frozen=True)
class Material:
    """What a run trains on and is measured by. `labels` hides those of all but the labelled images.

    `pixels` is (N, H, W, C) on the device, or in memory that it reads: the training images, then the extra ones or a
    `window` on these. `truth` (N,) holds every label that is known, -1 for none, for a target's and for labelled images
    that serve as unlabelled ones too: what a run says of itself may rest on it, what it learns may not. `agreement` is
    measured on images of the target, where there is one. With a `bank`, features that it fills stand in for all images.
    """

    split: Split
    plan: BatchPlan
    pixels: Tensor
    labels: Tensor
    augment: Augment
    evaluators: dict[str, Evaluator]
    facts: ModelFacts
    truth: Tensor
    window: Window | None = None
    agreement: Agreement | None = None
    bank: Bank | None = None

    def load_epoch(self, epoch: int, *, last: bool = False) -> None:
        """Bring over what the epoch's rows refer to and the device does not hold for good; `last` if none follows."""
        if self.window is not None:
            self.window.load(epoch, last=last)

    def batch(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """Images of any numbers, whichever the epoch: pixels on the device, and the rows (B,) int64 in them."""
        rows = torch.from_numpy(numbers).to(self.pixels.device)
        if self.window is None:
            return self.pixels, rows
        extra = numbers >= self.plan.first_extra
        images = self.pixels[rows.where(rows < self.plan.first_extra, 0)]
        images[torch.from_numpy(extra).to(rows.device)] = self.window.images(numbers[extra] - self.plan.first_extra)
        return images, torch.arange(len(numbers), device=rows.device)


def with_data_defaults(config: Config, dataset: Dataset) -> Config:
    """The configuration with what depends on the data filled in: everything that nobody gave for one's own data."""
    if config.data.source in SOURCES:
        return config.model_copy(update={"split": filled(config.split, validation=0)})
    return suited(config, dataset)


def suited(config: Config, dataset: Dataset) -> Config:
    """The configuration with everything that nobody gave filled in as suits these data and this machine."""
    gpu = choose_compute(config.device).device.type == "cuda"
    return own_data_defaults(config, dataset, gpu=gpu, bf16=native_bf16())


def load_data(config: Config) -> Dataset:
    """The data set that the configuration names; one's own images are prepared first, once."""
    data = config.data
    with progress_bar() as progress:
        options = Options(
            size=None if data.size is None else (data.size, data.size),
            channels=CHANNELS[data.channels],
            skip_bad=data.skip_bad,
            progress=progress,
        )
        dataset = load(data.source, Path(data.root), options)
        if data.target is None:
            return dataset
        target = load_target(data.target, Path(data.root), dataset.train.shape, options)
    return pair_domains(
        data.source,
        data.target,
        dataset,
        target,
        data.aliases,
        unlabelled=config.split.unlabelled,
        seed=config.split.seed or 0,
    )


def load_extra_data(config: Config, dataset: Dataset) -> ExtraImages | None:
    """The unlabelled images beside the training images: the target's, or the extra ones that are named, if any."""
    data = config.data
    if dataset.domains is not None:
        return ExtraImages(dataset.domains.target, dataset.domains.images.pixels, dataset.train.shape, kind="target")
    if data.extra is None:
        return None
    if isinstance(dataset.train, FeatureSet):
        raise RequestError("data.extra: feature vectors take no extra images; leave it out.")
    if data.extra == data.source:
        raise RequestError(f"data.extra: {data.extra} is what is trained on already; name another source.")
    with progress_bar() as progress:
        return load_extra(
            data.extra,
            Path(data.root),
            dataset.train,
            options=Options(skip_bad=data.skip_bad, progress=progress),
            file=None if data.extra_file is None else place(data.extra_file, Path(data.root).expanduser()),
            images=data.extra_images,
            seed=config.split.seed or 0,
        )


def split_of(config: Config, dataset: Dataset) -> Split:
    """Which training images are labelled, unlabelled and held out."""
    return split_by(config.split, dataset)


def unlabelled_of(dataset: Dataset, split: Split) -> tuple[ImageSet, np.ndarray]:
    """The images without labels that a run learns from, as a set and rows in it; extra ones are left aside."""
    if dataset.domains is None:
        return dataset.train, split.unlabelled
    return dataset.domains.images, np.arange(len(dataset.domains.images))


def prepare(
    config: Config,
    dataset: Dataset,
    compute: Compute,
    extra: ExtraImages | None = None,
    say: Callable[[str], None] | None = None,
) -> Material:
    """Split, plan and bring to the device; `say` is told where the extra images are held."""
    if len(dataset.classes) < 2:
        raise RequestError(f"{dataset.train.name}: there is one class only; a classifier needs at least two.")
    models.refuse_size(config.model.name, dataset.train.shape)
    split = split_of(config, dataset)
    plan = plan_batches(
        split,
        size=config.batch.size,
        labelled=config.batch.labelled,
        steps=config.batch.steps,
        labelled_only=method_class(config.method.name).labelled_only,
        classes=dataset.train.labels[split.labelled] if config.batch.balanced else None,
        first_extra=len(dataset.train),
        extras=0 if extra is None else len(extra),
        extra_per_epoch=config.data.extra_per_epoch,
        two_domains=dataset.domains is not None,
        reuse_labelled=config.batch.reuse_labelled,
    )
    plan = replace(plan, changes=config.batch.pace or ())
    _, height, width = dataset.train.shape
    if config.augment.translate >= min(height, width):
        raise RequestError(
            f"augment.translate: {config.augment.translate} pixels are too many for {height}x{width} images."
        )
    mean, std = _normalisation(config, dataset)
    features = isinstance(dataset.train, FeatureSet)
    if features and (config.augment.student == "strong" or method_class(config.method.name).strong_views):
        what = "augment.student" if config.augment.student == "strong" else f"method {config.method.name}"
        raise RequestError(f"{what}: strong views are made of images, and these are feature vectors.")
    for name in ("warp", "standardise"):
        if features and getattr(config.augment, name):
            raise RequestError(f"augment.{name} is for images, and these are feature vectors; leave it out.")
    # Feature vectors lie there standardised already; by what is for the model file alone.
    low, unit = ((0.0,) * len(mean), (1 / 255,) * len(std)) if features else (mean, std)
    augment = Augment.normalising(
        low, unit, compute.device, compute.dtype, **config.augment.model_dump(exclude={"kept"})
    )
    hidden = np.full(len(dataset.train), UNLABELLED, dtype=np.int64)
    hidden[split.labelled] = dataset.train.labels[split.labelled]

    def evaluator(images: ImageSet, chosen: np.ndarray | slice, what: str) -> Evaluator:
        labels = images.labels[chosen]
        if (labels == UNLABELLED).any():
            raise RequestError(f"{images.name}: a test image has no label.")
        return Evaluator(
            pixels=on_device(images.pixels[chosen], compute.device, say, what),
            labels=torch.from_numpy(np.ascontiguousarray(labels)).to(compute.device),
            classes=len(images.classes),
            augment=augment,
            batch=config.evaluation.batch,
        )

    evaluators = {}
    if dataset.test is not None:
        evaluators["test"] = evaluator(dataset.test, slice(None), "test images")
    if dataset.domains is not None and dataset.domains.source_test is not None:
        evaluators["source"] = evaluator(dataset.domains.source_test, slice(None), "test images of the source")
    if len(split.validation):
        evaluators["validation"] = evaluator(dataset.train, split.validation, "validation images")
    pixels, plan, window = bring_over(dataset.train.pixels, extra, plan, config.seed, compute.device, say)
    truth = torch.full((len(pixels),), UNLABELLED, dtype=torch.int64)
    truth[: len(dataset.train)] = torch.from_numpy(dataset.train.labels)
    if config.batch.reuse_labelled:  # guesses at labels that are trained on would flatter the others
        truth[torch.from_numpy(split.labelled)] = UNLABELLED
    return Material(
        split=split,
        plan=plan,
        pixels=pixels,
        labels=torch.from_numpy(hidden).to(compute.device),
        augment=augment,
        evaluators=evaluators,
        facts=ModelFacts(
            architecture=config.model.name,
            classes=dataset.classes,
            shape=dataset.train.shape,
            mean=mean,
            std=std,
            heads=config.model.heads,
            options=network_options(config),
            features=features,
            standardise=config.augment.standardise,
        ),
        truth=truth.to(compute.device),
        window=window,
        agreement=None if dataset.domains is None else _agreement(dataset.domains.images, config, augment, compute),
    )


def _normalisation(config: Config, dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel: as pretrained weights know them, as published, or as these images have."""
    known = models.normalisation(config.model.name, pretrained=config.model.pretrained)
    if known is None:
        return dataset.normalisation or dataset.train.channel_statistics()
    mean, std = known
    channels = dataset.train.shape[0]
    return (mean,) * channels, (std,) * channels


def _agreement(images: ImageSet, config: Config, augment: Augment, compute: Compute) -> Agreement:
    rows = np.linspace(0, len(images) - 1, min(len(images), AGREEING)).astype(np.int64)
    return Agreement(on_device(images.pixels[rows], compute.device), augment, config.evaluation.batch)


def network_options(config: Config) -> dict[str, Any]:
    """The settings of [model] that were given and that networks take as options."""
    options = {name: getattr(config.model, name) for name in NETWORK_OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    return given | ({"frozen": True} if config.model.frozen else {})
