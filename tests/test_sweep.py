"""Sweeps: the missing runs of a table, several at once, what is done left alone, what fails reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import Command
from fastswa.config import to_dict
from fastswa.errors import RequestError
from fastswa.layers import build_config, merge, recipe_layer
from fastswa.results import keep_record, record
from fastswa.sweep import Cell, Sweep, at_once, plan_sweep
from fastswa.tables import measured
from fastswa.tables import runs as table_runs
from fastswa.tables.rows import Row, all_rows
from fastswa.training import groups
from fastswa.training import run as runs
from fastswa.training.lanes import Lanes
from fastswa.training.run import RunResult
from tiny_runs import TINY, StoppingWatcher, assert_same_run, metrics, train

MT, PI = "cifar10-cnn-mean-teacher-4k", "cifar10-cnn-pi-4k"


@pytest.fixture(autouse=True)
def _tiny_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every row of the tables as a run of a quarter of a second: its method, a few labels, tiny in the rest."""

    def layer(row: Row) -> dict[str, Any]:
        labels = {1000: 20, 4000: 50}.get(row.labels, 80)
        own = {"split": {"labels": labels}, "method": {"name": row.method}, "schedule": {"epochs": 2}}
        tiny = {key: value for key, value in TINY.items() if key != "seed"}
        return merge(recipe_layer("digits-mean-teacher"), tiny, own)

    caches = (measured.recipe_config, measured._recipe_settings)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(Row, "layer", layer)
    monkeypatch.setattr(Row, "swept", 2)
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cells_of(home: Path, seeds: Sequence[int] = (3, 4), **options: Any) -> list[Cell]:
    options = {"labels": [4000], "methods": ["mean-teacher"], **options}
    return plan_sweep("cifar10-cnn", seeds=seeds, out=home / "runs", results=home / "results", **options)


def sweep(home: Path, cells: list[Cell], together: int = 1, **options: Any) -> tuple[list[Cell], list[str]]:
    said: list[str] = []
    options = {"changes": {}, "watch": lambda cell: StoppingWatcher(), "stopping": lambda: False, **options}
    return Sweep(cells, home / "results", together, say=said.append, **options).run(), said


def statuses(cells: list[Cell]) -> list[tuple[int, str]]:
    return [(cell.seed, cell.status) for cell in cells]


def test_missing_runs_are_trained_and_kept_and_then_left_alone(home: Path, command: Command) -> None:
    words = ("sweep", "cifar10-cnn", "--labels", "4000", "--methods", "pi,mean-teacher", "--seeds", "3,4")
    answer = command(*words)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        "cifar10-cnn-pi-4k            seed 3    to epoch 2    done        cifar10-cnn-pi-4k-seed-3.json",
        "cifar10-cnn-pi-4k            seed 4    to epoch 2    done        cifar10-cnn-pi-4k-seed-4.json",
        "cifar10-cnn-mean-teacher-4k  seed 3    to epoch 2    done        cifar10-cnn-mean-teacher-4k-seed-3.json",
        "cifar10-cnn-mean-teacher-4k  seed 4    to epoch 2    done        cifar10-cnn-mean-teacher-4k-seed-4.json",
        "4 runs: 4 done",
    ]
    kept = json.loads((home / "results" / f"{PI}-seed-4.json").read_text())
    assert (kept["seed"], kept["epochs"], kept["config"]["method"]["name"]) == (4, 2, "pi")
    assert [line["error"] for line in kept["metrics"]] == [
        line["error"] for line in metrics(home / "runs" / "sweep" / PI / "seed-4")
    ]
    files = {path: path.stat().st_mtime_ns for path in home.rglob("*.json*")}
    again = command(*words)
    assert (again.code, again.out) == (0, answer.out)
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*.json*")} == files


