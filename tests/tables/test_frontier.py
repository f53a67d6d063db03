"""The frontier's table and the paired differences: figures as read, runs found by their settings, intervals by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from conftest import Command
from fastswa.config import to_dict
from fastswa.layers import build_config, merge, recipe_layer, recipe_text
from fastswa.tables.frontier import RECIPES, frontier_cells, paper_best
from fastswa.tables.measured import load_results
from fastswa.tables.paired import Difference, paired_runs, t_quantile
from fastswa.tables.render import FORMATS, rendered
from fastswa.tables.table import Sheet, table

FOUR = "cifar10-fixmatch-4k"


def write(
    folder: Path,
    recipe: str,
    seed: int,
    errors: dict[str, float],
    epoch: int | None = None,
    *,
    wall: float | None = 390.0,
    together: int = 1,
    **changes: Any,
) -> Path:
    """A file as a kept run is, on an H200: errors of networks at one epoch, the last unless said, six minutes.

    Half a minute more from the command to the model.
    """
    config = build_config(merge(recipe_layer(recipe), {"seed": seed}, changes))
    settings = to_dict(config)
    settings["data"].pop("root")
    settings["split"].setdefault("validation", 0)
    at = config.schedule.epochs if epoch is None else epoch
    record = {
        "seed": seed,
        "wall_seconds": wall,
        "environment": {"gpu": "NVIDIA H200", "together": together},
        "config": settings,
        "metrics": [{"epoch": at, "error": errors, "averaged": {}, "seconds": 360.0}],
    }
    path = folder / f"{recipe}-{seed}-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(record), "utf-8")
    return path


def ours(sheet: Sheet) -> dict[tuple[str, str, str, str], tuple[float | None, int]]:
    return {
        (record["recipe"], record["method"], record["architecture"], record["network"]): (
            record["our_error"],
            len(record["seeds"]),
        )
        for record in sheet.records
        if record["recipe"] is not None and record["status"] == "measured"
    }


def test_published_figures_are_the_authors() -> None:
    """As the three papers print them; FixMatch's are also in the headers of our recipes."""
    found = {(cell.method, cell.chosen, cell.dataset, cell.labels): cell.error for cell in frontier_cells()}
    by_labels = (("cifar10", 40), ("cifar10", 250), ("cifar10", 4000), ("cifar100", 10_000))
    expected = {
        ("fixmatch", "median"): [13.81, 5.07, 4.26, 22.60],
        ("flexmatch", "best"): [4.97, 4.98, 4.19, 21.90],
        ("flexmatch", "median"): [5.19, 5.33, 4.47, 23.04],
        ("freematch", ""): [None, 4.88, None, 21.68],
        ("freematch", "best"): [4.97, 4.85, 4.14, None],  # of another network with CIFAR-100, and left out
    }
    keys = {key[:2] for key in found}
    assert {key: [found.get((*key, *setting)) for setting in by_labels] for key in keys} == expected
    # Each line says for itself where it was read: tables put them in another order.
    assert all(cell.source and len(cell.checked) > 20 for cell in frontier_cells())
    for recipe in RECIPES:
        config = build_config(recipe_layer(recipe))
        setting = (config.data.source, config.split.labels or 0)
        (cell,) = [
            cell for cell in frontier_cells() if cell.method == "fixmatch" and (cell.dataset, cell.labels) == setting
        ]
        assert f"Published: {cell.error:.2f} ± {cell.std:.2f} (Sohn et al. 2020" in recipe_text(recipe)


def test_figures_of_anothers_code_are_named_after_it() -> None:
    rows = {row[1]: row for row in table("frontier", None).rows if row[0] == "CIFAR-10, 40 labels"}
    assert rows["FreeMatch, Wang 2023"][4] == "not checked"
    assert rows["FreeMatch, USB 0.3.0, best on test"][4] == "4.97 ± 0.09"


