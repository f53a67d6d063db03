"""Streams of one's own, out of the few that torch gives out in turn."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from fastswa import beside
from fastswa.errors import RequestError
from fastswa.training.device import Compute
from fastswa.training.lanes import MOST, Lanes

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's streams without a GPU: as many, and in turn."""
    turn = count()

    class Stream:
        def __init__(self, device: int) -> None:
            self.device, self.cuda_stream = device, 1 + next(turn) % beside.POOL

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(beside, "_streams", {})


def test_a_purpose_keeps_its_stream_and_shares_it_with_none() -> None:
    held = {}
    for number in range(10):
        for purpose in (("lane", number), ("capture", number), ("beside", number)):
            held[purpose] = beside.own(GPU, *purpose)
        for _ in range(beside.POOL - 1):
            torch.cuda.Stream(0)
    assert len({stream.cuda_stream for stream in held.values()}) == len(held) == 30
    assert all(beside.own(GPU, *purpose) is stream for purpose, stream in held.items())


def test_a_device_without_a_number_is_the_current_one() -> None:
    assert beside.own(torch.device("cuda"), "lane", 1) is beside.own(GPU, "lane", 1)
    assert beside.own(torch.device("cuda", 1), "lane", 1) is not beside.own(GPU, "lane", 1)


def test_more_than_there_are_is_refused() -> None:
    for number in range(beside.POOL):
        beside.own(GPU, "lane", number)
    with pytest.raises(RequestError, match="train fewer together"):
        beside.own(GPU, "lane", beside.POOL)


@pytest.mark.parametrize("engine", ["graph", "eager"])
def test_as_many_runs_as_are_let_have_streams_for_everything(engine: str) -> None:
    lanes = Lanes(Compute(GPU, "bf16", engine, deterministic=False))
    assert lanes.at_once(MOST) == MOST
    for number in range(MOST):
        for purpose in ("lane", "capture"):
            # What is beside a run's lane and beside its capture are two, as `beside.stream` asks for them.
            first = beside.own(GPU, purpose, number)
            beside.own(GPU, "beside", first.cuda_stream)
    beside.own(GPU, "checkpoints")
    with pytest.raises(RequestError, match=f"{MOST + 1} runs at once are too many for a GPU; train {MOST} together"):
        lanes.at_once(MOST + 1)
