"""Manifests: the dialects people's tools write, and the rows that are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from fastswa.data.images import ImageFiles
from fastswa.data.plan import Options
from fastswa.data.sources import load
from fastswa.data.sources.manifest import list_manifest
from fastswa.errors import RequestError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the images a.png … d.png and `sub/e, f.png`, valued 1 to 5."""
    (tmp_path / "sub").mkdir()
    for value, name in enumerate(["a.png", "b.png", "c.png", "d.png", "sub/e, f.png"], 1):
        Image.new("L", (8, 8), value).save(tmp_path / name)
    return tmp_path


def listed(place: Path, text: str | bytes, name: str = "list.csv") -> ImageFiles:
    file = place / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list_manifest(file)


def rows(files: ImageFiles) -> list[tuple[str, int]]:
    return [(files.paths[row], int(files.labels[row])) for row in range(len(files))]


PLAIN = "path,label,split\nb.png,dog,\nd.png,dog,test\na.png,cat,train\nc.png,,\n"
WANTED = [("b.png", 1), ("a.png", 0), ("c.png", -1), ("d.png", 1)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PLAIN, "list.csv"),
        ("\ufeff" + PLAIN, "list.csv"),
        (PLAIN.replace("\n", "\r\n") + "\r\n,,\r\n", "list.csv"),
        (PLAIN.replace(",", ";"), "list.csv"),
        (PLAIN.replace(",", "\t"), "list.tsv"),
        (PLAIN.replace(",", "\t").encode("utf-16"), "list.TSV"),
        (PLAIN.replace("b.png", '"b.png"').replace("dog", '" dog "'), "list.csv"),
        (PLAIN.replace("path,label,split", "Path, LABEL ,Split").replace("test", "TEST"), "list.csv"),
        (PLAIN.replace("\n", ",9\n").replace("split,9", "split,weight"), "list.csv"),
    ],
    ids=["plain", "BOM", "CRLF", "semicolons", "tabs", "UTF-16", "quotes", "case", "another column"],
)
def test_dialects(text: str | bytes, name: str, place: Path) -> None:
    files = listed(place, text, name)
    assert rows(files) == WANTED
    assert files.classes == ("cat", "dog")
    assert files.tests == 1


def test_the_images_themselves(place: Path) -> None:
    listed(place, PLAIN)
    dataset = load("list.csv", place)
    assert dataset.train.pixels[:, 0, 0, 0].tolist() == [2, 1, 3]
    assert dataset.train.labels.tolist() == [1, 0, -1]
    assert dataset.test is not None
    assert dataset.test.pixels[:, 0, 0, 0].tolist() == [4]
    assert (place / ".fastswa-cache").is_dir()


def test_paths_absolute_relative_quoted_and_from_windows(place: Path) -> None:
    text = f'label,path\ncat,{place}/a.png\ndog,./b.png\ndog,"sub\\e, f.png"\n'
    files = listed(place, text)
    assert rows(files) == [(f"{place}/a.png", 0), ("./b.png", 1), ("sub/e, f.png", 1)]
    assert files.path(0) == f"{place}/a.png"


def test_labels_may_be_numbers_of_any_kind(place: Path) -> None:
    for labels in (("0", "1"), ("-1", "1"), ("-1", "unknown"), ("0.0", "1.0")):
        files = listed(place, f"path,label\na.png,{labels[0]}\nb.png,{labels[1]}\nc.png,\n")
        assert files.classes == labels
        assert [label for _, label in rows(files)] == [0, 1, -1]


