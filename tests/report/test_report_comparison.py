"""Several runs on one page: their errors apart by set of images, what differs, and repeats summed up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_checks import Page, check
from report_runs import folder, train_own

from fastswa.report.compare import comparison_page
from fastswa.report.record import RunRecord, read_run, short_names
from fastswa.report.words import setting
from fastswa.training.folder import RunFolder
from tiny_runs import StoppingWatcher, tiny, train

SUMMED = "Test error in percent, mean ± standard deviation over seeds"


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on the digits with 20 validation images: two seeds of one recipe and another method."""
    place = tmp_path_factory.mktemp("several")
    held_out = {"split": {"validation": 20}}
    train(tiny(held_out, {"seed": 1}), place / "mt" / "seed-1")
    train(tiny(held_out, {"seed": 2}), place / "mt" / "seed-2")
    train(tiny(held_out, {"seed": 1}, recipe="digits-pi"), place / "pi")
    return place


def runs(place: Path, *names: str) -> list[RunRecord]:
    return [read_run(place / name) for name in names]


def cells(page: Page, caption: str) -> list[list[str]]:
    """The rows of the table with a caption."""
    found, reading = [], False
    for (tag, _), words in zip(page.elements, page.texts, strict=True):
        text = " ".join(words.split())
        if tag == "caption":
            reading = text == caption
        elif reading and tag == "tr":
            found.append([])
        elif reading and tag in ("th", "td"):
            found[-1].append(text)
    return found


def test_errors_of_validation_and_test_stand_apart(several: Path) -> None:
    records = runs(several, "mt/seed-1", "pi")
    page = check(comparison_page(records))
    for images, caption in (("test", "Final test error"), ("validation", "Final validation error")):
        head, *rows = cells(page, caption)
        assert head == ["run", "epoch", "student", "teacher", "SWA", "fast-SWA", "EMA"]
        assert [row[:2] for row in rows] == [["mt/seed-1", "4"], ["pi", "4"]]
        for record, row in zip(records, rows, strict=True):
            final = record.final(images)
            names = ("student", "teacher", "swa", "fast_swa", "ema")
            assert row[2:] == [f"{final[name]:.2f}%" if name in final else "–" for name in names]
    # The best on validation stands out, and nothing on the test images does.
    strong = [words for (_, one), words in zip(page.elements, page.texts, strict=True) if "strong" in str(one)]
    least = min(error for record in records for error in record.final("validation").values())
    assert {words.strip() for words in strong} == {f"{least:.2f}%"}


def test_nothing_stands_out_on_different_validation_images(several: Path) -> None:
    page = check(comparison_page(runs(several, "mt/seed-1", "mt/seed-2")))
    assert "The runs hold out different validation images (split.seed differs)." in page.words
    assert "strong" not in str(page.elements)


def test_only_the_settings_that_differ_are_listed(several: Path) -> None:
    rows = cells(check(comparison_page(runs(several, "mt/seed-1", "pi"))), "Settings that differ")
    assert rows[0] == ["setting", "mt/seed-1", "pi"]
    assert ["method.name", "mean-teacher", "pi"] in rows
    assert all(one != other for _, one, other in rows[1:])
    page = check(comparison_page(runs(several, "mt/seed-1", "mt/seed-2")))
    assert [row[0] for row in cells(page, "Settings that differ")] == ["setting", "seed", "split.seed"]
    assert "hold out different validation images" in page.words


def test_seeds_are_summed_up(several: Path) -> None:
    records = runs(several, "mt/seed-1", "mt/seed-2", "pi")
    rows = cells(check(comparison_page(records)), SUMMED)
    first, second = (record.final("test")["fast_swa"] for record in records[:2])
    spread = abs(first - second) / 2**0.5
    assert len(rows) == 2
    assert rows[1][:2] == ["mt/seed-1 and 1 more", "2"]
    assert rows[1][5] == f"{(first + second) / 2:.2f} ± {spread:.2f}"


def test_a_seed_that_was_trained_twice_counts_once(several: Path, tmp_path: Path) -> None:
    again, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    shutil.copytree(several / "mt" / "seed-1", again)
    shutil.copytree(several / "mt" / "seed-1", elsewhere)
    figures = elsewhere / "metrics.jsonl"  # another machine's
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    lines[-1]["error"]["fast_swa"] += 3.0
    figures.write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = [*runs(several, "mt/seed-1", "mt/seed-2"), read_run(again), read_run(elsewhere)]
    first, second = (record.final("test")["fast_swa"] for record in records[:2])
    rows = cells(check(comparison_page(records)), SUMMED)
    assert rows[1][:2] == ["mt/seed-1 and 3 more", "2"]
    spread = abs(first + 1.0 - second) / 2**0.5
    assert rows[1][5] == f"{(first + 1.0 + second) / 2:.2f} ± {spread:.2f}"
    assert cells(check(comparison_page([records[0], records[2]])), SUMMED) == []


