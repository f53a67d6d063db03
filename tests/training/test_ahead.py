"""Work done by a thread beside training."""

from __future__ import annotations

import threading

import pytest

from fastswa.training.ahead import Ahead, Behind


def test_the_next_is_made_while_this_one_is_used() -> None:
    made: list[tuple[int, bool]] = []
    done = threading.Event()

    def make(number: int) -> int:
        made.append((number, threading.current_thread() is threading.main_thread()))
        if number == 4:
            done.set()
        return number * number

    ahead = Ahead(make)
    assert ahead(3) == 9
    assert done.wait(5)
    assert made == [(3, True), (4, False)]
    assert ahead(4) == 16
    assert ahead(9) == 81
    assert (9, True) in made


def test_what_fails_ahead_is_raised_where_it_is_asked_for() -> None:
    def make(number: int) -> int:
        if number == 1:
            raise ValueError("one")
        return number

    ahead = Ahead(make)
    assert ahead(0) == 0
    with pytest.raises(ValueError, match="one"):
        ahead(1)


def test_work_behind_is_done_in_order_and_its_failure_is_raised_by_the_next_call() -> None:
    behind, seen, gate = Behind(), [], threading.Event()

    def wait_and_note() -> None:
        gate.wait(5)
        seen.append(1)

    behind(wait_and_note)
    assert seen == []
    gate.set()
    behind(lambda: seen.append(2))
    behind.wait()
    assert seen == [1, 2]

    def fail() -> None:
        raise OSError("full")

    behind(fail)
    with pytest.raises(OSError, match="full"):
        behind.wait()
    behind.wait()
