"""Settings for data that nobody tuned: what a run on one's own images does where nothing is said.

Every number here was chosen on validation images of MNIST, USPS, STL-10 and the embedded digits, never on test images
(results/own-images-tuning.txt), or is the paper's. Those of kept views were tried on images of CIFAR-10 that no figure
of theirs is of. A setting that a person gives always wins, and all of them end up in the run's config.toml.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastswa.config import PUBLISHED_SETTINGS, Config, DeviceConfig, ModelConfig, filled, resolved
from fastswa.data.images import UNLABELLED, Dataset
from fastswa.data.splits import split_by
from fastswa.methods import method_class, refuse_unused

BATCH, LABELLED = 100, 50
CONSISTENCY = {"cnn13": 100.0, "small": 30.0}
FEW_A_CLASS = 20
FEWEST_STEPS, MOST_STEPS = 25, 500
LARGE = 96
SMALLEST_FOR_HIGH_RATE = 12
FROM_16_BITS = 12
# With views kept: a batch and the labelled part of it, the heads' dropout, their rate, and how long they learn.
KEPT_BATCH, KEPT_LABELLED, KEPT_DROPOUT, KEPT_RATE = 320, 64, 0.5, 0.02
KEPT_EPOCHS = 300
# The part of the epochs over which FlexMatch's unlabelled term rises then (docs/howto-pretrained.md).
KEPT_RAMP = 0.75
PHOTOGRAPHS = 32  # the least side of a photograph, and of what the pretrained network takes
MANY = 50_000  # what extra images are taken for, before they are looked at
EPOCHS, EPOCHS_ON_GPU = 60, 180
EVALUATIONS = 12
REFRESH = 30


@dataclass(frozen=True)
class Holding:
    """What there is to train on: counts of images after the split, and what they are like."""

    labelled: int
    unlabelled: int
    validation: int
    test: int
    classes: int
    shape: tuple[int, int, int]

    @property
    def side(self) -> int:
        return min(self.shape[1:])

    @property
    def grey(self) -> bool:
        return self.shape[0] == 1


def own_data_defaults(config: Config, dataset: Dataset, *, gpu: bool, bf16: bool = False) -> Config:
    """The configuration for these data, with everything filled in that nobody gave.

    `gpu` says whether it is trained on one, `bf16` whether the CPU has instructions for 16 bits.
    """
    named = "name" in config.method.model_fields_set
    config = config.model_copy(update={"split": filled(config.split, validation=validation_images(config, dataset))})
    holding = holding_of(config, dataset)
    if dataset.domains is not None:
        config = _adapting(config)
    else:
        config = config.model_copy(update={"method": filled(config.method, name=_name(config, holding, gpu))})
    if not named:
        refuse_unused(config.method.name, config.method.model_fields_set)
    side = holding.side
    on_cnn13 = gpu and 12 <= side < LARGE
    model = filled(config.model, name="cnn13" if on_cnn13 else "small")
    if gpu and model.name == "small" and side >= LARGE:
        model = filled(model, width=64)
    if method_class(config.method.name).strong_views:
        model = filled(model, heads=1)
    augment = filled(config.augment, flip=not holding.grey)
    config = config.model_copy(update={"augment": filled(augment, kept=_kept(config, augment.flip))})
    epochs = EPOCHS_ON_GPU if gpu else EPOCHS
    if config.augment.kept:
        model, epochs = filled(model, dropout=KEPT_DROPOUT), KEPT_EPOCHS
    schedule = filled(config.schedule, epochs=epochs)
    epochs = max(schedule.epochs, 1)
    length = schedule.length if "length" in schedule.model_fields_set else epochs * 5 / 6
    schedule = filled(schedule, length=length, period=max(float(epochs), length), cycle=min(epochs / 6, length))
    every = max(epochs // EVALUATIONS, 1)
    sections: dict[str, Any] = {
        "model": model,
        "schedule": schedule,
        "batch": filled(config.batch, **_batch(config, holding, gpu)),
        "augment": filled(config.augment, translate=_shift(config, side)),
        "method": filled(config.method, **_method(config, model.name, holding, epochs)),
        "evaluation": filled(config.evaluation, every=every, refresh=REFRESH, batch=_evaluation_batch(side)),
        "checkpoint": filled(config.checkpoint, every=every),
        "optimiser": filled(config.optimiser, lr=_rate(config, model, holding)),
        "device": arithmetic(config.device, side, on_cpu=not gpu, native=bf16),
    }
    return resolved(config.model_copy(update=sections))


def _adapting(config: Config) -> Config:
    """Self-ensembling where another domain is named and no method, with its published views and one head.

    Training on the source alone gets them as well, and as many steps at the same rate; its batches are as large, and
    hold images of the source where others hold those of the target.
    """
    method = filled(config.method, name="self-ensembling")
    if method.name not in ("self-ensembling", "supervised"):
        return config
    augment = filled(config.augment, warp=True, affine=0.1, noise=0.1, standardise=True)
    return config.model_copy(update={"method": method, "augment": augment, "model": filled(config.model, heads=1)})


def _name(config: Config, holding: Holding, gpu: bool) -> str:
    """FixMatch where it was compared with Mean Teacher and won (docs/frontier.md): on a CPU, unlabelled images alike.

    FlexMatch where layers are held, which won there (docs/howto-pretrained.md). Extra images get
    Mean Teacher, as in the paper. So does a person who gives settings of [method] without its name,
    unless they are FixMatch's alone: a weight means something else to each.
    """
    if not holding.unlabelled and config.data.extra is None:
        return "supervised"
    given = config.method.model_fields_set
    meant = given and given <= method_class("mean-teacher").settings
    if config.data.extra is not None or meant:
        return "mean-teacher"
    if config.model.frozen:
        return "flexmatch"
    return "mean-teacher" if gpu else "fixmatch"


def validation_images(config: Config, dataset: Dataset) -> int:
    """How many labelled images to hold out: a fifth of the known labels.

    Where their number or a file says which labels are to train, a fifth of those, out of the ones left over (so
    possibly none). None where there are test images and labels are so few that training would miss them, and never a
    class's only label.
    """
    split = config.split
    sizes = np.bincount(dataset.train.labels[dataset.train.labels != UNLABELLED])
    known = int(sizes.sum())
    if split.file is not None:
        return 0
    if split.labels is not None:
        return max(min(split.labels // 5, known - split.labels), 0)
    few = dataset.test is not None and known < FEW_A_CLASS * len(dataset.classes)
    return 0 if few else min(known // 5, int(np.maximum(sizes - 1, 0).sum()))


def holding_of(config: Config, dataset: Dataset) -> Holding:
    """What the configuration's split leaves to train on."""
    split = split_by(config.split, dataset)
    domains = dataset.domains
    test = dataset.test if dataset.test is not None or domains is None else domains.source_test
    return Holding(
        labelled=len(split.labelled),
        unlabelled=len(split.unlabelled) if domains is None else len(domains.images),
        validation=len(split.validation),
        test=0 if test is None else len(test),
        classes=len(dataset.classes),
        shape=dataset.train.shape,
    )


