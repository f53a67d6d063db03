"""What held layers made of images, kept on the disk: the next run on the same images passes only those that are new.

A shelf is one file for each view, in $XDG_CACHE_HOME/fastswa/features (or ~/.cache/…). Its name says all that features
depend on but the image itself: layers, normalisation, arithmetic, torch and the processor's kind; and which source the
images are of. Rows are found by their image's content, so that images may be added, moved and given labels. A file
whose content is not what was written is as good as none, and what cannot be written is passed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fastswa import __version__
from fastswa.data.augment import Augment
from fastswa.whole import replacing

FORMAT = 1
# Views that are the same for every seed.
PLAIN, MIRRORED = "plain", "mirrored"
_DIGEST = 16
_ROWS = 64
# Bytes of one file, and of all of them, beyond which older ones go.
_MOST, _MOST_OF_ALL = 2 << 30, 8 << 30


def digests(images: Tensor, rows: Tensor) -> list[bytes]:
    """A name for the content of each of images[rows], of (N, H, W, C) uint8, however they lie in memory."""
    found = []
    for block in rows.split(_ROWS):
        contents = images[block].permute(0, 3, 1, 2).contiguous().numpy()
        shape = repr(contents.shape[1:]).encode()
        found += [hashlib.blake2b(content, digest_size=_DIGEST, key=shape).digest() for content in contents]
    return found


class Shelf:
    """Features of images by view: `find` and `add` as often as wanted; `write` brings what was added to the disk."""

    def __init__(self, layers: nn.Module, augment: Augment, precision: str, source: str, network: str) -> None:
        facts = f"{network} {precision}"
        self._stem = f"{_of_layers(layers, augment, facts)}-{_short(os.path.realpath(source).encode())}"
        self._views: dict[str, _View] = {}

    def find(self, view: str, wanted: list[bytes]) -> tuple[np.ndarray, Tensor | None]:
        """Which of the wanted images have features here, (N,) bool, and those, in order; None where there are none."""
        rows, features = self._view(view).rows, self._view(view).features
        known = np.array([name in rows for name in wanted], bool)
        if features is None or not known.any():
            return np.zeros(len(wanted), bool), None
        return known, features[torch.tensor([rows[name] for name in wanted if name in rows])]

    def holds(self, view: str) -> bool:
        """Whether there is any image's feature of this view."""
        return self._view(view).features is not None

    def add(self, view: str, names: list[bytes], features: Tensor) -> None:
        """Features (N, F) of images that were not found; they are read when they are written."""
        self._view(view).added.append((names, features.detach()))

    def write(self) -> bool:
        """Whether all that was added is on the disk now, with what was there, as far as there is room."""
        written = True
        for name, view in self._views.items():
            if view.added:
                with suppress(OSError, SafetensorError):
                    view.write(self._file(name))
                written &= not view.added
        with suppress(OSError):
            _prune(_folder())
        return written

    def _view(self, name: str) -> _View:
        if name not in self._views:
            self._views[name] = _View()
            with suppress(OSError, SafetensorError, KeyError, ValueError):
                self._views[name].read(self._file(name))
        return self._views[name]

    def _file(self, view: str) -> Path:
        return _folder() / f"{self._stem}-{view}.safetensors"


class _View:
    """One file's content: `features` (N, F), the `rows` in it by their images' names, and what was added since."""

    def __init__(self) -> None:
        self.rows: dict[bytes, int] = {}
        self.features: Tensor | None = None
        self.added: list[tuple[list[bytes], Tensor]] = []

    def read(self, path: Path) -> None:
        """Take over a file that is what was written."""
        with safe_open(path, framework="pt") as file:
            names, features = file.get_tensor("names"), file.get_tensor("features")
            checksum = (file.metadata() or {})["checksum"]
        if checksum != _checksum(names, features) or len(names) != len(features):
            raise ValueError(f"{path} is damaged")
        self.rows = {name.tobytes(): row for row, name in enumerate(names.numpy())}
        self.features = features
        with suppress(OSError):  # of somebody else's, which may be read
            os.utime(path)

    def write(self, path: Path) -> None:
        """The file anew, with what was added; where that is too much, without what it held before."""
        new = [features for _, features in self.added]
        names = [name for names, _ in self.added for name in names]
        size = sum(features.nbytes for features in new)
        if self.features is not None and size + self.features.nbytes <= _MOST:
            new, names = [self.features, *new], [*self.rows, *names]
            size += self.features.nbytes
        path.parent.mkdir(parents=True, exist_ok=True)
        if size > _MOST or 2 * size > shutil.disk_usage(path.parent).free:
            return
        # Of an image that is there twice the last row counts.
        rows = {name: row for row, name in enumerate(names)}
        features = torch.cat(new)[torch.tensor(list(rows.values()))]
        labels = torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, _DIGEST).copy())
        with replacing(path) as scratch:
            save_file(
                {"names": labels, "features": features}, scratch, metadata={"checksum": _checksum(labels, features)}
            )
        self.rows = {name: row for row, name in enumerate(rows)}
        self.features, self.added = features, []


def _of_layers(layers: nn.Module, augment: Augment, said: str) -> str:
    """A name for all that features depend on but the image; `said` are what the network is called and its precision."""
    timm = sys.modules.get("timm")
    facts = {
        "format": FORMAT,
        "fastswa": __version__,
        "timm": None if timm is None else timm.__version__,
        "layers": type(layers).__qualname__,
        "tensors": {name: list(tensor.shape) for name, tensor in layers.state_dict().items()},
        "standardise": augment.standardise,
        "said": said,
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=12)
    for tensor in (augment.scale, augment.shift, *layers.state_dict().values()):
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _checksum(names: Tensor, features: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (names, features):
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _short(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if home.startswith("~"):
        raise OSError("nobody knows where home is")
    return Path(home) / "fastswa" / "features"


def _prune(folder: Path) -> None:
    """Removes the files that were not used for longest, beyond what all of them may take."""
    with suppress(OSError):
        files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for path in files:
            total += path.stat().st_size
            if total > _MOST_OF_ALL:
                path.unlink(missing_ok=True)
