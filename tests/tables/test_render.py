"""One table in four forms."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from made_up import write_result
from rich.console import Console

from fastswa.errors import RequestError
from fastswa.tables.render import print_table, rendered
from fastswa.tables.table import Sheet, table, table_names

MT = "cifar10-cnn-mean-teacher-4k"


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    for seed, error in ((10, 11.0), (11, 11.2), (12, 11.4)):
        write_result(tmp_path, MT, seed, {180: {"teacher": error, "student": 11.5, "fast_swa": 12.0}})
    return table("cifar10-cnn", tmp_path, labels=[4000], methods=["mean-teacher"])


def test_markdown(sheet: Sheet) -> None:
    lines = rendered(sheet, "markdown").splitlines()
    assert lines[0] == "**Test error in %: CIFAR-10, 13-layer CNN, short schedule**"
    assert lines[2] == "| labels | row | paper | ours (seeds) | diff. | s.e. | min. |"
    assert "| 4k | MT (180), EMA | 11.41 ± 0.27 | 11.20 ± 0.20 (3) | -0.21 | -1.1 | 180.0 |" in lines
    assert "| 4k | MT (180), student | 11.41 ± 0.27 | 11.50 ± 0.00 (3) |  |  | 180.0 |" in lines
    assert "| 4k | MT + SWA (240) | 10.95 ± 0.21 | not measured |  |  |  |" in lines
    assert "| 4k | MT, Tarvainen 2017 | 12.31 ± 0.28 | quoted |  |  |  |" in lines
    bad = "| **4k** | **MT + fast-SWA (180)** | **10.67 ± 0.18** | **12.00 ± 0.00 (3)** | **+1.33** | **+12.8** |"
    assert any(line.startswith(bad) for line in lines)


def test_csv_and_json_hold_the_same_numbers(sheet: Sheet) -> None:
    cells = json.loads(rendered(sheet, "json"))["cells"]
    rows = list(csv.DictReader(io.StringIO(rendered(sheet, "csv"))))
    assert len(cells) == len(rows) == len(sheet.rows)
    (teacher,) = [cell for cell in cells if cell["network"] == "teacher" and cell["status"] == "measured"]
    assert teacher["seeds"] == [10, 11, 12]
    assert (teacher["paper_error"], teacher["paper_std"], teacher["our_error"], teacher["our_std"]) == (
        11.41,
        0.27,
        11.2,
        0.2,
    )
    assert (teacher["recipe"], teacher["minutes"], teacher["difference"]) == (MT, 180.0, -0.21)
    assert teacher["standard_errors"] == pytest.approx(-0.21 / ((0.27**2 + 0.2**2) / 3) ** 0.5, abs=1e-4)
    for cell, row in zip(cells, rows, strict=True):
        several = {key for key, value in cell.items() if isinstance(value, list)}
        assert several == {"seeds", "records"}
        assert all(row[key] == " ".join(map(str, cell[key])) for key in several)
        assert all(row[key] == ("" if cell[key] is None else str(cell[key])) for key in cell.keys() - several)


def test_the_terminal_shows_whole_cells_in_80_columns(sheet: Sheet) -> None:
    stream = io.StringIO()
    print_table(sheet, Console(file=stream, width=80))
    text = stream.getvalue()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "4k labels" in lines
    assert "MT (180), EMA 11.41 ± 0.27 11.20 ± 0.20 (3) -0.21 -1.1 180.0" in lines
    assert "MT + fast-SWA (1200) 9.05 ± 0.21 not measured" in lines
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 70])
def test_a_narrow_terminal_breaks_words_and_cuts_no_number(sheet: Sheet, width: int) -> None:
    stream = io.StringIO()
    print_table(sheet, Console(file=stream, width=width))
    text = stream.getvalue()
    assert "…" not in text
    for row in sheet.rows:
        assert all(number in text for number in row[2:])


@pytest.mark.parametrize("name", table_names())
def test_no_table_is_cut_off_in_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = table(name, tmp_path)
    print_table(shown)
    text = capsys.readouterr().out
    assert "…" not in text
    assert text.count("not measured") == sum("not measured" in row for row in shown.rows)


def test_an_unknown_format_is_refused(sheet: Sheet) -> None:
    with pytest.raises(RequestError, match=r"unknown format 'markdwn'; did you mean markdown\?"):
        rendered(sheet, "markdwn")
