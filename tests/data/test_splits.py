"""Splits: balanced, nested, disjoint, and one sentence for what cannot be had."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from fastswa.data.images import UNLABELLED, ImageSet
from fastswa.data.splits import Split, make_split
from fastswa.errors import RequestError


def image_set(labels: list[int] | np.ndarray, classes: int = 5) -> ImageSet:
    labels = np.asarray(labels, dtype=np.int64)
    pixels = np.zeros((len(labels), 1, 1, 1), dtype=np.uint8)
    return ImageSet(pixels, labels, tuple(f"class {k}" for k in range(classes)), name="pets")


def shuffled(sizes: list[int], unlabelled: int = 0) -> ImageSet:
    labels = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(unlabelled, UNLABELLED)])
    return image_set(np.random.default_rng(0).permutation(labels), len(sizes))


def per_class(images: ImageSet, chosen: np.ndarray) -> list[int]:
    return np.bincount(images.labels[chosen], minlength=len(images.classes)).tolist()


def everyone(split: Split) -> list[int]:
    return sorted(np.concatenate([split.labelled, split.unlabelled, split.validation]).tolist())


IMAGES = shuffled([40, 40, 40, 40, 40], unlabelled=30)


@pytest.mark.parametrize(("labels", "counts"), [(5, [1] * 5), (50, [10] * 5), (200, [40] * 5), (13, [3, 3, 3, 2, 2])])
def test_labelled_images_are_balanced(labels: int, counts: list[int]) -> None:
    split = make_split(IMAGES, labels=labels, seed=3)
    assert per_class(IMAGES, split.labelled) == counts
    assert len(np.unique(split.labelled)) == labels


def test_unlabelled_is_everything_else() -> None:
    split = make_split(IMAGES, labels=50, validation=20)
    assert everyone(split) == list(range(230))
    assert (len(split.labelled), len(split.unlabelled), len(split.validation)) == (50, 160, 20)
    assert set(np.flatnonzero(IMAGES.labels == UNLABELLED)) <= set(split.unlabelled)
    assert all(part.dtype == np.int64 for part in (split.labelled, split.unlabelled, split.validation))


def test_all_labels_by_default() -> None:
    split = make_split(IMAGES)
    assert sorted(split.labelled) == sorted(np.flatnonzero(IMAGES.labels >= 0))
    assert sorted(split.unlabelled) == sorted(np.flatnonzero(IMAGES.labels == UNLABELLED))
    assert len(split.validation) == 0


def test_smaller_splits_of_a_seed_lie_within_larger_ones() -> None:
    sizes = [5, 7, 10, 13, 25, 50, 100, 180]
    for validation in (0, 20):
        chosen = [set(make_split(IMAGES, labels=n, seed=4, validation=validation).labelled) for n in sizes]
        assert all(small < large for small, large in itertools.pairwise(chosen))


def test_seeds_choose_other_images_and_repeat() -> None:
    first, second = make_split(IMAGES, labels=50, seed=1), make_split(IMAGES, labels=50, seed=2)
    shared = len(set(first.labelled) & set(second.labelled))
    # 50 of 200 chosen twice share 12.5 on average, deviation 2.7.
    assert 0 < shared < 26
    again = make_split(IMAGES, labels=50, seed=1)
    assert first.labelled.tolist() == again.labelled.tolist()
    assert first.unlabelled.tolist() == again.unlabelled.tolist()


def test_every_image_is_equally_likely_to_be_labelled() -> None:
    images = shuffled([20, 20])
    chosen = sum(np.bincount(make_split(images, labels=10, seed=s).labelled, minlength=40) for s in range(400))
    # Each is chosen with probability 1/4: 100 of 400, deviation 8.7.
    assert 100 - 44 < int(np.min(chosen)) <= int(np.max(chosen)) < 100 + 44


def test_unlabelled_images_can_be_limited() -> None:
    whole = make_split(IMAGES, labels=50, seed=1)
    few, more = (make_split(IMAGES, labels=50, seed=1, unlabelled=n) for n in (20, 90))
    assert few.labelled.tolist() == whole.labelled.tolist()
    assert len(few.unlabelled) == 20
    assert set(few.unlabelled) < set(more.unlabelled) < set(whole.unlabelled)
    assert len(make_split(IMAGES, labels=50, unlabelled=0).unlabelled) == 0


def test_validation_keeps_each_classs_share() -> None:
    images = shuffled([100, 50, 30, 20])
    assert per_class(images, make_split(images, labels=40, validation=20).validation) == [10, 5, 3, 2]
    # Quotas 5.5, 2.75, 1.65, 1.1: the two largest remainders get one more.
    assert per_class(images, make_split(images, labels=40, validation=11).validation) == [5, 3, 2, 1]
    assert per_class(images, make_split(images, labels=None, validation=100).validation) == [50, 25, 15, 10]


def test_no_class_loses_its_last_label_to_validation() -> None:
    images = shuffled([1, 1, 1, 1, 6])
    split = make_split(images, validation=4)
    assert per_class(images, split.validation) == [0, 0, 0, 0, 4]
    assert per_class(images, split.labelled) == [1, 1, 1, 1, 2]


def test_fewer_validation_images_than_classes_are_of_any_class() -> None:
    images = shuffled([3] * 40)
    held_out = [np.array(per_class(images, make_split(images, validation=10, seed=seed).validation)) for seed in (0, 1)]
    assert all(counts.sum() == 10 and counts.max() == 1 and counts[10:].any() for counts in held_out)
    assert (held_out[0] != held_out[1]).any()


def test_validation_is_never_trained_on() -> None:
    split = make_split(IMAGES, labels=100, validation=50, unlabelled=80)
    assert not set(split.validation) & (set(split.labelled) | set(split.unlabelled))
    assert (IMAGES.labels[split.validation] != UNLABELLED).all()


def test_validation_does_not_depend_on_the_number_of_labels() -> None:
    few, many = (make_split(IMAGES, labels=n, validation=20, seed=5) for n in (10, 150))
    assert few.validation.tolist() == many.validation.tolist()


def test_file_lists_the_labelled_images(tmp_path: Path) -> None:
    file = tmp_path / "labelled.txt"
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(IMAGES.labels >= 0))[:150]
    file.write_text("\n".join(str(i) for i in chosen) + "\n")
    split = make_split(IMAGES, file=file, validation=40)
    assert split.labelled.tolist() == sorted(chosen.tolist())
    assert everyone(split) == list(range(230))
    assert len(split.validation) == 40
    assert not set(split.validation) & set(chosen)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("1\ntwo\n", "must hold one image number a line"),
        ("1.5", "must hold one image number a line"),
        ("", "lists no image."),
        ("3\n-1\n", "lists image -1, but the images are numbered 0 to 229."),
        ("3\n230\n", "lists image 230, but the images are numbered 0 to 229."),
        ("4\n9\n4\n", "lists an image twice."),
    ],
)
def test_bad_files_are_refused_in_one_sentence(content: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "labelled.txt"
    file.write_text(content)
    images = image_set(np.arange(230) % 5)
    with pytest.raises(RequestError, match=rf"^split\.file: \S*labelled\.txt {sentence}"):
        make_split(images, file=file)


def test_a_file_that_lists_an_unlabelled_image_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "labelled.txt"
    file.write_text("0 2")
    with pytest.raises(RequestError, match="lists image 2, which has no label"):
        make_split(image_set([0, 1, UNLABELLED, 1]), file=file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^split\.file: cannot read .*none\.txt: No such file or directory\.$"):
        make_split(IMAGES, file=tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("images", "wanted", "sentence"),
    [
        (IMAGES, {"labels": 4}, r"split\.labels: 4 labels cannot cover 5 classes; give at least 5\."),
        (IMAGES, {"labels": 0}, r"split\.labels: 0 labels cannot cover 5 classes"),
        (IMAGES, {"labels": 201}, r"split\.labels: 201 labels want 41 images of class 'class 0', but only 40 "),
        (
            shuffled([40, 3, 40]),
            {"labels": 12},
            r"split\.labels: 12 labels want 4 images of class 'class 1', but only 3 are there\.",
        ),
        (IMAGES, {"labels": 50, "unlabelled": 181}, r"181 unlabelled images are wanted, but only 180 are there\."),
        (IMAGES, {"validation": 200}, r"split\.validation: 200 images cannot be held out of 200 labelled ones\."),
        (
            shuffled([1, 1, 6]),
            {"validation": 6},
            r"^split\.validation: 6 of 8 labelled images cannot be held out without taking some class its last one; "
            r"hold out 5 at most\.$",
        ),
        (IMAGES, {"labels": 200, "validation": 5}, r"want 40 images of class 'class 0', but only 39 are there\."),
        (shuffled([0, 0], unlabelled=5), {}, r"^pets: no labelled image is left to train on\.$"),
    ],
)
def test_what_cannot_be_had_is_refused(images: ImageSet, wanted: dict[str, int], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        make_split(images, **wanted)
