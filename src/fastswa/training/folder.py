"""The run folder: config.toml, metrics.jsonl, models, environment.json. Nothing here knows how training works."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from fastswa.config import AverageConfig, Config
from fastswa.errors import FastswaError, RequestError, RunError
from fastswa.layers import build_config, file_layer, to_toml
from fastswa.modelfile import ModelFacts, read_facts, refuse_several, save_model
from fastswa.whole import reason, replacing

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

# Which network a finished run offers for use: the first of these kinds that it has, never chosen on test images.
PREFERENCE = ("fast-swa", "swa", "teacher", "ema", "student", "last")


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self._metrics = path / "metrics.jsonl"

    def refuse_taken(self) -> None:
        """Refuse a folder that already holds a run, or several."""
        if any((self.path / name).exists() for name in ("config.toml", "metrics.jsonl", "checkpoint")):
            raise RequestError(
                f"{self.path} already holds a run; continue it with `fastswa resume {shlex.quote(str(self.path))}` "
                "or choose another --out."
            )
        if any(self.path.glob("seed-*/config.toml")):
            raise RequestError(f"{self.path} holds the runs of several seeds; choose another --out.")

    def create(
        self, config: Config, facts: Mapping[str, Any] | None = None, domains: Mapping[str, Any] | None = None
    ) -> None:
        """Make the folder of a new run. Its settings come last: where they are, all that a resume needs is."""
        self.refuse_taken()
        with _writing(self.path, RequestError):
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            if domains is not None:
                self._write("domains.json", json.dumps(domains, indent=2) + "\n")
            if facts is not None:
                self.write_environment(facts)
            self.write_config(config)
        except RunError:
            with suppress(OSError):  # it holds other files
                for name in ("domains.json", "environment.json"):
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run."""
        if not (path / "config.toml").is_file():
            refuse_several(path)
            raise RequestError(f"{path} holds no run: there is no config.toml in it.")
        return cls(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No other process trains in this folder meanwhile; a process that ends, however it does, lets go of it."""
        if fcntl is None:
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(
                    f"{self.path} is being trained by another process; wait for its end, or stop it first."
                ) from None
            except OSError:  # a network disk without locks
                pass
            yield
        finally:
            os.close(handle)

    def config(self) -> Config:
        return build_config(file_layer(self.path / "config.toml"))

    def write_config(self, config: Config) -> None:
        self._write("config.toml", to_toml(config))

    def write_environment(self, facts: Mapping[str, Any]) -> None:
        self._write("environment.json", json.dumps({**environment(), **facts}, indent=2) + "\n")

    def keep_environment(self, facts: Mapping[str, Any]) -> None:
        """Write the environment if a kill came before it was written."""
        if not (self.path / "environment.json").exists():
            self.write_environment(facts)

    def known_environment(self) -> dict[str, Any]:
        """What environment.json says; nothing where a kill came before it or it is damaged."""
        try:
            facts = json.loads((self.path / "environment.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def shared_cores(self) -> bool:
        """Whether the run was trained with its share of a CPU's cores, beside others of its command."""
        known = self.known_environment()
        return known.get("device") == "cpu" and known.get("together", 1) > 1

    def amend_environment(self, **facts: Any) -> None:
        """Change some of what environment.json says; a damaged one is left as it is."""
        if known := self.known_environment():
            self._write("environment.json", json.dumps({**known, **facts}, indent=2) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations so far; a line cut short by a kill, or damaged otherwise, is left out."""
        if not self._metrics.exists():
            return []
        lines = []
        for line in self._metrics.read_bytes().splitlines():
            try:
                parsed = json.loads(line)
                parsed["step"] + parsed.get("epoch", 0)  # numbers
            except (ValueError, KeyError, TypeError):
                continue
            lines.append(parsed)
        return lines

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        with _writing(self._metrics), self._metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def drop_metrics_after(self, step: int) -> None:
        """Forget evaluations past a step: a resume will do them again."""
        if self._metrics.exists():
            kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
            self._write("metrics.jsonl", "".join(kept))

    def write_models(self, networks: Mapping[str, nn.Module], facts: ModelFacts, chosen: str) -> None:
        """Each network under models/ and the one to use as model.safetensors."""
        with _writing(self.path / "models"):
            (self.path / "models").mkdir(exist_ok=True)
            for name, network in networks.items():
                save_model(self.path / "models" / f"{name}.safetensors", network, facts.of(name))
            save_model(self.path / "model.safetensors", networks[chosen], facts.of(chosen))

    def models_epoch(self) -> float | None:
        """The epoch of the models that are there; model.safetensors is written last, so all of them are."""
        try:
            return read_facts(self.path / "model.safetensors").epoch
        except RequestError:
            return None

    def _write(self, name: str, text: str) -> None:
        """Replace a file as a whole."""
        with _writing(self.path / name), replacing(self.path / name) as temporary:
            temporary.write_text(text, "utf-8")


def preferred(networks: Iterable[str], averaging: Mapping[str, AverageConfig]) -> list[str]:
    """A run's networks, the one to use first: averages by their kind, whatever they are called.

    Of several averages of one kind the one that takes iterates most often comes first, then the one that began first.
    """

    def rank(name: str) -> tuple[int, float, float]:
        average = averaging.get(name)
        kind = name if average is None else average.kind
        place = PREFERENCE.index(kind) if kind in PREFERENCE else len(PREFERENCE)
        return (place, 0.0, 0.0) if average is None else (place, average.every or 0.0, average.start or 0.0)

    return sorted(networks, key=rank)


@contextmanager
def _writing(path: Path, kind: type[FastswaError] = RunError) -> Iterator[None]:
    """What goes wrong while `path` is written, in one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise kind(f"cannot write {path}: {reason(error)}.") from error


def environment() -> dict[str, Any]:
    """Versions, device and revision of the code, for the record."""
    from fastswa import __version__

    facts: dict[str, Any] = {
        "fastswa": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "revision": _revision(),
    }
    return facts


def _revision() -> str | None:
    """The commit that the package's source is at, where git tracks it; "+" marks changes on top of it.

    `git archive` writes the commit into revision.txt, for copies without a repository.
    """

    def git(*words: str) -> str:
        here = Path(__file__)
        answer = subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, timeout=5, check=True)
        return answer.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.SubprocessError):
        exported = (resources.files("fastswa") / "revision.txt").read_text("utf-8").strip()
        return None if exported.startswith("$") else exported
