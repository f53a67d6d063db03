"""What a run's model makes of its images: confusions, calibration, mistakes, doubts, and what to label next."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch

from fastswa.choose import MOST_GROUPS, choose
from fastswa.data.features import FeatureSet
from fastswa.data.images import Dataset, ImageSet
from fastswa.data.splits import Split
from fastswa.errors import RequestError
from fastswa.modelfile import load_model
from fastswa.report.calibration import Reliability, reliability
from fastswa.report.confusion import confusion_matrix
from fastswa.report.predictions import Looking, Predictions
from fastswa.report.record import RunRecord
from fastswa.report.suggest import SURE, suggest
from fastswa.report.thumbnails import thumbnail
from fastswa.training.again import images_of_run
from fastswa.training.device import choose_compute, looking_on, settings_of
from fastswa.training.folder import RunFolder
from fastswa.training.setup import split_of, unlabelled_of

SHOWN = 24
_LABELLED_COMPARED = 2000


@dataclass(frozen=True)
class Example:
    """One image: its number in its set, its file where it has one, a thumbnail, what it is and what was said."""

    number: int
    file: str | None
    picture: str | None
    true: str | None
    first: str
    confidence: float
    second: str
    runner_up: float


@dataclass(frozen=True)
class Measured:
    """On labelled images that were not trained on: `images` says which set."""

    images: str
    count: int
    matrix: np.ndarray
    reliability: Reliability
    mistakes: list[Example]

    @property
    def error(self) -> float:
        """In percent."""
        return 100.0 * (1.0 - np.trace(self.matrix) / self.count)


@dataclass(frozen=True)
class Doubts:
    """On `looked_at` of `count` unlabelled images: how many are unsure, the least certain, and what to label next.

    That was chosen by what images look like alone, if `by_looks`.
    """

    count: int
    looked_at: int
    unsure: int
    uncertain: list[Example]
    suggested: list[Example]
    by_looks: bool = False


@dataclass(frozen=True)
class Findings:
    """`counts` are the images of each part of the data; `leaks` the test images that are labelled ones as well;
    `changed` says whether images or labels were others in training, None where nothing tells."""

    network: str
    epoch: float
    temperature: float
    parameters: int
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    counts: dict[str, int]
    measured: Measured | None
    doubts: Doubts | None
    leaks: int
    changed: bool | None = None


def look_at(run: RunRecord, device: str, *, suggestions: int, unlabelled: int) -> Findings:
    """Have the run's model look at its images again, at most `unlabelled` of those without labels.

    Refuses where there is no model yet or the images are not what they were.
    """
    model = load_model(run.path)
    images = images_of_run(run.path, run.config)
    dataset = images.dataset
    if dataset.train.shape != model.facts.shape or dataset.classes != model.classes:
        raise RequestError("the images are no longer those of the run: their size or their classes differ")
    split = split_of(run.config, dataset)
    source_test = None if dataset.domains is None else dataset.domains.source_test
    chosen = looking_on(device, run.config.device, shared=RunFolder(run.path).shared_cores())
    compute = choose_compute(chosen)
    with settings_of(compute, chosen.threads):
        model.to(compute.device)
        exact = run.config.device.deterministic
        looking = Looking(model, compute) if exact else Looking.at(run.config.data.source, model, compute)
        return Findings(
            network=model.facts.network,
            epoch=model.facts.epoch,
            temperature=model.facts.temperature,
            parameters=sum(parameter.numel() for parameter in model.network.parameters()),
            classes=model.classes,
            shape=model.facts.shape,
            counts={
                "labelled": len(split.labelled),
                "unlabelled": len(unlabelled_of(dataset, split)[1]),
                "validation": len(split.validation),
                "test": 0 if dataset.test is None else len(dataset.test),
                **({} if source_test is None else {"source": len(source_test)}),
            },
            measured=_measure(looking, dataset, split),
            doubts=_doubts(looking, dataset, split, run.config.seed, suggestions, unlabelled),
            leaks=_leaks(dataset, split),
            changed=images.changed,
        )


def _measure(looking: Looking, dataset: Dataset, split: Split) -> Measured | None:
    """On the test images or, where there are none, those held out for validation, or else the source's test images."""
    domains = dataset.domains
    if dataset.test is not None:
        name, images, rows = "test", dataset.test, np.arange(len(dataset.test))
    elif len(split.validation) == 0 and domains is not None and domains.source_test is not None:
        name, images, rows = "source", domains.source_test, np.arange(len(domains.source_test))
    else:
        name, images, rows = "validation", dataset.train, split.validation
    if len(rows) == 0:
        return None
    said, labels = looking.predict(images, rows), images.labels[rows]
    wrong = np.flatnonzero(said.first != labels)
    worst = wrong[np.argsort(-said.confidence[wrong], kind="stable")][:SHOWN]
    return Measured(
        images=name,
        count=len(rows),
        matrix=confusion_matrix(labels, said.first, len(looking.model.classes)),
        reliability=reliability(said.confidence, said.first == labels),
        mistakes=[_example(images, rows, said, position, known=True) for position in worst],
    )


