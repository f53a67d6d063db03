"""One's own images, as a new user has them: PNG files in folders, default settings, a few minutes.

    python benchmarks/own_images.py IMAGES.npz [--labels 100] [--splits 1,2,3] [--minutes 5] [--record FILE]
    python benchmarks/own_images.py IMAGES.npz --methods fixmatch,mean-teacher,supervised --validation 5000
    python benchmarks/own_images.py IMAGES.npz --methods fixmatch,fixmatch+device.precision=fp32 --validation 5000 \
      --steps 6000
    python benchmarks/own_images.py cifar10 --images 10000,2000 --labels 250 \
      --methods flexmatch+model.pretrained=true,fixmatch
    python benchmarks/own_images.py IMAGES.npz --labels 500 --splits 1 --keep FOLDER

Makes a folder for each split from an .npz file (x_train, y_train, x_test, y_test, classes if it has them) or from a
built-in source (`digits`, `cifar10`, ..., in --root): a few training images under labeled/CLASS/, all others under
unlabeled/, the test images under test/CLASS/. Then runs `fastswa check` (which also prepares the images, so that both
trainings find them prepared), `fastswa train FOLDER --minutes M` and the same with `--method supervised`, one after the
other, and compares the test errors of the models that they offer for use. `--methods` names others to compare than
`fixmatch,supervised`, of which the first is set against the last, with changed settings where +SETTING=VALUE follows
one; with `--validation N` as many training images take the place of the test images, to choose by. `--images N,M` takes
the first N training images and the last M test images alone. With `--steps N` each trains as many steps, however long
that takes, in place of minutes: for what is to be compared on a machine that has other work. With `--keep` it only
makes the folder of the first split, to try the commands on by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from PIL import Image

from fastswa.data.plan import Options
from fastswa.data.sources import SOURCES, load

METHODS = ("fixmatch", "supervised")
EPOCHS = 60  # the default of one's own images on a CPU


def make_files(arrays: dict[str, np.ndarray], folder: Path) -> None:
    """Each image once as FOLDER/train/N.png or FOLDER/test/N.png."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for number, pixels in enumerate(arrays[f"x_{part}"]):
            image = pixels.transpose(1, 2, 0) if pixels.ndim == 3 and pixels.shape[0] in (1, 3) else pixels
            Image.fromarray(image.squeeze()).save(folder / part / f"{number}.png")


