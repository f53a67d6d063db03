"""The parts of the engine's figures, for confirm.py: the commands that measure each, and what they should take.

The seconds are what an H200 is expected to need: estimates from benchmarks/LOG.md where a part was never timed whole.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fastswa
from fastswa.errors import RunError

HOME = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
NEW_KERNELS = "kernels compiled anew, byte code kept"
SEEDS = ("13", "14", "15")
# A line of pytest's, alone and with workers, and which of its words count as what; the others are passes.
WORD = "(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)"
OUTCOME = re.compile(rf"^(?:(\S+?::.+?) {WORD}\b|\[gw\d+\] \[ *\d+%\] {WORD} (\S+?::.+?) *$)", re.MULTILINE)
WORKERS = 15
KINDS = {"FAILED": "failed", "ERROR": "failed", "SKIPPED": "skipped"}


class OutOfTime(RunError):
    """The minutes ended within a part, which is left for the next time."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, None where the clock stopped it, and what it printed."""

    code: int | None
    out: str


Runner = Callable[[Sequence[str], float, Mapping[str, str]], Ended]


def run_command(words: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Ended:
    """Run a command from the repository's root, its lines shown as they come, stopped after `seconds`."""
    package = Path(fastswa.__file__).parents[1]
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    own = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **environment}
    # A group of its own: what it has started itself, such as loaders of images, is stopped with it.
    process = subprocess.Popen(
        words, cwd=HOME, env=own, stdout=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    assert process.stdout is not None
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(seconds, 0.0), stop)
    timer.start()
    lines = []
    with process:
        try:
            for line in process.stdout:
                lines.append(line)
                if " PASSED" not in line:
                    print(line, end="", flush=True)
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                stop()
    return Ended(None if stopped.is_set() else code, "".join(lines))


