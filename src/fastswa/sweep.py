"""The runs behind a table: which of them are missing, and how they are trained, several at a time.

A cell is one of the table's runs with one seed. It is done when results/ has every figure that the table shows of it up
to the epoch that is wanted; else its run folder is gone on with, or made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fastswa.config import RESUMABLE, AverageConfig, Config
from fastswa.data.sources import place
from fastswa.errors import FastswaError, RequestError
from fastswa.layers import build_config, flatten, merge
from fastswa.registry import nearest
from fastswa.results import keep_record
from fastswa.tables.measured import Result, differences, load_results, of_layer, on_gpu
from fastswa.tables.runs import TableRun, runs_of, swept_tables
from fastswa.training.checkpoint import load_checkpoint
from fastswa.training.device import choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.groups import TOGETHER, train_groups
from fastswa.training.loop import Watcher
from fastswa.training.run import NewRun, OldRun, RunResult, Say
from fastswa.training.seeds import seed_folder

SEEDS = (10, 11, 12)
_LISTED = "--dry-run lists them all."
Status = Literal["done", "missing", "begun", "unavailable", "failed", "stopped"]


@dataclass(frozen=True)
class Cell:
    """A run with a seed: its settings, the folder it is trained in, and how it stands; `note` says more.

    `kept` is what results/ has of it.
    """

    run: TableRun
    config: Config
    path: Path
    status: Status
    note: str = ""
    kept: tuple[Result, ...] = ()

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def name(self) -> str:
        """As its file in results/ is called."""
        return f"{self.run.name}-seed-{self.seed}"

    @property
    def epochs(self) -> int:
        return self.config.schedule.epochs

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "recipe": self.run.recipe,
            "method": self.run.method,
            "seed": self.seed,
            "epochs": self.epochs,
            "run": str(self.path),
            "status": self.status,
            "note": self.note,
        }


def plan_sweep(
    table: str,
    *,
    labels: Sequence[int] = (),
    methods: Sequence[str] = (),
    recipes: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    out: Path = Path("runs/sweep"),
    results: Path = Path("results"),
    changes: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of a table and how they stand; `changes` are settings that a resume may change."""
    changes = changes or {}
    for name in flatten(changes):
        if name not in RESUMABLE:
            raise RequestError(f"{name} would make other runs than the table's; a sweep takes {', '.join(RESUMABLE)}.")
    if len(set(seeds)) != len(seeds):
        raise RequestError("--seeds: a seed is named twice.")
    kept = load_results(results if results.exists() else None)
    cells = []
    for run in _chosen(table, labels, methods, recipes):
        own = of_layer(kept, run.layer, averages=run.whole)
        others = [result for result in kept if result not in own]
        cells += [_cell(run, seed, own, others, out, changes) for seed in seeds]
    return cells


def _chosen(table: str, labels: Sequence[int], methods: Sequence[str], recipes: Sequence[str]) -> list[TableRun]:
    """The table's runs with these labels, methods and recipes; all that are not given are meant."""
    if table not in swept_tables():
        raise RequestError(f"no runs belong to a table '{table}'; {nearest(table, swept_tables())}")
    offered = runs_of(table)
    if len(offered) == 1 and (labels or methods or recipes):
        raise RequestError(f"{table} is one recipe; leave labels, methods and recipes out.")
    for method in methods:
        if method not in (known := {run.method for run in offered}):
            raise RequestError(f"{table} has no runs of '{method}'; {nearest(method, known)}")
    for recipe in recipes:
        if recipe not in (names := {run.recipe for run in offered}):
            raise RequestError(f"{table} has no recipe '{recipe}'; {nearest(recipe, names, _LISTED)}")
    counts = sorted({run.labels for run in offered if run.labels is not None})
    if labels and not counts:
        raise RequestError(f"{table} does not tell runs apart by their labels; leave --labels out.")
    for count in labels:
        if count not in counts:
            raise RequestError(f"{table} has no row with {count} labels; there are: {', '.join(map(str, counts))}.")
    found = [
        run
        for run in offered
        if (not labels or run.labels in labels)
        and (run.method in methods if methods else not run.varied)
        and (not recipes or run.recipe in recipes)
    ]
    if not found:
        raise RequestError(f"{table} has no run with these labels, methods and recipes together.")
    # In the order asked for: what stands first is there first if time runs out.
    return sorted(
        found,
        key=lambda run: (
            labels.index(run.labels) if labels and run.labels is not None else 0,
            methods.index(run.method) if methods else 0,
            recipes.index(run.recipe) if recipes else 0,
        ),
    )


