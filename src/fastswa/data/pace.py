"""How many steps each epoch has: one number for all of them, unless a run was told otherwise while it trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """`steps` in each epoch, and from the epoch of each of `changes` (EPOCH, STEPS) on another number of them.

    Further changes may make it as many as `longest`, if that is more.
    """

    steps: int
    changes: tuple[tuple[int, int], ...] = ()
    longest: int = 0

    @property
    def most(self) -> int:
        """The most steps that an epoch has or may yet be given."""
        return max(self.steps, self.longest, *(steps for _, steps in self.changes))

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """Epochs of one length: the first of them, the steps before it, and those in each."""
        began, before, each = 0, 0, self.steps
        for epoch, steps in self.changes:
            yield began, before, each
            began, before, each = epoch, before + (epoch - began) * each, steps
        yield began, before, each

    def of(self, epoch: int) -> int:
        """The steps of an epoch, counted from 0."""
        return [each for began, _, each in self._stretches() if began <= epoch][-1]

    def before(self, epoch: int) -> int:
        """The steps before an epoch."""
        began, before, each = [one for one in self._stretches() if one[0] <= epoch][-1]
        return before + (epoch - began) * each

    def place(self, step: int) -> tuple[int, int]:
        """The epoch that a step belongs to, and which of its steps it is; both, as the step, counted from 0."""
        began, before, each = [one for one in self._stretches() if one[1] <= step][-1]
        epochs, position = divmod(step - before, each)
        return began + epochs, position

    def epoch(self, step: int) -> float:
        """How many epochs so many steps are."""
        epoch, position = self.place(step)
        each = self.of(epoch)
        return (epoch * each + position) / each

    def step(self, epoch: float) -> int:
        """How many steps so many epochs are."""
        whole = int(epoch)
        return self.before(whole) + round((epoch - whole) * self.of(whole))
