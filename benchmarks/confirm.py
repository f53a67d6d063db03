"""python benchmarks/confirm.py [--parts steps,engine] [--minutes 9] [--out FILE]: the engine's figures, measured anew.

Parts are measured in processes of their own, one after the other, and each is in the file (results/engine-h200.json) as
soon as it is done. What the file holds of the same revision, device and torch is kept, so that the same command goes on
where the minutes ended; a part that would take longer than what is left of them is not begun. On an H200 they take:

    steps    3 min.   `fastswa bench`: a step of both networks in every engine, beside plain loops and the convolutions
    engine   2 min.   benchmarks/engine.py: what lies beside the steps
    starts   1.5 min. from a process's birth to the first step: three times with everything kept, once with new kernels
    seeds    1.5 min. three seeds of the Mean Teacher side by side, 12 epochs; needs CIFAR-10
    rays     0.7 min. benchmarks/rays.py: a study along rays, beside the forward pass alone and plain loops
    tests    6.5 min. `pytest -m gpu`, by 15 workers where pytest-xdist is there; stopped by the clock, it goes on
             with the tests that are left

`python benchmarks/write_engine.py` then brings the pages up to date that tell of them.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine_parts import HOME, PARTS, PYTHON, OutOfTime, Part, Runner, Session, has_cifar10, run_command
from fastswa.errors import FastswaError, RequestError, RunError
from fastswa.whole import reason, refuse_unwritable, replacing

RECORD = HOME / "results" / "engine-h200.json"
# The key under which the file says of each part at which revision, on what and how it was measured.
MEASURED = "measured"
FACTS = "import json; from fastswa.training.folder import environment; print(json.dumps(environment()))"


class Record:
    """The file of figures: each part under its key, and under `measured` at which revision, on what and how."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {MEASURED: {}}
        try:
            if path.exists():
                self.content = json.loads(path.read_text("utf-8"))
                self.content[MEASURED].keys()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(
                f"{path} cannot be read as a file of the engine's figures; name another --out."
            ) from error

    def found(self, part: Part, here: Mapping[str, str]) -> Any:
        """What it holds of a part, if that was measured here; None of code that was changed after its revision."""
        facts = self.content[MEASURED].get(part.key, {})
        same = all(facts.get(name) == value for name, value in here.items())
        return self.content.get(part.key) if same and not here["revision"].endswith("+") else None

    def put(self, part: Part, value: Any, here: Mapping[str, str], seconds: float) -> None:
        """Write the file anew with a part in the place of an older one."""
        facts = {
            **here,
            "command": part.command,
            "seconds": round(seconds),
            **({"note": part.note} if part.note else {}),
        }
        self.content[MEASURED][part.key] = facts
        self.content[part.key] = value
        try:
            with replacing(self.path) as temporary:
                temporary.write_text(json.dumps(self.content, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {reason(error)}.") from error


def short(revision: str) -> str:
    """A revision as people write it."""
    found = re.fullmatch(r"([0-9a-f]{7})[0-9a-f]{33}(\+?)", revision)
    return "".join(found.groups()) if found else revision


def place(session: Session, revision: str | None) -> dict[str, str]:
    """The revision, the device and the torch that parts are measured with; this process itself takes no GPU."""
    facts = session.told([PYTHON, "-c", FACTS])
    if facts["gpu"] is None:
        raise RequestError("these figures are a GPU's, and torch sees none here.")
    revision = revision or facts["revision"]
    if revision is None:
        raise RequestError("this copy of the code does not know its revision; name it with --revision.")
    return {"revision": short(revision), "device": facts["gpu"], "torch": facts["torch"]}


def measure(record: Record, part: Part, session: Session, here: Mapping[str, str], before: Any) -> str | None:
    """Measure a part and keep what came out; why some of it is left, if it is."""
    began = session.clock()
    try:
        value = part.measure(session, before)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(f"its answer is not what was expected ({error!r}).") from error
    taken = session.clock() - began
    record.put(part, value, here, taken)
    print(f"{part.key}: done in {taken:.0f} s", flush=True)
    left = value.get("left") if isinstance(value, dict) else None
    return f"{len(left)} of them not run" if left else None


def obstacle(part: Part, session: Session) -> str | None:
    """Why a part cannot be begun, if so."""
    if part.images and not has_cifar10(session.data):
        return f"no CIFAR-10 in {session.data}, which --data.root names"
    if session.left() < (part.seconds if part.least is None else part.least):
        return f"it takes about {part.seconds / 60:.1f} minutes"
    return None


def confirm(record: Record, names: Sequence[str], session: Session, revision: str | None, again: bool) -> int:
    """Measure the named parts as far as time reaches, and say what is left; 1 if one of them failed."""
    here = place(session, revision)
    print(f"{here['device']}, torch {here['torch']}, revision {here['revision']}", flush=True)
    left: dict[str, str] = {}
    failed = False
    for name in names:
        part = PARTS[name]
        before = None if again else record.found(part, here)
        if before is not None and not (isinstance(before, dict) and before.get("left")):
            print(f"{name}: kept, measured here before", flush=True)
            continue
        why = obstacle(part, session)
        if why is None:
            print(f"{name}: {part.command}", flush=True)
            try:
                why = measure(record, part, session, here, before)
            except OutOfTime as error:
                why = str(error)
            except FastswaError as error:
                why, failed = f"failed: {error}", True
        if why is not None:
            left[name] = why.removesuffix(".")
    if left:
        print(f"left: {'; '.join(f'{name} ({why})' for name, why in left.items())}.", flush=True)
    else:
        print(f"{record.path} holds {', '.join(names)} at revision {here['revision']}.", flush=True)
    return int(failed)


def main(words: Sequence[str] | None = None, run: Runner = run_command) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORD, help="the file of figures")
    parser.add_argument("--parts", default=",".join(PARTS), help="what is measured, in this order")
    parser.add_argument("--minutes", type=float, default=9.0, help="what has not ended by then is stopped")
    parser.add_argument("--again", action="store_true", help="measure also what the file holds of this revision")
    parser.add_argument("--revision", help="of a copy that does not know its own")
    parser.add_argument("--data.root", dest="data", type=Path, default=Path("data"), help="where CIFAR-10 is")
    options = parser.parse_args(words)
    names = options.parts.split(",")
    try:
        for name in names:
            if name not in PARTS:
                raise RequestError(f"--parts: '{name}' is not one of {', '.join(PARTS)}.")
        refuse_unwritable(options.out.resolve().parent)
        record = Record(options.out.resolve())
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(run, began + 60 * options.minutes, options.data.resolve(), Path(scratch))
            return confirm(record, names, session, options.revision, options.again)
    except FastswaError as error:
        print(f"# {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    # What is being measured is stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    raise SystemExit(main())
