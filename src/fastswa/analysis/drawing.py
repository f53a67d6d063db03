"""What the figures of studies share with one another and with those of tables/."""

from __future__ import annotations

from typing import Any

from fastswa.tables.figures import new_figure


def new_grid(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure with its panels in rows of `height` each: panels[row][column]."""
    drawn, first = new_figure(1, width, rows * height)
    first[0].remove()
    return drawn, drawn.subplots(rows, columns, squeeze=False)


def finish(panel: Any, below: bool = False) -> None:
    """The grid and the legend that every panel has: where it hides least, or below the panel."""
    panel.grid(alpha=0.25)
    if panel.get_legend_handles_labels()[0]:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2} if below else {}
        panel.legend(fontsize=8, framealpha=0.8, edgecolor="none", **place)


def headroom(panel: Any) -> None:
    """Room for a legend above what is drawn."""
    low, high = panel.get_ylim()
    panel.set_ylim(low, high + 0.35 * (high - low))
