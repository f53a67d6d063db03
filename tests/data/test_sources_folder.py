"""Folders of one's own images: what is found in them, and which are refused."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastswa.data.extra import load_extra
from fastswa.data.images import PathTable
from fastswa.data.sources import is_own_data, load
from fastswa.data.sources.folder import list_folder, list_target
from fastswa.errors import RequestError
from fastswa.layers import target_layer


def put(root: Path, *names: str) -> Path:
    """Grey 8x8 images, valued 1, 2, …, under `root`."""
    for value, name in enumerate(names, 1):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), value).save(root / name)
    return root


TWO = ("labeled/cat/1.png", "labeled/dog/1.png")


def test_classes_depth_and_order(tmp_path: Path) -> None:
    put(tmp_path, "labeled/dog/b.png", "labeled/dog/sub/deep/a.PNG", "labeled/cat/z.jpg", "unlabeled/b/c/1.bmp")
    put(tmp_path, "unlabeled/0.webp", "test/cat/t.jpeg")
    files = list_folder(tmp_path)
    assert [files.paths[row] for row in range(len(files))] == [
        "labeled/cat/z.jpg",
        "labeled/dog/b.png",
        "labeled/dog/sub/deep/a.PNG",
        "unlabeled/0.webp",
        "unlabeled/b/c/1.bmp",
        "test/cat/t.jpeg",
    ]
    assert files.classes == ("cat", "dog")
    assert files.labels.tolist() == [0, 1, 1, -1, -1, 0]
    assert files.tests == 1
    assert files.path(0) == str(tmp_path / "labeled/cat/z.jpg")
    assert files.notes == ()


def test_the_images_themselves(tmp_path: Path) -> None:
    put(tmp_path, "labelled/dog/a.png", "labelled/cat/b.png", "unlabelled/c.png", "test/dog/d.png")
    dataset = load(str(tmp_path), tmp_path)
    assert dataset.test is not None
    assert isinstance(dataset.train.pixels, np.memmap)
    assert dataset.train.pixels.mode == "c"  # what is written to the map never reaches the cache
    assert dataset.train.pixels[:, 0, 3, 3].tolist() == [2, 1, 3]
    assert dataset.train.labels.tolist() == [0, 1, -1]
    assert dataset.test.pixels[:, 0, 3, 3].tolist() == [4]
    assert dataset.test.labels.tolist() == [1]
    assert dataset.train.files is not None
    assert dataset.train.files[2] == "unlabelled/c.png"
    assert dataset.test.files is not None
    assert dataset.test.files[0] == "test/dog/d.png"


def test_a_folder_is_found_under_root(tmp_path: Path) -> None:
    put(tmp_path / "mine", *TWO)
    assert len(load("mine", tmp_path).train) == 2


def test_hidden_and_other_files_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, *TWO, "labeled/cat/._1.png", "labeled/.hidden/1.png", "unlabeled/.x/1.png", "unlabeled/1.png")
    for name in ("labeled/cat/notes.txt", "unlabeled/Thumbs.db", "unlabeled/a.TXT", "unlabeled/plain", "labeled/x.md"):
        (tmp_path / name).write_text("text")
    Image.new("L", (2, 2)).save(tmp_path / "unlabeled/a.gif")
    files = list_folder(tmp_path)
    assert len(files) == 3
    assert files.ignored == {".txt": 2, ".db": 1, "no suffix": 1, ".gif": 1}
    assert files.notes == ("1 .gif files are left out; save them as JPEG, PNG, WebP or BMP.",)


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    elsewhere = put(tmp_path / "elsewhere", "deep/1.png", "deep/2.png")
    root = put(tmp_path / "root", *TWO, "unlabeled/1.png")
    os.symlink(elsewhere, root / "labeled" / "cat" / "link")
    os.symlink(root, root / "unlabeled" / "loop")
    os.symlink(root / "unlabeled", root / "unlabeled" / "itself")
    os.symlink("absent.png", root / "unlabeled" / "broken.png")
    os.symlink("loop.png", root / "unlabeled" / "loop.png")
    os.symlink("ring", root / "unlabeled" / "ring")
    files = list_folder(root)
    names = [files.paths[row] for row in range(len(files))]
    assert names[:4] == ["labeled/cat/1.png", "labeled/cat/link/deep/1.png", "labeled/cat/link/deep/2.png", TWO[1]]
    assert names[4:] == ["unlabeled/1.png", "unlabeled/broken.png", "unlabeled/loop.png"]
    (root / "unlabeled" / "broken.png").unlink()
    with pytest.raises(RequestError, match=r"loop\.png cannot be read: Too many levels of symbolic links \(--data"):
        load(str(root), tmp_path)


def test_pipes_are_not_read(tmp_path: Path) -> None:
    put(tmp_path, *TWO)
    (tmp_path / "unlabeled").mkdir()
    os.mkfifo(tmp_path / "unlabeled" / "pipe.png")
    os.symlink("pipe.png", tmp_path / "unlabeled" / "link.png")
    files = list_folder(tmp_path)
    assert len(files) == 2
    assert files.ignored == {".png": 2}


def test_an_empty_class_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, *TWO, "unlabeled/1.png")
    (tmp_path / "labeled" / "cow").mkdir()
    files = list_folder(tmp_path)
    assert files.classes == ("cat", "dog")
    assert files.labels.tolist() == [0, 1, -1]
    assert files.notes == ("class 'cow' has no image and is left out.",)


def test_class_names_are_composed(tmp_path: Path) -> None:
    put(tmp_path, f"labeled/{unicodedata.normalize('NFD', 'été')}/1.png", "labeled/hiver/1.png", "test/été/1.png")
    files = list_folder(tmp_path)
    assert files.classes == ("hiver", "été")
    assert files.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), " is empty; put labelled images in {}/labeled/CLASS/."),
        (
            ("cat/1.png",),
            " has no folder 'labeled'; put labelled images in {}/labeled/CLASS/, others in {}/unl",
        ),
        (("unlabeled/1.png",), " has no folder 'labeled'"),
        (("labeled/cat/", "unlabeled/1.png"), "/labeled holds no labelled image"),
        (("labeled/1.png",), "/labeled/1.png lies in no class; put it in {}/labeled/CLASS/."),
        ((*TWO, "test/1.png"), "/test/1.png lies in no class"),
        (("labeled/cat/1.png",), "/labeled holds one labelled image, and so only one class, 'cat'; a classifier needs"),
        (("labeled/cat/1.png", "labeled/cat/2.png"), "/labeled holds 2 labelled images of only one class, 'cat'"),
        (("labeled/Cat/1.png", "labeled/cat/1.png"), "/labeled: the classes 'Cat' and 'cat' differ only in case"),
        ((*TWO, "labelled/cow/1.png"), " has both labeled/ and labelled/"),
        ((*TWO, "unlabeled/1.png", "Unlabeled/1.png"), " has both Unlabeled/ and unlabeled/; move the images into one"),
        ((*TWO, "Test/1.png"), "/Test/1.png lies in no class"),
        ((*TWO, "test/cow/1.png"), "/test has the class 'cow', of which there is no labelled training image."),
        ((*TWO, "test/Dog/1.png"), "/test: the class 'Dog' is 'dog' in training; give it one spelling."),
    ],
)
def test_what_is_refused(names: tuple[str, ...], words: str, tmp_path: Path) -> None:
    for name in names:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            put(tmp_path, name)
    with pytest.raises(RequestError, match=re.escape(str(tmp_path) + words.replace("{}", str(tmp_path)))) as info:
        load(str(tmp_path), tmp_path)
    assert "\n" not in str(info.value)
    assert str(info.value).endswith(".")


def test_parts_may_be_written_in_any_case(tmp_path: Path) -> None:
    put(tmp_path, "Labeled/cat/1.png", "Labeled/dog/1.png", "UNLABELLED/1.png", "Test/dog/1.png")
    dataset = load(str(tmp_path), tmp_path)
    assert dataset.train.labels.tolist() == [0, 1, -1]
    assert dataset.train.pixels[:, 0, 3, 3].tolist() == [1, 2, 3]
    assert dataset.test is not None
    assert dataset.test.pixels[:, 0, 3, 3].tolist() == [4]
    assert dataset.notes == ()
    target = list_target(tmp_path)
    assert (target.labels.tolist(), target.tests) == ([0, 1, -1, 1], 1)
    assert load_extra(str(tmp_path), tmp_path, dataset.train).pixels[:, 0, 3, 3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("un-labeled/1.png",), "un-labeled/ holds images that are"),
        (("tests/cat/1.png", "val/deep/er/1.png"), "tests/ and val/ hold images that are"),
        (tuple(f"{k}/1.png" for k in range(7)), "0/, 1/, 2/, 3/, 4/ and others hold images that are"),
        ((".hidden/1.png", "notes/1.txt", "loose.png"), None),
    ],
)
def test_folders_beside_the_parts_are_named(names: tuple[str, ...], note: str | None, tmp_path: Path) -> None:
    put(tmp_path, *TWO, *(name for name in names if name.endswith(".png")))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "1.txt").write_text("text")
    os.symlink("labeled", tmp_path / "same")  # of a link to a part every image is used
    os.symlink(".", tmp_path / "itself")
    wanted = () if note is None else (f"{note} not used; only those in labeled/, unlabeled/ and test/ are.",)
    assert load(str(tmp_path), tmp_path).notes == wanted
    assert list_target(tmp_path).notes == wanted


def test_a_folder_that_may_not_be_entered_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, *TWO, "lost+found/1.png")
    real = os.scandir

    def scandir(place: str) -> Any:
        if "lost+found" in place:
            raise PermissionError(13, "Permission denied")
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    assert list_folder(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("train/cat/1.png", "val/cat/1.png"), ", or rename train/ to labeled/ and val/ to test/"),
        (("train/cat/1.png", "val/cat/1.png", "test/cat/1.png"), ", or rename train/ to labeled/"),
        (("labeld/cat/1.png", "un_labelled/1.png"), ", or rename labeld/ to labeled/ and un_labelled/ to unlabeled/"),
        (("rain/1.png", "rest/1.png", "vial/1.png"), ""),
        (("train/list.txt",), ""),
    ],
)
def test_what_parts_are_called_elsewhere_is_told(names: tuple[str, ...], advice: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(RequestError) as info:
        list_folder(tmp_path)
    wanted = f"{tmp_path} has no folder 'labeled'; put labelled images in {tmp_path}/labeled/CLASS/, others in "
    assert str(info.value) == f"{wanted}{tmp_path}/unlabeled/{advice}."


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"absent: there is no such folder\."):
        list_folder(tmp_path / "absent")
    with pytest.raises(RequestError) as info:
        load("mine/images", tmp_path)
    assert str(info.value) == (
        f"mine/images: there is no such folder or file, neither here nor under {tmp_path} (data.root); "
        "run the command where the path begins, or set data.root to that folder."
    )
    with pytest.raises(RequestError, match=r"/gone: there is no such folder or file\.$"):
        load(str(tmp_path / "gone"), tmp_path)


def test_a_file_of_another_kind_is_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "mine/one.png")
    shutil.copy("mine/one.png", "one.png")
    own = r"is a file of another kind; images of your own come as a folder, a \.csv/\.tsv manifest or an \.npz file\.$"
    for name in ("one.png", "mine/one.png"):
        with pytest.raises(RequestError, match=f"^{name} {own}"):
            load(name, tmp_path)
    with pytest.raises(RequestError, match=f"^one.png {own}"):
        target_layer("one.png")


def test_what_counts_as_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "digits").mkdir()
    own = ["mine", "mine/", "a.npz", "list.CSV", "list.tsv", "./digits", "absent/"]
    assert [is_own_data(word) for word in own] == [True] * len(own)
    assert [is_own_data(word) for word in ("digits", "cifar10", "digits-pi")] == [False] * 3


def test_a_table_of_paths() -> None:
    names = ["a", "été/ü.png", "", os.fsdecode(b"\xff.png")]
    table = PathTable(names)
    assert [table[row] for row in range(4)] == names == list(table)
    assert list(table.take([3, 0])) == [names[3], "a"]
    with pytest.raises(IndexError):
        table[4]
