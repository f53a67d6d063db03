"""Studies as they are asked for: by name, with options, of runs that are there or still to be trained."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastswa.analysis import OPTIONS, STUDIES
from fastswa.analysis.study import Request, Study, find_study, write
from fastswa.arguments import Arguments, Verb
from fastswa.config import Config
from fastswa.errors import RequestError
from fastswa.registry import nearest
from fastswa.training.checkpoint import checkpoint_epochs
from fastswa.training.folder import RunFolder
from fastswa.training.iterates import drop_iterates, iterate_epochs, kept_epochs
from fastswa.training.run import RunResult
from fastswa.whole import refuse_unwritable

_VERB = Verb(lambda arguments: 0, "", "", dict.fromkeys(OPTIONS, True))


@dataclass(frozen=True)
class Asked:
    """A study with its options."""

    name: str
    study: Study
    options: dict[str, Any]

    @classmethod
    def of(cls, name: str, arguments: Arguments) -> Asked:
        """The study of a name with the options that were given; refuses those that mean nothing to it."""
        if name not in STUDIES:
            raise RequestError(f"unknown study '{name}'; {nearest(name, STUDIES)}")
        study, given = find_study(name), {}
        for option, kind in OPTIONS.items():
            if option not in arguments:
                continue
            field = option.removeprefix("--")
            if field not in study.options:
                takes = ", ".join(f"--{one}" for one in sorted(study.options)) or "none"
                raise RequestError(f"{option} means nothing to the study {name}; its options are: {takes}.")
            given[field] = _value(arguments, option, kind)
        return cls(name, study, given)

    def request(self, runs: Sequence[Path], device: str) -> Request:
        return Request(tuple(runs), device=device, **self.options)

    def done(self, runs: Sequence[Path], device: str, out: Path) -> tuple[Any, list[Path]]:
        """The study made: its result, and the files that it was written to."""
        refuse_unwritable(out)
        result = self.study.run(self.request(runs, device))
        return result, write(self.study, result, out, self.name)


def _value(arguments: Arguments, option: str, kind: str) -> Any:
    if kind == "whole":
        return arguments.whole(option, 1)
    if kind == "number":
        return arguments.number(option, 1.0)
    try:
        return tuple(float(word) for word in arguments.words(option))
    except ValueError as error:
        text = arguments.options[option]
        raise RequestError(f"{option}: '{text}' is not a list of numbers such as 170,180.") from error


def asked_in(text: str) -> list[Asked]:
    """What `--analyze` names: "pairs,rays", or with options "rays --epochs 170,180 --points 21; pairs"."""
    found: list[Asked] = []
    for part in filter(str.strip, text.split(";")):
        try:
            names, *words = shlex.split(part)
        except ValueError as error:
            raise RequestError(f"--analyze: '{part.strip()}' cannot be read: {error}.") from error
        arguments = Arguments("--analyze", _VERB, words)
        if arguments.targets:
            raise RequestError(
                f"--analyze: '{arguments.targets[0]}' stands where an option is due; studies are separated by commas, "
                "and by semicolons where they have options of their own."
            )
        found += [Asked.of(name, arguments) for name in names.split(",") if name]
    if not found:
        raise RequestError(f"--analyze names no study; there are: {', '.join(STUDIES)}.")
    if len({one.name for one in found}) < len(found):
        raise RequestError("--analyze: a study is named twice, and the second would write over the first.")
    return found


def asked_after(arguments: Arguments) -> list[Asked]:
    """The studies that a command makes after training."""
    if "--analyze" in arguments:
        return asked_in(arguments.options["--analyze"])
    if "--discard-iterates" in arguments:
        raise RequestError("--discard-iterates is for iterates that were studied; --analyze says by which studies.")
    return []


def refuse_missing(asked: Sequence[Asked], config: Config, run: Path | None = None) -> None:
    """Say before a run is trained, or gone on with, that it will not keep what the studies after it need."""
    last, every = config.schedule.epochs, config.checkpoint.every
    there: set[float] = {*config.checkpoint.keep, *kept_epochs(config.checkpoint, 1, last)}
    if run is not None:
        there |= checkpoint_epochs(RunFolder(run).checkpoints).keys() | iterate_epochs(run).keys()
    # The last two checkpoints are there in any case.
    there |= {last, (last - 1) // every * every} - {0}
    for one in asked:
        if not one.study.iterates:
            continue
        wanted = one.options.get("epochs")
        for epoch in wanted or ():
            if epoch not in there:
                raise RequestError(
                    f"--analyze {one.name} --epochs {epoch:g}: the run will keep nothing of that epoch; --keep-every, "
                    "--keep-from and --checkpoint.keep say what is kept."
                )
        if len(there if wanted is None else set(wanted)) < one.study.iterates:
            raise RequestError(
                f"--analyze {one.name} needs {one.study.iterates} iterates, and the run will keep fewer; "
                "--keep-every 3 keeps one of every third epoch."
            )


def study_after_training(
    asked: Sequence[Asked], results: Sequence[RunResult], say: Callable[[str], None], *, discard: bool
) -> bool:
    """Make the studies of each run into RUN/analysis, where it was trained, if all have finished; whether none failed.

    What cannot be made is one sentence, and the others are made. With `discard` the iterates of a run go once all of
    its studies are there.
    """
    if not asked or not all(result.finished for result in results):
        return True
    whole = True
    for run in (result.path for result in results):
        device, failed = RunFolder.open(run).config().device.name, False
        for one in asked:
            try:
                result, _ = one.done([run], device, run / "analysis")
                for line in one.study.told(result):
                    say(line)
            except Exception as error:
                failed = True
                reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
                say(f"{run}: the study {one.name} was not made: {reason}.")
        if failed:
            whole = False
            say(f"{run}: its iterates are kept; `fastswa analyze STUDY {run}` goes on from there.")
            continue
        if discard:
            drop_iterates(run)
        say(f"{run}: {', '.join(one.name for one in asked)}: data and figures are in {run / 'analysis'}.")
    return whole
