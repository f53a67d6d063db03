"""Chooses settings on validation images, never on test ones; several runs at once where there is a GPU.

    python benchmarks/tuning.py RECIPE [KEY=V1,V2,…] [KEY=…] [--each] [--seeds 101,102] [--validation 5000]
        [--together 3] [--out runs/tuning] [--stop-after MINUTES] [flags]

Trains RECIPE with each combination of values and each seed, with training images held out for validation, and prints
each network's validation error as runs end, then the means over the seeds; settings given as flags (--epochs 30
--schedule.length 30 …) hold for all of them. With `--each` it trains RECIPE as it is, and then with one value changed
at a time; a value that it has already is left out. KEY=V+KEY=V are settings that change at once. Runs are kept in
OUT/RECIPE/CANDIDATE/seed-N: what is done is not done again, and after `--stop-after` or Ctrl-C, which save what runs,
the same command goes on.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fastswa.config import RESUMABLE, Config, to_dict
from fastswa.console import ConsoleWatcher, Lane
from fastswa.errors import FastswaError, RequestError
from fastswa.layers import build_config, flag_layer, flatten, recipe_layer
from fastswa.sweep import sentence_of
from fastswa.training.folder import RunFolder
from fastswa.training.groups import train_groups
from fastswa.training.loop import Watcher
from fastswa.training.run import NewRun, OldRun, RunResult
from fastswa.training.seeds import seed_folder

# The splits that results are reported on (10, 11, 12) play no part in the choice.
SEED = 101


@dataclass(frozen=True)
class Candidate:
    """Settings to try with one seed, in words and as a configuration, and the folder that its run is kept in."""

    text: str
    config: Config
    path: Path

    @property
    def name(self) -> str:
        return f"{self.text} seed {self.config.seed}"

    def last(self) -> dict[str, Any] | None:
        """The last evaluation, if the run is finished; its folder must hold this run and no other."""
        if not (self.path / "config.toml").exists():
            return None
        folder = RunFolder.open(self.path)
        ours, theirs = _compared(self.config), _compared(folder.config())
        unlike = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if unlike:
            raise RequestError(f"{self.path} holds a run with another {unlike[0]}; choose another --out.")
        metrics = folder.metrics()
        return metrics[-1] if (self.path / "model.safetensors").exists() and metrics else None

    def run(self, watcher: Watcher) -> NewRun | OldRun:
        begun = (self.path / "config.toml").exists()
        return OldRun(self.path, watcher) if begun else NewRun(self.config, self.path, watcher)


def _compared(config: Config) -> dict[str, Any]:
    """The settings that make a run what it is; which arithmetic `auto` was is settled when it begins."""
    free = {*RESUMABLE, "device.precision"} - {"schedule.epochs"}
    return {name: value for name, value in flatten(to_dict(config)).items() if name not in free}


def option(words: list[str], name: str, default: str) -> str:
    """What follows `name`, taken out of the words."""
    if name not in words:
        return default
    at = words.index(name)
    if at + 1 == len(words):
        raise RequestError(f"{name} needs a value.")
    value = words[at + 1]
    del words[at : at + 2]
    return value


def number(words: list[str], name: str, default: str) -> float:
    """The number after `name`, at least 0."""
    text = option(words, name, default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise RequestError(f"{name}: '{text}' is not a number of at least 0.")
    return value


def whole(words: list[str], name: str, default: str) -> int:
    """The whole number after `name`, at least 1."""
    text = option(words, name, default)
    if not text.isdecimal() or not int(text):
        raise RequestError(f"{name}: '{text}' is not a whole number of at least 1.")
    return int(text)


def choices(axis: str) -> list[dict[str, str]]:
    """The settings that KEY=V1,V2,… offers to choose from; KEY=V+KEY=V are several that change at once."""
    parts = [part.partition("=") for part in re.split(r"\+(?=[a-z0-9_.]+=)", axis)]
    if not all(name and equals and chosen for name, equals, chosen in parts):
        raise RequestError(f"'{axis}' is no KEY=V1,V2,… to choose from.")
    if len(parts) == 1:
        return [{name: value} for name, _, chosen in parts for value in chosen.split(",")]
    if any("," in chosen for _, _, chosen in parts):
        raise RequestError(f"'{axis}' changes several settings at once; give each one value.")
    return [{name: value for name, _, value in parts}]


def combinations(axes: Sequence[str], each: bool) -> list[dict[str, str]]:
    """The settings to try by name: all combinations of the axes' choices, or nothing and then `each` choice alone."""
    offered = [choices(axis) for axis in axes]
    if each:
        return [{}, *itertools.chain.from_iterable(offered)]
    return [dict(itertools.chain.from_iterable(map(dict.items, chosen))) for chosen in itertools.product(*offered)]


