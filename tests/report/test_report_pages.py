"""Pages of runs of every kind: whole, unfinished, without test images, without any, with hostile names."""

from __future__ import annotations

import copy
import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_checks import Page, check
from report_runs import NASTY_CLASS, NASTY_FILE, OWN, folder, put, train_own

from fastswa.errors import RequestError
from fastswa.modelfile import load_model
from fastswa.report.charts import Curve, error_frame
from fastswa.report.findings import look_at
from fastswa.report.record import read_run
from fastswa.report.remarks import remarks, standard_error
from fastswa.report.write import Written, write_comparison, write_report
from fastswa.training.finished import evaluate_run
from fastswa.training.folder import RunFolder
from tiny_runs import StoppingWatcher, go_on, tiny, train


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a folder with hostile names, which lies beside it as `data`; tests only read them."""
    place = tmp_path_factory.mktemp("own")
    data = folder(place / "data")
    put(data / "unlabeled" / os.fsdecode(b"caf\xe9.png"), True, 300)
    return train_own(data, place / "run", {"split": {"validation": 4}})


def page_of(written: Written) -> Page:
    return check(written.report.read_text("utf-8"))


def made(run: Path, out: Path, **options: Any) -> Page:
    return page_of(write_report(run, out / "page.html", **options))


def test_a_finished_run(finished: Path, tmp_path: Path) -> None:
    written = write_report(finished, tmp_path / "report.html")
    page = page_of(written)
    run = read_run(finished)
    assert page.text("h1") == [finished.name]
    assert page.text("h2") == [
        "Remarks",  # twelve steps do not make a good model
        "Errors",
        "Confusions",
        "Calibration",
        "Most confident mistakes",
        "Most uncertain unlabelled images",
        "What to label next",
        "Settings",
        "Cost",
    ]
    assert "Finished: 4 epochs." in page.words
    final = run.final("test")
    for error in final.values():
        assert f"{error:.2f}%" in page.words
    figures = evaluate_run(finished, "cpu")["test"]["fast_swa"]
    found = look_at(run, "cpu", suggestions=5, unlabelled=20_000)
    assert found.measured is not None
    assert found.measured.error == pytest.approx(figures["error"])
    assert found.counts == {"labelled": 50, "unlabelled": 1247, "validation": 0, "test": 500}
    assert found.measured.matrix.sum() == 500
    assert page.text("caption").count("The reliability diagram in numbers") == 1
    # Twelve steps of 100 images.
    assert "1,200" in page.words
    assert "Of 1,247 unlabelled images the model is less than 90% sure of" in page.words


def test_the_same_run_gives_the_same_page(finished: Path, tmp_path: Path) -> None:
    first, second = (write_report(finished, tmp_path / name / "report.html") for name in "ab")
    assert first.report.read_bytes() == second.report.read_bytes()
    assert first.suggestions is not None
    assert second.suggestions is not None
    assert first.suggestions.read_bytes() == second.suggestions.read_bytes()


def test_curves_are_those_of_the_metrics(finished: Path, tmp_path: Path) -> None:
    run = read_run(finished)
    page = made(finished, tmp_path)
    titles = page.text("title")
    networks = {"student": "student", "teacher": "teacher", "swa": "SWA", "fast_swa": "fast-SWA", "ema": "EMA"}
    low, high = error_frame([Curve(name, "", run.curve("test", name)) for name in networks])
    drawn = [title for title in titles if title.endswith("%") and ", epoch " in title]
    assert sorted(drawn) == sorted(
        f"{networks[name]}, epoch {line['epoch']}: {error:.2f}%"
        for line in run.metrics
        for name, error in line["error"].items()
        if low <= error <= high
    )
    assert len(drawn) > 5
    last = run.metrics[-1]["error"]
    gain = last["student"] - last["fast_swa"]
    assert f"fast-SWA, epoch 4: {gain:.2f} points fewer" in titles
    assert [network for network, _ in run.curve("test", "swa")] == [2.0, 3.0, 4.0]
    assert run.cycle_ends() == (2.0, 3.0)


def test_hostile_names_are_only_words(own: Path, tmp_path: Path) -> None:
    written = write_report(own, tmp_path / "report.html")
    source = written.report.read_text("utf-8")
    assert "<img src=x" not in source
    assert "<script" not in source
    page = check(source)
    assert NASTY_CLASS in page.words
    assert f"unlabeled/deep/{NASTY_FILE}" in page.words
    assert "unlabeled/caf\N{REPLACEMENT CHARACTER}.png" in page.words
    assert any(NASTY_CLASS in image["alt"] for image in page.all("img"))
    comparison = check(write_comparison([own, own], tmp_path / "c.html").report.read_text("utf-8"))
    assert "2 runs compared" in comparison.words


def test_the_list_of_what_to_label_names_the_files(own: Path, tmp_path: Path) -> None:
    written = write_report(own, tmp_path / "mine.html", suggestions=13)
    assert written.suggestions == tmp_path / "mine-label-next.csv"
    with written.suggestions.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, 14)]
    assert {row["path"] for row in rows} == {
        "unlabeled/" + os.fsdecode(b"caf\xe9.png"),
        f"unlabeled/deep/{NASTY_FILE}",
        *(f"unlabeled/deep/{number}.png" for number in range(1, 12)),
    }
    model = load_model(own)
    for row in rows:
        image = own.parent / "data" / row["path"]
        prediction = model.predict([image])
        assert row["predicted"] == prediction.names[0]
        assert float(row["confidence"]) == pytest.approx(prediction.probabilities.max(), abs=1e-3)
        assert float(row["confidence"]) + float(row["second_confidence"]) == pytest.approx(1.0, abs=2e-4)


def test_mistakes_come_surest_first_and_with_their_files(own: Path) -> None:
    found = look_at(read_run(own), "cpu", suggestions=3, unlabelled=100)
    assert found.measured is not None
    mistakes = found.measured.mistakes
    assert len(mistakes) == found.measured.count - np.trace(found.measured.matrix) > 0
    confidences = [example.confidence for example in mistakes]
    assert confidences == sorted(confidences, reverse=True)
    for example in mistakes:
        assert example.true != example.first
        assert example.file is not None
        assert example.file.startswith(f"test/{example.true}/")
    assert found.doubts is not None
    assert len(found.doubts.suggested) == 3


def test_only_so_many_unlabelled_images_are_looked_at(own: Path, tmp_path: Path) -> None:
    page = made(own, tmp_path, unlabelled=5)
    assert "Of 5 unlabelled images drawn at random from 13 the model is" in page.words


def test_validation_stands_in_where_there_are_no_test_images(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", test=0)
    page = made(train_own(data, tmp_path / "run", {"split": {"validation": 4}}), tmp_path)
    assert "What the model to use makes of the 4 validation images." in page.words
    assert "The validation error rests on 4 images: each of them is 25.0 points." in page.words
    assert "test error" not in page.words


def test_without_any_images_to_measure_on(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", test=0)
    page = made(train_own(data, tmp_path / "run", {"split": {"validation": 0}}), tmp_path)
    assert "nothing says how good the model is" in page.words
    assert "no error was measured" in page.words
    assert "There are neither test nor validation images to measure them on." in page.words
    assert "What to label next" in page.text("h2")


def test_without_unlabelled_images(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", unlabelled=0)
    run = train_own(data, tmp_path / "run", {"method": {"name": "supervised"}})
    written = write_report(run)
    page = page_of(written)
    assert written == Written(run / "report.html", None)
    assert "There are none, and so nothing to suggest for labelling." in page.words
    assert not (run / "label-next.csv").exists()
    assert "all labelled" in page.words


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run, StoppingWatcher(stop=7))
    page = made(run, tmp_path)
    assert "Unfinished: epoch 2 of 4." in page.words
    assert f"fastswa resume {run}" in page.words
    assert "come with the model, which the run writes when it is finished" in page.words
    assert page.text("h2") == ["Remarks", "Errors", "Images", "Settings", "Cost"]
    go_on(run)
    assert "Finished: 4 epochs." in made(run, tmp_path).words


def test_a_run_that_is_being_extended_shows_its_old_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), run)
    go_on(run, StoppingWatcher(stop=15), schedule={"epochs": 6})
    page = made(run, tmp_path)
    assert "Unfinished: epoch 5 of 6." in page.words
    assert "The run's model is that of epoch 4" in page.words


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_model_that_is_lost(finished: Path, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    model = run / "model.safetensors"
    if damage == "cut":
        model.write_bytes(model.read_bytes()[:500])
    else:
        model.unlink()
    page = made(run, tmp_path)
    assert (
        f"Trained to the end, but its model is missing or damaged: `fastswa resume {run}` writes it again."
        in page.words
    )
    why = {"cut": f"{model} is not a whole safetensors file", "gone": f"{run} has no model yet"}[damage]
    assert f"The model could not look at the images: {why}" in page.words
    assert "unfinished" not in page.words


def test_a_run_that_has_hardly_begun(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").create(tiny())
    page = made(tmp_path / "run", tmp_path)
    assert "The run has no evaluation yet." in page.words
    run = tmp_path / "nothing"
    train(tiny({"schedule": {"epochs": 0}}), run)
    page = made(run, tmp_path)
    assert "Finished: 0 epochs." in page.words
    assert "Confusions" in page.text("h2")


def test_figures_alone_where_the_images_are_gone(own: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(own, run)
    settings = (run / "config.toml").read_text("utf-8")
    (run / "config.toml").write_text(settings.replace(str(own.parent / "data"), str(tmp_path / "gone")), "utf-8")
    (run / "environment.json").write_text("{", "utf-8")
    page = made(run, tmp_path)
    assert f"The model could not look at the images: {tmp_path}/gone: there is no such folder or file." in page.words
    assert "Errors" in page.text("h2")
    assert page.all("img") == []


def test_images_of_other_classes_are_not_the_runs(own: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(own, run)
    other = folder(tmp_path / "other")
    (other / "labeled" / "ordinary").rename(other / "labeled" / "renamed")
    shutil.rmtree(other / "test")
    settings = (run / "config.toml").read_text("utf-8")
    (run / "config.toml").write_text(settings.replace(str(own.parent / "data"), str(other)), "utf-8")
    with pytest.raises(RequestError, match="no longer those of the run"):
        look_at(read_run(run), "cpu", suggestions=1, unlabelled=1)


@pytest.mark.parametrize("classes", [21, 150])
def test_many_classes_are_a_picture_and_lists(tmp_path: Path, classes: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(2 * classes) % classes
    np.savez(
        tmp_path / "many.npz",
        x_train=rng.integers(0, 256, (2 * classes + 40, 8, 8), dtype=np.uint8),
        y_train=np.concatenate([labels, np.full(40, -1)]),
        x_test=rng.integers(0, 256, (2 * classes, 8, 8), dtype=np.uint8),
        y_test=labels,
        classes=[f"class {number} <b>" for number in range(classes)],
    )
    changes = {"split": {"validation": 0}, "batch": {"size": 30, "labelled": 20}}
    run = train_own(tmp_path / "many.npz", tmp_path / "run", changes)
    page = made(run, tmp_path)
    (picture,) = [image for image in page.all("img") if image["alt"].startswith("Confusion matrix")]
    assert picture["alt"].startswith(f"Confusion matrix of {classes} classes")
    assert "matrix" not in [table.get("class") for table in page.all("table")]
    assert f"class {classes - 1} <b>" in page.text("th")
    assert "hardly better than guessing" in page.words
    assert "image 3" in page.words or "image 4" in page.words  # npz files have no names
    assert len(page.source) < 500_000


def test_a_test_image_among_the_labelled_ones_is_told(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    shutil.copy(data / "labeled" / "ordinary" / "0.png", data / "test" / "ordinary" / "0.png")
    run = read_run(train_own(data, tmp_path / "run", {"split": {"validation": 0}}))
    found = look_at(run, "cpu", suggestions=1, unlabelled=10)
    assert found.leaks == 1
    first = remarks(run, found)[0]
    assert first.text == "1 test image is among the labelled training images: the test error flatters."
    assert first.grave


def test_images_that_changed_since_are_told(own: Path) -> None:
    """By their content; where nothing tells of that, by an error that more than three images explain."""
    run = read_run(own)
    found = look_at(run, "cpu", suggestions=1, unlabelled=10)
    assert found.changed is False
    assert found.measured is not None
    one = 100.0 / found.measured.count

    def told(changed: bool | None, images: int) -> list[str]:
        metrics = [*run.metrics[:-1], copy.deepcopy(run.metrics[-1])]
        metrics[-1]["error"]["fast_swa"] += images * one
        every = remarks(replace(run, metrics=metrics), replace(found, changed=changed))
        assert all(remark.grave for remark in every if "changed since" in remark.text)
        return [remark.text for remark in every if "changed since" in remark.text]

    assert not told(False, 0)
    assert not told(False, 4)
    assert told(True, 0) == ["The images or labels have changed since the run was trained."]
    assert not told(None, 3)
    (text,) = told(None, 4)
    then, now = (f"{error:.2f}%" for error in (found.measured.error + 4 * one, found.measured.error))
    assert text == (
        f"The images or labels have changed since the run was trained: its test error was {then} and is {now} now."
    )


def test_classes_without_an_image_are_not_said_to_be_never_answered(own: Path) -> None:
    run = read_run(own)
    found = look_at(run, "cpu", suggestions=1, unlabelled=10)
    assert found.measured is not None
    # Six images of the first class and none of the second, all taken for the first; then the other way round.
    for matrix, word in (([[6, 0], [0, 0]], None), ([[0, 0], [6, 0]], 1)):
        rows = np.zeros((len(found.classes), len(found.classes)), dtype=int)
        rows[:2, :2] = matrix
        measured = replace(found.measured, matrix=rows, count=6)
        texts = [remark.text for remark in remarks(run, replace(found, measured=measured))]
        never = [text for text in texts if text.startswith("The model never answers")]
        named = (
            []
            if word is None
            else [f"The model never answers ‘{found.classes[word]}’ on the {measured.images} images."]
        )
        assert never == named


def test_remarks_on_averages(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny({"averaging": {"swa": {"start": 100}}}), run)
    texts = [remark.text for remark in remarks(read_run(run), None)]
    assert texts == ["SWA has averaged nothing: it starts at epoch 100 of 4."]
    # An average that lags far behind the student is worth a word; one within the noise is not.
    record = read_run(run)
    found = look_at(record, "cpu", suggestions=1, unlabelled=10)
    error = record.metrics[-1]["error"]
    error.update(student=10.0, teacher=12.0, fast_swa=20.0, ema=10.0)
    texts = [remark.text for remark in remarks(record, found)]
    assert "fast-SWA is worse than the student by 10.00 points." in texts
    assert not any("teacher is worse" in text for text in texts)
    assert standard_error(10.0, 900) == pytest.approx(1.0)


def test_a_fork_counts_its_own_steps(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    train(tiny({"checkpoint": {"keep": [2]}}), parent)
    train(tiny({"start": {"run": f"{parent}@2"}, "schedule": {"epochs": 5}}), child)
    cost = read_run(child).cost
    assert cost is not None
    assert (cost.steps, cost.images) == (9, 900)
    page = made(child, tmp_path)
    assert f"{parent}, epoch 2" in page.words


def test_metrics_that_someone_edited(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[1]["error"] = "none"
    lines[2]["error"]["student"] = None
    lines[3]["error"]["swa"] = float("nan")
    del lines[3]["averaged"]
    del lines[3]["seconds"]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{half a li")
    page = made(run, tmp_path)
    assert "The test error of SWA is not a number." in page.words


def test_own_settings_are_listed(own: Path, tmp_path: Path) -> None:
    page = made(own, tmp_path)
    names = page.text("th")
    assert "schedule.cycle" in names
    assert "averaging.fast_swa.every" in names
    assert f"fastswa train --config {own}/config.toml --out NEW-RUN" in page.words
    assert OWN["batch"]["size"] == 8
    assert "8, 4 of them labelled" in page.words
