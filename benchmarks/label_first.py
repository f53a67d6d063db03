"""What labels are worth: those of images that `fastswa suggest` names, against those of images drawn by lot.

    python benchmarks/label_first.py IMAGES.npz [--labels 40] [--images 10000,2000] [--blocks 0,1] [--lots 1,2,3]
        [--more 20,20] [--record FILE]

Takes the same kind of data as own_images.py. For each block of N training images (the first, the second, ...) it makes
a folder of PNG files in which nothing but the M test images has a label, asks `fastswa suggest` for images to label,
gives these their labels, and trains `fastswa train FOLDER --pretrained` for --steps steps. Then the same with as many
images drawn by lot, anew until every class has one (what a person would see to), once for each of --lots. With `--more`
so many labels are added after that, by `fastswa suggest`, by the run's own label-next.csv, and by lot, each beginning
with the same first labels, which suggest chose.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from own_images import EPOCHS, fastswa, make_files, offered, read_arrays


def block_of(arrays: dict[str, np.ndarray], number: int, train: int, test: int) -> dict[str, np.ndarray]:
    """Some training images, block by block, and the last test images."""
    rows = {"train": slice(number * train, (number + 1) * train), "test": slice(-test, None)}
    return arrays | {f"{kind}_{part}": arrays[f"{kind}_{part}"][rows[part]] for part in rows for kind in "xy"}


class Pile:
    """A folder of images without labels, whose labels are known here alone, and test images with theirs."""

    def __init__(self, arrays: dict[str, np.ndarray], work: Path, steps: int) -> None:
        self.folder, self.work, self.steps, self.runs = work / "pile", work, steps, 0
        self.truth, classes = arrays["y_train"], arrays["classes"]
        self.names = [str(name) for name in classes]
        make_files(arrays, work / "files")
        (self.folder / "unlabeled").mkdir(parents=True)
        for path in (work / "files" / "train").iterdir():
            path.rename(self.folder / "unlabeled" / path.name)
        for name in self.names:
            for part in ("labeled", "test"):
                (self.folder / part / name).mkdir(parents=True)
        for number, label in enumerate(arrays["y_test"]):
            file = work / "files" / "test" / f"{number}.png"
            file.rename(self.folder / "test" / self.names[label] / file.name)

    def label(self, wanted: Iterable[int]) -> None:
        """Have these images labelled and no others."""
        for path in list((self.folder / "labeled").rglob("*.png")):
            path.rename(self.folder / "unlabeled" / path.name)
        for number in wanted:
            name = f"{number}.png"
            (self.folder / "unlabeled" / name).rename(self.folder / "labeled" / self.names[self.truth[number]] / name)

    def suggested(self, count: int) -> list[int]:
        """What `fastswa suggest` would have labelled now."""
        page = self.work / "first.html"
        (facts,), _ = fastswa("suggest", str(self.folder), "--count", str(count), "--out", str(page))
        return [int(Path(path).stem) for path in facts["paths"]]

    def by_lot(self, count: int, seed: int, given: Iterable[int] = ()) -> list[int]:
        """Images drawn by lot, anew until every class has a label."""
        given, rng = list(given), np.random.default_rng(seed)
        left = np.setdiff1d(np.arange(len(self.truth)), given)
        while True:
            drawn = rng.choice(left, count, replace=False)
            if len(set(self.truth[[*given, *drawn]].tolist())) == len(self.names):
                return [int(number) for number in drawn]

    def trained(self) -> tuple[float, Path]:
        """The test error of the network that a run offers for use, and the run."""
        self.runs += 1
        run = self.work / f"run-{self.runs}"
        steps = ["--epochs", str(EPOCHS), "--batch.steps", str(self.steps // EPOCHS)]
        (result,), _ = fastswa("train", str(self.folder), "--pretrained", *steps, "--out", str(run))
        return offered(run, result["last"]), run

    def error(self, wanted: Iterable[int]) -> tuple[float, Path]:
        """That of a run with labels of these images."""
        self.label(wanted)
        return self.trained()


def next_ones(run: Path, count: int) -> list[int]:
    """The first images of a run's list of what to label next."""
    with (run / "label-next.csv").open(newline="", encoding="utf-8") as stream:
        return [int(Path(row["path"]).stem) for row in csv.DictReader(stream)][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--images", dest="images_of", default="10000,2000")
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--labels", default="40")
    parser.add_argument("--blocks", default="0,1")
    parser.add_argument("--lots", default="1,2,3")
    parser.add_argument("--more", default="")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    arrays = read_arrays(given.images, given.root)
    train, test = (int(word) for word in given.images_of.split(","))
    lots = [int(word) for word in given.lots.split(",") if word]
    more = [int(word) for word in given.more.split(",") if word]
    rows: list[dict[str, Any]] = []

    def note(block: int, how: str, labels: int, error: float, seed: int | None = None) -> None:
        rows.append({"block": block, "how": how, "labels": labels, "error": error, "seed": seed})
        print(f"block {block}: {labels} labels {how}{'' if seed is None else f' ({seed})'}: {error:.2f}%", flush=True)

    for block in [int(word) for word in given.blocks.split(",")]:
        with tempfile.TemporaryDirectory() as work:
            pile = Pile(block_of(arrays, block, train, test), Path(work), given.steps)
            for labels in [int(word) for word in given.labels.split(",")]:
                pile.label([])
                first = pile.suggested(labels)
                error, run = pile.error(first)
                note(block, "suggested", labels, error)
                for seed in lots:
                    note(block, "by lot", labels, pile.error(pile.by_lot(labels, seed))[0], seed)
                for how in ("suggested", "label-next", "by lot") if more else ():
                    known, last = list(first), run
                    for step, count in enumerate(more):
                        pile.label(known)
                        if how == "suggested":
                            added = pile.suggested(count)
                        elif how == "label-next":
                            added = next_ones(last, count)
                        else:
                            added = pile.by_lot(count, 100 + step, known)
                        known += added
                        error, last = pile.error(known)
                        note(block, f"then {how}", len(known), error)
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(f"{row['labels']} labels, {row['how']}", []).append(row["error"])
    means = {name: round(mean(found), 2) for name, found in errors.items()}
    print(json.dumps(means))
    if given.record is not None:
        from fastswa.training.folder import environment

        words = f"--labels {given.labels} --images {given.images_of} --blocks {given.blocks} --lots {given.lots}"
        words += f" --more {given.more}" if more else ""
        command = f"python benchmarks/label_first.py {given.images.name} {words} --steps {given.steps}"
        record = {"command": command, "error": means, "runs": rows, "environment": environment()}
        given.record.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
