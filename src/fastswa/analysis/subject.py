"""A run opened for study: what it trained on, and its kept iterates as vectors in weight space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fastswa.errors import RequestError
from fastswa.methods import build as build_method
from fastswa.training.again import images_of_run
from fastswa.training.checkpoint import Checkpoint, checkpoint_epochs, load_checkpoint
from fastswa.training.device import Compute, choose_compute, looking_on, settings_of
from fastswa.training.folder import RunFolder, preferred
from fastswa.training.identity import changed, sources
from fastswa.training.iterates import iterate_epochs, load_iterate
from fastswa.training.keeping import keep_views, with_kept_views
from fastswa.training.optimiser import learning
from fastswa.training.setup import Material, load_extra_data, prepare
from fastswa.training.state import State, build_network, build_state


class Subject:
    """One run: its settings, its images on the device, and its iterates.

    `epochs` are those that something is kept of: a whole checkpoint (`steps` says of which step) or the student alone
    (`iterates` says in which file). A vector holds the trained parameters (of a weight-normalised layer its directions
    and its gains), flat and in the network's order; batch-norm statistics are no part of it, they follow the weights.
    Layers that the run holds as they are (model.frozen) are no part of it either, and are the run's in every network;
    where the run kept what they made of views (augment.kept), that is what studies look at in the place of images.
    """

    def __init__(self, path: Path, device: str = "auto", name: str | None = None) -> None:
        folder = RunFolder.open(path)
        self.path, self.name = path, name or path.name
        config = folder.config()
        self.config = config.model_copy(
            update={"device": looking_on(device, config.device, shared=folder.shared_cores())}
        )
        chosen = choose_compute(self.config.device)
        # What is done at every point is captured on a GPU; a study is too short for compiling to pay.
        self.compute: Compute = replace(chosen, engine="graph") if chosen.device.type == "cuda" else chosen
        self.checkpoints = folder.checkpoints
        self.steps = checkpoint_epochs(folder.checkpoints)
        self.iterates = iterate_epochs(path)
        self.epochs = sorted({*self.steps, *self.iterates})
        images = images_of_run(path, self.config)
        if images.changed:
            raise changed(f"the images or labels of {' or '.join(sources(self.config))}", path)
        dataset = images.dataset
        material = prepare(self.config, dataset, self.compute, load_extra_data(self.config, dataset))
        self.material: Material = with_kept_views(material, self.config, self.compute)
        network = build_network(self.material.facts, 0, "analysis")
        parameters = learning(network)
        self._parameters = list(parameters)
        self.size = sum(parameter.numel() for parameter in parameters.values())
        if self.epochs:
            with settings_of(self.compute, self.config.device.threads):
                keep_views(self.material, self.network(), self.compute)

    def network(self) -> nn.Module:
        """A network of the run's architecture on its device, in evaluation mode."""
        network = build_network(self.material.facts, 0, "analysis").to(self.compute.device, self.compute.dtype)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._fill_held(network)
        return network.eval()

    def _fill_held(self, network: nn.Module) -> None:
        """Put in the layers that the run holds as they are: every epoch has the same."""
        if not self.config.model.frozen or not self.epochs:
            return
        names = list(network.state_dict().keys() - learning(network).keys())
        if self.steps:  # whose parameters are not rounded
            held = self._parts(self.checkpoint(max(self.steps)), "student.", names)
        else:
            held = load_iterate(self.iterates[self.epochs[-1]], names)
        network.load_state_dict(dict(zip(names, held, strict=True)), strict=False)

    def chosen(self, epochs: Sequence[float] | None, least: int) -> list[float]:
        """The kept epochs to study, in order: those asked for, or all; at least `least` of them."""
        there = ", ".join(f"{epoch:g}" for epoch in self.epochs) or "none"
        for epoch in epochs or ():
            if epoch not in self.epochs:
                raise RequestError(f"{self.path} keeps nothing of epoch {epoch:g} (there are: {there}).")
        found = sorted(self.epochs if epochs is None else set(epochs))
        if len(found) < least:
            raise RequestError(
                f"{self.path}: {'an iterate is' if least == 1 else f'{least} iterates are'} needed, and "
                f"{_counted(len(found))} there; train it with "
                "`--keep-every 3`, which says how often one is kept, or name more of them."
            )
        return found

    def checkpoint(self, epoch: float) -> Checkpoint:
        """The whole checkpoint of an epoch."""
        step = self.steps.get(epoch)
        found = None if step is None else load_checkpoint(self.checkpoints, lambda line: None, step)
        if found is None:
            raise RequestError(f"{self.path} keeps no whole checkpoint of epoch {epoch:g}.")
        return found

    def iterate(self, epoch: float) -> Tensor:
        """The student's weights at an epoch, read anew each time: (P,) on the device."""
        file = self.iterates.get(epoch)
        if file is None:
            return self._vector(self.checkpoint(epoch), "student.")
        return self._flat(load_iterate(file, self._parameters), file)

    def average(self) -> tuple[str, Tensor] | None:
        """The average that the run offers first, as its last checkpoint holds it, and its name."""
        if not self.steps:
            return None
        checkpoint = self.checkpoint(max(self.steps))
        counts = {name: counters["count"] for name, counters in checkpoint.facts["averages"].items()}
        for name in preferred(counts, self.config.averaging):
            if counts[name]:
                return name, self._vector(checkpoint, f"average.{name}.")
        return None

    def state(self, epoch: float) -> State:
        """Everything that the run was at an epoch, networks in training mode."""
        state = build_state(
            self.config, self.compute, self.material.facts, images=len(self.material.pixels), fresh=False
        )
        if epoch not in self.steps:
            return self._rebuilt(state, epoch)
        checkpoint = self.checkpoint(epoch)
        try:
            state.restore(checkpoint.tensors, checkpoint.facts)
        except (ValueError, KeyError, RuntimeError) as error:
            raise RequestError(f"the checkpoint of epoch {epoch:g} in {self.path} does not fit: {error}.") from error
        return state

    @property
    def alone(self) -> bool:
        """Whether a step of the run's method looks at the student alone: an iterate then says all that it needs."""
        method = build_method(self.config.method, images=1, classes=len(self.material.facts.classes))
        return not method.has_teacher and not method.memory

    def states(self) -> list[float]:
        """The kept epochs whose whole state can be had."""
        return self.epochs if self.alone else sorted(self.steps)

    def _rebuilt(self, state: State, epoch: float) -> State:
        """The state of an epoch whose student alone was kept."""
        if not self.alone:
            raise RequestError(
                f"{self.path} keeps of epoch {epoch:g} the student alone, and {self.config.method.name} needs more "
                "than that; `--analysis.gradients 5` records gradients in training, `--checkpoint.keep` keeps it all."
            )
        put(state.student, self.iterate(epoch))
        self._fill_held(state.student)
        state.step = self.material.plan.pace.step(epoch)
        return state

    def _vector(self, checkpoint: Checkpoint, prefix: str) -> Tensor:
        return self._flat(self._parts(checkpoint, prefix, self._parameters), self.checkpoints)

    def _parts(self, checkpoint: Checkpoint, prefix: str, names: Sequence[str]) -> list[Tensor]:
        try:
            return [checkpoint.tensors[prefix + name] for name in names]
        except KeyError as error:
            raise RequestError(
                f"the checkpoints of {self.path} hold no {prefix.rstrip('.')} of its network."
            ) from error

    def _flat(self, parts: Sequence[Tensor], where: Path) -> Tensor:
        vector = torch.cat([part.flatten() for part in parts]).to(self.compute.device, self.compute.dtype)
        if len(vector) != self.size:
            raise RequestError(f"{where} holds weights of another network than the run's config.toml names.")
        return vector