def _cell(
    run: TableRun,
    seed: int,
    results: Iterable[Result],
    others: Iterable[Result],
    out: Path,
    changes: Mapping[str, Any],
) -> Cell:
    """How a run with a seed stands; `others` are the results of other runs, some of which may have its name."""
    config = build_config(run.layer, merge(changes, {"seed": seed}))
    wanted, every = config.schedule.epochs, config.evaluation.every
    if wanted < 1:
        raise RequestError("schedule.epochs 0 would train nothing; name an epoch to train to.")
    for _, epoch in run.figures:
        if epoch < wanted and epoch % every:
            raise RequestError(
                f"evaluation.every {every} passes over epoch {epoch}, which the table shows of {run.name}."
            )
    kept = tuple(result for result in results if result.seed == seed)
    cell = Cell(run, config, seed_folder(out / run.name, seed), "missing", kept=kept)
    lacks = lacking(run, kept, wanted)
    files = " and ".join(result.file for result in kept)
    if not lacks:
        whole = [result.file for result in kept if not lacking(run, [result], wanted)]
        return replace(cell, status="done", note=whole[0] if whole else files)
    absent = [file for file in (config.data.extra, config.data.extra_file) if file and not _there(file, config)]
    if absent:
        return replace(cell, status="unavailable", note=f"needs {' and '.join(absent)}, not there or in data.root")
    notes = [f"{files} {'lacks' if len(kept) == 1 else 'lack'} {lacks}"] if kept else []
    notes += [_another(result, run) for result in others if _is_called(result.file, cell.name)]
    if (cell.path / "config.toml").exists():
        notes = [_begun(cell), *notes]
        cell = replace(cell, status="begun")
    return replace(cell, note="; ".join(notes))


def _there(file: str, config: Config) -> bool:
    return place(file, Path(config.data.root)).exists()


def _is_called(file: str, name: str) -> bool:
    """Whether a record's file has the name that a cell's would have, or a numbered one."""
    return re.fullmatch(rf"{re.escape(name)}(-\d+)?\.json", file) is not None


def _another(result: Result, run: TableRun) -> str:
    unlike = sorted(differences(result.config, run.layer, gpu=result.gpu is not None))
    if result.partial:
        unlike.append("a part of the data")
    return f"{result.file} is another run ({', '.join(unlike) or 'its averages'})"


def _begun(cell: Cell) -> str:
    """How far a cell's folder is, or why it cannot be gone on with."""
    try:
        _refuse_another(cell, RunFolder.open(cell.path))
    except FastswaError as error:
        return str(error).rstrip(".")
    metrics = RunFolder(cell.path).metrics()
    reached = metrics[-1]["epoch"] if metrics else 0
    return f"at epoch {reached}" + (f" of {cell.epochs}" if reached <= cell.epochs else "")


def _refuse_another(cell: Cell, folder: RunFolder) -> None:
    """RequestError where a folder holds another run than the cell's."""
    config = folder.config()
    unlike = differences(config, cell.run.layer, gpu=on_gpu(folder.known_environment()))
    if unlike or config.seed != cell.seed:
        raise RequestError(
            f"{folder.path} holds another run than {cell.run.name} with seed {cell.seed} "
            f"({', '.join(sorted(unlike)) or 'its seed'}); move it away."
        )


def lacking(run: TableRun, results: Sequence[Result], wanted: int) -> str:
    """Which of the figures that a table shows of a run up to epoch `wanted` no result has, in words; "" if none.

    Whatever the table shows, each of its networks has to be measured as far as `wanted`.
    """
    averages = build_config(run.layer).averaging
    networks = list(dict.fromkeys(network for network, _ in run.figures)) or ["student"]
    epochs = {network: _measured_epochs(results, network, averages.get(network)) for network in networks}
    missing: dict[int, list[str]] = {}
    for network, epoch in run.figures:
        if epoch <= wanted and epoch not in epochs[network]:
            missing.setdefault(epoch, []).append(network)
    for network in networks:
        begun = network not in averages or (averages[network].start or 0) <= wanted
        if begun and max(epochs[network], default=0) < wanted and network not in missing.get(wanted, []):
            missing.setdefault(wanted, []).append(network)
    return " and ".join(f"{', '.join(names)} at epoch {epoch}" for epoch, names in sorted(missing.items()))


