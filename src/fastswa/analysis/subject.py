"""A run opened for study: what it trained on, and its kept iterates as vectors in weight space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from fastswa.errors import RequestError
from fastswa.training.checkpoint import Checkpoint, checkpoint_epochs, load_checkpoint
from fastswa.training.device import Compute, choose_compute, looking_on, settings_of
from fastswa.training.folder import RunFolder, preferred
from fastswa.training.setup import Material, load_data, load_extra_data, prepare
from fastswa.training.state import State, build_network, build_state


class Subject:
    """One run: its settings, its images on the device, and its iterates.

    A vector holds the trained parameters (of a weight-normalised layer its directions and its gains), flat and in the
    network's order; batch-norm statistics are no part of it, they follow the weights.
    """

    def __init__(self, path: Path, device: str = "auto", name: str | None = None) -> None:
        folder = RunFolder.open(path)
        self.path, self.name = path, name or path.name
        config = folder.config()
        self.config = config.model_copy(update={"device": looking_on(device, config.device)})
        self.compute: Compute = choose_compute(self.config.device)
        self.checkpoints = folder.checkpoints
        self.epochs = checkpoint_epochs(folder.checkpoints)
        dataset = load_data(self.config)
        self.material: Material = prepare(self.config, dataset, self.compute, load_extra_data(self.config, dataset))
        network = build_network(self.material.facts, 0, "analysis")
        self._parameters = [name for name, _ in network.named_parameters()]
        self.size = sum(parameter.numel() for parameter in network.parameters())

    def network(self) -> nn.Module:
        """A network of the run's architecture on its device, in evaluation mode."""
        network = build_network(self.material.facts, 0, "analysis").to(self.compute.device, self.compute.dtype)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network.eval()

    def chosen(self, epochs: Sequence[float] | None, least: int) -> list[float]:
        """The kept epochs to study, in order: those asked for, or all; at least `least` of them."""
        there = ", ".join(f"{epoch:g}" for epoch in self.epochs) or "none"
        for epoch in epochs or ():
            if epoch not in self.epochs:
                raise RequestError(f"{self.path} keeps no checkpoint of epoch {epoch:g} (there are: {there}).")
        found = sorted(self.epochs if epochs is None else set(epochs))
        if len(found) < least:
            raise RequestError(
                f"{self.path}: {least} iterates are needed, and {len(found)} are there; train it with "
                "`--checkpoint.keep EPOCH,EPOCH,…`, which says whose checkpoints stay, or name more of them."
            )
        return found

    def checkpoint(self, epoch: float) -> Checkpoint:
        """The whole checkpoint of an epoch."""
        found = load_checkpoint(self.checkpoints, lambda line: None, self.epochs[epoch])
        if found is None:
            raise RequestError(f"{self.path} keeps no checkpoint of epoch {epoch:g} any more.")
        return found

    def iterate(self, epoch: float, network: str = "student") -> Tensor:
        """The weights of a network at an epoch: (P,) on the device."""
        return self._vector(self.checkpoint(epoch), f"{network}.")

    def average(self) -> tuple[str, Tensor] | None:
        """The average that the run offers first, as its last checkpoint holds it, and its name."""
        if not self.epochs:
            return None
        checkpoint = self.checkpoint(max(self.epochs))
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
        checkpoint = self.checkpoint(epoch)
        try:
            state.restore(checkpoint.tensors, checkpoint.facts)
        except (ValueError, KeyError, RuntimeError) as error:
            raise RequestError(f"the checkpoint of epoch {epoch:g} in {self.path} does not fit: {error}.") from error
        return state

    def _vector(self, checkpoint: Checkpoint, prefix: str) -> Tensor:
        try:
            parts = [checkpoint.tensors[prefix + name].flatten() for name in self._parameters]
        except KeyError as error:
            raise RequestError(
                f"the checkpoints of {self.path} hold no {prefix.rstrip('.')} of its network."
            ) from error
        return torch.cat(parts).to(self.compute.device, self.compute.dtype)


@contextmanager
def opened(runs: Sequence[Path], device: str = "auto") -> Iterator[list[Subject]]:
    """The runs, ready to be studied side by side; of one architecture and with as many classes."""
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
        if len(ours.classes) != len(theirs.classes):
            raise RequestError(f"{first.path} and {other.path} tell different classes apart; study them one at a time.")
    with settings_of(first.compute, first.config.device.threads):
        yield subjects


def run_names(runs: Sequence[Path]) -> dict[Path, str]:
    """Names that tell runs apart: a folder's own, or its whole path where two are called the same."""
    if len({path.resolve() for path in runs}) < len(runs):
        raise RequestError("a run is named twice.")
    names = [path.resolve().name for path in runs]
    return {path: name if names.count(name) == 1 else str(path) for path, name in zip(runs, names, strict=True)}


def put(network: nn.Module, vector: Tensor) -> None:
    """Write a vector into a network's parameters."""
    parameters = list(network.parameters())
    pieces = vector.split([parameter.numel() for parameter in parameters])
    with torch.no_grad():
        shaped = [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]
        torch._foreach_copy_(list(map(torch.Tensor.detach, parameters)), shaped)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
