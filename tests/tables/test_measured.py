"""Which result files belong to which run, and what pooling them gives."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up import write_result

from fastswa.errors import RequestError
from fastswa.results import write_record
from fastswa.tables.measured import Measured, by_row, device_minutes, load_results, measured, of_layer
from fastswa.tables.rows import all_rows
from tiny_runs import tiny, train

MT = "cifar10-cnn-mean-teacher-4k"


def test_seeds_are_pooled_by_hand(tmp_path: Path) -> None:
    for seed, error in ((10, 10.0), (11, 11.0), (12, 13.0)):
        write_result(tmp_path, MT, seed, {180: {"teacher": error, "student": error + 1}})
    pooled = measured(by_row(load_results(tmp_path))[MT], all_rows()[MT], "teacher", 180)
    assert pooled is not None
    assert pooled.errors == {10: 10.0, 11: 11.0, 12: 13.0}
    assert pooled.mean == pytest.approx(34 / 3)
    assert pooled.std == pytest.approx(math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2))
    assert pooled.minutes == 180
    assert measured(by_row(load_results(tmp_path))[MT], all_rows()[MT], "teacher", 240) is None


def test_a_repeated_seed_counts_once(tmp_path: Path) -> None:
    files = [
        write_result(tmp_path, MT, seed, {180: {"student": error}}).name
        for seed, error in ((10, 10.0), (10, 11.0), (11, 12.0))
    ]
    pooled = measured(by_row(load_results(tmp_path))[MT], all_rows()[MT], "student", 180)
    assert pooled == Measured({10: 10.5, 11: 12.0}, 180.0, tuple(files))


def test_runs_to_other_epochs_leave_a_cell_alone(tmp_path: Path) -> None:
    """A seed to epoch 30 beside its run to 240, and seeds that only some epochs have."""
    far = write_result(tmp_path, MT, 10, {30: {"teacher": 15.0}, 180: {"teacher": 11.0}, 240: {"teacher": 12.0}}).name
    write_result(tmp_path, MT, 10, {10: {"teacher": 19.0}, 30: {"teacher": 16.0}})
    near = write_result(tmp_path, MT, 11, {180: {"teacher": 11.5}}).name
    results = by_row(load_results(tmp_path))[MT]
    assert len(results) == 3
    assert measured(results, all_rows()[MT], "teacher", 180) == Measured({10: 11.0, 11: 11.5}, 180.0, (far, near))
    assert measured(results, all_rows()[MT], "teacher", 240) == Measured({10: 12.0}, 240.0, (far,))


def test_minutes_are_a_runs_share_of_the_device(tmp_path: Path) -> None:
    for seed in (10, 11, 12):
        write_result(tmp_path, MT, seed, {180: {"teacher": 11.0}}, together=3)
    pooled = measured(by_row(load_results(tmp_path))[MT], all_rows()[MT], "teacher", 180)
    assert pooled is not None
    assert pooled.minutes == pytest.approx(60)


def test_minutes_follow_the_number_of_runs_at_once() -> None:
    """Three at once for an hour, two for one more, then alone after a resume; lines without a number are two's."""
    lines = [{"seconds": 3600.0, "together": 3}, {"seconds": 7200.0}, {"seconds": 7800.0, "together": 1}]
    assert device_minutes(lines, 2) == pytest.approx([20, 50, 60])


