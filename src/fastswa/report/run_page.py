"""The page of one run."""

from __future__ import annotations

import shlex

from fastswa import choose
from fastswa.config import to_dict
from fastswa.console import shown
from fastswa.report import words
from fastswa.report.errors_part import errors_part
from fastswa.report.facts_part import cost_facts, settings_facts
from fastswa.report.findings import Findings
from fastswa.report.guesses_part import guesses_part
from fastswa.report.images_part import (
    calibration_part,
    confusions_part,
    doubt,
    mistake,
    suggestions_part,
    unsure_sentence,
)
from fastswa.report.page import render, settings_table
from fastswa.report.record import RunRecord
from fastswa.report.remarks import Remark, remarks
from fastswa.report.suggest import WHY
from fastswa.training.folder import PREFERENCE


def run_page(run: RunRecord, found: Findings | None, missing: str | None, suggestions_file: str) -> str:
    """The whole page; `missing` says why there are no findings, `suggestions_file` where the suggestions stand."""
    measured = found.measured if found else None
    doubts = found.doubts if found else None
    return render(
        "run.html",
        title=run.name,
        run=run,
        found=found,
        missing=missing,
        status=_status(run),
        tiles=_tiles(run, found),
        remarks=remarks(run, found),
        errors=errors_part(run, found),
        guesses=guesses_part(run),
        preference=", ".join(shown(kind.replace("-", "_")) for kind in PREFERENCE),
        confusions=None if measured is None or found is None else confusions_part(found, measured),
        calibration=None if measured is None or found is None else calibration_part(run, found, measured),
        mistakes=None if measured is None else [mistake(example) for example in measured.mistakes],
        uncertain=None if doubts is None else [doubt(example) for example in doubts.uncertain],
        suggested=None if doubts is None else suggestions_part(doubts),
        unsure=None if doubts is None else unsure_sentence(doubts),
        why=choose.WHY if doubts is not None and doubts.by_looks else WHY,
        suggestions_file=suggestions_file,
        facts_of_run=settings_facts(run, found),
        costs=cost_facts(run),
        settings=settings_table(to_dict(run.config)),
        repeat=f"fastswa train --config {shlex.quote(str(run.path / 'config.toml'))} --out NEW-RUN",
    )


def _status(run: RunRecord) -> Remark:
    epochs = run.config.schedule.epochs
    if run.finished:
        return Remark(f"Finished: {words.plural(epochs, 'epoch')}.")
    command = f"fastswa resume {shlex.quote(str(run.path))}"
    if run.trained:
        return Remark(
            f"Trained to the end, but its model is missing or damaged: `{command}` writes it again.", grave=True
        )
    return Remark(f"Unfinished: epoch {run.epoch:g} of {epochs}. `{command}` goes on with it.", grave=True)


def _tiles(run: RunRecord, found: Findings | None) -> list[tuple[str, str, str]]:
    """The few figures to see first: (name, figure, what it means)."""
    tiles = []
    chosen = run.chosen
    for images in run.sets:
        final = run.final(images)
        error, student = final.get(chosen), final.get("student")
        if error is None:
            continue
        beside = f"{shown(chosen)}, the model to use"
        if chosen != "student" and student is not None:
            beside = f"{shown(chosen)}; its student {words.percent(student)}"
        tiles.append((f"{images} error", words.percent(error), beside))
    if found is not None and found.measured is not None:
        ece = found.measured.reliability.ece
        tiles.append(("calibration error", words.share(ece), "how far its confidence is off, on average (ECE)"))
    if found is not None:
        beside = f"and {words.plural(found.counts['unlabelled'], 'unlabelled image')}"
        tiles.append(("labels", words.count(found.counts["labelled"]), beside))
    if run.cost is not None:
        tiles.append(("training time", words.duration(run.cost.seconds), run.device))
    return tiles
