"""`fastswa average`: the mean of several checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb


def run(arguments: Arguments) -> int:
    from fastswa.average import average
    from fastswa.console import print_figures, say

    result = average(
        arguments.targets,
        Path(arguments.options.get("--out", "average.safetensors")),
        say,
        data=arguments.options.get("--data"),
        root=arguments.options.get("--root", "data"),
        model=arguments.options.get("--model"),
        network=arguments.options.get("--network"),
        refresh="--no-refresh" not in arguments,
        device=arguments.options.get("--device", "auto"),
    )
    if "--json" in arguments:
        print(json.dumps(result.to_dict()))
        return 0
    if result.figures:
        print_figures(result.figures, title=f"the mean of {len(result.averaged)} checkpoints")
    print(f"{result.out}: the mean of {len(result.averaged)} checkpoints. {result.note}")
    return 0


VERB = Verb(
    run,
    "average A B … [--data DATA|RUN]",
    "the mean of checkpoints of one architecture, batch norm refreshed",
    {
        "--data": True,
        "--root": True,
        "--out": True,
        "--model": True,
        "--network": True,
        "--no-refresh": False,
        "--device": True,
        **COMMON,
    },
    details=(
        "A, B, …: model files, run folders, RUN@EPOCH (--network teacher takes another than the student), plain\n"
        ".safetensors, or torch's .pt and Lightning's .ckpt files. Batch-norm statistics are refreshed on training\n"
        "batches of --data: a run, a recipe or your own images (default: the run that the checkpoints come from).\n"
        "--model timm:NAME names the network of foreign checkpoints; --no-refresh keeps the last one's statistics.\n"
        "--out FILE (average.safetensors); --root FOLDER holds downloaded data sets (data)."
    ),
)
