"""What results/*.json measured, matched to the runs behind the paper's tables.

A file belongs to a run when its settings are the recipe's, but for the seeds, for what a resume may change and for
whether every number was to come out the same again; its arithmetic must be what a recipe gets on such a machine.
Averages are told apart by what they average, not by name, so a run may carry any number of others. A run that stopped
early belongs to its row too, and has nothing to say where the others go on.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fastswa.config import RESUMABLE, Config, to_dict
from fastswa.errors import RequestError
from fastswa.layers import build_config, flatten
from fastswa.tables.rows import Row, all_rows

_FREE = {*RESUMABLE, "seed", "split.seed", "device.deterministic"}
# Training and test images of published sets; of two domains the source's and the target's, in the classes of both.
PUBLISHED_IMAGES = {
    ("cifar10", None): (50_000, 10_000),
    ("cifar100", None): (50_000, 10_000),
    ("cifar10", "stl10"): (45_000, 7_200),
    ("mnist", "usps"): (60_000, 2_007),
    ("usps", "mnist"): (7_291, 10_000),
    ("mnist", "usps-margin"): (60_000, 2_007),
    ("usps-margin", "mnist"): (7_291, 10_000),
}
# Files, which lie elsewhere on every machine: their names are what counts.
_FILES = ("data.extra", "data.extra_file")
# How many images a list of the paper's has at least, by its name.
FEWEST_LISTED = {"tiny-237k.txt": 236_500}


@dataclass(frozen=True)
class Result:
    """One file of results/: a run's settings and its evaluations; it had up to `together` - 1 others beside it.

    `gpu` is None where it ran on a CPU or, `located` being false, where nobody knows; `wall_seconds` where nobody took
    the time from the command to the model. `partial` marks a run on a part of a published data set, which is none of a
    table's.
    """

    file: str
    config: Config
    metrics: list[dict[str, Any]]
    together: int = 1
    gpu: str | None = None
    wall_seconds: float | None = None
    partial: bool = False
    located: bool = True

    @property
    def on_gpu(self) -> bool | None:
        """Whether it ran on a GPU; None where that is not known."""
        return self.gpu is not None if self.located else None

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def epochs(self) -> int:
        """How far it came."""
        return max((int(line["epoch"]) for line in self.metrics), default=0)


@dataclass(frozen=True)
class Measured:
    """Errors in percent by seed, and the minutes of the device that reaching that epoch took on average.

    `records` are the files that they stand in.
    """

    errors: dict[int, float]
    minutes: float
    records: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.errors)

    @property
    def mean(self) -> float:
        return mean(self.errors.values())

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None with one seed."""
        return stdev(self.errors.values()) if self.count > 1 else None


