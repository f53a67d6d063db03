"""Preparing a folder of PNG files: `fastswa.data.cache.prepare` beside a single-threaded Pillow loop.

    python benchmarks/prepare.py [--files 3000] [--side 28] [--repeats 3] [--colour]

Both list the folder and end with all images in one uint8 .npy file, each time in a fresh process whose start is
not counted (that of the processes it starts is; below about 10,000 small files ours starts none). Prints the best
of the repeats, their ratio and the peak memory of the largest process. The files are in the page cache: what is
measured is decoding, not the disk. results/prepare.txt keeps what came out, and what was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

LOOP = """
import json, os, resource, sys, time
import numpy as np
from PIL import Image
root, mode, target = sys.argv[1:]
begin = time.perf_counter()
paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
images = []
for path in paths:
    with Image.open(path) as image:
        images.append(np.asarray(image.convert(mode)))
array = np.stack(images)
np.save(target, array)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak": peak, "images": len(array)}))
"""

OURS = """
import json, resource, sys, time
from pathlib import Path
from fastswa.data.cache import prepare
from fastswa.data.plan import Options
from fastswa.data.sources.folder import list_folder
begin = time.perf_counter()
prepared = prepare(list_folder(Path(sys.argv[1])))
seconds = time.perf_counter() - begin
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"seconds": seconds, "peak": peak, "images": len(prepared.pixels)}))
"""


def make_files(root: Path, count: int, side: int, colour: bool) -> None:
    """`count` smooth pictures with a little noise, a tenth of them labelled, in 10 classes."""
    rng = np.random.default_rng(0)
    shape = (4, 4, 3) if colour else (4, 4)
    for number in range(count):
        place = root / (f"labeled/{number % 10}" if number % 100 < 10 else f"unlabeled/{number % 7}")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(place / f"{number}.png")


def measure(program: str, *words: str) -> dict[str, float]:
    """What a program prints, run in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--colour", action="store_true")
    arguments = parser.parse_args()
    mode = "RGB" if arguments.colour else "L"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "images"
        make_files(root, arguments.files, arguments.side, arguments.colour)
        loops, ours = [], []
        for _ in range(arguments.repeats):
            shutil.rmtree(root / ".fastswa-cache", ignore_errors=True)
            loops.append(measure(LOOP, str(root), mode, f"{folder}/loop.npy"))
            ours.append(measure(OURS, str(root)))
        assert {run["images"] for run in [*loops, *ours]} == {arguments.files}
    best, theirs = min(ours, key=lambda run: run["seconds"]), min(loops, key=lambda run: run["seconds"])
    cores = len(os.sched_getaffinity(0))
    print(f"{arguments.files} {mode} PNG files of {arguments.side}x{arguments.side}, {cores} cores")
    for name, run in (("Pillow loop", theirs), ("fastswa", best)):
        each = 1e6 * run["seconds"] / arguments.files
        print(f"{name:>12}: {run['seconds']:.2f} s, {each:.0f} µs a file, peak {run['peak'] / 1024:.0f} MB")
    print(f"ratio {theirs['seconds'] / best['seconds']:.2f}")


if __name__ == "__main__":
    main()
