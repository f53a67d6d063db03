"""benchmarks/tuning.py: what it tries, that it goes on where it stopped, that the commands on the pages can be run."""

from __future__ import annotations

import importlib
import math
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from fastswa.console import ConsoleWatcher
from fastswa.training import groups

HOME = Path(__file__).parents[1]
# Twelve steps of a small network; 100 of the digits are held out.
SMALL = [
    *("digits-fixmatch", "--validation", "100", "--together", "2", "--model.width", "4", "--batch.steps", "3"),
    *("--schedule.steps", "12", "--evaluation.refresh", "2", "--evaluation.every", "4", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def tuning() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOME / "benchmarks"))
        return importlib.import_module("tuning")


def commands(page: str) -> list[list[str]]:
    """The words of the page's tuning commands, with what it puts into variables written out."""
    text = (HOME / "docs" / page).read_text("utf-8")
    values: dict[str, str] = {}
    found = []
    for line in text.splitlines():
        written = re.sub(r"\$(\w+)", lambda name: values.get(name[1], name[0]), line)
        if assigned := re.fullmatch(r'(\w+)="(.*)"', written):
            values[assigned[1]] = assigned[2]
        if written.startswith("python benchmarks/tuning.py "):
            found.append(shlex.split(written)[2:])
    return found


@pytest.mark.parametrize(
    ("page", "count", "recipes"),
    [
        ("frontier.md", 5, {"cifar10-fixmatch-4k-quick", "cifar10-fixmatch-250", "cifar100-fixmatch-10k"}),
        (
            "howto-reproduce.md",
            8,
            {f"cifar10-cnn-{m}-4k" for m in ("vat", "temporal-ensembling", "vadd", "sntg")},
        ),
    ],
)
def test_the_commands_of_the_pages_can_be_made(tuning: ModuleType, page: str, count: int, recipes: set[str]) -> None:
    """Of few runs each, all different, which have the recipe as it is in common."""
    asked = commands(page)
    assert len(asked) == count
    paths: dict[str, set[Path]] = {}
    for words in asked:
        assert float(tuning.option(words, "--stop-after", "inf")) < 10
        assert int(tuning.option(words, "--together", "0")) in (1, 2, 3)
        found = tuning.candidates(words)
        assert 2 <= len(found) <= 4
        assert len({one.config.model_dump_json() for one in found}) == len(found)
        assert {(one.config.seed, one.config.split.validation) for one in found} == {(101, 5000)}
        paths.setdefault(words[0], set()).update(one.path for one in found)
        assert found[0].path == Path("runs/tuning") / words[0] / "as-it-is" / "seed-101"
    assert paths.keys() == recipes


def test_the_frontiers_candidates(tuning: ModuleType) -> None:
    """Networks of several widths for the same time rather than for the same steps."""
    found = {}
    for words in commands("frontier.md"):
        tuning.option(words, "--stop-after", "")
        tuning.option(words, "--together", "")
        found |= {one.text: one.config for one in tuning.candidates(words)}
    quick = "cifar10-fixmatch-4k-quick"
    steps = {text: config.schedule.epochs * (config.batch.steps or 0) for text, config in found.items()}
    assert steps[f"{quick} as it is"] == steps[f"{quick} optimiser.lr=0.1"] == 36_000
    widths = {config.model.width: steps[text] for text, config in found.items() if text.startswith(quick)}
    assert widths == {None: 36_000, 96: 18_000, 128: 12_000}
    free = found["cifar10-fixmatch-250 method.name=freematch"].method
    assert (free.name, free.ramp) == ("freematch", 1)
    product = {text: config.optimiser.lr * config.optimiser.weight_decay for text, config in found.items()}
    usual = product[f"{quick} as it is"]
    assert product[f"{quick} optimiser.lr=0.1"] == pytest.approx(2 * usual)
    assert product[f"{quick} optimiser.lr=0.1 optimiser.weight_decay=1e-3"] == pytest.approx(4 * usual)
    assert {config.model.width for text, config in found.items() if text.startswith("cifar100")} == {64, 128}
    assert all(config.schedule.length == config.schedule.epochs for config in found.values())
    # However long a run is, its averages begin at its half, and after three quarters of it, in whole epochs.
    for config in found.values():
        begun, length = {name: config.averaging[name].start for name in ("half", "often")}, config.schedule.length
        assert begun == {"half": 0.5 * length, "often": math.ceil(0.75 * length)}
    averages = found[f"{quick} as it is"].averaging
    assert {name: average.kind for name, average in averages.items()} == {
        **{"ema": "ema", "fast_swa": "fast-swa", "last": "last"},
        **{"slow": "ema", "often": "fast-swa", "half": "fast-swa"},
    }


def test_one_value_changes_at_a_time_or_all_are_combined(tuning: ModuleType) -> None:
    axes = ["a=1,2", "b=3"]
    assert tuning.combinations(axes, each=True) == [{}, {"a": "1"}, {"a": "2"}, {"b": "3"}]
    assert tuning.combinations(axes, each=False) == [{"a": "1", "b": "3"}, {"a": "2", "b": "3"}]
    joined = ["c.d=1e+3+e=4", "a=1,2"]
    assert tuning.combinations(joined, each=True) == [{}, {"c.d": "1e+3", "e": "4"}, {"a": "1"}, {"a": "2"}]
    assert tuning.combinations(joined, each=False)[1] == {"c.d": "1e+3", "e": "4", "a": "2"}


