"""The tables: every published figure, ours in the right cells, and differences in standard errors by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import write_result

from conftest import Command
from fastswa.errors import RequestError
from fastswa.tables.measured import load_results
from fastswa.tables.published import all_published
from fastswa.tables.rows import TABLES
from fastswa.tables.table import Line, lines, mark, standard_errors, table, table_names

RESULTS = Path(__file__).parents[2] / "results"
MT, PI = "cifar10-cnn-mean-teacher-4k", "cifar10-cnn-pi-4k"


def cell(found: list[Line], title: str, labels: str = "4k") -> Line:
    (line,) = [line for line in found if (line.title, line.labels) == (title, labels)]
    return line


def test_every_published_cifar_cell_is_in_its_table(tmp_path: Path) -> None:
    shown = [line.cell for name in TABLES for line in lines(name, []) if line.compared and line.cell.error is not None]
    expected = [cell for cell in all_published() if cell.table != "domain-adaptation"]
    assert len(expected) == 292
    assert sorted(map(repr, shown)) == sorted(map(repr, expected))
    assert {line.remark for name in TABLES for line in lines(name, [])} == {
        "not measured",
        "quoted",
    }


def test_a_recipe_that_the_paper_has_no_cell_for_has_a_row_of_its_own(tmp_path: Path) -> None:
    write_result(tmp_path, "cifar10-cnn-sntg-4k", 10, {180: {"student": 11.0}})
    found = table("cifar10-cnn", tmp_path, labels=[4000], methods=["sntg"])
    assert found.rows == [("4k", "SNTG", "", "11.00 (1)", "", "", "180.0")]
    assert found.marks == ["plain"]
    assert found.records[0]["paper_error"] is None


def test_quoted_figures_are_compared_without_standard_errors(tmp_path: Path) -> None:
    write_result(tmp_path, "cifar10-cnn-temporal-ensembling-4k", 10, {180: {"student": 12.0}})
    line = cell(lines("cifar10-cnn", load_results(tmp_path)), "TE, Laine 2017")
    assert line.difference == pytest.approx(12.0 - 12.16)
    assert line.standard_errors is None


def test_the_first_recorded_run_is_in_its_cells(tmp_path: Path) -> None:
    """Seed 10 as it was recorded: EMA 11.10 and fast-SWA 10.75 at 180, both averages 10.30 at 240."""
    name = f"{MT}-seed-10.json"
    (tmp_path / name).write_text((RESULTS / name).read_text("utf-8"), "utf-8")
    found = lines("cifar10-cnn", load_results(tmp_path))
    ours = {line.title: line.ours.errors for line in found if line.ours is not None and line.labels == "4k"}
    assert ours == {
        "MT (180), EMA": {10: 11.1},
        "MT (180), student": {10: 11.11},
        "MT + fast-SWA (180)": {10: 10.75},
        "MT + fast-SWA (240)": {10: 10.3},
        "MT + SWA (240)": {10: 10.3},
    }
    assert sum(line.ours is not None for line in found) == 5
    line = cell(found, "MT + fast-SWA (180)")
    assert line.difference == pytest.approx(0.08)
    assert line.standard_errors == pytest.approx(0.08 / (0.18 * math.sqrt(4 / 3)))
    assert line.ours is not None
    assert line.ours.minutes == pytest.approx(7.5, abs=0.1)


def test_standard_errors_by_hand() -> None:
    assert standard_errors(0.5, 0.3, 0.4, 4) == pytest.approx(0.5 / math.sqrt(0.03 + 0.04))
    assert standard_errors(0.5, 0.3, None, 1) == pytest.approx(0.5 / math.sqrt(0.03 + 0.09))
    assert standard_errors(0.5, None, 0.4, 4) is None
    assert standard_errors(0.5, 0.0, 0.0, 4) is None


def test_three_seeds_in_a_cell(tmp_path: Path) -> None:
    for seed, error in ((10, 11.0), (11, 11.2), (12, 11.4)):
        write_result(
            tmp_path, PI, seed, {180: {"student": 12.7, "ema": 13.9, "fast_swa": 10.0}, 240: {"fast_swa": error}}
        )
    found = lines("cifar10-cnn", load_results(tmp_path))
    line = cell(found, "Pi + fast-SWA (240)")
    assert line.difference == pytest.approx(11.2 - 11.61)
    assert line.standard_errors == pytest.approx(-0.41 / math.sqrt(0.06**2 / 3 + 0.2**2 / 3))
    marks = {title: mark(cell(found, title)) for title in ("Pi (180)", "Pi EMA (180)", "Pi + fast-SWA (180)")}
    assert marks == {"Pi (180)": "good", "Pi EMA (180)": "bad", "Pi + fast-SWA (180)": "check"}
    assert mark(cell(found, "Pi + SWA (240)")) == "dim"
    assert cell(found, "Pi, Tarvainen 2017").ours is None


def test_what_the_paper_gives_no_epoch_for(tmp_path: Path) -> None:
    """Supervised and VAT rows are measured where the first descent ends; VAT's average is fast-SWA, as in the text."""
    for recipe in ("cifar10-cnn-supervised-4k", "cifar10-cnn-vat-4k", "cifar10-shake-supervised-50k-long"):
        errors = {180: {"student": 20.0, "swa": 19.5, "fast_swa": 19.0}, 1500: {"student": 3.0}}
        write_result(tmp_path, recipe, 10, errors)
    found = lines("cifar10-cnn", load_results(tmp_path))
    ours = {line.title: line.ours.mean for line in found if line.ours is not None}
    assert ours == {"Supervised, Tarvainen 2017": 20.0, "VAT": 20.0, "VAT + SWA": 19.0}
    assert mark(cell(found, "Supervised, Tarvainen 2017")) == "plain"
    long = lines("cifar10-shake-long", load_results(tmp_path))
    (gastaldi,) = [line for line in long if line.ours is not None]
    assert (gastaldi.cell.error, gastaldi.epoch, gastaldi.difference) == (2.86, 1500, pytest.approx(0.14))
    assert gastaldi.standard_errors is None


