"""The runs and studies behind the figures of sections 3.2, 3.3 and appendix A.1, A.3, A.4, on CIFAR-10 and one GPU.

    python benchmarks/analyses.py                                       the parts, their runs, what they should take
    python benchmarks/analyses.py PART… [--minutes 9] [--out FOLDER]    train, study and pack parts

They are gone on with by the same command: the runs of all parts are trained side by side, as many as a GPU takes, until
--minutes are over, and saved; once they are done, the studies are made one after the other, as far as the time reaches,
those of a run that failed left out. Iterates stay where they are made. What comes back is FOLDER/PART.zip: of every run
its settings, its evaluations and its recorded gradients, of every study its arrays and figures.

Other words are settings of every run, as `fastswa train` takes them. A rehearsal of whole parts takes minutes on a CPU
with --data.source IMAGES.npz --model small --model.width 4 --batch.steps 2 --evaluation.refresh 1, where IMAGES.npz
holds 30,000 tiny ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis_parts import PARTS, Made, Part, fork_names, plan
from fastswa.analysis.asked import Asked, asked_in, refuse_missing
from fastswa.analysis.schedule import forks
from fastswa.config import RESUMABLE, Config, DeviceConfig, to_dict
from fastswa.console import ConsoleWatcher, say
from fastswa.errors import FastswaError, RequestError
from fastswa.layers import flag_layer, flatten
from fastswa.sweep import sentence_of
from fastswa.training import lanes
from fastswa.training.checkpoint import checkpoint_epochs
from fastswa.training.device import choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.groups import train_groups
from fastswa.training.run import NewRun, OldRun
from fastswa.whole import refuse_unwritable

SMALL = ("config.toml", "metrics.jsonl", "gradients.jsonl", "environment.json")


class Clock:
    """Minutes that are running out."""

    def __init__(self, minutes: float) -> None:
        self._ends = time.monotonic() + 60.0 * minutes

    @property
    def left(self) -> float:
        """Seconds."""
        return self._ends - time.monotonic()


class Work:
    """One part under a folder."""

    def __init__(
        self,
        part: Part,
        folder: Path,
        common: Mapping[str, Any],
        archive: Path,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.part, self.folder, self.common, self.archive = part, folder, common, archive
        self.failed = False
        self.lost: dict[str, Exception] = {}  # runs that failed in this command
        self._configs = {name: run.config(common, changes, folder) for name, run in part.runs.items()}
        for name, config in self._configs.items():
            self._refuse_another(name, config, ("seed", "schedule.epochs", *flatten(changes or {})))
        for made in part.studies:
            for name in self._configs.keys() & {*made.runs}:
                refuse_missing(asked_in(made.asked), self._configs[name])

    def place(self, name: str) -> Path:
        if self.part.forks is not None and name in fork_names(self.part):
            return self.folder / self.part.forks[0] / "analysis" / "schedule" / name
        return self.folder / name

    def _refuse_another(self, name: str, config: Config, asked: Sequence[str]) -> None:
        """RequestError where what is begun in a run's place has other settings than are `asked` for: it keeps them."""
        path = self.place(name)
        if not (path / "config.toml").exists():
            return
        there, wanted = (flatten(to_dict(one)) for one in (RunFolder(path).config(), config))
        for setting in asked:
            if setting in RESUMABLE and setting != "schedule.epochs":
                continue
            if there.get(setting) != wanted.get(setting):
                raise RequestError(
                    f"{path} was begun with {setting} {there.get(setting)}, and {wanted.get(setting)} is asked for; "
                    "ask for the same, or name another folder by --runs."
                )

    def named(self, what: str) -> str:
        return f"{self.folder.name}, {what}"

    def waiting(self) -> dict[str, Config]:
        """The runs that are not done and can be trained now: what they begin within is so far. None that failed."""
        found = {name: config for name, config in self._configs.items() if self._can_begin(name)}
        if self.part.forks is not None and self.done(parent := self.part.forks[0]):
            epochs = self.part.runs[parent].epochs
            found |= forks(f"{self.folder / parent}@{epochs}", float(epochs), self.part.forks[1])
        return {name: config for name, config in found.items() if name not in self.lost and not self.done(name)}

    def _can_begin(self, name: str) -> bool:
        start = self.part.runs[name].start
        if start is None:
            return True
        parent, epoch = start
        return self.done(parent) or epoch in checkpoint_epochs(RunFolder(self.place(parent)).checkpoints)

    def done(self, name: str) -> bool:
        """Whether a run is over, at the end that its own folder says: that is what it would be gone on with to."""
        folder = RunFolder(self.place(name))
        return (folder.path / "config.toml").exists() and folder.models_epoch() == folder.config().schedule.epochs

    def study(self, made: Made, clock: Clock) -> bool:
        """Make a study that is not there yet, if its runs are done and there is time for it; whether it is there."""
        out = self.folder / "analysis" / made.name
        [asked] = asked_in(made.asked)
        if (out / f"{asked.name}.png").exists():
            return True
        if not all(self.done(name) for name in made.runs):
            return False
        if clock.left < made.seconds:
            say(f"{self.named(made.name)}: no time is left for it; the same command goes on.")
            return False
        return self._written(asked, [self.place(name) for name in made.runs], out, made)

    def _written(self, asked: Asked, runs: Sequence[Path], out: Path, made: Made) -> bool:
        began = time.monotonic()
        try:
            result, _ = asked.done(runs, self.common.get("device", {}).get("name", "auto"), out)
        except Exception as error:
            # The machine may be gone tomorrow: the other studies are made all the same.
            self.failed = True
            if isinstance(error, FastswaError):
                say(f"{self.named(made.name)}: {error}")
            else:
                traceback.print_exc()
                say(f"{self.named(made.name)}: failed; the others are made.")
            return False
        for line in asked.study.told(result):
            print(line)
        say(f"{self.named(made.name)}: {time.monotonic() - began:.1f} s (expected {made.seconds:.0f} s)")
        # At once: should the next one be stopped from outside, this one comes back.
        self.pack()
        return True

    def pack(self) -> None:
        """Settings, evaluations, recorded gradients, arrays and figures as one archive."""
        file = self.archive
        names = [*self.part.runs, *fork_names(self.part)]
        found = [self.place(name) / small for name in names for small in SMALL]
        found += sorted((self.folder / "analysis").rglob("*.*"))
        file.parent.mkdir(parents=True, exist_ok=True)
        writing = file.with_name(f".{file.name}.writing")
        with zipfile.ZipFile(writing, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in found:
                if path.is_file():
                    archive.write(path, path.relative_to(self.folder))
        os.replace(writing, file)


def carried_out(works: Sequence[Work], clock: Clock) -> bool:
    """Everything that time allows; whether all of it is done. A study waits for its own runs alone."""
    going = True
    while going and (waiting := [(work, name, config) for work in works for name, config in work.waiting().items()]):
        going = clock.left >= 30 and trained(waiting, clock)
    tell_lost(works)
    if not going:
        return False
    missing = [made for work in works for made in work.part.studies if not work.study(made, clock)]
    return not missing and not any(work.lost for work in works)


def trained(waiting: Sequence[tuple[Work, str, Config]], clock: Clock) -> bool:
    """Train runs side by side, as many as the device takes; whether each of them ended, done or failed."""
    ended = 0
    with ConsoleWatcher(clock.left / 60) as watcher:
        runs: list[NewRun | OldRun] = []
        for work, name, config in waiting:
            path, lane = work.place(name), watcher.lane(name, f"{name}  ")
            begun = (path / "config.toml").exists()
            runs.append(OldRun(path, lane) if begun else NewRun(config, path, lane))
        together = at_once(waiting[0][2].device)
        for number, outcome in train_groups(runs, together, say, stopping=watcher.should_stop):
            if isinstance(outcome, Exception):
                work, name, _ = waiting[number]
                work.lost[name] = outcome
            ended += isinstance(outcome, Exception) or outcome.finished
    return ended == len(waiting)


def tell_lost(works: Sequence[Work]) -> None:
    """Say which runs failed; raise it where all did, for one reason, so that nothing is left to do."""
    lost = [(work, name, error) for work in works for name, error in work.lost.items()]
    done = any(work.done(name) for work in works for name in work.part.runs)
    if lost and not done and len({str(error) for _, _, error in lost}) == 1:
        raise lost[0][2]
    for work, name, error in lost:
        say(f"{work.named(name)} failed: {sentence_of(error)}")


def at_once(device: DeviceConfig) -> int:
    """How many runs to train at a time: all that a GPU has streams for."""
    return lanes.MOST if choose_compute(device).device.type == "cuda" else 1


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one or more of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=9.0, help="when to stop and save")
    parser.add_argument("--data", default="data", help="the folder that holds CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/analyses"), help="where runs lie: RUNS/PART/RUN")
    parser.add_argument("--out", type=Path, help="where the archives PART.zip are put, RUNS if not given")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--device", default="auto")
    given, rest = parser.parse_known_args(words)
    try:
        if not given.parts:
            print(plan())
        else:
            return _parts(given, flag_layer(rest))
    except FastswaError as error:
        say(str(error))
        return error.exit_code
    return 0


