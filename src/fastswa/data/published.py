"""The published archives of the data sets that can be downloaded, and the MD5 of each of their files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

# A folder that holds a file of this name is a small copy for tests: its sizes and digests are not checked.
SUBSET = "SUBSET"


@dataclass(frozen=True)
class Archive:
    """A published archive: its file name and MD5, the folder that it unpacks to, and the MD5 of each file."""

    file: str
    digest: str
    folder: str
    files: dict[str, str]


ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
    ),
    "cifar100": Archive(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        {
            "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
            "test.bin": "4499cfba6c016c1be1438163640a0898",
        },
    ),
}

# Sets that are read but not fetched, and where their publishers offer them.
ELSEWHERE: dict[str, str] = {
    "stl10": "its publisher offers stl10_binary.tar.gz at https://cs.stanford.edu/~acoates/stl10/",
    "mnist": "its publisher offered the IDX files at http://yann.lecun.com/exdb/mnist/; many mirrors hold them",
    "usps": "https://hastie.su.domains/ElemStatLearn/data.html offers it as text, to be saved as usps.npz",
}


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