@pytest.mark.parametrize(
    "word", ["NaN", "nan", "<NA>", "None", "NULL", "n/a", "NA", "unlabeled", "Unlabelled", "unknown", "?", "-"]
)
def test_a_label_that_programs_write_for_none_is_a_class_and_said(word: str, place: Path) -> None:
    files = listed(place, f"path,label\na.png,cat\nb.png,{word}\nc.png,{word}\n")
    assert files.classes == tuple(sorted(("cat", word)))
    assert files.notes == (f"2 images have the label '{word}', which is taken as a class; leave it empty for none.",)
    assert load("list.csv", place).notes == files.notes
    one = listed(place, f"path,label\na.png,cat\nb.png,{word}\nc.png,\n")
    assert one.notes == (f"1 image has the label '{word}', which is taken as a class; leave it empty for none.",)
    assert listed(place, "path,label\na.png,cat\nb.png,banana\nc.png,\n").notes == ()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("a.png,cat,\nx.png,dog,\n", ", line 3: there is no file x.png."),
        ("a.png,cat,\nC:\\pictures\\x.png,dog,\n", ", line 3: there is no file C:\\pictures\\x.png."),
        ("a.png,cat,\nsub,dog,\n", ", line 3: there is no file sub."),
        ("a.png,cat,\nb.png,dog,\n\n./a.png,cat,\n", " lists ./a.png twice (lines 2 and 5); keep one of them."),
        ("a.png,cat,\nb.png,dog,\na.png,dog,\n", " lists a.png twice with different labels (lines 2 and 4)"),
        ("a.png,cat,\nb.png,dog,\na.png,cat,test\n", " lists a.png twice, for training and for test (lines 2 and 4)"),
        ("a.png,cat,\nb.png,Cat,\n", ": the classes 'Cat' and 'cat' differ only in case; rename one of them."),
        ("a.png,cat,\nb.png,dog,\nc.png,cow,test\n", " has the class 'cow', of which there is no labelled training"),
        ("a.png,cat,\nb.png,dog,\nc.png,,test\n", ", line 4: a test image needs a label."),
        ("a.png,cat,valid\n", ", line 2: the split 'valid' is not train, test or empty."),
        (
            "a.png,0,\nb.png,1,\nc.png,-1,\n",
            ", line 4: -1 would be a class beside 0; leave the label of an unlabelled image empty, or call the class",
        ),
        ("a.png,cat,\nb.png,dog,\nc.png,-1,\n", ", line 4: -1 would be a class beside cat; leave the label"),
        (",cat,\n", ", line 2: the path is empty."),
        ("sub/e, f.png,cat,\n", ", line 2: 4 values for 3 columns; put quotes around commas in a path."),
        ("a.png,cat,\n", " holds one labelled image, and so only one class, 'cat'; a classifier needs at least two."),
        ("a.png,,\n", " holds no labelled image"),
        ("", " holds no labelled image"),
        ('a.png,"cat,\n', " is not a table of comma- or tab-separated values (unexpected end of data)."),
    ],
)
def test_rows_that_are_refused(body: str, words: str, place: Path) -> None:
    with pytest.raises(RequestError, match=re.escape(str(place / "list.csv") + words)) as info:
        listed(place, "path,label,split\n" + body)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", " has no column 'path' in its first line (which holds: nothing)."),
        (b"file,label\n", " has no column 'path' in its first line (which holds: file, label)."),
        (b"path,class\n", " has no column 'label'"),
        (b"path,label,path\n", " has two columns named 'path'; keep one."),
        (b"path,label\n\xe9t\xe9.png,a\n", " is not UTF-8 text; save it as 'CSV UTF-8'."),
    ],
)
def test_files_that_are_refused(text: bytes, words: str, place: Path) -> None:
    with pytest.raises(RequestError, match=re.escape(str(place / "list.csv") + words)):
        listed(place, text)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none\.csv: there is no such file\."):
        load("none.csv", tmp_path)


def test_missing_files_are_skipped_on_request(place: Path) -> None:
    (place / "list.csv").write_text("path,label\na.png,cat\nx.png,cat\nb.png,dog\ny.png,\n")
    dataset = load("list.csv", place, Options(skip_bad=True))
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.notes == ("images that are missing or cannot be read are left out: 2 (`fastswa check` lists them).",)
    files = list_manifest(place / "list.csv", skip_bad=True)
    assert files.missing == {
        "x.png": f"{place / 'list.csv'}, line 3: there is no file x.png.",
        "y.png": f"{place / 'list.csv'}, line 5: there is no file y.png.",
    }
    (place / "list.csv").write_text("path,label\na.png,cat\nx.png,dog\n")
    with pytest.raises(RequestError, match=r"list\.csv \(1 of its files not being there\) holds one labelled"):
        list_manifest(place / "list.csv", skip_bad=True)
