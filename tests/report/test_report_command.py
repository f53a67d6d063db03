"""`fastswa report` and the report at the end of training: where it goes, and what it must never do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_checks import check

from conftest import Command
from fastswa.report import write
from tiny_runs import FLAGS, assert_identical, models

TRAIN = ("train", "digits-mean-teacher", *FLAGS)

WRONG = {
    "report": "name a run folder, or several to compare.",
    "report none": "none holds no run: there is no config.toml in it.",
    "report run none": "none holds no run: there is no config.toml in it.",
    "report run run/../run": "run/../run is named twice.",
    "report run --out text.txt": (
        "text.txt is there already and is no report of fastswa; move it or choose another --out."
    ),
    "report run --out run": "run is a folder; name the file that the report is to be written to.",
    "report run --out text.txt/report.html": "cannot write text.txt/report.html: Not a directory.",
    "report loop": "loop holds no run: there is no config.toml in it.",
    "report run --next none": "--next: 'none' is not a number above zero.",
    "report run --unlabelled 0.5": "--unlabelled: '0.5' is not a whole number.",
    "report run other --next 5": "--next is for the report of one run; a comparison looks at no image.",
    "report run --nxt 5": "unknown option --nxt for report; did you mean --next?",
    "report --out a.html": "name a run folder, or several to compare.",
}


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two runs and a file of someone's."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(finished, tmp_path / "other")
    (tmp_path / "text.txt").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_request_is_one_sentence(words: str, place: Path, command: Command) -> None:
    before = sorted(place.rglob("*"))
    assert command(*words.split()) == (2, "", f"fastswa: {WRONG[words]}\n")
    assert sorted(place.rglob("*")) == before
    assert (place / "text.txt").read_text() == "mine"


def test_a_report_goes_into_the_run_or_where_it_is_told(place: Path, command: Command) -> None:
    answer = command("report", "run", "--device", "cpu")
    assert answer == (0, "run/report.html\nrun/label-next.csv\n", "")
    check((place / "run" / "report.html").read_text("utf-8"))
    assert len((place / "run" / "label-next.csv").read_text("utf-8").splitlines()) == 51
    answer = command("report", "run", "--out", "new/a.html", "--next", "7", "--device", "cpu", "--json")
    assert json.loads(answer.out) == {"report": "new/a.html", "label_next": "new/a-label-next.csv"}
    assert len((place / "new" / "a-label-next.csv").read_text("utf-8").splitlines()) == 8
    # What was written here may be written again.
    assert command("report", "run", "--device", "cpu").code == 0
    assert list(place.rglob("*.writing")) == []


def test_several_runs_are_compared(place: Path, command: Command) -> None:
    assert command("report", "run", "other") == (0, "comparison.html\n", "")
    assert "2 runs compared" in check((place / "comparison.html").read_text("utf-8")).words
    assert command("report", "run", "other", "--out", "c.html", "--json").out == '{"report": "c.html"}\n'
    assert not (place / "run" / "report.html").exists()


def test_a_folder_of_seeds_is_a_comparison_of_its_own(place: Path, command: Command) -> None:
    for seed in (1, 2):
        shutil.copytree(place / "run", place / "seeds" / f"seed-{seed}")
    assert command("report", "seeds") == (0, "seeds/report.html\n", "")
    assert "seeds/seed-1, seeds/seed-2" in check((place / "seeds" / "report.html").read_text("utf-8")).words
    assert command("report", "seeds", "run").out == "comparison.html\n"
    assert "3 runs compared" in (place / "comparison.html").read_text("utf-8")


def test_a_folder_that_cannot_be_written(place: Path, command: Command) -> None:
    (place / "run" / ".report.html.writing").mkdir()
    answer = command("report", "run", "--device", "cpu")
    assert answer == (1, "", "fastswa: cannot write run/report.html: Is a directory.\n")


def test_a_page_that_cannot_be_written_leaves_no_list_of_it(place: Path, command: Command) -> None:
    """As on a disk that is too full for it."""
    (place / "pages" / ".a.html.writing").mkdir(parents=True)
    answer = command("report", "run", "--device", "cpu", "--out", "pages/a.html")
    assert answer == (1, "", "fastswa: cannot write pages/a.html: Is a directory.\n")
    assert [file.name for file in (place / "pages").iterdir()] == [".a.html.writing"]
    answer = command("report", "run", "--device", "cpu", "--out", "pages/b.html")
    assert answer.out == "pages/b.html\npages/b-label-next.csv\n"


def test_training_ends_with_a_report(command: Command, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    answer = command(*TRAIN, "--out", run)
    assert answer.out.endswith(f"{run}: the report is {run}/report.html\n")
    check((run / "report.html").read_text("utf-8"))
    assert (run / "label-next.csv").is_file()
    assert_identical(models(run), models(finished))
    (run / "report.html").unlink()
    assert command("resume", run, "--epochs", "5").code == 0
    assert "Finished: 5 epochs." in (run / "report.html").read_text("utf-8")


def test_training_without_a_report(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    answer = command(*TRAIN, "--out", run, "--no-report")
    assert answer.out == f"{run}: done; the model to use is {run}/model.safetensors\n"
    assert not (run / "report.html").exists()
    assert command("resume", run, "--epochs", "5", "--no-report").code == 0
    assert not (run / "report.html").exists()
    stopped = tmp_path / "stopped"
    assert command(*TRAIN, "--out", stopped, "--stop-after", "0.0000001").code == 0
    assert not (stopped / "report.html").exists()


def test_seeds_get_a_report_each_and_one_together(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    answer = command(*TRAIN[:2], *FLAGS[2:], "--out", out, "--seeds", "1,2", "--epochs", "2")
    assert answer.out.splitlines()[-1] == f"{out}: the report is {out}/report.html"
    for page in (out / "report.html", out / "seed-1" / "report.html", out / "seed-2" / "report.html"):
        check(page.read_text("utf-8"))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ZeroDivisionError("first line\nsecond"), "no report was made: first line second."),
        (MemoryError(), "no report was made: MemoryError."),
        (KeyboardInterrupt(), "stopped before the report was made; `fastswa report {run}` makes it."),
    ],
)
def test_a_report_that_fails_is_not_what_a_run_fails_by(
    error: BaseException, sentence: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr(write, "run_page", fails)
    run = tmp_path / "run"
    answer = command(*TRAIN, "--out", run, "--epochs", "1")
    assert (answer.code, answer.out) == (0, f"{run}: done; the model to use is {run}/model.safetensors\n")
    assert answer.err.splitlines()[-1] == f"fastswa: {sentence.format(run=run)}"


def test_someones_own_file_in_the_run_is_left_alone(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").write_text("mine")
    answer = command(*TRAIN, "--out", run, "--epochs", "1")
    assert answer.code == 0
    assert answer.err.splitlines()[-1] == (
        f"fastswa: no report was made: {run}/report.html is there already and is no report of fastswa; "
        "move it or choose another --out."
    )
    assert (run / "report.html").read_text() == "mine"
