"""Sweeps of the tables that are not cells by labels and method: each offers its recipes, the sweep is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command
from fastswa.config import to_dict
from fastswa.data.sources.digits import load_digits
from fastswa.layers import build_config, merge, recipe_layer, recipe_names
from fastswa.tables import domains as domain_table
from fastswa.tables import frontier, measured
from fastswa.tables.domains import DomainRun
from fastswa.tables.runs import runs_of, swept_tables
from fastswa.tables.soa import ENTRIES
from fastswa.tables.table import table_names
from tiny_runs import TINY, metrics

SHORT = {key: TINY[key] for key in ("batch", "schedule", "evaluation", "checkpoint", "device")}
FREE = "cifar10-fixmatch-250-freematch"
TO_USPS, TO_MNIST, TO_STL = (f"{pair}-self-ensembling" for pair in ("mnist-usps", "usps-mnist", "cifar10-stl10"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_digits(root: Path) -> None:
    """The embedded digits under the names and in the sizes of MNIST and USPS."""
    digits = load_digits(root)
    assert digits.test is not None
    for name, side in (("mnist", 28), ("usps", 16)):
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "SUBSET").touch()
        arrays = {}
        for part, images in (("train", digits.train), ("test", digits.test)):
            enlarged = np.repeat(np.repeat(images.pixels[:200, 0], 4, axis=1), 4, axis=2)
            arrays |= {f"x_{part}": enlarged[:, 2:30, 2:30] if side == 28 else enlarged[:, ::2, ::2]}
            arrays |= {f"y_{part}": images.labels[:200]}
        np.savez(folder / f"{name}.npz", **arrays)


@pytest.fixture
def domains(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pairs of digits with a tiny network for two epochs of three steps; there is no CIFAR-10."""
    plain = DomainRun.layer
    for name, epochs in (TINY["schedule"] | {"epochs": 2}).items():
        monkeypatch.setitem(domain_table._DIGITS, name, epochs)
    own = {name: SHORT[name] for name in ("evaluation", "checkpoint", "device")}
    own |= {"batch": {"size": 20, "labelled": 10, "steps": 3}, "model": {"name": "small", "heads": 1, "width": 4}}
    monkeypatch.setattr(DomainRun, "layer", lambda run: plain(run) | own)
    monkeypatch.setattr(measured, "PUBLISHED_IMAGES", {})  # these sets are parts of theirs
    write_digits(home / "data")
    return home