def test_what_began_elsewhere_or_has_not_ended_is_no_repeat(several: Path, tmp_path: Path) -> None:
    fork, short = tmp_path / "fork", tmp_path / "short"
    shutil.copytree(several / "mt" / "seed-2", fork)
    facts = json.loads((fork / "environment.json").read_text())
    (fork / "environment.json").write_text(json.dumps({**facts, "parent": {"run": "runs/a", "epoch": 2}}))
    shutil.copytree(several / "mt" / "seed-2", short)
    lines = (short / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short / "metrics.jsonl").write_text("".join(lines[:-1]))
    for other in (fork, short):
        page = check(comparison_page([*runs(several, "mt/seed-1"), read_run(other)]))
        assert cells(page, SUMMED) == []


def test_the_learning_rate_is_drawn_where_all_share_it(several: Path, tmp_path: Path) -> None:
    page = comparison_page(runs(several, "mt/seed-1", "pi"))
    assert "line rate" in page
    assert "the learning rate, which all share" in page
    other = tmp_path / "other"
    train(tiny({"optimiser": {"lr": 0.01}}), other)
    assert "line rate" not in comparison_page([*runs(several, "pi"), read_run(other)])


def test_settings_are_shown_without_the_noise_of_binary_fractions() -> None:
    assert [setting(value) for value in (85.8333 - 17.1667, 0.1, 1e-7, 240.0, 3)] == [
        "68.6666",
        "0.1",
        "1e-07",
        "240",
        "3",
    ]


def test_what_cannot_be_compared_is_told(several: Path, tmp_path: Path) -> None:
    train_own(folder(tmp_path / "data"), tmp_path / "own")
    train(tiny(), tmp_path / "stopped", StoppingWatcher(stop=7))
    page = check(comparison_page([*runs(several, "pi"), *runs(tmp_path, "own", "stopped")]))
    assert "The runs were measured on different data: their errors cannot be compared." in page.words
    assert "stopped is unfinished (epoch 2 of 4)." in page.words
    assert "The runs had different numbers of labels." in page.words
    # Nor does the lowest of such errors stand out as the one to choose.
    assert "strong" not in str(page.elements)
    assert "The lowest stands out" not in page.words


def test_data_that_lie_elsewhere_are_the_same_data(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    train_own(data, tmp_path / "here")
    shutil.copytree(data, tmp_path / "moved" / "data")
    train_own(tmp_path / "moved" / "data", tmp_path / "there", {"seed": 8})
    both = runs(tmp_path, "here", "there")
    assert both[0].config.data.source != both[1].config.data.source
    page = check(comparison_page(both))
    assert "were measured on different data" not in page.words
    assert cells(page, SUMMED)[1][:2] == ["here and 1 more", "2"]
    for facts in (tmp_path / "there" / "checkpoint").glob("*/facts.json"):
        facts.write_text("torn")
    RunFolder(tmp_path / "there").amend_environment(content=None)
    both = runs(tmp_path, "here", "there")
    assert "were measured on different data" in check(comparison_page(both)).words


def test_many_runs_and_a_run_without_a_figure(several: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    shutil.copytree(several / "pi", empty)
    (empty / "metrics.jsonl").write_text("")
    many = [read_run(empty), *runs(several, "mt/seed-1", "mt/seed-2", "pi") * 4]
    page = check(comparison_page(many))
    assert "13 runs compared" in page.words
    assert "turn" in page.source  # more runs than colours
    assert check(comparison_page([read_run(empty), read_run(empty)])).words.count("None of the runs has measured") == 1


def test_names_are_as_long_as_it_takes(several: Path, tmp_path: Path) -> None:
    assert short_names(runs(several, "mt/seed-1", "pi")) == ["mt/seed-1", "pi"]
    for name in ("a/run", "b/run", "a/c/run"):
        shutil.copytree(several / "pi", tmp_path / name)
    assert short_names(runs(tmp_path, "a/run", "b/run")) == ["a/run", "b/run"]
    assert short_names(runs(tmp_path, "a/run", "a/c/run")) == ["a/run", "c/run"]
    record = read_run(several / "pi")
    assert short_names([record, record]) == [str(record.path)] * 2