def test_extra_images_are_known_by_the_files_name(tmp_path: Path) -> None:
    tiny = "cifar100-cnn-pi-50k-tiny-237k"
    write_result(tmp_path, tiny, 10, {180: {"student": 24.0}}, {"data": {"extra": "/big/disk/tiny_images.bin"}})
    write_result(tmp_path, tiny, 11, {180: {"student": 24.0}}, {"data": {"extra": "mine.npz"}})
    assert [result.seed for result in by_row(load_results(tmp_path))[tiny]] == [10]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"schedule": {"epochs": 480}, "evaluation": {"every": 10}, "split": {"seed": 5}}, MT),
        ({"device": {"name": "cuda"}, "data": {"root": "elsewhere"}}, MT),
        ({"method": {"epsilon": 5, "memory_decay": 0.5}}, MT),
        ({"averaging": {"often": {"kind": "fast-swa", "every": 1}}}, MT),
        ({"split": {"labels": 1000}}, "cifar10-cnn-mean-teacher-1k"),
        ({"method": {"teacher": "swa"}}, "cifar10-cnn-mean-teacher-swa-teacher-4k"),
        ({"method": {"weight": 50}}, None),
        ({"optimiser": {"lr": 0.2}}, None),
        ({"split": {"validation": 5000}}, None),
        ({"schedule": {"cycle": 20}}, None),
        ({"device": {"precision": "fp32"}}, MT),
        ({"device": {"precision": "bf16"}}, None),  # on a CPU `auto` is fp32
        ({"device": {"precision": "fp64"}}, None),
        ({"device": {"deterministic": True}}, MT),
    ],
)
def test_a_run_belongs_where_its_settings_say(tmp_path: Path, changes: dict[str, Any], row: str | None) -> None:
    write_result(tmp_path, MT, 10, {180: {"student": 11.0}}, changes)
    assert list(by_row(load_results(tmp_path))) == ([] if row is None else [row])


def test_other_arithmetic_than_a_recipe_gets_there_makes_another_run(tmp_path: Path) -> None:
    for seed, precision, place in (
        (1, "bf16", {"gpu": "H200", "device": "cuda"}),
        (2, "fp32", {"gpu": "H200", "device": "cuda"}),
        (3, "fp32", {"gpu": "H200", "device": "cpu"}),
        (4, "fp32", {"gpu": None, "device": "cpu"}),
    ):
        path = write_result(tmp_path, MT, seed, {180: {"student": 11.0}}, {"device": {"precision": precision}})
        record = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps(record | {"environment": place}), "utf-8")
    assert [result.seed for result in by_row(load_results(tmp_path))[MT]] == [1, 3, 4]


def test_a_run_on_a_part_of_the_published_images_is_in_no_table(tmp_path: Path) -> None:
    for seed, images in ((1, None), (2, {"train": 50_000, "test": 10_000}), (3, {"train": 2_000, "test": 100})):
        path = write_result(tmp_path, MT, seed, {180: {"student": 11.0}})
        record = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps(record | {"environment": {"images": images}}), "utf-8")
    assert [result.seed for result in by_row(load_results(tmp_path))[MT]] == [1, 2]
    assert [result.seed for result in of_layer(load_results(tmp_path), all_rows()[MT].layer())] == [1, 2]


def test_where_a_run_was_made_may_be_unknown(tmp_path: Path) -> None:
    """It then may have had the arithmetic of either."""
    for seed, precision in ((1, "bf16"), (2, "fp32"), (3, "fp64")):
        path = write_result(tmp_path, MT, seed, {180: {"student": 11.0}}, {"device": {"precision": precision}})
        record = json.loads(path.read_text("utf-8"))
        del record["environment"]
        path.write_text(json.dumps(record), "utf-8")
    assert [result.seed for result in by_row(load_results(tmp_path))[MT]] == [1, 2]


@pytest.mark.parametrize(("tiny", "whole"), [("tiny-500k", 500_000), ("tiny-237k", 236_872)])
def test_a_run_with_fewer_extra_images_than_the_rows_is_in_no_table(tmp_path: Path, tiny: str, whole: int) -> None:
    tiny = f"cifar100-cnn-pi-50k-{tiny}"
    for seed, extra in ((1, whole), (2, 1_001)):
        path = write_result(tmp_path, tiny, seed, {180: {"student": 24.0}})
        record = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps(record | {"environment": {"extra_images": extra}}), "utf-8")
    assert [result.seed for result in by_row(load_results(tmp_path))[tiny]] == [1]