def test_a_value_that_the_recipe_has_is_not_tried_twice(tuning: ModuleType, tmp_path: Path) -> None:
    words = ["cifar10-cnn-temporal-ensembling-4k", "method.weight=10,30,100", "--each", "--out", str(tmp_path)]
    tried = [one.config.method.weight for one in tuning.candidates(words)]
    assert sorted(tried) == [10, 30, 100]
    assert tried[0] == 30


def test_runs_are_kept_and_not_trained_again(
    tuning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL[:1], "optimiser.lr=0.05,0.1", *SMALL[1:], "--seeds", "101,102", "--out", str(tmp_path)]
    released = []
    monkeypatch.setattr(groups, "release", lambda: released.append(True))
    assert tuning.main(list(words)) == 0
    first = capsys.readouterr().out.splitlines()
    assert len(released) == 2  # two groups of two
    assert [line.partition(" (")[0] for line in first[:4]] == [
        f"digits-fixmatch optimiser.lr={rate} seed {seed}" for seed in (101, 102) for rate in ("0.05", "0.1")
    ]
    assert [line.partition(":")[0] for line in first[4:]] == [
        f"digits-fixmatch optimiser.lr={rate}, mean of 2 seeds" for rate in ("0.05", "0.1")
    ]
    students = [float(re.findall(r"student (\S+)", line)[0]) for line in first]
    assert students[4] == pytest.approx((students[0] + students[2]) / 2, abs=0.006)
    assert (tmp_path / "digits-fixmatch" / "optimiser.lr=0.05" / "seed-102" / "model.safetensors").exists()
    monkeypatch.setattr(groups, "attempt_together", None)  # nothing may be trained
    assert tuning.main(list(words)) == 0
    second = capsys.readouterr().out.splitlines()
    assert [line.replace(" there already", "") for line in second] == first


def test_a_stopped_search_goes_on_and_ends_as_an_undisturbed_one(
    tuning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(ConsoleWatcher):
        """Stops after some steps of the two runs."""

        asked = 0

        def should_stop(self) -> bool:
            self.asked += 1
            return self.asked > 10

    def words(out: str) -> list[str]:
        return [*SMALL[:1], "optimiser.lr=0.05,0.1", *SMALL[1:], "--out", str(tmp_path / out)]

    def errors() -> list[str]:
        return [line.rpartition("  (")[0] for line in capsys.readouterr().out.splitlines()]

    assert tuning.main(words("whole")) == 0
    expected = errors()
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "ConsoleWatcher", Stopping)
        assert tuning.main(words("stopped")) == 0
        answer = capsys.readouterr()
    assert answer.out == ""
    assert "stopped and saved, 2 of 2 runs are left; the same command goes on." in answer.err
    assert list((tmp_path / "stopped").rglob("step-*"))
    assert tuning.main(words("stopped")) == 0
    assert errors() == expected


def test_test_errors_are_not_shown(tuning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuning.main([*SMALL, "--out", str(tmp_path)]) == 0
    answer = capsys.readouterr()
    (line,) = answer.out.splitlines()
    student = float(re.findall(r"student (\S+)", line)[0])
    assert re.findall(r"student (\S+)%", answer.err) == [f"{student:.2f}"]
    metrics = (tmp_path / "digits-fixmatch" / "as-it-is" / "seed-101" / "metrics.jsonl").read_text("utf-8")
    assert '"validation_error"' in metrics


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a recipe first."),
        (["digits-fixmatch", "lr"], "'lr' is no KEY=V1,V2,… to choose from."),
        (["digits-fixmatch", "a=1+b="], "'a=1+b=' is no KEY=V1,V2,… to choose from."),
        (
            ["digits-fixmatch", "a=1+b=2,3"],
            "'a=1+b=2,3' changes several settings at once; give each one value.",
        ),
        (["digits-fixmatch", "--together", "0"], "--together: '0' is not a whole number of at least 1."),
        (["digits-fixmatch", "--together", "inf"], "--together: 'inf' is not a whole number of at least 1."),
        (["digits-fixmatch", "--validation", "0"], "--validation: '0' is not a whole number of at least 1."),
        (["digits-fixmatch", "--validation", "2.5"], "--validation: '2.5' is not a whole number of at least 1."),
        (["digits-fixmatch", "--stop-after", "soon"], "--stop-after: 'soon' is not a number of at least 0."),
        (["digits-fixmatch", "--seeds", "1,x"], "--seeds: '1,x' are not whole numbers."),
        (["digits-fixmatch", "--out"], "--out needs a value."),
        (["digits-fixmatsch"], "unknown recipe 'digits-fixmatsch'; did you mean digits-fixmatch?"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    tuning: ModuleType, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuning.main(words) == 2
    answer = capsys.readouterr()
    assert (answer.out, answer.err) == ("", f"# {sentence}\n")


def test_a_folder_of_other_runs_is_refused(
    tuning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuning.main([*SMALL, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert tuning.main([*SMALL, "--out", str(tmp_path), "--optimiser.momentum", "0.8"]) == 2
    folder = tmp_path / "digits-fixmatch" / "as-it-is" / "seed-101"
    sentence = f"{folder} holds a run with another optimiser.momentum; choose another --out."
    assert capsys.readouterr().err == f"# {sentence}\n"
