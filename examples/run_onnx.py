"""python examples/run_onnx.py MODEL.onnx IMAGES|FOLDER…: an exported model at work, with nothing of fastswa beside it.

Prints path,label,confidence for each image, as `fastswa predict` does. Images of another size than the model's are
scaled and cropped as they were for training. Needs onnxruntime, NumPy and Pillow.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
BATCH = 256


def read(path: Path, channels: int, height: int, width: int) -> np.ndarray:
    """(channels, height, width) uint8: upright, in the model's colours, the shorter side fitted, the overhang cut."""
    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        scale = min(image.width / width, image.height / height)
        left, top = max(image.width - width * scale, 0) / 2, max(image.height - height * scale, 0) / 2
        box = (left, top, image.width - left, image.height - top)
        image = image.resize((width, height), Image.Resampling.LANCZOS, box=box)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def classified(model: Path, files: Sequence[Path]) -> Iterator[tuple[Path, str, float]]:
    """Each file with its likeliest class and how sure the model is of it."""
    session = onnxruntime.InferenceSession(model)
    about = json.loads(session.get_modelmeta().custom_metadata_map["fastswa"])
    _, channels, height, width = about["input"]["shape"]
    for start in range(0, len(files), BATCH):
        some = files[start : start + BATCH]
        pixels = np.stack([read(file, channels, height, width) for file in some])
        (probabilities,) = session.run(["probabilities"], {"images": pixels})
        for file, row in zip(some, probabilities, strict=True):
            yield file, about["classes"][row.argmax()], float(row.max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, nargs="+")
    arguments = parser.parse_args()
    files: list[Path] = []
    for path in arguments.images:
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        files += inside if path.is_dir() else [path]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["path", "label", "confidence"])
    for file, name, confidence in classified(arguments.model, files):
        out.writerow([file, name, f"{confidence:.6g}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