def _parts(given: argparse.Namespace, changes: Mapping[str, Any]) -> int:
    """As much of the parts as there is time for; their archives are written whatever happens. The exit code: 0 also
    where time is over, 1 where a run or a study failed."""
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        raise RequestError(f"There is no part {unknown[0]}; there are {', '.join(PARTS)}.")
    if not 0 < given.minutes < math.inf:
        raise RequestError(f"--minutes: {given.minutes:g} is not a number of minutes above zero.")
    common = {"seed": given.seed, "data": {"root": given.data}, "device": {"name": given.device}}
    out, clock = given.out or given.runs, Clock(given.minutes)
    if out.suffix.lower() == ".zip":
        raise RequestError(f"--out: {out} is to be a folder, which gets PART.zip; name {out.parent} instead.")
    refuse_unwritable(out)
    works = [
        Work(PARTS[name], given.runs / name, common, out / f"{name}.zip", changes)
        for name in dict.fromkeys(given.parts)
    ]
    done = False
    try:
        done = carried_out(works, clock)
    finally:
        for work in works:
            work.pack()
            say(f"{work.archive}: {work.archive.stat().st_size / 1e6:.2f} MB")
        print(json.dumps({"parts": given.parts, "done": done, "seconds_left": round(clock.left)}))
    say("done." if done else "not done yet; the same command goes on.")
    return int(any(work.failed or work.lost for work in works))


if __name__ == "__main__":
    raise SystemExit(main())