def candidates(words: list[str]) -> list[Candidate]:
    """What is to be trained, the first seed of all before the second; takes its own options out of the words."""
    each = "--each" in words
    words = [word for word in words if word != "--each"]
    out, validation = Path(option(words, "--out", "runs/tuning")), whole(words, "--validation", "5000")
    seeds = option(words, "--seeds", "")
    first_flag = next((k for k, word in enumerate(words) if word.startswith("--")), len(words))
    if first_flag == 0:
        raise RequestError("name a recipe first.")
    recipe, *axes = words[:first_flag]
    fixed = flag_layer(words[first_flag:])
    try:
        chosen = [int(seed) for seed in seeds.split(",")] if seeds else [int(fixed.get("seed", SEED))]
    except ValueError as error:
        raise RequestError(f"--seeds: '{seeds or fixed['seed']}' are not whole numbers.") from error
    base = (recipe_layer(recipe), {"split": {"validation": validation}}, fixed)
    found: list[Candidate] = []
    for seed, settings in itertools.product(chosen, combinations(axes, each)):
        flags = flag_layer([f"--{name}={value}" for name, value in settings.items()])
        text = " ".join(f"{name}={value}" for name, value in settings.items())
        folder = out / recipe / (text.replace(" ", "+").replace("/", "_") or "as-it-is")
        config = build_config(*base, flags, {"seed": seed})
        if all(config != one.config for one in found):
            found.append(Candidate(f"{recipe} {text or 'as it is'}", config, seed_folder(folder, seed)))
    return found


def say(message: str) -> None:
    print(f"# {message}", file=sys.stderr)


def shown(errors: dict[str, float]) -> str:
    return "  ".join(f"{network} {error:.2f}" for network, error in errors.items())


class Untested(Lane):
    """Shows validation errors; those on test images are nobody's business here."""

    def evaluated(self, line: Mapping[str, Any]) -> None:
        super().evaluated({**line, "error": None})


class Tuning:
    """Trains what is missing, some at a time, and says what each came to."""

    def __init__(self, asked: Sequence[Candidate], together: int) -> None:
        self.asked, self.together = asked, together
        self.lines = {one.name: line for one in asked if (line := one.last()) is not None}
        self.failed = False
        for one in asked:
            if one.name in self.lines:
                self.tell(one, " there already")

    def train(self, watcher: ConsoleWatcher) -> None:
        waiting = [one for one in self.asked if one.name not in self.lines]
        runs = (one.run(Untested(watcher, one.name, f"{one.name}  ")) for one in waiting)
        for k, outcome in train_groups(runs, self.together, say, stopping=watcher.should_stop):
            one = waiting[k]
            if not isinstance(outcome, RunResult):
                self.failed = True
                print(f"{one.name}: failed: {sentence_of(outcome)}", flush=True)
            elif outcome.finished:
                self.lines[one.name] = outcome.metrics[-1]
                self.tell(one)

    def tell(self, one: Candidate, how: str = "") -> None:
        last = self.lines[one.name]
        errors = shown(last["validation_error"])
        print(f"{one.name} (epoch {last['epoch']}): {errors}  ({last['seconds']:.0f} s{how})", flush=True)

    def means(self) -> list[str]:
        """Each candidate's mean over the seeds that are done, where there is more than one."""
        lines = []
        for text in dict.fromkeys(one.text for one in self.asked):
            done = [one for one in self.asked if one.text == text and one.name in self.lines]
            errors = [self.lines[one.name]["validation_error"] for one in done]
            if len(done) > 1:
                means = {network: mean(error[network] for error in errors) for network in errors[0]}
                lines.append(f"{text}, mean of {len(done)} seeds: {shown(means)}")
        return lines


def main(words: list[str]) -> int:
    """Trains and prints; the exit code: 0 also where a time limit left some for later."""
    try:
        together, minutes = whole(words, "--together", "3"), number(words, "--stop-after", "inf")
        tuning = Tuning(candidates(words), together)
    except FastswaError as error:
        say(str(error))
        return error.exit_code
    with ConsoleWatcher(minutes) as watcher:
        tuning.train(watcher)
    for line in tuning.means():
        print(line)
    left = [one for one in tuning.asked if one.name not in tuning.lines]
    if left and watcher.should_stop():
        say(f"stopped and saved, {len(left)} of {len(tuning.asked)} runs are left; the same command goes on.")
    return 1 if tuning.failed or watcher.interrupted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