def test_a_dry_run_says_how_each_cell_stands_and_does_nothing(home: Path, command: Command) -> None:
    sweep(home, cells_of(home, seeds=(3,)))
    partly = cells_of(home, seeds=(4,))
    sweep(home, partly, watch=lambda cell: StoppingWatcher(stop=4))
    words = ("sweep", "cifar10-cnn", "--labels", "4000", "--methods", "mean-teacher", "--out", home / "runs")
    answer = command(*words, "--seeds", "3,4,5", "--dry-run")
    assert answer.out.splitlines() == [
        f"{MT}  seed 3    to epoch 2    done        {MT}-seed-3.json",
        f"{MT}  seed 4    to epoch 2    begun       at epoch 1 of 2",
        f"{MT}  seed 5    to epoch 2    missing",
        "3 runs: 1 done, 1 begun, 1 missing",
    ]
    facts = json.loads(command(*words, "--dry-run", "--json").out)
    assert [(fact["seed"], fact["status"]) for fact in facts] == [(10, "missing"), (11, "missing"), (12, "missing")]
    assert not (home / "runs" / MT / "seed-5").exists()


def test_stopped_runs_go_on_and_end_as_if_never_stopped(home: Path, tmp_path: Path) -> None:
    ended, said = sweep(home, cells_of(home), watch=lambda cell: StoppingWatcher(stop=4))
    assert [(cell.status, cell.note) for cell in ended] == [("stopped", "after epoch 1 of 2")] * 2
    assert not (home / "results").exists()
    ended, _ = sweep(home, cells_of(home))
    assert statuses(ended) == [(3, "done"), (4, "done")]
    other = tmp_path / "other"
    sweep(other, cells_of(other))
    assert_same_run(home / "runs" / MT / "seed-4", other / "runs" / MT / "seed-4")
    assert said == []


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that show the student at epoch 1, and student and EMA at epoch 2."""
    shown = [("student", 1), ("student", 2), ("ema", 2)]
    monkeypatch.setattr(table_runs, "_shown", lambda table: dict.fromkeys(all_rows().values(), shown))


def kept_run(home: Path, seed: int, *changes: dict[str, Any]) -> Path:
    """The record of a run of the row, with other settings."""
    (cell,) = cells_of(home, seeds=(seed,))
    config = build_config(to_dict(cell.config), *changes)
    if any("averaging" in change for change in changes):
        config = config.model_copy(update={"averaging": {"swa": config.averaging["swa"]}})
    train(config, cell.path)
    return keep_record(cell.path, home / "results", cell.name)


@pytest.mark.usefixtures("figures")
def test_a_record_without_an_average_of_the_table_is_not_done(home: Path) -> None:
    kept_run(home, 3, {"averaging": {}})
    (cell,) = cells_of(home, seeds=(3,))
    assert (cell.status, cell.note) == ("begun", f"at epoch 2 of 2; {MT}-seed-3.json lacks ema at epoch 2")
    (ended,), _ = sweep(home, [cell])
    sentence = f"the run in {cell.path} cannot give ema at epoch 2 any more; move it away to train it anew."
    assert (ended.status, ended.note) == ("failed", sentence)
    cell.path.rename(home / "away")
    (cell,) = cells_of(home, seeds=(3,))
    assert (cell.status, cell.note) == ("missing", f"{MT}-seed-3.json lacks ema at epoch 2")
    (ended,), _ = sweep(home, [cell])
    assert (ended.status, ended.note) == ("done", f"{MT}-seed-3-2.json")
    assert [(cell.status, cell.note) for cell in cells_of(home, seeds=(3,))] == [("done", f"{MT}-seed-3-2.json")]


@pytest.mark.usefixtures("figures")
def test_a_record_evaluated_at_other_epochs_is_not_done(home: Path) -> None:
    kept_run(home, 3, {"evaluation": {"every": 2}})
    (cell,) = cells_of(home, seeds=(3,))
    assert (cell.status, cell.note) == ("begun", f"at epoch 2 of 2; {MT}-seed-3.json lacks student at epoch 1")
    with pytest.raises(RequestError, match=f"evaluation.every 2 passes over epoch 1, which the table shows of {MT}"):
        cells_of(home, seeds=(4,), changes={"evaluation": {"every": "2"}})


@pytest.mark.usefixtures("figures")
def test_several_records_of_a_seed_make_up_a_run(home: Path) -> None:
    """One has no EMA, one was not evaluated at epoch 1: between them they have all."""
    kept_run(home, 3, {"averaging": {}})
    (home / "runs" / MT / "seed-3").rename(home / "away")
    kept_run(home, 3, {"evaluation": {"every": 2}})
    (cell,) = cells_of(home, seeds=(3,))
    assert (cell.status, cell.note) == ("done", f"{MT}-seed-3-2.json and {MT}-seed-3.json")


def test_no_run_is_started_once_it_is_time_to_stop(home: Path) -> None:
    asked = iter([False, True, True])
    ended, _ = sweep(home, cells_of(home, seeds=(3, 4, 5)), stopping=lambda: next(asked))
    assert statuses(ended) == [(3, "done"), (4, "missing"), (5, "missing")]


def test_more_epochs_extend_the_same_runs_and_their_records(home: Path) -> None:
    sweep(home, cells_of(home))
    longer = {"schedule": {"epochs": "4"}}
    cells = cells_of(home, changes=longer)
    assert [(cell.status, cell.epochs) for cell in cells] == [("begun", 4)] * 2
    sweep(home, cells, changes=longer)
    assert sorted(path.name for path in (home / "results").iterdir()) == [f"{MT}-seed-{n}.json" for n in (3, 4)]
    assert len(metrics(home / "runs" / MT / "seed-3")) == 4
    assert statuses(cells_of(home, changes=longer)) == [(3, "done"), (4, "done")]
    assert statuses(cells_of(home)) == [(3, "done"), (4, "done")]  # two epochs are among the four


def test_fewer_epochs_end_a_begun_run_there_and_lose_nothing_that_was_trained(home: Path) -> None:
    longer, shorter = {"schedule": {"epochs": "4"}}, {"schedule": {"epochs": "1"}}
    sweep(home, cells_of(home), changes=longer, watch=lambda cell: StoppingWatcher(stop=4))  # one step into epoch 2
    ended, _ = sweep(home, cells_of(home, seeds=(3,), changes=shorter), changes=shorter)
    assert statuses(ended) == [(3, "done")]
    assert [line["epoch"] for line in metrics(home / "runs" / MT / "seed-3")] == [1, 2]
    ended, _ = sweep(home, cells_of(home, seeds=(4,), changes=longer), changes=longer)
    assert [line["epoch"] for line in metrics(home / "runs" / MT / "seed-4")] == [1, 2, 3, 4]


def test_what_is_damaged_is_not_trained_again_beyond_what_was_asked_for(home: Path) -> None:
    longer, shorter = {"schedule": {"epochs": "4"}}, {"schedule": {"epochs": "1"}}
    sweep(home, cells_of(home, seeds=(3,)), changes=longer, watch=lambda cell: StoppingWatcher(stop=4))
    run = home / "runs" / MT / "seed-3"
    for tensors in (run / "checkpoint").glob("*/tensors.safetensors"):
        tensors.write_bytes(b"garbled")
    ended, _ = sweep(home, cells_of(home, seeds=(3,), changes=shorter), changes=shorter)
    assert statuses(ended) == [(3, "done")]
    assert [line["epoch"] for line in metrics(run)] == [1]


@pytest.mark.parametrize(("device", "asked", "alone", "found"), [
    ("cuda", None, False, 3), ("cuda", None, True, 1), ("cuda", 2, True, 2),
    ("cpu", None, False, 1), ("cpu", 2, True, 1),
])  # fmt: skip
def test_how_many_are_trained_at_a_time(
    home: Path, monkeypatch: pytest.MonkeyPatch, device: str, asked: int | None, alone: bool, found: int
) -> None:
    """Where a table shows a run's time, none runs beside it unless somebody asks for that."""
    compute = SimpleNamespace(device=torch.device(device))
    monkeypatch.setattr("fastswa.sweep.choose_compute", lambda config: compute)
    cells = [replace(cell, run=replace(cell.run, alone=alone)) for cell in cells_of(home)]
    assert at_once(cells, asked) == found
    assert all(run.alone for run in table_runs.runs_of("frontier"))


