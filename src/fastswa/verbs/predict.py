"""`fastswa predict`: labels and confidences for images."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb
from fastswa.errors import RequestError


def run(arguments: Arguments) -> int:
    if not arguments.targets:
        raise RequestError("name a run folder or a model file, and then images, a folder, a manifest or an .npz file.")
    source, *targets = arguments.targets
    word = arguments.options.get("--part")
    if not targets and word is None:
        raise RequestError(f"name images to predict, or --part unlabelled for those that {source} was trained on.")
    from fastswa.config import DeviceConfig
    from fastswa.console import progress_bar, say
    from fastswa.data.inputs import Inputs, find_inputs, part_named
    from fastswa.modelfile import load_model
    from fastswa.predict import (
        RUN_PARTS,
        Columns,
        form_of,
        part_of_run,
        predicted,
        refuse_overwriting,
        write_predictions,
    )
    from fastswa.training.device import choose_compute, settings_of

    out = Path(arguments.options["--out"]) if "--out" in arguments else None
    form = form_of(out) if out is not None else "jsonl" if "--json" in arguments else "csv"
    refuse_overwriting(out, targets)
    top = arguments.whole("--top-k", 1) if "--top-k" in arguments else 0
    columns = Columns(top, every_class=not top or "--probabilities" in arguments)
    workers = arguments.whole("--workers", 1) if "--workers" in arguments else None
    compute = choose_compute(DeviceConfig(name=arguments.options.get("--device", "auto")))
    model = load_model(Path(source), arguments.options.get("--network")).to(compute.device)
    inputs: list[Inputs] = []
    if targets:
        inputs, notes = find_inputs(targets, None if word is None else part_named(word))
        for note in notes:
            say(note)
    elif word is not None:
        inputs = [part_of_run(Path(source), part_named(word, RUN_PARTS))]
    total = sum(map(len, inputs))
    with settings_of(compute), progress_bar(shown=out is not None) as progress:
        rows = predicted(model, inputs, workers)
        summary = write_predictions(
            rows, model.classes, out, columns, form, lambda done: progress("predicting", done, total)
        )
    if out is not None:
        facts = {"out": str(out), "images": summary.images, "failed": summary.failed}
        print(json.dumps(facts) if "--json" in arguments else f"{out}: {summary.images} images.")
    if summary.failed:
        say(f"{summary.failed} of {summary.images} images could not be read; the column error says why.")
    return 0


VERB = Verb(
    run,
    "predict RUN IMAGES|FOLDER… [--out FILE.csv]",
    "labels and confidences for images",
    {
        "--out": True,
        "--part": True,
        "--top-k": True,
        "--probabilities": False,
        "--network": True,
        "--workers": True,
        "--device": True,
        **COMMON,
    },
    details=(
        "RUN: a run folder or a model file. IMAGES: image files, folders of any depth, .csv/.tsv manifests with a\n"
        "column path, .npz files.\n"
        "--out FILE.csv|.tsv|.jsonl, else CSV (with --json: JSON lines) on standard output. An image that cannot be\n"
        "read is a row whose column error says why.\n"
        "--top-k K writes the K likeliest classes instead of every probability (both with --probabilities).\n"
        "--part labelled|unlabelled|test takes one part of a data set; without IMAGES, of the run's own images\n"
        "(those held out are its part validation).\n"
        "--network NAME takes one of a run's other networks; --workers N processes read files."
    ),
)
