"""Two domains: labels of a source, images of a target whose training labels are never looked at.

Classes are matched by name, upper and lower case alike, and then by aliases; those of one side only are left out of
both. The target's images come in the source's size and colour. What a run trains on is a Dataset whose training images
are the source's and whose test images are the target's, with the target's training images beside them as `Domains`.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fastswa.data.fit import fit_set, shape_text
from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.data.plan import Options, Plan, Shape
from fastswa.data.sources import MANIFESTS, SOURCES, load, place
from fastswa.errors import RequestError

# Names for the same thing in published data sets; `data.aliases` adds one's own.
ALIASES = {"automobile": "car"}
_COMPARED = 1 << 29  # bytes of pixels that are compared before a training; `fastswa check` compares all


@dataclass(frozen=True)
class Matching:
    """Classes of two domains: pairs of (source's number, target's), and the names left out on each side."""

    pairs: tuple[tuple[int, int], ...]
    source_only: tuple[str, ...]
    target_only: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """A target's images in the source's shape, with such labels as it has; `shape` is what they had themselves.

    `plan` says what the files were where they came from files, and `unreadable` which of them are left out and why;
    `notes` are sentences on what was changed.
    """

    dataset: Dataset
    shape: Shape
    plan: Plan | None = None
    unreadable: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Domains:
    """What a Dataset of two domains holds beside the source's training and the target's test images.

    `images` are the target's training images in the source's shape, all of their labels gone; `matched` maps the
    source's class names to the target's, and is empty where the target names no class.
    """

    source: str
    target: str
    images: ImageSet
    source_test: ImageSet | None
    matched: dict[str, str]
    source_only: tuple[str, ...]
    target_only: tuple[str, ...]
    notes: tuple[str, ...] = ()


def load_target(source: str, root: Path, shape: Shape, options: Options | None = None) -> Target:
    """A target's images for a source whose images have `shape`; neither labels nor classes are needed.

    The target is a built-in name, a folder (labeled/, unlabeled/, both, or images anywhere; test/CLASS/ apart), a
    manifest (of which the paths are enough) or an .npz file (of which x_train or x_unlabelled is enough).
    """
    root, options = Path(root).expanduser(), options or Options()
    path = place(source, root)
    if source not in SOURCES and (path.is_dir() or path.suffix.lower() in MANIFESTS):
        return _from_files(source, path, shape, options)
    if source not in SOURCES and path.suffix.lower() == ".npz":
        from fastswa.data.sources.npz import load_npz

        dataset = load_npz(path, target=True)
    else:
        dataset = load(source, root)
    if dataset.train.shape == shape:
        return Target(dataset, shape)
    test = None if dataset.test is None else fit_set(dataset.test, shape)
    note = f"target images are brought from {shape_text(dataset.train.shape)} to {shape_text(shape)}"
    fitted = replace(dataset, train=fit_set(dataset.train, shape), test=test, normalisation=None)
    return Target(fitted, dataset.train.shape, notes=(note,))


def _from_files(source: str, path: Path, shape: Shape, options: Options) -> Target:
    from fastswa.data.cache import as_dataset, prepare
    from fastswa.data.sources.folder import list_target
    from fastswa.data.sources.manifest import list_manifest

    files = list_target(path) if path.is_dir() else list_manifest(path, skip_bad=options.skip_bad, target=True)
    if len(files) == files.tests:
        where = f"; put some in {path / 'unlabeled'}/" if path.is_dir() else ""
        raise RequestError(f"data.target: {source} holds no training image{where}.")
    channels, height, width = shape
    prepared = prepare(files, replace(options, size=(height, width), channels=channels))
    plan = prepared.plan
    dataset = as_dataset(files, prepared, every_class=False)
    notes = [*dataset.notes, *plan.notes]
    if channels == 3 and plan.grey:
        grey = "target images are grey" if plan.grey == plan.images else f"{plan.grey} target images are grey"
        notes.append(f"{grey} and are taken as RGB, which the source is.")
    return Target(dataset, plan.own, plan, {**files.missing, **prepared.unreadable}, tuple(notes))


def pair_domains(
    source: str,
    target: str,
    first: Dataset,
    second: Target,
    aliases: Mapping[str, str],
    *,
    unlabelled: int | None = None,
    seed: int = 0,
) -> Dataset:
    """The source's dataset and the target's as one of two domains; at most `unlabelled` target images, by `seed`."""
    theirs = second.dataset
    matching = match_domains(source, target, first.classes, theirs.classes, aliases)
    classes = tuple(first.classes[a] for a, _ in matching.pairs)
    numbers = _numbering(first, matching, 0), _numbering(theirs, matching, 1)
    images = _restricted(theirs.train, numbers[1], classes, known=False)
    if len(images) < 2:
        count = "no training image" if len(images) == 0 else "a single training image"
        raise RequestError(
            f"data.target: {target} has {count} of a class that {source} has or of unknown class; "
            "a domain takes two at least, and hundreds to learn from."
        )
    images = replace(images, labels=np.full(len(images), UNLABELLED))
    domains = Domains(
        source=source,
        target=target,
        images=_drawn(images, unlabelled, seed),
        source_test=_tested(first.test, numbers[0], classes),
        matched={first.classes[a]: theirs.classes[b] for a, b in matching.pairs} if theirs.classes else {},
        source_only=matching.source_only,
        target_only=matching.target_only,
        notes=second.notes,
    )
    origins = (first.origin, theirs.origin)
    return Dataset(
        train=_restricted(first.train, numbers[0], classes, known=True),
        test=_tested(theirs.test, numbers[1], classes),
        normalisation=first.normalisation,
        origin=None if origins == (None, None) else f"{origins[0]} {origins[1]}",
        notes=first.notes,
        domains=domains,
    )


def match_domains(
    source: str, target: str, ours: Sequence[str], theirs: Sequence[str], aliases: Mapping[str, str]
) -> Matching:
    """Which classes of two domains are the same; RequestError where too few are.

    A target without classes has all of the source's.
    """
    if not theirs:
        if aliases:
            raise RequestError(
                f"data.aliases: {target} names no class that another could be the same as; leave it out."
            )
        return Matching(tuple((number, number) for number in range(len(ours))), (), ())
    pairs = match_classes(ours, theirs, aliases)
    if len(pairs) < 2:
        shared = f"only the class '{ours[pairs[0][0]]}'" if pairs else "no class"
        raise RequestError(
            f"data.target: {source} ({_some(ours)}) and {target} ({_some(theirs)}) have {shared} in common; "
            "data.aliases says which are the same, such as automobile=car."
        )
    left, right = {a for a, _ in pairs}, {b for _, b in pairs}
    return Matching(
        tuple(pairs),
        tuple(name for number, name in enumerate(ours) if number not in left),
        tuple(name for number, name in enumerate(theirs) if number not in right),
    )


def match_classes(ours: Sequence[str], theirs: Sequence[str], aliases: Mapping[str, str]) -> list[tuple[int, int]]:
    """(number among `ours`, number among `theirs`) of the classes that are the same, in the order of `ours`.

    Equal names first, upper and lower case alike; of the rest those that `aliases` equate, then those that the built-in
    ones do.
    """
    left, right = _by_name(ours), _by_name(theirs)
    for name in (name for pair in aliases.items() for name in pair):
        if _plain(name) not in left and _plain(name) not in right:
            raise RequestError(f"data.aliases: neither side has a class '{name}'.")
    found = {number: right[name] for name, number in left.items() if name in right}
    for pairs in (aliases.items(), [*ALIASES.items(), *aliases.items()]):
        groups = _groups(pairs)
        free = {name: number for name, number in right.items() if number not in found.values()}
        claimed: dict[int, int] = {}
        for name, number in left.items():
            others = [free[other] for other in sorted(groups.get(name, ())) if other in free]
            if number in found or not others:
                continue
            if len(others) > 1:
                raise _ambiguous(theirs[others[0]], theirs[others[1]], ours[number])
            if others[0] in claimed:
                raise _ambiguous(ours[claimed[others[0]]], ours[number], theirs[others[0]])
            found[number] = others[0]
            claimed[others[0]] = number
    joined = {_plain(ours[a]) for a, b in found.items() if _plain(ours[a]) != _plain(theirs[b])}
    for one, other in aliases.items():
        if not joined & groups[_plain(one)]:
            raise RequestError(
                f"data.aliases: {one}={other} matches nothing; an alias is for a class that only the source has and "
                "one that only the target has."
            )
    return sorted(found.items())


def _ambiguous(first: str, second: str, one: str) -> RequestError:
    return RequestError(f"data.aliases: '{first}' and '{second}' would both be '{one}'; only one of them can be.")


def _by_name(names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, name in enumerate(names):
        other = found.setdefault(_plain(name), number)
        if other != number:
            raise RequestError(f"the classes '{names[other]}' and '{name}' differ only in case; rename one of them.")
    return found


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip().casefold()


def _groups(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """All the names that are the same as each, directly or by way of others."""
    groups: dict[str, set[str]] = {}
    for one, other in pairs:
        joined = groups.get(_plain(one), {_plain(one)}) | groups.get(_plain(other), {_plain(other)})
        groups |= dict.fromkeys(joined, joined)
    return groups


def _numbering(dataset: Dataset, matching: Matching, side: int) -> np.ndarray:
    """The shared number of each class of a side, -2 for those left out; its last place is for unknown ones."""
    numbers = np.full(len(dataset.classes) + 1, -2, dtype=np.int64)
    numbers[-1] = UNLABELLED
    if dataset.classes:
        for shared, pair in enumerate(matching.pairs):
            numbers[pair[side]] = shared
    return numbers


def _restricted(images: ImageSet, numbers: np.ndarray, classes: tuple[str, ...], *, known: bool) -> ImageSet:
    """The images of shared classes with their shared labels and, unless `known`, those of unknown class."""
    labels = numbers[images.labels]
    rows = np.flatnonzero(labels >= (0 if known else UNLABELLED))
    return replace(_rows(images, rows), labels=labels[rows], classes=classes) if len(rows) else _none(images, classes)


def _tested(images: ImageSet | None, numbers: np.ndarray, classes: tuple[str, ...]) -> ImageSet | None:
    """The test images of shared classes, if there are any."""
    shared = None if images is None else _restricted(images, numbers, classes, known=True)
    return shared if shared is not None and len(shared) else None


def _none(images: ImageSet, classes: tuple[str, ...]) -> ImageSet:
    return replace(images, pixels=images.pixels[:0], labels=images.labels[:0], classes=classes, files=None)


def _rows(images: ImageSet, rows: np.ndarray) -> ImageSet:
    """Some of the images in their order; of neighbours, as of a folder's labelled images, a view of the memory map."""
    if len(rows) == len(images):
        return images
    first, last = int(rows[0]), int(rows[-1])
    together = last - first + 1 == len(rows)
    pixels = images.pixels[first : last + 1] if together else images.pixels[rows]
    files = None if images.files is None else images.files.take(rows)
    return replace(images, pixels=pixels, labels=images.labels[rows], files=files)


