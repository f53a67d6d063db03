"""python examples/run_onnx.py MODEL.onnx IMAGES|FOLDER…: an exported model at work, with nothing of fastswa beside it.

Prints path,label,confidence for each image, in the order of `fastswa predict`; what cannot be read is named on standard
error and left out. Images of another size or kind than the model's are made like those that it was trained on. Needs
onnxruntime, NumPy and Pillow.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "DIB")  # what a file is counts, not what it is called
MAX_PIXELS = 64_000_000
BATCH = 256


def plain(image: Image.Image, mode: str) -> Image.Image:
    """The picture in 8 bits and the colours of `mode`: 16-bit grey scaled down, transparent pixels on white."""
    if image.mode.startswith("I"):
        wide = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        if "transparency" in image.info:
            wide[wide == image.info["transparency"]] = 65535
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8)).convert(mode)
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image.convert("RGBA")).convert("RGB")
    return (image if image.mode == "L" else image.convert("RGB")).convert(mode)


def images_under(folder: str, entered: set[str]) -> Iterator[str]:
    """The images of a folder by name, then those of each folder within it; hidden ones are passed over."""
    place = os.path.realpath(folder)
    if place in entered:  # a link led back here
        return
    entered.add(place)
    paths = [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    yield from (path for path in paths if Path(path).suffix.lower() in SUFFIXES and is_file(path))
    for inner in filter(os.path.isdir, paths):
        yield from images_under(inner, entered)


def is_file(path: str) -> bool:
    """Whether it is a file, or a link that leads nowhere, which reading will say; not a pipe, which would never end."""
    return os.path.isfile(path) or (os.path.islink(path) and not os.path.exists(path))


def read(path: str, channels: int, height: int, width: int) -> np.ndarray:
    """(channels, height, width) uint8: upright, in the model's colours, the shorter side fitted, the overhang cut."""
    with Image.open(path, formats=FORMATS) as opened:
        if opened.width * opened.height > MAX_PIXELS:
            raise ValueError(f"has more than {MAX_PIXELS // 10**6} million pixels")
        image = plain(ImageOps.exif_transpose(opened), "L" if channels == 1 else "RGB")
    if image.size != (width, height):
        scale = min(image.width / width, image.height / height)
        left, top = max(image.width - width * scale, 0) / 2, max(image.height - height * scale, 0) / 2
        box = (left, top, image.width - left, image.height - top)
        image = image.resize((width, height), Image.Resampling.LANCZOS, box=box)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def classified(model: Path, files: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """Each file that can be read with its likeliest class and how sure the model is of it."""
    session = onnxruntime.InferenceSession(model)
    about = json.loads(session.get_modelmeta().custom_metadata_map["fastswa"])
    last = about["input"]["layout"] == "NHWC"
    _, *shape = about["input"]["shape"]
    channels, height, width = (shape[2], *shape[:2]) if last else shape
    for start in range(0, len(files), BATCH):
        some = {}
        for file in files[start : start + BATCH]:
            try:
                some[file] = read(file, channels, height, width)
            except (OSError, ValueError, SyntaxError) as error:
                print(f"{file} is left out: {error}", file=sys.stderr)
        if not some:
            continue
        pixels = np.stack(list(some.values()))
        if last:
            pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        (probabilities,) = session.run(["probabilities"], {"images": pixels})
        for file, row in zip(some, probabilities, strict=True):
            yield file, about["classes"][row.argmax()], float(row.max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, nargs="+")
    arguments = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = None  # Pillow warns at a number of its own; MAX_PIXELS is the limit here
    for path in (arguments.model, *arguments.images):
        if not path.exists():
            parser.error(f"{path}: there is no such file or folder.")
    files: list[str] = []
    for path in arguments.images:
        files += images_under(str(path), set()) if path.is_dir() else [str(path)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    try:
        out.writerow(["path", "label", "confidence"])
        for file, name, confidence in classified(arguments.model, files):
            out.writerow([file, name, f"{confidence:.6g}"])
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as after `| head`; nor must Python try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
