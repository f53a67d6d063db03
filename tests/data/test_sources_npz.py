"""One's own images from .npz files: the shapes accepted, and one sentence for everything else."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastswa.data.sources.npz import load_npz
from fastswa.errors import RequestError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3, 5, 7), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, -1]


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS.transpose(0, 2, 3, 1), PIXELS),
        (PIXELS[:, 0], PIXELS[:, :1]),
        (PIXELS[:, :1], PIXELS[:, :1]),
        (PIXELS[:, :1].transpose(0, 2, 3, 1), PIXELS[:, :1]),
        (PIXELS[:, :, :, :3], PIXELS[:, :, :, :3].transpose(0, 3, 1, 2)),  # could be either: channels last
    ],
)
def test_shapes(stored: np.ndarray, expected: np.ndarray, tmp_path: Path) -> None:
    dataset = load_npz(save(tmp_path, x_train=stored, y_train=LABELS))
    np.testing.assert_array_equal(dataset.train.pixels, expected)
    assert dataset.train.labels.tolist() == LABELS
    assert dataset.train.labels.dtype == np.int64
    assert dataset.classes == ("0", "1", "2")
    assert dataset.test is None
    assert dataset.normalisation is None


def test_test_part_unlabelled_part_and_names(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        x_train=PIXELS[:2],
        y_train=np.array([1, 0], np.uint8),
        x_unlabelled=PIXELS[2:5],
        x_test=PIXELS[5:],
        y_test=[2],
        classes=["cat", "dog", "été"],
    )
    dataset = load_npz(path)
    np.testing.assert_array_equal(dataset.train.pixels, PIXELS[:5])
    assert dataset.train.labels.tolist() == [1, 0, -1, -1, -1]
    assert dataset.test is not None
    np.testing.assert_array_equal(dataset.test.pixels, PIXELS[5:])
    assert dataset.test.labels.tolist() == [2]
    assert dataset.classes == ("cat", "dog", "été")


def test_classes_are_counted_over_both_parts(tmp_path: Path) -> None:
    path = save(tmp_path, x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:1], y_test=[4])
    assert load_npz(path).classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_train": PIXELS / 255.0}, "x_train is float64; convert the images to uint8, 0 to 255 with"),
        ({"x_train": PIXELS.astype(np.int64)}, "x_train is int64; convert the images to uint8, 0 to 255."),
        ({"x_train": PIXELS[0, 0]}, "x_train has shape (5, 7)"),
        ({"x_train": PIXELS[:, :, :0]}, "x_train has shape (6, 3, 0, 7)"),
        ({"x_train": PIXELS[:0], "y_train": np.zeros(0, int)}, "x_train holds no images"),
        ({"x_train": np.zeros((6, 8, 8, 4), np.uint8)}, "x_train has 4 channels; keep 1 (grey) or 3"),
        ({"y_train": [0.0] * 6}, "y_train is float64 of shape (6,); labels must be integers"),
        ({"y_train": [[0]] * 6}, "y_train is int64 of shape (6, 1)"),
        ({"y_train": [0] * 5}, "x_train has 6 images, but y_train 5 labels"),
        ({"y_train": [0, 1, 2, 3, 4, -2]}, "y_train holds -2"),
        ({"y_train": np.full(6, 2**64 - 1, np.uint64)}, "y_train holds 18446744073709551615"),
        ({"y_train": [100_000] * 6}, "means 100,001 classes"),
        ({"y_train": [-1] * 6}, "y_train holds no label"),
        ({"classes": ["a", "b"]}, "label 2 is out of range for 2 classes"),
        ({"classes": [1, 2, 3]}, "classes is int64 of shape (3,); it must be a list of names"),
        ({"classes": ["cat", "dog", "cat"]}, "own.npz: classes holds 'cat' twice; give each class a name of its own."),
        ({"classes": ["cat", "dog", "Cat"]}, "own.npz: the classes 'cat' and 'Cat' differ only in case; rename one"),
        ({"classes": ["cat", "", "dog"]}, "own.npz: classes has no name for label 1; give each class one."),
        ({"classes": ["cat", "dog", " "]}, "own.npz: classes has no name for label 2; give each class one."),
        ({"x_test": PIXELS}, "lacks y_test (it holds x_train, y_train, x_test)"),
        ({"y_test": LABELS}, "lacks x_test"),
        ({"x_test": PIXELS, "y_test": LABELS}, "y_test holds -1, but every test image needs its label"),
        ({"x_test": PIXELS[..., :6], "y_test": [0] * 6}, "x_test has images of shape (3, 5, 6), but x_train"),
        ({"x_unlabelled": PIXELS[:, 0]}, "x_unlabelled has images of shape (5, 7), but x_train of (3, 5, 7)"),
        ({"x_unlabeled": PIXELS}, "'x_unlabeled' is not used; rename it to 'x_unlabelled'"),
    ],
)
def test_what_is_refused(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(tmp_path, **{"x_train": PIXELS, "y_train": LABELS, **arrays})
    with pytest.raises(RequestError, match=re.escape(words)) as info:
        load_npz(path)
    assert str(path) in str(info.value)
    assert "\n" not in str(info.value)


def test_other_arrays_are_left_alone(tmp_path: Path) -> None:
    assert len(load_npz(save(tmp_path, x_train=PIXELS, y_train=LABELS, source="camera 3")).train) == 6


def test_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"lacks x_train and y_train \(it holds images\)"):
        load_npz(save(tmp_path, images=PIXELS))


@pytest.mark.parametrize("key", ["x_train", "y_train", "classes"])
def test_pickled_arrays_are_refused(key: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x_train": PIXELS, "y_train": LABELS}
    arrays[key] = np.array(["a", None, 1], dtype=object)
    with pytest.raises(RequestError, match=f"{key} is an array of Python objects"):
        load_npz(save(tmp_path, **arrays))


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    whole = save(tmp_path, x_train=PIXELS, y_train=LABELS).read_bytes()
    path = tmp_path / "bad.npz"
    with pytest.raises(RequestError, match="there is no such file"):
        load_npz(path)
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=r"is not an \.npz file or is truncated"):
            load_npz(path)
    damaged = bytearray(whole)
    damaged[400] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(RequestError, match="is damaged or cannot be read"):
        load_npz(path)
    np.save(tmp_path / "array.npy", PIXELS)
    with pytest.raises(RequestError, match=r"is not an \.npz file"):
        load_npz(tmp_path / "array.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train", "text")
        archive.writestr("y_train", "text")
    with pytest.raises(RequestError, match="x_train is not a NumPy array"):
        load_npz(path)


def test_classes_that_nothing_can_be_learnt_of_are_told(tmp_path: Path) -> None:
    from_one = load_npz(save(tmp_path, x_train=PIXELS, y_train=[1, 2, 4, 1, 2, -1]))
    assert from_one.notes == ("no training image is labelled '0', '3'; labels are numbered from 0.",)
    assert load_npz(save(tmp_path, x_train=PIXELS, y_train=LABELS)).notes == ()
    assert load_npz(save(tmp_path, x_train=PIXELS, y_train=[1, 2, 4, 1, 2, -1]), target=True).notes == ()
