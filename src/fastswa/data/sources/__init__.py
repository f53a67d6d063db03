"""Sources by name: each gives a Dataset of uint8 images; listing the names imports none of them.

A new source is one file here with a function `(root: Path) -> Dataset`, and one line in `SOURCES`.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fastswa.errors import RequestError

if TYPE_CHECKING:
    from fastswa.data.images import Dataset

SOURCES: dict[str, str] = {
    "digits": "fastswa.data.sources.digits:load_digits",
    "cifar10": "fastswa.data.sources.cifar:load_cifar10",
    "cifar100": "fastswa.data.sources.cifar:load_cifar100",
}


def load(source: str, root: Path) -> Dataset:
    """The Dataset of a registered name, or of a path to an .npz file (as given, or else under `root`).

    `root` is the folder under which downloaded sets lie; `digits` comes with the package and needs none.
    """
    root = Path(root).expanduser()
    if source in SOURCES:
        module, function = SOURCES[source].split(":")
        dataset: Dataset = getattr(import_module(module), function)(root)
        return dataset
    if source.lower().endswith(".npz"):
        from fastswa.data.sources.npz import load_npz

        path = Path(source).expanduser()
        return load_npz(root / path if not path.exists() and (root / path).exists() else path)
    known = ", ".join(SOURCES)
    near = difflib.get_close_matches(source.lower(), SOURCES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise RequestError(f"there is no data source {source!r} (known: {known}, or a path to an .npz file){hint}")
