"""python benchmarks/make_recipes.py: write the recipes of the paper's tables from their descriptions."""

from __future__ import annotations

import argparse
from pathlib import Path

import fastswa
from fastswa.tables.domains import domain_files
from fastswa.tables.rows import generated, recipe_files


def main() -> None:
    folder = Path(fastswa.__file__).parent / "recipes"
    files = recipe_files() | domain_files()
    stale = [path for path in folder.glob("*.toml") if path.name not in files and generated(path.read_text("utf-8"))]
    for path in stale:
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    print(f"{len(files)} recipes written, {len(stale)} removed: {folder.name}/")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