def test_tables_can_be_narrowed(tmp_path: Path) -> None:
    write_result(tmp_path, MT, 10, {180: {"teacher": 11.0, "student": 11.5}})
    assert len(table("cifar10-cnn", tmp_path, measured_only=True).rows) == 2
    narrow = table("cifar10-cnn", tmp_path, labels=[1000], methods=["pi"])
    assert {(record["labels"], record["method"]) for record in narrow.records} == {(1000, "pi")}
    assert len(narrow.rows) == 10
    with pytest.raises(RequestError, match=r"cifar10-cnn has no method 'pie'; did you mean pi\?"):
        table("cifar10-cnn", tmp_path, methods=["pie"])
    summary = table("soa", tmp_path, labels=[4000])
    assert [(record["table"], record["labels"]) for record in summary.records] == [
        *(("cifar10-cnn", 4000), ("cifar10-shake-long", 4000))
    ]
    assert (len(summary.rows), len(summary.marks), len(summary.groups)) == (2, 2, 2)
    with pytest.raises(RequestError, match="averaging-often does not tell rows apart by their labels; leave --labels"):
        table("averaging-often", tmp_path, labels=[4000])
    with pytest.raises(RequestError, match="cifar10-cnn has no row with 3000 labels; there are: 1000, 2000, 4000"):
        table("cifar10-cnn", tmp_path, labels=[3000])


def test_without_results_nothing_is_measured_and_torch_stays_out(tmp_path: Path) -> None:
    write_result(tmp_path, MT, 10, {180: {"teacher": 11.4}})
    script = (
        "import sys; from fastswa.tables.table import table; "
        "names = 'cifar10-cnn', 'soa', 'domain-adaptation'; "
        "assert {mark for name in names for mark in table(name, None).marks} == {'dim'}; "
        f"from pathlib import Path; assert 'good' in table('cifar10-cnn', Path({str(tmp_path)!r})).marks; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_unknown_table_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown table 'cifar10-shake-lon'; did you mean cifar10-shake-long\?"):
        table("cifar10-shake-lon", tmp_path)
    assert table_names() == [
        "cifar10-cnn",
        "cifar10-shake-short",
        "cifar10-shake-long",
        "cifar100-cnn",
        "cifar100-shake-short",
        "soa",
        "averaging-often",
        "domain-adaptation",
        "frontier",
        "paired",
    ]


def test_the_summary_is_the_papers(tmp_path: Path) -> None:
    records = table("soa", tmp_path).records
    assert [record["previous_error"] for record in records] == [
        *(18.41, 13.64, 9.22, 38.65, 23.62, 23.79),
        *(None, None, 6.28, None, None, None),
    ]
    assert [record["paper_error"] for record in records] == [
        *(15.58, 11.02, 9.05, 33.62, 21.04, 20.98),
        *(6.6, 5.7, 5.0, 28.0, 19.3, 17.7),
    ]
    assert [record["method"] for record in records].index("pi") == 8
    assert {record["status"] for record in records} == {"not measured"}


def test_the_summary_takes_our_last_epoch_and_compares_only_the_same(tmp_path: Path) -> None:
    write_result(tmp_path, MT, 10, {180: {"fast_swa": 10.8}, 240: {"fast_swa": 10.3}})
    write_result(tmp_path, "cifar10-cnn-mean-teacher-2k", 10, {240: {"fast_swa": 13.0}, 1200: {"fast_swa": 11.25}})
    _, two, four, *_ = table("soa", tmp_path).records
    assert (two["our_error"], two["our_epoch"], two["difference"]) == (11.25, 1200, pytest.approx(0.23))
    assert two["standard_errors"] == pytest.approx(0.23 / (0.23 * math.sqrt(4 / 3)), abs=1e-4)
    assert (four["our_error"], four["our_epoch"], four["difference"]) == (10.3, 240, None)


def test_a_place_without_results_is_said_to_have_none(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("table", "soa", "--format", "csv")
    assert answer.code == 0
    assert answer.err.startswith("fastswa: there is no folder results here, so that nothing counts as measured")
    assert answer.out.startswith("table,")
    (tmp_path / "results").mkdir()
    assert command("table", "soa", "--format", "csv") == (0, answer.out, "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["soa", "--methods", "pi", "--labels", "1000"], "soa has no row with these labels and methods together."),
        (["cifar10-cnn", "--json", "--format", "csv"], "--json and --format csv are two forms; give one."),
    ],
)
def test_what_leaves_nothing_to_show_or_says_two_things_is_refused(
    words: list[str], sentence: str, command: Command
) -> None:
    answer = command("table", *words)
    assert (answer.code, answer.out, answer.err) == (2, "", f"fastswa: {sentence}\n")


def test_a_table_without_measured_rows_says_so(command: Command, tmp_path: Path) -> None:
    answer = command("table", "cifar100-cnn", "--measured", "--results", tmp_path)
    assert answer.code == 0
    assert answer.err == "fastswa: no row of cifar100-cnn is measured yet.\n"
