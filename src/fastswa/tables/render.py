"""A table for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastswa.errors import RequestError
from fastswa.registry import nearest
from fastswa.tables.table import Sheet

_STYLES = {"good": "green", "bad": "red", "check": "yellow", "plain": "", "dim": "dim"}
_TEXT_COLUMNS = {"labels", "row", "table", "previous best", "averaged", "domains", "setting", "network", "cost"}


def print_table(sheet: Sheet, console: Console | None = None) -> None:
    """Show a table in the terminal; the first column stands above each group of rows.

    Green is within two standard errors of the paper or better, red worse, yellow more than a point better.
    """
    # Without a terminal rich assumes 80 columns and would cut the rows of a file.
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    shown = Table(title=sheet.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, column in enumerate(sheet.columns[1:], 1):
        if column in _TEXT_COLUMNS:
            shown.add_column(column, overflow="fold")
        else:
            # Where the terminal is narrow words go to the next line: of numbers no digit may be cut off.
            widest = max((len(row[place]) for row in sheet.rows), default=0)
            shown.add_column(column, justify="right", no_wrap=True, min_width=max(widest, len(column)))
    group = ""
    for number, (row, mark) in enumerate(zip(sheet.rows, sheet.marks, strict=True)):
        if sheet.groups[number] != group:
            group = sheet.groups[number]
            if number:
                shown.add_row()
            shown.add_row(group, style="bold")
        shown.add_row(*row[1:], style=_STYLES[mark])
    console.print(shown)
    for note in sheet.notes:
        console.print(note, highlight=False)


def markdown(sheet: Sheet) -> str:
    """The table as Markdown; what is worse than two standard errors stands in bold."""
    lines = [
        f"**{sheet.title}**",
        "",
        "| " + " | ".join(sheet.columns) + " |",
        "|" + "|".join("---" if column in _TEXT_COLUMNS else "---:" for column in sheet.columns) + "|",
    ]
    for row, mark in zip(sheet.rows, sheet.marks, strict=True):
        texts = [f"**{text}**" if text and mark == "bad" else text for text in row]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join([*lines, "", *sheet.notes, ""])


def comma_separated(sheet: Sheet) -> str:
    """The bare numbers as CSV; what there is several of is separated by spaces."""
    stream = io.StringIO()
    if sheet.records:
        writer = csv.DictWriter(stream, list(sheet.records[0]), lineterminator="\n")
        writer.writeheader()
        for record in sheet.records:
            writer.writerow({k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in record.items()})
    return stream.getvalue()


def as_json(sheet: Sheet) -> str:
    """The bare numbers as JSON."""
    return json.dumps({"table": sheet.name, "title": sheet.title, "cells": sheet.records}) + "\n"


FORMATS: dict[str, Callable[[Sheet], str]] = {"markdown": markdown, "csv": comma_separated, "json": as_json}


def rendered(sheet: Sheet, form: str) -> str:
    """The table as text in a format by name."""
    if form not in FORMATS:
        raise RequestError(f"unknown format '{form}'; {nearest(form, [*FORMATS, 'terminal'])}")
    return FORMATS[form](sheet)
