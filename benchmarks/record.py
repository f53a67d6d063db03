"""python benchmarks/record.py RUN results/NAME.json: keep a finished run's figures in the repository."""

from __future__ import annotations

import sys
from pathlib import Path

from fastswa.errors import FastswaError
from fastswa.results import write_record


def main(words: list[str]) -> int:
    if len(words) != 2:
        print("# name a run's folder and the file to write.", file=sys.stderr)
        return 2
    run, target = words
    try:
        facts = write_record(Path(run), Path(target))
    except FastswaError as error:
        print(f"# {error}", file=sys.stderr)
        return error.exit_code
    print(f"{target}: {facts['epochs']} epochs, {facts['minutes']} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
