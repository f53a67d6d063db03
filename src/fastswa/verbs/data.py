"""`fastswa data`: fetch published data sets."""

from __future__ import annotations

from pathlib import Path

from fastswa.arguments import Arguments, Verb
from fastswa.errors import RequestError


def run(arguments: Arguments) -> int:
    if len(arguments.targets) != 2 or arguments.targets[0] != "download":
        raise RequestError("say `fastswa data download NAME`, with cifar10 or cifar100 for NAME.")
    from fastswa.data.download import download

    print(download(arguments.targets[1], Path(arguments.options.get("--root", "data"))).message)
    return 0


VERB = Verb(run, "data download NAME [--root FOLDER]", "fetch a data set from its publisher", {"--root": True})
