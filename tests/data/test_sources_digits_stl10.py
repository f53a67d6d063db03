"""MNIST, USPS and STL-10 from small files in the published layouts, and from the real ones where they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastswa.data.images import Dataset
from fastswa.data.sources import load
from fastswa.data.sources.stl10 import CLASSES, block_means
from fastswa.errors import RequestError

SHARED = Path(__file__).parents[3] / "shared" / "data"
SIDES = {"mnist": 28, "usps": 16}


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format by its description: two zeros, 8 for bytes, the number of axes, their lengths as big-endian words."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    content = head + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def digits(side: int, count: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(side)
    return {
        "train-images": rng.integers(0, 256, (count, side, side), dtype=np.uint8),
        "train-labels": np.arange(count, dtype=np.uint8) % 10,
        "t10k-images": rng.integers(0, 256, (3, side, side), dtype=np.uint8),
        "t10k-labels": np.array([9, 0, 4], dtype=np.uint8),
    }


def write_digits(folder: Path, side: int, name: str = "{stem}-idx{axes}-ubyte.gz") -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SUBSET").touch()
    arrays = digits(side)
    for stem, array in arrays.items():
        write_idx(folder / name.format(stem=stem, axes=array.ndim), array)
    return arrays


def assert_holds(dataset: Dataset, arrays: dict[str, np.ndarray]) -> None:
    assert dataset.test is not None
    assert np.array_equal(dataset.train.pixels[:, 0], arrays["train-images"])
    assert np.array_equal(dataset.test.pixels[:, 0], arrays["t10k-images"])
    assert dataset.train.labels.tolist() == arrays["train-labels"].tolist()
    assert dataset.test.labels.tolist() == [9, 0, 4]
    assert dataset.classes == tuple("0123456789")


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("file", ["{stem}-idx{axes}-ubyte.gz", "{stem}-idx{axes}-ubyte", "{stem}.idx{axes}-ubyte"])
def test_idx_files_gzipped_or_not(name: str, file: str, tmp_path: Path) -> None:
    arrays = write_digits(tmp_path / name, SIDES[name], file)
    assert_holds(load(name, tmp_path), arrays)
    assert_holds(load(name, tmp_path / name), arrays)


def test_idx_files_of_both_sets_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    mnist = write_digits(tmp_path, 28)
    usps = write_digits(tmp_path, 16, "usps-{stem}-idx{axes}-ubyte")
    assert_holds(load("mnist", tmp_path), mnist)
    assert_holds(load("usps", tmp_path), usps)


@pytest.mark.parametrize("name", SIDES)
def test_digits_from_an_npz_file(name: str, tmp_path: Path) -> None:
    arrays = digits(SIDES[name], 20)
    (tmp_path / "SUBSET").touch()
    keys = dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays.values(), strict=True))
    np.savez(tmp_path / f"{name}.npz", **keys)
    assert_holds(load(name, tmp_path), arrays)


def test_a_set_that_is_not_there_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no MNIST under .*: put mnist.npz or its IDX files there, or pass"):
        load("mnist", tmp_path)
    with pytest.raises(RequestError, match=r"there is no STL-10 under .*stl10_binary.*cs.stanford.edu"):
        load("stl10", tmp_path / "nowhere")


def test_damaged_idx_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    write_digits(folder, 28, "{stem}-idx{axes}-ubyte")
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-1])
    with pytest.raises(RequestError, match=r"is truncated or damaged: it holds 4,703 bytes instead of 4,704\.$"):
        load("mnist", tmp_path)
    images.write_bytes(whole[:9])
    with pytest.raises(RequestError, match="is truncated: it ends within its head"):
        load("mnist", tmp_path)
    images.write_bytes(b"\x89PNG" + whole)
    with pytest.raises(RequestError, match="is not an IDX file of bytes"):
        load("mnist", tmp_path)
    images.write_bytes(whole)
    labels.write_bytes(labels.read_bytes()[:8] + bytes([12] * 6))
    with pytest.raises(RequestError, match="mnist train: label 12 is out of range"):
        load("mnist", tmp_path)
    (folder / "SUBSET").unlink()
    with pytest.raises(RequestError, match="has 6 images instead of 60,000"):
        load("mnist", tmp_path)


def write_stl10(folder: Path, train: np.ndarray, labels: list[int]) -> None:
    """Planes column by column: byte c * 9216 + x * 96 + y of a record is channel c, row y, column x."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SUBSET").touch()
    for part in ("train", "test"):
        records = b"".join(
            image[c, y, x].tobytes() for image in train for c in range(3) for x in range(96) for y in range(96)
        )
        (folder / f"{part}_X.bin").write_bytes(records)
        (folder / f"{part}_y.bin").write_bytes(bytes(labels))