def test_the_papers_own_best_stands_beside_them() -> None:
    best = {setting: paper_best(*setting) for setting in (("cifar10", 4000), ("cifar100", 10_000), ("cifar10", 250))}
    four, ten, none = best.values()
    assert four is not None
    assert ten is not None
    assert (four.error, four.method, four.epoch) == (5.0, "pi", 3500)
    assert (ten.error, ten.table) == (28.0, "cifar100-shake-short")
    assert none is None


def test_without_results_every_recipe_says_so() -> None:
    sheet = table("frontier", None)
    mine = [record for record in sheet.records if record["recipe"] is not None]
    assert [(record["recipe"], record["network"]) for record in mine] == [
        (recipe, network) for recipe in RECIPES for network in ("student", "ema", "fast-swa")
    ]
    assert {record["status"] for record in mine} == {"not measured"}
    assert {record["architecture"] for record in mine} == {"resnet9"}
    unread = [record["labels"] for record in sheet.records if record["status"] == "not checked"]
    assert unread == [4000, 40]
    for form in FORMATS:
        assert "13.81" in rendered(sheet, form)


def test_ours_are_found_by_their_settings(tmp_path: Path) -> None:
    errors = {"student": 4.8, "ema": 4.7, "fast_swa": 4.5}
    for seed in (10, 11):
        write(tmp_path, FOUR, seed, {name: error + 0.1 * (seed - 10) for name, error in errors.items()})
    write(tmp_path, FOUR, 12, dict.fromkeys(errors, 1.0), optimiser={"lr": 0.1})
    write(tmp_path, FOUR, 13, dict.fromkeys(errors, 1.0), epoch=45)
    write(tmp_path, FOUR, 14, dict.fromkeys(errors, 1.0), split={"validation": 5000})
    write(tmp_path, "cifar10-fixmatch-4k-quick", 10, {"fast_swa": 5.3})
    write(tmp_path, "cifar10-fixmatch-40", 10, {"fast_swa": 9.0}, method={"name": "freematch"})
    write(tmp_path, "cifar10-fixmatch-250", 10, {"ema": 6.0}, model={"name": "wrn-28-2"})
    sheet = table("frontier", tmp_path)
    assert ours(sheet) == {
        (FOUR, "fixmatch", "resnet9", "student"): (4.85, 2),
        (FOUR, "fixmatch", "resnet9", "ema"): (4.75, 2),
        (FOUR, "fixmatch", "resnet9", "fast-swa"): (4.55, 2),
        ("cifar10-fixmatch-4k-quick", "fixmatch", "resnet9", "fast-swa"): (5.3, 1),
        ("cifar10-fixmatch-40", "freematch", "resnet9", "fast-swa"): (9.0, 1),
        ("cifar10-fixmatch-250", "fixmatch", "wrn-28-2", "ema"): (6.0, 1),
    }
    (row,) = [row for row in sheet.rows if row[1] == f"ours, {FOUR}, fast-SWA"]
    assert row[2:] == ("resnet9", "125,000", "4.55 ± 0.07 (2)", "6.5 min., NVIDIA H200")


def test_a_recipe_of_another_width_says_so_and_other_networks_are_their_own(tmp_path: Path) -> None:
    hundred = "cifar100-fixmatch-10k"
    write(tmp_path, hundred, 10, {"student": 26.0, "fast_swa": 25.0})
    layer = recipe_layer(hundred)
    assert layer["model"].pop("width") == 128
    other = build_config(layer, {"seed": 10, "model": {"name": "wrn-28-8"}})
    record = {"config": to_dict(other), "metrics": [{"epoch": 55, "error": {"fast_swa": 24.0}, "seconds": 1.0}]}
    (tmp_path / "other.json").write_text(json.dumps(record), "utf-8")
    found = {(row[2], row[4]) for row in table("frontier", tmp_path).rows if row[1].endswith("10k, fast-SWA")}
    assert found == {("resnet9, width 128", "25.00 (1)"), ("wrn-28-8", "24.00 (1)")}