def load_results(folder: Path | None) -> list[Result]:
    """The runs that a folder of results holds (no folder: none); its other files are passed over."""
    if folder is None:
        return []
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder; name the one that holds results/*.json.")
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"{path} is not readable JSON: {error}.") from error
        if not isinstance(record, dict) or not {"config", "metrics"} <= record.keys():
            continue
        if not _whole(record):
            raise RequestError(f"{path} is not a run's record as `fastswa sweep` writes it; move it away.")
        try:
            config = build_config(record["config"])
        except RequestError as error:
            raise RequestError(f"{path} may be of another version of fastswa: {error} Move it away.") from error
        place = record.get("environment") or {}
        gpu = place.get("gpu") if on_gpu(place) else None
        ran = (place.get("together", 1), gpu, record.get("wall_seconds"))
        found.append(Result(path.name, config, record["metrics"], *ran, _partial(config, place), bool(place)))
    return found


def _partial(config: Config, place: Mapping[str, Any]) -> bool:
    """Whether a run did not have all images of a published set, or fewer extra ones than it was to have.

    Records once did not count them.
    """
    images, published = place.get("images"), PUBLISHED_IMAGES.get((config.data.source, config.data.target))
    extra = config.data.extra_images or FEWEST_LISTED.get(Path(config.data.extra_file or "").name, 0)
    if place.get("extra_images", extra) < extra:
        return True
    if images is None or published is None:
        return False
    return (images.get("train"), images.get("test")) != published


def _whole(record: Mapping[str, Any]) -> bool:
    """Whether a record's parts are of the kinds that tables read."""
    lines, place = record["metrics"], record.get("environment") or {}
    return (
        isinstance(record["config"], dict)
        and isinstance(place, dict)
        and _counts(place.get("together", 1))
        and isinstance(place.get("images") or {}, dict)
        and _number(place.get("extra_images", 0))
        and isinstance(lines, list)
        and bool(lines)
        and all(isinstance(line, dict) and _whole_line(line) for line in lines)
    )


def _whole_line(line: Mapping[str, Any]) -> bool:
    errors = line.get("error", {})
    return (
        _number(line.get("epoch"))
        and _number(line.get("seconds"))
        and _counts(line.get("together", 1))
        and isinstance(errors, dict)
        and all(map(_number, errors.values()))
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _counts(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def device_minutes(metrics: Sequence[Mapping[str, Any]], together: int = 1) -> list[float]:
    """The minutes of the device that a run had taken at each evaluation: its share where several ran at once.

    A line says how many did; `together` stands in for lines from before they said so.
    """
    minutes, total, before = [], 0.0, 0.0
    for line in metrics:
        total += (line["seconds"] - before) / 60 / line.get("together", together)
        before = line["seconds"]
        minutes.append(total)
    return minutes


def by_row(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each run by its recipe's name; those that are no published run are left out."""
    grouped: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        ours = _compared(result.config, result.on_gpu)
        for name, row in all_rows().items():
            if _belongs(result, ours, _recipe_settings(name)) and _has_averages(result, row):
                grouped[name].append(result)
    return dict(grouped)


def _has_averages(result: Result, row: Row) -> bool:
    """Whether a run carries what a variant is about; of the tables' own rows any part will do."""
    averages = result.config.averaging.values()
    return not row.variant or all(average in averages for average in recipe_config(row.name).averaging.values())


@cache
def recipe_config(name: str) -> Config:
    """The resolved settings of a generated recipe."""
    return build_config(all_rows()[name].layer())


def on_gpu(environment: Mapping[str, Any]) -> bool | None:
    """Whether a run's environment says that it ran on a GPU; None where nothing is known of it."""
    return environment.get("gpu") is not None and environment.get("device") != "cpu" if environment else None


def differences(config: Config, layer: Mapping[str, Any], *, gpu: bool | None) -> set[str]:
    """The settings in which a run, on a GPU or not, is another than `layer`'s (seeds and resumable ones excepted)."""
    return _differing(_compared(config, gpu), *_settings(layer))


def of_layer(results: Sequence[Result], layer: Mapping[str, Any], *, averages: bool = False) -> list[Result]:
    """The results whose settings are those of `layer`, but for seeds, averages and what a resume may change.

    With `averages` only those that have every average of `layer`, whatever else they have.
    """
    theirs = _settings(layer)
    found = [result for result in results if _belongs(result, _compared(result.config, result.on_gpu), theirs)]
    if not averages:
        return found
    wanted = build_config(dict(layer)).averaging.values()
    return [result for result in found if all(average in result.config.averaging.values() for average in wanted)]


def _belongs(result: Result, ours: Mapping[str, Any], theirs: tuple[dict[str, Any], frozenset[str]]) -> bool:
    """Whether a run, what is compared of it being `ours`, is one of `theirs`."""
    return not result.partial and not _differing(ours, *theirs)


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any], stated: frozenset[str]) -> set[str]:
    """In which settings a run is another; `stated` are those that its description names."""
    unlike = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    if not unlike or unlike & stated or not all(name.startswith("method.") for name in unlike):
        return unlike
    # What is left are defaults of [method], and a default that the method does not read is no difference.
    from fastswa.methods import method_class

    return unlike & {f"method.{setting}" for setting in method_class(ours["method.name"]).settings}


@cache
def _recipe_settings(name: str) -> tuple[dict[str, Any], frozenset[str]]:
    return _settings(all_rows()[name].layer())


def _settings(layer: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """What is compared of a run, and which settings its description states itself."""
    return _compared(build_config(dict(layer))), frozenset(flatten(layer))


def _compared(config: Config, gpu: bool | None = None) -> dict[str, Any]:
    """The settings that tell runs apart; where it ran, on a `gpu` or not, says which arithmetic `auto` was.

    Where nothing is known of that it may have been either.
    """
    flat = {name: value for name, value in flatten(to_dict(config)).items() if name not in _FREE}
    flat |= {name: Path(flat[name]).name for name in _FILES if name in flat}
    if flat["device.precision"] in {True: ("bf16",), False: ("fp32",), None: ("bf16", "fp32")}[gpu]:
        flat["device.precision"] = "auto"
    # Left open, a built-in data set holds no image out.
    return {"split.validation": 0} | {name: value for name, value in flat.items() if not name.startswith("averaging.")}


def network_name(result: Result, row: Row, network: str) -> str | None:
    """The name under which a run keeps `network`: student, teacher, or the recipe's swa, fast-swa or ema."""
    if network in ("student", "teacher"):
        return network
    wanted = [average for average in recipe_config(row.name).averaging.values() if average.kind == network]
    names = [name for name, average in result.config.averaging.items() if average in wanted]
    return names[0] if names else None


def measured(results: Sequence[Result], row: Row, network: str, epoch: int) -> Measured | None:
    """The errors of a network at an epoch over the seeds; None where no run has them."""
    return pooled([(result, network_name(result, row, network)) for result in results], epoch)


def pooled(named: Sequence[tuple[Result, str | None]], epoch: int) -> Measured | None:
    """The errors at an epoch of the network that each run keeps under a name; None where no run has them.

    Runs that repeat a seed count as one, with their mean error.
    """
    errors: dict[int, list[float]] = defaultdict(list)
    minutes, records = [], []
    for result, name in named:
        spent = device_minutes(result.metrics, result.together)
        for line, share in zip(result.metrics, spent, strict=True):
            if line["epoch"] == epoch and name in line.get("error", {}):
                errors[result.seed].append(line["error"][name])
                minutes.append(share)
                records.append(result.file)
    if not errors:
        return None
    return Measured({seed: mean(errors[seed]) for seed in sorted(errors)}, mean(minutes), tuple(records))