def test_an_average_is_known_by_what_it_averages(tmp_path: Path) -> None:
    """Names do not count, and an average with another k is another average."""
    averages = {
        "often": {"kind": "fast-swa", "every": 1},
        "mine": {"kind": "fast-swa", "start": 150, "every": 3},
        "fast_swa": {"kind": "fast-swa", "every": 0.25},
    }
    errors = {180: {"often": 1.0, "mine": 2.0, "fast_swa": 3.0}}
    write_result(tmp_path, MT, 10, errors, {"averaging": averages})
    pooled = measured(by_row(load_results(tmp_path))[MT], all_rows()[MT], "fast-swa", 180)
    assert pooled is not None
    assert pooled.errors == {10: 2.0}


def test_other_files_are_passed_over_and_broken_ones_named(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"command": "fastswa demo"}')
    (tmp_path / "list.json").write_text("[]")
    assert load_results(tmp_path) == []
    with pytest.raises(RequestError, match="nowhere is not a folder"):
        load_results(tmp_path / "nowhere")
    (tmp_path / "old.json").write_text(json.dumps({"config": {"sead": 1}, "metrics": [{"epoch": 1, "seconds": 1}]}))
    with pytest.raises(RequestError, match=r"old\.json may be of another .*: unknown setting sead; .* Move it away"):
        load_results(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(RequestError, match=r"bad\.json is not readable JSON"):
        load_results(tmp_path)


LINE = {"epoch": 1, "seconds": 2.0, "error": {"student": 9.0}}
ODD = ({"epoch": "x"}, {"seconds": None}, {"together": 0}, {"error": []}, {"error": {"student": None}})


def test_a_line_of_these_kinds_is_read(tmp_path: Path) -> None:
    (tmp_path / "even.json").write_text(json.dumps({"config": {}, "metrics": [LINE]}))
    assert len(load_results(tmp_path)) == 1


@pytest.mark.parametrize(
    "record",
    [
        {"config": [], "metrics": []},
        {"config": {}, "metrics": {"epoch": 1}},
        {"config": {}, "metrics": [], "environment": "here"},
        {"config": {}, "metrics": [{"epoch": 1}]},
        {"config": {}, "metrics": [3]},
        {"config": {}, "metrics": []},
        {"config": {}, "metrics": [LINE], "environment": {"together": 0}},
        *({"config": {}, "metrics": [LINE | part]} for part in ODD),
    ],
)
def test_a_record_of_another_shape_is_named(tmp_path: Path, record: dict[str, Any]) -> None:
    (tmp_path / "odd.json").write_text(json.dumps(record))
    with pytest.raises(RequestError, match=r"odd\.json is not a run's record as `fastswa sweep` writes it"):
        load_results(tmp_path)


def test_a_record_of_another_run_is_not_written_over(tmp_path: Path) -> None:
    train(tiny({"schedule": {"epochs": 1}}), tmp_path / "run")
    train(tiny({"schedule": {"epochs": 1}, "optimiser": {"momentum": 0.8}}), tmp_path / "other")
    target = tmp_path / "kept.json"
    write_record(tmp_path / "run", target)
    write_record(tmp_path / "run", target)
    with pytest.raises(RequestError, match=r"kept\.json is no record of this run"):
        write_record(tmp_path / "other", target)


def test_keeping_a_record_by_hand_says_in_a_sentence_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parents[2] / "benchmarks" / "record.py")]
    for words, sentence in (
        ([], "name a run's folder and the file to write."),
        ([tmp_path, tmp_path / "a.json"], f"{tmp_path} holds no run: there is no config.toml in it."),
    ):
        answer = subprocess.run([*command, *map(str, words)], capture_output=True, text=True)
        assert (answer.returncode, answer.stderr) == (2, f"# {sentence}\n")
