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
    from fastswa.data.images import Dataset, ImageFiles
    from fastswa.data.plan import Options

SOURCES: dict[str, str] = {
    "digits": "fastswa.data.sources.digits:load_digits",
    "cifar10": "fastswa.data.sources.cifar:load_cifar10",
    "cifar100": "fastswa.data.sources.cifar:load_cifar100",
    "stl10": "fastswa.data.sources.stl10:load_stl10",
    "mnist": "fastswa.data.sources.mnist:load_mnist",
    "usps": "fastswa.data.sources.mnist:load_usps",
    "usps-margin": "fastswa.data.sources.mnist:load_usps_margin",
}
MANIFESTS = (".csv", ".tsv")
_OWN = "a folder, a .csv/.tsv manifest or an .npz file"


def load(source: str, root: Path, options: Options | None = None) -> Dataset:
    """The Dataset of a registered name, or of a path to one's own data (as given, or else under `root`).

    One's own data are a folder, a .csv or .tsv manifest, or an .npz file; images come in the size and colour that
    `options` say, if they do.
    `root` is the folder under which downloaded sets lie; `digits` comes with the package and needs none.
    """
    root = Path(root).expanduser()
    if source in SOURCES or source.lower().endswith(".npz"):
        from fastswa.data.fit import fit_dataset

        return fit_dataset(_arrays(source, root), options)
    files = list_files(source, root, options)
    from fastswa.data.cache import load_files

    return load_files(files, options)


def _arrays(source: str, root: Path) -> Dataset:
    """The Dataset of a registered name or an .npz file."""
    if source not in SOURCES:
        from fastswa.data.sources.npz import load_npz

        return load_npz(place(source, root))
    module, function = SOURCES[source].split(":")
    dataset: Dataset = getattr(import_module(module), function)(root)
    return dataset


def list_files(source: str, root: Path, options: Options | None = None) -> ImageFiles:
    """The image files of a folder or manifest."""
    path = place(source, Path(root).expanduser())
    if path.suffix.lower() in MANIFESTS and not path.is_dir():
        from fastswa.data.sources.manifest import list_manifest

        return list_manifest(path, skip_bad=options is not None and options.skip_bad)
    if path.is_dir():
        from fastswa.data.sources.folder import list_folder

        return list_folder(path)
    refuse_other_file(source, path)
    near = difflib.get_close_matches(source.lower(), SOURCES, n=1, cutoff=0.5)
    if near and not is_own_data(source):
        raise RequestError(
            f"there is no data source {source!r} (known: {', '.join(SOURCES)}), "
            f"nor a folder, manifest or .npz file of that name here; did you mean {near[0]!r}?"
        )
    if path.is_absolute():
        raise RequestError(f"{source}: there is no such folder or file.")
    other = "" if is_own_data(source) else f", nor a data source of that name (known: {', '.join(SOURCES)})"
    raise RequestError(
        f"{source}: there is no such folder or file, neither here nor under {root} (data.root){other}; "
        "run the command where the path begins, or set data.root to that folder."
    )


def refuse_other_file(source: str, path: Path) -> None:
    """RequestError where there is a file, but of no kind that images come in."""
    if path.is_file():
        raise RequestError(f"{source} is a file of another kind; images of your own come as {_OWN}.")


def is_own_data(source: str) -> bool:
    """Whether the word means data of one's own: a folder, a manifest or an .npz file."""
    if source in SOURCES:
        return False
    path = Path(source).expanduser()
    return path.suffix.lower() in (*MANIFESTS, ".npz") or path.is_dir() or "/" in source or "\\" in source


def place(source: str, root: Path) -> Path:
    """Where a path leads: as given or, if nothing is there, under `root`."""
    path = Path(source).expanduser()
    return root / path if not path.exists() and (root / path).exists() else path