def make_folder(arrays: dict[str, np.ndarray], files: Path, folder: Path, labels: int, seed: int) -> None:
    """The layout of one's own images, by links to the files; `labels` in all, the same number of each class."""
    train = arrays["y_train"]
    order = np.random.default_rng(seed).permutation(len(train))
    classes = np.unique(train)
    names = {k: str(arrays["classes"][k]) if "classes" in arrays else str(k) for k in classes}
    chosen = np.concatenate([order[train[order] == k][: labels // len(classes)] for k in classes])
    labelled = np.zeros(len(train), bool)
    labelled[chosen] = True
    for name in names.values():
        for part in ("labeled", "test"):
            (folder / part / name).mkdir(parents=True)
    (folder / "unlabeled").mkdir()
    for number, (label, known) in enumerate(zip(train, labelled, strict=True)):
        place = folder / "labeled" / names[label] if known else folder / "unlabeled"
        os.link(files / "train" / f"{number}.png", place / f"{number}.png")
    for number, label in enumerate(arrays["y_test"]):
        os.link(files / "test" / f"{number}.png", folder / "test" / names[label] / f"{number}.png")


def read_arrays(images: Path, root: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or those of the built-in source of that name."""
    if str(images) in SOURCES:
        source = load(str(images), root, Options())
        assert source.test is not None
        parts = {"train": source.train, "test": source.test}
        arrays = {f"x_{name}": part.pixels for name, part in parts.items()} | {"classes": np.array(source.classes)}
        return arrays | {f"y_{name}": part.labels for name, part in parts.items()}
    with np.load(images, allow_pickle=False) as file:
        return {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test", "classes") if key in file}


def some(arrays: dict[str, np.ndarray], train: int, test: int) -> dict[str, np.ndarray]:
    """The same with the first training images and the last test images alone."""
    rows = {"train": slice(train), "test": slice(-test, None)}
    return arrays | {f"{kind}_{part}": arrays[f"{kind}_{part}"][rows[part]] for part in rows for kind in "xy"}


def held_out(arrays: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The same without the test images: `count` training images, whatever the split, take their place."""
    order = np.random.default_rng(7).permutation(len(arrays["y_train"]))
    parts = {"train": order[:-count], "test": order[-count:]}
    chosen = {f"{kind}_{part}": arrays[f"{kind}_train"][rows] for part, rows in parts.items() for kind in "xy"}
    return arrays | chosen


def fastswa(*words: str) -> tuple[list[dict[str, Any]], float]:
    """What `fastswa WORDS… --json` prints, line by line, and the seconds it took."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "fastswa.cli", *words, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"fastswa {' '.join(words)} ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], time.perf_counter() - began


def offered(run: Path, last: dict[str, Any]) -> float:
    """The test error of the network that the run offers for use."""
    from fastswa.modelfile import read_facts

    return float(last["error"][read_facts(run / "model.safetensors").network])


def length_words(arguments: argparse.Namespace) -> list[str]:
    """How long to train: minutes as a user would ask for them, or steps in the default number of epochs."""
    if arguments.steps is None:
        return ["--minutes", arguments.minutes]
    if arguments.steps % EPOCHS:
        raise SystemExit(f"--steps {arguments.steps} is no multiple of the {EPOCHS} epochs that they are spread over.")
    return ["--epochs", str(EPOCHS), "--batch.steps", str(arguments.steps // EPOCHS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--images", dest="images_of")
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--splits", default="1,2,3")
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--minutes", default="5")
    lengths.add_argument("--steps", type=int)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--validation", type=int)
    arguments = parser.parse_args()
    splits = [int(word) for word in arguments.splits.split(",")]
    arrays = read_arrays(arguments.images, arguments.root)
    if arguments.images_of is not None:
        arrays = some(arrays, *(int(word) for word in arguments.images_of.split(",")))
    if arguments.validation is not None:
        arrays = held_out(arrays, arguments.validation)
    methods = arguments.methods.split(",")
    if arguments.keep is not None:
        with tempfile.TemporaryDirectory(dir=arguments.keep.absolute().parent) as work:
            make_files(arrays, Path(work) / "files")
            make_folder(arrays, Path(work) / "files", arguments.keep, arguments.labels, splits[0])
        return
    errors: dict[str, list[float]] = {method: [] for method in methods}
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        make_files(arrays, Path(work) / "files")
        for split in splits:
            # What held layers made of images is found by their folder, so that a second split in the same one takes
            # less time; it may do so where steps are counted.
            folder = Path(work) / (f"split-{split}" if arguments.steps is None else "images")
            shutil.rmtree(folder, ignore_errors=True)
            make_folder(arrays, Path(work) / "files", folder, arguments.labels, split)
            _, seconds = fastswa("check", str(folder))
            print(f"split {split}: checked and prepared in {seconds:.1f} s", flush=True)
            for method in methods:
                run = Path(work) / f"run-{split}-{method}"
                words = ["train", str(folder), *length_words(arguments), "--seed", str(split), "--out", str(run)]
                # The default as it is, and the baseline by the one word that makes it so.
                name, *settings = method.split("+")
                words += ["--method", name] if method != METHODS[0] else []
                words += [word for setting in settings for word in f"--{setting}".split("=", 1)]
                (result,), seconds = fastswa(*words)
                # Neither may have had less time than the other: other work while a step is measured shortens a run.
                if arguments.steps is None and not 0.8 <= seconds / (60 * float(arguments.minutes)) <= 1.25:
                    raise SystemExit(f"split {split}: {method} took {seconds:.0f} s; run this where nothing else runs")
                error = offered(run, result["last"])
                errors[method].append(error)
                rows.append({"split": split, "method": method, "error": error, "seconds": round(seconds, 1)} | result)
                steps = result["last"]["step"]
                print(f"split {split}: {method} {error:.2f}% in {seconds:.0f} s, {steps:,} steps", flush=True)
    means = {method: mean(errors[method]) for method in methods}
    ours, baseline = means[methods[0]], means[methods[-1]]
    fewer = 100 * (1 - ours / baseline)
    said = ", ".join(f"{method} {error:.2f}%" for method, error in means.items())
    print(f"mean of {len(splits)} splits: {said}: {abs(fewer):.0f}% {'fewer' if fewer >= 0 else 'more'}")
    if arguments.record is not None:
        from fastswa.training.folder import environment

        length = f"--minutes {arguments.minutes}" if arguments.steps is None else f"--steps {arguments.steps}"
        others = f" --methods {arguments.methods}" if methods != list(METHODS) else ""
        others += f" --images {arguments.images_of}" if arguments.images_of is not None else ""
        others += f" --validation {arguments.validation}" if arguments.validation is not None else ""
        record = {
            "command": f"python benchmarks/own_images.py {arguments.images.name} --labels {arguments.labels} "
            f"--splits {arguments.splits} {length}{others}",
            "error": errors,
            "fewer_errors_percent": round(fewer, 1),
            "runs": [{key: row[key] for key in ("split", "method", "error", "seconds", "last")} for row in rows],
            "environment": environment(),
        }
        arguments.record.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
