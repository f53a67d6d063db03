"""The words after a verb: targets, the verb's own options, and settings of Config."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastswa.errors import RequestError
from fastswa.registry import nearest

COMMON = {"--json": False}
RUN = {"--stop-after": True, "--no-report": False, "--analyze": True, "--discard-iterates": False, **COMMON}


@dataclass(frozen=True)
class Verb:
    """One command: `options` maps each of its own options to whether it takes a value."""

    run: Callable[[Arguments], int]
    usage: str
    summary: str
    options: dict[str, bool]
    settings: Literal["none", "all", "resumable"] = "none"
    details: str = ""


class Arguments:
    """What stood after the verb: targets first, then the verb's options and settings of Config.

    `began` is the moment at which the command began, by time.monotonic.
    """

    def __init__(self, name: str, verb: Verb, words: Sequence[str], began: float | None = None) -> None:
        self.verb = verb
        self.began = time.monotonic() if began is None else began
        self.targets: list[str] = []
        self.options: dict[str, str] = {}
        self.settings: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            option, equals, value = word.partition("=")
            if option in verb.options:
                takes_value = verb.options[option]
                if takes_value and not equals:
                    value = rest.pop(0) if rest and not rest[0].startswith("--") else ""
                if takes_value and not value:
                    raise RequestError(f"{option} needs a value.")
                if equals and not takes_value:
                    raise RequestError(f"{option} takes no value.")
                self.options[option] = value
            elif not word.startswith("-"):
                if not word:
                    raise RequestError(f"a word after {name} is empty; is a variable of the shell not set?")
                if self.settings:
                    raise RequestError(f"unexpected argument '{word}'; what to work on comes first after the verb.")
                self.targets.append(word)
            elif verb.settings != "none" and word.startswith("--"):
                self.settings.append(word)
                if not equals and rest and not rest[0].startswith("--"):
                    self.settings.append(rest.pop(0))
            else:
                raise RequestError(f"unknown option {option} for {name}; {nearest(option, verb.options)}")

    def target(self, what: str) -> str:
        """The one target."""
        if not self.targets:
            raise RequestError(f"name a {what}.")
        if len(self.targets) > 1:
            raise RequestError(f"name one {what}, not {len(self.targets)}.")
        return self.targets[0]

    def number(self, option: str, default: float, zero: bool = False) -> float:
        """A number given with an option: above zero, or with `zero` that too."""
        text = self.options.get(option)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (0 <= value < math.inf and (zero or value)):
            raise RequestError(
                f"{option}: '{text}' is not a number {'that is zero or more' if zero else 'above zero'}."
            )
        return value

    def whole(self, option: str, default: int, zero: bool = False) -> int:
        """A whole number given with an option: above zero, or with `zero` that too."""
        value = float(self.number(option, default, zero))
        if not value.is_integer():
            raise RequestError(f"{option}: '{self.options[option]}' is not a whole number.")
        return int(value)

    def words(self, option: str) -> list[str]:
        """A list given with an option, separated by commas."""
        return [word for word in self.options.get(option, "").split(",") if word]

    def wholes(self, option: str) -> list[int]:
        """A list of whole numbers given with an option; none where it is not given."""
        words = self.options[option].split(",") if option in self else []
        if not all(word.isascii() and word.isdigit() for word in words):
            raise RequestError(f"{option}: '{self.options[option]}' is not a list of whole numbers, such as 10,11,12.")
        return [int(word) for word in words]

    def __contains__(self, option: str) -> bool:
        return option in self.options


def free_folder(base: str) -> str:
    """`base`, or the first of its numbered siblings that is not there."""
    number, path = 1, base
    while Path(path).exists():
        number += 1
        path = f"{base}-{number}"
    return path


@contextmanager
def claimed_folder(base: str) -> Iterator[Path]:
    """`free_folder`, made at once, so that no command of the same moment takes it; gone again if it stays empty."""
    made: list[Path] = []
    while not made:
        path = Path(free_folder(base))
        new = [folder for folder in (path, path.parent) if not folder.exists()]
        try:
            path.mkdir(parents=True)
        except OSError:
            if path.exists():  # somebody was quicker
                continue
            break  # whoever writes into it says why not
        made = new
    try:
        yield path
    finally:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def results(arguments: Arguments) -> Path | None:
    """The folder of results: the one named, else ./results where there is one."""
    if "--results" in arguments:
        return Path(arguments.options["--results"])
    return Path("results") if Path("results").is_dir() else None
