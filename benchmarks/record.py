"""python benchmarks/record.py RUN results/NAME.json: keep a finished run's figures in the repository."""

from __future__ import annotations

import sys
from pathlib import Path

from fastswa.results import write_record


def main(run: str, target: str) -> None:
    facts = write_record(Path(run), Path(target))
    print(f"{target}: {facts['epochs']} epochs, {facts['minutes']} minutes")


if __name__ == "__main__":
    main(*sys.argv[1:])
