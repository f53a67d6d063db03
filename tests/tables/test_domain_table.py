"""The table of domain adaptation: the paper's figures, the recipes behind ours, and which runs are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Command
from fastswa.config import Config, to_dict
from fastswa.layers import build_config, merge, recipe_layer
from fastswa.tables.domains import domain_runs, entries
from fastswa.tables.published import published
from fastswa.tables.table import table

CIFAR = "cifar10-stl10-self-ensembling"


def config_of(name: str) -> Config:
    return build_config(recipe_layer(name))


def write(folder: Path, name: str, seed: int, errors: dict[str, float], epoch: int = 600, **changes: Any) -> None:
    """A file as a kept run is: errors of networks at one epoch."""
    settings = to_dict(build_config(merge(domain_runs()[name].layer(), {"seed": seed}, changes)))
    settings["data"].pop("root")
    settings["split"].setdefault("validation", 0)
    metrics = [{"epoch": epoch, "error": errors, "averaged": {}, "seconds": 60.0 * epoch}]
    # As a run on all images of its pair counts them.
    train, test = {"cifar10": (45_000, 7_200), "mnist": (60_000, 2_007), "usps": (7_291, 10_000)}[name.split("-")[0]]
    place = {"images": {"train": train, "test": test}}
    (folder / f"{name}-{seed}-{len(list(folder.iterdir()))}.json").write_text(
        json.dumps({"seed": seed, "environment": place, "config": settings, "metrics": metrics}), "utf-8"
    )


def test_the_papers_cells_are_there_in_its_order() -> None:
    shown = [entry.error for entry in entries() if entry.pair.target == "stl10" and entry.error is not None]
    # The paper's own figure without an average stands beside the teacher and the student.
    assert shown == [20.0, 19.9, 18.1, 18.1, 17.1, 16.8]
    assert [cell.error for cell in published("domain-adaptation")] == [20.0, 19.9, 18.1, 17.1, 16.8]


def test_settings_are_those_of_the_experiment() -> None:
    config = config_of(CIFAR)
    assert (config.data.source, config.data.target) == ("cifar10", "stl10")
    assert (config.batch.size, config.batch.labelled) == (512, 256)
    augment = config.augment
    assert (augment.translate, augment.flip, augment.warp, augment.affine, augment.noise, augment.standardise) == (
        *(2, True, True, 0.1, 0.1, True),
    )
    model = config.model
    assert (model.name, model.heads, model.weight_norm, model.activation) == ("cnn13", 1, False, "relu")
    method = config.method
    assert (method.name, method.weight, method.ramp, method.threshold, method.teacher_decay) == (
        *("self-ensembling", 3, 0, 0.968, 0.99),
    )
    assert (config.optimiser.name, config.optimiser.lr, config.optimiser.weight_decay) == ("sgd", 0.1, 2e-4)
    schedule = config.schedule
    assert (schedule.epochs, schedule.length, schedule.period, schedule.cycle) == (600, 550, 600, 50)
    averages = {name: (average.kind, average.start, average.every) for name, average in config.averaging.items()}
    assert averages == {"fast_swa": ("fast-swa", 500, 1), "every_step": ("fast-swa", 500, 0)}


@pytest.mark.parametrize(
    "name", ["cifar10-stl10", "mnist-usps", "usps-mnist", "mnist-usps-margin", "usps-margin-mnist"]
)
def test_source_only_is_the_same_without_the_targets_half_of_a_batch(name: str) -> None:
    with_target, without = config_of(f"{name}-self-ensembling"), config_of(f"{name}-source-only")
    assert without.method.name == "supervised"
    assert with_target.batch.labelled == without.batch.labelled == without.batch.size == 256
    same = {"method": None, "batch": None}
    assert without.model_copy(update=same) == with_target.model_copy(update=same)


def test_ours_are_found_by_their_settings_and_set_beside(tmp_path: Path) -> None:
    errors = {"student": 18.6, "teacher": 17.7, "fast_swa": 17.2, "every_step": 17.0}
    write(tmp_path, CIFAR, 1, errors)
    write(tmp_path, CIFAR, 2, {name: error - 0.2 for name, error in errors.items()})
    write(tmp_path, "cifar10-stl10-source-only", 1, {"student": 24.0, "fast_swa": 23.5, "every_step": 23.0})
    write(tmp_path, CIFAR, 3, {"teacher": 1.0}, method={"threshold": 0.9})
    write(tmp_path, CIFAR, 4, {"teacher": 1.0}, epoch=300)
    sheet = table("domain-adaptation", tmp_path)
    found = {
        (record["method"], record["network"]): (record["our_error"], record["difference"], len(record["seeds"]))
        for record in sheet.records
        if record["our_error"] is not None
    }
    assert found == {
        ("source-only", "student"): (24.0, None, 1),
        ("self-ensembling", "teacher"): (17.6, -0.5, 2),
        ("self-ensembling", "student"): (18.5, None, 2),
        ("self-ensembling", "fast_swa"): (17.1, pytest.approx(0.0, abs=1e-9), 2),
        ("self-ensembling", "every_step"): (16.9, 0.1, 2),
    }
    assert sheet.records[1]["status"] == "quoted"


def test_the_command_shows_it(tmp_path: Path, command: Command) -> None:
    write(tmp_path, "mnist-usps-self-ensembling", 1, {"teacher": 1.9, "student": 2.1}, epoch=60)
    answer = command("table", "domain-adaptation", "--results", tmp_path)
    assert answer.code == 0
    assert "VADA, Shu 2018" in answer.out
    (line,) = [line for line in answer.out.splitlines() if "1.90 (1)" in line]
    assert line.split() == ["SE,", "teacher", "1.74", "1.90", "(1)", "+0.16", "60.0"]
