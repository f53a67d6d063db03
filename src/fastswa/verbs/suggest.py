"""`fastswa suggest`: which images to label first."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError

PAGE = "label-first.html"
# What `fastswa train` calls the same.
_SETTINGS = {"--data.root": "--root", "--data.size": "--size", "--data.channels": "--channels"}


def run(arguments: Arguments) -> int:
    from fastswa.console import progress_bar, say
    from fastswa.data.plan import CHANNELS, Options
    from fastswa.report.first_page import list_beside, write_first
    from fastswa.report.words import plural
    from fastswa.shorthands import KNOWING_SIZE
    from fastswa.suggest import COUNT, suggest

    source = arguments.target("folder, manifest or .npz file")
    given = arguments.options
    given |= {_SETTINGS[name]: value for name, value in given.items() if name in _SETTINGS}
    word = given.get("--channels", "auto")
    if word not in CHANNELS:
        raise RequestError(f"--channels: '{word}' is not auto, grey or rgb.")
    side = arguments.whole("--size", KNOWING_SIZE)
    count = arguments.whole("--count", COUNT)
    page = Path(given.get("--out", PAGE))
    list_beside(page)
    with progress_bar() as progress:
        options = Options(
            size=(side, side),
            channels=CHANNELS[word],
            skip_bad="--skip-bad" in arguments or "--data.skip_bad" in arguments,
            progress=progress,
        )
        found = suggest(
            source, Path(given.get("--root", "data")),
            count=count, options=options, device=given.get("--device", "auto"), tell=say,
        )  # fmt: skip
    for note in found.notes:
        say(note)
    listed = write_first(found, source, page)
    if "--json" in arguments:
        facts = {"page": str(page), "list": str(listed), "looked_at": found.looked_at, "labelled": found.labelled}
        paths = [found.path(int(row)) for row in found.rows]
        print(json.dumps({**facts, "images": found.rows.tolist(), "paths": paths}))
    else:
        print(f"{page}: {plural(len(found.rows), 'image')} to label first; as a list in {listed}.")
    return 0


VERB = Verb(
    run,
    "suggest DATA [--count 40] [--out FILE.html]",
    "which images to label first, before any is labelled",
    {
        "--count": True,
        "--size": True,
        "--channels": True,
        "--root": True,
        "--skip-bad": False,
        "--out": True,
        "--device": True,
        **dict.fromkeys(_SETTINGS, True),
        "--data.skip_bad": False,
        **COMMON,
    },
    details=(
        "DATA: a folder with unlabeled/… and, if some are labelled already, labeled/CLASS/…, or one with nothing but\n"
        "images; a .csv/.tsv manifest with a column path; an .npz file. Images in test/ have no part in it.\n"
        "A network that knows photographs (pip install '.[pretrained]') looks at each image once. Each suggestion\n"
        "stands for a group of images that look alike. Written to\n"
        f"{PAGE} (or --out FILE.html), with a .csv beside it.\n"
        "--data.root, --data.size (224), --data.channels and --data.skip_bad are as in training."
    ),
)