def _drawn(images: ImageSet, count: int | None, seed: int) -> ImageSet:
    if count is None:
        return images
    if not 2 <= count <= len(images):
        raise RequestError(
            f"split.unlabelled: {count} target images are wanted, but it takes 2 at least and {len(images)} are there."
        )
    return _rows(images, np.sort(np.random.default_rng([seed, 1]).choice(len(images), count, replace=False)))


def domain_facts(dataset: Dataset, domains: Domains) -> dict[str, Any]:
    """What was matched and what there is, for the run's folder."""
    return {
        "source": domains.source,
        "target": domains.target,
        "classes": domains.matched or dict.fromkeys(dataset.classes),
        "left_out": {"source": list(domains.source_only), "target": list(domains.target_only)},
        "images": {
            "source": len(dataset.train),
            "source_test": 0 if domains.source_test is None else len(domains.source_test),
            "target": len(domains.images),
            "target_test": 0 if dataset.test is None else len(dataset.test),
        },
        "notes": list(domains.notes),
    }


def domain_lines(dataset: Dataset, domains: Domains) -> Iterator[str]:
    """The same in a few lines for the person."""
    source, target, count = domains.source, domains.target, len(dataset.classes)
    if domains.matched:
        renamed = [f"{ours} = {theirs}" for ours, theirs in domains.matched.items() if ours != theirs]
        aliases = f" ({_some(renamed, 5)})" if renamed else ""
        yield f"domains: {count} classes of {source} and {target} are matched{aliases}"
    else:
        yield f"domains: {target} names no class; all {count} of {source} are taken to be in it"
    for side, names in ((source, domains.source_only), (target, domains.target_only)):
        if names:
            yield f"left out, as only {side} has them: {_some(names, 20)}"
    images = f"target: {len(domains.images):,} images of {target}, whose labels are not looked at"
    if dataset.test is not None:
        yield f"{images}; errors are those on its {len(dataset.test):,} test images"
    else:
        yield f"{images}; it has no labelled test images, so that errors are those on images of {source}"
    yield from (note.removesuffix(".") for note in domains.notes)


