"""Chooses the digits recipes' settings on validation images, never on test ones.

    python benchmarks/digits_tuning.py RECIPE "KEY=V1,V2,…" [--seeds 4]

Trains RECIPE with each value, 200 training images held out for validation, and prints the mean validation
error of each network. Several KEY=… arguments make a grid.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

from fastswa.demo import NETWORKS, Job, train_side_by_side
from fastswa.layers import flag_layer, merge


def main(words: list[str]) -> None:
    seeds = 4
    if "--seeds" in words:
        at = words.index("--seeds")
        seeds = int(words[at + 1])
        del words[at : at + 2]
    recipe, *axes = words
    names = [axis.split("=")[0] for axis in axes]
    grid = list(itertools.product(*(axis.split("=")[1].split(",") for axis in axes)))
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for row, values in enumerate(grid):
            flags = [f"--{name}={value}" for name, value in zip(names, values, strict=True)]
            settings = merge({"split": {"validation": 200}}, flag_layer(flags))
            # Seeds from 101 on: the demo's own splits play no part in the choice.
            jobs += [Job(recipe, 101 + s, Path(folder) / f"{row}-{s}", settings) for s in range(seeds)]
        runs = train_side_by_side(jobs, 2, recipe)
    for row, values in enumerate(grid):
        last = [run[-1] for run in runs[row * seeds : (row + 1) * seeds]]
        cells = [
            f"{network} {mean(e):.2f}±{stdev(e):.2f}"
            for network in (*NETWORKS, "ema")
            if (e := [line["validation_error"][network] for line in last if network in line["validation_error"]])
        ]
        settings_text = " ".join(f"{n}={v}" for n, v in zip(names, values, strict=True))
        print(
            f"{recipe} {settings_text}: {'  '.join(cells)}  ({mean(line['seconds'] for line in last):.1f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