def _doubts(
    looking: Looking,
    dataset: Dataset,
    split: Split,
    seed: int,
    suggestions: int,
    most: int,
) -> Doubts | None:
    images, rows = unlabelled_of(dataset, split)
    count = len(rows)
    if count == 0:
        return None
    if count > most:
        rows = np.sort(np.random.default_rng([seed, 1]).choice(rows, most, replace=False))
    labelled = split.labelled
    counts = np.bincount(dataset.train.labels[labelled], minlength=len(looking.model.classes))
    by_looks = looking.holds and len(labelled) + suggestions <= MOST_GROUPS
    if len(labelled) > _LABELLED_COMPARED:
        labelled = np.sort(np.random.default_rng([seed, 2]).choice(labelled, _LABELLED_COMPARED, replace=False))
    known = looking.features(dataset.train, labelled)
    if by_looks:
        said, seen = looking.both(images, rows)
        everything = torch.from_numpy(np.concatenate([known, seen]))
        wanted = choose(everything, np.arange(len(everything)) < len(known), suggestions)[0] - len(known)
    else:
        said = looking.predict(images, rows)
        wanted = suggest(said, lambda chosen: looking.features(images, rows[chosen]), known, counts, suggestions)
    least = np.argsort(said.margin, kind="stable")[:SHOWN]
    return Doubts(
        count=count,
        looked_at=len(rows),
        unsure=int((said.confidence < SURE).sum()),
        uncertain=[_example(images, rows, said, position) for position in least],
        by_looks=by_looks,
        suggested=[
            _example(images, rows, said, position, pictured=rank < SHOWN) for rank, position in enumerate(wanted)
        ],
    )


def _example(
    images: ImageSet, rows: np.ndarray, said: Predictions, position: int, *, known: bool = False, pictured: bool = True
) -> Example:
    """The image at a position among the predictions; its label only where it is `known` to the run."""
    row = int(rows[position])
    names = images.classes
    drawn = pictured and not isinstance(images, FeatureSet)
    return Example(
        number=row,
        file=None if images.files is None else images.files[row],
        picture=thumbnail(np.asarray(images.pixels[row])) if drawn else None,
        true=names[int(images.labels[row])] if known else None,
        first=names[said.first[position]],
        confidence=float(said.confidence[position]),
        second=names[said.second[position]],
        runner_up=float(said.runner_up[position]),
    )


def _leaks(dataset: Dataset, split: Split) -> int:
    """Test images that are, pixel by pixel, among those whose labels were trained on."""
    if dataset.test is None:
        return 0

    def mark(pixels: np.ndarray) -> bytes:
        return blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=16).digest()

    known = {mark(dataset.train.pixels[row]) for row in split.labelled}
    return sum(mark(dataset.test.pixels[row]) in known for row in range(len(dataset.test)))
