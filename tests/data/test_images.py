"""ImageSet and Dataset: what they accept, and channel statistics against NumPy's own."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fastswa.data.images import UNLABELLED, Dataset, ImageSet
from fastswa.errors import RequestError


def images(count: int = 4, shape: tuple[int, int, int] = (3, 2, 2), classes: str = "ab") -> ImageSet:
    pixels = np.arange(count * int(np.prod(shape)), dtype=np.uint8).reshape(count, *shape)
    return ImageSet(pixels, np.arange(count) % len(classes), tuple(classes))


def test_length_and_shape() -> None:
    subject = images(5, (3, 4, 6))
    assert len(subject) == 5
    assert subject.shape == (3, 4, 6)


def test_statistics_over_several_blocks_are_numpys() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 2, 3, 3), dtype=np.uint8)
    mean, deviation = ImageSet(pixels, np.zeros(5000, np.int64), ("a",)).channel_statistics()
    scaled = pixels / 255.0
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(deviation, scaled.std(axis=(0, 2, 3)), rtol=1e-9)


def test_statistics_of_a_constant_channel_can_be_divided_by() -> None:
    mean, deviation = ImageSet(np.full((3, 1, 2, 2), 51, np.uint8), np.zeros(3, np.int64), ("a",)).channel_statistics()
    assert mean == pytest.approx((0.2,))
    assert deviation == (1e-3,)


@pytest.mark.parametrize(
    ("pixels", "labels", "words"),
    [
        (np.zeros((2, 1, 2, 2), np.float32), np.zeros(2, np.int64), "must be uint8"),
        (np.zeros((2, 2, 2), np.uint8), np.zeros(2, np.int64), "must be uint8 of shape (N, C, H, W)"),
        (np.zeros((2, 1, 2, 2), np.uint8), np.zeros(3, np.int64), "2 images but labels of shape (3,)"),
        (np.zeros((2, 1, 2, 2), np.uint8), np.array([0, 2]), "label 2 is out of range for 2 classes"),
        (np.zeros((2, 1, 2, 2), np.uint8), np.array([0, -2]), "label -2 is out of range"),
    ],
)
def test_what_is_refused(pixels: np.ndarray, labels: np.ndarray, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        ImageSet(pixels, labels, ("a", "b"))


def test_unlabelled_images_are_accepted() -> None:
    subject = ImageSet(np.zeros((2, 1, 2, 2), np.uint8), np.array([UNLABELLED, 1]), ("a", "b"))
    assert subject.labels.tolist() == [-1, 1]


def test_a_dataset_wants_one_size_and_the_same_classes() -> None:
    assert Dataset(images(), images(2)).classes == ("a", "b")
    with pytest.raises(RequestError, match="same size"):
        Dataset(images(), images(shape=(3, 2, 3)))
    with pytest.raises(RequestError, match="classes of test and training images differ"):
        Dataset(images(), images(classes="ac"))
