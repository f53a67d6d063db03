"""`fastswa export`: a model for other programs."""

from __future__ import annotations

import json
from pathlib import Path

from fastswa.arguments import COMMON, Arguments, Verb


def run(arguments: Arguments) -> int:
    from fastswa.console import shown
    from fastswa.export import export

    exported = export(
        Path(arguments.target("run folder or model file")),
        arguments.options.get("--format", "onnx"),
        Path(arguments.options["--out"]) if "--out" in arguments else None,
        arguments.options.get("--network"),
        arguments.options.get("--layout", "nchw"),
    )
    if "--json" in arguments:
        print(json.dumps(exported.to_dict()))
        return 0
    shape = ", ".join(map(str, exported.input["shape"]))
    use = f"{exported.input['type']} {exported.input['name']} ({shape}) in, logits and probabilities out"
    if exported.format == "safetensors":
        use = f"weights, and beside them {Path(exported.out).with_suffix('.json').name} on how to use them"
    print(f"{exported.out}: {shown(exported.network)}, {exported.megabytes:.1f} MB; {use}.")
    print(
        f"On {exported.checked_on} it differs from the model by at most {exported.logit_difference:.1e} (logits) "
        f"and {exported.probability_difference:.1e} (probabilities)."
    )
    return 0


VERB = Verb(
    run,
    "export RUN [--format onnx|torch-export|safetensors]",
    "the model as one file for other programs, checked against itself",
    {"--format": True, "--network": True, "--layout": True, "--out": True, **COMMON},
    details=(
        "RUN: a run folder or a model file; --network NAME takes one of a run's other networks.\n"
        "onnx (needs `pip install '.[onnx]'` in fastswa's folder) and torch-export take uint8 images of the model's\n"
        "size, any number of them, with the normalisation inside; --layout nchw|nhwc. safetensors are the plain\n"
        "weights, and a JSON file beside them says what goes in and comes out. --out FILE (default: in RUN)."
    ),
)