@pytest.fixture
def tiny_frontier(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The frontier's recipes on the embedded digits, with as many labels as they say."""

    def layer(recipe: str) -> dict[str, Any]:
        own = {"split": recipe_layer(recipe)["split"]}
        short = {key: value for key, value in SHORT.items() if key != "schedule"}
        return merge(recipe_layer("digits-fixmatch"), short, {"model": {"width": 4}, "schedule": {"steps": 6}}, own)

    monkeypatch.setattr(frontier, "recipe_layer", layer)
    monkeypatch.setattr(frontier, "MODELS", ("small", "resnet9"))
    frontier.frontier_runs.cache_clear()
    yield home
    frontier.frontier_runs.cache_clear()


def test_every_table_of_recipes_offers_them() -> None:
    """All but `paired`, which has no rows of its own; a run that is no variation is its recipe, but for its length."""
    assert {*table_names()} - {*swept_tables()} == {"paired"}
    for table in swept_tables():
        runs = runs_of(table)
        assert len({run.name for run in runs}) == len(runs) > 0
        assert {run.recipe for run in runs} <= {*recipe_names()}
        for run in runs:
            settings = merge(recipe_layer(run.recipe), {"method": {"name": run.layer["method"]["name"]}})
            ours, theirs = to_dict(build_config(run.layer)), to_dict(build_config(settings))
            assert ours.pop("schedule") | {"epochs": 0} == theirs.pop("schedule") | {"epochs": 0}
            assert ours == theirs, run.name
            assert run.varied == (run.layer["method"]["name"] != recipe_layer(run.recipe)["method"]["name"])


@pytest.mark.parametrize(
    ("table", "name", "epochs"),
    [
        ("cifar10-cnn", "cifar10-cnn-mean-teacher-4k", 240),
        ("cifar10-cnn", "cifar10-cnn-pi-4k", 240),
        ("soa", "cifar10-cnn-mean-teacher-4k", 240),
        ("cifar10-cnn", "cifar10-cnn-pi-1k", 240),
        ("cifar10-cnn", "cifar10-cnn-vat-4k", 180),
        ("cifar10-shake-long", "cifar10-shake-pi-4k-long", 1700),
        ("cifar100-shake-short", "cifar100-shake-mean-teacher-10k-short", 300),
        ("averaging-often", "cifar10-cnn-mean-teacher-often-4k", 240),
        ("frontier", "cifar10-fixmatch-4k", 125),
    ],
)
def test_how_far_a_sweep_trains(table: str, name: str, epochs: int) -> None:
    """To what the table prints; the recipes with 4k labels stop before that when trained by themselves."""
    (run,) = [run for run in runs_of(table) if run.name == name]
    config = build_config(run.layer)
    assert config.schedule.epochs == epochs
    assert epochs in {epoch for _, epoch in run.figures}
    assert {network for network, _ in run.figures} <= {"student", "teacher", *config.averaging}
    assert all(epoch % config.evaluation.every == 0 or epoch == epochs for _, epoch in run.figures)


def test_a_rows_figures_are_the_tables_lines() -> None:
    (run,) = [run for run in runs_of("cifar10-cnn") if run.name == "cifar10-cnn-pi-4k"]
    first = {("student", 180), ("ema", 180), ("fast_swa", 180)}
    assert {*run.figures} == first | {(name, epoch) for name in ("swa", "fast_swa") for epoch in (240, 480, 1200)}


def test_the_summary_offers_the_runs_of_its_own_cells() -> None:
    runs = runs_of("soa")
    assert len(runs) == len(ENTRIES)
    assert (runs[0].name, runs[8].name) == ("cifar10-cnn-mean-teacher-1k", "cifar10-shake-pi-4k-long")


def test_domain_adaptation_is_trained_kept_and_shown(domains: Path, command: Command) -> None:
    words = ("sweep", "domain-adaptation", "--recipes", f"{TO_USPS},{TO_MNIST}", "--seeds", "3,4")
    answer = command(*words)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        f"{TO_USPS}  seed 3    to epoch 2    done        {TO_USPS}-seed-3.json",
        f"{TO_USPS}  seed 4    to epoch 2    done        {TO_USPS}-seed-4.json",
        f"{TO_MNIST}  seed 3    to epoch 2    done        {TO_MNIST}-seed-3.json",
        f"{TO_MNIST}  seed 4    to epoch 2    done        {TO_MNIST}-seed-4.json",
        "4 runs: 4 done",
    ]
    files = {path: path.stat().st_mtime_ns for path in domains.rglob("*.json*")}
    assert command(*words).out == answer.out
    assert {path: path.stat().st_mtime_ns for path in domains.rglob("*.json*")} == files
    kept = [json.loads((domains / "results" / f"{TO_USPS}-seed-{seed}.json").read_text()) for seed in (3, 4)]
    data = kept[0]["config"]["data"]
    assert (data["source"], data["target"]) == ("mnist", "usps")
    assert [line["error"] for line in kept[1]["metrics"]] == [
        line["error"] for line in metrics(domains / "runs" / "sweep" / TO_USPS / "seed-4")
    ]
    shown = json.loads(command("table", "domain-adaptation", "--json").out)["cells"]
    teachers = {f"{record['source']}-{record['target']}": record for record in shown if record["network"] == "teacher"}
    trained = {pair: record["seeds"] for pair, record in teachers.items()}
    assert {pair for pair, seeds in trained.items() if seeds == [3, 4]} == {"mnist-usps", "usps-mnist"}
    assert {pair for pair, seeds in trained.items() if seeds == []} == {
        *("cifar10-stl10", "mnist-usps-margin", "usps-margin-mnist")
    }
    mean = sum(one["metrics"][-1]["error"]["teacher"] for one in kept) / 2
    assert teachers["mnist-usps"]["our_error"] == pytest.approx(mean, abs=1e-4)
    per_step = [record["status"] for record in shown if record["network"] == "every_step"]
    assert per_step == ["not measured", *["measured"] * 2, *["not measured"] * 2]


