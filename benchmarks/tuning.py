"""Chooses settings on validation images, never on test ones; several runs at once where there is a GPU.

    python benchmarks/tuning.py RECIPE KEY=V1,V2,… [KEY=…] [--each] [--validation 5000] [--together 3] [flags]

Trains RECIPE with each combination of values, with training images held out for validation, and prints each network's
validation error as runs end; settings given as flags (--epochs 30 --schedule.length 30 …) hold for all of them. With
`--each` it trains RECIPE as it is, and then with one value changed at a time: as many runs as values, and one.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

from fastswa.api import Quiet
from fastswa.layers import build_config, flag_layer, recipe_layer
from fastswa.training.run import NewRun, RunResult, attempt_together


def option(words: list[str], name: str, default: int) -> int:
    """The whole number after `name`, taken out of the words."""
    if name not in words:
        return default
    at = words.index(name)
    value = int(words[at + 1])
    del words[at : at + 2]
    return value


def say(message: str) -> None:
    print(f"# {message}", file=sys.stderr)


def combinations(axes: list[str], each: bool) -> list[dict[str, str]]:
    """The settings to try by name: all combinations of the axes' values, or nothing and then `each` value alone."""
    values = {name: chosen.split(",") for name, _, chosen in (axis.partition("=") for axis in axes)}
    if each:
        return [{}, *({name: value} for name, chosen in values.items() for value in chosen)]
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def main(words: list[str]) -> None:
    each = "--each" in words
    words = [word for word in words if word != "--each"]
    validation, together = option(words, "--validation", 5000), option(words, "--together", 3)
    first_flag = next((k for k, word in enumerate(words) if word.startswith("--")), len(words))
    recipe, *axes = words[:first_flag]
    fixed = flag_layer(words[first_flag:])
    grid = combinations(axes, each)
    # Seed 101 unless the flags say otherwise: the splits that results are reported on play no part in the choice.
    base = (recipe_layer(recipe), {"seed": 101, "split": {"validation": validation}}, fixed)
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, len(grid), together):
            chosen = grid[begin : begin + together]
            texts = [" ".join(f"{name}={value}" for name, value in settings.items()) for settings in chosen]
            runs = []
            for number, settings in enumerate(chosen):
                flags = flag_layer([f"--{name}={value}" for name, value in settings.items()])
                runs.append(NewRun(build_config(*base, flags), Path(folder) / f"{begin + number}", Quiet()))
            for text, outcome in zip(texts, attempt_together(runs, say), strict=True):
                if not isinstance(outcome, RunResult):
                    print(f"{recipe} {text or 'as it is'}: failed: {outcome}", flush=True)
                    continue
                last = outcome.metrics[-1]
                cells = "  ".join(f"{network} {error:.2f}" for network, error in last["validation_error"].items())
                where = f"{recipe} {text or 'as it is'} (epoch {last['epoch']})"
                print(f"{where}: {cells}  ({last['seconds']:.0f} s)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