def _batch(config: Config, holding: Holding, gpu: bool) -> dict[str, Any]:
    """Half of a batch is labelled, less where there are fewer labels, more where most of the images have one.

    An epoch is a pass over the unlabelled images, within limits: twenty images make epochs of some steps all the
    same, and of half a million each epoch takes another part. Classes come as often as they have labels: drawn equally
    often, those with a label or two were learnt by heart and others taken for them. Of two domains a batch holds as
    many images each, and an epoch is a pass over the larger one.
    """
    most, part = (KEPT_BATCH, KEPT_LABELLED) if config.augment.kept else (BATCH, LABELLED)
    size = config.batch.size if "size" in config.batch.model_fields_set else most
    labelled, unlabelled = holding.labelled, holding.unlabelled
    if config.data.extra is not None:
        unlabelled += MANY
    share = round(size * labelled / max(labelled + unlabelled, 1))
    share = max(min(share, size * 3 // 4), min(labelled, size * part // most), 1)
    if config.data.target is not None:
        share = max(size * part // most, 1)
    if "labelled" in config.batch.model_fields_set:
        share = config.batch.labelled
    images, places = (unlabelled, size - share) if unlabelled and share < size else (labelled, size)
    pass_over = images // places
    if config.data.target is not None:
        pass_over = max(pass_over, labelled // share)
    steps = min(max(pass_over, FEWEST_STEPS), MOST_STEPS * (2 if gpu else 1))
    return {"size": size, "labelled": share, "steps": steps}


def _kept(config: Config, flip: bool) -> int:
    """The plain view and the mirrored one where layers are held.

    None where a method looks at the images themselves, or a person asks for views of another kind.
    """
    data = config.data
    if config.augment.model_fields_set & {"translate", "warp", "affine", "noise", "operations", "cutout"}:
        return 0
    if not config.model.frozen or data.extra is not None or data.target is not None:
        return 0
    if config.augment.student == "strong" or "epsilon" in method_class(config.method.name).settings:
        return 0
    return 2 if flip else 1


def _method(config: Config, network: str, holding: Holding, epochs: int) -> dict[str, Any]:
    """Weight and ramp of the consistency term, and the length of VAT's perturbation.

    The squared difference is a mean over the classes, so that its sum would weigh the same with any number of them if
    the weight grew in proportion; the paper's stays the same for 10 and 100. It grows with the root, between the two.
    """
    method = config.method
    if method.name in PUBLISHED_SETTINGS:
        slow = {"ramp": KEPT_RAMP * epochs} if method.name == "flexmatch" and config.augment.kept else {}
        return PUBLISHED_SETTINGS[method.name] | slow
    if method.name.startswith("vat"):
        channels, height, width = holding.shape
        return {"weight": 1.0, "ramp": 0.0, "epsilon": round(8 * math.sqrt(channels * height * width / 3072), 2)}
    weight = CONSISTENCY.get(network, CONSISTENCY["cnn13"])
    if method.divergence == "squared":
        weight *= math.sqrt(holding.classes / 10)
    else:
        weight /= 10
    return {"weight": float(f"{weight:.2g}"), "ramp": epochs / (2.25 if method.name == "temporal-ensembling" else 12)}


def _shift(config: Config, side: int) -> int:
    """How far views are shifted: an eighth of a side, as in the paper, and half of that where they are warped."""
    return min(max(round(side / (16 if config.augment.warp else 8)), 1), side - 1)


def _rate(config: Config, model: ModelConfig, holding: Holding) -> float:
    """SGD's rate: the paper's, but low for weights that know something already.

    Supervised training of the small network does better with a high one on grey images (USPS, MNIST), and worse on
    colour ones (STL-10) and on the smallest (digits of 8x8). Beside another domain it has the one it is compared at.
    """
    if model.pretrained:
        return KEPT_RATE if config.augment.kept else 0.01
    alone = config.method.name == "supervised" and config.data.target is None
    high = alone and model.name == "small" and holding.grey and holding.side >= SMALLEST_FOR_HIGH_RATE
    return 0.4 if high else 0.1


def arithmetic(device: DeviceConfig, side: int, *, on_cpu: bool, native: bool) -> DeviceConfig:
    """In 16 bits on a CPU that has instructions for them, as on GPUs: as accurate, and faster (docs/engine.md).

    Not for the smallest images, whose convolutions are too short to gain, nor in compiled steps, which were not tried.
    """
    wanted = on_cpu and native and side >= FROM_16_BITS and device.engine != "compiled"
    return device.model_copy(update={"precision": "bf16"}) if wanted and device.precision == "auto" else device


def _evaluation_batch(side: int) -> int:
    """Fewer images at a time where they are larger: a wide layer takes 6 MB for each at 224 pixels."""
    return max(min(1000, 1000 * 32**2 // side**2), 20)


def slow(side: int) -> str:
    """What to say where images of LARGE pixels or more are to be trained on without a GPU."""
    return f"images of {side} pixels take long on a CPU; --data.size 64 would be several times faster"


def described(config: Config, dataset: Dataset, *, gpu: bool, timed: bool = False) -> list[str]:
    """What will be trained, on what and how, in a few plain lines that name the settings to change it by.

    `timed` where the length of the run is still to be found, and will be told then.
    """
    holding = holding_of(config, dataset)
    batch, augment, method = config.batch, config.augment, config.method
    channels, height, width = holding.shape
    images = f"{holding.labelled:,} labelled"
    images += f" and {holding.unlabelled:,} unlabelled" if holding.unlabelled else ""
    held_out = f"{holding.validation:,} held out" if holding.validation else "none held out"
    measured = f"{holding.test:,} for test, {held_out}" if holding.test else held_out
    lines = [
        f"data: {images} images of {holding.classes} classes, {height}x{width} {'grey' if channels == 1 else 'RGB'}; "
        f"{measured} for validation (split.validation)",
        *(f"data: {note.removesuffix('.')}" for note in dataset.notes),
    ]
    if not holding.test and not holding.validation:
        lines.append("there is neither a test nor a validation image: no error can be measured")
    supervised = method.name == "supervised"
    if not holding.unlabelled and config.data.extra is None:
        alone = "training is supervised only" if supervised else "agreement is asked of the labelled ones alone"
        lines.append(f"there are no unlabelled images: {alone}")
    lines.append(f"network: {_network_line(config, holding)}")
    if not gpu and holding.side >= LARGE and not augment.kept:
        lines.append(slow(holding.side))
    if "name" not in config.model.model_fields_set and not holding.grey and holding.side >= PHOTOGRAPHS:
        lines.append("photographs? --pretrained begins with a network that knows others from ImageNet")
    if not gpu and config.device.precision == "bf16":
        lines.append("arithmetic: 16 bits in the network, 32 elsewhere (device.precision)")
    consistency = "" if supervised else f", consistency weight {method.weight:g} (method.weight)"
    labelled = "" if supervised else f", {batch.labelled} of them labelled (batch.labelled)"
    balanced = ", each class equally often (batch.balanced)" if batch.balanced else ""
    lines.append(f"method: {method.name}{consistency}; batches of {batch.size}{labelled}{balanced}")
    if not timed:
        epochs = f"{config.schedule.epochs} {'epoch' if config.schedule.epochs == 1 else 'epochs'}"
        lines.append(f"length: {epochs} (schedule.epochs, or --minutes) of {batch.steps} steps")
    return lines


def _network_line(config: Config, holding: Holding) -> str:
    """The network and the views that it learns from."""
    model, augment = config.model, config.augment
    if augment.kept:
        views = {1: "the image as it is", 2: "the image and its mirror image"}
        count = augment.kept
        seen = views[count] if count == 1 or (count == 2 and augment.flip) else f"{count} views of each image"
        return (
            f"{model.name} (model.name), its pretrained layers held (model.frozen); views: {seen}, which pass these "
            f"layers once, before training (augment.kept); dropout {model.dropout or 0:g} (model.dropout)"
        )
    flips = "horizontal flips" if augment.flip else "no flips"
    flips += ", as grey images are often digits or letters" if holding.grey and not augment.flip else ""
    strong = ", and strong ones (augment.operations)" if method_class(config.method.name).strong_views else ""
    pixels = "pixel" if augment.translate == 1 else "pixels"
    return (
        f"{model.name} (model.name); views: shifted by up to {augment.translate} {pixels} (augment.translate), "
        f"{flips} (augment.flip){strong}"
    )
