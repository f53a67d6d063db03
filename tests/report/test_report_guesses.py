"""The part on guesses that teach: what it draws of the lines of metrics, and what the remarks repeat of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastswa.report.guesses_part import guesses_part
from fastswa.report.record import RunRecord
from fastswa.report.remarks import remarks
from tiny_runs import tiny


def run_of(*figures: dict[str, Any] | None, warning: str | None = None, target: bool = False) -> RunRecord:
    """A record of evaluations with these pseudo_labels, one an epoch."""
    config = tiny({"data": {"target": "mnist"}}) if target else tiny()
    metrics: list[dict[str, Any]] = []
    for epoch, one in enumerate(figures, 1):
        line = {"epoch": epoch, "step": 3 * epoch, "error": {"student": 10.0}, "loss": {}, "seconds": 1.0}
        metrics.append(line if one is None else {**line, "pseudo_labels": one})
    if warning is not None:
        metrics[-1]["warning"] = warning
    return RunRecord(Path("run"), config, metrics, {}, None)


def test_shares_are_drawn_in_percent_with_their_numbers() -> None:
    part = guesses_part(
        run_of({"passing": 0.25, "largest_class": 0.5, "error": 3.0}, {"passing": 0.5, "largest_class": 0.125})
    )
    assert part is not None
    assert [name for name, _ in part["figure"].legend] == ["passing", "largest class", "wrong"]
    assert list(part["table"].head) == ["epoch", "passing", "largest class", "wrong"]
    assert [list(row) for row in part["table"].rows] == [
        ["1", "25.00%", "50.00%", "3.00%"],
        ["2", "50.00%", "12.50%", "–"],
    ]
    assert "passing, epoch 2: 50.00%" in part["figure"].chart
    assert "the unlabelled images" in part["figure"].caption
    assert "Wrong:" in part["figure"].caption


def test_of_two_domains_it_speaks_of_the_target() -> None:
    part = guesses_part(run_of({"passing": 0.25, "largest_class": 0.5}, target=True))
    assert part is not None
    assert "the target images" in part["figure"].caption
    assert "Wrong:" not in part["figure"].caption


@pytest.mark.parametrize("figures", [(), (None, None)])
def test_methods_that_learn_from_no_guesses_have_no_such_part(figures: tuple[None, ...]) -> None:
    assert guesses_part(run_of(*figures)) is None


def test_the_last_warning_is_a_grave_remark() -> None:
    said = remarks(run_of({"passing": 0.0, "largest_class": 0.0}, warning="nothing passes."), None)
    assert ("At the last evaluation: nothing passes.", True) in [(remark.text, remark.grave) for remark in said]
    assert not any("last evaluation" in remark.text for remark in remarks(run_of(None), None))


def test_a_target_without_test_images_is_a_grave_remark() -> None:
    run = run_of(None, target=True)
    known = [remark.text for remark in remarks(run, None)]
    run.metrics[-1]["source_error"] = run.metrics[-1].pop("error")
    unknown = [remark.text for remark in remarks(run, None) if remark.grave]
    sentence = "The target has no test images: the errors are those on the source's"
    assert not any(text.startswith(sentence) for text in known)
    assert any(text.startswith(sentence) for text in unknown)
