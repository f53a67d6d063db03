"""`fastswa check SOURCE --data.target TARGET`: two domains beside one another, as table, as JSON and as a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_checks import check
from report_runs import NASTY_CLASS

from conftest import Command


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Thirty grey images of a constant value, 100 to 129, ten of a class; three test images."""
    classes = ["cat", NASTY_CLASS, "frog"]
    values = np.repeat(np.arange(100, 130, dtype=np.uint8), 64).reshape(30, 8, 8)
    test = np.repeat(np.arange(3, dtype=np.uint8), 64).reshape(3, 8, 8)
    path = tmp_path / "source.npz"
    np.savez(path, x_train=values, y_train=np.arange(30) % 3, x_test=test, y_test=np.arange(3), classes=classes)
    return path


def put(path: Path, value: int, mode: str = "RGB", side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), value if mode == "L" else (value,) * 3).save(path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Twenty unlabelled images, two labelled ones of a class each, two for test; 16x16 and RGB."""
    folder = tmp_path / "target"
    for number in range(20):
        put(folder / "unlabeled" / f"{number:02}.png", 200 + number)
    for number, name in enumerate(("Cat", "ape")):
        put(folder / "labeled" / name / "1.png", 10 + number)
    put(folder / "test" / "Cat" / "1.png", 20)
    put(folder / "test" / "tree" / "1.png", 21)
    return folder


def test_two_domains_as_json(source: Path, target: Path, tmp_path: Path, command: Command) -> None:
    page = tmp_path / "deep" / "page.html"
    words = ["--data.target", target, "--data.aliases", f"{NASTY_CLASS}=tree", "--out", page, "--json"]
    answer = command("check", source, *words)
    assert answer.code == 0, answer.err
    report = json.loads(answer.out)
    rows = [(row["source"], row["target"]) for row in report["classes"]]
    assert rows == [("cat", "Cat"), (NASTY_CLASS, "tree"), ("frog", None), (None, "ape")]
    assert report["classes"][0] == {
        "source": "cat",
        "target": "Cat",
        "source_labelled": 10,
        "source_test": 1,
        "target_known": 1,
        "target_test": 1,
    }
    assert report["unknown"] == 20
    assert (report["source"]["training"], report["source"]["test"]) == (20, 2)
    assert (report["target"]["training"], report["target"]["test"]) == (21, 2)
    assert (report["source"]["shape"], report["target"]["shape"], report["shape"]) == (
        [1, 8, 8],
        [3, 16, 16],
        [1, 8, 8],
    )
    # Classes 0 and 1 of the source, and the target's Cat and unlabelled images.
    ours = np.array([value for value in range(100, 130) if (value - 100) % 3 < 2]) / 255
    theirs = np.array([10, *range(200, 220)]) / 255
    for side, values in (("source", ours), ("target", theirs)):
        assert report[side]["mean"] == pytest.approx([values.mean()], abs=1e-4)
        assert report[side]["std"] == pytest.approx([values.std()], abs=1e-4)
    assert report["duplicates"] == {"target and source": 0, "target test and source": 0, "target test and target": 0}
    assert "24 coloured images become grey." in report["notes"]
    assert report["page"] == str(page)
    shown = check(page.read_text("utf-8"))
    assert shown.text("h3") == [f"Source: {source}", f"Target: {target}"]
    assert len(shown.all("img")) == 16
    assert "left out" in shown.words
    assert NASTY_CLASS in shown.words


def test_two_domains_as_a_table(source: Path, target: Path, tmp_path: Path, command: Command) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        answer = command("check", source, "--data.target", target, "--data.aliases", "frog=ape")
    assert answer.code == 0, answer.err
    assert "classes: 2 shared; left out of both: " in answer.out
    assert "source images: 8x8 grey; mean" in answer.out
    assert "target images: 16x16 RGB; mean" in answer.out
    assert "duplicates: none" in answer.out
    assert answer.out.endswith("with images of both: check.html\n")
    assert check((tmp_path / "check.html").read_text("utf-8")).text("h2")[1:] == ["Images", "Figures", "Classes"]


def test_a_target_that_is_the_source_is_warned_of(source: Path, tmp_path: Path, command: Command) -> None:
    answer = command("check", source, "--data.target", f"{source.parent}/./{source.name}", "--out", tmp_path / "a.html")
    assert answer.code == 0
    assert "note: the target is the source; name the images of another domain." in answer.out
    assert "pixel by pixel" not in answer.out
    shutil.copy(source, tmp_path / "copy.npz")
    answer = command("check", source, "--data.target", tmp_path / "copy.npz", "--out", tmp_path / "b.html")
    assert answer.code == 0
    assert (
        "note: 30 of the target's 30 images are, pixel by pixel, the source's too: the two are one domain."
        in answer.out
    )


def test_a_target_without_labels_says_what_that_means(source: Path, tmp_path: Path, command: Command) -> None:
    for number in range(3):
        put(tmp_path / "shots" / f"{number}.png", number, "L", 8)
    answer = command("check", source, "--data.target", tmp_path / "shots", "--out", tmp_path / "page.html")
    assert answer.code == 0
    assert "shots names no class: all of the source's are taken to be in it." in answer.out
    assert "note: the target has no labelled test images: errors are measured on the source's alone." in answer.out


def test_unreadable_target_images_are_listed(source: Path, target: Path, tmp_path: Path, command: Command) -> None:
    (target / "unlabeled" / "03.png").write_bytes(b"no image")
    words = ["check", source, "--data.target", target, "--data.aliases", "frog=ape", "--out", tmp_path / "page.html"]
    answer = command(*words)
    assert answer.code == 1
    assert "unreadable: " in answer.out
    assert "problem: " in answer.out
    assert "03.png" in answer.out
    assert command(*words, "--skip-bad").code == 0


def test_bad_requests_get_one_sentence_and_no_page(
    source: Path, target: Path, tmp_path: Path, command: Command
) -> None:
    def refusal(*words: object) -> str:
        answer = command("check", source, *words)
        assert answer.code == 2
        assert answer.out == ""
        assert answer.err.count("\n") == 1
        return answer.err

    page = tmp_path / "page.html"
    assert "have only the class 'cat' in common" in refusal("--data.target", target, "--out", page)
    assert "neither side has a class 'dog'" in refusal(
        "--data.target", target, "--data.aliases", "dog=ape", "--out", page
    )
    assert "--out is for two domains" in refusal("--out", page)
    (tmp_path / "empty").mkdir()
    assert "holds no training image" in refusal("--data.target", tmp_path / "empty", "--out", page)
    assert not page.exists()
    page.write_text("mine", "utf-8")
    words = ("--data.target", target, "--data.aliases", "frog=ape", "--out", page)
    assert "is there already and is no report of fastswa" in refusal(*words)
    assert page.read_text("utf-8") == "mine"


def test_settings_are_called_as_in_training_and_sizes_are_the_images_own(
    source: Path, target: Path, tmp_path: Path, command: Command
) -> None:
    words = ["--data.target", target, "--data.aliases", "frog=ape", "--out", tmp_path / "page.html", "--json"]
    answer = command("check", source.name, *words, "--data.root", tmp_path, "--data.size", "12")
    assert answer.code == 0, answer.err
    report = json.loads(answer.out)
    assert report["shape"] == [1, 12, 12]
    assert report["source"]["shape"] == [1, 8, 8]
    assert report["target"]["shape"] == [3, 16, 16]