def _measured_epochs(results: Iterable[Result], network: str, average: AverageConfig | None) -> set[int]:
    """The epochs at which results have a network's error; an average is known by what it averages."""
    found = set()
    for result in results:
        names = [name for name, own in result.config.averaging.items() if own == average] if average else [network]
        found |= {line["epoch"] for line in result.metrics if any(name in line.get("error", {}) for name in names)}
    return found


def at_once(cells: Sequence[Cell], asked: int | None = None) -> int:
    """How many runs to train at a time: on a GPU as `asked`, else what it is good for, or one where time is shown."""
    device = choose_compute(cells[0].config.device).device.type if cells else "cpu"
    if device == "cpu":
        return TOGETHER[device]
    return asked or (1 if any(cell.run.alone for cell in cells) else TOGETHER[device])


@dataclass
class Sweep:
    """Trains what is missing of some cells, `together` at a time, and keeps the record of each in `results`.

    A cell that fails leaves the others going. `watch` gives the watcher of a cell's run; once `stopping` says so, what
    runs is saved and nothing more is started. `began` is when the command did, for the time that its first runs take.
    """

    cells: list[Cell]
    results: Path
    together: int
    changes: Mapping[str, Any]
    watch: Callable[[Cell], Watcher]
    stopping: Callable[[], bool]
    say: Say
    began: float | None = None
    ended: dict[str, Cell] = field(default_factory=dict)

    def run(self) -> list[Cell]:
        """Every cell as it stands in the end."""
        waiting = [cell for cell in self.cells if cell.status in ("missing", "begun")]
        runs = map(self._run_of, waiting)
        for number, outcome in train_groups(runs, self.together, self.say, began=self.began, stopping=self.stopping):
            self._ended(waiting[number], outcome)
        return [self.ended.get(cell.name, cell) for cell in self.cells]

    def _ended(self, cell: Cell, outcome: RunResult | Exception) -> None:
        if isinstance(outcome, Exception):
            self._end(cell, "failed", sentence_of(outcome))
            self.say(f"{cell.name} failed: {sentence_of(outcome)}")
        elif outcome.finished:
            self._keep(cell, outcome)
        else:
            last = outcome.metrics[-1]["epoch"] if outcome.metrics else 0
            self._end(cell, "stopped", f"after epoch {last} of {cell.epochs}")

    def _run_of(self, cell: Cell) -> NewRun | OldRun:
        if cell.status == "missing":
            return NewRun(cell.config, cell.path, self.watch(cell))
        return _Continued(cell.path, self.watch(cell), self.changes, cell)

    def _keep(self, cell: Cell, result: RunResult) -> None:
        try:
            kept = keep_record(result.path, self.results, cell.name)
        except FastswaError as error:
            self._end(cell, "failed", str(error))
            self.say(f"{cell.name} was trained, but: {error}")
        else:
            self._end(cell, "done", kept.name)

    def _end(self, cell: Cell, status: Status, note: str) -> None:
        self.ended[cell.name] = replace(cell, status=status, note=note)


@dataclass(frozen=True)
class _Continued(OldRun):
    """A begun cell; what lies in its folder must be its run."""

    cell: Cell | None = None

    def settings(self) -> Config:
        assert self.cell is not None
        folder = RunFolder.open(self.path)
        _refuse_another(self.cell, folder)
        # What is trained already stays, also where less was asked for.
        newest = load_checkpoint(folder.checkpoints, lambda _: None)
        wanted = max(math.ceil(newest.facts["epoch"]) if newest else 0, self.cell.epochs)
        changed = super().settings()
        changed = changed.model_copy(update={"schedule": changed.schedule.model_copy(update={"epochs": wanted})})
        in_the_end = Result(self.path.name, changed, _with_lines_to_come(folder.metrics(), changed))
        if lacks := lacking(self.cell.run, [*self.cell.kept, in_the_end], self.cell.epochs):
            raise RequestError(f"the run in {self.path} cannot give {lacks} any more; move it away to train it anew.")
        return changed


def _with_lines_to_come(metrics: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    """A run's evaluations and, without figures, those that it makes if it goes on."""
    last, ends = (metrics[-1]["epoch"] if metrics else 0), config.schedule.epochs
    names = ("student", "teacher", *config.averaging)
    ahead = [epoch for epoch in range(int(last) + 1, ends + 1) if epoch % config.evaluation.every == 0 or epoch == ends]
    return [*metrics, *({"epoch": epoch, "error": dict.fromkeys(names)} for epoch in ahead)]


def sentence_of(error: Exception) -> str:
    if isinstance(error, FastswaError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