def test_several_at_once_are_for_gpus(home: Path, command: Command) -> None:
    words = ("--labels", "4000", "--methods", "mean-teacher", "--seeds", "3,4", "--together", "2", "--device", "cpu")
    done = command("sweep", "cifar10-cnn", *words)
    assert done.code == 0
    assert "on a CPU runs are trained one after the other; --together is for GPUs." in done.err
    assert done.out.endswith("2 runs: 2 done\n")


def test_a_record_of_its_name_with_other_settings_is_mentioned(home: Path) -> None:
    sweep(home, cells_of(home, seeds=(3,)))
    kept = home / "results" / f"{MT}-seed-3.json"
    record = json.loads(kept.read_text("utf-8"))
    record["config"]["method"]["weight"] = 7
    kept.write_text(json.dumps(record), "utf-8")
    (cell,) = cells_of(home, seeds=(3,))
    assert cell.note == f"at epoch 2 of 2; {MT}-seed-3.json is another run (method.weight)"
    shutil.rmtree(home / "runs")
    (cell,) = cells_of(home, seeds=(3,))
    assert (cell.status, cell.note) == ("missing", f"{MT}-seed-3.json is another run (method.weight)")


def test_a_dry_run_says_that_a_folder_holds_another_run(home: Path) -> None:
    sweep(home, cells_of(home, seeds=(3,)), watch=lambda cell: StoppingWatcher(stop=2))
    config = home / "runs" / MT / "seed-3" / "config.toml"
    config.write_text(config.read_text().replace("momentum = 0.9", "momentum = 0.8"))
    (cell,) = cells_of(home, seeds=(3,))
    assert cell.note.endswith(f"holds another run than {MT} with seed 3 (optimiser.momentum); move it away")
    config.write_text("[")
    (cell,) = cells_of(home, seeds=(3,))
    assert "config.toml" in cell.note


