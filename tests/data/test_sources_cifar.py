"""CIFAR in both published layouts, on small files written byte by byte in the layouts' own formats."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from fastswa.data.sources import cifar, load
from fastswa.data.sources.batch_pickle import RefusedPickle, read_batch
from fastswa.errors import RequestError

BATCHES = [f"data_batch_{k}" for k in range(1, 6)]


def noise(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def write_binary(path: Path, pixels: np.ndarray, *labels: list[int]) -> None:
    """Records as published: the label byte or bytes, 1,024 red, 1,024 green, 1,024 blue, by rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for i, image in enumerate(pixels):
            file.write(bytes(column[i] for column in labels))
            for plane in image:
                for row in plane:
                    file.write(bytes(row.tolist()))


def write_python(path: Path, pixels: np.ndarray, key: bytes, labels: list[int]) -> None:
    """A dictionary with keys of bytes at protocol 2, as Python 2 wrote it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = {b"batch_label": b"testing", key: labels, b"data": pixels.reshape(len(pixels), 3072)}
    path.write_bytes(pickle.dumps(batch, protocol=2))


def python2_pickle(pixels: np.ndarray, labels: bytes) -> bytes:
    """What Python 2 with an old NumPy wrote: one image and one label, as opcodes, strings as STRING types."""
    raw = pixels.tobytes()
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + len(raw).to_bytes(4, "little") + raw + b"tbU\x06labels](" + labels + b"eu."
    )


def subset10(root: Path, layout: str) -> tuple[Path, np.ndarray, np.ndarray]:
    """CIFAR-10 with two images a batch: its folder, training pixels (10, 3, 32, 32), test pixels (2, …)."""
    train, test = noise(10, 1), noise(2, 2)
    folder = root / f"cifar-10-batches-{layout}"
    for k, name in enumerate([*BATCHES, "test_batch"]):
        pixels, labels = (train[2 * k : 2 * k + 2], [k, 9 - k]) if k < 5 else (test, [4, 0])
        if layout == "bin":
            write_binary(folder / f"{name}.bin", pixels, labels)
        else:
            write_python(folder / name, pixels, b"labels", labels)
    (folder / "SUBSET").touch()
    return folder, train, test


@pytest.mark.parametrize("layout", ["bin", "py"])
def test_cifar10_values(layout: str, tmp_path: Path) -> None:
    _, train, test = subset10(tmp_path, layout)
    dataset = load("cifar10", tmp_path)
    assert dataset.test is not None
    np.testing.assert_array_equal(dataset.train.pixels, train)
    np.testing.assert_array_equal(dataset.test.pixels, test)
    assert dataset.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert dataset.test.labels.tolist() == [4, 0]
    assert dataset.train.labels.dtype == np.int64
    assert dataset.train.pixels.flags["C_CONTIGUOUS"]
    assert dataset.train.pixels.flags["WRITEABLE"]
    assert dataset.normalisation == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert dataset.classes[0] == "airplane"
    assert dataset.classes[9] == "truck"


def test_binary_pixel_positions(tmp_path: Path) -> None:
    folder, _, _ = subset10(tmp_path, "bin")
    record = bytearray(3073)
    record[0] = 3  # the label
    record[1] = 10  # red, first row, first column
    record[1 + 31] = 20  # red, first row, last column
    record[1 + 1024 + 32] = 30  # green, second row, first column
    record[3072] = 40  # blue, last row, last column
    (folder / "test_batch.bin").write_bytes(record)
    test = cifar.load_cifar10(tmp_path).test
    assert test is not None
    image = test.pixels[0]
    assert (image[0, 0, 0], image[0, 0, 31], image[1, 1, 0], image[2, 31, 31]) == (10, 20, 30, 40)
    assert int(image.sum()) == 100
    assert test.labels.tolist() == [3]


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar100_takes_the_fine_label(layout: str, tmp_path: Path) -> None:
    train, test = noise(3, 3), noise(2, 4)
    folder = tmp_path / f"cifar-100-{layout}"
    for name, pixels, fine in [("train", train, [99, 0, 50]), ("test", test, [7, 8])]:
        if layout == "binary":
            write_binary(folder / f"{name}.bin", pixels, [1] * len(fine), fine)
        else:
            write_python(folder / name, pixels, b"fine_labels", fine)
    (folder / "SUBSET").touch()
    dataset = load("cifar100", tmp_path)
    assert dataset.test is not None
    np.testing.assert_array_equal(dataset.train.pixels, train)
    np.testing.assert_array_equal(dataset.test.pixels, test)
    assert dataset.train.labels.tolist() == [99, 0, 50]
    assert dataset.test.labels.tolist() == [7, 8]
    assert len(set(dataset.classes)) == 100
    assert list(dataset.classes) == sorted(dataset.classes)
    assert dataset.classes[0] == "apple"
    assert dataset.classes[99] == "worm"


def test_root_may_be_the_folder_or_lie_above_it(tmp_path: Path) -> None:
    folder, train, _ = subset10(tmp_path / "sets", "bin")
    for root in (folder, folder.parent, tmp_path):
        np.testing.assert_array_equal(cifar.load_cifar10(root).train.pixels, train)
    renamed = folder.rename(tmp_path / "mine")
    np.testing.assert_array_equal(cifar.load_cifar10(renamed).train.pixels, train)


def test_a_whole_layout_is_preferred_to_one_with_a_file_missing(tmp_path: Path) -> None:
    folder, _, _ = subset10(tmp_path, "bin")
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(RequestError, match=r"data_batch_3\.bin is missing: run `fastswa data download cifar10"):
        cifar.load_cifar10(tmp_path)
    subset10(tmp_path, "py")
    assert len(cifar.load_cifar10(tmp_path).train) == 10


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "no where"
    command = f"run `fastswa data download cifar100 --root '{root}'`, or pass `--data.root`"
    with pytest.raises(RequestError, match=re.escape(f"there is no CIFAR-100 under {root}: {command}")):
        cifar.load_cifar100(root)


@pytest.mark.parametrize("size", [0, 3072, 3073 * 2 - 1, 3074])
def test_a_truncated_binary_file_is_refused(size: int, tmp_path: Path) -> None:
    folder, _, _ = subset10(tmp_path, "bin")
    (folder / "data_batch_2.bin").write_bytes(bytes(size))
    with pytest.raises(RequestError, match=r"data_batch_2\.bin is truncated .*download cifar10"):
        cifar.load_cifar10(tmp_path)


@pytest.mark.parametrize("layout", ["bin", "py"])
def test_too_few_images_are_refused_unless_marked_as_a_subset(layout: str, tmp_path: Path) -> None:
    folder, _, _ = subset10(tmp_path, layout)
    (folder / "SUBSET").unlink()
    with pytest.raises(RequestError, match=r"data_batch_1.* has 2 images instead of 10,000: run"):
        cifar.load_cifar10(tmp_path)


@pytest.mark.parametrize("layout", ["bin", "py"])
def test_a_label_out_of_range_is_named(layout: str, tmp_path: Path) -> None:
    folder, train, _ = subset10(tmp_path, layout)
    if layout == "bin":
        write_binary(folder / "data_batch_4.bin", train[:2], [1, 10])
    else:
        write_python(folder / "data_batch_4", train[:2], b"labels", [1, 10])
    with pytest.raises(RequestError, match=r"data_batch_4.*: label 10 of image 1 is out of range \(0 to 9\)"):
        cifar.load_cifar10(tmp_path)


def test_an_unreadable_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subset10(tmp_path, "bin")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "fromfile", refuse)
    with pytest.raises(RequestError, match=r"data_batch_1\.bin cannot be read: Permission denied\.$"):
        cifar.load_cifar10(tmp_path)


def test_a_batch_from_python_2(tmp_path: Path) -> None:
    pixels = noise(1, 5)
    (tmp_path / "batch").write_bytes(python2_pickle(pixels, labels=b"K\x07"))
    batch = read_batch(tmp_path / "batch")
    np.testing.assert_array_equal(batch["data"], pixels.reshape(1, 3072))  # type: ignore[arg-type]
    assert batch["labels"] == [7]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_batches_of_other_protocols_and_orders(protocol: int, tmp_path: Path) -> None:
    data = np.asfortranarray(noise(3, 6).reshape(3, 3072))
    content = {"data": data, "labels": np.array([1, 2, 3])}
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
    batch = read_batch(tmp_path / "batch")
    np.testing.assert_array_equal(batch["data"], data)  # type: ignore[arg-type]
    np.testing.assert_array_equal(batch["labels"], [1, 2, 3])  # type: ignore[arg-type]


class Malicious:
    """An object whose pickle calls os.system."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_batch_is_refused_and_never_run(protocol: int, tmp_path: Path) -> None:
    folder, train, _ = subset10(tmp_path, "py")
    target = tmp_path / "was-run"
    batch = {b"data": train[:2].reshape(2, 3072), b"labels": [0, 1], b"extra": Malicious(target)}
    content = pickle.dumps(batch, protocol=protocol)
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(RequestError, match=r"data_batch_1 asks Python to use .*system.*nothing in it was run") as info:
        cifar.load_cifar10(tmp_path)
    assert "\n" not in str(info.value)
    assert not target.exists()
    pickle.loads(content)
    assert target.exists(), "the pickle would have run, so that its refusal means something"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}q\x00",
        b"not a pickle",
        pickle.dumps([1, 2], protocol=2),
        b"\x80\x02cnumpy\nndarray\nK\x04\x85R.",  # ndarray itself cannot be called
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",  # an array of objects
        b"\x80\x02cnumpy\ndtype\n}U\x08__call__K\x01sb.",  # a stand-in cannot be changed
        b"\x80\x02cnumpy\ndtype\nN}U\x09__class__K\x01s\x86b.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.",
        b"\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x05\x85NNU\x01atb.",
    ],
)
def test_what_is_not_a_batch_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(RefusedPickle):
        read_batch(tmp_path / "batch")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({b"labels": [1]}, r"has no 'data' of uint8 and shape \(N, 3072\)"),
        ({b"data": np.zeros((1, 3072), np.int64), b"labels": [1]}, "has no 'data'"),
        ({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}, "has no 'data'"),
        ({b"data": np.zeros(3072, np.uint8), b"labels": [1]}, "has no 'data'"),
        (
            {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
            "has no 'labels' with one integer per image",
        ),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["a"]}, "has no 'labels'"),
        (
            {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1 << 80]},
            r"label \d+ of image 0 is out of range",
        ),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, "holds an array of type 'f8'"),
        ({b"data": np.zeros((1, 3072), ">i4"), b"labels": [1]}, "holds an array in another byte order"),
    ],
)
def test_a_batch_of_wrong_contents_is_refused(batch: dict[bytes, object], words: str, tmp_path: Path) -> None:
    folder, _, _ = subset10(tmp_path, "py")
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(RequestError, match=rf"data_batch_1:? {words}"):
        cifar.load_cifar10(tmp_path)
