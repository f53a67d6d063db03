"""python examples/make_folder.py FOLDER: the embedded digits as PNG files, in the layout of a folder of one's own.

FOLDER/labeled/CLASS/ gets ten images a class (`--labels N` for another number), FOLDER/unlabeled/ the other training
images, FOLDER/test/CLASS/ the test images. It needs no network, and the same files come out every time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from fastswa.data.sources.digits import load_digits


def write_folder(folder: Path, labels: int = 10) -> Counter[str]:
    """Write the digits under `folder`, the first `labels` of each class as labelled; images by part."""
    digits = load_digits()
    assert digits.test is not None
    written: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for number, (pixels, label) in enumerate(zip(digits.train.pixels, digits.train.labels, strict=True)):
        name = digits.classes[label]
        shown[name] += 1
        part = "unlabeled" if shown[name] > labels else "labeled"
        _save(folder / part / ("" if part == "unlabeled" else name) / f"{number:04}.png", pixels[0])
        written[part] += 1
    for number, (pixels, label) in enumerate(zip(digits.test.pixels, digits.test.labels, strict=True)):
        _save(folder / "test" / digits.classes[label] / f"{number:04}.png", pixels[0])
        written["test"] += 1
    return written


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", type=int, default=10, metavar="N", help="labelled images of each class (10)")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} is there already; name a folder that is not.")
    if arguments.labels < 1:
        parser.error("--labels: each class needs one label at least.")
    try:
        written = write_folder(arguments.folder, arguments.labels)
    except OSError as error:
        parser.error(f"cannot write {arguments.folder}: {error.strerror}.")
    print(f"{arguments.folder}: " + ", ".join(f"{count:,} in {part}/" for part, count in written.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
