"""The figures: what is drawn where, and that both files are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import write_result

from conftest import Command
from fastswa.errors import RequestError
from fastswa.layers import build_config
from fastswa.tables.bars import bars_of
from fastswa.tables.figures import Curve, averaged_epochs, curves, draw_trend, figure, figure_names, rate
from fastswa.tables.measured import by_row, load_results
from fastswa.tables.rows import TABLES, all_rows

PI = "cifar10-cnn-pi-4k"


def test_the_averaged_points_are_the_papers() -> None:
    """fast-SWA(180) is 11 models, (240) 31; SWA(240) is 3. Long: k = 20."""
    short = build_config(all_rows()[PI].layer())
    fast, swa = short.averaging["fast_swa"], short.averaging["swa"]
    assert [len(averaged_epochs(fast, 180)), len(averaged_epochs(fast, 240))] == [11, 31]
    assert averaged_epochs(swa, 240).tolist() == [180, 210, 240]
    assert averaged_epochs(swa, 179).tolist() == []
    long = build_config(all_rows()["cifar10-shake-pi-4k-long"].layer()).averaging
    assert averaged_epochs(long["fast_swa"], 1340).tolist() == [1300, 1320, 1340]
    assert averaged_epochs(long["swa"], 1900).tolist() == [1500, 1700, 1900]


def test_swa_averages_where_the_rate_is_lowest() -> None:
    schedule = build_config(all_rows()[PI].layer()).schedule
    lowest = 0.5 * (1 + np.cos(np.pi * 180 / 210))
    highest = 0.5 * (1 + np.cos(np.pi * 150 / 210))
    for epoch in (180, 210, 240):
        assert rate(schedule, epoch, reached=True) == pytest.approx(lowest)
        assert rate(schedule, epoch) == pytest.approx(highest)


def drawn(line: Curve) -> list[tuple[float, ...]]:
    """Epoch, mean, lowest, highest and number of seeds of each point."""
    return list(
        zip(*(part.tolist() for part in (line.epochs, line.mean, line.low, line.high, line.seeds)), strict=True)
    )


def test_curves_hold_the_epochs_that_all_seeds_have_which_came_so_far(tmp_path: Path) -> None:
    write_result(tmp_path, PI, 10, {177: {"student": 13.0}, 180: {"student": 12.0, "fast_swa": 11.0}})
    write_result(tmp_path, PI, 11, {180: {"student": 14.0, "fast_swa": 10.0}, 183: {"student": 15.0}})
    found = curves(all_rows()[PI], by_row(load_results(tmp_path))[PI])
    assert list(found) == ["student", "fast-swa"]
    assert drawn(found["student"]) == [(180, 13.0, 12.0, 14.0, 2), (183, 15.0, 15.0, 15.0, 1)]


def test_what_was_measured_between_the_common_epochs_is_drawn_run_by_run(tmp_path: Path) -> None:
    """Seeds that share every thirtieth epoch: a line from one to the next would hide how the error jumps."""
    write_result(tmp_path, PI, 10, {epoch: {"student": 12.0 + epoch % 30} for epoch in range(150, 241, 10)})
    write_result(tmp_path, PI, 11, {epoch: {"student": 13.0 + epoch % 30} for epoch in range(150, 241, 3)})
    found = curves(all_rows()[PI], by_row(load_results(tmp_path))[PI])["student"]
    assert found.epochs.tolist() == [150, 180, 210, 240]
    assert found.sparse
    assert [len(epochs) for epochs, _ in found.each] == [10, 31]
    drawn_trend = draw_trend(all_rows()[PI], by_row(load_results(tmp_path))[PI])
    shown = {tuple(line.get_xdata()) for line in drawn_trend.axes[0].lines}
    assert {tuple(epochs) for epochs, _ in found.each} <= shown
    write_result(tmp_path / "alike", PI, 10, {epoch: {"student": 12.0} for epoch in (150, 180, 210)})
    write_result(tmp_path / "alike", PI, 11, {epoch: {"student": 13.0} for epoch in (150, 180, 210)})
    assert not curves(all_rows()[PI], by_row(load_results(tmp_path / "alike"))[PI])["student"].sparse


def test_runs_that_stop_early_or_repeat_a_seed_do_not_disturb_the_curves(tmp_path: Path) -> None:
    whole = {epoch: {"student": 20.0 - epoch / 60} for epoch in range(10, 241, 10)}
    for seed in (10, 11):
        write_result(tmp_path / "a", PI, seed, whole)
        write_result(tmp_path / "b", PI, seed, whole)
    for seed in (10, 12):  # the same seed and another one, to epoch 30 with other evaluations
        write_result(tmp_path / "b", PI, seed, {epoch: {"student": 50.0} for epoch in range(3, 31, 3)})
    write_result(tmp_path / "b", PI, 11, whole)
    a, b = (curves(all_rows()[PI], by_row(load_results(tmp_path / name))[PI])["student"] for name in "ab")
    assert drawn(a) == drawn(b)
    assert len(a.epochs) == 24
    short = [one for one in by_row(load_results(tmp_path / "b"))[PI] if one.epochs == 30]
    assert len(curves(all_rows()[PI], short)["student"].epochs) == 10  # where there is nothing else


def test_bars_are_the_base_and_the_first_common_epoch_of_the_averages(tmp_path: Path) -> None:
    write_result(tmp_path, PI, 10, {180: {"student": 12.0}, 240: {"fast_swa": 11.0}})
    bars = bars_of("cifar10-cnn", load_results(tmp_path))
    assert list(bars) == ["mean-teacher", "pi"]
    pi = bars["pi"]
    assert {bar: [line.cell.error for line in lines.values()] for bar, lines in pi.items()} == {
        "base": [21.85, 16.1, 12.64, 9.11, 6.79],
        "fast-swa": [20.04, 14.77, 11.61, 8.45, 6.14],
        "swa": [21.37, 15.38, 12.05, 8.58, 6.36],
    }
    ours = {bar: lines["4k"].ours for bar, lines in pi.items()}
    assert {bar: one.mean for bar, one in ours.items() if one is not None} == {"base": 12.0, "fast-swa": 11.0}
    long = bars_of("cifar10-shake-long", [])["mean-teacher"]
    assert [line.cell.error for line in long["fast-swa"].values()] == [6.4, 5.8, 5.2, 3.8, 3.4]


@pytest.mark.parametrize("name", ["schedule", "cifar10-cnn", "cifar100-shake-short", PI])
def test_figures_come_as_svg_and_png(name: str, tmp_path: Path) -> None:
    errors = {epoch: {"student": 13.0, "ema": 12.5, "fast_swa": 11.0} for epoch in (150, 180, 240)}
    for seed in (10, 11):
        write_result(tmp_path / "results", PI, seed, errors)
    svg, png = figure(name, tmp_path / "results", tmp_path / "out")
    assert (svg, png) == (tmp_path / "out" / f"{name}.svg", tmp_path / "out" / f"{name}.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text("utf-8")
    assert "<svg" in text
    again, _ = figure(name, tmp_path / "results", tmp_path / "again")
    assert again.read_text("utf-8") == text


@pytest.mark.parametrize("name", ["cifar10-cnn-supervised-4k", "cifar10-shake-mean-teacher-4k-short"])
def test_titles_fit_and_the_legend_says_what_is_there(name: str, tmp_path: Path) -> None:
    for seed in (10, 11, 12):
        write_result(tmp_path, name, seed, {epoch: {"student": 13.0, "teacher": 12.0} for epoch in (150, 180)})
    drawn = draw_trend(all_rows()[name], by_row(load_results(tmp_path))[name])
    drawn.canvas.draw()
    (panel,) = drawn.axes
    title = panel.title.get_window_extent()
    assert 0 <= title.x0 < title.x1 <= drawn.bbox.width
    assert title.y1 <= drawn.bbox.height
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert ("the paper" in labels) is (name.endswith("short"))  # its cell has no std
    assert "the paper, ± std" not in labels


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown figure 'scedule'; did you mean schedule\?"):
        figure("scedule", tmp_path, tmp_path)
    with pytest.raises(RequestError, match=f"no result of {PI} is there"):
        figure(PI, tmp_path, tmp_path)
    with pytest.raises(RequestError) as caught:
        figure("soa", tmp_path, tmp_path)
    assert str(caught.value) == (
        "unknown figure 'soa'; there are: schedule, cifar10-cnn, cifar10-shake-short, cifar10-shake-long, "
        "cifar100-cnn, cifar100-shake-short, and any recipe of these tables (`fastswa recipes`)."
    )
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot write into"):
        figure("schedule", tmp_path, tmp_path / "file")
    assert len(figure_names()) == 1 + 5 + 64


def test_a_figure_without_any_result_says_so(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = "there is no folder results here, so that nothing counts as measured; --results FOLDER names one."
    answer = command("figure", "cifar100-cnn", "--out", "drawn")
    assert (answer.code, answer.err) == (0, f"fastswa: {sentence}\n")
    assert command("figure", "schedule", "--out", "drawn").err == ""
    (tmp_path / "results").mkdir()
    assert command("figure", "cifar100-cnn", "--out", "drawn").err == ""


def test_help_and_a_missing_name_list_the_figures(command: Command) -> None:
    said, refused = command("figure", "--help").out, command("figure")
    assert refused.code == 2
    for name in ("schedule", *TABLES):
        assert name in said
        assert name in refused.err
