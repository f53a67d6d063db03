"""What the verbs on tables and figures say where nothing was measured."""

from __future__ import annotations

from pathlib import Path


def say_unmeasured(folder: Path | None) -> bool:
    """Say that nothing counts as measured where there is no such folder, or none is named or here; whether it is so."""
    from fastswa.console import say

    if folder is not None and folder.exists():
        return False
    name = folder or "results"
    say(f"there is no folder {name} here, so that nothing counts as measured; --results FOLDER names one.")
    return True
