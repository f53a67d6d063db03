"""python benchmarks/record.py RUN results/NAME.json: keep a finished run's figures in the repository."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fastswa.results import record


def main(run: str, target: str) -> None:
    facts = record(Path(run))
    lines = ",\n  ".join(json.dumps(line) for line in facts.pop("metrics"))
    head = json.dumps(facts, indent=1)
    Path(target).write_text(f'{head[:-2]},\n "metrics": [\n  {lines}\n ]\n}}\n', "utf-8")
    json.loads(Path(target).read_text("utf-8"))
    print(f"{target}: {facts['epochs']} epochs, {facts['minutes']} minutes")


if __name__ == "__main__":
    main(*sys.argv[1:])