def test_a_pair_without_its_images_fails_alone_and_a_stopped_one_goes_on(domains: Path, command: Command) -> None:
    words = ("sweep", "domain-adaptation", "--recipes", f"{TO_STL},{TO_USPS},{TO_MNIST}", "--seeds", "3")
    answer = command(*words, "--epochs", "1")
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith(f"{TO_STL}  seed 3    to epoch 1    failed      there is no CIFAR-10 ")
    assert lines[-1] == "3 runs: 1 failed, 2 done"
    further = command(*words, "--dry-run").out.splitlines()
    assert further[0].split() == [TO_STL, "seed", "3", "to", "epoch", "600", "missing"]
    assert further[1].startswith(f"{TO_USPS}     seed 3    to epoch 2    begun       at epoch 1 of 2; ")
    assert further[1].endswith(f"{TO_USPS}-seed-3.json lacks teacher, student, fast_swa, every_step at epoch 2")
    assert command(*words).out.splitlines()[-1] == "3 runs: 1 failed, 2 done"
    run = domains / "runs" / "sweep" / TO_USPS / "seed-3"
    assert [line["epoch"] for line in metrics(run)] == [1, 2]
    other = ("--recipes", TO_USPS, "--out", domains / "whole", "--results", domains / "elsewhere")
    assert command(*words, *other).code == 0
    assert metrics(run) == metrics(domains / "whole" / TO_USPS / "seed-3")


def test_the_frontier_trains_its_recipes_and_other_methods_where_named(tiny_frontier: Path, command: Command) -> None:
    words = ("sweep", "frontier", "--labels", "250,40", "--seeds", "10")
    planned = command(*words, "--dry-run").out.splitlines()
    assert [line.split()[0] for line in planned[:-1]] == ["cifar10-fixmatch-250", "cifar10-fixmatch-40"]
    words = ("sweep", "frontier", "--labels", "250", "--methods", "freematch,fixmatch", "--seeds", "10")
    answer = command(*words)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        f"{FREE}  seed 10   to epoch 2    done        {FREE}-seed-10.json",
        "cifar10-fixmatch-250            seed 10   to epoch 2    done        cifar10-fixmatch-250-seed-10.json",
        "2 runs: 2 done",
    ]
    assert command(*words).out == answer.out
    facts = json.loads(command(*words, "--dry-run", "--json").out)
    assert [(fact["recipe"], fact["method"], fact["status"]) for fact in facts] == [
        ("cifar10-fixmatch-250", "freematch", "done"),
        ("cifar10-fixmatch-250", "fixmatch", "done"),
    ]
    kept = json.loads((tiny_frontier / "results" / "cifar10-fixmatch-250-freematch-seed-10.json").read_text())
    assert (kept["config"]["method"]["name"], kept["config"]["split"]["labels"]) == ("freematch", 250)
    assert (kept["config"]["model"]["name"], kept["epochs"]) == ("small", 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["domain-adaption"], "no runs belong to a table 'domain-adaption'; did you mean domain-adaptation?"),
        (
            ["domain-adaptation", "--labels", "4000"],
            "domain-adaptation does not tell runs apart by their labels; leave --labels out.",
        ),
        (["domain-adaptation", "--methods", "dann"], "no runs of 'dann'; there are: self-ensembling, source-only."),
        (["domain-adaptation", "--recipes", "mnist-usps"], "has no recipe 'mnist-usps'; did you mean mnist-usps-"),
        (["frontier", "--methods", "mixmatch"], "frontier has no runs of 'mixmatch'; did you mean fixmatch?"),
        (["frontier", "--labels", "400"], "frontier has no row with 400 labels; there are: 40, 250, 4000, 10000."),
        (["frontier", "--model", "wrn-28-2"], "model.name would make other runs than the table's"),
        (
            ["frontier", "--recipes", "cifar10-fixmatch-40", "--labels", "250"],
            "frontier has no run with these labels, methods and recipes together.",
        ),
    ],
)
def test_wrong_requests_are_refused(home: Path, command: Command, words: list[str], sentence: str) -> None:
    answer = command("sweep", *words)
    assert answer.code == 2
    assert sentence in answer.err
    assert not (home / "runs").exists()
