"""benchmarks/confirm.py: parts are kept, done anew and left as it says; a machine made up here plays the commands."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOME = Path(__file__).parents[1]
FIRST, SECOND = "a" * 40, "b" * 40
ALL = ("steps", "engine", "starts", "seeds", "rays", "tests")
TESTS = ("tests/a.py::test_one", "tests/a.py::test_two[a b]", "tests/b.py::test_three")
# Seconds that each command takes, were it as expected.
TAKES = {
    **{"place": 4.0, "steps": 150.0, "engine": 80.0, "start": 10.0, "seeds": 70.0},
    **{"rays": 20.0, "list": 15.0, "tests": 100.0},
}


def module(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOME / "benchmarks"))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def confirm() -> ModuleType:
    return module("confirm")


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    return module("engine_parts")


class Machine:
    """Plays the commands: each takes its seconds of a clock of its own, and says what is expected or `says`."""

    def __init__(self, confirm: ModuleType, folder: Path) -> None:
        self.confirm, self.parts, self.folder = confirm, module("engine_parts"), folder
        self.out = folder / "engine.json"
        self.now = 0.0
        self.asked: list[str] = []
        self.environments: list[Mapping[str, str]] = []
        self.takes = dict(TAKES)
        self.says: dict[str, Any] = {}
        self.environment: dict[str, Any] = {"gpu": "NVIDIA H200", "torch": "2.11.0", "revision": FIRST}
        self.outcomes = dict.fromkeys(TESTS, "PASSED")
        self.test_seconds = 100.0 / 3
        (folder / "data").mkdir()
        (folder / "data" / "data_batch_1.bin").touch()

    def __call__(self, words: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Any:
        if self.out.exists():
            json.loads(self.out.read_text())  # whole, whenever one looks
        name = self.named(words)
        self.asked.append(name)
        self.environments.append(environment)
        if name == "tests":
            return self.tested([word for word in words if "::" in word], seconds)
        self.now += min(self.takes[name], seconds)
        if self.takes[name] > seconds:
            return self.parts.Ended(None, "")
        answer = self.says.get(name, self.answer(name, words))
        return answer if isinstance(answer, self.parts.Ended) else self.parts.Ended(0, f"a line\n{answer}\n")

    @staticmethod
    def named(words: Sequence[str]) -> str:
        if "pytest" in words:
            return "list" if "--collect-only" in words else "tests"
        if "--start" in words:
            return "start"
        kinds = {
            "-c": "place",
            "bench": "steps",
            "benchmarks/engine.py": "engine",
            "train": "seeds",
            "benchmarks/rays.py": "rays",
        }
        return next(kind for word, kind in kinds.items() if word in words)

    def answer(self, name: str, words: Sequence[str]) -> str:
        if name == "place":
            return json.dumps(self.environment)
        if name == "start":
            return json.dumps({"device": "cuda", "imports and data, s": 3.0, "start, s": self.now})
        if name == "list":
            return "\n".join(TESTS) + "\n\n3/9 tests collected"
        if name == "seeds":
            for seed in ("13", "14", "15"):
                run = Path(words[words.index("--out") + 1]) / f"seed-{seed}"
                run.mkdir(parents=True)
                lines = [
                    {"epoch": 3, "step": 2000, "seconds": 10.0, "edge_seconds": 0.5, "error": {}},
                    {"epoch": 6, "step": 4000, "seconds": 19.0, "edge_seconds": 0.7, "error": {}},
                ]
                (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return json.dumps({"figure of": name, "at": self.now})

    def tested(self, names: Sequence[str], seconds: float) -> Any:
        lines = []
        for number, name in enumerate(names, 1):
            if number * self.test_seconds > seconds:
                self.now += seconds
                return self.parts.Ended(None, "\n".join([*lines, f"{name} "]))
            lines.append(f"{name} {self.outcomes[name]} [ {number}%]")
        self.now += len(names) * self.test_seconds
        return self.parts.Ended(int("FAILED" in self.outcomes.values()), "\n".join(lines))

    def measure(self, *names: str, minutes: float = 60.0, again: bool = False, revision: str | None = None) -> int:
        """`confirm.py --parts NAMES --minutes MINUTES`, the commands asked for since then in `asked`."""
        self.asked.clear()
        self.environments.clear()
        scratch = self.folder / f"scratch-{self.now}"
        scratch.mkdir()
        session = self.parts.Session(
            self, self.now + 60 * minutes, self.folder / "data", scratch, clock=lambda: self.now
        )
        code: int = self.confirm.confirm(self.confirm.Record(self.out), names or ALL, session, revision, again)
        return code

    @property
    def found(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.out.read_text())
        return content


@pytest.fixture
def machine(confirm: ModuleType, tmp_path: Path) -> Machine:
    return Machine(confirm, tmp_path)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_every_part_is_measured_and_says_with_what(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.measure() == 0
    assert machine.asked == ["place", "steps", "engine", *["start"] * 5, "seeds", "rays", "list", "tests"]
    found = machine.found
    assert found["steps"]["figure of"] == "steps"
    assert found["engine"]["figure of"] == "engine"
    assert found["tests"] == {"passed": 3, "failed": 0, "skipped": 0, "failures": [], "left": []}
    wanted = {"revision": "a" * 7, "device": "NVIDIA H200", "torch": "2.11.0"}
    assert set(found["measured"]) == set(found) - {"measured"} == {*ALL, "three seeds"} - {"seeds"}
    for facts in found["measured"].values():
        assert wanted.items() <= facts.items()
        assert facts["command"]
    assert [found["measured"][name]["seconds"] for name in ("steps", "starts", "tests")] == [150, 50, 115]
    assert last_line(capsys) == f"{machine.out} holds {', '.join(ALL)} at revision aaaaaaa."


def test_starts_keep_kernels_and_byte_code_but_for_the_last(machine: Machine) -> None:
    machine.measure("starts")
    found, settings = machine.found["starts"], machine.environments[1:]
    # The first, at 14 s, only leaves them behind.
    assert [start["start, s"] for start in found["warm"]] == [24.0, 34.0, 44.0]
    assert [start["start, s"] for start in found["kernels compiled anew, byte code kept"]] == [54.0]
    assert len({each["PYTHONPYCACHEPREFIX"] for each in settings}) == 1
    assert len({each["TRITON_CACHE_DIR"] for each in settings[:4]}) == 1
    assert settings[4]["TRITON_CACHE_DIR"] != settings[3]["TRITON_CACHE_DIR"]


def test_seeds_are_kept_by_evaluation_and_told_a_step(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.measure("seeds")
    line = {"epoch": 6, "step": 4000, "seconds": 19.0, "edge_seconds": 0.7}
    assert machine.found["three seeds"]["15"][-1] == line
    # 9 s of 3 x 2,000 steps, of which three times 0.2 s lie between epochs.
    assert "a step of each: 1.500 ms, 1.400 without" in capsys.readouterr().out


def test_seeds_are_skipped_without_images(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.folder / "data" / "data_batch_1.bin").unlink()
    assert machine.measure("seeds", "engine") == 0
    assert machine.asked == ["place", "engine"]
    assert last_line(capsys) == f"left: seeds (no CIFAR-10 in {machine.folder / 'data'}, which --data.root names)."


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-py", "a/cifar-10-batches-bin"])
def test_images_are_looked_for_where_training_looks(parts: ModuleType, tmp_path: Path, folder: str) -> None:
    assert not parts.has_cifar10(tmp_path)
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "data_batch_1.xz").touch()
    assert not parts.has_cifar10(tmp_path)
    (tmp_path / folder / "data_batch_1").touch()
    assert parts.has_cifar10(tmp_path)


def test_parts_of_the_same_place_are_kept_unless_asked_for_again(machine: Machine) -> None:
    machine.measure()
    before = machine.out.read_bytes()
    assert machine.measure() == 0
    assert machine.asked == ["place"]
    assert machine.out.read_bytes() == before
    machine.measure("engine", again=True)
    assert machine.asked == ["place", "engine"]
    assert machine.found["engine"] != json.loads(before)["engine"]
    assert machine.found["steps"] == json.loads(before)["steps"]


@pytest.mark.parametrize("changed", [{"revision": SECOND}, {"gpu": "NVIDIA H100"}, {"torch": "2.12.0"}])
def test_parts_of_another_place_are_measured_anew(machine: Machine, changed: dict[str, str]) -> None:
    machine.measure("steps", "engine")
    before = machine.found
    machine.environment.update(changed)
    machine.measure("steps")
    assert machine.asked == ["place", "steps"]
    assert machine.found["steps"] != before["steps"]
    # What was not asked for stays, and says of itself where it is from.
    assert (machine.found["engine"], machine.found["measured"]["engine"]) == (
        before["engine"],
        before["measured"]["engine"],
    )
    assert machine.found["measured"]["steps"] != before["measured"]["steps"]


def test_code_that_was_changed_after_its_revision_keeps_nothing(machine: Machine) -> None:
    machine.environment["revision"] = f"{FIRST}+"
    for _ in range(2):
        machine.measure("steps")
        assert machine.asked == ["place", "steps"]
    assert machine.found["measured"]["steps"]["revision"] == "aaaaaaa+"


def test_a_copy_without_a_revision_has_to_be_told_it(machine: Machine, confirm: ModuleType) -> None:
    machine.environment["revision"] = None
    with pytest.raises(confirm.RequestError, match="does not know its revision"):
        machine.measure("steps")
    assert machine.asked == ["place"]
    assert machine.measure("steps", revision="771218c") == 0
    assert machine.found["measured"]["steps"]["revision"] == "771218c"


def test_nothing_is_measured_without_a_gpu(machine: Machine, confirm: ModuleType) -> None:
    machine.environment["gpu"] = None
    with pytest.raises(confirm.RequestError, match="torch sees none"):
        machine.measure()
    assert not machine.out.exists()


def test_what_does_not_fit_is_left_and_the_next_command_goes_on(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.measure("steps", "engine", "starts", minutes=5.0) == 0
    # 300 - 4 - 150 s would do for the engine's 120; the 66 that are left do not for the starts' 90.
    assert machine.asked == ["place", "steps", "engine"]
    assert last_line(capsys) == "left: starts (it takes about 1.5 minutes)."
    assert machine.measure("steps", "engine", "starts", minutes=5.0) == 0
    assert machine.asked == ["place", *["start"] * 5]


def test_a_part_that_outruns_the_minutes_is_stopped_and_left(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.takes["steps"] = 1000.0
    assert machine.measure("steps", "engine", minutes=9.0) == 0
    assert machine.now == 540.0
    assert not machine.out.exists()
    assert last_line(capsys) == (
        "left: steps (the minutes were over before it had ended); engine (it takes about 2.0 minutes)."
    )


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("nothing that is JSON", "printed no JSON in the end"),
        ("{}", "its answer is not what was expected (KeyError('imports and data, s'))"),
        (1, "ended with 1"),
    ],
)
def test_a_part_that_fails_leaves_the_others(
    machine: Machine, capsys: pytest.CaptureFixture[str], says: str | int, why: str
) -> None:
    machine.measure("starts")
    before = machine.found
    machine.environment["revision"] = SECOND
    machine.says["start"] = says if isinstance(says, str) else machine.parts.Ended(says, "")
    assert machine.measure("steps", "starts", "engine") == 1
    told = last_line(capsys)
    assert told.startswith("left: starts (failed: ")
    assert why in told
    assert machine.found["starts"] == before["starts"]
    assert machine.found["measured"]["starts"] == before["measured"]["starts"]
    assert {"steps", "engine"} <= set(machine.found)


def test_a_file_that_cannot_be_written_stays_as_it_was(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.measure("steps")
    before, write = machine.out.read_bytes(), Path.write_text

    def half(path: Path, text: str, encoding: str) -> int:
        write(path, text[: len(text) // 2], encoding)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    assert machine.measure("engine") == 1
    assert last_line(capsys) == f"left: engine (failed: cannot write {machine.out}: No space left on device)."
    assert machine.out.read_bytes() == before
    assert [path.name for path in machine.folder.glob("*.json*")] == ["engine.json"]


def test_failed_and_skipped_tests_are_counted_and_named(machine: Machine) -> None:
    machine.outcomes.update({TESTS[1]: "FAILED", TESTS[2]: "SKIPPED (no Triton)"})
    assert machine.measure("tests") == 0
    wanted = {"passed": 1, "failed": 1, "skipped": 1, "failures": [TESTS[1]], "left": []}
    assert machine.found["tests"] == wanted


def test_modules_without_a_test_for_a_gpu_are_not_even_read(parts: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "test_a.py": "import nobody_has_this",
        "gpu/test_b.py": "pytestmark = [pytest.mark.gpu]",
        "data/test_c.py": "@pytest.mark.gpu",
        "gpu/cases.py": "# pytest.mark.gpu",
    }.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text, "utf-8")
    assert parts.modules_for_gpu(tmp_path) == ["tests/data/test_c.py", "tests/gpu/test_b.py"]
    assert "tests/gpu/test_engines.py" in parts.modules_for_gpu()


def test_what_comes_after_a_test_may_fail_as_well(parts: ModuleType) -> None:
    def run(words: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Any:
        text = f"{TESTS[0]} PASSED [ 50%]\n{TESTS[0]} ERROR [ 50%]\nFAILED {TESTS[1]} PASSED\nERROR {TESTS[0]} - why"
        return parts.Ended(1, text)

    session = parts.Session(run, 1e9, Path(), Path())
    before = {"passed": 5, "failed": 0, "skipped": 0, "failures": [], "left": [*TESTS[:2]]}
    assert parts.measure_tests(session, before) == {
        **{"passed": 5, "failed": 1, "skipped": 0},
        **{"failures": [TESTS[0]], "left": [TESTS[1]]},
    }


def test_workers_lines_are_read_too(parts: ModuleType) -> None:
    def run(words: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Any:
        text = f"{TESTS[0]} \n{TESTS[1]} \n[gw1] [ 50%] PASSED {TESTS[0]} \n[gw10] [100%] FAILED {TESTS[1]} \n"
        return parts.Ended(1, text)

    before = {"passed": 0, "failed": 0, "skipped": 0, "failures": [], "left": [*TESTS]}
    assert parts.measure_tests(parts.Session(run, 1e9, Path(), Path()), before) == {
        **{"passed": 1, "failed": 1, "skipped": 0},
        **{"failures": [TESTS[1]], "left": [TESTS[2]]},
    }


def test_tests_go_on_where_the_clock_stopped_them(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.outcomes[TESTS[0]] = "FAILED"
    machine.test_seconds = 35.0
    # 4 s to look at the machine and 15 to list the tests leave 71: enough for two.
    assert machine.measure("tests", minutes=1.5) == 0
    assert machine.found["tests"] == {
        **{"passed": 1, "failed": 1, "skipped": 0},
        **{"failures": [TESTS[0]], "left": [TESTS[2]]},
    }
    assert last_line(capsys) == "left: tests (1 of them not run)."
    assert machine.measure("tests", minutes=1.5) == 0
    assert machine.asked == ["place", "tests"]
    assert machine.found["tests"] == {
        **{"passed": 2, "failed": 1, "skipped": 0},
        **{"failures": [TESTS[0]], "left": []},
    }


def test_the_command_line_refuses_what_it_cannot_do(
    confirm: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*words: Any) -> Any:
        raise AssertionError

    (tmp_path / "other.json").write_text("[]")
    for words, why in (
        (["--parts", "steps,laps"], "--parts: 'laps' is not one of steps, engine"),
        (["--out", str(tmp_path / "other.json")], "cannot be read as a file of the engine's figures"),
        (["--out", str(tmp_path / "no" / "folder" / "e.json" / "x")], None),
    ):
        if why is None:
            (tmp_path / "no").write_text("a file")
            why = "is no folder"
        assert confirm.main(words, never) == 2
        assert why in capsys.readouterr().err


def test_the_results_of_the_repository_can_be_gone_on_with(confirm: ModuleType, parts: ModuleType) -> None:
    """Every part of it says what it was measured with, and a part at its own revision is kept."""
    record = confirm.Record(confirm.RECORD)
    facts = record.content["measured"]
    assert set(facts) == set(record.content) - {"measured"}
    for part in parts.PARTS.values():
        here = {name: facts[part.key][name] for name in ("revision", "device", "torch")}
        assert record.found(part, here) is record.content[part.key]


def test_a_command_is_run_from_the_root_and_heard(parts: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import os, fastswa; print(os.getcwd()); print(os.environ['WORD']); print('x PASSED'); raise SystemExit(3)"
    ended = parts.run_command([sys.executable, "-c", code], 60.0, {"WORD": "said"})
    assert (ended.code, ended.out) == (3, f"{HOME}\nsaid\nx PASSED\n")
    assert capsys.readouterr().out == f"{HOME}\nsaid\n"


def test_a_command_is_stopped_with_all_that_it_started(parts: ModuleType) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    began = time.monotonic()
    ended = parts.run_command([sys.executable, "-c", code], 2.0, {})
    assert ended.code is None
    assert time.monotonic() - began < 30
    number = int(ended.out)
    for _ in range(100):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child is still there")
