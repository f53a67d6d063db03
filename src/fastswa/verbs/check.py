"""`fastswa check`: what a data set holds and what is wrong with it, or how two domains compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError

if TYPE_CHECKING:
    from fastswa.data.plan import Options

PAGE = "check.html"
# What `fastswa train` calls the same.
_SETTINGS = {
    "--data.root": "--root",
    "--data.size": "--size",
    "--data.channels": "--channels",
    "--data.skip_bad": "--skip-bad",
}


def run(arguments: Arguments) -> int:
    from fastswa.console import progress_bar
    from fastswa.data.plan import CHANNELS, Options

    source = arguments.target("folder, manifest, .npz file or data set")
    arguments.options |= {_SETTINGS[name]: value for name, value in arguments.options.items() if name in _SETTINGS}
    side = arguments.whole("--size", 0) if "--size" in arguments else None
    word = arguments.options.get("--channels", "auto")
    if word not in CHANNELS:
        raise RequestError(f"--channels: '{word}' is not auto, grey or rgb.")
    if side is not None and not 8 <= side <= 1024:
        raise RequestError(f"--size: {side} is not between 8 and 1024.")
    for option in ("--data.aliases", "--out"):
        if option in arguments and "--data.target" not in arguments:
            raise RequestError(f"{option} is for two domains; name the second one with --data.target.")
    with progress_bar() as progress:
        options = Options(
            size=None if side is None else (side, side),
            channels=CHANNELS[word],
            skip_bad="--skip-bad" in arguments,
            progress=progress,
        )
        check = _two_domains if "--data.target" in arguments else _one_source
        return check(arguments, source, options)


def _one_source(arguments: Arguments, source: str, options: Options) -> int:
    from fastswa.check import check_data, print_report

    report = check_data(source, Path(arguments.options.get("--root", "data")), options)
    if "--json" in arguments:
        print(json.dumps(report.to_dict()))
    else:
        print_report(report)
    return 0 if report.ok else 1


def _two_domains(arguments: Arguments, source: str, options: Options) -> int:
    from fastswa.check_domains import check_domains, print_domains
    from fastswa.layers import flag_layer
    from fastswa.report.domains_page import write_domains_page

    given = arguments.options
    words = [f"--data.aliases={given['--data.aliases']}"] if "--data.aliases" in given else []
    aliases = flag_layer(words).get("data", {}).get("aliases", {})
    root = Path(given.get("--root", "data"))
    report, dataset = check_domains(source, given["--data.target"], root, options, aliases)
    page = write_domains_page(report, dataset, Path(given.get("--out", PAGE)))
    if "--json" in arguments:
        print(json.dumps({**report.to_dict(), "page": str(page)}))
    else:
        print_domains(report)
        print(f"with images of both: {page}")
    return 0 if report.ok else 1


VERB = Verb(
    run,
    "check DATA [--skip-bad] [--data.target TARGET]",
    "what a data set holds, what is wrong with it, and the batches that would result",
    {
        "--skip-bad": False,
        "--size": True,
        "--channels": True,
        "--root": True,
        "--data.target": True,
        "--data.aliases": True,
        "--out": True,
        **{name: name != "--data.skip_bad" for name in _SETTINGS},
        **COMMON,
    },
    details=(
        "DATA: a folder with labeled/CLASS/… and unlabeled/…, a .csv/.tsv manifest, an .npz file, or digits.\n"
        "--data.root, --data.size, --data.channels and --data.skip_bad (or --root, …) are as in training.\n"
        "--data.target TARGET compares DATA with the images of another domain and writes a page with some of both\n"
        f"({PAGE}, or --out FILE); --data.aliases automobile=car says which classes are the same."
    ),
)