def test_the_command_shows_it(tmp_path: Path, command: Command) -> None:
    write(tmp_path, FOUR, 10, {"student": 4.8, "ema": 4.7, "fast_swa": 4.5})
    answer = command("table", "frontier", "--results", tmp_path)
    assert answer.code == 0
    (line,) = [line for line in answer.out.splitlines() if "4.50 (1)" in line]
    assert line.split()[-4:] == ["6.5", "min.,", "NVIDIA", "H200"]
    narrow = command("table", "frontier", "--labels", "40", "--results", tmp_path, "--json")
    assert {cell["labels"] for cell in json.loads(narrow.out)["cells"]} == {40}
    measured = command("table", "frontier", "--measured", "--methods", "fixmatch", "--results", tmp_path, "--json")
    assert [cell["our_error"] for cell in json.loads(measured.out)["cells"]] == [4.8, 4.7, 4.5]
    refused = command("table", "frontier", "--labels", "400", "--results", tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "fastswa: frontier has no row with 400 labels; there are: 40, 250, 4000, 10000.\n"


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (9, 2.2622), (100, 1.9840)])
def test_the_t_distribution_as_tables_print_it(freedom: int, value: float) -> None:
    assert t_quantile(freedom) == pytest.approx(value, abs=1e-4)


def test_an_interval_by_hand() -> None:
    """Mean -0.2, standard deviation 0.1 of three: half of the interval is 4.3027 * 0.1 / sqrt(3)."""
    found = Difference((-0.1, -0.2, -0.3))
    assert found.interval is not None
    assert found.mean == pytest.approx(-0.2)
    assert found.interval == pytest.approx((-0.2 - 0.43027 / math.sqrt(3), -0.2 + 0.43027 / math.sqrt(3)), abs=1e-5)
    assert found.better == 3
    assert Difference((0.1,)).interval is None


def test_runs_are_paired_with_themselves(tmp_path: Path) -> None:
    for seed, gain in ((10, 0.1), (11, 0.2), (12, 0.3)):
        # The seeds differ by points, what averaging does by tenths.
        student = 5.0 + seed
        write(tmp_path, FOUR, seed, {"student": student, "ema": student + 0.05, "fast_swa": student - gain})
    write(tmp_path, "cifar10-fixmatch-250", 10, {"student": 6.0, "ema": 5.9, "fast_swa": 6.1})
    write(tmp_path, FOUR, 13, {"student": 9.0, "ema": 1.0, "fast_swa": 1.0}, epoch=45)  # stopped early
    write(tmp_path, FOUR, 14, {"student": 9.0, "fast_swa": 1.0})  # no EMA measured
    write(tmp_path, "digits-mean-teacher", 1, {"student": 9.0, "teacher": 1.0, "fast_swa": 1.0})
    trial = {"split": {"validation": 5000}}
    write(tmp_path, FOUR, 101, {"student": 9.0, "ema": 1.0, "fast_swa": 1.0}, **trial)
    part = write(tmp_path, FOUR, 15, {"student": 9.0, "ema": 1.0, "fast_swa": 1.0})
    record = json.loads(part.read_text("utf-8"))
    part.write_text(json.dumps(record | {"environment": {"images": {"train": 500, "test": 100}}}), "utf-8")
    assert len(paired_runs(load_results(tmp_path))) == 4
    records = {
        (record["setting"], record["first"], record["second"]): record for record in table("paired", tmp_path).records
    }
    four = "CIFAR-10, 4,000 labels, FixMatch, resnet9, 125,000 steps"
    mine = records[(four, "fast-swa", "student")]
    assert (mine["runs"], mine["difference"], mine["lower_in"]) == (3, -0.2, 3)
    assert (mine["low"], mine["high"]) == (pytest.approx(-0.4484, abs=1e-4), pytest.approx(0.0484, abs=1e-4))
    assert records[(four, "fast-swa", "ema")]["difference"] == pytest.approx(-0.25)
    every = records[("all runs", "fast-swa", "student")]
    assert (every["runs"], every["lower_in"]) == (4, 3)
    assert every["difference"] == pytest.approx((-0.1 - 0.2 - 0.3 + 0.1) / 4)
    assert records[("all runs", "ema", "student")]["difference"] == pytest.approx((3 * 0.05 - 0.1) / 4)


