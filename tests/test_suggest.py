"""What to label first: one image of each group that looks alike, whoever labelled what before."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Command
from fastswa.choose import choose, grouped
from fastswa.suggest import MOST, _looked_at, suggest
from tiny_runs import drawn_weights

COLOURS = ((250, 0, 0), (0, 250, 0), (0, 0, 250))


def bundles(*sizes: int, spread: float = 0.02) -> torch.Tensor:
    """Rows around as many axes as there are sizes; the first of each is the axis itself."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for axis, size in enumerate(sizes):
        middle = torch.zeros(8)
        middle[axis] = 1.0
        others = middle + spread * torch.randn(size - 1, 8, generator=generator)
        rows += [middle[None], *others.split(1)]
    return torch.cat(rows)


def none_of(rows: torch.Tensor) -> np.ndarray:
    return np.zeros(len(rows), bool)


def test_each_group_gives_its_middle_the_largest_first() -> None:
    rows = bundles(20, 50, 30)
    picked, alike = choose(rows, none_of(rows), 3)
    axis = [int(row) for row in rows[torch.from_numpy(picked)].argmax(dim=1)]
    assert axis == [1, 2, 0]
    assert alike.tolist() == [50, 30, 20]
    for row, k in zip(picked, axis, strict=True):
        own = rows[rows.argmax(dim=1) == k]
        own = own / own.norm(dim=1, keepdim=True)
        nearest = own[(own @ own.mean(dim=0)).argmax()]
        assert torch.allclose(rows[int(row)] / rows[int(row)].norm(), nearest)


def test_groups_with_a_label_come_last() -> None:
    rows = bundles(20, 50, 30)
    labelled = none_of(rows)
    labelled[25] = True  # of the largest
    picked, _ = choose(rows, labelled, 2)
    assert not {25} & set(picked.tolist())
    axes = rows[torch.from_numpy(picked)].argmax(dim=1).tolist()
    assert sorted(axes) == [0, 2]


def test_all_that_is_left_is_given_once() -> None:
    rows = bundles(2, 3)
    labelled = none_of(rows)
    labelled[0] = True
    picked, _ = choose(rows, labelled, 10)
    assert sorted(picked.tolist()) == [1, 2, 3, 4]


def test_images_that_are_all_the_same_are_no_trouble() -> None:
    rows = torch.ones(6, 4)
    picked, alike = choose(rows, none_of(rows), 3)
    assert len(set(picked.tolist())) == 3
    assert alike.max() == 6


def test_more_are_wanted_than_there_are_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastswa.choose.MOST_GROUPS", 3)
    rows = bundles(20, 50, 30)
    picked, _ = choose(rows, none_of(rows), 6)
    assert rows[torch.from_numpy(picked)].argmax(dim=1).tolist() == [1, 2, 0, 1, 2, 0]
    assert len(set(picked.tolist())) == 6


def test_groups_are_the_same_for_a_seed() -> None:
    rows = torch.nn.functional.normalize(torch.randn(100, 8, generator=torch.Generator().manual_seed(3)), dim=1)
    first, middles = grouped(rows, 7, seed=1)
    assert torch.equal(first, grouped(rows, 7, seed=1)[0])
    # Each row is in the group whose middle is nearest, each middle that of its rows.
    assert torch.equal(first, (rows @ middles.T).argmax(dim=1))
    for k in range(7):
        own = rows[first == k].sum(dim=0)
        assert torch.allclose(middles[k], own / own.norm(), atol=1e-5)


