"""`fastswa calibrate`: confidences that mean what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fastswa.arguments import COMMON, Arguments, Verb

if TYPE_CHECKING:
    from fastswa.calibrate import Calibration

FEW = 100


def run(arguments: Arguments) -> int:
    from fastswa.calibrate import calibrate_run, forget_calibration
    from fastswa.console import say, shown

    path = Path(arguments.target("run folder"))
    if "--reset" in arguments:
        forget_calibration(path)
        print(f"{path}: every temperature is 1 again.")
        return 0
    results = calibrate_run(path, arguments.options.get("--device", "auto"))
    if "--json" in arguments:
        print(json.dumps([result.to_dict() for result in results]))
    else:
        _show(results, str(path))
    images = results[0].images["validation"]
    unfitted = [shown(result.network) for result in results if result.temperature is None]
    if unfitted:
        names = ", ".join(unfitted)
        say(f"{names}: all right on the validation images, or no better than guessing; the temperature stays at 1.")
    if images < FEW and len(unfitted) < len(results):
        say(f"{images} validation images are few: the temperatures are rough.")
    return 0


def _show(results: list[Calibration], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from fastswa.console import shown

    table = Table(title=title)
    table.add_column("network")
    for name in ("temperature", "images", "NLL", "ECE"):
        table.add_column(name, justify="left" if name == "images" else "right")
    for result in results:
        cells = [shown(result.network), f"{result.temperature or 1.0:.3f}"]
        for part, before in result.before.items():
            after = result.after[part]
            figures = (f"{before.nll:.4f} → {after.nll:.4f}", f"{before.ece:.1%} → {after.ece:.1%}")
            table.add_row(*cells, f"{result.images[part]} {part}", *figures)
            cells = ["", ""]
    Console().print(table)


VERB = Verb(
    run,
    "calibrate RUN",
    "confidences that mean what they say: a temperature fitted on the run's validation images",
    {"--reset": False, "--device": True, **COMMON},
    details=(
        "The logits of each network are divided by the temperature of least negative log likelihood (NLL); no label\n"
        "changes. It is noted in the run's model files: predict, export and fastswa.load use it. ECE is the expected\n"
        "calibration error. --reset puts every temperature back to 1; a run that is resumed loses its temperatures."
    ),
)
