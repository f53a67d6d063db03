"""`fastswa check`: counts, duplicates, what is unreadable, and the batches that training would take."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from conftest import Command
from fastswa.check import CheckReport, find_duplicates, print_report
from fastswa.check import check_data as check_and_time
from fastswa.data.images import Dataset, ImageSet
from fastswa.data.plan import Options
from fastswa.errors import RequestError


def check_data(source: str, root: Path = Path("data"), options: Options | None = None) -> CheckReport:
    """Without the seconds that timing takes."""
    return check_and_time(source, root, options, timing=False)


def put(path: Path, value: int, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (side, side), value).save(path)


def folder(root: Path, labelled: int = 100, unlabelled: int = 60) -> Path:
    """Classes a (three quarters) and b, unlabelled and four test images; every image has a value of its own."""
    for number in range(labelled):
        put(root / "labeled" / ("b" if number % 4 == 0 else "a") / f"{number}.png", number)
    for number in range(unlabelled):
        put(root / "unlabeled" / f"{number}.png", 100 + number)
    for number in range(4):
        put(root / "test" / "ab"[number % 2] / f"{number}.png", 250 + number)
    return root


def shown(report: CheckReport) -> str:
    page = io.StringIO()
    print_report(report, Console(file=page, width=200))
    return page.getvalue()


def test_counts_and_batches(tmp_path: Path) -> None:
    report = check_data(str(folder(tmp_path)))
    assert (report.labelled, report.unlabelled, report.test) == (100, 60, 4)
    assert [(c.name, c.labelled, c.test) for c in report.classes] == [("a", 75, 2), ("b", 25, 2)]
    assert report.imbalance == 3.0
    assert report.shape == (1, 8, 8)
    assert report.sizes["different"] == 1
    assert report.sizes["largest"] == (8, 8)
    # A fifth of the labels is held out; 80 of 140 images are labelled, and so are 57 of a batch's 100. A pass over the
    # unlabelled images would be one step.
    assert report.batch == {"size": 100, "labelled": 57, "steps": 25, "training_labels": 80, "validation": 20}
    assert report.time is None
    assert report.duplicates.within == {"labelled": 0, "unlabelled": 0, "test": 0}
    assert report.duplicates.examples == []
    assert report.prepared == str(tmp_path / ".fastswa-cache")
    assert report.ok
    assert (report.problems, report.notes, report.unreadable) == ([], [], {})


def test_the_report_as_json_and_as_text(tmp_path: Path) -> None:
    folder(tmp_path)
    put(tmp_path / "labeled" / "[red]c" / "[bold]1.png", 0)
    (tmp_path / "labeled" / "a" / "notes.txt").write_text("text")
    (tmp_path / "unlabeled" / "[x].png").write_bytes(b"nothing")
    report = check_data(str(tmp_path))
    parsed = json.loads(json.dumps(report.to_dict()))
    assert parsed["ok"] is False
    assert parsed["classes"][0] == {"name": "[red]c", "labelled": 1, "test": 0}
    assert parsed["sizes"]["median"] == [8, 8]
    assert parsed["ignored"] == {".txt": 1}
    assert list(parsed["unreadable"]) == [str(tmp_path / "unlabeled" / "[x].png")]
    text = shown(report)
    for words in (
        "[red]c",
        "3 classes",
        "images: smallest 8x8, median 8x8, largest 8x8 (height x width)",
        "trained on as: 8x8, grey; imbalance 75",
        "duplicates: 1 in labelled",
        "the same: labeled/[red]c/[bold]1.png  labeled/b/0.png",
        "left aside: 1 .txt",
        "[x].png is not a JPEG",
        "note: fewer than 3 labelled images: '[red]c'.",
        "note: the largest class has more than ten times the labelled images of the smallest.",
        "note: 2 images that are the same stand in different classes.",
        "problem: ",
    ):
        assert words in text, words


def test_duplicates_within_and_across() -> None:
    train = np.zeros((7, 1, 2, 2), np.uint8)
    train[:, 0, 0, 0] = [1, 1, 2, 3, 3, 3, 4]
    labels = np.array([0, 1, 0, 1, -1, -1, -1])
    test = np.zeros((3, 1, 2, 2), np.uint8)
    test[:, 0, 0, 0] = [2, 4, 4]
    names = ("a", "b")
    found = find_duplicates(Dataset(ImageSet(train, labels, names), ImageSet(test, np.array([0, 1, 1]), names)))
    assert found.within == {"labelled": 1, "unlabelled": 1, "test": 1}
    assert found.across == {"labelled and unlabelled": 2, "labelled and test": 1, "unlabelled and test": 2}
    assert found.contradictions == 2  # the two 1s
    assert sorted(found.examples) == [
        ["train image 0", "train image 1"],
        ["train image 2", "test image 0"],
        ["train image 3", "train image 4", "train image 5"],
        ["train image 6", "test image 1", "test image 2"],
    ]
    assert found.examples[0] == ["train image 0", "train image 1"]  # the worst first


def test_copies_without_a_label_stand_in_no_class() -> None:
    """Of each picture one is a cat, one a dog, and one unlabelled; another is a cat in training and a dog in test."""
    train = np.zeros((37, 1, 2, 2), np.uint8)
    train[:, 0, 0, 0] = [*np.tile(np.arange(12), 3), 12]
    labels = np.array([*np.repeat([0, 1, -1], 12), 0])
    test = np.full((1, 1, 2, 2), 0, np.uint8)
    test[0, 0, 0, 0] = 12
    found = find_duplicates(
        Dataset(ImageSet(train, labels, ("cat", "dog")), ImageSet(test, np.array([1]), ("cat", "dog")))
    )
    assert found.contradictions == 24 + 2


def test_leaks_into_test_are_told(tmp_path: Path) -> None:
    folder(tmp_path)
    put(tmp_path / "test" / "a" / "leak.png", 1)  # the same pixels as a labelled image
    Image.new("RGB", (8, 8), (120, 120, 120)).save(tmp_path / "test" / "b" / "other.png")  # in another mode
    report = check_data(str(tmp_path), options=Options(channels=1))
    assert report.duplicates.across == {"labelled and unlabelled": 0, "labelled and test": 1, "unlabelled and test": 1}
    assert ["labeled/a/1.png", "test/a/leak.png"] in report.duplicates.examples
    assert ["unlabeled/20.png", "test/b/other.png"] in report.duplicates.examples
    assert report.notes[-2:] == [
        "1 test images are among the labelled training images: the test error will flatter.",
        "1 test images are among the unlabelled training images.",
    ]


def test_unreadable_files_are_listed_and_skipped_on_request(tmp_path: Path) -> None:
    folder(tmp_path)
    bad = tmp_path / "unlabeled" / "0.png"
    bad.write_bytes(bad.read_bytes()[:50])
    report = check_data(str(tmp_path))
    assert report.unlabelled == 59
    assert list(report.unreadable) == [str(bad)]
    assert not report.ok
    assert report.problems == [f"{bad} cannot be read: the image is truncated (--data.skip_bad leaves it out)."]
    lenient = check_data(str(tmp_path), options=Options(skip_bad=True))
    assert lenient.ok
    assert lenient.unreadable == report.unreadable


def test_mixed_sizes_and_few_images(tmp_path: Path) -> None:
    for number, (label, side) in enumerate([("a", 10), ("a", 20), ("b", 40), ("b", 40), ("b", 40)]):
        put(tmp_path / "labeled" / label / f"{number}.png", number, side)
    report = check_data(str(tmp_path))
    assert report.shape == (1, 40, 40)
    assert report.sizes == {
        "smallest": (10, 10),
        "median": (40, 40),
        "largest": (40, 40),
        "different": 3,
        "enlarged": 2,
        "cropped": 0,
    }
    assert "2 images are smaller than 40x40 and enlarged." in report.notes
    assert "fewer than 3 labelled images: 'a'." in report.notes
    assert "there are no test images: errors are measured on validation images only." in report.notes
    assert any(note.startswith("there is no unlabelled image") for note in report.notes)


def test_labels_that_are_numbered_from_one(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", x_train=pixels, y_train=[1, 1, 1, 1, 2, 2, 2, 3])
    report = check_data(str(tmp_path / "one.npz"))
    assert "no labelled image: '0'." in report.notes
    assert "fewer than 3 labelled images: '3'." in report.notes


def test_a_manifest(tmp_path: Path) -> None:
    folder(tmp_path, labelled=8, unlabelled=0)
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(tmp_path.glob("labeled/*/*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows, "absent.png,a"]))
    report = check_data("list.csv", root=tmp_path)
    assert [(c.name, c.labelled) for c in report.classes] == [("a", 6), ("b", 2)]
    missing = f"{tmp_path / 'list.csv'}, line 10: there is no file absent.png."
    assert report.problems == [f"{missing[:-1]} (--data.skip_bad leaves it out)."]
    assert report.unreadable == {"absent.png": missing}
    assert f"unreadable: {missing}" in shown(report)
    assert check_data("list.csv", root=tmp_path, options=Options(skip_bad=True)).ok
    (tmp_path / "list.csv").write_text(f"path,label\nabsent.png,a\n{rows[0]}\n")
    with pytest.raises(RequestError, match="line 2: there is no file absent"):
        check_data("list.csv", root=tmp_path)


def test_nothing_to_measure_by_is_told(tmp_path: Path) -> None:
    for number in range(8):
        put(tmp_path / ("labeled/a", "labeled/b", "unlabeled", "unlabeled")[number % 4] / f"{number}.png", number)
    notes = check_data(str(tmp_path)).notes
    assert "there are no test images, and too few labels to hold some out: no error can be measured." in notes


def test_an_npz_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 4, 6, 3), dtype=np.uint8)
    labels = np.arange(300) % 3
    labels[150:] = -1
    np.savez(tmp_path / "own.npz", x_train=pixels, y_train=labels, classes=["a", "b", "c"])
    report = check_data(str(tmp_path / "own.npz"))
    assert (report.labelled, report.unlabelled, report.test) == (150, 150, 0)
    assert report.shape == (3, 4, 6)
    assert report.sizes["smallest"] == (4, 6)
    assert report.prepared is None
    assert report.batch == {"size": 100, "labelled": 50, "steps": 25, "training_labels": 120, "validation": 30}


def test_the_digits() -> None:
    report = check_data("digits")
    assert (report.labelled, report.unlabelled, report.test) == (1297, 0, 500)
    assert [c.test for c in report.classes] == [50] * 10
    assert report.ok
    assert "10 classes" in shown(report)


def test_what_training_refuses_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "labeled" / "a" / "1.png", 1)
    with pytest.raises(RequestError, match="one labelled image, and so only one class, 'a'"):
        check_data(str(tmp_path))
    with pytest.raises(RequestError, match="no data source 'digit'"):
        check_data("digit")


def test_the_time_of_the_default_run_is_measured(tmp_path: Path) -> None:
    report = check_and_time(str(folder(tmp_path)))
    assert report.time is not None
    assert report.time["how"].startswith("measured on ")
    assert report.time["epochs"] in (60, 180)
    step, epoch = report.time["step_seconds"], report.time["epoch_seconds"]
    assert 0 < step < 10
    assert epoch == pytest.approx(25 * step, rel=0.01)
    # Evaluations and checkpoints come on top of the steps.
    assert report.time["run_minutes"] >= round(report.time["epochs"] * epoch / 60, 1) > 0
    text = shown(report)
    assert f"time: a step takes {1e3 * step:.3g} ms (measured on " in text or step >= 1
    assert "`--minutes M` trains for as long as you say" in text
    assert json.loads(json.dumps(report.to_dict()))["time"] == report.time


def test_large_images_without_a_gpu_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"how": "measured on cpu", "step_seconds": 1.0, "epoch_seconds": 25.0, "epochs": 60, "run_minutes": 25.0}
    monkeypatch.setattr("fastswa.check._time", lambda source, dataset: spent)
    source = str(folder(tmp_path, 20, 5))
    note = "images of 96 pixels take long on a CPU; --data.size 64 would be several times faster."
    assert check_and_time(source, options=Options(size=(96, 96))).notes[-1] == note
    assert note not in check_and_time(source, options=Options(size=(64, 64))).notes


def test_what_training_calls_a_setting_will_do(tmp_path: Path, command: Command) -> None:
    source = folder(tmp_path, 20, 5)
    (tmp_path / "unlabeled" / "0.png").write_bytes(b"nothing")
    words = ["--data.size", "16", "--data.channels", "rgb", "--data.skip_bad", "--json"]
    answer = command("check", source, *words)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["shape"] == [3, 16, 16]
    assert command("check", source, "--data.size", "16").code == 1  # the damaged image


def test_no_time_is_measured_where_training_would_be_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "unlabeled" / "0.png").write_bytes(b"nothing")
    assert check_and_time(str(tmp_path)).time is None
    assert check_and_time("digits").time is None