def domain_warnings(dataset: Dataset, domains: Domains) -> Iterator[str]:
    """What makes the two domains one; very many images are not compared."""
    if same_place(domains.source, domains.target):
        yield f"data.target: the target is the source ({domains.target}); name the images of another domain."
        return
    if dataset.train.pixels.nbytes + domains.images.pixels.nbytes > _COMPARED:
        return
    copies, count = shared_images(dataset.train, domains.images), len(domains.images)
    if copies:
        all_of_them = "; the two are one domain" if copies == count else ""
        yield (
            f"data.target: {copies:,} of the {count:,} images of {domains.target} are, pixel by pixel, images of "
            f"{domains.source} as well{all_of_them}."
        )


def same_place(source: str, target: str) -> bool:
    """Whether two names are one, or lead to one folder or file."""
    return source == target or os.path.realpath(source) == os.path.realpath(target)


def shared_images(first: ImageSet, second: ImageSet) -> int:
    """How many of the second images are, pixel by pixel, among the first."""
    marks = {_mark(pixels) for pixels in first.pixels}
    return sum(_mark(pixels) in marks for pixels in second.pixels)


def _mark(pixels: np.ndarray) -> bytes:
    return blake2b(np.ascontiguousarray(pixels).data, digest_size=8).digest()


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