@dataclass
class Session:
    """What parts measure with: commands, until when, where CIFAR-10 is, and a folder that is gone afterwards."""

    run: Runner
    deadline: float
    data: Path
    scratch: Path
    clock: Callable[[], float] = time.monotonic

    def left(self) -> float:
        return self.deadline - self.clock()

    def call(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None, codes: Sequence[int | None] = (0,)
    ) -> Ended:
        """How a command ended, which must be with one of `codes`."""
        ended = self.run(words, self.left(), environment or {})
        if ended.code not in codes:
            if ended.code is None:
                raise OutOfTime("the minutes were over before it had ended.")
            raise RunError(f"`{shlex.join(['python', *words[1:]])}` ended with {ended.code}.")
        return ended

    def told(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
        """What a command says in JSON, in the last line that it prints."""
        out = self.call(words, environment).out
        try:
            return json.loads(out.strip().splitlines()[-1])
        except (IndexError, json.JSONDecodeError) as error:
            raise RunError(f"`{shlex.join(['python', *words[1:]])}` printed no JSON in the end.") from error


def measure_steps(session: Session, before: Any) -> Any:
    models = "cnn13,shake-shake-26-2x96d"
    return session.told([PYTHON, "-m", "fastswa", "bench", "--device", "cuda", "--models", models, "--json"])


def measure_engine(session: Session, before: Any) -> Any:
    return session.told([PYTHON, "benchmarks/engine.py", "--device", "cuda", "--json"])


def measure_starts(session: Session, before: Any) -> Any:
    """Seconds of starts; a first one, which is not counted, leaves byte code and kernels in folders of our own."""

    def start(kernels: str) -> dict[str, float]:
        caches = {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(session.scratch / "byte-code"),
            "TRITON_CACHE_DIR": str(session.scratch / f"kernels-{kernels}"),
            "TORCHINDUCTOR_CACHE_DIR": str(session.scratch / f"inductor-{kernels}"),
        }
        told = session.told([PYTHON, "benchmarks/engine.py", "--device", "cuda", "--start", "--json"], caches)
        return {name: told[name] for name in ("imports and data, s", "start, s")}

    start("kept")
    warm = [start("kept") for _ in range(3)]
    return {"warm": warm, NEW_KERNELS: [start("new")]}


def measure_seeds(session: Session, before: Any) -> Any:
    """What each seed's run says of its time at every evaluation."""
    out = session.scratch / "seeds"
    session.call(
        [
            *(PYTHON, "-m", "fastswa", "train", "cifar10-cnn-mean-teacher-4k", "--seeds", ",".join(SEEDS)),
            *("--epochs", "12", "--evaluation.every", "3", "--checkpoint.every", "3", "--no-report"),
            *("--data.root", str(session.data), "--out", str(out)),
        ]
    )
    found = {}
    for seed in SEEDS:
        lines = (out / f"seed-{seed}" / "metrics.jsonl").read_text("utf-8").splitlines()
        wanted = ("epoch", "step", "seconds", "edge_seconds")
        found[seed] = [{name: line[name] for name in wanted} for line in map(json.loads, lines)]
    with_edges, without = seeds_ms(found)
    print(f"a step of each: {with_edges:.3f} ms, {without:.3f} without what is done between epochs", flush=True)
    return found


def seeds_ms(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> tuple[float, float]:
    """Milliseconds a step and run of runs side by side after their first evaluation, with epochs' edges and without.

    The time is that of the run which evaluates first: the others' last evaluations wait for its end.
    """
    first, *_ = runs.values()
    seconds = first[-1]["seconds"] - first[0]["seconds"]
    edges = sum(lines[-1]["edge_seconds"] - lines[0]["edge_seconds"] for lines in runs.values())
    steps = sum(lines[-1]["step"] - lines[0]["step"] for lines in runs.values())
    return 1e3 * seconds / steps, 1e3 * (seconds - edges) / steps


def measure_rays(session: Session, before: Any) -> Any:
    return session.told([PYTHON, "benchmarks/rays.py", "--device", "cuda", "--json"])


def modules_for_gpu(root: Path = HOME) -> list[str]:
    """The test modules that ask for a GPU; others may need packages that its machine has not."""
    found = (root / "tests").rglob("test_*.py")
    return sorted(path.relative_to(root).as_posix() for path in found if "pytest.mark.gpu" in path.read_text("utf-8"))


def measure_tests(session: Session, before: Any) -> Any:
    """How many tests passed, failed and were skipped, and which failed; `left` are those that the clock left over.

    `before` is what an earlier command found, on the same machine and revision; it goes on with what that left over.
    """
    # pytest-benchmark, where it is installed, warns of workers, and warnings are errors here.
    pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", "-m", "gpu"]
    if before is None:
        listed = session.call([*pytest, "--collect-only", *modules_for_gpu()]).out
        wanted = [line.strip() for line in listed.splitlines() if "::" in line]
        before = {"passed": 0, "failed": 0, "skipped": 0, "failures": [], "left": wanted}
    # Most of their time is compiling, a core each; pyproject.toml's -q takes one of the v's back.
    workers = ["-n", str(min(WORKERS, os.cpu_count() or 1)), "--dist", "worksteal"] if find_spec("xdist") else []
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1"} if workers else {}
    ended = session.call([*pytest, *workers, "-vv", "--tb=short", *before["left"]], environment, codes=(0, 1, None))
    outcomes: dict[str, str] = {}
    for alone, outcome, workers_outcome, by_worker in OUTCOME.findall(ended.out):
        # What comes after a test that has passed may still fail.
        if (name := alone or by_worker) in before["left"]:
            outcomes[name] = KINDS.get(outcome or workers_outcome, "passed")
    if not outcomes and ended.code is None:
        raise OutOfTime("the minutes were over before a test had ended.")
    counts = {kind: before[kind] + list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    failures = [name for name, kind in outcomes.items() if kind == "failed"]
    left = [name for name in before["left"] if name not in outcomes]
    return {**counts, "failures": [*before["failures"], *failures], "left": left}


def has_cifar10(root: Path) -> bool:
    """Whether a file of CIFAR-10 lies in a folder, or at most two folders deeper."""
    names = ("data_batch_1", "data_batch_1.bin")
    return any(True for depth in ("", "*/", "*/*/") for name in names for _ in root.glob(f"{depth}{name}"))


@dataclass(frozen=True)
class Part:
    """A part: its key in the file, how it is measured, and the seconds that it should take.

    One that can be gone on with is begun where `least` of them are left; `images` says that it needs CIFAR-10.
    """

    key: str
    measure: Callable[[Session, Any], Any]
    command: str
    seconds: float
    least: float | None = None
    images: bool = False
    note: str | None = None


PARTS = {
    "steps": Part(
        "steps", measure_steps, "fastswa bench --device cuda --models cnn13,shake-shake-26-2x96d --json", 180
    ),
    "engine": Part("engine", measure_engine, "python benchmarks/engine.py --device cuda --json", 120),
    "starts": Part(
        "starts", measure_starts, "python benchmarks/engine.py --device cuda --start --json", 90,
        note="warm: Triton's kernels and Python's byte code kept from an earlier start",
    ),
    "seeds": Part(
        "three seeds", measure_seeds,
        "fastswa train cifar10-cnn-mean-teacher-4k --seeds 13,14,15 --epochs 12 --evaluation.every 3 "
        "--checkpoint.every 3 --no-report", 90, images=True,
        note="side by side in one process, so that `seconds` is the time of all three",
    ),
    "rays": Part("rays", measure_rays, "python benchmarks/rays.py --device cuda --json", 40),
    "tests": Part("tests", measure_tests, "pytest -m gpu tests", 400, least=60),
}  # fmt: skip
