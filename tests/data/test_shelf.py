"""Features kept on the disk: found by content, whole or not at all, never another's, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fastswa.data import shelf as module
from fastswa.data.augment import Augment
from fastswa.data.shelf import MIRRORED, PLAIN, Shelf, digests

CPU = torch.device("cpu")


def layers(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def shelf(
    seed: int = 0,
    mean: float = 0.3,
    precision: str = "fp32",
    source: str = "images",
    network: str = "some",
    **augment: bool,
) -> Shelf:
    return Shelf(layers(seed), Augment.normalising((mean,), (0.5,), CPU, **augment), precision, source, network)


def names(*texts: str) -> list[bytes]:
    return [text.encode().ljust(16) for text in texts]


def found(one: Shelf, view: str, *texts: str) -> tuple[list[bool], list[list[float]]]:
    known, features = one.find(view, names(*texts))
    return known.tolist(), [] if features is None else features.tolist()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fastswa" / "features"


@pytest.fixture
def written(folder: Path) -> Path:
    first = shelf()
    first.add(PLAIN, names("a"), torch.tensor([[1.0, 2.0]]))
    first.add(PLAIN, names("b", "c"), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    first.add(MIRRORED, names("a"), torch.tensor([[7.0, 8.0]]))
    assert first.write()
    return folder


def test_what_was_written_is_found_by_name_and_view(written: Path) -> None:
    again = shelf()
    assert found(again, PLAIN, "c", "x", "a") == ([True, False, True], [[5.0, 6.0], [1.0, 2.0]])
    assert found(again, MIRRORED, "a", "b") == ([True, False], [[7.0, 8.0]])
    assert found(again, PLAIN, "x") == ([False], [])
    assert again.holds(PLAIN)
    assert len(list(written.iterdir())) == 2


def test_more_is_added_to_what_is_there(written: Path) -> None:
    again = shelf()
    again.add(PLAIN, names("d", "a"), torch.tensor([[9.0, 9.0], [0.0, 0.0]]))
    assert again.write()
    assert found(shelf(), PLAIN, "a", "b", "c", "d") == ([True] * 4, [[0.0, 0.0], [3.0, 4.0], [5.0, 6.0], [9.0, 9.0]])
    assert found(again, PLAIN, "d") == ([True], [[9.0, 9.0]])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"mean": 0.31},
        {"precision": "bf16"},
        {"source": "others"},
        {"network": "another"},
        {"standardise": True},
    ],
)
def test_another_network_normalisation_arithmetic_or_source_finds_nothing(
    written: Path, other: dict[str, float]
) -> None:
    assert not shelf(**other).holds(PLAIN)  # type: ignore[arg-type]


def test_a_running_statistic_is_a_part_of_the_layers(written: Path) -> None:
    changed = layers()
    changed[1].running_mean += 1e-3  # type: ignore[index, operator, union-attr]
    assert not Shelf(changed, Augment.normalising((0.3,), (0.5,), CPU), "fp32", "images", "some").holds(PLAIN)


def test_a_damaged_file_is_as_good_as_none_and_is_written_anew(written: Path) -> None:
    path = next(path for path in written.iterdir() if PLAIN in path.name)
    content = bytearray(path.read_bytes())
    for damage in (content[:-1] + bytes([content[-1] ^ 1]), content[: len(content) // 2], b"", b"\0" * 99):
        path.write_bytes(damage)
        damaged = shelf()
        assert not damaged.holds(PLAIN)
        assert found(damaged, PLAIN, "a") == ([False], [])
    damaged.add(PLAIN, names("a"), torch.tensor([[1.0, 2.0]]))
    assert damaged.write()
    assert found(shelf(), PLAIN, "a") == ([True], [[1.0, 2.0]])


def test_where_nothing_can_be_written_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    one = shelf()
    one.add(PLAIN, names("a"), torch.tensor([[1.0]]))
    assert not one.write()
    assert not shelf().holds(PLAIN)


def test_a_file_that_grew_too_large_begins_anew(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 31)
    again = shelf()
    again.add(PLAIN, names("d"), torch.tensor([[9.0, 9.0]]))
    assert again.write()
    assert found(shelf(), PLAIN, "a", "d") == ([False, True], [[9.0, 9.0]])
    again.add(PLAIN, names(*"efgh"), torch.zeros(4, 2))
    assert not again.write()
    assert found(shelf(), PLAIN, "d", "e") == ([True, False], [[9.0, 9.0]])


def test_what_a_disk_has_no_room_for_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 15}))
    one = shelf()
    one.add(PLAIN, names("a"), torch.tensor([[1.0, 2.0]]))
    assert not one.write()
    assert not list(folder.iterdir())


def test_files_that_were_not_used_for_longest_go(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, path in enumerate(sorted(written.iterdir()), start=1):
        os.utime(path, (age, age))
    shelf().holds(PLAIN)  # used now
    size = next(path for path in written.iterdir() if PLAIN in path.name).stat().st_size
    monkeypatch.setattr(module, "_MOST_OF_ALL", 2 * size)
    other = shelf(source="others")
    other.add(PLAIN, names("a", "b", "c"), torch.zeros(3, 2))
    assert other.write()
    left = [path.name for path in written.iterdir()]
    assert len(left) == 2
    assert all(PLAIN in name for name in left)


def test_a_digest_is_of_the_content_however_it_lies_in_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (70, 5, 6, 3), dtype=torch.uint8, generator=generator)
    images[69] = images[3]
    planes: Tensor = images.permute(0, 3, 1, 2).contiguous()
    rows = torch.arange(70)
    told = digests(images, rows)
    assert told == digests(planes.permute(0, 2, 3, 1), rows)
    assert told[69] == told[3]
    assert len(set(told)) == 69
    assert digests(images, torch.tensor([5, 3])) == [told[5], told[3]]