def test_of_very_many_images_some_are_looked_at() -> None:
    labelled = np.zeros(3 * MOST, bool)
    labelled[::2] = True
    rows = _looked_at(labelled, 0)
    assert len(rows) == len(set(rows.tolist())) == MOST
    assert int(labelled[rows].sum()) == MOST // 2
    labelled[100:] = False
    rows = _looked_at(labelled, 0)
    assert len(rows) == MOST
    assert int(labelled[rows].sum()) == 50
    assert _looked_at(labelled[:5], 0).tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Drawn anew in the place of the published ones; what passes is counted."""
    return drawn_weights(monkeypatch)


def paint(path: Path, colour: tuple[int, int, int], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 6, (32, 32, 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    """Eight red, five green and three blue pictures in one folder, and one in test/."""
    for k, count in enumerate((8, 5, 3)):
        for number in range(count):
            paint(tmp_path / "pile" / f"{'rgb'[k]}{number}.png", COLOURS[k], 10 * k + number)
    paint(tmp_path / "pile" / "test" / "red" / "t.png", COLOURS[0], 99)
    return tmp_path / "pile"


def test_a_pile_of_images_without_a_label(weights: list[int], pile: Path, tmp_path: Path, command: Command) -> None:
    page = tmp_path / "out" / "first.html"
    answer = command("suggest", pile, "--count", 3, "--size", 32, "--out", page)
    assert answer.code == 0, answer.err
    assert answer.out == f"{page}: 3 images to label first; as a list in {page.with_suffix('.csv')}.\n"
    with page.with_suffix(".csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["path"][0] for row in rows] == ["r", "g", "b"]
    assert [row["alike"] for row in rows] == ["8", "5", "3"]
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    text = page.read_text("utf-8")
    assert text.count('src="data:image/') == 3
    assert all(row["path"] in text for row in rows)
    assert sum(weights) == 16  # that in test/ is not looked at


def test_what_is_labelled_already_has_its_group(
    weights: list[int], pile: Path, tmp_path: Path, command: Command
) -> None:
    (pile / "labeled" / "red").mkdir(parents=True)
    (pile / "unlabeled").mkdir()
    for path in sorted(pile.glob("*.png")):
        path.rename((pile / "labeled" / "red" if path.name == "r1.png" else pile / "unlabeled") / path.name)
    answer = command("suggest", pile, "--count", 2, "--size", 32, "--out", tmp_path / "f.html", "--json")
    facts = json.loads(answer.out)
    assert (facts["looked_at"], facts["labelled"]) == (16, 1)
    assert sorted(path[len("unlabeled/")] for path in facts["paths"]) == ["b", "g"]
    # What was looked at is not passed again, nor by training.
    passed = sum(weights)
    again = command("suggest", pile, "--count", 2, "--size", 32, "--out", tmp_path / "f.html", "--json")
    assert again.out == answer.out
    assert sum(weights) == passed


def test_a_manifest_and_an_npz_file(weights: list[int], pile: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in pile.glob("*.png"))
    (pile / "all.csv").write_text("path\n" + "".join(f"{name}\n" for name in names), "utf-8")
    listed = suggest(str(pile / "all.csv"), count=3, options=None, device="cpu")
    assert sorted(str(listed.path(int(row)))[0] for row in listed.rows) == ["b", "g", "r"]
    pixels = np.stack([np.asarray(Image.open(pile / name)) for name in names]).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "all.npz", x_unlabelled=pixels)
    arrays = suggest(str(tmp_path / "all.npz"), count=3, device="cpu")
    assert sorted(names[int(row)][0] for row in arrays.rows) == ["b", "g", "r"]
    assert arrays.path(0) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits"], "digits has labels; name a folder, manifest or .npz file of your own."),
        (["nowhere/"], "nowhere/: there is no such folder or file."),
        (["{pile}/r1.png"], "is a file of another kind; images of your own come as"),
        (["{empty}"], "holds no image outside of test/."),
        (["{pile}", "--count", "0"], "--count"),
        (["{pile}", "--size", "8"], "efficientnet-lite0 takes images of at least 32x32, not 8x8."),
        (["{pile}", "--out", "list.csv"], "--out: list.csv does not end in .html."),
        (["{pile}", "--channels", "blue"], "--channels: 'blue' is not auto, grey or rgb."),
        ([], "name a folder, manifest or .npz file"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, weights: list[int], pile: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "empty").mkdir()
    filled = [word.format(pile=pile, empty=tmp_path / "empty") for word in words]
    out = [] if "--out" in filled else ["--out", tmp_path / "f.html"]
    answer = command("suggest", *filled, *out)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "f.html").exists()


def test_a_page_of_somebody_elses_is_not_written_over(
    weights: list[int], pile: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "f.html").write_text("mine")
    answer = command("suggest", pile, "--count", 2, "--size", 32, "--out", tmp_path / "f.html")
    assert answer.code == 2
    assert (tmp_path / "f.html").read_text() == "mine"
    (tmp_path / "g.csv").write_text("path,label\na.png,1\n")
    answer = command("suggest", pile, "--count", 2, "--size", 32, "--out", tmp_path / "g.html")
    assert answer.err == (
        f"fastswa: {tmp_path / 'g.csv'} is there already and is no list of suggestions; choose another --out.\n"
    )
    assert not (tmp_path / "g.html").exists()
    assert not weights  # refused before anything is looked at
    assert command("suggest", pile, "--count", 2, "--size", 32, "--out", tmp_path / "h.html").code == 0
    assert command("suggest", pile, "--count", 3, "--size", 32, "--out", tmp_path / "h.html").code == 0


def test_where_all_are_labelled_there_is_nothing_to_suggest(
    weights: list[int], tmp_path: Path, command: Command
) -> None:
    for k, colour in enumerate(COLOURS):
        paint(tmp_path / "data" / "labeled" / f"{k}" / "a.png", colour, k)
    answer = command("suggest", tmp_path / "data", "--size", 32, "--out", tmp_path / "f.html")
    assert answer.code == 2
    assert "every image has a label; there is none to suggest." in answer.err
