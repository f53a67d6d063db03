"""Which run a checkpoint is of, also after the code has learnt new settings; and that results say what they hash."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from conftest import Command
from fastswa.config import to_dict
from fastswa.errors import RequestError
from fastswa.layers import file_layer, flatten
from fastswa.results import keep_record
from fastswa.training.identity import fingerprint, identities, identity
from fastswa.training.run import resume
from tiny_runs import StoppingWatcher, tiny, train

RESULTS = Path(__file__).parents[2] / "results"
# Of before a record's hash was of the settings that it holds.
OTHERWISE = {"cifar10-cnn-mean-teacher-4k-seed-10.json"}


def of_before(run: Path, *names: str) -> None:
    """Make a run one of a version that did not know some settings: not in its config.toml, nor in what it hashed."""
    file = run / "config.toml"
    settings = file_layer(file)
    before = identity(settings)
    for name in names:
        section, _, key = name.partition(".")
        del settings[section][key]
    file.write_text(tomli_w.dumps(settings), "utf-8")
    for facts in (run / "checkpoint").glob("*/facts.json"):
        text = facts.read_text("utf-8")
        assert before in text
        facts.write_text(text.replace(before, identity(settings)), "utf-8")


def test_a_run_of_before_a_setting_came_into_being_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastswa.training.checkpoint._digest", lambda tensors, facts: "")  # facts are changed by hand
    run = train(tiny({"schedule": {"epochs": 2}}), tmp_path / "run").path
    of_before(run, "method.own_dropout", "augment.affine")
    result = resume(run, {"schedule": {"epochs": 3}}, StoppingWatcher(), lambda line: None)
    assert result.metrics[-1]["epoch"] == 3
    written = file_layer(run / "config.toml")
    assert written["method"]["own_dropout"] is False


def test_a_changed_setting_is_another_run(tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run").path
    file = run / "config.toml"
    file.write_text(file.read_text("utf-8").replace("momentum = 0.9", "momentum = 0.8"), "utf-8")
    with pytest.raises(RequestError, match="belongs to another configuration"):
        resume(run, {"schedule": {"epochs": 9}}, StoppingWatcher(), lambda line: None)


def test_a_setting_that_was_taken_out_of_the_file_counts_with_its_default() -> None:
    config = tiny()
    written = to_dict(config)
    del written["method"]["own_dropout"]
    assert identity(to_dict(config)) in identities(config, written)
    other = config.model_copy(update={"method": config.method.model_copy(update={"own_dropout": True})})
    assert identity(to_dict(config)) not in identities(other, to_dict(other))


def test_a_record_goes_on_with_one_that_lacks_a_new_setting(tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run").path
    kept = keep_record(run, tmp_path / "results", "mine")
    record = json.loads(kept.read_text("utf-8"))
    del record["config"]["method"]["own_dropout"]
    record["fingerprint"] = fingerprint(record["config"])
    kept.write_text(json.dumps(record), "utf-8")
    assert keep_record(run, tmp_path / "results", "mine") == kept
    record["config"]["method"]["weight"] = 3
    kept.write_text(json.dumps(record), "utf-8")
    assert keep_record(run, tmp_path / "results", "mine").name == "mine-2.json"


@pytest.mark.parametrize("file", sorted(path.name for path in RESULTS.glob("*-seed-*.json")))
def test_a_records_hash_is_that_of_its_settings(file: str) -> None:
    record = json.loads((RESULTS / file).read_text("utf-8"))
    assert (fingerprint(record["config"]) == record["fingerprint"]) == (file not in OTHERWISE)


def write_cifar(folder: Path, images: int) -> None:
    """A part of CIFAR-10 in its own layout, marked as one."""
    rng = np.random.default_rng(images)
    (folder / "cifar-10-batches-bin").mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = rng.integers(0, 256, (images, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / "cifar-10-batches-bin" / f"{name}.bin")
    (folder / "cifar-10-batches-bin" / "SUBSET").touch()


def test_a_run_on_a_part_of_the_data_is_no_cell_of_a_table_and_not_gone_on_with_on_more(
    tmp_path: Path, command: Command
) -> None:
    write_cifar(tmp_path / "data", 20)
    small = ["--model", "small", "--split.labels", "20", "--batch.size", "20", "--batch.labelled", "10"]
    words = [
        *small,
        "--epochs",
        "1",
        "--batch.steps",
        "1",
        "--evaluation.refresh",
        "1",
        "--data.root",
        tmp_path / "data",
    ]
    run = tmp_path / "run"
    assert command("train", "cifar10-cnn-mean-teacher-4k", *words, "--out", run, "--no-report").code == 0
    assert json.loads((run / "environment.json").read_text("utf-8"))["images"] == {"train": 100, "test": 20}
    write_cifar(tmp_path / "more", 30)
    answer = command("resume", run, "--epochs", "2", "--data.root", tmp_path / "more")
    assert answer.code == 2
    assert "are not those that" in answer.err
    assert flatten(file_layer(run / "config.toml"))["schedule.epochs"] == 1
