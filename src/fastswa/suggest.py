"""What to label first: images of one's own, labelled or not, looked at by a network that knows photographs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastswa import models
from fastswa.choose import choose
from fastswa.config import DeviceConfig
from fastswa.data.augment import Augment
from fastswa.data.fit import fit_dataset
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.plan import Options
from fastswa.data.sources import MANIFESTS, SOURCES, place, refuse_other_file
from fastswa.defaults import arithmetic
from fastswa.errors import RequestError
from fastswa.modelfile import ModelFacts
from fastswa.models.network import Backboned
from fastswa.shorthands import KNOWING, KNOWING_SIZE
from fastswa.training.device import choose_compute, native_bf16, settings_of
from fastswa.training.keeping import Words, bank_of, pass_views
from fastswa.training.window import on_device

COUNT = 40
COLUMNS = ("rank", "image", "path", "alike")
# Images looked at, drawn from all where there are more.
MOST = 20_000
_LOOKING = Words("images were looked at before", "images to look at", "looking at images")


@dataclass(frozen=True)
class Suggested:
    """`rows` of the images to label, the most wanted first; `alike` says how many images each of them stands for.

    They were chosen among `looked_at` of the images, `labelled` of which have a label; `notes` are for the person.
    """

    images: ImageSet
    rows: np.ndarray
    alike: np.ndarray
    looked_at: int
    labelled: int
    notes: tuple[str, ...] = ()

    def path(self, row: int) -> str | None:
        """The image's file, where it has one."""
        return None if self.images.files is None else self.images.files[row].removeprefix("./")

    def csv(self) -> bytes:
        """One row an image, the most wanted first; a name's bytes are those of the file's."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for rank, (row, alike) in enumerate(zip(self.rows.tolist(), self.alike.tolist(), strict=True), 1):
            writer.writerow([rank, row, self.path(row) or "", alike])
        return stream.getvalue().encode("utf-8", "surrogateescape")


def suggest(
    source: str,
    root: Path = Path("data"),
    *,
    count: int = COUNT,
    options: Options | None = None,
    device: str = "auto",
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
) -> Suggested:
    """The images of one's own to label first, by what a network trained on ImageNet makes of them.

    `source` is a folder (labeled/, unlabeled/, both, or images anywhere), a manifest or an .npz file; test images have
    no part in it. What the network makes of an image is kept for `fastswa train --pretrained`.
    """
    options = options or Options()
    if options.size is None:
        options = Options(**{**vars(options), "size": (KNOWING_SIZE, KNOWING_SIZE)})
    dataset = _images(source, Path(root).expanduser(), options)
    images = dataset.train
    labelled = images.labels != UNLABELLED
    if labelled.all():
        raise RequestError(f"{source}: every image has a label; there is none to suggest.")
    rows = _looked_at(labelled, seed)
    config = arithmetic(
        DeviceConfig(name=device), min(images.shape[1:]),
        on_cpu=choose_compute(DeviceConfig(name=device)).device.type == "cpu", native=native_bf16(),
    )  # fmt: skip
    compute = choose_compute(config)
    name = str(KNOWING["name"])
    models.refuse_size(name, images.shape)
    network = models.build(name, channels=images.shape[0], classes=2, frozen=True, pretrained=True)
    assert isinstance(network, Backboned)
    known = models.normalisation(name, pretrained=True)
    assert known is not None
    mean, std = ((figure,) * images.shape[0] for figure in known)
    with settings_of(compute, config.threads):
        network.to(compute.device)
        facts = ModelFacts(architecture=name, classes=("", " "), shape=images.shape, mean=mean, std=std)
        bank = bank_of(source, Augment.normalising(mean, std, compute.device), facts, compute)
        features = bank.room(
            on_device(images.pixels, compute.device), 1, network.heads.first.in_features, compute.dtype,
            torch.from_numpy(rows),
        )  # fmt: skip
        pass_views(bank, network, compute, tell, words=_LOOKING)
        chosen, alike = choose(features[torch.from_numpy(rows), 0], labelled[rows], count, seed)
    return Suggested(images, rows[chosen], alike, len(rows), int(labelled.sum()), dataset.notes)


def _looked_at(labelled: np.ndarray, seed: int) -> np.ndarray:
    """The rows of all images or, of more than MOST, of a part drawn from them; those with labels first of all."""
    if len(labelled) <= MOST:
        return np.arange(len(labelled))
    order = np.random.default_rng(seed).permutation(len(labelled))
    # No more of those with a label than leave half of the room to the others.
    ours = order[labelled[order]][: MOST // 2]
    return np.sort(np.concatenate([ours, order[~labelled[order]][: MOST - len(ours)]]))


def _images(source: str, root: Path, options: Options) -> Dataset:
    """A source's images, of which none needs a label."""
    from fastswa.data.cache import as_dataset, prepare
    from fastswa.data.sources.folder import list_target
    from fastswa.data.sources.manifest import list_manifest
    from fastswa.data.sources.npz import load_npz

    if source in SOURCES:
        raise RequestError(f"{source} has labels; name a folder, manifest or .npz file of your own.")
    path = place(source, root)
    if path.suffix.lower() == ".npz" and path.is_file():
        return fit_dataset(load_npz(path, target=True), options)
    if not path.is_dir() and path.suffix.lower() not in MANIFESTS:
        refuse_other_file(source, path)
    if not path.exists():
        raise RequestError(f"{source}: there is no such folder or file.")
    files = list_target(path) if path.is_dir() else list_manifest(path, skip_bad=options.skip_bad, target=True)
    if len(files) == files.tests:
        raise RequestError(f"{source} holds no image outside of test/.")
    return as_dataset(files, prepare(files, options), every_class=False)