@contextmanager
def opened(runs: Sequence[Path], device: str = "auto") -> Iterator[list[Subject]]:
    """The runs, ready to be studied side by side; of one architecture and with the same classes."""
    if not runs:
        raise RequestError("name a run folder, or several to compare.")
    subjects = [Subject(path, device, name) for path, name in run_names(runs).items()]
    first = subjects[0]
    for other in subjects[1:]:
        ours, theirs = first.material.facts, other.material.facts
        if (ours.architecture, ours.options, ours.heads) != (theirs.architecture, theirs.options, theirs.heads):
            raise RequestError(
                f"{first.path} and {other.path} are of different architectures; study them one at a time."
            )
        if ours.classes != theirs.classes:
            raise RequestError(f"{first.path} and {other.path} tell different classes apart; study them one at a time.")
    with settings_of(first.compute, first.config.device.threads):
        yield subjects


def run_names(runs: Sequence[Path]) -> dict[Path, str]:
    """Names that tell runs apart: a folder's own, or its whole path where two are called the same."""
    if len({path.resolve() for path in runs}) < len(runs):
        raise RequestError("a run is named twice.")
    names = [path.resolve().name for path in runs]
    return {path: name if names.count(name) == 1 else str(path) for path, name in zip(runs, names, strict=True)}


def _counted(count: int) -> str:
    return "one is" if count == 1 else f"{count or 'none'} are"


def put(network: nn.Module, vector: Tensor) -> None:
    """Write a vector into those of a network's parameters that learn."""
    parameters = list(learning(network).values())
    pieces = vector.split([parameter.numel() for parameter in parameters])
    with torch.no_grad():
        shaped = [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]
        torch._foreach_copy_(list(map(torch.Tensor.detach, parameters)), shaped)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
