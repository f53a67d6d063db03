"""The paper's studies of why averaging works, each a module that gives plain arrays, data files and a figure."""

from __future__ import annotations

# name: "module:STUDY"; nothing is imported before it is asked for.
STUDIES = {
    "gradients": "fastswa.analysis.gradients:STUDY",
    "rays": "fastswa.analysis.rays:STUDY",
    "pairs": "fastswa.analysis.pairs:STUDY",
    "jacobian": "fastswa.analysis.jacobian:STUDY",
    "schedule": "fastswa.analysis.schedule:STUDY",
    "averaging": "fastswa.analysis.averaging:STUDY",
    "teachers": "fastswa.analysis.teachers:STUDY",
    "landscape": "fastswa.analysis.landscape:STUDY",
}

# Each option, and how its text becomes a value.
OPTIONS = {
    "--epochs": "numbers",
    "--batches": "whole",
    "--points": "whole",
    "--rays": "whole",
    "--pairs": "whole",
    "--images": "whole",
    "--draws": "whole",
    "--distance": "number",
    "--margin": "number",
    "--seed": "whole",
    "--cycles": "numbers",
    "--constant": "numbers",
    "--until": "whole",
}