def test_the_published_binary_of_stl10_is_reduced_by_block_means(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 96, 96), dtype=np.uint8)
    write_stl10(tmp_path / "stl10_binary", images, [1, 10])
    dataset = load("stl10", tmp_path)
    assert dataset.train.labels.tolist() == [0, 9]
    assert dataset.classes == CLASSES
    assert dataset.train.shape == (3, 32, 32)
    for c, y, x in ((0, 0, 0), (1, 31, 2), (2, 7, 30)):
        block = images[1, c, 3 * y : 3 * y + 3, 3 * x : 3 * x + 3].astype(float)
        assert dataset.train.pixels[1, c, y, x] == round(block.mean())


def test_a_damaged_stl10_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    write_stl10(folder, np.zeros((1, 3, 96, 96), np.uint8), [11])
    with pytest.raises(RequestError, match=r"train_y.bin: label 11 of image 0 is not 1 to 10"):
        load("stl10", tmp_path)
    (folder / "train_y.bin").write_bytes(bytes([1, 2]))
    with pytest.raises(RequestError, match=r"has 1 images, but .*train_y.bin 2 labels"):
        load("stl10", tmp_path)
    (folder / "train_X.bin").write_bytes(bytes(100))
    with pytest.raises(RequestError, match="100 bytes are no whole number of 27,648-byte images"):
        load("stl10", tmp_path)
    (folder / "test_X.bin").unlink()
    (folder / "train_X.bin").write_bytes(bytes(2 * 27648))
    with pytest.raises(RequestError, match=r"test_X.bin is missing"):
        load("stl10", tmp_path)
    (folder / "SUBSET").unlink()
    with pytest.raises(RequestError, match="has 2 train images instead of 5,000"):
        load("stl10", tmp_path)


@pytest.mark.parametrize("side", [32, 96])
def test_stl10_from_an_npz_file_of_either_size(side: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (10, 3, side, side), dtype=np.uint8)
    labels = np.arange(10)
    (tmp_path / "SUBSET").touch()
    np.savez(tmp_path / "stl10-32.npz", x_train=pixels, y_train=labels, x_test=pixels[:4], y_test=labels[:4])
    dataset = load("stl10", tmp_path)
    assert np.array_equal(dataset.train.pixels, pixels if side == 32 else block_means(pixels))
    assert dataset.classes == CLASSES
    np.savez(tmp_path / "stl10-32.npz", x_train=pixels[:, :1], y_train=labels, x_test=pixels[:, :1], y_test=labels)
    with pytest.raises(RequestError, match="is not STL-10"):
        load("stl10", tmp_path)


def test_usps_with_a_margin_is_laid_out_as_mnist(tmp_path: Path) -> None:
    """Every image enlarged to 20x20 in the middle of 28x28, with nothing around it."""
    (tmp_path / "SUBSET").touch()
    pixels = np.random.default_rng(2).integers(1, 256, (6, 16, 16), dtype=np.uint8)
    pixels[0] = 200
    labels = np.arange(6)
    np.savez(tmp_path / "usps.npz", x_train=pixels, y_train=labels, x_test=pixels[:2], y_test=labels[:2])
    plain, dataset = load("usps", tmp_path), load("usps-margin", tmp_path)
    assert plain.test is not None
    assert dataset.test is not None
    for with_margin, without in ((dataset.train, plain.train), (dataset.test, plain.test)):
        assert with_margin.shape == (1, 28, 28)
        assert with_margin.labels.tolist() == without.labels.tolist()
        middle = with_margin.pixels[..., 4:24, 4:24]
        assert int(with_margin.pixels.sum(dtype=np.int64)) == int(middle.sum(dtype=np.int64))
        for image, small in zip(middle, without.pixels, strict=True):
            picture = Image.fromarray(small[0]).resize((20, 20), Image.Resampling.LANCZOS)
            assert np.array_equal(image[0], np.asarray(picture))
    assert (dataset.train.pixels[0, 0, 4:24, 4:24] == 200).all()
    assert dataset.classes == plain.classes


@pytest.mark.skipif(not (SHARED / "digits" / "mnist.npz").exists(), reason="the real digits are not here")
def test_the_real_digits() -> None:
    for name, side, train, test in (("mnist", 28, 60_000, 10_000), ("usps", 16, 7_291, 2_007)):
        dataset = load(name, SHARED / "digits")
        assert dataset.test is not None
        assert (len(dataset.train), len(dataset.test)) == (train, test)
        assert dataset.train.shape == (1, side, side)