def test_a_cell_that_fails_is_reported_and_the_others_go_on(home: Path, command: Command) -> None:
    """The folder of seed 3 holds a run with other settings; a bad device setting would stop all."""
    sweep(home, cells_of(home, seeds=(3,)), watch=lambda cell: StoppingWatcher(stop=2))
    config = home / "runs" / MT / "seed-3" / "config.toml"
    config.write_text(config.read_text().replace("momentum = 0.9", "momentum = 0.8"))
    words = ("sweep", "cifar10-cnn", "--labels", "4000", "--methods", "mean-teacher", "--out", home / "runs")
    answer = command(*words, "--seeds", "3,4")
    assert answer.code == 1
    sentence = f"{home / 'runs' / MT / 'seed-3'} holds another run than {MT} with seed 3 (optimiser.momentum)"
    assert f"fastswa: {MT}-seed-3 failed: {sentence}; move it away." in answer.err
    assert answer.out.splitlines() == [
        f"{MT}  seed 3    to epoch 2    failed      {sentence}; move it away.",
        f"{MT}  seed 4    to epoch 2    done        {MT}-seed-4.json",
        "2 runs: 1 failed, 1 done",
    ]


def test_a_run_that_breaks_while_training_leaves_the_others_going(home: Path) -> None:
    class Breaking(StoppingWatcher):
        def should_stop(self) -> bool:
            raise ValueError("a cable was pulled")

    ended, said = sweep(
        home,
        cells_of(home, seeds=(3, 4, 5)),
        together=3,
        watch=lambda cell: Breaking() if cell.seed == 4 else StoppingWatcher(),
    )
    assert statuses(ended) == [(3, "done"), (4, "failed"), (5, "done")]
    assert said == [f"{MT}-seed-4 failed: ValueError: a cable was pulled"]
    ended, _ = sweep(home, cells_of(home, seeds=(3, 4, 5)))
    assert statuses(ended) == [(3, "done"), (4, "done"), (5, "done")]


def test_several_take_turns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Turns(Lanes):
        def __init__(self, compute: Any, beside: Any = None) -> None:
            super().__init__(compute, beside)
            self._cuda = True

        def _lane(self, number: int) -> AbstractContextManager[object]:
            return nullcontext()

    monkeypatch.setattr(runs, "Lanes", Turns)
    ended, _ = sweep(home, cells_of(home, methods=["mean-teacher", "pi"]), together=3)
    assert [(cell.run.name, cell.seed, cell.status) for cell in ended] == [
        *((MT, 3, "done"), (MT, 4, "done"), (PI, 3, "done"), (PI, 4, "done"))
    ]
    together = [
        json.loads((home / "results" / f"{name}-seed-{seed}.json").read_text())["environment"]["together"]
        for name, seed in ((MT, 3), (PI, 3), (PI, 4))
    ]
    assert together == [3, 3, 1]
    alone = home / "alone"
    sweep(alone, cells_of(alone, methods=["mean-teacher", "pi"]))
    assert_same_run(home / "runs" / PI / "seed-3", alone / "runs" / PI / "seed-3")


