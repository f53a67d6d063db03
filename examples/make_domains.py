"""python examples/make_domains.py FOLDER: the embedded digits as two domains, in the layout of folders of one's own.

FOLDER/catalogue gets labelled digits as they were scanned, FOLDER/phone others as a hand might photograph them:
slanted, larger, in poor light; none of these has a label but the test images, for measuring. No digit is in both. It
needs no network, and the same files come out every time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from fastswa.data.sources.digits import load_digits

LABELLED = 600
SIDE = 12


def photographed(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(8, 8) uint8 as (12, 12): slanted to one side and turned, faint on grey paper, with grain."""
    slant = 0.35 + 0.1 * rng.standard_normal()
    picture = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    middle = (SIDE - 1) / 2
    matrix = (1.0, slant, -slant * middle, 0.15, 1.0, -0.15 * middle)
    moved = picture.transform((SIDE, SIDE), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    faint = 90 + 0.4 * np.asarray(moved, dtype=np.float64) + 15 * rng.standard_normal((SIDE, SIDE))
    return np.clip(np.rint(faint), 0, 255).astype(np.uint8)


def write_domains(folder: Path) -> dict[str, int]:
    """Write both domains under `folder`; images by part."""
    digits = load_digits()
    assert digits.test is not None
    rng = np.random.default_rng(0)
    written: dict[str, int] = {}

    def save(part: str, name: str, number: int, pixels: np.ndarray) -> None:
        path = folder / part / name / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        written[part] = written.get(part, 0) + 1

    for number, (pixels, label) in enumerate(zip(digits.train.pixels[:, 0], digits.train.labels, strict=True)):
        if number < LABELLED:
            save("catalogue/labeled", digits.classes[label], number, pixels)
        else:
            save("phone/unlabeled", "", number, photographed(pixels, rng))
    for number, (pixels, label) in enumerate(zip(digits.test.pixels[:, 0], digits.test.labels, strict=True)):
        if number % 2:
            save("catalogue/test", digits.classes[label], number, pixels)
        else:
            save("phone/test", digits.classes[label], number, photographed(pixels, rng))
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name in ("catalogue", "phone"):
        if (folder / name).exists():
            parser.error(f"{folder / name} is there already; name another folder.")
    try:
        written = write_domains(folder)
    except OSError as error:
        parser.error(f"cannot write {folder}: {error.strerror}.")
    print(", ".join(f"{count:,} in {part}/" for part, count in written.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
