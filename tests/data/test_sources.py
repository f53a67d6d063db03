"""The registry of sources, and the digits that come with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastswa.data.sources import SOURCES, load
from fastswa.data.sources.digits import load_digits
from fastswa.errors import RequestError

# The first image of the set, a nought, as the UCI repository prints it (optdigits.tes, line 1).
FIRST = """
    0 0 5 13 9 1 0 0    0 0 13 15 10 15 5 0    0 3 15 2 0 11 8 0    0 4 12 0 0 8 8 0
    0 5 8 0 0 9 8 0     0 4 11 0 1 12 7 0      0 2 14 5 10 12 0 0   0 0 6 13 10 0 0 0
"""


def test_names() -> None:
    assert list(SOURCES) == ["digits", "cifar10", "cifar100", "stl10", "mnist", "usps", "usps-margin"]


@pytest.mark.parametrize(("name", "near"), [("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("digit", "digits")])
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"no data source '{name}'.*did you mean '{near}'"):
        load(name, tmp_path)


def test_a_name_like_none_of_them_is_answered_with_all(tmp_path: Path) -> None:
    known = "digits, cifar10, cifar100, stl10, mnist, usps, usps-margin"
    nowhere = rf"^imagenet: there is no such folder or file, neither here nor under {tmp_path} \(data\.root\), "
    ending = r"; run the command where the path begins, or set data\.root to that folder\.$"
    with pytest.raises(RequestError, match=rf"{nowhere}nor a data source of that name \(known: {known}\){ending}"):
        load("imagenet", tmp_path)


def test_an_npz_file_is_found_as_given_or_under_root(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=np.full((2, 4, 4), 7, np.uint8), y_train=[0, 1])
    for source, root in [(str(tmp_path / "own.npz"), tmp_path / "elsewhere"), ("own.npz", tmp_path)]:
        assert load(source, root).train.pixels.shape == (2, 1, 4, 4)


def test_sources_never_import_torch_and_their_names_not_even_numpy() -> None:
    listing = "import sys; from fastswa.data.sources import SOURCES; assert 'numpy' not in sys.modules"
    modules = "batch_pickle, cifar, digits, npz"
    loading = f"import sys; from fastswa.data.sources import {modules}; assert 'torch' not in sys.modules"
    for program in (listing, loading):
        subprocess.run([sys.executable, "-c", program], check=True)


def test_digits_have_the_published_values() -> None:
    digits = load_digits()
    first = np.rint(np.array(FIRST.split(), dtype=float).reshape(8, 8) * 255 / 16)
    everything = np.concatenate([digits.train.pixels, digits.test.pixels])  # type: ignore[union-attr]
    assert (everything == first).all(axis=(1, 2, 3)).sum() == 1
    assert set(np.unique(everything)) == {round(v * 255 / 16) for v in range(17)}


def test_digits_are_split_by_class(tmp_path: Path) -> None:
    digits = load("digits", tmp_path)
    assert digits.test is not None
    assert digits.train.pixels.shape == (1297, 1, 8, 8)
    assert digits.test.pixels.shape == (500, 1, 8, 8)
    assert np.bincount(digits.test.labels).tolist() == [50] * 10
    # the class counts that the UCI repository gives for the test part, less the 50 held out
    published = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert (np.bincount(digits.train.labels) == published - 50).all()
    assert digits.classes == tuple("0123456789")
    assert digits.normalisation is None
    assert digits.train.labels.dtype == np.int64