@pytest.mark.parametrize(
    "short",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_what_does_not_fit_beside_others_is_tried_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, short: RuntimeError
) -> None:
    sizes: list[int] = []
    real = groups.attempt_together

    def small(attempts: Sequence[Any], say: Any, began: float | None) -> list[RunResult | Exception]:
        sizes.append(len(attempts))
        outcomes = real(attempts[:1], say, began=began)
        return [*outcomes, *(short for _ in attempts[1:])]

    monkeypatch.setattr(groups, "attempt_together", small)
    ended, said = sweep(home, cells_of(home, seeds=(3, 4, 5)), together=3)
    assert sizes == [3, 1, 1]
    assert statuses(ended) == [(3, "done"), (4, "done"), (5, "done")]
    assert (
        said[0]
        == f"{home / 'runs' / MT / 'seed-4'} found too little memory beside the others; it is tried again alone."
    )


def test_a_lost_gpu_ends_the_sweep_but_not_its_report(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(groups, "attempt_together", lambda attempts, say, began: [lost for _ in attempts])
    ended, said = sweep(home, cells_of(home, seeds=(3, 4)))
    assert statuses(ended) == [(3, "failed"), (4, "missing")]
    assert said[-1].startswith("the GPU can no longer be used by this process")


def test_a_finished_run_without_a_record_is_only_recorded(home: Path) -> None:
    sweep(home, cells_of(home, seeds=(3,)))
    (home / "results" / f"{MT}-seed-3.json").unlink()
    before = metrics(home / "runs" / MT / "seed-3")
    ended, said = sweep(home, cells_of(home, seeds=(3,)))
    assert statuses(ended) == [(3, "done")]
    assert metrics(home / "runs" / MT / "seed-3") == before
    assert "already reached epoch 2; nothing to do" in said[0]


def test_another_runs_record_is_never_written_over(home: Path) -> None:
    sweep(home, cells_of(home, seeds=(3,)))
    run, kept = home / "runs" / MT / "seed-3", home / "results" / f"{MT}-seed-3.json"
    assert keep_record(run, home / "results", f"{MT}-seed-3") == kept  # the same run again
    theirs = json.loads(kept.read_text())
    theirs["metrics"][0]["error"]["student"] += 1
    kept.write_text(json.dumps(theirs))
    second = keep_record(run, home / "results", f"{MT}-seed-3")
    assert second.name == f"{MT}-seed-3-2.json"
    assert json.loads(kept.read_text()) == theirs
    assert json.loads(second.read_text()) == record(run)


def test_a_record_names_no_place_of_its_machine(home: Path) -> None:
    sweep(home, cells_of(home, seeds=(3,)))
    run = home / "runs" / MT / "seed-3"
    config = run / "config.toml"
    config.write_text(config.read_text().replace('source = "digits"', f'source = "{home}/mine.npz"'))
    config.write_text(config.read_text().replace("[data]", f'[data]\ntarget = "{home}/theirs.npz"'))
    assert str(home) not in json.dumps(record(run))
    data = record(run)["config"]["data"]
    assert (data["source"], data["target"]) == ("mine.npz", "theirs.npz")


def test_rows_come_in_the_order_asked_for(home: Path) -> None:
    cells = cells_of(home, seeds=(3,), labels=[4000, 1000], methods=["pi", "mean-teacher"])
    assert [cell.run.name.removeprefix("cifar10-cnn-") for cell in cells] == [
        *("pi-4k", "mean-teacher-4k", "pi-1k", "mean-teacher-1k")
    ]


def test_a_sweep_without_any_result_says_so(home: Path, command: Command) -> None:
    words = ("sweep", "cifar10-cnn", "--methods", "pi", "--labels", "1000", "--dry-run")
    for options, name in (((), "results"), (("--results", "resluts"), "resluts")):
        sentence = f"there is no folder {name} here, so that nothing counts as measured; --results FOLDER names one."
        answer = command(*words, *options)
        assert (answer.code, answer.err) == (0, f"fastswa: {sentence}\n")
    (home / "results").mkdir()
    assert command(*words).err == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a table; there are: cifar10-cnn, cifar10-shake-short"),
        (["cifar10-cn"], "no runs belong to a table 'cifar10-cn'; did you mean cifar10-cnn?"),
        (["paired"], "no runs belong to a table 'paired'; there are: averaging-often, cifar10-cnn"),
        (["cifar10-cnn", "--epochs", "0"], "schedule.epochs 0 would train nothing; name an epoch to train to."),
        (["cifar10-cnn", "--dry-run", "--stop-after", "-1"], "--stop-after"),
        (["cifar10-cnn", "--methods", "pie"], "cifar10-cnn has no runs of 'pie'; did you mean pi?"),
        (["cifar10-cnn", "--methods", "vada"], "cifar10-cnn has no runs of 'vada'; did you mean vadd?"),
        (["cifar10-cnn", "--labels", "3000"], "cifar10-cnn has no row with 3000 labels; there are: 1000, 2000"),
        (["cifar10-cnn", "--labels", "10000", "--methods", "vat"], "has no run with these labels, methods and recipes"),
        (["cifar10-cnn", "--seeds", "3,3"], "--seeds: a seed is named twice."),
        (["cifar10-cnn", "--optimiser.lr", "1"], "optimiser.lr would make other runs than the table's"),
        (["cifar10-cnn", "--results", __file__], "test_sweep.py is not a folder; name the one that holds results"),
        (["cifar10-cnn", "--together", "0"], "--together: '0' is not a number above zero."),
        (["cifar10-cnn", "--together", "0", "--dry-run"], "--together: '0' is not a number above zero."),
        (["averaging-often", "--labels", "4000"], "averaging-often is one recipe; leave labels, methods and recipes"),
        (
            ["cifar10-cnn", "--recipes", "cifar10-cnn-pi-3k"],
            "no recipe 'cifar10-cnn-pi-3k'; did you mean cifar10-cnn-pi",
        ),
    ],
)
def test_wrong_requests_are_refused(home: Path, command: Command, words: list[str], sentence: str) -> None:
    answer = command("sweep", *words)
    assert answer.code == 2
    assert sentence in answer.err
    assert not (home / "runs").exists()