def test_runs_that_repeat_a_seed_are_one_and_other_lengths_and_widths_other_settings(tmp_path: Path) -> None:
    for gain in (0.1, 0.3):
        write(tmp_path, FOUR, 10, {"student": 5.0, "ema": 5.0, "fast_swa": 5.0 - gain})
    write(tmp_path, "cifar10-fixmatch-4k-quick", 10, {"student": 5.0, "ema": 5.0, "fast_swa": 5.0})
    write(tmp_path, FOUR, 11, {"student": 5.0, "ema": 5.0, "fast_swa": 5.0}, model={"width": 96})
    found = {run.setting: run.errors["fast-swa"] for run in paired_runs(load_results(tmp_path))}
    assert found == {
        "CIFAR-10, 4,000 labels, FixMatch, resnet9, 125,000 steps": pytest.approx(4.8),
        "CIFAR-10, 4,000 labels, FixMatch, resnet9, 44,000 steps": 5.0,
        "CIFAR-10, 4,000 labels, FixMatch, resnet9, width 96, 125,000 steps": 5.0,
    }


def test_a_seed_with_other_settings_is_no_repeat_and_corrected_epochs_are_counted(tmp_path: Path) -> None:
    errors = {"student": 5.0, "ema": 5.0, "fast_swa": 4.0}
    write(tmp_path, FOUR, 10, errors)
    write(tmp_path, FOUR, 10, {**errors, "fast_swa": 5.0}, optimiser={"lr": 0.01})
    assert [run.errors["fast-swa"] for run in paired_runs(load_results(tmp_path))] == [4.0, 5.0]
    write(tmp_path, FOUR, 11, errors, batch={"pace": [[1, 1]]})
    assert paired_runs(load_results(tmp_path))[-1].setting.endswith(", 1,124 steps")


def test_averages_are_compared_with_the_student_of_refreshed_statistics_where_a_run_has_it(tmp_path: Path) -> None:
    write(tmp_path, FOUR, 10, {"student": 5.0, "last": 4.8, "ema": 4.9, "fast_swa": 4.6})
    write(tmp_path, FOUR, 11, {"student": 5.0, "last": 4.9, "ema": 4.6, "fast_swa": 4.5})
    write(tmp_path, FOUR, 12, {"student": 5.0, "ema": 4.0, "fast_swa": 4.0})  # of a time without it
    records = {(record["first"], record["second"]): record for record in table("paired", tmp_path).records[-5:]}
    assert {pair: (record["runs"], record["difference"]) for pair, record in records.items()} == {
        ("fast-swa", "student"): (3, pytest.approx(-1.9 / 3, abs=1e-3)),
        ("fast-swa", "last"): (2, pytest.approx(-0.3)),
        ("fast-swa", "ema"): (3, pytest.approx(-0.4 / 3, abs=1e-3)),
        ("ema", "student"): (3, pytest.approx(-0.5)),
        ("ema", "last"): (2, pytest.approx(-0.1)),
    }
    assert records["fast-swa", "last"]["seeds"] == [10, 11]
    assert records["ema", "last"]["lower_in"] == 1


def test_without_runs_nothing_is_claimed() -> None:
    sheet = table("paired", None)
    assert [row[0] for row in sheet.rows] == ["all runs"] * 5
    assert {record["status"] for record in sheet.records} == {"not measured"}
    assert all(record["difference"] is None for record in sheet.records)
    for form in FORMATS:
        assert rendered(sheet, form)
