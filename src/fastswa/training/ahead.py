"""Things done by a thread while training goes on: what comes next made ahead, what was made written behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Ahead(Generic[Made]):
    """`make(number)`, with the next number's made meanwhile; asked out of order it makes what is asked."""

    def __init__(self, make: Callable[[int], Made]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._coming: tuple[int, Future[Made]] | None = None

    def __call__(self, number: int) -> Made:
        if self._coming is not None and self._coming[0] == number:
            made = self._coming[1].result()
        else:
            made = self._make(number)
        self._coming = number + 1, self._thread.submit(self._make, number + 1)
        return made


class Behind:
    """One piece of work at a time, done by a thread; what goes wrong in it is raised by the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "behind")
        self._running: Future[None] | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        """Start `work` once the piece before it is done."""
        self.wait()
        self._running = self._thread.submit(work)

    def wait(self) -> None:
        """Return when nothing is left to do."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