def test_rows_whose_extra_images_are_not_there_are_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Row.layer
    extra = {"tiny-500k": {"extra": "tiny_images.bin"}}
    extra["tiny-237k"] = {**extra["tiny-500k"], "extra_file": "chosen.txt"}
    monkeypatch.setattr(Row, "layer", lambda row: merge(plain(row), {"data": extra.get(row.extra, {})}))
    options = {"labels": [50000], "methods": ["pi"], "out": home / "runs", "results": home / "results"}
    cells = plan_sweep("cifar100-cnn", seeds=(3,), **options)  # type: ignore[arg-type]
    assert [(cell.run.name, cell.status, cell.note) for cell in cells] == [
        ("cifar100-cnn-pi-50k", "missing", ""),
        ("cifar100-cnn-pi-50k-tiny-500k", "unavailable", "needs tiny_images.bin, not there or in data.root"),
        (
            "cifar100-cnn-pi-50k-tiny-237k",
            "unavailable",
            "needs tiny_images.bin and chosen.txt, not there or in data.root",
        ),
    ]
    ended, _ = sweep(home, cells)
    assert [cell.status for cell in ended] == ["done", "unavailable", "unavailable"]


def test_results_that_cannot_be_written_are_a_failure_of_the_cell(home: Path) -> None:
    cells = cells_of(home, seeds=(3,))
    (home / "results").write_text("a file")
    ended, said = sweep(home, cells)
    assert statuses(ended) == [(3, "failed")]
    assert "was trained, but: cannot write" in said[0]


def test_a_broken_file_of_results_stops_before_anything_runs(home: Path) -> None:
    (home / "results").mkdir()
    (home / "results" / "bad.json").write_text("{")
    with pytest.raises(RequestError, match="is not readable JSON"):
        cells_of(home)
